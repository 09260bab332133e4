"""Events: flagged regions that are followed over the frames of a video, or of images that are one.
A region goes on with the event whose last box overlaps its own most (intersection over union, by
the Hungarian method), as SORT does (Bewley et al. 2016, arXiv 1602.00763) but without a model of
motion. Frames are read once, in the order of their source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from segunc.core.files import csv_text, flat, write_file, write_json
from segunc.core.progress import ConsoleProgress
from segunc.maps.folder import PREDICTION
from segunc.maps.reader import MapsReader
from segunc.maps.regions import StrongRegion, strongest_regions

MIN_OVERLAP = (
    0.1  # of two boxes of one event: flagged regions change their outline more than objects do
)
MAX_FRAMES_AWAY = 1  # frames between two that show an event
MAX_FOLLOWED_REGIONS = (
    100  # regions of a frame, the strongest: where more are flagged, the threshold says little
)
ENDINGS = CSV, JSON, COCO = ".csv", ".json", "_coco.json"  # of a file of events
BOX = ("x", "y", "width", "height")


def overlaps(first: npt.ArrayLike, second: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return the intersection over union of each of N boxes with each of M, ``[N, M]``; a box is
    left, top, width and height.
    """
    a, b = (np.array(boxes, np.float64).reshape(-1, 4) for boxes in (first, second))
    high = np.minimum((a[:, :2] + a[:, 2:])[:, None], (b[:, :2] + b[:, 2:])[None])
    shared = (high - np.maximum(a[:, None, :2], b[None, :, :2])).clip(0).prod(2)
    return np.asarray(shared / (a[:, 2:].prod(1)[:, None] + b[:, 2:].prod(1)[None] - shared))


class Follower:
    """Numbers boxes of frames so that those of one thing have one number. It keeps the last box of
    what may come back, and nothing else.
    """

    def __init__(self) -> None:
        self._unused, self._frame, self._folder = count(), 0, ""
        self._open: dict[
            int, tuple[Sequence[int], int]
        ] = {}  # number -> last box, and its frame by number

    def follow(self, name: str, boxes: Sequence[Sequence[int]]) -> list[int]:
        """Return the number of each box of the next frame, counted from 0 as things begin. A frame
        of another folder begins a video.
        """
        folder, self._frame = name.rpartition("/")[0], self._frame + 1
        first = self._frame - 1 - MAX_FRAMES_AWAY if folder == self._folder else self._frame
        self._folder, self._open = (
            folder,
            {number: at for number, at in self._open.items() if at[1] >= first},
        )
        shares, open_numbers = (
            overlaps(boxes, [box for box, _ in self._open.values()]),
            list(self._open),
        )
        shares[shares < MIN_OVERLAP] = 0
        pairs = zip(*linear_sum_assignment(shares, maximize=True), strict=True)
        numbers = {row: open_numbers[column] for row, column in pairs if shares[row, column]}
        found = [
            numbers[place] if place in numbers else next(self._unused)
            for place in range(len(boxes))
        ]
        self._open |= {number: (box, self._frame) for number, box in zip(found, boxes, strict=True)}
        return found


@dataclass
class Event:
    """A flagged region over time, as ``events.json`` holds it; what is left out there is
    ``masks``.
    """

    id: int  # from 1 on
    score: str
    threshold: float
    start: dict[str, Any]  # frame, and time in seconds from the start of the video
    end: dict[str, Any]
    peak: dict[
        str, Any
    ]  # where it is strongest: frame, time, highest value, strength and the box's x, y, width and height
    frames: int = 0
    largest: int = 0  # pixels in one frame
    class_id: int | None = (
        None  # that most pixels are predicted as at the peak; None without a prediction
    )
    boxes: dict[str, list[int]] = field(default_factory=dict)  # frame -> left, top, width, height
    masks: list[dict[str, Any]] = field(
        default_factory=list, repr=False
    )  # fields of COCO, where it is asked for


