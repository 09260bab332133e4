"""Rank correlation and overlap of the highest pixels, against SciPy and by hand."""

import numpy as np
import pytest
from scipy.stats import rankdata, spearmanr

from segunc.metrics.rank_agreement import highest_overlap, mean_ranks, rank_correlation


def stored(dtype: type, seed: int) -> np.ndarray:
    """Values with many ties."""
    generator = np.random.default_rng(seed)
    if np.issubdtype(dtype, np.integer):
        return generator.integers(0, 40, 500).astype(dtype)
    return np.round(generator.normal(size=500), 1).astype(dtype)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float16, np.float32, np.float64])
def test_ranks_are_those_of_scipy(dtype: type) -> None:
    values = stored(dtype, 1)
    np.testing.assert_array_equal(mean_ranks(values), rankdata(values))


@pytest.mark.parametrize("dtype", [np.uint16, np.float16, np.float64])
def test_the_correlation_is_that_of_scipy(dtype: type) -> None:
    first = stored(dtype, 1)
    second = (first + stored(dtype, 2)).astype(dtype)
    expected = spearmanr(first.astype(np.float64), second.astype(np.float64)).statistic
    assert 0.1 < expected < 0.9
    assert rank_correlation(first, second) == pytest.approx(expected, abs=1e-12)


def test_maps_of_other_forms_have_the_correlation_of_their_values() -> None:
    codes = stored(np.uint16, 1)
    floats = stored(np.float16, 2)
    expected = spearmanr(codes.astype(np.float64), floats.astype(np.float64)).statistic
    assert rank_correlation(codes, floats) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("size", [0, 5])
def test_a_constant_map_or_none_has_no_correlation(size: int) -> None:
    assert rank_correlation(np.zeros(size), np.arange(size, dtype=float)) is None


def test_the_overlap_is_that_of_the_highest_pixels() -> None:
    first = np.arange(100.0)
    second = first.copy()
    second[[95, 0]] = second[[0, 95]]  # the fifth highest pixel is another one
    assert highest_overlap(first, second) == pytest.approx(4 / 6)


def test_pixels_that_tie_with_the_last_belong_to_the_highest() -> None:
    first = np.arange(100.0)
    second = first.copy()
    second[94] = second[95]
    assert highest_overlap(first, second) == pytest.approx(5 / 6)


def test_where_most_pixels_tie_there_is_no_overlap() -> None:
    first = np.arange(100.0)
    second = np.zeros(100)
    second[99] = 1
    assert highest_overlap(first, second) is None
