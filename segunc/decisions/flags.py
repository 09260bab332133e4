"""The thresholds that ``--flag`` names: they are read here, and checked against maps."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from segunc.core.errors import InputError, NoteWarning
from segunc.core.files import file_sha256
from segunc.data.frame_names import composed
from segunc.decisions.guarantee import (
    GuaranteedThreshold,
    calibration_frames,
    read_threshold,
    source_of,
)
from segunc.decisions.preparation import AS_IT_IS, Prediction, Preparation
from segunc.maps.encoding import Array
from segunc.maps.reader import MapsReader
from segunc.maps.regions import Mask
from segunc.metrics.objects import SMALLEST_OBJECT
from segunc.scores import SCORES, first_shown

# Pixels of a flagged region, as of a predicted component of SegmentMeIfYouCan's obstacle track.
SMALLEST_REGION = 50
CALIBRATED_ON = "a threshold of --flag was calibrated on it"
SAME_BYTES = "it has the bytes of a frame that a threshold of --flag was calibrated on"
"""Why a frame is left out, because it cannot test a promise."""


@dataclass(frozen=True)
class Threshold:
    """The value from which on pixels are flagged, and what it promises if it comes from a file of
    segunc threshold.
    """

    value: float
    source: str = ""  # name of the file; empty without one
    promise: str = ""
    short: str = ""  # the promise in few words
    guarantee: GuaranteedThreshold | None = None  # the content of the file
    found_share: float = 0.5  # of an object's pixels that must be flagged for it to be found
    smallest: int = SMALLEST_REGION  # pixels of a flagged region
    sha256: str = ""  # of the file; empty without one
    group: str = ""  # of frames, which alone it is about; empty for all frames

    @property
    def statement(self) -> str:
        """The promise with its condition, without which it means nothing; empty where there is
        none."""
        return f"{self.promise} {self.condition}" if self.guarantee else ""

    @property
    def condition(self) -> str:
        """What the promise needs and what voids it; empty where there is none."""
        if self.guarantee is None:
            return ""
        if self.group:
            return self.guarantee.condition_of(self.group)
        return self.guarantee.condition

    @property
    def name(self) -> str:
        """Name of the file, with the group of frames; empty without a file."""
        return f"{self.source}:{self.group}" if self.group else self.source

    def density_note(self, frames: int) -> str:
        """Return :meth:`GuaranteedThreshold.density_note` of its frames; empty without a
        promise.
        """
        if self.guarantee is None:
            return ""
        return self.guarantee.density_note(frames, self.name, self.group)

    def sparsity_note(self, frames: float) -> str:
        """Return :meth:`GuaranteedThreshold.sparsity_note` of its frames; empty without a
        promise.
        """
        if self.guarantee is None:
            return ""
        return self.guarantee.sparsity_note(frames, self.name, self.group)

    @property
    def preparation(self) -> Preparation:
        """What is done with a map before it is compared with the value."""
        return AS_IT_IS if self.guarantee is None else self.guarantee.preparation

    def prepared(
        self,
        scores: Array,
        prediction: Callable[[], Prediction | None],
        kept: Mask | None = None,
    ) -> Array:
        """Return the map that is compared with the value, ``[H, W]``; -inf where nothing is flagged
        at any value.

        Args:
            scores: of a frame, floats ``[H, W]``.
            prediction: returns the class ids of the frame ``[H, W]``; called if they are needed.
            kept: which pixels count, bool ``[H, W]``; None for all.

        Raises:
            InputError: the prediction is needed, and there is none.
        """
        preparation = self.preparation
        if not preparation:
            return scores
        return preparation(scores, prediction() if preparation.place_ids else None, kept)

    def claims(self, run: Mapping[str, Any]) -> bool:
        """Return whether the promise may be claimed for the frames of a run without its condition.

        It may where the run is of the calibration's own input. No record says whether other frames
        are like those of the calibration.
        """
        source = self.guarantee.source if self.guarantee else ""
        return bool(source) and source == source_of(run)


def read_thresholds(words: Iterable[str] | Mapping[str, float]) -> dict[str, Threshold]:
    """Return the threshold of each score.

    Args:
        words: ``SCORE=VALUE`` or ``threshold.json[:GROUP]``, a file that segunc threshold wrote; or
            a mapping from scores to values.

    Raises:
        InputError: a word is neither, a file cannot be used, or a score has two thresholds.
    """
    if isinstance(words, Mapping):
        words = [f"{name}={value}" for name, value in words.items()]
    thresholds: dict[str, Threshold] = {}
    for word in words:
        # The name of a group may hold colons, as a time of day does.
        file = re.fullmatch(r"(.+?\.json)(?::(.*))?", word)
        name, threshold = _of_file(Path(file[1]), file[2]) if file else _of_value(word)
        if name in thresholds:
            raise InputError(f"--flag {word} is a second threshold of '{name}'")
        thresholds[name] = threshold
    return thresholds


def ranking_score(scores: Iterable[str], flag: Mapping[str, Threshold]) -> str:
    """Return the score that ranks frames where none is named: one that has a threshold, else the
    first shown; empty where there is no score.
    """
    names = tuple(scores)
    flagged = [name for name in names if name in flag]
    return first_shown(flagged or names)


def check_promises(
    flag: Mapping[str, Threshold], run: Mapping[str, Any], sizes: Collection[str] = ()
) -> None:
    """Check that thresholds belong to the maps of a run, and warn where its frames have another
    size than those of the calibration.

    Args:
        flag: score -> threshold.
        run: see :meth:`GuaranteedThreshold.check_run`.
        sizes: width x height of the frames, as of :meth:`MapsReader.sizes`; empty where unknown.

    Raises:
        InputError: a threshold was calibrated on maps of another model, tool or setting.
    """
    for threshold in flag.values():
        if threshold.guarantee is None:
            continue
        threshold.guarantee.check_run(run, threshold.source)
        note = threshold.guarantee.size_note(sizes, threshold.source)
        if note:
            warnings.warn(note, NoteWarning, stacklevel=2)


def check_forms(flag: Mapping[str, Threshold], reader: MapsReader) -> None:
    """Check that maps of another tool are stored as those of a calibration: whole numbers of a PNG
    and floats have other scales. Maps of this tool have one form for each score.

    Args:
        flag: score -> threshold.
        reader: of the maps, of which the first frame is read.

    Raises:
        InputError: a threshold was calibrated on maps of another form.
    """
    if reader.manifest is not None:
        return
    for score, threshold in flag.items():
        frames = [name for name in reader.frames if reader.has(name, score)]
        if threshold.guarantee is None or not frames:
            continue
        stored = reader.read_stored(frames[0], score)
        form = "float" if stored.dtype.kind == "f" else str(stored.dtype)
        if form != threshold.guarantee.form:
            raise InputError(
                f"the map '{score}' is stored as {form}, but {threshold.source} was calibrated on "
                f"maps stored as {threshold.guarantee.form}",
                hint=f"take maps of one tool, or give --flag {score}=VALUE",
            )


def calibrated_frames(
    flag: Mapping[str, Threshold], frames_of: Callable[[str], Sequence[tuple[str, str]]]
) -> dict[str, str]:
    """Return the frames that cannot test a promise, each with the reason.

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
        if threshold.guarantee is None:
            continue
        calibrated = threshold.guarantee.frames
        sources.append(threshold.source)
        frames = frames_of(score)
        names.update(name for name, _ in frames)
        matched = calibration_frames(calibrated, frames)
        if matched and len(matched) == len(frames):
            first, _ = frames[0]
            raise InputError(
                f"{len(matched)} of these frames, first {first}, are among the {len(calibrated)} "
                f"that {threshold.source} was calibrated on{_of_group(threshold, matched)}, so "
                "they cannot test its promise",
                hint="evaluate other frames",
            )
        for name, has_same_name in matched.items():
            reasons.setdefault(name, CALIBRATED_ON if has_same_name else SAME_BYTES)
    if names and names == reasons.keys():
        raise InputError(
            f"each of these {len(names)} frames is among those that {' or '.join(sources)} was "
            "calibrated on, so none can test all promises",
            hint="evaluate other frames, or one --flag at a time",
        )
    return reasons


