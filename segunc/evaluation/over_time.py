"""Labelled objects at a threshold: which are found, by size and distance; how soon, how steadily,
and how long alarms live. All counts of a track belong to the frame where it begins. So counts still
add, and a track is resampled as a whole, in the unit of that frame.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise

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
    """Return the parts of labelled objects at the thresholds of these scores; ``time_of`` is None
    where no frame has a time.
    """
    used = [(score, flag[score]) for score in scores if score in flag]
    ways = [
        *((bins, None) for bins in by),
        *((ObjectBins("group", (), (name,)), frames) for name, frames in groups.items()),
    ]
    return [
        *(FoundObjects(*each, *way) for each in used for way in ways),
        *(OverTime(*each, time_of) for each in used if time_of),
    ]


class _OfObjects(Flagged):
    needs, lacks = "anomaly", NO_ANOMALY_LABEL

    def found(self, frame: LabelledFrame, flagged: Array) -> Array:
        """Return which objects of a frame are found, bool ``[N]``."""
        assert frame.objects is not None
        return found_up_to(
            flagged[frame.objects.number > 0], frame.objects, self.threshold.found_share
        )


class FoundObjects(_OfObjects):
    """The share of the objects of each bin, of ``members`` alone where they are given, that is
    found; counts ``[B, 2]``, objects and found.
    """

    metrics = parts.higher("found", "found"), parts.Metric("objects", "objects")
    undefined = NO_OBJECT

    def __init__(
        self, score: str, threshold: Threshold, bins: ObjectBins, members: Collection[str] | None
    ) -> None:
        super().__init__(score, threshold)
        self.bins, self.members, self.section = bins, members, ("flagged", score, bins.kind)
        self.names: Sequence[NumberPath] = [
            (name, metric.key) for name in bins.names for metric in self.metrics
        ]
        self.point = frozenset((name, "objects") for name in bins.names)

    def count(self, frame: LabelledFrame) -> Counts | None:
        if frame.objects is None or (self.members is not None and frame.name not in self.members):
            return None
        places = self.bins.places(frame.objects)
        found = places[self.found(frame, self.flagged(frame))]
        return np.stack(
            [np.bincount(of, minlength=len(self.bins.names)) for of in (places, found)], 1
        )

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        rows = [
            (found / objects if objects else None, objects) for objects, found in counts.tolist()
        ]
        return dict(zip(self.names, (value for row in rows for value in row), strict=True))


class OverTime(_OfObjects):
    """How soon and how steadily objects are found that are labelled in several frames, and how many
    alarms live one frame only.

    ``docs/guides/deciding.md`` says what each number means. Counts ``[7]``: objects, detected ones,
    milliseconds to detection, frames after the first, changes, alarms, alarms of one frame.
    """

    lacks = "no frame with an anomaly label has a time; --fps gives them to images"
    metrics = (
        *(
            parts.higher("detected", "detected"),
            parts.lower("seconds_to_detection", "seconds to detection"),
        ),
        *(parts.lower("flicker", "flicker"), parts.lower("single_frame", "alarms of one frame")),
        *(parts.Metric("tracks", "objects"), parts.Metric("alarms", "alarms")),
    )
    point = frozenset({("tracks",), ("alarms",)})

    def __init__(self, score: str, threshold: Threshold, time_of: TimeOf) -> None:
        super().__init__(score, threshold)
        self.section, self.time_of = ("flagged", score, "over_time"), time_of
        self._objects, self._regions = Follower(), Follower()
        self._tracks = defaultdict[int, list[tuple[str, float, bool]]](
            list
        )  # frame, time, and whether it is found
        self._alarms = defaultdict[int, list[str]](list)  # frames

    def count(self, frame: LabelledFrame) -> Counts | None:
        time, objects = self.time_of(frame.name), frame.objects
        if frame.anomaly is None or objects is None or time is None:
            return None
        flagged = self.flagged(frame) & (frame.anomaly != IGNORE)
        found = self.found(frame, flagged).tolist()
        for number, is_found in zip(
            self._objects.follow(frame.name, objects.boxes.tolist()), found, strict=True
        ):
            self._tracks[number].append((frame.name, time, is_found))
        largest = strongest_regions(
            flagged.astype(np.float32),
            0.5,
            smallest=self.threshold.smallest,
            most=MAX_FOLLOWED_REGIONS,
        )
        for number in self._regions.follow(frame.name, [region.box for region in largest]):
            self._alarms[number].append(frame.name)
        return np.zeros(7, np.int64)

    def finish(self) -> Iterator[tuple[str, Counts]]:
        for track in [self._tracks.pop(number) for number in [*self._tracks]]:
            names, times, found = zip(*track, strict=True)
            if len(track) > 1:
                late = times[found.index(True)] - times[0] if any(found) else 0
                changes = sum(before != now for before, now in pairwise(found))
                yield (
                    names[0],
                    np.array(
                        [1, any(found), round(1000 * late), len(track) - 1, changes, 0, 0], np.int64
                    ),
                )
        for frames in [self._alarms.pop(number) for number in [*self._alarms]]:
            yield frames[0], np.array([0] * 5 + [1, len(frames) == 1], np.int64)

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        tracks, detected, milliseconds, steps, changes, alarms, single = counts.tolist()
        pairs = (
            (detected, tracks),
            (milliseconds / 1000, detected),
            (changes, steps),
            (single, alarms),
        )
        return dict(
            zip(
                self.names,
                (*(part / whole if whole else None for part, whole in pairs), tracks, alarms),
                strict=True,
            )
        )

    def why(self, counts: Counts, name: NumberPath) -> str:
        if name == ("single_frame",):
            return "no region is flagged"
        return "no object is detected" if counts[0] else "no labelled object is seen in two frames"


OBJECT_METRICS = *FoundObjects.metrics, *OverTime.metrics
