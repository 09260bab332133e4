"""``segunc threshold``: a threshold with a promise, from maps and labels of calibration frames."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from segunc.core.errors import InputError
from segunc.core.files import write_json
from segunc.core.progress import ConsoleProgress
from segunc.data.labels import IGNORE
from segunc.decisions.guarantee import (
    MAX_ALARMS,
    RISKS,
    GuaranteedThreshold,
    block_seconds,
    model_of,
    promise_of,
    settings_of,
    source_of,
)
from segunc.decisions.risks import (
    OF_ANOMALIES,
    RISING,
    LossSums,
    Method,
    Pool,
    Scene,
    known_pixels,
)
from segunc.evaluation.maps import read_frame
from segunc.evaluation.parts import LabelledFrame, values_of
from segunc.evaluation.resampling import group_frames, resampled_units
from segunc.maps.labelled import ReviewLabels, choose_scores, open_maps
from segunc.maps.manifest import tool_version
from segunc.maps.reader import MapsReader
from segunc.maps.shards import frame_times
from segunc.metrics.counting import KEYS, NO_ANOMALY, BinFinder, Counts, ScoreBins
from segunc.options import ThresholdOptions, recorded_command, takes
from segunc.scores import first_shown
from segunc.verbs.evaluate import label_sources, matching

USUAL_CONFIDENCE = 0.9
BLOCK = "10s"  # the unit of a video where nobody names one
PRICE = (
    "missed-pixels",
    "missed-objects",
    "flagged-pixels",
    "errors-kept",
)  # risks that cost little to count beside the one asked for
_LARGEST_FLOAT = 0xFBFF  # key of the largest finite value
_MOST_EDGES = 1 << 17
"""Candidates for the threshold of floats that 16 bits cannot hold: they lie 1 in 65,536 of the
normal pixels apart, 1 in 32,768 of the others, and each score is one where there are fewer
scores."""


class ThresholdResult(NamedTuple):
    """A threshold with its promise."""

    path: Path
    threshold: GuaranteedThreshold
    price: Mapping[
        str, float
    ]  # mean loss of the calibration units there, by each control that they say something of
    notes: tuple[str, ...] = ()  # what a user should know


@takes(ThresholdOptions)
def threshold(options: ThresholdOptions) -> ThresholdResult:
    """Calibrate a threshold on maps with labels, and write it with its promise.

    Raises:
        InputError: these units cannot give what is asked for.

    >>> asked = {"control": "flagged-pixels", "level": 0.25, "score": "entropy", "dataset": "toy", "split": "anomaly"}
    >>> threshold(maps=maps, root=data, out=folder / "threshold.json", **asked).threshold.units
    4
    """
    levels = {options.control: options.level, **options.also}
    method, confidence = _method(options, levels)
    reader = open_maps(Path(options.maps))
    score = choose_scores(reader, [options.score or first_shown(reader.scores)])[0]
    files = label_sources(options).find(reader, named := matching(reader.frames, options.frames))
    names = files.labelled(named)
    times = _times(reader, options.fps)
    unit, note_on_units = _unit(options.unit, [times[name] for name in names])
    _check_blocks(unit, levels)
    seen = _Seen(reader, score, files, options, levels, unit=unit, times=times)
    seen.count(names)
    place = seen.common_place(levels, method)
    groups, notes_on_groups = _groups(seen, levels, method)
    facts = _facts(seen, place, levels, method)
    facts |= {"confidence": confidence, "groups": groups}
    facts["promise"] = " ".join(
        promise_of(control, level, facts) for control, level in levels.items()
    )
    made = GuaranteedThreshold(
        **facts, frames={name: reader.identity(name, score) for name in names}
    )
    write_json(Path(options.out), asdict(made))
    price = {
        control: float(sums.total[place]) / sums.units
        for control, sums in seen.sums.items()
        if sums.units
    }
    notes = [note_on_units, *seen.notes(place), *notes_on_groups]
    return ThresholdResult(Path(options.out), made, price, tuple(filter(None, notes)))


def _fewest(levels: Mapping[str, float], method: Method) -> int:
    """Return the fewest units with which all levels can be had."""
    return max(method.minimum_units(control, level) for control, level in levels.items())


def _groups(
    seen: _Seen, levels: Mapping[str, float], method: Method
) -> tuple[dict[str, dict[str, float]], list[str]]:
    """Return the threshold of each group with its units and risk, and a line on each group that has
    too few units."""
    groups = {}
    notes = []
    fewest = _fewest(levels, method)
    for group, sums in seen.groups.items():
        if sums.units < fewest:
            units = f"it has {sums.units} units, of {fewest} needed"
            notes.append(f"group {group} gets no threshold of its own: {units}")
        else:
            place = seen.place(sums, seen.options.level, method)
            risk = method.risk(sums, place)
            groups[group] = {"value": seen.value(place), "units": sums.units, "risk": risk}
    return groups, notes


def _facts(seen: _Seen, place: int, levels: Mapping[str, float], method: Method) -> dict[str, Any]:
    """Return what ``threshold.json`` records of a threshold but for its groups, its frames and its
    promise."""
    options = seen.options
    run = (seen.reader.manifest or {}).get("run", {})
    units = seen.sums[options.control].units
    numbers = {}
    for control, level in levels.items():
        sums = seen.sums[control]
        bound = method.upper_bound(sums, place)
        numbers[control] = {"level": level, "risk": method.risk(sums, place), "bound": bound}
    alike = (
        "did, from the same roads, camera, weather, labels, model and settings; another domain or "
        "corrupted images void it"
    )
    return numbers.pop(options.control) | {
        "control": options.control,
        "found_share": options.found_share,
        "smallest": options.smallest,
        "smallest_object": options.smallest_object,
        "unit": seen.unit,
        "score": seen.score,
        "value": seen.value(place),
        "form": seen.form,
        "method": method.name,
        "units": units,
        "also": numbers,
        "minimum_units": _fewest(levels, method),
        "condition": f"It holds where frames come as the {units} units of the calibration {alike}.",
        "model": model_of(run),
        "settings": settings_of(run, seen.score),
        "source": source_of(run),
        "segunc": tool_version(),
        "command": recorded_command("threshold", options),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _method(options: ThresholdOptions, levels: Mapping[str, float]) -> tuple[Method, float | None]:
    """Return the method of each bound, and the confidence in all of them; InputError where options
    contradict each other.
    """
    if options.also and (options.groups is not None or options.control in options.also):
        other = "--groups" if options.groups is not None else f"--control {options.control}"
        raise InputError(
            f"--also {next(iter(options.also))} and {other} do not go together",
            hint="leave one out",
        )
    expected = options.confidence is None and not options.also
    if options.method == "conformal" and not expected:
        raise InputError(
            "--method conformal has no confidence and no second risk", hint="--method ltt"
        )
    name = options.method or ("conformal" if expected else "ltt")
    confidence = (
        None
        if name == "conformal"
        else USUAL_CONFIDENCE
        if options.confidence is None
        else options.confidence
    )
    # Two promises at once share the chance that one of them fails.
    method = Method(name, None if confidence is None else 1 - (1 - confidence) / len(levels))
    for control, level in levels.items():
        if control not in RISKS:
            raise InputError(
                f"--also has no control '{control}'", hint=f"controls are {', '.join(RISKS)}"
            )
        if not 0 < level < (most := method.largest(control)):
            raise InputError(
                f"a level of {level:g} for {control} is not between 0 and {most:g}",
                hint="--level 0.1",
            )
    return method, confidence


def _times(reader: MapsReader, fps: float | None) -> dict[str, float | None]:
    """Return the seconds of each frame in its video, None where they are not known."""
    times = frame_times(reader.frames, reader.records, reader.manifest, fps)
    return dict(zip(reader.frames, times, strict=True))


def _unit(asked: str | None, times: Sequence[float | None]) -> tuple[str, str]:
    """Return what is exchangeable, and what a user should know of it.

    Args:
        asked: what the user named; None leaves the choice to the times.
        times: of the labelled frames, in seconds.
    """
    timed = bool(times) and None not in times
    if asked is None and timed:
        return BLOCK, f"units are blocks of {BLOCK}, because frames of a video resemble each other"
    if asked is None:
        return "frame", (
            "no time is known of these frames, so each counts as independent of all others; where "
            "they are neighbours of a drive, give --fps or --unit folder"
        )
    if asked == "frame" and timed:
        return asked, (
            "each frame of a video counts as independent of its neighbours, which it is not, so the "
            f"promise is too good; --unit {BLOCK} takes blocks"
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


class _Seen:
    """What the calibration units say of each control, all together and, of the first control, by
    group.
    """

    def __init__(
        self,
        reader: MapsReader,
        score: str,
        files: ReviewLabels,
        options: ThresholdOptions,
        controls: Iterable[str],
        *,
        unit: str,
        times: Mapping[str, float | None],
    ) -> None:
        self.reader, self.score, self.files, self.options = reader, score, files, options
        self.unit, self.times = unit, times
        self.more = "label more frames" if unit == "frame" else "calibrate on more drives"
        self.controls = tuple(dict.fromkeys([*controls, *PRICE]))
        self.sums: dict[str, LossSums] = {}
        self.groups: dict[str, LossSums] = {}
        self.bins: ScoreBins | None = None  # of floats that 16 bits cannot hold
        self.form = ""
        self.low, self.high = KEYS - 1, -1
        self.left_out = 0

    @property
    def size(self) -> int:
        """The number of keys, each of which may become the threshold."""
        return KEYS if self.bins is None else self.bins.size

    def value(self, key: int) -> float:
        """Return the score of a key."""
        return float(values_of(self.bins or self.form, self.size)[key])

    def place(self, sums: LossSums, level: float, method: Method) -> int:
        """Return the key from which on pixels are flagged; InputError where units lack what a
        control needs, are too few for its level, or only a key that flags nothing keeps to it.
        """
        control, units = sums.control, sums.units
        if not units:
            lacks = (
                NO_ANOMALY
                if control in OF_ANOMALIES
                else "no frame has class labels and a prediction"
            )
            raise InputError(
                f"--control {control} says nothing here: {lacks}",
                hint="--anomaly-labels DIR, or --labels DIR of such frames",
            )
        if units < 2:
            raise InputError(
                f"one unit cannot promise anything of others; --unit {self.unit} makes one",
                hint=self.more,
            )
        method.check_units(sums, level, "units", "--level", self.more)
        place = method.certified(sums, level)
        top = _LARGEST_FLOAT if self.form == "float" and self.bins is None else self.size - 1
        if place is None or (control not in RISING and place > top):
            raise InputError(
                f"no threshold keeps {control} to {level:g} on {units} units", hint="raise --level"
            )
        return max(min(place, top), self.low)

    def common_place(self, levels: Mapping[str, float], method: Method) -> int:
        """Return the key from which on pixels are flagged so that each control keeps to its level;
        InputError where there is none."""
        highest = self.size
        lowest = 0
        for control, level in levels.items():
            place = self.place(self.sums[control], level, method)
            if control in RISING:
                highest = min(highest, place)
            else:
                lowest = max(lowest, place)
        if lowest > highest:
            raise InputError(
                f"no threshold keeps to the levels of {' and '.join(levels)} at once",
                hint="raise a level",
            )
        return highest if self.options.control in RISING else lowest

    def notes(self, place: int) -> list[str]:
        """Return what a user should know of these units and of the threshold at a key."""
        notes = []
        control = self.options.control
        if self.left_out:
            lacks = "no anomaly" if control in OF_ANOMALIES else "no pixel that counts"
            notes.append(f"{self.left_out} units hold {lacks}, and say nothing of {control}")
        if self.reader.unfinished:
            notes.append(self.reader.unfinished)
        if place <= self.low:
            part = f"'{self.score}' does not part what it should"
            notes.append(f"this threshold flags every labelled pixel: {part}")
        return notes

    def count(self, names: Sequence[str]) -> None:
        """Count unit by unit, one frame in memory at a time; InputError where all scores are the
        same.
        """
        options, units = self.options, dict[str, list[str]]()
        unit_of = resampled_units(self.unit, self.times.get, "--unit")
        for name in names:
            units.setdefault(unit_of(name), []).append(name)
        if self.reader.manifest is None and self.reader.may_hold_floats(self.score):
            self._find_bins(names)
        self.low = self.size - 1
        self.sums = {control: LossSums(control, self.size + 1) for control in self.controls}
        members = {} if options.groups is None else group_frames(options.groups, names)
        group_of = {name: group for group, frames in members.items() for name in frames}
        self.groups = {group: LossSums(options.control, self.size + 1) for group in members}
        for frames in ConsoleProgress().follow([*units.values()]):
            if len(mixed := sorted({group_of[name] for name in frames if members})) > 1:
                raise InputError(
                    f"the unit of {frames[0]} is in the groups {' and '.join(mixed)}",
                    hint="--groups of whole units",
                )
            pools = {control: Pool(control, self.unit) for control in self.sums}
            for name in frames:
                for control, counts in self._counts(name).items():
                    pools[control].add(counts)
            for control, pool in pools.items():
                self.sums[control].add(losses := pool.losses())
                if control == options.control and members:
                    self.groups[group_of[frames[0]]].add(losses)
        self.left_out = len(units) - self.sums[options.control].units
        if self.low == self.high:
            what = f"the score '{self.score}' is {self.value(self.low):g} at every labelled pixel"
            raise InputError(f"{what}, so no threshold parts them", hint="choose another --score")

    def _find_bins(self, names: Sequence[str]) -> None:
        """Make bins of scores that 16 bits cannot hold; this tool's maps never hold such."""
        finder = BinFinder(most=_MOST_EDGES)
        for name in ConsoleProgress(label="first look").follow(names):
            frame = self._read(name)
            stored = frame.stored[self.score]
            if stored.dtype.kind != "f":
                continue
            rows = np.where(known_pixels(frame.anomaly, frame.labels), 0, IGNORE).astype(np.uint8)
            for label in (frame.anomaly, frame.wrong):
                if label is not None:
                    rows[label == 1] = 1
            try:
                finder.add(stored, rows)
            except InputError as error:
                raise error.within(f"frame {name}: the map '{self.score}'") from error
        if finder.wide:
            self.bins = finder.bins(gaps=True)

    def _read(self, name: str) -> LabelledFrame:
        reader, score = self.reader, self.score
        codes = {score} if reader.form(score) == "unit-code" else set()
        fields = read_frame(reader, [score], self.files, None, name)
        bins = {} if self.bins is None else {score: self.bins}
        return LabelledFrame(name, **fields, unit_codes=codes, bins=bins)

    def _counts(self, name: str) -> dict[str, Counts]:
        """Return the counts of a frame by control."""
        score = self.score
        frame = self._read(name)
        form = str(frame.form(score))
        if self.form not in ("", form):
            raise InputError(
                f"frame {name}: the map '{score}' is stored as {form}, and others as {self.form}"
            )
        self.form = form
        labels = frame.anomaly, frame.labels, frame.wrong
        scene = Scene(frame.stored[score], *labels, bins=self.bins)
        keys = scene.keys[scene.known]
        self.low = int(keys.min(initial=self.low))
        self.high = max(self.high, int(keys.max(initial=0)))
        options = self.options
        sizes = (options.found_share, options.smallest, options.smallest_object)
        by_control = {}
        for control in self.sums:
            counts = scene.counts(control, *sizes)
            if counts is not None:
                by_control[control] = counts
        return by_control
