"""A video from finished overlay pictures, in the one format that OpenCV writes and browsers play: VP8 in WebM.

It is made after the run from the pictures on disk, so a continued run gives the whole video.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np

from segunc.data.images import Image, read_image
from segunc.data.webm import open_webm
from segunc.errors import InputError, PartialFailure
from segunc.files import PARTIAL_SUFFIX
from segunc.review.drawing import blank, resize

MAXIMUM_WIDTH = 1280
"""Wider pictures are scaled down: VP8 is encoded on one core, and a review needs no more."""


def write_video(pictures: Sequence[Path], out: Path, fps: float, *, maximum_width: int = MAXIMUM_WIDTH) -> Path:
    """Write pictures as a WebM video; the file appears when it is complete and has been read back.

    The first picture decides the size (even, as VP8 wants it); pictures of another shape are fitted into it with
    dark margins.

    Args:
        pictures: picture files in order.
        out: the file, ending in ``.webm``.
        fps: frames a second as the source states them (29.97 stays 29.97).
        maximum_width: wider pictures are scaled down to it.

    Raises:
        InputError: no picture, another ending, no frame rate.
        PartialFailure: the encoder is missing or failed, or a picture cannot be read; no file is left.
    """
    if not pictures:
        raise InputError(f"no picture for the video {out}", "at least one overlay", "predict with overlays first")
    if out.suffix != ".webm":
        raise InputError(f"video {out}", "a name ending in .webm", "browsers play no other video that OpenCV writes")
    if not (math.isfinite(fps) and fps > 0):
        raise InputError(f"a frame rate of {fps} for the video {out}", "frames a second above 0", "give the rate")
    partial = out.with_name(f".{out.stem}{PARTIAL_SUFFIX}.webm")
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        _encode(pictures, partial, fps, maximum_width)
        found = count_frames(partial)
        if found != len(pictures):
            raise PartialFailure(
                f"video {out} holds {found} of {len(pictures)} frames after writing; the pictures are kept"
            )
        os.replace(partial, out)
    finally:
        with contextlib.suppress(FileNotFoundError):
            partial.unlink()
    return out


def count_frames(video: Path) -> int:
    """How many frames of a video can be read, 0 where it cannot be opened."""
    capture = cv2.VideoCapture(str(video), cv2.CAP_FFMPEG)
    count = 0
    while capture.isOpened() and capture.grab():
        count += 1
    capture.release()
    return count


def _encode(pictures: Sequence[Path], partial: Path, fps: float, maximum_width: int) -> None:
    first = _read(pictures[0])
    scale = min(1.0, maximum_width / first.shape[1])
    width, height = (max(2, round(side * scale) // 2 * 2) for side in first.shape[1::-1])
    writer = open_webm(partial, fps, width, height)
    try:
        if not writer.isOpened():
            raise PartialFailure(
                f"video {partial} cannot be written: this OpenCV has no VP8 encoder; the pictures are kept"
            )
        for path in pictures:
            writer.write(cv2.cvtColor(_fit(_read(path), width, height), cv2.COLOR_RGB2BGR))
    finally:
        writer.release()


def _read(path: Path) -> Image:
    try:
        return read_image(path)
    except (OSError, ValueError) as error:
        raise PartialFailure(f"overlay {path} cannot be read ({error}); no video was written") from error


def _fit(picture: Image, width: int, height: int) -> Image:
    scale = min(width / picture.shape[1], height / picture.shape[0])
    inner_width, inner_height = (max(1, round(side * scale)) for side in picture.shape[1::-1])
    # A pixel of rounding is no other shape.
    if abs(inner_width - width) <= 2 and abs(inner_height - height) <= 2:
        return resize(picture, width, height)
    canvas = blank(height, width)
    top, left = (height - inner_height) // 2, (width - inner_width) // 2
    canvas[top : top + inner_height, left : left + inner_width] = resize(picture, inner_width, inner_height)
    return np.ascontiguousarray(canvas)
