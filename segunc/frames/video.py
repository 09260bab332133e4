"""Frames of a video file, decoded by FFmpeg through PyAV as a stream, one frame in memory at a time."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from segunc.core.errors import InputError
from segunc.data.images import Image
from segunc.frames.source import ALL_FRAMES, Frame, FrameSource, Selection, Skip, format_time, sampled_hash

if TYPE_CHECKING:
    import av
    from av.container import InputContainer
    from av.video.stream import VideoStream

MISSING_TOLERATED = 0.02
"""Share of the stated duration that may be missing at the end: a duration is often that of the sound."""
HASH_STRETCHES, HASH_LENGTH = 32, 1 << 16
"""How many stretches of a video, of how many bytes, its hash reads."""
STEP_BACK, LONGEST_GAP = 0.1, 10
"""Seconds by which stamps of one clock may jump back, and forward where a clock may start anew, as in FFmpeg's own programs."""
USUAL_RATE = Fraction(25)
"""Frames a second where the container states no rate."""


class VideoSource(FrameSource):
    """Frames of a video in the order of display, turned and mirrored as the container states.

    The stream is the one marked as default, and of several the largest; cover pictures and previews never are. Pixels are
    those that are stored: where they are not square, nothing is stretched. Frames are named by their number in the video,
    whatever is selected. Those before the start of the selection are decoded too (not converted): no container states the
    number of the frame at a moment.

    Each frame has the time that the container states, so a variable frame rate is kept, and times increase: a clock that jumps
    back, as in joined transport streams, goes on one frame after the last. A jump forward is kept as a pause of the camera, but
    for one of more than 10 s in formats whose clock may start anew.

    A stream that ends well before its stated duration (more than 2 % and more than three frames early), or of which frames could
    not be decoded, closes with one frame that carries an error. Damage that the decoder conceals inside frames is not visible here.

    InputError where the video or its first frame cannot be decoded, or it ends before the selection starts; where only its
    last frame tells the end, then.
    """

    kind = "video"

    def __init__(self, path: Path, selection: Selection = ALL_FRAMES) -> None:
        import av

        self.path, self.selection = path, selection
        with self._opened() as (container, stream, base):
            self.fps = float(stream.average_rate or 0) or None
            stated = None if stream.duration is None else stream.duration * base
            if stated is None and container.duration is not None:
                # Containers that know no duration of a stream state their end on the clock that the first frame stands on.
                stated = Fraction(container.duration, av.time_base) - (stream.start_time or 0) * base
            # A file that was cut without encoding it anew also counts frames that its edit list hides.
            by_duration = int(float(stated) * self.fps + 0.5) if stated and self.fps else 0
            counts = [count for count in (stream.frames, by_duration) if count > 0]
            # Where a clock may start anew, the end is an estimate.
            self._end = None if stated is None or _may_restart(container) else float(stated)
            if next(_decoded(container, stream, set()), None) is None:
                raise self._unreadable()
        if self._end is not None:
            self._require_start(self._end)
        if counts:
            self.length_hint = selection.expected(min(counts), self.fps)

    def name_of(self, index: int) -> str | None:
        return f"{index * self.selection.every:06d}"

    def position(self, name: str) -> int | None:
        place, rest = divmod(int(name), self.selection.every) if name.isdecimal() else (0, 1)
        return None if rest else place

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
                if self.selection.takes(number, time) and not (skip is not None and skip(index, name)):
                    yield Frame(name, index, _upright(decoded), time=time)
        end, reasons = float(last + step), list[str]()
        if lost:
            reasons.append(f"frames of the video that are damaged and cannot be decoded: {len(lost)}")
        if self._end is not None and self._end - end > max(3.5 * step, MISSING_TOLERATED * self._end):
            reasons.append(f"video ends at frame {count}, {format_time(self._end - end)} before its stated end")
        if reasons:
            index = -(-count // self.selection.every)
            yield Frame(self.name_of(index) or "", index, None, f"{self.path}: {'; '.join(reasons)}")
        else:
            self._require_start(end)

    def _require_start(self, end: float) -> None:
        if self.selection.start is not None and self.selection.start >= end:
            start = format_time(self.selection.start)
            raise InputError(
                f"video {self.path} ends at {format_time(end)}, before the start at {start}", hint="an earlier --start"
            )

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "input_hash": video_hash(self.path)}

    @contextlib.contextmanager
    def _opened(self) -> Iterator[tuple[InputContainer, VideoStream, Fraction]]:
        """Open the file; yield it, its main stream and the seconds of one tick of the stream's clock."""
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

            def rank(film: VideoStream) -> tuple[bool, int]:
                # A stream without a context is of a codec that nothing here decodes.
                size = film.width * film.height if film.codec_context else 0
                return bool(film.disposition & Disposition.default), size

            stream = max(films, key=rank, default=None)
            if stream is None or not rank(stream)[1]:
                raise self._unreadable()
            yield container, stream, stream.time_base or Fraction(1, av.time_base)

    def _unreadable(self) -> InputError:
        hint = "check that it is complete and plays, or convert it, for example to H.264 in .mp4"
        return InputError(f"video {self.path} cannot be opened", hint=hint)


