"""What a training by gradient steps moves of a posterior; it knows neither data nor trainer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from segunc.affine.draws import AffineLayout
from segunc.affine.posterior import Posterior
from segunc.affine.prior import Prior

P = TypeVar("P", bound=Posterior)


class Trainable(nn.Module, ABC, Generic[P]):
    """The parameters of a posterior while they are trained; they start at the network's trained values.

    A training step asks for the posterior that the parameters are now, takes its draws through its own ``affine()``, and adds
    :meth:`regulariser` to the mean-pixel loss. Parameters and buffers are what a checkpoint holds.

    Args:
        scope: sites that are trained; the others keep the base's affine.
        prior: over the affine parameters of the scope.

    Attributes:
        members: M. Member m = step mod M trains at a step; parameters of the others take none.
    """

    members = 1
    regulariser_name = "prior"

    def __init__(self, scope: str = "all", prior: Prior | None = None) -> None:
        super().__init__()
        self.scope, self.prior = scope, Prior() if prior is None else prior

    @abstractmethod
    def posterior(self, layout: AffineLayout) -> P:
        """The posterior of the parameters as they are, differentiable in them."""

    @abstractmethod
    def regulariser(self, layout: AffineLayout, member: int) -> Tensor:
        """The negative log prior, or the KL, divided by N_eff; a scalar."""

    def within_scope(self, affine: Tensor, layout: AffineLayout) -> Tensor:
        """``[2, T]`` gamma and beta inside the scope, the base's outside of it and where a layer has no beta."""
        return torch.where(layout.free(self.scope), affine, layout.affine)

    def class_weights(self, weights: Tensor, member: int) -> Tensor:
        """``[C]`` weights in the cross-entropy of a member's step."""
        return weights

    def others(self, member: int) -> list[nn.Parameter]:
        """The parameters that do not train while a member does."""
        return []

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Parameter groups of the optimiser; a group may have an ``lr`` of its own."""
        return [{"params": list(self.parameters())}]

    def schedule(self, optimizer: Optimizer) -> LRScheduler | None:
        """A schedule of its own, in place of the one that the settings name."""
        return None

    def check_steps(self, steps: int) -> None:
        """Raise an InputError before the first step if this many cannot do."""

    def after_step(self, layout: AffineLayout, step: int) -> None:
        """Look at the parameters after an optimiser step, the first of which is 1."""
