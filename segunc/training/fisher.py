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

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segunc.bayes.draws import AffineDraws, AffineLayout
from segunc.bayes.laplace import Structure
from segunc.bayes.noise import mix_seed
from segunc.bayes.posterior import stochastic
from segunc.data.labels import IGNORE
from segunc.errors import InputError

FULL_LIMIT = 4096
"""Parameters up to which the full matrix is kept: 64 MiB as float32, and seconds to factorise."""


class FisherSum:
    """Sums the outer products of image gradients with sampled labels; see the module's text.

    Args:
        network: converted, in eval mode, its own parameters frozen.
        affine: ``[2, T]`` gamma and beta at which the Fisher is taken.
        structure: ``diagonal``, ``block`` or ``full``; see :class:`segunc.bayes.laplace.Laplace`.
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
