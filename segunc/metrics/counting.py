"""Counts per 16-bit key, and the exact curves and histograms that they give.

A real that a frame contributes is made in float64 and rounded once to a multiple of a power of two; everything after
that is integer addition, which is exact in any order. Two steps serve two kinds of numbers:

* sums over the pixels of a frame, in steps of 2^-18: the rounding moves the sum of a frame by at most 2^-19 = 1.9e-6 of
  a pixel. The largest is a log loss of 87.4 nats a pixel: 10^5 frames of 2^21 pixels reach at most 4.8e18, below the
  9.2e18 of int64;
* fractions of 1 (the AUROC of an image, the sIoU of a component), in steps of 2^-40, about 1e-12: 64 bits hold the sum
  of 8 million ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.data.labels import IGNORE

STEPS_PER_UNIT = 1 << 18
"""A stored sum over pixels of 1.0 is this number."""
STEPS_PER_FRACTION = 1 << 40
"""A stored fraction of 1.0 is this number."""


def to_fixed_point(values: npt.ArrayLike, steps: int = STEPS_PER_UNIT) -> npt.NDArray[np.int64]:
    """The int64 form of float64 values, rounded to nearest; any shape."""
    # Scaling by a power of two is exact; only the rounding loses anything.
    return np.rint(np.asarray(values, np.float64) * steps).astype(np.int64)


def from_fixed_point(stored: npt.NDArray[np.int64], steps: int = STEPS_PER_UNIT) -> npt.NDArray[np.float64]:
    """The float64 values of stored ones, any shape."""
    return stored / steps


def mean_of_fractions(stored: int, number: int) -> float | None:
    """Mean of ``number`` fractions whose stored forms sum to ``stored``; None of no fraction."""
    return int(stored) / (int(number) * STEPS_PER_FRACTION) if number else None


# Exact detection curves from counts by 16-bit key, in constant memory.
#
# A score map is turned into order-preserving 16-bit keys (:func:`segunc.maps.encoding.score_keys`) and counted into two
# rows of 65,536 bins, one for normal and one for anomalous pixels. The rows hold everything that the pooled curve of the
# stored scores needs, whatever the number of pixels, and counts of frames, shards and machines merge by addition.
#
# The protocol here is ``pooled``: all pixels of the set in one pool, equal scores are one threshold, a pixel is called
# anomalous where its score is at or above the threshold.

KEYS = 65536
"""Number of 16-bit keys."""
NO_ANOMALY = "no pixel is labelled as an anomaly"
NO_NORMAL = "no pixel is labelled as normal"

Counts = npt.NDArray[np.int64]
"""int64 ``[2, K]``: pixels by key; row 0 normal, row 1 anomalous. K is 65,536 unless another number is said."""

_STRIP = 1 << 18
_ROW_OF_LABEL = np.minimum(np.arange(256), 1)


def empty_counts() -> Counts:
    """Counts of no pixel."""
    return np.zeros((2, KEYS), np.int64)


def count_rows(
    labels: npt.NDArray[np.uint8], values: npt.NDArray[np.unsignedinteger], row: npt.NDArray[np.int64], width: int
) -> npt.NDArray[np.int64]:
    """Histogram of ``values`` in the row that a table gives to each label.

    Pixels are read in strips that stay in the processor's cache, so memory does not depend on their number.

    Args:
        labels: uint8, any shape.
        values: unsigned integers below ``width``, the same shape.
        row: ``[256]`` row of each label.
        width: number of values.

    Returns:
        int64 ``[rows, width]``.
    """
    bins = (int(row.max()) + 1) * width
    offset = row * width
    flat_labels, flat_values = labels.ravel(), values.ravel()
    strip = max(_STRIP, 2 * bins)  # of the order of the histogram at least, which is added once for each strip

    def count_strip(start: int) -> npt.NDArray[np.int64]:
        index = offset.take(flat_labels[start : start + strip])
        index += flat_values[start : start + strip]
        return np.bincount(index, minlength=bins).astype(np.int64, copy=False)

    total = count_strip(0)
    for start in range(strip, len(flat_labels), strip):
        total += count_strip(start)
    return total.reshape(-1, width)


def count_keys(
    keys: npt.NDArray[np.unsignedinteger], anomaly: npt.NDArray[np.generic], number_of_keys: int = KEYS
) -> Counts:
    """Count pixels by key and by label.

    Args:
        keys: uint16 keys, or uint32 keys below ``number_of_keys``; any shape.
        anomaly: the same shape; 0 normal, 1 anomaly (bool or any integer type). Ignored pixels are dropped before.
        number_of_keys: K.

    Returns:
        int64 ``[2, K]``; row 0 normal, row 1 anomalous.

    Raises:
        InputError: the shapes differ, keys are of another type or too large, or a label is neither 0 nor 1.
    """
    if keys.shape != anomaly.shape:
        raise InputError(f"keys of shape {keys.shape} and labels of shape {anomaly.shape}", "one label for each key")
    if keys.dtype != (np.uint16 if number_of_keys == KEYS else np.uint32):
        raise InputError(
            f"keys of type {keys.dtype} for {number_of_keys} keys",
            "uint16 keys for 65536, uint32 keys for any other number",
            "make them with segunc.maps.encoding.score_keys or segunc.metrics.wide_keys.wide_keys",
        )
    if keys.size == 0:
        return np.zeros((2, number_of_keys), np.int64)
    if keys.max() >= number_of_keys:
        raise InputError(f"the key {keys.max()}", f"keys below {number_of_keys}")
    if anomaly.min() < 0 or anomaly.max() > 1:
        raise InputError(
            f"anomaly labels in {anomaly.min()}..{anomaly.max()}", "0 or 1", "drop ignored pixels before counting"
        )
    return count_rows(anomaly.astype(np.uint8), keys, _ROW_OF_LABEL, number_of_keys)


@dataclass(frozen=True)
class DetectionCurve:
    """Cumulated counts at each distinct score, from the highest score down.

    Attributes:
        thresholds: ``[T]`` the distinct scores, descending, as keys or as values. A pixel at or above a threshold is
            called anomalous.
        true_positives: int64 ``[T]`` anomalous pixels at or above each threshold; the last one is their total.
        false_positives: int64 ``[T]`` normal pixels at or above each threshold; the last one is their total.
    """

    thresholds: npt.NDArray[np.generic]
    true_positives: npt.NDArray[np.int64]
    false_positives: npt.NDArray[np.int64]

    @property
    def positives(self) -> int:
        """Number of anomalous pixels."""
        return int(self.true_positives[-1]) if len(self.true_positives) else 0

    @property
    def negatives(self) -> int:
        """Number of normal pixels."""
        return int(self.false_positives[-1]) if len(self.false_positives) else 0

    @property
    def undefined(self) -> str | None:
        """Why no number can be made from this curve, None where it can."""
        if self.positives == 0:
            return NO_ANOMALY
        return NO_NORMAL if self.negatives == 0 else None

    @property
    def recall(self) -> npt.NDArray[np.float64]:
        """True positive rate in 0..1 at each threshold, ``[T]``; NaN without anomalous pixels."""
        return _share(self.true_positives, self.positives)

    @property
    def false_positive_rate(self) -> npt.NDArray[np.float64]:
        """False positive rate in 0..1 at each threshold, ``[T]``; NaN without normal pixels."""
        return _share(self.false_positives, self.negatives)

    @property
    def precision(self) -> npt.NDArray[np.float64]:
        """Precision in 0..1 at each threshold, ``[T]``."""
        return self.true_positives / (self.true_positives + self.false_positives)


def _share(counts: npt.NDArray[np.int64], total: int) -> npt.NDArray[np.float64]:
    return counts / total if total else np.full(counts.shape, np.nan)


def detection_curve(counts: Counts) -> DetectionCurve:
    """The curve of counts by key ``[2, K]``: one point for each key that occurs, from the highest key down.

    Its thresholds are keys: uint16 where K is 65,536, else uint32.
    """
    keys = np.flatnonzero(counts.any(axis=0))[::-1]
    normal, anomalous = counts[:, keys].cumsum(axis=1)
    return DetectionCurve(keys.astype(np.uint16 if counts.shape[1] == KEYS else np.uint32), anomalous, normal)


def auroc(curve: DetectionCurve) -> float | None:
    """Area under the ROC curve in 0..1 by the trapezoid: a tie of an anomalous and a normal pixel counts one half.

    None without anomalous or without normal pixels.
    """
    if curve.undefined:
        return None
    step = np.diff(curve.false_positives, prepend=0)
    # In float64: the product of two pixel counts of a large set does not fit in 64-bit integers.
    height = (curve.true_positives + np.concatenate(([0], curve.true_positives[:-1]))) / (2.0 * curve.positives)
    return float(np.sum(height * (step / curve.negatives)))


def average_precision(curve: DetectionCurve) -> float | None:
    """Area under the precision-recall curve in 0..1 by the step rule: sum of (R_k - R_{k-1}) P_k.

    This is scikit-learn's ``average_precision_score``; the trapezoid would give another, larger number.
    None without anomalous or without normal pixels.
    """
    if curve.undefined:
        return None
    return float(np.sum(np.diff(curve.true_positives, prepend=0) / curve.positives * curve.precision))


def fpr_at_recall(curve: DetectionCurve, recall: float = 0.95) -> float | None:
    """False positive rate in 0..1 at the first threshold, going down, whose true positive rate reaches ``recall``.

    No interpolation; the recall that is reached may lie above the one that was asked for.
    None without anomalous or without normal pixels.

    Raises:
        InputError: ``recall`` is not in 0..1 (0 excluded).
    """
    if not 0.0 < recall <= 1.0:
        raise InputError(f"a recall of {recall}", "a number above 0 and at most 1")
    if curve.undefined:
        return None
    # The quotient is rounded correctly, so a recall of exactly 19/20 is not below the literal 0.95.
    return float(curve.false_positive_rate[int(np.argmax(curve.recall >= recall))])


def fpr_nearest_recall(curve: DetectionCurve, recall: float = 0.95) -> float | None:
    """False positive rate in 0..1 at the threshold whose true positive rate is nearest to ``recall``: the CAOS rule.

    The rule of ``fpr_and_fdr_at_recall`` in the code of Hendrycks et al. (CAOS, arXiv 1911.11132; the public repository
    ``hendrycks/anomaly-seg``, ``anom_utils.py``): thresholds below the first one that finds every anomalous pixel are
    left out, distances |TPR - recall| are compared in float64, and of equal distances the lowest threshold (the
    highest false positive rate) is taken. The recall that is reached may lie below the one that was asked for.
    None without anomalous or without normal pixels.
    """
    if curve.undefined:
        return None
    complete = int(np.searchsorted(curve.true_positives, curve.positives))
    upwards = np.arange(complete, -1, -1)
    nearest = upwards[int(np.argmin(np.abs(curve.recall[upwards] - recall)))]
    return float(curve.false_positive_rate[nearest])


def best_f1(curve: DetectionCurve) -> tuple[float, int | float] | None:
    """The largest F1 = 2 TP / (2 TP + FP + FN) in 0..1 over all thresholds, and its threshold.

    The threshold is an element of ``curve.thresholds``; pixels at or above it are called anomalous. Of several best
    thresholds the highest is taken, which marks the fewest pixels.
    None without anomalous or without normal pixels.
    """
    if curve.undefined:
        return None
    f1 = 2.0 * curve.true_positives / (curve.true_positives + curve.false_positives + curve.positives)
    best = int(np.argmax(f1))
    return float(f1[best]), curve.thresholds[best].item()


# Counting the pixels of a stored score map by key and label, in one pass over memory.
#
# A histogram of the raw 16-bit patterns is enough: order-preserving keys, the check for NaN and the union of -0.0 and
# +0.0 are rearrangements of 65,536 bins, not of millions of pixels.

ROW_OF_LABEL = np.minimum(np.arange(256), 2)
"""Row of each label value: 0 normal, 1 anomalous, 2 ignored."""


def count_scores(stored: npt.NDArray[Any], anomaly: npt.NDArray[np.uint8]) -> Counts:
    """Count the labelled pixels of a score map in its stored form, by 16-bit key and label.

    The same counts as :func:`segunc.metrics.counting.count_keys` of
    :func:`segunc.maps.encoding.score_keys` without the ignored pixels, several times faster.

    Args:
        stored: uint16 or uint8 codes, or floats (taken as float16), any shape.
        anomaly: uint8, the same shape; 0 normal, 1 anomaly, 255 ignored. Ignored scores may be anything.

    Returns:
        int64 ``[2, 65536]``; row 0 normal, row 1 anomalous.

    Raises:
        InputError: the shapes or types do not fit, a label has another value, or a counted score is NaN, infinite or
            beyond the range of float16.
    """
    if stored.shape != anomaly.shape:
        raise InputError(f"scores of shape {stored.shape} and labels of shape {anomaly.shape}", "one label each")
    floating = np.issubdtype(stored.dtype, np.floating)
    if floating:
        with np.errstate(over="ignore", invalid="ignore"):
            patterns = np.ascontiguousarray(stored, np.float16).view(np.uint16)
    elif stored.dtype in (np.uint8, np.uint16):
        patterns = stored
    else:
        raise InputError(f"a score map of type {stored.dtype}", "uint8, uint16 or a floating type", "convert the map")
    check_anomaly_labels(anomaly)
    rows = count_rows(anomaly, patterns, ROW_OF_LABEL, KEYS)
    if not floating:
        return rows[:2].copy()
    counts = order_by_key(rows, exponent_bits=5)
    counts[:, 0x8000] += counts[:, 0x7FFF]  # -0.0 is +0.0
    counts[:, 0x7FFF] = 0
    return counts


def order_by_key(by_pattern: Counts, exponent_bits: int) -> Counts:
    """Counts by the leading bits of a floating-point pattern, rearranged into the order of the values.

    Args:
        by_pattern: int64 ``[R, K]`` by sign, exponent and any number of mantissa bits.
        exponent_bits: of the floating type.

    Returns:
        int64 ``[2, K]``, the first two rows: negative values from the largest magnitude, then positive ones.

    Raises:
        InputError: those rows hold infinity or NaN (the exponents of all ones).
    """
    half = by_pattern.shape[1] // 2
    counts = np.concatenate((by_pattern[:2, : half - 1 : -1], by_pattern[:2, :half]), axis=1)
    beyond = half >> exponent_bits
    if counts[:, :beyond].any() or counts[:, -beyond:].any():
        raise InputError(
            "a score is NaN, infinite or beyond the range of its floating type",
            "finite values, within +-65504 for 16-bit keys",
            "mask such pixels as ignored in the labels or repair the map",
        )
    return counts


def check_anomaly_labels(anomaly: npt.NDArray[np.uint8]) -> None:
    """Raise InputError where labels are not uint8, or one is none of 0 (normal), 1 (anomaly) and 255 (ignored)."""
    if anomaly.dtype != np.uint8:
        raise InputError(f"an anomaly label of type {anomaly.dtype}", "uint8")
    if ((anomaly > 1) & (anomaly != IGNORE)).any():
        unknown = sorted(set(np.unique(anomaly).tolist()) - {0, 1, IGNORE})
        raise InputError(f"an anomaly label holds the values {unknown[:8]}", "0 normal, 1 anomaly, 255 ignored")


HISTOGRAM_BINS = 100


@dataclass(frozen=True)
class ScoreHistogram:
    """Densities of a score over equal-width bins; each integrates to the share of its pixels inside the range.

    Attributes:
        edges: ``[B + 1]`` in the unit of the score.
        density: ``[2, B]`` share of pixels per unit of the score; row 0 normal, row 1 anomalous; NaN for a row without
            pixels.
        pixels: int64 ``[2]`` pixels of each row.
        outside: int64 ``[2]`` those of them that lie outside the range.
    """

    edges: npt.NDArray[np.float64]
    density: npt.NDArray[np.float64]
    pixels: npt.NDArray[np.int64]
    outside: npt.NDArray[np.int64]


def score_histogram(
    counts: Counts,
    values: npt.NDArray[np.floating],
    limits: tuple[float, float] | None = (0.0, 1.0),
    bins: int = HISTOGRAM_BINS,
) -> ScoreHistogram:
    """The histogram of pixels that are counted by a key.

    Args:
        counts: int64 ``[2, K]`` pixels by key; row 0 normal, row 1 anomalous.
        values: ``[K]`` the score that each key stands for; keys without a pixel may be anything.
        limits: the range of the bins, 0..1 for the scores in 0..1; None is from the least to the greatest score.
        bins: B.

    Raises:
        InputError: the range is empty, or there is no pixel and no range.
    """
    used = np.flatnonzero(counts.any(axis=0))
    scores = values[used].astype(np.float64)
    if limits is None:
        if not len(scores):
            raise InputError("a histogram of no pixel", "counts of at least one pixel, or a range")
        limits = float(scores.min()), float(scores.max())
        limits = limits if limits[0] < limits[1] else (limits[0] - 0.5, limits[1] + 0.5)  # a constant score
    if not limits[0] < limits[1]:
        raise InputError(f"a score range of {limits[0]:g}..{limits[1]:g}", "a lower end below the upper one")
    rows = [np.histogram(scores, bins, limits, weights=row[used])[0] for row in counts]
    edges = np.linspace(*limits, bins + 1)
    pixels = counts.sum(axis=1)
    density = np.full((2, bins), np.nan)
    np.divide(np.stack(rows), (pixels * np.diff(edges)[0])[:, None], out=density, where=(pixels > 0)[:, None])
    inside = np.array([int(row.sum()) for row in rows], np.int64)
    return ScoreHistogram(edges, density, pixels.astype(np.int64), pixels.astype(np.int64) - inside)
