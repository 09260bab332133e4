"""Gather the counts of a whole run, frame by frame, and turn them into one result. Memory grows with resampled units alone.

Only arrays come in, from files or straight from a network: the stored form of each score is what is counted, so both give the
same numbers to the last digit. Components need a second pass over the frames, at the thresholds that the first one found.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError, PartialFailure
from segunc.data.class_mapping import ClassMapping
from segunc.data.labels import IGNORE, LabelMap
from segunc.evaluation.breakdown import ByObject, Grouped, group_frames
from segunc.evaluation.flagged import SMALLEST_REGION, FalseAlarms, Hits, Threshold
from segunc.evaluation.labelled_frame import CONFIDENCE, Array, Form, LabelledFrame
from segunc.evaluation.parts import PARTS, AnomalyProtocol, Components, Forms, Part, Pooled, Selective
from segunc.evaluation.resampling import NumberPath, Replicates, Resampling, resampled_units
from segunc.metrics.bins import BinFinder, ScoreBins
from segunc.metrics.components import TRACKS, Mode
from segunc.metrics.counting import NO_ANOMALY, Counts, fits_half
from segunc.metrics.objects import ObjectBins

State = TypeVar("State")
Result = dict[str, Any]  # the content of metrics.json
NO_INTERVALS = Resampling(0)
_COUNTS = (
    *("anomaly_frames", "anomaly_frames_with_both_classes", "pixels"),
    *("anomaly_pixels", "normal_pixels", "ignored_pixels"),
    *("labelled_frames", "labelled_pixels", "ignored_label_pixels"),
)


class Tally(Generic[State]):
    """The summed counts of a part, over all frames or those of a group, and those of each resampled unit, packed and in a coarser form
    because there are many. ``section`` is their place in ``metrics.json``."""

    def __init__(self, part: Part[State] | Grouped, resampling: Resampling) -> None:
        self.group = part if isinstance(part, Grouped) else None
        self.part: Part[State] = part.part if isinstance(part, Grouped) else part
        score, below = self.part.section[:2], self.part.section[2:]
        self.section = self.part.section if self.group is None else (*score, "groups", self.group.group, *below)
        self.resampling, self.frames = resampling, 0
        self._counts: list[State] = []
        self._units: list[tuple[str, bytes]] = []  # coarse counts int64, flat
        self._unit: str | None = None
        self._pending: Counts | None = None

    def count(self, frame: LabelledFrame) -> State | None:
        """The counts of a frame; None where it lacks what the part needs, or is of another group."""
        return self.part.count(frame) if self.group is None or frame.name in self.group.members else None

    def add(self, counts: State, unit: str) -> None:
        self.frames += 1
        self._counts.append(counts)
        if len(self._counts) > self.part.batch:
            self._counts = [self.part.combine(self._counts)]
        if not self.resampling.replicates:
            return
        if unit != self._unit:
            self._flush()
            self._unit = unit
        coarse = self.part.coarsen(counts)
        self._pending = coarse if self._pending is None else self._pending + coarse

    @property
    def total(self) -> State | None:
        """The counts of all frames, None before the first."""
        if len(self._counts) > 1:
            self._counts = [self.part.combine(self._counts)]
        return self._counts[0] if self._counts else None

    def replicates(self, at_once: int = 64) -> Iterator[Counts]:
        """The coarse counts of each replicate, int64 of the form of :meth:`Part.coarsen`; none without a count or replicates."""
        total = self.total
        self._flush()
        if total is None or not self._units:
            return
        units = np.stack([np.frombuffer(zlib.decompress(packed), np.int64) for _, packed in self._units])
        weights = np.stack([self.resampling.weights(unit) for unit, _ in self._units])
        filled, shape = np.flatnonzero(units.any(axis=0)), self.part.coarsen(total).shape
        units = units[:, filled]
        # Whole numbers below 2^53 add exactly in float64 too, and floats are multiplied many times faster.
        if units.size and units.sum(axis=0).max() * int(weights.max()) < 1 << 53:
            units, weights = units.astype(np.float64), weights.astype(np.float64)
        for start in range(0, self.resampling.replicates, at_once):
            for row in weights[:, start : start + at_once].T @ units:
                counts = np.zeros(math.prod(shape), np.int64)
                counts[filled] = row
                yield counts.reshape(shape)

    def replicate_numbers(self, forms: Forms) -> dict[NumberPath, npt.NDArray[np.float64]]:
        """For each number that all frames together define its replicates ``[R]``, NaN where one defines none; moved by the
        difference that the coarser counts make over all frames."""
        total, part = self.total, self.part
        rows = [part.numbers(part.refine(one), forms) for one in self.replicates()]
        if total is None or not rows:
            return {}
        exact, coarse = part.numbers(total, forms), part.numbers(part.refine(part.coarsen(total)), forms)
        columns = {}
        for name, value in exact.items():
            near = coarse[name]
            if value is not None and near is not None:
                columns[name] = np.array([row[name] for row in rows], np.float64) + (value - near)  # None becomes NaN
        return columns

    def _flush(self) -> None:
        if self._pending is not None and self._unit is not None:
            # A tenth of the memory: most cells of a large part are empty, and most counts small.
            self._units.append((self._unit, zlib.compress(self._pending.astype(np.int64).tobytes(), 1)))
        self._unit = self._pending = None


class Gatherer:
    """Sums the counts of parts over frames; a frame is counted by all parts or by none.

    ``unit`` leads from a frame's name to the unit that is resampled for the intervals; None resamples single frames.
    """

    def __init__(
        self,
        parts: Sequence[Part[Any] | Grouped],
        resampling: Resampling,
        unit: Callable[[str], str] | None = None,
    ) -> None:
        self.resampling = resampling
        self.unit = unit or (lambda name: name)
        self.tallies: list[Tally[Any]] = [Tally(part, resampling) for part in parts]
        self.forms: dict[str, Form] = {}
        self.units: set[str] = set()
        self._replicates: Replicates | None = None

    def add(self, frame: LabelledFrame) -> None:
        """Count a frame; nothing of it where a part cannot count it or a map is stored in another form than before: InputError."""
        forms = dict(self.forms)
        for name in frame.stored:
            form = frame.form(name)
            if forms.setdefault(name, form) != form:
                raise InputError(f"the map '{name}' is stored as {form}", f"{forms[name]}, as in the frames before it")
        counts = [tally.count(frame) for tally in self.tallies]
        unit = self.unit(frame.name)
        self.forms, self._replicates = forms, None
        self.units.add(unit)
        for tally, part_counts in zip(self.tallies, counts, strict=True):
            if part_counts is not None:
                tally.add(part_counts, unit)

    def incomplete(self, tally: Tally[Any]) -> str | None:
        """Why a part has no numbers, whatever its counts are; None where it has."""
        return None

    def counts(self, kind: type[Part[Any]]) -> dict[str, Any]:
        """Score -> the summed counts of its part of a kind, None where no frame was counted; of a part without one ``""``."""
        return {getattr(t.part, "score", ""): t.total for t in self.tallies if isinstance(t.part, kind) and not t.group}

    def place_numbers(self, result: Result, reasons: dict[str, str]) -> None:
        """Put every number into a result, None with its reason (by dotted path) where there is none."""
        for tally in self.tallies:
            part, total = tally.part, tally.total
            why = self.incomplete(tally)
            numbers = dict.fromkeys(part.names)
            if total is not None and not why:
                numbers |= part.numbers(total, self.forms)
            for name in part.names:
                path = (*tally.section, *name)
                place = result
                for key in path[:-1]:
                    place = place.setdefault(key, {})
                place[path[-1]] = numbers[name]
                if numbers[name] is None:
                    reasons[".".join(path)] = why or (part.lacks if total is None else part.why(total, name))

    def replicates(self) -> Replicates:
        """The numbers of every bootstrap replicate; no paths without resampling."""
        if self._replicates is not None:
            return self._replicates
        rows: dict[str, npt.NDArray[np.float64]] = {}
        for tally in self.tallies:
            if not self.incomplete(tally):
                for name, row in tally.replicate_numbers(self.forms).items():
                    if name not in tally.part.point:
                        rows[".".join((*tally.section, *name))] = row
        values = np.stack([*rows.values()]) if rows else np.zeros((0, self.resampling.replicates))
        self._replicates = Replicates(tuple(rows), values, self.resampling.seed, tuple(sorted(self.units)))
        return self._replicates


class Evaluator(Gatherer):
    """Counts frames by all parts there are; :meth:`result` gives the numbers, and names the frames that could not be counted.

    Every frame with an anomaly label must bring all the scores; ``classes`` are the label map (a mapping where the network has other
    classes) or the class names by train id, None where no class labels are evaluated, and ``protocols`` none where no anomaly labels
    are. ``unit_codes`` as of :class:`LabelledFrame`, and so ``bins``, set before the first frame (:meth:`find_bins`); ``further`` parts count beside those of :data:`PARTS`. InputError where there is
    nothing to evaluate.
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
        further: Sequence[Part[Any] | Grouped] = (),
    ) -> None:
        self.score_names = tuple(score_names)
        self.classes = tuple(classes.classes if isinstance(classes, LabelMap) else classes or ())
        self.mapping = classes if isinstance(classes, ClassMapping) else None
        if not (self.score_names and protocols) and not self.classes:
            raise InputError("neither scores nor classes to evaluate", "at least one of them")
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
        """Count a frame, given by its name and the fields of :class:`LabelledFrame`; whether it was counted."""
        labels = labels if self.classes else None
        used = {name: stored[name] for name in (*self.score_names, CONFIDENCE) if name in stored}
        try:
            given = (prediction, mean_probabilities, labels, anomaly, self.unit_codes, self.mapping, self.bins)
            maps = LabelledFrame(frame, used, *given)
            self.add(maps)
        except InputError as error:
            self.leave_out(frame, str(error))
            return False
        normal, anomalous, ignored = maps.anomaly_pixels.tolist()
        added = {"frames_scored": 1, "anomaly_frames": anomaly is not None, "pixels": normal + anomalous}
        added |= {"anomaly_pixels": anomalous, "normal_pixels": normal, "ignored_pixels": ignored}
        added |= {"anomaly_frames_with_both_classes": bool(normal and anomalous)}
        if labels is not None and prediction is not None:
            unlabelled = int(np.count_nonzero(labels == IGNORE))
            added |= {"labelled_frames": 1, "ignored_label_pixels": unlabelled}
            added |= {"labelled_pixels": labels.size - unlabelled}
        for key, number in added.items():
            self._counts[key] += number
        return True

    def find_bins(self, frames: Iterable[LabelledFrame]) -> None:
        """Make bins of the scores whose float maps 16 bits cannot hold; ``frames`` are all that follow, with maps of floats alone."""
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
        pixels = self._counts["pixels"] + self._counts["labelled_pixels"]
        notes = [
            f"{number} of {pixels} pixels of '{name}' were merged with others of nearly their score"
            for name, number in self._merged_pixels().items()
            if number > pixels / 1000
        ]
        rounded = ", ".join(f"'{name}'" for name in self.score_names if name in self.bins)
        if rounded and "smiyc" in self.protocols:
            notes.append(f"the protocol smiyc rounds {rounded} to float16, as its benchmark does; the others do not")
        return notes

    def _merged_pixels(self) -> dict[str, int]:
        """Pixels that share a bin with another kind of pixels of another score, by score."""
        found = Counter[str]()
        for kind in (Pooled, Selective):
            for score, counts in self.counts(kind).items():
                if score in self.bins and counts is not None:
                    found[score] += self.bins[score].merged(counts)
        return dict(+found)

    def leave_out(self, frame: str, reason: str) -> None:
        """Note a frame that cannot be counted, one that could not be read for instance."""
        self._left_out.append({"frame": frame, "reason": reason})

    def result(self) -> Result:
        """The numbers of all frames so far, in the form of ``metrics.json``; PartialFailure where none could be counted.

        Every number that cannot be made is None, and ``reasons`` says why under its dotted path.
        """
        scored, lost = self._counts["frames_scored"], len(self._left_out)
        if scored == 0:
            first = f" (first {self._left_out[0]['frame']}: {self._left_out[0]['reason']})" if lost else ""
            expected = "maps and labels of the same frames; check that the labels belong to these maps"
            raise PartialFailure(f"none of {lost} frames could be scored{first}; expected {expected}")
        result: Result = {"scores": {}, "segmentation": {}, "calibration": {}, "selective": {}}
        reasons: dict[str, str] = {}
        self.place_numbers(result, reasons)
        result["segmentation"].setdefault("per_class", {})
        self._take_bias_off(result["calibration"])
        place_intervals(result, self.replicates())
        result["reasons"] = reasons
        result["counts"] = {"frames": scored + lost, "frames_scored": scored, "frames_left_out": lost}
        result["counts"] |= {key: self._counts[key] for key in _COUNTS}
        result["counts"]["resampled_units"] = len(self.units)
        if merged := self._merged_pixels():
            result["counts"]["merged_pixels"] = merged
        for tally in self.tallies:
            if tally.group is not None:
                normal, anomalous = (0, 0) if tally.total is None else tally.total.sum(1).tolist()
                counted = {"anomaly_frames": tally.frames, "normal_pixels": normal, "anomaly_pixels": anomalous}
                result["counts"].setdefault("groups", {})[tally.group.group] = counted
        result["forms"] = {name: str(self.forms[name]) for name in self.score_names if name in self.forms}
        result["left_out"] = list(self._left_out)
        return result

    def incomplete(self, tally: Tally[Any]) -> str | None:
        part, counted = tally.part, tally.frames
        if part.needs == "class" and not self.classes:
            return "no class labels were given"
        labelled = self._counts["anomaly_frames" if part.needs == "anomaly" else "labelled_frames"]
        if 0 < counted < labelled and tally.group is None:
            return f"only {counted} of {labelled} frames with a label hold what it needs"
        ignored = self._counts["ignored_pixels"]
        if part.needs == "anomaly" and labelled and not self._counts["anomaly_pixels"] and ignored:
            return f"{NO_ANOMALY}; {ignored} pixels are ignored"
        return None

    def _take_bias_off(self, calibration: Result) -> None:
        """Add the ECE less its bootstrap bias, ``2 t - mean t*`` (Davison & Hinkley 1997, section 2.2), where there are replicates. An ECE
        is a mean of absolute values, so that chance alone makes it positive, and the more so the fewer the units. Of a gap that is not
        there this leaves 2 - sqrt(2) of it; it may come out below 0."""
        replicates, ece = self.replicates(), calibration.get("ece")
        row = replicates.of(("calibration", "ece"))
        if row is None or ece is None:
            return
        bias = float(np.nanmean(row)) - ece
        calibration["debiased_ece"] = ece - bias
        if replicates.of(("calibration", "debiased_ece")) is None:
            own = replace(replicates, paths=("calibration.debiased_ece",), values=row[None] - bias)
            self._replicates = replicates.joined(own)


