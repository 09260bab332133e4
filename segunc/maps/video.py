"""Frames of a video file, decoded as a stream: one frame in memory at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np

from segunc.errors import InputError
from segunc.maps.sources import Frame, FrameSource, Skip

MISSING_TOLERATED = 0.02
"""Share of the container's frame count that may be missing: where a container holds no count, the count is an estimate
from its duration, and a frame or two less is no damage."""


def video_frame_name(index: int) -> str:
    """Six-digit name of a video frame, from ``000000`` (longer beyond a million frames)."""
    return f"{index:06d}"


class VideoSource(FrameSource):
    """Frames of a video in decoding order, upright by the rotation that the container states.

    The container's frame count is only a hint. A stream that ends well before it (more than 2 % and more than three
    frames early) closes with one frame that carries an error. Damage that the decoder conceals inside frames is
    not visible here.

    Raises:
        InputError: the video cannot be opened, or its first frame cannot be decoded.
    """

    kind = "video"

    def __init__(self, path: Path) -> None:
        self.path = path
        capture = self._open()
        try:
            fps = float(capture.get(cv2.CAP_PROP_FPS))
            count = capture.get(cv2.CAP_PROP_FRAME_COUNT)
            if not capture.grab():
                raise self._unreadable()
        finally:
            capture.release()
        self.fps = fps if math.isfinite(fps) and fps > 0 else None
        self.length_hint = int(count) if math.isfinite(count) and count > 0 else None

    def name_of(self, index: int) -> str | None:
        return video_frame_name(index)

    def position(self, name: str) -> int:
        return int(name) if name.isdecimal() else 2**62

    def frames(self, skip: Skip | None = None) -> Iterator[Frame]:
        capture = self._open()
        index = 0
        try:
            while capture.grab():
                name = video_frame_name(index)
                if skip is None or not skip(index, name):
                    whole, decoded = capture.retrieve()
                    if whole and decoded is not None:
                        image = np.ascontiguousarray(cv2.cvtColor(decoded, cv2.COLOR_BGR2RGB), np.uint8)
                        yield Frame(name, index, image)
                    else:
                        yield Frame(name, index, None, f"{self.path}: frame {index} cannot be decoded")
                index += 1
        finally:
            capture.release()
        if self.length_hint is not None and self.length_hint - index > max(3, MISSING_TOLERATED * self.length_hint):
            reason = f"{self.path}: video ends at frame {index} of {self.length_hint}"
            yield Frame(video_frame_name(index), index, None, reason)

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

    def _unreadable(self) -> InputError:
        return InputError(
            f"video {self.path} cannot be opened",
            "a complete video with a codec that OpenCV's FFmpeg decodes",
            "check that it plays, or convert it (for example to H.264 in .mp4)",
        )
