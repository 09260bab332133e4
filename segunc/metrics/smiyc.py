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
_NEGATIVE_ZERO = 0x7FFF  # its key
_FINITE_KEYS = np.flatnonzero(np.isfinite(VALUES_OF_FLOAT_KEYS) & (_ALL_KEYS != _NEGATIVE_ZERO))
_FINITE_VALUES = VALUES_OF_FLOAT_KEYS[_FINITE_KEYS].astype(np.float64)
TAUS = np.linspace(0.25, 0.75, 11)  # thresholds on sIoU_gt and PPV, as the benchmark makes them
UNDEFINED = {
    "siou_gt": "no labelled component is large enough",
    "ppv": "no predicted component is large enough",
    "mean_f1": "there is neither a labelled nor a predicted component",
    "f1": "there is neither a labelled nor a predicted component",
}
"""Why a number of :func:`component_result` is None."""

# Places in the counts of components.
_TP = slice(0, 11)  # by tau
_FN = slice(11, 22)  # by tau
_FP = slice(22, 33)  # by tau
_TRUTH = 33
_PREDICTED = 34
_SIOU = 35
_PPV = 36
COMPONENT_COUNTS = 37


@dataclass(frozen=True)
class SmiycBins:
    """Non-empty bins of any number of frames.

    Attributes:
        edges: their inclusive lower edges, float64 ``[E]``, rising.
        counts: their pixels, int64 ``[2, E]``, row 0 normal, row 1 anomalous.
    """

    edges: Floats
    counts: Counts


def counts_by_score(scores: Scores, anomaly: npt.NDArray[np.uint8]) -> tuple[Counts, Scores]:
    """Return the pixels of one frame by score, int64 ``[2, U]``, and its U scores, rising.

    Scores keep the type that the file holds.
    """
    counted = anomaly != IGNORE
    values, score_numbers = np.unique(scores[counted], return_inverse=True)
    labels = anomaly[counted]
    rows = [np.bincount(score_numbers[labels == label], minlength=len(values)) for label in (0, 1)]
    return np.stack(rows).astype(np.int64), values


def smiyc_bins(counts: Counts, values: Scores) -> SmiycBins:
    """Return the bins of one frame.

    Args:
        counts: its pixels by key, int64 ``[2, K]``.
        values: the score of each key ``[K]``, never falling: :data:`VALUES_OF_FLOAT_KEYS` for maps
            that float16 holds, :func:`counts_by_score` for others.
    """
    occupied = np.flatnonzero(counts.any(axis=0))
    if not len(occupied):
        return SmiycBins(np.zeros(0), np.zeros((2, 0), np.int64))
    rows = counts[:, occupied]
    scores = values[occupied]
    edges = np.unique(np.concatenate([_quantiles(row, scores) for row in rows if row.any()]))
    # The smallest edge is the smallest score, so no pixel lies below; the highest bin has no upper
    # end.
    first_score = np.searchsorted(scores.astype(np.float64), edges)
    bin_ends = np.append(first_score, len(scores))
    pixels_before = np.pad(rows.cumsum(axis=1), ((0, 0), (1, 0)))
    binned = np.diff(pixels_before[:, bin_ends])
    kept = binned.any(axis=0)
    return SmiycBins(edges[kept], binned[:, kept])


def merge_bins(frames: Sequence[SmiycBins]) -> SmiycBins:
    """Return the bins of one or more frames together; exact in any order and grouping."""
    edges, group = np.unique(np.concatenate([bins.edges for bins in frames]), return_inverse=True)
    every = np.concatenate([bins.counts for bins in frames], axis=1)
    return SmiycBins(edges, np.stack([grouped_sums(group, row, len(edges)) for row in every]))


