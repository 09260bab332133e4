"""Events: flagged regions that are followed over the frames of a video, or of images that are one.
A region goes on with the event whose last box overlaps its own most (intersection over union, by
the Hungarian method), as SORT does (Bewley et al. 2016, arXiv 1602.00763) but without a model of
motion. Frames are read once, in the order of their source.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from segunc.core.files import csv_text, flat, write_file, write_json
from segunc.core.progress import ConsoleProgress
from segunc.decisions.flags import Threshold
from segunc.maps.encoding import Array
from segunc.maps.folder import PREDICTION
from segunc.maps.reader import MapsReader
from segunc.maps.regions import StrongRegion, strongest_regions

# Of two boxes of one event: flagged regions change their outline more than objects do.
MIN_OVERLAP = 0.1
MAX_FRAMES_AWAY = 1  # frames without it between two that show an event
# Regions of a frame, the strongest: where more are flagged, the threshold says little.
MAX_FOLLOWED_REGIONS = 100
CSV = ".csv"
JSON = ".json"
COCO = "_coco.json"
ENDINGS = (CSV, JSON, COCO)
"""Endings of a file of events."""
BOX = ("x", "y", "width", "height")
_MOMENTS = ("start.frame", "start.time", "end.frame", "end.time", "peak.frame", "peak.time")
_PEAK = ("peak.value", "peak.strength", *(f"peak.{side}" for side in BOX), "peak.crop")
COLUMNS = (
    "id",
    "score",
    "threshold",
    *_MOMENTS,
    *_PEAK,
    "frames",
    "largest",
    "class_id",
    "class_name",
)
"""Columns of a CSV file of events: the fields of :class:`Event` without boxes, and the picture of
the peak."""
Box = Sequence[int]  # left, top, width and height in pixels
Floats = npt.NDArray[np.float64]


def overlaps(first: npt.ArrayLike, second: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return the intersection over union of each of N boxes with each of M, ``[N, M]``.

    Args:
        first: left, top, width and height of each box, ``[N, 4]``.
        second: the same, ``[M, 4]``.
    """
    starts_1, ends_1, areas_1 = _corners(first)
    starts_2, ends_2, areas_2 = _corners(second)
    start = np.maximum(starts_1[:, None], starts_2[None])
    end = np.minimum(ends_1[:, None], ends_2[None])
    shared = (end - start).clip(0).prod(2)
    return np.asarray(shared / (areas_1[:, None] + areas_2[None] - shared))


def _corners(boxes: npt.ArrayLike) -> tuple[Floats, Floats, Floats]:
    """Return the upper left and the lower right corners ``[N, 2]`` of boxes, and their areas."""
    numbers = np.array(boxes, np.float64).reshape(-1, 4)
    corners = numbers[:, :2]
    sizes = numbers[:, 2:]
    return corners, corners + sizes, sizes.prod(1)


@dataclass(frozen=True)
class _LastSeen:
    """Where a thing was seen last."""

    box: Box
    frame: int  # its number, counted over all frames


class Follower:
    """Numbers boxes of frames so that those of one thing have one number. It keeps the last box of
    what may come back, and nothing else.
    """

    def __init__(self) -> None:
        self._unused_numbers = count()
        self._frame = 0
        self._folder = ""
        self._last_seen: dict[int, _LastSeen] = {}  # number -> where the thing was last

    @property
    def remembered(self) -> set[int]:
        """Numbers of the things that may come back."""
        return set(self._last_seen)

    def follow(self, name: str, boxes: Sequence[Box]) -> list[int]:
        """Return the number of each box of the next frame, counted from 0 as things begin.

        Args:
            name: of the frame; a frame of another folder begins a video.
            boxes: of what the frame shows.
        """
        self._frame += 1
        self._forget(name.rpartition("/")[0])
        matched = self._match(boxes)
        numbers = []
        for place, box in enumerate(boxes):
            number = matched[place] if place in matched else next(self._unused_numbers)
            numbers.append(number)
            self._last_seen[number] = _LastSeen(box, self._frame)
        return numbers

    def _forget(self, folder: str) -> None:
        """Forget what was seen too long ago, or in another video."""
        oldest = self._frame
        if folder == self._folder:
            oldest = self._frame - 1 - MAX_FRAMES_AWAY
        self._folder = folder
        self._last_seen = {
            number: last for number, last in self._last_seen.items() if last.frame >= oldest
        }

    def _match(self, boxes: Sequence[Box]) -> dict[int, int]:
        """Return the number of each box, by its place, that shows a thing of the frames before."""
        numbers = list(self._last_seen)
        shares = overlaps(boxes, [last.box for last in self._last_seen.values()])
        shares[shares < MIN_OVERLAP] = 0
        rows, columns = linear_sum_assignment(shares, maximize=True)
        matched = {}
        for row, column in zip(rows, columns, strict=True):
            if shares[row, column]:
                matched[int(row)] = numbers[column]
        return matched