def video_hash(path: Path) -> str:
    """Return what tells a video from another one under its name."""
    return sampled_hash(path, HASH_STRETCHES, HASH_LENGTH)


def _may_restart(container: InputContainer) -> bool:
    """Return whether the clock of a container's format may start anew within a file, as in transport streams."""
    from av.format import Flags

    return Flags.ts_discont in Flags(container.format.flags)


def _decoded(container: InputContainer, stream: VideoStream, lost: set[int | None]) -> Iterator[av.VideoFrame]:
    """Yield every frame that can be decoded, in the order of display, and collect in ``lost`` the stamps of the others."""
    import av

    # Several threads lose frames that are whole, or conceal no damage, where a packet cannot be decoded.
    stream.thread_type, stream.codec_context.thread_count = "NONE", 1
    begun = False
    for packet in _packets(container, stream):
        frames: list[av.VideoFrame] = []
        try:
            frames = stream.decode(packet)
        except av.error.FFmpegError:
            # What stands before the first key frame, or is hidden by an edit list, was never meant to be shown.
            if begun and packet is not None and not packet.is_discard:
                lost.add(packet.pts if packet.pts is not None else packet.dts)
        for frame in frames:
            begun = True
            lost.discard(frame.pts)  # a packet without a picture beside that of its moment
            yield frame


def _packets(container: InputContainer, stream: VideoStream) -> Iterator[av.Packet[VideoStream] | None]:
    """Yield the packets in the order of decoding, by a clock that neither starts anew nor leaves a long gap, and then None, which
    makes the decoder give what it still holds."""
    import av

    base = stream.time_base or Fraction(1, av.time_base)
    step = round(1 / (stream.average_rate or USUAL_RATE) / base)
    forward = LONGEST_GAP if _may_restart(container) else math.inf
    packets, last, shift = container.demux(stream), None, 0
    with contextlib.suppress(av.error.FFmpegError):  # the file may end inside a packet
        for packet in packets:
            if not packet.size:
                continue
            if packet.dts is not None:
                if last is not None and not -STEP_BACK <= (packet.dts - last) * base <= forward:
                    shift += last + step - packet.dts
                last = packet.dts
                packet.dts += shift
                packet.pts = None if packet.pts is None else packet.pts + shift
            yield packet
    yield None


def _display_matrix(frame: av.VideoFrame) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Return where the stored axes point on the screen: rows are the stored x and y, columns the x and y of the screen."""
    matrix: Any = frame.side_data.get("DISPLAYMATRIX")
    return np.eye(2) if matrix is None else np.frombuffer(bytes(matrix), np.int32).reshape(3, 3)[:2, :2].astype(float)


def _upright(frame: av.VideoFrame) -> Image:
    """Return the picture in the nearest of the eight orientations that axes can have."""
    picture = frame.reformat(format="rgb24", interpolation="BICUBIC").to_ndarray()
    (a, b), (c, d) = _display_matrix(frame)
    if abs(b) + abs(c) > abs(a) + abs(d):
        picture, a, d = picture.swapaxes(0, 1), c, b
    picture = picture[:, ::-1] if a < 0 else picture
    return np.ascontiguousarray(picture[::-1] if d < 0 else picture, np.uint8)
