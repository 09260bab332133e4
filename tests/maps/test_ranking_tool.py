"""The tool that ranks frames: ranks with ties, against SciPy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from tools.check_ranking import mean_ranks, spearman


@pytest.mark.parametrize("levels", [3, 1000])
def test_ranks_are_those_of_scipy_with_and_without_ties(levels: int) -> None:
    rng = np.random.default_rng(levels)
    first, second = rng.integers(0, levels, (2, 40)).astype(float).tolist()
    np.testing.assert_array_equal(mean_ranks(first) + 1, stats.rankdata(first))
    assert spearman(first, second) == pytest.approx(stats.spearmanr(first, second).statistic, abs=1e-12)


def test_a_constant_has_no_rank_correlation() -> None:
    assert np.isnan(spearman([1.0, 1.0], [0.0, 2.0]))
