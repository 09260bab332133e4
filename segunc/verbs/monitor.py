"""``segunc monitor``: are frames still like those that a threshold was calibrated on, and does its promise hold?"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from segunc.core.errors import InputError
from segunc.core.files import read_bytes, write_json
from segunc.decisions.monitor import log_martingale, losses_of_verdicts, risk_bounds, smoothed_p_values
from segunc.decisions.threshold import RISKS, GuaranteedThreshold, is_time, read_threshold
from segunc.evaluation.resampling import resampled_units
from segunc.gallery.page import run_id
from segunc.maps.labelled import open_maps
from segunc.maps.reader import MapsReader
from segunc.maps.verdicts import merge_verdicts, read_verdicts
from segunc.options import MonitorOptions, takes

MIN_FRAMES = 20  # without a reference, before which there is no past to compare with
NEIGHBOURS = 1.0  # seconds between frames of a video below which a note says that they resemble each other


@dataclass(frozen=True)
class MonitorResult:
    """What the frames say so far."""

    state: Mapping[str, Any]  # the content of the JSON file
    line: str  # the same in one line
    paths: tuple[Path, ...] = ()  # of the files that were written
    notes: tuple[str, ...] = ()  # what a user should know
    failure: str = ""  # what fired, in one line; empty where nothing did


@takes(MonitorOptions)
def monitor(options: MonitorOptions) -> MonitorResult:
    """Compare the frames of a maps folder with the calibration, and write the state and a figure.

    Raises:
        InputError: the maps do not fit the threshold, or are too few.
    """
    source, place = Path(options.threshold), Path(options.maps)
    threshold = read_threshold(source)
    reader, reference = _open(place, threshold, options), dict[str, float]()
    known: Collection[str] = ()
    if options.reference:
        calibration = _open(Path(options.reference), threshold, options)
        chosen = [name for name in calibration.frames if name in threshold.frames]
        reference = _statistics(calibration, chosen, threshold, options)
        known = chosen if calibration.folder.resolve() == reader.folder.resolve() else ()
        if not reference:
            message = f"{options.reference} holds none of the frames that {source} was calibrated on"
            raise InputError(message, hint="give the maps that segunc threshold read")
    values = _statistics(reader, [name for name in reader.frames if name not in known], threshold, options)
    names, number = [*values], len(values)
    if number < (1 if reference else MIN_FRAMES):
        least = (
            "none but those of the calibration"
            if reference
            else f"of at least {MIN_FRAMES} that compare with each other"
        )
        raise InputError(
            f"{place} holds {number} frames to watch, {least}", hint="predict more, or add --reference DIR"
        )
    uniforms = np.random.default_rng(0).random(number)  # the first ones are the same when frames are added
    series = (np.array([*of.values()], np.float64) for of in (values, reference))
    path = log_martingale(smoothed_p_values(*series, uniforms))
    bound = -math.log10(options.level)
    fired = names[int(np.argmax(path >= bound))] if path.max() >= bound else None
    by = f"{options.statistic} of {threshold.score}"
    against = f"{len(reference)} calibration frames" if reference else "the frames before"
    line = f"martingale 10^{path[-1]:.2f}, alarm at 10^{bound:g}; {number} frames by their {by} against {against}"
    failures = [] if fired is None else [f"frames are no longer like those before: alarm at frame {fired} by {by}"]
    state: dict[str, Any] = {
        **{"kind": "segunc monitor", "version": 1, "maps": str(place)},
        "threshold": {"path": str(source), "sha256": hashlib.sha256(read_bytes(source)).hexdigest()},
        "reference": {"path": str(options.reference), "frames": len(reference)} if reference else None,
        **{"statistic": options.statistic, "every": options.every, "apart": options.apart, "frames": number},
        **{"martingale": float(path[-1]), "level": options.level, "fired": fired, "risk": None},
    }
    notes = _notes(reader, names, threshold.unit, options)
    if options.verdicts:
        losses = _losses(reader, threshold, options)
        lower, upper = (float(of[-1]) for of in risk_bounds(losses, options.level))
        risk = {"estimate": float(losses.mean()), "bound": upper, "lower": lower, "verdicts": len(losses)}
        state["risk"] = {**risk, "fired": lower > threshold.level}
        words = f"{RISKS[threshold.control]}, of at most {threshold.level:g}"
        line += f"; {words}: {risk['estimate']:.3g}, {lower:.3g} to {upper:.3g} by {len(losses)} judged frames"
        failures += [f"the risk of {words}, is at least {lower:.3g}"] if lower > threshold.level else []
        notes.append("bounds of the risk hold for all frames only where the judged ones were chosen by chance")
    paths: list[Path] = []
    if options.out:
        paths = [Path(options.out)]
        paths[0].parent.mkdir(parents=True, exist_ok=True)
        write_json(paths[0], state)
    if options.plot:
        from segunc.plots import monitor_figure, save_figure

        stem = Path(options.plot).with_suffix("")
        stem.parent.mkdir(parents=True, exist_ok=True)
        paths += save_figure(monitor_figure(path, bound, f"{by}, against {against}"), stem)
    found = "ALARM" if failures else "no change found"
    return MonitorResult(state, f"{found}: {line}", tuple(paths), tuple(notes), "; ".join(failures))


def _open(folder: Path, threshold: GuaranteedThreshold, options: MonitorOptions) -> MapsReader:
    """Open maps with a log of statistics that the threshold is for."""
    reader = open_maps(folder)
    if reader.manifest is None:
        raise InputError(f"{folder} holds maps of another tool, without statistics", hint="make them by segunc predict")
    threshold.check_run(reader.manifest["run"], str(options.threshold))
    if threshold.score not in reader.scores:
        message = (
            f"{options.threshold} is a threshold of {threshold.score}, and {folder} holds {', '.join(reader.scores)}"
        )
        raise InputError(message, hint=f"predict with --scores {threshold.score}")
    return reader


def _statistics(
    reader: MapsReader, frames: list[str], threshold: GuaranteedThreshold, options: MonitorOptions
) -> dict[str, float]:
    """Return the statistic of the first frame of each unit, thinned as the options say: units are what is exchangeable, and when one
    grows its first frame stays."""
    times = {name: record.get("time") for name, record in reader.records.items()}
    unit_of = resampled_units(threshold.unit, times.get)
    units, values = set[str](), dict[str, float]()
    last: dict[str, float] = {}  # moment of the last frame of each video
    for name in frames:
        try:
            unit = unit_of(name)
        except InputError as error:
            raise error.within(f"{reader.folder} has no units as {options.threshold}") from error
        video, time = name.rpartition("/")[0], times[name]
        if unit in units or (time is not None and time - last.get(video, -math.inf) < options.apart):
            continue
        units.add(unit)
        last[video] = -math.inf if time is None else time
        if (value := reader.records[name].get(options.statistic, {}).get(threshold.score)) is None:
            message = f"frame {name} of {reader.folder} has no recorded {options.statistic} of {threshold.score}"
            raise InputError(message, hint="--statistic mean")
        values[name] = float(value)
    return {name: values[name] for name in [*values][:: options.every]}


def _notes(reader: MapsReader, names: list[str], unit: str, options: MonitorOptions) -> list[str]:
    notes = [f"{reader.unfinished}; the state is of what is there"] if reader.unfinished else []
    moments = [(name.rpartition("/")[0], reader.records[name].get("time")) for name in names]
    gaps = [b - a for (one, a), (two, b) in pairwise(moments) if one == two and a is not None and b is not None]
    if unit == "frame" and gaps and min(gaps) < NEIGHBOURS:
        near = f"frames {min(gaps):.2g} s apart resemble each other"
        notes.append(f"{near}, so false alarms are more frequent than {options.level:g}; --apart 10 takes fewer")
    return notes


def _losses(reader: MapsReader, threshold: GuaranteedThreshold, options: MonitorOptions) -> np.ndarray[Any, Any]:
    """Return the losses of the judged frames, in the order in which they were judged."""
    if threshold.control == "false-alarms" and is_time(threshold.unit):
        raise InputError("verdicts on frames say nothing of false alarms a minute", hint="leave --verdicts out")
    files = [Path(path) for path in options.verdicts or ()]
    verdicts = merge_verdicts(read_verdicts(path, run_id(reader), reader.frames) for path in files)
    losses = losses_of_verdicts(verdicts, threshold.control)
    if not losses:
        message = f"no verdict in {files[0]} says anything of {RISKS[threshold.control]}"
        raise InputError(message, hint="judge frames on the review page")
    return np.array([*losses.values()])
