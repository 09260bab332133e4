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
from segunc.evaluation.compare import compare
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
}  # frames that show an object
FOUND = {"slow": {3, 4, 5}, "shaky": {0, 2, 3}, "never": set[int](), "brief": {7}}
PLACES = {
    "slow": (10, 10, 6),
    "shaky": (30, 10, 12),
    "never": (70, 60, 25),
    "brief": (50, 90, 8),
}  # row, column, side
FALSE = {1, 3, 4, 7}  # frames with an alarm on nothing
FPS, DRIVES = 4.0, "abcd"


def frame(index: int) -> tuple[np.ndarray, np.ndarray]:
    """The map and the label of a frame of the drive."""
    values, label = np.zeros(SIZE, np.float16), np.zeros(SIZE, np.uint8)
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


def test_detection_flicker_and_alarms_are_those_of_a_count_by_hand() -> None:
    result = evaluate(resample="folder")
    tracks = [sorted(FOUND[name]) for name, (start, end) in SPANS.items() if end - start > 1]
    delays = [
        frames[0] - SPANS[name][0] for name, frames in zip(SPANS, tracks, strict=False) if frames
    ]
    states = [[index in FOUND[name] for index in range(*SPANS[name])] for name in SPANS]
    changes = sum(a != b for of in states for a, b in pairwise(of))
    steps = sum(len(of) - 1 for of in states)
    over_time = result["flagged"]["energy"]["over_time"]
    assert over_time["tracks"] == 4 * len(tracks) == 12
    assert over_time["detected"] == pytest.approx(len(delays) / len(tracks))
    assert over_time["seconds_to_detection"] == np.mean(delays) / FPS == 1.5 / FPS
    assert over_time["flicker"] == pytest.approx(changes / steps)
    # Regions of 50 pixels: shaky's and never's in all frames; the false one is away for one frame,
    # then for two. slow's are too small, and so is brief's.
    large = {"shaky": 5, "never": 4, "false": 3, "false again": 1}
    assert (over_time["alarms"], over_time["single_frame"]) == (4 * len(large), 0.25)
    low, high = result["intervals"]["flagged.energy.over_time.flicker"]
    assert low == pytest.approx(high) == pytest.approx(changes / steps), (
        "all folders are the same, each track is whole"
    )
    assert "Objects over time" in format_metrics(result)


def test_a_track_is_resampled_as_a_whole_and_shares_stay_below_one() -> None:
    result = evaluate()
    for name in ("detected", "flicker"):
        low, high = result["intervals"][f"flagged.energy.over_time.{name}"]
        assert 0 <= low < high <= 1
    early = evaluate(cut=3)["flagged"]["energy"]["over_time"]
    assert (early["tracks"], early["detected"]) == (8, 0.5), (
        "never is seen once and slow is not found yet"
    )


def test_frames_without_times_are_no_sequence_and_a_part_of_them_says_so() -> None:
    assert "over_time" not in evaluate(time_of=lambda name: None)["flagged"]["energy"]
    part = evaluate(time_of={f"a/{index}": index / FPS for index in range(10)}.get)
    assert set(part["flagged"]["energy"]["over_time"].values()) == {None}
    assert "only 10 of 40 frames" in part["reasons"]["flagged.energy.over_time.flicker"]


def test_recall_by_size_and_distance() -> None:
    result = evaluate(by=[ObjectBins.of(kind) for kind in ("size", "distance")])
    flagged = result["flagged"]["energy"]
    counts = {
        name: (4 * (end - start), 4 * len(FOUND[name])) for name, (start, end) in SPANS.items()
    }

    def share(*names: str) -> dict[str, Any]:
        objects, found = (sum(counts[name][which] for name in names) for which in (0, 1))
        return {"found": found / objects if objects else None, "objects": objects}

    assert flagged["size"]["0-100"] == share("slow", "brief")
    assert (flagged["size"]["100-500"], flagged["size"]["500-2500"]) == (
        share("shaky"),
        share("never"),
    )
    # The feet are in rows 16, 42, 58 and 95 of 100.
    assert flagged["distance"] == {
        "far": share("slow", "shaky", "brief"),
        "middle": share(),
        "near": share("never"),
    }
    assert "by distance" in format_metrics(result)
    by_group = evaluate(groups="/[0-4]$")
    of_groups = by_group["flagged"]["energy"]["group"]
    assert list(of_groups) == ["/0", "/1", "/2", "/3", "/4", "other"]
    assert sum(of["objects"] for of in of_groups.values()) == sum(
        objects for objects, _ in counts.values()
    )
    first = [name for name, (start, end) in SPANS.items() if start <= 1 < end]
    found = sum(1 in FOUND[name] for name in first)
    assert of_groups["/1"] == {"found": found / len(first), "objects": 4 * len(first)}
    assert "by group" in format_metrics(by_group)


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
    asked |= {"fps": FPS, "by": ["distance"], "out": tmp_path / "result.json"}
    result = segunc.evaluate(**asked)
    expected = evaluate()["flagged"]["energy"]["over_time"] | {"tracks": 3, "alarms": 4}
    assert result.numbers["flagged"]["energy"]["over_time"] == expected
    assert result.numbers["flagged"]["energy"]["distance"]["far"] == {
        "found": 7 / 12,
        "objects": 12,
    }
    rows = {
        row.label: row
        for row in compare(load_results([tmp_path / "result.json"] * 2, ["a", "b"])).rows
    }
    assert rows["flagged.energy.over_time.flicker"].higher_is_better is False
