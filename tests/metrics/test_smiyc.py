"""SegmentMeIfYouCan's pixel protocol and components against a slow reading of their definitions,
compared to the bit.
"""

from fractions import Fraction
from itertools import pairwise
from math import fsum

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from segunc.core.errors import InputError
from segunc.metrics.counting import count_scores
from segunc.metrics.smiyc import (
    TAUS,
    TRACKS,
    UNDEFINED,
    VALUES_OF_FLOAT_KEYS,
    SmiycBins,
    Track,
    component_counts,
    component_result,
    match_components,
    merge_bins,
    smiyc_bins,
    smiyc_result,
)
from tests.metrics.test_counting import FIXTURES

Frame = tuple[np.ndarray, np.ndarray]
Table = dict[float, list[int]]


def slow_table(frame: Frame) -> Table:
    """Lower edge -> [normal, anomalous] pixels of one frame: every bin is counted by comparing all
    pixels with it.
    """
    scores, labels = frame
    values = [scores[labels == label] for label in (0, 1)]
    inside = np.concatenate(values).astype(np.float64)
    if not inside.size:
        return {}
    margin = max(0.01 * float(np.ptp(inside)), 0.01)
    edges = {inside.min() - margin, inside.max() + margin}
    for some in values:
        if some.size:
            edges |= set(np.quantile(some, np.linspace(0, 1, min(384, some.size))).tolist())
    ordered = sorted(edges)
    table = {}
    for low, high in pairwise(ordered):
        table[low] = [
            int(((some >= np.float64(low)) & (some < np.float64(high))).sum()) for some in values
        ]
    return table


def slow_result(frames: list[Frame]) -> dict[str, float | None]:
    table: Table = {}
    for frame in frames:
        for edge, pixels in slow_table(frame).items():
            table[edge] = [a + b for a, b in zip(table.get(edge, [0, 0]), pixels, strict=True)]
    negatives, positives = (sum(pixels[row] for pixels in table.values()) for row in (0, 1))
    if not negatives or not positives:
        return dict.fromkeys(("auroc", "aupr", "fpr95", "best_f1", "threshold"))
    true, false = 0, 0
    points = [(0.0, 0.0, 1.0, 0.0, np.inf)]  # recall, false positive rate, precision, F1, threshold
    for edge in sorted(table, reverse=True):
        false, true = false + table[edge][0], true + table[edge][1]
        precision = true / (true + false) if true + false else 1.0
        f1 = 2 * true / (2 * true + false + (positives - true))
        points.append((true / positives, false / negatives, precision, f1, edge))
    pairs = list(pairwise(points))
    best = max(
        points, key=lambda point: point[3]
    )  # the first, that is the highest threshold, of equals
    return {
        "auroc": fsum(
            (after[1] - before[1]) * (after[0] + before[0]) / 2 for before, after in pairs
        ),
        "aupr": fsum((after[0] - before[0]) * after[2] for before, after in pairs),
        "fpr95": next(point[1] for point in points if point[0] >= 0.95),
        "best_f1": best[3],
        "threshold": best[4],
    }


def bins_of(frame: Frame) -> SmiycBins:
    return smiyc_bins(count_scores(*frame), VALUES_OF_FLOAT_KEYS)


def random_frame(seed: int, size: int = 3000, share: float = 0.05, kind: str = "unit") -> Frame:
    generator = np.random.default_rng(seed)
    labels = (generator.random(size) < share).astype(np.uint8)
    raw = generator.normal(size=size) + 1.5 * labels + 0.3 * seed
    scores = {
        "unit": 1 / (1 + np.exp(-raw)),
        "logit": 5 * raw - 12,
        "ties": np.round(raw),
        "large": 900 * raw,
    }[kind]
    labels[generator.random(size) < 0.1] = 255
    return scores.astype(np.float16), labels


def assert_same_bins(bins: SmiycBins, table: Table) -> None:
    occupied = {edge: pixels for edge, pixels in table.items() if any(pixels)}
    np.testing.assert_array_equal(bins.edges, sorted(occupied))
    assert bins.counts.T.tolist() == [occupied[edge] for edge in sorted(occupied)]


