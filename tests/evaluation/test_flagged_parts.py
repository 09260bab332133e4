"""The parts of what a threshold flags, one frame or one sum of counts at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from segunc.decisions.flags import Threshold
from segunc.decisions.guarantee import ControlName, GuaranteedThreshold, MethodName
from segunc.evaluation.flagged import Achieved, FalseAlarms, Hits
from segunc.evaluation.over_time import FoundObjects, OverTime
from segunc.evaluation.parts import LabelledFrame
from segunc.metrics.objects import ObjectBins

NORMAL = np.array([[0, 0, 0, 0]], np.uint8)
HALF_ANOMALOUS = np.array([[1, 1, 0, 0]], np.uint8)
ENTROPY = np.array([[0.9, 0.1, 0.1, 0.1]], np.float32)
AT_HALF = Threshold(0.5)


def frame(name: str = "a", stored: np.ndarray | None = ENTROPY, **labels: Any) -> LabelledFrame:
    return LabelledFrame(name, {} if stored is None else {"entropy": stored}, **labels)


def false_alarms() -> FalseAlarms:
    return FalseAlarms("entropy", AT_HALF, ("road", "car"))


def achieved(control: ControlName, method: MethodName = "conformal") -> Achieved:
    guarantee = GuaranteedThreshold(
        score="entropy",
        value=0.5,
        form="float",
        control=control,
        method=method,
        level=0.25,
        confidence=None if method == "conformal" else 0.9,
        unit="frame",
        units=30,
        minimum_units=3,
        risk=0.1,
        bound=None,
        promise="",
        condition="",
        model="",
        settings={},
        frames={},
        command="",
        date="",
        segunc="",
    )
    threshold = Threshold(0.5, guarantee=guarantee)
    return Achieved("entropy", threshold, control, anomalies=True, time_of=lambda name: None)


def test_false_alarms_need_a_class_label() -> None:
    assert false_alarms().count(frame(anomaly=NORMAL)) is None


def test_false_alarms_need_a_map_of_the_score() -> None:
    assert false_alarms().count(frame(stored=None, labels=NORMAL)) is None


def test_without_a_known_pixel_there_is_no_share_of_false_alarms() -> None:
    part = false_alarms()
    counts = part.count(frame(labels=np.full((1, 4), 255, np.uint8)))
    assert counts is not None
    assert counts.tolist() == [0, 0, 0, 0, 0, 0, 0]
    assert part.numbers(counts, {}) == dict.fromkeys(part.names)


def test_a_class_without_a_pixel_is_the_reason_of_its_share() -> None:
    # Four pixels of road, of which one is flagged, and none of a car.
    counts = np.array([4, 0, 1, 0, 1, 0, 0])
    reason = false_alarms().why(counts, ("by_class", "car"))
    assert reason == "no pixel is labelled with the class"


def test_ignored_labels_are_the_reason_where_no_pixel_is_known() -> None:
    reason = false_alarms().why(np.array([0, 0, 0, 0, 1, 0, 0]), ("share",))
    assert reason == "every pixel of the class labels is ignored"


def test_hits_need_an_anomaly_label() -> None:
    assert Hits("entropy", AT_HALF).count(frame(labels=NORMAL)) is None


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        ("recall", "no pixel is labelled as an anomaly"),
        ("normal_share", "no pixel is labelled as normal"),
        ("precision", "no pixel with an anomaly label is flagged"),
    ],
)
def test_each_number_of_hits_that_is_undefined_has_its_reason(number: str, reason: str) -> None:
    part = Hits("entropy", AT_HALF)
    nothing = np.zeros((2, 2), np.int64)
    assert part.numbers(nothing, {})[number,] is None
    assert part.why(nothing, (number,)) == reason


def test_an_achieved_risk_needs_a_map_of_the_score() -> None:
    assert achieved("missed-pixels").count(frame(stored=None, anomaly=NORMAL)) is None


def test_an_achieved_risk_of_misses_needs_an_anomaly_label() -> None:
    assert achieved("missed-pixels").count(frame(labels=NORMAL)) is None


def test_an_achieved_risk_of_errors_needs_a_prediction() -> None:
    assert achieved("errors-kept").count(frame(labels=NORMAL)) is None


def achieved_numbers(part: Achieved, **anomalies: np.ndarray) -> dict[str, float | None]:
    counts = [part.count(frame(name, anomaly=anomaly)) for name, anomaly in anomalies.items()]
    combined = part.combine([of_frame for of_frame in counts if of_frame is not None])
    return {name: value for (name,), value in part.numbers(combined, {}).items()}


def test_frames_without_an_anomaly_say_nothing_of_misses() -> None:
    numbers = achieved_numbers(achieved("missed-pixels"), a=NORMAL, b=NORMAL)
    assert numbers == {"risk": None, "level": None, "units": None, "upper": None}


def test_the_achieved_risk_is_the_mean_share_that_is_missed() -> None:
    # One of two anomalous pixels of the first frame is missed, and none of the second.
    found = np.array([[1, 0, 0, 0]], np.uint8)
    numbers = achieved_numbers(achieved("missed-pixels"), a=HALF_ANOMALOUS, b=found)
    assert numbers["risk"] == 0.25
    assert numbers["units"] == 2


def test_a_clopper_pearson_promise_counts_the_frames_with_any_miss() -> None:
    found = np.array([[1, 0, 0, 0]], np.uint8)
    part = achieved("missed-pixels", "clopper-pearson")
    numbers = achieved_numbers(part, a=HALF_ANOMALOUS, b=found)
    assert numbers["risk"] == 0.5
    # At most one of two frames fails with a probability of 1 - p^2, which is 5 % at the bound.
    assert numbers["upper"] == pytest.approx(np.sqrt(0.95))


def found_objects(*members: str) -> FoundObjects:
    all_in_one = ObjectBins("group", edges=(), names=("night",))
    return FoundObjects("entropy", AT_HALF, all_in_one, members=members)


def test_objects_are_those_of_anomaly_labels() -> None:
    assert found_objects("a").count(frame(labels=NORMAL)) is None


def test_objects_of_a_frame_outside_of_the_group_do_not_count() -> None:
    assert found_objects("b").count(frame(anomaly=HALF_ANOMALOUS)) is None


def test_an_object_is_found_where_half_of_its_pixels_are_flagged() -> None:
    of_frame = frame(anomaly=HALF_ANOMALOUS, smallest_object=1)
    counts = found_objects("a").count(of_frame)
    assert counts is not None
    assert counts.tolist() == [[1, 1]]


def over_time(seconds: float | None) -> OverTime:
    return OverTime("entropy", AT_HALF, lambda name: seconds)


def test_a_frame_without_a_time_is_not_followed() -> None:
    assert over_time(None).count(frame(anomaly=HALF_ANOMALOUS)) is None


def test_a_frame_without_an_anomaly_label_is_not_followed() -> None:
    assert over_time(0.5).count(frame(labels=NORMAL)) is None


# Tracks, detected ones, milliseconds, later frames, changes, alarms, and alarms of one frame.
@pytest.mark.parametrize(
    ("counts", "number", "reason"),
    [
        ([1, 0, 0, 1, 0, 0, 0], "single_frame", "no region is flagged"),
        ([1, 0, 0, 1, 0, 1, 1], "seconds_to_detection", "no object is detected"),
        ([0, 0, 0, 0, 0, 1, 1], "detected", "no labelled object is seen in two frames"),
    ],
)
def test_each_number_over_time_that_is_undefined_has_its_reason(
    counts: list[int], number: str, reason: str
) -> None:
    part = over_time(0.5)
    assert part.numbers(np.array(counts), {})[number,] is None
    assert part.why(np.array(counts), (number,)) == reason
