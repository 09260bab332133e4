"""Calibration: reliability bins, their errors, NLL and Brier score, from sums that merge by addition.

* ECE: Naeini et al. 2015, Guo et al. 2017 (arXiv 1706.04599): equal-width bins of the confidence, the mean over pixels of
  |accuracy - confidence| of their bin. Adaptive ECE: the same sum over bins of equal mass, the adaptive ranges of Nixon
  et al. 2019 (arXiv 1904.01685) for the confidence of the predicted class.
* From the probabilities of all classes: NLL in nats; Brier, the mean over pixels of sum_c (p_c - 1[y = c])^2, so 0..2;
  classwise ECE: Kull et al. 2019 (arXiv 1910.12656), for each class the ECE of its probability against whether it is the
  class, and the mean over all classes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.data.labels import IGNORE
from segunc.metrics.counting import Counts, Floats, from_fixed_point, grouped_sums, to_fixed_point

BINS = 15
"""As in Guo et al. 2017."""
SMALLEST_PROBABILITY = float(np.finfo(np.float32).tiny)
"""Probabilities are raised to this before the logarithm (an NLL of 87.3 nats), so that one underflow is not infinite."""
STRIP = 1 << 16
"""Pixels that are worked on at a time, so that the memory does not grow with the frame."""

Probabilities = npt.NDArray[np.float32]


def _inner_edges(bins: int, dtype: npt.DTypeLike) -> npt.NDArray[np.floating]:
    """Return the edges between equal-width bins over 0..1, ``[B - 1]``, in the type of the values: in it 0.2 lies on the edge 3/15."""
    edges: npt.NDArray[np.floating] = np.linspace(0.0, 1.0, bins + 1).astype(dtype)[1:-1]
    return edges


def bin_counts(counts: Counts, confidence: npt.NDArray[np.floating], bins: int = BINS) -> Floats:
    """Sum pixels into equal-width bins of confidence, float64 ``[3, B]``: pixels, correct pixels, sum of confidences.

    Args:
        counts: int64 ``[2, K]``: pixels by key; row 0 rightly, row 1 wrongly predicted.
        confidence: ``[K]`` in 0..1, of the predicted class of each key; that of a key without a pixel may be anything.
        bins: B; bin b holds b/B <= confidence < (b+1)/B and the last one also confidence 1.

    Raises:
        InputError: the confidence of a key with pixels is not in 0..1.
    """
    used = counts.any(axis=0)
    index = np.searchsorted(_inner_edges(bins, confidence.dtype), confidence[used], side="right")
    return _sum_bins(index, counts[:, used], confidence[used], bins)


def bin_counts_by_mass(counts: Counts, confidence: npt.NDArray[np.floating], bins: int = BINS) -> Floats:
    """As :func:`bin_counts`, with bins that hold about equally many pixels, for the adaptive ECE.

    Pixels of one confidence are never parted: they all go into bin floor(B n / N), n the number of pixels of lower
    confidence and N that of all. Without ties these are B runs of the sorted pixels of N / B each. With ties the bins
    are those whose upper edges are the quantiles b/B of the confidences (observed values, never interpolated ones),
    edges belonging to the bin below, as public implementations cut them; a value that fills several bins leaves
    the others of them empty.
    """
    used = np.flatnonzero(counts.any(axis=0))
    values, level = np.unique(confidence[used], return_inverse=True)  # ascending; keys of one confidence are one level
    levels = np.stack([grouped_sums(level, row[used], len(values)) for row in counts])
    pixels = levels.sum(axis=0)
    index = (np.cumsum(pixels) - pixels) * bins // max(int(pixels.sum()), 1)
    return _sum_bins(index, levels, values, bins)


def _sum_bins(
    index: npt.NDArray[np.integer], counts: Counts, confidence: npt.NDArray[np.floating], bins: int
) -> Floats:
    if not ((confidence >= 0.0) & (confidence <= 1.0)).all():  # NaN fails both
        raise InputError("a confidence lies outside 0..1 or is NaN")
    pixels = counts.sum(axis=0)
    rows = (pixels, counts[0], pixels * confidence.astype(np.float64))
    # Of no pixel bincount makes whole numbers.
    return np.stack([np.bincount(index, row, minlength=bins) for row in rows]).astype(np.float64)


def expected_calibration_error(sums: Floats) -> float | None:
    """Return the ECE in 0..1 of equal-width bins, adaptive ECE of bins of equal mass (both ``[3, B]``); None without a pixel.

    Of equal-width bins it is torchmetrics' ``calibration_error`` (norm ``l1``), except that confidence 1 belongs to the
    last bin, as published, where torchmetrics opens a further one.
    """
    pixels, correct, confidence = sums
    total = float(pixels.sum())
    return float(np.abs(correct - confidence).sum() / total) if total else None


def _labelled_strips(
    probabilities: Probabilities, labels: npt.NDArray[np.integer], others: bool
) -> Iterator[tuple[Probabilities, npt.NDArray[np.int64]]]:
    """Return the labelled pixels of a frame, strip by strip and checked: probabilities ``[C, n]`` and class ids ``[n]``."""
    flat, ids = probabilities.reshape(len(probabilities), -1), labels.ravel()
    for start in range(0, ids.size, STRIP):
        strip = ids[start : start + STRIP]
        counted = np.flatnonzero(strip != IGNORE)
        truth = strip[counted].astype(np.int64)
        selected = flat[:, start : start + STRIP].take(counted, axis=1)
        total = selected.sum(axis=0)
        if not ((np.abs(total - 1.0) <= 1e-2) | (others & (total < 1.0))).all() or selected.min(initial=0.0) < 0.0:
            raise InputError("class probabilities are negative or do not sum to 1", hint="give the output of a softmax")
        yield selected, truth


def probability_scores(
    probabilities: Probabilities, labels: npt.NDArray[np.integer], *, others: bool = False
) -> Counts:
    """Sum the log loss and the Brier score over the labelled pixels of a frame.

    Args:
        probabilities: ``[C, ...]`` class probabilities in 0..1 that sum to 1 over the first axis.
        labels: train ids in 0..C-1, or 255 ignored; ``[...]``.
        others: there are classes beside these: sums below 1 are right, and what they lack is in neither sum.

    Returns:
        int64 ``[3]``: pixels, then in steps of 2^-18 the sum of -ln p_y in nats and the sum of sum_c (p_c - 1[y = c])^2.
        Sums of two frames add.

    Raises:
        InputError: the values are no probabilities.
    """
    pixels, loss, brier = 0, 0.0, 0.0
    for selected, truth in _labelled_strips(probabilities, labels, others):
        chosen = np.take_along_axis(selected, truth[None], axis=0)[0].astype(np.float64)
        # (1 - p_y)^2 plus the squares of the others, so that a sure and right pixel does not cancel to noise.
        squares = np.einsum("cp,cp->p", selected, selected).astype(np.float64) - np.square(chosen)
        pixels += truth.size
        loss -= float(np.log(np.maximum(chosen, SMALLEST_PROBABILITY)).sum())
        brier += float((np.square(1.0 - chosen) + np.maximum(squares, 0.0)).sum())
    return np.concatenate(([pixels], to_fixed_point([loss, brier])))


def mean_scores(sums: Counts) -> tuple[float | None, float | None]:
    """Return NLL in nats and Brier score in 0..2 of the added sums of :func:`probability_scores`; None without a pixel."""
    if not sums[0]:
        return None, None
    loss, brier = from_fixed_point(sums[1:]) / sums[0]
    return float(loss), float(brier)


def classwise_bins(
    probabilities: Probabilities, labels: npt.NDArray[np.integer], bins: int = BINS, *, others: bool = False
) -> Counts:
    """Sum the labelled pixels of a frame into equal-width bins of the probability of each class.

    Args:
        probabilities, labels, others: as of :func:`probability_scores`, which also says when they are refused.
        bins: B; bin b holds b/B <= p < (b+1)/B and the last one also p = 1.

    Returns:
        int64 ``[C, B, 3]``: pixels whose probability of the class lies in the bin, those of them labelled with the
        class, and in steps of 2^-18 the sum of their probabilities. Sums of two frames add.
    """
    classes = len(probabilities)
    inner = _inner_edges(bins, probabilities.dtype)
    first = inner[0] if bins > 1 else np.inf
    counts = np.zeros((2, classes, bins), np.int64)
    sums = np.zeros((classes, bins))
    for selected, truth in _labelled_strips(probabilities, labels, others):
        # At most B probabilities of a pixel reach 1/B, mostly one or two, so nearly all values lie in the first bin:
        # only the others are placed, and the first bin is the rest.
        high = selected >= first
        above = np.flatnonzero(high)
        values = selected.ravel()[above]
        cell = above // max(truth.size, 1) * bins + np.searchsorted(inner, values, side="right")
        placed = np.bincount(cell, minlength=classes * bins).reshape(classes, bins)
        placed_sums = np.bincount(cell, values, minlength=classes * bins).astype(np.float64).reshape(classes, bins)
        placed[:, 0] = truth.size - placed.sum(axis=1)
        placed_sums[:, 0] = np.where(high, np.float32(0), selected).sum(axis=1, dtype=np.float64)
        chosen = np.take_along_axis(selected, truth[None], axis=0)[0]
        true_cell = truth * bins + np.searchsorted(inner, chosen, side="right")
        counts += np.stack([placed, np.bincount(true_cell, minlength=classes * bins).reshape(classes, bins)])
        sums += placed_sums
    return np.stack([*counts, to_fixed_point(sums)], axis=-1)


def classwise_calibration_error(state: Counts) -> float | None:
    """Return the classwise ECE in 0..1 of the added sums ``[C, B, 3]`` of :func:`classwise_bins`, the mean over all C classes as
    published, also those that never occur; None without a pixel."""
    rows = np.stack([state[..., 0], state[..., 1], from_fixed_point(state[..., 2])], axis=1)  # [C, 3, B]
    errors = [expected_calibration_error(sums) for sums in rows]
    defined = [error for error in errors if error is not None]
    return float(np.mean(defined)) if defined else None
