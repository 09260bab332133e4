"""Frames of a video file, decoded by FFmpeg through PyAV as a stream, one frame in memory at a time."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from segunc.core.errors import InputError
from segunc.data.images import Image
from segunc.frames.sources import (
    ALL_FRAMES,
    Frame,
    FrameSource,
    Selection,
    Skip,
    format_time,
    sampled_hash,
)

if TYPE_CHECKING:
    import av
    from av.container import InputContainer
    from av.video.stream import VideoStream

MISSING_TOLERATED = 0.02
"""Share of the stated duration that may be missing at the end: a duration is often that of the sound."""
HASH_STRETCHES, HASH_LENGTH = 32, 1 << 16
"""How many stretches of a video, of how many bytes, its hash reads."""
LONGEST_GAP = 10
"""Seconds that a clock may jump forward in a container whose clock may start anew, as in FFmpeg's own programs."""
SMALL_STEP_BACK = 0.1
"""Seconds by which stamps may jump back and still be of one clock, as in FFmpeg's own programs."""
USUAL_RATE = Fraction(25)
"""Frames a second where the container states no rate."""
Retrieve = Callable[[], Image]
"""Converts the frame that was just decoded to upright RGB uint8 ``[H, W, 3]``."""


class Decoder:
    """Decode the main video stream of a file, each call of :meth:`frames` from its first frame.

    The main stream is the one marked as default, and of several the largest; cover pictures and previews never are.

    Attributes:
        fps: mean frames a second, None where the container states none.
        count: number of frames to expect, None where nothing tells.
        duration: seconds from the first frame to the stated end, None where no end is stated. Formats whose clock may
            start anew (transport streams) only have an estimate of their end, which is left out.
        unlike_before: what earlier versions read otherwise: another stream, no mirroring.
        lost: number of frames of the last call of :meth:`frames` that could not be decoded.

    InputError where no frame can be decoded.
    """

    def __init__(self, path: Path) -> None:
        import av

        self.path, self.lost = path, 0
        with self._opened() as (container, stream):
            self.fps = float(stream.average_rate or 0) or None
            of_stream = None if stream.duration is None or not stream.time_base else stream.duration * stream.time_base
            # Containers that know no duration of a stream state their end on the clock that the first frame stands on.
            start = (stream.start_time or 0) * (stream.time_base or 0)
            of_file = None if container.duration is None else Fraction(container.duration, av.time_base) - start
            stated = of_stream or of_file
            self.duration = None if stated is None or _may_restart(container) else float(stated)
            counts = [] if stated is None or self.fps is None else [int(float(stated) * self.fps + 0.5)]
            # A file that was cut without encoding it anew also holds frames that its edit list hides.
            self.count = min([*counts, *([stream.frames] if stream.frames > 0 else [])], default=0) or None
            first = next(self._decoded(container, stream), None)
            if first is None:
                raise self._unreadable()
            self.unlike_before: dict[str, Any] = {}
            if stream != container.streams.video[0]:
                self.unlike_before["stream"] = stream.index
            if np.linalg.det(_display_matrix(first)) < 0:
                self.unlike_before["mirrored"] = True

    def frames(self) -> Iterator[tuple[float, Retrieve]]:
        """Yield for each frame its seconds since the first moment of the stream, which increase, and its picture.

        A clock that jumps back, as in joined transport streams, goes on one frame after the last. A jump forward is kept
        as a pause of the camera, but for more than :data:`LONGEST_GAP` in formats whose clock may start anew. A frame
        whose time is unknown, or not after that of the frame before, stands one frame after it.
        """
        with self._opened() as (container, stream):
            start, last = (stream.start_time or 0) * (stream.time_base or Fraction(0)), None
            for frame in self._decoded(container, stream):
                stamp, base = frame.pts if frame.pts is not None else frame.dts, frame.time_base or stream.time_base
                time = Fraction(0) if stamp is None or base is None else max(stamp * base - start, Fraction(0))
                last = time if last is None or time > last else last + 1 / (stream.average_rate or USUAL_RATE)
                yield round(float(last), 6), partial(_upright, frame)

    def _decoded(self, container: InputContainer, stream: VideoStream) -> Iterator[av.VideoFrame]:
        """Every frame that can be decoded, in the order of display; :attr:`lost` counts the others."""
        import av

        # Several threads lose frames that are whole, or conceal no damage, where a packet cannot be decoded.
        stream.thread_type, stream.codec_context.thread_count = "NONE", 1
        packets, failed, begun = container.demux(stream), set[int | None](), False
        clock = _Clock(stream, LONGEST_GAP if _may_restart(container) else math.inf)
        self.lost = 0
        while True:
            try:
                packet = next(packets, None)
            except av.error.FFmpegError:  # the file may end inside a packet
                packet = None
            if packet is not None and not packet.size:
                continue
            if packet is not None:
                clock.correct(packet)
            try:
                frames = stream.decode(packet)  # None gives what the decoder still holds
            except av.error.FFmpegError:
                frames = []
                # What stands before the first key frame, or is hidden by an edit list, was never meant to be shown.
                if begun and packet is not None and not packet.is_discard:
                    failed.add(packet.pts if packet.pts is not None else packet.dts)
            begun = begun or bool(frames)
            for frame in frames:
                failed.discard(frame.pts)
                yield frame
            self.lost = len(failed)
            if packet is None:
                return

    @contextlib.contextmanager
    def _opened(self) -> Iterator[tuple[InputContainer, VideoStream]]:
        import av
        from av.stream import Disposition

        av.logging.set_level(None)  # our one line says it
        try:
            container = av.open(str(self.path), metadata_errors="replace")
        except (av.error.FFmpegError, OSError) as error:
            raise self._unreadable() from error
        with container:
            no_film = Disposition.attached_pic | Disposition.timed_thumbnails
            films = [stream for stream in container.streams.video if not stream.disposition & no_film]
            known = [stream for stream in films if stream.codec_context is not None]  # None: no decoder knows it
            if not known:
                raise self._unreadable()
            yield (
                container,
                max(known, key=lambda s: (bool(s.disposition & Disposition.default), s.width * s.height)),
            )

    def _unreadable(self) -> InputError:
        remedy = "check that it plays, or convert it (for example to H.264 in .mp4)"
        return InputError(
            f"video {self.path} cannot be opened", "a complete video with a codec that FFmpeg decodes", remedy
        )


