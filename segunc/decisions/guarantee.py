"""``threshold.json``: a threshold with its promise, what the promise is about, and what
voids it.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from segunc.core.bounds import Settings, from_plain
from segunc.core.errors import InputError
from segunc.core.files import differing_keys, json_sha256, note_without_seal, read_result
from segunc.core.terminal import counted
from segunc.decisions.preparation import AS_IT_IS, Preparation
from segunc.scores import SCORES

ControlName = Literal[
    "missed-pixels", "flagged-pixels", "missed-objects", "false-alarms", "errors-kept"
]
MethodName = Literal["conformal", "ltt", "clopper-pearson"]
# False alarms of a frame or a minute that are counted: the methods need a bounded loss.
MAX_ALARMS = 5
DENSER = 1.5
"""How many times the frames of a calibration may come in a block before a note says so: a block
that is cut off has fewer frames, so their mean is a little too low."""
RISKS: dict[str, str] = {
    "missed-pixels": "missed anomaly pixels",
    "flagged-pixels": "flagged normal pixels",
    "missed-objects": "missed objects",
    "false-alarms": "false alarms",
    "errors-kept": "wrong pixels among those kept",
}
"""Each control in words."""
MOST_OF = {
    "false-alarms": ", the most at this or any higher threshold",
    "errors-kept": ", the most at this or any lower threshold",
}
"""Of controls whose risk may go both ways: of which thresholds it is the largest, see
:func:`segunc.decisions.risks.monotone`."""
FALLING = ("flagged-pixels", "false-alarms")
"""Controls whose risk falls when the threshold rises: where nothing is flagged, there is none."""
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
"""Keys of what was fitted on the model, by the sources of scores that it changes."""
FITTED_KEYS = ("features_sha256", "anomaly", "class_sets")
"""All keys of :data:`FITTED`: two models with equal hashes may still differ in these."""
FITTED_WORDS = {
    "calibrator_sha256": "temperature",
    "features_sha256": "bank of features",
    "anomaly": "anomaly score",
    "class_sets": "calibration of class sets",
}
"""What was fitted on a model, by its key in a run."""
LATER_KEYS = {
    "source",
    "smallest_object",
    "preparation",
    "sizes",
    "all_units",
    "chosen",
    "flagged",
    "right_flagged",
    "wrong_flagged",
    "group_of",
}
"""Keys that files of earlier versions lack; their defaults say what such a file meant."""
GROUP_BLOCKS = "all_units"
"""Key of the units of a group, also those that say nothing of the control; earlier versions lack
it."""
_OF_MODEL = ("alpha", "scope", "size")
"""Keys of a run without which the model's own value holds."""
_OPTIONS = ("draws", "seed", "alpha", "scope", "size", "precision")
"""Keys of a run that are options of predict and of watch, by the same names."""
_NEW_FILE = "recalibrated.json"
_LIKE_THESE = (
    "calibrate on maps like these, which you made of calibration frames in a folder MAPS: "
)


