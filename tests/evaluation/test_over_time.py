"""Labelled objects at a threshold, by bin, class and over time, against a count by hand."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

import segunc
from segunc.decisions.flags import Threshold
from segunc.evaluation.comparison import compare
from segunc.evaluation.evaluator import Evaluator, Measures
from segunc.evaluation.resampling import Resampling, TimeOf, load_results
from segunc.evaluation.tables import format_metrics
from segunc.metrics.objects import ObjectBins

pytestmark = pytest.mark.usefixtures("few_units")
SIZE = (100, 120)
SPANS = {
    "slow": (0, 6),
    "shaky": (0, 5),
    "never": (2, 6),
    "brief": (7, 8),
}
"""The first frame that shows an object, and the first one after it that does not."""
FOUND = {
    "slow": {3, 4, 5},
    "shaky": {0, 2, 3},
    "never": set[int](),
    "brief": {7},
}
"""Frames in which an object is found."""
PLACES = {
    "slow": (10, 10, 6),
    "shaky": (30, 10, 12),
    "never": (70, 60, 25),
    "brief": (50, 90, 8),
}
"""Row, column and side of an object in frame 0."""
FALSE = {1, 3, 4, 7}  # frames with an alarm on nothing
FPS = 4.0
DRIVES = "abcd"


def frame(index: int) -> tuple[np.ndarray, np.ndarray]:
    """The map and the label of a frame of the drive."""
    values = np.zeros(SIZE, np.float16)
    label = np.zeros(SIZE, np.uint8)
    for name, (row, column, side) in PLACES.items():
        if SPANS[name][0] <= index < SPANS[name][1]:
            column += index  # objects move
            label[row : row + side, column : column + side] = 1
            # Half of its pixels, or one row less.
            rows = side // 2 + side % 2 if index in FOUND[name] else side // 2 - 1
            values[row : row + rows, column : column + side] = 1
    if index in FALSE:
        values[5:13, 80:88] = 1
    return values, label


def time_in_drive(name: str) -> float:
    return int(name[2:]) / FPS


def evaluate(*, cut: int = 10, time_of: TimeOf = time_in_drive, **measures: Any) -> dict[str, Any]:
    """The result of drives of ``cut`` frames that are all the same."""
    names = [f"{drive}/{index}" for drive in DRIVES for index in range(cut)]
    flag = {"energy": Threshold(0.5)}
    evaluator = Evaluator(
        ("energy",),
        None,
        names,
        anomalies=names,
        time_of=time_of,
        measures=Measures(flag=flag, resampling=Resampling(200), **measures),
    )
    for name in names:
        values, anomaly = frame(int(name[2:]))
        assert evaluator.update(name, {"energy": values}, anomaly=anomaly), evaluator._left_out
    return evaluator.numbers()


@pytest.fixture(scope="module")
def of_folders() -> dict[str, Any]:
    """The result with a folder, that is a drive, as the resampled unit."""
    return evaluate(resample="folder")


TRACKS = [name for name, (start, end) in SPANS.items() if end - start > 1]
"""Objects that are labelled in several frames."""


def states(name: str) -> list[bool]:
    """Whether an object is found in each of its frames."""
    return [index in FOUND[name] for index in range(*SPANS[name])]


def test_detection_is_that_of_a_count_by_hand(of_folders) -> None:
    detected = [name for name in TRACKS if FOUND[name]]
    delays = [min(FOUND[name]) - SPANS[name][0] for name in detected]
    over_time = of_folders["flagged"]["energy"]["over_time"]
    assert over_time["tracks"] == 4 * len(TRACKS) == 12
    assert over_time["detected"] == pytest.approx(len(detected) / len(TRACKS))
    assert over_time["seconds_to_detection"] == np.mean(delays) / FPS == 1.5 / FPS


def test_flicker_is_that_of_a_count_by_hand(of_folders) -> None:
    changes = 0
    steps = 0
    for name in TRACKS:
        changes += sum(before != now for before, now in pairwise(states(name)))
        steps += len(states(name)) - 1
    over_time = of_folders["flagged"]["energy"]["over_time"]
    assert over_time["flicker"] == pytest.approx(changes / steps)
    # All folders are the same, and each track is whole.
    low, high = of_folders["intervals"]["flagged.energy.over_time.flicker"]
    assert low == pytest.approx(changes / steps)
    assert high == pytest.approx(changes / steps)


def test_alarms_are_those_of_a_count_by_hand(of_folders) -> None:
    # Regions of 50 pixels: shaky's and never's in all frames; the false one is away for one frame,
    # then for two. slow's are too small, and so is brief's.
    frames_of_region = {"shaky": 5, "never": 4, "false": 3, "false again": 1}
    over_time = of_folders["flagged"]["energy"]["over_time"]
    assert over_time["alarms"] == 4 * len(frames_of_region)
    assert over_time["single_frame"] == 0.25


def test_objects_over_time_are_a_table(of_folders) -> None:
    assert "Objects over time" in format_metrics(of_folders)


@pytest.mark.parametrize("name", ["detected", "flicker"])
def test_a_track_is_resampled_as_a_whole_and_shares_stay_below_one(name: str) -> None:
    low, high = evaluate()["intervals"][f"flagged.energy.over_time.{name}"]
    assert 0 <= low < high <= 1


def test_drives_that_end_early() -> None:
    over_time = evaluate(cut=3)["flagged"]["energy"]["over_time"]
    # never is seen once, and slow is not found yet.
    assert over_time["tracks"] == 8
    assert over_time["detected"] == 0.5


def test_frames_without_times_are_no_sequence_and_a_part_of_them_says_so() -> None:
    assert "over_time" not in evaluate(time_of=lambda name: None)["flagged"]["energy"]
    part = evaluate(time_of={f"a/{index}": index / FPS for index in range(10)}.get)
    assert set(part["flagged"]["energy"]["over_time"].values()) == {None}
    assert "only 10 of 40 frames" in part["reasons"]["flagged.energy.over_time.flicker"]


def share(*names: str) -> dict[str, Any]:
    """What is found of these objects, which all four drives show."""
    objects = 0
    found = 0
    for name in names:
        start, end = SPANS[name]
        objects += 4 * (end - start)
        found += 4 * len(FOUND[name])
    return {"found": found / objects if objects else None, "objects": objects}


def test_recall_by_size() -> None:
    sizes = evaluate(by=[ObjectBins.of("size")])["flagged"]["energy"]["size"]
    assert sizes["0-100"] == share("slow", "brief")
    assert sizes["100-500"] == share("shaky")
    assert sizes["500-2500"] == share("never")


def test_recall_by_distance() -> None:
    result = evaluate(by=[ObjectBins.of("distance")])
    # The feet are in rows 16, 42, 58 and 95 of 100.
    assert result["flagged"]["energy"]["distance"] == {
        "far": share("slow", "shaky", "brief"),
        "middle": share(),
        "near": share("never"),
    }
    assert "by distance" in format_metrics(result)


def test_recall_by_group_of_frames() -> None:
    result = evaluate(groups="/[0-4]$")
    groups = result["flagged"]["energy"]["group"]
    assert list(groups) == ["/0", "/1", "/2", "/3", "/4", "other"]
    assert sum(group["objects"] for group in groups.values()) == share(*SPANS)["objects"]
    in_frame_1 = [name for name, (start, end) in SPANS.items() if start <= 1 < end]
    found = sum(1 in FOUND[name] for name in in_frame_1)
    objects = len(in_frame_1)
    assert groups["/1"] == {"found": found / objects, "objects": 4 * objects}
    assert "by group" in format_metrics(result)


def test_maps_on_disk_take_times(tmp_path: Path) -> None:
    for index in range(10):
        values, label = frame(index)
        for folder in ("maps/energy/a", "labels/a"):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / "maps/energy/a" / f"{index}.npy", values)
        cv2.imwrite(str(tmp_path / "labels/a" / f"{index}.png"), label)
    asked = {
        "maps": tmp_path / "maps",
        "anomaly_labels": tmp_path / "labels",
        "flag": ["energy=0.5"],
        "replicates": 0,
    }
    asked |= {
        "fps": FPS,
        "by": ["distance"],
        "out": tmp_path / "result.json",
    }
    result = segunc.evaluate(**asked)
    expected = evaluate()["flagged"]["energy"]["over_time"] | {"tracks": 3, "alarms": 4}
    assert result.numbers["flagged"]["energy"]["over_time"] == expected
    assert result.numbers["run"]["fps"] == FPS
    text = format_metrics(result.numbers)
    assert "| found at the threshold (of all objects) |" in text
    assert "| found at 5 % flagged (of all objects) |" in text
    assert "| found |" not in text
    assert result.numbers["flagged"]["energy"]["distance"]["far"] == {
        "found": 7 / 12,
        "objects": 12,
    }
    rows = {
        row.label: row
        for row in compare(load_results([tmp_path / "result.json"] * 2, ["a", "b"])).rows
    }
    assert rows["flagged.energy.over_time.flicker"].higher_is_better is False


@pytest.mark.parametrize(
    ("asked", "is_noted"),
    [
        ({"fps": 4.0}, True),
        ({"fps": 4.0, "resample": "1s"}, False),
        ({"fps": 4.0, "replicates": 0}, False),
        ({}, False),
    ],
)
def test_intervals_over_the_frames_of_a_video_are_noted(
    tmp_path: Path, asked: dict[str, Any], is_noted: bool
) -> None:
    """Frames of one video resemble each other, so their intervals are too narrow."""
    for index in range(8):
        values, label = frame(index)
        for folder in ("maps/energy/a", "labels/a"):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / "maps/energy/a" / f"{index}.npy", values)
        cv2.imwrite(str(tmp_path / "labels/a" / f"{index}.png"), label)
    usual = {"maps": tmp_path / "maps", "anomaly_labels": tmp_path / "labels", "replicates": 40}
    notes = segunc.evaluate(**usual | asked).notes
    words = "intervals are over single frames, and frames of one video resemble each other"
    assert any(note.startswith(words) for note in notes) == is_noted
