"""``segunc threshold``: a threshold with a promise, from maps and labels of calibration frames."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from segunc.core.errors import InputError
from segunc.core.files import write_result
from segunc.core.progress import ConsoleProgress
from segunc.core.results import VerbResult
from segunc.core.terminal import agreeing, counted
from segunc.core.urls import local_folder
from segunc.core.version import full_version, now
from segunc.data.labels import IGNORE
from segunc.data.masks import WHITE_ANOMALIES
from segunc.decisions.guarantee import (
    DENSER,
    FALLING,
    GROUP_BLOCKS,
    MAX_ALARMS,
    RISKS,
    GuaranteedThreshold,
    MethodName,
    block_seconds,
    model_of,
    promise_of,
    read_threshold,
    settings_of,
    source_of,
    unit_words,
)
from segunc.decisions.preparation import Preparation, classes_of_place, counted_pixels
from segunc.decisions.risks import (
    OF_ANOMALIES,
    OF_CLASSES,
    RISING,
    Losses,
    LossSums,
    Method,
    Pool,
    Scene,
    alarm_keys,
    flagged_shares,
    known_pixels,
)
from segunc.evaluation.from_maps import read_frame
from segunc.evaluation.parts import Form, LabelledFrame, values_of
from segunc.evaluation.resampling import group_frames, resampled_units
from segunc.maps.known_frames import note_on_known_maps
from segunc.maps.labelled import LabelSources, ReviewLabels, choose_scores, open_maps
from segunc.maps.learned_frames import learned_among, learned_words
from segunc.maps.manifest import chosen_by_alarms
from segunc.maps.reader import MapsReader
from segunc.maps.shards import frame_times
from segunc.metrics.counting import KEYS, NO_ANOMALY, BinFinder, Counts, ScoreBins
from segunc.metrics.objects import Objects, SmallObjects
from segunc.options import ThresholdOptions, recorded_command, takes
from segunc.scores import first_shown
from segunc.verbs.evaluate import (
    chosen_words,
    fitted_in_use,
    images_of_run,
    label_sources,
    matching,
    unrecorded_words,
)

DEFAULT_CONFIDENCE = 0.9
DEFAULT_BLOCK = "10s"  # the unit of a video where the user names none
MOST_FLAGGED = 0.5
"""Share of the normal or right pixels above which a threshold is said to separate hardly
anything."""
MUCH_IGNORED = 0.1
"""Share of ignored pixels above which a promise about normal pixels says that there are some."""
NEAR_SMALLEST = 1.5
"""A level is near the smallest one that its units can promise if it is at most so many times as
large."""
LEAST_OF_LEVEL = 0.01
"""Share of the level of flagged-pixels below which a threshold is said to flag next to nothing."""
# Controls that cost little to count beside the one that is asked for.
IGNORED_255 = "folder"
"""The data set of masks in which 255 marks ignored pixels."""
PRICED_CONTROLS = ("missed-pixels", "missed-objects", "flagged-pixels", "errors-kept")
_LARGEST_FLOAT_KEY = 0xFBFF  # of the largest finite float16
_MAX_EDGES = 1 << 17
"""Number of candidates for the threshold of floats that 16 bits cannot hold: they lie 1 in 65,536
of the normal pixels apart, 1 in 32,768 of the others, and each score is one where there are fewer
scores."""


@dataclass(frozen=True, repr=False)
class ThresholdResult(VerbResult):
    """A threshold with its promise.

    Attributes:
        path: the file that was written, which other verbs take as ``flag``.
        threshold: the value and its promise.
        price: the mean loss of the calibration units at the threshold, by control.
        regions: false regions of a calibration frame at the threshold: flagged regions of at least
            ``smallest`` pixels on normal ground, the mean over the frames.
        notes: what a user should know.
    """

    path: Path
    threshold: GuaranteedThreshold
    price: Mapping[str, float]
    regions: float
    notes: tuple[str, ...] = ()


@takes(ThresholdOptions)
def threshold(options: ThresholdOptions) -> ThresholdResult:
    """Calibrate a threshold on maps with labels, and write it with its promise.

    Raises:
        InputError: these units cannot give what is asked for.

    >>> made = threshold(
    ...     control="flagged-pixels",
    ...     level=0.25,
    ...     score="entropy",
    ...     maps=maps,
    ...     dataset="toy",
    ...     root=data,
    ...     split="anomaly",
    ...     out=folder / "threshold.json",
    ... )
    >>> made.threshold.units
    4
    """
    levels = {options.control: options.level, **options.also}
    method, confidence = _choose_method(options, levels)
    calibration = _open_calibration(options)
    _check_blocks(calibration.unit, levels)
    units = _UnitLosses(calibration, options, levels)
    units.count()
    choice = _Choice(units, levels, method)
    identities = calibration.identities()
    note_on_copies = _check_copies(identities, choice.minimum_units, calibration.unit)
    key = choice.common_key(options.control)
    groups, notes_on_groups = choice.by_group(options.control)
    made = _record(options, choice, key, groups, confidence, identities)
    note_on_file = _replaced_threshold(Path(options.out), made)
    write_result(Path(options.out), asdict(made))
    notes = [
        *calibration.notes,
        calibration.note_on_unit,
        calibration.chosen,
        note_on_copies,
        note_on_file,
        *_notes_on_threshold(choice, made, key),
        *notes_on_groups,
    ]
    return ThresholdResult(
        path=Path(options.out),
        threshold=made,
        price=units.mean_losses(key),
        regions=units.mean_regions(key),
        notes=tuple(note for note in notes if note),
    )


def _notes_on_threshold(choice: _Choice, made: GuaranteedThreshold, key: int) -> list[str]:
    """Return what a user should know of the units, of the room that the level leaves, and of the
    threshold at a key.
    """
    notes = choice.units.notes(made, key)
    # That a threshold flags next to nothing names the level already.
    if made.control in FALLING and notes[-1]:
        return notes
    return [choice.note_on_room(), *notes]


def _replaced_threshold(path: Path, made: GuaranteedThreshold) -> str:
    """Return a note on a threshold of another score or promise that a new one replaces; empty where
    there is none.
    """
    if not path.exists():
        return ""
    try:
        earlier = read_threshold(path, to_replace=True)
    except InputError:
        return f"replaces {path}, which was no threshold that this version reads"
    if (earlier.score, earlier.promise) == (made.score, made.promise):
        return ""
    promise = earlier.promise.rstrip(".")
    return f"replaces {path}, which was a threshold of {earlier.score}: {promise}"


def _choose_method(
    options: ThresholdOptions, levels: Mapping[str, float]
) -> tuple[Method, float | None]:
    """Return the method that bounds each risk, and the confidence in all bounds together.

    Raises:
        InputError: options contradict each other, or a level is out of range.
    """
    if options.also and (options.groups is not None or options.control in options.also):
        other = "--groups" if options.groups is not None else f"--control {options.control}"
        raise InputError(
            f"--also {next(iter(options.also))} and {other} do not go together",
            hint="leave one out",
        )
    bounds_expectation = options.confidence is None and not options.also
    if options.method == "conformal" and not bounds_expectation:
        raise InputError(
            "--method conformal has no confidence and no second risk", hint="--method ltt"
        )
    name: MethodName = options.method or ("conformal" if bounds_expectation else "ltt")
    if name == "conformal":
        method = Method(name)
        confidence = None
    else:
        confidence = DEFAULT_CONFIDENCE if options.confidence is None else options.confidence
        # The error probability is split between the promises (Bonferroni).
        method = Method(name, 1 - (1 - confidence) / len(levels))
    _check_levels(levels, method, options.control)
    return method, confidence


def _check_levels(levels: Mapping[str, float], method: Method, first: str) -> None:
    """Raise InputError for a control that does not exist and for a level out of its range.

    Args:
        levels: by control.
        method: that bounds the risks.
        first: the control whose level ``--level`` gives; ``--also`` gives those of others.
    """
    for control, level in levels.items():
        if control not in RISKS:
            raise InputError(
                f"--also has no control '{control}'", hint=f"controls are {', '.join(RISKS)}"
            )
        largest = method.largest(control)
        if 0 < level < largest:
            continue
        option = "--level " if control == first else f"--also {control}="
        message = f"{option}{level:g}: a level for {control} must be above 0 and below {largest:g}"
        hint = f"{option}0.1"
        if method.name == "clopper-pearson":
            message += f", because --method {method.name} bounds the share of units with any of it"
        elif control == "false-alarms":
            message += (
                f", because at most {MAX_ALARMS} false alarms of a frame, or of a minute, are "
                "counted: the methods need a largest loss"
            )
            hint = f"{option}1, or a larger --smallest, so that fewer regions count as false alarms"
        else:
            message += ", because it is a share"
        raise InputError(message, hint=hint)


@dataclass(frozen=True)
class _Calibration:
    """The labelled frames of a maps folder, and the units that they form."""

    reader: MapsReader
    score: str
    labels: ReviewLabels
    names: Sequence[str]  # of the frames with a label
    times: Mapping[str, float | None]  # name -> seconds in its video; None where unknown
    unit: str  # what is exchangeable
    note_on_unit: str  # what a user should know of it; empty for nothing
    preparation: Preparation  # of the maps
    notes: Sequence[str]  # on where the labels come from
    chosen: str  # a sentence on what else was chosen on the frames; empty if nothing is known

    @property
    def run(self) -> Mapping[str, Any]:
        """What the manifest records of the run; empty for maps of another tool."""
        run: Mapping[str, Any] = (self.reader.manifest or {}).get("run", {})
        return run

    def units(self) -> list[list[str]]:
        """Return the names of the frames of each unit."""
        unit_of = resampled_units(self.unit, self.times.get, "--unit")
        units: dict[str, list[str]] = {}
        for name in self.names:
            units.setdefault(unit_of(name), []).append(name)
        return list(units.values())

    def note_on_density(self, made: GuaranteedThreshold) -> str:
        """Return a note if the blocks of a promise hold more frames than those that are labelled;
        empty for nothing.
        """
        unit_of = resampled_units(self.unit, self.times.get, "--unit")
        units = {unit_of(name) for name in self.names}
        frames = 0
        for name, time in self.times.items():
            frames += time is not None and unit_of(name) in units
        if frames <= DENSER * len(self.names):
            return ""
        return (
            f"only {len(self.names)} of the {frames} frames of these {unit_words(self.unit)}s are "
            f"counted: all of them would have more {made.counted_risk}, so nothing is promised of "
            f"frames that come as densely as these maps; label them, or predict maps of every N-th "
            "frame and use the threshold on such maps"
        )

    def identities(self) -> dict[str, str]:
        """Return the hash of each frame by its name."""
        return {name: self.reader.identity(name, self.score) for name in self.names}


def _open_calibration(options: ThresholdOptions) -> _Calibration:
    """Open the maps and find their labels, their score and their unit."""
    reader = open_maps(local_folder(options.maps))
    score = choose_scores(reader, [options.score or first_shown(reader.scores)])[0]
    asked_frames = matching(reader.frames, options.frames)
    sources = _sources(options)
    labels = sources.find(reader, asked_frames)
    names = labels.labelled(asked_frames)
    seconds = frame_times(reader.frames, reader.records, reader.manifest, options.fps)
    times = dict(zip(reader.frames, seconds, strict=True))
    unit, note = _choose_unit(options.unit, [times[name] for name in names])
    place = tuple(options.place or ())
    preparation = Preparation(
        level="frame" if options.level_frames else "none",
        margin=options.margin,
        place=place,
        place_ids=classes_of_place(place, reader.class_names),
    )
    return _Calibration(
        reader=reader,
        score=score,
        labels=labels,
        names=names,
        times=times,
        unit=unit,
        note_on_unit=note,
        preparation=preparation,
        notes=(*sources.notes, *_note_on_missing_maps(sources, names, options)),
        chosen=_chosen_words(reader, score, sources, names),
    )


def _sources(options: ThresholdOptions) -> LabelSources:
    """Return the labels. Risks of normal pixels need no anomaly, so masks of normal and of ignored
    pixels are taken if the user says that they are that.
    """
    sources = label_sources(options)
    if not {options.control, *options.also} <= set(FALLING):
        return sources
    if options.dataset == IGNORED_255:
        return replace(sources, hint_no_anomaly=None)
    hint = (
        f"--dataset {WHITE_ANOMALIES} if 255 marks the anomalies, --dataset {IGNORED_255} if it "
        "marks ignored pixels"
    )
    return replace(sources, hint_no_anomaly=hint)


def _note_on_missing_maps(
    sources: LabelSources, names: Sequence[str], options: ThresholdOptions
) -> list[str]:
    """Return a note on labelled frames of a split that have no maps, unless the user chose frames:
    the split may have grown since the maps were made.

    Args:
        sources: of the labels.
        names: of the labelled frames that have maps.
        options: of the verb.
    """
    if options.frames is not None:
        return []
    given = [sources.anomaly_labels, sources.labels]
    count = max((len(files) for files in given if isinstance(files, Mapping)), default=0)
    if count <= len(names):
        return []
    return [
        f"{count - len(names)} of the {count} labelled frames of the split {sources.split} have no "
        f"maps in {options.maps}, so the threshold does not rest on them"
    ]


def _chosen_words(
    reader: MapsReader, score: str, sources: LabelSources, names: Sequence[str]
) -> str:
    """Return what a score of maps owes to the split that calibrates, to frames that may be the
    same, and to verdicts on the frames (``names``), and whether alarms chose the frames; empty
    where no record says so.
    """
    manifest = reader.manifest or {}
    model = manifest.get("model") or {}
    run = manifest.get("run", {})
    used = fitted_in_use(model, run, [score])
    sentences = [
        chosen_words(model, used, sources.dataset, sources.split),
        unrecorded_words(model, used, of_split=bool(sources.dataset)),
    ]
    if chosen_by_alarms(manifest):
        sentences.append("these frames were kept because they had an alarm")
    if "features" in used and run.get("features_sha256"):
        rounds = model.get("verdicts") or []
        stamps = {name: reader.records.get(name, {}).get("stamp") for name in names}
        among = learned_among(rounds, stamps, images_of_run(manifest))
        sentences += learned_words(rounds, among, len(names))
        records = {name: reader.records.get(name, {}) for name in names}
        sentences.append(note_on_known_maps(manifest, records))
    words = "; ".join(sentence for sentence in sentences if sentence)
    return f"{words}; the promise needs frames that nothing was chosen on" if words else ""


def _check_copies(identities: Mapping[str, str], needed: int, unit: str) -> str:
    """Return a note on frames that are copies of others; empty where there is none.

    Args:
        identities: hash of each calibration frame by its name.
        needed: the fewest units with which all levels can be had.
        unit: what is exchangeable.

    Raises:
        InputError: each frame is a unit, and too few differ from each other.
    """
    different = len(set(identities.values()))
    copies = len(identities) - different
    if not copies:
        return ""
    if unit == "frame" and different < needed:
        raise InputError(
            f"only {different} of these {len(identities)} frames differ from each other, and "
            f"{needed} different ones are needed; copies say nothing of frames to come",
            hint="label other frames, or raise --level",
        )
    return (
        f"{copies} of these {len(identities)} frames {agreeing('has', copies)} the "
        "bytes of another one, and each counts as independent; leave copies out with --frames"
    )


def _choose_unit(asked: str | None, times: Sequence[float | None]) -> tuple[str, str]:
    """Return what is exchangeable, and what a user should know of it.

    Args:
        asked: what the user named; None leaves the choice to the times.
        times: of the labelled frames, in seconds.
    """
    timed = bool(times) and None not in times
    if asked is None and timed:
        note = f"units are blocks of {DEFAULT_BLOCK}, because frames of a video resemble each other"
        return DEFAULT_BLOCK, note
    if asked is None:
        return "frame", (
            "no time is known of these frames, so each counts as independent of all others; where "
            "they are neighbours of a drive, give --fps or --unit folder"
        )
    if asked == "frame" and timed:
        return asked, (
            "each frame of a video counts as independent of its neighbours, which it is not, so "
            f"the promise is too good; --unit {DEFAULT_BLOCK} takes blocks"
        )
    return asked, ""


def _check_blocks(unit: str, controls: Iterable[str]) -> None:
    """Raise InputError where blocks of seconds are too long to count alarms in."""
    if "false-alarms" in controls and (block_seconds(unit) or 0) * MAX_ALARMS > 60:
        # In shorter blocks one alarm reaches the largest loss; in these, regions that merge and
        # part again would be counted too seldom.
        raise InputError(
            f"blocks of {unit} are too long for false-alarms",
            hint=f"--unit {60 // MAX_ALARMS}s, or shorter",
        )


class _UnitLosses:
    """The losses of the calibration units at every key, which may become the threshold.

    Attributes:
        sums: control -> sums over all units, for the controls asked for and the priced ones.
        group_sums: group -> sums over its units, of the first control alone.
        group_units: group -> number of its units, also those that say nothing of the control.
        form: the stored form of the maps, as ``evaluate`` records it.
        objects: number of labelled objects; 0 without anomaly labels.
        small_objects: how many of them are smaller than the smallest object of a frame with a
            larger one.
        small_object_frames: number of frames that hold these.
        objects_outside: how many of them lie outside the place that is promised.
        low: the smallest key of a labelled pixel.
        high: the largest key of a labelled pixel.
        silent_units: number of units that say nothing of the first control.
        all_units: number of units, with these.
        pixels: labelled pixels by key, in the place that is promised, ``[K]``.
        frame_pixels: all pixels of the calibration frames, with those that are ignored.
        class_counts: sums over all frames of the counts of errors-kept; None without class labels.
        anomaly_labels: whether a frame has an anomaly label.
    """

    def __init__(
        self, calibration: _Calibration, options: ThresholdOptions, controls: Iterable[str]
    ) -> None:
        self.calibration = calibration
        self.options = options
        self.controls = tuple(dict.fromkeys([*controls, *PRICED_CONTROLS]))
        self.sums: dict[str, LossSums] = {}
        self.group_sums: dict[str, LossSums] = {}
        self.group_units = Counter[str]()
        self.form = ""
        self.objects = 0
        self.small_objects = 0
        self.small_object_frames = 0
        self.objects_outside = 0
        self.low = KEYS - 1
        self.high = -1
        self.silent_units = 0
        self.all_units = 0
        self.pixels: Counts = np.zeros(0, np.int64)
        self.frame_pixels = 0  # with those that are ignored
        self.class_counts: Counts | None = None
        self.anomaly_labels = False
        self._bins: ScoreBins | None = None  # of floats that 16 bits cannot hold
        self.group_of: dict[str, str] = {}  # frame -> group; empty without groups

    @property
    def size(self) -> int:
        """The number of keys."""
        return KEYS if self._bins is None else self._bins.size

    @property
    def largest_key(self) -> int:
        """The largest key of a finite score."""
        if self._ranked_form == "float":
            return _LARGEST_FLOAT_KEY
        return self.size - 1

    def value(self, key: int) -> float:
        """Return the score of a key."""
        return float(values_of(self._ranked_form, self.size)[key])

    @property
    def _ranked_form(self) -> Form:
        """The form of the maps that are ranked, after their preparation."""
        if self.calibration.preparation.level == "frame":
            return "float"
        return self._bins or self.form

    @property
    def about_errors(self) -> bool:
        """Whether a promise is about errors, so that right pixels should not be flagged and wrong
        ones should."""
        return bool(OF_CLASSES & {self.options.control, *self.options.also})

    def mean_losses(self, key: int) -> dict[str, float]:
        """Return the mean loss at a key for each control that some unit says something of.

        Where a promise is about errors and no anomaly is labelled, nothing says which pixels are
        normal: all labelled ones are not, because those with a wrong prediction should be flagged.
        """
        means = {}
        for control, sums in self.sums.items():
            asked = control == self.options.control or control in self.options.also
            unknown = control == "flagged-pixels" and self.about_errors and not self.anomaly_labels
            if sums.units and (asked or not unknown):
                means[control] = float(sums.total[key]) / sums.units
        return means

    def flagged(self, key: int) -> float:
        """Return the share of all labelled pixels that is flagged at a key."""
        return float(self.pixels[key:].sum()) / max(int(self.pixels.sum()), 1)

    def flagged_by_class(self, key: int) -> tuple[float | None, float | None]:
        """Return the shares of the right and of the wrong pixels that are flagged at a key; None
        where no promise is about errors."""
        if not self.about_errors or self.class_counts is None:
            return None, None
        return flagged_shares(self.class_counts[:, [key, -1]])

    def mean_regions(self, key: int) -> float:
        """Return how many false regions a frame has at a key, the mean over the frames."""
        smallest = self.options.smallest
        regions = 0
        for name in ConsoleProgress(label="regions").follow(self.calibration.names):
            regions += self._scene(self._read(name)).regions(key, smallest)
        return regions / len(self.calibration.names)

    def notes(self, made: GuaranteedThreshold, key: int) -> list[str]:
        """Return what a user should know of these units, and of the threshold at a key."""
        notes = []
        control = self.options.control
        if self.silent_units:
            lacks = "no anomaly" if control in OF_ANOMALIES else "no pixel that counts"
            silent = counted(self.silent_units, "unit", "holds")
            say = "says" if self.silent_units == 1 else "say"
            notes.append(f"{silent} {lacks}, and {say} nothing of {control}")
        small = SmallObjects(
            objects=self.objects,
            small=self.small_objects,
            frames=self.small_object_frames,
            smallest=self.options.smallest_object,
        )
        if small.small:
            notes.append(small.warning)
        if self.objects_outside:
            place = " and ".join(self.calibration.preparation.place)
            notes.append(
                f"{self.objects_outside} of {self.objects} labelled objects lie outside of the "
                f"surface of {place}, where nothing is flagged and nothing is promised"
            )
        ignored = 1 - int(self.pixels.sum()) / max(self.frame_pixels, 1)
        if control in FALLING and not self.calibration.preparation.place and ignored > MUCH_IGNORED:
            notes.append(
                f"{100 * ignored:.0f} % of the pixels are ignored in these labels, and the promise "
                "says nothing of what is flagged there"
            )
        if self.calibration.reader.unfinished:
            notes.append(self.calibration.reader.unfinished)
        if made.frames_per_block is not None:
            notes.append(self.calibration.note_on_density(made))
        notes.append(self._note_on_flagged(made, key))
        return notes

    def _note_on_flagged(self, made: GuaranteedThreshold, key: int) -> str:
        """Return what a user should know of a threshold that flags too much or next to nothing;
        empty for nothing.
        """
        score = self.calibration.score
        if key <= self.low:
            return (
                "this threshold flags every labelled pixel: "
                f"'{score}' does not separate what it should"
            )
        if made.note_on_silence:
            return made.note_on_silence
        normal = self.mean_losses(key).get("flagged-pixels", 0.0)
        right = made.right_flagged or 0.0
        shares = f"{100 * normal:.0f} % of the normal pixels"
        if self.about_errors:
            wrong = 100 * (made.wrong_flagged or 0.0)
            shares = f"{100 * right:.0f} % of the right pixels and {wrong:.0f} % of the wrong"
        if (right if self.about_errors else normal) > MOST_FLAGGED:
            return (
                f"this threshold flags {shares}: "
                f"'{score}' hardly separates what it should at this level"
            )
        if made.control == "flagged-pixels" and normal < LEAST_OF_LEVEL * made.level:
            return (
                f"this threshold flags a share of {normal:.2g} of the normal pixels, next to "
                f"nothing beside the level of {made.level:g}: "
                f"{counted(made.units, 'unit', 'allows')} no more; "
                "larger levels have room, and so have more units"
            )
        return ""

    def count(self) -> None:
        """Count unit by unit, with one frame in memory at a time.

        Raises:
            InputError: all labelled pixels have the same score, or a unit lies in two groups.
        """
        control = self.options.control
        reader = self.calibration.reader
        score = self.calibration.score
        units = self.calibration.units()
        is_levelled = self.calibration.preparation.level == "frame"
        if reader.manifest is None and reader.may_hold_floats(score) and not is_levelled:
            self._find_bins()
        self.low = self.size - 1
        self.pixels = np.zeros(self.size, np.int64)
        self.frame_pixels = 0
        self.sums = {name: LossSums(name, self.size + 1) for name in self.controls}
        self._find_groups()
        for frames in ConsoleProgress().follow(units):
            group = self._group_of_unit(frames)
            losses = self._losses_of_unit(frames)
            for name, sums in self.sums.items():
                sums.add(losses[name])
            if group is not None:
                self.group_sums[group].add(losses[control])
                self.group_units[group] += 1
        self.all_units = len(units)
        self.silent_units = len(units) - self.sums[control].units
        if self.low == self.high:
            raise InputError(
                f"the score '{score}' is {self.value(self.low):g} at every labelled pixel, "
                "so no threshold separates them",
                hint="choose another --score",
            )

    def _find_bins(self) -> None:
        """Make bins of scores that 16 bits cannot hold; this tool's maps never hold such."""
        score = self.calibration.score
        finder = BinFinder(most=_MAX_EDGES)
        for name in ConsoleProgress(label="first look").follow(self.calibration.names):
            frame = self._read(name)
            stored = frame.stored[score]
            if stored.dtype.kind != "f":
                continue
            rows = np.where(known_pixels(frame.anomaly, frame.labels), 0, IGNORE).astype(np.uint8)
            for label in (frame.anomaly, frame.wrong):
                if label is not None:
                    rows[label == 1] = 1
            try:
                finder.add(stored, rows)
            except InputError as error:
                raise error.within(f"frame {name}: the map '{score}'") from error
        if finder.wide:
            self._bins = finder.bins(gaps=True)

    def _find_groups(self) -> None:
        """Find the group of each frame, if the user asks for groups."""
        if self.options.groups is None:
            return
        groups = group_frames(self.options.groups, self.calibration.names)
        for group, names in groups.items():
            self.group_sums[group] = LossSums(self.options.control, self.size + 1)
            for name in names:
                self.group_of[name] = group

    def _group_of_unit(self, frames: Sequence[str]) -> str | None:
        """Return the group of a unit's frames; None without groups."""
        if not self.group_of:
            return None
        groups = sorted({self.group_of[name] for name in frames})
        if len(groups) > 1:
            raise InputError(
                f"the unit of {frames[0]} is in the groups {' and '.join(groups)}",
                hint="--groups of whole units",
            )
        return groups[0]

    def _losses_of_unit(self, frames: Sequence[str]) -> dict[str, Losses | None]:
        """Return the losses of a unit by control; None where it says nothing of the control."""
        pools = {control: Pool(control, self.calibration.unit) for control in self.controls}
        for name in frames:
            for control, counts in self._counts(name).items():
                pools[control].add(counts)
        return {control: pool.losses() for control, pool in pools.items()}

    def _counts(self, name: str) -> dict[str, Counts]:
        """Return the counts of a frame by control, and take note of its form and its keys."""
        score = self.calibration.score
        frame = self._read(name)
        form = str(frame.form(score))
        if self.form not in ("", form):
            raise InputError(
                f"frame {name}: the map '{score}' is stored as {form}, and others as {self.form}"
            )
        self.form = form
        scene = self._scene(frame)
        self._count_objects(scene)
        keys = scene.keys[scene.inside]
        self.pixels += np.bincount(keys, minlength=self.size)
        self.frame_pixels += scene.keys.size
        self.anomaly_labels = self.anomaly_labels or scene.anomaly is not None
        self.low = int(keys.min(initial=self.low))
        self.high = max(self.high, int(keys.max(initial=0)))
        by_control = {}
        for control in self.controls:
            counts = scene.counts(
                control,
                found_share=self.options.found_share,
                smallest=self.options.smallest,
                smallest_object=self.options.smallest_object,
            )
            if counts is not None:
                by_control[control] = counts
        errors = by_control.get("errors-kept")
        if errors is not None:
            before = 0 if self.class_counts is None else self.class_counts
            self.class_counts = errors + before
        return by_control

    def _scene(self, frame: LabelledFrame) -> Scene:
        """Return a frame with its prepared map."""
        preparation = self.calibration.preparation
        stored = frame.stored[self.calibration.score]
        inside = preparation.inside(frame.prediction, stored.shape)
        return Scene(
            preparation.ranked(stored, counted_pixels(inside, frame.kept)),
            frame.anomaly,
            frame.labels,
            frame.wrong,
            bins=self._bins,
            place=inside,
        )

    def _count_objects(self, scene: Scene) -> None:
        """Count the labelled objects of a frame, those that are small and those outside the
        place.
        """
        if scene.anomaly is None:
            return
        objects = Objects.of(scene.anomaly, self.options.smallest_object)
        small = objects.smaller_than(self.options.smallest_object)
        self.objects += len(objects.pixels)
        self.small_objects += small
        self.small_object_frames += int(small > 0)
        if not self.calibration.preparation.place:
            return
        found = scene.found_up_to(objects, self.options.found_share)
        self.objects_outside += int(np.count_nonzero(found < 0))

    def _read(self, name: str) -> LabelledFrame:
        reader = self.calibration.reader
        score = self.calibration.score
        needs_prediction = bool(self.calibration.preparation.place)
        fields = read_frame(
            reader, [score], self.calibration.labels, None, name, places=needs_prediction
        )
        unit_codes = {score} if reader.form(score) == "unit-code" else set()
        bins = {} if self._bins is None else {score: self._bins}
        return LabelledFrame(name, **fields, unit_codes=unit_codes, bins=bins)


