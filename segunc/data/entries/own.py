"""Data of one's own, and the toy road scenes."""

from __future__ import annotations

from segunc.data.entry import BINARY, DatasetEntry
from segunc.data.layout import Layout, Part, same_folders

ENTRIES: tuple[DatasetEntry, ...] = (
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


SOURCE = "`segunc demo`, or generate_toy of segunc.toyroads"
LISTING = "https://github.com/mcordts/cityscapesScripts#dataset-structure"

ENTRIES += (
    DatasetEntry(
        name="toy",
        source=SOURCE,
        listing=LISTING,
        layout="ROOT/leftImg8bit/SPLIT/CITY/*_leftImg8bit.png with ROOT/gtFine/SPLIT/CITY/*_gtFine_labelIds.png",
        layouts=(
            Layout(
                same_folders("leftImg8bit/{}", "gtFine/{}", ("train", "val", "test", "anomaly")),
                image_ending="_leftImg8bit",
                label_ending="_gtFine_labelIds",
            ),
        ),
        labels="toy",
    ),
    DatasetEntry(
        name="toy-anomaly",
        source=SOURCE,
        listing=LISTING,
        layout="ROOT/leftImg8bit/anomaly/CITY/*_leftImg8bit.png with ROOT/gtAnomaly/anomaly/CITY/*_anomaly.png",
        layouts=(
            Layout(
                same_folders("leftImg8bit/{}", "gtAnomaly/{}", ("anomaly",)),
                image_ending="_leftImg8bit",
                label_ending="_anomaly",
            ),
        ),
        anomaly_masks=BINARY,
    ),
)
