"""Counts per 16-bit key, and the exact curves and numbers that they give in constant memory.

A score map is counted by order-preserving 16-bit keys (:func:`segunc.maps.encoding.score_keys`)
into two rows of 65,536 bins, of normal and of anomalous pixels. Equal scores are one threshold, and
a pixel is called anomalous where its score is at or above the threshold. Protocol ``pooled``: all
pixels of the set in one pool.

A real that a frame contributes is rounded once to a multiple of a power of two; what follows is
integer addition, exact in any order. Sums over the pixels of a frame go in steps of 2^-18: 10^5
frames of 2^21 pixels with the largest log loss (87.4 nats) reach 4.8e18, below the 9.2e18 of int64.
Fractions of 1 (the sIoU of an object) go in steps of 2^-40: 64 bits hold the sum of 8 million ones.

Float scores that 16 bits cannot hold are counted in bins (:class:`ScoreBins`), so that pixels are
ranked by the numbers that are stored: the float32 scores 98.01 and 98.02 are one float16. So the
maps of another tool are read twice. The first pass samples the scores of the *positive* pixels
(anomalous or wrongly predicted ones) and of the *negative* ones; these are the edges of the bins.
Where all positive scores fit into the sample, each has a bin of its own, and no number is changed
by what lies between two of them: a run of negative pixels gives the same numbers whether its scores
are told apart or not. Where they are too many, a bin holds about one in MAX_BINS of the pixels,
which bounds the errors of AUROC and FPR95 (measured: at most 1e-6). :func:`rank` is the one way
from scores to keys, for thresholds too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.data.labels import IGNORE
from segunc.maps.encoding import score_keys

STEPS_PER_UNIT = 1 << 18  # a stored sum over pixels of 1.0
STEPS_PER_FRACTION = 1 << 40  # a stored fraction of 1.0
KEYS = 65536
NO_ANOMALY = "no pixel is labelled as an anomaly"
NO_NORMAL = "no pixel is labelled as normal"

Counts = npt.NDArray[np.int64]
"""Whole numbers that add, most often ``[2, 65536]``: pixels by key, normal ones in row 0, anomalous
ones in row 1.
"""
Floats = npt.NDArray[np.float64]
Scores = npt.NDArray[np.floating]

MAX_BINS = 1 << 20  # of one score
MIN_BINS = 1 << 14  # of one score
# Counts that all parts of an evaluation hold together, 512 MiB; with many parts a score has fewer
# bins.
MAX_CELLS = 1 << 26
_STRIP = 6 * KEYS  # pixels; twice the histogram that is added for each strip
_ROW_OF_LABEL = np.minimum(np.arange(256), 2)  # 0 normal, 1 anomalous, 2 ignored


def to_fixed_point(values: npt.ArrayLike, steps: int = STEPS_PER_UNIT) -> Counts:
    """Return the int64 form of float64 values, rounded to nearest; any shape."""
    return np.rint(np.asarray(values, np.float64) * steps).astype(np.int64)


def grouped_sums(group: npt.NDArray[np.integer], values: Counts, number: int) -> Counts:
    """Return the sums of whole numbers by group ``0..number - 1``, int64 ``[number]``."""
    total = np.zeros(number, np.int64)
    np.add.at(total, group, values)
    return total


def steps(cumulated: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return what each point adds to cumulated counts ``[T]``."""
    # Several times faster than np.diff with prepend.
    added = cumulated.copy()
    added[1:] -= cumulated[:-1]
    return added


def mean_of_fractions(stored: int, number: int) -> float | None:
    """Return the mean of fractions whose stored forms sum to ``stored``; None of no fraction."""
    return int(stored) / (int(number) * STEPS_PER_FRACTION) if number else None


def count_scores(stored: npt.NDArray[Any], anomaly: npt.NDArray[np.uint8]) -> Counts:
    """Count the labelled pixels of a score map by 16-bit key and label, int64 ``[2, 65536]``.

    The keys are those of :func:`segunc.maps.encoding.score_keys`.

    Args:
        stored: uint16 or uint8 codes, or floats that float16 holds exactly, of any shape.
        anomaly: uint8 of the same shape, 0 normal, 1 anomaly, 255 ignored, where scores may be
            anything.

    Raises:
        InputError: a label has another value, or a counted score is not a finite float16.
    """
    check_anomaly_labels(anomaly)
    if stored.dtype in (np.uint8, np.uint16):
        codes = stored * np.uint16(257) if stored.dtype == np.uint8 else stored
        return _count_rows(anomaly, codes)[:2].copy()
    with np.errstate(over="ignore", invalid="ignore"):
        halves = np.ascontiguousarray(stored, np.float16)
    rows = _count_rows(anomaly, halves.view(np.uint16))[:2]
    half = KEYS // 2
    # Bins are brought into the order of the values, which is faster than to do so with the pixels:
    # negative ones from the largest magnitude, then positive ones.
    counts = np.concatenate((rows[:, : half - 1 : -1], rows[:, :half]), axis=1)
    beyond = half >> 5  # patterns whose five bits of exponent are all ones
    if counts[:, :beyond].any() or counts[:, -beyond:].any():
        raise InputError(
            "a score is NaN, infinite or beyond +-65504, the range of float16",
            hint="repair the map, or mark such pixels as ignored in the labels",
        )
    if not fits_half(stored, anomaly):
        raise InputError(
            "float16 would round a score, so that ranks change",
            hint="evaluate the folder of maps, or round the scores to float16 yourself",
        )
    counts[:, half] += counts[:, half - 1]  # -0.0 is +0.0
    counts[:, half - 1] = 0
    return counts