@pytest.mark.parametrize("kind", ["unit", "logit", "ties", "large"])
def test_bins_and_numbers_equal_the_definition_to_the_bit(kind):
    frames = [
        random_frame(seed, 3000, 0.05 * seed, kind) for seed in range(4)
    ]  # the first has no anomaly
    for frame in frames:
        assert_same_bins(bins_of(frame), slow_table(frame))
    result = smiyc_result(merge_bins([*map(bins_of, frames)]))
    assert result == slow_result(frames)
    assert all(value is not None for value in result.values())


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(
            hnp.arrays(
                np.float16,
                30,
                elements=st.integers(-8, 8).map(float) | st.floats(-60, 60, width=16),
            ),
            hnp.arrays(np.uint8, 30, elements=st.sampled_from([0, 0, 1, 255])),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_any_small_frames_equal_the_definition_to_the_bit(frames):
    for frame in frames:
        assert_same_bins(bins_of(frame), slow_table(frame))
    assert smiyc_result(merge_bins([*map(bins_of, frames)])) == slow_result(frames)


@pytest.mark.parametrize("times", [1, 12, 128])
@pytest.mark.parametrize(("labels", "scores", "expected"), FIXTURES)
def test_published_fixtures(labels, scores, expected, times):
    frame = (np.tile(np.float16(scores), times), np.tile(np.uint8(labels), times))
    result = smiyc_result(bins_of(frame))
    assert [result[name] for name in ("aupr", "auroc", "fpr95", "best_f1")] == pytest.approx(
        expected, rel=1e-12
    )


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(5)), st.integers(0, 5))
def test_shards_merge_to_the_whole_to_the_bit(order, cut):
    parts = [bins_of(random_frame(seed, 600, 0.1)) for seed in range(5)]
    whole = merge_bins(parts)
    merged = merge_bins(
        [merge_bins([parts[i] for i in some]) for some in (order[:cut], order[cut:]) if some]
    )
    np.testing.assert_array_equal(merged.edges, whole.edges)
    np.testing.assert_array_equal(merged.counts, whole.counts)
    assert smiyc_result(merged) == smiyc_result(whole)


def test_one_class_alone_ignored_frames_and_constant_scores():
    zeros, labels = np.zeros(6, np.float16), np.array([0, 0, 0, 1, 1, 255], np.uint8)
    assert bins_of((zeros, np.full(6, 255, np.uint8))).counts.shape == (2, 0)
    for label in (0, 1, 255):
        assert set(smiyc_result(bins_of((zeros, np.full(6, label, np.uint8)))).values()) == {None}
    constant = smiyc_result(bins_of((zeros + np.float16(40), labels)))
    assert constant == {
        "auroc": 0.5,
        "aupr": 0.4,
        "fpr95": 1.0,
        "best_f1": 4 / 7,
        "threshold": 40.0,
    }


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


def slow_values(
    predicted: np.ndarray, truth: np.ndarray, track: Track
) -> tuple[list[Fraction], list[Fraction]]:
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
        siou.append(
            Fraction(len(k & union_of_touching), len(k | union_of_touching) - len(elsewhere))
        )
    anywhere: Pixels = set().union(*truths)
    return siou, [Fraction(len(p & anywhere), len(p)) for p in predictions]


def slow_counts(predicted: np.ndarray, truth: np.ndarray, track: Track) -> list[int]:
    siou, ppv = (
        [float(value) for value in values] for values in slow_values(predicted, truth, track)
    )
    found = [sum(value >= tau for value in siou) for tau in TAUS]
    false = [sum(value < tau for value in ppv) for tau in TAUS]
    sums = [sum(round(value * 2**40) for value in values) for values in (siou, ppv)]
    return [*found, *(len(siou) - number for number in found), *false, len(siou), len(ppv), *sums]


def boxes(shape: tuple[int, int], *places: tuple[int, int, int, int]) -> np.ndarray:
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
    assert match_components(predicted, truth, track).tolist() == slow_counts(
        predicted, truth, track
    )


TRUTH = 33  # place of the number of components in the counts
PREDICTED = 34


def of_size(pixels: int) -> np.ndarray:
    """A mask with one component, whole rows from the top, uint8."""
    mask = np.zeros((60, 60), np.uint8)
    mask[np.unravel_index(np.arange(pixels), mask.shape)] = 1
    return mask


