"""A video from finished pictures. It is made after the run from the pictures on disk, so a continued run gives the whole video."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from segunc.core.errors import InputError, PartialFailure, one_line
from segunc.core.files import PARTIAL_SUFFIX
from segunc.data.images import Image, read_image
from segunc.frames.video_writing import MP4, WEBM, encode_video, find_encoder, require_encoder
from segunc.gallery.overlay import blank, resize
from segunc.maps.manifest import is_ours, read_manifest

MAXIMUM_WIDTH = 1280  # wider pictures are scaled down: VP8 is encoded on one core, and a review needs no more


def video_suffix() -> str:
    """``.mp4`` where H.264 can be written, else ``.webm``."""
    return WEBM if find_encoder(MP4) is None else MP4


def frame_rate(maps: Path, given: float | None = None) -> float:
    """Frames a second of a video of a maps folder: as given, else that of its source and of the frames that were taken; InputError
    where neither is known, as for images."""
    if given is not None:
        return given
    manifest = (read_manifest(maps) if is_ours(maps) else None) or {}
    fps = manifest.get("source", {}).get("fps")
    if not fps:
        raise InputError(f"the maps in {maps} record no frame rate", "frames a second", "give --fps")
    return float(fps) / int(manifest.get("run", {}).get("every") or 1)


def write_video(pictures: Sequence[Path], out: Path, fps: float, times: Sequence[float | None] = ()) -> Path:
    """Write pictures as a video; the file appears when it is complete and has been read back.

    The first picture decides the size (even, as both codecs want it); pictures of another shape are fitted into it with dark margins.
    ``out`` ends in ``.webm``, or in ``.mp4`` where there is an encoder (:func:`video_suffix`); ``times`` are the seconds of each picture,
    so that a variable frame rate is kept. Where one is unknown, all follow ``fps``.

    InputError: no encoder; PartialFailure, without a file: the encoder failed, or a picture cannot be read.
    """
    require_encoder(out)
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
        if (found := len(shown_spans(partial))) != len(pictures):
            held = f"{found} of {len(pictures)} frames after writing"
            raise PartialFailure(f"video {out} holds {held}; the pictures are kept")
        os.replace(partial, out)
    except OSError as error:
        why = f"video {out} cannot be written ({error.strerror or one_line(error)}); the pictures are kept"
        raise PartialFailure(why) from error
    finally:
        partial.unlink(missing_ok=True)
    return out


def shown_spans(video: Path) -> list[tuple[float, float]]:
    """Return from when to when, in seconds, a player shows each frame of a WebM or MP4 of ours; empty where it cannot be read.

    Nothing is decoded. The format is that of the name: a file of unknown origin must not pass for a list of other files.
    """
    import av

    av.logging.set_level(None)
    try:
        with av.open(str(video), format=video.suffix[1:]) as container:
            starts = sorted(
                float(p.pts * p.time_base) for p in container.demux(video=0) if p.size and p.pts is not None
            )
            end = (container.duration or 0) / av.time_base
    except (av.error.FFmpegError, OSError, IndexError, ValueError):
        return []
    return list(zip(starts, [*starts[1:], max(end, *starts[-1:])], strict=False))


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