def fits_half(stored: npt.NDArray[np.floating], labels: npt.NDArray[np.uint8]) -> bool:
    """Return whether float16 holds every labelled score exactly.

    Then the 16-bit key of each score has its rank.
    """
    if stored.dtype == np.float16:
        return True
    with np.errstate(over="ignore", invalid="ignore"):
        is_rounded = stored.astype(np.float16) != stored
    return not (is_rounded & (labels != IGNORE)).any()


def check_anomaly_labels(anomaly: npt.NDArray[np.uint8]) -> None:
    """Raise InputError where labels are not uint8 of 0 (normal), 1 (anomaly) and 255 (ignored)."""
    if anomaly.dtype != np.uint8:
        raise InputError(f"an anomaly label is of type {anomaly.dtype}, and not of uint8")
    if ((anomaly > 1) & (anomaly != IGNORE)).any():
        unknown = sorted(set(np.unique(anomaly).tolist()) - {0, 1, IGNORE})
        raise InputError(
            f"an anomaly label holds the values {unknown[:8]}, "
            "none of 0 normal, 1 anomaly and 255 ignored",
            hint="name the data set of the labels with --dataset",
        )


def _count_rows(labels: npt.NDArray[np.uint8], values: npt.NDArray[np.unsignedinteger]) -> Counts:
    """Return the histogram ``[3, 65536]`` of values below 65,536 by the row of their label."""
    offset = _ROW_OF_LABEL * KEYS
    flat_labels = labels.ravel()
    flat_values = values.ravel()
    total = np.zeros(3 * KEYS, np.int64)
    # In strips that stay in the cache of the CPU.
    for start in range(0, len(flat_labels), _STRIP):
        index = offset.take(flat_labels[start : start + _STRIP])
        index += flat_values[start : start + _STRIP]
        total += np.bincount(index, minlength=3 * KEYS)
    return total.reshape(3, KEYS)


@dataclass(frozen=True, eq=False)
class ScoreBins:
    """Bins of a score: bin i holds the scores from edge i on, below edge i + 1."""

    # [K] float32 or float64, rising; the first and the last are the lowest and the highest score.
    edges: Scores

    def __str__(self) -> str:
        return "float"  # how a result names the form of these maps

    @property
    def size(self) -> int:
        return len(self.edges)

    def keys(self, scores: Scores) -> npt.NDArray[np.intp]:
        """Return the bin of each score, of any shape.

        It is at or above k exactly where the score is at or above edge k.
        """
        return np.asarray(np.searchsorted(self.edges, scores, side="right") - 1)

    def count(self, scores: Scores, rows: npt.NDArray[np.uint8]) -> Counts:
        """Count the pixels of each bin, int64 ``[2, K]``, as :func:`count_scores` does by key."""
        normal, anomalous = _split(scores, rows)
        size = len(self.edges)
        return np.stack(
            [
                np.bincount(self.keys(normal), minlength=size),
                np.bincount(self.keys(anomalous), minlength=size),
            ]
        )


def rank(stored: npt.NDArray[Any], bins: ScoreBins | None) -> tuple[npt.NDArray[np.integer], int]:
    """Return the keys by which scores of any shape are ranked, and how many keys there are.

    They are the bins of the scores, or without bins their 16-bit keys.

    Raises:
        InputError: there are no bins, and float scores have no 16-bit keys.
    """
    if bins is None:
        return score_keys(stored), KEYS
    return bins.keys(stored), bins.size


