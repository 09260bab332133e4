"""Frames as a whole: one number of the map, and how well it finds frames with an anomaly, or
segmented badly. Which number serves depends on the data (Guarino et al. 2026, "Better than average:
spatially-aware aggregation of segmentation uncertainty", arXiv 2603.29941).
"""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

from segunc.evaluation import parts
from segunc.evaluation.parts import Array, ArrayPart, Forms, LabelledFrame, Numbers
from segunc.maps.encoding import is_flagged
from segunc.maps.regions import map_statistics
from segunc.metrics.counting import (
    STEPS_PER_FRACTION,
    Counts,
    areas,
    detection_curve,
    grouped_sums,
    to_fixed_point,
)
from segunc.metrics.prediction import RiskCoverage, aurc, confusion_matrix, mean_iou
from segunc.scores import SCORES, first_shown

_ANOMALY_METRICS = parts.AREAS[:2]
_CLASS_METRICS = (parts.lower("aurc", "AURC"), parts.lower("eaurc", "excess AURC"))
FRAME_METRICS = (*_ANOMALY_METRICS, *_CLASS_METRICS)
EDGE_GRADIENT = 0.2  # above it a pixel is an edge, as in the study's package
ENTROPY_BINS = 4  # of the values of a window, as in the study's package
# A larger map is shrunk before its windows are looked at, which would take longest of all.
MAX_WINDOW_PIXELS = 1 << 16
# Sobel's derivative, and smoothing, which comes first as in SciPy, at the places of a window that
# is mirrored at its ends.
_SLOPE = np.array([[-1.0, 1, 0], [-1, 0, 1], [0, -1, 1]])
_SMOOTH = np.array([[3.0, 1, 0], [1, 2, 1], [0, 1, 3]])


class RankedFrames(ArrayPart):
    """How a score ranks whole frames: those with an anomaly, or those that are segmented badly.

    Without ``classes``: AUROC and AUPR of frames with an anomalous pixel against the others. With
    that many classes: AURC and excess AURC of frames, whose risk is 1 less the mean IoU (Geifman et
    al. 2019, arXiv 1805.08206).

    Its counts are float64 ``[N, 1 + A]``, a row a frame: its truth (whether it has an anomaly, or
    its risk), NaN where no pixel is labelled, and its A aggregates. Bins could not tell close means
    apart, so there are no intervals.
    """

    batch = 128

    def __init__(self, score: str, classes: int = 0) -> None:
        self.score = score
        self.classes = classes
        self.section = ("frames", score)
        entry = SCORES.get(score)
        self.threshold: float | None = entry and entry.threshold
        self.masses = entry is not None and (entry.lower, entry.upper) == (0, 1)
        if classes:
            self.needs = "class"
            self.metrics = _CLASS_METRICS
            self.lacks = f"no labelled frame has a prediction and a map '{score}'"
            self.undefined = parts.ALL_IGNORED
        else:
            self.needs = "anomaly"
            self.metrics = _ANOMALY_METRICS
            self.lacks = parts.NO_ANOMALY_LABEL
            self.undefined = "every frame with an anomaly label holds an anomaly, or none does"
        kinds = aggregates(np.zeros((3, 3)), self.threshold, masses=self.masses)
        self.names = tuple((kind, metric.key) for kind in kinds for metric in self.metrics)
        self.point = frozenset(self.names)

    def count(self, frame: LabelledFrame) -> Array | None:
        labels = frame.labels if self.classes else frame.anomaly
        if labels is None or self.score not in frame.stored:
            return None
        if self.classes and frame.prediction is None:
            return None
        truth = self._risk(frame) if self.classes else _holds_anomaly(frame)
        numbers = aggregates(
            frame.values(self.score), self.threshold, masses=self.masses, kept=frame.kept
        )
        if not numbers:
            return None
        return np.array([[truth, *numbers.values()]], np.float64)  # None becomes NaN

    def combine(self, counts: Sequence[Array]) -> Array:
        return np.concatenate(counts)

    def numbers(self, counts: Array, forms: Forms) -> Numbers:
        numbers: Numbers = dict.fromkeys(self.names)
        labelled = counts[~np.isnan(counts[:, 0])]
        if not len(labelled):
            return numbers
        truth, *columns = labelled.T
        values: list[float | None] = []
        for column in columns:
            _, ranks, frames = np.unique(column, return_inverse=True, return_counts=True)
            sums = grouped_sums(ranks, to_fixed_point(truth, STEPS_PER_FRACTION), len(frames))
            if self.classes:
                values += _risk_coverage_numbers(truth, frames, sums)
            else:
                anomalous = sums // STEPS_PER_FRACTION
                curve = detection_curve(np.stack([frames - anomalous, anomalous]))
                values += areas(curve)[:2]
        return numbers | dict(zip(self.names, values, strict=True))

    def _risk(self, frame: LabelledFrame) -> float | None:
        """Return 1 less the mean IoU of a frame; None without a labelled pixel."""
        assert frame.labels is not None
        assert frame.prediction is not None
        iou = mean_iou(confusion_matrix(frame.labels, frame.prediction, self.classes))
        return None if iou is None else 1 - iou


def _holds_anomaly(frame: LabelledFrame) -> float | None:
    """Return 1 for a frame with an anomalous pixel, 0 for others; None without a labelled pixel."""
    normal, anomalous, _ = frame.anomaly_pixels
    if not normal and not anomalous:
        return None
    return float(anomalous > 0)


