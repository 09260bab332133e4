"""Laplace approximation over the affine parameters (MacKay 1992; Daxberger et al. 2021, 2106.14806)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self, get_args

import torch
from torch import Tensor

from segunc.affine.draws import AffineDraws, AffineLayout
from segunc.affine.noise import NoiseSource
from segunc.affine.posterior import stochastic
from segunc.core.errors import InputError

Structure = Literal["diagonal", "block", "full"]


class Laplace:
    """Draws from ``N(mean, T P^-1)`` with the precision ``P = N_eff F + I / s^2``.

    F is the Fisher matrix of the mean pixel (:mod:`segunc.training.finetune_laplace`), so N_eff F stands for the curvature of
    N_eff independent pixels. It is held in one of three forms: ``diagonal``; ``block``, which keeps the 2 x 2 block of
    the gamma and the beta of each channel; ``full`` over the parameters of a small scope.

    Args:
        mean: ``[2, T]`` gamma (row 0) and beta (row 1) at which the Fisher was taken.
        fisher: ``[2, T]`` diagonal; ``[3, T]`` for blocks: gamma with gamma, beta with beta, gamma with beta;
            ``[P, P]`` full.
        structure: which of these.
        index: ``[P]`` int64 positions in the flattened ``[2, T]`` of the full form's rows, else None.
        prior_scale: s, standard deviation of the Gaussian prior.
        effective_pixels: N_eff.
        temperature: T, at least 0.
        scope: which sites are stochastic. Sampling fewer sites keeps their noise as it is and drops that of the others.

    Raises:
        InputError: an unknown structure, tensors of other shapes, or settings out of range.
    """

    method: ClassVar[str] = "laplace"
    members = 1

    def __init__(
        self,
        mean: Tensor,
        fisher: Tensor,
        structure: Structure = "block",
        index: Tensor | None = None,
        *,
        prior_scale: float = 0.1,
        effective_pixels: float = 100_000.0,
        temperature: float = 1.0,
        scope: str = "all",
    ) -> None:
        if structure not in get_args(Structure):
            raise InputError(f"structure '{structure}'", ", ".join(get_args(Structure)))
        total = mean.shape[-1]
        side = 0 if index is None else len(index)
        expected = {"diagonal": (2, total), "block": (3, total), "full": (side, side)}[structure]
        if mean.shape != (2, total) or fisher.shape != expected or (index is None) == (structure == "full"):
            shapes = f"mean {tuple(mean.shape)}, fisher {tuple(fisher.shape)}, {side} rows"
            raise InputError(shapes, f"[2, T] and {list(expected)} for a {structure} Fisher")
        if not (prior_scale > 0 and effective_pixels > 0 and temperature >= 0):
            given = f"prior_scale {prior_scale}, effective_pixels {effective_pixels}, temperature {temperature}"
            raise InputError(given, "positive numbers, a temperature of at least 0")
        self.mean, self.fisher, self.index, self.scope = mean, fisher, index, scope
        self.structure: Structure = structure
        self.prior_scale, self.effective_pixels = float(prior_scale), float(effective_pixels)
        self.temperature = float(temperature)
        self._factor: Tensor | None = None

    def affine(
        self, layout: AffineLayout, draws: Sequence[int], seed: int | NoiseSource, scope: str | None = None
    ) -> AffineDraws:
        mask = stochastic(layout, self.scope, scope).cpu()
        noise = NoiseSource.of(seed).normal(draws, 2 * layout.total).double().view(len(draws), 2, -1)
        spread = torch.where(torch.stack([mask, mask & layout.has_bias.cpu()]), self._spread(noise), 0.0)
        values = self.mean.cpu() + self.temperature**0.5 * spread.float()
        values = values.to(layout.device)
        return AffineDraws(values[:, 0], values[:, 1])

    def _spread(self, noise: Tensor) -> Tensor:
        """``L^-T noise`` with ``P = L L'``, whose covariance is ``P^-1``; ``[S, 2, T]`` float64."""
        precision = self.effective_pixels * self.fisher.cpu().double()
        prior = self.prior_scale**-2
        if self.structure == "diagonal":
            return noise / (precision + prior).sqrt()
        if self.structure == "block":
            first = (precision[0] + prior).sqrt()
            below = precision[2] / first
            second = (precision[1] + prior - below.square()).sqrt()
            beta = noise[:, 1] / second
            return torch.stack([(noise[:, 0] - below * beta) / first, beta], 1)
        assert self.index is not None
        if self._factor is None:
            self._factor = torch.linalg.cholesky(precision + prior * torch.eye(len(precision), dtype=torch.float64))
        index = self.index.cpu()
        spread = torch.zeros_like(noise).flatten(1)
        chosen = noise.flatten(1)[:, index].T
        spread[:, index] = torch.linalg.solve_triangular(self._factor.T, chosen, upper=True).T
        return spread.view_as(noise)

    def with_prior_scale(self, prior_scale: float) -> Laplace:
        """The same Fisher under another prior."""
        return Laplace(
            self.mean,
            self.fisher,
            self.structure,
            self.index,
            prior_scale=prior_scale,
            effective_pixels=self.effective_pixels,
            temperature=self.temperature,
            scope=self.scope,
        )

    def tensors(self) -> dict[str, Tensor]:
        held = {"mean": self.mean, "fisher": self.fisher, "index": self.index}
        return {name: tensor for name, tensor in held.items() if tensor is not None}

    def settings(self) -> dict[str, Any]:
        return {
            "structure": self.structure,
            "prior_scale": self.prior_scale,
            "effective_pixels": self.effective_pixels,
            "temperature": self.temperature,
            "scope": self.scope,
        }

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        names = ("prior_scale", "effective_pixels", "temperature", "scope")
        return cls(
            tensors["mean"],
            tensors["fisher"],
            settings["structure"],
            tensors.get("index"),
            **{name: settings[name] for name in names},
        )
