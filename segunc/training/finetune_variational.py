"""Mean-field variational inference over the affine parameters: ``segunc finetune --method variational``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jsonargparse import Namespace
from jsonargparse.typing import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn

from segunc.affine.draws import AffineDraws, AffineLayout
from segunc.affine.noise import draw_noise, mix_seed
from segunc.core.errors import InputError
from segunc.posteriors.variational import MeanField
from segunc.training.affine_task import AffineTask
from segunc.training.config import AffineTrainingConfig
from segunc.training.finetune_run import FinetuneRun
from segunc.training.losses import Schedule
from segunc.training.progress import say


@dataclass
class VariationalConfig(AffineTrainingConfig):
    """How the mean-field posterior is trained; 0 epochs leave the initial one.

    Args:
        lr: learning rate of the means.
        sigma_lr: learning rate of rho; sigma = softplus(rho), so while sigma is small a step changes it by this share.
        initial_sigma: standard deviation of every parameter before the training.
        kl_weight: factor of the KL term; 1 is the posterior, less is a colder one.
        draws_per_image: independent draws that each image of a batch meets.
        optimizer: adamw or sgd (Nesterov momentum 0.9).
        schedule: onecycle, poly or constant.
    """

    lr: PositiveFloat = 0.001
    sigma_lr: PositiveFloat = 0.02
    initial_sigma: PositiveFloat = 0.02
    kl_weight: NonNegativeFloat = 1.0
    draws_per_image: PositiveInt = 1
    optimizer: Literal["adamw", "sgd"] = "adamw"
    schedule: Schedule = "poly"


class VariationalTask(AffineTask):
    """Trains q(theta) = N(mu, sigma^2) over the affine parameters of one frozen network.

    The loss is the negative evidence lower bound divided by N_eff: the mean-pixel cross-entropy of one reparameterised
    draw for each image, plus ``kl_weight`` times KL(q || N(theta_prior, s^2)) / N_eff in closed form.

    Args:
        network, num_classes, training: see :class:`AffineTask`.
        initial_sigma: standard deviation of every parameter at the start.
        sigma_lr: learning rate of rho, sigma = softplus(rho); None is that of the means.
        kl_weight: factor of the KL term.

    Raises:
        InputError: an initial_sigma that is not positive, a negative kl_weight, and what :class:`AffineTask` refuses.
    """

    regulariser_name = "kl"

    def __init__(
        self,
        network: nn.Module,
        num_classes: int,
        *,
        initial_sigma: float = 0.02,
        sigma_lr: float | None = None,
        kl_weight: float = 1.0,
        **training: Any,
    ) -> None:
        if not initial_sigma > 0 or not kl_weight >= 0:
            raise InputError(f"initial_sigma {initial_sigma}, kl_weight {kl_weight}", "a positive and a number >= 0")
        super().__init__(network, num_classes, **training)
        self.kl_weight, self.sigma_lr = kl_weight, sigma_lr or self.lr
        layout = AffineLayout(network)
        self.mean = nn.Parameter(torch.stack([layout.weight, layout.bias]))
        # The inverse of softplus, in the form that keeps its digits where sigma is small.
        start = torch.tensor(initial_sigma, dtype=torch.float64)
        self.rho = nn.Parameter(torch.full_like(self.mean, float(start + torch.log(-torch.expm1(-start)))))

    def sigma(self) -> Tensor:
        """``[2, T]`` standard deviations; 0 where the scope or the layer has no parameter."""
        return F.softplus(self.rho) * torch.stack(self.masks)

    def training_draws(self, rows: int, step: int) -> AffineDraws:
        seed = mix_seed(self.seed, step, self.global_rank)
        noise = draw_noise(seed, range(rows), 2 * self.layout.total).view(rows, 2, -1).to(self.layout.device)
        values = torch.stack(self.within_scope(*self.mean)) + self.sigma() * noise
        return AffineDraws(values[:, 0], values[:, 1])

    def regulariser(self) -> Tensor:
        """KL(N(mu, sigma^2) || N(theta_prior, s^2)) over the scope, times kl_weight / N_eff."""
        chosen = torch.stack(self.masks)
        ratio = F.softplus(self.rho)[chosen] / self.prior_scale
        shift = (self.mean - torch.stack(self.prior_centre()))[chosen] / self.prior_scale
        divergence = (0.5 * (ratio.square() + shift.square() - 1.0) - ratio.log()).sum()
        return self.kl_weight * divergence / self.effective_pixels

    def parameter_groups(self) -> list[dict[str, Any]]:
        return [{"params": [self.mean]}, {"params": [self.rho], "lr": self.sigma_lr}]

    @torch.no_grad()
    def posterior(self) -> MeanField:
        mean = torch.stack(self.within_scope(*self.mean))
        return MeanField(mean.cpu().clone(), self.sigma().cpu().clone(), self.scope)


def finetune_variational(
    base: Path, config: Namespace, out: Path, *, device: str = "auto", say: Callable[[str], None] = say
) -> dict[str, Any]:
    """Train a mean-field Gaussian around a base network and write the Bayesian model.

    Args:
        base, config, out, device, say: see :func:`segunc.training.finetune_abnn.finetune_abnn`; the section of the
            configuration is ``variational``.

    Returns:
        what was measured: seconds, steps, the median of sigma.
    """
    run = FinetuneRun(base, config, "variational", out, device, say)
    options = run.options
    task = VariationalTask(
        run.network,
        run.data.label_map.num_classes,
        initial_sigma=options.initial_sigma,
        sigma_lr=options.sigma_lr,
        kl_weight=options.kl_weight,
        draws_per_image=options.draws_per_image,
        optimizer=options.optimizer,
        schedule=options.schedule,
        **run.shared_options(),
    )
    posterior = (run.train(task) if run.epochs else task).posterior()
    median = float(posterior.sigma[posterior.sigma > 0].median())
    run.measured["median_sigma"] = median
    numbers = int((posterior.sigma > 0).sum())
    return run.finish(posterior, f"mean-field Gaussian over {numbers:,} parameters, median sigma {median:.4g}")
