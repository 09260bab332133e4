"""A section of metrics.json as another package would write it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from segunc.evaluation.parts import ArrayPart, Counts, Forms, LabelledFrame, Metric, Numbers


class LabelledPixels(ArrayPart):
    """How many pixels have a class label."""

    section, metrics = ("labels",), (Metric("pixels", "labelled pixels", higher_is_better=True),)
    needs, lacks = "class", "no frame has class labels"

    def count(self, frame: LabelledFrame) -> Counts | None:
        return None if frame.labels is None else np.array([(frame.labels != 255).sum()])

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        return {("pixels",): float(counts[0])}


def parts(
    scores: Sequence[str], classes: Sequence[str], protocols: Sequence[str]
) -> list[LabelledPixels]:
    return [LabelledPixels()]
