"""Two decoders of video files behind one door: PyAV where it is installed, OpenCV otherwise.

Both stand on FFmpeg and give the same pictures: frames in the order of display, upright by the rotation that the
container states, converted to RGB by the same routine, with the time of the container. Packets that cannot be
decoded are passed over by both.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import cv2
import numpy as np

from segunc.core.errors import InputError
from segunc.data.images import Image

if TYPE_CHECKING:
    import av
    from av.container import InputContainer

_CAP_PROP_PTS = getattr(cv2, "CAP_PROP_PTS", -1)
"""Not known to the oldest OpenCV that is supported, which answers 0."""
DecoderName = Literal["auto", "pyav", "opencv"]
Retrieve = Callable[[], Image | None]
"""Converts the frame that was just decoded to RGB uint8 ``[H, W, 3]``; None where it cannot be."""


@dataclass(frozen=True)
class VideoFacts:
    """What a container says of its video.

    Attributes:
        fps: mean frames a second, None where it is not stated.
        frames: the number of frames; from the duration where no number is stated, None where neither is.
        start: seconds of the first frame on the container's clock; some containers state their end on that clock as duration.
    """

    fps: float | None
    frames: int | None
    start: float = 0.0


class Decoder(ABC):
    """Decodes one video file; each call of :meth:`frames` starts at its first frame.

    Args:
        path: the file.

    Raises:
        InputError: the file cannot be opened, or has no frame that can be decoded.
    """

    name: str

    def __init__(self, path: Path) -> None:
        self.path = path
        self.facts = self._inspect()

    @abstractmethod
    def frames(self) -> Iterator[tuple[float | None, Retrieve]]:
        """Seconds since the first moment of the stream (None where the container states none) and the picture."""

    @abstractmethod
    def _inspect(self) -> VideoFacts:
        """Open the file, decode one frame, and close it."""

    def _unreadable(self) -> InputError:
        return InputError(
            f"video {self.path} cannot be opened",
            "a complete video with a codec that FFmpeg decodes",
            "check that it plays, or convert it (for example to H.264 in .mp4)",
        )


def open_decoder(path: Path, name: DecoderName = "auto") -> Decoder:
    """The decoder of a video file.

    Raises:
        InputError: the file cannot be opened, or PyAV was asked for and is not installed.
    """
    installed = find_spec("av") is not None
    if name == "pyav" and not installed:
        raise InputError("the decoder PyAV is not installed", "the package av", "pip install 'segunc[video]'")
    return PyAVDecoder(path) if installed and name != "opencv" else OpenCVDecoder(path)


class OpenCVDecoder(Decoder):
    """Through OpenCV's own FFmpeg."""

    name = "opencv"

    def frames(self) -> Iterator[tuple[float | None, Retrieve]]:
        capture = self._open()
        try:
            while capture.grab():
                milliseconds = float(capture.get(cv2.CAP_PROP_POS_MSEC))
                yield _seconds(milliseconds / 1000.0), partial(_retrieve, capture)
        finally:
            capture.release()

    def _inspect(self) -> VideoFacts:
        capture = self._open()
        try:
            fps = float(capture.get(cv2.CAP_PROP_FPS))
            count = float(capture.get(cv2.CAP_PROP_FRAME_COUNT))
            if not capture.grab():
                raise self._unreadable()
            start = _start(capture)
        finally:
            capture.release()
        return VideoFacts(
            fps if math.isfinite(fps) and fps > 0 else None,
            int(count) if math.isfinite(count) and count > 0 else None,
            start,
        )

    def _open(self) -> cv2.VideoCapture:
        # FFmpeg alone: other backends would take digits in the file's name for an image sequence.
        level = cv2.utils.logging.getLogLevel()
        cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)  # our one line says it
        try:
            capture = cv2.VideoCapture(str(self.path), cv2.CAP_FFMPEG)
        finally:
            cv2.utils.logging.setLogLevel(level)
        if not capture.isOpened():
            raise self._unreadable()
        return capture


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

    def _inspect(self) -> VideoFacts:
        import av

        with self._open() as container:
            stream = container.streams.video[0]
            fps = None if stream.average_rate is None else float(stream.average_rate)
            count = stream.frames
            if count <= 0 and fps and container.duration:
                count = int(container.duration / av.time_base * fps + 0.5)
            start = float((stream.start_time or 0) * stream.time_base) if stream.time_base else 0.0
        if next(self.frames(), None) is None:
            raise self._unreadable()
        return VideoFacts(fps or None, count if count > 0 else None, start)

    def _open(self) -> InputContainer:
        import av

        av.logging.set_level(None)  # our one line says it
        try:
            container = av.open(str(self.path))
        except (av.error.FFmpegError, OSError) as error:
            raise self._unreadable() from error
        if not container.streams.video:
            container.close()
            raise self._unreadable()
        return container


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


def _retrieve(capture: cv2.VideoCapture) -> Image | None:
    whole, decoded = capture.retrieve()
    if not whole or decoded is None:
        return None
    return np.ascontiguousarray(cv2.cvtColor(decoded, cv2.COLOR_BGR2RGB), np.uint8)


def _converted(frame: av.VideoFrame) -> Image:
    # OpenCV asks for bicubic as well; it turns by the container's matrix itself.
    picture = frame.reformat(format="rgb24", interpolation="BICUBIC").to_ndarray()
    return np.ascontiguousarray(np.rot90(picture, frame.rotation // 90 % 4), np.uint8)
