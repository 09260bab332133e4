"""Posteriors over affine parameters: their protocol, the prior that all share, and what is trained.

A posterior that varies more than the affine parameters of one network is a
:class:`segunc.sampling.branches.Mixture`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from segunc.affine.draws import AffineDraws, AffineLayout
from segunc.affine.noise import Seed

P = TypeVar("P", bound="Posterior")
PriorMean = Literal["base", "zero"]


class Stored(Protocol):
    """What a model folder keeps beside its base network.

    A subclass with one attribute for each argument needs to write no method.
    """

    method: ClassVar[str]  # its name in files and on the command line

    @property
    def members(self) -> int: ...

    def tensors(self) -> dict[str, Tensor]:
        """Return what ``posterior.safetensors`` holds."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def settings(self) -> dict[str, Any]:
        """Return what ``posterior.json`` holds beside the sites."""
        return {name: value for name, value in vars(self).items() if not isinstance(value, Tensor)}


@runtime_checkable
class Posterior(Stored, Protocol):
    """A way to make affine draws over one network.

    A posterior whose draws differ in other layers, too, has a method ``prepare(network)``. It makes
    these layers of a network just loaded drawable, in place.
    """

    def affine(
        self, layout: AffineLayout, draws: Sequence[int], seed: Seed, scope: str | None = None
    ) -> AffineDraws:
        """Return the draws with these numbers; each depends on (seed, number) alone.

        Args:
            layout: of the posterior's network.
            draws: their numbers.
            seed: of the noise, or a source of noise whose scheme couples the draws.
            scope: narrower than the posterior's own, or None.
        """

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        """Return the posterior that gave these :meth:`tensors` and :meth:`settings`.

        The settings may have further keys.

        Raises:
            KeyError: a tensor or a setting is missing.
        """
        arguments = {}
        for name in signature(cls).parameters:
            arguments[name] = tensors[name] if name in tensors else settings[name]
        return cls(**arguments)


class Deterministic(Posterior):
    """One draw: the trained affine itself."""

    method: ClassVar[str] = "deterministic"
    members = 1

    def affine(
        self, layout: AffineLayout, draws: Sequence[int], seed: Seed, scope: str | None = None
    ) -> AffineDraws:
        rows = torch.ones(len(draws), 1, device=layout.device, dtype=torch.float32)
        return AffineDraws(rows * layout.weight, rows * layout.bias)


@dataclass(frozen=True)
class Prior:
    """``N(theta; theta_prior, s^2)`` in ``log p(theta) = [N_eff x mean-pixel log-likelihood + log
    prior] / T``.

    Attributes:
        scale: s, the standard deviation, above 0.
        effective_pixels: N_eff, above 0: for how many independent pixels the labelled ones, which
            are far from independent, count.
        mean: ``base`` centres the prior on the trained values, ``zero`` is plain weight decay.
        temperature: T, at least 0; below 1 it is a cold posterior.
    """

    scale: float = 0.1
    effective_pixels: float = 100_000.0
    mean: PriorMean = "base"
    temperature: float = 1.0

    def centre(self, layout: AffineLayout) -> Tensor:
        """Return ``[2, T]`` gamma (row 0) and beta (row 1) at the prior's mean."""
        return (1.0 if self.mean == "base" else 0.0) * layout.affine

    def energy(self, affine: Tensor, layout: AffineLayout, scope: str) -> Tensor:
        """Return ``|theta - theta_prior|^2 / (2 s^2 N_eff)`` of ``[2, T]`` over a scope, a scalar
        that is added to a mean-pixel loss.
        """
        gamma_squares, beta_squares = (affine - self.centre(layout)).square()
        free_gammas, free_betas = layout.free(scope)
        distance: Tensor = gamma_squares[free_gammas].sum() + beta_squares[free_betas].sum()
        return distance / (2.0 * self.scale**2 * self.effective_pixels)


class Trainable(nn.Module, ABC, Generic[P]):
    """The parameters of a posterior while gradient steps train them.

    They start at the trained values, and are what a checkpoint holds. Layers outside the scope keep
    the base's affine. Of M members, member m = step mod M trains at a step.
    """

    members = 1
    regulariser_name = "prior"

    def __init__(self, scope: str = "all", prior: Prior | None = None) -> None:
        super().__init__()
        self.scope = scope
        self.prior = Prior() if prior is None else prior

    @abstractmethod
    def posterior(self, layout: AffineLayout) -> P:
        """Return the posterior of the parameters as they are, differentiable in them."""

    @abstractmethod
    def regulariser(self, layout: AffineLayout, member: int) -> Tensor:
        """Return the negative log prior, or the KL, divided by N_eff; a scalar."""

    def within_scope(self, affine: Tensor, layout: AffineLayout) -> Tensor:
        """Return ``[2, T]`` gamma and beta inside the scope, the base's outside of it and where a
        layer has no beta.
        """
        return torch.where(layout.free(self.scope), affine, layout.affine)

    def class_weights(self, weights: Tensor, member: int) -> Tensor:
        """Return the class weights ``[C]`` in the cross-entropy of a member's step."""
        return weights

    def others(self, member: int) -> list[nn.Parameter]:
        """Return the parameters that do not train while a member does."""
        return []

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return the groups of the optimiser; a group may have an ``lr`` of its own."""
        return [{"params": list(self.parameters())}]

    def schedule(self, optimizer: Optimizer) -> LRScheduler | None:
        """Return a schedule in place of the one that the settings name, or None."""
        return None

    def check_steps(self, steps: int) -> None:
        """Raise an InputError before the first step if so many steps cannot work."""

    def after_step(self, layout: AffineLayout, step: int) -> None:
        """Look at the parameters after an optimiser step, the first of which is 1."""
