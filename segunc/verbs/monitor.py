"""``segunc monitor``: are frames still like those that a threshold was calibrated on, and does its promise hold?"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from segunc.core.errors import InputError
from segunc.core.files import read_bytes, write_json
from segunc.decisions.monitor import log_martingale, losses_of_verdicts, risk_bounds, smoothed_p_values
from segunc.decisions.threshold import RISKS, GuaranteedThreshold, is_time, read_threshold
from segunc.evaluation.resampling import resampled_units
from segunc.gallery.page import run_id
from segunc.maps.labelled import choose_scores, open_maps
from segunc.maps.reader import MapsReader
from segunc.maps.verdicts import merge_verdicts, read_verdicts
from segunc.options import MonitorOptions, takes

MIN_FRAMES = 20  # without a reference, before which there is no past to compare with


class MonitorResult(NamedTuple):
    """What the frames say so far."""

    state: Mapping[str, Any]  # the content of the JSON file
    line: str  # the same in one line
    paths: tuple[Path, ...]  # of the files that were written
    notes: tuple[str, ...]  # what a user should know
    failure: str  # what fired, in one line; empty where nothing did


@takes(MonitorOptions)
def monitor(options: MonitorOptions) -> MonitorResult:
    """Compare the frames of a maps folder with those of the calibration, and write the state and a figure.

    Raises:
        InputError: the maps do not fit the threshold, or are too few.

    >>> monitor(threshold=threshold, maps=maps, reference=maps).state["fired"] is None
    True
    """
    source, alarm = Path(options.threshold), -math.log10(options.level)
    threshold = read_threshold(source)
    reader, values = _statistics(Path(options.maps), threshold, options, calibrated=False)
    past, least, against = dict[str, float](), MIN_FRAMES, "the frames before"
    if options.reference:
        _, past = _statistics(Path(options.reference), threshold, options, calibrated=True)
        if not past:
            message = f"{options.reference} holds none of the frames that {source} was calibrated on"
            raise InputError(message, hint="give the maps that segunc threshold read")
        least, against = 1, f"{len(past)} calibration frames"
    if len(values) < least:
        message = (
            f"{len(values)} frames of {options.maps} are compared, beside those of the calibration, of at least {least}"
        )
        raise InputError(message, hint="predict more frames, lower --apart, or give --reference DIR")
    # The first random numbers are the same when frames are added, and so is what was said of the first frames.
    uniforms = np.random.default_rng(0).random(len(values))
    path = log_martingale(smoothed_p_values(*(np.array([*of.values()]) for of in (values, past)), uniforms))
    fired = [*values][int(np.argmax(path >= alarm))] if path.max() >= alarm else None
    by, notes = f"{options.statistic} of {threshold.score}", [note for note in [reader.unfinished] if note]
    line = f"martingale 10^{path[-1]:.2f}, alarm at 10^{alarm:g}; {len(values)} frames by their {by} against {against}"
    alarms = [f"the frames are no longer like those before: alarm at {fired} by the {by}"] if fired else []
    risk: dict[str, float] | None = None
    if options.verdicts:
        if threshold.control == "false-alarms" and is_time(threshold.unit):
            raise InputError("verdicts on frames say nothing of false alarms a minute", hint="leave --verdicts out")
        files = [read_verdicts(Path(file), run_id(reader), reader.frames) for file in options.verdicts]
        losses = np.array([*losses_of_verdicts(merge_verdicts(files), threshold.control).values()])
        if not losses.size:
            message = f"no verdict in {options.verdicts[0]} says anything of {RISKS[threshold.control]}"
            raise InputError(message, hint="judge frames on the review page")
        lower, upper = (float(bounds[-1]) for bounds in risk_bounds(losses, options.level))
        risk = {"estimate": float(losses.mean()), "bound": upper, "lower": lower, "verdicts": len(losses)}
        words = f"{RISKS[threshold.control]} (promised: at most {threshold.level:g})"
        line += f"; {words} {losses.mean():.3g}, {lower:.3g} to {upper:.3g} by {len(losses)} judged frames"
        alarms += [f"{words} are at least {lower:.3g}"] if lower > threshold.level else []
        notes.append("bounds of the risk hold for all frames only where the judged ones were chosen by chance")
    state = {
        **{"kind": "segunc monitor", "version": 1, "maps": str(options.maps), "apart": options.apart},
        "threshold": {"path": str(source), "sha256": hashlib.sha256(read_bytes(source)).hexdigest()},
        "reference": {"path": str(options.reference), "frames": len(past)} if past else None,
        **{"statistic": options.statistic, "frames": len(values), "martingale": float(path[-1])},
        **{"level": options.level, "fired": fired, "risk": risk, "alarms": alarms},
    }
    paths = [Path(out) for out in (options.out, options.plot) if out]
    for each in paths:
        each.parent.mkdir(parents=True, exist_ok=True)
    if options.out:
        write_json(paths[0], state)
    if options.plot:
        from segunc.plots import monitor_figure, save_figure

        paths[-1:] = save_figure(monitor_figure(path, alarm, f"{by}, against {against}"), paths[-1].with_suffix(""))
    line = f"{'ALARM' if alarms else 'no change found'}: {line}"
    return MonitorResult(state, line, tuple(paths), tuple(notes), "; ".join(alarms))


def _statistics(
    folder: Path, threshold: GuaranteedThreshold, options: MonitorOptions, *, calibrated: bool
) -> tuple[MapsReader, dict[str, float]]:
    """Return the maps of a folder, and the statistic by name of the first frame of each unit, ``apart`` seconds from the one before, of the
    calibration's frames or of all others. Units are what is exchangeable; while one grows, its first frame stays."""
    reader, last = open_maps(folder), dict[str, float]()  # moment of the last frame of each video
    threshold.check_run((reader.manifest or {}).get("run", {}), str(options.threshold))
    choose_scores(reader, [threshold.score])
    records, known, units, values = reader.records, {*threshold.frames.values()}, set[str](), dict[str, float]()
    unit_of = resampled_units(threshold.unit, lambda name: records[name].get("time"), "the unit of the threshold")
    for name in reader.frames:
        record, video, unit = records.get(name, {}), name.rpartition("/")[0], unit_of(name)
        time = record.get("time", math.inf)  # images without a time are near no other
        near = unit in units or time - last.get(video, -math.inf) < options.apart
        if near or (reader.identity(name, threshold.score) in known) != calibrated:
            continue
        if threshold.score not in record.get(options.statistic, {}):
            message = f"frame {name} of {folder} has no {options.statistic} of {threshold.score} on record"
            raise InputError(message, hint="--statistic mean, over maps of segunc predict")
        units.add(unit)
        last[video], values[name] = time, float(record[options.statistic][threshold.score])
    return reader, values
