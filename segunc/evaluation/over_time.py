"""Labelled objects at a threshold: which are found, by size and distance; how soon, how steadily,
and how long alarms live. All counts of a track belong to the frame where it begins. So counts still
add, and a track is resampled as a whole, in the unit of that frame.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from segunc.data.labels import IGNORE
from segunc.decisions.events import MAX_FOLLOWED_REGIONS, Follower
from segunc.decisions.flags import Threshold
from segunc.evaluation import parts
from segunc.evaluation.flagged import Flagged
from segunc.evaluation.parts import NO_ANOMALY_LABEL, Array, Forms, LabelledFrame, Numbers
from segunc.evaluation.resampling import NumberPath, TimeOf
from segunc.maps.regions import strongest_regions
from segunc.metrics.counting import Counts
from segunc.metrics.objects import NO_OBJECT, ObjectBins, found_up_to

Groups = Mapping[str, Collection[str]]  # of frames


def object_parts(
    flag: Mapping[str, Threshold],
    scores: Sequence[str],
    by: Sequence[ObjectBins],
    groups: Groups,
    time_of: TimeOf | None,
) -> list[Flagged]:
    """Return the parts of labelled objects at the thresholds of these scores.

    Args:
        flag: score -> threshold.
        scores: that are evaluated.
        by: bins of objects.
        groups: of frames, by their names.
        time_of: of a frame; None where no frame has a time.
    """
    flagged_scores = [score for score in scores if score in flag]
    found: list[Flagged] = []
    for score in flagged_scores:
        found += [FoundObjects(score, flag[score], bins, members=None) for bins in by]
        for group, frames in groups.items():
            all_in_one = ObjectBins("group", edges=(), names=(group,))
            found.append(FoundObjects(score, flag[score], all_in_one, members=frames))
    if time_of is None:
        return found
    return [*found, *(OverTime(score, flag[score], time_of) for score in flagged_scores)]


class _OfObjects(Flagged):
    needs = "anomaly"
    lacks = NO_ANOMALY_LABEL

    def found(self, frame: LabelledFrame, flagged: Array) -> Array:
        """Return which objects of a frame are found, bool ``[N]``."""
        assert frame.objects is not None
        of_objects = flagged[frame.objects.number > 0]
        return found_up_to(of_objects, frame.objects, self.threshold.found_share)


class FoundObjects(_OfObjects):
    """The share of the objects of each bin that is found.

    With ``members`` only objects of these frames count. Counts are ``[B, 2]``, objects and found.
    """

    metrics = (
        parts.higher("found", "found at the threshold (of all objects)"),
        parts.Metric("objects", "objects"),
    )
    undefined = NO_OBJECT

    def __init__(
        self, score: str, threshold: Threshold, bins: ObjectBins, members: Collection[str] | None
    ) -> None:
        super().__init__(score, threshold)
        self.bins = bins
        self.members = members
        self.section = ("flagged", score, bins.kind)
        self.names: Sequence[NumberPath] = [
            (name, metric.key) for name in bins.names for metric in self.metrics
        ]
        self.point = frozenset((name, "objects") for name in bins.names)

    def count(self, frame: LabelledFrame) -> Counts | None:
        if frame.objects is None:
            return None
        if self.members is not None and frame.name not in self.members:
            return None
        bin_of_object = self.bins.places(frame.objects)
        is_found = self.found(frame, self.flagged(frame))
        number = len(self.bins.names)
        objects = np.bincount(bin_of_object, minlength=number)
        found_of_bin = np.bincount(bin_of_object[is_found], minlength=number)
        return np.stack([objects, found_of_bin], axis=1)

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        numbers: Numbers = {}
        for name, (objects, found) in zip(self.bins.names, counts.tolist(), strict=True):
            numbers[name, "found"] = _ratio(found, objects)
            numbers[name, "objects"] = objects
        return numbers


class _Sighting(NamedTuple):
    """A followed object in one frame."""

    frame: str
    time: float  # in seconds of the video
    found: bool


_COUNTED = (
    "tracks",  # objects that are labelled in several frames
    "detected",  # tracks that are found at least once
    "milliseconds",  # to detection, of detected tracks
    "later_frames",  # frames of tracks after their first
    "changes",  # frames in which it changes whether an object is found
    "alarms",  # flagged regions that are followed
    "single_frame",  # alarms that live one frame
)


def _counts_of(**counts: int) -> Counts:
    """Return counts ``[7]`` in the order of :data:`_COUNTED`, 0 for those that are not named."""
    return np.array([counts.get(name, 0) for name in _COUNTED], np.int64)


class OverTime(_OfObjects):
    """How soon and how steadily objects are found that are labelled in several frames, and how many
    alarms live one frame only.

    ``docs/guides/deciding.md`` says what each number means. Counts are ``[7]``, see
    :data:`_COUNTED`.
    """

    lacks = "no frame with an anomaly label has a time; --fps gives them to images"
    metrics = (
        parts.higher("detected", "detected"),
        parts.lower("seconds_to_detection", "seconds to detection"),
        parts.lower("flicker", "flicker"),
        parts.lower("single_frame", "alarms of one frame"),
        parts.Metric("tracks", "objects"),
        parts.Metric("alarms", "alarms"),
    )
    point = frozenset({("tracks",), ("alarms",)})

    def __init__(self, score: str, threshold: Threshold, time_of: TimeOf) -> None:
        super().__init__(score, threshold)
        self.section = ("flagged", score, "over_time")
        self.time_of = time_of
        self._objects = Follower()
        self._regions = Follower()
        self._tracks = defaultdict[int, list[_Sighting]](list)
        self._alarms = defaultdict[int, list[str]](list)  # frames

    def count(self, frame: LabelledFrame) -> Counts | None:
        time = self.time_of(frame.name)
        objects = frame.objects
        if frame.anomaly is None or objects is None or time is None:
            return None
        flagged = self.flagged(frame) & (frame.anomaly != IGNORE)
        found_objects = self.found(frame, flagged).tolist()
        object_numbers = self._objects.follow(frame.name, objects.boxes.tolist())
        for number, is_found in zip(object_numbers, found_objects, strict=True):
            self._tracks[number].append(_Sighting(frame.name, time, is_found))
        largest = strongest_regions(
            flagged.astype(np.float32),
            0.5,
            smallest=self.threshold.smallest,
            most=MAX_FOLLOWED_REGIONS,
        )
        for number in self._regions.follow(frame.name, [region.box for region in largest]):
            self._alarms[number].append(frame.name)
        return _counts_of()

    def finish(self) -> Iterator[tuple[str, Counts]]:
        for number in [*self._tracks]:
            track = self._tracks.pop(number)
            if len(track) > 1:
                yield track[0].frame, _track_counts(track)
        for number in [*self._alarms]:
            frames = self._alarms.pop(number)
            yield frames[0], _counts_of(alarms=1, single_frame=int(len(frames) == 1))

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        total = dict(zip(_COUNTED, counts.tolist(), strict=True))
        return {
            ("detected",): _ratio(total["detected"], total["tracks"]),
            ("seconds_to_detection",): _ratio(total["milliseconds"] / 1000, total["detected"]),
            ("flicker",): _ratio(total["changes"], total["later_frames"]),
            ("single_frame",): _ratio(total["single_frame"], total["alarms"]),
            ("tracks",): total["tracks"],
            ("alarms",): total["alarms"],
        }

    def why(self, counts: Counts, name: NumberPath) -> str:
        if name == ("single_frame",):
            return "no region is flagged"
        if counts[_COUNTED.index("tracks")]:
            return "no object is detected"
        return "no labelled object is seen in two frames"


def _track_counts(track: Sequence[_Sighting]) -> Counts:
    """Return the counts of an object that is labelled in two or more frames."""
    detections = [sighting.time for sighting in track if sighting.found]
    seconds = detections[0] - track[0].time if detections else 0
    changes = sum(before.found != now.found for before, now in pairwise(track))
    return _counts_of(
        tracks=1,
        detected=int(bool(detections)),
        milliseconds=round(1000 * seconds),
        later_frames=len(track) - 1,
        changes=changes,
    )


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


OBJECT_METRICS = (*FoundObjects.metrics, *OverTime.metrics)
