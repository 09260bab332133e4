"""SWAG: a Gaussian fitted to the affine parameters along an SGD trajectory (Maddox et al. 2019, 1902.02476)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from torch import Tensor

from segunc.affine.draws import AffineDraws, AffineLayout
from segunc.affine.noise import NoiseSource
from segunc.affine.posterior import stochastic
from segunc.core.errors import InputError


class Swag:
    """Draw s: ``theta = mean + sqrt(scale) (sqrt(variance / 2) z1 + D' z2 / sqrt(2 (K - 1)))``, z1 and z2 ~ N(0, I).

    The covariance is ``scale`` times the mean of a diagonal and a low-rank one, equation 1 of the paper at scale 1.

    Args:
        mean: ``[2, T]`` mean of gamma (row 0) and beta (row 1) over the snapshots.
        variance: ``[2, T]`` their variance over the snapshots, at least 0.
        deviations: ``[K, 2, T]`` the rows of D: the last K snapshots less the running mean at their time.
        scale: factor of the covariance, at least 0.
        scope: which sites are stochastic.

    Raises:
        InputError: fewer than two deviations, tensors of other shapes, a negative variance or scale.
    """

    method: ClassVar[str] = "swag"
    members = 1

    def __init__(
        self, mean: Tensor, variance: Tensor, deviations: Tensor, scale: float = 1.0, scope: str = "all"
    ) -> None:
        if mean.ndim != 2 or mean.shape[0] != 2 or variance.shape != mean.shape or deviations.shape[1:] != mean.shape:
            shapes = f"mean {tuple(mean.shape)}, variance {tuple(variance.shape)}, deviations {tuple(deviations.shape)}"
            raise InputError(shapes, "[2, T], [2, T] and [K, 2, T]")
        if len(deviations) < 2:
            raise InputError(
                f"SWAG with {len(deviations)} snapshots", "at least 2", "collect more often or train for longer"
            )
        if not scale >= 0 or not bool((variance >= 0).all()):
            raise InputError(
                f"scale {scale} or a negative variance", "numbers of at least 0", "1 is the published scale"
            )
        self.mean, self.variance, self.deviations = mean, variance, deviations
        self.scale, self.scope = float(scale), scope

    def affine(
        self, layout: AffineLayout, draws: Sequence[int], seed: int | NoiseSource, scope: str | None = None
    ) -> AffineDraws:
        mask = stochastic(layout, self.scope, scope)
        columns, width = len(self.deviations), 2 * layout.total
        noise = NoiseSource.of(seed).normal(draws, width + columns)
        diagonal = (self.variance.cpu() / 2.0).sqrt() * noise[:, :width].view(len(draws), 2, -1)
        low_rank = (noise[:, width:] @ self.deviations.cpu().flatten(1)).view(len(draws), 2, -1)
        spread = self.scale**0.5 * (diagonal + low_rank / (2.0 * (columns - 1)) ** 0.5)
        values = self.mean.to(layout.device) + mask * spread.to(layout.device)
        return AffineDraws(values[:, 0], values[:, 1])

    def with_scale(self, scale: float) -> Swag:
        """The same trajectory with another factor of the covariance."""
        return Swag(self.mean, self.variance, self.deviations, scale, self.scope)

    def tensors(self) -> dict[str, Tensor]:
        return {"mean": self.mean, "variance": self.variance, "deviations": self.deviations}

    def settings(self) -> dict[str, Any]:
        return {"scale": self.scale, "scope": self.scope}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        return cls(tensors["mean"], tensors["variance"], tensors["deviations"], settings["scale"], settings["scope"])
