"""Counts per 16-bit key, and the exact curves, numbers and histograms that they give in constant memory.

A score map is turned into order-preserving 16-bit keys (:func:`segunc.maps.encoding.score_keys`) and counted into two
rows of 65,536 bins, one for normal and one for anomalous pixels. The rows hold everything that the curve of the stored
scores needs, whatever the number of pixels, and counts of frames, shards and machines merge by addition. Equal scores are
one threshold, and a pixel is called anomalous where its score is at or above the threshold.

* Protocol ``pooled``: all pixels of the set in one pool.
* Protocol ``per-image`` (StreetHazards and CAOS, MUAD): numbers of each image, then their mean over the images that hold
  both normal and anomalous pixels (Hendrycks et al., CAOS, arXiv 1911.11132); the others are counted.

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
KEYS = 65536
"""Number of 16-bit keys."""
NO_ANOMALY = "no pixel is labelled as an anomaly"
NO_NORMAL = "no pixel is labelled as normal"
NO_IMAGE_WITH_BOTH = "no image holds both anomalous and normal pixels"
IMAGE_NUMBERS = ("auroc", "aupr", "fpr95", "best_f1")
"""Names of the numbers of an image, in the order of their sums."""
HISTOGRAM_BINS = 100

Counts = npt.NDArray[np.int64]
"""Whole numbers that add; most often int64 ``[2, 65536]``, pixels by key, row 0 normal and row 1 anomalous."""
Floats = npt.NDArray[np.float64]

_STRIP = 1 << 18
_ROW_OF_LABEL = np.minimum(np.arange(256), 2)  # 0 normal, 1 anomalous, 2 ignored


def to_fixed_point(values: npt.ArrayLike, steps: int = STEPS_PER_UNIT) -> Counts:
    """The int64 form of float64 values, rounded to nearest; any shape."""
    # Scaling by a power of two is exact; only the rounding loses anything.
    return np.rint(np.asarray(values, np.float64) * steps).astype(np.int64)


def from_fixed_point(stored: Counts) -> Floats:
    """The float64 values of stored sums over pixels, any shape."""
    return stored / STEPS_PER_UNIT


def mean_of_fractions(stored: int, number: int) -> float | None:
    """Mean of ``number`` fractions whose stored forms sum to ``stored``; None of no fraction."""
    return int(stored) / (int(number) * STEPS_PER_FRACTION) if number else None


def count_keys(keys: npt.NDArray[np.uint16], anomaly: npt.NDArray[np.generic]) -> Counts:
    """Count pixels by key and by label, int64 ``[2, 65536]``.

    Args:
        keys: uint16, any shape.
        anomaly: the same shape; 0 normal, 1 anomaly (bool or any integer type). Ignored pixels are dropped before.

    Raises:
        InputError: the shapes differ, keys are of another type, or a label is neither 0 nor 1.
    """
    if keys.shape != anomaly.shape:
        raise InputError(f"keys of shape {keys.shape} and labels of shape {anomaly.shape}", "one label for each key")
    if keys.dtype != np.uint16:
        raise InputError(f"keys of type {keys.dtype}", "uint16 keys", "make them with segunc.maps.encoding.score_keys")
    if keys.size and (anomaly.min() < 0 or anomaly.max() > 1):
        raise InputError(
            f"anomaly labels in {anomaly.min()}..{anomaly.max()}", "0 or 1", "drop ignored pixels before counting"
        )
    return _count_rows(anomaly.astype(np.uint8), keys)[:2].copy()


def count_scores(stored: npt.NDArray[Any], anomaly: npt.NDArray[np.uint8]) -> Counts:
    """Count the labelled pixels of a score map in its stored form, by 16-bit key and label, int64 ``[2, 65536]``.

    The counts are those of :func:`count_keys` of :func:`segunc.maps.encoding.score_keys` without the ignored pixels,
    several times faster: order-preserving keys, the check for NaN and the union of -0.0 and +0.0 are rearrangements of
    65,536 bins of raw bit patterns, not of millions of pixels.

    Args:
        stored: uint16 or uint8 codes, or floats (taken as float16), any shape. Ignored scores may be anything.
        anomaly: uint8, the same shape; 0 normal, 1 anomaly, 255 ignored.

    Raises:
        InputError: the shapes or types do not fit, a label has another value, or a counted score is NaN, infinite or
            beyond the range of float16.
    """
    if stored.shape != anomaly.shape:
        raise InputError(f"scores of shape {stored.shape} and labels of shape {anomaly.shape}", "one label each")
    check_anomaly_labels(anomaly)
    if stored.dtype in (np.uint8, np.uint16):
        return _count_rows(anomaly, stored)[:2].copy()
    if not np.issubdtype(stored.dtype, np.floating):
        raise InputError(f"a score map of type {stored.dtype}", "uint8, uint16 or a floating type", "convert the map")
    with np.errstate(over="ignore", invalid="ignore"):
        patterns = np.ascontiguousarray(stored, np.float16).view(np.uint16)
    rows = _count_rows(anomaly, patterns)[:2]
    half = KEYS // 2
    # Into the order of the values: negative ones from the largest magnitude, then positive ones.
    counts = np.concatenate((rows[:, : half - 1 : -1], rows[:, :half]), axis=1)
    beyond = half >> 5  # patterns whose five bits of exponent are all ones
    if counts[:, :beyond].any() or counts[:, -beyond:].any():
        raise InputError(
            "a score is NaN, infinite or beyond the range of its floating type",
            "finite values, within +-65504 for 16-bit keys",
            "mask such pixels as ignored in the labels or repair the map",
        )
    counts[:, half] += counts[:, half - 1]  # -0.0 is +0.0
    counts[:, half - 1] = 0
    return counts


def check_anomaly_labels(anomaly: npt.NDArray[np.uint8]) -> None:
    """Raise InputError where labels are not uint8, or one is none of 0 (normal), 1 (anomaly) and 255 (ignored)."""
    if anomaly.dtype != np.uint8:
        raise InputError(f"an anomaly label of type {anomaly.dtype}", "uint8")
    if ((anomaly > 1) & (anomaly != IGNORE)).any():
        unknown = sorted(set(np.unique(anomaly).tolist()) - {0, 1, IGNORE})
        raise InputError(f"an anomaly label holds the values {unknown[:8]}", "0 normal, 1 anomaly, 255 ignored")


def _count_rows(labels: npt.NDArray[np.uint8], values: npt.NDArray[np.unsignedinteger]) -> Counts:
    """Histogram ``[3, 65536]`` of values below 65,536 by the row of their label.

    Pixels are read in strips that stay in the processor's cache, so memory does not depend on their number.
    """
    bins = 3 * KEYS
    offset = _ROW_OF_LABEL * KEYS
    flat_labels, flat_values = labels.ravel(), values.ravel()
    strip = max(_STRIP, 2 * bins)  # of the order of the histogram at least, which is added once for each strip
    total = np.zeros(bins, np.int64)
    for start in range(0, len(flat_labels), strip):
        index = offset.take(flat_labels[start : start + strip])
        index += flat_values[start : start + strip]
        total += np.bincount(index, minlength=bins)
    return total.reshape(3, KEYS)


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
    def recall(self) -> Floats:
        """True positive rate in 0..1 at each threshold, ``[T]``; NaN without anomalous pixels."""
        return self.true_positives / (self.positives or np.nan)

    @property
    def false_positive_rate(self) -> Floats:
        """False positive rate in 0..1 at each threshold, ``[T]``; NaN without normal pixels."""
        return self.false_positives / (self.negatives or np.nan)

    @property
    def precision(self) -> Floats:
        """Precision in 0..1 at each threshold, ``[T]``."""
        return self.true_positives / (self.true_positives + self.false_positives)


def detection_curve(counts: Counts) -> DetectionCurve:
    """The curve of counts by key ``[2, 65536]``: one point for each key that occurs, from the highest (uint16) key down."""
    keys = np.flatnonzero(counts.any(axis=0))[::-1]
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


def per_image_sums(counts: Counts) -> Counts:
    """What one image adds to the sums of protocol ``per-image``.

    Returns:
        int64 ``[6]``: :data:`IMAGE_NUMBERS`, best F1 at the image's own threshold, in steps of 2^-40 (each rounding moves
        a number by at most 4.6e-13); images scored; images left out because they lack a class.
    """
    curve = detection_curve(counts)
    best = best_f1(curve)
    if best is None:
        return np.array([0, 0, 0, 0, 0, 1], np.int64)
    numbers = np.array((auroc(curve), average_precision(curve), fpr_at_recall(curve), best[0]), np.float64)
    return np.append(to_fixed_point(numbers, STEPS_PER_FRACTION), (1, 0))


def per_image_result(sums: Counts) -> dict[str, float | None]:
    """Means over the scored images, in 0..1, by name of :data:`IMAGE_NUMBERS`; None where no image is scored."""
    scored = int(sums[len(IMAGE_NUMBERS)])
    return {name: mean_of_fractions(int(sums[place]), scored) for place, name in enumerate(IMAGE_NUMBERS)}


@dataclass(frozen=True)
class ScoreHistogram:
    """Densities of a score over equal-width bins; each integrates to the share of its pixels inside the range.

    Attributes:
        edges: ``[B + 1]`` in the unit of the score.
        density: ``[2, B]`` share of pixels per unit of the score; row 0 normal, row 1 anomalous; NaN for a row without
            pixels.
    """

    edges: Floats
    density: Floats


def score_histogram(
    counts: Counts, values: npt.NDArray[np.floating], limits: tuple[float, float] | None, bins: int = HISTOGRAM_BINS
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
    return ScoreHistogram(edges, density)
