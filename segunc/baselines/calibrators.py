"""Vector scaling and Dirichlet calibration, kinds of :mod:`segunc.baselines.temperature`.

Their penalty is ODIR of Kull et al. (NeurIPS 2019, arXiv 1910.12656) and one term more::

    mu (mean_i b_i^2 + mean_i (w_ii - 1/T)^2) + lambda mean_{i != j} w_ij^2

T is the best temperature, on which a strong penalty falls back. ODIR leaves the diagonal free: a class without a pixel in the sample
would go to infinity there, and a class of few pixels far. With mu above 0 there is one minimum, and a class without pixels stays near
its temperature. The strengths are those with the lowest NLL on blocks of successive frames, each fitted on all others: what is learnt of
a frame holds for its neighbours, so single pixels or frames would not be held out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product

import torch
from torch import Tensor

from segunc.baselines.temperature import ALONE, Fit, PixelSample, fit_temperature, mean_nll, minimise
from segunc.core.errors import InputError

FOLDS = 5
PENALTIES = (1000.0, 10.0, 0.1)  # candidates for mu and lambda
Strengths = tuple[float, ...]  # none (a temperature), mu (vector scaling), or mu and lambda (Dirichlet calibration)


def fit_penalised(sample: PixelSample, temperature: float, strengths: Strengths) -> tuple[Tensor, Tensor]:
    """Return W and b of the lowest mean NLL with the penalty of the module, from ``W = I / T``, which they are where it has no strengths."""
    slope, bias = torch.tensor(1 / temperature, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    if not strengths:
        return slope, bias
    classes = sample.logs.shape[1]
    matrix = len(strengths) > 1
    weight = (torch.diag(slope.expand(classes)) if matrix else slope.repeat(classes)).requires_grad_()
    bias = torch.zeros(classes, dtype=torch.float64, requires_grad=True)

    def loss() -> Tensor:
        diagonal = weight.diagonal() if matrix else weight
        value = mean_nll(sample, weight, bias)
        value = value + strengths[0] * (bias.square().mean() + (diagonal - slope).square().mean())
        if matrix:
            others = (weight - diagonal.diag()).square().sum()
            value = value + strengths[1] * others / max(1, classes * (classes - 1))
        return value

    minimise(loss, weight, bias, tolerance=1e-5)  # beyond it the NLL changes in its sixth digit, at twice the time
    return weight.detach(), bias.detach()


def held_out_nll(sample: PixelSample, strengths: Sequence[Strengths]) -> dict[Strengths, float]:
    """Return the mean NLL of each penalty on the blocks; InputError where there is one frame."""
    frames = int(sample.frames[-1]) + 1
    if frames < 2:
        message = "temperature.kind vector and dirichlet choose a penalty on frames held out, and there is 1 frame"
        raise InputError(message, hint="choose --temperature.kind scalar, or give more frames")
    nll = dict.fromkeys(strengths, 0.0)
    for block in torch.arange(frames).tensor_split(min(FOLDS, frames)):
        inside = torch.isin(sample.frames, block)
        rest, out = (PixelSample(*(part[chosen] for part in sample)) for chosen in (~inside, inside))
        share = float(out.weights.sum() / sample.weights.sum())
        temperature = fit_temperature(rest)
        for strength in nll:
            nll[strength] += share * float(mean_nll(out, *fit_penalised(rest, temperature, strength)))
    return nll


def fit_by_class(sample: PixelSample, temperature: float, count: int) -> Fit:
    """Return the calibration whose penalty has ``count`` strengths."""
    strengths: list[Strengths] = [(), *product(PENALTIES, repeat=count)]
    nll = held_out_nll(sample, strengths)
    chosen = min(strengths[1:], key=lambda each: nll[each])
    named = {_words(each): value for each, value in nll.items()}
    return Fit(*fit_penalised(sample, temperature, chosen), _words(chosen), named)


def _words(strengths: Strengths) -> str:
    """Return ``mu 1, lambda 100``."""
    return ", ".join(f"{name} {value:g}" for name, value in zip(("mu", "lambda"), strengths, strict=False)) or ALONE


VECTOR, DIRICHLET = (partial(fit_by_class, count=count) for count in (1, 2))
