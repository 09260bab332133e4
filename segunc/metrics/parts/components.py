"""Anomalies as objects: the component numbers of a score at one threshold."""

from __future__ import annotations

import numpy as np

from segunc.metrics.components import TAUS, Mode, component_counts, component_result, undefined_components
from segunc.metrics.labelled_frame import LabelledFrame
from segunc.metrics.parts.anomaly import NO_ANOMALY_LABEL
from segunc.metrics.parts.base import ArrayPart, Counts, Forms, Numbers, Path


class Components(ArrayPart):
    """The components of one track, at the best-F1 threshold of the ``smiyc`` protocol over the whole set.

    The threshold is known only after a first pass over the set. Replicates keep it: their intervals do not contain what
    another choice of it would change.
    """

    names = (("siou_gt",), ("ppv",), ("mean_f1",), *(("f1", f"{tau:.2f}") for tau in TAUS))
    needs = "anomaly"

    def __init__(self, score: str, track: str, threshold: float, mode: Mode) -> None:
        self.score, self.track, self.threshold, self.mode = score, track, threshold, mode
        self.section = ("scores", score, "components", track)

    def count(self, frame: LabelledFrame) -> Counts | None:
        if frame.anomaly is None:
            return None
        # The benchmark stores scores as float16; floats that were wider are rounded as the pixel protocol rounds them.
        return component_counts(
            frame.values(self.score).astype(np.float16), frame.anomaly, self.threshold, self.track, self.mode
        )

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        result = component_result(counts)
        return {name: result["f1"][name[1]] if name[0] == "f1" else result[name[0]] for name in self.names}

    def why(self, counts: Counts | None, name: Path) -> str:
        return NO_ANOMALY_LABEL if counts is None else undefined_components(counts)[name[0]]
