"""Selective prediction against brute force, averages over tie-breaks, published identities and scikit-learn."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from segunc.evaluation.parts import Selective
from segunc.metrics.prediction import SELECTIVE_NUMBERS, aurc, risk_coverage, selective_numbers
from tests.metrics.keys import count_keys


def small_counts(score: np.ndarray, wrong: np.ndarray) -> np.ndarray:
    """Counts by key where the keys are small whole numbers."""
    return np.stack([np.bincount(score[wrong == row], minlength=score.max() + 1) for row in (0, 1)])


def risks_in_order(wrong: np.ndarray) -> np.ndarray:
    """Selective risk after each accepted pixel, by definition."""
    return np.cumsum(wrong) / np.arange(1, len(wrong) + 1)


pixels = st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=80)


def test_untied_numbers_are_those_of_the_definition():
    random = np.random.default_rng(0)
    keys = random.permutation(65536)[:3000].astype(np.uint16)
    wrong = random.random(3000) < keys / 200000
    curve = risk_coverage(count_keys(keys, wrong))
    ordered = wrong[np.argsort(keys)]
    assert aurc(curve) == pytest.approx(risks_in_order(ordered).mean(), rel=1e-12)
    np.testing.assert_allclose(curve.risk_at(np.arange(1, 3001) / 3000), risks_in_order(ordered), rtol=1e-9)


def test_tied_numbers_are_the_mean_over_all_orders_of_the_ties():
    score = np.array([0, 1, 1, 1, 2, 2, 3])
    wrong = np.array([0, 1, 0, 0, 1, 0, 1])
    curve = risk_coverage(small_counts(score, wrong))
    orders = [wrong[[0, *first, *second, 6]] for first in permutations((1, 2, 3)) for second in permutations((4, 5))]
    assert aurc(curve) == pytest.approx(np.mean([risks_in_order(order).mean() for order in orders]), rel=1e-13)
    risks = np.mean([risks_in_order(order) for order in orders], axis=0)
    np.testing.assert_allclose(curve.risk_at(np.arange(1, 8) / 7), risks, rtol=1e-13)


@settings(max_examples=80, deadline=None)
@given(pixels)
def test_identities_hold_with_ties(given_pixels):
    score, wrong = (np.array(column) for column in zip(*given_pixels, strict=True))
    counts = small_counts(score, wrong.astype(int))
    numbers = selective_numbers(counts)
    accuracy = 1 - wrong.mean()
    if 0 < accuracy < 1:
        auroc = roc_auc_score(wrong, score)
        assert numbers["failure_auroc"] == pytest.approx(auroc, abs=1e-12)
        assert numbers["failure_aupr"] == pytest.approx(average_precision_score(wrong, score), abs=1e-12)
        assert numbers["failure_fpr95"] is not None


@pytest.mark.parametrize("scale", [1, 1000, 10**9])
def test_replicated_pixels_keep_the_limit(scale):
    # With n copies of (right at 0, wrong at 1): AURC -> integral of max(0, c - 1/2) / c = 1/2 - ln(2) / 2.
    curve = risk_coverage(scale * np.array([[1, 0], [0, 1]]))
    assert aurc(curve) == pytest.approx((1 - np.log(2)) / 2, abs=0.3 / scale)


def test_many_small_ties_of_a_large_set_do_not_cancel():
    # A constant share of errors at every score of a set of 10^11 pixels: the risk is that share everywhere.
    counts = np.tile(np.array([[1_500_000], [500_000]]), (1, 50_000))
    assert aurc(risk_coverage(counts)) == pytest.approx(0.25, rel=1e-12)


@pytest.mark.parametrize(
    ("counts", "defined", "why"),
    [
        ([[0, 0], [0, 0]], {}, "no pixel has both a class label and a prediction"),
        ([[3, 1], [0, 0]], {"aurc": 0}, "no pixel is wrongly predicted"),
        ([[0, 0], [3, 1]], {"aurc": 1}, "no pixel is rightly predicted"),
    ],
)
def test_what_lacks_is_none_with_its_reason(counts, defined, why):
    assert selective_numbers(np.array(counts)) == dict.fromkeys(SELECTIVE_NUMBERS) | defined
    assert Selective("msp").why(np.array(counts), ("failure_auroc",)) == why
