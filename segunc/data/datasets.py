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
from segunc.data.layouts import Layout, same_folders
from segunc.data.masks import BINARY, ROAD_ANOMALY, WHITE_ANOMALIES, AnomalyEncoding

Words = tuple[str, ...] | Mapping[str, tuple[str, ...]]
FRAMES = "leftImg8bit/{}/*_leftImg8bit"  # the images of Cityscapes, and of sets in its form


def _layout(images: str, labels: str, splits: Words, **more: Any) -> Layout:
    """Return the layout of ``FOLDER/*ENDING``, whose ``{}`` are words of the splits
    (:func:`same_folders`).
    """
    (images, _, image_ending), (labels, _, label_ending) = (
        images.partition("/*"),
        labels.partition("/*"),
    )
    return Layout(same_folders(images, labels, splits), image_ending, label_ending, **more)


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


def _bdd_anomaly() -> DatasetEntry:
    anomalies = "train", "motorcycle", "bicycle"
    ids = cache(lambda: label_map("cityscapes-train-ids").raw_ids(anomalies))  # not on import

    def divided(layout: Layout) -> Layout:
        parts = {split: part for split, (part,) in layout.splits.items()}
        without = {
            split: (replace(part, holds=lambda values: values.isdisjoint(ids())),)
            for split, part in parts.items()
        }
        test = tuple(
            replace(part, prefix=f"{split}/", holds=lambda values: not values.isdisjoint(ids()))
            for split, part in parts.items()
        )
        return replace(layout, splits={**without, "test": test})

    whole = _entry(
        "bdd-anomaly",
        _BDD,
        ("train", "val"),
        labels="cityscapes-train-ids",
        anomaly_classes=anomalies,
    )
    return replace(whole, layouts=tuple(map(divided, whole.layouts)))


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

    published = _layout("frames", "frames/*labels_semantic", _TEST, label_stem=without_folder)
    others = (_layout("images", labels, _TEST) for labels in ("labels_masks", "labels"))
    return DatasetEntry("road-anomaly", (published, *others), anomaly_masks=ROAD_ANOMALY)


def _folder(name: str, encoding: AnomalyEncoding) -> DatasetEntry:
    splits = {"all": ("",), **{split: (f"{split}/",) for split in ("train", "val", "test")}}
    files = [("{}images", f"{{}}{labels}") for labels in ("labels_masks", "labels")]
    return _entry(name, files, splits, anomaly_masks=encoding)


_TRAIN = "train", "val"

ENTRIES = (
    _entry("camvid", [("{}", "{}annot")], (*_TRAIN, "test"), labels="camvid"),
    _entry("cityscapes", [(FRAMES, "gtFine/{}/*_gtFine_labelIds")], _TRAIN, labels="cityscapes"),
    _entry("bdd100k", _BDD, _TRAIN, labels="cityscapes-train-ids"),
    _bdd_anomaly(),
    _entry(
        "idd-lite", [("leftImg8bit/{}/*_image", "gtFine/{}/*_label")], _TRAIN, labels="idd-lite"
    ),
    _entry("idd", [(FRAMES, "gtFine/{}/*_gtFine_labellevel3Ids")], _TRAIN, labels="idd"),
    _entry("mapillary", _MAPILLARY_FILES, _MAPILLARY, labels="mapillary"),
    _entry(
        "streethazards",
        _STREETS_FILES,
        _STREETS,
        labels="streethazards",
        anomaly_classes=("anomaly",),
    ),
    _entry(
        "toy", [(FRAMES, "gtFine/{}/*_gtFine_labelIds")], (*_TRAIN, "test", "anomaly"), labels="toy"
    ),
    _entry("toy-anomaly", [(FRAMES, "gtAnomaly/{}/*_anomaly")], ("anomaly",), anomaly_masks=BINARY),
    _road_anomaly(),
    *(
        _entry(
            name,
            [(f"{top}images", f"{top}labels_masks") for top in (folder, "")],
            _TEST,
            anomaly_masks=code,
        )
        for name, (folder, code) in _COURSE.items()
    ),
    _folder("folder", BINARY),
    _folder(WHITE_ANOMALIES, AnomalyEncoding("white", frozenset({0}), frozenset({255}))),
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

    InputError for an unknown name, for anomaly classes that are none of the set's, or where fewer
    than two classes are left.
    """
    entry = DATASETS[name]
    if labels is not None:
        entry = replace(entry, labels=labels, anomaly_masks=None)
    if frames is not None:
        entry = replace(entry, listed=Path(frames))
    if declared := tuple(anomaly_classes):
        entry = replace(entry, declared=declared)
        entry.label_map()  # unknown names are an error here and not after an hour
    return entry


def entry_of_labels(
    name: str | None,
    labels: str | None,
    anomaly_classes: Collection[str] = (),
    frames: str | None = None,
) -> DatasetEntry | None:
    """Return the data set of the name, or of that name with other ``labels``, or these alone, for
    folders of labels; None of neither. The arguments are those of :func:`dataset_entry`.
    """
    if anomaly_classes and not (name or labels):
        raise InputError(
            "--anomaly-class needs the data set that the classes belong to",
            hint="e.g. --dataset camvid",
        )
    if not (name or labels):
        return None
    return dataset_entry(
        name or "folder", labels=labels, anomaly_classes=anomaly_classes, frames=frames
    )