class _Clock:
    """Shift the stamps of packets, in the order of decoding, so that their clock neither starts anew nor leaves a long gap."""

    def __init__(self, stream: VideoStream, longest_gap: float) -> None:
        self._base = stream.time_base or Fraction(1)
        self._step = round(1 / (stream.average_rate or USUAL_RATE) / self._base)
        self._longest_gap, self._last, self._shift = longest_gap, None, 0

    def correct(self, packet: av.Packet) -> None:
        """Correct the stamps of the next packet."""
        if packet.dts is None:
            return
        if (
            self._last is not None
            and not -SMALL_STEP_BACK <= (packet.dts - self._last) * self._base <= self._longest_gap
        ):
            self._shift += self._last + self._step - packet.dts
        self._last = packet.dts
        packet.dts += self._shift
        packet.pts = None if packet.pts is None else packet.pts + self._shift


class VideoSource(FrameSource):
    """Frames of a video in the order of display, turned and mirrored as the container states.

    Each frame has the time that the container states, so a variable frame rate is kept; times always increase
    (:meth:`Decoder.frames`). Pixels are those that are stored: where they are not square, nothing is stretched. A stream
    that ends well before its stated duration (more than 2 % and more than three frames early), or of which frames could
    not be decoded, closes with one frame that carries an error. Damage that the decoder conceals inside frames is not
    visible here.

    Frames are named by their number in the video, whatever is selected. Those before the start of the selection are decoded
    too (not converted): no container states the number of the frame at a moment.

    InputError where the video or its first frame cannot be decoded, or it ends before the selection starts; where only its
    last frame tells the end, then.
    """

    kind = "video"

    def __init__(self, path: Path, selection: Selection = ALL_FRAMES) -> None:
        self.path, self.selection = path, selection
        self._decoder = Decoder(path)
        self.fps, frames, duration = self._decoder.fps, self._decoder.count, self._decoder.duration
        if duration is not None:
            self._require_start(duration)
        self.length_hint = None if frames is None else selection.expected(frames, self.fps)

    def name_of(self, index: int) -> str | None:
        return f"{index * self.selection.every:06d}"

    def position(self, name: str) -> int | None:
        place, rest = divmod(int(name), self.selection.every) if name.isdecimal() else (0, 1)
        return None if rest else place

    def frames(self, skip: Skip | None = None) -> Iterator[Frame]:
        count, last = 0, 0.0
        for number, (last, retrieve) in enumerate(self._decoder.frames()):
            count, index, name = number + 1, number // self.selection.every, f"{number:06d}"
            if self.selection.is_past(last):
                return
            if not self.selection.takes(number, last) or (skip is not None and skip(index, name)):
                continue
            yield Frame(name, index, retrieve(), time=last)
        reasons, frame = [], 1 / (self.fps or float(USUAL_RATE))
        if lost := self._decoder.lost:
            reasons.append(f"frames of the video that are damaged and cannot be decoded: {lost}")
        if (duration := self._decoder.duration) is not None and self.fps is not None:
            missing = duration - (last + frame)
            if missing > max(3.5 * frame, MISSING_TOLERATED * duration):
                reasons.append(f"video ends at frame {count}, {format_time(missing)} before its stated end")
        if reasons:
            index = -(-count // self.selection.every)
            name = f"{index * self.selection.every:06d}"
            yield Frame(name, index, None, f"{self.path}: {'; '.join(reasons)}")
        else:
            self._require_start(last + frame)

    def _require_start(self, end: float) -> None:
        if self.selection.start is not None and self.selection.start >= end:
            start = format_time(self.selection.start)
            given = f"a start at {start} of video {self.path}, which ends at {format_time(end)}"
            raise InputError(given, "a moment of the video", "give an earlier --start")

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "decoder": "pyav"}

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "input_hash": video_hash(self.path), **self._decoder.unlike_before}


def video_hash(path: Path) -> str:
    """What tells a video from another one under its name."""
    return sampled_hash(path, HASH_STRETCHES, HASH_LENGTH)


def _may_restart(container: InputContainer) -> bool:
    """Whether the clock of a container's format may start anew within a file, as in transport streams."""
    from av.format import Flags

    return Flags.ts_discont in Flags(container.format.flags)


def _display_matrix(frame: av.VideoFrame) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Where the stored axes point on the screen: rows are the stored x and y, columns the x and y of the screen."""
    stated = frame.side_data.get("DISPLAYMATRIX")
    return np.eye(2) if stated is None else np.frombuffer(bytes(stated), np.int32).reshape(3, 3)[:2, :2].astype(float)


def _upright(frame: av.VideoFrame) -> Image:
    """The picture in the nearest of the eight orientations that axes can have."""
    picture = frame.reformat(format="rgb24", interpolation="BICUBIC").to_ndarray()
    (a, b), (c, d) = _display_matrix(frame)
    if abs(b) + abs(c) > abs(a) + abs(d):
        picture, a, d = picture.swapaxes(0, 1), c, b
    picture = picture[:, ::-1] if a < 0 else picture
    return np.ascontiguousarray(picture[::-1] if d < 0 else picture, np.uint8)
