"""Labelled objects at a threshold: which are found, by size, distance and class; how soon, how steadily, and how long alarms live.

An object is found where a share of its pixels is flagged (:data:`FOUND_SHARE`, or that of a threshold with a promise). What needs
neighbouring frames counts whole tracks: each is followed to its end, and all of its counts belong to the frame where it begins, so that
counts still add and a track is resampled as a whole, in the unit of its first frame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from segunc.core.errors import InputError
from segunc.data.labels import IGNORE
from segunc.decisions.events import MOST_FOLLOWED, Follower, Gap
from segunc.evaluation import parts
from segunc.evaluation.flagged import SMALLEST_REGION, Flagged, Threshold
from segunc.evaluation.parts import NO_ANOMALY_LABEL, Array, Forms, LabelledFrame, Numbers
from segunc.evaluation.resampling import NumberPath
from segunc.metrics.counting import Counts
from segunc.metrics.objects import NO_OBJECT, ObjectBins

FOUND_SHARE = 0.5  # of an object's pixels, the least that is flagged
IDS = 256  # values of a mask


@dataclass(frozen=True)
class AnomalyClasses:
    """The classes of anomalies: ``read`` gives the raw label of a frame ``[H, W]``, ``names`` says what its anomalous values are called."""

    names: Mapping[int, str]
    read: Callable[[str], Array | None]


def object_parts(
    flag: Mapping[str, Threshold],
    scores: Sequence[str],
    by: Sequence[ObjectBins],
    classes: AnomalyClasses | None,
    time_of: Callable[[str], float | None],
) -> list[_OfObjects]:
    """Return the parts of labelled objects at the thresholds of the scores that are evaluated; InputError where classes are asked for and
    there is no threshold."""
    if not flag and any(bins.kind == "class" for bins in by):
        raise InputError("--by class needs a threshold at which objects are found", hint="--flag entropy=0.5")
    used = [(score, flag[score]) for score in scores if score in flag]
    by_bin: list[_OfObjects] = [
        FoundByClass(*each, bins, classes) if bins.kind == "class" else FoundObjects(*each, bins)
        for each in used
        for bins in by
    ]
    return [*by_bin, *(OverTime(*each, time_of) for each in used)]


class _OfObjects(Flagged):
    needs, lacks = "anomaly", NO_ANOMALY_LABEL

    def found(self, frame: LabelledFrame, flagged: Array) -> Array:
        """Return which objects of a frame are found, bool ``[N]``."""
        assert frame.objects is not None
        hits = np.bincount(frame.objects.number[flagged], minlength=len(frame.objects.pixels) + 1)[1:]
        guarantee = self.threshold.guarantee
        return np.asarray(hits >= (guarantee.found_share if guarantee else FOUND_SHARE) * frame.objects.pixels)


class FoundObjects(_OfObjects):
    """The share of the objects of each bin that is found; counts ``[B, 2]``, objects and found ones."""

    metrics = parts.higher("found", "found"), parts.Metric("objects", "objects")

    def __init__(self, score: str, threshold: Threshold, bins: ObjectBins) -> None:
        super().__init__(score, threshold)
        self.bins, self.section = bins, ("flagged", score, bins.kind)
        self.names: Sequence[NumberPath] = [(name, metric.key) for name in bins.names for metric in self.metrics]
        self.point = frozenset((name, "objects") for name in bins.names)

    def count(self, frame: LabelledFrame) -> Counts | None:
        if frame.objects is None:
            return None
        return self._by_place(frame, self.bins.places(frame.objects), len(self.bins.names))

    def _by_place(self, frame: LabelledFrame, places: Array, number: int) -> Counts:
        found = self.found(frame, self.flagged(frame))
        return np.stack([np.bincount(of, minlength=number) for of in (places, places[found])], 1)

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        rows = zip(self.bins.names, counts.tolist(), strict=True)
        return {key: value for name, row in rows for key, value in _found(name, *row).items()}

    def why(self, counts: Counts, name: NumberPath) -> str:
        return NO_OBJECT


class FoundByClass(FoundObjects):
    """The same by the class of the anomaly, the value that most pixels of an object have in the raw label; counts ``[256, 2]``."""

    def __init__(self, score: str, threshold: Threshold, bins: ObjectBins, classes: AnomalyClasses | None) -> None:
        super().__init__(score, threshold, bins)
        self.classes = classes if classes is not None and len(classes.names) > 1 else None
        self.names = [("found",)]  # and those of the classes that occur: a mask may know 200
        if self.classes is None:
            self.lacks = "the labels mark every anomaly with one value, so they know no classes of anomalies"

    def count(self, frame: LabelledFrame) -> Counts | None:
        raw = self.classes.read(frame.name) if self.classes and frame.objects is not None else None
        if raw is None or frame.objects is None:
            return None
        numbers, count = frame.objects.number, len(frame.objects.pixels)
        cells = np.bincount(numbers[numbers > 0].astype(np.int64) * IDS + raw[numbers > 0], minlength=(count + 1) * IDS)
        places = cells.reshape(-1, IDS)[1:].argmax(1)
        for name in sorted({self.classes.names[place] for place in places.tolist()}):
            self.names = list(dict.fromkeys([*self.names, (name, "found"), (name, "objects")]))
        self.point = frozenset(name for name in self.names if name[-1] == "objects")
        return self._by_place(frame, places, IDS)

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        numbers: Numbers = {("found",): _found("", *counts.sum(0).tolist())["", "found"]}
        for name in dict.fromkeys(path[0] for path in self.names[1:]):
            places = [value for value, known in self.classes.names.items() if known == name] if self.classes else []
            numbers |= _found(name, *counts[places].sum(0).tolist())
        return numbers


def _found(name: str, objects: int, found: int) -> Numbers:
    return {(name, "found"): found / objects if objects else None, (name, "objects"): objects}


@dataclass
class _Track:
    """A labelled object that is followed: when it was first seen and first found, and how its state changed."""

    frame: str
    time: float
    seen: int = 0  # frames
    delay: tuple[int, int] | None = None  # frames and milliseconds from its first frame to the first that finds it
    changes: int = 0
    found: bool = False  # in its last frame


class OverTime(_OfObjects):
    """How soon and how steadily objects are found that are labelled in several frames, and how many alarms live one frame only.

    ``detected``: the share of these objects that is found in any frame, ``at_once`` in their first. ``frames_to_detection`` and
    ``seconds_to_detection``: means over the detected ones, 0 in the first frame. ``flicker``: of the frames after an object's first, the share in which it is found and
    was not, or the reverse. ``single_frame``: of the alarms, flagged regions of at least :data:`SMALLEST_REGION` pixels that are followed as events are, the share
    that one frame alone shows. Counts are ``[9]`` of what begins in a frame: objects, detected, at once, frames and milliseconds to detection,
    frames after the first, changes, alarms, alarms of one frame.
    """

    lacks = "no frame with an anomaly label has a time: maps of a video have them, --fps gives them to images"
    metrics = (
        *(parts.higher("detected", "detected"), parts.higher("at_once", "in the first frame")),
        *(parts.lower("frames_to_detection", "frames to detection"), parts.lower("seconds_to_detection", "seconds")),
        *(parts.lower("flicker", "flicker"), parts.lower("single_frame", "alarms of one frame")),
        *(parts.Metric("tracks", "objects"), parts.Metric("alarms", "alarms")),
    )
    point = frozenset({("tracks",), ("alarms",)})

    def __init__(self, score: str, threshold: Threshold, time_of: Callable[[str], float | None]) -> None:
        super().__init__(score, threshold)
        self.section, self.time_of = ("flagged", score, "over_time"), time_of
        guarantee = threshold.guarantee
        self.smallest = guarantee.smallest if guarantee else SMALLEST_REGION
        self._begin()

    def _begin(self) -> None:
        self._objects, self._regions = Follower(Gap()), Follower(Gap())
        self._tracks: dict[int, _Track] = {}
        self._alarms: dict[int, tuple[str, bool]] = {}  # first frame, and whether it is the only one

    def count(self, frame: LabelledFrame) -> Counts | None:
        time = self.time_of(frame.name)
        if frame.anomaly is None or frame.objects is None or time is None:
            return None
        flagged = self.flagged(frame) & (frame.anomaly != IGNORE)
        found = self.found(frame, flagged).tolist()
        boxes = [(x, y, w, h) for x, y, w, h in frame.objects.boxes.tolist()]
        for number, now in zip(self._objects.follow(frame.name, time, boxes), found, strict=True):
            track = self._tracks.setdefault(number, _Track(frame.name, time))
            track.changes += track.seen > 0 and now != track.found
            if now and track.delay is None:
                track.delay = track.seen, round(1000 * (time - track.time))
            track.seen, track.found = track.seen + 1, now
        *_, regions, _ = cv2.connectedComponentsWithStats(flagged.view(np.uint8), connectivity=8)
        large = regions[1:][regions[1:, cv2.CC_STAT_AREA] >= self.smallest]
        strongest = large[np.argsort(-large[:, cv2.CC_STAT_AREA], kind="stable")][:MOST_FOLLOWED]
        boxes = [(x, y, w, h) for x, y, w, h, _ in strongest.tolist()]
        for number in self._regions.follow(frame.name, time, boxes):
            self._alarms[number] = self._alarms.get(number, (frame.name,))[0], number not in self._alarms
        return np.zeros(9, np.int64)

    def finish(self) -> Iterator[tuple[str, Counts]]:
        """Yield the counts of all that was followed, each with its first frame."""
        for track in self._tracks.values():
            if track.seen > 1:
                frames, milliseconds = track.delay or (0, 0)
                detection = 1, track.delay is not None, track.delay is not None and not frames, frames, milliseconds
                yield track.frame, np.array([*detection, track.seen - 1, track.changes, 0, 0], np.int64)
        for name, single in self._alarms.values():
            yield name, np.array([0] * 7 + [1, single], np.int64)
        self._begin()

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        tracks, detected, at_once, frames, milliseconds, steps, changes, alarms, single = counts.tolist()
        pairs = (detected, tracks), (at_once, tracks), (frames, detected), (milliseconds / 1000, detected)
        shares = [part / whole if whole else None for part, whole in (*pairs, (changes, steps), (single, alarms))]
        return dict(zip(self.names, (*shares, tracks, alarms), strict=True))

    def why(self, counts: Counts, name: NumberPath) -> str:
        if name == ("single_frame",):
            return "no region is flagged"
        if not counts[0]:
            return "no labelled object is seen in two frames"
        return "no object is detected"


OBJECT_METRICS = *FoundObjects.metrics, *OverTime.metrics
