"""Frames as a whole: how well one number of the map (:mod:`segunc.metrics.aggregates`) finds frames with an anomaly, and frames that are
segmented badly. Counts are float64 ``[N, 1 + A]``, one row a frame: what is true of it, and its A numbers. Rows of further frames are put
below: bins of a fixed shape would not tell means apart that lie close together. So these numbers have no interval."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from segunc.evaluation import parts
from segunc.evaluation.parts import ArrayPart, Forms, LabelledFrame, Numbers
from segunc.evaluation.resampling import NumberPath
from segunc.metrics.aggregates import MASSES, OF_ANY, OF_THRESHOLD, aggregates
from segunc.metrics.counting import (
    STEPS_PER_FRACTION,
    Counts,
    Floats,
    areas,
    detection_curve,
    grouped_sums,
    to_fixed_point,
)
from segunc.metrics.prediction import RiskCoverage, aurc, confusion_matrix, mean_iou
from segunc.scores import SCORES


class _Frames(ArrayPart):
    batch = 128

    def __init__(self, score: str) -> None:
        self.score, self.section, known = score, ("frames", score), SCORES.get(score)
        self.threshold = known.threshold if known else None
        self.masses = known is not None and (known.lower, known.upper) == (0, 1)
        self.aggregates = OF_ANY + OF_THRESHOLD * (self.threshold is not None) + MASSES * self.masses
        self.names = tuple((name, metric.key) for name in self.aggregates for metric in self.metrics)
        self.point = frozenset(self.names)

    @abstractmethod
    def truth(self, frame: LabelledFrame) -> float | None:
        """Return what is true of a frame: NaN without a labelled pixel, None without a label."""

    @abstractmethod
    def judge(self, truth: Floats, values: Floats) -> Sequence[float | None]:
        """Return the numbers of frames with a truth ``[N]`` that are ranked by values ``[N]``."""

    def count(self, frame: LabelledFrame) -> Floats | None:
        truth = self.truth(frame)
        if truth is None:
            return None
        if self.score not in frame.aggregates:  # of both parts
            frame.aggregates[self.score] = aggregates(frame.values(self.score), self.threshold, masses=self.masses)
        return np.array([[truth, *(frame.aggregates[self.score].get(name, np.nan) for name in self.aggregates)]])

    def combine(self, counts: Sequence[Floats]) -> Floats:
        return np.concatenate(counts)

    def coarsen(self, counts: Any) -> Counts:
        return np.zeros(0, np.int64)

    def refine(self, coarse: Counts) -> Floats:
        return np.zeros((0, 1 + len(self.aggregates)))

    def numbers(self, counts: Floats, forms: Forms) -> Numbers:
        truth, *columns = counts[np.isfinite(counts).all(axis=1)].T
        values = [number for column in columns for number in self.judge(truth, column)]
        return dict(zip(self.names, values, strict=True))


class AnomalousFrames(_Frames):
    """AUROC and AUPR of frames with at least one anomalous pixel against the others."""

    needs, lacks = "anomaly", parts.NO_ANOMALY_LABEL
    metrics = parts.AREAS[:2]

    def truth(self, frame: LabelledFrame) -> float | None:
        normal, anomalous, _ = frame.anomaly_pixels.tolist()
        return None if frame.anomaly is None else float(anomalous > 0) if normal + anomalous else np.nan

    def judge(self, truth: Floats, values: Floats) -> Sequence[float | None]:
        distinct, ranks = np.unique(values, return_inverse=True)
        rows = [np.bincount(ranks[truth == kind], minlength=len(distinct)) for kind in (0, 1)]
        return areas(detection_curve(np.stack(rows)))[:2]

    def why(self, counts: Floats, name: NumberPath) -> str:
        return f"{'every' if (counts[:, 0] == 1).any() else 'no'} frame holds an anomaly"


class FailedFrames(_Frames):
    """AURC and excess AURC of frames, whose risk is 1 less the mean IoU of the frame: the mean risk of the accepted ones over all
    coverages, and what of it a ranking by the risk itself would save (Geifman et al. 2019, arXiv 1805.08206)."""

    needs, undefined = "class", parts.ALL_IGNORED
    metrics = parts.lower("aurc", "AURC"), parts.lower("eaurc", "excess AURC")

    def __init__(self, score: str, classes: int) -> None:
        super().__init__(score)
        self.classes, self.lacks = classes, f"no labelled frame has a prediction and a map '{score}'"

    def truth(self, frame: LabelledFrame) -> float | None:
        if frame.labels is None or frame.prediction is None or self.score not in frame.stored:
            return None
        iou = mean_iou(confusion_matrix(frame.labels, frame.prediction, self.classes))
        return np.nan if iou is None else 1 - iou

    def judge(self, truth: Floats, values: Floats) -> Sequence[float | None]:
        found: list[float | None] = []
        for order in (values, truth):
            distinct, ranks, frames = np.unique(order, return_inverse=True, return_counts=True)
            risks = grouped_sums(ranks, to_fixed_point(truth, STEPS_PER_FRACTION), len(distinct))
            found.append(aurc(RiskCoverage(frames.cumsum(), risks.cumsum())))
        area, best = (None if steps is None else steps / STEPS_PER_FRACTION for steps in found)
        return area, None if area is None or best is None else area - best


def frame_parts(scores: Sequence[str], classes: Sequence[str], protocols: Sequence[str]) -> list[ArrayPart]:
    """Return the parts of the labels that there are."""
    anomalous: list[ArrayPart] = [AnomalousFrames(score) for score in scores if protocols]
    return [*anomalous, *(FailedFrames(score, len(classes)) for score in scores if classes)]
