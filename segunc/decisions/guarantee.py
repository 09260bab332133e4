"""``threshold.json``: a threshold with its promise, what the promise is about, and what
voids it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from segunc.core.bounds import Settings, from_plain
from segunc.core.errors import InputError
from segunc.core.files import differing_keys, json_sha256, read_result
from segunc.scores import SCORES

ControlName = Literal[
    "missed-pixels", "flagged-pixels", "missed-objects", "false-alarms", "errors-kept"
]
MethodName = Literal["conformal", "ltt", "clopper-pearson"]
MAX_ALARMS = (
    5  # false alarms of a frame or a minute that are counted: the methods need a bounded loss
)
_AGAIN = "calibrate on maps like these: segunc threshold --maps MAPS"  # what a message proposes
_WORDS = (
    "missed anomaly pixels",
    "flagged normal pixels",
    "missed objects",
    "false alarms",
    "wrong pixels among those kept",
)
RISKS: dict[str, str] = dict(
    zip(get_args(ControlName), _WORDS, strict=True)
)  # of each control, in words
SETTINGS = (
    "temperature",
    "calibrator_sha256",
    "draws",
    "seed",
    "scheme",
    "alpha",
    "scope",
    "size",
    "compact",
    "precision",
    "mask_sha256",
)
"""Keys of a run that change its maps, beside its model; where one is absent the model's own value
holds.
"""
FITTED = {
    "frame": ("features_sha256", "anomaly"),
    "scores": ("features_sha256", "anomaly"),
    "constant": ("class_sets",),
}
"""The same of what was fitted on the model, by the sources of scores that it changes."""


LATER_KEYS = {"source", "smallest_object"}
"""Keys that files of earlier versions lack; their defaults say what such a file meant."""


@dataclass(frozen=True)
class GuaranteedThreshold(Settings):
    """A threshold and what is promised of it. ``also`` holds level, risk and bound of a second
    control, by its name.
    """

    score: str
    value: float  # a pixel is flagged where its score is at or above it
    form: str  # stored form of the maps, as evaluate records it
    control: ControlName
    method: MethodName
    level: float  # a share, or false alarms a frame or a minute
    confidence: float | None  # None where the promise is about the expectation
    unit: str  # frame, folder, a regular expression, or blocks of seconds (10s)
    units: int  # that it was calibrated on
    minimum_units: int  # the fewest with which this level can be had
    risk: float  # mean loss of these units at the value
    bound: float | None  # upper bound of the risk with this confidence
    promise: str  # one sentence
    condition: str  # one sentence on what the promise needs, and what voids it
    model: str  # see :func:`model_of`; empty for maps of another tool
    settings: Mapping[str, Any]  # see :func:`settings_of`
    frames: Mapping[str, str]  # name -> hash of each calibration frame, see MapsReader.identity
    command: str
    date: str  # UTC
    segunc: str  # version
    found_share: float = 0.5  # of an object's pixels that must be flagged for it to be found
    smallest: int = 50  # pixels; smaller regions are no alarm
    groups: Mapping[str, Mapping[str, float]] = field(
        default_factory=dict
    )  # name -> value, units, risk
    also: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    source: str = ""  # see :func:`source_of`; empty where it is not known
    smallest_object: int = 0  # pixels; earlier versions counted labelled regions of any size
    kind: str = "segunc threshold"
    version: int = 1

    @property
    def levels(self) -> dict[str, float]:
        """The level of each control that is promised."""
        return {self.control: self.level} | {name: of["level"] for name, of in self.also.items()}

    @property
    def short(self) -> str:
        """The promise in few words, for a legend."""
        bound = f"<= {100 * self.level:.3g} %"
        if self.method == "clopper-pearson":
            bound = f"in {bound} of the {unit_words(self.unit)}s"
        elif self.control == "false-alarms":
            bound = f"<= {self.level:g} a {'minute' if block_seconds(self.unit) else 'frame'}"
        sure = "" if self.confidence is None else f" ({100 * self.confidence:.3g} % sure)"
        return f"{RISKS[self.control]} {bound}{sure}"

    def check_run(self, run: Mapping[str, Any], source: str) -> None:
        """Raise InputError, which names the ``source`` of the threshold, where maps come of another
        model or tool, or with other settings."""
        if model_of(run) != self.model:
            raise InputError(
                f"{source} is a threshold of another model or tool than that of these maps",
                hint=_AGAIN,
            )
        if run and (different := differing_keys(self.settings, settings_of(run, self.score))):
            key, then, current = different[0]
            raise InputError(
                f"{source} is a threshold of maps with {key} {then!r}, and these have {current!r}",
                hint=_AGAIN,
            )

    def holds(self, name: str, identity: str, source: str) -> bool:
        """Return whether a frame is one of the calibration: its source, its name and its bytes.

        Bytes alone prove nothing, because all frames of a dark camera are the same. A source that
        is not recorded, here or there, is not compared.
        """
        same_source = self.source == source or not (self.source and source)
        return same_source and self.frames.get(name) == identity


def calibration_frames(
    calibrated: Mapping[str, str], frames: Sequence[tuple[str, str]]
) -> dict[str, bool]:
    """Return which frames stand for those of a calibration, and of each whether it has the same
    name.

    Each frame of the calibration stands for one frame at most. Frames of the same name and bytes
    come first. The others are matched by their bytes alone, so that a copy under other names is
    found. One black frame of a calibration therefore matches one black frame, and not all of a dark
    camera.

    Args:
        calibrated: name -> hash of each frame of the calibration.
        frames: name and hash of each frame.
    """
    matched: dict[str, bool] = {}
    for name, identity in frames:
        if calibrated.get(name) == identity:
            matched[name] = True
    left = Counter(identity for name, identity in calibrated.items() if name not in matched)
    for name, identity in frames:
        if name not in matched and left[identity]:
            left[identity] -= 1
            matched[name] = False
    return matched


def promise_of(control: str, level: float, facts: Mapping[str, Any]) -> str:
    """Return the promise of a control as one sentence; ``facts`` are method, confidence, unit,
    found_share, smallest and smallest_object of the threshold."""
    of, share, confidence = unit_words(facts["unit"]), f"{100 * level:.3g} %", facts["confidence"]
    start = "On average" if confidence is None else f"With {100 * confidence:.3g} % confidence"
    if facts["method"] == "clopper-pearson":
        return f"{start}, at most {share} of the {of}s have any {RISKS[control]}."
    words = {
        "missed-pixels": f"{share} of the anomaly pixels of a {of} are missed",
        "flagged-pixels": f"{share} of the normal pixels of a {of} are flagged",
        "missed-objects": f"{share} of the anomalous objects of a {of} are missed; an object is found where "
        f"{100 * facts['found_share']:.3g} % of its pixels are flagged{_specks(facts)}",
        "false-alarms": f"{level:g} false alarms come a {'minute' if block_seconds(facts['unit']) else 'frame'}: regions of at least "
        f"{facts['smallest']} flagged pixels on normal ground, of which {MAX_ALARMS} at most are counted",
        "errors-kept": f"{share} of the pixels of a {of} that are kept, below the threshold, are wrongly predicted",
    }
    return f"{start}, at most {words[control]}."


def _specks(facts: Mapping[str, Any]) -> str:
    """Return the words of a promise on labelled regions that are too small to be objects."""
    smallest = facts.get("smallest_object", 0)
    if smallest < 2:
        return ""
    return f", and labelled regions below {smallest} pixels are specks beside larger ones"


def unit_words(unit: str) -> str:
    """Return what a unit is called, one."""
    return (
        unit if unit in ("frame", "folder") else f"{unit} block" if block_seconds(unit) else "unit"
    )


def block_seconds(unit: str) -> float | None:
    """Return the length of units that are blocks of a video, such as ``10s``; None of others."""
    seconds = re.fullmatch(r"(\d*\.?\d+)s", unit)
    return seconds and float(seconds[1])


def model_of(run: Mapping[str, Any]) -> str:
    """Return the hash that names model and posterior of a run, from its record in a manifest or a
    result; empty where it has none.
    """
    parts = [run.get(key) for key in ("base_sha256", "posterior_sha256")]
    return json_sha256(parts) if any(parts) else ""


def source_of(run: Mapping[str, Any]) -> str:
    """Return the hash that names the input of a run: a video by its content, images by their path.
    Empty where the run records none."""
    source = run.get("input_hash") or run.get("input")
    return json_sha256(source) if source else ""


def settings_of(run: Mapping[str, Any], score: str) -> dict[str, Any]:
    """Return what else of a run changes the maps of a score; of a record that was fitted
    its hash.
    """
    fitted = (
        [key for source in SCORES[score].sources for key in FITTED.get(source, ())]
        if score in SCORES
        else []
    )
    values = {key: run[key] for key in (*SETTINGS, *fitted) if run.get(key) is not None}
    return {
        key: json_sha256(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
    }


def read_threshold(path: Path) -> GuaranteedThreshold:
    """Read ``threshold.json``; InputError where it is missing, damaged or of another version.
    A file of an earlier version records no source, so its frames are known by name and bytes."""
    keys = {each.name for each in fields(GuaranteedThreshold)} - LATER_KEYS
    return from_plain(
        GuaranteedThreshold, read_result(path, "threshold", keys, "segunc threshold"), str(path)
    )
