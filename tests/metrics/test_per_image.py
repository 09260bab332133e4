"""The per-image protocol against scikit-learn, one image at a time, and against CAOS's recall rule in its own terms."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from segunc.core.errors import InputError
from segunc.maps.encoding import score_keys
from segunc.metrics.counting import Counts, count_keys, detection_curve, fpr_nearest_recall
from segunc.metrics.per_image import NUMBERS, image_numbers, per_image_result, per_image_sums
from tests.metrics.curve_oracles import FIXTURES, oracle


def counts_of(scores: np.ndarray, labels: np.ndarray) -> Counts:
    return count_keys(score_keys(scores.astype(np.float16)), labels)


def caos_fpr(scores: np.ndarray, labels: np.ndarray, wanted: float = 0.95) -> float:
    """The nearest recall, searched through a list of every operating point: no cumulated sums, no keys."""
    anomalous, normal = scores[labels == 1], scores[labels == 0]
    points = []
    for threshold in sorted(set(scores.tolist()), reverse=True):
        found = int((anomalous >= threshold).sum())
        points.append((found / len(anomalous), int((normal >= threshold).sum()) / len(normal)))
        if found == len(anomalous):
            break
    best = None
    for recall, false_rate in reversed(points):
        if best is None or abs(recall - wanted) < best[0]:
            best = (abs(recall - wanted), false_rate)
    assert best is not None
    return best[1]


@pytest.mark.parametrize("times", [1, 12, 128])
@pytest.mark.parametrize(("labels", "scores", "expected"), FIXTURES)
def test_published_fixtures(labels, scores, expected, times):
    counts = counts_of(np.tile(scores, times), np.tile(labels, times))
    numbers = image_numbers(counts)
    assert numbers is not None
    assert [numbers[name] for name in ("aupr", "auroc", "fpr95", "best_f1")] == pytest.approx(expected, rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(
    hnp.arrays(np.float16, 60, elements=st.integers(-20, 20).map(float)),
    hnp.arrays(np.uint8, 60, elements=st.integers(0, 1)),
)
def test_an_image_equals_scikit_learn_and_both_rules(scores, labels):
    labels[:2] = (0, 1)
    numbers = image_numbers(counts_of(scores, labels))
    assert numbers is not None
    assert [numbers[name] for name in ("aupr", "auroc", "fpr95", "best_f1")] == pytest.approx(
        oracle(scores, labels), rel=1e-12
    )
    nearest = image_numbers(counts_of(scores, labels), "nearest-recall")
    assert nearest is not None
    assert nearest["fpr95"] == caos_fpr(scores, labels)
    assert {name: nearest[name] for name in NUMBERS if name != "fpr95"} == {
        name: numbers[name] for name in NUMBERS if name != "fpr95"
    }


def test_the_nearest_recall_may_lie_below_and_takes_the_lowest_threshold_of_a_recall():
    # 16 anomalies: 15 / 16 = 0.9375 is nearer to 0.95 than 1. Two normal pixels follow at that recall.
    scores = np.array([*range(40, 25, -1), 25, 24, 10, 5])
    labels = np.array([1] * 15 + [0, 0] + [1, 0])
    curve = detection_curve(counts_of(scores, labels))
    assert fpr_nearest_recall(curve) == 2 / 3
    assert caos_fpr(scores, labels) == 2 / 3
    # Equal distances up to rounding: 9/10 lies nearer to 0.95 in float64 than 10/10.
    scores, labels = np.arange(11, 0, -1), np.array([1] * 9 + [0, 1])
    assert fpr_nearest_recall(detection_curve(counts_of(scores, labels))) == caos_fpr(scores, labels) == 1.0


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
    result = per_image_result(sums)
    means = np.mean(single, axis=0)
    assert [result[name] for name in ("aupr", "auroc", "fpr95", "best_f1")] == pytest.approx(means, abs=1e-12)
    assert sums[4:].tolist() == [7, 1]
    pooled = image_numbers(pool)
    assert pooled is not None
    assert abs(pooled["auroc"] - means[1]) > 0.05


@settings(max_examples=30, deadline=None)
@given(st.permutations(range(7)), st.integers(0, 7))
def test_shards_merge_to_the_whole_to_the_bit(order, cut):
    generator = np.random.default_rng(1)
    parts = []
    for _ in range(7):
        labels = (generator.random(97) < 0.2).astype(np.uint8)
        parts.append(per_image_sums(counts_of(generator.normal(size=97), labels)))
    shards = [sum((parts[i] for i in some), np.zeros(6, np.int64)) for some in (order[:cut], order[cut:])]
    assert per_image_result(shards[0] + shards[1]) == per_image_result(np.sum(parts, axis=0))


def test_images_without_both_classes_give_no_number():
    scores = np.arange(4.0)
    for labels in (np.zeros(4, np.uint8), np.ones(4, np.uint8), np.zeros(0, np.uint8)):
        counts = counts_of(scores[: len(labels)], labels)
        assert image_numbers(counts) is None
        assert per_image_sums(counts).tolist() == [0, 0, 0, 0, 0, 1]
    assert per_image_result(np.zeros(6, np.int64)) == dict.fromkeys(NUMBERS)


def test_an_unknown_rule_is_refused():
    with pytest.raises(InputError, match="first-point or nearest-recall"):
        image_numbers(np.zeros((2, 65536), np.int64), "interpolated")  # type: ignore[arg-type]
