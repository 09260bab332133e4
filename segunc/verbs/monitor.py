"""``segunc monitor``: are frames still like those that a threshold was calibrated on, and does its promise hold?"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from segunc.core.errors import InputError
from segunc.core.files import read_bytes, write_json
from segunc.decisions.monitor import Floats, log_martingale, losses_of_verdicts, risk_bounds, smoothed_p_values
from segunc.decisions.threshold import RISKS, GuaranteedThreshold, is_time, read_threshold
from segunc.evaluation.resampling import resampled_units
from segunc.gallery.page import run_id
from segunc.maps.labelled import open_maps
from segunc.maps.reader import MapsReader
from segunc.maps.verdicts import merge_verdicts, read_verdicts
from segunc.options import MonitorOptions, takes

MIN_FRAMES = 20  # without a reference, before which there is no past to compare with
NEIGHBOURS = 1.0  # seconds between frames of a video below which a note says that they resemble each other


class MonitorResult(NamedTuple):
    """What the frames say so far."""

    state: Mapping[str, Any]  # the content of the JSON file
    line: str  # the same in one line
    paths: tuple[Path, ...] = ()  # of the files that were written
    notes: tuple[str, ...] = ()  # what a user should know
    failure: str = ""  # what fired, in one line; empty where nothing did


@takes(MonitorOptions)
def monitor(options: MonitorOptions) -> MonitorResult:
    """Compare the frames of a maps folder with those of the calibration, and write the state and a figure.

    Raises:
        InputError: the maps do not fit the threshold, or are too few.

    >>> monitor(threshold=threshold, maps=maps, reference=maps).state["fired"] is None
    True
    """
    source, bound = Path(options.threshold), -math.log10(options.level)
    threshold = read_threshold(source)
    reader = _open(Path(options.maps), threshold, source)
    values, reference = _statistics(reader, threshold, options), dict[str, float]()
    if options.reference:
        calibration = _open(Path(options.reference), threshold, source)
        reference = _statistics(calibration, threshold, options, of_calibration=True)
        if not reference:
            message = f"{options.reference} holds none of the frames that {source} was calibrated on"
            raise InputError(message, hint="give the maps that segunc threshold read")
    names, frames, least = [*values], len(values), 1 if reference else MIN_FRAMES
    if frames < least:
        message = f"{options.maps} holds {frames} frames beside those of the calibration, of at least {least}"
        raise InputError(message, hint="predict more frames" + ("" if reference else ", or add --reference DIR"))
    series, past = (np.array([*of.values()], np.float64) for of in (values, reference))
    # The first random numbers are the same when frames are added, and so is what was said of the first frames.
    path = log_martingale(smoothed_p_values(series, past, np.random.default_rng(0).random(frames)))
    fired = names[int(np.argmax(path >= bound))] if path.max() >= bound else None
    by = f"{options.statistic} of {threshold.score}"
    against = f"{len(reference)} calibration frames" if reference else "the frames before"
    line = f"martingale 10^{path[-1]:.2f}, alarm at 10^{bound:g}; {frames} frames by their {by} against {against}"
    failures = [f"the frames are no longer like those before: alarm at {fired} by the {by}"] if fired else []
    notes, risk = _notes(reader, names, threshold.unit, options), None
    if options.verdicts:
        losses = _losses(reader, threshold, [Path(path) for path in options.verdicts])
        lower, upper = (float(of[-1]) for of in risk_bounds(losses, options.level))
        risk = {"estimate": float(losses.mean()), "bound": upper, "lower": lower, "verdicts": len(losses)}
        words = f"{RISKS[threshold.control]} (promised: at most {threshold.level:g})"
        line += f"; {words} {losses.mean():.3g}, {lower:.3g} to {upper:.3g} by {len(losses)} judged frames"
        failures += [f"{words} are at least {lower:.3g}"] if lower > threshold.level else []
        notes.append("bounds of the risk hold for all frames only where the judged ones were chosen by chance")
    state = {
        **{"kind": "segunc monitor", "version": 1, "maps": str(options.maps)},
        "threshold": {"path": str(source), "sha256": hashlib.sha256(read_bytes(source)).hexdigest()},
        "reference": {"path": str(options.reference), "frames": len(reference)} if reference else None,
        **{"statistic": options.statistic, "apart": options.apart, "every": options.every, "frames": frames},
        **{"martingale": float(path[-1]), "level": options.level, "fired": fired, "risk": risk, "alarms": failures},
    }
    paths = [Path(options.out)] if options.out else []
    for out in paths:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_json(out, state)
    if options.plot:
        from segunc.plots import monitor_figure, save_figure

        stem = Path(options.plot).with_suffix("")
        stem.parent.mkdir(parents=True, exist_ok=True)
        paths += save_figure(monitor_figure(path, bound, f"{by}, against {against}"), stem)
    found = "ALARM" if failures else "no change found"
    return MonitorResult(state, f"{found}: {line}", tuple(paths), tuple(notes), "; ".join(failures))


def _open(folder: Path, threshold: GuaranteedThreshold, source: Path) -> MapsReader:
    """Open maps with recorded statistics that the threshold is for."""
    reader = open_maps(folder)
    if reader.manifest is None:
        raise InputError(f"{folder} holds maps of another tool, without statistics", hint="make them by segunc predict")
    threshold.check_run(reader.manifest["run"], str(source))
    if threshold.score not in reader.scores:
        message = f"{source} is a threshold of {threshold.score}, and {folder} holds {', '.join(reader.scores)}"
        raise InputError(message, hint=f"predict with --scores {threshold.score}")
    return reader


def _statistics(
    reader: MapsReader, threshold: GuaranteedThreshold, options: MonitorOptions, *, of_calibration: bool = False
) -> dict[str, float]:
    """Return the statistic of the first frame of each unit, of the calibration's or all others, thinned as the options say. Units are what
    is exchangeable; while one grows, its first frame stays."""
    unit_of = resampled_units(
        threshold.unit, lambda name: reader.records[name].get("time"), "the unit of the threshold"
    )
    calibrated, units, values = set(threshold.frames.values()), set[str](), dict[str, float]()
    last: dict[str, float] = {}  # moment of the last frame of each video
    for name, record in reader.records.items():
        video, time, unit = name.rpartition("/")[0], record.get("time"), unit_of(name)
        near = time is not None and time - last.get(video, -math.inf) < options.apart
        if unit in units or near or (reader.identity(name, threshold.score) in calibrated) != of_calibration:
            continue
        units.add(unit)
        last[video] = -math.inf if time is None else time
        if threshold.score not in record.get(options.statistic, {}):
            message = f"frame {name} of {reader.folder} has no {options.statistic} of {threshold.score} on record"
            raise InputError(message, hint="--statistic mean")
        values[name] = float(record[options.statistic][threshold.score])
    return {name: values[name] for name in [*values][:: options.every]}


def _notes(reader: MapsReader, names: list[str], unit: str, options: MonitorOptions) -> list[str]:
    notes = [f"{reader.unfinished}; the state is of what is there"] if reader.unfinished else []
    moments = [(name.rpartition("/")[0], reader.records[name].get("time")) for name in names]
    gaps = [b - a for (one, a), (two, b) in pairwise(moments) if one == two and a is not None and b is not None]
    if unit == "frame" and gaps and min(gaps) < NEIGHBOURS:
        near = f"frames {min(gaps):.2g} s apart resemble each other"
        notes.append(f"{near}, so false alarms are more frequent than {options.level:g}; --apart 10 takes fewer")
    return notes


def _losses(reader: MapsReader, threshold: GuaranteedThreshold, files: list[Path]) -> Floats:
    """Return the losses of the judged frames, in the order in which they were judged."""
    if threshold.control == "false-alarms" and is_time(threshold.unit):
        raise InputError("verdicts on frames say nothing of false alarms a minute", hint="leave --verdicts out")
    verdicts = merge_verdicts(read_verdicts(path, run_id(reader), reader.frames) for path in files)
    losses = losses_of_verdicts(verdicts, threshold.control)
    if not losses:
        message = f"no verdict in {files[0]} says anything of {RISKS[threshold.control]}"
        raise InputError(message, hint="judge frames on the review page")
    return np.array([*losses.values()])
