"""``segunc monitor``: are frames still like those that a threshold was calibrated on, and does its promise hold?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from segunc.core.errors import InputError
from segunc.core.files import file_sha256, write_json
from segunc.decisions.monitor import log_martingale, losses_of_verdicts, risk_bounds
from segunc.decisions.threshold import RISKS, GuaranteedThreshold, block_seconds, read_threshold
from segunc.evaluation.resampling import resampled_units
from segunc.gallery.page import run_id
from segunc.maps.labelled import choose_scores, open_maps
from segunc.maps.reader import MapsReader
from segunc.maps.verdicts import merge_verdicts, read_verdicts
from segunc.options import MonitorOptions, PathLike, takes

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
    source, alarm, statistic = (
        Path(options.threshold),
        -math.log10(options.level),
        options.statistic,
    )
    threshold = read_threshold(source)
    past = (
        _statistics(options.reference, threshold, options, calibrated=True)[1]
        if options.reference
        else {}
    )
    reader, values = _statistics(options.maps, threshold, options)
    # The first random numbers are the same when frames are added, and so is what was said of the first frames.
    uniforms = np.random.default_rng(0).random(len(values))
    path = log_martingale(np.array([*values.values()]), np.array([*past.values()]), uniforms)
    fired = [*values][int(np.argmax(path >= alarm))] if path.max() >= alarm else None
    by = f"{statistic} of {threshold.score}, against {f'{len(past)} calibration frames' if past else 'the frames before'}"
    notes = [reader.unfinished] if reader.unfinished else []
    line = (
        f"martingale 10^{path[-1]:.2f}, alarm at 10^{alarm:g}; {len(values)} frames by their {by}"
    )
    alarms = (
        [f"the frames are no longer like those before: alarm at {fired} by the {by}"]
        if fired
        else []
    )
    risk: dict[str, float] | None = None
    if options.verdicts:
        files = [
            read_verdicts(Path(file), run_id(reader), reader.frames) for file in options.verdicts
        ]
        losses, of = (
            losses_of_verdicts(merge_verdicts(files), threshold.control),
            RISKS[threshold.control],
        )
        if not losses or (threshold.control == "false-alarms" and block_seconds(threshold.unit)):
            message = f"no verdict in {options.verdicts[0]} says anything of {of}{' a minute' * bool(losses)}"
            raise InputError(
                message, hint="they speak of missed objects, and of false alarms a frame"
            )
        lower, upper = (
            float(bounds[-1]) for bounds in risk_bounds(np.array([*losses.values()]), options.level)
        )
        risk = {
            "estimate": float(np.mean([*losses.values()])),
            "bound": upper,
            "lower": lower,
            "verdicts": len(losses),
        }
        line += f"; {of} {risk['estimate']:.3g}, {lower:.3g} to {upper:.3g} by {len(losses)} judged frames"
        alarms += (
            [f"{of} are at least {lower:.3g}, above {threshold.level:g}"]
            if lower > threshold.level
            else []
        )
        notes.append(
            "bounds of the risk hold for all frames only where the judged ones were chosen by chance"
        )
    state = {
        **{
            "kind": "segunc monitor",
            "version": 1,
            "maps": str(options.maps),
            "apart": options.apart,
            "risk": risk,
            "alarms": alarms,
        },
        "threshold": {"path": str(source), "sha256": file_sha256(source)},
        "reference": {"path": str(options.reference), "frames": len(past)} if past else None,
        **{
            "statistic": statistic,
            "frames": len(values),
            "martingale": float(path[-1]),
            "level": options.level,
            "fired": fired,
        },
    }
    paths = [Path(options.out)] if options.out else []
    if options.out:
        write_json(paths[0], state)
    if options.plot:
        from segunc.plots import monitor_figure, save_figure

        plot = Path(options.plot)
        paths += save_figure(
            monitor_figure(path, alarm, by),
            plot.with_suffix("") if plot.suffix in (".pdf", ".svg", ".png") else plot,
        )
    return MonitorResult(
        state,
        f"{'ALARM' if alarms else 'no change found'}: {line}",
        tuple(paths),
        tuple(notes),
        "; ".join(alarms),
    )


def _statistics(
    folder: PathLike,
    threshold: GuaranteedThreshold,
    options: MonitorOptions,
    *,
    calibrated: bool = False,
) -> tuple[MapsReader, dict[str, float]]:
    """Return the maps of a folder, and the statistic by name of the first frame of each unit, of the calibration's frames or of all others.
    Units are what is exchangeable; those of a video whose units are frames are blocks of ``apart`` seconds."""
    reader, score, statistic = open_maps(Path(folder)), threshold.score, options.statistic
    threshold.check_run((reader.manifest or {}).get("run", {}), str(options.threshold))
    choose_scores(reader, [score])
    known, units, values = {*threshold.frames.values()}, set[str](), dict[str, float]()
    times = {name: record["time"] for name, record in reader.records.items() if "time" in record}
    apart = threshold.unit == "frame" and options.apart and times.keys() >= {*reader.frames}
    unit_of = resampled_units(
        f"{options.apart:f}s" if apart else threshold.unit,
        times.get,
        "the unit of the threshold",
        of_file=True,
    )
    for name in reader.frames:
        unit, numbers = unit_of(name), reader.records.get(name, {}).get(statistic, {})
        if unit in units or (reader.identity(name, score) in known) != calibrated:
            continue
        if score not in numbers:
            raise InputError(
                f"frame {name} of {folder} has no {statistic} of {score}", hint="--statistic mean"
            )
        units.add(unit)
        values[name] = float(numbers[score])
    if len(values) < (least := 1 if options.reference else MIN_FRAMES):
        message = f"{folder} holds {len(values)} units {'of' if calibrated else 'beside those of'} the calibration"
        hint = (
            "give the maps that segunc threshold read"
            if calibrated
            else "predict more, or add --reference DIR"
        )
        raise InputError(f"{message}, and at least {least} are needed", hint=hint)
    return reader, values
