"""Base network to ABNN from a configuration: what ``segunc finetune`` does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import lightning as L
import torch
from jsonargparse import Namespace
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor

from segunc.bayes.abnn import ABNN
from segunc.bayes.convert import convert
from segunc.bayes.draws import AffineLayout
from segunc.bayes.files import save_posterior
from segunc.data.module import SegmentationDataModule
from segunc.errors import InputError
from segunc.networks.files import load_network, state_sha256
from segunc.sampling.sampler import Precision
from segunc.training.alpha import select_alpha
from segunc.training.base import make_loggers, make_trainer, trainer_settings
from segunc.training.config import save_config
from segunc.training.finetune_task import ABNNTask
from segunc.training.losses import balanced_weights
from segunc.training.progress import is_first_process, say
from segunc.training.resume import CHECKPOINTS, claim_checkpoints, fit
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
    L.seed_everything(config.abnn.seed, workers=True, verbose=False)
    torch.set_flush_denormal(True)
    abnn = config.abnn
    network = load_network(base)
    data = SegmentationDataModule(**config.data.as_dict())
    if data.label_map.num_classes != network.description.num_classes:
        raise InputError(
            f"data set {config.data.dataset} has {data.label_map.num_classes} classes, the network {network.description.num_classes}",
            "the classes that the network was trained on",
            "choose the data set or the base again",
        )
    sha256 = state_sha256(network.body)
    report = convert(network.body)
    say(f"converted {base}: {report}")
    layout = AffineLayout(network)
    settings = trainer_settings(dict(config.trainer), out, device)
    settings["max_epochs"] = abnn.epochs * abnn.members
    if abnn.max_steps:
        settings["max_steps"] = abnn.max_steps * abnn.members
    precision: Precision = "bfloat16" if str(settings["precision"]).startswith("bf16") else "float32"
    # Before the minutes of the selection, so that wrong settings fail at once.
    if abnn.epochs:
        data.prepare_data()
    resume = claim_checkpoints(out, "finetune", config, base_sha256=sha256)
    save_config(config, out, "finetune")
    start = time.perf_counter()
    measured: dict[str, Any] = {}
    network.to(_select_device(device)).to(memory_format=torch.channels_last)
    layout = AffineLayout(network)
    noise_only = ABNN.around(layout, 0.0, scope=abnn.scope, noise=abnn.noise)
    alpha = abnn.alpha
    if alpha is None:
        alpha, nll = select_alpha(
            network,
            noise_only,
            data.dataset("val"),
            abnn.alpha_grid,
            frames=abnn.alpha_frames,
            draws=abnn.alpha_draws,
            seed=abnn.seed,
            precision=precision,
        )
        measured["alpha_nll"] = {k: round(v, 6) for k, v in nll.items()}
        say(f"alpha {alpha:g} has the lowest validation NLL of " + ", ".join(f"{k}: {v:.4f}" for k, v in nll.items()))
    measured["alpha"] = alpha
    measured["alpha_seconds"] = round(time.perf_counter() - start, 1)
    if abnn.epochs == 0:
        posterior = ABNN.around(layout, alpha, abnn.members, scope=abnn.scope, noise=abnn.noise)
        say("epochs 0: nothing is trained, the members are the base network with noise")
    else:
        posterior, trained = _train_members(network.cpu(), config, alpha, data, out, settings, resume, say)
        measured.update(trained)
    if abnn.statistics == "reestimated":
        network.to(_select_device(device))
        posterior = _with_own_statistics(network, posterior, data, say)
    measured["seconds"] = round(time.perf_counter() - start, 1)
    if is_first_process():
        provenance = {
            "dataset": config.data.dataset,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "torch": torch.__version__,
            "precision": str(settings["precision"]),
            "threads": torch.get_num_threads(),
            "settings": {k: v for k, v in abnn.as_dict().items() if k != "alpha"},
            "resumed": resume is not None,
            **measured,
        }
        cpu_layout = AffineLayout(network.cpu())
        save_posterior(posterior, cpu_layout, report, base, out, seed=abnn.seed, provenance=provenance)
        say(f"wrote {out}: {posterior.members} members, alpha {alpha:g}, {2 * posterior.gamma.numel():,} parameters")
    return measured


def _train_members(
    network: torch.nn.Module,
    config: Namespace,
    alpha: float,
    data: SegmentationDataModule,
    out: Path,
    settings: dict[str, Any],
    resume: Path | None,
    say: Callable[[str], None],
) -> tuple[ABNN, dict[str, Any]]:
    abnn = config.abnn
    weights = balanced_weights(data.class_frequencies(), abnn.class_weight_power) if abnn.class_weight_power else None
    task = ABNNTask(
        network,
        data.label_map.num_classes,
        members=abnn.members,
        alpha=alpha,
        scope=abnn.scope,
        noise=abnn.noise,
        lr=abnn.lr,
        optimizer=abnn.optimizer,
        schedule=abnn.schedule,
        prior_scale=abnn.prior_scale,
        prior_mean=abnn.prior_mean,
        effective_pixels=abnn.effective_pixels,
        random_classes=abnn.random_classes,
        random_class_weight=abnn.random_class_weight,
        class_weights=weights,
        dice=abnn.dice,
        seed=abnn.seed,
    )
    for member, classes in enumerate(task.random_classes):
        say(f"member {member}: {', '.join(data.label_map.classes[c] for c in classes) or 'no class'} weighted up")
    last = ModelCheckpoint(
        out / CHECKPOINTS, "last", every_n_epochs=1, save_on_train_epoch_end=True, enable_version_counter=False
    )
    trainer = make_trainer(settings, [last], make_loggers(out), label="finetune")
    start = time.perf_counter()
    fit(trainer, task, resume, train_dataloaders=data.train_dataloader())
    seconds = time.perf_counter() - start
    posterior = task.posterior()
    for name, tensor in posterior.tensors().items():
        if not torch.isfinite(tensor).all():
            raise InputError(f"fine-tuning made {name} NaN or infinite", "finite members", "lower abnn.lr")
    return posterior, {"steps": trainer.global_step, "train_seconds": round(seconds, 1)}


def _with_own_statistics(
    network: torch.nn.Module, posterior: ABNN, data: SegmentationDataModule, say: Callable[[str], None]
) -> ABNN:
    device = next(network.parameters()).device

    def batches() -> Iterator[Tensor]:
        return (batch["image"].to(device) for batch in islice(data.train_dataloader(), STATISTICS_BATCHES))

    pairs = [
        reestimate(network, g.to(device), b.to(device), batches())
        for g, b in zip(posterior.gamma, posterior.beta, strict=True)
    ]
    rescale, reshift = (torch.stack([p[i].cpu() for p in pairs]) for i in (0, 1))
    say(f"running statistics of {posterior.members} members re-estimated")
    return ABNN(posterior.gamma, posterior.beta, posterior.alpha, posterior.scope, posterior.noise, rescale, reshift)


def _select_device(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(device)
