"""One trajectory of the affine parameters, without noise: plain fine-tuning to the maximum of the posterior."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from segunc.bayes.abnn import ABNN
from segunc.bayes.draws import AffineDraws, AffineLayout
from segunc.bayes.posterior import Posterior
from segunc.training.affine_task import AffineTask


class PointTask(AffineTask):
    """Trains one gamma and beta for each channel of the scope, starting from the base's.

    Args:
        network, num_classes, training: see :class:`AffineTask`.
    """

    def __init__(self, network: nn.Module, num_classes: int, **training: Any) -> None:
        super().__init__(network, num_classes, **training)
        layout = AffineLayout(network)
        self.affine = nn.Parameter(torch.stack([layout.weight, layout.bias]))

    def training_draws(self, rows: int, step: int) -> AffineDraws:
        gamma, beta = self.within_scope(*self.affine)
        return AffineDraws(gamma.expand(rows, -1), beta.expand(rows, -1))

    def regulariser(self) -> Tensor:
        return self.gaussian_prior(*self.affine)

    @torch.no_grad()
    def point(self) -> Tensor:
        """``[2, T]`` gamma (row 0) and beta (row 1), the base's outside of the scope, on the CPU."""
        return torch.stack(self.within_scope(*self.affine)).cpu().clone()

    def posterior(self) -> Posterior:
        gamma, beta = self.point()
        return ABNN(gamma[None], beta[None], 0.0, self.scope)
