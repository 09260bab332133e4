"""Components against a slow reading of their definition: flood fill, sets of pixels, one loop for each formula."""

from __future__ import annotations

from fractions import Fraction
from math import fsum

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from segunc.core.errors import InputError
from segunc.metrics.smiyc import (
    TAUS,
    TRACKS,
    UNDEFINED,
    Track,
    component_counts,
    component_result,
    match_components,
)

Pixels = set[tuple[int, int]]


def flood(mask: np.ndarray) -> list[Pixels]:
    left = {(int(y), int(x)) for y, x in np.argwhere(mask)}
    found = []
    while left:
        border, component = [left.pop()], set()
        while border:
            y, x = border.pop()
            component.add((y, x))
            around = {(y + dy, x + dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)} & left
            left -= around
            border.extend(around)
        found.append(component)
    return found


def slow_values(predicted: np.ndarray, truth: np.ndarray, track: Track) -> tuple[list[Fraction], list[Fraction]]:
    """sIoU of each truth component and PPV of each predicted one, as exact fractions."""
    every = {(y, x) for y in range(truth.shape[0]) for x in range(truth.shape[1])}
    truths = flood(truth)
    void: Pixels = set().union(*(k for k in truths if len(k) < track.smallest_truth))
    background = every - set().union(*truths)
    if len(background) < track.smallest_truth:
        void |= background
    truths = [k for k in truths if len(k) >= track.smallest_truth]
    predictions = [p - void for p in flood(predicted) if len(p) >= track.smallest_predicted]
    predictions = [p for p in predictions if p]
    siou = []
    for k in truths:
        union_of_touching: Pixels = set().union(*(p for p in predictions if p & k))
        elsewhere = union_of_touching & set().union(*(other for other in truths if other is not k))
        siou.append(Fraction(len(k & union_of_touching), len(k | union_of_touching) - len(elsewhere)))
    anywhere: Pixels = set().union(*truths)
    return siou, [Fraction(len(p & anywhere), len(p)) for p in predictions]


def slow_counts(predicted: np.ndarray, truth: np.ndarray, track: Track) -> list[int]:
    siou, ppv = ([float(value) for value in values] for values in slow_values(predicted, truth, track))
    found = [sum(value >= tau for value in siou) for tau in TAUS]
    false = [sum(value < tau for value in ppv) for tau in TAUS]
    sums = [sum(round(value * 2**40) for value in values) for values in (siou, ppv)]
    return [*found, *(len(siou) - number for number in found), *false, len(siou), len(ppv), *sums]


def boxes(shape: tuple[int, int], *places: tuple[int, int, int, int]) -> np.ndarray:
    """A mask with rectangles (top, left, height, width)."""
    mask = np.zeros(shape, bool)
    for top, left, height, width in places:
        mask[top : top + height, left : left + width] = True
    return mask


masks = hnp.arrays(np.bool_, (11, 13))


@settings(max_examples=120, deadline=None)
@given(masks, masks, st.sampled_from([Track(1, 1), Track(4, 3), Track(9, 6)]), st.booleans())
def test_random_masks_equal_the_definition(predicted, truth, track, dense):
    if dense:  # many touching components, and backgrounds smaller than the size limit
        truth = truth | np.roll(truth, 1, 0) | np.roll(truth, 3, 1)
    assert match_components(predicted, truth, track).tolist() == slow_counts(predicted, truth, track)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.45])
def test_noise_with_blobs_equals_the_definition(share):
    generator = np.random.default_rng(int(100 * share))
    truth = boxes((60, 70), (3, 3, 10, 12), (3, 20, 9, 9), (30, 8, 20, 14), (35, 40, 3, 3), (0, 60, 60, 2))
    predicted = (generator.random((60, 70)) < share) | boxes((60, 70), (5, 5, 6, 25), (32, 10, 9, 40))
    for track in (*TRACKS.values(), Track(12, 20)):
        assert match_components(predicted, truth, track).tolist() == slow_counts(predicted, truth, track)


def test_one_prediction_over_several_truths_and_several_predictions_of_one_truth():
    # p covers k1 and k2 (100 pixels each) and 20 pixels between them: sIoU of each is 100 / (100 + 20).
    truth = boxes((40, 40), (0, 0, 10, 10), (0, 12, 10, 10))
    predicted = boxes((40, 40), (0, 0, 10, 22))
    result = component_result(match_components(predicted, truth, Track(50, 10)))
    assert result["siou_gt"] == pytest.approx(100 / 120, abs=1e-11)
    assert result["ppv"] == pytest.approx(200 / 220, abs=1e-11)
    assert result["mean_f1"] == 1.0
    truth = boxes((40, 40), (0, 0, 20, 20))
    predicted = boxes((40, 40), (0, 0, 5, 20), (10, 0, 5, 20))
    result = component_result(match_components(predicted, truth, Track(50, 10)))
    assert result["siou_gt"] == pytest.approx(0.5, abs=1e-11)
    assert result["f1"]["0.50"] == 1.0
    assert result["f1"]["0.55"] == 0.0


