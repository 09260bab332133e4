"""Plain fine-tuning of the affine parameters, without noise: one trajectory to the maximum of the posterior, and the control of all methods."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from segunc.affine.convert import revert
from segunc.affine.draws import AffineLayout
from segunc.affine.prior import Prior, PriorMean
from segunc.affine.trainable import Trainable
from segunc.core.device import flushed_denormals
from segunc.core.errors import InputError
from segunc.networks.files import POSTERIOR, save_network
from segunc.posteriors.abnn import ABNN
from segunc.posteriors.methods import Method
from segunc.training.config import AffineTrainingConfig, FinetuneConfig
from segunc.training.losses import Schedule
from segunc.training.progress import Say, is_first_process, say


class Point(Trainable[ABNN]):
    """One gamma and beta for each channel of the scope: an ABNN of one member without noise."""

    def __init__(self, layout: AffineLayout, scope: str = "all", prior: Prior | None = None) -> None:
        super().__init__(scope, prior)
        self.affine = nn.Parameter(layout.affine)

    def posterior(self, layout: AffineLayout) -> ABNN:
        gamma, beta = self.within_scope(self.affine, layout)
        return ABNN(gamma[None], beta[None], 0.0, self.scope)

    def regulariser(self, layout: AffineLayout, member: int) -> Tensor:
        return self.prior.energy(self.affine, layout, self.scope)


@dataclass(frozen=True)
class DeterministicConfig(AffineTrainingConfig):
    """How the affine parameters are trained on.

    Args:
        optimizer: sgd (Nesterov momentum 0.9) or adamw.
        schedule: onecycle, poly or constant.
        prior_mean: base (the trained values) or zero (plain weight decay).
    """

    section = "deterministic"
    optimizer: Literal["sgd", "adamw"] = "sgd"
    schedule: Schedule = "poly"
    prior_mean: PriorMean = "base"


@flushed_denormals()
def finetune_deterministic(
    base: Path, config: FinetuneConfig[DeterministicConfig], out: Path, *, device: str = "auto", say: Say = say
) -> dict[str, Any]:
    """Train the affine parameters of a base network without noise and write them as a deterministic network.

    It is ABNN's training with alpha 0, one member and no class weighted up. The result has one draw, and its base scores
    are of the fine-tuned network.

    Args:
        base, config, out, device, say: see :func:`segunc.posteriors.abnn.finetune_abnn`.

    Returns:
        what was measured: seconds, steps.

    Raises:
        InputError: ``out`` is the base or holds a Bayesian model, or 0 epochs.
    """
    from segunc.training.finetune_run import FinetuneRun

    if out.resolve() == base.resolve() or (out / POSTERIOR).exists():
        raise InputError(f"--out {out} holds another model", "a folder of its own", "give another --out")
    run = FinetuneRun(base, config, out, device=device, say=say)
    options = config.settings
    if not run.epochs:
        raise InputError("deterministic.epochs 0 leaves the base as it is", "at least 1", "use the base itself")
    layout = AffineLayout(run.network)
    point = Point(layout, options.scope, options.prior(mean=options.prior_mean))
    made = run.train(point, optimizer=options.optimizer, schedule=options.schedule)
    network = run.network.cpu()
    layout.store(made.gamma[0], made.beta[0])
    revert(network)
    network.description = replace(network.description, provenance={"base": base.name, **run.provenance()})
    if is_first_process():
        save_network(network, out)
        say(f"wrote {out}: a deterministic network, its affine parameters fine-tuned")
    return run.measured


METHOD = Method("deterministic", DeterministicConfig, finetune_deterministic)
