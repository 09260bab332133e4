"""Sum the counts of a run frame by frame, and turn them into one result. Components need a second
pass over the frames, at the thresholds that the first pass found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError, PartialFailure
from segunc.core.progress import ConsoleProgress
from segunc.data.labels import IGNORE, LabelMap
from segunc.decisions.flags import Threshold
from segunc.evaluation import parts
from segunc.evaluation.flagged import Achieved, flag_parts
from segunc.evaluation.over_time import object_parts
from segunc.evaluation.parts import (
    CONFIDENCE,
    PARTS,
    ArrayPart,
    ByObject,
    Components,
    Forms,
    LabelledFrame,
    PooledGroup,
)
from segunc.evaluation.resampling import (
    Chance,
    NumberPath,
    Replicates,
    Resampling,
    enough,
    group_frames,
    resampled_units,
)
from segunc.evaluation.spool import CountSpool
from segunc.metrics.counting import BinFinder, ScoreBins
from segunc.metrics.objects import SMALLEST_OBJECT, ObjectBins
from segunc.metrics.smiyc import TRACKS

Result = dict[str, Any]  # the content of metrics.json
Read = Callable[[str], Mapping[str, Any]]
"""Gives the fields of the :class:`LabelledFrame` of a name; raises InputError where a file is
damaged, or there is no label.
"""
NO_INTERVALS = Resampling(0)


class Tally:
    """The summed counts of a part: over all frames, and in a coarser form over the frames of each
    resampled unit.
    """

    def __init__(self, part: ArrayPart, resampling: Resampling) -> None:
        self.part, self.resampling, self.frames = part, resampling, 0
        self._counts: list[Any] = []
        self._spool = CountSpool()

    def add(self, counts: Any, unit: str, frames: int = 1) -> None:
        self.frames += frames
        self._counts.append(counts)
        if len(self._counts) > self.part.batch:
            self._counts = [self.part.combine(self._counts)]
        if self.resampling.replicates and not self.part.point.issuperset(self.part.names):
            self._spool.add(self.part.coarsen(counts), unit)

    @property
    def total(self) -> Any:
        if len(self._counts) > 1:
            self._counts = [self.part.combine(self._counts)]
        return self._counts[0] if self._counts else None

    def replicates(self, at_once: int = 32) -> Iterator[npt.NDArray[Any]]:
        """Yield the coarse counts of replicates, some at once: whole numbers ``[R, ...]`` of the
        form of :meth:`ArrayPart.coarsen`, without keys that no unit has where the part takes many
        at once.
        """
        if not self._spool.units:
            return
        shape = self.part.coarsen(self.total).shape
        columns = np.ones(shape, bool)
        if type(self.part).numbers_of_many is not ArrayPart.numbers_of_many:
            # It needs no key that no unit has.
            used = self._spool.used().reshape(-1, shape[-1]).any(axis=0)
            columns[..., ~used] = False
            shape = (*shape[:-1], int(used.sum()))
        for rows in self._spool.sums(self.resampling, columns.ravel(), at_once):
            yield rows.reshape(-1, *shape)

    def replicate_numbers(self, forms: Forms) -> dict[NumberPath, npt.NDArray[np.float64]]:
        """Return the replicates ``[R]`` of each number that all frames together define, NaN where a
        replicate defines none; they are shifted by the difference that the coarser counts make over
        all frames. All are NaN where too few units say something of it.
        """
        total, part = self.total, self.part
        if not self._spool.units:
            return {}
        exact, coarse = (
            part.numbers(total, forms),
            part.numbers(part.refine(part.coarsen(total)), forms),
        )
        shifts = {
            name: value - near
            for name, value in exact.items()
            if value is not None and (near := coarse[name]) is not None and name not in part.point
        }
        if not shifts:
            return {}
        if not enough(self._spool.units):
            return {name: np.full(self.resampling.replicates, np.nan) for name in shifts}
        blocks = [part.numbers_of_many(counts, forms) for counts in self.replicates()]
        columns = {name: np.concatenate([block[name] for block in blocks]) for name in shifts}
        return {name: columns[name] + shift for name, shift in shifts.items()}


class Gatherer:
    """Sums the counts of parts over frames; ``unit`` leads from a frame's name to the unit that is
    resampled for the intervals.
    """

    def __init__(
        self, parts: Sequence[ArrayPart], resampling: Resampling, unit: Callable[[str], str]
    ) -> None:
        self.resampling, self.unit = resampling, unit
        self.tallies: list[Tally] = [Tally(part, resampling) for part in parts]
        self.forms: dict[str, Any] = {}
        self.units: set[str] = set()
        self._replicates: Replicates | None = None

    def add(self, frame: LabelledFrame) -> None:
        """Count a frame; where a part cannot, or a map is stored in another form than before, raise
        InputError and count nothing.
        """
        forms = dict(self.forms)
        for name in frame.stored:
            form = frame.form(name)
            if forms.setdefault(name, form) != form:
                raise InputError(
                    f"the map '{name}' is stored as {form}, and as {forms[name]} in the frames before it"
                )
        counts = [tally.part.count(frame) for tally in self.tallies]
        self.forms, self._replicates = forms, None
        self.units.add(self.unit(frame.name))
        for tally, part_counts in zip(self.tallies, counts, strict=True):
            if part_counts is not None:
                tally.add(part_counts, self.unit(frame.name))

    def incomplete(self, tally: Tally) -> str | None:
        """Return why a part has no numbers, whatever its counts are; None where it has."""
        return None

    def counts(self, kind: type[ArrayPart]) -> dict[str, Any]:
        """Return the summed counts of each part of a kind by its score (``""`` without one), None
        where no frame was counted.
        """
        return {getattr(t.part, "score", ""): t.total for t in self.tallies if type(t.part) is kind}

    def place_numbers(self, result: Result, tallies: Iterable[Tally] | None = None) -> None:
        """Put every number of parts into a result, None with its reason (by dotted path) where
        there is none.
        """
        for tally in self.tallies if tallies is None else tallies:
            for frame, counts in tally.part.finish():
                tally.add(counts, self.unit(frame), frames=0)
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
                    reason = why or (part.lacks if total is None else part.why(total, name))
                    result["reasons"][".".join(path)] = reason

    def replicates(self) -> Replicates:
        """Return the numbers of every bootstrap replicate; no paths without resampling."""
        if self._replicates is None:
            rows = {
                ".".join((*tally.part.section, *name)): row
                for tally in ConsoleProgress(label="intervals", unit="part").follow(self.tallies)
                if not self.incomplete(tally)
                for name, row in tally.replicate_numbers(self.forms).items()
            }
            values = (
                np.stack([*rows.values()]) if rows else np.zeros((0, self.resampling.replicates))
            )
            self._replicates = Replicates(
                tuple(rows), values, self.resampling.seed, tuple(sorted(self.units))
            )
        return self._replicates

    def place_intervals(self, result: Result) -> None:
        """Put the interval of every number with replicates and its effective number of units into a
        result, or why it has none.
        """
        for path, chance in self.replicates().chances().items():
            bootstrap = result.setdefault("bootstrap", {})
            if isinstance(chance, Chance):
                result["intervals"][path] = [chance.low, chance.high]
                bootstrap.setdefault("effective_units", {})[path] = round(chance.effective, 1)
            else:
                bootstrap.setdefault("no_interval", {})[path] = chance


class Evaluator(Gatherer):
    """Counts frames by all parts there are; :meth:`numbers` gives the result, and names the frames
    that could not be counted.

    Args:
        scores: that every frame with an anomaly label must bring.
        classes, anomalies: label map or class names, and frames with an anomaly label; None where
            no such labels are evaluated.
        frames: names to come; each is checked to belong to a resampled unit.
        tracks: of the components, whose threshold is that of the protocol ``smiyc``, which is
            evaluated too.
        groups, resample, time_of, unit_codes, smallest_object: as of :func:`group_frames`,
            :func:`resampled_units` and :class:`LabelledFrame`.
    """

    def __init__(
        self,
        scores: Sequence[str],
        classes: LabelMap | Sequence[str] | None,
        frames: Iterable[str] = (),
        *,
        anomalies: Collection[str] | None = (),
        protocols: Sequence[Any] = ("pooled",),
        tracks: Sequence[str] = (),
        by: Sequence[ObjectBins] = (),
        groups: str | Mapping[str, str] | None = None,
        flag: Mapping[str, Threshold] | None = None,
        resampling: Resampling = NO_INTERVALS,
        resample: str = "frame",
        time_of: Callable[[str], float | None] = lambda frame: None,
        unit_codes: Collection[str] | None = None,
        smallest_object: int = SMALLEST_OBJECT,
    ) -> None:
        for name in tracks:
            if name not in TRACKS:
                raise InputError(
                    f"there is no component track '{name}'", hint=f"--components {','.join(TRACKS)}"
                )
        if groups is not None and anomalies is None:
            raise InputError("--groups needs frames with anomaly labels, and there are none")
        self.score_names, self.unit_codes, self.bins = (
            tuple(scores),
            unit_codes,
            dict[str, ScoreBins](),
        )
        self.smallest_object = smallest_object
        self.classes = tuple(classes.classes if isinstance(classes, LabelMap) else classes or ())
        self.protocols = (
            ()
            if anomalies is None
            else tuple(dict.fromkeys([*protocols, *(["smiyc"] if tracks else [])]))
        )
        if not (self.score_names and self.protocols) and not self.classes:
            raise InputError("there is neither a score nor a class to evaluate")
        parts = [
            part
            for build in PARTS.values()
            for part in build(self.score_names, self.classes, self.protocols)
        ]
        if anomalies is not None:
            members = {} if groups is None else group_frames(groups, anomalies)
            parts += [ByObject(score, bins) for score in scores for bins in by]
            parts += [PooledGroup(score, *group) for score in scores for group in members.items()]
        self.tracks, self.flag = tracks if self.protocols else (), flag or {}
        parts += flag_parts(
            self.flag, self.score_names, self.classes, anomalies is not None, time_of
        )
        if (
            anomalies is not None
        ):  # last: it follows objects, so whatever refuses a frame must come first
            timed = any(time_of(name) is not None for name in anomalies)
            parts += object_parts(
                self.flag, self.score_names, by, members, time_of if timed else None
            )
        super().__init__(parts, resampling, resampled_units(resample, time_of))
        for name in frames:
            self.unit(name)
            for part in parts:
                if isinstance(part, Achieved):
                    part.unit(name)
        self.anomaly_frames: list[str] = []  # that were counted
        self._counts = Counter[str]()
        self._left_out: list[dict[str, str]] = []

    def update(
        self,
        frame: str,
        stored: Mapping[str, npt.NDArray[Any]],
        prediction: npt.NDArray[np.uint8] | None = None,
        mean_probabilities: npt.NDArray[np.float32] | None = None,
        labels: npt.NDArray[np.uint8] | None = None,
        anomaly: npt.NDArray[np.uint8] | None = None,
    ) -> bool:
        """Count a frame, given by its name and the fields of :class:`LabelledFrame`; return whether
        it was counted.
        """
        labels = labels if self.classes else None
        used = {name: stored[name] for name in (*self.score_names, CONFIDENCE) if name in stored}
        arrays = (prediction, mean_probabilities, labels, anomaly)
        try:
            labelled = LabelledFrame(
                frame,
                used,
                *arrays,
                unit_codes=self.unit_codes,
                bins=self.bins,
                smallest_object=self.smallest_object,
            )
            self.add(labelled)
        except InputError as error:
            self.leave_out(frame, str(error))
            return False
        if anomaly is not None:
            self.anomaly_frames.append(frame)
        normal, anomalous, ignored = labelled.anomaly_pixels.tolist()
        labelled_size = 0 if labels is None or prediction is None else labels.size
        unlabelled = int(np.count_nonzero(labels == IGNORE)) if labelled_size else 0
        self._counts.update(
            frames_scored=1,
            anomaly_frames=int(anomaly is not None),
            anomaly_frames_with_both_classes=int(bool(normal and anomalous)),
            pixels=normal + anomalous,
            anomaly_pixels=anomalous,
            normal_pixels=normal,
            ignored_pixels=ignored,
            labelled_frames=int(labelled_size > 0),
            labelled_pixels=labelled_size - unlabelled,
            ignored_label_pixels=unlabelled,
        )
        return True

    def find_bins(self, frames: Sequence[str], read: Read) -> None:
        """Make bins of the scores that 16 bits cannot hold, from the float maps of all frames that
        will be counted.
        """
        rows = sum(tally.part.rows for tally in self.tallies)
        finders: dict[str, BinFinder] = {}
        for name in ConsoleProgress(label="first look").follow(frames):
            with suppress(InputError):  # the frame is left out when it is counted
                frame = LabelledFrame(name, **read(name), unit_codes=self.unit_codes)
                for score, stored in frame.stored.items():
                    for labels in (frame.anomaly, frame.wrong) if stored.dtype.kind == "f" else ():
                        if labels is not None:
                            finders.setdefault(score, BinFinder(rows)).add(stored, labels)
        for score, finder in sorted(finders.items()):
            bins = finder.bins() if finder.wide else None
            if bins is not None:
                self.bins[score] = bins

    def count(self, frames: Sequence[str], read: Read) -> None:
        for name in ConsoleProgress().follow(frames):
            try:
                arrays = read(name)
            except InputError as error:
                self.leave_out(name, str(error))
            else:  # a frame that is refused while it is counted may not be left out: half of it is counted
                self.update(name, **arrays)

    def leave_out(self, frame: str, reason: str) -> None:
        """Note a frame that cannot be counted, one that could not be read for instance."""
        self._left_out.append({"frame": frame, "reason": reason})

    def leave_out_all(self, frames: Sequence[str], reasons: Mapping[str, str]) -> list[str]:
        """Note the frames that have a reason not to be counted, and return the others."""
        others = []
        for frame in frames:
            if frame in reasons:
                self.leave_out(frame, reasons[frame])
            else:
                others.append(frame)
        return others

    def numbers(self, read: Read | None = None) -> Result:
        """Return the numbers of all frames so far, in the form of ``metrics.json``: what cannot be
        made is None, and ``reasons`` says why under its dotted path. Component tracks ``read`` the
        frames with anomaly labels once more. PartialFailure where no frame could be counted.
        """
        scored, lost = self._counts["frames_scored"], len(self._left_out)
        if scored == 0:
            first = (
                f" (first {self._left_out[0]['frame']}: {self._left_out[0]['reason']})"
                if lost
                else ""
            )
            message = f"none of {lost} frames could be scored{first}; check that the labels belong to these maps"
            raise PartialFailure(message)
        sections = (
            "scores",
            "segmentation",
            "calibration",
            "selective",
            "frames",
            "intervals",
            "reasons",
        )
        result: Result = {name: {} for name in sections}
        self.place_numbers(result)
        result["segmentation"].setdefault("per_class", {})
        for counts in (
            self.counts(parts.ConfidenceCalibration).values()
            if result["calibration"]["ece"] is not None
            else ()
        ):
            result["calibration"]["reliability"] = parts.reliability(counts, self.forms)
        for name, flagged in result.get("flagged", {}).items():
            of = self.flag[name]
            flagged["threshold"] = of.value
            if of.guarantee:
                flagged["promise"] = of.promise
                flagged["condition"] = of.guarantee.condition
                flagged["control"] = of.guarantee.control
        self._count_components(result, read)
        self.place_intervals(result)
        result["counts"] = {
            "frames": scored + lost,
            "frames_scored": scored,
            "frames_left_out": lost,
        }
        result["counts"] |= {**self._counts, "resampled_units": len(self.units)}
        for tally in self.tallies:
            if isinstance(tally.part, PooledGroup):
                normal, anomalous = (0, 0) if tally.total is None else tally.total.sum(1).tolist()
                counts = {
                    "anomaly_frames": tally.frames,
                    "normal_pixels": normal,
                    "anomaly_pixels": anomalous,
                }
                result["counts"].setdefault("groups", {})[tally.part.group] = counts
        result["forms"] = {
            name: str(self.forms[name]) for name in self.score_names if name in self.forms
        }
        result["left_out"] = list(self._left_out)
        return result

    def incomplete(self, tally: Tally) -> str | None:
        part, counted = tally.part, tally.frames
        if part.needs == "class" and not self.classes:
            return "no class labels were given"
        labelled = self._counts["anomaly_frames" if part.needs == "anomaly" else "labelled_frames"]
        if 0 < counted < labelled and getattr(part, "members", None) is None:
            return f"only {counted} of {labelled} frames with a label hold what it needs"
        return None

    def _count_components(self, result: Result, read: Read | None) -> None:
        """Count the components at the thresholds that the first pass found, and place their
        numbers.
        """
        tallies = []
        for name in self.score_names if self.tracks else ():
            threshold = result["scores"][name]["smiyc"]["threshold"]
            if threshold is None:
                why = result["reasons"][f"scores.{name}.smiyc.threshold"]
                result["scores"][name]["components"] = dict.fromkeys(self.tracks)
                paths = (f"scores.{name}.components.{track}" for track in self.tracks)
                result["reasons"] |= dict.fromkeys(paths, f"it has no threshold: {why}")
            else:
                tallies += [
                    Tally(Components(name, track, threshold), self.resampling)
                    for track in self.tracks
                ]
        if tallies and read is not None:
            for name in ConsoleProgress(label="components").follow(self.anomaly_frames):
                arrays = read(name)
                frame = LabelledFrame(
                    name,
                    arrays["stored"],
                    anomaly=arrays["anomaly"],
                    unit_codes=self.unit_codes,
                    bins=self.bins,
                )
                for tally in tallies:
                    tally.add(tally.part.count(frame), self.unit(name))
        self.place_numbers(result, tallies)
        self.tallies += tallies
        self._replicates = None
