"""Sum the counts of a run frame by frame, and turn them into one result.

Components need a second pass over the frames, at the thresholds that the first pass found.
"""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError, NoteWarning, PartialFailure, one_line
from segunc.core.progress import ConsoleProgress
from segunc.data.labels import IGNORE, LabelMap
from segunc.decisions.flags import Threshold
from segunc.evaluation import parts
from segunc.evaluation.flagged import (
    Achieved,
    flag_parts,
    notes_on_units,
    units_of_calibration,
)
from segunc.evaluation.over_time import object_parts
from segunc.evaluation.parts import (
    CONFIDENCE,
    AnomalyProtocol,
    ArrayPart,
    ByObject,
    Components,
    Forms,
    LabelledFrame,
    ManyCounts,
    PooledGroup,
    registered_parts,
)
from segunc.evaluation.resampling import (
    ANOMALY_LABELS,
    CLASS_LABELS,
    IMAGE_HASH_LENGTH,
    SIZES_OF_LABELS,
    UNIT_MEMBERS,
    Chance,
    NumberPath,
    Replicates,
    Resampling,
    TimeOf,
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


@dataclass(frozen=True)
class Measures:
    """What an evaluation measures, whether of maps or of a model.

    Attributes:
        protocols: how anomaly pixels are pooled.
        tracks: of the components. Their threshold is that of the protocol ``smiyc``, which is
            evaluated too.
        by: bins of objects.
        groups: of frames, as :func:`group_frames` takes them.
        flag: score -> threshold at which pixels are flagged.
        smallest_object: pixels of the smallest labelled object.
        resampling: replicates of the intervals.
        resample: the unit that is resampled, as :func:`resampled_units` takes it.
    """

    protocols: Sequence[AnomalyProtocol] = ("pooled",)
    tracks: Sequence[str] = ()
    by: Sequence[ObjectBins] = ()
    groups: str | Mapping[str, str] | None = None
    flag: Mapping[str, Threshold] = field(default_factory=dict)
    smallest_object: int = SMALLEST_OBJECT
    resampling: Resampling = NO_INTERVALS
    resample: str = "frame"

    def __post_init__(self) -> None:
        for name in self.tracks:
            if name not in TRACKS:
                raise InputError(
                    f"there is no component track '{name}'", hint=f"--components {','.join(TRACKS)}"
                )

    def all_protocols(self) -> tuple[AnomalyProtocol, ...]:
        """Return each protocol once, with the one that gives the components their threshold."""
        protocols = list(self.protocols)
        if self.tracks:
            protocols.append("smiyc")
        return tuple(dict.fromkeys(protocols))


DEFAULT_MEASURES = Measures()


class Tally:
    """The summed counts of a part: over all frames, and in a coarser form by resampled unit."""

    def __init__(self, part: ArrayPart, resampling: Resampling) -> None:
        self.part = part
        self.resampling = resampling
        self.frames = 0
        self._counts: list[Any] = []
        self._spool = CountSpool()

    def add(self, counts: Any, unit: str, frames: int = 1) -> None:
        """Add the counts of so many frames of a unit."""
        self.frames += frames
        self._counts.append(counts)
        if len(self._counts) > self.part.batch:
            self._counts = [self.part.combine(self._counts)]
        if self.resampling.replicates and not self.part.point.issuperset(self.part.names):
            self._spool.add(self.part.coarsen(counts), unit)

    @property
    def units(self) -> int:
        """Number of resampled units that say something of the numbers."""
        return len(self._spool.units)

    @property
    def total(self) -> Any:
        """The counts of all frames; None where no frame was counted."""
        if len(self._counts) > 1:
            self._counts = [self.part.combine(self._counts)]
        return self._counts[0] if self._counts else None

    def replicates(self, at_once: int = 32) -> Iterator[npt.NDArray[Any]]:
        """Yield the coarse counts of replicates, some at once.

        They are whole numbers ``[R, ...]`` of the form of :meth:`ArrayPart.coarsen`, without keys
        that no unit has where the part takes many at once.
        """
        if not self._spool.units:
            return
        shape = self.part.coarsen(self.total).shape
        columns = np.ones(shape, bool)
        keys = self._used_keys()
        if keys is not None:
            columns[...] = False
            columns[..., keys] = True
            shape = (*shape[:-1], len(keys))
        for rows in self._spool.sums(self.resampling, columns.ravel(), at_once):
            yield rows.reshape(-1, *shape)

    def _used_keys(self) -> npt.NDArray[np.int64] | None:
        """Return the keys that some unit has, where the part takes many replicates at once: it
        needs no others. None for all keys.
        """
        if type(self.part).numbers_of_many is ArrayPart.numbers_of_many:
            return None
        bins = self.part.coarsen(self.total).shape[-1]
        return np.flatnonzero(self._spool.used().reshape(-1, bins).any(axis=0))

    def replicate_numbers(self, forms: Forms) -> dict[NumberPath, npt.NDArray[np.float64]]:
        """Return the replicates ``[R]`` of each number that all frames together define.

        NaN where a replicate defines none; all are NaN where too few units say something of it.
        """
        if not self._spool.units:
            return {}
        shifts = self._shifts(forms)
        if not shifts:
            return {}
        if not enough(self._spool.units):
            return {name: np.full(self.resampling.replicates, np.nan) for name in shifts}
        keys = self._used_keys()
        many = (ManyCounts(counts, keys) for counts in self.replicates())
        blocks = [self.part.numbers_of_many(counts, forms) for counts in many]
        replicates: dict[NumberPath, npt.NDArray[np.float64]] = {}
        for name, shift in shifts.items():
            replicates[name] = np.concatenate([block[name] for block in blocks]) + shift
        return replicates

    def _shifts(self, forms: Forms) -> dict[NumberPath, float]:
        """Return by how much the coarser counts change each number of all frames.

        Replicates, which are made of coarse counts, are shifted by it. Only numbers that have an
        interval are among them.
        """
        part = self.part
        total = self.total
        exact = part.numbers(total, forms)
        coarse = part.numbers(part.refine(part.coarsen(total)), forms)
        shifts: dict[NumberPath, float] = {}
        for name, value in exact.items():
            nearby = coarse[name]
            if value is not None and nearby is not None and name not in part.point:
                shifts[name] = value - nearby
        return shifts


class Gatherer:
    """Sums the counts of parts over frames.

    ``unit`` leads from a frame's name to the unit that is resampled for the intervals. Where it is
    ``quiet``, it prints no progress.
    """

    quiet = False

    def __init__(
        self, parts: Sequence[ArrayPart], resampling: Resampling, unit: Callable[[str], str]
    ) -> None:
        self.resampling = resampling
        self.unit = unit
        self.tallies: list[Tally] = [Tally(part, resampling) for part in parts]
        self.forms: dict[str, Any] = {}
        self.units: set[str] = set()
        self.images: dict[str, str | None] = {}
        """Hash of the image of each counted frame, None where it is not known."""
        self._replicates: Replicates | None = None
        self._units_behind: dict[str, int] = {}  # of each number with replicates

    def add(self, frame: LabelledFrame) -> None:
        """Count a frame by all parts.

        Raises:
            InputError: a part cannot count it, or a map is stored in another form than before. Then
                nothing of the frame is counted.
        """
        forms = dict(self.forms)
        for name in frame.stored:
            form = frame.form(name)
            if forms.setdefault(name, form) != form:
                raise InputError(
                    f"the map '{name}' is stored as {form}, "
                    f"and as {forms[name]} in the frames before it"
                )
        counts = [tally.part.count(frame) for tally in self.tallies]
        self.forms = forms
        self._replicates = None
        self.units.add(self.unit(frame.name))
        for tally, part_counts in zip(self.tallies, counts, strict=True):
            if part_counts is not None:
                tally.add(part_counts, self.unit(frame.name))

    def incomplete(self, tally: Tally) -> str | None:
        """Return why a part has no numbers, whatever its counts are; None where it has."""
        return None

    def counts(self, kind: type[ArrayPart]) -> dict[str, Any]:
        """Return the summed counts of each part of a kind by its score, ``""`` without one.

        They are None where no frame was counted.
        """
        counts: dict[str, Any] = {}
        for tally in self.tallies:
            if type(tally.part) is kind:
                counts[getattr(tally.part, "score", "")] = tally.total
        return counts

    def place_numbers(self, result: Result, tallies: Iterable[Tally] | None = None) -> None:
        """Put every number of parts into a result.

        A number that cannot be made is None, and its reason stands under its dotted path.
        """
        for tally in self.tallies if tallies is None else tallies:
            for frame, counts in tally.part.finish():
                tally.add(counts, self.unit(frame), frames=0)
            part = tally.part
            total = tally.total
            why_incomplete = self.incomplete(tally)
            numbers = dict.fromkeys(part.names)
            if total is not None and not why_incomplete:
                numbers |= part.numbers(total, self.forms)
            for name in part.names:
                path = (*part.section, *name)
                _place(result, path, numbers[name])
                if numbers[name] is not None:
                    continue
                if why_incomplete:
                    reason = why_incomplete
                elif total is None:
                    reason = part.lacks
                else:
                    reason = part.why(total, name)
                result["reasons"][".".join(path)] = reason

    def replicates(self) -> Replicates:
        """Return the numbers of every bootstrap replicate; no paths without resampling."""
        if self._replicates is None:
            rows: dict[str, npt.NDArray[np.float64]] = {}
            tallies: Iterable[Tally] = self.tallies
            if self.resampling.replicates:
                tallies = self._progress("intervals", "part").follow(self.tallies)
            for tally in tallies:
                if self.incomplete(tally):
                    continue
                for name, row in tally.replicate_numbers(self.forms).items():
                    dotted = ".".join((*tally.part.section, *name))
                    rows[dotted] = row
                    self._units_behind[dotted] = tally.units
            values = np.zeros((0, self.resampling.replicates))
            if rows:
                values = np.stack([*rows.values()])
            units = tuple(sorted(self.units))
            images: dict[str, str] = {}
            for frame, stamp in self.images.items():
                if stamp is not None:
                    images[frame] = stamp[:IMAGE_HASH_LENGTH]
            self._replicates = Replicates(
                paths=tuple(rows),
                values=values,
                seed=self.resampling.seed,
                units=units,
                images=images,
                frames=tuple(self.images),
            )
        return self._replicates

    def place_intervals(self, result: Result) -> None:
        """Put the interval of every number with replicates into a result, or why it has none.

        With the interval goes the effective number of units: at most those that say something of
        the number, and none for a number that is the same whatever is drawn.
        """
        for path, chance in self.replicates().chances().items():
            bootstrap = result.setdefault("bootstrap", {})
            if isinstance(chance, Chance):
                result["intervals"][path] = [chance.low, chance.high]
                if chance.low < chance.high:
                    effective = min(chance.effective, self._units_behind[path])
                    bootstrap.setdefault("effective_units", {})[path] = round(effective, 1)
            else:
                bootstrap.setdefault("no_interval", {})[path] = chance

    def record_bootstrap(self, result: Result, resample: str) -> None:
        """Put how the intervals were made before what :meth:`place_intervals` says of them.

        Args:
            result: that the intervals stand in.
            resample: the unit that was resampled.
        """
        result["bootstrap"] = {
            "replicates": self.resampling.replicates,
            "seed": self.resampling.seed,
            "unit": resample,
            "units": len(self.replicates().units),
            UNIT_MEMBERS: self._unit_members(),
            **result.pop("bootstrap", {}),
        }

    def _unit_members(self) -> str:
        """Return a sum of hashes that tells units of the same names from those of other frames.

        A frame counts by the last part of its name, as in :func:`image_sums`.
        """
        hashes = [_sum_of(_name_alone(name) + self.unit(name).encode()) for name in self.images]
        return _shown_sum(sum(hashes))

    def _progress(self, label: str = "", unit: str = "frame") -> ConsoleProgress:
        return ConsoleProgress(label=label, unit=unit, quiet=self.quiet)


def _place(result: Result, path: NumberPath, number: float | None) -> None:
    """Put a number into a result, into sections that are made where they lack."""
    section = result
    for key in path[:-1]:
        section = section.setdefault(key, {})
    section[path[-1]] = number


def _sum_of(content: bytes) -> int:
    """Return the addend of a content in a sum of hashes."""
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big")


def _name_alone(frame: str) -> bytes:
    """Return the last part of a frame's name, which ends before the content that a hash adds."""
    return frame.rpartition("/")[2].encode() + b"\0"


def _shown_sum(total: int) -> str:
    """Return a sum of hashes as a result holds it."""
    return f"{total % 2**64:016x}"


def image_sums(images: Mapping[str, str | None]) -> dict[str, str]:
    """Return sums of hashes that tell other images of the same names: of the names as
    ``frame_names``, and of the images as ``images``, which is left out where one is not known.

    A frame counts by the last part of its name: maps and models name its folders differently. The
    sums do not depend on the order of the frames.

    Args:
        images: hash of the image of each frame; None where it is not known.
    """
    name_sum = 0
    image_sum = 0
    for frame, stamp in images.items():
        name = _name_alone(frame)
        name_sum += _sum_of(name.removesuffix(b"\0"))
        image_sum += _sum_of(name + (stamp or "").encode())
    sums = {"frame_names": _shown_sum(name_sum)}
    if None not in images.values():
        sums["images"] = _shown_sum(image_sum)
    return sums


class Evaluator(Gatherer):
    """Counts frames by all parts there are.

    :meth:`numbers` gives the result, and names the frames that could not be counted.

    Args:
        scores: that every frame with an anomaly label must bring.
        classes: label map or class names; None where no class labels are evaluated.
        frames: names to come; each is checked to belong to a resampled unit.
        anomalies: frames with an anomaly label; None where no such labels are evaluated.
        time_of: of a frame, in seconds of its video.
        stamp_of: returns the hash of a frame's image; None where it is not known.
        unit_codes: as of :class:`LabelledFrame`.
        measures: what is measured.

    Attributes:
        left_out: frames that could not be counted, each with its reason.
    """

    def __init__(
        self,
        scores: Sequence[str],
        classes: LabelMap | Sequence[str] | None,
        frames: Iterable[str] = (),
        *,
        anomalies: Collection[str] | None = (),
        time_of: TimeOf = lambda frame: None,
        stamp_of: Callable[[str], str | None] = lambda frame: None,
        unit_codes: Collection[str] | None = None,
        measures: Measures = DEFAULT_MEASURES,
    ) -> None:
        if measures.groups is not None and anomalies is None:
            raise InputError("--groups needs frames with anomaly labels, and there are none")
        self.measures = measures
        self.flag = measures.flag
        self.score_names = tuple(scores)
        self.unit_codes = unit_codes
        self.stamp_of = stamp_of
        self.time_of = time_of
        self.bins: dict[str, ScoreBins] = {}
        self.classes = tuple(classes.classes if isinstance(classes, LabelMap) else classes or ())
        self.protocols = () if anomalies is None else measures.all_protocols()
        self.tracks = measures.tracks if self.protocols else ()
        if not (self.score_names and self.protocols) and not self.classes:
            raise InputError("there is neither a score nor a class to evaluate")
        parts = self._make_parts(anomalies, time_of)
        super().__init__(parts, measures.resampling, resampled_units(measures.resample, time_of))
        for name in frames:
            self.unit(name)
            for part in parts:
                if isinstance(part, Achieved):
                    part.unit(name)
        self.anomaly_frames: list[str] = []  # that were counted
        self.sizes: set[str] = set()  # width x height of the counted frames
        self._counts = Counter[str]()
        self._label_sums = Counter[str]()  # see _add_labels
        self._anomaly_hashes: dict[str, int] = {}  # frame -> hash of its name and anomaly label
        self._stamps: set[str] = set()
        self.copies = 0
        """Counted frames whose image is that of an earlier one."""
        self.left_out: list[dict[str, str]] = []

    def _make_parts(self, anomalies: Collection[str] | None, time_of: TimeOf) -> list[ArrayPart]:
        """Return the parts of the labels that there are, in the order of the result."""
        measures = self.measures
        parts = registered_parts(self.score_names, self.classes, self.protocols)
        alarms = flag_parts(
            self.flag, self.score_names, self.classes, anomalies is not None, time_of
        )
        if anomalies is None:
            return [*parts, *alarms]
        groups: dict[str, set[str]] = {}
        if measures.groups is not None:
            groups = group_frames(measures.groups, anomalies)
        for score in self.score_names:
            for bins in measures.by:
                parts.append(ByObject(score, bins))
        for score in self.score_names:
            for group, members in groups.items():
                parts.append(PooledGroup(score, group, members))
        parts += alarms
        # Last, because these parts follow objects from frame to frame: a part that refuses a frame
        # must have refused it before.
        timed = any(time_of(name) is not None for name in anomalies)
        parts += object_parts(
            self.flag, self.score_names, measures.by, groups, time_of if timed else None
        )
        return parts

    def update(
        self,
        frame: str,
        stored: Mapping[str, npt.NDArray[Any]],
        prediction: npt.NDArray[np.uint8] | None = None,
        mean_probabilities: npt.NDArray[np.float32] | None = None,
        labels: npt.NDArray[np.uint8] | None = None,
        anomaly: npt.NDArray[np.uint8] | None = None,
        kept: npt.NDArray[np.bool_] | None = None,
    ) -> bool:
        """Count a frame, given by its name and the fields of :class:`LabelledFrame`.

        Return whether it was counted; if not, it is left out with its reason.
        """
        labels = labels if self.classes else None
        used = {name: stored[name] for name in (*self.score_names, CONFIDENCE) if name in stored}
        try:
            labelled = LabelledFrame(
                frame,
                used,
                prediction=prediction,
                mean_probabilities=mean_probabilities,
                labels=labels,
                anomaly=anomaly,
                unit_codes=self.unit_codes,
                bins=self.bins,
                smallest_object=self.measures.smallest_object,
                kept=kept,
            )
            self.add(labelled)
        except InputError as error:
            self.leave_out(frame, one_line(error))
            return False
        if anomaly is not None:
            self.anomaly_frames.append(frame)
        for array in (labels, anomaly):
            if array is not None:
                height, width = array.shape
                self.sizes.add(f"{width}x{height}")
        normal, anomalous, ignored = labelled.anomaly_pixels.tolist()
        # Without predictions, too: what is flagged counts such pixels.
        labelled_size = 0 if labels is None else labels.size
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
        self._count_objects(labelled)
        self._add_image(frame)
        if labelled_size:
            self._add_labels(CLASS_LABELS, frame, labels)
        if anomaly is not None:
            self._add_labels(ANOMALY_LABELS, frame, anomaly)
        return True

    def _count_objects(self, frame: LabelledFrame) -> None:
        """Count the labelled objects of a frame, and those that are small, where some number is of
        objects.
        """
        if frame.anomaly is None or not (self.measures.by or self.flag):
            return
        assert frame.objects is not None
        small = frame.objects.smaller_than(self.measures.smallest_object)
        self._counts.update(
            objects=len(frame.objects.pixels),
            small_objects=small,
            small_object_frames=int(small > 0),
        )

    def _add_image(self, frame: str) -> None:
        """Note the image of a frame, and whether an earlier one has it."""
        stamp = self.stamp_of(frame)
        self.images[frame] = stamp
        if stamp is not None:
            self.copies += stamp in self._stamps
            self._stamps.add(stamp)

    def _add_labels(self, kind: str, frame: str, labels: npt.NDArray[Any] | None) -> None:
        """Add a frame's labels to sums that tell labels of the same frames from others: their
        pixels to that of the kind, and their size, which the pixels do not tell, to another one.

        A frame counts by the last part of its name: maps and models name its folders differently.
        The sums do not depend on the order of the frames.
        """
        assert labels is not None
        name = _name_alone(frame)
        height, width = labels.shape
        pixels = _sum_of(name + np.ascontiguousarray(labels, np.uint8).tobytes())
        self._label_sums[kind] += pixels
        # The sum of the pixels stays as it was, so that results of earlier versions compare.
        self._label_sums[SIZES_OF_LABELS[kind]] += _sum_of(name + f"{width}x{height}".encode())
        if kind == ANOMALY_LABELS:
            self._anomaly_hashes[frame] = pixels

    def find_bins(self, frames: Sequence[str], read: Read) -> None:
        """Make bins of the scores that 16 bits cannot hold.

        They are made of the float maps of all frames that will be counted.
        """
        rows = sum(tally.part.rows for tally in self.tallies)
        finders: dict[str, BinFinder] = {}
        for name in self._progress("first look").follow(frames):
            with suppress(InputError):  # the frame is left out when it is counted
                frame = LabelledFrame(name, **read(name), unit_codes=self.unit_codes)
                label_kinds = [label for label in (frame.anomaly, frame.wrong) if label is not None]
                for score, stored in frame.stored.items():
                    if stored.dtype.kind != "f":
                        continue
                    for labels in label_kinds:
                        finders.setdefault(score, BinFinder(rows)).add(stored, labels)
        for score, finder in sorted(finders.items()):
            bins = finder.bins() if finder.wide else None
            if bins is not None:
                self.bins[score] = bins

    def count(self, frames: Sequence[str], read: Read) -> None:
        """Count frames, and leave out those that cannot be read."""
        for name in self._progress().follow(frames):
            try:
                arrays = read(name)
            except InputError as error:
                self.leave_out(name, one_line(error))
                continue
            # Outside of the try: a frame that a part refuses in the middle is half counted, so that
            # error must not pass for one of reading.
            self.update(name, **arrays)

    def leave_out(self, frame: str, reason: str) -> None:
        """Note a frame that cannot be counted, one that could not be read for instance."""
        self.left_out.append({"frame": frame, "reason": reason})

    def leave_out_all(self, frames: Sequence[str], reasons: Mapping[str, str]) -> list[str]:
        """Note the frames that have a reason not to be counted, and return the others."""
        others = []
        for frame in frames:
            if frame in reasons:
                self.leave_out(frame, reasons[frame])
            else:
                others.append(frame)
        return others

    def leave_out_units(
        self,
        tested: Sequence[str],
        frames: Sequence[str],
        identity_of: Callable[..., str],
    ) -> None:
        """Leave units with frames of a calibration out of the achieved risk of its threshold, and
        warn of them, and of frames that come more or less densely than those of the calibration.

        Args:
            tested: names of the frames that test the promises.
            frames: names of all frames, also of those of the calibration.
            identity_of: gives the hash of a frame by its name and a ``score``.
        """
        for score, threshold in self.flag.items():
            guarantee = threshold.guarantee
            if guarantee is None or guarantee.unit == "frame":
                continue
            calibrated = units_of_calibration(
                guarantee, frames, partial(identity_of, score=score), self.time_of
            )
            for tally in self.tallies:
                if isinstance(tally.part, Achieved) and tally.part.score == score:
                    tally.part.calibrated_units = calibrated
            for note in notes_on_units(threshold, tested, calibrated, self.time_of):
                warnings.warn(note, NoteWarning, stacklevel=2)

    def numbers(self, read: Read | None = None) -> Result:
        """Return the numbers of all frames so far, in the form of ``metrics.json``.

        What cannot be made is None, and ``reasons`` says why under its dotted path. Component
        tracks ``read`` the frames with anomaly labels once more.

        Raises:
            PartialFailure: no frame could be counted.
        """
        if self._counts["frames_scored"] == 0:
            raise PartialFailure(self._why_nothing_was_scored())
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
        if result["calibration"]["ece"] is not None:
            for counts in self.counts(parts.ConfidenceCalibration).values():
                result["calibration"]["reliability"] = parts.reliability(counts, self.forms)
        for score, flagged in result.get("flagged", {}).items():
            _describe_threshold(flagged, self.flag[score], self.sizes)
        self._count_components(result, read)
        self.place_intervals(result)
        result["counts"] = self._frame_counts()
        unlabelled = self._unlabelled_classes()
        if unlabelled:
            result["counts"]["unlabelled_classes"] = unlabelled
        group_counts = self._group_counts()
        if group_counts:
            result["counts"]["groups"] = group_counts
        result["forms"] = {
            name: str(self.forms[name]) for name in self.score_names if name in self.forms
        }
        result["left_out"] = list(self.left_out)
        return result

    def _why_nothing_was_scored(self) -> str:
        first = ""
        if self.left_out:
            first = f" (first {self.left_out[0]['frame']}: {self.left_out[0]['reason']})"
        return (
            f"no frame of {len(self.left_out)} could be scored{first}; "
            "check that the labels belong to these maps"
        )

    def _frame_counts(self) -> dict[str, Any]:
        """Return how many frames and pixels the numbers are of."""
        scored = self._counts["frames_scored"]
        left_out = len(self.left_out)
        return {
            "frames": scored + left_out,
            "frames_scored": scored,
            "frames_left_out": left_out,
            **self._counts,
            "resampled_units": len(self.units),
            **{kind: _shown_sum(total) for kind, total in self._label_sums.items()},
            **image_sums(self.images),
        }

    def _unlabelled_classes(self) -> list[str]:
        """Return the classes of which no pixel is labelled; none where there are no labels.

        Their IoU is 0 where they are predicted, and says nothing of how they are found.
        """
        names: list[str] = []
        for confusion in self.counts(parts.Segmentation).values():
            if confusion is not None and confusion.any():
                labelled = confusion.sum(axis=1)
                names += [name for name, n in zip(self.classes, labelled, strict=True) if n == 0]
        return names

    def _group_counts(self) -> dict[str, dict[str, Any]]:
        """Return the frames and pixels of each group of frames, and the sum of hashes that tells
        its labels, and so its frames, from those of another group.
        """
        counts: dict[str, dict[str, Any]] = {}
        for tally in self.tallies:
            if not isinstance(tally.part, PooledGroup):
                continue
            normal = 0
            anomalous = 0
            if tally.total is not None:
                normal, anomalous = tally.total.sum(1).tolist()
            members = tally.part.members
            hashes = [value for name, value in self._anomaly_hashes.items() if name in members]
            counts[tally.part.group] = {
                "anomaly_frames": tally.frames,
                "normal_pixels": normal,
                "anomaly_pixels": anomalous,
                ANOMALY_LABELS: _shown_sum(sum(hashes)),
            }
        return counts

    def incomplete(self, tally: Tally) -> str | None:
        """Return why a part has no numbers: no labels, or frames that lack what it needs."""
        needs = tally.part.needs
        if needs == "class" and not self.classes:
            return "no class labels were given"
        labelled = self._counts["anomaly_frames" if needs == "anomaly" else "labelled_frames"]
        counts_all_frames = getattr(tally.part, "members", None) is None
        if counts_all_frames and 0 < tally.frames < labelled:
            return f"only {tally.frames} of {labelled} frames with a label hold what it needs"
        return None

    def _count_components(self, result: Result, read: Read | None) -> None:
        """Count the components at the thresholds of the first pass, and place their numbers."""
        tallies = self._component_tallies(result)
        if tallies and read is not None:
            for name in self._progress("components").follow(self.anomaly_frames):
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

    def _component_tallies(self, result: Result) -> list[Tally]:
        """Return a tally of each score and track; a score without a threshold gets reasons."""
        tallies: list[Tally] = []
        if not self.tracks:
            return tallies
        for score in self.score_names:
            threshold = result["scores"][score]["smiyc"]["threshold"]
            if threshold is None:
                why = result["reasons"][f"scores.{score}.smiyc.threshold"]
                result["scores"][score]["components"] = dict.fromkeys(self.tracks)
                for track in self.tracks:
                    path = f"scores.{score}.components.{track}"
                    result["reasons"][path] = f"it has no threshold: {why}"
                continue
            components = [Components(score, track, threshold) for track in self.tracks]
            tallies += [Tally(part, self.resampling) for part in components]
        return tallies


def _describe_threshold(
    flagged: dict[str, Any], threshold: Threshold, sizes: Collection[str]
) -> None:
    """Put the threshold of a score, and what it promises, beside the numbers of its alarms.

    Args:
        flagged: the numbers of the alarms.
        threshold: of the score.
        sizes: width x height of the counted frames.
    """
    flagged["threshold"] = threshold.value
    if threshold.guarantee:
        flagged["promise"] = threshold.promise
        flagged["condition"] = threshold.condition
        flagged["control"] = threshold.guarantee.control
        flagged["sizes"] = sorted(sizes)