@dataclass
class Event:
    """A flagged region over time, as ``events.json`` holds it, except ``masks`` and
    ``extents``.
    """

    id: int  # from 1 on
    score: str
    threshold: float
    start: dict[str, Any]  # frame, and time in seconds from the start of the video
    end: dict[str, Any]
    # Where it is strongest: frame, time, highest value, strength, and the sides of BOX
    peak: dict[str, Any]
    frames: int = 0  # that show it
    largest: int = 0  # pixels in one frame
    # That most pixels are predicted as at the peak; None without a prediction.
    class_id: int | None = None
    class_name: str | None = None  # None where the maps do not say
    boxes: dict[str, list[int]] = field(default_factory=dict)  # frame -> left, top, width, height
    # Fields of COCO, if they are asked for.
    masks: list[dict[str, Any]] = field(default_factory=list, repr=False)
    # frame -> strength and pixels of the region
    extents: dict[str, tuple[float, int]] = field(default_factory=dict, repr=False)

    def add(
        self,
        region: StrongRegion,
        moment: Mapping[str, Any],
        values: Array,
        prediction: npt.NDArray[np.uint8] | None,
    ) -> None:
        """Add the region of a frame that shows the event.

        Args:
            region: that is flagged.
            moment: name of the frame as ``frame``, and ``time`` in seconds.
            values: of the score in the frame, ``[H, W]``.
            prediction: class ids of the frame, ``[H, W]``.
        """
        self.end = dict(moment)
        self.frames += 1
        self.largest = max(self.largest, region.area)
        self.boxes[moment["frame"]] = list(region.box)
        self.extents[moment["frame"]] = (float(region.strength), int(region.area))
        if not self.peak or region.strength > self.peak["strength"]:
            box = dict(zip(BOX, region.box, strict=True))
            value = _highest(region, values)
            self.peak = {**moment, "value": value, "strength": region.strength, **box}
            self.class_id = region.class_of(prediction)


def find_events(
    reader: MapsReader,
    score: str,
    threshold: Threshold,
    times: Sequence[float | None],
    masks: bool = False,
    first: int = 1,
) -> tuple[list[Event], int]:
    """Follow the regions of a score at or above a threshold over the frames of a maps folder.

    Args:
        reader: of the maps.
        score: that is flagged.
        threshold: of the score, with the pixels of the smallest region that is followed.
        times: seconds of each frame in its video.
        masks: whether to keep the mask of each region.
        first: number of the first event.

    Returns:
        The events as they begin, and how many frames have more regions than
        :data:`MAX_FOLLOWED_REGIONS`.
    """
    follower = Follower()
    events: dict[int, Event] = {}
    crowded = 0
    frames = ConsoleProgress(label="events").follow(reader.frames)
    for name, time in zip(frames, times, strict=True):
        values = reader.read(name, score)
        kept = reader.kept(values.shape)
        values = threshold.prepared(values, partial(reader.prediction_of, name), kept)
        regions = strongest_regions(
            values,
            threshold.value,
            smallest=threshold.smallest,
            kept=kept,
            most=MAX_FOLLOWED_REGIONS + 1,
        )
        crowded += len(regions) > MAX_FOLLOWED_REGIONS
        del regions[MAX_FOLLOWED_REGIONS:]
        prediction = None
        if regions and reader.has(name, PREDICTION):
            prediction = reader.prediction(name)
        moment = {"frame": name, "time": time}
        numbers = follower.follow(name, [region.box for region in regions])
        for number, region in zip(numbers, regions, strict=True):
            if number not in events:
                events[number] = Event(
                    id=number + first,
                    score=score,
                    threshold=threshold.value,
                    start=moment,
                    end=moment,
                    peak={},
                )
            events[number].add(region, moment, values, prediction)
            if masks:
                events[number].masks.append(_coco_mask(region, values))
    for event in events.values():
        if event.class_id is not None and reader.class_names:
            event.class_name = reader.class_names[event.class_id]
    return list(events.values()), crowded


