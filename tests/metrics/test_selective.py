"""Selective prediction against brute force, averages over tie-breaks, published identities and scikit-learn; patch accuracy
against patch uncertainty: the published fixture, brute force over patches, and the rules of borders."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from segunc.metrics.counting import count_scores
from segunc.metrics.selective import (
    SELECTIVE_NUMBERS,
    SHARES,
    augrc,
    aurc,
    ause,
    optimal_aurc,
    patch_means,
    patch_summary,
    risk_coverage,
    selective_numbers,
    why_undefined,
)
from segunc.metrics.smiyc import VALUES_OF_FLOAT_KEYS
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
    assert optimal_aurc(curve) == pytest.approx(risks_in_order(np.sort(wrong)).mean(), rel=1e-10)
    generalised = np.concatenate(([0.0], np.cumsum(ordered) / 3000))
    assert augrc(curve) == pytest.approx(np.trapezoid(generalised, dx=1 / 3000), rel=1e-12)
    rate = wrong.mean()
    expected = (risks_in_order(ordered) - risks_in_order(np.sort(wrong))).mean() / rate
    assert ause(curve) == pytest.approx(expected, rel=1e-10)
    np.testing.assert_allclose(curve.risk_at(np.arange(1, 3001) / 3000), risks_in_order(ordered), rtol=1e-9)


def test_tied_numbers_are_the_mean_over_all_orders_of_the_ties():
    score = np.array([0, 1, 1, 1, 2, 2, 3])
    wrong = np.array([0, 1, 0, 0, 1, 0, 1])
    curve = risk_coverage(small_counts(score, wrong))
    orders = [wrong[[0, *first, *second, 6]] for first in permutations((1, 2, 3)) for second in permutations((4, 5))]
    assert aurc(curve) == pytest.approx(np.mean([risks_in_order(order).mean() for order in orders]), rel=1e-13)
    areas = [np.trapezoid(np.append(0, np.cumsum(order)) / 7, dx=1 / 7) for order in orders]
    assert augrc(curve) == pytest.approx(np.mean(areas), rel=1e-13)
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
        published = (1 - auroc) * accuracy * (1 - accuracy) + (1 - accuracy) ** 2 / 2  # Traub et al. 2024
        assert numbers["augrc"] == pytest.approx(published, abs=1e-12)
        perfect = selective_numbers(small_counts(wrong.astype(int), wrong.astype(int)))
        assert perfect["ause"] == pytest.approx(0, abs=1e-12)
        assert numbers["ause"] >= 0
        assert numbers["failure_fpr95"] is not None
    else:
        assert set(why_undefined(counts)) == {name for name, value in numbers.items() if value is None}


@pytest.mark.parametrize("scale", [1, 1000, 10**9])
def test_replicated_pixels_keep_the_limit(scale):
    # With n copies of (right at 0, wrong at 1): AURC -> integral of max(0, c - 1/2) / c = 1/2 - ln(2) / 2.
    curve = risk_coverage(scale * np.array([[1, 0], [0, 1]]))
    assert aurc(curve) == pytest.approx((1 - np.log(2)) / 2, abs=0.3 / scale)
    assert aurc(curve) == pytest.approx(optimal_aurc(curve), rel=1e-9)
    assert augrc(curve) == pytest.approx(1 / 8, rel=1e-14)


def test_many_small_ties_of_a_large_set_do_not_cancel():
    # A constant share of errors at every score of a set of 10^11 pixels: the risk is that share everywhere.
    counts = np.tile(np.array([[1_500_000], [500_000]]), (1, 50_000))
    assert aurc(risk_coverage(counts)) == pytest.approx(0.25, rel=1e-12)


def test_what_lacks_is_none_with_its_reason():
    nothing = np.zeros((2, 65536), np.int64)
    assert selective_numbers(nothing) == dict.fromkeys(SELECTIVE_NUMBERS)
    assert set(why_undefined(nothing).values()) == {"no pixel has both a class label and a prediction"}
    right = np.array([[3, 1], [0, 0]])
    assert selective_numbers(right)["aurc"] == 0
    assert why_undefined(right) == dict.fromkeys(SELECTIVE_NUMBERS[2:], "no pixel is wrongly predicted")
    wrong = right[::-1]
    assert (selective_numbers(wrong)["aurc"], selective_numbers(wrong)["ause"]) == (1, 0)
    assert why_undefined(wrong) == dict.fromkeys(SELECTIVE_NUMBERS[3:], "no pixel is rightly predicted")


# Mukhoti & Gal 2018, p. 5.
LABELS = np.array([[1, 2, 5, 7], [6, 4, 3, 3], [10, 9, 5, 0], [8, 6, 4, 4]])
PREDICTION = np.array([[1, 2, 4, 7], [5, 6, 3, 3], [10, 9, 4, 0], [8, 7, 3, 4]])
UNCERTAINTY = np.array([[0.1, 0.3, 0.6, 0.3], [0.7, 0.6, 0.2, 0.1], [0.2, 0.4, 0.5, 0.3], [0.1, 0.7, 0.6, 0.2]])


def patches(uncertainty, correct, counted, window) -> dict[str, float | None]:
    means, inaccurate = patch_means(uncertainty, correct, counted, window)
    return patch_summary(count_scores(means.astype(np.float32).astype(np.float16), inaccurate), VALUES_OF_FLOAT_KEYS)


def test_published_fixture_of_patches():
    means, inaccurate = patch_means(UNCERTAINTY, LABELS == PREDICTION, np.ones((4, 4), bool), window=2)
    assert inaccurate.tolist() == [1, 0, 0, 1]  # shares of 2/4 are not accurate: the comparison is strict
    np.testing.assert_allclose(means, [0.425, 0.3, 0.35, 0.4], rtol=1e-6)
    counts = count_scores(means.astype(np.float32).astype(np.float16), inaccurate)
    # One patch has a mean uncertainty of exactly 0.4 and is certain: the comparison is strict.
    summary = patch_summary(counts, VALUES_OF_FLOAT_KEYS, 0.4)
    assert [summary[share] for share in SHARES] == pytest.approx([2 / 3, 1 / 2, 3 / 4])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_patches_equal_brute_force_with_ignored_pixels_and_open_borders(seed, window):
    random = np.random.default_rng(seed)
    shape = random.integers(1, 14, 2)
    # Multiples of 1/64: the mean of the loops and that of the sums agree to the last bit of float16 and ties occur.
    uncertainty = random.integers(0, 65, shape) / 64
    correct, counted = random.random(shape) < 0.6, random.random(shape) < 0.5
    kinds = []
    for top in range(0, shape[0], window):
        for left in range(0, shape[1], window):
            part = np.s_[top : top + window, left : left + window]
            if (mask := counted[part]).any():
                mean = float(np.float16(np.float32(uncertainty[part][mask].mean())))
                kinds.append((correct[part][mask].mean() > 0.5, mean))
    summary = patches(np.where(counted, uncertainty, np.nan), correct, counted, window)
    if not kinds:
        assert set(summary.values()) == {None}
        return
    accurate, means = (np.array(column) for column in zip(*kinds, strict=True))
    assert summary["threshold"] == pytest.approx(means.mean(), rel=1e-12)
    certain = means <= np.float16(means.mean())
    assert summary["pavpu"] == pytest.approx((accurate == certain).mean())
    for share, right, of in zip(SHARES, (accurate, ~certain), (certain, ~accurate), strict=False):
        assert summary[share] == (pytest.approx(right[of].mean()) if of.any() else None)
