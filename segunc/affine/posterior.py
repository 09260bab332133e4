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
    """What a model folder keeps beside its base network. A subclass with one attribute for each
    argument needs to write no method.
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
    """A way to make affine draws over one network. One whose draws differ in other layers, too, has
    a method ``prepare(network)``, which makes these layers of a network just loaded drawable, in
    place.
    """

    def affine(
        self, layout: AffineLayout, draws: Sequence[int], seed: Seed, scope: str | None = None
    ) -> AffineDraws:
        """Return the draws with the given numbers, over the layout of the posterior's network; each
        depends on (seed, number) alone. The seed may be a source of noise whose scheme couples the
        draws; the scope is narrower than the posterior's own, or None.
        """

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        """Return the posterior that gave these :meth:`tensors` and :meth:`settings` (among other
        keys); a KeyError for one that lacks.
        """
        names = signature(cls).parameters
        return cls(**{name: tensors[name] if name in tensors else settings[name] for name in names})


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
    prior] / T``. N_eff says for how many independent pixels the labelled ones, which are far from
    independent, count. T below 1 is a cold posterior.
    """

    scale: float = 0.1  # s, the standard deviation, above 0
    effective_pixels: float = 100_000.0  # N_eff, above 0
    mean: PriorMean = "base"  # centres it on the trained values; zero is plain weight decay
    temperature: float = 1.0  # T, at least 0

    def centre(self, layout: AffineLayout) -> Tensor:
        """Return ``[2, T]`` gamma (row 0) and beta (row 1) at the prior's mean."""
        return (1.0 if self.mean == "base" else 0.0) * layout.affine

    def energy(self, affine: Tensor, layout: AffineLayout, scope: str) -> Tensor:
        """Return ``|theta - theta_prior|^2 / (2 s^2 N_eff)`` of ``[2, T]`` over a scope, a scalar:
        what a mean-pixel loss is added.
        """
        square = (affine - self.centre(layout)).square()
        gamma, beta = (
            row[free].sum() for row, free in zip(square, layout.free(scope), strict=True)
        )
        distance: Tensor = gamma + beta
        return distance / (2.0 * self.scale**2 * self.effective_pixels)


class Trainable(nn.Module, ABC, Generic[P]):
    """The parameters of a posterior while gradient steps train them; they start at the trained
    values, and are what a checkpoint holds. Sites outside the scope keep the base's affine. Of M
    members, member m = step mod M trains at a step.
    """

    members = 1
    regulariser_name = "prior"

    def __init__(self, scope: str = "all", prior: Prior | None = None) -> None:
        super().__init__()
        self.scope, self.prior = scope, Prior() if prior is None else prior

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
        return weights  # [C], in the cross-entropy of a member's step

    def others(self, member: int) -> list[nn.Parameter]:
        return []  # the parameters that do not train while a member does

    def parameter_groups(self) -> list[dict[str, Any]]:
        return [
            {"params": list(self.parameters())}
        ]  # of the optimiser; a group may have an ``lr`` of its own

    def schedule(self, optimizer: Optimizer) -> LRScheduler | None:
        return None  # of its own, in place of the one that the settings name

    def check_steps(self, steps: int) -> None:
        """Raise an InputError before the first step if this many cannot do."""

    def after_step(self, layout: AffineLayout, step: int) -> None:
        """Look at the parameters after an optimiser step, the first of which is 1."""
