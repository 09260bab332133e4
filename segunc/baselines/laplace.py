"""Laplace approximation over the affine parameters (MacKay 1992; Daxberger et al. 2021,
2106.14806).

With g_i the gradient of log p(y_i | x, theta) of pixel i, the Fisher matrix of the mean pixel is F
= (1 / N) sum_i E[g_i g_i'] over the N labelled pixels, with labels y_i drawn from the network's own
prediction; N_eff F is the (generalised Gauss-Newton) curvature of our likelihood. One backward pass
an image is enough: with a label drawn for each pixel independently every g_i has mean 0, so the
cross terms vanish, and of G = sum_i g_i it is E[G G'] = sum_i E[g_i g_i']. (With the true labels,
the "empirical Fisher", the sum is too large by up to the number of pixels.) An entry of the
diagonal has a relative standard error of about sqrt(2 / n) after n gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, repeat
from math import ceil
from typing import Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segunc.affine.draws import AffineDraws, AffineLayout
from segunc.affine.noise import NoiseSource, Seed, mix_seed
from segunc.affine.posterior import Prior
from segunc.affine.rows import RowOrder
from segunc.baselines.swag import Point
from segunc.core.bounds import NonNegativeFloat, NonNegativeInt, PositiveInt
from segunc.core.errors import InputError
from segunc.core.progress import ConsoleProgress
from segunc.data.labels import IGNORE
from segunc.networks.gradients import run_with_gradients
from segunc.networks.network import check_images
from segunc.posteriors.finetune_run import FinetuneRun
from segunc.posteriors.methods import Method
from segunc.posteriors.model import Model
from segunc.posteriors.settings import MethodSettings
from segunc.training.config import AffineTrainingConfig
from segunc.training.lightning_runs import INTERVAL, is_first_process

Structure = Literal["diagonal", "block"]
# Labelled pixels below which no Fisher is taken: rare classes would not occur in it.
MIN_PIXELS = 10_000
# Gradients of images below which no Fisher is taken: the relative standard error of its entries is
# 50 % there.
MIN_GRADIENTS = 8


class LaplacePosterior:
    """Draws from ``N(mean, T P^-1)`` with the precision ``P = N_eff F + I / s^2``. F: see the
    module's text.

    Args:
        mean: ``[2, T]`` gamma (row 0) and beta (row 1) at which the Fisher was taken.
        fisher: ``[2, T]`` diagonal; or ``[3, T]`` blocks: gamma with gamma, beta with beta, gamma
            with beta.
    """

    method: ClassVar[str] = "laplace"
    members = 1

    def __init__(
        self, mean: Tensor, fisher: Tensor, prior: Prior | None = None, scope: str = "all"
    ) -> None:
        self.mean = mean
        self.fisher = fisher
        self.prior = prior or Prior()
        self.scope = scope

    def affine(
        self, layout: AffineLayout, draws: Sequence[int], seed: Seed, scope: str | None = None
    ) -> AffineDraws:
        noise = NoiseSource.of(seed).normal(draws, 2 * layout.total).double()
        noise = noise.view(len(draws), 2, -1)
        spread = torch.where(layout.free(self.scope, scope).cpu(), self._spread(noise), 0.0)
        values = (self.mean.cpu() + self.prior.temperature**0.5 * spread.float()).to(layout.device)
        return AffineDraws(values[:, 0], values[:, 1])

    def _spread(self, noise: Tensor) -> Tensor:
        """Return ``L^-T noise`` with ``P = L L'``, whose covariance is ``P^-1``; ``[S, 2, T]``
        float64.
        """
        precision = self.prior.effective_pixels * self.fisher.cpu().double()
        prior = self.prior.scale**-2
        if len(self.fisher) == 2:
            return noise / (precision + prior).sqrt()
        first = (precision[0] + prior).sqrt()
        below = precision[2] / first
        second = (precision[1] + prior - below.square()).sqrt()
        beta = noise[:, 1] / second
        return torch.stack([(noise[:, 0] - below * beta) / first, beta], 1)

    def tensors(self) -> dict[str, Tensor]:
        return {"mean": self.mean, "fisher": self.fisher}

    def settings(self) -> dict[str, Any]:
        return {
            "structure": "diagonal" if len(self.fisher) == 2 else "block",
            "prior_scale": self.prior.scale,
            "effective_pixels": self.prior.effective_pixels,
            "temperature": self.prior.temperature,
            "scope": self.scope,
        }

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        prior = Prior(
            settings["prior_scale"],
            settings["effective_pixels"],
            temperature=settings["temperature"],
        )
        return cls(tensors["mean"], tensors["fisher"], prior, settings["scope"])


class FisherSum:
    """The sum of the outer products of image gradients with sampled labels, see the module's text.

    Args:
        network: a converted network, whose own parameters are frozen.
        affine: gamma and beta ``[2, T]`` at which gradients are taken.

    Attributes:
        total: float64, in the shape of the Fisher of :class:`LaplacePosterior`; divided by
            ``pixels`` it is F.
        pixels: labelled pixels times samples.
        gradients: of images.
    """

    def __init__(
        self, network: nn.Module, affine: Tensor, structure: Structure, scope: str = "all"
    ) -> None:
        self.network = network.eval()
        self.layout = AffineLayout(network)
        self.affine = affine.to(self.layout.device)
        self._mask = self.layout.free(scope)
        self._row_order = RowOrder(network, scope)
        rows = 3 if structure == "block" else 2
        self.total = torch.zeros(
            rows, self.layout.total, dtype=torch.float64, device=self.layout.device
        )
        self.pixels = 0
        self.gradients = 0

    def add(self, images: Tensor, labels: Tensor, seed: int, samples: int = 1) -> None:
        """Add the gradients of images.

        Args:
            images: ``[n, 3, H, W]``.
            labels: ``[n, H, W]``; only which pixels are ignored (255) is read.
            seed: of the sampled labels.
            samples: maps of labels that are sampled for each image, a backward pass each.
        """
        check_images(images, self.network)
        device = self.layout.device
        images = images.to(device).contiguous(memory_format=torch.channels_last)
        ignored = labels.to(device) == IGNORE
        rows = len(images) if self._row_order.is_kept(self.layout, images) else 1
        for first in range(0, len(images), rows):
            self._add_part(images, ignored, slice(first, first + rows), seed, samples)
        self.pixels += samples * int((~ignored).sum())
        self.gradients += samples * len(images)

    def _add_part(
        self, images: Tensor, ignored: Tensor, part: slice, seed: int, samples: int
    ) -> None:
        """Add the gradients of a part of a batch in one pass; the sampled labels are those of the
        whole batch.
        """
        gamma, beta = self._rows_of_affine(len(images[part]))
        with self.layout.active(AffineDraws(gamma, beta)):
            logits = run_with_gradients(self.network, images[part]).float()
        cumulative = logits.detach().softmax(1).cumsum(1)
        for sample in range(samples):
            generator = torch.Generator().manual_seed(mix_seed(seed, sample))
            uniform = torch.rand((len(images), 1, *logits.shape[2:]), generator=generator)
            # Rounding may leave the last sum below 1.
            drawn = (cumulative < uniform[part].to(cumulative)).sum(1)
            drawn = drawn.clamp_max(logits.shape[1] - 1).masked_fill(ignored[part], IGNORE)
            loss = F.cross_entropy(logits, drawn, ignore_index=IGNORE, reduction="sum")
            slopes = torch.autograd.grad(loss, (gamma, beta), retain_graph=sample + 1 < samples)
            self._add_gradients(torch.stack(slopes, 1).double() * self._mask)

    def _rows_of_affine(self, rows: int) -> list[Tensor]:
        """Return gamma and beta, ``[rows, T]`` each, in which gradients are taken."""
        return [row.expand(rows, -1).clone().requires_grad_() for row in self.affine]

    def _add_gradients(self, gradients: Tensor) -> None:
        """Add the outer products of gradients ``[n, 2, T]``."""
        if not bool(torch.isfinite(gradients).all()):
            raise InputError(
                "a gradient of the network is NaN or infinite", hint="check its weights"
            )
        self.total[:2] += gradients.square().sum(0)
        if len(self.total) == 3:
            self.total[2] += (gradients[:, 0] * gradients[:, 1]).sum(0)

    def mean(self) -> Tensor:
        """Return F, the Fisher of the mean pixel, float32 on the CPU, in the shape of ``total``."""
        return (self.total / max(self.pixels, 1)).float().cpu()


@dataclass(frozen=True)
class Laplace(AffineTrainingConfig, MethodSettings):
    """How the Fisher matrix is taken and which prior goes with it.

    Args:
        epochs: passes of plain fine-tuning to the maximum of the posterior before the Fisher matrix
            is computed; 0 computes it at the base.
        structure: structure of the Fisher matrix: diagonal, or block for 2 x 2 blocks of the gamma
            and beta of each channel.
        images: number of training crops whose gradients are used.
        samples: number of label maps that are drawn for each crop.
        temperature: T, the factor of the covariance.

    >>> import torch
    >>> import segunc
    >>> _ = torch.manual_seed(0)
    >>> first = torch.nn.Conv2d(3, 4, 3, padding=1)
    >>> net = torch.nn.Sequential(first, torch.nn.BatchNorm2d(4), torch.nn.Conv2d(4, 2, 1))
    >>> base = segunc.wrap(net, ("road", "other"))
    >>> images = torch.rand(4, 3, 64, 64)
    >>> labels = (images.mean(1) > 0.5).long()
    >>> batches = [(images[:2], labels[:2]), (images[2:], labels[2:])]
    >>> model = segunc.Laplace(images=4, samples=8).fit(base, batches)
    >>> model.posterior.method
    'laplace'
    """

    section = "laplace"
    method = "laplace"
    epochs: NonNegativeInt = 0
    structure: Structure = "block"
    images: PositiveInt = 64
    samples: PositiveInt = 2
    temperature: NonNegativeFloat = Prior.temperature


def finetune_laplace(run: FinetuneRun[Laplace]) -> Model:
    """Return a base network with the Fisher at its parameters, or at those of a fine-tuning."""
    options = run.config.settings
    layout = run.place()
    affine = layout.affine.cpu()
    if run.epochs:
        point = run.train(Point(layout, options.scope, options.prior()))
        affine = torch.cat([point.gamma, point.beta])
        run.place()
    fisher = FisherSum(run.network.requires_grad_(False), affine, options.structure, options.scope)
    if options.images * options.samples < MIN_GRADIENTS:
        raise InputError(
            f"laplace needs at least {MIN_GRADIENTS} gradients: images times samples",
            hint="raise laplace.images or laplace.samples",
        )
    _add_crops(fisher, run)
    if fisher.pixels < MIN_PIXELS:
        raise InputError(
            f"laplace needs at least {MIN_PIXELS:,} labelled pixels, and its images have "
            f"{fisher.pixels:,}",
            hint="raise laplace.images or the crop, or check the labels",
        )
    prior = options.prior(temperature=options.temperature)
    run.measured["pixels"] = fisher.pixels
    run.measured["gradients"] = fisher.gradients
    run.measured["prior_scale"] = prior.scale
    return run.finish(
        LaplacePosterior(affine, fisher.mean(), prior, options.scope),
        f"{options.structure} Fisher of {fisher.gradients} gradients over {fisher.pixels:,} "
        f"pixels, prior scale {prior.scale:g}",
    )


def _add_crops(fisher: FisherSum, run: FinetuneRun[Laplace]) -> None:
    """Add the gradients of the training crops that the settings ask for."""
    options = run.config.settings
    run.data.prepare_data(selects=False)
    run.seed_everything()  # the same crops whether a fine-tuning came before or not
    batches = ceil(options.images / run.data.batch_size)
    epochs = chain.from_iterable(run.train_batches() for _ in repeat(None))
    progress = ConsoleProgress(
        label="finetune: Fisher",
        unit="step",
        interval=INTERVAL,
        quiet=run.quiet or not is_first_process(),
    )
    with progress:
        for number, (images, labels) in enumerate(islice(epochs, batches)):
            fisher.add(images, labels, mix_seed(options.seed, number), options.samples)
            progress.count(number + 1, batches)


METHOD = Method("laplace", Laplace, finetune_laplace, LaplacePosterior.from_tensors)