def place_intervals(result: Result, replicates: Replicates) -> None:
    """Put the interval of every number with replicates into a result, and the effective number of its units; or why it has none."""
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
    """What is made of the counts; InputError for an unknown track, or regions of no pixel.

    Component tracks need a second pass; their threshold is that of the protocol ``smiyc``, which is evaluated too.
    """

    scores: Sequence[str] | None = None  # to evaluate; None is every score there is
    protocols: Sequence[AnomalyProtocol] = ("pooled", "per-image")
    tracks: Sequence[str] = ()
    mode: Mode = "smiyc"  # how components are cut: score > threshold, or inclusive: >=
    resampling: Resampling = NO_INTERVALS
    resample: str = "frame"  # the resampled unit, as of :func:`resampled_units`
    map_classes: Mapping[str, str] | None = None  # class of the network -> of the data set; None: they are the same
    by: Sequence[ObjectBins] = ()  # what objects are sorted by
    groups: str | Mapping[str, str] | None = None  # of frames: a pattern of their names, or the group of each
    flag: Mapping[str, Threshold] = field(default_factory=dict)  # score -> from which value on its pixels are flagged
    smallest_region: int = SMALLEST_REGION  # pixels from which on a flagged region counts

    def __post_init__(self) -> None:
        for name in self.tracks:
            if name not in TRACKS:
                raise InputError(f"component track '{name}'", f"one of {', '.join(TRACKS)}", "check the spelling")
        if self.smallest_region < 1:
            raise InputError(f"--flag-region {self.smallest_region}", "at least 1 pixel", "1 counts every region")

    def evaluator(
        self,
        scores: Sequence[str],
        classes: LabelMap | None,
        frames: Iterable[str],
        *,
        anomalies: Collection[str] | None,
        time_of: Callable[[str], float | None] = lambda frame: None,
        **given: Any,
    ) -> Evaluator:
        """An evaluator with these options, and further arguments of it; every name of the ``frames`` to come, of which ``anomalies``
        have an anomaly label (None: none are evaluated), is checked to belong to a resampled unit; ``time_of`` is a frame's moment in
        its video, in seconds."""
        if self.map_classes and classes is None:
            raise InputError("--map-classes without class labels", "frames with class labels", "leave it out")
        unit = resampled_units(self.resample, time_of)
        for name in frames:
            unit(name)
        wanted = dict.fromkeys((*self.protocols, *(("smiyc",) if self.tracks else ())))
        protocols: Sequence[AnomalyProtocol] = () if anomalies is None else tuple(wanted)
        if self.groups is not None and anomalies is None:
            raise InputError("--groups without anomaly labels", "frames with anomaly labels", "leave it out")
        further = [] if anomalies is None else self._breakdown(scores, anomalies)
        further += self._flagged(scores, classes.classes if classes else (), anomalies is not None)
        return Evaluator(
            scores, classes, protocols=protocols, resampling=self.resampling, unit=unit, further=further, **given
        )

    def _breakdown(self, scores: Sequence[str], frames: Collection[str]) -> list[Part[Any] | Grouped]:
        groups = {} if self.groups is None else group_frames(self.groups, frames)
        parts: list[Part[Any]] = [ByObject(score, bins) for score in scores for bins in self.by]
        return [*parts, *(Grouped(Pooled(score), *group) for score in scores for group in groups.items())]

    def _flagged(self, scores: Sequence[str], classes: Sequence[str], anomalies: bool) -> list[Part[Any]]:
        # A result may hold thresholds of other scores too; one that was given for a score was asked for.
        lost = [name for name, threshold in self.flag.items() if name not in scores and not threshold.source]
        used = {name: self.flag[name] for name in scores if name in self.flag}
        if lost or (self.flag and not used):
            given = f"--flag with a threshold of '{(lost or [*self.flag])[0]}', which is not evaluated"
            raise InputError(given, f"one of {', '.join(scores)}", "check the name, or name it with --scores")
        alarms = [FalseAlarms(*one, classes, self.smallest_region) for one in used.items() if classes]
        return [*alarms, *(Hits(*one) for one in used.items() if anomalies)]


