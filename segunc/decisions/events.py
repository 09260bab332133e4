"""Events: flagged regions that are followed over the frames of a video, or of images that are one.

A region of a frame goes on with the event whose last box overlaps its own most: intersection over union, assigned over all pairs at once
(Hungarian method), as SORT does (Bewley et al. 2016, arXiv 1602.00763) but without a model of motion. An event may be away for a short
gap. Frames are read once, in the order of their source, so it does not matter how the maps were dealt out to shards.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from segunc.core.errors import InputError
from segunc.core.files import csv_text, write_file, write_json
from segunc.data.images import Image
from segunc.maps.encoding import encode_jpeg
from segunc.maps.folder import PREDICTION
from segunc.maps.labelled import frame_times, open_images, with_images
from segunc.maps.reader import MapsReader
from segunc.maps.statistics import StrongRegion, strongest_regions

Box = tuple[int, int, int, int]  # left, top, width and height in pixels
MIN_OVERLAP = (
    0.1  # of two boxes of one event: flagged regions change their outline from frame to frame more than objects do
)
MOST_FOLLOWED = 100  # of a frame that are followed, the strongest: where more are flagged, the threshold says little
CONTEXT = 0.6  # of the longer side of a box, around it on its crop
SMALLEST_CROP = 96  # pixels of the sides of a crop, at least
ENDINGS = ".csv", ".json", "_coco.json"  # of a file of events


class Gap(NamedTuple):
    """For how long an event may be away: frames between two that show it, or seconds from one to the other."""

    length: float = 2
    seconds: bool = False

    @classmethod
    def parse(cls, text: str) -> Gap:
        """Read ``2`` as frames and ``0.5s`` as seconds."""
        if not (match := re.fullmatch(r"(\d{1,9})|(\d{0,9}\.?\d{1,9})s", text)):
            raise InputError(f"--gap {text} is no number of frames or seconds", hint="--gap 2, or --gap 0.5s")
        return cls(float(match[1] or match[2]), match[2] is not None)


def overlaps(first: Sequence[Box], second: Sequence[Box]) -> npt.NDArray[np.float64]:
    """Return the intersection over union of each of N boxes with each of M, ``[N, M]``."""
    a, b = (np.array(boxes, np.float64).reshape(-1, 4) for boxes in (first, second))
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum((a[:, :2] + a[:, 2:])[:, None], (b[:, :2] + b[:, 2:])[None])
    shared = (high - low).clip(0).prod(2)
    return np.asarray(shared / (a[:, 2:].prod(1)[:, None] + b[:, 2:].prod(1)[None] - shared))


class Follower:
    """Numbers boxes of frames so that those of one thing have one number. It keeps the last box of what may come back, and nothing else."""

    def __init__(self, gap: Gap) -> None:
        self.gap, self._begun, self._frame, self._folder = gap, 0, 0, ""
        self._open: dict[
            int, tuple[Box, int, float | None]
        ] = {}  # number -> last box, its frame by number, and its time

    def follow(self, name: str, time: float | None, boxes: Sequence[Box]) -> list[int]:
        """Return the number of each box of the next frame, counted from 0 in the order in which things begin. Frames of another folder
        are another video; ``time`` is in seconds, and needed for a gap in seconds."""
        folder = name.rpartition("/")[0]
        self._frame, self._folder, before = self._frame + 1, folder, self._folder
        self._open = {n: last for n, last in self._open.items() if folder == before and self._may_return(last, time)}
        numbers, known = [-1] * len(boxes), list(self._open)
        shares = overlaps(boxes, [box for box, _, _ in self._open.values()])
        shares[shares < MIN_OVERLAP] = 0
        for row, column in zip(*linear_sum_assignment(shares, maximize=True), strict=True):
            if shares[row, column]:
                numbers[row] = known[column]
        for place, box in enumerate(boxes):
            if numbers[place] < 0:
                numbers[place], self._begun = self._begun, self._begun + 1
            self._open[numbers[place]] = box, self._frame, time
        return numbers

    def _may_return(self, last: tuple[Box, int, float | None], time: float | None) -> bool:
        _, frame, seen = last
        if self.gap.seconds and time is not None and seen is not None:
            return frame == self._frame - 1 or time - seen <= self.gap.length
        return self._frame - frame - 1 <= self.gap.length


class Sighting(NamedTuple):
    """An event in one frame: its region there."""

    frame: str
    time: float | None  # seconds from the start of the video
    size: tuple[int, int]  # height and width of the frame
    box: Box
    area: int  # pixels
    strength: float  # sum of what its pixels exceed the threshold by
    value: float  # the highest of the score
    class_id: int | None  # that most of its pixels are predicted as; None without a prediction
    runs: npt.NDArray[np.int64] | None = None  # of its mask, down the columns of the frame: off, on, off, ...


@dataclass(frozen=True)
class Event:
    """A flagged region over time."""

    id: int  # from 1
    score: str
    threshold: float
    sightings: list[Sighting]  # one a frame, in their order

    @property
    def peak(self) -> Sighting:
        """Where it is strongest."""
        return max(self.sightings, key=lambda seen: seen.strength)

    def record(self) -> dict[str, Any]:
        """Return it as ``events.json`` holds it."""
        start, end, peak = self.sightings[0], self.sightings[-1], self.peak
        ends = {name: {"frame": seen.frame, "time": seen.time} for name, seen in (("start", start), ("end", end))}
        at_peak = {"value": peak.value, "strength": peak.strength, "box": list(peak.box)}
        return {
            **{"id": self.id, "score": self.score, "threshold": self.threshold, **ends},
            "peak": {"frame": peak.frame, "time": peak.time, **at_peak},
            **{"frames": len(self.sightings), "largest": max(seen.area for seen in self.sightings)},
            **{"class_id": peak.class_id, "boxes": {seen.frame: list(seen.box) for seen in self.sightings}},
        }


@dataclass(frozen=True)
class Found:
    """What a threshold flags in a maps folder: its events, and how many frames have a region."""

    events: list[Event] = field(default_factory=list)
    frames: int = 0
    flagged: int = 0
    crowded: int = 0  # frames with more than MOST_FOLLOWED regions


def ordered(reader: MapsReader, fps: float | None, gap: Gap) -> list[float | None]:
    """Return the times of all frames, None where unknown; raise InputError where nothing says which frame follows which."""
    times = frame_times(reader, reader.frames, fps)
    for name, time in zip(reader.frames, times, strict=True):
        if time is None and gap.seconds:
            raise InputError(
                f"--gap is in seconds, but no time of the frame {name} is known", hint="--fps 25, or --gap 2"
            )
        if time is None and not re.search(r"\d", name.rpartition("/")[2]):
            message = f"the frame {name} of {reader.folder} has neither a time nor a number in its name, so events have no order"
            raise InputError(message, hint="--fps 25 for images that are a video in the order of their names")
    return times


def find_events(
    reader: MapsReader,
    score: str,
    threshold: float,
    times: Sequence[float | None],
    *,
    gap: Gap,
    smallest: int = 1,
    masks: bool = False,
    before: int = 0,
    prefix: str = "",
    on_frame: Callable[[int, int], None] = lambda done, total: None,
) -> Found:
    """Follow the regions of at least ``smallest`` pixels of a score at or above a threshold over the frames of a maps folder.

    Args:
        times: of the frames, as :func:`ordered` gives them.
        masks: keep the mask of each region, for COCO.
        before: how many events there are already, whose numbers are taken.
        prefix: of the names of frames, where there are several folders.
        on_frame: is called after each frame with the number of frames done and their total.
    """
    follower, events, flagged, crowded = Follower(gap), dict[int, Event](), 0, 0
    for done, (name, time) in enumerate(zip(reader.frames, times, strict=True), start=1):
        values = reader.read(name, score)
        kept = None if reader.region is None else reader.region.at(*values.shape)
        limits: dict[str, Any] = {"smallest": smallest, "share": 0.0, "most": MOST_FOLLOWED + 1}
        regions = strongest_regions(values, np.float64(threshold), kept=kept, **limits)  # as evaluate compares
        flagged, crowded = flagged + bool(regions), crowded + (len(regions) > MOST_FOLLOWED)
        regions = regions[:MOST_FOLLOWED]
        prediction = reader.prediction(name) if regions and reader.has(name, PREDICTION) else None
        numbers = follower.follow(name, time, [region.box for region in regions])
        for number, region in zip(numbers, regions, strict=True):
            event = events.setdefault(number, Event(before + number + 1, score, threshold, []))
            (x, y), size = region.peak, (values.shape[0], values.shape[1])
            about = float(values[y, x]), region.class_of(prediction), _runs(region, size) if masks else None
            event.sightings.append(
                Sighting(prefix + name, time, size, region.box, region.area, region.strength, *about)
            )
        on_frame(done, len(reader.frames))
    return Found(list(events.values()), len(reader.frames), flagged, crowded)


def _runs(region: StrongRegion, size: tuple[int, int]) -> npt.NDArray[np.int64]:
    """Return the lengths of the runs of a region's mask down the columns of its frame, the first of pixels outside: COCO's uncompressed RLE."""
    left, top, _, _ = region.box
    columns, rows = np.nonzero(region.inside.T)
    places = (columns + left) * size[0] + rows + top
    first = np.flatnonzero(np.diff(places, prepend=-2) > 1)
    ends = np.stack([places[first], places[np.append(first[1:], len(places)) - 1] + 1], 1).ravel()
    return np.diff(ends, prepend=0, append=size[0] * size[1])


def write_events(path: Path, events: Sequence[Event], classes: Sequence[str] = ()) -> None:
    """Write events as CSV, JSON or COCO, by the ending of the path, one of :data:`ENDINGS`; ``classes`` are the names by class id."""
    if path.name.endswith(ENDINGS[2]):
        write_json(path, _coco(events))
    elif path.suffix == ENDINGS[1]:
        write_json(path, [event.record() for event in events])
    else:
        write_file(path, csv_text(_rows(events, classes)).encode())


def _rows(events: Sequence[Event], classes: Sequence[str]) -> Iterator[tuple[object, ...]]:
    yield (
        *("id", "score", "threshold", "start_frame", "start_time", "end_frame", "end_time", "frames", "largest"),
        *("peak_frame", "peak_time", "peak_value", "peak_strength", "x", "y", "width", "height", "class_id", "class"),
    )
    for event in events:
        start, end, peak, record = event.sightings[0], event.sightings[-1], event.peak, event.record()
        class_id = peak.class_id
        word = classes[class_id] if class_id is not None and class_id < len(classes) else None
        ends = start.frame, start.time, end.frame, end.time, record["frames"], record["largest"]
        about = peak.frame, peak.time, peak.value, peak.strength, *peak.box, class_id, word
        yield event.id, event.score, event.threshold, *ends, *about


def _coco(events: Sequence[Event]) -> dict[str, Any]:
    """Return events as COCO (https://cocodataset.org/#format-data) with the ``videos`` and ``track_id`` that trackers add. All are of one
    category: what is flagged has no class that the network knows."""
    seen = {sighting.frame: sighting for event in events for sighting in event.sightings}
    images = {name: number for number, name in enumerate(seen, start=1)}
    videos = {name: number for number, name in enumerate(dict.fromkeys(n.rpartition("/")[0] for n in seen), start=1)}
    annotations: list[dict[str, Any]] = []
    for event in events:
        for s in event.sightings:
            annotation = {"id": len(annotations) + 1, "image_id": images[s.frame], "category_id": 1, "iscrowd": 0}
            annotation |= {"track_id": event.id, "video_id": videos[s.frame.rpartition("/")[0]]}
            annotation |= {"bbox": list(s.box), "area": s.area, "score": s.value, "score_name": event.score}
            runs = [] if s.runs is None else s.runs.tolist()
            annotations.append(annotation | {"segmentation": {"size": list(s.size), "counts": runs}})
    listed = [
        {"id": number, "file_name": name, "height": s.size[0], "width": s.size[1], "time": s.time}
        | {"video_id": videos[name.rpartition("/")[0]]}
        for (name, number), s in zip(images.items(), seen.values(), strict=True)
    ]
    about = {"description": "events of segunc summary"}
    clips = [{"id": number, "name": name} for name, number in videos.items()]
    categories = [{"id": 1, "name": "flagged"}]
    return {"info": about, "videos": clips, "images": listed, "annotations": annotations, "categories": categories}


def write_crops(
    out: Path, events: Sequence[Event], reader: MapsReader, images: str | None, prefix: str = ""
) -> str | None:
    """Write the picture around each event of a maps folder at its peak, its box outlined, as ``OUT/0001.jpg`` by its number. Return a line on
    images that are missing, if any; ``prefix`` is as of :func:`find_events`."""
    at_peak: dict[str, list[Event]] = {}
    for event in events:
        at_peak.setdefault(event.peak.frame.removeprefix(prefix), []).append(event)
    names, written = [name for name in reader.frames if name in at_peak], 0
    source, missing = open_images(reader, images, names)
    for name, image, _ in with_images(names, source):
        for event in at_peak[name] if image is not None else ():
            write_file(out / f"{event.id:04d}.jpg", encode_jpeg(_crop(image, event.peak)))
            written += 1
    lost = f"{len(events) - written} of {len(events)} events have no image, so they have no crop"
    return missing or (lost if written < len(events) else None)


def _crop(image: Image, seen: Sighting) -> Image:
    (rows, columns), (height, width) = image.shape[:2], seen.size
    x, y, w, h = np.array(seen.box) * (columns / width, rows / height, columns / width, rows / height)
    margin = max(CONTEXT * max(w, h), (SMALLEST_CROP - min(w, h)) / 2)
    left, top = max(0, round(x - margin)), max(0, round(y - margin))
    crop = image[top : round(y + h + margin), left : round(x + w + margin)].copy()
    corners = (round(x) - left - 1, round(y) - top - 1), (round(x + w) - left, round(y + h) - top)
    for colour, thickness in (((0, 0, 0), 3), ((0, 224, 224), 1)):
        cv2.rectangle(crop, *corners, colour, thickness)
    return crop
