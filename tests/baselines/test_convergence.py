"""R-hat and effective sample size against ArviZ."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from arviz_stats.base import array_stats
from hypothesis import example, given
from hypothesis import strategies as st

from segunc.baselines.convergence import convergence, effective_sample_size, rank_normalised_rhat

Array = npt.NDArray[np.float64]


def autoregressive(chains: int, draws: int, correlation: float, seed: int, apart: float = 0.0) -> Array:
    """Chains of AR(1) draws with unit variance, their means ``apart`` standard deviations apart on average."""
    generator = np.random.default_rng(seed)
    noise = generator.normal(size=(chains, draws))
    x = noise.copy()
    for i in range(1, draws):
        x[:, i] = correlation * x[:, i - 1] + math.sqrt(1 - correlation**2) * noise[:, i]
    return np.asarray(x + apart * generator.normal(size=(chains, 1)), np.float64)


@given(
    chains=st.integers(1, 4),
    draws=st.integers(4, 80),
    correlation=st.floats(-0.9, 0.95),
    apart=st.sampled_from([0.0, 1.0]),
    ties=st.booleans(),
    seed=st.integers(0, 10_000),
)
@example(chains=4, draws=20, correlation=0.0, apart=1.0, ties=True, seed=1872)  # the lags end in a negative even one
def test_both_agree_with_arviz(
    chains: int, draws: int, correlation: float, apart: float, ties: bool, seed: int
) -> None:
    x = autoregressive(chains, draws, correlation, seed, apart)
    if ties:
        x = np.round(2 * x)
    if np.ptp(x) == 0:
        return
    expected = float(array_stats.ess(x, chain_axis=0, draw_axis=1, method="bulk"))
    assert effective_sample_size(x) == pytest.approx(expected, rel=1e-9)
    # ArviZ has no R-hat of a single chain: the two halves of an even number of draws are the same comparison.
    if chains == 1:
        return
    expected = float(array_stats.rhat(x, chain_axis=0, draw_axis=1, method="rank"))
    assert rank_normalised_rhat(x) == pytest.approx(expected, rel=1e-9)


def test_a_single_chain_is_compared_with_itself_and_another_scale_is_noticed() -> None:
    drifting = np.arange(100.0)[None] + np.random.default_rng(0).normal(size=(1, 100))
    assert rank_normalised_rhat(drifting) > 1.5
    assert rank_normalised_rhat(np.random.default_rng(0).normal(size=(1, 400))) < 1.05
    x = np.random.default_rng(0).normal(size=(2, 400)) * np.array([[1.0], [5.0]])
    assert rank_normalised_rhat(x) > 1.1, "their means agree, their spreads do not"


def test_what_does_not_vary_has_no_number() -> None:
    assert math.isnan(rank_normalised_rhat(np.ones((2, 10))))
    assert math.isnan(effective_sample_size(np.ones((2, 10))))
    assert math.isnan(rank_normalised_rhat(np.array([[0.0, 1.0, np.nan, 2.0]])))
    stuck = np.repeat([[0.0], [1.0]], 10, 1)
    assert rank_normalised_rhat(stuck) == math.inf, "two chains that each stand still, elsewhere"


def test_convergence_over_the_parameters() -> None:
    states = np.random.default_rng(0).normal(size=(2, 200, 5))
    good = convergence(states)
    assert good["rhat_max"] < 1.05
    assert good["rhat_below_1.1"] == 1.0
    assert good["ess_min"] > 100
    states[1, :, 3] += 3
    bad = convergence(states)
    assert bad["rhat_max"] > 1.5
    assert bad["rhat_median"] == pytest.approx(good["rhat_median"], abs=0.02)
    assert bad["rhat_below_1.1"] == 0.8
    states[:, :, 0] = 1.0  # a parameter that never moves has no R-hat, and spoils no other's
    assert convergence(states)["rhat_below_1.1"] == 0.75
    for length, reason in ((3, "3 states a chain"), (8, "none of 5 parameters varies")):
        found = convergence(np.zeros((2, length, 5)))
        assert found["rhat_max"] is found["ess_min"] is None
        assert reason in found["reason"]
