"""Plain fine-tuning of the affine parameters, without noise: one trajectory to the maximum of the posterior, and the control of all methods."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from segunc.affine.convert import revert
from segunc.affine.draws import AffineLayout
from segunc.affine.posterior import Prior, PriorMean, Trainable
from segunc.core.errors import InputError
from segunc.networks.files import POSTERIOR, save_network
from segunc.posteriors.abnn import ABNN
from segunc.posteriors.fitting import finetuning
from segunc.posteriors.methods import Method
from segunc.training.config import AffineTrainingConfig, FinetuneConfig
from segunc.training.finetune_run import FinetuneRun
from segunc.training.losses import Schedule
from segunc.training.progress import is_first_process


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


def _folder_of_its_own(base: Path, config: FinetuneConfig[Any], out: Path) -> None:
    if out.resolve() == base.resolve() or (out / POSTERIOR).exists():
        raise InputError(f"--out {out} holds another model", "a folder of its own", "give another --out")


@finetuning(check=_folder_of_its_own)
def finetune_deterministic(run: FinetuneRun[DeterministicConfig]) -> dict[str, Any]:
    """Train the affine parameters without noise and write them as a deterministic network, whose base scores are its own.

    It is ABNN's training with alpha 0, one member and no class weighted up.
    """
    options = run.config.settings
    if not run.epochs:
        raise InputError("deterministic.epochs 0 leaves the base as it is", "at least 1", "use the base itself")
    layout = AffineLayout(run.network)
    made = run.train(Point(layout, options.scope, options.prior(mean=options.prior_mean)))
    network = run.network.cpu()
    layout.store(made.gamma[0], made.beta[0])
    revert(network)
    network.description = replace(network.description, provenance={"base": run.base.name, **run.provenance()})
    if is_first_process():
        save_network(network, run.out)
        run.say(f"wrote {run.out}: a deterministic network, its affine parameters fine-tuned")
    return run.measured


METHOD = Method("deterministic", DeterministicConfig, finetune_deterministic)