@pytest.mark.parametrize(
    ("track", "predicted", "truth"),
    [("smiyc-anomaly", 500, 100), ("smiyc-obstacle", 50, 10)],
)
def test_components_of_exactly_the_limit_stay(track, predicted, truth):
    nothing = np.zeros((60, 60), np.uint8)
    for size, count in ((predicted, 1), (predicted - 1, 0)):
        scores = of_size(size).astype(np.float16)
        assert component_counts(scores, nothing, 0.5, track)[PREDICTED] == count
    for size, count in ((truth, 1), (truth - 1, 0)):
        scores = nothing.astype(np.float16)
        assert component_counts(scores, of_size(size), 0.5, track)[TRUTH] == count


def test_ignored_pixels_split_predictions():
    label = np.zeros((20, 41), np.uint8)
    label[:, 20] = 255
    scores = np.ones((20, 41), np.float16)
    assert component_counts(scores, label, 0.5, "smiyc-obstacle")[PREDICTED] == 2


def test_only_ignored_scores_may_be_nan():
    label = np.zeros((20, 20), np.uint8)
    scores = np.ones((20, 20), np.float16)
    scores[0, 0] = np.nan
    with pytest.raises(InputError, match="NaN"):
        component_counts(scores, label, 0.5, "smiyc-obstacle")
    label[0, 0] = 255
    assert component_counts(scores, label, 0.5, "smiyc-obstacle")[PREDICTED] == 1


@pytest.mark.parametrize(("threshold", "pixels"), [(0.5003, 0), (0.5001, 1)])
def test_the_threshold_is_rounded_to_float16_as_in_the_original(threshold, pixels):
    scores = np.full(
        (20, 20), 0.5005, np.float16
    )  # 0.50048828125, to which 0.5003 is nearer than to 0.5
    counts = component_counts(scores, np.zeros((20, 20), np.uint8), threshold, "smiyc-obstacle")
    assert counts[PREDICTED] == pixels


def test_the_published_row():
    # A row of the public board (max softmax, RoadAnomaly21 test, tau 0.25): fn 204, fp 778, F1
    # .1056466302.
    f1 = component_result(np.array([*np.repeat([58, 204, 778], 11), 262, 836, 0, 0]))["f1"]
    assert f1["0.25"] == pytest.approx(0.1056466302, abs=5e-11)
    assert list(f1) == [f"{tau / 100:.2f}" for tau in range(25, 80, 5)]


def test_a_set_is_the_sum_of_its_frames():
    generator = np.random.default_rng(0)
    track = Track(smallest_predicted=5, smallest_truth=3)
    frames = [
        (generator.random((40, 40)) < 0.4, generator.random((40, 40)) < 0.35) for _ in range(6)
    ]
    whole = component_result(np.sum([match_components(*frame, track) for frame in frames], axis=0))
    values = [slow_values(*frame, track) for frame in frames]
    for name, place in (("siou_gt", 0), ("ppv", 1)):
        every = [float(value) for of_frame in values for value in of_frame[place]]
        assert whole[name] == pytest.approx(fsum(every) / len(every), abs=1e-12)


NOTHING = np.zeros((40, 40), bool)
ONE_BOX = boxes((40, 40), (0, 0, 20, 30))


@pytest.mark.parametrize(
    ("predicted", "truth", "undefined", "mean"),
    [
        (NOTHING, NOTHING, {"siou_gt", "ppv", "mean_f1"}, None),
        (ONE_BOX, NOTHING, {"siou_gt"}, 0.0),
        (NOTHING, ONE_BOX, {"ppv"}, 0.0),
        (ONE_BOX, ONE_BOX, set(), 1.0),
    ],
    ids=["neither", "predicted", "truth", "both"],
)
def test_numbers_without_components_are_none(predicted, truth, undefined, mean):
    result = component_result(match_components(predicted, truth, TRACKS["smiyc-anomaly"]))
    assert {name for name, value in result.items() if value is None} == undefined
    assert undefined <= UNDEFINED.keys()
    assert result["mean_f1"] == mean
    assert set(result["f1"].values()) == {mean}
