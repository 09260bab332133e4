"""The benchmark SegmentMeIfYouCan (Chan et al. 2021, arXiv 2104.14812): its pixel protocol and its
component metric.

**The protocol** ``smiyc``, ``PixBinaryClass`` of the public ``road-anomaly-benchmark``: the scores
of a frame are binned between 384 quantiles of the anomalous and 384 of the normal ones (fewer where
there are fewer pixels). The bins of all frames are thrown together, and the lower edge of each is a
threshold of the pooled curve; equal thresholds are one. So the numbers are pooled ones of slightly
coarser scores, and depend on which pixels share a frame. The benchmark bins the values that a file
holds; only its writer rounds them to float16. So floats that float16 would round are taken as they
are, and this tool's own codes as float16, which that writer stores. The boards were computed with
NumPy 1, and so is this:

* Quantiles of float16 are interpolated in float64 (the difference of neighbours in float16), under
  NumPy 2 too. Edges are therefore wider than float16, and no table of float16 keys can hold them.
* The outer edges, min - e and max + e with e = max(0.01 range, 0.01), are float64 under NumPy 1:
  the highest scores have a bin of their own, and the lowest bin is empty.

**Components**, ``SegEval``: truth and thresholded score are cut into 8-connected components and
compared.

* sIoU_gt(k) = |k & K| / (|k or K| - |A|) of a truth component k; K is the union of the predicted
  components that touch k, A those pixels of K that lie on other truth components, which k is not to
  blame for.
* PPV(p) = |p & truth| / |p| of a predicted component p.
* For tau in 0.25, 0.30, ..., 0.75: TP are truth components with sIoU_gt >= tau, FN the other ones,
  FP the predicted components with PPV < tau; F1 = 2 TP / (2 TP + FN + FP).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.data.labels import IGNORE
from segunc.maps.encoding import keys_to_half
from segunc.metrics import counting
from segunc.metrics.counting import (
    KEYS,
    Counts,
    DetectionCurve,
    Floats,
    ScoreBins,
    Scores,
    grouped_sums,
    to_fixed_point,
)

QUANTILES = 384  # of the anomalous and of the normal scores of a frame

Halves = npt.NDArray[np.float16]
_ALL_KEYS = np.arange(KEYS, dtype=np.uint16)
VALUES_OF_FLOAT_KEYS: Halves = keys_to_half(_ALL_KEYS)
"""float16 ``[65536]``: the score of each key of a float map
(:func:`segunc.maps.encoding.score_keys`).
"""
_FINITE_KEYS = np.flatnonzero(
    np.isfinite(VALUES_OF_FLOAT_KEYS) & (_ALL_KEYS != 0x7FFF)
)  # without -0.0
_FINITE_VALUES = VALUES_OF_FLOAT_KEYS[_FINITE_KEYS].astype(np.float64)
TAUS = np.linspace(0.25, 0.75, 11)  # thresholds on sIoU_gt and PPV, as the benchmark makes them
UNDEFINED = {
    "siou_gt": "no labelled component is large enough",
    "ppv": "no predicted component is large enough",
    **dict.fromkeys(("mean_f1", "f1"), "there is neither a labelled nor a predicted component"),
}
"""Why a number of :func:`component_result` is None."""

_TP, _FN, _FP = (slice(11 * place, 11 * place + 11) for place in range(3))
_TRUTH, _PREDICTED, _SIOU, _PPV = range(33, 37)


@dataclass(frozen=True)
class SmiycBins:
    """Non-empty bins of any number of frames: their inclusive lower edges, float64 ``[E]``, rising,
    and their pixels, int64 ``[2, E]``, row 0 normal, row 1 anomalous.
    """

    edges: Floats
    counts: Counts


def counts_by_score(scores: Scores, anomaly: npt.NDArray[np.uint8]) -> tuple[Counts, Scores]:
    """Return the pixels of one frame by score, int64 ``[2, U]``, and its U scores, rising, in the
    type that the file holds."""
    counted = anomaly != IGNORE
    values, places = np.unique(scores[counted], return_inverse=True)
    labels = anomaly[counted]
    rows = [np.bincount(places[labels == label], minlength=len(values)) for label in (0, 1)]
    return np.stack(rows).astype(np.int64), values


def smiyc_bins(counts: Counts, values: Scores) -> SmiycBins:
    """Return the bins of one frame, from its pixels by key, int64 ``[2, K]``, and the score of each
    key ``[K]``, never falling: :data:`VALUES_OF_FLOAT_KEYS` for maps that float16 holds,
    :func:`counts_by_score` for others."""
    occupied = np.flatnonzero(counts.any(axis=0))
    if not len(occupied):
        return SmiycBins(np.zeros(0), np.zeros((2, 0), np.int64))
    rows, scores = counts[:, occupied], values[occupied]
    edges = np.unique(np.concatenate([_quantiles(row, scores) for row in rows if row.any()]))
    # The smallest edge is the smallest score, so no pixel lies below; the highest bin has no upper
    # end.
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
    """Return the bins in constant memory, for bootstrap replicates, as float16 keys of their edges:
    int64 ``[2, 65536]``, not exact, for an edge between two float16 values is lowered to the
    smaller one.
    """
    below = np.searchsorted(_FINITE_VALUES, bins.edges, side="right") - 1
    return np.stack([grouped_sums(_FINITE_KEYS[below], row, KEYS) for row in bins.counts])


def bins_by_score(bins: SmiycBins, of_score: ScoreBins) -> Counts:
    """Return the bins in constant memory as :func:`bins_by_key` does, by the bins of a score that
    16 bits cannot hold: int64 ``[2, K]``."""
    places = of_score.keys(bins.edges)
    return np.stack([grouped_sums(places, row, of_score.size) for row in bins.counts])


def smiyc_curve(bins: SmiycBins) -> DetectionCurve:
    """Return the curve over the lower edges, from the highest down; its thresholds are scores
    (float64), inclusive.
    """
    normal, anomalous = bins.counts[:, ::-1].cumsum(axis=1)
    return DetectionCurve(bins.edges[::-1], anomalous, normal)


def smiyc_result(bins: SmiycBins) -> dict[str, float | None]:
    """Return the numbers of the protocol: ``auroc``, ``aupr``, ``fpr95``, ``best_f1`` in 0..1 and
    ``threshold``, the inclusive score of best F1; all None where the curve is ``undefined``. Sums
    are correctly rounded; the original's differ in the last bit.
    """
    curve = smiyc_curve(bins)
    best, fpr = counting.best_f1(curve), counting.fpr_at_recall(curve)
    if best is None or fpr is None:
        return dict.fromkeys(("auroc", "aupr", "fpr95", "best_f1", "threshold"))
    recall, false_rate = (
        np.concatenate(([0.0], rate)) for rate in (curve.recall, curve.false_positive_rate)
    )
    return {
        "auroc": fsum(np.diff(false_rate) * (recall[1:] + recall[:-1]) / 2.0),
        "aupr": fsum(np.diff(recall) * curve.precision),
        "fpr95": fpr,
        "best_f1": best[0],
        "threshold": float(best[1]),
    }


def _quantiles(row: npt.NDArray[np.int64], scores: Scores) -> Floats:
    """Return what ``np.quantile`` gives of the scores of one class, from their histogram instead of
    a sort."""
    cumulated = row.cumsum()
    number = int(cumulated[-1])
    position = (number - 1) * np.linspace(0.0, 1.0, min(QUANTILES, number))
    below = np.floor(position).astype(np.int64)
    weight = position - below
    lower, upper = (
        scores[np.searchsorted(cumulated, place, side="right")]
        for place in (below, np.minimum(below + 1, number - 1))
    )
    start, end = lower.astype(np.float64), upper.astype(np.float64)
    with np.errstate(over="ignore"):
        step: npt.NDArray[Any] = (upper - lower).astype(
            np.float64
        )  # rounded to the type of the scores, as in the original
    step = np.where(np.isfinite(step), step, end - start)  # the original's edges are infinite here
    # From the nearer end, as NumPy interpolates: the other way rounds differently.
    return np.where(weight < 0.5, start + step * weight, end - step * (1.0 - weight))


@dataclass(frozen=True)
class Track:
    """Least pixels of what counts: smaller predicted components are dropped, smaller truth
    components ignored with what is predicted on them.
    """

    smallest_predicted: int
    smallest_truth: int


TRACKS = {"smiyc-anomaly": Track(500, 100), "smiyc-obstacle": Track(50, 10)}


def component_counts(
    scores: npt.NDArray[np.floating], anomaly: npt.NDArray[np.uint8], threshold: float, track: str
) -> Counts:
    """Count the components of one frame of ``scores`` ``[H, W]`` and ``anomaly`` uint8, 255
    ignored. As in the benchmark, a pixel is predicted where score > threshold, compared in the type
    of the scores (the threshold is rounded to nearest), although that of the ``smiyc`` pixel
    protocol is an inclusive lower edge.

    Return int64 ``[37]``: TP, FN and FP at each of the 11 :data:`TAUS`; truth components, predicted
    components; steps of 2^-40 of the summed sIoU_gt and of the summed PPV.
    """
    counted = anomaly != IGNORE
    if (np.isnan(scores) & counted).any():
        raise InputError(
            "a score map holds NaN",
            hint="repair the map, or mark such pixels as ignored in the labels",
        )
    predicted = (scores > scores.dtype.type(threshold)) & counted
    return match_components(predicted, anomaly == 1, TRACKS[track])


def match_components(
    predicted: npt.NDArray[np.bool_], truth: npt.NDArray[np.bool_], track: Track
) -> Counts:
    """Compare the components of two masks ``[H, W]``, in which ignored pixels are False, as
    :func:`component_counts` does.
    """
    truth_label, truth_size = _components(truth)
    predicted_label, predicted_size = _components(predicted)
    # Sizes of predicted components are those before small truth components are cut out of them.
    kept = predicted_size >= track.smallest_predicted
    kept[0] = False
    void = (
        truth_size < track.smallest_truth
    )  # with the background, as in the original, where it is that small
    pixels = np.flatnonzero(kept.take(predicted_label) & ~void.take(truth_label))
    size = np.bincount(predicted_label[pixels], minlength=len(kept))
    truth_there = truth_label[pixels]
    on_truth = truth_there > 0
    pair, shared = np.unique(
        truth_there[on_truth].astype(np.int64) * len(kept) + predicted_label[pixels[on_truth]],
        return_counts=True,
    )
    truth_of_pair, predicted_of_pair = np.divmod(pair, len(kept))
    on_any_truth = grouped_sums(predicted_of_pair, shared, len(kept))

    # Summed over the predicted components that touch each truth component:
    intersection = grouped_sums(truth_of_pair, shared, len(void))
    area = grouped_sums(truth_of_pair, size[predicted_of_pair], len(void))
    on_others = grouped_sums(truth_of_pair, on_any_truth[predicted_of_pair] - shared, len(void))
    scored = ~void
    scored[0] = False
    siou = intersection[scored] / (truth_size + area - intersection - on_others)[scored]
    present = size > 0
    ppv = on_any_truth[present] / size[present]
    counts = np.zeros(37, np.int64)
    reached = (siou[:, None] >= TAUS).sum(axis=0)
    counts[_TP], counts[_FN] = reached, len(siou) - reached
    counts[_FP] = (ppv[:, None] < TAUS).sum(axis=0)
    counts[_TRUTH], counts[_PREDICTED] = len(siou), len(ppv)
    counts[_SIOU], counts[_PPV] = (
        to_fixed_point(part, counting.STEPS_PER_FRACTION).sum() for part in (siou, ppv)
    )
    return counts


def component_result(counts: Counts) -> dict[str, Any]:
    """Return the numbers of a set of frames, in 0..1; None where no component makes one
    (:data:`UNDEFINED`). ``siou_gt`` and ``ppv`` are means over all components, ``mean_f1`` is over
    :data:`TAUS`, ``f1`` by tau (``"0.25"``, ...).
    """
    hits, missed, false = (counts[part].astype(np.float64) for part in (_TP, _FN, _FP))
    f1: dict[str, float | None] = dict.fromkeys(map("{:.2f}".format, TAUS))
    mean = None
    if counts[_TRUTH] + counts[_PREDICTED] > 0:
        # Every tau has a truth component (TP or FN) or, without any, predicted ones with PPV 0,
        # which are all FP.
        scores = 2.0 * hits / (2.0 * hits + missed + false)
        f1 = dict(zip(f1, scores.tolist(), strict=True))
        mean = float(scores.sum() / len(TAUS))
    return {
        "siou_gt": counting.mean_of_fractions(counts[_SIOU], counts[_TRUTH]),
        "ppv": counting.mean_of_fractions(counts[_PPV], counts[_PREDICTED]),
        "mean_f1": mean,
        "f1": f1,
    }


def _components(mask: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Return flat 8-connected component numbers (0 outside) ``[H * W]`` and the pixels of each,
    from number 0 on.
    """
    _, labels, statistics, _ = cv2.connectedComponentsWithStats(
        np.ascontiguousarray(mask).view(np.uint8), connectivity=8
    )
    return np.asarray(labels, np.int32).ravel(), statistics[:, cv2.CC_STAT_AREA].astype(np.int64)
