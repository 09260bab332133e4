"""The ``smiyc`` protocol: ``PixBinaryClass`` of SegmentMeIfYouCan (Chan et al. 2021, arXiv 2104.14812).

As the public ``road-anomaly-benchmark`` (``metrics/pixel_classification.py`` and ``pixel_classification_curves.py``): the
float16 scores of a frame are binned between 384 quantiles of the anomalous and 384 of the normal ones (fewer where there are
fewer pixels). The bins of all frames are thrown together, and the lower edge of each is a threshold of the pooled curve;
equal thresholds are one. So the numbers are pooled ones of slightly coarser scores, and depend on which pixels share a frame.

The boards were computed with NumPy 1 (``numpy==1.23.3`` in the benchmark's requirements), and so is this:

* Quantiles of float16 are interpolated in float64 (the difference of neighbours in float16), under NumPy 2 too. Edges are
  therefore wider than float16, and no table of float16 keys can hold them.
* The outer edges, min - e and max + e with e = max(0.01 range, 0.01), are float64 under NumPy 1: the highest scores
  have a bin of their own, and the lowest bin is empty. Under NumPy 2 they are float16, and e is lost from scores of
  about 32 on, where the highest scores fall into the bin below.

The state, a sorted table of the lower edges of non-empty bins with their pixels, adds exactly, in any order. A frame brings at
most 768 edges of 24 bytes: a thousand frames of continuous scores take at most 18 MB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any

import numpy as np
import numpy.typing as npt

from segunc.maps.encoding import keys_to_half
from segunc.metrics.counting import KEYS, Counts, DetectionCurve, Floats, best_f1, fpr_at_recall, grouped_sums

QUANTILES = 384
"""Quantiles of the anomalous and of the normal scores of a frame."""

Halves = npt.NDArray[np.float16]
_ALL_KEYS = np.arange(KEYS, dtype=np.uint16)
VALUES_OF_FLOAT_KEYS: Halves = keys_to_half(_ALL_KEYS)
"""float16 ``[65536]``: the score of each key of a float map (:func:`segunc.maps.encoding.score_keys`)."""
_FINITE_KEYS = np.flatnonzero(np.isfinite(VALUES_OF_FLOAT_KEYS) & (_ALL_KEYS != 0x7FFF))  # without -0.0
_FINITE_VALUES = VALUES_OF_FLOAT_KEYS[_FINITE_KEYS].astype(np.float64)


@dataclass(frozen=True)
class SmiycBins:
    """Non-empty bins of any number of frames: their inclusive lower edges, float64 ``[E]``, rising, and their pixels, int64
    ``[2, E]``, row 0 normal, row 1 anomalous."""

    edges: Floats
    counts: Counts


def smiyc_bins(counts: Counts, values: Halves) -> SmiycBins:
    """Return the bins of one frame, from its pixels by 16-bit key, int64 ``[2, 65536]``, and the float16 score of each key, never
    falling (:data:`VALUES_OF_FLOAT_KEYS` for float maps)."""
    occupied = np.flatnonzero(counts.any(axis=0))
    if not len(occupied):
        return SmiycBins(np.zeros(0), np.zeros((2, 0), np.int64))
    rows, scores = counts[:, occupied], values[occupied]
    edges = np.unique(np.concatenate([_quantiles(row, scores) for row in rows if row.any()]))
    # The smallest edge is the smallest score, so no pixel lies below; the highest bin has no upper end.
    first = np.append(np.searchsorted(scores.astype(np.float64), edges), len(scores))
    binned = np.diff(np.pad(rows.cumsum(axis=1), ((0, 0), (1, 0)))[:, first])
    kept = binned.any(axis=0)
    return SmiycBins(edges[kept], binned[:, kept])


def merge_bins(frames: Sequence[SmiycBins]) -> SmiycBins:
    """Return the bins of one or more frames together; exact in any order and grouping."""
    edges, group = np.unique(np.concatenate([bins.edges for bins in frames]), return_inverse=True)
    every = np.concatenate([bins.counts for bins in frames], axis=1)
    return SmiycBins(edges, np.stack([grouped_sums(group, row, len(edges)) for row in every]))


def bins_by_key(bins: SmiycBins) -> Counts:
    """Return the bins in constant memory, as float16 keys of their edges: int64 ``[2, 65536]``, not exact.

    An edge between two float16 values is lowered to the smaller one, so bins of different frames that differ by less
    than the spacing of float16 become one. Good for bootstrap replicates; the numbers of a set come from the bins.
    """
    below = np.searchsorted(_FINITE_VALUES, bins.edges, side="right") - 1
    return np.stack([grouped_sums(_FINITE_KEYS[below], row, KEYS) for row in bins.counts])


def smiyc_curve(bins: SmiycBins) -> DetectionCurve:
    """Return the curve over the lower edges, from the highest down; its thresholds are scores (float64), inclusive."""
    normal, anomalous = bins.counts[:, ::-1].cumsum(axis=1)
    return DetectionCurve(bins.edges[::-1], anomalous, normal)


def smiyc_result(bins: SmiycBins) -> dict[str, float | None]:
    """Return the numbers of the protocol: ``auroc``, ``aupr``, ``fpr95``, ``best_f1`` in 0..1 and ``threshold``.

    AUPR by the step rule (the board's AP), FPR95 at the first edge, going down, with TPR >= 0.95, AUROC by the trapezoid
    over the same points; ``threshold`` is the inclusive score of best F1. Sums are correctly rounded, so they do not depend on
    how many frames share an edge; the original's differ in the last bit. All None where the curve is ``undefined``.
    """
    curve = smiyc_curve(bins)
    best, fpr = best_f1(curve), fpr_at_recall(curve)
    if best is None or fpr is None:
        return dict.fromkeys(("auroc", "aupr", "fpr95", "best_f1", "threshold"))
    recall, false_rate = (np.concatenate(([0.0], rate)) for rate in (curve.recall, curve.false_positive_rate))
    return {
        "auroc": fsum(np.diff(false_rate) * (recall[1:] + recall[:-1]) / 2.0),
        "aupr": fsum(np.diff(recall) * curve.precision),
        "fpr95": fpr,
        "best_f1": best[0],
        "threshold": float(best[1]),
    }


def _quantiles(row: npt.NDArray[np.int64], scores: Halves) -> Floats:
    """Return what ``np.quantile`` gives of the float16 scores of one class, from their histogram instead of a sort."""
    cumulated = row.cumsum()
    number = int(cumulated[-1])
    position = (number - 1) * np.linspace(0.0, 1.0, min(QUANTILES, number))
    below = np.floor(position).astype(np.int64)
    weight = position - below
    lower, upper = (
        scores[np.searchsorted(cumulated, place, side="right")] for place in (below, np.minimum(below + 1, number - 1))
    )
    start, end = lower.astype(np.float64), upper.astype(np.float64)
    with np.errstate(over="ignore"):
        step: npt.NDArray[Any] = (upper - lower).astype(np.float64)  # rounded to float16, as in the original
    step = np.where(np.isfinite(step), step, end - start)  # the original's edges are infinite here
    # From the nearer end, as NumPy interpolates: the other way rounds differently.
    return np.where(weight < 0.5, start + step * weight, end - step * (1.0 - weight))
