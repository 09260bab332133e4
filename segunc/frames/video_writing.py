"""Videos written by FFmpeg through PyAV: VP8 in WebM, which every browser plays, or H.264 in MP4, which slides and editors take."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

from segunc.core.errors import InputError
from segunc.data.images import Image

WEBM, MP4 = ".webm", ".mp4"
_ENCODERS = {
    WEBM: {"libvpx": {"crf": "8", "b": "20M", "deadline": "good", "cpu-used": "4"}},
    MP4: {"libx264": {"crf": "18", "preset": "medium"}, "libopenh264": {"b": "8M"}},
}
"""Encoders of FFmpeg by preference, with settings at which text in a picture stays sharp."""
_TIME_BASES = {WEBM: Fraction(1, 1000), MP4: Fraction(1, 90_000)}
"""Seconds between two moments that a file can tell apart: fixed in WebM; the clock of MPEG has 24, 25, 30 and 29.97 frames a second."""
_BT709 = 1
"""Primaries, transfer and matrix of ITU-R BT.709 in ITU-T H.273: without them players guess at H.264. VP8 is BT.601 by definition."""
_LIMITED_RANGE = 1  # luma in 16..235, as FFmpeg numbers it


def find_encoder(suffix: str) -> str | None:
    """Return the name of the encoder for a file with this suffix, None where PyAV brings none."""
    import av

    return next((name for name in _ENCODERS[suffix] if name in av.codecs_available), None)


def require_encoder(path: Path) -> str:
    """Return the name of the encoder for a file; InputError where PyAV brings none."""
    if (encoder := find_encoder(path.suffix)) is None:
        hint = "pip install av" + (", or give a name ending in .webm" if path.suffix == MP4 else "")
        raise InputError(f"this PyAV has no encoder for video {path} ({', '.join(_ENCODERS[path.suffix])})", hint=hint)
    return encoder


def encode_video(path: Path, frames: Iterable[tuple[float, Image]], fps: float, size: tuple[int, int]) -> None:
    """Write pictures as a video, each from its time on; the last one is shown for one frame.

    Args:
        path: ends in ``.webm`` or ``.mp4``.
        frames: seconds from the first frame, in rising order, and RGB uint8 ``[H, W, 3]``.
        fps: mean frames a second.
        size: height and width of all pictures, both even.

    InputError where there is no encoder; OSError where the file cannot be written.
    """
    import av

    encoder = require_encoder(path)
    base = _TIME_BASES[path.suffix]
    # 1001: the denominator of the rates of television, 30000/1001 for instance.
    rate = Fraction(fps).limit_denominator(1001) or Fraction(1, 1001)
    # The index in front, so that a browser can start before an MP4 is loaded.
    options = {"movflags": "+faststart"} if path.suffix == MP4 else {}
    with av.open(str(path), "w", format=path.suffix[1:], options=options) as container:
        stream = container.add_stream(encoder, rate=rate, options=_ENCODERS[path.suffix][encoder])
        assert isinstance(stream, av.VideoStream)
        stream.height, stream.width, stream.pix_fmt = *size, "yuv420p"
        context, pts = stream.codec_context, -1
        context.time_base, context.max_b_frames = base, 0  # without B-frames the last packet is the last frame
        if path.suffix == MP4:
            context.colorspace = context.color_primaries = context.color_trc = _BT709
            context.color_range = _LIMITED_RANGE
        for time, picture in frames:
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame = frame.reformat(format="yuv420p", dst_colorspace="ITU709" if path.suffix == MP4 else "ITU601")
            pts = max(pts + 1, round(Fraction(time) / base))
            frame.pts, frame.time_base = pts, base
            container.mux(stream.encode(frame))
        for packet in stream.encode():
            if packet.pts == pts:
                packet.duration = round(1 / rate / base)
            container.mux(packet)