@dataclass(frozen=True)
class _Choice:
    """Chooses thresholds, as keys, that keep the risk of each control to its level."""

    units: _UnitLosses
    levels: Mapping[str, float]  # control -> level
    method: Method

    @property
    def minimum_units(self) -> int:
        """The fewest units with which all levels can be had."""
        needed = [self.method.minimum_units(name, level) for name, level in self.levels.items()]
        return max(needed)

    def note_on_room(self) -> str:
        """Return a note on levels near the smallest ones that so many units can promise; empty
        where there are none.
        """
        notes = []
        for control, level in self.levels.items():
            units = self.units.sums[control].units
            smallest = self.method.smallest_level(control, units)
            if level <= NEAR_SMALLEST * smallest:
                notes.append(
                    f"the level of {level:g} for {control} is near {smallest:g}, the smallest that "
                    f"{units} units can promise, so these units may have next to no loss; a larger "
                    "level or more units leave room"
                )
        return "; ".join(notes)

    def common_key(self, control: str) -> int:
        """Return the key from which on pixels are flagged so that each risk keeps to its level.

        Args:
            control: the one that is asked for. The key lies as far from its safe end as the
                levels allow.

        Raises:
            InputError: there is no such key.
        """
        highest = self.units.size
        lowest = 0
        keys: dict[str, int] = {}
        for name, level in self.levels.items():
            keys[name] = self._key(self.units.sums[name], level)
            if name in RISING:
                highest = min(highest, keys[name])
            else:
                lowest = max(lowest, keys[name])
        candidates = [highest, lowest]
        if "false-alarms" in keys:
            # Regions are counted at some keys alone, and that of false alarms is one of them. A key
            # of another control may lie between two, where there may be more regions.
            step = alarm_keys(self.units.size).step
            candidates = [highest - highest % step, lowest + -lowest % step, keys["false-alarms"]]
        fitting = [key for key in candidates if lowest <= key <= highest]
        if not fitting:
            raise InputError(
                f"no threshold keeps to the levels of {' and '.join(self.levels)} at once",
                hint="raise a level",
            )
        return max(fitting) if control in RISING else min(fitting)

    def by_group(self, control: str) -> tuple[dict[str, dict[str, float]], list[str]]:
        """Return value, units, risk and all units of the threshold of each group by its name, and a
        line on each group that has too few units for one."""
        groups = {}
        notes = []
        for group, sums in self.units.group_sums.items():
            if sums.units < self.minimum_units:
                notes.append(
                    f"group {group} gets no threshold of its own: it has "
                    f"{counted(sums.units, 'unit')}, of {self.minimum_units} needed"
                )
                continue
            key = self._key(sums, self.levels[control])
            groups[group] = {
                "value": self.units.value(key),
                "units": sums.units,
                "risk": self.method.risk(sums, key),
                GROUP_BLOCKS: self.units.group_units[group],
            }
        return groups, notes

    def numbers(self, control: str, key: int) -> dict[str, float]:
        """Return level, risk and its bound for a control at a key."""
        sums = self.units.sums[control]
        return {
            "level": self.levels[control],
            "risk": self.method.risk(sums, key),
            "bound": self.method.upper_bound(sums, key),
        }

    def _key(self, sums: LossSums, level: float) -> int:
        """Return the key from which on pixels are flagged.

        Raises:
            InputError: units lack what the control needs, are too few for its level, or only a
                key that flags nothing keeps to it.
        """
        control = sums.control
        unit = self.units.calibration.unit
        more_units = "label more frames" if unit == "frame" else "calibrate on more drives"
        if not sums.units:
            lacks = NO_ANOMALY
            if self.units.objects_outside:
                place = " and ".join(self.units.calibration.preparation.place)
                raise InputError(
                    f"--control {control} says nothing here: "
                    f"no labelled object lies on the surface of {place}",
                    hint="other classes as --place, or none",
                )
            if control not in OF_ANOMALIES:
                lacks = "no frame has class labels and a prediction"
            raise InputError(
                f"--control {control} says nothing here: {lacks}",
                hint="--anomaly-labels DIR, or --labels DIR of such frames; without labels there "
                "is no promise, and segunc summary --maps DIR names a value to begin with",
            )
        if sums.units < 2:
            raise InputError(
                f"one unit cannot promise anything of others; --unit {unit} makes one",
                hint=more_units,
            )
        self.method.check_units(sums, level, "units", "--level", more_units)
        key = self.method.certified(sums, level)
        largest = self.units.largest_key
        if key is None or (control not in RISING and key > largest):
            raise InputError(
                f"no threshold keeps {control} to {level:g} on {counted(sums.units, 'unit')}",
                hint="raise --level",
            )
        return max(min(key, largest), self.units.low)