def find_events(
    reader: MapsReader,
    score: str,
    threshold: float,
    times: Sequence[float | None],
    smallest: int = 1,
    masks: bool = False,
    first: int = 1,
) -> tuple[list[Event], int]:
    """Follow the regions of at least ``smallest`` pixels of a score at or above a threshold over
    the frames of a maps folder, whose ``times`` are in seconds. ``masks`` keeps the mask of each
    region. Return the events as they begin, numbered from ``first`` on, and how many frames have
    more regions than :data:`MAX_FOLLOWED_REGIONS`.
    """
    follower, events, crowded = Follower(), dict[int, Event](), 0
    for name, time in zip(
        ConsoleProgress(label="events").follow(reader.frames), times, strict=True
    ):
        values, moment = reader.read(name, score), {"frame": name, "time": time}
        kept = None if reader.region is None else reader.region.at(*values.shape)
        regions = strongest_regions(
            values, threshold, smallest=smallest, kept=kept, most=MAX_FOLLOWED_REGIONS + 1
        )
        crowded += len(regions) > MAX_FOLLOWED_REGIONS
        del regions[MAX_FOLLOWED_REGIONS:]
        prediction = reader.prediction(name) if regions and reader.has(name, PREDICTION) else None
        for number, region in zip(
            follower.follow(name, [each.box for each in regions]), regions, strict=True
        ):
            event = events.setdefault(
                number, Event(number + first, score, threshold, moment, moment, {})
            )
            event.end, event.frames, event.largest = (
                moment,
                event.frames + 1,
                max(event.largest, region.area),
            )
            event.boxes[name], value = list(region.box), float(values[region.peak[::-1]])
            if not event.peak or region.strength > event.peak["strength"]:
                event.peak = (
                    moment
                    | {"value": value, "strength": region.strength}
                    | dict(zip(BOX, region.box, strict=True))
                )
                event.class_id = region.class_of(prediction)
            if masks:
                mask = {"size": list(values.shape), "counts": _runs(region, values.shape)}
                event.masks.append(
                    {
                        "bbox": list(region.box),
                        "area": region.area,
                        "score": value,
                        "segmentation": mask,
                    }
                )
    return list(events.values()), crowded


def _runs(region: StrongRegion, size: tuple[int, ...]) -> list[int]:
    """Return the lengths of the runs of a region's mask down the columns of its frame, the first of
    pixels outside: COCO's RLE.
    """
    mask, (left, top, width, height) = np.zeros(size, np.int8), region.box
    mask[top : top + height, left : left + width] = region.inside
    ends = np.flatnonzero(np.diff(mask.ravel("F"), prepend=0))
    return list(np.diff(ends, prepend=0, append=mask.size).tolist())


def write_events(path: Path, events: Sequence[Event]) -> None:
    """Write events as CSV, JSON or COCO, by the ending of the path, one of :data:`ENDINGS`."""
    left_out = ("masks",) if path.suffix == JSON else ("masks", "boxes")
    records = [
        {name: value for name, value in vars(event).items() if name not in left_out}
        for event in events
    ]
    if path.suffix == JSON:
        write_json(path, _coco(events) if path.name.endswith(COCO) else records)
    else:
        rows = [flat(record) for record in records]
        write_file(
            path, csv_text([rows[0] if rows else ["id"], *(row.values() for row in rows)]).encode()
        )


def _coco(events: Sequence[Event]) -> dict[str, Any]:
    """Return events as COCO (https://cocodataset.org/#format-data) with the ``videos`` and
    ``track_id`` that trackers add. All are of one category: what is flagged has no class that the
    network knows.
    """
    videos, images, annotations = (
        dict[str, dict[str, Any]](),
        dict[str, dict[str, Any]](),
        list[dict[str, Any]](),
    )
    for event in events:
        for name, mask in zip(event.boxes, event.masks, strict=True):
            height, width = mask["segmentation"]["size"]
            video = videos.setdefault(
                folder := name.rpartition("/")[0], {"id": len(videos) + 1, "name": folder}
            )["id"]
            about = {
                "id": len(images) + 1,
                "video_id": video,
                "file_name": name,
                "height": height,
                "width": width,
            }
            owner = {
                "id": len(annotations) + 1,
                "image_id": images.setdefault(name, about)["id"],
                "video_id": video,
                "track_id": event.id,
            }
            annotations.append(
                {**owner, "category_id": 1, "iscrowd": 0, "score_name": event.score, **mask}
            )
    found = {"videos": [*videos.values()], "images": [*images.values()], "annotations": annotations}
    return {
        "info": {"description": "events of segunc summary"},
        **found,
        "categories": [{"id": 1, "name": "flagged"}],
    }
