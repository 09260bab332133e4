"""Any folder of images and labels: anomaly masks, or class labels where a label map is given."""

from __future__ import annotations

from segunc.data.anomaly_labels import BINARY
from segunc.data.entry import DatasetEntry
from segunc.data.layout import Layout, Part, same_folders

ENTRIES = (
    DatasetEntry(
        name="folder",
        source="your own files",
        listing="the layout of this project",
        layout="ROOT/images/NAME.* with ROOT/labels/NAME.png or ROOT/labels_masks/NAME.png, below ROOT/SPLIT unless "
        "the split is `all`",
        layouts=tuple(
            Layout(
                {
                    "all": (Part("images", labels),),
                    **same_folders("{}/images", f"{{}}/{labels}", ("train", "val", "test")),
                }
            )
            for labels in ("labels_masks", "labels")
        ),
        anomaly_masks=BINARY,
    ),
)
