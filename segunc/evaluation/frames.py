"""Frames as a whole: how the numbers of their maps (:mod:`segunc.metrics.aggregates`) tell frames with an anomaly from others, and frames
that are segmented badly from those that are segmented well.

Counts are int64 ``[N, 2 + A]``, one row a frame: how often it is drawn, what is true of it, and the bits of its A numbers as float64. They
add by putting rows below each other. Bins of a fixed shape would not do: the means of frames lie close together. A replicate of the
bootstrap multiplies the first column (:attr:`ArrayPart.listed`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from segunc.evaluation import parts
from segunc.evaluation.parts import ArrayPart, Forms, LabelledFrame, ManyNumbers, Numbers
from segunc.evaluation.resampling import NumberPath
from segunc.metrics.aggregates import MASSES, OF_ANY, OF_THRESHOLD
from segunc.metrics.counting import STEPS_PER_FRACTION, Counts, Floats, at_or_above, numbers_of_many, to_fixed_point
from segunc.metrics.prediction import confusion_matrix, mean_iou
from segunc.scores import SCORES


class _Frames(ArrayPart):
    listed, batch = True, 128

    def __init__(self, score: str) -> None:
        self.score, self.section, known = score, ("frames", score), SCORES.get(score)
        self.threshold = known.threshold if known else None
        self.masses = known is not None and (known.lower, known.upper) == (0, 1)
        of_threshold = OF_THRESHOLD if self.threshold is not None else ()
        self.aggregates = (*OF_ANY, *of_threshold, *(MASSES if self.masses else ()))
        self.names = tuple((name, metric.key) for name in self.aggregates for metric in self.metrics)

    def row(self, frame: LabelledFrame, labelled: bool, truth: int) -> Counts:
        """Return the row of a frame; without a labelled pixel it is not drawn."""
        numbers = frame.aggregates(self.score, self.threshold, self.masses)
        bits = np.array([numbers.get(name, 0.0) for name in self.aggregates]).view(np.int64)
        return np.array([[int(labelled and bool(numbers)), truth, *bits.tolist()]], np.int64)

    def combine(self, counts: Sequence[Counts]) -> Counts:
        return np.concatenate(counts)

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        many = self.numbers_of_many(counts[None], forms)
        return {name: None if np.isnan(values[0]) else float(values[0]) for name, values in many.items()}

    def numbers_of_many(self, coarse: npt.NDArray[Any], forms: Forms) -> ManyNumbers:
        columns = np.ascontiguousarray(coarse[0, :, 2:].T).view(np.float64)
        rows = [row for column in columns for row in self.of_order(coarse[..., 0], coarse[0, :, 1], column)]
        return dict(zip(self.names, rows, strict=True))

    @abstractmethod
    def of_order(self, drawn: Counts, truth: Counts, values: Floats) -> Sequence[Floats]:
        """Return the numbers ``[R]`` of R draws ``[R, N]`` of frames that are ranked by values ``[N]``."""


class AnomalousFrames(_Frames):
    """AUROC and AUPR of frames with at least one anomalous pixel against the others."""

    needs, lacks = "anomaly", parts.NO_ANOMALY_LABEL
    metrics = parts.AREAS[:2]

    def count(self, frame: LabelledFrame) -> Counts | None:
        normal, anomalous, _ = frame.anomaly_pixels.tolist()
        return None if frame.anomaly is None else self.row(frame, normal + anomalous > 0, int(anomalous > 0))

    def of_order(self, drawn: Counts, truth: Counts, values: Floats) -> Sequence[Floats]:
        normal, anomalous = (by_value(drawn * (truth == kind), values).astype(np.float64) for kind in (0, 1))
        return [*numbers_of_many(normal, anomalous, at_or_above(normal), f1=False)[:2]]

    def why(self, counts: Counts, name: NumberPath) -> str:
        return f"{'every' if (counts[:, 0] * counts[:, 1]).any() else 'no'} frame holds an anomaly"


class FailedFrames(_Frames):
    """AURC and excess AURC of frames, whose risk is 1 less the mean IoU of the frame: the mean risk of the accepted ones over all
    coverages, and what of it a ranking by the risk itself would save (Geifman et al. 2019, arXiv 1805.08206)."""

    needs, undefined = "class", parts.ALL_IGNORED
    metrics = parts.lower("aurc", "AURC"), parts.lower("eaurc", "excess AURC")

    def __init__(self, score: str, classes: int) -> None:
        super().__init__(score)
        self.classes, self.lacks = classes, f"no labelled frame has a prediction and a map '{score}'"

    def count(self, frame: LabelledFrame) -> Counts | None:
        if frame.labels is None or frame.prediction is None or self.score not in frame.stored:
            return None
        iou = mean_iou(confusion_matrix(frame.labels, frame.prediction, self.classes))
        return self.row(frame, iou is not None, int(to_fixed_point(1 - (iou or 0.0), STEPS_PER_FRACTION)))

    def of_order(self, drawn: Counts, truth: Counts, values: Floats) -> Sequence[Floats]:
        area = area_of_risk(drawn, truth, values)
        return [area, area - area_of_risk(drawn, truth, truth)]


def by_value(weights: Counts, values: npt.NDArray[np.generic]) -> Counts:
    """Return the sums of weights ``[R, N]`` over equal values ``[N]``, in the rising order of the values, ``[R, K]``."""
    order = np.argsort(values, kind="stable")
    starts = np.flatnonzero(np.append(True, values[order][1:] != values[order][:-1]))
    return np.asarray(np.add.reduceat(weights[:, order], starts, axis=1), np.int64)


def area_of_risk(drawn: Counts, risk: Counts, values: npt.NDArray[np.generic]) -> Floats:
    """Return the AURC of R draws ``[R, N]`` of frames with a risk ``[N]`` in fixed point that are accepted from the lowest value up,
    ``[R]``, NaN without a frame. Equal values are expected over all their orders, as :func:`segunc.metrics.prediction.aurc` does."""
    number, added = by_value(drawn, values), by_value(drawn * risk, values) / STEPS_PER_FRACTION
    after, total = number.cumsum(1), added.cumsum(1)
    harmonic = np.append(0.0, np.cumsum(1 / np.arange(1, after.max() + 1)))
    share = added / np.maximum(number, 1)
    sums = added + (total - added - (after - number) * share) * (harmonic[after] - harmonic[after - number])
    with np.errstate(invalid="ignore"):
        return np.asarray(sums.sum(1) / after[:, -1])


def frame_parts(scores: Sequence[str], classes: Sequence[str], protocols: Sequence[str]) -> list[ArrayPart]:
    """Return the parts of the labels that there are."""
    anomalous: list[ArrayPart] = [AnomalousFrames(score) for score in scores if protocols]
    return [*anomalous, *(FailedFrames(score, len(classes)) for score in scores if classes)]
