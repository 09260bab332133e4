"""The data sets by name: road scenes with class labels, and with masks of anomalies.

docs/data-sets.md names their sources and the split rules that the layouts follow. Benchmarks keep
the labels of their test frames: write maps of those frames.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from segunc.core.errors import InputError
from segunc.core.registry import Registry
from segunc.data.entries import DatasetEntry
from segunc.data.labels import label_map
from segunc.data.layouts import Layout, Part, same_folders
from segunc.data.masks import BINARY, ROAD_ANOMALY, WHITE_ANOMALIES, AnomalyEncoding

Words = tuple[str, ...] | Mapping[str, tuple[str, ...]]
"""Names of splits, or the words of each that stand in the names of its folders."""
CITYSCAPES_IMAGES = "leftImg8bit/{}/*_leftImg8bit"
"""The images of Cityscapes, and of sets in its form."""


def _layout(images: str, labels: str, splits: Words, **more: Any) -> Layout:
    """Return the layout of ``FOLDER/*ENDING``.

    Each ``{}`` stands for a word of a split, see :func:`same_folders`.
    """
    image_folder, _, image_ending = images.partition("/*")
    label_folder, _, label_ending = labels.partition("/*")
    parts = same_folders(image_folder, label_folder, splits)
    return Layout(parts, image_ending, label_ending, **more)


def _entry(
    name: str, files: Sequence[tuple[str, str]], splits: Words, **meaning: Any
) -> DatasetEntry:
    """Return the entry of a set with a layout for each pair of images and labels."""
    layouts = tuple(_layout(images, labels, splits) for images, labels in files)
    return DatasetEntry(name, layouts, **meaning)


# BDD100K (10k images with semantic labels) and BDD-Anomaly, the CAOS benchmark's split of it.
# Networks are trained and selected on the frames of train and val that hold no anomaly, and tested
# on those of both that hold one (Hendrycks et al., 1911.11132; ``create_bdd_dataset.py``). The
# script, and the paper's last version with its 6,280, 910 and 810 frames, declare train, motorcycle
# and bicycle anomalies. ObsNet (Besnier et al., ICCV 2021), ABNN (Franchi et al., 2312.15297) and
# others keep bicycle as the 17th known class: numbers of the two do not compare. Unlabelled pixels,
# normal in the script, are ignored, as in every set.

_BDD = [("images/10k/{}", "labels/sem_seg/masks/{}"), ("seg/images/{}", "seg/labels/{}/*_train_id")]


_BDD_ANOMALIES = ("train", "motorcycle", "bicycle")


@cache  # so that the label map is read once, and not on import
def _bdd_anomaly_ids() -> frozenset[int]:
    return label_map("cityscapes-train-ids").raw_ids(_BDD_ANOMALIES)


def _holds_bdd_anomaly(values: frozenset[int]) -> bool:
    return not values.isdisjoint(_bdd_anomaly_ids())


def _holds_no_bdd_anomaly(values: frozenset[int]) -> bool:
    return values.isdisjoint(_bdd_anomaly_ids())


def _divided_by_anomaly(layout: Layout) -> Layout:
    """Return a layout whose frames with an anomaly are moved from their splits to test."""
    splits: dict[str, tuple[Part, ...]] = {}
    test: list[Part] = []
    for split, (part,) in layout.splits.items():
        splits[split] = (replace(part, holds=_holds_no_bdd_anomaly),)
        test.append(replace(part, prefix=f"{split}/", holds=_holds_bdd_anomaly))
    splits["test"] = tuple(test)
    return replace(layout, splits=splits)


def _bdd_anomaly() -> DatasetEntry:
    whole = _entry(
        "bdd-anomaly",
        _BDD,
        ("train", "val"),
        labels="cityscapes-train-ids",
        anomaly_classes=_BDD_ANOMALIES,
    )
    return replace(whole, layouts=tuple(_divided_by_anomaly(layout) for layout in whole.layouts))


# StreetHazards of the CAOS benchmark: simulated streets (Hendrycks et al., 1911.11132); anomalies
# in test alone.  The values in the files are one more than the class numbers of its code, which
# gives the anomaly 13: 14 here. Class 0, "unlabeled", is sky and what the simulator names nothing;
# the benchmark trains it as a class, and so do we.

_STREETS_FILES = [("{0}/images/{1}", "{0}/annotations/{1}"), ("images/{1}", "annotations/{1}")]
_STREETS = {
    "train": ("train", "training"),
    "val": ("train", "validation"),
    "test": ("test", "test"),
}
"""Split -> archive it comes in, and its folder's name there."""

# Mapillary Vistas: the 66 classes of version 1.2 (1.1 before), which the archive of 2.0 holds, too;
# "Unlabeled", the last, is ignored. Ids are positions in ``config_v1.2.json``, names the readable
# ones there.

_MAPILLARY_FILES = [("{}/images", "{}/v1.2/labels"), ("{}/images", "{}/labels")]
"""As they lie in the archive of 2.0, and in that of 1.2."""
_MAPILLARY = {"train": ("training",), "val": ("validation",)}

_TEST: Words = {"test": (), "all": ()}

# Road Anomaly, and five sets in the form of an archive that university courses share:
# ``SET/images`` and ``SET/labels_masks``. These are the validation frames of SegmentMeIfYouCan's
# two tracks, those of Fishyscapes, and Road Anomaly. Image formats differ (jpg, webp, png), masks
# are PNG files of the image's name.

_COURSE = {
    "course-road-anomaly-21": ("RoadAnomaly21/", BINARY),
    "course-road-obstacle-21": ("RoadObsticle21/", BINARY),
    "course-fs-lost-and-found": ("FS_LostFound_full/", BINARY),
    "course-fs-static": ("fs_static/", BINARY),
    "course-road-anomaly": ("RoadAnomaly/", ROAD_ANOMALY),
}
"""Name -> folder in the archive (spelled as there) and encoding."""


def _road_anomaly() -> DatasetEntry:
    def without_folder(label: str) -> str:
        return label.removesuffix("/labels_semantic").removesuffix(".labels")

    layouts = (
        _layout("frames", "frames/*labels_semantic", _TEST, label_stem=without_folder),
        _layout("images", "labels_masks", _TEST),
        _layout("images", "labels", _TEST),
    )
    return DatasetEntry("road-anomaly", layouts, anomaly_masks=ROAD_ANOMALY)


def _course_set(name: str, folder: str, encoding: AnomalyEncoding) -> DatasetEntry:
    """Return a set of the archive, whose root may be the archive's or the set's own folder."""
    files = [(f"{folder}images", f"{folder}labels_masks"), ("images", "labels_masks")]
    return _entry(name, files, _TEST, anomaly_masks=encoding)


def _folder(name: str, encoding: AnomalyEncoding) -> DatasetEntry:
    """Return the set of a user's own folders, with or without folders for splits."""
    splits = {
        "all": ("",),
        "train": ("train/",),
        "val": ("val/",),
        "test": ("test/",),
    }
    files = [("{}images", "{}labels_masks"), ("{}images", "{}labels")]
    return _entry(name, files, splits, anomaly_masks=encoding)


_TRAIN = ("train", "val")
_WHITE = AnomalyEncoding("white", frozenset({0}), frozenset({255}))
_STREETHAZARDS = _entry(
    "streethazards",
    _STREETS_FILES,
    _STREETS,
    labels="streethazards",
    anomaly_classes=("anomaly",),
)

ENTRIES = (
    _entry("camvid", [("{}", "{}annot")], ("train", "val", "test"), labels="camvid"),
    _entry(
        "cityscapes",
        [(CITYSCAPES_IMAGES, "gtFine/{}/*_gtFine_labelIds")],
        _TRAIN,
        labels="cityscapes",
    ),
    _entry("bdd100k", _BDD, _TRAIN, labels="cityscapes-train-ids"),
    _bdd_anomaly(),
    _entry(
        "idd-lite",
        [("leftImg8bit/{}/*_image", "gtFine/{}/*_label")],
        _TRAIN,
        labels="idd-lite",
    ),
    _entry("idd", [(CITYSCAPES_IMAGES, "gtFine/{}/*_gtFine_labellevel3Ids")], _TRAIN, labels="idd"),
    _entry("mapillary", _MAPILLARY_FILES, _MAPILLARY, labels="mapillary"),
    _STREETHAZARDS,
    _entry(
        "toy",
        [(CITYSCAPES_IMAGES, "gtFine/{}/*_gtFine_labelIds")],
        ("train", "val", "test", "anomaly"),
        labels="toy",
    ),
    _entry(
        "toy-anomaly",
        [(CITYSCAPES_IMAGES, "gtAnomaly/{}/*_anomaly")],
        ("anomaly",),
        anomaly_masks=BINARY,
    ),
    _road_anomaly(),
    *(_course_set(name, folder, encoding) for name, (folder, encoding) in _COURSE.items()),
    _folder("folder", BINARY),
    _folder(WHITE_ANOMALIES, _WHITE),
)
_ENTRIES = {entry.name: entry for entry in sorted(ENTRIES, key=lambda entry: entry.name)}
DATASETS: Registry[DatasetEntry] = Registry("data set", "segunc.datasets", _ENTRIES)
"""What configurations and commands can name; a data set of one's own is one more
:class:`DatasetEntry` in it.
"""


def dataset_entry(
    name: str,
    *,
    labels: str | None = None,
    anomaly_classes: Iterable[str] = (),
    frames: str | Path | None = None,
) -> DatasetEntry:
    """Return the entry of a data set by name.

    Args:
        labels: name or CSV path of a label map instead of the set's own: its label files are then
            class labels.
        frames: a CSV with the columns split,image,label, in the place of the set's own layouts.
        anomaly_classes: names of its label map's classes that are anomalies, beside those it has.

    Raises:
        InputError: the name or an anomaly class is unknown, or fewer than two classes are left.
    """
    entry = DATASETS[name]
    if labels is not None:
        entry = replace(entry, labels=labels, anomaly_masks=None)
    if frames is not None:
        entry = replace(entry, listed=Path(frames))
    declared = tuple(anomaly_classes)
    if declared:
        entry = replace(entry, declared=declared)
        entry.label_map()  # unknown names are an error here and not after an hour
    return entry


def entry_of_labels(
    name: str | None,
    labels: str | None,
    anomaly_classes: Collection[str] = (),
    frames: str | None = None,
) -> DatasetEntry | None:
    """Return the data set that folders of labels belong to, None if there is nothing to tell it.

    It is the set of the name, that set with other ``labels``, or these alone. The arguments are
    those of :func:`dataset_entry`.
    """
    if not name and not labels:
        if anomaly_classes:
            raise InputError(
                "--anomaly-class needs the data set that the classes belong to",
                hint="e.g. --dataset camvid",
            )
        return None
    return dataset_entry(
        name or "folder", labels=labels, anomaly_classes=anomaly_classes, frames=frames
    )
