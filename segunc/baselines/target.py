"""The one posterior over affine parameters that every chain samples, its log density and its
gradients, and the batches of its data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from segunc.affine.draws import AffineDraws, AffineLayout
from segunc.affine.noise import mix_seed
from segunc.affine.posterior import Prior
from segunc.baselines.dynamics import LogDensity
from segunc.core.errors import InputError
from segunc.core.terminal import counted
from segunc.data.labels import IGNORE
from segunc.data.module import SegmentationDataset, collate
from segunc.networks.gradients import run_with_gradients
from segunc.training.batches import Batch
from segunc.training.losses import check_labels


class LogPosterior:
    """``log p(theta) = [N_eff x mean-pixel log-likelihood + log N(theta; theta_prior, s^2)] / T``,
    up to a constant. The mean runs over the labelled pixels of the data.

    theta ``[D]`` are the free affine parameters of the scope: its gammas, then the betas that there
    are. They are float64, whatever the network computes in, because steps of a chain are far
    smaller than what they are added to.

    Attributes:
        base: the trained values of theta.
        centre: the mean of the prior.
    """

    def __init__(self, network: nn.Module, prior: Prior, scope: str = "all") -> None:
        self.network = network.eval().requires_grad_(False)
        self.prior = prior
        self.layout = AffineLayout(network)
        self._trained = self.layout.affine.double().flatten()
        self._free = self.layout.free(scope).flatten().nonzero().flatten()
        self.base = self._trained[self._free]
        self.centre = self.base if prior.mean == "base" else torch.zeros_like(self.base)
        self._dtype = next(network.parameters()).dtype

    def expand(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Return gamma and beta ``[..., T]`` of the whole network, outside the scope the trained
        values, from theta ``[..., D]``.
        """
        leading = theta.shape[:-1]
        values = self._trained.expand(*leading, -1).index_copy(-1, self._free, theta)
        gamma, beta = values.view(*leading, 2, -1).unbind(-2)
        return gamma, beta

    def log_likelihood(self, theta: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        """Return the sum over the labelled pixels of images ``[N, 3, H, W]`` of log p(label), in
        nats: a float64 scalar.
        """
        gamma, beta = self.expand(theta)
        images = images.to(self.layout.device, self._dtype)
        images = images.contiguous(memory_format=torch.channels_last)
        with self.layout.active(AffineDraws(gamma[None], beta[None])):
            logits = run_with_gradients(self.network, images)
        labels = labels.to(logits.device, torch.long)
        check_labels(labels, logits.shape[1])
        losses = F.cross_entropy(logits, labels, ignore_index=IGNORE, reduction="none")
        return -losses.sum(dtype=torch.float64)

    def _differentiated(
        self, theta: Tensor, images: Tensor, labels: Tensor
    ) -> tuple[float, Tensor]:
        """Return the log likelihood and its gradient ``[D]``."""
        with torch.enable_grad():
            leaf = theta.detach().requires_grad_()
            value = self.log_likelihood(leaf, images, labels)
            (gradient,) = torch.autograd.grad(value, leaf)
        return float(value.detach()), gradient

    def energy_gradient(
        self, theta: Tensor, images: Tensor, labels: Tensor, pixels: float
    ) -> Tensor:
        """Return an estimate ``[D]`` of the gradient of the energy -T log p(theta), from a
        minibatch.

        Args:
            pixels: expected number of labelled pixels of such a batch; then it is unbiased.
        """
        gradient = (theta - self.centre) / self.prior.scale**2
        if not bool((labels != IGNORE).any()):
            return gradient
        _, of_likelihood = self._differentiated(theta, images, labels)
        return gradient - (self.prior.effective_pixels / pixels) * of_likelihood

    def on(self, batches: Sequence[Batch]) -> LogDensity:
        """Return the log density over a fixed data set of batches, whose sizes may differ."""
        pixels = sum(int((labels != IGNORE).sum()) for _, labels in batches)
        if pixels == 0:
            raise InputError(
                "the training frames have no labelled pixel", hint="check the training split"
            )

        def log_density(theta: Tensor) -> tuple[float, Tensor]:
            offset = (theta - self.centre) / self.prior.scale
            value = -0.5 * float(offset.square().sum())
            gradient = -offset / self.prior.scale
            scale = self.prior.effective_pixels / pixels
            for images, labels in batches:
                part, part_gradient = self._differentiated(theta, images, labels)
                value += scale * part
                gradient = gradient + scale * part_gradient
            return value / self.prior.temperature, gradient / self.prior.temperature

        return log_density


def load_batches(data: SegmentationDataset, frames: Sequence[int], size: int) -> list[Batch]:
    """Return frames in batches of ``size``; the last batch may be smaller."""
    starts = range(0, len(frames), size)
    return [_stack([data[i] for i in frames[start : start + size]]) for start in starts]


def minibatches(
    data: SegmentationDataset,
    frames: Sequence[int],
    size: int,
    seed: int,
    steps: int,
    workers: int = 0,
) -> Iterator[Batch]:
    """Yield for each step the batch of frames that (seed, step) decides, augmentation too; each
    pass has its own order, and leaves out what does not fill a batch.
    """
    if len(frames) < size:
        raise InputError(
            f"{counted(len(frames), 'training frame')} cannot fill a batch of {size}",
            hint="lower data.batch_size",
        )
    batches_a_pass = len(frames) // size
    plan = []
    for step in range(steps):
        pass_seed = mix_seed(seed, step // batches_a_pass)
        order = np.random.Generator(np.random.Philox(key=pass_seed)).permutation(len(frames))
        first = (step % batches_a_pass) * size
        batch = []
        for row, i in enumerate(order[first : first + size]):
            batch.append((frames[i], mix_seed(seed, step, row)))
        plan.append(batch)
    loader = DataLoader(
        _Keyed(data),
        batch_sampler=plan,
        num_workers=workers,
        collate_fn=_stack,
        # Without a generator the loader takes a number from the global one.
        generator=torch.Generator().manual_seed(seed),
    )
    return iter(loader)


class _Keyed(Dataset[dict[str, Any]]):
    """Frames whose augmentation is seeded one by one: indices are (frame, seed)."""

    def __init__(self, data: SegmentationDataset) -> None:
        self._data = data

    def __getitem__(self, index: tuple[int, int]) -> dict[str, Any]:
        frame, seed = index
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self._data[frame]


def _stack(items: Sequence[dict[str, Any]]) -> Batch:
    batch = collate(items)
    return batch["image"], batch["label"]
