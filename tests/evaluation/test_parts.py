"""Parts of a result, one frame or one sum of counts at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from segunc.core.errors import InputError
from segunc.evaluation.evaluator import Tally
from segunc.evaluation.parts import (
    Components,
    ConfidenceCalibration,
    LabelledFrame,
    ProbabilityCalibration,
    Segmentation,
    SetCoverage,
    Smiyc,
)
from segunc.evaluation.ranked_frames import RankedFrames, aggregates, frame_parts, mass_ratios
from segunc.evaluation.resampling import Resampling

ROAD = np.array([[0, 0]], np.uint8)
IGNORED = np.array([[255, 255]], np.uint8)
PROBABILITIES = np.array([[[0.7, 0.4]], [[0.3, 0.6]]], np.float32)
ONE_CLASS = np.array([[1, 1]], np.uint8)  # the sizes of prediction sets


def frame(stored: dict[str, np.ndarray] | None = None, **arrays: Any) -> LabelledFrame:
    return LabelledFrame("a", stored or {}, **arrays)


def test_a_confidence_above_1_is_refused() -> None:
    too_large = {"msp": np.array([[0.5, 1.5]], np.float32)}
    of_frame = frame(too_large, labels=ROAD, prediction=ROAD)
    with pytest.raises(InputError, match=r"the map 'msp' leaves 0\.\.1"):
        ConfidenceCalibration().count(of_frame)


def test_float_confidences_are_counted_by_their_float16() -> None:
    quarter_and_half = {"msp": np.array([[0.25, 0.5]], np.float16)}
    wrong_second = np.array([[0, 1]], np.uint8)
    part = ConfidenceCalibration()
    counts = part.count(frame(quarter_and_half, labels=ROAD, prediction=wrong_second))
    assert counts is not None
    # Right at the confidence .75, and wrong at .5: the mean of the gaps .25 and .5.
    assert part.numbers(counts, {"msp": "float"})["ece",] == pytest.approx(0.375)


def test_the_smiyc_protocol_needs_an_anomaly_label() -> None:
    entropy = {"entropy": np.array([[0.25, 0.5]], np.float16)}
    assert Smiyc("entropy").count(frame(entropy, labels=ROAD)) is None


def test_components_need_an_anomaly_label() -> None:
    entropy = {"entropy": np.array([[0.25, 0.5]], np.float16)}
    part = Components("entropy", "anomaly", threshold=0.5)
    assert part.count(frame(entropy, labels=ROAD)) is None


def test_segmentation_needs_a_prediction() -> None:
    assert Segmentation(("road", "car")).count(frame(labels=ROAD)) is None


def test_probability_scores_need_probabilities() -> None:
    assert ProbabilityCalibration().count(frame(labels=ROAD, prediction=ROAD)) is None


def test_set_coverage_needs_probabilities() -> None:
    assert SetCoverage().count(frame({"set-size": ONE_CLASS}, labels=ROAD)) is None


def test_set_coverage_needs_the_sizes_of_the_sets() -> None:
    assert SetCoverage().count(frame(labels=ROAD, mean_probabilities=PROBABILITIES)) is None


def test_set_coverage_of_ignored_pixels_counts_nothing() -> None:
    of_frame = frame({"set-size": ONE_CLASS}, labels=IGNORED, mean_probabilities=PROBABILITIES)
    counts = SetCoverage().count(of_frame)
    assert counts is not None
    assert counts.tolist() == [0, 0, 0]


def test_set_coverage_is_the_share_of_pixels_whose_class_is_outside() -> None:
    # The set of the first pixel is its class road, and that of the second the class car.
    of_frame = frame({"set-size": ONE_CLASS}, labels=ROAD, mean_probabilities=PROBABILITIES)
    part = SetCoverage()
    counts = part.count(of_frame)
    assert counts is not None
    assert part.numbers(counts, {}) == {("outside",): 0.5, ("size",): 1.0}


def test_frames_are_not_ranked_without_a_score() -> None:
    assert frame_parts((), ("road",), ("pooled",)) == []


def test_frames_are_not_ranked_by_errors_without_a_prediction() -> None:
    entropy = {"entropy": np.array([[0.25, 0.5]], np.float32)}
    assert RankedFrames("entropy", classes=2).count(frame(entropy, labels=ROAD)) is None


def test_a_map_without_a_finite_pixel_has_no_aggregate() -> None:
    assert aggregates(np.full((2, 2), np.nan)) == {}


def test_a_frame_without_a_finite_pixel_is_not_ranked() -> None:
    entropy = {"entropy": np.array([[np.nan, np.inf]], np.float32)}
    assert RankedFrames("entropy").count(frame(entropy, anomaly=ROAD)) is None


def test_frames_that_are_all_unlabelled_have_no_number() -> None:
    part = RankedFrames("entropy")
    columns = len(part.names) // len(part.metrics)
    unlabelled = np.full((3, 1 + columns), np.nan)
    assert part.numbers(unlabelled, {}) == dict.fromkeys(part.names)


def test_an_empty_map_has_mass_ratios_of_0() -> None:
    assert set(mass_ratios(np.zeros((4, 4))).values()) == {0.0}


def test_a_part_without_a_frame_has_no_replicates() -> None:
    tally = Tally(Segmentation(("road",)), Resampling(40))
    assert [*tally.replicates()] == []


def test_a_part_without_a_frame_has_no_replicates_of_numbers() -> None:
    tally = Tally(Segmentation(("road",)), Resampling(40))
    assert tally.replicate_numbers({}) == {}


def test_a_part_without_a_number_has_no_replicates_of_numbers() -> None:
    tally = Tally(Segmentation(("road",)), Resampling(40))
    tally.add(np.zeros((1, 1), np.int64), "a")
    assert tally.replicate_numbers({}) == {}
