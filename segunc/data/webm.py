"""Opening a WebM (VP8) video for writing: the one video format that OpenCV writes and every browser plays."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import cv2


def open_webm(path: Path, frames_per_second: float, width: int, height: int) -> cv2.VideoWriter:
    """A writer of BGR frames; ``isOpened()`` is False where this OpenCV has no VP8 encoder.

    Args:
        path: ends in ``.webm``.
        frames_per_second: a float; 29.97 stays 29.97.
        width, height: even numbers of pixels.
    """
    code = cv2.VideoWriter.fourcc(*"VP80")
    with _quiet_stderr():
        return cv2.VideoWriter(str(path), cv2.CAP_FFMPEG, code, frames_per_second, (width, height))


@contextlib.contextmanager
def _quiet_stderr() -> Iterator[None]:
    """Swallow what C code prints: OpenCV calls the VP80 tag "not supported" and then writes the video (WebM has no tags)."""
    saved = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)
