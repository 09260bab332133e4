"""The one posterior over affine parameters that every chain samples: its log density and its gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segunc.affine.draws import AffineDraws, AffineLayout
from segunc.affine.posterior import Prior
from segunc.baselines.dynamics import LogDensity
from segunc.core.errors import InputError
from segunc.data.labels import IGNORE
from segunc.training.data import Batch
from segunc.training.losses import check_labels


class LogPosterior:
    """``log p(theta) = [N_eff x mean-pixel log-likelihood + log N(theta; theta_prior, s^2)] / T``, up to a constant.

    The mean runs over the labelled pixels of the data. theta ``[D]`` are the free affine parameters of the scope, its gammas, then the
    betas that there are; float64, whatever the network computes in: steps of a chain are far smaller than what they are added to.

    Args:
        network: converted; logits ``[N, C, H, W]`` of images ``[N, 3, H, W]``. It is put into eval mode and its own
            parameters are frozen. It computes in its own floating type; sums over pixels are float64.
        prior: s, N_eff and T, which has to be above 0.
        scope: normalisation layers whose gamma and beta are theta.

    Attributes:
        layout: of the network.
        base, centre: ``[D]`` float64, the trained values and the mean of the prior.

    Raises:
        InputError: a temperature of 0, or a scope that matches no layer.
    """

    def __init__(self, network: nn.Module, prior: Prior, scope: str = "all") -> None:
        if prior.temperature == 0:
            raise InputError("a chain has no density to follow at temperature 0", hint="raise the temperature")
        self.network, self.prior = network.eval().requires_grad_(False), prior
        self.layout = AffineLayout(network)
        self._trained = self.layout.affine.double().flatten()
        self._free = self.layout.free(scope).flatten().nonzero().flatten()
        self.base = self._trained[self._free]
        self.centre = self.base if prior.mean == "base" else torch.zeros_like(self.base)
        self._dtype = next(network.parameters()).dtype

    def expand(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Return gamma and beta of the whole network, each ``[..., T]``, from theta ``[..., D]``; differentiable. Outside the scope they
        are the trained values."""
        every = self._trained.expand(*theta.shape[:-1], -1).index_copy(-1, self._free, theta)
        gamma, beta = every.view(*theta.shape[:-1], 2, -1).unbind(-2)
        return gamma, beta

    def log_likelihood(self, theta: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        """Return the sum over the labelled pixels of images ``[N, 3, H, W]`` of log p(label), in nats: a float64 scalar, differentiable
        in theta ``[D]``. Labels ``[N, H, W]`` are train ids, 255 ignored."""
        gamma, beta = self.expand(theta)
        images = images.to(self.layout.device, self._dtype).contiguous(memory_format=torch.channels_last)
        with self.layout.active(AffineDraws(gamma[None], beta[None])):
            logits: Tensor = self.network(images)
        labels = labels.to(logits.device, torch.long)
        check_labels(labels, logits.shape[1])
        losses = F.cross_entropy(logits, labels, ignore_index=IGNORE, reduction="none")
        return -losses.sum(dtype=torch.float64)

    def _differentiated(self, theta: Tensor, images: Tensor, labels: Tensor) -> tuple[float, Tensor]:
        """Return the log likelihood and its gradient ``[D]``."""
        with torch.enable_grad():
            leaf = theta.detach().requires_grad_()
            value = self.log_likelihood(leaf, images, labels)
            (gradient,) = torch.autograd.grad(value, leaf)
        return float(value.detach()), gradient

    def energy_gradient(self, theta: Tensor, images: Tensor, labels: Tensor, pixels: float) -> Tensor:
        """Estimate ``[D]``, from a minibatch, of the gradient of the energy -T log p(theta).

        ``pixels`` is the expected number of labelled pixels of such a batch, which makes the estimate unbiased for any labels.
        """
        gradient = (theta - self.centre) / self.prior.scale**2
        if not bool((labels != IGNORE).any()):
            return gradient
        _, of_likelihood = self._differentiated(theta, images, labels)
        return gradient - (self.prior.effective_pixels / pixels) * of_likelihood

    def on(self, batches: Sequence[Batch]) -> LogDensity:
        """Return the log density over a fixed data set of batches, whose sizes may differ; InputError without a labelled pixel."""
        pixels = sum(int((labels != IGNORE).sum()) for _, labels in batches)
        if pixels == 0:
            raise InputError("the training frames have no labelled pixel", hint="check the training split")

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
