"""Sum the counts of a run frame by frame, and turn them into one result. Memory grows with resampled units alone.

Arrays come in, from files or straight from a network. The stored form of each score is counted, so both give the same numbers to
the last digit. Components need a second pass over the frames, at the thresholds that the first pass found.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError, PartialFailure
from segunc.data.labels import IGNORE, LabelMap
from segunc.evaluation.flagged import FalseAlarms, Hits, Threshold
from segunc.evaluation.labelled_frame import CONFIDENCE, Array, Form, LabelledFrame
from segunc.evaluation.parts import PARTS, AnomalyProtocol, ByObject, Components, Forms, Part, PooledGroup
from segunc.evaluation.resampling import NumberPath, Replicates, Resampling, group_frames, resampled_units
from segunc.metrics.bins import BinFinder, ScoreBins
from segunc.metrics.components import TRACKS
from segunc.metrics.counting import NO_ANOMALY, Counts, fits_half
from segunc.metrics.objects import ObjectBins

State = TypeVar("State")
Result = dict[str, Any]  # the content of metrics.json
NO_INTERVALS = Resampling(0)
_PIXEL_COUNTS = (
    *("anomaly_frames", "anomaly_frames_with_both_classes", "pixels"),
    *("anomaly_pixels", "normal_pixels", "ignored_pixels"),
    *("labelled_frames", "labelled_pixels", "ignored_label_pixels"),
)


class Tally(Generic[State]):
    """The summed counts of a part: over all frames, and in a coarser form over the frames of each resampled unit."""

    def __init__(self, part: Part[State], resampling: Resampling) -> None:
        self.part, self.resampling, self.frames = part, resampling, 0
        self._counts: list[State] = []
        self._units: list[tuple[str, bytes]] = []  # unit -> compressed coarse counts, int64
        self._unit = ""
        self._unit_counts: Counts | None = None

    def add(self, counts: State, unit: str) -> None:
        """Add the counts of a frame of a resampled unit."""
        self.frames += 1
        self._counts.append(counts)
        if len(self._counts) > self.part.batch:
            self._counts = [self.part.combine(self._counts)]
        if self.resampling.replicates:
            if unit != self._unit:
                self._close_unit()
                self._unit = unit
            coarse = self.part.coarsen(counts)
            self._unit_counts = coarse if self._unit_counts is None else self._unit_counts + coarse

    @property
    def total(self) -> State | None:
        """The counts of all frames, None before the first."""
        if len(self._counts) > 1:
            self._counts = [self.part.combine(self._counts)]
        return self._counts[0] if self._counts else None

    def replicates(self, at_once: int = 64) -> Iterator[Counts]:
        """Yield the coarse counts of each replicate, int64 of the form of :meth:`Part.coarsen`."""
        total = self.total
        self._close_unit()
        if total is None or not self._units:
            return
        units = np.stack([np.frombuffer(zlib.decompress(packed), np.int64) for _, packed in self._units])
        weights = np.stack([self.resampling.weights(unit) for unit, _ in self._units])
        filled, shape = np.flatnonzero(units.any(axis=0)), self.part.coarsen(total).shape
        cells, units = units.shape[1], units[:, filled]
        # Whole numbers below 2^53 add exactly in float64 too, and floats are multiplied many times faster.
        if units.size and units.sum(axis=0).max() * int(weights.max()) < 1 << 53:
            units, weights = units.astype(np.float64), weights.astype(np.float64)
        for start in range(0, self.resampling.replicates, at_once):
            for row in weights[:, start : start + at_once].T @ units:
                counts = np.zeros(cells, np.int64)
                counts[filled] = row
                yield counts.reshape(shape)

    def replicate_numbers(self, forms: Forms) -> dict[NumberPath, npt.NDArray[np.float64]]:
        """Return the replicates ``[R]`` of each number that all frames together define, NaN where a replicate defines none.

        They are shifted by the difference that the coarser counts make over all frames.
        """
        total, part = self.total, self.part
        if total is None or not self.resampling.replicates:
            return {}
        exact, coarse = part.numbers(total, forms), part.numbers(part.refine(part.coarsen(total)), forms)
        shifts = {
            name: value - near
            for name, value in exact.items()
            if value is not None and (near := coarse[name]) is not None and name not in part.point
        }
        columns = np.empty((len(shifts), self.resampling.replicates))
        for number, counts in enumerate(self.replicates()):
            numbers = part.numbers(part.refine(counts), forms)
            columns[:, number] = np.array([numbers[name] for name in shifts], np.float64)  # None becomes NaN
        return {name: column + shift for (name, shift), column in zip(shifts.items(), columns, strict=True)}

    def _close_unit(self) -> None:
        if self._unit_counts is not None:
            # Compressed to a tenth: most cells of a large part are empty, and most counts small.
            self._units.append((self._unit, zlib.compress(self._unit_counts.astype(np.int64).tobytes(), 1)))
        self._unit_counts = None


class Gatherer:
    """Sums the counts of parts over frames; a frame is counted by all parts or by none.

    ``unit`` leads from a frame's name to the unit that is resampled for the intervals; None resamples single frames.
    """

    def __init__(
        self, parts: Sequence[Part[Any]], resampling: Resampling, unit: Callable[[str], str] | None = None
    ) -> None:
        self.resampling = resampling
        self.unit = unit or (lambda name: name)
        self.tallies: list[Tally[Any]] = [Tally(part, resampling) for part in parts]
        self.forms: dict[str, Form] = {}
        self.units: set[str] = set()
        self._replicates: Replicates | None = None

    def add(self, frame: LabelledFrame) -> None:
        """Count a frame; where a part cannot, or a map is stored in another form than before, raise InputError and count nothing."""
        forms = dict(self.forms)
        for name in frame.stored:
            form = frame.form(name)
            if forms.setdefault(name, form) != form:
                raise InputError(f"the map '{name}' is stored as {form}, and as {forms[name]} in the frames before it")
        counts = [tally.part.count(frame) for tally in self.tallies]
        unit = self.unit(frame.name)
        self.forms, self._replicates = forms, None
        self.units.add(unit)
        for tally, part_counts in zip(self.tallies, counts, strict=True):
            if part_counts is not None:
                tally.add(part_counts, unit)

    def incomplete(self, tally: Tally[Any]) -> str | None:
        """Return why a part has no numbers, whatever its counts are; None where it has."""
        return None

    def counts(self, kind: type[Part[Any]]) -> dict[str, Any]:
        """Return the summed counts of each part of a kind by its score (``""`` without one), None where no frame was counted."""
        return {getattr(t.part, "score", ""): t.total for t in self.tallies if type(t.part) is kind}

    def place_numbers(self, result: Result, reasons: dict[str, str]) -> None:
        """Put every number into a result, None with its reason (by dotted path) where there is none."""
        for tally in self.tallies:
            part, total = tally.part, tally.total
            why = self.incomplete(tally)
            numbers = dict.fromkeys(part.names)
            if total is not None and not why:
                numbers |= part.numbers(total, self.forms)
            for name in part.names:
                path = (*part.section, *name)
                section = result
                for key in path[:-1]:
                    section = section.setdefault(key, {})
                section[path[-1]] = numbers[name]
                if numbers[name] is None:
                    reasons[".".join(path)] = why or (part.lacks if total is None else part.why(total, name))

    def replicates(self) -> Replicates:
        """Return the numbers of every bootstrap replicate; no paths without resampling."""
        if self._replicates is None:
            rows = {
                ".".join((*tally.part.section, *name)): row
                for tally in self.tallies
                if not self.incomplete(tally)
                for name, row in tally.replicate_numbers(self.forms).items()
            }
            values = np.stack([*rows.values()]) if rows else np.zeros((0, self.resampling.replicates))
            self._replicates = Replicates(tuple(rows), values, self.resampling.seed, tuple(sorted(self.units)))
        return self._replicates


class Evaluator(Gatherer):
    """Counts frames by all parts there are; :meth:`result` gives the numbers, and names the frames that could not be counted.

    Args:
        score_names: scores that every frame with an anomaly label must bring.
        classes: the label map, or the class names by train id; None where no class labels are evaluated.
        protocols: of the anomaly labels; none where there are no such labels.
        further: parts that count beside those of :data:`PARTS`.
        unit_codes, resampling, unit: as of :class:`LabelledFrame` and :class:`Gatherer`.
    """

    def __init__(
        self,
        score_names: Sequence[str],
        classes: LabelMap | Sequence[str] | None,
        *,
        protocols: Sequence[AnomalyProtocol] = ("pooled",),
        unit_codes: Collection[str] | None = None,
        resampling: Resampling = NO_INTERVALS,
        unit: Callable[[str], str] | None = None,
        further: Sequence[Part[Any]] = (),
    ) -> None:
        self.score_names = tuple(score_names)
        self.classes = tuple(classes.classes if isinstance(classes, LabelMap) else classes or ())
        if not (self.score_names and protocols) and not self.classes:
            raise InputError("there is neither a score nor a class to evaluate")
        self.protocols, self.unit_codes, self.bins = tuple(protocols), unit_codes, dict[str, ScoreBins]()
        parts = [part for build in PARTS.values() for part in build(self.score_names, self.classes, self.protocols)]
        super().__init__([*parts, *further], resampling, unit)
        self._counts = Counter[str]()
        self._left_out: list[dict[str, str]] = []

    def update(
        self,
        frame: str,
        stored: Mapping[str, Array],
        prediction: npt.NDArray[np.uint8] | None = None,
        mean_probabilities: npt.NDArray[np.float32] | None = None,
        labels: npt.NDArray[np.uint8] | None = None,
        anomaly: npt.NDArray[np.uint8] | None = None,
    ) -> bool:
        """Count a frame, given by its name and the fields of :class:`LabelledFrame`; return whether it was counted."""
        labels = labels if self.classes else None
        used = {name: stored[name] for name in (*self.score_names, CONFIDENCE) if name in stored}
        arrays = (prediction, mean_probabilities, labels, anomaly)
        try:
            labelled = LabelledFrame(frame, used, *arrays, self.unit_codes, self.bins)
            self.add(labelled)
        except InputError as error:
            self.leave_out(frame, str(error))
            return False
        normal, anomalous, ignored = labelled.anomaly_pixels.tolist()
        self._counts.update(
            frames_scored=1,
            anomaly_frames=anomaly is not None,
            anomaly_frames_with_both_classes=bool(normal and anomalous),
            pixels=normal + anomalous,
            anomaly_pixels=anomalous,
            normal_pixels=normal,
            ignored_pixels=ignored,
        )
        if labels is not None and prediction is not None:
            unlabelled = int(np.count_nonzero(labels == IGNORE))
            labelled_pixels = labels.size - unlabelled
            self._counts.update(labelled_frames=1, ignored_label_pixels=unlabelled, labelled_pixels=labelled_pixels)
        return True

    def find_bins(self, frames: Iterable[LabelledFrame]) -> None:
        """Make bins of the scores that 16 bits cannot hold, from the float maps of all frames that will be counted."""
        rows = sum(tally.part.rows for tally in self.tallies)
        finders: dict[str, BinFinder] = {}
        wide: set[str] = set()
        for frame in frames:
            for name, stored in frame.stored.items():
                with suppress(InputError):  # the frame is left out when it is counted
                    for labels in (frame.anomaly, frame.wrong):
                        if labels is not None:
                            finders.setdefault(name, BinFinder(rows)).add(stored, labels)
                            if name not in wide and not fits_half(stored, labels):
                                wide.add(name)
        self.bins = {name: bins for name in sorted(wide) if (bins := finders[name].bins()) is not None}

    def notes(self) -> list[str]:
        """Return what a user should know of scores that 16 bits cannot hold, in a sentence each."""
        rounded = ", ".join(f"'{name}'" for name in self.score_names if name in self.bins)
        if not rounded or "smiyc" not in self.protocols:
            return []
        return [f"the protocol smiyc rounds {rounded} to float16, as its benchmark does; the others do not"]

    def leave_out(self, frame: str, reason: str) -> None:
        """Note a frame that cannot be counted, one that could not be read for instance."""
        self._left_out.append({"frame": frame, "reason": reason})

    def result(self) -> Result:
        """Return the numbers of all frames so far, in the form of ``metrics.json``.

        Every number that cannot be made is None, and ``reasons`` says why under its dotted path. Raises PartialFailure where no
        frame could be counted.
        """
        scored, lost = self._counts["frames_scored"], len(self._left_out)
        if scored == 0:
            first = f" (first {self._left_out[0]['frame']}: {self._left_out[0]['reason']})" if lost else ""
            message = f"none of {lost} frames could be scored{first}; check that the labels belong to these maps"
            raise PartialFailure(message)
        result: Result = {"scores": {}, "segmentation": {}, "calibration": {}, "selective": {}}
        reasons: dict[str, str] = {}
        self.place_numbers(result, reasons)
        result["segmentation"].setdefault("per_class", {})
        self._take_bias_off(result["calibration"])
        place_intervals(result, self.replicates())
        result["reasons"] = reasons
        result["counts"] = {"frames": scored + lost, "frames_scored": scored, "frames_left_out": lost}
        result["counts"] |= {key: self._counts[key] for key in _PIXEL_COUNTS}
        result["counts"]["resampled_units"] = len(self.units)
        for tally in self.tallies:
            if isinstance(tally.part, PooledGroup):
                normal, anomalous = (0, 0) if tally.total is None else tally.total.sum(1).tolist()
                counts = {"anomaly_frames": tally.frames, "normal_pixels": normal, "anomaly_pixels": anomalous}
                result["counts"].setdefault("groups", {})[tally.part.group] = counts
        result["forms"] = {name: str(self.forms[name]) for name in self.score_names if name in self.forms}
        result["left_out"] = list(self._left_out)
        return result

    def incomplete(self, tally: Tally[Any]) -> str | None:
        part, counted = tally.part, tally.frames
        if part.needs == "class" and not self.classes:
            return "no class labels were given"
        labelled = self._counts["anomaly_frames" if part.needs == "anomaly" else "labelled_frames"]
        if 0 < counted < labelled and not isinstance(part, PooledGroup):
            return f"only {counted} of {labelled} frames with a label hold what it needs"
        ignored = self._counts["ignored_pixels"]
        if part.needs == "anomaly" and labelled and not self._counts["anomaly_pixels"] and ignored:
            return f"{NO_ANOMALY}; {ignored} pixels are ignored"
        return None

    def _take_bias_off(self, calibration: Result) -> None:
        """Add the ECE less its bootstrap bias, ``2 t - mean t*`` (Davison & Hinkley 1997, section 2.2), where there are replicates.

        An ECE is a mean of absolute values, so chance alone makes it positive, and the more so the fewer the units. Of a gap that
        is not there this leaves 2 - sqrt(2) of it. The result may lie below 0.
        """
        replicates, ece = self.replicates(), calibration.get("ece")
        row = replicates.of(("calibration", "ece"))
        if row is None or ece is None:
            return
        bias = float(np.nanmean(row)) - ece
        calibration["debiased_ece"] = ece - bias
        if replicates.of(("calibration", "debiased_ece")) is None:
            self._replicates = replicates.joined(("calibration.debiased_ece",), row[None] - bias)


def place_intervals(result: Result, replicates: Replicates) -> None:
    """Put into a result the interval of every number with replicates and its effective number of units, or why it has none."""
    intervals = result.setdefault("intervals", {})
    for path, chance in replicates.chances().items():
        bootstrap = result.setdefault("bootstrap", {})
        if isinstance(chance, str):
            bootstrap.setdefault("no_interval", {})[path] = chance
        else:
            intervals[path] = [chance.low, chance.high]
            bootstrap.setdefault("effective_units", {})[path] = round(chance.effective, 1)


@dataclass(frozen=True)
class EvaluationOptions:
    """What is made of the counts.

    Component tracks need a second pass; their threshold is that of the protocol ``smiyc``, which is evaluated too.
    """

    scores: Sequence[str] | None = None  # to evaluate; None is every score there is
    protocols: Sequence[AnomalyProtocol] = ("pooled", "per-image")
    tracks: Sequence[str] = ()
    resampling: Resampling = NO_INTERVALS
    resample: str = "frame"  # the resampled unit, as of :func:`resampled_units`
    by: Sequence[ObjectBins] = ()  # what objects are sorted by
    groups: str | Mapping[str, str] | None = None  # of frames: a pattern of their names, or the group of each
    flag: Mapping[str, Threshold] = field(default_factory=dict)  # score -> from which value on its pixels are flagged

    def __post_init__(self) -> None:
        for name in self.tracks:
            if name not in TRACKS:
                raise InputError(f"there is no component track '{name}'", hint=f"--components {','.join(TRACKS)}")

    def evaluator(
        self,
        scores: Sequence[str],
        classes: LabelMap | None,
        frames: Iterable[str],
        *,
        anomalies: Collection[str] | None,
        time_of: Callable[[str], float | None] = lambda frame: None,
        unit_codes: Collection[str] | None = None,
    ) -> Evaluator:
        """Make an :class:`Evaluator` with these options.

        Args:
            frames: every name to come; each is checked to belong to a resampled unit.
            anomalies: the frames with an anomaly label; None where none are evaluated.
            time_of: a frame's moment in its video, in seconds.
        """
        if self.groups is not None and anomalies is None:
            raise InputError("--groups needs frames with anomaly labels, and there are none")
        unit = resampled_units(self.resample, time_of)
        for name in frames:
            unit(name)
        protocols: Sequence[AnomalyProtocol] = ()
        further = self._flagged(scores, classes.classes if classes else (), anomalies is not None)
        if anomalies is not None:
            protocols = tuple(dict.fromkeys((*self.protocols, *(("smiyc",) if self.tracks else ()))))
            groups = {} if self.groups is None else group_frames(self.groups, anomalies)
            objects = [ByObject(score, bins) for score in scores for bins in self.by]
            further = [
                *objects,
                *(PooledGroup(score, *group) for score in scores for group in groups.items()),
                *further,
            ]
        how: dict[str, Any] = {"protocols": protocols, "resampling": self.resampling, "unit": unit, "further": further}
        return Evaluator(scores, classes, unit_codes=unit_codes, **how)

    def _flagged(self, scores: Sequence[str], classes: Sequence[str], anomalies: bool) -> list[Part[Any]]:
        # A result may hold thresholds of further scores, but one that was given for a score was asked for.
        unused = [name for name, threshold in self.flag.items() if name not in scores and not threshold.source]
        used = {name: self.flag[name] for name in scores if name in self.flag}
        if unused or (self.flag and not used):
            message = f"--flag has a threshold of '{(unused or [*self.flag])[0]}', which is not evaluated"
            raise InputError(message, hint=f"evaluated are {', '.join(scores)}; name others with --scores")
        alarms = [FalseAlarms(name, threshold, classes) for name, threshold in used.items() if classes]
        return [*alarms, *(Hits(name, threshold) for name, threshold in used.items() if anomalies)]


@dataclass(frozen=True)
class Evaluation:
    """A finished evaluation: the content of ``metrics.json``, the replicates of its numbers, and the counts behind them."""

    result: Result
    replicates: Replicates
    evaluator: Evaluator | None = None  # None for verdicts


def finish(
    evaluator: Evaluator, result: Result, options: EvaluationOptions, again: Callable[[], Iterable[LabelledFrame]]
) -> Evaluation:
    """Add the components to the result of a first pass, where tracks are asked for.

    They are counted at the thresholds that the first pass found, over ``again``, its frames with anomaly labels.
    """
    for name, numbers in result.get("flagged", {}).items():
        numbers["threshold"] = options.flag[name].value
    if not options.tracks or not evaluator.protocols:
        return Evaluation(result, evaluator.replicates(), evaluator)
    thresholds = {name: result["scores"][name]["smiyc"]["threshold"] for name in evaluator.score_names}
    parts = [
        Components(name, track, threshold)
        for name, threshold in thresholds.items()
        if threshold is not None
        for track in options.tracks
    ]
    second = Gatherer(parts, options.resampling, evaluator.unit)
    for frame in again() if parts else ():
        second.add(frame)
    second.place_numbers(result, result["reasons"])
    for name, threshold in thresholds.items():
        for track in options.tracks if threshold is None else ():
            why = result["reasons"][f"scores.{name}.smiyc.threshold"]
            result["scores"][name].setdefault("components", {})[track] = None
            result["reasons"][f"scores.{name}.components.{track}"] = f"it has no threshold: {why}"
    more = second.replicates()
    place_intervals(result, more)
    return Evaluation(result, evaluator.replicates().joined(more.paths, more.values), evaluator)
