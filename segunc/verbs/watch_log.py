"""What ``segunc watch`` writes into its folder, and what a restarted watch reads there: the lines
of ``alarms.jsonl``, and the images and maps that are kept.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from segunc.core.errors import InputError
from segunc.core.files import difference_words, differing_keys, inside, read_lines
from segunc.core.removal import Ledger, files_below
from segunc.data.images import Image
from segunc.frames.image_source import stamp_of
from segunc.maps.encoding import encode_png
from segunc.maps.regions import Region
from segunc.maps.shards import FRAMES_NAME, iterate_lines
from segunc.maps.store import Maps, MapsWriter

LINES_NAME = "alarms.jsonl"
MAPS_FOLDER = "maps"
PICTURES_FOLDER = "frames"
WRITTEN_BY = "segunc watch"
VERSION = 1
SETTINGS = ("input", "thresholds", "monitor", "run")
"""Parts of the first line that must be the same for a watch to go on."""


def moment(seconds: float) -> str:
    """Return seconds since 1970 as a time in UTC, as ISO 8601 writes it.

    >>> moment(0.25)
    '1970-01-01T00:00:00.250+00:00'
    """
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def seconds_of(text: str) -> float:
    """Return the seconds since 1970 of a time that :func:`moment` wrote."""
    return datetime.fromisoformat(text).timestamp()


@dataclass
class EarlierWatch:
    """What the lines of earlier runs in the same folder say."""

    first: dict[str, Any]
    """The first line of the last run: its settings and identities."""
    next_frame: int = 0
    """Number of the next frame: above all that a line names."""
    next_event: int = 1
    """The same for events."""
    size: list[int] | None = None
    """Height and width of the first frame; None if none came."""
    chunk: int | None = None
    """Draws in a batch."""
    wall: float = 0.0
    """Of the last line, in seconds since 1970."""
    time: float | None = None
    """Seconds of the last frame since the first watch began."""
    begun: float | None = None
    """When the first frame of all came, in seconds since 1970."""
    last_file: tuple[float, str] | None = None
    """Time of the last change and name of the last file that was taken from a folder."""
    monitored: list[dict[str, Any]] = field(default_factory=list)
    """Lines of the monitor, in their order."""

    def check(self, first: Mapping[str, Any], path: Path) -> None:
        """Raise InputError where a watch with this first line cannot go on in the file."""
        before = {key: self.first.get(key) for key in SETTINGS}
        now = {key: first.get(key) for key in SETTINGS}
        different = differing_keys(before, now)
        if different:
            raise InputError(
                f"{path} was written with {difference_words(*different[0])}",
                hint="give another --out",
            )

    def note(self, line: Mapping[str, Any]) -> None:
        """Take up what one more line says."""
        kind = line.get("kind")
        if kind in ("start", "restart"):
            self.first = dict(line)
        if "wall" in line:
            self.wall = seconds_of(line["wall"])
        if "frame" in line:
            self.next_frame = max(self.next_frame, int(line["frame"]) + 1)
        if "next_frame" in line:
            self.next_frame = max(self.next_frame, int(line["next_frame"]))
        if "next_event" in line:
            self.next_event = max(self.next_event, int(line["next_event"]))
        for region in line.get("regions", ()):
            self.next_event = max(self.next_event, int(region["event"]) + 1)
        if line.get("time") is not None:
            self.time = float(line["time"])
        if line.get("what") == "connected":
            self.size = line["size"]
            self.chunk = line["chunk"]
            self.begun = self.wall if self.begun is None else self.begun
        if line.get("last_file"):
            changed, name = line["last_file"]
            self.last_file = float(changed), str(name)
        if kind == "monitor":
            self.monitored.append(dict(line))


def read_earlier(folder: Path) -> EarlierWatch | None:
    """Return what earlier watches left in a folder, None where there was none.

    Raises:
        InputError: the file of lines was not written by a watch of this version.
    """
    path = inside(folder, LINES_NAME)
    if not path.exists():
        return None
    earlier: EarlierWatch | None = None
    for line in read_lines(path):
        if earlier is None:
            if line.get("by") != WRITTEN_BY or line.get("version") != VERSION:
                break
            earlier = EarlierWatch(line)
        try:
            earlier.note(line)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{path} holds a line that segunc watch did not write", hint="give another --out"
            ) from error
    if earlier is None and path.stat().st_size:
        raise InputError(
            f"{path} was not written by segunc watch of this version", hint="give another --out"
        )
    if earlier is not None:
        for _, record in iterate_lines(folder / MAPS_FOLDER / FRAMES_NAME):
            earlier.next_frame = max(earlier.next_frame, record["index"] + 1)
    return earlier


class KeptFrames:
    """Images and maps of some frames: a maps folder, and the images beside it, until they reach a
    limit.

    Attributes:
        bytes: that are kept, with those of earlier runs.
        full: whether the limit is reached.
    """

    def __init__(
        self,
        out: Path,
        manifest: Mapping[str, Any],
        *,
        limit: float,
        region: Region | None = None,
    ) -> None:
        """Open the folders, or go on in them.

        Args:
            out: folder of the watch.
            manifest: of the maps.
            limit: bytes from which on nothing more is kept.
            region: the pixels that count.

        Raises:
            InputError: the folders hold other files.
        """
        self._pictures = Ledger(out)
        self._out = out
        self._writer = MapsWriter(out / MAPS_FOLDER, manifest, region=region)
        self._limit = limit
        self.bytes = 0
        for name in files_below(out, [MAPS_FOLDER, PICTURES_FOLDER]):
            self.bytes += os.path.getsize(out / name)
        self.full = self.bytes >= limit

    def keep(self, name: str, number: int, time: float, image: Image, maps: Maps) -> None:
        """Write the image and the maps of a frame, unless the limit is reached.

        Args:
            name: of the frame.
            number: of the frame.
            time: its seconds since the watch began.
            image: RGB uint8 ``[H, W, 3]``.
            maps: of the frame.
        """
        if self.full:
            return
        file = f"{PICTURES_FOLDER}/{name}.png"
        picture = encode_png(image)
        # A run that was killed may have left a picture of this number, and no line of it.
        self._pictures.write(file, picture, replace=True)
        record = self._writer.store(name, maps, place=number)
        record["time"] = time
        record["stamp"] = stamp_of(self._out / file)
        self._writer.commit(record)
        self.bytes += len(picture) + sum(size for size, _ in record["sums"].values())
        self.full = self.bytes >= self._limit

    def close(self) -> None:
        """End the maps folder."""
        self._writer.close("finished")


def pictures_of(out: Path) -> Path:
    """Return the folder of the kept images of a watch."""
    return out / PICTURES_FOLDER
