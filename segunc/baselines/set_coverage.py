"""What sets of classes achieve on labelled frames, clean or corrupted: the very loss that their promise bounds. It imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from segunc.data.labels import UNKNOWN
from segunc.evaluation.parts import ALL_IGNORED, ArrayPart, Forms, LabelledFrame, Metric, Numbers, ProbabilityCalibration, lower
from segunc.metrics.counting import Counts

SCORE, UNIT = "set-size", 1 << 30


class SetCoverage(ArrayPart):
    """Means over the frames of the share of labelled pixels whose true class is ``outside`` of their set, and of the ``size`` of a set. The
    classes of a set are the most probable ones, so its size tells which. Counts int64 ``[3]``: frames, and sums in units of 1 / UNIT."""

    section, metrics = ("sets",), (lower("outside", "true class outside"), Metric("size", "classes"))
    needs, lacks, undefined = "class", ProbabilityCalibration.lacks, ALL_IGNORED

    def count(self, frame: LabelledFrame) -> Counts | None:
        if frame.mean_probabilities is None or frame.labels is None or SCORE not in frame.stored:
            return None
        if not (known := frame.labels < UNKNOWN).any():
            return np.zeros(3, np.int64)
        probabilities, sizes = frame.mean_probabilities[:, known], frame.stored[SCORE][known].astype(np.float64)
        of_true = np.take_along_axis(probabilities, frame.labels[known][None].astype(np.int64), 0)
        outside = (probabilities > of_true).sum(0) >= sizes
        return np.array([1, round(UNIT * float(outside.mean())), round(UNIT * float(sizes.mean()))], np.int64)

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        frames, *sums = counts.tolist()
        return dict(zip(self.names, (of / UNIT / frames if frames else None for of in sums), strict=True))


def parts(scores: Sequence[str], classes: Sequence[str], protocols: Sequence[Any]) -> list[SetCoverage]:
    """Return the part where sizes of sets and class labels are evaluated."""
    return [SetCoverage()] if classes and SCORE in scores else []
