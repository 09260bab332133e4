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
    areas,
    detection_curve,
    grouped_sums,
    to_fixed_point,
)
from segunc.metrics.prediction import RiskCoverage, aurc, confusion_matrix, mean_iou
from segunc.scores import SCORES, first_shown

FRAME_METRICS = *parts.AREAS[:2], parts.lower("aurc", "AURC"), parts.lower("eaurc", "excess AURC")
EDGE, BINS = (
    0.2,
    4,
)  # gradient above which a pixel is an edge, and bins of the entropy, as in the study's package
MOST_PIXELS = (
    1 << 16
)  # of a map whose windows are looked at; a larger one is shrunk, or it would take longest of all
# Sobel's derivative, and smoothing, which comes first as in SciPy, at the places of a window that
# is mirrored at its ends.
_SLOPE, _SMOOTH = np.array(
    [[[-1.0, 1, 0], [-1, 0, 1], [0, -1, 1]], [[3.0, 1, 0], [1, 2, 1], [0, 1, 3]]]
)


class RankedFrames(ArrayPart):
    """AUROC and AUPR of frames with an anomalous pixel against the others; of as many ``classes``
    AURC and excess AURC of frames, whose risk is 1 less the mean IoU (Geifman et al. 2019, arXiv
    1805.08206). Its counts are float64 ``[N, 1 + A]``, a row a frame: what is true of it, NaN where
    no pixel is labelled, and its A numbers. Bins could not tell close means apart, so there are no
    intervals.
    """

    batch = 128

    def __init__(self, score: str, classes: int = 0) -> None:
        self.score, self.classes, self.section, entry = (
            score,
            classes,
            ("frames", score),
            SCORES.get(score),
        )
        self.threshold: float | None = entry and entry.threshold
        self.masses = entry is not None and (entry.lower, entry.upper) == (0, 1)
        self.needs, self.metrics = (
            ("class", FRAME_METRICS[2:]) if classes else ("anomaly", FRAME_METRICS[:2])
        )
        self.lacks = (
            f"no labelled frame has a prediction and a map '{score}'"
            if classes
            else parts.NO_ANOMALY_LABEL
        )
        self.undefined = (
            parts.ALL_IGNORED if classes else "every frame holds an anomaly, or none does"
        )
        kinds = aggregates(np.zeros((3, 3)), self.threshold, masses=self.masses)
        self.names = tuple((kind, metric.key) for kind in kinds for metric in self.metrics)
        self.point = frozenset(self.names)

    def count(self, frame: LabelledFrame) -> Array | None:
        labels = frame.labels if self.classes else frame.anomaly
        if (
            labels is None
            or self.score not in frame.stored
            or (self.classes and frame.prediction is None)
        ):
            return None
        truth: float | None = (
            float(frame.anomaly_pixels[1] > 0) if frame.anomaly_pixels[:2].any() else None
        )
        if self.classes and frame.prediction is not None:
            iou = mean_iou(confusion_matrix(labels, frame.prediction, self.classes))
            truth = None if iou is None else 1 - iou
        numbers = aggregates(frame.values(self.score), self.threshold, masses=self.masses).values()
        return np.array([[truth, *numbers]], np.float64) if numbers else None  # None becomes NaN

    def combine(self, counts: Sequence[Array]) -> Array:
        return np.concatenate(counts)

    def numbers(self, counts: Array, forms: Forms) -> Numbers:
        truth, *columns = counts[~np.isnan(counts[:, 0])].T
        values: list[float | None] = []
        for column in columns if truth.size else ():
            _, ranks, frames = np.unique(column, return_inverse=True, return_counts=True)
            sums = grouped_sums(ranks, to_fixed_point(truth, STEPS_PER_FRACTION), len(frames))
            if self.classes:
                area = (
                    aurc(RiskCoverage(frames.cumsum(), sums.cumsum())) or 0.0
                ) / STEPS_PER_FRACTION
                best = float(np.mean(np.sort(truth).cumsum() / np.arange(1, len(truth) + 1)))
                values += [area, max(area - best, 0.0)]
            else:
                sums //= STEPS_PER_FRACTION
                values += areas(detection_curve(np.stack([frames - sums, sums])))[:2]
        return dict.fromkeys(self.names) | dict(zip(self.names, values, strict=False))


def frame_parts(
    scores: Sequence[str], classes: Sequence[str], protocols: Sequence[str]
) -> list[ArrayPart]:
    """Return the parts of the labels that there are, of one score: the numbers of a frame take
    longer than all other counts.
    """
    chosen = [first_shown(scores)] if scores else []
    return [
        RankedFrames(score, n)
        for n, on in ((0, protocols), (len(classes), classes))
        if on
        for score in chosen
    ]


def aggregates(
    values: Array, threshold: float | None = None, *, masses: bool = False
) -> dict[str, float]:
    """Return the numbers of a map ``[H, W]`` in real units, none where no pixel is finite; other
    pixels count for none.

    ``mean`` and ``p99``; with a ``threshold`` the mean of the pixels at or ``above`` it (0 of
    none), and ``component`` and ``region`` as :func:`segunc.maps.regions.map_statistics` has
    them; with ``masses``, of a map in 0..1, its :func:`mass_ratios`.
    """
    if not (finite := np.isfinite(values)).any():
        return {}
    numbers = map_statistics(values, threshold, finite)
    del numbers["max"]  # one pixel of noise
    if threshold is not None:
        high = values[finite & is_flagged(values, threshold)]
        numbers["above"] = float(high.mean(dtype=np.float64)) if high.size else 0.0
    return numbers | (mass_ratios(np.nan_to_num(values).clip(0, 1)) if masses else {})


def mass_ratios(values: Array) -> dict[str, float]:
    """Return the spatial mass ratios sum(u w) / sum(u) of a map u ``[H, W]`` in 0..1, by their
    names; 0 of an empty map.

    The weights w are of the window of 3 x 3 pixels around each: the share of edges among them by a
    Sobel gradient of the window alone; Moran's I of its 12 pairs of neighbours, negative ones as 0
    and 1 of a constant window; the entropy of its values in four bins.
    """
    factor = int(np.ceil(np.sqrt(values.size / MOST_PIXELS)))
    size = [max(side // max(factor, 1), 1) for side in values.shape[::-1]]
    values = np.asarray(
        cv2.resize(values.astype(np.float64), size, interpolation=cv2.INTER_AREA), np.float64
    )
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(values, 1, mode="reflect"), (3, 3))
    edges = (np.hypot(_SLOPE @ (windows @ _SMOOTH.T), _SMOOTH @ windows @ _SLOPE.T) > EDGE).mean(
        (2, 3)
    )
    offsets, constant = windows - windows.mean((2, 3), keepdims=True), np.ptp(windows, (2, 3)) == 0
    pairs = sum(
        (offsets.take([0, 1], axis) * offsets.take([1, 2], axis)).sum((2, 3)) for axis in (2, 3)
    )
    moran = np.maximum(
        9 / 12 * pairs / np.where(constant, 1.0, np.square(offsets).sum((2, 3))), constant
    )
    bins = np.minimum((windows * BINS).astype(np.int64), BINS - 1)
    shares = np.stack([(bins == place).mean((2, 3)) for place in range(BINS)])
    entropy = -(shares * np.log2(np.maximum(shares, 1e-12))).sum(0) / np.log2(BINS)
    weights = {"edge-mass": edges, "moran-mass": moran, "entropy-mass": entropy}
    return {name: float((values * w).sum() / (values.sum() or 1.0)) for name, w in weights.items()}
