"""What needs the probabilities of all classes: NLL, Brier score and classwise ECE, from sums that merge by addition.

NLL in nats. Brier: mean over pixels of sum_c (p_c - 1[y = c])^2, so 0..2. Classwise ECE: Kull et al. 2019 (arXiv
1910.12656): for each class, the ECE of its probability against whether it is the class; the mean over all classes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from segunc.data.labels import IGNORE
from segunc.errors import InputError
from segunc.metrics.calibration import BINS, bin_edges, expected_calibration_error
from segunc.metrics.fixed_point import from_fixed_point, to_fixed_point

SMALLEST_PROBABILITY = float(np.finfo(np.float32).tiny)
"""Probabilities are raised to this before the logarithm (an NLL of 87.3 nats), so that one underflow is not infinite."""
STRIP = 1 << 16
"""Pixels that are worked on at a time, so that the memory does not grow with the frame."""

Floats = npt.NDArray[np.float32]
Sums = npt.NDArray[np.int64]


def labelled_strips(
    probabilities: Floats, labels: npt.NDArray[np.integer], ignore: int
) -> Iterator[tuple[Floats, npt.NDArray[np.int64]]]:
    """The labelled pixels of a frame, strip by strip: probabilities ``[C, n]`` and class ids ``[n]``.

    Raises:
        InputError: the shapes differ, an id is no class, or the values are no probabilities.
    """
    if probabilities.shape[1:] != labels.shape:
        raise InputError(
            f"probabilities of shape {probabilities.shape} and labels of shape {labels.shape}",
            "[C, H, W] and [H, W]",
        )
    flat, ids = probabilities.reshape(len(probabilities), -1), labels.ravel()
    for start in range(0, ids.size, STRIP):
        strip = ids[start : start + STRIP]
        counted = np.flatnonzero(strip != ignore)
        truth = strip[counted].astype(np.int64)
        if truth.size and (truth.min() < 0 or truth.max() >= len(flat)):
            raise InputError(f"labels holds the class id {truth.max()}", f"ids in 0..{len(flat) - 1}")
        selected = flat[:, start : start + STRIP].take(counted, axis=1)
        if not (np.abs(selected.sum(axis=0) - 1.0) <= 1e-2).all() or selected.min(initial=0.0) < 0.0:
            raise InputError("class probabilities are negative or do not sum to 1", "the output of a softmax")
        yield selected, truth


def probability_scores(probabilities: Floats, labels: npt.NDArray[np.integer], ignore: int = IGNORE) -> Sums:
    """Sum the log loss and the Brier score over the labelled pixels of a frame.

    Args:
        probabilities: ``[C, ...]`` class probabilities in 0..1 that sum to 1 over the first axis.
        labels: train ids in 0..C-1, or ``ignore``; ``[...]``.
        ignore: the label of pixels that are not counted.

    Returns:
        int64 ``[3]``: pixels, then in :mod:`segunc.metrics.fixed_point` the sum of -ln p_y in nats and the sum of
        sum_c (p_c - 1[y = c])^2. Sums of two frames add.

    Raises:
        InputError: the shapes differ, an id is no class, or the values are no probabilities.
    """
    pixels, loss, brier = 0, 0.0, 0.0
    for selected, truth in labelled_strips(probabilities, labels, ignore):
        chosen = np.take_along_axis(selected, truth[None], axis=0)[0].astype(np.float64)
        # (1 - p_y)^2 plus the squares of the others, so that a sure and right pixel does not cancel to noise.
        squares = np.einsum("cp,cp->p", selected, selected).astype(np.float64) - np.square(chosen)
        pixels += truth.size
        loss -= float(np.log(np.maximum(chosen, SMALLEST_PROBABILITY)).sum())
        brier += float((np.square(1.0 - chosen) + np.maximum(squares, 0.0)).sum())
    return np.concatenate(([pixels], to_fixed_point([loss, brier])))


def mean_scores(sums: Sums) -> tuple[float | None, float | None]:
    """NLL in nats and Brier score in 0..2 of the added sums of :func:`probability_scores`; None without a pixel."""
    if not sums[0]:
        return None, None
    loss, brier = from_fixed_point(sums[1:]) / sums[0]
    return float(loss), float(brier)


def classwise_bins(
    probabilities: Floats, labels: npt.NDArray[np.integer], bins: int = BINS, ignore: int = IGNORE
) -> Sums:
    """Sum the labelled pixels of a frame into equal-width bins of the probability of each class.

    Args:
        probabilities: ``[C, ...]`` class probabilities in 0..1 that sum to 1 over the first axis.
        labels: train ids in 0..C-1, or ``ignore``; ``[...]``.
        bins: B; bin b holds b/B <= p < (b+1)/B and the last one also p = 1.
        ignore: the label of pixels that are not counted.

    Returns:
        int64 ``[C, B, 3]``: pixels whose probability of the class lies in the bin, those of them labelled with the
        class, and in :mod:`segunc.metrics.fixed_point` the sum of their probabilities. Sums of two frames add.

    Raises:
        InputError: the shapes differ, an id is no class, or the values are no probabilities.
    """
    classes = len(probabilities)
    inner = bin_edges(bins, probabilities.dtype)[1:-1]
    first = inner[0] if bins > 1 else np.inf
    counts = np.zeros((2, classes, bins), np.int64)
    sums = np.zeros((classes, bins))
    for selected, truth in labelled_strips(probabilities, labels, ignore):
        # At most B probabilities of a pixel reach 1/B, mostly one or two, so nearly all values lie in the first bin:
        # only the others are placed, and the first bin is the rest.
        high = selected >= first
        above = np.flatnonzero(high)
        values = selected.ravel()[above]
        cell = above // max(truth.size, 1) * bins + np.searchsorted(inner, values, side="right")
        placed = np.bincount(cell, minlength=classes * bins).reshape(classes, bins)
        placed_sums = np.zeros((classes, bins))
        placed_sums.ravel()[:] = np.bincount(cell, values, minlength=classes * bins)  # whole numbers where it is empty
        placed[:, 0] = truth.size - placed.sum(axis=1)
        placed_sums[:, 0] = np.where(high, np.float32(0), selected).sum(axis=1, dtype=np.float64)
        chosen = np.take_along_axis(selected, truth[None], axis=0)[0]
        own = truth * bins + np.searchsorted(inner, chosen, side="right")
        counts += np.stack([placed, np.bincount(own, minlength=classes * bins).reshape(classes, bins)])
        sums += placed_sums
    return np.stack([*counts, to_fixed_point(sums)], axis=-1)


def classwise_calibration_error(state: Sums) -> float | None:
    """Classwise ECE in 0..1 of the added sums ``[C, B, 3]`` of :func:`classwise_bins`; None without a pixel.

    The mean is over all C classes as published, those that never occur included.
    """
    rows = np.stack([state[..., 0], state[..., 1], from_fixed_point(state[..., 2])], axis=1)  # [C, 3, B]
    errors = [expected_calibration_error(sums) for sums in rows]
    known = [error for error in errors if error is not None]
    return float(np.mean(known)) if known else None
