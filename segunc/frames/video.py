"""Videos as frames: decoded by FFmpeg through PyAV, and written as VP8 in WebM, which every browser
plays.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.container import InputContainer
from av.format import Flags
from av.sidedata.sidedata import SideDataContainer
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

MAX_MISSING_SHARE = 0.02
"""Share of the stated duration that may be missing at the end; it is often that of the sound."""
MAX_MISSING_FRAMES = 3.5
"""Frames that may be missing at the end of a short video."""
HASH_STRETCHES = 32
"""Pieces of a video that its hash reads."""
HASH_LENGTH = 1 << 16
"""Bytes of each piece."""
USUAL_RATE = Fraction(25)
"""Frames a second if the container states no rate."""
VP8_SETTINGS = {"crf": "8", "b": "20M", "deadline": "good", "cpu-used": "4"}
"""Settings of the encoder at which text in a picture stays sharp."""
# PyAV's ``frame.side_data`` and the frame refer to each other, so whole pictures would wait for the
# garbage collector: 0.8 GB in Full HD. A container that the frame does not know makes no such
# circle. Its stub lacks the argument.
_SIDE_DATA_OF: Any = SideDataContainer
# Titles may be of any encoding. Until PyAV 19, which has no such argument, such a title ends the
# reading.
LENIENT: dict[str, Any] = {}
if int(av.__version__.partition(".")[0]) < 19:
    LENIENT["metadata_errors"] = "replace"


@dataclass
class _Clock:
    """Gives each frame of a video its time in seconds; times never decrease.

    Args:
        start: stamp of the first moment, in ticks.
        tick: seconds of a tick.
        step: seconds of a frame.
    """

    start: int
    tick: Fraction
    step: Fraction
    frames: int = 0
    """Frames that were timed."""
    time: Fraction = Fraction(0)
    """Of the last one."""

    def time_of(self, decoded: av.VideoFrame) -> float:
        """Return the time of the next frame in the order of display."""
        stamp = decoded.pts if decoded.pts is not None else decoded.dts
        stated = None if stamp is None else (stamp - self.start) * self.tick
        # AVI states the order of decoding alone, and stamps may be missing.
        is_behind = stated is None or stated <= self.time
        if self.frames and is_behind:
            self.time += self.step
        else:
            self.time = max(stated or Fraction(0), Fraction(0))
        self.frames += 1
        return round(float(self.time), 6)


class VideoSource(FrameSource):
    """Frames of a video in the order of display.

    They are those of the default stream, and of several the largest, turned and mirrored as the
    container states. Pixels that are not square are not stretched. Frames are named by their number
    in the video, whatever is selected; those before the selection are decoded too (not converted),
    because no container states the number of the frame at a moment.

    Times are those that the container states, and increase: a clock that jumps back, as in joined
    transport streams, goes on one frame after the last. A jump forward is kept as a pause of the
    camera. A stream that ends more than 2 % and three frames before its stated duration, or of
    which frames could not be decoded, closes with one frame that carries an error. Damage that the
    decoder conceals inside frames is not visible here.
    """

    kind = "video"

    def __init__(
        self, path: Path, selection: Selection = ALL_FRAMES, url: str | None = None
    ) -> None:
        """Open a video.

        Args:
            path: the file.
            selection: which frames are taken.
            url: where the file was downloaded from, for messages and records.
        """
        self._file = path
        self.path = url or path
        self.selection = selection
        with self._opened() as (container, stream, tick):
            self.fps = float(stream.average_rate or 0) or None
            duration = _stated_duration(container, stream, tick)
            # A file that was cut without encoding it anew also counts frames that its edit list
            # hides, so the duration goes before the stated number of frames.
            count = stream.frames
            if duration and self.fps:
                count = int(float(duration) * self.fps + 0.5)
            # Where a clock may start anew, as in transport streams, the end is an estimate.
            restarts = Flags.ts_discont in Flags(container.format.flags)
            self._end = None if duration is None or restarts else float(duration)
            if next(_decoded(container, stream, set()), None) is None:
                raise self._unreadable()
        if self._end is not None:
            self._require_start(self._end)
        self.length_hint: int | None = None
        if count > 0 and not selection.timed:
            self.length_hint = -(-count // selection.every)

    def name_of(self, index: int) -> str | None:
        return f"{index * self.selection.every:06d}"

    def frames(self, skip: Skip | None = None) -> Iterator[Frame]:
        lost: set[int | None] = set()
        taken = 0
        with self._opened() as (container, stream, tick):
            clock = _Clock(
                start=stream.start_time or 0,
                tick=tick,
                step=1 / (stream.average_rate or USUAL_RATE),
            )
            for number, decoded in enumerate(_decoded(container, stream, lost)):
                time = clock.time_of(decoded)
                if self.selection.is_past(time):
                    self.selection.require(taken, f"video {self.path}")
                    return
                if not self.selection.takes(number, time):
                    continue
                taken += 1
                name = f"{number:06d}"
                index = number // self.selection.every
                if skip is None or not skip(index, name):
                    yield Frame(name, index, upright(decoded), time=time)
        end = float(clock.time + clock.step)
        faults = self._faults(clock, end, lost)
        if faults:
            index = -(-clock.frames // self.selection.every)
            name = self.name_of(index) or ""
            yield Frame(name, index, image=None, error=f"{self.path}: {'; '.join(faults)}")
        else:
            self._require_start(end)
            self.selection.require(taken, f"video {self.path}")

    def _faults(self, clock: _Clock, end: float, lost: Collection[int | None]) -> list[str]:
        """Return what is wrong with a video that was decoded to its end.

        Args:
            clock: that has timed its last frame.
            end: time of the end in seconds.
            lost: stamps of the frames that could not be decoded.
        """
        faults: list[str] = []
        if lost:
            faults.append(
                f"frames of the video that are damaged and cannot be decoded: {len(lost)}"
            )
        if self._end is not None:
            missing = self._end - end
            tolerated = max(MAX_MISSING_FRAMES * clock.step, MAX_MISSING_SHARE * self._end)
            if missing > tolerated:
                faults.append(
                    f"video ends at frame {clock.frames}, {format_time(missing)} before its "
                    "stated end"
                )
        return faults

    def _require_start(self, end: float) -> None:
        if self.selection.start is not None and self.selection.start >= end:
            start = format_time(self.selection.start)
            raise InputError(
                f"video {self.path} ends at {format_time(end)}, before the start at {start}",
                hint="an earlier --start",
            )

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "input_hash": video_hash(self._file)}

    @contextlib.contextmanager
    def _opened(self) -> Iterator[tuple[InputContainer, VideoStream, Fraction]]:
        """Open the file; yield it, its main stream and the seconds of a tick of its clock."""
        av.logging.set_level(None)  # our one line says it
        try:
            container = av.open(str(self._file), **LENIENT)
        except (av.error.FFmpegError, OSError) as error:
            raise self._unreadable() from error
        with container:
            stream = main_stream(container)
            if stream is None:
                raise self._unreadable()
            yield container, stream, stream.time_base or Fraction(1, av.time_base)

    def _unreadable(self) -> InputError:
        return InputError(
            f"video {self.path} cannot be opened",
            hint="check that it plays, or convert it to H.264 in .mp4",
        )


def video_hash(path: Path) -> str:
    """Return what tells a video from another one under its name."""
    return sampled_hash(path, HASH_STRETCHES, HASH_LENGTH)


def main_stream(container: InputContainer) -> VideoStream | None:
    """Return the default stream of pictures that move, and of several the largest; None without
    any.
    """
    still = Disposition.attached_pic | Disposition.timed_thumbnails

    def is_film(stream: VideoStream) -> bool:
        # A stream without a context is of a codec that nothing here decodes.
        is_decodable = bool(stream.codec_context and stream.width)
        return is_decodable and not stream.disposition & still

    def rank(stream: VideoStream) -> tuple[bool, int]:
        return bool(stream.disposition & Disposition.default), stream.width * stream.height

    films = [stream for stream in container.streams.video if is_film(stream)]
    return max(films, key=rank, default=None)


def _stated_duration(
    container: InputContainer, stream: VideoStream, tick: Fraction
) -> Fraction | None:
    """Return the seconds that a stream lasts by its container, None if it states none."""
    if stream.duration is not None:
        return stream.duration * tick
    if container.duration is None:
        return None
    # Containers that know no duration of a stream state their end on the clock that the first frame
    # stands on.
    return Fraction(container.duration, av.time_base) - (stream.start_time or 0) * tick


def _decoded(
    container: InputContainer, stream: VideoStream, lost: set[int | None]
) -> Iterator[av.VideoFrame]:
    """Yield every frame that can be decoded, in the order of display.

    The stamps of the others are collected in ``lost``.
    """
    # Several threads lose frames that are whole, or conceal no damage, where a packet cannot be
    # decoded.
    stream.thread_type = "NONE"
    stream.codec_context.thread_count = 1
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
    """Yield the packets in the order of decoding, and then None.

    None makes the decoder give what it still holds.
    """
    with contextlib.suppress(av.error.FFmpegError):  # the file may end inside a packet
        yield from (packet for packet in container.demux(stream) if packet.size)
    yield None


def upright(frame: av.VideoFrame) -> Image:
    """Return the picture in the nearest of the eight orientations that axes can have."""
    picture = frame.reformat(format="rgb24", interpolation="BICUBIC").to_ndarray()
    matrix: Any = _SIDE_DATA_OF(frame).get("DISPLAYMATRIX")
    if matrix is None:
        return np.ascontiguousarray(picture, np.uint8)
    # Where the stored axes point on the screen: rows are the stored x and y, columns the x and y of
    # the screen.
    axes = np.frombuffer(bytes(matrix), np.int32).reshape(3, 3)[:2, :2].astype(float)
    x_to_x, x_to_y = axes[0]
    y_to_x, y_to_y = axes[1]
    if abs(x_to_y) + abs(y_to_x) > abs(x_to_x) + abs(y_to_y):
        picture = picture.swapaxes(0, 1)
        x_to_x = y_to_x
        y_to_y = x_to_y
    if y_to_y < 0:
        picture = picture[::-1]
    if x_to_x < 0:
        picture = picture[:, ::-1]
    return np.ascontiguousarray(picture, np.uint8)


@dataclass(frozen=True)
class VideoFormat:
    """How videos of a suffix are written."""

    name: str  # for users
    container: str  # FFmpeg's name
    encoders: tuple[str, ...]  # of FFmpeg, the first that this PyAV has is taken
    settings: Mapping[str, str]  # of the encoder
    colour_space: str  # of the frames, by PyAV's name
    # Without bitexact, Matroska files hold a random number, and all hold FFmpeg's version.
    container_settings: Mapping[str, str] = field(default_factory=lambda: {"fflags": "+bitexact"})


VIDEO_FORMATS = {
    # VP8, which every browser plays, is in the colours of BT.601 by definition.
    ".webm": VideoFormat("WebM (VP8)", "webm", ("libvpx",), VP8_SETTINGS, "ITU601"),
    # Players that no browser is take H.264. The index stands first, so that a server can stream it.
    ".mp4": VideoFormat(
        "MP4 (H.264)",
        "mp4",
        ("libx264", "libopenh264"),
        # With "mbtree", x264 reads memory that it never wrote, as Valgrind shows: the same pictures
        # once had other bytes. 24 without it is as sharp as 23 with it.
        {"crf": "24", "preset": "veryfast", "mbtree": "0"},
        "ITU709",
        {"fflags": "+bitexact", "movflags": "+faststart"},
    ),
}
BT709 = 1  # FFmpeg's number of the colour space, its primaries and its transfer


def encode_video(
    path: Path,
    frames: Iterable[tuple[float, Image]],
    fps: float,
    size: tuple[int, int],
    suffix: str = ".webm",
) -> None:
    """Write pictures as a video, each from its time on; the last one is shown for one frame.

    Args:
        path: the video.
        frames: seconds from the first frame, in rising order, and RGB uint8 ``[H, W, 3]``.
        fps: their mean rate.
        size: their height and width, both even.
        suffix: a key of :data:`VIDEO_FORMATS`.

    Raises:
        InputError: there is no encoder.
        OSError: the file cannot be written.
    """
    format = VIDEO_FORMATS[suffix]
    encoders = [name for name in format.encoders if name in av.codecs_available]
    if not encoders:
        raise InputError(
            f"this PyAV has no encoder for {format.name} ({' or '.join(format.encoders)})",
            hint="pip install av",
        )
    # 1001: the denominator of the rates of television, 30000/1001 for instance.
    rate = Fraction(fps).limit_denominator(1001) or Fraction(1, 1001)
    tick = Fraction(1, 1000)  # WebM tells milliseconds apart
    with av.open(
        str(path), "w", format=format.container, options=dict(format.container_settings)
    ) as container:
        stream = container.add_stream(encoders[0], rate=rate, options=dict(format.settings))
        assert isinstance(stream, av.VideoStream)
        stream.height, stream.width = size
        stream.pix_fmt = "yuv420p"
        stream.codec_context.time_base = tick
        if suffix == ".mp4":  # what nobody names, each player guesses by the size of the picture
            stream.codec_context.colorspace = BT709
            stream.codec_context.color_primaries = BT709
            stream.codec_context.color_trc = BT709
        # Without B-frames the last packet is the last frame.
        stream.codec_context.max_b_frames = 0
        stamp = -1
        for time, picture in frames:
            frame = av.VideoFrame.from_ndarray(picture, "rgb24").reformat(
                format="yuv420p", dst_colorspace=format.colour_space
            )
            stamp = max(stamp + 1, round(Fraction(time) / tick))
            frame.pts = stamp
            frame.time_base = tick
            container.mux(stream.encode(frame))
        for packet in stream.encode():
            if packet.pts == stamp:
                packet.duration = round(1 / rate / tick)
            container.mux(packet)
