"""ABNN: members with their own gamma and beta, and noise on gamma ("Make Me a BNN", CVPR 2024)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from segunc.affine.draws import AffineDraws, AffineLayout
from segunc.affine.noise import NoiseSource, mix_seed
from segunc.affine.posterior import stochastic
from segunc.core.errors import InputError

Noise = Literal["channel", "element"]


class ABNN:
    """Draw s of member m = s mod M: ``weight = gamma_m (1 + alpha eps)``, ``bias = beta_m``, ``eps ~ N(0, I)``.

    Members whose running statistics were re-estimated keep the correction as ``rescale`` and ``reshift``:
    ``weight = gamma' rescale``, ``bias = beta + gamma' reshift``, with gamma' the drawn gamma,
    rescale = s_base / s_member and reshift = (mu_base - mu_member) / s_member.

    Args:
        gamma, beta: ``[M, T]`` affine parameters of the members.
        alpha: noise scale, at least 0; 0 gives the members themselves.
        scope: which sites are noisy.
        noise: ``channel`` is the published formula, one eps a channel; ``element`` draws one for each element.
        rescale, reshift: ``[M, T]`` statistics corrections, or None.

    Raises:
        InputError: a negative alpha or tensors of other shapes.
    """

    method: ClassVar[str] = "abnn"

    def __init__(
        self,
        gamma: Tensor,
        beta: Tensor,
        alpha: float,
        scope: str = "all",
        noise: Noise = "channel",
        rescale: Tensor | None = None,
        reshift: Tensor | None = None,
    ) -> None:
        if not alpha >= 0:
            raise InputError(f"alpha {alpha}", "a number of at least 0", "0.05 to 0.2 are usual")
        if gamma.ndim != 2 or gamma.shape != beta.shape or len(gamma) == 0:
            raise InputError(f"gamma {tuple(gamma.shape)} and beta {tuple(beta.shape)}", "both [M, T], M at least 1")
        if noise not in ("channel", "element"):
            raise InputError(f"noise '{noise}'", "channel or element", "")
        self.gamma, self.beta, self.alpha, self.scope, self.noise = gamma, beta, float(alpha), scope, noise
        self.rescale, self.reshift = rescale, reshift

    @classmethod
    def around(cls, layout: AffineLayout, alpha: float, members: int = 1, **options: Any) -> ABNN:
        """Members at the trained affine parameters: a Bayesian network without any training."""
        return cls(layout.weight.repeat(members, 1), layout.bias.repeat(members, 1), alpha, **options)

    @property
    def members(self) -> int:
        return len(self.gamma)

    def affine(
        self, layout: AffineLayout, draws: Sequence[int], seed: int | NoiseSource, scope: str | None = None
    ) -> AffineDraws:
        member = torch.tensor([s % self.members for s in draws])
        mask = stochastic(layout, self.scope, scope).float()
        gamma = self.gamma[member].to(layout.device)
        beta = self.beta[member].to(layout.device)
        element_alpha = None
        if self.noise == "channel":
            noise = NoiseSource.of(seed).normal(draws, layout.total, members=self.members).to(layout.device)
            gamma = gamma * (1.0 + self.alpha * mask * noise)
        else:
            element_alpha = self.alpha * mask
        if self.rescale is not None and self.reshift is not None:
            beta = beta + gamma * self.reshift[member].to(layout.device)
            gamma = gamma * self.rescale[member].to(layout.device)
        seeds = tuple(mix_seed(NoiseSource.of(seed).seed, s) for s in draws) if element_alpha is not None else ()
        return AffineDraws(gamma, beta, element_alpha, seeds)

    def with_alpha(self, alpha: float) -> ABNN:
        """The same members with another noise scale."""
        return ABNN(self.gamma, self.beta, alpha, self.scope, self.noise, self.rescale, self.reshift)

    def tensors(self) -> dict[str, Tensor]:
        held = {"gamma": self.gamma, "beta": self.beta, "rescale": self.rescale, "reshift": self.reshift}
        return {name: tensor for name, tensor in held.items() if tensor is not None}

    def settings(self) -> dict[str, Any]:
        return {"alpha": self.alpha, "scope": self.scope, "noise": self.noise}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        return cls(
            tensors["gamma"],
            tensors["beta"],
            settings["alpha"],
            settings["scope"],
            settings["noise"],
            tensors.get("rescale"),
            tensors.get("reshift"),
        )
