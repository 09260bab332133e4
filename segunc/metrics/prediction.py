"""Numbers of predicted classes, from counts that merge by addition.

* Segmentation: the confusion matrix is summed over all pixels of the set before anything is
  divided.
* ECE (Naeini et al. 2015, Guo et al. 2017, arXiv 1706.04599): equal-width bins of the confidence,
  the mean over pixels of |accuracy - confidence| of their bin. Adaptive ECE: the same mean over
  bins that hold equally many pixels (the adaptive ranges of Nixon et al. 2019, arXiv 1904.01685,
  for the confidence of the predicted class). NLL in nats; Brier, the mean over pixels of
  sum_c (p_c - 1[y = c])^2, so 0..2.
* Selective prediction: counts are int64 ``[2, K]``, labelled pixels by the key of a score (higher =
  less certain); row 0 rightly, row 1 wrongly predicted. A reader accepts the k most certain of N
  pixels. Selective risk r(k): share of wrong pixels among the k accepted; AURC: the mean of r(k)
  over k = 1..N (Geifman & El-Yaniv 2017, arXiv 1705.08500; Geifman et al. 2019, arXiv 1805.08206).
* Sparsification (Ilg et al. 2018, arXiv 1802.07095): pixels are removed, the least certain first.
  The curve is the error of the pixels that are left, as a share of the error of all. AUSE is the
  area between the curve of a score and that of the true error. Here the error of a pixel is 0 or 1,
  so both curves are selective risks, divided by the error rate.

Equal scores are one threshold, and every number is its expectation over all orders of the tied
pixels. Of a tie with n pixels, w of them wrong, the first j accepted hold j w / n wrong ones on
average, so the sums over k have closed forms.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.data.labels import IGNORE
from segunc.metrics.counting import (
    STEPS_PER_UNIT,
    Counts,
    Floats,
    areas,
    detection_curve,
    grouped_sums,
    steps,
    to_fixed_point,
)

BINS = 15  # as in Guo et al. 2017
# Probabilities are raised to this before the logarithm (an NLL of 87.3 nats), so that one underflow
# is not infinite.
SMALLEST_PROBABILITY = float(np.finfo(np.float32).tiny)
# Pixels that are worked on at a time, so that the memory does not grow with the frame.
STRIP = 1 << 16
SELECTIVE_NUMBERS = ("aurc", "ause", "failure_auroc", "failure_aupr", "failure_fpr95")

# Harmonic numbers up to this are summed; beyond it the omitted term of their expansion is below
# 2e-17.
_TABLE = 256
_HARMONIC = np.concatenate(([0.0], np.cumsum(1.0 / np.arange(1, _TABLE + 1))))


def confusion_matrix(
    labels: npt.NDArray[np.integer], prediction: npt.NDArray[np.integer], classes: int
) -> Counts:
    """Count pixels by true class (rows) and predicted class (columns), int64 ``[C, C]``.

    Args:
        labels: train ids in 0..C-1, or 255 ignored, of any shape.
        prediction: class ids of the same shape.
        classes: C.

    Raises:
        InputError: an id is not a class where the label is not ignored.
    """
    counted = labels != IGNORE
    truth = labels[counted].astype(np.int64)
    predicted = prediction[counted].astype(np.int64)
    for name, ids in (("labels", truth), ("the prediction", predicted)):
        unknown = ids[(ids < 0) | (ids >= classes)]
        if unknown.size:
            raise InputError(
                f"{name} holds the class ids {np.unique(unknown)[:8].tolist()}, "
                f"which are not in 0..{classes - 1}",
                hint="give the label map that the network was trained with",
            )
    return np.bincount(truth * classes + predicted, minlength=classes**2).reshape(classes, classes)


def class_iou(matrix: Counts) -> npt.NDArray[np.float64]:
    """Return the intersection over union of each class in 0..1, ``[C]``.

    NaN for a class in neither labels nor predictions.
    """
    intersection = matrix.diagonal()
    union = matrix.sum(axis=0) + matrix.sum(axis=1) - intersection
    with np.errstate(invalid="ignore"):
        return np.asarray(intersection / union, np.float64)


def mean_iou(matrix: Counts) -> float | None:
    """Return the mean of :func:`class_iou` in 0..1 over the classes that occur.

    A class occurs also where it is only predicted. None without a pixel.
    """
    iou = class_iou(matrix)
    present = iou[~np.isnan(iou)]
    return float(present.mean()) if present.size else None


def accuracy(matrix: Counts) -> float | None:
    """Return the share of the counted pixels whose class is right, 0..1; None without a pixel."""
    total = int(matrix.sum())
    return int(matrix.trace()) / total if total else None


def bin_counts(counts: Counts, confidence: npt.NDArray[np.floating], bins: int = BINS) -> Floats:
    """Sum pixels into equal-width bins of confidence, float64 ``[3, B]``.

    The rows are pixels, correct pixels, and sum of confidences. Bin b holds b/B <= confidence <
    (b+1)/B, and the last one also confidence 1.

    Args:
        counts: pixels by key, ``[2, K]``, wrongly predicted ones in row 1.
        confidence: of each key in 0..1, ``[K]``.
        bins: B.
    """
    used = counts.any(axis=0)
    # Edges in the type of the values: in float32 0.2 lies on the edge 3/15.
    edges = np.linspace(0.0, 1.0, bins + 1).astype(confidence.dtype)[1:-1]
    index = np.searchsorted(edges, confidence[used], side="right")
    return _sums_by_bin(index, counts[:, used], confidence[used], bins)


def bin_counts_by_mass(
    counts: Counts, confidence: npt.NDArray[np.floating], bins: int = BINS
) -> Floats:
    """Sum pixels into bins that hold about equally many, as :func:`bin_counts` does by width.

    Pixels of one confidence stay together. They are in bin floor(B n / N), with n the number of
    pixels of lower confidence and N that of all. Without ties these are B runs of the pixels in the
    order of their confidence, N / B pixels each. A confidence that fills several bins leaves the
    others of them empty.
    """
    used = counts.any(axis=0)
    # Several keys can have one confidence, and keys fall as the confidence rises.
    values, level = np.unique(confidence[used], return_inverse=True)
    levels = np.stack([grouped_sums(level, row[used], len(values)) for row in counts])
    pixels = levels.sum(axis=0)
    below = pixels.cumsum() - pixels
    index = below * bins // max(int(pixels.sum()), 1)
    return _sums_by_bin(index, levels, values, bins)


def _sums_by_bin(
    index: npt.NDArray[np.integer],
    counts: Counts,
    confidence: npt.NDArray[np.floating],
    bins: int,
) -> Floats:
    """Return pixels, correct pixels and summed confidences of each bin, ``[3, B]``."""
    if not ((confidence >= 0.0) & (confidence <= 1.0)).all():  # NaN fails both
        raise InputError("a confidence lies outside 0..1 or is NaN")
    pixels = counts.sum(axis=0)
    correct = counts[0]
    rows = (pixels, correct, pixels * confidence.astype(np.float64))
    # Of no pixel bincount makes whole numbers.
    return np.stack([np.bincount(index, row, minlength=bins) for row in rows]).astype(np.float64)


def expected_calibration_error(sums: Floats) -> float | None:
    """Return the ECE in 0..1 of bins ``[3, B]``; None without a pixel.

    Of bins by mass it is the adaptive ECE. Of bins by width it is torchmetrics'
    ``calibration_error`` (norm ``l1``), except that confidence 1 belongs to the last bin, as
    published, where torchmetrics opens a further one.
    """
    pixels, correct, confidence = sums
    total = float(pixels.sum())
    return float(np.abs(correct - confidence).sum() / total) if total else None


def probability_scores(
    probabilities: npt.NDArray[np.float32], labels: npt.NDArray[np.integer]
) -> Counts:
    """Sum the log loss and the Brier score over the labelled pixels of a frame.

    Return int64 ``[3]``: pixels, then in steps of 2^-18 the sum of -ln p_y in nats and the sum of
    sum_c (p_c - 1[y = c])^2.

    Args:
        probabilities: of all classes, ``[C, ...]``, which sum to 1.
        labels: train ids ``[...]``, 255 ignored.

    Raises:
        InputError: probabilities are negative or do not sum to 1.
    """
    flat = probabilities.reshape(len(probabilities), -1)
    ids = labels.ravel()
    pixels = 0
    loss = 0.0
    brier = 0.0
    for start in range(0, ids.size, STRIP):
        strip = ids[start : start + STRIP]
        counted = np.flatnonzero(strip != IGNORE)
        selected = flat[:, start : start + STRIP].take(counted, axis=1)
        sums_to_one = (np.abs(selected.sum(axis=0) - 1.0) <= 1e-2).all()  # False of NaN
        if not sums_to_one or selected.min(initial=0.0) < 0.0:
            raise InputError(
                "class probabilities are negative or do not sum to 1",
                hint="give the output of a softmax",
            )
        truth = strip[counted].astype(np.int64)
        chosen = np.take_along_axis(selected, truth[None], axis=0)[0].astype(np.float64)
        # (1 - p_y)^2 plus the squares of the others, so that a sure and right pixel does not cancel
        # to noise.
        squares = np.einsum("cp,cp->p", selected, selected).astype(np.float64) - np.square(chosen)
        pixels += truth.size
        loss -= float(np.log(np.maximum(chosen, SMALLEST_PROBABILITY)).sum())
        brier += float((np.square(1.0 - chosen) + np.maximum(squares, 0.0)).sum())
    return np.concatenate(([pixels], to_fixed_point([loss, brier])))


def mean_scores(sums: Counts) -> tuple[float | None, float | None]:
    """Return NLL in nats and Brier score in 0..2 of summed :func:`probability_scores`.

    Both are None without a pixel.
    """
    if not sums[0]:
        return None, None
    loss, brier = sums[1:] / STEPS_PER_UNIT / sums[0]
    return float(loss), float(brier)


@dataclass(frozen=True)
class RiskCoverage:
    """Accepted pixels at each of T distinct scores, from the most certain up.

    Attributes:
        accepted: pixels with a score at or below each threshold, ``[T]``; the last is N.
        wrong: the wrongly predicted ones among them, ``[T]``.
    """

    accepted: npt.NDArray[np.int64]
    wrong: npt.NDArray[np.int64]

    @property
    def total(self) -> int:
        """All pixels, N."""
        return int(self.accepted[-1]) if len(self.accepted) else 0

    def risk_at(self, coverage: npt.ArrayLike) -> Floats:
        """Return the expected selective risk in 0..1 at coverages above 0, up to 1, of any shape.

        The curve must have a pixel.
        """
        pixels = np.asarray(coverage, np.float64) * self.total
        wrong = np.interp(pixels, np.append(0, self.accepted), np.append(0, self.wrong))
        return np.asarray(wrong / pixels, np.float64)


def risk_coverage(counts: Counts) -> RiskCoverage:
    """Return the curve of counts ``[2, K]`` by key, one point for each key that occurs."""
    keys = np.flatnonzero(counts.any(axis=0))
    correct, wrong = counts.take(keys, axis=1).cumsum(axis=1)
    return RiskCoverage(correct + wrong, wrong)


def aurc(curve: RiskCoverage) -> float | None:
    """Return the mean selective risk over all coverages k / N, 0..1; None without a pixel.

    Lower is better. Within a tie that begins after K pixels, W of them wrong, and holds a share q
    of wrong ones, the expected risk at k is (W + (k - K) q) / k = q + (W - K q) / k; its sum over k
    needs the harmonic numbers.
    """
    if not curve.total:
        return None
    wrong = steps(curve.wrong)
    pixels = steps(curve.accepted)
    share = wrong / pixels
    excess = (curve.wrong - wrong) - (curve.accepted - pixels) * share  # W - K q of each tie
    sums = wrong + excess * _harmonic_steps(np.append(0, curve.accepted))
    return float(sums.sum() / curve.total)


def optimal_aurc(curve: RiskCoverage) -> float | None:
    """Return the AURC of a score that ranks all wrong pixels above all right ones, 0..1.

    None without a pixel.
    """
    if not curve.total:
        return None
    wrong = int(curve.wrong[-1])
    right = curve.total - wrong
    # Beyond the right pixels, the risk at k accepted pixels is (k - right) / k.
    return float((wrong - right * _harmonic_steps(np.array([right, curve.total]))[0]) / curve.total)


def ause(curve: RiskCoverage) -> float | None:
    """Return the area under the sparsification error curve; lower is better, 0 is perfect.

    It is (AURC - optimal AURC) / error rate, because the error of a pixel is 0 or 1. None without a
    wrong pixel.
    """
    area = aurc(curve)
    optimum = optimal_aurc(curve)
    if area is None or optimum is None or not curve.wrong[-1]:
        return None
    error_rate = int(curve.wrong[-1]) / curve.total
    return max(area - optimum, 0.0) / error_rate


def selective_numbers(counts: Counts) -> dict[str, float | None]:
    """Return AURC, AUSE and the numbers of failure detection by :data:`SELECTIVE_NUMBERS`.

    They are fractions of 1; ``failure_*`` are the pooled detection numbers with "this pixel is
    wrong" as the positive.
    """
    curve = risk_coverage(counts)
    numbers = (aurc(curve), ause(curve), *areas(detection_curve(counts)))
    return dict(zip(SELECTIVE_NUMBERS, numbers, strict=True))


def _harmonic_steps(ends: npt.NDArray[np.int64]) -> Floats:
    """Return the sum of 1 / k over ends[i] < k <= ends[i + 1] for each i, of rising ends.

    By H(n) = ln n + Euler's constant + 1/(2n) - 1/(12 n^2) + 1/(120 n^4) - ..., as one difference,
    so that two large numbers that lie close together do not cancel.
    """
    small = np.diff(_HARMONIC[np.minimum(ends, _TABLE)])
    n = np.maximum(ends, _TABLE).astype(np.float64)
    logarithms = np.log1p(np.diff(n) / n[:-1])
    large = logarithms + np.diff(1 / n) / 2
    large = large - np.diff(n**-2) / 12 + np.diff(n**-4) / 120
    return np.asarray(small + large, np.float64)
