"""Calibration of the predicted class probabilities, from sums over pixels that merge by addition.

ECE: Naeini et al. 2015, Guo et al. 2017 (arXiv 1706.04599): equal-width bins of the confidence, the mean over pixels of
|accuracy - confidence| of their bin. Brier: mean over pixels of sum_c (p_c - 1[y = c])^2, so 0..2. NLL in nats.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from segunc.data.labels import IGNORE
from segunc.errors import InputError

BINS = 15
"""Number of confidence bins, as in Guo et al. 2017."""
SMALLEST_PROBABILITY = float(np.finfo(np.float32).tiny)
"""Probabilities are raised to this before the logarithm (an NLL of 87.3 nats), so that one underflow is not infinite."""

Bins = npt.NDArray[np.float64]
"""float64 ``[3, B]``: pixels, correct pixels and the sum of confidences in each bin."""


def bin_confidences(
    confidence: npt.NDArray[np.floating],
    correct: npt.NDArray[np.number | np.bool_],
    weight: npt.NDArray[np.number] | None = None,
    bins: int = BINS,
) -> Bins:
    """Sum pixels into equal-width bins of confidence.

    Args:
        confidence: probability of the predicted class in 0..1, any shape.
        correct: whether the class is right, the same shape (bool); with ``weight``, the number of right pixels.
        weight: number of pixels that each element stands for; None is one each.
        bins: B; bin b holds b/B <= confidence < (b+1)/B and the last one also confidence 1.

    Returns:
        float64 ``[3, B]``: pixels, correct pixels, sum of confidences. Sums of two calls add.

    Raises:
        InputError: a confidence is not in 0..1, or the shapes differ.
    """
    if confidence.shape != correct.shape or (weight is not None and weight.shape != confidence.shape):
        raise InputError(
            f"confidences of shape {confidence.shape} and outcomes of shape {correct.shape}", "one shape for all"
        )
    flat = confidence.ravel()
    # The edges are those of the confidences' own type, so that 0.2 in float32 lies on the edge 3/15, not beside it.
    edges = np.linspace(0.0, 1.0, bins + 1).astype(flat.dtype)
    if not ((flat >= 0.0) & (flat <= 1.0)).all():  # NaN fails both
        raise InputError("a confidence lies outside 0..1 or is NaN", "probabilities in 0..1", "check the maps")
    index = np.searchsorted(edges[1:-1], flat, side="right")
    pixels = np.ones(flat.shape) if weight is None else weight.ravel().astype(np.float64)
    rows = (pixels, correct.ravel().astype(np.float64), pixels * flat.astype(np.float64))
    return np.stack([np.bincount(index, row, minlength=bins) for row in rows])


def expected_calibration_error(sums: Bins) -> float | None:
    """ECE in 0..1 of the sums of :func:`bin_confidences`; None without a pixel.

    It equals torchmetrics' ``calibration_error`` (norm ``l1``), except that confidence 1 belongs to the last bin
    here, as published, where torchmetrics opens a further bin for it.
    """
    pixels, correct, confidence = sums
    total = float(pixels.sum())
    return float(np.abs(correct - confidence).sum() / total) if total else None


def probability_scores(
    probabilities: npt.NDArray[np.float32], labels: npt.NDArray[np.integer], ignore: int = IGNORE
) -> npt.NDArray[np.float64]:
    """Sum the log loss and the Brier score over the labelled pixels.

    Args:
        probabilities: ``[C, ...]`` class probabilities in 0..1 that sum to 1 over the first axis.
        labels: train ids in 0..C-1, or ``ignore``; ``[...]``.
        ignore: the label of pixels that are not counted.

    Returns:
        float64 ``[3]``: pixels, sum of -ln p_y in nats, sum of sum_c (p_c - 1[y = c])^2. Sums of two calls add.

    Raises:
        InputError: the shapes differ, an id is no class, or the values are no probabilities.
    """
    if probabilities.shape[1:] != labels.shape:
        raise InputError(
            f"probabilities of shape {probabilities.shape} and labels of shape {labels.shape}",
            "[C, H, W] and [H, W]",
        )
    counted = labels != ignore
    truth = labels[counted].astype(np.int64)
    if truth.size and (truth.min() < 0 or truth.max() >= len(probabilities)):
        raise InputError(f"labels holds the class id {truth.max()}", f"ids in 0..{len(probabilities) - 1}")
    selected = probabilities[:, counted]
    total = selected.sum(axis=0)
    if not (np.abs(total - 1.0) <= 1e-2).all() or selected.min(initial=0.0) < 0.0:
        raise InputError("class probabilities are negative or do not sum to 1", "the output of a softmax")
    chosen = np.take_along_axis(selected, truth[None], axis=0)[0].astype(np.float64)
    # (1 - p_y)^2 plus the squares of the others, so that a sure and right pixel does not cancel to noise.
    squares = np.einsum("cp,cp->p", selected, selected).astype(np.float64) - np.square(chosen)
    brier = np.square(1.0 - chosen) + np.maximum(squares, 0.0)
    loss = -np.log(np.maximum(chosen, SMALLEST_PROBABILITY))
    return np.array([truth.size, loss.sum(), brier.sum()])
