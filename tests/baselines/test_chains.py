"""Posteriors of chain states: which state a draw is, and what a narrower scope leaves."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from segunc.baselines.chains import SGLD, ChainStates
from segunc.core.errors import InputError
from segunc.sampling.sampler import Sampler
from tests.affine.networks import layout_of, small_network

LAYOUT = layout_of(small_network())


def numbered(states: int, chains: int) -> SGLD:
    """State k holds the number k everywhere."""
    gamma = torch.arange(float(states))[:, None].repeat(1, LAYOUT.total)
    return SGLD(gamma, gamma + 0.5, chains)


def states_of(posterior: ChainStates, draws: range | list[int], seed: int = 0) -> list[int]:
    affine = posterior.affine(LAYOUT, draws, seed)
    assert torch.equal(affine.bias, affine.weight + 0.5), "gamma and beta belong to one state"
    return [int(row[0]) for row in affine.weight]


@given(chains=st.integers(1, 4), each=st.integers(1, 6), seed=st.integers(0, 1000))
def test_draws_go_round_the_chains_and_take_every_state_once(chains: int, each: int, seed: int) -> None:
    posterior = numbered(chains * each, chains)
    drawn = states_of(posterior, range(chains * each), seed)
    assert sorted(drawn) == list(range(chains * each)), "S = K is the whole sample"
    assert [s // each for s in drawn] == [s % chains for s in range(chains * each)]
    assert states_of(posterior, range(chains * each, 2 * chains * each), seed) == drawn, "then they come again"
    assert states_of(posterior, [len(drawn) - 1, 0], seed) == [drawn[-1], drawn[0]], "each draw by its number alone"
    assert posterior.members == chains
    assert states_of(numbered(24, 2), range(24), seed) != states_of(numbered(24, 2), range(24), seed + 1)


def test_outside_a_narrower_scope_a_draw_is_the_mean_of_its_chain() -> None:
    posterior = numbered(6, 2)
    affine = posterior.affine(LAYOUT, range(6), 0, "decoder")
    assert torch.equal(affine.weight[:, 0], torch.tensor([1.0, 4.0] * 3))
    assert torch.equal(affine.bias[:, 0], torch.tensor([1.5, 4.5] * 3))
    assert torch.equal(affine.weight[:, 8:], posterior.affine(LAYOUT, range(6), 0).weight[:, 8:])


def test_the_sampler_needs_a_draw_a_chain_and_shows_what_the_states_disagree_on() -> None:
    network = small_network()
    own = layout_of(network)
    spread = torch.randn(8, own.total, generator=torch.Generator().manual_seed(0))

    def posterior(scale: float) -> SGLD:
        return SGLD(own.weight + scale * spread, own.bias.repeat(8, 1), 4)

    with pytest.raises(InputError, match="at least 4 draws"):
        Sampler(network, posterior(0.3), draws=3)
    image = torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(1))

    def epistemic(scale: float) -> Tensor:
        return Sampler(network, posterior(scale), draws=8)(image).scores["epistemic"].mean()

    assert float(epistemic(0.0)) < 1e-6 < float(epistemic(0.1)) < float(epistemic(0.3))