@dataclass(frozen=True)
class Evaluation:
    """A finished evaluation: the content of ``metrics.json``, the replicates of its numbers, and the counts behind them."""

    result: Result
    replicates: Replicates
    evaluator: Evaluator | None = None  # of verdicts there is none


def finish(
    evaluator: Evaluator, result: Result, options: EvaluationOptions, again: Callable[[], Iterable[LabelledFrame]]
) -> Evaluation:
    """The evaluation of a first pass with this result, to which the components are added where tracks are asked for.

    They are counted at the thresholds that the first pass found, over ``again``, its frames with anomaly labels.
    """
    for name, numbers in result.get("flagged", {}).items():
        numbers["threshold"] = options.flag[name].value
        result["flagged_regions_from"] = options.smallest_region
    if not options.tracks or not evaluator.protocols:
        return Evaluation(result, evaluator.replicates(), evaluator)
    thresholds = {name: result["scores"][name]["smiyc"]["threshold"] for name in evaluator.score_names}
    known = {name: threshold for name, threshold in thresholds.items() if threshold is not None}
    sizes = next((bins for bins in options.by if bins.kind == "size"), None)
    groups = {t.group.group: t.group.members for t in evaluator.tallies if t.group is not None}
    parts: list[Part[Any] | Grouped] = []
    for given in ((name, track, known[name], options.mode) for name in known for track in options.tracks):
        parts += [Components(*given, sizes), *(Grouped(Components(*given), *group) for group in groups.items())]
    second = Gatherer(parts, options.resampling, evaluator.unit)
    for frame in again() if parts else ():
        second.add(frame)
    second.place_numbers(result, result["reasons"])
    for name, threshold in thresholds.items():
        for track in options.tracks if threshold is None else ():
            why = result["reasons"][f"scores.{name}.smiyc.threshold"]
            result["scores"][name].setdefault("components", {})[track] = None
            result["reasons"][f"scores.{name}.components.{track}"] = f"it has no threshold: {why}"
    result["component_mode"] = options.mode
    more = second.replicates()
    place_intervals(result, more)
    return Evaluation(result, evaluator.replicates().joined(more), evaluator)
