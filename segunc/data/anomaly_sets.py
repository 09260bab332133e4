"""Road scenes with masks of anomalies, those of the toy set and of folders of one's own among them.

The labels of the benchmarks' test frames are kept by them: write maps of those frames and export them. The published file lists and
split rules that the layouts follow are in docs/data-sets.md.
"""

from __future__ import annotations

import re

from segunc.data.class_sets import TOY
from segunc.data.entry import BINARY, ROAD_ANOMALY, WHITE_ANOMALIES, AnomalyEncoding, DatasetEntry
from segunc.data.layout import Layout, Part, same_folders

_WITHHELD = {"test": "they are kept by the benchmark"}
OBSTACLES_LEFT_OUT = tuple(f"validation_{number}" for number in (19, *range(21, 30)))
"""Beginnings of names that the benchmark's code takes out of the validation frames, to have 30."""


def _anomaly_track(name: str) -> bool:
    return name.startswith("validation")


def _obstacle_track(name: str) -> bool:
    return name.startswith("validation_") and not name.startswith(OBSTACLES_LEFT_OUT)


_SMIYC = (
    ("smiyc-anomaly", "dataset_AnomalyTrack", _anomaly_track),
    ("smiyc-obstacle", "dataset_ObstacleTrack", _obstacle_track),
)

# Fishyscapes (Blum et al. 2021): the public validation sets of its Lost and Found and Static parts.
#
# Published are label files ``NUMBER_FRAME_labels.png``; the images belong to other sets. Those of Lost and Found are the
# frames of that name. Those of Static have to be made: the overlay ``NUMBER_FRAME_rgb.npz`` added to the Cityscapes
# frame and clipped to 0..255 (``fishyscapes_tfds.py`` of the authors); this is not done here.

_FISHYSCAPES = "https://fishyscapes.com/dataset"
_LAF_LABELS = "fishyscapes_lostandfound"


def _numberless(name: str) -> str:
    """The Lost and Found frame of a label, which has a running number before it."""
    return re.sub(r"^\d{4}_", "", name).removesuffix("_labels")


def _val(images: str, labels: str) -> dict[str, tuple[Part, ...]]:
    return {"val": (Part(images, labels),)}


_COMPOSED = Layout(_val("original", "labels"))
"""Images and labels of one name, as several public projects keep the composed sets."""

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
_KNOWN = (
    *("15_Rechbergstr_Deckenpfronn", "01_Hanns_Klemm_Str_45_000006"),
    *("01_Hanns_Klemm_Str_45_000007", "10_Schlossberg_9_000004"),
)
"""Beginnings of the names of frames that show children (the first) or bicycles."""


def _drawn(values: frozenset[int]) -> bool:
    return values != {0}


def _unknown(name: str) -> bool:
    return not name.startswith(_KNOWN)


_TRAIN = ("leftImg8bit/train", "gtCoarse/train")
_TEST = ("leftImg8bit/test", "gtCoarse/test")
_LOST_AND_FOUND = {
    "train": (Part(*_TRAIN),),
    "test": (Part(*_TEST),),
    "train-valid": (Part(*_TRAIN, holds=_drawn),),
    "test-valid": (Part(*_TEST, holds=_drawn),),
    "test-no-known": (Part(*_TEST, keep=_unknown, holds=_drawn),),
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


def _stem(name: str) -> str:
    return name.removesuffix("/labels_semantic").removesuffix(".labels")


def _test(images: str, labels: str) -> dict[str, tuple[Part, ...]]:
    return dict.fromkeys(("test", "all"), (Part(images, labels),))


_BLACK, _WHITE = frozenset({0}), frozenset({255})


def _own(labels: str) -> dict[str, tuple[Part, ...]]:
    splits = same_folders("{}/images", f"{{}}/{labels}", ("train", "val", "test"))
    return {"all": (Part("images", labels),), **splits}


ENTRIES = (
    *(
        DatasetEntry(
            name=name,
            source="https://segmentmeifyoucan.com/datasets",
            layouts=tuple(
                Layout({"validation": (Part(f"{top}images", f"{top}labels_masks", keep=keep),)}, "", "_labels_semantic")
                for top in (f"{folder}/", "")
            ),
            anomaly_masks=BINARY,
            withheld=_WITHHELD,
        )
        for name, folder, keep in _SMIYC
    ),
    DatasetEntry(
        name="fishyscapes-laf",
        source=f"{_FISHYSCAPES} (labels) and http://www.6d-vision.com/lostandfounddataset (images)",
        layouts=(
            *(
                Layout(_val(images, _LAF_LABELS), "_leftImg8bit", "_labels", _numberless, labels_choose=True)
                for images in ("leftImg8bit", "laf_images")
            ),
            _COMPOSED,
        ),
        anomaly_masks=BINARY,
        withheld=_WITHHELD,
    ),
    DatasetEntry(
        name="fishyscapes-static",
        source=f"{_FISHYSCAPES} (labels and overlays) and https://www.cityscapes-dataset.com (images)",
        layouts=(Layout(_val("fs_static_images", "fs_val_v3"), "_rgb", "_labels"), _COMPOSED),
        anomaly_masks=BINARY,
        withheld=_WITHHELD,
    ),
    DatasetEntry(
        name="lost-and-found",
        source="http://www.6d-vision.com/lostandfounddataset",
        layouts=(Layout(_LOST_AND_FOUND, "_leftImg8bit", "_gtCoarse_labelIds"),),
        anomaly_masks=LOST_AND_FOUND,
    ),
    DatasetEntry(
        name="road-anomaly",
        source="https://www.epfl.ch/labs/cvlab/data/road-anomaly/",
        layouts=(
            Layout(_test("frames", "frames"), "", "labels_semantic", _stem, flat=True),
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
    *(
        DatasetEntry(
            name=name,
            source=f"your own files; masks hold {encoding}",
            layouts=tuple(Layout(_own(labels)) for labels in ("labels_masks", "labels")),
            anomaly_masks=encoding,
        )
        for name, encoding in (("folder", BINARY), (WHITE_ANOMALIES, AnomalyEncoding("white", _BLACK, _WHITE)))
    ),
)
