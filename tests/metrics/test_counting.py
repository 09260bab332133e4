"""Counts of stored scores by key, and pooled numbers against scikit-learn and published
fixtures.
"""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from segunc.core.errors import InputError
from segunc.maps.encoding import encode_unit, score_keys
from segunc.metrics import counting
from segunc.metrics.counting import (
    NO_ANOMALY,
    NO_NORMAL,
    BinFinder,
    ScoreBins,
    areas,
    auroc,
    average_precision,
    best_f1,
    count_scores,
    detection_curve,
    fpr_at_recall,
)
from tests.support.oracles import count_keys, pixel_numbers

# labels, scores, then AP, AUROC, FPR95 and best F1 as computed by the benchmarks' own tools.
FIXTURES = [
    (
        [0, 0, 0, 1, 1],
        [0, 0, 0, 1, 1],
        (1, 1, 0, 1),
    ),
    (
        [0, 1, 0, 1],
        [0.1, 0.4, 0.35, 0.8],
        (1, 1, 0, 1),
    ),
    (
        [0, 0, 1, 1],
        [0.1, 0.4, 0.35, 0.8],
        (5 / 6, 0.75, 0.5, 0.8),
    ),
    (
        [0, 0, 1, 1],
        [0.5, 0.5, 0.5, 0.5],
        (0.5, 0.5, 1, 2 / 3),
    ),
    (
        [0, 0, 0, 1, 1, 1],
        [0, 0, 0.9, 0.1, 1, 1],
        (11 / 12, 8 / 9, 1 / 3, 6 / 7),
    ),
]


def numbers(keys: np.ndarray, labels: np.ndarray) -> tuple[float | None, ...]:
    curve = detection_curve(count_keys(keys, labels))
    f1, _ = best_f1(curve)
    return average_precision(curve), auroc(curve), fpr_at_recall(curve), f1


def oracle(scores: np.ndarray, labels: np.ndarray) -> tuple[float, ...]:
    of_pixels = pixel_numbers(labels, scores.astype(np.float64))
    return tuple(of_pixels[name] for name in ("aupr", "auroc", "fpr95", "best_f1"))


@pytest.mark.parametrize("times", [1, 12, 128])
@pytest.mark.parametrize(
    "stored",
    [encode_unit, np.float16],
    ids=["codes", "float16"],
)
@pytest.mark.parametrize(("labels", "scores", "expected"), FIXTURES)
def test_published_fixtures(labels, scores, expected, stored, times):
    repeated = np.tile(np.array(scores, np.float32), times)
    keys = score_keys(stored(repeated))
    assert numbers(keys, np.tile(labels, times)) == pytest.approx(expected, rel=1e-12)


def test_a_recall_of_exactly_19_in_20_reaches_95_percent():
    # 20 anomalies with falling scores, one normal pixel between the 19th and the 20th.
    scores = np.array([*range(40, 21, -1), 20, 21], np.float16)
    labels = np.array([1] * 20 + [0])
    curve = detection_curve(count_keys(score_keys(scores), labels))
    assert fpr_at_recall(curve) == 0.0
    assert fpr_at_recall(curve, recall=0.96) == 1.0


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        (np.zeros(4), NO_ANOMALY),
        (np.ones(4), NO_NORMAL),
        (np.zeros(0), NO_ANOMALY),
    ],
)
def test_one_class_alone_has_no_number_but_a_reason(labels, reason):
    keys = np.arange(len(labels), dtype=np.uint16)
    curve = detection_curve(count_keys(keys, labels))
    assert areas(curve) == (None, None, None)
    assert curve.undefined == reason


EXTREMES = [0.0, -0.0, 6e-8, -6e-8, 65504.0, -65504.0, 1.0, -1.0]
scores_of_40 = hnp.arrays(
    np.float16,
    (5, 8),
    elements=st.sampled_from(EXTREMES) | st.floats(-65504, 65504, width=16),
)
labels_of_40 = hnp.arrays(
    np.uint8,
    (5, 8),
    elements=st.sampled_from([0, 1, 255]),
)


def by_keys(stored: np.ndarray, anomaly: np.ndarray) -> np.ndarray:
    counted = anomaly != 255
    return count_keys(score_keys(stored[counted]), anomaly[counted])


@settings(max_examples=80, deadline=None)
@given(scores_of_40, labels_of_40)
def test_floats_are_counted_as_their_keys(scores, anomaly):
    counts = count_scores(scores, anomaly)
    np.testing.assert_array_equal(counts, by_keys(scores, anomaly))


