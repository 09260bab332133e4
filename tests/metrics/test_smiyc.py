"""The SegmentMeIfYouCan pixel protocol against a slow reading of its definition, compared to the bit."""

from __future__ import annotations

from itertools import pairwise
from math import fsum

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from segunc.metrics.counting import count_scores, detection_curve
from segunc.metrics.smiyc import (
    QUANTILES,
    VALUES_OF_FLOAT_KEYS,
    SmiycBins,
    bins_by_key,
    merge_bins,
    smiyc_bins,
    smiyc_curve,
    smiyc_result,
)
from tests.metrics.test_pixel_curves import FIXTURES

Frame = tuple[np.ndarray, np.ndarray]
Table = dict[float, list[int]]


def slow_table(frame: Frame) -> Table:
    """Lower edge -> [normal, anomalous] pixels of one frame: every bin is counted by comparing all pixels with it."""
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
        table[low] = [int(((some >= np.float64(low)) & (some < np.float64(high))).sum()) for some in values]
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
    best = max(points, key=lambda point: point[3])  # the first, that is the highest threshold, of equals
    return {
        "auroc": fsum((after[1] - before[1]) * (after[0] + before[0]) / 2 for before, after in pairs),
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
    scores = {"unit": 1 / (1 + np.exp(-raw)), "logit": 5 * raw - 12, "ties": np.round(raw), "large": 900 * raw}[kind]
    labels[generator.random(size) < 0.1] = 255
    return scores.astype(np.float16), labels


def assert_same_bins(bins: SmiycBins, table: Table) -> None:
    occupied = {edge: pixels for edge, pixels in table.items() if any(pixels)}
    np.testing.assert_array_equal(bins.edges, sorted(occupied))
    assert bins.counts.T.tolist() == [occupied[edge] for edge in sorted(occupied)]


@pytest.mark.parametrize("kind", ["unit", "logit", "ties", "large"])
def test_bins_and_numbers_equal_the_definition_to_the_bit(kind):
    frames = [random_frame(seed, 3000, 0.05 * seed, kind) for seed in range(4)]  # the first has no anomaly
    for frame in frames:
        assert_same_bins(bins_of(frame), slow_table(frame))
    result = smiyc_result(merge_bins([*map(bins_of, frames)]))
    assert result == slow_result(frames)
    assert all(value is not None for value in result.values())


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(
            hnp.arrays(np.float16, 30, elements=st.integers(-8, 8).map(float) | st.floats(-60, 60, width=16)),
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


def test_a_frame_has_at_most_two_times_384_bins_some_between_two_float16_values():
    frame = random_frame(2, 60_000, 0.3)
    bins = bins_of(frame)
    assert 600 < len(bins.edges) <= 2 * QUANTILES
    assert bins.counts.sum() == (frame[1] != 255).sum()
    assert (bins.edges != bins.edges.astype(np.float16)).any()
    curve = smiyc_curve(bins)
    assert len(curve.thresholds) == len(bins.edges)
    assert (np.diff(curve.thresholds) < 0).all()
    assert (curve.positives, curve.negatives) == (bins.counts[1].sum(), bins.counts[0].sum())


@pytest.mark.parametrize("times", [1, 12, 128])
@pytest.mark.parametrize(("labels", "scores", "expected"), FIXTURES)
def test_published_fixtures(labels, scores, expected, times):
    frame = (np.tile(np.float16(scores), times), np.tile(np.uint8(labels), times))
    result = smiyc_result(bins_of(frame))
    assert [result[name] for name in ("aupr", "auroc", "fpr95", "best_f1")] == pytest.approx(expected, rel=1e-12)


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(5)), st.integers(0, 5))
def test_shards_merge_to_the_whole_to_the_bit(order, cut):
    parts = [bins_of(random_frame(seed, 600, 0.1)) for seed in range(5)]
    whole = merge_bins(parts)
    merged = merge_bins([merge_bins([parts[i] for i in some]) for some in (order[:cut], order[cut:]) if some])
    np.testing.assert_array_equal(merged.edges, whole.edges)
    np.testing.assert_array_equal(merged.counts, whole.counts)
    assert smiyc_result(merged) == smiyc_result(whole)


def test_one_class_alone_ignored_frames_and_constant_scores():
    zeros, labels = np.zeros(6, np.float16), np.array([0, 0, 0, 1, 1, 255], np.uint8)
    assert bins_of((zeros, np.full(6, 255, np.uint8))).counts.shape == (2, 0)
    for label in (0, 1, 255):
        assert set(smiyc_result(bins_of((zeros, np.full(6, label, np.uint8)))).values()) == {None}
    constant = smiyc_result(bins_of((zeros + np.float16(40), labels)))
    assert constant == {"auroc": 0.5, "aupr": 0.4, "fpr95": 1.0, "best_f1": 4 / 7, "threshold": 40.0}


def test_the_form_of_constant_size_is_near():
    frames = [random_frame(seed, 5000, 0.1) for seed in range(1, 5)]
    bins = merge_bins([*map(bins_of, frames)])
    counts = bins_by_key(bins)
    np.testing.assert_array_equal(counts.sum(axis=1), bins.counts.sum(axis=1))
    keys = detection_curve(counts)
    values = VALUES_OF_FLOAT_KEYS[keys.thresholds].astype(np.float64)
    assert set(values) == {
        max(v for v in (np.float16(e), np.nextafter(np.float16(e), np.float16(-np.inf))) if np.float64(v) <= e)
        for e in bins.edges
    }
    near = smiyc_result(SmiycBins(values[::-1], np.stack((counts[0], counts[1]))[:, keys.thresholds[::-1]]))
    for name, value in smiyc_result(bins).items():
        assert near[name] == pytest.approx(value, abs=1e-3)
