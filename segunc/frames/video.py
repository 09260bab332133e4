"""Videos as frames, decoded by FFmpeg through PyAV, and written as VP8 in WebM, which every browser
plays.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.container import InputContainer
from av.format import Flags
from av.stream import Disposition
from av.video.stream import VideoStream

from segunc.core.errors import InputError
from segunc.data.images import Image
from segunc.frames.source import (
    ALL_FRAMES,
    Frame,
    FrameSource,
    Selection,
    Skip,
    format_time,
    sampled_hash,
)

MISSING_TOLERATED = 0.02  # share of the stated duration, which is often that of the sound
HASH_STRETCHES, HASH_LENGTH = (
    32,
    1 << 16,
)  # how many stretches of a video, of how many bytes, its hash reads
USUAL_RATE = Fraction(25)  # frames a second where the container states no rate
VP8_SETTINGS = {
    "crf": "8",
    "b": "20M",
    "deadline": "good",
    "cpu-used": "4",
}  # at which text in a picture stays sharp
# Titles may be of any encoding. Until PyAV 19, which has no such argument, such a title ends the
# reading.
LENIENT: dict[str, Any] = (
    {"metadata_errors": "replace"} if int(av.__version__.partition(".")[0]) < 19 else {}
)


class VideoSource(FrameSource):
    """Frames of a video in the order of display, turned and mirrored as the container states, of
    the default stream, and of several the largest. Pixels that are not square are not stretched.
    Frames are named by their number in the video, whatever is selected; those before the selection
    are decoded too (not converted), because no container states the number of the frame at a
    moment.

    Times are those that the container states, and increase: a clock that jumps back, as in joined
    transport streams, goes on one frame after the last. A jump forward is kept as a pause of the
    camera. A stream that ends more than 2 % and three frames before its stated duration, or of
    which frames could not be decoded, closes with one frame that carries an error. Damage that the
    decoder conceals inside frames is not visible here.
    """

    kind = "video"

    def __init__(self, path: Path, selection: Selection = ALL_FRAMES) -> None:
        self.path, self.selection = path, selection
        with self._opened() as (container, stream, base):
            self.fps = float(stream.average_rate or 0) or None
            stated = None if stream.duration is None else stream.duration * base
            if stated is None and container.duration is not None:
                # Containers that know no duration of a stream state their end on the clock that the
                # first frame stands on.
                stated = (
                    Fraction(container.duration, av.time_base) - (stream.start_time or 0) * base
                )
            # A file that was cut without encoding it anew also counts frames that its edit list
            # hides.
            count = int(float(stated) * self.fps + 0.5) if stated and self.fps else stream.frames
            # Where a clock may start anew, as in transport streams, the end is an estimate.
            restarts = Flags.ts_discont in Flags(container.format.flags)
            self._end = None if stated is None or restarts else float(stated)
            if next(_decoded(container, stream, set()), None) is None:
                raise self._unreadable()
        if self._end is not None:
            self._require_start(self._end)
        self.length_hint = (
            -(-count // selection.every) if count > 0 and not selection.timed else None
        )

    def name_of(self, index: int) -> str | None:
        return f"{index * self.selection.every:06d}"

    def frames(self, skip: Skip | None = None) -> Iterator[Frame]:
        count, last, lost = 0, Fraction(0), set[int | None]()
        with self._opened() as (container, stream, base):
            step = 1 / (stream.average_rate or USUAL_RATE)
            for number, decoded in enumerate(_decoded(container, stream, lost)):
                count, index, name = number + 1, number // self.selection.every, f"{number:06d}"
                stamp = decoded.pts if decoded.pts is not None else decoded.dts
                stated = None if stamp is None else (stamp - (stream.start_time or 0)) * base
                # AVI states the order of decoding alone, and stamps may be missing.
                behind = number and (stated is None or stated <= last)
                last = last + step if behind else max(stated or Fraction(0), Fraction(0))
                time = round(float(last), 6)
                if self.selection.is_past(time):
                    return
                if self.selection.takes(number, time) and not (
                    skip is not None and skip(index, name)
                ):
                    yield Frame(name, index, _upright(decoded), time=time)
        end, reasons = float(last + step), list[str]()
        if lost:
            reasons.append(
                f"frames of the video that are damaged and cannot be decoded: {len(lost)}"
            )
        if self._end is not None and self._end - end > max(
            3.5 * step, MISSING_TOLERATED * self._end
        ):
            reasons.append(
                f"video ends at frame {count}, {format_time(self._end - end)} before its stated end"
            )
        if reasons:
            index = -(-count // self.selection.every)
            yield Frame(
                self.name_of(index) or "", index, None, f"{self.path}: {'; '.join(reasons)}"
            )
        else:
            self._require_start(end)

    def _require_start(self, end: float) -> None:
        if self.selection.start is not None and self.selection.start >= end:
            start = format_time(self.selection.start)
            raise InputError(
                f"video {self.path} ends at {format_time(end)}, before the start at {start}",
                hint="an earlier --start",
            )

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "input_hash": video_hash(self.path)}

    @contextlib.contextmanager
    def _opened(self) -> Iterator[tuple[InputContainer, VideoStream, Fraction]]:
        """Open the file; yield it, its main stream and the seconds of one tick of the stream's
        clock.
        """
        av.logging.set_level(None)  # our one line says it
        try:
            container = av.open(str(self.path), **LENIENT)
        except (av.error.FFmpegError, OSError) as error:
            raise self._unreadable() from error
        with container:
            no_film = Disposition.attached_pic | Disposition.timed_thumbnails
            # A stream without a context is of a codec that nothing here decodes.
            films = [
                s
                for s in container.streams.video
                if s.codec_context and s.width and not s.disposition & no_film
            ]
            if not films:
                raise self._unreadable()
            stream = max(
                films, key=lambda s: (bool(s.disposition & Disposition.default), s.width * s.height)
            )
            yield container, stream, stream.time_base or Fraction(1, av.time_base)

    def _unreadable(self) -> InputError:
        return InputError(
            f"video {self.path} cannot be opened",
            hint="check that it plays, or convert it to H.264 in .mp4",
        )


def video_hash(path: Path) -> str:
    """Return what tells a video from another one under its name."""
    return sampled_hash(path, HASH_STRETCHES, HASH_LENGTH)


def _decoded(
    container: InputContainer, stream: VideoStream, lost: set[int | None]
) -> Iterator[av.VideoFrame]:
    """Yield every frame that can be decoded, in the order of display, and collect in ``lost`` the
    stamps of the others.
    """
    # Several threads lose frames that are whole, or conceal no damage, where a packet cannot be
    # decoded.
    stream.thread_type, stream.codec_context.thread_count = "NONE", 1
    begun = False
    for packet in _packets(container, stream):
        frames: list[av.VideoFrame] = []
        try:
            frames = stream.decode(packet)
        except av.error.FFmpegError:
            # What stands before the first key frame, or is hidden by an edit list, was never meant
            # to be shown.
            if begun and packet is not None and not packet.is_discard:
                lost.add(packet.pts if packet.pts is not None else packet.dts)
        for frame in frames:
            begun = True
            lost.discard(frame.pts)  # a packet without a picture beside that of its moment
            yield frame


def _packets(
    container: InputContainer, stream: VideoStream
) -> Iterator[av.Packet[VideoStream] | None]:
    """Yield the packets in the order of decoding, and then None, which makes the decoder give what
    it still holds.
    """
    with contextlib.suppress(av.error.FFmpegError):  # the file may end inside a packet
        yield from (packet for packet in container.demux(stream) if packet.size)
    yield None


def _upright(frame: av.VideoFrame) -> Image:
    """Return the picture in the nearest of the eight orientations that axes can have."""
    picture = frame.reformat(format="rgb24", interpolation="BICUBIC").to_ndarray()
    matrix: Any = frame.side_data.get("DISPLAYMATRIX")
    if matrix is not None:
        # Where the stored axes point on the screen: rows are the stored x and y, columns the x and
        # y of the screen.
        (a, b), (c, d) = np.frombuffer(bytes(matrix), np.int32).reshape(3, 3)[:2, :2].astype(float)
        if abs(b) + abs(c) > abs(a) + abs(d):
            picture, a, d = picture.swapaxes(0, 1), c, b
        picture = picture[:: -1 if d < 0 else 1, :: -1 if a < 0 else 1]
    return np.ascontiguousarray(picture, np.uint8)


def encode_video(
    path: Path, frames: Iterable[tuple[float, Image]], fps: float, size: tuple[int, int]
) -> None:
    """Write pictures as a WebM video, each from its time on; the last one is shown for one frame.
    ``frames`` are seconds from the first frame, in rising order, and RGB uint8 ``[H, W, 3]``;
    ``fps`` is their mean rate, ``size`` their height and width, both even. InputError where there
    is no encoder, OSError where nothing can be written.
    """
    if "libvpx" not in av.codecs_available:
        raise InputError("this PyAV has no encoder for WebM videos (libvpx)", hint="pip install av")
    # 1001: the denominator of the rates of television, 30000/1001 for instance.
    rate = Fraction(fps).limit_denominator(1001) or Fraction(1, 1001)
    with av.open(str(path), "w", format="webm") as container:
        stream = container.add_stream("libvpx", rate=rate, options=VP8_SETTINGS)
        assert isinstance(stream, av.VideoStream)
        stream.height, stream.width, stream.pix_fmt = *size, "yuv420p"
        # WebM tells milliseconds apart. Without B-frames the last packet is the last frame.
        base = stream.codec_context.time_base = Fraction(1, 1000)
        stream.codec_context.max_b_frames, pts = 0, -1
        for time, picture in frames:
            # VP8 is in the colours of BT.601 by definition.
            frame = av.VideoFrame.from_ndarray(picture, "rgb24").reformat(
                format="yuv420p", dst_colorspace="ITU601"
            )
            pts = max(pts + 1, round(Fraction(time) / base))
            frame.pts, frame.time_base = pts, base
            container.mux(stream.encode(frame))
        for packet in stream.encode():
            if packet.pts == pts:
                packet.duration = round(1 / rate / base)
            container.mux(packet)