@dataclass(frozen=True)
class GuaranteedThreshold(Settings):
    """A threshold and what is promised of it."""

    score: str
    value: float  # a pixel is flagged where its prepared score is at or above it
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
    # name -> value, units, risk and all_units
    groups: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    # name -> group of each calibration frame, also of a group without a threshold; empty without
    # groups and in earlier versions
    group_of: Mapping[str, str] = field(default_factory=dict)
    # control -> level, risk and bound of a second promise
    also: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    source: str = ""  # see :func:`source_of`; empty where it is not known
    smallest_object: int = 0  # pixels; earlier versions counted labelled regions of any size
    # What is done with a map before it is compared with the value; nothing in earlier versions.
    preparation: Preparation = AS_IT_IS
    # Width x height of the calibration frames, each size once; nothing in earlier versions.
    sizes: tuple[str, ...] = ()
    # Units of the calibration, also those that say nothing of the control; 0 in earlier versions.
    all_units: int = 0
    chosen: str = ""  # one sentence on what else was chosen on these frames; empty if unknown
    # Shares of all labelled pixels of the calibration frames in the promised place that are
    # flagged; None in earlier versions.
    flagged: float | None = None
    # The same of pixels with a right and with a wrong prediction, for errors-kept alone; None also
    # where there is no such pixel.
    right_flagged: float | None = None
    wrong_flagged: float | None = None
    kind: str = "segunc threshold"
    version: int = 1

    @property
    def levels(self) -> dict[str, float]:
        """The level of each control that is promised."""
        levels: dict[str, float] = {self.control: self.level}
        for control, numbers in self.also.items():
            levels[control] = numbers["level"]
        return levels

    @property
    def short(self) -> str:
        """The promise in few words, for a legend."""
        bound = f"<= {100 * self.level:.3g} %"
        if self.method == "clopper-pearson":
            bound = f"in {bound} of the {unit_words(self.unit)}s"
        elif self.control == "false-alarms":
            bound = f"<= {self.level:g} a {_alarm_period(self.unit)}"
        sure = "" if self.confidence is None else f" ({100 * self.confidence:.3g} % sure)"
        return f"{RISKS[self.control]}{_on_place(self.preparation.place)} {bound}{sure}"

    @property
    def frames_per_block(self) -> float | None:
        """Frames of the calibration in a block of seconds, if the promise counts what happens in a
        block, of which more frames have more; None for other promises.
        """
        return self.frames_per_block_of("")

    def frames_per_block_of(self, group: str) -> float | None:
        """Return :attr:`frames_per_block` of the frames of a group, empty for all frames; None also
        where no record says which frames are of the group.
        """
        counts = "false-alarms" in self.levels or self.method == "clopper-pearson"
        if not counts or not block_seconds(self.unit):
            return None
        if not group:
            return len(self.frames) / (self.all_units or self.units)
        frames = self.names_of_group(group)
        numbers = self.groups[group]
        blocks = numbers.get(GROUP_BLOCKS) or numbers["units"]
        return len(frames) / blocks if frames else None

    def density_note(self, frames: int, source: str, group: str = "") -> str:
        """Return what a user should know of so many frames in one block; empty for nothing.

        Args:
            frames: that came in a block of seconds.
            source: what the note calls the threshold.
            group: of frames, which alone the threshold is about; empty for all frames.
        """
        calibrated = self.frames_per_block_of(group)
        if calibrated is None or frames <= DENSER * calibrated:
            return ""
        return (
            f"{source} was calibrated on about {frame_words(calibrated)} in {self.unit}, and here "
            f"{frames} and more come: more frames have more {self.counted_risk} in a block, so its "
            "promise does not hold here; calibrate on maps of frames that come as densely"
        )

    def sparsity_note(self, frames: float, source: str, group: str = "") -> str:
        """Return why frames that come so sparsely cannot test the promise; empty if they can.

        Args:
            frames: their mean number in a block of seconds.
            source: what the note calls the threshold.
            group: of frames, which alone the threshold is about; empty for all frames.
        """
        calibrated = self.frames_per_block_of(group)
        if calibrated is None or calibrated <= DENSER * frames:
            return ""
        return (
            f"{source} was calibrated on about {frame_words(calibrated)} in {self.unit}, and here "
            f"about {frames:.3g} come: fewer frames have fewer {self.counted_risk} in a block, so "
            "what is achieved here is too low to test its promise; evaluate frames that come as "
            "densely"
        )

    def condition_of(self, group: str = "") -> str:
        """Return what the promise needs and what voids it; of blocks whose frames count also how
        many they hold, and of prepared maps also how.

        Args:
            group: of frames, which alone the promise is about; empty for all frames.
        """
        one = unit_words(self.unit)
        units = int(self.groups[group]["units"]) if group else self.units
        condition = (
            f"It holds where frames come as the {units} units of the calibration did, from the "
            "same roads, camera, weather, labels, model and settings; another domain or corrupted "
            f"images void it. Each {one} counts as independent of every other {one}."
        )
        frames = self.frames_per_block_of(group)
        if frames is not None:
            condition += (
                f" A {one} had about {frame_words(frames)}: where more come, there are more "
                f"{self.counted_risk}."
            )
        if not self.preparation:
            return condition
        words = self.preparation.words
        return f"{condition} {words[0].upper()}{words[1:]}."

    @property
    def counted_risk(self) -> str:
        """What a block has more of if more frames come in it, in words."""
        return RISKS["false-alarms" if "false-alarms" in self.levels else self.control]

    def check_run(self, run: Mapping[str, Any], source: str, hint: str = "") -> None:
        """Check that the threshold belongs to the maps of a run.

        Args:
            run: the ``run`` part of their manifest; empty for maps of another tool.
            source: what the error calls the threshold, its file for instance.
            hint: what to do where settings differ; by default, to make other maps.

        Raises:
            InputError: the maps come from another model or tool, or were made with other settings.
        """
        if model_of(run) != self.model:
            raise InputError(
                f"{source} was calibrated on maps of another model or tool than these",
                hint=self._hint_calibrate,
            )
        if not run:
            return
        settings = _without_unused_temperature(self.settings)
        different = differing_keys(settings, settings_of(run, self.score))
        if different:
            facts = [_difference_words(*difference) for difference in different]
            raise InputError(
                f"{source} was calibrated on maps {'; '.join(facts)}",
                hint=hint or self._hint_for_settings(different),
            )

    def _hint_for_settings(self, different: Sequence[tuple[str, Any, Any]]) -> str:
        """Return what to do where maps differ from those of the calibration in keys of their run,
        each with both values.
        """
        given = []
        left_out = []
        for key, calibrated, _ in different:
            if key not in _OPTIONS:
                return self._hint_calibrate
            if calibrated is None:
                left_out.append(f"--{key}")
            else:
                value = "x".join(map(str, calibrated)) if key == "size" else str(calibrated)
                given.append(f"--{key} {value}")
        steps = []
        if given:
            steps.append(f"make the maps with {' '.join(given)}")
        if left_out:
            steps.append(f"leave {' and '.join(left_out)} out")
        return f"{' and '.join(steps)}, or {self._hint_calibrate}"

    @property
    def _hint_calibrate(self) -> str:
        """How to calibrate such a threshold on other maps: by the command that made this one, into
        another file.
        """
        words = shlex.split(self.command)
        if words[:2] == ["segunc", "threshold"] and {"--maps", "--out"} <= {*words[:-1]}:
            words[words.index("--maps") + 1] = "MAPS"
            words[words.index("--out") + 1] = _NEW_FILE
            return _LIKE_THESE + shlex.join(words)
        labels = "--config CONFIG" if self.control == "errors-kept" else "--anomaly-labels LABELS"
        return (
            f"{_LIKE_THESE}segunc threshold --maps MAPS {labels} --control {self.control} "
            f"--level {self.level:g} --score {self.score} --out {_NEW_FILE}"
        )

    def size_note(self, sizes: Collection[str], source: str) -> str:
        """Return what a user should know of frames of other sizes than those of the calibration;
        empty for nothing, and where either is not known.
        """
        others = [size for size in sizes if size not in self.sizes]
        if not others or not self.sizes:
            return ""
        calibrated = " and ".join(self.sizes)
        these = " and ".join(others)
        return (
            f"{source} was calibrated on frames of {calibrated} pixels, and these have "
            f"{these}: its promise is about the former, and regions and objects of a "
            "number of pixels are of another size here"
        )

    @property
    def note_on_silence(self) -> str:
        """What a user should know of a threshold that flags nothing; empty where it flags
        something, and for a file of an earlier version.
        """
        if self.flagged is None or self.flagged > 0:
            return ""
        return f"this threshold flags no pixel of its calibration frames: {self._why_silent}"

    @property
    def _why_silent(self) -> str:
        if self.control in FALLING:
            return (
                f"{counted(self.units, 'unit', 'allows')} none at {self.control} of "
                f"{self.level:g}; a larger --level or more units flag more"
            )
        return (
            f"they keep to {self.control} of {self.level:g} without it; a lower --level flags more"
        )

    def names_of_group(self, group: str) -> frozenset[str]:
        """Return the names of the calibration frames of a group; none where no record says."""
        return frozenset(name for name, of_frame in self.group_of.items() if of_frame == group)

    def holds(self, name: str, identity: str, source: str) -> bool:
        """Return whether a frame is one of the calibration: its source, its name and its bytes.

        Bytes alone prove nothing, because all frames of a dark camera are the same. A source that
        is not recorded, here or there, is not compared.
        """
        same_source = self.source == source or not (self.source and source)
        return same_source and self.frames.get(name) == identity


