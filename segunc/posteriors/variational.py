"""Mean-field variational inference over the affine parameters (Blundell et al. 2015, restricted to gamma and beta)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from torch import Tensor

from segunc.affine.draws import AffineDraws, AffineLayout
from segunc.affine.noise import NoiseSource
from segunc.affine.posterior import stochastic
from segunc.core.errors import InputError


class MeanField:
    """Draw s: ``gamma = mu + sigma eps_s`` and the same for beta with noise of its own, ``eps ~ N(0, I)``.

    Args:
        mean: ``[2, T]`` means of gamma (row 0) and beta (row 1).
        sigma: ``[2, T]`` standard deviations, at least 0; 0 outside of the scope and where a layer has no beta.
        scope: which sites are stochastic.

    Raises:
        InputError: tensors of other shapes, or a negative sigma.
    """

    method: ClassVar[str] = "variational"
    members = 1

    def __init__(self, mean: Tensor, sigma: Tensor, scope: str = "all") -> None:
        if mean.ndim != 2 or mean.shape[0] != 2 or sigma.shape != mean.shape:
            raise InputError(f"mean {tuple(mean.shape)} and sigma {tuple(sigma.shape)}", "both [2, T]")
        if not bool((sigma >= 0).all()):
            raise InputError("a negative or NaN sigma", "standard deviations of at least 0")
        self.mean, self.sigma, self.scope = mean, sigma, scope

    def affine(
        self, layout: AffineLayout, draws: Sequence[int], seed: int | NoiseSource, scope: str | None = None
    ) -> AffineDraws:
        mask = stochastic(layout, self.scope, scope)
        noise = NoiseSource.of(seed).normal(draws, 2 * layout.total).view(len(draws), 2, -1).to(layout.device)
        values = self.mean.to(layout.device) + self.sigma.to(layout.device) * mask * noise
        return AffineDraws(values[:, 0], values[:, 1])

    def tensors(self) -> dict[str, Tensor]:
        return {"mean": self.mean, "sigma": self.sigma}

    def settings(self) -> dict[str, Any]:
        return {"scope": self.scope}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        return cls(tensors["mean"], tensors["sigma"], settings["scope"])
