"""Frames of a video file, decoded as a stream: one frame in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from segunc.errors import InputError
from segunc.maps.decoders import DecoderName, open_decoder
from segunc.maps.fingerprint import sampled_hash
from segunc.maps.selection import ALL_FRAMES, Selection, format_time
from segunc.maps.sources import Frame, FrameSource, Skip

MISSING_TOLERATED = 0.02
"""Share of the container's duration that may be missing at the end: a duration is often that of the sound."""
HASH_STRETCHES, HASH_LENGTH = 32, 1 << 16
"""How many stretches of a video, of how many bytes, its hash reads."""


def video_hash(path: Path) -> str:
    """What tells a video from another one under its name."""
    return sampled_hash(path, HASH_STRETCHES, HASH_LENGTH)


def video_frame_name(number: int) -> str:
    """Six-digit name of a video frame, from ``000000`` (longer beyond a million frames)."""
    return f"{number:06d}"


class VideoSource(FrameSource):
    """Frames of a video in the order of display, upright by the rotation that the container states.

    Each frame has the time that the container states, so a variable frame rate is kept. The container's frame count
    is only a hint. A stream that ends well before its duration (more than 2 % and more than three frames early) closes
    with one frame that carries an error. Damage that the decoder conceals inside frames is not visible here.

    Frames are named by their number in the video, whatever is selected. Frames before the start of the selection are
    decoded too (their pictures are not converted): no container states the number of the frame at a moment.

    Args:
        path: the file.
        selection: which frames are taken.
        decoder: ``auto`` is PyAV where it is installed.

    Raises:
        InputError: the video cannot be opened, its first frame cannot be decoded, or it ends before the selection starts.
    """

    kind = "video"

    def __init__(self, path: Path, selection: Selection = ALL_FRAMES, decoder: DecoderName = "auto") -> None:
        self.path, self.selection = path, selection
        self._decoder = open_decoder(path, decoder)
        self.fps = self._decoder.facts.fps
        frames = self._decoder.facts.frames
        self._duration = frames / self.fps if frames is not None and self.fps is not None else None
        if self._duration is not None and selection.start is not None and selection.start >= self._duration:
            raise InputError(
                f"a start at {format_time(selection.start)} of video {path}, which ends at {format_time(self._duration)}",
                "a moment of the video",
                "give an earlier --start",
            )
        self.length_hint = None if frames is None else selection.expected(frames, self.fps)

    def name_of(self, index: int) -> str | None:
        return video_frame_name(index * self.selection.every)

    def position(self, name: str) -> int | None:
        place, rest = divmod(int(name), self.selection.every) if name.isdecimal() else (0, 1)
        return None if rest else place

    def frames(self, skip: Skip | None = None) -> Iterator[Frame]:
        number, last = 0, 0.0
        for number, (time, retrieve) in enumerate(self._decoder.frames(), start=1):
            index, name = (number - 1) // self.selection.every, video_frame_name(number - 1)
            last = self._time_of(number - 1, time)
            if self.selection.is_past(last):
                return
            if not self.selection.takes(number - 1, last) or (skip is not None and skip(index, name)):
                continue
            image = retrieve()
            error = None if image is not None else f"{self.path}: frame {number - 1} cannot be decoded"
            yield Frame(name, index, image, error, time=last)
        if self._duration is not None and self.fps is not None:
            missing = self._duration - self._decoder.facts.start - (last + 1.0 / self.fps)
            if missing > max(3.5 / self.fps, MISSING_TOLERATED * self._duration):
                reason = f"{self.path}: video ends at frame {number}, {format_time(missing)} before its stated end"
                index = -(-number // self.selection.every)
                yield Frame(video_frame_name(index * self.selection.every), index, None, reason)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "decoder": self._decoder.name}

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "input_hash": video_hash(self.path)}

    def _time_of(self, number: int, stated: float | None) -> float:
        return stated if stated is not None else round(number / (self.fps or 25.0), 6)
