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
"""int64 ``[2, 65536]``: pixels by key; row 0 normal, row 1 anomalous."""


def empty_counts() -> Counts:
    """Counts of no pixel."""
    return np.zeros((2, KEYS), np.int64)


def count_keys(keys: npt.NDArray[np.uint16], anomaly: npt.NDArray[np.generic]) -> Counts:
    """Count pixels by key and by label.

    Args:
        keys: uint16, any shape.
        anomaly: the same shape; 0 normal, 1 anomaly (bool or any integer type). Ignored pixels are dropped before.

    Returns:
        int64 ``[2, 65536]``; row 0 normal, row 1 anomalous.

    Raises:
        InputError: the shapes differ, keys are not uint16, or a label is neither 0 nor 1.
    """
    if keys.shape != anomaly.shape:
        raise InputError(f"keys of shape {keys.shape} and labels of shape {anomaly.shape}", "one label for each key")
    if keys.dtype != np.uint16:
        raise InputError(f"keys of type {keys.dtype}", "uint16", "make them with segunc.maps.encoding.score_keys")
    # int64 is what bincount counts in; any other type would be copied once more inside it.
    combined = anomaly.ravel().astype(np.int64)
    if combined.size and (combined.min() < 0 or combined.max() > 1):
        raise InputError(
            f"anomaly labels in {combined.min()}..{combined.max()}", "0 or 1", "drop ignored pixels before counting"
        )
    combined *= KEYS
    combined += keys.ravel()
    return np.bincount(combined, minlength=2 * KEYS).astype(np.int64, copy=False).reshape(2, KEYS)


@dataclass(frozen=True)
class DetectionCurve:
    """Cumulated counts at each distinct score, from the highest score down.

    Attributes:
        thresholds: ``[T]`` the distinct scores, descending; here keys. A pixel at or above a threshold is called
            anomalous.
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
    """The curve of counts by key ``[2, 65536]``: one point for each key that occurs, from the highest key down."""
    keys = np.flatnonzero(counts.sum(axis=0))[::-1]
    normal, anomalous = counts[:, keys].cumsum(axis=1)
    return DetectionCurve(keys.astype(np.uint16), anomalous, normal)


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
