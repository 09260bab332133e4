"""Draws: their random numbers, the ABNN formula, contexts, scopes, gradients, statistics
corrections.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from segunc.affine.draws import AffineDraws, AffineLayout, in_scope
from segunc.affine.noise import SCHEMES, NoiseSource, draw_noise
from segunc.core.errors import InputError
from segunc.posteriors.abnn import ABNNPosterior, reestimate
from tests.affine.networks import layout_of, small_network, with_affine

S = 24  # draws
M = 3  # members
T = 500  # channels


def source(scheme: str, seed: int = 0) -> NoiseSource:
    return NoiseSource(seed, scheme, S)  # type: ignore[arg-type]


def numbers(noise: NoiseSource, kind: str, draws: Sequence[int], channels: int) -> torch.Tensor:
    """Return random numbers of this kind ``[draws, channels]``; normal ones of ``M`` members."""
    if kind == "normal":
        return noise.normal(draws, channels, members=M)
    return noise.uniform(draws, channels)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kind", ["normal", "uniform"])
@pytest.mark.parametrize("draws", [[5], [23, 0, 7], range(10, 13)])
def test_a_draw_depends_on_its_number_alone(scheme: str, kind: str, draws: Sequence[int]) -> None:
    together = numbers(source(scheme), kind, range(S), T)
    assert torch.equal(numbers(source(scheme), kind, draws, T), together[list(draws)])
    assert together.dtype == torch.float32


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kind", ["normal", "uniform"])
def test_another_seed_gives_other_draws(scheme: str, kind: str) -> None:
    first = numbers(source(scheme), kind, [0], T)
    second = numbers(source(scheme, seed=1), kind, [0], T)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_draw_is_standard_normal(scheme: str) -> None:
    for draw in source(scheme).normal(range(S), 4000, members=M).numpy():
        assert stats.kstest(draw, "norm").pvalue > 1e-4


@pytest.mark.parametrize("scheme", SCHEMES)
def test_members_are_independent(scheme: str) -> None:
    draws = source(scheme).normal(range(S), 4000, members=M).numpy()
    correlation = np.corrcoef(draws)
    members = np.arange(S) % M
    same_member = members[:, None] == members[None]
    assert np.abs(correlation[~same_member]).max() < 0.08


@pytest.mark.parametrize("scheme", SCHEMES)
def test_uniform_draws_are_uniform(scheme: str) -> None:
    uniform = source(scheme).uniform(range(S), 4000).numpy()
    assert stats.kstest(uniform[7], "uniform").pvalue > 1e-4


def test_a_latin_hypercube_covers_every_stratum_of_every_channel() -> None:
    count = S // M
    noise = source("latin-hypercube").normal(range(S), T, members=M).double()
    uniform = torch.special.ndtr(noise).view(count, M, T)
    strata = (uniform * count).floor().long().sort(0).values
    expected = torch.arange(count)[:, None, None].expand(-1, M, T)
    assert torch.equal(strata, expected)


def test_members_of_a_latin_hypercube_may_have_other_numbers_of_draws() -> None:
    # 7 draws of 3 members: the first member has three, the others two.
    noise = NoiseSource(0, "latin-hypercube", 7).normal([0, 3, 6], T, members=3).double()
    uniform = torch.special.ndtr(noise)
    strata = (uniform * 3).floor().sort(0).values
    assert strata[:, 0].tolist() == [0.0, 1.0, 2.0]


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(InputError, match="none of independent, antithetic, latin-hypercube"):
        NoiseSource(0, "sobol")  # type: ignore[arg-type]


def test_a_latin_hypercube_needs_its_number_of_draws() -> None:
    with pytest.raises(InputError, match="number of draws"):
        NoiseSource(0, "latin-hypercube")


def test_a_draw_beyond_the_last_is_refused() -> None:
    noise = NoiseSource(0, "latin-hypercube", 4)
    with pytest.raises(InputError, match="beyond the last of 4 draws"):
        noise.normal([4], 2)


def converted(seed: int = 0) -> tuple[nn.Module, AffineLayout]:
    network = small_network(seed=seed)
    return network, layout_of(network)


def test_the_formula() -> None:
    _, layout = converted()
    gamma = torch.rand(2, layout.total)
    beta = torch.rand(2, layout.total)
    draws = ABNNPosterior(gamma, beta, 0.3).affine(layout, [0, 1, 2, 3], seed=7)
    noise = draw_noise(7, range(4), layout.total)
    for number in range(4):
        member = number % 2
        weight = gamma[member] * (1 + 0.3 * noise[number])
        assert torch.allclose(draws.weight[number], weight)
        assert torch.equal(draws.bias[number], beta[member])


def test_draws_end_with_their_context() -> None:
    network, layout = converted()
    x = torch.randn(1, 3, 8, 8)
    before = network(x)
    draws = ABNNPosterior.around(layout, 0.5).affine(layout, [0], seed=1)
    with pytest.raises(RuntimeError), layout.active(draws):
        raise RuntimeError
    assert torch.equal(network(x), before)


def test_draws_within_draws_are_refused() -> None:
    _, layout = converted()
    draws = ABNNPosterior.around(layout, 0.5).affine(layout, [0], seed=1)
    with layout.active(draws):
        within = layout.active(draws)
        with pytest.raises(InputError, match="active already"), within:
            pass


def test_draws_of_another_layout_are_refused() -> None:
    _, layout = converted()
    wrong = AffineDraws(torch.ones(1, 5), torch.ones(1, 5))
    with pytest.raises(InputError, match=r"\[S, 16\]"), layout.active(wrong):
        pass


def test_a_batch_that_is_not_a_multiple_of_the_draws_is_refused() -> None:
    network, layout = converted()
    draws = ABNNPosterior.around(layout, 0.1).affine(layout, [0, 1], 0)
    with layout.active(draws), pytest.raises(InputError, match="2 draws"):
        network(torch.randn(3, 3, 8, 8))


def test_draws_do_not_see_training_mode() -> None:
    network, layout = converted()
    draws = ABNNPosterior.around(layout, 0.2).affine(layout, [0, 1], 0)
    x = torch.randn(2, 3, 8, 8)
    statistics = network.encoder[1].running_mean.clone()
    with torch.no_grad(), layout.active(draws):
        evaluated = network(x)
        trained = network.train()(x)
    assert torch.equal(evaluated, trained)
    assert torch.equal(network.encoder[1].running_mean, statistics)


NAMES = ["encoder.bn1", "encoder.layer1.bn", "decoder.block.bn", "head.norm"]


@pytest.mark.parametrize(
    ("scope", "flags"),
    [
        ("all", [1, 1, 1, 1]),
        ("encoder", [1, 1, 0, 0]),
        ("decoder", [0, 0, 1, 1]),
        ("last:1", [0, 0, 0, 1]),
        ("every:2", [1, 0, 1, 0]),
        (r"layer1|head", [0, 1, 0, 1]),
    ],
)
def test_scopes(scope: str, flags: list[int]) -> None:
    assert in_scope(scope, NAMES) == [bool(flag) for flag in flags]


@pytest.mark.parametrize("scope", ["nowhere", "last:0", "([", "encoder"])
def test_bad_scopes(scope: str) -> None:
    with pytest.raises(InputError, match="scope"):
        in_scope(scope, NAMES[2:])


def test_a_narrower_scope_outside_of_the_scope_is_refused() -> None:
    message = "scope 'last:1' has no normalisation layer within the model's own, 'encoder'"
    with pytest.raises(InputError, match=message):
        in_scope("encoder", NAMES, "last:1")


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_reestimated_statistics_fold_into_the_affine(alpha: float) -> None:
    network, layout = converted()
    posterior = ABNNPosterior(layout.weight[None] * 1.3, layout.bias[None] + 0.2, alpha)
    generator = torch.Generator().manual_seed(0)
    batches = []
    for number in range(3):
        noise = torch.randn(4, 3, 16, 16, generator=generator)
        batches.append(noise * (1 + number) + number)
    rescale, reshift = reestimate(network, posterior, 0, batches, seed=5)
    member = ABNNPosterior(
        posterior.gamma,
        posterior.beta,
        0.0,
        rescale=rescale[None],
        reshift=reshift[None],
    )
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad(), layout.active(member.affine(layout, [0], 0)):
        folded = network(x)
    by_hand = with_statistics_by_hand(layout, posterior, batches)(x)
    assert torch.allclose(by_hand, folded, atol=1e-4)


class BatchInputs:
    """What layers get while they are in training mode."""

    def __init__(self, layers: Sequence[Any]) -> None:
        self.of_layer: dict[Any, list[torch.Tensor]] = {layer: [] for layer in layers}
        for layer in layers:
            layer.register_forward_pre_hook(self.keep)

    def keep(self, layer: Any, arguments: tuple[torch.Tensor, ...]) -> None:
        if layer.training:
            self.of_layer[layer].append(arguments[0])


@torch.no_grad()
def with_statistics_by_hand(
    layout: AffineLayout, posterior: ABNNPosterior, batches: Sequence[torch.Tensor]
) -> Any:
    """Return the plain network with a member's affine. Its statistics are of what every layer gets
    over all batches, each drawn anew and normalised with its batch, as one sample.
    """
    plain = small_network()
    inputs = BatchInputs((plain.encoder[1], plain.decoder[1]))
    for number, batch in enumerate(batches):
        draw = posterior.affine(layout, [number], 5)
        drawn = with_affine(plain, draw.weight[0], draw.bias[0])
        drawn.train()(batch)
    for layer, layer_inputs in inputs.of_layer.items():
        sample = torch.cat(layer_inputs)
        layer.running_mean.copy_(sample.mean((0, 2, 3)))
        layer.running_var.copy_(sample.var((0, 2, 3), unbiased=False))
    return with_affine(plain, posterior.gamma[0], posterior.beta[0]).eval()


def test_statistics_outside_of_the_scope_stay_those_of_the_base() -> None:
    network, layout = converted()
    posterior = ABNNPosterior.around(layout, 0.5, scope="decoder")
    batch = torch.randn(4, 3, 16, 16) * 3
    rescale, reshift = reestimate(network, posterior, 0, [batch])
    inside = layout.mask("decoder")
    assert (rescale[~inside] == 1).all()
    assert (reshift[~inside] == 0).all()
    assert (rescale[inside] != 1).any()


def gradients(chosen: list[bool]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients ``[2, 16]`` of weight and bias where these sites are in the scope."""
    network, layout = converted()
    x = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    weight = layout.weight.repeat(2, 1).requires_grad_()
    bias = layout.bias.repeat(2, 1).requires_grad_()
    folded = layout.fold(AffineDraws(weight, bias)).frozen_outside(chosen)
    with layout.active(folded):
        network(x).square().mean().backward()
    assert weight.grad is not None
    assert bias.grad is not None
    return weight.grad, bias.grad


def test_gradients_within_a_scope_are_those_of_all_sites() -> None:
    of_all = gradients([True, True])
    of_scope = gradients([False, True])
    for whole, scoped in zip(of_all, of_scope, strict=True):
        assert torch.equal(whole[:, 8:], scoped[:, 8:])


def test_gradients_outside_of_a_scope_are_zero() -> None:
    for whole in gradients([True, True]):
        assert whole[:, :8].any()
    for scoped in gradients([False, True]):
        assert not scoped[:, :8].any()
