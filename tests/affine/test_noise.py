"""The random numbers of draws: reproducible one by one, and as evenly spread as their scheme promises."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from segunc.affine.noise import SCHEMES, NoiseSource
from segunc.core.errors import InputError

S, M, T = 24, 3, 500


def source(scheme: str, seed: int = 0) -> NoiseSource:
    return NoiseSource(seed, scheme, S)  # type: ignore[arg-type]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kind", ["normal", "uniform"])
def test_a_draw_depends_on_its_number_alone(scheme, kind):
    more = {"members": M} if kind == "normal" else {}
    make = getattr(source(scheme), kind)
    together = make(range(S), T, **more)
    for draws in ([5], [23, 0, 7], range(10, 13)):
        assert torch.equal(make(draws, T, **more), together[list(draws)])
    assert not torch.equal(make([0], T, **more), getattr(source(scheme, 1), kind)([0], T, **more))
    assert together.dtype == torch.float32


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_draw_is_standard_normal_and_members_are_independent(scheme):
    noise = source(scheme).normal(range(S), 4000, members=M).numpy()
    for row in noise:
        assert stats.kstest(row, "norm").pvalue > 1e-4
    correlation = np.corrcoef(noise)
    same = np.arange(S)[:, None] % M == np.arange(S)[None] % M
    assert np.abs(correlation[~same]).max() < 0.08
    uniform = source(scheme).uniform(range(S), 4000).numpy()
    assert stats.kstest(uniform[7], "uniform").pvalue > 1e-4


def test_a_latin_hypercube_covers_every_stratum_of_every_channel():
    noise = source("latin-hypercube").normal(range(S), T, members=M).double()
    uniform = torch.special.ndtr(noise).view(S // M, M, T)
    strata = (uniform * (S // M)).floor().long().sort(0).values
    assert torch.equal(strata, torch.arange(S // M)[:, None, None].expand(-1, M, T))
    # 7 draws of 3 members: the first member has three, the others two.
    odd = torch.special.ndtr(NoiseSource(0, "latin-hypercube", 7).normal([0, 3, 6], T, members=3).double())
    assert torch.equal((odd * 3).floor().sort(0).values[:, 0], torch.tensor([0.0, 1.0, 2.0]).double())


def test_a_latin_hypercube_estimates_a_smooth_mean_better():
    """The mean of exp(0.3 sum w eps): its error over many seeds, against plain Monte Carlo."""
    weights = torch.linspace(-1, 1, 40) / 40**0.5

    def error(name: str) -> float:
        noise = (NoiseSource(seed, name, 8).normal(range(8), 40) for seed in range(300))  # type: ignore[arg-type]
        return float(torch.stack([(0.3 * draws @ weights).exp().mean() for draws in noise]).std())

    assert error("latin-hypercube") < 0.5 * error("independent")


def test_bad_schemes_are_refused():
    with pytest.raises(InputError, match="none of independent, latin-hypercube"):
        NoiseSource(0, "sobol")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="number of draws"):
        NoiseSource(0, "latin-hypercube")
    with pytest.raises(InputError, match="beyond the last of 4 draws"):
        NoiseSource(0, "latin-hypercube", 4).normal([4], 2)
