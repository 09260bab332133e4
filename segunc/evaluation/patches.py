"""Patches of frames: whether those that a score calls uncertain are those predicted wrongly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from segunc.data.labels import IGNORE
from segunc.evaluation import parts
from segunc.evaluation.parts import (
    ArrayPart,
    Forms,
    LabelledFrame,
    ManyCounts,
    ManyNumbers,
    Metric,
    Numbers,
    higher,
)
from segunc.evaluation.resampling import NumberPath
from segunc.maps.encoding import keys_to_half
from segunc.metrics.counting import Counts, ScoreBins, count_scores
from segunc.metrics.patches import patch_means, patch_numbers, patch_numbers_of_many


class Patches(ArrayPart):
    """PAvPU and the shares that it is made of, at the mean score of all patches.

    Its counts are ``[2, K]``: patches by the float16 key of their mean score, or by bin where 16
    bits cannot hold the scores; inaccurate patches are in row 1. Replicates keep every key: where
    scores lie close together, one of few coarse bins could hold the patches on both sides of the
    mean.
    """

    metrics = (
        higher("pavpu", "PAvPU"),
        higher("accurate_if_certain"),
        higher("uncertain_if_inaccurate"),
        Metric("pavpu_threshold"),
    )
    needs = "class"
    point = frozenset({("pavpu_threshold",)})
    rows = 2

    def __init__(self, score: str) -> None:
        self.score = score
        self.section = ("selective", score)
        self.lacks = f"no labelled frame has a prediction and a map '{score}'"

    def count(self, frame: LabelledFrame) -> Counts | None:
        if frame.wrong is None or self.score not in frame.stored:
            return None
        means, inaccurate = patch_means(
            frame.values(self.score), right=frame.wrong == 0, labelled=frame.wrong != IGNORE
        )
        form = frame.form(self.score)
        if isinstance(form, ScoreBins):
            # The mean is rounded in another order than the scores, so it can lie below the first.
            return form.count(np.maximum(means, form.edges[0]), inaccurate)
        return count_scores(means.astype(np.float16), inaccurate)

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        values = self._values(forms, np.arange(counts.shape[-1]))
        numbers = patch_numbers(counts, values)
        return {(name,): value for name, value in numbers.items()}

    def numbers_of_many(self, coarse: ManyCounts, forms: Forms) -> ManyNumbers:
        keys = coarse.keys
        if keys is None:
            keys = np.arange(coarse.counts.shape[-1])
        numbers = patch_numbers_of_many(coarse.counts, self._values(forms, keys))
        return {(name,): values for name, values in numbers.items()}

    def _values(self, forms: Forms, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.floating]:
        """Return the mean score that each key or bin stands for."""
        form = forms[self.score]
        if isinstance(form, ScoreBins):
            return np.asarray(form.edges[np.minimum(keys, len(form.edges) - 1)])
        return keys_to_half(keys.astype(np.uint16))

    def why(self, counts: Counts, name: NumberPath) -> str:
        if not counts.any():
            return parts.ALL_IGNORED
        if name == ("uncertain_if_inaccurate",):
            return "no patch is inaccurate"
        return "no patch is certain"


def patch_parts(
    scores: Sequence[str], classes: Sequence[str], protocols: Sequence[str]
) -> list[ArrayPart]:
    """Return the part of each score, where there are class labels."""
    if not classes:
        return []
    return [Patches(score) for score in scores]
