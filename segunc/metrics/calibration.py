"""Calibration of the confidence of the predicted class, from counts that merge by addition.

ECE: Naeini et al. 2015, Guo et al. 2017 (arXiv 1706.04599): equal-width bins of the confidence, the mean over pixels of
|accuracy - confidence| of their bin. Adaptive ECE: the same sum over bins of equal mass, the adaptive ranges of Nixon
et al. 2019 (arXiv 1904.01685) for the confidence of the predicted class. Maximum calibration error: the largest gap of
any bin (Naeini et al. 2015). What needs all class probabilities is in :mod:`segunc.metrics.probability_sums`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from segunc.errors import InputError
from segunc.metrics.pixel_curves import Counts

BINS = 15
"""Number of confidence bins, as in Guo et al. 2017."""

Bins = npt.NDArray[np.float64]
"""float64 ``[3, B]``: pixels, correct pixels and the sum of confidences in each bin."""


def bin_edges(bins: int, dtype: npt.DTypeLike = np.float32) -> npt.NDArray[np.floating]:
    """The edges of equal-width bins over 0..1 in the type of the values they part, ``[B + 1]``.

    In their own type 0.2 lies on the edge 3/15, not beside it.
    """
    edges: npt.NDArray[np.floating] = np.linspace(0.0, 1.0, bins + 1).astype(dtype)
    return edges


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
        float64 ``[3, B]``: pixels, correct pixels, sum of confidences.

    Raises:
        InputError: a confidence is not in 0..1, or the shapes differ.
    """
    if confidence.shape != correct.shape or (weight is not None and weight.shape != confidence.shape):
        raise InputError(
            f"confidences of shape {confidence.shape} and outcomes of shape {correct.shape}", "one shape for all"
        )
    flat = confidence.ravel()
    if not ((flat >= 0.0) & (flat <= 1.0)).all():  # NaN fails both
        raise InputError("a confidence lies outside 0..1 or is NaN", "probabilities in 0..1", "check the maps")
    index = np.searchsorted(bin_edges(bins, flat.dtype)[1:-1], flat, side="right")
    pixels = np.ones(flat.shape) if weight is None else weight.ravel().astype(np.float64)
    return _sum_bins(index, pixels, correct.ravel(), flat, bins)


def bin_counts(counts: Counts, confidence: npt.NDArray[np.floating], bins: int = BINS) -> Bins:
    """:func:`bin_confidences` of pixels that are counted by a key.

    Args:
        counts: int64 ``[2, K]``: pixels by key; row 0 rightly, row 1 wrongly predicted.
        confidence: ``[K]`` the confidence in 0..1 that each key stands for; keys without a pixel may be anything.
        bins: B.

    Raises:
        InputError: the confidence of a key with pixels is not in 0..1.
    """
    used = counts.any(axis=0)
    return bin_confidences(confidence[used], counts[0, used], counts[:, used].sum(axis=0), bins)


def bin_counts_by_mass(counts: Counts, confidence: npt.NDArray[np.floating], bins: int = BINS) -> Bins:
    """Sum pixels into bins that hold about equally many of them, for the adaptive ECE.

    Pixels of one confidence are never parted: they all go into bin floor(B n / N), n the number of pixels of lower
    confidence and N that of all. Without ties these are B runs of the sorted pixels of N / B each. With ties the bins
    are those whose upper edges are the quantiles b/B of the confidences (observed values, never interpolated ones),
    edges belonging to the bin below, as public implementations cut them; a value that fills several bins leaves
    the others of them empty.

    Args:
        counts: int64 ``[2, K]``: pixels by key; row 0 rightly, row 1 wrongly predicted.
        confidence: ``[K]`` the confidence in 0..1 that each key stands for; keys without a pixel may be anything.
        bins: B.

    Returns:
        float64 ``[3, B]``: pixels, correct pixels, sum of confidences.

    Raises:
        InputError: the confidence of a key with pixels is not in 0..1.
    """
    used = np.flatnonzero(counts.any(axis=0))
    values, level = np.unique(confidence[used], return_inverse=True)  # ascending; keys of one confidence are one level
    if values.size and not (values[0] >= 0.0 and values[-1] <= 1.0):  # NaN sorts last
        raise InputError("a confidence lies outside 0..1 or is NaN", "probabilities in 0..1", "check the maps")
    pixels = np.zeros(len(values), np.int64)
    correct = np.zeros(len(values), np.int64)
    np.add.at(pixels, level, counts[:, used].sum(axis=0))
    np.add.at(correct, level, counts[0, used])
    below = np.cumsum(pixels) - pixels
    index = below * bins // max(int(pixels.sum()), 1)
    return _sum_bins(index, pixels, correct, values, bins)


def _sum_bins(
    index: npt.NDArray[np.integer],
    pixels: npt.NDArray[np.number],
    correct: npt.NDArray[np.number | np.bool_],
    confidence: npt.NDArray[np.floating],
    bins: int,
) -> Bins:
    rows = (pixels, correct, pixels * confidence.astype(np.float64))
    # Of no pixel bincount makes whole numbers.
    return np.stack([np.bincount(index, row, minlength=bins) for row in rows]).astype(np.float64)


def expected_calibration_error(sums: Bins) -> float | None:
    """ECE in 0..1 of equal-width bins, adaptive ECE of bins of equal mass; None without a pixel.

    Of equal-width bins it equals torchmetrics' ``calibration_error`` (norm ``l1``), except that confidence 1 belongs
    to the last bin here, as published, where torchmetrics opens a further bin for it.
    """
    pixels, correct, confidence = sums
    total = float(pixels.sum())
    return float(np.abs(correct - confidence).sum() / total) if total else None


def maximum_calibration_error(sums: Bins) -> float | None:
    """The largest |accuracy - confidence| of a bin with pixels, 0..1; None without a pixel.

    A bin of few pixels counts like any other, so the number says little without the pixels of each bin.
    """
    pixels, correct, confidence = sums[:, sums[0] > 0]
    return float(np.max(np.abs(correct - confidence) / pixels)) if pixels.size else None


@dataclass(frozen=True)
class Reliability:
    """The data of a reliability diagram with equal-width bins.

    Attributes:
        edges: ``[B + 1]`` bin edges over 0..1.
        confidence: ``[B]`` mean confidence in 0..1 of each bin; NaN in an empty one.
        accuracy: ``[B]`` share of rightly predicted pixels in 0..1; NaN in an empty bin.
        pixels: int64 ``[B]``.
    """

    edges: npt.NDArray[np.float64]
    confidence: npt.NDArray[np.float64]
    accuracy: npt.NDArray[np.float64]
    pixels: npt.NDArray[np.int64]


def reliability(sums: Bins) -> Reliability:
    """The reliability diagram of the equal-width bins of :func:`bin_confidences` or :func:`bin_counts`."""
    pixels, correct, confidence = sums
    means = np.full((2, len(pixels)), np.nan)
    np.divide(np.stack([confidence, correct]), pixels, out=means, where=pixels > 0)
    edges = np.linspace(0.0, 1.0, len(pixels) + 1)
    return Reliability(edges, means[0], means[1], np.rint(pixels).astype(np.int64))
