"""SegmentMeIfYouCan's pixel protocol and components against a slow reading of their definitions,
compared to the bit.
"""

from fractions import Fraction
from itertools import pairwise
from math import fsum
from typing import NamedTuple

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


class CurvePoint(NamedTuple):
    """The pixels at or above one threshold."""

    recall: float
    false_positive_rate: float
    precision: float
    f1: float
    threshold: float


def slow_edges(classes: list[np.ndarray]) -> list[float]:
    """Return the edges of one frame's bins: the quantiles of each class and an outer margin."""
    counted = np.concatenate(classes).astype(np.float64)
    margin = max(0.01 * float(np.ptp(counted)), 0.01)
    edges = {counted.min() - margin, counted.max() + margin}
    for scores in classes:
        if scores.size:
            steps = np.linspace(0, 1, min(384, scores.size))
            edges.update(np.quantile(scores, steps).tolist())
    return sorted(edges)


def slow_table(frame: Frame) -> Table:
    """Return lower edge -> [normal, anomalous] pixels; each bin compares itself with all pixels."""
    scores, labels = frame
    classes = [scores[labels == 0], scores[labels == 1]]
    if not any(values.size for values in classes):
        return {}
    table = {}
    for low, high in pairwise(slow_edges(classes)):
        pixels = []
        for values in classes:
            inside = (values >= np.float64(low)) & (values < np.float64(high))
            pixels.append(int(inside.sum()))
        table[low] = pixels
    return table


def slow_sum(frames: list[Frame]) -> Table:
    """Return the pixels of all frames by lower edge."""
    table: Table = {}
    for frame in frames:
        for edge, (normal, anomalous) in slow_table(frame).items():
            pixels = table.setdefault(edge, [0, 0])
            pixels[0] += normal
            pixels[1] += anomalous
    return table


def slow_curve(table: Table, negatives: int, positives: int) -> list[CurvePoint]:
    """Return one point for each threshold, from the highest to the lowest."""
    points = [CurvePoint(0.0, 0.0, precision=1.0, f1=0.0, threshold=np.inf)]
    true = 0
    false = 0
    for edge in sorted(table, reverse=True):
        normal, anomalous = table[edge]
        false += normal
        true += anomalous
        flagged = true + false
        missed = positives - true
        point = CurvePoint(
            recall=true / positives,
            false_positive_rate=false / negatives,
            precision=true / flagged if flagged else 1.0,
            f1=2 * true / (2 * true + false + missed),
            threshold=edge,
        )
        points.append(point)
    return points


def slow_result(frames: list[Frame]) -> dict[str, float | None]:
    table = slow_sum(frames)
    negatives = sum(normal for normal, _ in table.values())
    positives = sum(anomalous for _, anomalous in table.values())
    if not negatives or not positives:
        return dict.fromkeys(("auroc", "aupr", "fpr95", "best_f1", "threshold"))
    points = slow_curve(table, negatives, positives)
    trapezes = []
    steps = []
    for before, after in pairwise(points):
        width = after.false_positive_rate - before.false_positive_rate
        trapezes.append(width * (after.recall + before.recall) / 2)
        steps.append((after.recall - before.recall) * after.precision)
    enough = [point for point in points if point.recall >= 0.95]
    # The first of equals, that is the one of the highest threshold.
    best = max(points, key=lambda point: point.f1)
    return {
        "auroc": fsum(trapezes),
        "aupr": fsum(steps),
        "fpr95": enough[0].false_positive_rate,
        "best_f1": best.f1,
        "threshold": best.threshold,
    }


def bins_of(frame: Frame) -> SmiycBins:
    return smiyc_bins(count_scores(*frame), VALUES_OF_FLOAT_KEYS)


