"""Frames of a video file, decoded as a stream, one frame in memory at a time: by PyAV where it is installed, else OpenCV.

Both stand on FFmpeg and give the same pictures, converted to RGB by the same routine; both pass over packets that cannot
be decoded.
"""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np

from segunc.core.errors import InputError
from segunc.core.progress import quiet_opencv
from segunc.data.images import Image
from segunc.frames.sources import (
    ALL_FRAMES,
    DecoderName,
    Frame,
    FrameSource,
    Selection,
    Skip,
    format_time,
    sampled_hash,
)

if TYPE_CHECKING:
    import av
    from av.container import InputContainer

MISSING_TOLERATED = 0.02
"""Share of the container's duration that may be missing at the end: a duration is often that of the sound."""
HASH_STRETCHES, HASH_LENGTH = 32, 1 << 16
"""How many stretches of a video, of how many bytes, its hash reads."""
_CAP_PROP_PTS = getattr(cv2, "CAP_PROP_PTS", -1)
"""Not known to the oldest OpenCV that is supported, which answers 0."""
Retrieve = Callable[[], Image | None]
"""Converts the frame that was just decoded to RGB uint8 ``[H, W, 3]``; None where it cannot be."""


class Decoder(ABC):
    """Decodes one video file, each call of :meth:`frames` from its first frame; InputError where none can be decoded."""

    name: str
    fps: float | None = None  # mean frames a second, where the container states it
    count: int | None = None  # of frames; from the duration where no number is stated, None where neither is
    # Seconds of the first frame on the container's clock; some containers state their end on that clock as duration.
    start = 0.0

    def __init__(self, path: Path) -> None:
        self.path = path
        self._inspect()

    @abstractmethod
    def frames(self) -> Iterator[tuple[float | None, Retrieve]]:
        """Seconds since the first moment of the stream (None where the container states none) and the picture."""

    @abstractmethod
    def _inspect(self) -> None:
        """Learn what the container says of its video, and that one frame can be decoded."""

    def _unreadable(self) -> InputError:
        remedy = "check that it plays, or convert it (for example to H.264 in .mp4)"
        return InputError(
            f"video {self.path} cannot be opened", "a complete video with a codec that FFmpeg decodes", remedy
        )


class OpenCVDecoder(Decoder):
    """Through OpenCV's own FFmpeg."""

    name = "opencv"

    def frames(self) -> Iterator[tuple[float | None, Retrieve]]:
        with self._opened() as capture:
            while capture.grab():
                yield _seconds(float(capture.get(cv2.CAP_PROP_POS_MSEC)) / 1000.0), partial(_retrieved, capture)

    def _inspect(self) -> None:
        with self._opened() as capture:
            fps, count = (float(capture.get(what)) for what in (cv2.CAP_PROP_FPS, cv2.CAP_PROP_FRAME_COUNT))
            if not capture.grab():
                raise self._unreadable()
            self.fps = fps if math.isfinite(fps) and fps > 0 else None
            self.count = int(count) if math.isfinite(count) and count > 0 else None
            self.start = _start(capture)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[cv2.VideoCapture]:
        # FFmpeg alone: other backends would take digits in the file's name for an image sequence.
        with quiet_opencv():
            capture = cv2.VideoCapture(str(self.path), cv2.CAP_FFMPEG)
        if not capture.isOpened():
            raise self._unreadable()
        try:
            yield capture
        finally:
            capture.release()


class PyAVDecoder(Decoder):
    """Through PyAV, whose FFmpeg knows more containers and codecs than OpenCV's."""

    name = "pyav"

    def frames(self) -> Iterator[tuple[float | None, Retrieve]]:
        import av

        with self._open() as container:
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            origin = stream.start_time or 0
            packets = container.demux(stream)
            while True:
                try:
                    packet = next(packets)
                except (StopIteration, av.error.FFmpegError):  # the file may end inside a packet
                    return
                try:
                    decoded = packet.decode()
                except av.error.FFmpegError:
                    continue
                for frame in decoded:
                    stamp = frame.pts if frame.pts is not None else frame.dts
                    base = frame.time_base or stream.time_base
                    time = None if stamp is None or base is None else float((stamp - origin) * base)
                    yield _seconds(time), partial(_converted, frame)

    def _inspect(self) -> None:
        import av

        with self._open() as container:
            stream = container.streams.video[0]
            self.fps = float(stream.average_rate or 0) or None
            count = stream.frames
            if count <= 0 and self.fps and container.duration:
                count = int(container.duration / av.time_base * self.fps + 0.5)
            self.count = count if count > 0 else None
            self.start = float((stream.start_time or 0) * stream.time_base) if stream.time_base else 0.0
        if next(self.frames(), None) is None:
            raise self._unreadable()

    def _open(self) -> InputContainer:
        import av

        av.logging.set_level(None)  # our one line says it
        try:
            container = av.open(str(self.path), metadata_errors="replace")
        except (av.error.FFmpegError, OSError) as error:
            raise self._unreadable() from error
        if not container.streams.video:
            container.close()
            raise self._unreadable()
        return container


