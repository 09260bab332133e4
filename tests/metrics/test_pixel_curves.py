"""Pooled and per-image curves against scikit-learn, published fixtures and invariances."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn import metrics as sklearn_metrics

from segunc.maps.encoding import encode_unit, keys_to_half, score_keys
from segunc.metrics.counting import (
    IMAGE_NUMBERS,
    NO_ANOMALY,
    NO_NORMAL,
    Counts,
    auroc,
    average_precision,
    best_f1,
    detection_curve,
    fpr_at_recall,
    per_image_result,
    per_image_sums,
)
from tests.metrics.keys import count_keys

# labels, scores, then AP, AUROC, FPR95 and best F1 as computed by the benchmarks' own tools.
FIXTURES = [
    ([0, 0, 0, 1, 1], [0, 0, 0, 1, 1], (1, 1, 0, 1)),
    ([0, 1, 0, 1], [0.1, 0.4, 0.35, 0.8], (1, 1, 0, 1)),
    ([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8], (5 / 6, 0.75, 0.5, 0.8)),
    ([0, 0, 1, 1], [0.5, 0.5, 0.5, 0.5], (0.5, 0.5, 1, 2 / 3)),
    ([0, 0, 0, 1, 1, 1], [0, 0, 0.9, 0.1, 1, 1], (11 / 12, 8 / 9, 1 / 3, 6 / 7)),
]


def numbers(keys: np.ndarray, labels: np.ndarray) -> tuple[float | None, ...]:
    curve = detection_curve(count_keys(keys, labels))
    best = best_f1(curve)
    return average_precision(curve), auroc(curve), fpr_at_recall(curve), None if best is None else best[0]


def oracle(scores: np.ndarray, labels: np.ndarray) -> tuple[float, ...]:
    scores = scores.astype(np.float64)
    false_rate, true_rate, _ = sklearn_metrics.roc_curve(labels, scores, drop_intermediate=False)
    precision, recall, _ = sklearn_metrics.precision_recall_curve(labels, scores)
    with np.errstate(invalid="ignore"):
        f1 = np.nanmax(2 * precision * recall / (precision + recall))
    return (
        float(sklearn_metrics.average_precision_score(labels, scores)),
        float(sklearn_metrics.roc_auc_score(labels, scores)),
        float(false_rate[true_rate >= 0.95][0]),
        float(f1),
    )


def counts_of(scores: np.ndarray, labels: np.ndarray) -> Counts:
    return count_keys(score_keys(scores.astype(np.float16)), labels)


def numbers_of(sums: Counts) -> list[float | None]:
    """Of protocol per-image, in the order of the oracle."""
    result = per_image_result(sums)
    return [result[name] for name in ("aupr", "auroc", "fpr95", "best_f1")]


@pytest.mark.parametrize("times", [1, 12, 128])
@pytest.mark.parametrize("stored", [encode_unit, lambda values: values.astype(np.float16)], ids=["codes", "float16"])
@pytest.mark.parametrize(("labels", "scores", "expected"), FIXTURES)
def test_published_fixtures(labels, scores, expected, stored, times):
    keys, labels = score_keys(stored(np.tile(np.array(scores, np.float32), times))), np.tile(labels, times)
    assert numbers(keys, labels) == pytest.approx(expected, rel=1e-12)
    assert numbers_of(per_image_sums(count_keys(keys, labels))) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("share", [0.5, 0.02])
@pytest.mark.parametrize("levels", [3, 40, 100_000])
@pytest.mark.parametrize("kind", ["codes", "wide", "negative"])
def test_equals_scikit_learn(kind, levels, share):
    generator = np.random.default_rng([levels, int(share * 100)])
    labels = (generator.random(20_000) < share).astype(np.uint8)
    raw = np.round((generator.normal(size=20_000) + labels) * levels / 8) / levels * 8
    if kind == "codes":
        stored = encode_unit(1 / (1 + np.exp(-raw)))
    else:  # unbounded, on both sides of zero: a sigmoid would merge scores
        stored = (raw * 300 if kind == "wide" else raw * 5 - 60).astype(np.float16)
    assert numbers(score_keys(stored), labels) == pytest.approx(oracle(stored, labels), rel=1e-12)


def test_curve_points_equal_scikit_learn():
    generator = np.random.default_rng(5)
    labels = generator.integers(0, 2, 400)
    scores = generator.integers(-10, 10, 400).astype(np.float16)
    curve = detection_curve(count_keys(score_keys(scores), labels))
    exact = scores.astype(np.float64)
    false_rate, true_rate, thresholds = sklearn_metrics.roc_curve(labels, exact, drop_intermediate=False)
    np.testing.assert_array_equal(keys_to_half(curve.thresholds), thresholds[1:])  # the first is scikit-learn's "inf"
    np.testing.assert_allclose(curve.recall, true_rate[1:], rtol=1e-15)
    np.testing.assert_allclose(curve.false_positive_rate, false_rate[1:], rtol=1e-15)


def test_the_recall_of_exactly_19_in_20_reaches_95_percent():
    # 20 anomalies with falling scores, one normal pixel between the 19th and the 20th.
    scores = np.array([*range(40, 21, -1), 20, 21], np.float16)
    labels = np.array([1] * 20 + [0])
    curve = detection_curve(count_keys(score_keys(scores), labels))
    assert fpr_at_recall(curve) == 0.0
    assert fpr_at_recall(curve, recall=0.96) == 1.0


def test_one_class_alone_gives_no_number_but_a_reason():
    for labels, reason in ((np.zeros(4), NO_ANOMALY), (np.ones(4), NO_NORMAL), (np.zeros(0), NO_ANOMALY)):
        keys = np.arange(len(labels), dtype=np.uint16)
        counts = count_keys(keys, labels)
        assert numbers(keys, labels) == (None, None, None, None)
        assert detection_curve(counts).undefined == reason
        assert per_image_sums(counts).tolist() == [0, 0, 0, 0, 0, 1]
    assert per_image_result(np.zeros(6, np.int64)) == dict.fromkeys(IMAGE_NUMBERS)


halves = hnp.arrays(np.float16, 60, elements=st.floats(-100, 100, width=16))
labels_of_60 = hnp.arrays(np.uint8, 60, elements=st.integers(0, 1))


@settings(max_examples=60, deadline=None)
@given(halves, labels_of_60)
def test_monotone_transforms_change_no_number(scores, labels):
    ranks = np.unique(scores + np.float16(0.0), return_inverse=True)[1]
    transformed = (ranks * 7 - 3000).astype(np.float16)  # strictly rising and exact in float16
    before, after = numbers(score_keys(scores), labels), numbers(score_keys(transformed), labels)
    assert before == after
    assert numbers((ranks * 1000).astype(np.uint16), labels) == before


@settings(max_examples=40, deadline=None)
@given(halves, labels_of_60)
def test_equals_scikit_learn_on_any_scores(scores, labels):
    labels[:2] = (0, 1)
    assert numbers(score_keys(scores), labels) == pytest.approx(oracle(scores, labels), rel=1e-12)
    assert numbers_of(per_image_sums(counts_of(scores, labels))) == pytest.approx(oracle(scores, labels), abs=1e-12)


def test_the_mean_is_over_scored_images_and_differs_from_the_pool():
    generator = np.random.default_rng(0)
    single, sums, pool = [], np.zeros(6, np.int64), np.zeros((2, 65536), np.int64)
    for place in range(8):
        labels = (generator.random(500) < 0.03 * place).astype(np.uint8)  # the first has no anomaly
        scores = (generator.normal(size=500) + labels - 3 * place).astype(np.float16)
        counts = counts_of(scores, labels)
        sums += per_image_sums(counts)
        pool += counts
        if labels.any():
            single.append(oracle(scores, labels))
    means = np.mean(single, axis=0)
    assert numbers_of(sums) == pytest.approx(means, abs=1e-12)
    assert sums[4:].tolist() == [7, 1]
    assert abs(auroc(detection_curve(pool)) - means[1]) > 0.05