@pytest.mark.parametrize(("track", "predicted", "truth"), [("smiyc-anomaly", 500, 100), ("smiyc-obstacle", 50, 10)])
def test_components_of_exactly_the_limit_stay(track, predicted, truth):
    for size, kind, count in ((predicted, 34, 1), (predicted - 1, 34, 0), (truth, 33, 1), (truth - 1, 33, 0)):
        label, scores = np.zeros((60, 60), np.uint8), np.zeros((60, 60), np.float16)
        where = np.unravel_index(np.arange(size), (60, 60))  # whole rows from the top: one component
        if kind == 33:
            label[where] = 1
        else:
            scores[where] = 1
        assert component_counts(scores, label, 0.5, track)[kind] == count


def test_sizes_of_predictions_are_those_before_small_truths_are_cut_out():
    # 54 predicted pixels, 9 of them on a truth component that is too small to count: 45 are left, and it stays.
    label, scores = np.zeros((20, 20), np.uint8), np.zeros((20, 20), np.float16)
    label[0:3, 0:3] = 1
    scores[0:6, 0:9] = 1
    counts = component_counts(scores, label, 0.5, "smiyc-obstacle")
    assert counts[33:35].tolist() == [0, 1]
    # The same pixels ignored in the label: cleared before labelling, so 45 pixels are too few.
    label[0:3, 0:3] = 255
    assert component_counts(scores, label, 0.5, "smiyc-obstacle")[34] == 0


def test_ignored_pixels_split_predictions_before_they_are_labelled():
    label, scores = np.zeros((20, 41), np.uint8), np.ones((20, 41), np.float16)
    label[:, 20] = 255
    scores[0, 0] = np.nan
    label[0, 0] = 255  # an ignored score may be anything
    assert component_counts(scores, label, 0.5, "smiyc-obstacle")[34] == 2


def test_a_perfect_map_has_no_component_as_in_the_original():
    label = boxes((60, 60), (5, 5, 30, 30)).astype(np.uint8)
    result = component_result(component_counts(label.astype(np.float16), label, 1.0, "smiyc-anomaly"))
    assert (result["siou_gt"], result["ppv"], result["mean_f1"]) == (0.0, None, 0.0)


@pytest.mark.parametrize(("threshold", "pixels"), [(0.5003, 0), (0.5001, 1)])
def test_the_threshold_is_rounded_to_float16_as_in_the_original(threshold, pixels):
    scores = np.full((20, 20), 0.5005, np.float16)  # 0.50048828125, to which 0.5003 is nearer than to 0.5
    counts = component_counts(scores, np.zeros((20, 20), np.uint8), threshold, "smiyc-obstacle")
    assert counts[34] == pixels


def test_the_published_row():
    # A row of the public board (max softmax, RoadAnomaly21 test, tau 0.25): fn 204, fp 778, F1 .1056466302.
    f1 = component_result(np.array([*np.repeat([58, 204, 778], 11), 262, 836, 0, 0]))["f1"]
    assert f1["0.25"] == pytest.approx(0.1056466302, abs=5e-11)
    assert list(f1) == [f"{tau / 100:.2f}" for tau in range(25, 80, 5)]


def test_a_set_is_the_sum_of_its_frames_to_the_bit():
    generator = np.random.default_rng(0)
    track = Track(5, 3)
    frames = [(generator.random((40, 40)) < 0.4, generator.random((40, 40)) < 0.35) for _ in range(6)]
    parts = [match_components(*frame, track) for frame in frames]
    whole = component_result(np.sum(parts, axis=0))
    assert component_result(np.sum(parts[::-1][:2], axis=0) + np.sum(parts[:4], axis=0)) == whole
    values = [slow_values(*frame, track) for frame in frames]
    for name, place in (("siou_gt", 0), ("ppv", 1)):
        every = [float(value) for one in values for value in one[place]]
        assert whole[name] == pytest.approx(fsum(every) / len(every), abs=1e-12)


def test_numbers_without_components_are_none():
    nothing, frame = np.zeros((40, 40), bool), boxes((40, 40), (0, 0, 20, 30))
    cases = [
        (nothing, nothing, {"siou_gt", "ppv", "mean_f1"}, None),
        (frame, nothing, {"siou_gt"}, 0.0),
        (nothing, frame, {"ppv"}, 0.0),
        (frame, frame, set(), 1.0),
    ]
    for predicted, truth, undefined, mean in cases:
        result = component_result(match_components(predicted, truth, TRACKS["smiyc-anomaly"]))
        assert {name for name, value in result.items() if value is None} == undefined <= UNDEFINED.keys()
        assert set(result["f1"].values()) == {result["mean_f1"]} == {mean}


def test_a_score_that_is_no_number_is_refused():
    with pytest.raises(InputError, match="NaN"):
        component_counts(np.full((4, 4), np.nan, np.float16), np.zeros((4, 4), np.uint8), 0.5, "smiyc-anomaly")
