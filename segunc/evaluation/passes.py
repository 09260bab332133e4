"""What an evaluation makes of a set: its options, its first pass over pixels and its second over components."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from segunc.core.errors import InputError
from segunc.data.labels import LabelMap
from segunc.evaluation.evaluator import Evaluator, Gatherer, Result
from segunc.evaluation.labelled_frame import LabelledFrame
from segunc.evaluation.parts import Components, Protocol
from segunc.evaluation.resampling import Replicates, Resampling, resampled_units
from segunc.metrics.components import TRACKS, Mode

NO_INTERVALS = Resampling(0)


@dataclass(frozen=True)
class EvaluationOptions:
    """What is made of the counts.

    Attributes:
        scores: the scores to evaluate; None is every score there is.
        protocols: of the anomaly labels.
        tracks: component tracks, which need a second pass; their threshold is that of the protocol ``smiyc``, which is
            evaluated too.
        mode: how components are cut, ``smiyc`` (score > threshold) or ``inclusive`` (>=).
        resampling: of the intervals.
        resample: the unit that is resampled: ``frame``, ``folder`` or a regular expression over frame names.

    Raises:
        InputError: an unknown track or mode.
    """

    scores: Sequence[str] | None = None
    protocols: Sequence[Protocol] = ("pooled", "per-image")
    tracks: Sequence[str] = ()
    mode: Mode = "smiyc"
    resampling: Resampling = NO_INTERVALS
    resample: str = "frame"

    def __post_init__(self) -> None:
        for name in self.tracks:
            if name not in TRACKS:
                raise InputError(f"component track '{name}'", f"one of {', '.join(TRACKS)}", "check the spelling")
        if self.mode not in get_args(Mode):
            raise InputError(f"component mode '{self.mode}'", " or ".join(get_args(Mode)), "check the spelling")

    def evaluator(
        self, scores: Sequence[str], classes: LabelMap | None, frames: Iterable[str], *, anomalies: bool, **given: Any
    ) -> Evaluator:
        """An evaluator with these options.

        Args:
            scores: the names of the scores.
            classes: the label map, None without class labels.
            frames: names of the frames to come; each is checked to belong to a resampled unit.
            anomalies: whether there are anomaly labels.
            given: further arguments of the evaluator.
        """
        unit = resampled_units(self.resample)
        for name in frames:
            unit(name)
        wanted = dict.fromkeys((*self.protocols, *(("smiyc",) if self.tracks else ())))
        protocols: Sequence[Protocol] = tuple(wanted) if anomalies else ()
        return Evaluator(scores, classes, protocols=protocols, resampling=self.resampling, unit=unit, **given)


@dataclass(frozen=True)
class Evaluation:
    """A finished evaluation.

    Attributes:
        result: the content of ``metrics.json``.
        replicates: of every number, for paired tests.
        evaluator: the counts behind the numbers, for curves.
    """

    result: Result
    replicates: Replicates
    evaluator: Evaluator


def component_pass(
    evaluator: Evaluator, result: Result, options: EvaluationOptions, frames: Iterable[LabelledFrame]
) -> Replicates:
    """Count components at the thresholds that a first pass found, and put their numbers into its result.

    Args:
        evaluator: after the first pass.
        result: of it; is filled.
        options: tracks and mode.
        frames: the frames of the first pass again, those with anomaly labels.

    Returns:
        the replicates of the first pass with those of the components.
    """
    thresholds = {name: result["scores"][name]["smiyc"]["threshold"] for name in evaluator.score_names}
    parts = [
        Components(name, track, threshold, options.mode)
        for name, threshold in thresholds.items()
        for track in options.tracks
        if threshold is not None
    ]
    second = Gatherer(parts, options.resampling, evaluator.gatherer.unit)
    for frame in frames if parts else ():
        second.add(frame)
    second.place_numbers(result, result["reasons"], lambda part, counted: None)
    for name in thresholds.keys() - {part.score for part in parts}:
        why = result["reasons"][f"scores.{name}.smiyc.threshold"]
        for track in options.tracks:
            result["scores"][name].setdefault("components", {})[track] = None
            result["reasons"][f"scores.{name}.components.{track}"] = f"it has no threshold: {why}"
    result["component_mode"] = options.mode
    more = second.replicates(lambda part, counted: None)
    result["intervals"] |= more.intervals()
    return evaluator.replicates().joined(more)