def _record(
    options: ThresholdOptions,
    choice: _Choice,
    key: int,
    groups: Mapping[str, Mapping[str, float]],
    confidence: float | None,
    identities: Mapping[str, str],
) -> GuaranteedThreshold:
    """Return what ``threshold.json`` records of the threshold at a key.

    ``identities`` are the hashes of the calibration frames by their names.
    """
    units = choice.units
    calibration = units.calibration
    promises = []
    for control, level in choice.levels.items():
        promise = promise_of(
            control,
            level,
            method=choice.method.name,
            confidence=confidence,
            unit=calibration.unit,
            found_share=options.found_share,
            smallest=options.smallest,
            smallest_object=options.smallest_object,
            place=calibration.preparation.place,
        )
        promises.append(promise)
    number_of_units = units.sums[options.control].units
    numbers = choice.numbers(options.control, key)
    right_flagged, wrong_flagged = units.flagged_by_class(key)
    made = GuaranteedThreshold(
        level=numbers["level"],
        risk=numbers["risk"],
        bound=numbers["bound"],
        also={control: choice.numbers(control, key) for control in options.also},
        score=calibration.score,
        value=units.value(key),
        form=units.form,
        control=options.control,
        method=choice.method.name,
        confidence=confidence,
        unit=calibration.unit,
        units=number_of_units,
        minimum_units=choice.minimum_units,
        promise=" ".join(promises),
        condition="",
        model=model_of(calibration.run),
        settings=settings_of(calibration.run, calibration.score),
        frames=identities,
        command=recorded_command("threshold", options),
        date=now(),
        segunc=full_version(),
        found_share=options.found_share,
        smallest=options.smallest,
        smallest_object=options.smallest_object,
        preparation=calibration.preparation,
        groups=groups,
        group_of=units.group_of,
        source=source_of(calibration.run),
        sizes=calibration.reader.sizes(calibration.names),
        all_units=units.all_units,
        chosen=calibration.chosen,
        flagged=units.flagged(key),
        right_flagged=right_flagged,
        wrong_flagged=wrong_flagged,
    )
    return replace(made, condition=made.condition_of())
