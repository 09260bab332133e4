"""Two maps folders over the same frames: which frames, classes and scores they share, and what of
the rest is left out.

Nothing is resized, renamed or guessed: what cannot be compared pixel by pixel is left out, counted
and said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.core.files import differing_keys
from segunc.core.terminal import counted
from segunc.data.frame_names import composed
from segunc.data.labels import IGNORE
from segunc.decisions.flags import Threshold
from segunc.decisions.guarantee import FITTED_WORDS, SETTINGS, model_of, setting_words
from segunc.maps.encoding import Array, decode_stored
from segunc.maps.folder import PREDICTION
from segunc.maps.labelled import choose_scores
from segunc.maps.reader import MapsReader
from segunc.maps.regions import Mask
from segunc.scores import SCORES

OTHER_IMAGE = "is of another image in each folder"
OTHER_SIZE = "has maps of another size in each folder"
LACKS_MAPS = "lacks maps in one folder"
REASONS = (OTHER_IMAGE, OTHER_SIZE, LACKS_MAPS)
"""Why a frame that both folders name is left out, in the order in which this is said."""
FITTED_SOURCES = frozenset({"frame", "scores", "constant"})
"""Sources of evidence that was fitted on a model."""


@dataclass(frozen=True)
class ComparedMaps:
    """One of the maps folders that are compared.

    Attributes:
        name: heading of its columns.
        reader: of its maps.
        flag: threshold of each score that is flagged.
    """

    name: str
    reader: MapsReader
    flag: Mapping[str, Threshold] = field(default_factory=dict)

    @property
    def run(self) -> Mapping[str, Any]:
        """What the manifest records of the run; empty for maps of another tool."""
        run: Mapping[str, Any] = (self.reader.manifest or {}).get("run", {})
        return run


@dataclass(frozen=True)
class SharedFrame:
    """A frame of both folders, whose name may be composed otherwise in each."""

    first: str
    second: str


@dataclass(frozen=True)
class StoredPair:
    """The maps of one score in one frame, as both folders store them.

    Attributes:
        stored: of the first and of the second folder, each ``[H, W]``.
        values: the same in real units, floats ``[H, W]``.
    """

    stored: tuple[Array, Array]
    values: tuple[npt.NDArray[np.floating], npt.NDArray[np.floating]]

    def finite(self, counted: Mask | None) -> Mask:
        """Return which pixels have a value in both, bool ``[H, W]``."""
        finite = np.isfinite(self.values[0]) & np.isfinite(self.values[1])
        return np.asarray(finite if counted is None else finite & counted)


@dataclass(frozen=True)
class FrameMaps:
    """What is compared of one frame.

    Attributes:
        frame: its names.
        shape: height and width in pixels.
        predictions: class ids of both folders, uint8 ``[H, W]`` each; None where classes are not
            compared.
        scores: the maps of each score.
        counted: pixels that no mask of either folder leaves out, bool ``[H, W]``; None for all.
    """

    frame: SharedFrame
    shape: tuple[int, ...]
    predictions: tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]] | None
    scores: Mapping[str, StoredPair]
    counted: Mask | None

    def classified(self) -> Mask | None:
        """Return which pixels have a class in both folders, bool ``[H, W]``; None where classes are
        not compared."""
        if self.predictions is None:
            return None
        first, second = self.predictions
        classified = (first != IGNORE) & (second != IGNORE)
        return np.asarray(classified if self.counted is None else classified & self.counted)


class MapsPair:
    """Two maps folders that are compared, frame by frame.

    Attributes:
        first: the baseline.
        second: the other.
        frames: names of the frames that both hold of the same image, in the order of the first.
        scores: that are compared.
        compares_classes: whether class ids mean the same in both.
        left_out: names of the frames that are left out, by reason; :meth:`read` adds to it.
        by_name_alone: number of frames whose image one of the folders does not record.

    Raises:
        InputError: they share no frame, or nothing that can be compared.
    """

    def __init__(
        self, first: ComparedMaps, second: ComparedMaps, scores: Sequence[str] | None = None
    ) -> None:
        self.first = first
        self.second = second
        self.asked = scores
        self.left_out: dict[str, list[str]] = {reason: [] for reason in REASONS}
        self.by_name_alone = 0
        self.frames = self._match_frames()
        self.scores = self._shared_scores(scores)
        self.class_fault = self._class_fault()
        self.compares_classes = not self.class_fault
        if not self.scores and not self.compares_classes:
            raise InputError(
                f"{first.reader.place} and {second.reader.place} share no score, and "
                f"{self.class_fault}",
                hint="predict --scores writes the scores that both should have",
            )

    @property
    def readers(self) -> tuple[MapsReader, MapsReader]:
        """The readers of both folders."""
        return self.first.reader, self.second.reader

    def _match_frames(self) -> list[SharedFrame]:
        """Return the frames of both folders that are of the same image, as far as it is recorded.

        Raises:
            InputError: there is none.
        """
        first, second = self.readers
        names = {composed(name): name for name in second.frames}
        frames = []
        for name in first.frames:
            other = names.get(composed(name))
            if other is None:
                continue
            frame = SharedFrame(name, other)
            is_same = self._is_same_image(frame)
            if is_same is False:
                self.left_out[OTHER_IMAGE].append(name)
                continue
            if is_same is None:
                self.by_name_alone += 1
            frames.append(frame)
        if not frames:
            raise self._no_frame()
        return frames

    def _is_same_image(self, frame: SharedFrame) -> bool | None:
        """Return whether a frame is of the same image in both folders, by the hash of its file or
        else of its video; None where they do not record one of a kind.
        """
        first, second = self.readers
        stamps = _stamp_of(first, frame.first), _stamp_of(second, frame.second)
        if all(stamps):
            return stamps[0] == stamps[1]
        videos = self.first.run.get("input_hash"), self.second.run.get("input_hash")
        return videos[0] == videos[1] if all(videos) else None

    def _no_frame(self) -> InputError:
        """Return the error of folders without a frame that can be compared."""
        first, second = self.readers
        others = self.left_out[OTHER_IMAGE]
        hint = self._hint_of_watch() or "run segunc predict on the same images with both models"
        if others:
            return InputError(
                f"{first.place} and {second.place} are of other images: no frame that "
                f"both name has the same image hash ({counted(len(others), 'frame')}, first "
                f"{others[0]})",
                hint=hint,
            )
        return InputError(
            f"{first.place} and {second.place} have no frame in common: their frames are named "
            f"like {first.frames[0]} and {second.frames[0]}",
            hint=hint,
        )

    def _hint_of_watch(self) -> str:
        """Return what to do where one folder was kept by a watch, which numbers the images of a
        folder or a stream; empty where none was or both were.
        """
        watched: list[str] = []
        for maps in (self.first, self.second):
            manifest = maps.reader.manifest or {}
            if str(manifest.get("command", "")).startswith("segunc watch "):
                watched.append(str(maps.run.get("input")))
        if len(watched) != 1:
            return ""
        return (
            "a watch names images by numbers; predict those that it kept, with the same options: "
            f"segunc predict --input {watched[0]}"
        )

    def _shared_scores(self, asked: Sequence[str] | None) -> list[str]:
        """Return the scores that are compared: those that are asked for or flagged, else all that
        both folders hold.

        Raises:
            InputError: a folder lacks one that is asked for or flagged.
        """
        first, second = self.readers
        flagged = [*self.first.flag, *self.second.flag]
        if asked is None:
            choose_scores(first, flagged)
            choose_scores(second, flagged)
            usual = set(choose_scores(second, None)) | set(flagged)
            chosen = dict.fromkeys((*choose_scores(first, None), *flagged))
            return [score for score in chosen if score in usual]
        asked = [*asked, *flagged]
        choose_scores(second, asked)
        return choose_scores(first, asked)

    def _class_fault(self) -> str:
        """Return why class ids cannot be compared; empty where they can."""
        first, second = self.readers
        for maps in (self.first, self.second):
            if not any(maps.reader.has(name, PREDICTION) for name in maps.reader.frames):
                return f"{maps.name} holds no prediction"
        names = first.class_names
        others = second.class_names
        if names == others:
            return ""
        if names is None or others is None:
            unnamed = self.first.name if names is None else self.second.name
            return f"the maps of {unnamed} do not name their classes"
        if len(names) != len(others):
            return (
                f"{self.first.name} has {len(names)} classes and {self.second.name} {len(others)}"
            )
        different = next(place for place in range(len(names)) if names[place] != others[place])
        return (
            f"class {different} is {names[different]} in {self.first.name} and "
            f"{others[different]} in {self.second.name}"
        )

    def read(self) -> Iterator[FrameMaps]:
        """Yield the maps of each frame that both folders hold at the same size, one frame in memory
        at a time.

        Raises:
            InputError: a map is damaged.
        """
        for frame in self.frames:
            maps = self.read_frame(frame)
            if isinstance(maps, str):
                self.left_out[maps].append(frame.first)
            else:
                yield maps

    def read_frame(self, frame: SharedFrame) -> FrameMaps | str:
        """Return the maps of a frame, or the reason of :data:`REASONS` why it is left out."""
        names = [PREDICTION] if self.compares_classes else []
        names += self.scores
        for name in names:
            if not all(self._has(frame, name)):
                return LACKS_MAPS
        scores = {score: self._read_score(frame, score) for score in self.scores}
        predictions = None
        shapes = []
        if self.compares_classes:
            first, second = self.readers
            predictions = first.prediction(frame.first), second.prediction(frame.second)
            shapes += [ids.shape for ids in predictions]
        for pair in scores.values():
            shapes += [stored.shape for stored in pair.stored]
        if len(set(shapes)) > 1:
            return OTHER_SIZE
        return FrameMaps(
            frame=frame,
            shape=shapes[0],
            predictions=predictions,
            scores=scores,
            counted=self._counted(shapes[0]),
        )

    def _has(self, frame: SharedFrame, name: str) -> tuple[bool, bool]:
        first, second = self.readers
        return first.has(frame.first, name), second.has(frame.second, name)

    def _read_score(self, frame: SharedFrame, score: str) -> StoredPair:
        first, second = self.readers
        stored = first.read_stored(frame.first, score)
        other = second.read_stored(frame.second, score)
        return StoredPair(
            stored=(stored, other),
            values=(
                decode_stored(stored, first.form(score)),
                decode_stored(other, second.form(score)),
            ),
        )

    def _counted(self, shape: tuple[int, ...]) -> Mask | None:
        """Return the pixels that count in both folders, bool ``[H, W]``; None for all."""
        kept = [mask for reader in self.readers if (mask := reader.kept(shape)) is not None]
        if not kept:
            return None
        return kept[0] if len(kept) == 1 else kept[0] & kept[1]

    def scales_differ(self, score: str) -> bool:
        """Return whether a number of a score may mean something else in each folder: it is
        unbounded, fitted on the model, or a share of ln C of another number C of classes.

        Maps of one model share its scales.
        """
        models = model_of(self.first.run), model_of(self.second.run)
        if models[0] and models[0] == models[1]:
            return False
        entry = SCORES.get(score)
        if entry is None or entry.lower is None or entry.upper is None:
            return True
        if entry.sources & FITTED_SOURCES:
            return True
        sizes = [len(reader.class_names or ()) for reader in self.readers]
        return "ln C" in entry.unit and sizes[0] != sizes[1]

    def notes_before(self) -> list[str]:
        """Return what a user should know of the two folders, in sentences without full stops."""
        notes = [self._of_models()]
        unfinished = [reader.unfinished for reader in self.readers if reader.unfinished]
        notes += [f"Frames are missing: {line}" for line in unfinished]
        notes += self._of_unshared_frames()
        if self.by_name_alone:
            notes.append(
                f"{counted(self.by_name_alone, 'frame', 'is')} matched by name alone, because a "
                "folder does not record the hash of each image"
            )
        if self.class_fault:
            notes.append(f"Predicted classes are not compared: {self.class_fault}")
        elif self.first.reader.class_names is None:
            notes.append("Neither folder names its classes, so equal ids count as equal classes")
        notes += self._of_unshared_scores()
        notes += self._of_masks()
        notes += self._of_promises()
        return notes

    def _of_models(self) -> str:
        """Say whether both folders are of one model, and which settings differ."""
        models = model_of(self.first.run), model_of(self.second.run)
        if not all(models):
            return "The maps do not say whether both are of one model"
        different = differing_keys(_settings(self.first.run), _settings(self.second.run))
        differing = [_difference_words(*difference) for difference in different]
        same = models[0] == models[1]
        words = "Both are of one model" if same else "The maps are of two models"
        if not differing:
            return f"{words} with the same settings"
        return f"{words}, whose settings differ in {', '.join(differing)}"

    def _of_unshared_frames(self) -> list[str]:
        """Say how many frames are in one folder alone."""
        notes = []
        folders = ((self.first, self.second), (self.second, self.first))
        for maps, other in folders:
            names = {composed(name) for name in other.reader.frames}
            alone = [name for name in maps.reader.frames if composed(name) not in names]
            if alone:
                notes.append(f"{_frames(alone)} only in {maps.name}, first {alone[0]}")
        return notes

    def _of_unshared_scores(self) -> list[str]:
        """Say which scores are in one folder alone."""
        notes = []
        folders = ((self.first, self.second), (self.second, self.first))
        for maps, other in folders:
            alone = [score for score in maps.reader.scores if score not in other.reader.scores]
            if alone:
                notes.append(f"Only {maps.name} has {', '.join(alone)}")
        if self.asked is None:
            shared = set(self.first.reader.scores) & set(self.second.reader.scores)
            meaningless = sorted(shared - set(self.scores))
            if meaningless:
                notes.append(
                    f"Not compared: {', '.join(meaningless)}, because a folder is of one draw, of "
                    "which they say nothing"
                )
        return notes

    def _of_masks(self) -> list[str]:
        """Say what masks leave out."""
        regions = [reader.region for reader in self.readers]
        if regions[0] is None and regions[1] is None:
            return []
        hashes = {None if region is None else region.sha256 for region in regions}
        if len(hashes) == 1:
            return ["Pixels that the mask leaves out do not count"]
        return ["The masks of the folders differ: only pixels that both keep count"]

    def _of_promises(self) -> list[str]:
        """Say what the thresholds promise, with the conditions."""
        notes = []
        for maps in (self.first, self.second):
            for threshold in maps.flag.values():
                if threshold.promise:
                    statement = threshold.statement.removesuffix(".")
                    notes.append(f"The threshold of {maps.name}, {threshold.source}: {statement}")
        return notes

    def notes_after(self) -> list[str]:
        """Return how many frames are left out although both folders name them, after all were
        read.
        """
        notes = []
        for reason, names in self.left_out.items():
            if names:
                notes.append(
                    f"{len(names)} of the frames that both folders name left out, because each "
                    f"{reason}, first {names[0]}"
                )
        return notes


def _frames(names: Sequence[str]) -> str:
    return counted(len(names), "frame", "is")


def _settings(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a run changes its maps, beside its model."""
    return {key: run[key] for key in SETTINGS if run.get(key) is not None}


def _difference_words(key: str, before: Any, after: Any) -> str:
    """Return in which setting two folders differ, with both values."""
    if key not in FITTED_WORDS:
        return f"{key} ({_short(key, before)} and {_short(key, after)})"
    if before is None or after is None:
        values = f"{setting_words(key, before)} and {setting_words(key, after)}"
        return f"the {FITTED_WORDS[key]} ({values})"
    return f"the {FITTED_WORDS[key]}, which was fitted again in between"


def _short(key: str, value: Any) -> str:
    """Return a setting in few characters."""
    text = setting_words(key, value)
    return text if len(text) <= 24 else f"{text[:12]}..."


def _stamp_of(reader: MapsReader, name: str) -> str | None:
    """Return the hash of the image of a frame; None where the maps record none."""
    stamp: str | None = reader.records.get(name, {}).get("stamp")
    return stamp