def bins_by_key(bins: SmiycBins) -> Counts:
    """Return the bins in constant memory, for bootstrap replicates, int64 ``[2, 65536]``.

    They are counted by the float16 key of their edge. This is not exact: an edge between two
    float16 values is lowered to the smaller one.
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
    """Return the numbers of the protocol; all None where the curve is ``undefined``.

    They are ``auroc``, ``aupr``, ``fpr95``, ``best_f1`` in 0..1 and ``threshold``, the inclusive
    score of best F1. Sums are correctly rounded; the original's differ in the last bit.
    """
    curve = smiyc_curve(bins)
    best = counting.best_f1(curve)
    fpr = counting.fpr_at_recall(curve)
    if best is None or fpr is None:
        return dict.fromkeys(("auroc", "aupr", "fpr95", "best_f1", "threshold"))
    largest_f1, threshold = best
    recall = np.concatenate(([0.0], curve.recall))
    false_rate = np.concatenate(([0.0], curve.false_positive_rate))
    return {
        "auroc": fsum(np.diff(false_rate) * (recall[1:] + recall[:-1]) / 2.0),
        "aupr": fsum(np.diff(recall) * curve.precision),
        "fpr95": fpr,
        "best_f1": largest_f1,
        "threshold": float(threshold),
    }


def _quantiles(row: npt.NDArray[np.int64], scores: Scores) -> Floats:
    """Return what ``np.quantile`` gives of the scores of one class, from their histogram."""
    cumulated = row.cumsum()
    number = int(cumulated[-1])
    position = (number - 1) * np.linspace(0.0, 1.0, min(QUANTILES, number))
    below = np.floor(position).astype(np.int64)
    weight = position - below
    above = np.minimum(below + 1, number - 1)
    lower = scores[np.searchsorted(cumulated, below, side="right")]
    upper = scores[np.searchsorted(cumulated, above, side="right")]
    start = lower.astype(np.float64)
    end = upper.astype(np.float64)
    with np.errstate(over="ignore"):
        # Rounded to the type of the scores, as in the original.
        step: npt.NDArray[Any] = (upper - lower).astype(np.float64)
    step = np.where(np.isfinite(step), step, end - start)  # the original's edges are infinite here
    # From the nearer end, as NumPy interpolates: the other way rounds differently.
    return np.where(weight < 0.5, start + step * weight, end - step * (1.0 - weight))


@dataclass(frozen=True)
class Track:
    """The fewest pixels of components that count.

    Smaller predicted components are dropped. Smaller truth components are ignored, with what is
    predicted on them.
    """

    smallest_predicted: int
    smallest_truth: int


TRACKS = {
    "smiyc-anomaly": Track(smallest_predicted=500, smallest_truth=100),
    "smiyc-obstacle": Track(smallest_predicted=50, smallest_truth=10),
}


def component_counts(
    scores: npt.NDArray[np.floating], anomaly: npt.NDArray[np.uint8], threshold: float, track: str
) -> Counts:
    """Count the components of one frame of ``scores`` ``[H, W]`` and ``anomaly`` uint8.

    Pixels of anomaly 255 are ignored. As in the benchmark, a pixel is predicted where
    score > threshold, compared in the type of the scores (the threshold is rounded to nearest),
    although that of the ``smiyc`` pixel protocol is an inclusive lower edge.

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
    """Compare the components of two masks ``[H, W]``, as :func:`component_counts` does.

    Ignored pixels are False in both masks.
    """
    truth_label, truth_size = _components(truth)
    predicted_label, predicted_size = _components(predicted)
    # Sizes of predicted components are those before small truth components are cut out of them.
    kept = predicted_size >= track.smallest_predicted
    kept[0] = False
    # With the background, as in the original, where it is that small.
    void = truth_size < track.smallest_truth
    pixels = np.flatnonzero(kept.take(predicted_label) & ~void.take(truth_label))
    overlaps = _Overlaps.of(truth_label[pixels], predicted_label[pixels], len(kept))
    scored = ~void
    scored[0] = False
    return _counts_of_components(overlaps.siou(truth_size, scored), overlaps.ppv())