def _of_group(threshold: Threshold, calibrated: Mapping[str, bool]) -> str:
    """Return how many calibration frames are of the group of a threshold, in words; empty for all
    frames, and where no record says.

    Args:
        threshold: of one group, or of all frames.
        calibrated: frames that stand for those of the calibration, each with whether names agree.
    """
    if threshold.guarantee is None or not threshold.group:
        return ""
    of_group = threshold.guarantee.names_of_group(threshold.group)
    if not of_group:
        return ""
    count = len(of_group.intersection(name for name, agrees in calibrated.items() if agrees))
    return (
        f" ({count} of them for the group {threshold.group}, and its promise says nothing of the "
        "others)"
    )


def smallest_object_of(flag: Mapping[str, Threshold], asked: int | None = None) -> int:
    """Return the pixels of the smallest labelled object.

    It is what is ``asked`` for, else what the files of segunc threshold record, else
    :data:`SMALLEST_OBJECT`.

    Raises:
        InputError: two of these differ, and one result has one kind of object.
    """
    chosen = asked
    source = "--smallest-object"
    for threshold in flag.values():
        if threshold.guarantee is None:
            continue
        size = threshold.guarantee.smallest_object
        if chosen is not None and size != chosen:
            raise InputError(
                f"{threshold.source} counts labelled objects from {size} pixels on, "
                f"and {source} from {chosen}",
                hint=f"--smallest-object {size}, and one --flag of these",
            )
        chosen = size
        source = threshold.source
    return SMALLEST_OBJECT if chosen is None else chosen


