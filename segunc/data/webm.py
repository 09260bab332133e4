"""Opening a WebM (VP8) video for writing: the one video format that OpenCV writes and every browser plays."""

from __future__ import annotations

from pathlib import Path

import cv2

from segunc.core.progress import quiet_stderr


def open_webm(path: Path, frames_per_second: float, width: int, height: int) -> cv2.VideoWriter:
    """A writer of BGR frames; ``isOpened()`` is False where this OpenCV has no VP8 encoder.

    Args:
        path: ends in ``.webm``.
        frames_per_second: a float; 29.97 stays 29.97.
        width, height: even numbers of pixels.
    """
    code = cv2.VideoWriter.fourcc(*"VP80")
    with quiet_stderr():  # OpenCV calls the VP80 tag "not supported" and then writes the video (WebM has no tags)
        return cv2.VideoWriter(str(path), cv2.CAP_FFMPEG, code, frames_per_second, (width, height))
