"""The two tracks of SegmentMeIfYouCan (Chan et al. 2021): RoadAnomaly21 and RoadObstacle21, their validation frames.

The labels of the test frames are kept by the benchmark: write maps of them and export those.
"""

from __future__ import annotations

from collections.abc import Callable

from segunc.data.anomaly_labels import BINARY
from segunc.data.entry import DatasetEntry
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


ENTRIES = (
    _track("smiyc-anomaly", "dataset_AnomalyTrack", "jpg", _anomaly_track),
    _track("smiyc-obstacle", "dataset_ObstacleTrack", "webp", _obstacle_track),
)