def _of_value(word: str) -> tuple[str, Threshold]:
    """Return the score and its threshold of ``SCORE=VALUE``."""
    name, _, text = word.partition("=")
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    if not name or not np.isfinite(value):
        raise InputError(
            f"--flag {word} is neither SCORE=VALUE nor threshold.json[:GROUP]",
            hint="--flag entropy=0.5, or --flag threshold.json",
        )
    if name in SCORES:
        lower = SCORES[name].lower
        upper = SCORES[name].upper
        smallest = -np.inf if lower is None else lower
        largest = np.inf if upper is None else upper
        if not smallest <= value <= largest:
            raise InputError(f"--flag {word}: {name} lies in {smallest:g} to {largest:g}")
    return name, Threshold(value)


def _of_file(path: Path, group: str | None) -> tuple[str, Threshold]:
    """Return the score and its threshold of a file of segunc threshold, or of a group in it."""
    guarantee = read_threshold(path)
    value = guarantee.value
    promise = guarantee.promise
    short = guarantee.short
    group_name = ""
    if group:
        # The names of groups may be composed otherwise than what was typed.
        names = {composed(name): name for name in guarantee.groups}
        name = names.get(composed(group), group)
        if name not in guarantee.groups:
            raise InputError(
                f"--flag {path}:{name}: the threshold has no group '{name}'",
                hint=f"its groups are {', '.join(guarantee.groups) or 'none'}",
            )
        numbers = guarantee.groups[name]
        group_name = name
        value = numbers["value"]
        calibrated_on = f"group {name}, calibrated on {numbers['units']:g} units"
        promise = f"{promise} This is {calibrated_on}, and says nothing of other frames."
        short = f"{short}, {calibrated_on}"
    return guarantee.score, Threshold(
        value=value,
        source=path.name,
        promise=promise,
        short=short,
        guarantee=guarantee,
        found_share=guarantee.found_share,
        smallest=guarantee.smallest,
        sha256=file_sha256(path),
        group=group_name,
    )
