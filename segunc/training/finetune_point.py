"""One trajectory of the affine parameters, without noise: plain fine-tuning to the maximum of the posterior."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from jsonargparse import Namespace
from torch import Tensor, nn

from segunc.affine.convert import revert
from segunc.affine.draws import AffineDraws, AffineLayout
from segunc.affine.posterior import Posterior
from segunc.core.errors import InputError
from segunc.networks.files import POSTERIOR, save_network
from segunc.posteriors.abnn import ABNN
from segunc.training.affine_task import AffineTask
from segunc.training.config import AffineTrainingConfig
from segunc.training.finetune_run import FinetuneRun
from segunc.training.losses import Schedule
from segunc.training.progress import is_first_process, say


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


@dataclass
class DeterministicConfig(AffineTrainingConfig):
    """How the affine parameters are trained on.

    Args:
        optimizer: sgd (Nesterov momentum 0.9) or adamw.
        schedule: onecycle, poly or constant.
        prior_mean: base (the trained values) or zero (plain weight decay).
    """

    optimizer: Literal["sgd", "adamw"] = "sgd"
    schedule: Schedule = "poly"
    prior_mean: Literal["base", "zero"] = "base"


def finetune_deterministic(
    base: Path, config: Namespace, out: Path, *, device: str = "auto", say: Callable[[str], None] = say
) -> dict[str, Any]:
    """Train the affine parameters of a base network without noise and write them as a deterministic network.

    It is ABNN's training with alpha 0, one member and no class weighted up. The result has one draw, and its base scores
    are of the fine-tuned network.

    Args:
        base, config, out, device, say: see :func:`segunc.training.finetune_abnn.finetune_abnn`; the section of the
            configuration is ``deterministic``.

    Returns:
        what was measured: seconds, steps.

    Raises:
        InputError: ``out`` is the base or holds a Bayesian model, or 0 epochs.
    """
    if out.resolve() == base.resolve() or (out / POSTERIOR).exists():
        raise InputError(f"--out {out} holds another model", "a folder of its own", "give another --out")
    run = FinetuneRun(base, config, "deterministic", out, device, say)
    options = run.options
    if not run.epochs:
        raise InputError("deterministic.epochs 0 leaves the base as it is", "at least 1", "use the base itself")
    task = PointTask(
        run.network,
        run.data.label_map.num_classes,
        optimizer=options.optimizer,
        schedule=options.schedule,
        prior_mean=options.prior_mean,
        **run.shared_options(),
    )
    gamma, beta = run.train(task).point()
    network = run.network.cpu()
    task.layout.store(gamma, beta)
    revert(network)
    provenance = run.provenance()
    network.description = replace(network.description, provenance={"base": base.name, **provenance})
    if is_first_process():
        save_network(network, out)
        say(f"wrote {out}: a deterministic network, its affine parameters fine-tuned")
    return run.measured