def random_frame(seed: int, size: int = 3000, share: float = 0.05, kind: str = "unit") -> Frame:
    generator = np.random.default_rng(seed)
    labels = (generator.random(size) < share).astype(np.uint8)
    raw = generator.normal(size=size) + 1.5 * labels + 0.3 * seed
    by_kind = {
        "unit": 1 / (1 + np.exp(-raw)),
        "logit": 5 * raw - 12,
        "ties": np.round(raw),
        "large": 900 * raw,
    }
    labels[generator.random(size) < 0.1] = 255
    return by_kind[kind].astype(np.float16), labels


def result_of(frames: list[Frame]) -> dict[str, float | None]:
    """Return the numbers of all frames by the code under test."""
    return smiyc_result(merge_bins([bins_of(frame) for frame in frames]))


def assert_same_bins(bins: SmiycBins, table: Table) -> None:
    occupied = {edge: pixels for edge, pixels in table.items() if any(pixels)}
    edges = sorted(occupied)
    np.testing.assert_array_equal(bins.edges, edges)
    assert bins.counts.T.tolist() == [occupied[edge] for edge in edges]


@pytest.fixture(params=["unit", "logit", "ties", "large"])
def frames(request: pytest.FixtureRequest) -> list[Frame]:
    """Four frames with scores of one kind; the first has no anomaly."""
    kind = request.param
    return [random_frame(seed, share=0.05 * seed, kind=kind) for seed in range(4)]


def test_bins_equal_the_definition_to_the_bit(frames):
    for frame in frames:
        assert_same_bins(bins_of(frame), slow_table(frame))


def test_numbers_equal_the_definition_to_the_bit(frames):
    result = result_of(frames)
    assert result == slow_result(frames)
    assert None not in result.values()


small_scores = hnp.arrays(
    np.float16,
    30,
    elements=st.integers(-8, 8).map(float) | st.floats(-60, 60, width=16),
)
small_labels = hnp.arrays(
    np.uint8,
    30,
    elements=st.sampled_from([0, 0, 1, 255]),
)
small_frames = st.lists(
    st.tuples(small_scores, small_labels),
    min_size=1,
    max_size=4,
)


@settings(max_examples=30, deadline=None)
@given(small_frames)
def test_any_small_frames_equal_the_definition_to_the_bit(frames):
    for frame in frames:
        assert_same_bins(bins_of(frame), slow_table(frame))
    assert result_of(frames) == slow_result(frames)


@pytest.mark.parametrize("times", [1, 12, 128])
@pytest.mark.parametrize(("labels", "scores", "expected"), FIXTURES)
def test_published_fixtures(labels, scores, expected, times):
    many_scores = np.tile(np.float16(scores), times)
    many_labels = np.tile(np.uint8(labels), times)
    result = smiyc_result(bins_of((many_scores, many_labels)))
    numbers = [result[name] for name in ("aupr", "auroc", "fpr95", "best_f1")]
    assert numbers == pytest.approx(expected, rel=1e-12)


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(5)), st.integers(0, 5))
def test_shards_merge_to_the_whole_to_the_bit(order, cut):
    parts = [bins_of(random_frame(seed, 600, 0.1)) for seed in range(5)]
    whole = merge_bins(parts)
    shuffled = [parts[i] for i in order]
    shards = [shuffled[:cut], shuffled[cut:]]
    merged = merge_bins([merge_bins(shard) for shard in shards if shard])
    np.testing.assert_array_equal(merged.edges, whole.edges)
    np.testing.assert_array_equal(merged.counts, whole.counts)
    assert smiyc_result(merged) == smiyc_result(whole)


ZEROS = np.zeros(6, np.float16)


def test_an_ignored_frame_has_no_bins():
    ignored = np.full(6, 255, np.uint8)
    assert bins_of((ZEROS, ignored)).counts.shape == (2, 0)


@pytest.mark.parametrize("label", [0, 1, 255])
def test_one_class_alone_has_no_number(label):
    result = smiyc_result(bins_of((ZEROS, np.full(6, label, np.uint8))))
    assert set(result.values()) == {None}


