"""Posteriors made of the states of Markov chains: SGLD, SGHMC and HMC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from segunc.affine.draws import AffineDraws, AffineLayout
from segunc.affine.noise import NoiseSource, mix_seed
from segunc.affine.scope import in_scope
from segunc.core.errors import InputError


class ChainStates:
    """A draw is one state of one chain.

    Chains are the members: draw s belongs to chain c = s mod M, and takes that chain's state number (s // M) mod (K / M) in an order that
    (seed, c) decides. So S draws are S different states, spread over the chains, up to S = K; beyond that the states
    come again, and S = K is the whole sample.

    Args:
        gamma, beta: ``[K, T]`` affine parameters of the states, chain after chain, each in its own order.
        chains: M, a divisor of K.
        scope: the sites that the chains moved; the others are the base's.
        target: what the chains sampled, for the record: ``effective_pixels``, ``prior_scale``, ``temperature``.

    Raises:
        InputError: tensors of other shapes, or states that do not divide into the chains.
    """

    method: ClassVar[str]

    def __init__(
        self, gamma: Tensor, beta: Tensor, chains: int = 1, scope: str = "all", target: dict[str, float] | None = None
    ) -> None:
        if gamma.ndim != 2 or gamma.shape != beta.shape or len(gamma) == 0:
            raise InputError(f"gamma {tuple(gamma.shape)} and beta {tuple(beta.shape)}", "both [K, T], K at least 1")
        if chains < 1 or len(gamma) % chains:
            raise InputError(f"{len(gamma)} states of {chains} chains", "equally many states of each chain")
        self.gamma, self.beta, self.chains, self.scope, self.target = gamma, beta, chains, scope, dict(target or {})

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        return cls(tensors["gamma"], tensors["beta"], settings["chains"], settings["scope"], settings["target"])

    @property
    def members(self) -> int:
        return self.chains

    def affine(
        self, layout: AffineLayout, draws: Sequence[int], seed: int | NoiseSource, scope: str | None = None
    ) -> AffineDraws:
        """See :class:`segunc.affine.posterior.Posterior`; outside a narrower scope a draw has the mean of its chain."""
        states = torch.tensor([self._state(s, NoiseSource.of(seed).seed) for s in draws])
        gamma, beta = self.gamma[states], self.beta[states]
        if scope is not None:
            mask = layout.site_mask(in_scope(scope, layout.names)).cpu()
            chain = torch.tensor([s % self.chains for s in draws])
            means = (held.reshape(self.chains, -1, held.shape[1]).mean(1)[chain] for held in (self.gamma, self.beta))
            gamma, beta = (torch.where(mask, x, mean) for x, mean in zip((gamma, beta), means, strict=True))
        return AffineDraws(gamma.to(layout.device), beta.to(layout.device))

    def _state(self, draw: int, seed: int) -> int:
        each = len(self.gamma) // self.chains
        chain, turn = draw % self.chains, draw // self.chains
        generator = np.random.Generator(np.random.Philox(key=mix_seed(seed, chain)))
        return chain * each + int(generator.permutation(each)[turn % each])

    def tensors(self) -> dict[str, Tensor]:
        return {"gamma": self.gamma, "beta": self.beta}

    def settings(self) -> dict[str, Any]:
        return {"scope": self.scope, "chains": self.chains, "states": len(self.gamma), "target": self.target}


class SGLD(ChainStates):
    """Stochastic-gradient Langevin dynamics (Welling & Teh 2011)."""

    method = "sgld"


class SGHMC(ChainStates):
    """Stochastic-gradient Hamiltonian Monte Carlo (Chen, Fox & Guestrin 2014)."""

    method = "sghmc"


class HMC(ChainStates):
    """Hamiltonian Monte Carlo (Neal 2011)."""

    method = "hmc"