@dataclass(frozen=True)
class _Overlaps:
    """How predicted components (of P numbers) lie on truth components, in Q pairs that touch.

    Attributes:
        size: pixels of each predicted component, ``[P]``.
        truth: number of the truth component of each pair, ``[Q]``.
        predicted: number of the predicted component of each pair, ``[Q]``.
        shared: pixels of each pair, ``[Q]``.
        on_any_truth: pixels of each predicted component on truth, ``[P]``.
    """

    size: npt.NDArray[np.int64]
    truth: npt.NDArray[np.int64]
    predicted: npt.NDArray[np.int64]
    shared: npt.NDArray[np.int64]
    on_any_truth: npt.NDArray[np.int64]

    @classmethod
    def of(
        cls, truth: npt.NDArray[np.int32], predicted: npt.NDArray[np.int32], numbers: int
    ) -> _Overlaps:
        """Find the pairs of the component numbers of pixels, ``[n]`` each; truth 0 is none."""
        on_truth = truth > 0
        pair_of_pixel = truth[on_truth].astype(np.int64) * numbers + predicted[on_truth]
        pairs, shared = np.unique(pair_of_pixel, return_counts=True)
        truth_of_pair, predicted_of_pair = np.divmod(pairs, numbers)
        return cls(
            size=np.bincount(predicted, minlength=numbers),
            truth=truth_of_pair,
            predicted=predicted_of_pair,
            shared=shared,
            on_any_truth=grouped_sums(predicted_of_pair, shared, numbers),
        )

    def siou(self, truth_size: npt.NDArray[np.int64], scored: npt.NDArray[np.bool_]) -> Floats:
        """Return sIoU_gt of the ``scored`` ones of K truth components, of their sizes ``[K]``."""
        numbers = len(truth_size)
        # Summed over the predicted components that touch each truth component:
        intersection = grouped_sums(self.truth, self.shared, numbers)
        area = grouped_sums(self.truth, self.size[self.predicted], numbers)
        elsewhere = self.on_any_truth[self.predicted] - self.shared
        on_others = grouped_sums(self.truth, elsewhere, numbers)
        whole = truth_size + area - intersection - on_others
        return np.asarray(intersection[scored] / whole[scored])

    def ppv(self) -> Floats:
        """Return PPV of each predicted component that has a pixel."""
        present = self.size > 0
        return np.asarray(self.on_any_truth[present] / self.size[present])


def _counts_of_components(siou: Floats, ppv: Floats) -> Counts:
    """Return the counts of :func:`component_counts` of truth and of predicted components."""
    counts = np.zeros(COMPONENT_COUNTS, np.int64)
    reached = (siou[:, None] >= TAUS).sum(axis=0)
    counts[_TP] = reached
    counts[_FN] = len(siou) - reached
    counts[_FP] = (ppv[:, None] < TAUS).sum(axis=0)
    counts[_TRUTH] = len(siou)
    counts[_PREDICTED] = len(ppv)
    counts[_SIOU] = to_fixed_point(siou, counting.STEPS_PER_FRACTION).sum()
    counts[_PPV] = to_fixed_point(ppv, counting.STEPS_PER_FRACTION).sum()
    return counts


def component_result(counts: Counts) -> dict[str, Any]:
    """Return the numbers of a set of frames, in 0..1; None where no component makes one.

    ``siou_gt`` and ``ppv`` are means over all components, ``mean_f1`` is over :data:`TAUS`, ``f1``
    by tau (``"0.25"``, ...). :data:`UNDEFINED` says why a number is None.
    """
    hits = counts[_TP].astype(np.float64)
    missed = counts[_FN].astype(np.float64)
    false = counts[_FP].astype(np.float64)
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
    """Return the number of the 8-connected component of each pixel, and the pixels of each number.

    Numbers are flat, ``[H * W]``, and 0 outside of components.
    """
    _, labels, statistics, _ = cv2.connectedComponentsWithStats(
        np.ascontiguousarray(mask).view(np.uint8), connectivity=8
    )
    sizes = statistics[:, cv2.CC_STAT_AREA].astype(np.int64)
    return np.asarray(labels, np.int32).ravel(), sizes