def test_numbers_of_constant_scores():
    labels = np.array([0, 0, 0, 1, 1, 255], np.uint8)
    constant = smiyc_result(bins_of((ZEROS + np.float16(40), labels)))
    assert constant == {
        "auroc": 0.5,
        "aupr": 0.4,
        "fpr95": 1.0,
        "best_f1": 4 / 7,
        "threshold": 40.0,
    }


Pixels = set[tuple[int, int]]


def neighbours(pixel: tuple[int, int]) -> Pixels:
    """Return the nine pixels around a pixel, itself included."""
    y, x = pixel
    around = set()
    for row in (y - 1, y, y + 1):
        around |= {(row, x - 1), (row, x), (row, x + 1)}
    return around


def flood(mask: np.ndarray) -> list[Pixels]:
    """Return the eight-connected components of a mask."""
    left = {(int(y), int(x)) for y, x in np.argwhere(mask)}
    components = []
    while left:
        component: Pixels = set()
        border = [left.pop()]
        while border:
            pixel = border.pop()
            component.add(pixel)
            reached = neighbours(pixel) & left
            left -= reached
            border.extend(reached)
        components.append(component)
    return components


def union(components: list[Pixels]) -> Pixels:
    return set().union(*components)


def void_pixels(truths: list[Pixels], shape: tuple[int, int], smallest: int) -> Pixels:
    """Return the pixels of truth components below the limit, and of a background below it."""
    void = union([truth for truth in truths if len(truth) < smallest])
    background = set(np.ndindex(*shape)) - union(truths)
    if len(background) < smallest:
        void |= background
    return void


def slow_siou(truth: Pixels, others: list[Pixels], predictions: list[Pixels]) -> Fraction:
    """Return the sIoU of a component: what lies in the other components does not count."""
    touching = union([prediction for prediction in predictions if prediction & truth])
    elsewhere = touching & union(others)
    return Fraction(len(truth & touching), len(truth | touching) - len(elsewhere))


def slow_values(
    predicted: np.ndarray, truth: np.ndarray, track: Track
) -> tuple[list[Fraction], list[Fraction]]:
    """Return the sIoU of each truth component and the PPV of each predicted one, exactly."""
    every_truth = flood(truth)
    void = void_pixels(every_truth, truth.shape, track.smallest_truth)
    truths = [component for component in every_truth if len(component) >= track.smallest_truth]
    large = [pixels for pixels in flood(predicted) if len(pixels) >= track.smallest_predicted]
    predictions = [pixels - void for pixels in large if pixels - void]
    siou = []
    for component in truths:
        others = [other for other in truths if other is not component]
        siou.append(slow_siou(component, others, predictions))
    anywhere = union(truths)
    ppv = [Fraction(len(pixels & anywhere), len(pixels)) for pixels in predictions]
    return siou, ppv


def fixed_point_sum(values: list[float]) -> int:
    return sum(round(value * 2**40) for value in values)


def slow_counts(predicted: np.ndarray, truth: np.ndarray, track: Track) -> list[int]:
    exact_siou, exact_ppv = slow_values(predicted, truth, track)
    siou = [float(value) for value in exact_siou]
    ppv = [float(value) for value in exact_ppv]
    found = []
    missed = []
    false = []
    for tau in TAUS:
        found.append(sum(value >= tau for value in siou))
        missed.append(sum(value < tau for value in siou))
        false.append(sum(value < tau for value in ppv))
    numbers = [len(siou), len(ppv)]
    sums = [fixed_point_sum(siou), fixed_point_sum(ppv)]
    return found + missed + false + numbers + sums


def boxes(shape: tuple[int, int], *places: tuple[int, int, int, int]) -> np.ndarray:
    mask = np.zeros(shape, bool)
    for top, left, height, width in places:
        mask[top : top + height, left : left + width] = True
    return mask


masks = hnp.arrays(np.bool_, (11, 13))


