"""Mean-field variational inference over the affine parameters (Blundell et al. 2015, restricted to
gamma and beta).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segunc.affine.draws import AffineDraws, AffineLayout
from segunc.affine.noise import NoiseSource, Seed
from segunc.affine.posterior import Posterior, Prior, Trainable
from segunc.core.bounds import NonNegativeFloat, PositiveFloat
from segunc.posteriors.finetune_run import FinetuneRun
from segunc.posteriors.methods import Method
from segunc.posteriors.model import Model
from segunc.posteriors.settings import MethodSettings
from segunc.training.config import AffineTrainingConfig
from segunc.training.losses import Schedule


class MeanField(Posterior):
    """Draw s: ``gamma = mu + sigma eps_s`` and the same for beta with noise of its own, ``eps ~
    N(0, I)``. Mean and sigma are ``[2, T]``, of gamma (row 0) and beta (row 1); sigma is 0 outside
    of the scope and where a layer has no beta.
    """

    method: ClassVar[str] = "variational"
    members = 1

    def __init__(self, mean: Tensor, sigma: Tensor, scope: str = "all") -> None:
        self.mean = mean
        self.sigma = sigma
        self.scope = scope

    def affine(
        self, layout: AffineLayout, draws: Sequence[int], seed: Seed, scope: str | None = None
    ) -> AffineDraws:
        mask = layout.mask(self.scope, scope)
        noise = NoiseSource.of(seed).normal(draws, 2 * layout.total)
        noise = noise.view(len(draws), 2, -1).to(layout.device)
        values = self.mean.to(layout.device) + self.sigma.to(layout.device) * mask * noise
        return AffineDraws(values[:, 0], values[:, 1])


@dataclass(frozen=True)
class Variational(AffineTrainingConfig, MethodSettings):
    """How the mean-field posterior is trained; 0 epochs keep the initial posterior.

    Args:
        lr: learning rate of the means.
        sigma_lr: learning rate of rho; sigma = softplus(rho), so while sigma is small a step
            changes it by this share.
        initial_sigma: standard deviation of every parameter before the training.
        kl_weight: factor of the KL term; 1 is the posterior, and less is a colder one.
        optimizer: optimiser: adamw or sgd (Nesterov momentum 0.9).
        schedule: schedule of the learning rate: onecycle, poly or constant.

    >>> import torch
    >>> import segunc
    >>> _ = torch.manual_seed(0)
    >>> first = torch.nn.Conv2d(3, 4, 3, padding=1)
    >>> net = torch.nn.Sequential(first, torch.nn.BatchNorm2d(4), torch.nn.Conv2d(4, 2, 1))
    >>> base = segunc.wrap(net, ("road", "other"))
    >>> images = torch.rand(4, 3, 64, 64)
    >>> labels = (images.mean(1) > 0.5).long()
    >>> batches = [(images[:2], labels[:2]), (images[2:], labels[2:])]
    >>> model = segunc.Variational(epochs=1).fit(base, batches)
    >>> model.posterior.method
    'variational'
    """

    section = "variational"
    method = "variational"
    lr: PositiveFloat = 0.001
    sigma_lr: PositiveFloat = 0.02
    initial_sigma: PositiveFloat = 0.02
    kl_weight: NonNegativeFloat = 1.0
    optimizer: Literal["adamw", "sgd"] = "adamw"
    schedule: Schedule = "poly"


class MeanFieldTraining(Trainable[MeanField]):
    """q(theta) = N(mu, sigma^2) in training, sigma = softplus(rho), by the negative evidence lower
    bound divided by N_eff.
    """

    regulariser_name = "kl"

    def __init__(
        self, layout: AffineLayout, config: Variational, prior: Prior | None = None
    ) -> None:
        super().__init__(config.scope, config.prior() if prior is None else prior)
        self.kl_weight = config.kl_weight
        self.sigma_lr = config.sigma_lr
        self.mean = nn.Parameter(layout.affine)
        # The inverse of softplus, in the form that keeps its digits where sigma is small.
        start = torch.tensor(config.initial_sigma, dtype=torch.float64)
        rho = float(start + torch.log(-torch.expm1(-start)))
        self.rho = nn.Parameter(torch.full_like(self.mean, rho))

    def posterior(self, layout: AffineLayout) -> MeanField:
        sigma = F.softplus(self.rho) * layout.free(self.scope)
        return MeanField(self.within_scope(self.mean, layout), sigma, self.scope)

    def regulariser(self, layout: AffineLayout, member: int) -> Tensor:
        """Return KL(N(mu, sigma^2) || N(theta_prior, s^2)) over the scope in closed form, times
        kl_weight / N_eff.
        """
        chosen = layout.free(self.scope)
        ratio = F.softplus(self.rho)[chosen] / self.prior.scale
        shift = (self.mean - self.prior.centre(layout))[chosen] / self.prior.scale
        divergence = (0.5 * (ratio.square() + shift.square() - 1.0) - ratio.log()).sum()
        return self.kl_weight * divergence / self.prior.effective_pixels

    def parameter_groups(self) -> list[dict[str, Any]]:
        return [{"params": [self.mean]}, {"params": [self.rho], "lr": self.sigma_lr}]


def finetune_variational(run: FinetuneRun[Variational]) -> Model:
    """Return a base network with a mean-field Gaussian that was trained around it."""
    posterior = run.train(MeanFieldTraining(AffineLayout(run.network), run.config.settings))
    sigma = posterior.sigma[posterior.sigma > 0]
    median = float(sigma.median())
    run.measured["median_sigma"] = median
    return run.finish(
        posterior, f"mean-field Gaussian over {len(sigma):,} parameters, median sigma {median:.4g}"
    )


METHOD = Method("variational", Variational, finetune_variational, MeanField.from_tensors)
