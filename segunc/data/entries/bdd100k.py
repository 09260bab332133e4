"""BDD100K (10k images with semantic labels) and BDD-Anomaly, the CAOS benchmark's split of it.

BDD-Anomaly declares train, motorcycle and bicycle anomalies: networks are trained and selected on the frames of train
and val that hold none, and tested on those of both that hold one (Hendrycks et al., 1911.11132; ``create_bdd_dataset.py``).
Its script counts unlabelled pixels as normal; here they are ignored, as in every set.
"""

from __future__ import annotations

from functools import cache

from segunc.data.entry import DatasetEntry
from segunc.data.labels import label_map
from segunc.data.layout import Layout, Part, same_folders

LABELS = "cityscapes-train-ids"
ANOMALY_CLASSES = ("train", "motorcycle", "bicycle")
SOURCE = "https://bdd-data.berkeley.edu, after registration, under the licence of BDD100K"
LAYOUT = (
    "ROOT/images/10k/SPLIT/*.jpg with ROOT/labels/sem_seg/masks/SPLIT/*.png, "
    "or ROOT/seg/images/SPLIT/*.jpg with ROOT/seg/labels/SPLIT/*_train_id.png"
)
FORMS = (("images/10k/{}", "labels/sem_seg/masks/{}", ""), ("seg/images/{}", "seg/labels/{}", "_train_id"))
"""Image folder, label folder and label ending of the present form and of the first."""


@cache
def _anomaly_ids() -> frozenset[int]:
    return label_map(LABELS).raw_ids(ANOMALY_CLASSES)


def _anomalous(values: frozenset[int]) -> bool:
    return not values.isdisjoint(_anomaly_ids())


def _known(values: frozenset[int]) -> bool:
    return not _anomalous(values)


def _anomaly_splits(images: str, labels: str) -> dict[str, tuple[Part, ...]]:
    folders = {split: (images.format(split), labels.format(split)) for split in ("train", "val")}
    return {
        **{split: (Part(*both, holds=_known),) for split, both in folders.items()},
        "test": tuple(Part(*both, prefix=f"{split}/", holds=_anomalous) for split, both in folders.items()),
    }


ENTRIES = (
    DatasetEntry(
        name="bdd100k",
        source=SOURCE,
        listing="https://github.com/bdd100k/bdd100k/blob/master/doc/source/download.rst",
        layout=LAYOUT,
        layouts=tuple(
            Layout(same_folders(images, labels, ("train", "val")), label_ending=ending)
            for images, labels, ending in FORMS
        ),
        labels=LABELS,
        withheld={"test": "they were never published"},
    ),
    DatasetEntry(
        name="bdd-anomaly",
        source=SOURCE,
        listing="https://github.com/hendrycks/anomaly-seg/blob/master/create_bdd_dataset.py",
        layout=f"{LAYOUT}; SPLIT is train and val, the split test is made of both",
        layouts=tuple(Layout(_anomaly_splits(images, labels), label_ending=ending) for images, labels, ending in FORMS),
        labels=LABELS,
        anomaly_classes=ANOMALY_CLASSES,
    ),
)
