"""The per-image protocol against scikit-learn, one image at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from segunc.maps.encoding import score_keys
from segunc.metrics.counting import (
    IMAGE_NUMBERS,
    Counts,
    auroc,
    count_keys,
    detection_curve,
    per_image_result,
    per_image_sums,
)
from tests.metrics.curve_oracles import FIXTURES, oracle


def counts_of(scores: np.ndarray, labels: np.ndarray) -> Counts:
    return count_keys(score_keys(scores.astype(np.float16)), labels)


def numbers_of(counts: Counts) -> list[float | None]:
    result = per_image_result(per_image_sums(counts))
    return [result[name] for name in ("aupr", "auroc", "fpr95", "best_f1")]


@pytest.mark.parametrize("times", [1, 12, 128])
@pytest.mark.parametrize(("labels", "scores", "expected"), FIXTURES)
def test_published_fixtures(labels, scores, expected, times):
    counts = counts_of(np.tile(scores, times), np.tile(labels, times))
    assert numbers_of(counts) == pytest.approx(expected, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(
    hnp.arrays(np.float16, 60, elements=st.integers(-20, 20).map(float)),
    hnp.arrays(np.uint8, 60, elements=st.integers(0, 1)),
)
def test_an_image_equals_scikit_learn(scores, labels):
    labels[:2] = (0, 1)
    assert numbers_of(counts_of(scores, labels)) == pytest.approx(oracle(scores, labels), abs=1e-12)


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
    assert abs(auroc(detection_curve(pool)) - means[1]) > 0.05


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
        assert per_image_sums(counts).tolist() == [0, 0, 0, 0, 0, 1]
    assert per_image_result(np.zeros(6, np.int64)) == dict.fromkeys(IMAGE_NUMBERS)
