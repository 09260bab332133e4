"""Road scenes with masks of anomalies, those of the toy set and of folders of one's own among them.

The labels of the benchmarks' test frames are kept by them: write maps of those frames and export them. The published file lists and
split rules that the layouts follow are in docs/data-sets.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from segunc.data.class_sets import TOY
from segunc.data.entry import BINARY, ROAD_ANOMALY, WHITE_ANOMALIES, AnomalyEncoding, DatasetEntry
from segunc.data.layout import Layout, Part, same_folders

OBSTACLES_LEFT_OUT = tuple(f"validation_{number}" for number in (19, *range(21, 30)))
"""Beginnings of names that the benchmark's code takes out of the validation frames, to have 30."""


def _is_obstacle_frame(name: str) -> bool:
    return name.startswith("validation_") and not name.startswith(OBSTACLES_LEFT_OUT)


def _smiyc(name: str, folder: str, keep: Callable[[str], bool]) -> DatasetEntry:
    part = Part(f"{folder}/images", f"{folder}/labels_masks", keep=keep)
    layout = Layout({"validation": (part,)}, label_ending="_labels_semantic")
    return DatasetEntry(name, "https://segmentmeifyoucan.com/datasets", (layout,), anomaly_masks=BINARY)


# Fishyscapes (Blum et al. 2021): the public validation sets of its Lost and Found and Static parts.
#
# Published are label files ``NUMBER_FRAME_labels.png``; the images belong to other sets. Those of Lost and Found are the
# frames of that name. Those of Static have to be made: the overlay ``NUMBER_FRAME_rgb.npz`` added to the Cityscapes
# frame and clipped to 0..255 (``fishyscapes_tfds.py`` of the authors); this is not done here.

_FISHYSCAPES = "https://fishyscapes.com/dataset"


def _fishyscapes_stem(name: str) -> str:
    """Return the Lost and Found frame of a label, which has a running number before it."""
    return re.sub(r"^\d{4}_", "", name).removesuffix("_labels")


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
_SHOW_KNOWN_CLASSES = (
    *("15_Rechbergstr_Deckenpfronn", "01_Hanns_Klemm_Str_45_000006"),
    *("01_Hanns_Klemm_Str_45_000007", "10_Schlossberg_9_000004"),
)
"""Beginnings of the names of frames that show children (the first) or bicycles."""


def _is_drawn(values: frozenset[int]) -> bool:
    return values != {0}


def _lost_and_found() -> dict[str, tuple[Part, ...]]:
    train, test = (f"leftImg8bit/{split}" for split in ("train", "test"))
    train_labels, test_labels = (f"gtCoarse/{split}" for split in ("train", "test"))
    unknown_only = Part(test, test_labels, keep=lambda name: not name.startswith(_SHOW_KNOWN_CLASSES), holds=_is_drawn)
    return {
        "train": (Part(train, train_labels),),
        "test": (Part(test, test_labels),),
        "train-valid": (Part(train, train_labels, holds=_is_drawn),),
        "test-valid": (Part(test, test_labels, holds=_is_drawn),),
        "test-no-known": (unknown_only,),
    }


# Road Anomaly, and five sets in the form of an archive that university courses share: ``SET/images`` and
# ``SET/labels_masks``. These are the validation frames of SegmentMeIfYouCan's two tracks, those of Fishyscapes, and Road
# Anomaly. Image formats differ (jpg, webp, png), masks are PNG files of the image's name.

_COURSE = {
    "course-road-anomaly-21": ("RoadAnomaly21", BINARY),
    "course-road-obstacle-21": ("RoadObsticle21", BINARY),
    "course-fs-lost-and-found": ("FS_LostFound_full", BINARY),
    "course-fs-static": ("fs_static", BINARY),
    "course-road-anomaly": ("RoadAnomaly", ROAD_ANOMALY),
}
"""Name -> folder in the archive (spelled as there) and encoding."""


def _road_anomaly_stem(name: str) -> str:
    return name.removesuffix("/labels_semantic").removesuffix(".labels")


def _test(images: str, labels: str) -> dict[str, tuple[Part, ...]]:
    return dict.fromkeys(("test", "all"), (Part(images, labels),))


_WHITE = AnomalyEncoding("white", frozenset({0}), frozenset({255}))


def _folder(name: str, encoding: AnomalyEncoding) -> DatasetEntry:
    def splits(labels: str) -> dict[str, tuple[Part, ...]]:
        below = same_folders("{}/images", f"{{}}/{labels}", ("train", "val", "test"))
        return {"all": (Part("images", labels),), **below}

    layouts = tuple(Layout(splits(labels)) for labels in ("labels_masks", "labels"))
    return DatasetEntry(name, f"your own files; masks hold {encoding}", layouts, anomaly_masks=encoding)


ENTRIES = (
    _smiyc("smiyc-anomaly", "dataset_AnomalyTrack", lambda name: name.startswith("validation")),
    _smiyc("smiyc-obstacle", "dataset_ObstacleTrack", _is_obstacle_frame),
    DatasetEntry(
        name="fishyscapes-laf",
        source=f"{_FISHYSCAPES} (labels) and http://www.6d-vision.com/lostandfounddataset (images)",
        layouts=(
            Layout(
                {"val": (Part("leftImg8bit", "fishyscapes_lostandfound"),)},
                image_ending="_leftImg8bit",
                label_ending="_labels",
                label_stem=_fishyscapes_stem,
                labels_choose=True,
            ),
        ),
        anomaly_masks=BINARY,
    ),
    DatasetEntry(
        name="fishyscapes-static",
        source=f"{_FISHYSCAPES} (labels and overlays) and https://www.cityscapes-dataset.com (images)",
        layouts=(Layout({"val": (Part("fs_static_images", "fs_val_v3"),)}, "_rgb", "_labels"),),
        anomaly_masks=BINARY,
    ),
    DatasetEntry(
        name="lost-and-found",
        source="http://www.6d-vision.com/lostandfounddataset",
        layouts=(Layout(_lost_and_found(), "_leftImg8bit", "_gtCoarse_labelIds"),),
        anomaly_masks=LOST_AND_FOUND,
    ),
    DatasetEntry(
        name="road-anomaly",
        source="https://www.epfl.ch/labs/cvlab/data/road-anomaly/",
        layouts=(
            Layout(_test("frames", "frames"), label_ending="labels_semantic", label_stem=_road_anomaly_stem),
            *(Layout(_test("images", labels)) for labels in ("labels_masks", "labels")),
        ),
        anomaly_masks=ROAD_ANOMALY,
    ),
    *(
        DatasetEntry(
            name=name,
            source="the archive `Validation_Dataset` of the course",
            layouts=tuple(Layout(_test(f"{top}images", f"{top}labels_masks")) for top in (f"{folder}/", "")),
            anomaly_masks=encoding,
        )
        for name, (folder, encoding) in _COURSE.items()
    ),
    DatasetEntry(
        name="toy-anomaly",
        source=TOY,
        layouts=(Layout(same_folders("leftImg8bit/{}", "gtAnomaly/{}", ("anomaly",)), "_leftImg8bit", "_anomaly"),),
        anomaly_masks=BINARY,
    ),
    _folder("folder", BINARY),
    _folder(WHITE_ANOMALIES, _WHITE),
)
