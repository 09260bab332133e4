"""Fishyscapes (Blum et al. 2021): the public validation sets of its Lost and Found and Static parts.

Published are label files ``NUMBER_FRAME_labels.png``; the images belong to other sets. Those of Lost and Found are the
frames of that name. Those of Static have to be made: the overlay ``NUMBER_FRAME_rgb.npz`` added to the Cityscapes
frame and clipped to 0..255 (``fishyscapes_tfds.py`` of the authors); this is not done here.
"""

from __future__ import annotations

import re

from segunc.data.anomaly_labels import BINARY
from segunc.data.entry import DatasetEntry
from segunc.data.layout import Layout, Part

SOURCE = "https://fishyscapes.com/dataset"
LISTING = "https://github.com/hermannsblum/bdl-benchmark/blob/master/bdlb/fishyscapes/fishyscapes_tfds.py"
WITHHELD = {"test": "they are kept by the benchmark"}


def _numberless(name: str) -> str:
    """The Lost and Found frame of a label, which has a running number before it."""
    return re.sub(r"^\d{4}_", "", name).removesuffix("_labels")


def _val(images: str, labels: str) -> dict[str, tuple[Part, ...]]:
    return {"val": (Part(images, labels),)}


_LABELS = "fishyscapes_lostandfound"
_COMPOSED = Layout(_val("original", "labels"))
"""Images and labels of one name, as several public projects keep the composed sets."""

ENTRIES = (
    DatasetEntry(
        name="fishyscapes-laf",
        source=f"{SOURCE} (labels) and http://www.6d-vision.com/lostandfounddataset (images)",
        listing=LISTING,
        layout=f"ROOT/{_LABELS}/*_labels.png with the Lost and Found images in ROOT/leftImg8bit/SPLIT/SCENE or "
        "ROOT/laf_images, or ROOT/original/NAME.png with ROOT/labels/NAME.png",
        layouts=(
            *(
                Layout(
                    _val(images, _LABELS),
                    image_ending="_leftImg8bit",
                    label_ending="_labels",
                    label_stem=_numberless,
                    labels_choose=True,
                )
                for images in ("leftImg8bit", "laf_images")
            ),
            _COMPOSED,
        ),
        anomaly_masks=BINARY,
        withheld=WITHHELD,
    ),
    DatasetEntry(
        name="fishyscapes-static",
        source=f"{SOURCE} (labels and overlays) and https://www.cityscapes-dataset.com (images)",
        listing=LISTING,
        layout="ROOT/fs_static_images/*_rgb.png, made of the overlays in ROOT/fs_val_v3 and Cityscapes, with "
        "ROOT/fs_val_v3/*_labels.png, or ROOT/original/NAME.png with ROOT/labels/NAME.png",
        layouts=(
            Layout(_val("fs_static_images", "fs_val_v3"), image_ending="_rgb", label_ending="_labels"),
            _COMPOSED,
        ),
        anomaly_masks=BINARY,
        withheld=WITHHELD,
    ),
)