def _difference_words(key: str, calibrated: Any, current: Any) -> str:
    """Return how a setting of the maps of a calibration differs from that of other maps, after
    ``maps``.
    """
    if key == "mask_sha256":
        return f"{_mask_words(calibrated)}, and these were made {_mask_words(current)}"
    if key in FITTED_WORDS:
        if calibrated is not None and current is not None:
            return f"with another {FITTED_WORDS[key]} than these, which was fitted again in between"
        before = setting_words(key, calibrated)
        return f"with {before}, and these have {setting_words(key, current)}"
    before = f"the {key} of the model"
    if calibrated is not None:
        before = f"{key} {calibrated!r}"
    elif key not in _OF_MODEL:
        before = f"no {key}"
    now = setting_words(key, None) if current is None else repr(current)
    return f"with {before}, and these have {now}"


def setting_words(key: str, value: Any) -> str:
    """Return the value of a setting of a run in words; None stands for one that it lacks."""
    if key in FITTED_WORDS:
        return f"no {FITTED_WORDS[key]}" if value is None else f"a fitted {FITTED_WORDS[key]}"
    if value is None:
        return "that of the model" if key in _OF_MODEL else "none"
    return str(value)


def _mask_words(sha256: str | None) -> str:
    return f"with the mask {sha256[:12]}" if sha256 else "without a mask"


