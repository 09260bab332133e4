"""Events: flagged regions that are followed over the frames of a video, or of images that are one.

A region of a frame goes on with the event whose last box overlaps its own most: intersection over union, assigned over all pairs at once
(Hungarian method), as SORT does (Bewley et al. 2016, arXiv 1602.00763) but without a model of motion. An event may be away for a short
gap. Frames are read once, in the order of their source, so it does not matter how the maps were dealt out to shards.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from segunc.core.errors import InputError
from segunc.core.files import csv_text, flat, write_file, write_json
from segunc.data.images import Image
from segunc.maps.encoding import encode_jpeg
from segunc.maps.folder import PREDICTION
from segunc.maps.labelled import open_images, with_images
from segunc.maps.reader import MapsReader
from segunc.maps.statistics import StrongRegion, strongest_regions

MIN_OVERLAP = (
    0.1  # of two boxes of one event: flagged regions change their outline from frame to frame more than objects do
)
MOST_FOLLOWED = 100  # regions of a frame, the strongest: where more are flagged, the threshold says little
CONTEXT = 0.6  # of the longer side of a box, around it on its crop
SMALLEST_CROP = 96  # pixels of the sides of a crop, at least
CSV, JSON, COCO = ENDINGS = ".csv", ".json", "_coco.json"  # of a file of events


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


def overlaps(first: npt.ArrayLike, second: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return the intersection over union of each of N boxes with each of M, ``[N, M]``; a box is left, top, width and height."""
    a, b = (np.array(boxes, np.float64).reshape(-1, 4) for boxes in (first, second))
    high = np.minimum((a[:, :2] + a[:, 2:])[:, None], (b[:, :2] + b[:, 2:])[None])
    shared = (high - np.maximum(a[:, None, :2], b[None, :, :2])).clip(0).prod(2)
    return np.asarray(shared / (a[:, 2:].prod(1)[:, None] + b[:, 2:].prod(1)[None] - shared))


class Follower:
    """Numbers boxes of frames so that those of one thing have one number. It keeps the last box of what may come back, and nothing else."""

    def __init__(self, gap: Gap) -> None:
        self.gap, self._begun, self._frame, self._folder = gap, 0, 0, ""
        self._open: dict[int, tuple[Sequence[int], int, float | None]] = {}  # number -> last box, frame by number, time

    def follow(self, name: str, time: float | None, boxes: Sequence[Sequence[int]]) -> list[int]:
        """Return the number of each box of the next frame, counted from 0 in the order in which things begin. Frames of another folder
        are another video; ``time`` is in seconds, and needed for a gap in seconds."""
        same = name.rpartition("/")[0] == self._folder
        self._frame, self._folder = self._frame + 1, name.rpartition("/")[0]
        self._open = {number: last for number, last in self._open.items() if same and self._may_return(*last[1:], time)}
        shares, known = overlaps(boxes, [box for box, _, _ in self._open.values()]), list(self._open)
        shares[shares < MIN_OVERLAP] = 0
        pairs = zip(*linear_sum_assignment(shares, maximize=True), strict=True)
        numbers = {row: known[column] for row, column in pairs if shares[row, column]}
        for place, box in enumerate(boxes):
            if place not in numbers:
                numbers[place], self._begun = self._begun, self._begun + 1
            self._open[numbers[place]] = box, self._frame, time
        return [numbers[place] for place in range(len(boxes))]

    def _may_return(self, frame: int, seen: float | None, now: float | None) -> bool:
        away = self._frame - frame - 1
        if self.gap.seconds and seen is not None and now is not None:
            return away == 0 or now - seen <= self.gap.length + 1e-6  # times are rounded
        return away <= self.gap.length