class BinFinder:
    """Collects the edges of the bins of a score over all frames.

    Attributes:
        wide: whether float16 would round a score, so that bins must rank it.
    """

    def __init__(self, rows: int = 0, most: int = MAX_BINS) -> None:
        """Take at most ``most`` edges; ``rows`` of counts by bin are held by the evaluation."""
        most = min(most, max(MAX_CELLS // max(rows, 1), MIN_BINS))
        self._samples = _Sample(most // 2), _Sample(most // 4)  # a positive score takes two edges
        self.wide = False

    def add(self, scores: Scores, rows: npt.NDArray[np.uint8]) -> None:
        """Take in a frame.

        Raises:
            InputError: a labelled score is NaN or infinite.
        """
        for sample, part in zip(self._samples, _split(scores, rows), strict=True):
            sample.add(part)
        self.wide = self.wide or not fits_half(scores, rows)

    def bins(self, *, gaps: bool = False) -> ScoreBins | None:
        """Return the bins of all frames so far; None without a labelled pixel.

        With ``gaps`` the number right above each negative score is an edge too, even above the
        highest: the lowest threshold that does not flag that score. Then there may be half as many
        more edges.
        """
        negative, positive = self._samples
        if not negative.pixels and not positive.pixels:
            return None
        ends = (min(negative.low, positive.low), max(negative.high, positive.high))
        parts = [positive.scores, _next_above(positive.scores), negative.scores]
        if gaps:
            parts.append(_next_above(negative.scores))
        edges = np.unique(np.concatenate([*parts, np.array(ends, np.result_type(*parts))]))
        if gaps:
            # The highest score itself may be no part of the samples.
            edges = np.unique(np.append(edges, _next_above(edges[-1:])))
            return ScoreBins(edges[np.isfinite(edges)])
        return ScoreBins(edges[edges <= ends[1]])


def _next_above(scores: Scores) -> Scores:
    return np.asarray(np.nextafter(scores, scores.dtype.type(np.inf)))


class _Sample:
    """Every n-th score of one kind of pixels, at most ``most``; n doubles as pixels come in."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.step = 1
        self.random = np.random.default_rng(0)
        self.scores: Scores = np.zeros(0, np.float32)
        self.pixels = 0
        self.low = np.inf
        self.high = -np.inf

    def add(self, scores: Scores) -> None:
        if not len(scores):
            return
        # From where the last frame ended, so that small frames are not passed over, and not the
        # same columns of each row.
        starts = np.arange(-self.pixels % self.step, len(scores), self.step)
        picked = starts + self.random.integers(self.step, size=len(starts))
        picked = np.minimum(picked, len(scores) - 1)
        self.scores = np.concatenate([self.scores, scores[picked]])
        if self.step == 1:
            self.scores = np.unique(self.scores)
        while len(self.scores) > self.most:
            self.scores = np.sort(self.scores)[::2]
            self.step *= 2
        self.pixels += len(scores)
        self.low = min(self.low, float(scores.min()))
        self.high = max(self.high, float(scores.max()))


def _split(scores: Scores, rows: npt.NDArray[np.uint8]) -> list[Scores]:
    """Return the scores of row 0 and of row 1, float32 or float64.

    Raises:
        InputError: one of them is NaN or infinite.
    """
    wide = scores.astype(np.float32) if scores.dtype == np.float16 else scores
    parts = [wide[rows == row] for row in (0, 1)]
    if not all(np.isfinite(part).all() for part in parts):
        hint = "repair the map, or mark such pixels as ignored in the labels"
        raise InputError("a score is NaN or infinite", hint=hint)
    return parts


@dataclass(frozen=True)
class DetectionCurve:
    """Cumulated counts at each of T distinct scores, from the highest score down.

    Rates are in 0..1 at each, and NaN where the curve is ``undefined``.

    Attributes:
        thresholds: the distinct scores, descending, as keys or as values, ``[T]``.
        true_positives: anomalous pixels at or above each threshold, ``[T]``; the last is their
            total.
        false_positives: normal pixels at or above each threshold, ``[T]``; the last is their total.
    """

    thresholds: npt.NDArray[np.generic]
    true_positives: npt.NDArray[np.int64]
    false_positives: npt.NDArray[np.int64]

    @property
    def positives(self) -> int:
        return int(self.true_positives[-1]) if len(self.true_positives) else 0

    @property
    def negatives(self) -> int:
        return int(self.false_positives[-1]) if len(self.false_positives) else 0

    @property
    def undefined(self) -> str | None:
        """Why no number can be made of this curve, None where one can."""
        if self.positives == 0:
            return NO_ANOMALY
        return NO_NORMAL if self.negatives == 0 else None

    @property
    def recall(self) -> Floats:
        return self.true_positives / (self.positives or np.nan)

    @property
    def false_positive_rate(self) -> Floats:
        return self.false_positives / (self.negatives or np.nan)

    @property
    def precision(self) -> Floats:
        return self.true_positives / (self.true_positives + self.false_positives)


def detection_curve(counts: Counts) -> DetectionCurve:
    """Return the curve of counts by key or bin ``[2, K]``.

    It has one point for each key that occurs, from the highest down.
    """
    keys = np.flatnonzero(counts.any(axis=0))[::-1]
    used = counts.take(keys, axis=1)  # several times faster than counts[:, keys]
    normal, anomalous = used.cumsum(axis=1)
    return DetectionCurve(keys, anomalous, normal)


def auroc(curve: DetectionCurve) -> float | None:
    """Return the area under the ROC curve by the trapezoid.

    A tie of an anomalous and a normal pixel counts one half.
    """
    if curve.undefined:
        return None
    # In float64: the product of two pixel counts of a large set does not fit in 64-bit integers.
    height = (2 * curve.true_positives - steps(curve.true_positives)) / (2.0 * curve.positives)
    return float(np.sum(height * (steps(curve.false_positives) / curve.negatives)))


def average_precision(curve: DetectionCurve) -> float | None:
    """Return the area under the precision-recall curve by the step rule, as scikit-learn does.

    It is the sum of (R_k - R_{k-1}) P_k; the trapezoid would give another, larger number.
    """
    if curve.undefined:
        return None
    return float(np.sum(steps(curve.true_positives) / curve.positives * curve.precision))


def fpr_at_recall(curve: DetectionCurve, recall: float = 0.95) -> float | None:
    """Return the false positive rate at the highest threshold that reaches a recall in 0..1.

    There is no interpolation, so the recall that is reached may be higher.
    """
    if curve.undefined:
        return None
    # The quotient is rounded correctly, so a recall of exactly 19/20 is not below the literal 0.95.
    return float(curve.false_positive_rate[int(np.argmax(curve.recall >= recall))])


def areas(curve: DetectionCurve) -> tuple[float | None, float | None, float | None]:
    """Return AUROC, AUPR and FPR95, None where the curve is ``undefined``."""
    return auroc(curve), average_precision(curve), fpr_at_recall(curve)


def at_or_above(counts: Floats) -> Floats:
    """Return the pixels at or above each key or bin, of counts ``[..., K]``."""
    return counts[..., ::-1].cumsum(-1)[..., ::-1]


def numbers_of_many(normal: Floats, anomalous: Floats, above: Floats, *, f1: bool = True) -> Floats:
    """Return AUROC, AUPR, FPR95 and best F1 of many curves at once, ``[4, R]``, NaN if undefined.

    They are those of :func:`areas` and :func:`best_f1` of each curve, except for the rounding of
    their sums. Keys without an anomalous pixel decide none of them.

    Args:
        normal: pixels by key or bin, ``[R, K]``.
        anomalous: likewise.
        above: the normal ones :func:`at_or_above` each key, ``[R, K]``.
        f1: whether best F1 is one of the numbers.
    """
    keys = np.flatnonzero(anomalous.any(axis=0))[::-1]
    if not len(keys):
        return np.full((3 + f1, len(normal)), np.nan)
    negatives = above[:, :1]
    added = anomalous[:, keys]
    false = above[:, keys]
    true = added.cumsum(1)
    positives = true[:, -1:]
    with np.errstate(invalid="ignore", divide="ignore"):
        # Pairs of pixels whose normal one is at or above the anomalous one; of ties half count.
        pairs_above = np.einsum("rk,rk->r", added, false)
        pairs_tied = np.einsum("rk,rk->r", added, normal[:, keys])
        auroc_row = 1 - (pairs_above - pairs_tied / 2) / (positives * negatives)[:, 0]
        flagged = true + false
        aupr_row = np.einsum("rk,rk->r", added, true / np.maximum(flagged, 1)) / positives[:, 0]
        reached = np.argmax(true / positives >= 0.95, axis=1)
        fpr95_row = np.take_along_axis(false, reached[:, None], 1)[:, 0] / negatives[:, 0]
        rows = [auroc_row, aupr_row, fpr95_row]
        if f1:
            rows.append((2 * true / (flagged + positives)).max(1))
    numbers = np.stack(rows)
    numbers[:, ((positives == 0) | (negatives == 0))[:, 0]] = np.nan
    return numbers


def best_f1(curve: DetectionCurve) -> tuple[float, int | float] | None:
    """Return the largest F1 = 2 TP / (2 TP + FP + FN) over all thresholds, and its threshold.

    Of several thresholds it is the highest, which marks the fewest pixels.
    """
    if curve.undefined:
        return None
    flagged = curve.true_positives + curve.false_positives
    f1 = 2.0 * curve.true_positives / (flagged + curve.positives)
    best = int(np.argmax(f1))
    return float(f1[best]), curve.thresholds[best].item()
