"""Patch accuracy against patch uncertainty: the published fixture, brute force over patches, and the rules of borders."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segunc.core.errors import InputError
from segunc.metrics.selective import SHARES, count_patches, patch_numbers, patch_summary, sweep

# Mukhoti & Gal 2018, p. 5.
LABELS = np.array([[1, 2, 5, 7], [6, 4, 3, 3], [10, 9, 5, 0], [8, 6, 4, 4]])
PREDICTION = np.array([[1, 2, 4, 7], [5, 6, 3, 3], [10, 9, 4, 0], [8, 7, 3, 4]])
UNCERTAINTY = np.array([[0.1, 0.3, 0.6, 0.3], [0.7, 0.6, 0.2, 0.1], [0.2, 0.4, 0.5, 0.3], [0.1, 0.7, 0.6, 0.2]])


def brute_force(uncertainty, correct, counted, window, threshold):
    """The four kinds of patches by loops, thresholds in float16."""
    kinds = {"ac": 0, "au": 0, "ic": 0, "iu": 0}
    for top in range(0, uncertainty.shape[0], window):
        for left in range(0, uncertainty.shape[1], window):
            part = np.s_[top : top + window, left : left + window]
            mask = counted[part]
            if mask.any():
                accurate = correct[part][mask].mean() > 0.5
                uncertain = np.float16(np.float32(uncertainty[part][mask].mean())) > np.float16(threshold)
                kinds[("a" if accurate else "i") + ("u" if uncertain else "c")] += 1
    return kinds


def test_published_fixture():
    counts = count_patches(UNCERTAINTY, LABELS == PREDICTION, np.ones((4, 4), bool), window=2)
    assert counts.sum(axis=1).tolist() == [2, 2]  # shares of 2/4 are not accurate: the comparison is strict
    numbers = patch_numbers(counts, [0.4])
    # One patch has a mean uncertainty of exactly 0.4 and is certain: the comparison is strict.
    assert [float(numbers[share][0]) for share in SHARES] == pytest.approx([2 / 3, 1 / 2, 3 / 4])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.floats(0, 1))
def test_equals_brute_force_with_ignored_pixels_and_open_borders(seed, window, threshold):
    random = np.random.default_rng(seed)
    shape = random.integers(1, 14, 2)
    # Multiples of 1/64: the mean of the loops and that of the sums agree to the last bit of float16 and ties occur.
    uncertainty = random.integers(0, 65, shape) / 64
    correct, counted = random.random(shape) < 0.6, random.random(shape) < 0.5
    counts = count_patches(np.where(counted, uncertainty, np.nan), correct, counted, window)
    kinds = brute_force(uncertainty, correct, counted, window, threshold)
    numbers = patch_numbers(counts, [threshold])
    parts = kinds["ac"], kinds["iu"], kinds["ac"] + kinds["iu"]
    wholes = kinds["ac"] + kinds["ic"], kinds["iu"] + kinds["ic"], sum(kinds.values())
    for share, part, whole in zip(SHARES, parts, wholes, strict=True):
        np.testing.assert_array_equal(numbers[share], [part / whole if whole else np.nan])


def test_the_sweep_goes_from_the_least_to_the_greatest_uncertainty():
    random = np.random.default_rng(3)
    uncertainty = random.random((40, 40))
    counts = count_patches(uncertainty, random.random((40, 40)) > uncertainty, np.ones((40, 40), bool))
    numbers = sweep(counts, 11)
    means = uncertainty.reshape(10, 4, 10, 4).mean((1, 3))
    assert numbers["thresholds"][[0, -1]].tolist() == pytest.approx([means.min(), means.max()], rel=2**-11)
    # At the greatest uncertainty every patch is certain, so PAvPU and p(accurate | certain) are the share of accurate ones.
    share = counts[0].sum() / counts.sum()
    assert numbers["pavpu"][-1] == numbers["accurate_if_certain"][-1] == share
    assert numbers["uncertain_if_inaccurate"][-1] == 0
    assert (np.diff(numbers["uncertain_if_inaccurate"]) <= 0).all()


def test_the_default_threshold_is_the_mean_uncertainty():
    uncertainty = np.array([[0.25, 0.5, 0.75, 1.0]])
    counts = count_patches(uncertainty, np.array([[True, True, False, False]]), np.ones((1, 4), bool), window=1)
    expected = {"threshold": 0.625, "accurate_if_certain": 1.0, "uncertain_if_inaccurate": 1.0, "pavpu": 1.0}
    assert patch_summary(counts) == expected


def test_unbounded_scores_and_thresholds_beyond_them():
    uncertainty = np.array([[-20.0, -3.0, 5.0]])
    counts = count_patches(uncertainty, np.array([[True, False, False]]), np.ones((1, 3), bool), window=1)
    assert sweep(counts)["thresholds"][[0, -1]].tolist() == [-20, 5]
    numbers = patch_numbers(counts, [-1e9, 1e9])
    np.testing.assert_array_equal(numbers["accurate_if_certain"], [np.nan, 1 / 3])
    np.testing.assert_array_equal(numbers["uncertain_if_inaccurate"], [1, 0])


def test_nothing_to_count_is_none():
    nothing = np.zeros((2, 65536), np.int64)
    assert set(patch_summary(nothing).values()) == {None}
    assert sweep(nothing) is None
    right = count_patches(np.full((4, 4), 0.5), np.ones((4, 4), bool), np.ones((4, 4), bool))
    assert patch_summary(right)["uncertain_if_inaccurate"] is None
    assert patch_summary(right)["pavpu"] == 1.0


def test_bad_input_is_refused():
    good, mask = np.zeros((4, 4)), np.ones((4, 4), bool)
    with pytest.raises(InputError, match="shape"):
        count_patches(good, mask, mask[:2])
    with pytest.raises(InputError, match="NaN"):
        count_patches(good * np.nan, mask, mask)