@dataclass
class Event:
    """A flagged region over time, as ``events.json`` holds it; what is left out there is ``masks``."""

    id: int  # from 1
    score: str
    threshold: float
    start: dict[str, Any]  # frame, and time in seconds from the start of the video
    end: dict[str, Any]
    peak: dict[str, Any]  # where it is strongest: frame, time, highest value, strength, box, and size of the frame
    frames: int = 0
    largest: int = 0  # pixels in one frame
    class_id: int | None = None  # that most pixels are predicted as at the peak; None without a prediction
    boxes: dict[str, list[int]] = field(default_factory=dict)  # frame -> left, top, width, height
    masks: list[dict[str, Any]] = field(
        default_factory=list, repr=False
    )  # annotations of COCO, where they are asked for

    def record(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "masks"}


class Found(NamedTuple):
    """What a threshold flags in a maps folder."""

    events: list[Event]
    flagged: int  # frames with a region
    crowded: int  # frames with more than MOST_FOLLOWED regions


def check_order(reader: MapsReader, times: Sequence[float | None], gap: Gap) -> None:
    """Raise InputError where nothing says which frame follows which, or how long a gap is."""
    for name, time in zip(reader.frames, times, strict=True):
        if time is None and gap.seconds:
            message = f"--gap is in seconds, but no time of the frame {name} is known"
            raise InputError(message, hint="--fps 25, or --gap 2 for frames")
        if time is None and not re.search(r"\d", name.rpartition("/")[2]):
            message = f"the frame {name} of {reader.folder} has neither a time nor a number, so events have no order"
            raise InputError(message, hint="--fps 25 for images that are a video in the order of their names")


def find_events(
    reader: MapsReader,
    score: str,
    threshold: float,
    times: Sequence[float | None],
    gap: Gap,
    *,
    smallest: int = 1,
    masks: bool = False,
    before: int = 0,
    on_frame: Callable[[int, int], None] = lambda done, total: None,
) -> Found:
    """Follow the regions of at least ``smallest`` pixels of a score at or above a threshold over the frames of a maps folder, whose
    ``times`` are in seconds. ``masks`` keeps the mask of each region, for COCO; ``before`` events have their numbers already; ``on_frame``
    is called after each frame with the number of frames done and their total."""
    follower, events, flagged, crowded = Follower(gap), dict[int, Event](), 0, 0
    for done, (name, time) in enumerate(zip(reader.frames, times, strict=True), start=1):
        values, moment = reader.read(name, score), {"frame": name, "time": time}
        kept = None if reader.region is None else reader.region.at(*values.shape)
        limit = np.float64(threshold)  # as evaluate compares
        regions = strongest_regions(values, limit, smallest=smallest, kept=kept, most=MOST_FOLLOWED + 1)
        flagged, crowded = flagged + bool(regions), crowded + (len(regions) > MOST_FOLLOWED)
        regions = regions[:MOST_FOLLOWED]
        prediction = reader.prediction(name) if regions and reader.has(name, PREDICTION) else None
        for number, region in zip(follower.follow(name, time, [r.box for r in regions]), regions, strict=True):
            event = events.setdefault(number, Event(before + number + 1, score, threshold, moment, moment, {}))
            event.end, event.frames, event.largest = moment, event.frames + 1, max(event.largest, region.area)
            event.boxes[name], value = list(region.box), float(values[region.peak[::-1]])
            if not event.peak or region.strength > event.peak["strength"]:
                at_peak = {"value": value, "strength": region.strength, "box": list(region.box)}
                event.peak, event.class_id = (
                    moment | at_peak | {"size": list(values.shape)},
                    region.class_of(prediction),
                )
            if masks:
                mask = {"size": list(values.shape), "counts": _runs(region, values.shape).tolist()}
                event.masks.append(
                    {"bbox": list(region.box), "area": region.area, "score": value, "segmentation": mask}
                )
        on_frame(done, len(reader.frames))
    return Found(list(events.values()), flagged, crowded)