def calibration_frames(
    calibrated: Mapping[str, str], frames: Sequence[tuple[str, str]]
) -> dict[str, bool]:
    """Return the frames that stand for those of a calibration, each with whether the names agree.

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


def promise_of(  # noqa: PLR0913  each is a part of the sentence
    control: str,
    level: float,
    *,
    method: MethodName,
    confidence: float | None,
    unit: str,
    found_share: float,
    smallest: int,
    smallest_object: int,
    place: Sequence[str] = (),
) -> str:
    """Return the promise of a control as one sentence.

    Args:
        control: what is bounded, one of :data:`RISKS`.
        level: the bound, a share or a number of false alarms.
        method: how it is bounded.
        confidence: in the bound, 0..1; None where the promise is about the expectation.
        unit: what is exchangeable.
        found_share: share of an object's pixels that must be flagged for it to be found.
        smallest: pixels of the smallest flagged region that is a false alarm.
        smallest_object: pixels of the smallest labelled object.
        place: names of the classes of the surface that is promised; none for the whole frame.
    """
    start = "On average" if confidence is None else f"With {100 * confidence:.3g} % confidence"
    share = f"{100 * level:.3g} %"
    unit_name = unit_words(unit)
    on_place = _on_place(place)
    if method == "clopper-pearson":
        return f"{start}, at most {share} of the {unit_name}s have any {RISKS[control]}{on_place}."
    if control == "missed-pixels":
        bounded = f"{share} of the anomaly pixels{on_place} of a {unit_name} are missed"
    elif control == "flagged-pixels":
        bounded = f"{share} of the normal pixels of a {unit_name} are flagged"
    elif control == "missed-objects":
        bounded = (
            f"{share} of the anomalous objects{on_place} of a {unit_name} are missed; "
            f"an object is found where {100 * found_share:.3g} % of its pixels are flagged"
            f"{_specks(smallest_object)}"
        )
    elif control == "false-alarms":
        bounded = (
            f"{level:g} false alarms come a {_alarm_period(unit)}: regions of at least {smallest} "
            f"flagged pixels on normal ground, of which {MAX_ALARMS} at most are counted"
            f"{_share_of_blocks(level, unit)}"
        )
    else:
        bounded = (
            f"{share} of the pixels{on_place} of a {unit_name} that are kept, below the threshold, "
            "are wrongly predicted"
        )
    return f"{start}, at most {bounded}."


def _on_place(place: Sequence[str]) -> str:
    """Return the words of a promise on the surface that it is about; empty for the whole frame."""
    return f" on the surface of {' and '.join(place)}" if place else ""


def _specks(smallest_object: int) -> str:
    """Return the words of a promise on labelled regions that are too small to be objects."""
    if smallest_object < 2:
        return ""
    return f", and labelled regions below {smallest_object} pixels are specks beside larger ones"


def _share_of_blocks(level: float, unit: str) -> str:
    """Return what a number of false alarms a minute says of blocks: they are so short that the
    first alarm of one reaches the largest number that is counted. Empty where units are none.
    """
    seconds = block_seconds(unit)
    if not seconds:
        return ""
    return (
        f"; one alarm in a block of {unit} is {60 / seconds:.3g} a minute and counts as "
        f"{MAX_ALARMS}, so this says that at most {100 * level / MAX_ALARMS:.3g} % of the blocks "
        "have an alarm"
    )


def _alarm_period(unit: str) -> str:
    """Return what false alarms are counted in."""
    return "minute" if block_seconds(unit) else "frame"


def frame_words(frames: float) -> str:
    """Return a mean number of frames in words.

    >>> frame_words(1.0), frame_words(2.5)
    ('1 frame', '2.5 frames')
    """
    number = f"{frames:.3g}"
    return f"{number} frame" if number == "1" else f"{number} frames"


def unit_words(unit: str) -> str:
    """Return what one unit is called."""
    if unit in ("frame", "folder"):
        return unit
    return f"{unit} block" if block_seconds(unit) else "unit"


def block_seconds(unit: str) -> float | None:
    """Return the length of units that are blocks of a video, such as ``10s``; None of others."""
    seconds = re.fullmatch(r"(\d*\.?\d+)s", unit)
    return seconds and float(seconds[1])


def model_of(run: Mapping[str, Any]) -> str:
    """Return the hash that names model and posterior of a run; empty where it records none.

    Args:
        run: its record in a manifest or a result.
    """
    parts = [run.get(key) for key in ("base_sha256", "posterior_sha256")]
    return json_sha256(parts) if any(parts) else ""


def source_of(run: Mapping[str, Any]) -> str:
    """Return the hash that names the input of a run; empty where it records none.

    A video is named by its content, images are named by their path.
    """
    source = run.get("input_hash") or run.get("input")
    return json_sha256(source) if source else ""


def fitted_of(run: Mapping[str, Any]) -> dict[str, str]:
    """Return a hash of each record of what was fitted on a model, by its key in a run.

    Args:
        run: its record in a manifest or a result, or the settings of a threshold.
    """
    fitted = {}
    for key in FITTED_KEYS:
        value = run.get(key)
        if value is not None:
            fitted[key] = json_sha256(value) if isinstance(value, Mapping) else str(value)
    return fitted


def settings_of(run: Mapping[str, Any], score: str) -> dict[str, Any]:
    """Return what else of a run changes the maps of a score: values, and hashes of records that
    were fitted.
    """
    keys = [*SETTINGS]
    if score in SCORES:
        for source in SCORES[score].sources:
            keys += FITTED.get(source, ())
    settings = {}
    for key in keys:
        value = run.get(key)
        if value is not None:
            settings[key] = json_sha256(value) if isinstance(value, Mapping) else value
    return _without_unused_temperature(settings)


def _without_unused_temperature(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without the temperature of the logits where the mean over the draws has one.

    It is 1 there, which would contradict the fitted one, of which ``calibrator_sha256`` is the
    hash. Files of earlier versions hold both.
    """
    is_unused = "calibrator_sha256" in settings and settings.get("temperature") == 1.0
    return {key: value for key, value in settings.items() if key != "temperature" or not is_unused}


def read_threshold(path: Path, *, to_replace: bool = False) -> GuaranteedThreshold:
    """Read ``threshold.json``, and warn if it holds no hash of itself.

    A file of an earlier version records no source, so its frames are known by name and bytes.

    Args:
        path: of the file.
        to_replace: whether another one is about to be written there, so there is no warning.

    Raises:
        InputError: the file is missing, damaged or of another version.
    """
    required = {field.name for field in fields(GuaranteedThreshold)} - LATER_KEYS
    content = read_result(path, "threshold", required, "segunc threshold")
    if not to_replace:
        note_without_seal(path, "segunc threshold")
    return from_plain(GuaranteedThreshold, content, str(path))