@settings(max_examples=120, deadline=None)
@given(
    predicted=masks,
    truth=masks,
    track=st.sampled_from([Track(1, 1), Track(4, 3), Track(9, 6)]),
    dense=st.booleans(),
)
def test_random_masks_equal_the_definition(predicted, truth, track, dense):
    if dense:  # many touching components, and backgrounds smaller than the size limit
        truth = truth | np.roll(truth, 1, 0) | np.roll(truth, 3, 1)
    counts = match_components(predicted, truth, track)
    assert counts.tolist() == slow_counts(predicted, truth, track)


# Indices of the numbers of components in the counts.
TRUTH = 33
PREDICTED = 34


def of_size(pixels: int) -> np.ndarray:
    """A mask with one component, whole rows from the top, uint8."""
    mask = np.zeros((60, 60), np.uint8)
    mask[np.unravel_index(np.arange(pixels), mask.shape)] = 1
    return mask


@pytest.mark.parametrize(
    ("track", "pixels", "count"),
    [
        ("smiyc-anomaly", 500, 1),
        ("smiyc-anomaly", 499, 0),
        ("smiyc-obstacle", 50, 1),
        ("smiyc-obstacle", 49, 0),
    ],
)
def test_predicted_components_of_exactly_the_limit_stay(track, pixels, count):
    scores = of_size(pixels).astype(np.float16)
    no_truth = of_size(0)
    assert component_counts(scores, no_truth, 0.5, track)[PREDICTED] == count


@pytest.mark.parametrize(
    ("track", "pixels", "count"),
    [
        ("smiyc-anomaly", 100, 1),
        ("smiyc-anomaly", 99, 0),
        ("smiyc-obstacle", 10, 1),
        ("smiyc-obstacle", 9, 0),
    ],
)
def test_truth_components_of_exactly_the_limit_stay(track, pixels, count):
    no_scores = of_size(0).astype(np.float16)
    truth = of_size(pixels)
    assert component_counts(no_scores, truth, 0.5, track)[TRUTH] == count


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


@pytest.mark.parametrize(
    ("threshold", "pixels"),
    [
        (0.5003, 0),
        (0.5001, 1),
    ],
)
def test_the_threshold_is_rounded_to_float16_as_in_the_original(threshold, pixels):
    # The scores are 0.50048828125, to which 0.5003 is nearer than to 0.5.
    scores = np.full((20, 20), 0.5005, np.float16)
    label = np.zeros((20, 20), np.uint8)
    counts = component_counts(scores, label, threshold, "smiyc-obstacle")
    assert counts[PREDICTED] == pixels


def test_the_published_row():
    # A row of the public board (max softmax, RoadAnomaly21 test, tau 0.25): fn 204, fp 778, F1
    # .1056466302.
    at_each_tau = np.repeat([58, 204, 778], 11)
    others = [262, 836, 0, 0]
    counts = np.concatenate([at_each_tau, others])
    f1 = component_result(counts)["f1"]
    assert f1["0.25"] == pytest.approx(0.1056466302, abs=5e-11)
    assert list(f1) == [f"{tau / 100:.2f}" for tau in range(25, 80, 5)]


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("siou_gt", 0),
        ("ppv", 1),
    ],
)
def test_a_set_is_the_sum_of_its_frames(name, index):
    generator = np.random.default_rng(0)
    track = Track(smallest_predicted=5, smallest_truth=3)
    counts = []
    values: list[float] = []
    for _ in range(6):
        predicted = generator.random((40, 40)) < 0.4
        truth = generator.random((40, 40)) < 0.35
        counts.append(match_components(predicted, truth, track))
        exact = slow_values(predicted, truth, track)[index]
        values.extend(float(value) for value in exact)
    whole = component_result(np.sum(counts, axis=0))
    assert whole[name] == pytest.approx(fsum(values) / len(values), abs=1e-12)


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
