"""The thresholds that ``--flag`` names: they are read here, and checked against maps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from segunc.core.errors import InputError
from segunc.data.frame_names import composed
from segunc.decisions.guarantee import (
    GuaranteedThreshold,
    calibration_frames,
    read_threshold,
    source_of,
)
from segunc.metrics.objects import SMALLEST_OBJECT
from segunc.scores import SCORES

# Pixels of a flagged region, as of a predicted component of SegmentMeIfYouCan's obstacle track.
SMALLEST_REGION = 50
CALIBRATED_ON = "a threshold of --flag was calibrated on it"
SAME_BYTES = "it has the bytes of a frame that a threshold of --flag was calibrated on"
"""Why a frame is left out, because it cannot test a promise."""


@dataclass(frozen=True)
class Threshold:
    """From which value on pixels are flagged and, of a file of segunc threshold, what it
    promises.
    """

    value: float
    source: str = ""
    promise: str = ""
    short: str = ""  # the promise in few words
    guarantee: GuaranteedThreshold | None = None
    found_share: float = 0.5  # of an object's pixels, the least that is flagged
    smallest: int = SMALLEST_REGION

    @property
    def statement(self) -> str:
        """The promise with its condition, without which it means nothing; empty where there is
        none."""
        return f"{self.promise} {self.guarantee.condition}" if self.guarantee else ""

    def claims(self, run: Mapping[str, Any]) -> bool:
        """Return whether the promise may be claimed for the frames of a run without its condition:
        the run is of the calibration's own input. Whether other frames are like these no record
        says."""
        source = self.guarantee.source if self.guarantee else ""
        return bool(source) and source == source_of(run)


def read_thresholds(words: Iterable[str] | Mapping[str, float]) -> dict[str, Threshold]:
    """Return the threshold of each score, of words ``SCORE=VALUE`` or ``threshold.json[:GROUP]``,
    which segunc threshold wrote.
    """
    thresholds: dict[str, Threshold] = {}
    for word in (
        [f"{name}={value}" for name, value in words.items()]
        if isinstance(words, Mapping)
        else words
    ):
        # The name of a group may hold colons, as a time of day does.
        file = re.fullmatch(r"(.+?\.json)(?::(.*))?", word)
        name, threshold = _of_file(Path(file[1]), file[2]) if file else _of_value(word)
        if name in thresholds:
            raise InputError(f"--flag {word} is a second threshold of '{name}'")
        thresholds[name] = threshold
    return thresholds


def check_promises(flag: Mapping[str, Threshold], run: Mapping[str, Any]) -> None:
    """Check the promise of each threshold as ``check_run`` does."""
    for threshold in flag.values():
        if threshold.guarantee:
            threshold.guarantee.check_run(run, threshold.source)


def calibrated_frames(
    flag: Mapping[str, Threshold], frames_of: Callable[[str], Sequence[tuple[str, str]]]
) -> dict[str, str]:
    """Return the frames that cannot test a promise, and of each the reason.

    Args:
        flag: score -> threshold.
        frames_of: gives name and hash of each labelled frame for a score.

    Raises:
        InputError: no other frame is left.
    """
    reasons: dict[str, str] = {}
    names: set[str] = set()
    sources: list[str] = []
    for score, threshold in flag.items():
        if threshold.guarantee:
            sources.append(threshold.source)
            frames = frames_of(score)
            names.update(name for name, _ in frames)
            matched = calibration_frames(threshold.guarantee.frames, frames)
            if matched and len(matched) == len(frames):
                number = len(threshold.guarantee.frames)
                raise InputError(
                    f"{len(matched)} of these frames, first {frames[0][0]}, are among the {number} "
                    f"that {threshold.source} was calibrated on, so they cannot test its promise",
                    hint="evaluate other frames",
                )
            for name, same_name in matched.items():
                reasons.setdefault(name, CALIBRATED_ON if same_name else SAME_BYTES)
    if names and names == reasons.keys():
        raise InputError(
            f"each of these {len(names)} frames is among those that {' or '.join(sources)} was "
            "calibrated on, so none can test all promises",
            hint="evaluate other frames, or one --flag at a time",
        )
    return reasons


def smallest_object_of(flag: Mapping[str, Threshold], asked: int | None = None) -> int:
    """Return the pixels of the smallest labelled object: what is ``asked`` for, else what the files
    of segunc threshold record, else :data:`SMALLEST_OBJECT`.

    Raises:
        InputError: two of them differ, for one result has one kind of object.
    """
    chosen = asked
    source = "--smallest-object"
    for threshold in flag.values():
        if threshold.guarantee is None:
            continue
        size = threshold.guarantee.smallest_object
        if chosen is not None and size != chosen:
            message = f"{threshold.source} counts labelled objects from {size} pixels on"
            raise InputError(
                f"{message}, and {source} from {chosen}",
                hint=f"--smallest-object {size}, and one --flag of these",
            )
        chosen = size
        source = threshold.source
    return SMALLEST_OBJECT if chosen is None else chosen


def _of_value(word: str) -> tuple[str, Threshold]:
    name, _, text = word.partition("=")
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    if not name or not np.isfinite(value):
        message = f"--flag {word} is neither SCORE=VALUE nor threshold.json[:GROUP]"
        raise InputError(message, hint="--flag entropy=0.5, or --flag threshold.json")
    low, high = (SCORES[name].lower, SCORES[name].upper) if name in SCORES else (None, None)
    if (low is not None and value < low) or (high is not None and value > high):
        raise InputError(
            f"--flag {word}: {name} lies in {low:g} to {np.inf if high is None else high:g}"
        )
    return name, Threshold(value)


def _of_file(path: Path, which: str | None) -> tuple[str, Threshold]:
    made = read_threshold(path)
    value, promise, short = made.value, made.promise, made.short
    if which:
        groups_by_name = {composed(name): name for name in made.groups}
        which = groups_by_name.get(composed(which), which)
        if which not in made.groups:
            groups = f"its groups are {', '.join(made.groups) or 'none'}"
            raise InputError(
                f"--flag {path}:{which}: the threshold has no group '{which}'", hint=groups
            )
        value, words = (
            made.groups[which]["value"],
            f"group {which}, calibrated on {made.groups[which]['units']:g} units",
        )
        promise, short = f"{promise} This is {words}.", f"{short}, {words}"
    return made.score, Threshold(
        value, path.name, promise, short, made, made.found_share, made.smallest
    )