def _risk_coverage_numbers(truth: Array, frames: Counts, sums: Counts) -> list[float]:
    """Return AURC, and its excess over that of the best order of the frames.

    Args:
        truth: the risk of each frame, ``[N]``.
        frames: how many frames have each rank, ``[T]``, from the most certain up.
        sums: the summed risks of each rank in steps of ``STEPS_PER_FRACTION``, ``[T]``.
    """
    area = (aurc(RiskCoverage(frames.cumsum(), sums.cumsum())) or 0.0) / STEPS_PER_FRACTION
    accepted = np.arange(1, len(truth) + 1)
    best = float(np.mean(np.sort(truth).cumsum() / accepted))
    return [area, max(area - best, 0.0)]


def frame_parts(
    scores: Sequence[str], classes: Sequence[str], protocols: Sequence[str]
) -> list[ArrayPart]:
    """Return the parts of the labels that there are, of one score.

    One score, because the numbers of a frame take longer than all other counts.
    """
    if not scores:
        return []
    score = first_shown(scores)
    chosen: list[ArrayPart] = []
    if protocols:
        chosen.append(RankedFrames(score))
    if classes:
        chosen.append(RankedFrames(score, len(classes)))
    return chosen


def aggregates(
    values: Array,
    threshold: float | None = None,
    *,
    masses: bool = False,
    kept: Array | None = None,
) -> dict[str, float]:
    """Return the numbers of a map ``[H, W]`` in real units; none where no pixel is finite.

    ``mean`` and ``p99``; with a ``threshold`` the mean of the pixels at or ``above`` it (0 of
    none), and ``component`` and ``region`` as :func:`segunc.maps.statistics.map_statistics` has
    them; with ``masses``, of a map in 0..1, its :func:`mass_ratios`. Pixels that are not finite
    count for none, and neither do those that are not ``kept``, bool ``[H, W]``.
    """
    finite = np.isfinite(values)
    if kept is not None:
        finite &= kept
    if not finite.any():
        return {}
    numbers = map_statistics(values, threshold, finite)
    del numbers["max"]  # one pixel of noise
    if threshold is not None:
        high = values[finite & is_flagged(values, threshold)]
        numbers["above"] = float(high.mean(dtype=np.float64)) if high.size else 0.0
    if masses:
        numbers |= mass_ratios(np.where(finite, values, 0).clip(0, 1))
    return numbers


def mass_ratios(values: Array) -> dict[str, float]:
    """Return the spatial mass ratios of a map by their names.

    A ratio is sum(u w) / sum(u) of a map u ``[H, W]`` in 0..1, and 0 of an empty map. The weights w
    are of the window of 3 x 3 pixels around each pixel: the share of edges among them by a Sobel
    gradient of the window alone; Moran's I of its 12 pairs of neighbours, negative ones as 0 and 1
    of a constant window; the entropy of its values in four bins.
    """
    values = _shrunk(values)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(values, 1, mode="reflect"), (3, 3))
    weights = {
        "edge-mass": _edge_shares(windows),
        "moran-mass": _moran(windows),
        "entropy-mass": _entropies(windows),
    }
    mass = values.sum() or 1.0
    ratios: dict[str, float] = {}
    for name, weight in weights.items():
        ratios[name] = float((values * weight).sum() / mass)
    return ratios


def _shrunk(values: Array) -> Array:
    """Return a map with at most about :data:`MAX_WINDOW_PIXELS` pixels, float64."""
    factor = max(int(np.ceil(np.sqrt(values.size / MAX_WINDOW_PIXELS))), 1)
    height, width = values.shape
    size = [max(width // factor, 1), max(height // factor, 1)]
    shrunk = cv2.resize(values.astype(np.float64), size, interpolation=cv2.INTER_AREA)
    return np.asarray(shrunk, np.float64)


def _edge_shares(windows: Array) -> Array:
    """Return the share of edges in each window, ``[H, W]`` of windows ``[H, W, 3, 3]``."""
    along_rows = _SLOPE @ (windows @ _SMOOTH.T)
    along_columns = _SMOOTH @ windows @ _SLOPE.T
    edges = np.hypot(along_rows, along_columns) > EDGE_GRADIENT
    return np.asarray(edges.mean((2, 3)))


def _moran(windows: Array) -> Array:
    """Return Moran's I of each window, ``[H, W]`` of windows ``[H, W, 3, 3]``."""
    constant = np.ptp(windows, (2, 3)) == 0
    offsets = windows - windows.mean((2, 3), keepdims=True)
    pairs = 0
    for axis in (2, 3):
        products = offsets.take([0, 1], axis) * offsets.take([1, 2], axis)
        pairs = pairs + products.sum((2, 3))
    squares = np.where(constant, 1.0, np.square(offsets).sum((2, 3)))
    return np.asarray(np.maximum(9 / 12 * pairs / squares, constant))


def _entropies(windows: Array) -> Array:
    """Return the entropy of the values of each window in 0..1, ``[H, W]`` of ``[H, W, 3, 3]``."""
    bins = np.minimum((windows * ENTROPY_BINS).astype(np.int64), ENTROPY_BINS - 1)
    shares = np.stack([(bins == number).mean((2, 3)) for number in range(ENTROPY_BINS)])
    bits = -(shares * np.log2(np.maximum(shares, 1e-12))).sum(0)
    return np.asarray(bits / np.log2(ENTROPY_BINS))
