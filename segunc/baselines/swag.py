"""SWAG: a Gaussian fitted to the affine parameters along an SGD trajectory (Maddox et al. 2019,
1902.02476).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from segunc.affine.draws import AffineDraws, AffineLayout
from segunc.affine.noise import NoiseSource, Seed
from segunc.affine.posterior import Posterior, Prior, Trainable
from segunc.core.bounds import Bound, NonNegativeInt, PositiveFloat, PositiveInt
from segunc.core.errors import InputError
from segunc.posteriors.abnn import ABNNPosterior
from segunc.posteriors.finetune_run import FinetuneRun
from segunc.posteriors.methods import Method
from segunc.posteriors.model import Model
from segunc.posteriors.settings import MethodSettings
from segunc.training.config import AffineTrainingConfig


class SWAGPosterior(Posterior):
    """Draw s: ``theta = mean + sqrt(scale) (sqrt(variance / 2) z1 + D' z2 / sqrt(2 (K - 1)))``, z1
    and z2 ~ N(0, I): equation 1 of the paper at ``scale`` 1.

    Args:
        mean: of gamma (row 0) and beta (row 1) over the snapshots, ``[2, T]``.
        variance: likewise.
        deviations: the rows of D, ``[K, 2, T]``: the last K snapshots less the running mean at
            their time.
    """

    method: ClassVar[str] = "swag"
    members = 1

    def __init__(
        self,
        mean: Tensor,
        variance: Tensor,
        deviations: Tensor,
        scale: float = 1.0,
        scope: str = "all",
    ) -> None:
        if len(deviations) < 2:
            raise InputError(
                f"SWAG needs at least 2 snapshots, not {len(deviations)}",
                hint="collect more often or train for longer",
            )
        self.mean = mean
        self.variance = variance
        self.deviations = deviations
        self.scale = float(scale)
        self.scope = scope

    def affine(
        self, layout: AffineLayout, draws: Sequence[int], seed: Seed, scope: str | None = None
    ) -> AffineDraws:
        mask = layout.mask(self.scope, scope)
        columns = len(self.deviations)
        width = 2 * layout.total
        noise = NoiseSource.of(seed).normal(draws, width + columns)
        diagonal_noise = noise[:, :width].view(len(draws), 2, -1)
        diagonal = (self.variance.cpu() / 2.0).sqrt() * diagonal_noise
        low_rank = noise[:, width:] @ self.deviations.cpu().flatten(1)
        low_rank = low_rank.view(len(draws), 2, -1) / (2.0 * (columns - 1)) ** 0.5
        spread = self.scale**0.5 * (diagonal + low_rank)
        values = self.mean.to(layout.device) + mask * spread.to(layout.device)
        return AffineDraws(values[:, 0], values[:, 1])


@dataclass(frozen=True)
class SWAG(AffineTrainingConfig, MethodSettings):
    """How SWAG trains, and which snapshots and covariance it keeps.

    Args:
        lr: constant learning rate of SGD (Nesterov momentum 0.9) after the warm-up.
        warmup_steps: steps over which the learning rate rises linearly from 0.
        burn_in: steps before the first snapshot may be taken.
        collect_every: number of steps between snapshots.
        rank: K, the number of last snapshots that the low-rank part keeps.
        scale: factor of the covariance; 1 is the published one.

    >>> import torch
    >>> import segunc
    >>> _ = torch.manual_seed(0)
    >>> first = torch.nn.Conv2d(3, 4, 3, padding=1)
    >>> net = torch.nn.Sequential(first, torch.nn.BatchNorm2d(4), torch.nn.Conv2d(4, 2, 1))
    >>> base = segunc.wrap(net, ("road", "other"))
    >>> images = torch.rand(4, 3, 64, 64)
    >>> labels = (images.mean(1) > 0.5).long()
    >>> batches = [(images[:2], labels[:2]), (images[2:], labels[2:])]
    >>> model = segunc.SWAG(epochs=2, burn_in=0, collect_every=1).fit(base, batches)
    >>> model.posterior.method
    'swag'
    """

    section = "swag"
    method = "swag"
    warmup_steps: NonNegativeInt = 5
    burn_in: NonNegativeInt = 10
    collect_every: PositiveInt = 2
    rank: Annotated[int, Bound(least=2)] = 10
    scale: PositiveFloat = 1.0


class Point(Trainable[ABNNPosterior]):
    """Fine-tuning of gamma and beta to the maximum of the posterior: an ABNN of one member without
    noise.
    """

    def __init__(
        self, layout: AffineLayout, scope: str = "all", prior: Prior | None = None
    ) -> None:
        super().__init__(scope, prior)
        self.affine = nn.Parameter(layout.affine)

    def posterior(self, layout: AffineLayout) -> ABNNPosterior:
        gamma, beta = self.within_scope(self.affine, layout)
        return ABNNPosterior(gamma[None], beta[None], 0.0, self.scope)

    def regulariser(self, layout: AffineLayout, member: int) -> Tensor:
        return self.prior.energy(self.affine, layout, self.scope)


class Trajectory(Point):
    """SGD at a constant rate from the base, whose snapshots give a mean, a variance and low-rank
    deviations, by Welford's recurrence in float64. A snapshot is taken after step n where ``n >
    burn_in`` and ``n - burn_in`` is a multiple of ``collect_every``.
    """

    snapshots: Tensor
    collected_at: Tensor
    mean: Tensor
    squares: Tensor
    deviations: Tensor

    def __init__(self, layout: AffineLayout, config: SWAG) -> None:
        super().__init__(layout, config.scope, config.prior())
        self.config = config
        for name in ("snapshots", "collected_at"):
            self.register_buffer(name, torch.zeros((), dtype=torch.int64))
        for name in ("mean", "squares"):
            self.register_buffer(name, torch.zeros_like(self.affine, dtype=torch.float64))
        self.register_buffer("deviations", torch.zeros(config.rank, *self.affine.shape))

    def schedule(self, optimizer: Optimizer) -> LRScheduler:
        steps = self.config.warmup_steps + 1
        return LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / steps))

    def check_steps(self, steps: int) -> None:
        burn_in = self.config.burn_in
        every = self.config.collect_every
        snapshots = max(0, steps - burn_in) // every
        if snapshots < 2:
            raise InputError(
                f"SWAG needs at least 2 snapshots, and {steps} steps give {snapshots} with "
                f"burn_in {burn_in} and collect_every {every}",
                hint="train for more epochs, or lower burn_in or collect_every",
            )

    def after_step(self, layout: AffineLayout, step: int) -> None:
        after = step - self.config.burn_in
        due = after > 0 and after % self.config.collect_every == 0
        # Accumulated gradients give several batches a step.
        if due and step != int(self.collected_at):
            self.collect(layout)
            self.collected_at.fill_(step)

    @torch.no_grad()
    def collect(self, layout: AffineLayout) -> None:
        """Take a snapshot of the parameters as they are."""
        point = self.within_scope(self.affine, layout).double()
        self.snapshots += 1
        before = point - self.mean
        self.mean += before / self.snapshots
        after = point - self.mean
        self.squares += before * after
        self.deviations.copy_(torch.cat([self.deviations[1:], after[None].float()]))

    @torch.no_grad()
    def gaussian(self) -> SWAGPosterior:
        """Return the Gaussian of the snapshots so far."""
        count = int(self.snapshots)
        rank = self.config.rank
        variance = (self.squares / max(count, 1)).float()
        deviations = self.deviations[rank - min(count, rank) :]
        return SWAGPosterior(
            self.mean.float().cpu(),
            variance.cpu(),
            deviations.cpu().clone(),
            self.config.scale,
            self.scope,
        )


def finetune_swag(run: FinetuneRun[SWAG]) -> Model:
    """Run SGD from a base network, and return it with a Gaussian over the snapshots."""
    trajectory = Trajectory(AffineLayout(run.network), run.config.settings)
    run.train(trajectory)
    posterior = trajectory.gaussian()
    snapshots = int(trajectory.snapshots)
    run.measured["snapshots"] = snapshots
    run.measured["scale"] = posterior.scale
    rank = len(posterior.deviations)
    return run.finish(posterior, f"{snapshots} snapshots, rank {rank}, scale {posterior.scale:g}")


METHOD = Method("swag", SWAG, finetune_swag, SWAGPosterior.from_tensors)
