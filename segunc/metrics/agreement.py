"""How close one predictive distribution lies to another, pixel by pixel (Izmailov et al. 2021, arXiv 2104.14421)."""

from __future__ import annotations

import torch
from torch import Tensor

from segunc.core.errors import InputError


def predictive_agreement(probabilities: Tensor, reference: Tensor) -> float:
    """Share of the pixels, 0..1, on which both predict the same class (their section 5, "agreement").

    Args:
        probabilities, reference: ``[N, C, ...]`` mean probabilities of the same pixels.

    Raises:
        InputError: different shapes.
    """
    _check(probabilities, reference)
    return float((probabilities.argmax(1) == reference.argmax(1)).double().mean())


def total_variation(probabilities: Tensor, reference: Tensor) -> float:
    """Mean over pixels of ``1/2 sum_c |p_c - q_c|``, 0..1 (their section 5, "total variation"; 0 is the same distribution).

    Args:
        probabilities, reference: ``[N, C, ...]`` mean probabilities of the same pixels.

    Raises:
        InputError: different shapes.
    """
    _check(probabilities, reference)
    return float(0.5 * (probabilities - reference).abs().sum(1, dtype=torch.float64).mean())


def _check(probabilities: Tensor, reference: Tensor) -> None:
    if probabilities.shape != reference.shape or probabilities.ndim < 2:
        raise InputError(
            f"probabilities {tuple(probabilities.shape)} and reference {tuple(reference.shape)}",
            "both [N, C, ...] of the same pixels",
            "predict the same frames at the same size",
        )
