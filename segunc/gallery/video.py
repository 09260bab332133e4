"""A video from finished pictures. It is made from the pictures on disk, so a run that was continued gives the whole video."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from segunc.core.errors import InputError, PartialFailure, one_line
from segunc.core.files import PARTIAL_SUFFIX
from segunc.data.images import Image, read_image
from segunc.frames.video import encode_video
from segunc.gallery.overlay import blank, resize
from segunc.maps.manifest import is_ours, read_manifest

MAXIMUM_WIDTH = 1280  # wider pictures are scaled down: VP8 is encoded on one core, and a review needs no more


def frame_rate(maps: Path) -> float:
    """Return the frames a second that a video of a maps folder has: that of its source, of the frames that were taken.

    Raises:
        InputError: the source has no rate, as images have none.
    """
    manifest = (read_manifest(maps) if is_ours(maps) else None) or {}
    fps = manifest.get("source", {}).get("fps")
    if not fps:
        raise InputError(f"the maps in {maps} record no frame rate", hint="give --fps")
    return float(fps) / int(manifest.get("run", {}).get("every") or 1)


def write_video(pictures: Sequence[Path], out: Path, fps: float, times: Sequence[float | None] = ()) -> Path:
    """Write pictures as a video; the file appears when it is complete.

    Args:
        pictures: files; the first decides the size (even, as the codec wants it), others are fitted into it with dark
            margins.
        out: ends in ``.webm``.
        fps: frames a second, which all pictures follow where the time of one is unknown.
        times: seconds of each picture, so that a variable frame rate is kept.

    Raises:
        InputError: there is no encoder.
        PartialFailure: the encoder failed, or a picture cannot be read; no file is left.
    """
    known = [time for time in times if time is not None]
    moments = [t - known[0] for t in known] if len(known) == len(pictures) else [i / fps for i in range(len(pictures))]
    partial = out.with_name(f".{out.stem}{PARTIAL_SUFFIX}{out.suffix}")
    out.parent.mkdir(parents=True, exist_ok=True)
    partial.unlink(missing_ok=True)  # the encoders would write through a link
    try:
        first = _read(pictures[0])
        scale = min(1.0, MAXIMUM_WIDTH / first.shape[1])
        width, height = (max(2, round(side * scale) // 2 * 2) for side in first.shape[1::-1])
        frames = ((time, _fit(_read(path), width, height)) for time, path in zip(moments, pictures, strict=True))
        encode_video(partial, frames, fps, (height, width))
        os.replace(partial, out)
    except OSError as error:
        why = f"video {out} cannot be written ({error.strerror or one_line(error)}); the pictures are kept"
        raise PartialFailure(why) from error
    finally:
        partial.unlink(missing_ok=True)
    return out


def _read(path: Path) -> Image:
    try:
        return read_image(path)
    except (OSError, ValueError) as error:
        raise PartialFailure(f"overlay {path} cannot be read ({error}); no video was written") from error


def _fit(picture: Image, width: int, height: int) -> Image:
    """Scale a picture into a size, with dark margins where its shape is another by more than a pixel of rounding."""
    scale = min(width / picture.shape[1], height / picture.shape[0])
    inner_width, inner_height = (max(1, round(side * scale)) for side in picture.shape[1::-1])
    if abs(inner_width - width) <= 2 and abs(inner_height - height) <= 2:
        return resize(picture, width, height)
    canvas = blank(height, width)
    top, left = (height - inner_height) // 2, (width - inner_width) // 2
    canvas[top : top + inner_height, left : left + inner_width] = resize(picture, inner_width, inner_height)
    return np.ascontiguousarray(canvas)