def open_decoder(path: Path, name: DecoderName = "auto") -> Decoder:
    """The decoder of a video file; InputError where it cannot be opened, or PyAV was asked for and is not installed."""
    installed = find_spec("av") is not None
    if name == "pyav" and not installed:
        raise InputError("the decoder PyAV is not installed", "the package av", "pip install 'segunc[video]'")
    return PyAVDecoder(path) if installed and name != "opencv" else OpenCVDecoder(path)


class VideoSource(FrameSource):
    """Frames of a video in the order of display, upright by the rotation that the container states.

    Each frame has the time that the container states, so a variable frame rate is kept. The container's frame count
    is only a hint. A stream that ends well before its duration (more than 2 % and more than three frames early) closes
    with one frame that carries an error. Damage that the decoder conceals inside frames is not visible here.

    Frames are named by their number in the video, whatever is selected. Those before the start of the selection are decoded
    too (not converted): no container states the number of the frame at a moment.

    InputError where the video or its first frame cannot be decoded, or it ends before the selection starts.
    """

    kind = "video"

    def __init__(self, path: Path, selection: Selection = ALL_FRAMES, decoder: DecoderName = "auto") -> None:
        self.path, self.selection = path, selection
        self._decoder = open_decoder(path, decoder)
        self.fps, frames = self._decoder.fps, self._decoder.count
        self._duration = frames / self.fps if frames is not None and self.fps is not None else None
        if self._duration is not None and selection.start is not None and selection.start >= self._duration:
            start, end = format_time(selection.start), format_time(self._duration)
            given = f"a start at {start} of video {path}, which ends at {end}"
            raise InputError(given, "a moment of the video", "give an earlier --start")
        self.length_hint = None if frames is None else selection.expected(frames, self.fps)

    def name_of(self, index: int) -> str | None:
        return f"{index * self.selection.every:06d}"

    def position(self, name: str) -> int | None:
        place, rest = divmod(int(name), self.selection.every) if name.isdecimal() else (0, 1)
        return None if rest else place

    def frames(self, skip: Skip | None = None) -> Iterator[Frame]:
        count, last = 0, 0.0
        for number, (stated, retrieve) in enumerate(self._decoder.frames()):
            count, index, name = number + 1, number // self.selection.every, f"{number:06d}"
            last = stated if stated is not None else round(number / (self.fps or 25.0), 6)
            if self.selection.is_past(last):
                return
            if not self.selection.takes(number, last) or (skip is not None and skip(index, name)):
                continue
            image = retrieve()
            error = None if image is not None else f"{self.path}: frame {number} cannot be decoded"
            yield Frame(name, index, image, error, time=last)
        if self._duration is not None and self.fps is not None:
            missing = self._duration - self._decoder.start - (last + 1.0 / self.fps)
            if missing > max(3.5 / self.fps, MISSING_TOLERATED * self._duration):
                reason = f"{self.path}: video ends at frame {count}, {format_time(missing)} before its stated end"
                index = -(-count // self.selection.every)
                yield Frame(f"{index * self.selection.every:06d}", index, None, reason)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "decoder": self._decoder.name}

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "input_hash": video_hash(self.path)}


def video_hash(path: Path) -> str:
    """What tells a video from another one under its name."""
    return sampled_hash(path, HASH_STRETCHES, HASH_LENGTH)


def _seconds(time: float | None) -> float | None:
    """To the microsecond, so that both decoders state the same number."""
    return round(time, 6) if time is not None and math.isfinite(time) else None


def _start(capture: cv2.VideoCapture) -> float:
    """Seconds of the frame just grabbed, the first, on the container's clock: OpenCV tells its moments from there only."""
    stamps, moments = [], []
    for _ in range(2):
        stamps.append(float(capture.get(_CAP_PROP_PTS)))
        moments.append(float(capture.get(cv2.CAP_PROP_POS_MSEC)))
        if stamps[0] <= 0 or (len(stamps) < 2 and not capture.grab()):
            return 0.0
    ticks = stamps[1] - stamps[0]
    return stamps[0] * (moments[1] - moments[0]) / ticks / 1000.0 if ticks > 0 else 0.0


def _retrieved(capture: cv2.VideoCapture) -> Image | None:
    whole, decoded = capture.retrieve()
    return np.ascontiguousarray(cv2.cvtColor(decoded, cv2.COLOR_BGR2RGB), np.uint8) if whole else None


def _converted(frame: av.VideoFrame) -> Image:
    # OpenCV asks for bicubic as well; it turns by the container's matrix itself.
    picture = frame.reformat(format="rgb24", interpolation="BICUBIC").to_ndarray()
    return np.ascontiguousarray(np.rot90(picture, frame.rotation // 90 % 4), np.uint8)