def test_strips_do_not_show(monkeypatch):
    generator = np.random.default_rng(0)
    scores = generator.normal(size=2_000_000).astype(np.float16)
    anomaly = generator.choice(np.array([0, 1, 255], np.uint8), 2_000_000)
    # Larger than one strip (four rows of 65,536 twice), and the strip's end is no multiple of the
    # size.
    counts = count_scores(scores, anomaly)
    np.testing.assert_array_equal(counts, by_keys(scores, anomaly))
    assert counts.sum() == (anomaly != 255).sum()
    monkeypatch.setattr(counting, "_STRIP", 10**9)
    np.testing.assert_array_equal(count_scores(scores, anomaly), counts)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_only_counted_scores_must_be_finite(bad):
    scores = np.array([0.5, bad], np.float32)
    ignored = np.array([1, 255], np.uint8)
    assert count_scores(scores, ignored).sum() == 1
    counted = np.array([1, 0], np.uint8)
    with pytest.raises(InputError, match="NaN, infinite or beyond"):
        count_scores(scores, counted)


@pytest.mark.parametrize(
    ("stored", "anomaly", "message"),
    [
        (np.zeros(3, np.float16), np.zeros(3, np.int64), "int64"),
        (np.zeros(3, np.float16), np.array([0, 7, 2], np.uint8), r"values \[2, 7\]"),
        (np.float32([98.01, 0, 0]), np.zeros(3, np.uint8), "float16 would round"),
        (np.array([1e6, 0, 0]), np.zeros(3, np.uint8), "beyond"),
    ],
)
def test_bad_input_is_refused(stored, anomaly, message):
    with pytest.raises(InputError, match=message):
        count_scores(stored, anomaly)


Frames = list[tuple[np.ndarray, np.ndarray]]


def find(frames: Frames, most: int) -> ScoreBins:
    finder = BinFinder(most=most)
    for scores, labels in frames:
        finder.add(scores, labels)
    bins = finder.bins()
    assert bins is not None
    return bins


def binned_numbers(frames: Frames, most: int) -> tuple[list[float], list[float]]:
    """AUPR, AUROC and FPR95 by bins and by scikit-learn."""
    bins = find(frames, most)
    curve = detection_curve(sum(bins.count(scores, labels) for scores, labels in frames))
    scores, labels = zip(*frames, strict=True)
    expected = oracle(np.concatenate(scores), np.concatenate(labels))[:3]
    return [average_precision(curve), auroc(curve), fpr_at_recall(curve)], expected


def scene(pixels: int, share: float, seed: int = 0, frames: int = 8) -> Frames:
    random = np.random.default_rng(seed)
    made = []
    for _ in range(frames):
        labels = (random.random(pixels) < share).astype(np.uint8)
        noise = random.normal(size=pixels)
        made.append((98 + 0.05 * (noise + 1.5 * labels), labels))
    return made


@pytest.mark.parametrize("share", [1e-4, 0.02])
def test_few_anomalies_are_exact(share: float) -> None:
    frames = scene(100_000, share)
    numbers_of_bins, expected = binned_numbers(frames, most=1 << 16)
    assert numbers_of_bins == pytest.approx(expected, abs=1e-12)


def test_more_anomalies_than_edges_cost_the_mass_of_a_bin() -> None:
    most = 4096
    frames = scene(100_000, 0.3)
    numbers_of_bins, expected = binned_numbers(frames, most)
    np.testing.assert_allclose(numbers_of_bins, expected, atol=4 / most)
    assert numbers_of_bins[1] == pytest.approx(expected[1], abs=1e-5)


WITH_NAN = np.array([0.0, -0.0, np.nan, 0.1], np.float32)
NAN_IGNORED = np.array([1, 0, 255, 0], np.uint8)


def test_zeros_of_both_signs_are_equal() -> None:
    bins = find([(WITH_NAN, NAN_IGNORED)], 16)
    key = bins.keys(np.float32(0))
    of_zero = bins.count(WITH_NAN, NAN_IGNORED)[:, key]
    assert of_zero.tolist() == [1, 1]


def test_only_ignored_scores_of_bins_may_be_anything() -> None:
    bins = find([(WITH_NAN, NAN_IGNORED)], 16)
    all_counted = np.zeros(4, np.uint8)
    with pytest.raises(InputError, match="NaN or infinite"):
        bins.count(WITH_NAN, all_counted)


def test_there_are_no_bins_without_a_pixel() -> None:
    assert BinFinder().bins() is None
