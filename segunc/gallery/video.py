"""A video from finished pictures: H.264 in MP4 where PyAV brings an encoder, else VP8 in WebM.

VP8 in WebM is the one format that OpenCV writes and browsers play; H.264 is what slides and editors take. A video is made
after the run from the pictures on disk, so a continued run gives the whole video.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path

import cv2
import numpy as np

from segunc.core.errors import InputError, PartialFailure
from segunc.core.files import PARTIAL_SUFFIX
from segunc.data.images import Image, open_webm, read_image
from segunc.gallery.overlay import blank, resize
from segunc.maps.manifest import is_ours, read_manifest

MAXIMUM_WIDTH = 1280  # wider pictures are scaled down: VP8 is encoded on one core, and a review needs no more
WEBM, MP4 = ".webm", ".mp4"
_H264_ENCODERS = {"libx264": {"crf": "18", "preset": "medium"}, "libopenh264": {"b": "8M"}}
"""Encoders of FFmpeg by preference, with settings at which text in a picture stays sharp."""
_BT709 = 1
"""Primaries, transfer and matrix of ITU-R BT.709 in ITU-T H.273: without them players guess, and colours shift."""
_LIMITED_RANGE = 1  # luma in 16..235, as FFmpeg numbers it


def h264_encoder() -> str | None:
    """The H.264 encoder that PyAV brings, None where there is none."""
    if find_spec("av") is None:
        return None
    import av

    return next((name for name in _H264_ENCODERS if name in av.codecs_available), None)


def video_suffix() -> str:
    """``.mp4`` where H.264 can be written, else ``.webm``."""
    return WEBM if h264_encoder() is None else MP4


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


def write_video(pictures: Sequence[Path], out: Path, fps: float) -> Path:
    """Write pictures as a video; the file appears when it is complete and has been read back.

    The first picture decides the size (even, as both codecs want it); pictures of another shape are fitted into it with dark margins.
    ``out`` ends in ``.webm``, or in ``.mp4`` where there is an encoder (:func:`video_suffix`); ``fps`` is as the source states it (29.97
    stays 29.97). InputError: no picture, another ending, no frame rate; PartialFailure, without a file: the encoder is missing or
    failed, or a picture cannot be read.
    """
    if not pictures:
        raise InputError(f"no picture for the video {out}", "at least one overlay", "predict with overlays first")
    if out.suffix not in (WEBM, MP4):
        raise InputError(f"video {out}", "a name ending in .webm or .mp4", "browsers play both")
    encoder = h264_encoder() if out.suffix == MP4 else None
    if out.suffix == MP4 and encoder is None:
        given = f"video {out} without an H.264 encoder"
        raise InputError(given, "PyAV with one", "pip install 'segunc[video]', or .webm")
    if not (math.isfinite(fps) and fps > 0):
        raise InputError(f"a frame rate of {fps} for the video {out}", "frames a second above 0", "give the rate")
    partial = out.with_name(f".{out.stem}{PARTIAL_SUFFIX}{out.suffix}")
    out.parent.mkdir(parents=True, exist_ok=True)
    partial.unlink(missing_ok=True)  # the encoders would write through a link
    try:
        first = _read(pictures[0])
        scale = min(1.0, MAXIMUM_WIDTH / first.shape[1])
        width, height = (max(2, round(side * scale) // 2 * 2) for side in first.shape[1::-1])
        frames = (_fit(_read(path), width, height) for path in pictures)
        if encoder is None:
            _encode_webm(frames, partial, fps, width, height)
        else:
            _encode_mp4(frames, partial, fps, width, height, encoder)
        if (found := count_frames(partial)) != len(pictures):
            held = f"{found} of {len(pictures)} frames after writing"
            raise PartialFailure(f"video {out} holds {held}; the pictures are kept")
        os.replace(partial, out)
    finally:
        partial.unlink(missing_ok=True)
    return out


def count_frames(video: Path) -> int:
    """How many frames of a video can be read, 0 where it cannot be opened."""
    capture = cv2.VideoCapture(str(video), cv2.CAP_FFMPEG)
    count = 0
    while capture.isOpened() and capture.grab():
        count += 1
    capture.release()
    return count


def _encode_webm(frames: Iterator[Image], partial: Path, fps: float, width: int, height: int) -> None:
    writer = open_webm(partial, fps, width, height)
    try:
        if not writer.isOpened():
            why = "this OpenCV has no VP8 encoder; the pictures are kept"
            raise PartialFailure(f"video {partial} cannot be written: {why}")
        for frame in frames:
            writer.write(cv2.cvtColor(frame, cv2.COLOR_RGB2BGR))
    finally:
        writer.release()


def _encode_mp4(frames: Iterator[Image], partial: Path, fps: float, width: int, height: int, encoder: str) -> None:
    import av

    # 1001: the denominator of the rates of television, 30000/1001 for instance.
    rate = Fraction(fps).limit_denominator(1001)
    # The index in front, so that a browser can start before the file is loaded.
    with av.open(str(partial), "w", format="mp4", options={"movflags": "+faststart"}) as container:
        stream = container.add_stream(encoder, rate=rate, options=_H264_ENCODERS[encoder])
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        context = stream.codec_context
        context.colorspace = context.color_primaries = context.color_trc = _BT709
        context.color_range = _LIMITED_RANGE
        for index, picture in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame = frame.reformat(format="yuv420p", dst_colorspace="ITU709")
            frame.pts, frame.time_base = index, 1 / rate
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


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
