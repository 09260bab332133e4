"""``segunc threshold``: a threshold with a promise, from maps and labels of calibration frames."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from segunc.core.errors import InputError
from segunc.core.progress import ConsoleProgress
from segunc.data.datasets import entry_of_labels
from segunc.data.entry import check_masks
from segunc.decisions.guarantees import Method
from segunc.decisions.risks import OF_ANOMALIES, RISING, LossSums, Pool, Scene, losses
from segunc.decisions.threshold import RISKS, GuaranteedThreshold, model_of, promise_of, settings_of, unit_seconds
from segunc.evaluation.parts import LabelledFrame, decode_keys
from segunc.evaluation.resampling import group_frames, resampled_units
from segunc.maps.folder import PREDICTION
from segunc.maps.labelled import LabelSources, ReviewLabels, choose_scores, open_maps
from segunc.maps.manifest import tool_version
from segunc.maps.reader import MapsReader, check_classes
from segunc.metrics.counting import KEYS, NO_ANOMALY
from segunc.options import ThresholdOptions, takes
from segunc.scores import first_shown
from segunc.verbs.evaluate import label_arguments

USUAL_CONFIDENCE = 0.9
PRICE = (
    "missed-pixels",
    "missed-objects",
    "flagged-pixels",
    "errors-kept",
)  # risks that cost little to count beside the one asked for
_LARGEST_KEY = {"uint8": 255, "float": 0xFBFF}  # of finite values; of other forms it is the last


class ThresholdResult(NamedTuple):
    """A threshold with its promise."""

    path: Path
    threshold: GuaranteedThreshold
    price: Mapping[
        str, float
    ]  # mean loss of the calibration units at the threshold, of each control that they can tell
    notes: tuple[str, ...] = ()  # what a user should know


@takes(ThresholdOptions)
def threshold(options: ThresholdOptions) -> ThresholdResult:
    """Calibrate a threshold on maps with labels, and write it with its promise.

    Raises:
        InputError: these units cannot give what is asked for.

    >>> asked = {"control": "flagged-pixels", "level": 0.25, "score": "entropy"}
    >>> threshold(maps=maps, anomaly_labels=masks, out=folder / "threshold.json", **asked).threshold.units
    4
    """
    levels, confidence = {options.control: options.level, **options.also}, _confidence(options)
    name = options.method or ("conformal" if confidence is None else "ltt")
    # Two promises at once share the chance that one of them fails.
    method = Method(name, None if confidence is None else 1 - (1 - confidence) / len(levels))
    for control, level in levels.items():
        if control not in RISKS or control == "class-sets":
            known = ", ".join(control for control in RISKS if control != "class-sets")
            raise InputError(f"--also has no control '{control}'", hint=f"controls are {known}")
        if not 0 < level < (most := method.largest(control)):
            raise InputError(f"a level of {level:g} for {control} is not between 0 and {most:g}", hint="--level 0.1")
    reader = open_maps(Path(options.maps))
    score = choose_scores(reader, [options.score or first_shown(reader.scores)])[0]
    entry = entry_of_labels(options.dataset, options.label_map, list(options.anomaly_class))
    labels = LabelSources(**label_arguments(options, entry))
    if labels.labels is None and labels.anomaly_labels is None:
        raise InputError("a threshold is calibrated on labels", hint="give --anomaly-labels DIR, or --labels DIR")
    if labels.label_map is not None:
        check_classes(reader, labels.label_map)
    names = _chosen_frames(reader, options.frames)
    files = labels.find(reader, names)
    check_masks(files.anomaly_files.values(), labels.anomaly_encoding)
    names = [name for name in names if name in files.anomaly_files or name in files.class_files]
    seen = _Seen(levels, options)
    seen.count(reader, score, files, names)
    if seen.low == seen.high:
        value = decode_keys(seen.form, np.array([seen.low]))[0]
        raise InputError(f"the score '{score}' is {value:g} at every labelled pixel, so no threshold parts them")
    _check_units(seen, levels, method)
    place = _common_place({c: _place(seen.sums[c], level, method, seen.top) for c, level in levels.items()}, options)
    main, run = seen.sums[options.control], (reader.manifest or {}).get("run", {})
    notes = [f"{seen.left_out} units hold no anomaly, and say nothing of misses"] if seen.left_out else []
    if place <= seen.low:
        notes.append(f"this threshold flags every labelled pixel: '{score}' does not part what it should")
    groups, floor = {}, method.minimum_units(options.control, options.level)
    for group, sums in seen.groups.items():
        if sums.units < floor:
            short = f"{sums.units} units, of {floor} that this level needs"
            notes.append(f"group {group} gets no threshold of its own: it has {short}")
            continue
        at = _place(sums, options.level, method, seen.top)
        value = float(decode_keys(seen.form, np.array([at]))[0])
        groups[group] = {"value": value, "units": sums.units, "risk": method.risk(sums, at)}
    also = {c: {"level": level, **_numbers(seen.sums[c], place, method)} for c, level in options.also.items()}
    how: Any = (name, confidence, options.unit, options.found_share, options.smallest)
    result = GuaranteedThreshold(
        score=score,
        value=float(decode_keys(seen.form, np.array([place]))[0]),
        form=seen.form,
        control=options.control,
        method=name,
        level=options.level,
        confidence=confidence,
        unit=options.unit,
        units=main.units,
        minimum_units=max(method.minimum_units(c, level) for c, level in levels.items()),
        **_numbers(main, place, method),
        promise=" ".join(promise_of(c, level, *how) for c, level in levels.items()),
        condition=f"It holds where frames come as the {main.units} units of the calibration did, from the same roads, camera, weather, "
        "labels, model and settings; another domain or corrupted images void it.",
        model=model_of(run),
        settings=settings_of(run),
        frames={frame: reader.identity(frame, score) for frame in names},
        command=shlex.join(["segunc", *sys.argv[1:]]),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        segunc=tool_version(),
        found_share=options.found_share,
        smallest=options.smallest,
        groups=groups,
        also=also,
    )
    result.write(Path(options.out))
    price = {control: float(sums.risk[place]) for control, sums in seen.sums.items() if sums.units}
    return ThresholdResult(Path(options.out), result, price, tuple(notes))


def _confidence(options: ThresholdOptions) -> float | None:
    """Return the confidence of the promise, None of an expectation; InputError where options contradict each other."""
    if options.method == "conformal" and (options.confidence is not None or options.also):
        what = "--also" if options.also else "--confidence"
        message = f"{what} and --method conformal do not go together: it bounds one expected risk"
        raise InputError(message, hint="--method ltt")
    if options.control in options.also:
        raise InputError(f"--also {options.control} is the control already", hint="name another control")
    if (options.method is None and options.confidence is None and not options.also) or options.method == "conformal":
        return None
    confidence = USUAL_CONFIDENCE if options.confidence is None else options.confidence
    if not 0 < confidence < 1:
        raise InputError(f"--confidence {confidence:g} is not between 0 and 1", hint="--confidence 0.9")
    return confidence


def _chosen_frames(reader: MapsReader, pattern: str | None) -> list[str]:
    try:
        names = [name for name in reader.frames if re.search(pattern or "", name)]
    except re.error as error:
        raise InputError(f"--frames '{pattern}' is no regular expression: {error}") from error
    if not names:
        raise InputError(f"--frames '{pattern}' matches no frame; the first is {reader.frames[0]}")
    return names


class _Seen:
    """What the calibration units say of each control, all together and, of the first control, by group."""

    def __init__(self, levels: Mapping[str, float], options: ThresholdOptions) -> None:
        self.options = options
        self.sums = {control: LossSums(control) for control in dict.fromkeys([*levels, *PRICE])}
        self.groups: dict[str, LossSums] = {}
        self.form, self.low, self.high, self.left_out = "", KEYS, -1, 0

    @property
    def top(self) -> int:
        """The highest threshold that is a finite value."""
        return _LARGEST_KEY.get(self.form, KEYS - 1)

    def count(self, reader: MapsReader, score: str, files: ReviewLabels, names: Sequence[str]) -> None:
        """Count unit by unit, so that one unit is in memory at a time."""
        options, main = self.options, self.options.control
        unit_of = resampled_units(options.unit, lambda name: reader.records.get(name, {}).get("time"), "--unit")
        units: dict[str, list[str]] = {}
        for name in names:
            units.setdefault(unit_of(name), []).append(name)
        members = {} if options.groups is None else group_frames(options.groups, names)
        group_of = {name: group for group, frames in members.items() for name in frames}
        self.groups = {group: LossSums(main) for group in members}
        with ConsoleProgress() as show:
            for done, frames in enumerate(units.values(), start=1):
                pools = {c: Pool(unit_seconds(c, options.unit)) for c in self.sums}
                for name in frames:
                    for control, counts in self._counts(reader, score, files, name).items():
                        pools[control].add(counts)
                for control, sums in self.sums.items():
                    values = losses(pools[control].counts, control)
                    if values is None:
                        self.left_out += control == main
                        continue
                    sums.add(values)
                    if control == main and group_of:
                        self.groups[group_of[frames[0]]].add(values)
                show.count(done, len(units))

    def _counts(self, reader: MapsReader, score: str, files: ReviewLabels, name: str) -> dict[str, Any]:
        """Return the counts of a frame by control."""
        classes = files.classes(name)
        prediction = reader.prediction(name) if classes is not None and reader.has(name, PREDICTION) else None
        stored = {score: reader.read_stored(name, score)}
        unit_codes = {score} if reader.form(score) == "unit-code" else set()
        frame = LabelledFrame(
            name, stored, prediction, labels=classes, anomaly=files.anomaly(name), unit_codes=unit_codes
        )
        form = str(frame.form(score))
        if self.form not in ("", form):
            raise InputError(f"frame {name}: the map '{score}' is stored as {form}, and others as {self.form}")
        self.form = form
        scene = Scene.of(stored[score], frame.anomaly, classes, prediction)
        if scene.known.any():
            keys = scene.keys[scene.known]
            self.low, self.high = min(self.low, int(keys.min())), max(self.high, int(keys.max()))
        counts = {c: scene.counts(c, self.options.found_share, self.options.smallest) for c in self.sums}
        return {control: of for control, of in counts.items() if of is not None}


def _check_units(seen: _Seen, levels: Mapping[str, float], method: Method) -> None:
    """Raise InputError where units lack what a control needs, or are too few for its level."""
    for control, level in levels.items():
        units = seen.sums[control].units
        if not units:
            lacks = NO_ANOMALY if control in OF_ANOMALIES else "no frame has class labels and a prediction"
            raise InputError(
                f"--control {control} says nothing here: {lacks}", hint="calibrate on frames with such labels"
            )
        if units < 2:
            raise InputError(
                f"one unit cannot promise anything of others; --unit {seen.options.unit} makes one", hint="--unit frame"
            )
        if units < (needed := method.minimum_units(control, level)):
            least = method.smallest_level(control, units)
            message = f"{units} units are too few for {control} of {level:g}, which needs {needed}"
            raise InputError(
                f"{message}; the smallest level that they can have is {least:.4f}", hint=f"--level {least * 1.0001:.4f}"
            )


def _place(sums: LossSums, level: float, method: Method, top: int) -> int:
    place = method.certified(sums, level)
    if place is None or (sums.control not in RISING and place > top):
        raise InputError(
            f"no threshold keeps {sums.control} to {level:g} on these {sums.units} units", hint="raise --level"
        )
    return min(place, top)


def _common_place(places: Mapping[str, int], options: ThresholdOptions) -> int:
    """Return the threshold that all controls allow, as near to the limit of the first as they do; InputError where there is none."""
    high = min((place for control, place in places.items() if control in RISING), default=KEYS)
    low = max((place for control, place in places.items() if control not in RISING), default=0)
    if low > high:
        both = " and ".join(places)
        raise InputError(f"no threshold keeps to the levels of {both} at once", hint="raise one of the levels")
    return high if options.control in RISING else low


def _numbers(sums: LossSums, place: int, method: Method) -> dict[str, float]:
    return {"risk": method.risk(sums, place), "bound": method.upper_bound(sums, place)}