def _runs(region: StrongRegion, size: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Return the lengths of the runs of a region's mask down the columns of its frame, the first of pixels outside: COCO's uncompressed RLE."""
    columns, rows = np.nonzero(region.inside.T)
    places = (columns + region.box[0]) * size[0] + rows + region.box[1]
    first = np.flatnonzero(np.diff(places, prepend=-2) > 1)
    ends = np.stack([places[first], places[np.append(first[1:], len(places)) - 1] + 1], 1).ravel()
    return np.diff(ends, prepend=0, append=size[0] * size[1])


def write_events(path: Path, events: Sequence[Event]) -> None:
    """Write events as CSV, JSON or COCO, by the ending of the path, one of :data:`ENDINGS`."""
    if path.name.endswith(COCO):
        write_json(path, _coco(events))
    elif path.suffix == JSON:
        write_json(path, [event.record() for event in events])
    else:
        records = [event.record() | {"boxes": None} for event in events]
        for record in records:
            record["peak"] = record["peak"] | dict(
                zip(("x", "y", "width", "height"), record["peak"]["box"], strict=True)
            )
        rows = [flat(record) for record in records]
        columns = [name for name in (rows[0] if rows else ["id"]) if name not in ("boxes", "peak.box", "peak.size")]
        write_file(path, csv_text([columns, *([row[name] for name in columns] for row in rows)]).encode())


def _coco(events: Sequence[Event]) -> dict[str, Any]:
    """Return events as COCO (https://cocodataset.org/#format-data) with the ``videos`` and ``track_id`` that trackers add. All are of one
    category: what is flagged has no class that the network knows."""
    seen = [(event, name, mask) for event in events for name, mask in zip(event.boxes, event.masks, strict=True)]
    sizes = {name: mask["segmentation"]["size"] for _, name, mask in seen}
    images = {name: number for number, name in enumerate(sizes, start=1)}
    folders = {name: name.rpartition("/")[0] for name in images}
    videos = {folder: number for number, folder in enumerate(dict.fromkeys(folders.values()), start=1)}
    listed = [
        {"id": images[name], "video_id": videos[folders[name]], "file_name": name, "height": height, "width": width}
        for name, (height, width) in sizes.items()
    ]
    annotations = [
        {"id": number, "image_id": images[name], "video_id": videos[folders[name]], "track_id": event.id}
        | {"category_id": 1, "iscrowd": 0, "score_name": event.score, **mask}
        for number, (event, name, mask) in enumerate(seen, start=1)
    ]
    clips, flagged = (
        [{"id": number, "name": folder} for folder, number in videos.items()],
        [{"id": 1, "name": "flagged"}],
    )
    about = {"description": "events of segunc summary"}
    return {"info": about, "videos": clips, "images": listed, "annotations": annotations, "categories": flagged}


def write_crops(out: Path, events: Sequence[Event], reader: MapsReader, images: str | None) -> str | None:
    """Write the picture around each event at its peak, its box outlined, as ``OUT/0001.jpg`` by its number. Return a line on images that
    are missing, if any."""
    names = {event.peak["frame"] for event in events}
    source, missing = open_images(reader, images, ordered := [name for name in reader.frames if name in names])
    for name, image, _ in with_images(ordered, source):
        for event in events if image is not None else ():
            if event.peak["frame"] == name and image is not None:
                write_file(out / f"{event.id:04d}.jpg", encode_jpeg(_crop(image, **event.peak)))
                names.discard(name)
    return missing or (f"{len(names)} frames have no image, so events there have no crop" if names else None)


def _crop(image: Image, box: Sequence[int], size: Sequence[int], **_: Any) -> Image:
    scale = np.array(image.shape[1::-1]) / np.array(size[::-1])
    (x, y), (w, h) = box[:2] * scale, box[2:] * scale
    margin = max(CONTEXT * max(w, h), (SMALLEST_CROP - min(w, h)) / 2)
    left, top = max(0, round(x - margin)), max(0, round(y - margin))
    crop = image[top : round(y + h + margin), left : round(x + w + margin)].copy()
    corners = (round(x) - left - 1, round(y) - top - 1), (round(x + w) - left, round(y + h) - top)
    for colour, thickness in (((0, 0, 0), 3), ((0, 224, 224), 1)):
        cv2.rectangle(crop, *corners, colour, thickness)
    return crop
