"""Exact detection curves from counts by 16-bit key, in constant memory.

A score map is turned into order-preserving 16-bit keys (:func:`segunc.maps.encoding.score_keys`) and counted into two
rows of 65,536 bins, one for normal and one for anomalous pixels. The rows hold everything that the pooled curve of the
stored scores needs, whatever the number of pixels, and counts of frames, shards and machines merge by addition.

The protocol here is ``pooled``: all pixels of the set in one pool, equal scores are one threshold, a pixel is called
anomalous where its score is at or above the threshold.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from segunc.errors import InputError

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
