"""What every source of frames is: frames with names, a selection of them by number and time, and
the hash of their files.
"""

from __future__ import annotations

import hashlib
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from segunc.core.errors import InputError
from segunc.core.files import open_file
from segunc.data.images import AnyImage, PixelDepth

Kind = Literal["image", "folder", "glob", "video"]
Skip = Callable[[int, str], bool]
"""Whether the frame of an index and name may be passed over without decoding it."""


HASH_DIGITS = 32
"""Hexadecimal digits of :func:`sampled_hash`."""


def sampled_hash(path: Path, stretches: int, length: int) -> str:
    """Return a hash (32 hexadecimal digits) of a file's size and of pieces spread evenly over it.

    It is cheap and, unlike the time of change, the same for a copy. An edit that keeps the size and
    misses every piece is not seen; in compressed files an edit changes nearly all that follows it.

    Args:
        path: the file.
        stretches: number of pieces, at least 2.
        length: bytes of a piece.
    """
    digest = hashlib.blake2b(digest_size=HASH_DIGITS // 2)
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        digest.update(size.to_bytes(8, "little"))
        for stretch in range(stretches):
            file.seek(max(0, size - length) * stretch // (stretches - 1))
            digest.update(file.read(length))
    return digest.hexdigest()


@dataclass(frozen=True)
class Selection:
    """Frames whose number in the input is a multiple of ``every`` and whose time t is in ``start <=
    t < end``.

    Numbers count from the first frame of the input, whatever ``start`` is, so that two ranges of
    one video take frames of one raster. Times are seconds from the first frame, None without a
    bound.
    """

    every: int = 1
    start: float | None = None
    end: float | None = None

    def __post_init__(self) -> None:
        start = self.start or 0.0
        if self.end is not None and not self.end > start:
            raise InputError(f"an end at {self.end} s is not later than the start at {start} s")

    @property
    def timed(self) -> bool:
        """Whether the time of frames decides."""
        return self.start is not None or self.end is not None

    def takes(self, number: int, time: float) -> bool:
        """Return whether the frame of a number in the input and a time in seconds is taken."""
        return number % self.every == 0 and time >= (self.start or 0.0) and not self.is_past(time)

    def is_past(self, time: float) -> bool:
        """Return whether a frame of this time, and with it all that follow, lies behind the end."""
        return self.end is not None and time >= self.end

    def require(self, taken: int, place: object) -> None:
        """Raise InputError where no frame of a video lies between the bounds.

        Args:
            taken: number of frames.
            place: of the video.
        """
        if taken or not self.timed:
            return
        end = "its end" if self.end is None else format_time(self.end)
        start = format_time(self.start or 0.0)
        frames = "frame" if self.every == 1 else f"frame of --every {self.every}"
        raise InputError(
            f"no {frames} of {place} lies between {start} and {end}",
            hint="an earlier --start or a later --end",
        )


ALL_FRAMES = Selection()


def parse_time(text: str) -> float:
    """Return the seconds of ``90``, ``90.5``, ``1:30`` or ``0:01:30.5``.

    Raises:
        InputError: the text has another form.
    """
    *whole_parts, last_part = text.strip().split(":")
    try:
        parts = [*map(int, whole_parts), float(last_part)]
    except ValueError:
        parts = []
    if not _is_time(parts):
        raise InputError(
            f"'{text}' is not a time; expected seconds or HH:MM:SS",
            hint="e.g. 90.5 or 0:01:30.5",
        )
    seconds = 0.0
    for part in parts:
        seconds = 60.0 * seconds + part
    return seconds


def _is_time(parts: Sequence[float]) -> bool:
    """Return whether numbers are seconds, minutes and seconds, or hours, minutes and seconds.

    Only the first may be 60 or more.
    """
    if not 1 <= len(parts) <= 3:
        return False
    first, *others = parts
    return 0 <= first < math.inf and all(0 <= part < 60 for part in others)


def format_time(seconds: float) -> str:
    """Return ``H:MM:SS.mmm`` of seconds."""
    minutes, rest = divmod(round(seconds * 1000), 60_000)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest // 1000:02d}.{rest % 1000:03d}"


@dataclass(frozen=True, eq=False)
class Frame:
    """One frame, or the reason why there is none."""

    name: str
    index: int
    """Its place in the source, from 0.

    If every N-th frame is taken, this is its number in the input divided by N.
    """
    image: AnyImage | None
    """RGB uint8 [H, W, 3]; of other channels [H, W, K], uint8 or float32 in 0..1. None if there is
    an error.
    """
    error: str | None = None
    """Why the frame could not be read, in one line."""
    time: float | None = None
    """Seconds since the video's first moment, by the container's time stamps; None for images."""
    stamp: str | None = None
    """The :func:`sampled_hash` of an image's file; None for frames of a video."""


class FrameSource(ABC):
    """A stream of frames in a fixed order; it can be iterated again from the start."""

    kind: Kind
    path: Path | str
    """What was opened: an absolute path, a URL, or a recording and its topic; of a glob the
    pattern.
    """
    selection: Selection = ALL_FRAMES
    """Of the input's frames; names and indices are of the selected ones."""
    fps: float | None = None
    """Mean frames a second of a video (29.97 is not 30), None for images."""
    length: int | None = None
    """The exact number of frames, None if only the end of the stream tells."""
    length_hint: int | None = None
    """The number of frames to expect, for a progress bar; None if unknown."""
    notes: tuple[str, ...] = ()
    """What was left out, a line for each kind."""
    depth: PixelDepth | None = None
    """How much of their range the 16-bit pictures use that were read; None for videos."""
    held: object = None
    """Keeps a downloaded file in the cache as long as the source lives."""

    @abstractmethod
    def frames(self, skip: Skip | None = None) -> Iterator[Frame]:
        """Yield frames in order.

        Those that ``skip`` names are passed over without decoding an image.
        """

    @abstractmethod
    def name_of(self, index: int) -> str | None:
        """Return the name of the frame at an index; None beyond the known end."""

    def file_of(self, index: int) -> str | None:
        """Return a frame's own file below the folder of the source; None for frames that have
        none.
        """
        return None

    def stamp(self, index: int) -> str | None:
        """Return the present stamp of a frame's own file; None for frames that have none."""
        return None

    def describe(self) -> dict[str, Any]:
        """Return what a manifest records of the source: kind, fps and expected number of frames."""
        return {"kind": self.kind, "fps": self.fps, "frames": self.length or self.length_hint}

    def identity(self) -> dict[str, Any]:
        """Return what must be the same for a later run to continue.

        That is the input and which of its frames are taken.
        """
        return {"input": str(self.path), **asdict(self.selection)}
