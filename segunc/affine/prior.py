"""The prior that every posterior over affine parameters shares, and how much the data weigh against it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from segunc.affine.draws import AffineLayout
from segunc.core.errors import InputError

PriorMean = Literal["base", "zero"]


@dataclass(frozen=True)
class Prior:
    """``N(theta; theta_prior, s^2)`` in ``log p(theta) = [N_eff x mean-pixel log-likelihood + log prior] / T``.

    The mean runs over the labelled pixels of the data. Pixels of an image are far from independent, so N_eff says how
    many independent ones the data counts for. T below 1 is a cold posterior (Wenzel et al. 2020): likelihood and prior
    are both raised to 1 / T.

    Attributes:
        scale: s, the standard deviation.
        effective_pixels: N_eff.
        mean: ``base`` centres it on the trained values, ``zero`` is plain weight decay.
        temperature: T, at least 0.

    Raises:
        InputError: a number out of range.
    """

    scale: float = 0.1
    effective_pixels: float = 100_000.0
    mean: PriorMean = "base"
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not (self.scale > 0 and self.effective_pixels > 0 and self.temperature >= 0):
            raise InputError(
                f"prior_scale {self.scale}, effective_pixels {self.effective_pixels}, temperature {self.temperature}",
                "positive numbers, a temperature of at least 0",
                "repair the configuration",
            )

    def centre(self, layout: AffineLayout) -> Tensor:
        """``[2, T]`` gamma (row 0) and beta (row 1) at the prior's mean."""
        return (1.0 if self.mean == "base" else 0.0) * layout.affine

    def energy(self, affine: Tensor, layout: AffineLayout, scope: str) -> Tensor:
        """``|theta - theta_prior|^2 / (2 s^2 N_eff)`` of ``[2, T]`` over a scope, a scalar: what a mean-pixel loss is added."""
        square = (affine - self.centre(layout)).square()
        gamma, beta = (row[free].sum() for row, free in zip(square, layout.free(scope), strict=True))
        distance: Tensor = gamma + beta
        return distance / (2.0 * self.scale**2 * self.effective_pixels)
