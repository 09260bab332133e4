"""Every posterior beside ABNN: its formula, its moments, and what all of them promise."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from segunc.affine.convert import convert
from segunc.affine.noise import draw_noise
from segunc.affine.posterior import Posterior, Prior
from segunc.baselines.chains import HMCPosterior, SGHMCPosterior, SGLDPosterior
from segunc.baselines.laplace import LaplacePosterior
from segunc.baselines.mc_dropout import ChannelDropout
from segunc.baselines.mcbn import MCBNPosterior
from segunc.baselines.swag import SWAGPosterior
from segunc.baselines.variational import MeanField
from segunc.core.errors import InputError
from segunc.posteriors.abnn import ABNNPosterior
from segunc.posteriors.methods import METHODS
from segunc.posteriors.model import check_sites, load_recorded
from tests.affine.networks import layout_of, small_network

LAYOUT = layout_of(small_network())
"""16 channels, 8 of them under ``encoder``."""
MEAN = LAYOUT.affine


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def block_fisher() -> Tensor:
    """``[3, 16]``: blocks that are outer products plus a diagonal, so positive definite."""
    a, b = rand(2, 16, seed=1)
    return torch.stack([a * a + 0.01, b * b + 0.01, a * b])


def full_of(blocks: Tensor) -> Tensor:
    full = torch.diag(blocks[:2].flatten())
    rows = torch.arange(16)
    full[rows, rows + 16] = full[rows + 16, rows] = blocks[2]
    return full


MAKE: dict[str, Callable[[str], Posterior]] = {
    "abnn": lambda scope: ABNNPosterior.around(LAYOUT, 0.2, 3, scope=scope),
    "variational": lambda scope: MeanField(MEAN, 0.1 * rand(2, 16), scope),
    "swag": lambda scope: SWAGPosterior(MEAN, 0.01 * rand(2, 16), 0.1 * rand(5, 2, 16), 1.5, scope),
    "laplace": lambda scope: LaplacePosterior(
        MEAN, block_fisher(), prior=Prior(0.1, 50.0, temperature=0.5), scope=scope
    ),
    "mc-dropout": lambda scope: ChannelDropout(MEAN, 0.3, scope),
}
CHAINS: dict[str, Callable[[str], Posterior]] = {
    kind.method: lambda scope, kind=kind: kind(
        rand(6, 16), rand(6, 16), 3, scope, {"temperature": 0.5}
    )
    for kind in (SGLDPosterior, SGHMCPosterior, HMCPosterior)
}
"""They have other promises about their draws, which tests/baselines/test_chains.py holds."""
STATES = CHAINS | {"mcbn": lambda scope: MCBNPosterior(rand(6, 16) + 0.5, rand(6, 16), scope)}
"""Likewise; the draws are a few that are stored, and tests/baselines/test_mcbn.py holds the others.
"""


def test_every_stored_posterior_is_tested() -> None:
    others = {"ensemble", "tta", "distil", "temperature", "features", "anomaly", "class-sets"}
    assert set(MAKE) | set(STATES) | others == set(METHODS)


@pytest.mark.parametrize("name", MAKE | STATES)
def test_it_restores_itself_from_its_file(name: str) -> None:
    posterior = (MAKE | STATES)[name]("decoder")
    restore = METHODS[name].restore
    assert restore is not None
    again = restore(posterior.tensors(), json.loads(json.dumps({**posterior.settings(), "x": 1})))
    assert type(again) is type(posterior)
    assert again.settings() == posterior.settings()
    for one, other in zip(vars(again).values(), vars(posterior).values(), strict=True):
        assert torch.equal(one, other) if isinstance(one, Tensor) else one == other
    with pytest.raises(KeyError):
        restore({}, posterior.settings())


@pytest.mark.parametrize("name", MAKE)
@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**62), st.lists(st.integers(0, 10_000), min_size=1, max_size=4))
def test_any_draw_can_be_made_alone(name: str, seed: int, draws: list[int]) -> None:
    posterior = MAKE[name]("all")
    together = posterior.affine(LAYOUT, draws, seed)
    for row, draw in enumerate(draws):
        alone = posterior.affine(LAYOUT, [draw], seed)
        # A matrix product over several rows may round in another order than over one.
        torch.testing.assert_close(alone.weight[0], together.weight[row], rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(alone.bias[0], together.bias[row], rtol=1e-6, atol=1e-7)
    assert not torch.equal(together.weight, posterior.affine(LAYOUT, draws, seed + 1).weight)


@pytest.mark.parametrize("name", MAKE)
def test_a_scope_leaves_the_other_sites_alone_and_keeps_the_noise_of_its_own(name: str) -> None:
    everywhere = MAKE[name]("all").affine(LAYOUT, [0, 1], 3)
    for made, scope in (("decoder", None), ("all", "decoder")):
        draws = MAKE[name](made).affine(LAYOUT, [0, 1], 3, scope)
        assert torch.equal(draws.weight[:, :8], LAYOUT.weight[:8].expand(2, -1))
        assert torch.equal(draws.bias[:, :8], LAYOUT.bias[:8].expand(2, -1))
        assert torch.equal(draws.weight[:, 8:], everywhere.weight[:, 8:])
        assert not torch.equal(draws.weight[0, 8:], LAYOUT.weight[8:])


def assert_gaussian(posterior: Posterior, expected: Tensor, count: int = 6_000) -> None:
    """The draws have the mean MEAN and this covariance, within five standard errors."""
    draws = posterior.affine(LAYOUT, range(count), 0)
    values = torch.cat([draws.weight, draws.bias], 1).double()
    mean, covariance = values.mean(0), torch.cov(values.T)
    variance = expected.diagonal()
    assert bool(((mean - MEAN.flatten()).abs() <= 5 * (variance / count).sqrt() + 1e-6).all())
    error = ((expected.square() + variance[:, None] * variance) / count).sqrt()
    assert bool(((covariance - expected).abs() <= 5 * error + 1e-12).all())


def test_mean_field_draws_have_their_moments_and_independent_noise() -> None:
    posterior = MeanField(MEAN, 0.1 * rand(2, 16) + 0.01)
    assert_gaussian(posterior, torch.diag(posterior.sigma.double().flatten() ** 2))
    noise = draw_noise(5, [2], 32)
    draws = posterior.affine(LAYOUT, [2], 5)
    assert torch.allclose(draws.weight[0], LAYOUT.weight + posterior.sigma[0] * noise[0, :16])
    assert torch.allclose(draws.bias[0], LAYOUT.bias + posterior.sigma[1] * noise[0, 16:])


def test_swag_draws_have_the_covariance_of_the_paper() -> None:
    variance, deviations = 0.01 * rand(2, 16), 0.1 * rand(5, 2, 16, seed=2)
    columns = deviations.double().flatten(1)
    expected = 0.5 * (torch.diag(variance.double().flatten()) + columns.T @ columns / 4)
    assert_gaussian(SWAGPosterior(MEAN, variance, deviations), expected)
    assert_gaussian(SWAGPosterior(MEAN, variance, deviations, 3.0), 3.0 * expected)


@pytest.mark.parametrize("structure", ["diagonal", "block"])
def test_laplace_draws_have_the_inverse_precision_for_covariance(structure: str) -> None:
    blocks = block_fisher()
    fisher = blocks[:2] if structure == "diagonal" else blocks
    posterior = LaplacePosterior(MEAN, fisher, Prior(0.5, 30.0, temperature=0.25))
    matrix = (
        full_of(blocks).double()
        if structure != "diagonal"
        else torch.diag(blocks[:2].double().flatten())
    )
    expected = 0.25 * torch.linalg.inv(30.0 * matrix + 4.0 * torch.eye(32, dtype=torch.float64))
    assert_gaussian(posterior, expected)


def test_channel_dropout_drops_whole_channels_and_keeps_the_expectation() -> None:
    posterior = ChannelDropout(MEAN, 0.3)
    draws = posterior.affine(LAYOUT, range(8_000), 0)
    dropped = draws.weight == 0
    assert torch.equal(dropped, draws.bias == 0)
    assert float(dropped.float().mean()) == pytest.approx(0.3, abs=0.01)
    kept = ~dropped
    assert torch.allclose(draws.weight[kept], (LAYOUT.weight / 0.7).expand_as(draws.weight)[kept])
    assert torch.allclose(draws.weight.mean(0), LAYOUT.weight, rtol=0.05)


@given(st.floats(0.0, 0.98), st.floats(0.0, 0.98))
@settings(max_examples=30, deadline=None)
def test_what_a_smaller_p_drops_a_larger_one_drops_too(one: float, other: float) -> None:
    small, large = sorted((one, other))
    first = ChannelDropout(MEAN, small).affine(LAYOUT, range(4), 1).weight == 0
    second = ChannelDropout(MEAN, large).affine(LAYOUT, range(4), 1).weight == 0
    assert bool((second | ~first).all())


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: SWAGPosterior(MEAN, rand(2, 16), rand(1, 2, 16)), "at least 2 snapshots, not 1"),
        (lambda: ABNNPosterior(MEAN, MEAN, float("nan")), "alpha nan"),
        (lambda: ABNNPosterior(MEAN, MEAN[:1], 0.1), r"not both \[M, T\]"),
        (
            lambda: load_recorded(Path("m"), {"method": "telepathy"}),
            "method 'telepathy', which no installed package",
        ),
        (lambda: load_recorded(Path("model"), {"method": "temperature"}), "method 'temperature'"),
    ],
)
def test_bad_settings_are_one_line(make: Callable[[], Posterior], said: str) -> None:
    with pytest.raises(InputError, match=said):
        make()


def test_a_posterior_over_other_layers_is_refused() -> None:
    """An earlier version may have left a layer that this one draws."""
    report = convert(small_network())
    earlier = report.to_json()
    check_sites(Path("model"), {"conversion": earlier}, report)
    earlier["sites"] = earlier["sites"][1:]
    with pytest.raises(InputError, match=r"has 1 .* draws 2 \(e\.g\. encoder\.1\)"):
        check_sites(Path("model"), {"conversion": earlier}, report)