def _highest(region: StrongRegion, values: Array) -> float:
    """Return the highest value of a region."""
    column, row = region.peak
    return float(values[row, column])


def _coco_mask(region: StrongRegion, values: Array) -> dict[str, Any]:
    """Return the fields of COCO that describe a region of a frame with these values ``[H, W]``."""
    return {
        "bbox": list(region.box),
        "area": region.area,
        "score": _highest(region, values),
        "segmentation": {"size": list(values.shape), "counts": _runs(region, values.shape)},
    }


def _runs(region: StrongRegion, size: tuple[int, ...]) -> list[int]:
    """Return the lengths of the runs of a region's mask down the columns of its frame, the first of
    pixels outside: COCO's RLE.
    """
    left, top, width, height = region.box
    mask = np.zeros(size, np.int8)
    mask[top : top + height, left : left + width] = region.inside
    ends = np.flatnonzero(np.diff(mask.ravel("F"), prepend=0))
    return list(np.diff(ends, prepend=0, append=mask.size).tolist())


def write_events(
    path: Path,
    events: Sequence[Event],
    files: Mapping[str, str] | None = None,
    video: str = "",
) -> None:
    """Write events as CSV, JSON or COCO, by the ending of the path, one of :data:`ENDINGS`.

    Args:
        path: of the file.
        events: as they begin.
        files: frame -> name of its file, for COCO; other frames are called by their names.
        video: name of the video of frames that lie in no folder, for COCO.
    """
    if path.name.endswith(COCO):
        write_json(path, _coco(events, files or {}, video))
    elif path.suffix == JSON:
        write_json(path, [_fields_except(event, "masks", "extents") for event in events])
    else:
        table: list[Iterable[Any]] = [COLUMNS]
        for event in events:
            fields = flat(_fields_except(event, "masks", "extents", "boxes"))
            table.append([fields.get(column) for column in COLUMNS])
        write_file(path, csv_text(table).encode())


def format_of(path: Path) -> str:
    """Return in words what :func:`write_events` writes to a path."""
    if path.name.endswith(COCO):
        return "COCO, with masks"
    if path.suffix == JSON:
        return f"JSON, without masks; a name that ends in {COCO} gives COCO"
    return "CSV, without masks"


def _fields_except(event: Event, *left_out: str) -> dict[str, Any]:
    """Return the fields of an event by name, without those that are left out."""
    return {name: value for name, value in vars(event).items() if name not in left_out}


def _coco(events: Sequence[Event], files: Mapping[str, str], video: str) -> dict[str, Any]:
    """Return events as COCO (https://cocodataset.org/#format-data) with the ``videos`` and
    ``track_id`` that trackers add. All are of one category: what is flagged has no class that the
    network knows.
    """
    videos: dict[str, dict[str, Any]] = {}
    images: dict[str, dict[str, Any]] = {}
    annotations: list[dict[str, Any]] = []
    for event in events:
        for name, mask in zip(event.boxes, event.masks, strict=True):
            folder = name.rpartition("/")[0]
            if folder not in videos:
                videos[folder] = {"id": len(videos) + 1, "name": folder or video}
            video_id = videos[folder]["id"]
            if name not in images:
                height, width = mask["segmentation"]["size"]
                images[name] = {
                    "id": len(images) + 1,
                    "video_id": video_id,
                    "file_name": files.get(name, name),
                    "height": height,
                    "width": width,
                }
            annotation = {
                "id": len(annotations) + 1,
                "image_id": images[name]["id"],
                "video_id": video_id,
                "track_id": event.id,
                "category_id": 1,
                "iscrowd": 0,
                "score_name": event.score,
                **mask,
            }
            annotations.append(annotation)
    return {
        "info": {"description": "events of segunc summary"},
        "videos": [*videos.values()],
        "images": [*images.values()],
        "annotations": annotations,
        "categories": [{"id": 1, "name": "flagged"}],
    }
