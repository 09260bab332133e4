"""SWAG over the affine parameters: ``segunc finetune --method swag``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jsonargparse import Namespace
from jsonargparse.typing import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from segunc.core.errors import InputError
from segunc.posteriors.swag import Swag
from segunc.training.config import AffineTrainingConfig
from segunc.training.finetune_point import PointTask
from segunc.training.finetune_run import FinetuneRun
from segunc.training.progress import say


@dataclass
class SwagConfig(AffineTrainingConfig):
    """How the SWAG trajectory is run and what becomes of it.

    Args:
        lr: constant learning rate of SGD (Nesterov momentum 0.9) after the warm-up.
        warmup_steps: steps over which the rate rises linearly from 0.
        burn_in: steps before the first snapshot may be taken.
        collect_every: steps between snapshots.
        rank: K, how many of the last snapshots the low-rank part keeps.
        scale: factor of the covariance (1 is the published one), or none to select it from ``scale_grid`` on
            validation NLL.
        scale_grid: the candidates.
        selection_frames: validation frames used for the selection, evenly spaced (0: all).
        selection_draws: draws for each candidate.
    """

    warmup_steps: NonNegativeInt = 5
    burn_in: NonNegativeInt = 10
    collect_every: PositiveInt = 2
    rank: PositiveInt = 10
    scale: PositiveFloat | None = 1.0
    scale_grid: list[PositiveFloat] = field(default_factory=lambda: [0.3, 1.0, 3.0, 10.0])
    selection_frames: NonNegativeInt = 24
    selection_draws: PositiveInt = 6


class SwagTask(PointTask):
    """SGD at a constant rate from the base, whose snapshots give a mean, a variance and low-rank deviations.

    A snapshot is taken after step n where ``n > burn_in`` and ``n - burn_in`` is a multiple of ``collect_every``.
    Statistics are kept by Welford's recurrence in float64 and travel with the checkpoints.

    Args:
        network, num_classes, training: see :class:`AffineTask`; ``optimizer`` and ``schedule`` are given here.
        warmup_steps, burn_in, collect_every, rank: see :class:`SwagConfig`.

    Raises:
        InputError: a rank below 2; at the start of a training, when its steps give fewer than two snapshots.
    """

    def __init__(
        self,
        network: nn.Module,
        num_classes: int,
        *,
        warmup_steps: int = 5,
        burn_in: int = 10,
        collect_every: int = 2,
        rank: int = 10,
        **training: Any,
    ) -> None:
        if rank < 2 or collect_every < 1 or burn_in < 0 or warmup_steps < 0:
            raise InputError(
                f"rank {rank}, collect_every {collect_every}, burn_in {burn_in}, warmup_steps {warmup_steps}",
                "a rank of at least 2, collect_every of at least 1, the others at least 0",
            )
        super().__init__(network, num_classes, optimizer="sgd", schedule="constant", **training)
        self.warmup_steps, self.burn_in, self.collect_every, self.rank = warmup_steps, burn_in, collect_every, rank
        zeros = torch.zeros_like(self.affine, dtype=torch.float64)
        self.snapshots: Tensor
        self.collected_at: Tensor
        self.mean: Tensor
        self.squares: Tensor
        self.deviations: Tensor
        self.register_buffer("snapshots", torch.zeros((), dtype=torch.int64))
        self.register_buffer("collected_at", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", zeros)
        self.register_buffer("squares", zeros.clone())
        self.register_buffer("deviations", torch.zeros(rank, *self.affine.shape))

    def make_scheduler(self, optimizer: Optimizer, steps: int) -> LRScheduler:
        return LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / (self.warmup_steps + 1)))

    def on_train_start(self) -> None:
        steps = int(self.trainer.estimated_stepping_batches)
        expected = max(0, steps - self.burn_in) // self.collect_every
        if expected < 2:
            raise InputError(
                f"SWAG with {expected} snapshots: {steps} steps, burn_in {self.burn_in}, collect_every {self.collect_every}",
                "at least 2 snapshots",
                "train for more epochs, or lower burn_in or collect_every",
            )

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        step = self.global_step
        due = step > self.burn_in and (step - self.burn_in) % self.collect_every == 0
        if due and step != int(self.collected_at):  # accumulated gradients give several batches a step
            self.collect()
            self.collected_at.fill_(step)

    @torch.no_grad()
    def collect(self) -> None:
        """Take a snapshot of the parameters as they are."""
        point = torch.stack(self.within_scope(*self.affine)).double()
        self.snapshots += 1
        before = point - self.mean
        self.mean += before / self.snapshots
        after = point - self.mean
        self.squares += before * after
        self.deviations.copy_(torch.cat([self.deviations[1:], after[None].float()]))

    @torch.no_grad()
    def posterior(self) -> Swag:
        """The Gaussian of the snapshots so far; of a single one there is none, which is an :class:`InputError`."""
        count = int(self.snapshots)
        variance = (self.squares / max(count, 1)).float()
        deviations = self.deviations[self.rank - min(count, self.rank) :]
        return Swag(self.mean.float().cpu(), variance.cpu(), deviations.cpu().clone(), scope=self.scope)


def finetune_swag(
    base: Path, config: Namespace, out: Path, *, device: str = "auto", say: Callable[[str], None] = say
) -> dict[str, Any]:
    """Run SGD from a base network, fit a Gaussian to its snapshots, and write the Bayesian model.

    Args:
        base, config, out, device, say: see :func:`segunc.training.finetune_abnn.finetune_abnn`; the section of the
            configuration is ``swag``.

    Returns:
        what was measured: seconds, steps, snapshots, the scale.
    """
    run = FinetuneRun(base, config, "swag", out, device, say)
    options = run.options
    task = SwagTask(
        run.network,
        run.data.label_map.num_classes,
        warmup_steps=options.warmup_steps,
        burn_in=options.burn_in,
        collect_every=options.collect_every,
        rank=options.rank,
        **run.shared_options(),
    )
    posterior = (run.train(task) if run.epochs else task).posterior()
    scale = options.scale
    if scale is None:
        run.place()
        grid = options.scale_grid
        scale = run.select(posterior.with_scale, grid, "scale", options.selection_frames, options.selection_draws)
    run.measured |= {"snapshots": int(task.snapshots), "scale": scale}
    columns = len(posterior.deviations)
    return run.finish(posterior.with_scale(scale), f"{int(task.snapshots)} snapshots, rank {columns}, scale {scale:g}")
