"""Laplace approximation over the affine parameters: ``segunc finetune --method laplace``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

import lightning as L
import torch
from jsonargparse import Namespace
from jsonargparse.typing import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from safetensors.torch import load_file, save

from segunc.bayes.laplace import Laplace, Structure
from segunc.bayes.noise import mix_seed
from segunc.errors import InputError
from segunc.files import write_atomically
from segunc.training.config import AffineTrainingConfig
from segunc.training.finetune_run import FinetuneRun
from segunc.training.fisher import FisherSum
from segunc.training.point_task import PointTask
from segunc.training.progress import StepProgress, is_first_process, say
from segunc.training.resume import CHECKPOINTS

PARTIAL = "fisher.safetensors"
"""The sums so far, beside the checkpoints."""
LEAST_PIXELS = 10_000
"""Labelled pixels below which no Fisher is taken: rare classes would not occur in it."""
LEAST_GRADIENTS = 8
"""Image gradients below which no Fisher is taken: the relative standard error of its entries is 50 % there."""


@dataclass
class LaplaceConfig(AffineTrainingConfig):
    """How the Fisher matrix is taken and which prior goes with it.

    Args:
        epochs: of plain fine-tuning to the maximum of the posterior before the Fisher is taken; 0 takes it at the base.
        prior_scale: s in that fine-tuning, and in the result where ``prior_scale_grid`` is empty.
        structure: diagonal, block (2 x 2 blocks of gamma and beta of each channel) or full (a small scope).
        images: training crops whose gradients are taken.
        samples: label maps drawn for each crop.
        prior_scale_grid: candidates for s in the result, one of which is selected on validation NLL.
        temperature: T, factor of the covariance.
        selection_frames: validation frames used for the selection, evenly spaced (0: all).
        selection_draws: draws for each candidate.
    """

    epochs: NonNegativeInt = 0
    structure: Structure = "block"
    images: PositiveInt = 64
    samples: PositiveInt = 2
    prior_scale_grid: list[PositiveFloat] = field(default_factory=lambda: [0.001, 0.003, 0.01, 0.03, 0.1, 0.3])
    temperature: NonNegativeFloat = 1.0
    selection_frames: NonNegativeInt = 24
    selection_draws: PositiveInt = 6


def finetune_laplace(
    base: Path, config: Namespace, out: Path, *, device: str = "auto", say: Callable[[str], None] = say
) -> dict[str, Any]:
    """Take the Fisher at the base (or after plain fine-tuning), select the prior, and write the Bayesian model.

    Args:
        base, config, out, device, say: see :func:`segunc.training.finetune.finetune_abnn`; the section of the
            configuration is ``laplace``.

    Returns:
        what was measured: seconds, pixels and gradients of the Fisher, the prior scale.
    """
    run = FinetuneRun(base, config, "laplace", out, device, say, partial=PARTIAL)
    options = run.options
    layout = run.place()
    affine = torch.stack([layout.weight, layout.bias]).cpu()
    if run.epochs:
        task = PointTask(run.network.cpu(), run.data.label_map.num_classes, **run.shared_options())
        affine = run.train(task).point()
        run.place()
    fisher = _take_fisher(run, FisherSum(run.network.requires_grad_(False), affine, options.structure, options.scope))
    posterior = Laplace(
        affine,
        fisher.mean(),
        options.structure,
        None if fisher.index is None else fisher.index.cpu(),
        prior_scale=options.prior_scale,
        effective_pixels=options.effective_pixels,
        temperature=options.temperature,
        scope=options.scope,
    )
    if options.prior_scale_grid:
        grid, frames, draws = options.prior_scale_grid, options.selection_frames, options.selection_draws
        posterior = posterior.with_prior_scale(
            run.select(posterior.with_prior_scale, grid, "prior_scale", frames, draws)
        )
    run.measured |= {"pixels": fisher.pixels, "gradients": fisher.gradients, "prior_scale": posterior.prior_scale}
    return run.finish(
        posterior,
        f"{options.structure} Fisher of {fisher.gradients} gradients over {fisher.pixels:,} pixels, "
        f"prior scale {posterior.prior_scale:g}",
    )


def _take_fisher(run: FinetuneRun, fisher: FisherSum) -> FisherSum:
    """Sum the gradients of ``images`` crops; what a killed run had summed is not summed again."""
    options = run.options
    if options.images * options.samples < LEAST_GRADIENTS:
        raise InputError(
            f"laplace with {options.images} images and {options.samples} samples",
            f"at least {LEAST_GRADIENTS} gradients",
            "raise laplace.images or laplace.samples",
        )
    run.data.prepare_data()
    # The same crops whether a fine-tuning came before, was continued, or was not there.
    L.seed_everything(options.seed, workers=True, verbose=False)
    path = run.out / CHECKPOINTS / PARTIAL
    done = _restore(fisher, path)
    batches = ceil(options.images / run.data.batch_size)
    progress = StepProgress("finetune: Fisher", batches, done)
    for number, batch in enumerate(_batches(run, batches)):
        if number < done:
            continue  # read again all the same, so that the augmentation goes on from the same random state
        fisher.add(batch["image"], batch["label"], mix_seed(options.seed, number), options.samples)
        if progress.step() and is_first_process():
            _store(fisher, number + 1, path)
    progress.close()
    if is_first_process():
        _store(fisher, batches, path)
    if fisher.pixels < LEAST_PIXELS:
        raise InputError(
            f"laplace with {fisher.pixels:,} labelled pixels in {options.images} images",
            f"at least {LEAST_PIXELS:,}",
            "raise laplace.images or the crop, or check the labels",
        )
    return fisher


def _batches(run: FinetuneRun, count: int) -> Iterator[dict[str, Any]]:
    """``count`` training batches, going through the set again where it is shorter."""
    loader = run.data.train_dataloader()
    given = 0
    while True:
        for batch in loader:
            if given == count:
                return
            given += 1
            yield batch


def _store(fisher: FisherSum, batches: int, path: Path) -> None:
    counts = torch.tensor([batches, fisher.pixels, fisher.gradients])
    write_atomically(path, save({"total": fisher.total.cpu(), "counts": counts}))


def _restore(fisher: FisherSum, path: Path) -> int:
    """The number of batches that a killed run had summed; 0 where there was none."""
    if not path.exists():
        return 0
    held = load_file(path)
    fisher.total.copy_(held["total"])
    done, fisher.pixels, fisher.gradients = (int(v) for v in held["counts"])
    return done
