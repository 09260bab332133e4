"""MC dropout over the channels of the norm sites (Gal & Ghahramani 2016; channels as in Tompson et al. 2015)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from segunc.bayes.draws import AffineDraws, AffineLayout
from segunc.bayes.noise import NoiseSource
from segunc.bayes.posterior import stochastic
from segunc.errors import InputError


class ChannelDropout:
    """Draw s: ``gamma z / (1 - p)`` and ``beta z / (1 - p)``, one ``z ~ Bernoulli(1 - p)`` for each channel.

    The whole output of a dropped channel is 0, and the expectation of every channel stays what it was. The same
    uniform numbers decide at every p, so the channels dropped at a smaller p are among those of a larger one.

    Args:
        affine: ``[2, T]`` the trained gamma (row 0) and beta (row 1).
        p: probability that a channel is dropped, in [0, 1); 0 is the network itself.
        scope: which sites have dropout.

    Raises:
        InputError: p out of range, or a tensor of another shape.
    """

    method: ClassVar[str] = "mc-dropout"
    where: ClassVar[str] = "norm"
    members = 1

    def __init__(self, affine: Tensor, p: float, scope: str = "all") -> None:
        if not 0 <= p < 1:
            raise InputError(f"dropout probability p {p}", "a number in [0, 1)", "0.005 to 0.05 are usual for channels")
        if affine.ndim != 2 or affine.shape[0] != 2:
            raise InputError(f"affine parameters {tuple(affine.shape)}", "[2, T]")
        self.gamma_beta, self.p, self.scope = affine, float(p), scope

    @classmethod
    def of(cls, layout: AffineLayout, p: float, scope: str = "all") -> ChannelDropout:
        """Dropout on the trained affine parameters of a network."""
        return cls(torch.stack([layout.weight, layout.bias]), p, scope)

    def affine(
        self, layout: AffineLayout, draws: Sequence[int], seed: int | NoiseSource, scope: str | None = None
    ) -> AffineDraws:
        kept = (NoiseSource.of(seed).uniform(draws, layout.total) >= self.p).float().to(layout.device) / (1.0 - self.p)
        factor = torch.where(stochastic(layout, self.scope, scope), kept, 1.0)
        gamma, beta = self.gamma_beta.to(layout.device)
        return AffineDraws(gamma * factor, beta * factor)

    def with_p(self, p: float) -> ChannelDropout:
        """The same network with another probability."""
        return ChannelDropout(self.gamma_beta, p, self.scope)

    def tensors(self) -> dict[str, Tensor]:
        return {"affine": self.gamma_beta}

    def settings(self) -> dict[str, Any]:
        return {"p": self.p, "scope": self.scope, "where": self.where}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        return cls(tensors["affine"], settings["p"], settings["scope"])
