"""The Fisher matrix of the mean pixel over the affine parameters, estimated with one backward pass for many images.

Write l_i(theta) = log p(y_i | x, theta) for pixel i and g_i for its gradient at theta. The Fisher matrix of a pixel is
F_i = E[g_i g_i'], the expectation over labels y_i drawn from the network's own prediction, and that of the mean pixel
is F = (1 / N) sum_i F_i over the N labelled pixels of the data. The log posterior of this package counts N_eff times
the mean-pixel log-likelihood, so N_eff F is the (generalised Gauss-Newton) curvature of its likelihood.

Gradients of single pixels would need a backward pass each. They are not needed. Draw a label for every pixel of an
image independently, and let G = sum_i g_i be the gradient of the image's summed log-likelihood. Given the image, the
g_i are independent of each other, and each has mean 0 (the expectation of the score under the model's own labels), so
the cross terms of E[G G'] vanish:

    E[G G'] = sum_i E[g_i g_i'] + sum_{i != j} E[g_i] E[g_j]' = sum_i F_i.

So the outer product of one image's gradient is an unbiased estimate of the sum of its pixels' Fisher matrices: the unit
of the gradient is the image, and dividing the sum of outer products by the number of labelled pixels (times samples)
gives the Fisher of the mean pixel, without any approximation but Monte Carlo. (With the true labels instead, the
"empirical Fisher", the g_i of an image share a direction, the cross terms stay, and the sum is too large by a factor
of up to the number of pixels.) A diagonal entry has a relative standard error of about sqrt(2 / n) after n gradients,
because G is nearly Gaussian as a sum over many pixels.

The gradients of all images of a batch come from one backward pass: image i meets its own draw, a row of the affine
tensors that is a leaf of its own, and no image of a batch sees another in eval mode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any, cast

import lightning as L
import torch
import torch.nn.functional as F
from jsonargparse import Namespace
from jsonargparse.typing import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from safetensors.torch import load_file, save
from torch import Tensor, nn

from segunc.affine.draws import AffineDraws, AffineLayout
from segunc.affine.noise import mix_seed
from segunc.affine.posterior import stochastic
from segunc.core.errors import InputError
from segunc.core.files import write_atomically
from segunc.data.labels import IGNORE
from segunc.posteriors.laplace import Laplace, Structure
from segunc.training.config import AffineTrainingConfig
from segunc.training.finetune_point import PointTask
from segunc.training.finetune_run import FinetuneRun
from segunc.training.progress import StepProgress, is_first_process, say
from segunc.training.resume import CHECKPOINTS

FULL_LIMIT = 4096
"""Parameters up to which the full matrix is kept: 64 MiB as float32, and seconds to factorise."""


class FisherSum:
    """Sums the outer products of image gradients with sampled labels; see the module's text.

    Args:
        network: converted, in eval mode, its own parameters frozen.
        affine: ``[2, T]`` gamma and beta at which the Fisher is taken.
        structure: ``diagonal``, ``block`` or ``full``; see :class:`segunc.posteriors.laplace.Laplace`.
        scope: sites whose parameters count; the others' entries stay 0 (they are absent from the full form).

    Attributes:
        total: the sum, float64, of the shape that the structure has; divided by ``pixels`` it is F.
        pixels: labelled pixels times samples that went into it.
        gradients: image gradients that went into it.
        index: ``[P]`` positions of the full form's rows in the flattened ``[2, T]``, else None.

    Raises:
        InputError: more parameters than the full form takes.
    """

    def __init__(self, network: nn.Module, affine: Tensor, structure: Structure, scope: str = "all") -> None:
        self.network = network.eval()
        self.layout = AffineLayout(network)
        self.affine, self.structure = affine.to(self.layout.device), structure
        mask = stochastic(self.layout, scope, None)
        self._mask = torch.stack([mask, mask & self.layout.has_bias])
        self.index: Tensor | None = None
        shape: tuple[int, ...] = (3 if structure == "block" else 2, self.layout.total)
        if structure == "full":
            self.index = self._mask.flatten().nonzero().flatten()
            if len(self.index) > FULL_LIMIT:
                raise InputError(
                    f"the full Fisher of {len(self.index):,} parameters",
                    f"at most {FULL_LIMIT:,}",
                    "choose a smaller scope such as last:2, or structure block",
                )
            shape = (len(self.index), len(self.index))
        self.total = torch.zeros(shape, dtype=torch.float64, device=self.layout.device)
        self.pixels = self.gradients = 0

    def add(self, images: Tensor, labels: Tensor, seed: int, samples: int = 1) -> None:
        """Add the gradients of a batch.

        Args:
            images: ``[n, 3, H, W]``.
            labels: ``[n, H, W]``; only which pixels are ignored (255) is read.
            seed: of the sampled labels.
            samples: label maps drawn for each image, a backward pass each.

        Raises:
            InputError: the network gives NaN or infinite gradients.
        """
        device = self.layout.device
        images, ignored = images.to(device).contiguous(memory_format=torch.channels_last), labels.to(device) == IGNORE
        rows = len(images)
        gamma, beta = (row.expand(rows, -1).clone().requires_grad_() for row in self.affine)
        with self.layout.active(AffineDraws(gamma, beta)):
            logits = cast(Tensor, self.network(images)).float()
        cumulative = logits.detach().softmax(1).cumsum(1)
        for sample in range(samples):
            generator = torch.Generator().manual_seed(mix_seed(seed, sample))
            uniform = torch.rand((rows, 1, *logits.shape[2:]), generator=generator).to(device)
            # Rounding may leave the last sum below 1.
            drawn = (cumulative < uniform).sum(1).clamp_max(logits.shape[1] - 1)
            loss = F.cross_entropy(logits, drawn.masked_fill(ignored, IGNORE), ignore_index=IGNORE, reduction="sum")
            found = torch.autograd.grad(loss, (gamma, beta), retain_graph=sample + 1 < samples)
            self._accumulate(torch.stack(found, 1).double() * self._mask)
        self.pixels += samples * int((~ignored).sum())
        self.gradients += samples * rows

    def _accumulate(self, gradients: Tensor) -> None:
        """Add outer products of gradients ``[n, 2, T]``."""
        if not bool(torch.isfinite(gradients).all()):
            raise InputError("a gradient of the network is NaN or infinite", "finite gradients", "check its weights")
        if self.index is not None:
            chosen = gradients.flatten(1)[:, self.index]
            self.total += chosen.T @ chosen
            return
        self.total[:2] += gradients.square().sum(0)
        if self.structure == "block":
            self.total[2] += (gradients[:, 0] * gradients[:, 1]).sum(0)

    def mean(self) -> Tensor:
        """F, the Fisher of the mean pixel, float32 on the CPU, in the shape of ``total``."""
        return (self.total / max(self.pixels, 1)).float().cpu()


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
        base, config, out, device, say: see :func:`segunc.training.finetune_abnn.finetune_abnn`; the section of the
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
