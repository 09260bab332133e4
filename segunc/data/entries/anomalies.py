"""Road scenes with labelled anomalies.

The labels of the test frames are kept by the benchmark: write maps of them and export those.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from segunc.data.entry import BINARY, ROAD_ANOMALY, AnomalyEncoding, DatasetEntry
from segunc.data.layout import Layout, Part

OBSTACLES_LEFT_OUT = tuple(f"validation_{number}" for number in (19, *range(21, 30)))
"""Beginnings of names that the benchmark's code takes out of the validation frames, to have 30."""


def _anomaly_track(name: str) -> bool:
    return name.startswith("validation")


def _obstacle_track(name: str) -> bool:
    return name.startswith("validation_") and not name.startswith(OBSTACLES_LEFT_OUT)


def _track(name: str, folder: str, suffix: str, keep: Callable[[str], bool]) -> DatasetEntry:
    layouts = tuple(
        Layout(
            {"validation": (Part(f"{below}images", f"{below}labels_masks", keep=keep),)},
            label_ending="_labels_semantic",
        )
        for below in (f"{folder}/", "")
    )
    return DatasetEntry(
        name=name,
        source="https://segmentmeifyoucan.com/datasets",
        listing="https://github.com/SegmentMeIfYouCan/road-anomaly-benchmark/blob/master/road_anomaly_benchmark/"
        "datasets/tracks.py",
        layout=f"ROOT/{folder}/images/*.{suffix} with ROOT/{folder}/labels_masks/*_labels_semantic.png, or without "
        f"{folder}; the frames named validation*",
        layouts=layouts,
        anomaly_masks=BINARY,
        withheld={"test": "they are kept by the benchmark"},
    )


ENTRIES: tuple[DatasetEntry, ...] = (
    _track("smiyc-anomaly", "dataset_AnomalyTrack", "jpg", _anomaly_track),
    _track("smiyc-obstacle", "dataset_ObstacleTrack", "webp", _obstacle_track),
)


# Fishyscapes (Blum et al. 2021): the public validation sets of its Lost and Found and Static parts.
#
# Published are label files ``NUMBER_FRAME_labels.png``; the images belong to other sets. Those of Lost and Found are the
# frames of that name. Those of Static have to be made: the overlay ``NUMBER_FRAME_rgb.npz`` added to the Cityscapes
# frame and clipped to 0..255 (``fishyscapes_tfds.py`` of the authors); this is not done here.

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

ENTRIES += (
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


# Lost and Found (Pinggera et al. 2016): small obstacles on the road; and the split that SegmentMeIfYouCan scores.
#
# Label ids: 0 is outside the drivable area and ignored, 1 is free road, 2 and above are obstacles, by the benchmark's rule
# "random non-hazards" too. ``labelTrainIds`` files give those the value 0 and so cannot be read by this rule.
#
# ``test-valid`` leaves out frames whose label holds nothing but 0 (17 of 1203: the benchmark lists their indices and
# gives this as the rule), ``test-no-known`` also those with children and bicycles, which are classes of Cityscapes.

LOST_AND_FOUND = AnomalyEncoding(
    "lost-and-found", frozenset({1}), frozenset(range(2, 201)), frozenset({0, *range(201, 256)})
)
KNOWN = (
    "15_Rechbergstr_Deckenpfronn",
    "01_Hanns_Klemm_Str_45_000006",
    "01_Hanns_Klemm_Str_45_000007",
    "10_Schlossberg_9_000004",
)
"""Beginnings of the names of frames that show children (the first) or bicycles."""


def _drawn(values: frozenset[int]) -> bool:
    return values != {0}


def _unknown(name: str) -> bool:
    return not name.startswith(KNOWN)


_TRAIN = ("leftImg8bit/train", "gtCoarse/train")
_TEST = ("leftImg8bit/test", "gtCoarse/test")

ENTRIES += (
    DatasetEntry(
        name="lost-and-found",
        source="http://www.6d-vision.com/lostandfounddataset",
        listing="https://github.com/SegmentMeIfYouCan/road-anomaly-benchmark/blob/master/road_anomaly_benchmark/"
        "datasets/tracks.py",
        layout="ROOT/leftImg8bit/SPLIT/SCENE/*_leftImg8bit.png with ROOT/gtCoarse/SPLIT/SCENE/*_gtCoarse_labelIds.png, "
        "SPLIT train or test",
        layouts=(
            Layout(
                {
                    "train": (Part(*_TRAIN),),
                    "test": (Part(*_TEST),),
                    "train-valid": (Part(*_TRAIN, holds=_drawn),),
                    "test-valid": (Part(*_TEST, holds=_drawn),),
                    "test-no-known": (Part(*_TEST, keep=_unknown, holds=_drawn),),
                },
                image_ending="_leftImg8bit",
                label_ending="_gtCoarse_labelIds",
            ),
        ),
        anomaly_masks=LOST_AND_FOUND,
    ),
)


def _stem(name: str) -> str:
    return name.removesuffix("/labels_semantic").removesuffix(".labels")


def _splits(images: str, labels: str) -> dict[str, tuple[Part, ...]]:
    return dict.fromkeys(("test", "all"), (Part(images, labels),))


ENTRIES += (
    DatasetEntry(
        name="road-anomaly",
        source="https://www.epfl.ch/labs/cvlab/data/road-anomaly/",
        listing="https://github.com/NazirNayal8/RbA/blob/main/datasets/road_anomaly.py",
        layout="ROOT/frames/NAME.jpg with ROOT/frames/NAME.labels/labels_semantic.png, or ROOT/images/NAME.jpg with "
        "ROOT/labels/NAME.png or ROOT/labels_masks/NAME.png",
        layouts=(
            Layout(_splits("frames", "frames"), label_ending="labels_semantic", label_stem=_stem, flat=True),
            *(Layout(_splits("images", labels)) for labels in ("labels_masks", "labels")),
        ),
        anomaly_masks=ROAD_ANOMALY,
    ),
)


# Five anomaly sets in the form of an archive that university courses share: ``SET/images`` and ``SET/labels_masks``.
#
# The sets are the validation frames of SegmentMeIfYouCan's two tracks, those of Fishyscapes, and Road Anomaly. Image formats differ
# (jpg, webp, png), masks are PNG files of the image's name; in Road Anomaly 2 is the anomaly, in the others 1 is.

SETS = {
    "course-road-anomaly-21": ("RoadAnomaly21", BINARY),
    "course-road-obstacle-21": ("RoadObsticle21", BINARY),
    "course-fs-lost-and-found": ("FS_LostFound_full", BINARY),
    "course-fs-static": ("fs_static", BINARY),
    "course-road-anomaly": ("RoadAnomaly", ROAD_ANOMALY),
}
"""Name -> folder in the archive (spelled as there) and encoding."""


def _entry(name: str, folder: str, encoding: AnomalyEncoding) -> DatasetEntry:
    return DatasetEntry(
        name=name,
        source="the archive `Validation_Dataset` of the course",
        listing="https://github.com/AgneseRe/Real-Time-Anomaly-Segmentation-for-Road-Scenes/blob/main/eval/evalAnomaly.py",
        layout=f"ROOT/{folder}/images/NAME.jpg|png|webp with ROOT/{folder}/labels_masks/NAME.png, or without {folder}",
        layouts=tuple(
            Layout(dict.fromkeys(("test", "all"), (Part(f"{below}images", f"{below}labels_masks"),)))
            for below in (f"{folder}/", "")
        ),
        anomaly_masks=encoding,
    )


ENTRIES += tuple(_entry(name, folder, encoding) for name, (folder, encoding) in SETS.items())
