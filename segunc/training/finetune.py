"""Base network to ABNN from a configuration: what ``segunc finetune`` does by default."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from jsonargparse import Namespace
from torch import Tensor

from segunc.bayes.abnn import ABNN
from segunc.training.finetune_run import FinetuneRun
from segunc.training.finetune_task import ABNNTask
from segunc.training.progress import say
from segunc.training.statistics import reestimate

STATISTICS_BATCHES = 40


def finetune_abnn(
    base: Path, config: Namespace, out: Path, *, device: str = "auto", say: Callable[[str], None] = say
) -> dict[str, Any]:
    """Convert a base network, select alpha unless it is given, fine-tune the members, and write the Bayesian model.

    A killed run continues from its last checkpoint when called again with the same ``out``.

    Args:
        base: model folder of a deterministic network.
        config: of :func:`segunc.training.config.parse_finetune_config`.
        out: the new model folder.
        device: ``auto``, ``cpu`` or ``cuda[:N]``.
        say: receives a line for each step.

    Returns:
        what was measured: alpha and the validation NLL of each candidate, seconds, steps.
    """
    abnn = config.abnn
    run = FinetuneRun(base, config, "abnn", out, device, say, members=abnn.members)
    layout = run.place()
    noise_only = ABNN.around(layout, 0.0, scope=abnn.scope, noise=abnn.noise)
    alpha = abnn.alpha
    if alpha is None:
        frames, draws, corruption = abnn.alpha_frames, abnn.alpha_draws, abnn.alpha_corruption
        alpha = run.select(noise_only.with_alpha, abnn.alpha_grid, "alpha", frames, draws, corruption)
    run.measured["alpha"] = alpha
    if run.epochs == 0:
        posterior = ABNN.around(layout, alpha, abnn.members, scope=abnn.scope, noise=abnn.noise)
        say("epochs 0: nothing is trained, the members are the base network with noise")
    else:
        posterior = _train_members(run, alpha)
    if abnn.statistics == "reestimated":
        run.place()
        posterior = _with_own_statistics(run, posterior)
    numbers = 2 * posterior.gamma.numel()
    return run.finish(posterior, f"{posterior.members} members, alpha {alpha:g}, {numbers:,} parameters")


def _train_members(run: FinetuneRun, alpha: float) -> ABNN:
    abnn = run.options
    task = ABNNTask(
        run.network.cpu(),
        run.data.label_map.num_classes,
        members=abnn.members,
        alpha=alpha,
        noise=abnn.noise,
        optimizer=abnn.optimizer,
        schedule=abnn.schedule,
        prior_mean=abnn.prior_mean,
        random_classes=abnn.random_classes,
        random_class_weight=abnn.random_class_weight,
        **run.shared_options(),
    )
    for member, classes in enumerate(task.random_classes):
        names = ", ".join(run.data.label_map.classes[c] for c in classes)
        run.say(f"member {member}: {names or 'no class'} weighted up")
    return run.train(task).posterior()


def _with_own_statistics(run: FinetuneRun, posterior: ABNN) -> ABNN:
    device = next(run.network.parameters()).device

    def batches() -> Iterator[Tensor]:
        return (batch["image"].to(device) for batch in islice(run.data.train_dataloader(), STATISTICS_BATCHES))

    pairs = [
        reestimate(run.network, g.to(device), b.to(device), batches())
        for g, b in zip(posterior.gamma, posterior.beta, strict=True)
    ]
    rescale, reshift = (torch.stack([p[i].cpu() for p in pairs]) for i in (0, 1))
    run.say(f"running statistics of {posterior.members} members re-estimated")
    return ABNN(posterior.gamma, posterior.beta, posterior.alpha, posterior.scope, posterior.noise, rescale, reshift)
