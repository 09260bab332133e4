"""A section of metrics.json as another package would write it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from segunc.evaluation.parts import ArrayPart, Forms, LabelledFrame, Metric, Numbers
from segunc.metrics.counting import Counts


class LabelledPixels(ArrayPart):
    """How many pixels have a class label."""

    section = ("labels",)
    metrics = (Metric(key="pixels", title="labelled pixels", higher_is_better=True),)
    needs = "class"
    lacks = "no frame has class labels"

    def count(self, frame: LabelledFrame) -> Counts | None:
        """Return the counts of one frame: whole numbers of a fixed shape, which are added."""
        if frame.labels is None:
            return None
        return np.array([(frame.labels != 255).sum()])

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        """Return the numbers of the section from the sum of the counts of all frames."""
        return {("pixels",): float(counts[0])}


def parts(
    scores: Sequence[str], classes: Sequence[str], protocols: Sequence[str]
) -> list[LabelledPixels]:
    """Return the sections that an evaluation of these scores, classes and protocols has."""
    return [LabelledPixels()]
