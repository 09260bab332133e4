"""The one posterior over affine parameters that every chain samples: its log density and its gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segunc.affine.draws import AffineDraws, AffineLayout
from segunc.affine.scope import in_scope
from segunc.core.errors import InputError
from segunc.data.labels import IGNORE

LogDensity = Callable[[Tensor], tuple[float, Tensor]]
"""theta ``[D]`` -> log density up to a constant, and its gradient ``[D]``; NaN where it is not defined."""


class AffineParameters:
    """The free affine parameters of a scope as one vector theta ``[D]``: its gammas, then its betas.

    Layers without beta have none here. float64, whatever the network computes in: steps of a chain are far smaller
    than the parameters they are added to.

    Attributes:
        count: D.
        base: ``[D]`` the trained values.
    """

    def __init__(self, layout: AffineLayout, scope: str = "all") -> None:
        mask = layout.site_mask(in_scope(scope, layout.names))
        self._gamma = mask.nonzero().flatten()
        self._beta = (mask & layout.has_bias).nonzero().flatten()
        self._weight, self._bias = layout.weight.double(), layout.bias.double()
        self.count = len(self._gamma) + len(self._beta)
        self.base = torch.cat([self._weight[self._gamma], self._bias[self._beta]])

    def expand(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """gamma and beta of the whole network, each ``[..., T]``, from theta ``[..., D]``; differentiable.

        Outside the scope they are the trained values.
        """
        shape = (*theta.shape[:-1], len(self._weight))
        gamma, beta = theta[..., : len(self._gamma)], theta[..., len(self._gamma) :]
        return (
            self._weight.expand(shape).index_copy(-1, self._gamma, gamma),
            self._bias.expand(shape).index_copy(-1, self._beta, beta),
        )


class LogPosterior:
    """``log p(theta) = [N_eff x mean-pixel log-likelihood + log N(theta; theta_base, s^2)] / T``, up to a constant.

    The mean runs over the labelled pixels of the data. Pixels of an image are far from independent, so N_eff says how
    many independent ones the data counts for. T below 1 is a cold posterior (Wenzel et al. 2020): likelihood and prior
    are both raised to 1 / T.

    Args:
        network: converted; logits ``[N, C, H, W]`` of images ``[N, 3, H, W]``. It is put into eval mode and its own
            parameters are frozen. It computes in its own floating type; sums over pixels are float64.
        scope: sites whose gamma and beta are theta.
        effective_pixels: N_eff.
        prior_scale: s, the standard deviation of the prior around the trained values.
        temperature: T.

    Raises:
        InputError: a number that is not positive, or a scope that matches no site.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        scope: str = "all",
        effective_pixels: float = 100_000.0,
        prior_scale: float = 0.1,
        temperature: float = 1.0,
    ) -> None:
        if not (effective_pixels > 0 and prior_scale > 0 and temperature > 0):
            raise InputError(
                f"effective_pixels {effective_pixels}, prior_scale {prior_scale}, temperature {temperature}",
                "positive numbers",
                "repair the configuration",
            )
        self.network = network.eval().requires_grad_(False)
        self.effective_pixels, self.prior_scale = float(effective_pixels), float(prior_scale)
        self.temperature = float(temperature)
        self.layout = AffineLayout(network)
        self.parameters = AffineParameters(self.layout, scope)
        self._dtype = next(network.parameters()).dtype

    @property
    def base(self) -> Tensor:
        """theta_base ``[D]``, float64."""
        return self.parameters.base

    def log_likelihood(self, theta: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        """Sum over labelled pixels of log p(label), in nats; a float64 scalar, differentiable in theta ``[D]``.

        Args:
            theta: one parameter vector.
            images: ``[N, 3, H, W]``.
            labels: ``[N, H, W]`` train ids, 255 ignored.
        """
        gamma, beta = self.parameters.expand(theta)
        images = images.to(self.layout.device, self._dtype).contiguous(memory_format=torch.channels_last)
        with self.layout.active(AffineDraws(gamma[None], beta[None])):
            logits: Tensor = self.network(images)
        labels = labels.to(logits.device, torch.long)
        losses = F.cross_entropy(logits, labels, ignore_index=IGNORE, reduction="none")
        return -losses.sum(dtype=torch.float64)

    def energy_gradient(self, theta: Tensor, images: Tensor, labels: Tensor, pixels: float | None = None) -> Tensor:
        """Estimate ``[D]``, from a minibatch, of the gradient of the energy -T log p(theta).

        Args:
            theta, images, labels: as in :meth:`log_likelihood`.
            pixels: the expected number of labelled pixels of such a batch. With it the estimate is unbiased for any
                labels; None divides by those of this batch, right where frames have equally many.
        """
        counted = float((labels != IGNORE).sum()) if pixels is None else pixels
        gradient = (theta - self.base) / self.prior_scale**2
        if counted == 0:
            return gradient
        _, of_likelihood = _differentiate(lambda x: self.log_likelihood(x, images, labels), theta)
        return gradient - (self.effective_pixels / counted) * of_likelihood

    def on(self, batches: Sequence[tuple[Tensor, Tensor]]) -> LogDensity:
        """The log density over a fixed data set, and its gradient; the data are streamed batch by batch.

        Args:
            batches: images ``[N, 3, H, W]`` and labels ``[N, H, W]``; the N may differ.

        Raises:
            InputError: no labelled pixel.
        """
        pixels = sum(int((labels != IGNORE).sum()) for _, labels in batches)
        if pixels == 0:
            raise InputError("the frames hold no labelled pixel", "frames with labels", "check the training split")

        def log_density(theta: Tensor) -> tuple[float, Tensor]:
            offset = (theta - self.base) / self.prior_scale
            value = -0.5 * float(offset.square().sum())
            gradient = -offset / self.prior_scale
            scale = self.effective_pixels / pixels
            for images, labels in batches:
                part, part_gradient = _differentiate(lambda x, i=images, k=labels: self.log_likelihood(x, i, k), theta)  # type: ignore[misc]
                value += scale * part
                gradient = gradient + scale * part_gradient
            return value / self.temperature, gradient / self.temperature

        return log_density


def _differentiate(function: Callable[[Tensor], Tensor], theta: Tensor) -> tuple[float, Tensor]:
    """Value and gradient of a scalar function."""
    with torch.enable_grad():
        leaf = theta.detach().requires_grad_()
        value = function(leaf)
        (gradient,) = torch.autograd.grad(value, leaf)
    return float(value.detach()), gradient
