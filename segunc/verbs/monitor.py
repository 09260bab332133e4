"""``segunc monitor``: are frames still like those that a threshold was calibrated on, and does its
promise hold?
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from segunc.core.errors import InputError, NoteWarning
from segunc.core.files import file_sha256, write_result
from segunc.core.results import VerbResult
from segunc.core.terminal import agreeing, counted
from segunc.core.urls import local_folder, place_of
from segunc.core.version import now
from segunc.decisions.guarantee import (
    RISKS,
    GuaranteedThreshold,
    block_seconds,
    calibration_frames,
    model_of,
    read_threshold,
    source_of,
    unit_words,
)
from segunc.decisions.sequential import (
    POWER,
    SHIFTS,
    Floats,
    detectable_shift,
    largest_log_martingale,
    log_martingale,
    losses_of_verdicts,
    risk_bounds,
)
from segunc.evaluation.resampling import resampled_units
from segunc.gallery.review_page import run_id
from segunc.maps.labelled import choose_scores, open_maps
from segunc.maps.manifest import chosen_by_alarms
from segunc.maps.reader import MapsReader
from segunc.maps.shards import frame_times
from segunc.maps.verdicts import (
    Verdict,
    merge_verdicts,
    note_on_dates,
    read_verdict_files,
    verdicts_at,
)
from segunc.options import MonitorOptions, PathLike, recorded_command, takes

MIN_FRAMES = 20  # without a reference; the first of fewer frames have no past to compare with
MIN_REFERENCE = 2
"""Calibration frames of a reference: one value has no spread."""

EACH_FRAME = (
    "--apart 0 compares each frame; frames that follow one another are alike, and false alarms "
    "come more often than --level says"
)


@dataclass(frozen=True, repr=False)
class MonitorResult(VerbResult):
    """What the frames say so far.

    Attributes:
        state: the content of the JSON file.
        line: the same in one line.
        paths: the files that were written.
        notes: what a user should know.
        failure: what fired, in one line; empty where nothing did.
    """

    state: dict[str, Any]
    line: str
    paths: tuple[Path, ...]
    notes: tuple[str, ...]
    failure: str


@takes(MonitorOptions)
def monitor(options: MonitorOptions) -> MonitorResult:
    """Compare the frames of a maps folder with those of the calibration, and write the state and a
    figure.

    Raises:
        InputError: the maps do not fit the threshold, or are too few to raise an alarm. The state
            of too few is written before, and says that nothing was measured.

    >>> monitor(threshold=threshold, maps=maps, reference=maps, level=0.9).state["frames"]
    2
    """
    threshold = read_threshold(Path(options.threshold))
    reference = None
    past: Mapping[str, float] = {}
    if options.reference is not None:
        reference = read_reference(options.reference, threshold, options)
        past = reference.values
    watched = _watch(threshold, options)
    if reference is not None and reference.is_thinned and not watched.has_times:
        # It is said before a refusal, too, which has no notes.
        warnings.warn(reference.note_on_times(options.apart), NoteWarning, stacklevel=2)
    test = _test(watched.values, reference, threshold.score, options)
    power: dict[str, Any] | None = None
    if test.measured and not test.fired:
        power = _power(watched.values, past, test.alarm)
    risk: dict[str, Any] | None = None
    notes = watched.notes
    if options.verdicts:
        risk, notes_on_risk = _risk(watched, threshold, options)
        notes = [*notes, *notes_on_risk]
    alarms = _alarms(test, risk, threshold)
    state = _state(options, watched, test, len(past))
    line = _line(watched, test, risk)
    summary = _summary(watched, test, power, alarms)
    state |= {"power": power, "risk": risk, "alarms": alarms, "summary": summary}
    paths = _write(state, test, options)
    if not test.measured and not alarms:
        raise _too_few(test, line, options)
    return MonitorResult(
        state=state,
        line=f"ALARM: {line}" if alarms else f"{summary}; {line}",
        paths=paths,
        notes=tuple(notes),
        failure="; ".join(alarms),
    )


def _alarms(
    test: _Test, risk: Mapping[str, Any] | None, threshold: GuaranteedThreshold
) -> list[str]:
    """Return a line on each alarm: the frames changed, or the risk is above the promised level."""
    alarms = []
    if test.fired:
        alarms.append(
            f"the frames are no longer like {test.against}: "
            f"alarm at {test.fired} by the {test.compared}"
        )
    if risk and risk["lower"] > threshold.level:
        alarms.append(
            f"{_risk_words(threshold)} are at least {risk['lower']:.3g}, above {threshold.level:g}"
        )
    return alarms


def _summary(
    watched: _Watched, test: _Test, power: Mapping[str, Any] | None, alarms: Sequence[str]
) -> str:
    """Return the verdict in one line. That nothing was found stands with what these frames could
    have shown, because few frames show only large changes.
    """
    if alarms:
        return f"ALARM: {'; '.join(alarms)}"
    if power is None:
        return f"nothing was measured: {test.too_few}"
    return f"no change found in {watched.count}; {power['line']}"


def _line(watched: _Watched, test: _Test, risk: Mapping[str, Any] | None) -> str:
    """Return the numbers that the verdict rests on in one line."""
    parts = [test.line, f"{watched.count} by their {test.compared}"]
    if risk:
        parts.append(risk["line"])
    return "; ".join(parts)


@dataclass(frozen=True)
class _Test:
    """What the martingale says of the watched frames."""

    path: Floats  # [T] its log10 after each frame
    alarm: float  # log10 at which it raises an alarm
    fired: str | None  # the frame at which it did
    needed: int  # frames below which no frames could raise an alarm
    reachable: float  # log10 that the most extreme frames would reach
    too_few_past: str  # why the calibration frames are too few to compare with; empty if not
    hint_on_past: str  # what to do then
    against: str  # which frames they are compared with, in words
    compared: str  # what is compared with what, in words

    @property
    def measured(self) -> bool:
        """Whether there are enough frames to raise an alarm, and to compare them with; an alarm
        is one whatever their number."""
        return self.fired is not None or not self.too_few

    @property
    def too_few(self) -> str:
        """Why the test could show nothing, in words; empty if it could."""
        if self.too_few_past:
            return self.too_few_past
        if len(self.path) >= self.needed:
            return ""
        frames = counted(len(self.path), "frame", "is")
        return f"{frames} too few to raise an alarm, and at least {self.needed} are needed"

    @property
    def line(self) -> str:
        """How far the martingale is, and where it raises an alarm."""
        return f"martingale 10^{self.path[-1]:.2f}, alarm at 10^{self.alarm:g}"


def _test(
    values: Mapping[str, float], reference: Reference | None, score: str, options: MonitorOptions
) -> _Test:
    """Compare the statistics of frames with those of the calibration and with each other.

    Args:
        values: frame -> statistic.
        reference: frames of the calibration; None for none.
        score: of the statistic.
        options: the level of the test, and which statistic it is.
    """
    alarm = -math.log10(options.level)
    past = {} if reference is None else reference.values
    # The first random numbers are the same when frames are added, and so is what was said of the
    # first frames.
    uniforms = np.random.default_rng(0).random(len(values))
    statistics = np.array([*values.values()])
    path = log_martingale(statistics, np.array([*past.values()]), uniforms)
    fired = None
    if path.max() >= alarm:
        fired = [*values][int(np.argmax(path >= alarm))]
    largest = largest_log_martingale()
    needed = int(np.argmax(largest >= alarm)) + 1
    if not past:
        needed = max(needed, MIN_FRAMES)
    against = "those before them"
    compared_with = "the frames before"
    if past:
        against = "those of the calibration"
        compared_with = counted(len(past), "calibration frame")
    too_few_past = ""
    hint_on_past = ""
    if reference is not None:
        too_few_past = reference.too_few
        hint_on_past = reference.hint
    return _Test(
        path=path,
        alarm=alarm,
        fired=fired,
        needed=needed,
        reachable=float(largest[min(len(values), len(largest)) - 1]),
        too_few_past=too_few_past,
        hint_on_past=hint_on_past,
        against=against,
        compared=f"{options.statistic} of {score}, against {compared_with}",
    )


def _state(
    options: MonitorOptions, watched: _Watched, test: _Test, reference: int
) -> dict[str, Any]:
    """Return what the JSON file says of the frames.

    Args:
        reference: number of calibration frames; 0 for none.
    """
    source = Path(options.threshold)
    past = None
    if reference and options.reference:
        path = place_of(local_folder(options.reference))
        past = {"path": path, "frames": reference}
    return {
        "kind": "segunc monitor",
        "version": 1,
        "command": recorded_command("monitor", options),
        "date": now(),
        "maps": place_of(local_folder(options.maps)),
        "threshold": {"path": str(source), "sha256": file_sha256(source)},
        "model": model_of((watched.reader.manifest or {}).get("run", {})),
        "reference": past,
        "statistic": options.statistic,
        "apart": options.apart,
        "fps": options.fps,
        "frames": len(watched.values),
        "frames_of_maps": watched.total,
        "passed_over": watched.passed_over,
        "same_bytes": watched.same_bytes,
        "measured": test.measured,
        "martingale": float(test.path[-1]),
        "reachable": test.reachable,
        "level": options.level,
        "condition": watched.condition,
        "fired": test.fired,
    }


def _too_few(test: _Test, line: str, options: MonitorOptions) -> InputError:
    """Return the error for frames that could not have raised an alarm, whatever they show, or that
    have too few to be compared with."""
    recorded = "" if options.out is None else f"; {options.out} says that nothing was measured"
    if test.too_few_past:
        return InputError(f"{test.too_few}: {line}{recorded}", hint=test.hint_on_past)
    return InputError(
        f"{test.too_few}: {line}; the most extreme frames would reach "
        f"10^{test.reachable:.2f}{recorded}",
        hint="predict a longer drive, or more of them",
    )


def _write(state: dict[str, Any], test: _Test, options: MonitorOptions) -> tuple[Path, ...]:
    """Write the files that are asked for, and return their paths."""
    paths = []
    if options.out:
        paths.append(Path(options.out))
        write_result(paths[0], state)
    if options.plot:
        from segunc.plots import monitor_figure, save_figure

        stem = Path(options.plot)
        if stem.suffix in (".pdf", ".svg", ".png"):
            stem = stem.with_suffix("")
        figure = monitor_figure(test.path, test.alarm, test.compared, test.against)
        paths += save_figure(figure, stem)
    return tuple(paths)


def _power(values: Mapping[str, float], past: Mapping[str, float], alarm: float) -> dict[str, Any]:
    """Return the smallest shift of the statistic that would have raised an alarm by now, and a
    line on it, which follows the number of frames.

    Args:
        values: frame -> statistic.
        past: the same of the calibration; empty for none.
        alarm: log10 of the martingale at which it raises an alarm.
    """
    shift = detectable_shift(len(values), len(past), alarm)
    spread = float(np.std([*(past or values).values()]))
    since = "the first frame" if past else "the middle"
    if shift is None:
        line = (
            f"they are too few to show even a shift of {SHIFTS[-1]:g} standard deviations"
            f"{_in_units(SHIFTS[-1], spread)} since {since}"
        )
    else:
        deviations = "1 standard deviation" if shift == 1 else f"{shift:g} standard deviations"
        line = (
            f"they show only shifts of at least {deviations}{_in_units(shift, spread)} "
            f"since {since}, with a probability of {100 * POWER:g} % if statistics are normal"
        )
    return {"shift": shift, "spread": spread, "probability": POWER, "line": line}


def _in_units(shift: float, spread: float) -> str:
    """Return a shift in units of the score, in brackets; empty if all frames have one value."""
    return f" ({shift * spread:.3g})" if spread else ""


@dataclass(frozen=True)
class _Judged:
    """The verdicts that speak of the promise, and how many do not."""

    verdicts: list[Verdict]
    of_other_images: int  # verdicts left out, on frames that had another image when judged
    of_calibration: int  # verdicts left out, on frames of the calibration
    of_other_thresholds: int  # verdicts left out, on frames judged at another threshold
    unstated: int  # of those counted, verdicts that do not say at which threshold they were given
    notes_on_left_out: list[str]
    note_on_dates: str

    @property
    def left_out(self) -> dict[str, int]:
        """Number of verdicts that are left out, by the reason."""
        return {
            "image": self.of_other_images,
            "calibration": self.of_calibration,
            "threshold": self.of_other_thresholds,
        }


def _judged(watched: _Watched, threshold: GuaranteedThreshold, files: Sequence[Path]) -> _Judged:
    """Return the verdicts on watched frames that were given at the threshold."""
    reader = watched.reader
    read = read_verdict_files(files, run_id(reader), reader)
    of_watched = []
    of_calibration = []
    for verdict in merge_verdicts(read.lists):
        if verdict.frame in watched.names:
            of_watched.append(verdict)
        elif verdict.verdict:  # not a note alone
            of_calibration.append(verdict)
    notes = read.notes
    if of_calibration:
        frames = len({verdict.frame for verdict in of_calibration})
        notes.append(
            f"{counted(len(of_calibration), 'verdict', 'is')} left out, on "
            f"{counted(frames, 'calibration frame')}"
        )
    promised = (threshold.score, threshold.value, threshold.preparation.options)
    at_threshold = verdicts_at(of_watched, *promised)
    notes += at_threshold.notes(*promised)
    return _Judged(
        verdicts=at_threshold.kept,
        of_other_images=len(read.left_out),
        of_calibration=len(of_calibration),
        of_other_thresholds=len(at_threshold.left_out),
        unstated=len(at_threshold.unstated),
        notes_on_left_out=notes,
        note_on_dates=note_on_dates([verdict for verdicts in read.lists for verdict in verdicts]),
    )


def _risk(
    watched: _Watched, threshold: GuaranteedThreshold, options: MonitorOptions
) -> tuple[dict[str, Any], list[str]]:
    """Return what verdicts say of the promised risk, and notes on them."""
    files = [Path(file) for file in options.verdicts or ()]
    judged = _judged(watched, threshold, files)
    losses_by_frame = losses_of_verdicts(
        judged.verdicts, threshold.control, any_loss=threshold.method == "clopper-pearson"
    )
    words = RISKS[threshold.control]
    by_minute = threshold.control == "false-alarms" and bool(block_seconds(threshold.unit))
    if not losses_by_frame or by_minute:
        unit = " a minute" if by_minute else ""
        message = f"no verdict in {files[0]} says anything of {words}{unit}"
        hint = "they speak of missed objects, and of false alarms a frame"
        if not by_minute and any(judged.left_out.values()):
            message += f": {'; '.join(judged.notes_on_left_out)}"
            hint = (
                "judge frames that the calibration does not hold, on the page of segunc review "
                f"--flag {options.threshold}"
            )
        raise InputError(message, hint=hint)
    notes = [
        "bounds of the risk hold for all frames only where the judged ones were chosen by chance",
        *_notes_on_bounds(threshold),
        *judged.notes_on_left_out,
    ]
    if judged.note_on_dates:
        notes.append(judged.note_on_dates)
    losses = np.array([*losses_by_frame.values()])
    risk = _bounded_risk(losses, _risk_words(threshold), options.level)
    risk["left_out"] = judged.left_out
    risk["unstated"] = judged.unstated
    return risk, notes


def _risk_words(threshold: GuaranteedThreshold) -> str:
    """Return what the verdicts on frames bound, in words."""
    words = RISKS[threshold.control]
    counts_frames = threshold.method == "clopper-pearson" or threshold.control == "false-alarms"
    return f"frames with {words}" if counts_frames else words


def _notes_on_bounds(threshold: GuaranteedThreshold) -> Iterator[str]:
    """Yield what the bounds of the risk by verdicts do not say of the promise."""
    if threshold.control == "false-alarms" and threshold.method != "clopper-pearson":
        yield (
            "verdicts give the share of frames with a false alarm, and the promise is about their "
            "number: a lower bound above the level shows that it is exceeded, and no bound shows "
            "that it is kept"
        )
    if threshold.unit != "frame":
        one = unit_words(threshold.unit)
        yield (
            f"verdicts count frames, and the promise is about the mean over {one}s: a {one} with "
            "many judged frames counts more here, so bounds hold for the promise only where each "
            f"{one} has about as many"
        )
    for control in threshold.also:
        yield (
            f"the bounds are of {RISKS[threshold.control]}; the second promise, on "
            f"{RISKS[control]}, is not tested by verdicts"
        )


def _bounded_risk(losses: Floats, words: str, level: float) -> dict[str, Any]:
    """Return the mean of losses with its bounds, and a line on it, which calls it ``words``."""
    lowers, uppers = risk_bounds(losses, level)
    estimate = float(np.mean(losses))
    lower = float(lowers[-1])
    upper = float(uppers[-1])
    line = f"{words} {estimate:.3g}, {lower:.3g} to {upper:.3g} by "
    line += counted(len(losses), "judged frame")
    return {
        "estimate": estimate,
        "bound": upper,
        "lower": lower,
        "verdicts": len(losses),
        "line": line,
    }


@dataclass(frozen=True)
class _Watched:
    """The frames of a maps folder that are compared."""

    reader: MapsReader
    names: frozenset[str]  # frames that the calibration does not hold
    values: dict[str, float]  # frame -> statistic, of the first frame of each unit
    total: int  # frames of the folder
    passed_over: int  # those of the calibration
    same_bytes: int  # those that have the bytes of a calibration frame, and are watched
    has_times: bool  # whether the times of all frames of the folder are known
    condition: str  # where the level of false alarms holds
    notes: list[str]  # what a user should know

    @property
    def count(self) -> str:
        """Say how many frames are compared, of how many."""
        others = self.total - self.passed_over
        compared = len(self.values)
        if compared == others:
            return counted(compared, "frame")
        return f"{compared} of {counted(others, 'frame')}"


def _open(
    folder: PathLike, threshold: GuaranteedThreshold, options: MonitorOptions
) -> tuple[MapsReader, list[tuple[str, str]]]:
    """Open maps that fit the threshold, and return name and hash of each frame."""
    reader = open_maps(local_folder(folder))
    threshold.check_run((reader.manifest or {}).get("run", {}), str(options.threshold))
    choose_scores(reader, [threshold.score])
    return reader, [(name, reader.identity(name, threshold.score)) for name in reader.frames]


@dataclass(frozen=True)
class Reference:
    """The frames of the calibration that new frames are compared with."""

    values: dict[str, float]  # frame -> statistic, of the first frame of each unit
    total: int  # calibration frames of the folder
    is_thinned: bool  # whether frames are left out because they are less than ``apart`` apart

    @property
    def too_few(self) -> str:
        """Why nothing can be compared with them, in words; empty if it can."""
        if len(self.values) >= MIN_REFERENCE:
            return ""
        frames = f"{len(self.values)} calibration frame is"
        if self.total > len(self.values):
            frames = f"{len(self.values)} of {self.total} calibration frames is left, which is"
        return f"{frames} too few to compare with, and at least {MIN_REFERENCE} are needed"

    @property
    def hint(self) -> str:
        """What to do if they are too few."""
        more = "give maps of more calibration frames as --reference"
        return f"{more}, or a smaller --apart" if self.is_thinned else more

    def note_on_times(self, apart: float) -> str:
        """Return the note on frames without times, which are not thinned as these are."""
        left = agreeing("is", len(self.values))
        return (
            f"the reference has times, these frames have none: {len(self.values)} of {self.total} "
            f"reference frames {left} left at --apart {apart:g}; give --fps, or a smaller --apart"
        )


def read_reference(
    folder: PathLike, threshold: GuaranteedThreshold, options: MonitorOptions
) -> Reference:
    """Return the frames of the calibration in a maps folder, one for each unit."""
    reader, frames = _open(folder, threshold, options)
    matched = calibration_frames(threshold.frames, frames)
    names = [name for name in reader.frames if name in matched]
    if not names:
        raise InputError(
            f"{reader.place} holds 0 units of the calibration, and at least 1 is needed",
            hint="give the maps that segunc threshold read",
        )
    values = _statistics(reader, names, threshold, options)
    # Of frames that are units without times, each is compared.
    is_thinned = threshold.unit == "frame" and len(values) < len(names)
    return Reference(values=values, total=len(names), is_thinned=is_thinned)


def _watch(threshold: GuaranteedThreshold, options: MonitorOptions) -> _Watched:
    """Return the statistics of the frames that the calibration does not hold, one for each unit."""
    reader, frames = _open(options.maps, threshold, options)
    source = source_of((reader.manifest or {}).get("run", {}))
    calibrated = {*threshold.frames.values()}
    size_note = threshold.size_note(reader.sizes(), str(options.threshold))
    if size_note:
        warnings.warn(size_note, NoteWarning, stacklevel=2)
    has_times = None not in _times(reader, options).values()
    names = []
    same_bytes = 0
    for name, identity in frames:
        if not threshold.holds(name, identity, source):
            names.append(name)
            same_bytes += identity in calibrated
    if not names:
        raise _nothing_to_watch(reader, frames, threshold, options)
    passed_over = len(frames) - len(names)
    notes = []
    if reader.unfinished:
        notes.append(reader.unfinished)
    if chosen_by_alarms(reader.manifest):
        notes.append(
            "frames with an alarm are not like the calibration frames, so an alarm of the monitor "
            "is no sign of a change; watch monitors all frames itself"
        )
    if passed_over:
        known_by = "source, name and bytes"
        if not (threshold.source and source):
            known_by = "name and bytes, because a source is not recorded"
        notes.append(
            f"{counted(passed_over, 'frame', 'is')} passed over, as of the calibration by "
            f"{known_by}"
        )
    if same_bytes:
        notes.append(
            f"{counted(same_bytes, 'frame', 'has')} the bytes of a frame of the calibration, but "
            f"another name or source, and {agreeing('is', same_bytes)} watched"
        )
    if threshold.unit == "frame":
        notes += _notes_on_succession(options.apart, has_times=has_times)
    return _Watched(
        reader=reader,
        names=frozenset(names),
        values=_statistics(reader, names, threshold, options),
        total=len(frames),
        passed_over=passed_over,
        same_bytes=same_bytes,
        has_times=has_times,
        condition=_condition(threshold.unit, options.apart, has_times=has_times),
        notes=notes,
    )


def _condition(unit: str, apart: float, *, has_times: bool) -> str:
    """Return where the level of false alarms holds, for a unit of the threshold."""
    if unit != "frame":
        where = "the compared frames, one of each unit of the threshold, are exchangeable"
    elif has_times and apart:
        where = f"frames of which one is compared every {apart:g} s are exchangeable"
    else:
        where = "all frames are exchangeable; those that follow one another on a drive are not"
    return f"The level of false alarms holds where {where}."


def _notes_on_succession(apart: float, *, has_times: bool) -> Iterator[str]:
    """Yield a note where each frame is compared, also with those that it follows at once."""
    if not has_times:
        yield (
            "these frames have no times, so each one is compared; if they follow one another on a "
            "drive, they are alike, and false alarms come more often than --level says: give --fps "
            "then"
        )
    elif not apart:
        yield EACH_FRAME


def _nothing_to_watch(
    reader: MapsReader,
    frames: Sequence[tuple[str, str]],
    threshold: GuaranteedThreshold,
    options: MonitorOptions,
) -> InputError:
    """Return the error for maps that hold frames of the calibration alone.

    Args:
        reader: of the maps.
        frames: name and hash of each of their frames.
        threshold: of the calibration.
        options: of the verb.
    """
    message = (
        f"{reader.place} holds 0 units beside those of the calibration, and at least 1 is needed"
    )
    if options.reference is None:
        hint = "predict other frames, give their maps as --maps, and these as --reference"
        return InputError(message, hint=hint)
    reference, frames_of_reference = _open(options.reference, threshold, options)
    if {*frames_of_reference} == {*frames}:
        message += f"; --reference {reference.place} holds the same frames"
    return InputError(message, hint="predict other frames, and give their maps as --maps")


def _statistics(
    reader: MapsReader,
    names: Sequence[str],
    threshold: GuaranteedThreshold,
    options: MonitorOptions,
) -> dict[str, float]:
    """Return the statistic of the first frame in each unit by its name. Units are what is
    exchangeable; those of a video whose units are frames are blocks of ``apart`` seconds."""
    unit_of = _units(reader, threshold, options)
    units: set[str] = set()
    values: dict[str, float] = {}
    for name in names:
        unit = unit_of(name)
        if unit in units:
            continue
        numbers = reader.records.get(name, {}).get(options.statistic, {})
        if threshold.score not in numbers:
            raise InputError(
                f"frame {name} of {reader.place} has no {options.statistic} of {threshold.score}",
                hint="--statistic mean",
            )
        units.add(unit)
        values[name] = float(numbers[threshold.score])
    return values


def _units(
    reader: MapsReader, threshold: GuaranteedThreshold, options: MonitorOptions
) -> Callable[[str], str]:
    """Return the function from a frame's name to its unit."""
    times = _times(reader, options)
    unit = threshold.unit
    if unit == "frame" and options.apart and None not in times.values():
        unit = f"{options.apart:f}s"
    return resampled_units(unit, times.get, "the unit of the threshold", of_file=True)


def _times(reader: MapsReader, options: MonitorOptions) -> dict[str, float | None]:
    """Return the seconds of each frame in its video; None where they are not known."""
    seconds = frame_times(reader.frames, reader.records, reader.manifest, options.fps)
    return dict(zip(reader.frames, seconds, strict=True))
