"""Vector scaling and Dirichlet calibration, kinds of :mod:`segunc.posteriors.temperature`.

Their penalty is ODIR of Kull et al. (NeurIPS 2019, arXiv 1910.12656) and one term more::

    mu (mean_i b_i^2 + mean_i (w_ii - 1/T)^2) + lambda mean_{i != j} w_ij^2

T is the best temperature, on which a strong penalty falls back. ODIR leaves the diagonal free: a class without a pixel in the sample
would go to infinity there, and a class of few pixels far. With mu above 0 there is one minimum, and a class without pixels stays near
its temperature.
"""

from __future__ import annotations

import torch
from torch import Tensor

from segunc.posteriors.temperature import Fit, Kind, PixelSample, Strengths, fit_scalar, mean_nll, minimise


def fit_penalised(sample: PixelSample, temperature: float, strengths: Strengths) -> Fit:
    """Return W and b of the lowest mean NLL with the penalty of the module, from ``W = I / T``, which they are where it has no strengths."""
    slope, intercept = fit_scalar(sample, temperature)
    if not strengths:
        return slope, intercept
    classes = sample.logs.shape[1]
    matrix = len(strengths) > 1
    weight = (torch.diag(slope.expand(classes)) if matrix else slope.repeat(classes)).requires_grad_()
    bias = torch.zeros(classes, dtype=torch.float64, requires_grad=True)

    def loss() -> Tensor:
        diagonal = weight.diagonal() if matrix else weight
        value = mean_nll(sample, (weight, bias))
        value = value + strengths[0] * (bias.square().mean() + (diagonal - slope).square().mean())
        if matrix:
            others = (weight - diagonal.diag()).square().sum()
            value = value + strengths[1] * others / max(1, classes * (classes - 1))
        return value

    minimise(loss, weight, bias, tolerance=1e-5)  # beyond it the NLL changes in its sixth digit, at twice the time
    return weight.detach(), bias.detach()


VECTOR, DIRICHLET = (Kind(count, fit_penalised) for count in (1, 2))
