"""Frames that come while they are processed: from a network stream, a camera, a pipe, a folder that
is being filled, or a video at its own pace.

A thread of its own reads them (:class:`Reader`) into a queue of bounded length (:class:`Inbox`), so
that a slow consumer gets new frames and not old ones. What the queue drops is counted. The reader
connects again where a stream ends or stalls.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import threading
import time
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

import av
import numpy as np
from av.container import InputContainer
from av.format import Flags
from av.video.stream import VideoStream

from segunc.core.errors import InputError, one_line
from segunc.core.files import frame_order, nearest_path, shown_name
from segunc.core.urls import CAMERA, PIPE, STREAM_SCHEMES, is_url, shown_url
from segunc.data.image_files import IMAGE_SUFFIXES
from segunc.data.images import Image, read_image
from segunc.frames.listing import (
    UNREAD_SUFFIXES,
    VIDEO_SUFFIXES,
    Listing,
    is_video,
    left_out,
)
from segunc.frames.video import LENIENT, main_stream, upright

LiveKind = Literal["stream", "camera", "pipe", "folder", "video"]
Drop = Literal["newer", "late", "damaged", "size", "failed", "end"]
"""Why a frame that was read has no result: a newer one took its place in the queue, it was too old
when its turn came, it could not be decoded whole, it has another size than the first frame, the
network refused it, or the run ended before its turn.
"""
MP4_IN_A_PIPE = (
    "an MP4 file whose index is at its end cannot be read from a pipe: name the file, or send "
    "MPEG-TS"
)
TIMES_DECIDE = (
    "If that is not when it was taken, the times of alarms, alarms per hour and the frames that "
    "the monitor compares are wrong"
)
FIRST_WAIT = 0.5  # seconds before the first attempt to connect again; each further wait doubles
LONGEST_WAIT = 30.0
SCAN_SECONDS = 0.2  # between two looks into a folder
NO_FRAMES = frozenset({*VIDEO_SUFFIXES, *UNREAD_SUFFIXES})
"""Endings of files in a folder that hold pictures and are no frames (any case)."""
SETTLED_SECONDS = 2.0  # a file that does not change for so long and is not whole is damaged
REPEATS = 3
"""Frames in a row with the time of the frame before, from which on a stream's clock counts as one
that stands still."""
JUMP_SECONDS = 60.0
"""Seconds by which a stream's clock may run ahead of that of this machine from one frame to the
next, and the time of a file ahead of that clock. Streams that come in bursts run ahead, too, but
not between two frames."""
FilePlace = tuple[float, str]
"""Time of the last change and name of a file: its place among the files of a folder."""
FileState = tuple[int, int]
"""Bytes of a file, and the nanoseconds of its last change."""
LAG_SECONDS = 300.0
"""How long the fastest frame is remembered by which the delay of others is measured. Clocks of
cameras drift, so it is not kept for ever."""


class StreamError(InputError):
    """A source cannot be opened or read on.

    Attributes:
        what: ``unreachable``, ``stalled`` or ``broken``.
    """

    what: Literal["unreachable", "stalled", "broken"] = "broken"


@dataclass(frozen=True, eq=False)
class Arrival:
    """A frame as a source gives it; it is converted when its turn comes."""

    image: Callable[[], Image]
    """Converts it to RGB uint8 ``[H, W, 3]``."""
    arrived: float
    """When it was there, before it was decoded, by ``time.monotonic``."""
    wall: float
    """The same in seconds since 1970."""
    stamp: float | None = None
    """Its presentation time in seconds, on the stream's own clock; of a file of a folder the time
    of its last change."""
    name: str = ""
    """Of the file in a folder."""
    behind: float = 0.0
    """Seconds by which it came later than the fastest frame of the last minutes, by the stream's
    clock: what waited on its way before this program could see it."""
    clock: int = 0
    """Number of the stream's clock in this connection, see :class:`ClockNumber`. Of a file of a
    folder 1 where its time has not come yet, else 0."""
    taken_up_to: FilePlace | None = None
    """The last file of a folder up to which, in the order of their times, all files that are there
    were taken; None where there is none."""


@dataclass(frozen=True)
class DamagedFile:
    """A file of a folder that cannot be decoded whole and no longer changes."""

    name: str
    number: int = -1
    """Its number among all frames, which the inbox gives it."""


@dataclass(frozen=True)
class LeftOut:
    """Files of a folder that are no frames, of a kind that was not there before."""

    text: str
    """How many they are, which is the first, and what to do."""


@dataclass(frozen=True, eq=False)
class LiveFrame:
    """A frame that was read, with its number among all that were."""

    number: int
    arrival: Arrival

    @property
    def age(self) -> float:
        """Seconds since it could have been read."""
        return time.monotonic() - self.arrival.arrived + self.arrival.behind


@dataclass(frozen=True)
class Gap:
    """What happened to the connection."""

    what: Literal["connected", "ended", "unreachable", "stalled", "broken"]
    reason: str = ""
    attempt: int = 0
    """Number of the attempt to connect again that follows; 0 for none."""
    wait: float = 0.0
    """Seconds until then."""


@dataclass(frozen=True)
class Finish:
    """The source gives no more frames."""

    failure: str = ""
    """Why, where this is a failure."""
    error: BaseException | None = None
    """What the reader raised."""


class LiveSource(ABC):
    """Where frames come from."""

    kind: LiveKind
    shown: str
    """What messages and records call it, without passwords."""
    reconnects: bool = False
    """Whether it is opened again where it ends."""
    can_wait: bool = True
    """Whether frames wait at the source until they are read, so that none need be dropped."""

    @abstractmethod
    def arrivals(
        self, stopped: threading.Event
    ) -> Iterator[Arrival | DamagedFile | LeftOut | None]:
        """Open the source and yield its frames until it ends or ``stopped`` is set; None stands for
        a frame that is damaged and has no name.

        Raises:
            StreamError: it cannot be opened or read on.
        """

    def awaited(self) -> str:
        """Return what a user should know of which frames are awaited; else an empty text."""
        return ""

    def clock(self) -> str:
        """Return what a user should know of the times of frames, once the first frame came; empty
        where the source gives a time with each frame.
        """
        return ""


class Lag:
    """By how much frames come later than the fastest of the last minutes, on two clocks.

    If the stream's clock goes back, the measurement begins again. A clock that stands still says
    nothing.
    """

    def __init__(self) -> None:
        self._least = [np.inf, np.inf]  # arrival minus stamp: of the last period, and of this one
        self._since: float | None = None
        self._last_stamp = -np.inf
        self._repeats = 0  # frames in a row with the stamp of the frame before

    def behind(self, arrived: float, stamp: float | None) -> float:
        """Return the seconds by which a frame is late.

        Args:
            arrived: when the frame came.
            stamp: when it was due, on the stream's clock; None where the stream does not say.

        >>> lag = Lag()
        >>> [lag.behind(arrived, stamp) for arrived, stamp in [(7.0, 0.0), (8.5, 1.0), (9.0, 2.0)]]
        [0.0, 0.5, 0.0]
        """
        if stamp is None:
            return 0.0
        if stamp == self._last_stamp:
            self._repeats += 1
            return 0.0
        if stamp < self._last_stamp or self._repeats >= REPEATS:
            self._least = [np.inf, np.inf]
            self._since = arrived
        self._last_stamp = stamp
        self._repeats = 0
        if self._since is None or arrived - self._since > LAG_SECONDS:
            self._least = [self._least[1], np.inf]
            self._since = arrived
        self._least[1] = min(self._least[1], arrived - stamp)
        return float(arrived - stamp - min(self._least))


class ClockNumber:
    """Numbers the clocks of a connection: where the times of its frames jump ahead, as where its
    sender begins again, another clock begins.
    """

    def __init__(self) -> None:
        self._number = 0
        self._last: tuple[float, float] | None = None  # arrival and stamp of the frame before

    def of(self, arrived: float, stamp: float | None) -> int:
        """Return the number of the clock of the next frame.

        Args:
            arrived: when the frame came.
            stamp: its time on the stream's clock; None where the stream does not say.

        >>> clocks = ClockNumber()
        >>> [clocks.of(arrived, stamp) for arrived, stamp in [(7.0, 0.0), (8.0, 1.0), (9.0, 5e4)]]
        [0, 0, 1]
        """
        if stamp is None:
            return self._number
        if self._last is not None:
            last_arrived, last_stamp = self._last
            if stamp - last_stamp - (arrived - last_arrived) > JUMP_SECONDS:
                self._number += 1
        self._last = arrived, stamp
        return self._number


class AvSource(LiveSource):
    """What FFmpeg opens: a network stream, a camera, standard input, or a video file.

    Pictures are decoded and turned as those of :class:`segunc.frames.video.VideoSource`, so frames
    of one video are the same here and there. Frames that the decoder marks as damaged are none.
    """

    def __init__(
        self,
        kind: LiveKind,
        shown: str,
        address: str,
        *,
        container: str | None = None,
        settings: Mapping[str, str] | None = None,
        timeout: float | None = None,
        real_time: bool = False,
    ) -> None:
        """Describe a source; nothing is opened.

        Args:
            kind: of the source.
            shown: what messages call it.
            address: what FFmpeg opens; it may hold a password.
            container: FFmpeg's name of the format; None lets FFmpeg find out.
            settings: options of FFmpeg by name.
            timeout: seconds without data after which the stream has stalled; None for ever.
            real_time: give the frames of a file at their own times.
        """
        self.kind = kind
        self.shown = shown
        self.reconnects = kind in ("stream", "camera")
        self.can_wait = not self.reconnects
        self._address = address
        self._container = container
        self._settings = dict(settings or {})
        self._timeout = timeout
        self._real_time = real_time
        self._clock = ""

    def clock(self) -> str:
        return self._clock

    def arrivals(self, stopped: threading.Event) -> Iterator[Arrival | None]:
        lag = Lag()
        clocks = ClockNumber()
        begun = False
        with self._opened() as (container, stream):
            tick = self._tick_of(container, stream)
            if self.kind != "video":
                self._clock = self._clock_of(container, stream)
            pace = _Pace()
            for packet in self._packets(container, stream):
                if stopped.is_set():
                    return
                arrived = time.monotonic()
                wall = time.time()
                frames = _decoded(stream, packet)
                # What stands before the first key frame was never meant to be shown.
                if frames is None and begun:
                    yield None
                for frame in frames or ():
                    begun = True
                    if frame.is_corrupt or packet.is_corrupt:
                        yield None
                        continue
                    stamp = _stamp_of(frame, tick)
                    if self._real_time and stamp is not None:
                        if not pace.wait_for(stamp, stopped):
                            return
                        arrived = time.monotonic()
                        wall = time.time()
                    yield Arrival(
                        image=partial(upright, frame),
                        arrived=arrived,
                        wall=wall,
                        stamp=stamp,
                        behind=lag.behind(arrived, stamp) if self.reconnects else 0.0,
                        clock=clocks.of(arrived, stamp) if self.reconnects else 0,
                    )

    def _tick_of(self, container: InputContainer, stream: VideoStream) -> float | None:
        """Return the seconds of one unit of the times of frames; None where frames have no times.

        Some formats count frames, and their times are a guess that no clock follows.
        """
        if self.kind != "video" and not self._has_rate and _has_no_times(container):
            return None
        return float(stream.time_base or 0) or 1 / av.time_base

    @property
    def _has_rate(self) -> bool:
        """Whether the user states the frame rate of pictures in a pipe, which loses none."""
        return self.kind == "pipe" and "framerate" in self._settings

    def _clock_of(self, container: InputContainer, stream: VideoStream) -> str:
        """Return what a user should know of the times of frames, see :meth:`clock`."""
        name = container.format.name
        if self._has_rate:
            return ""
        if _has_no_times(container):
            source = "at which it came"
        elif name.endswith("pipe") and name != "yuv4mpegpipe":  # which holds the frame rate
            source = f"that {float(stream.average_rate or 25):g} frames a second give it"
        else:
            return ""
        hint = "A container such as MPEG-TS holds times"
        if self.kind == "pipe":
            hint += ", and --stream-options framerate=10 states the frame rate"
        return (
            f"{self.shown} ({name}) holds no times of its frames, so a frame has the time "
            f"{source}. {TIMES_DECIDE}. {hint}"
        )

    @contextlib.contextmanager
    def _opened(self) -> Iterator[tuple[InputContainer, VideoStream]]:
        """Open the source, and yield it and its main stream."""
        av.logging.set_level(None)  # our one line says it
        try:
            container = av.open(
                self._address,
                format=self._container,
                options=self._settings,
                timeout=self._timeout,
                **LENIENT,
            )
        except (av.error.FFmpegError, OSError, ValueError) as error:
            # FFmpeg names the address in its errors, with the password.
            raise self._unreachable(error) from None
        with container:
            stream = main_stream(container)
            if stream is None:
                hint = "check what it sends"
                if self.kind == "pipe":
                    hint += f"; {MP4_IN_A_PIPE}"
                raise _fault("broken", f"{self.shown} holds no video", hint)
            # Several threads hold frames back, and conceal damage.
            stream.thread_type = "NONE"
            stream.codec_context.thread_count = 1
            yield container, stream

    def _packets(
        self, container: InputContainer, stream: VideoStream
    ) -> Iterator[av.Packet[VideoStream]]:
        """Yield the packets in the order of decoding; the last is empty, and makes the decoder give
        what it still holds.
        """
        try:
            yield from container.demux(stream)
        except av.error.ExitError:
            raise _fault("stalled", f"{self.shown} gave no data for {self._timeout:g} s") from None
        except (av.error.FFmpegError, OSError) as error:
            raise _fault("broken", f"{self.shown} broke off ({_reason_of(error)})") from None

    def _unreachable(self, error: Exception) -> StreamError:
        """Return the error for a source that cannot be opened."""
        if isinstance(error, av.error.ExitError):
            return _fault(
                "unreachable",
                f"{self.shown} does not answer within {self._timeout:g} s",
                "check that it sends, or give a larger --stall",
            )
        reason = _reason_of(error)
        if self.kind == "camera":
            return _fault(
                "unreachable",
                f"camera {self.shown} cannot be opened ({reason})",
                "ls /dev/video* shows the cameras of this machine",
            )
        return _fault(
            "unreachable",
            f"{self.shown} cannot be opened as a video stream ({reason})",
            "check that it plays: ffplay shows what FFmpeg says of it",
        )


def _decoded(stream: VideoStream, packet: av.Packet[VideoStream]) -> list[av.VideoFrame] | None:
    """Return the frames of a packet; None where it is damaged."""
    try:
        return stream.decode(packet)
    except av.error.FFmpegError:
        return None


def _stamp_of(frame: av.VideoFrame, tick: float | None) -> float | None:
    """Return the time of a frame in seconds, where it has one."""
    stated = frame.pts if frame.pts is not None else frame.dts
    if tick is None or stated is None:
        return None
    return round(stated * tick, 6)


def _has_no_times(container: InputContainer) -> bool:
    """Return whether a format holds no times of its frames, as pictures of a web camera."""
    return Flags.no_timestamps in Flags(container.format.flags)


class _Pace:
    """Waits until frames of a file are due."""

    def __init__(self) -> None:
        self._start: float | None = None

    def wait_for(self, stamp: float, stopped: threading.Event) -> bool:
        """Wait for the moment of a frame; return False where ``stopped`` was set meanwhile."""
        if self._start is None:
            self._start = time.monotonic() - stamp
        return not stopped.wait(max(0.0, self._start + stamp - time.monotonic()))


class FolderSource(LiveSource):
    """Images that appear in a folder, in the order of their names among those that a look finds.

    A file is taken when it can be decoded whole. One that is not whole and does not change for a
    while is damaged until it changes. What a file that was taken holds later is not taken, which is
    told once. Names of the files that are there are kept in memory, and no others. Videos, and
    pictures of formats that are not read, are no frames: each kind is told once.
    """

    kind: LiveKind = "folder"
    reconnects = True  # a folder on another machine may be away for a while

    def __init__(self, folder: Path, after: FilePlace | None = None) -> None:
        """Describe a source.

        Args:
            folder: with the images; folders in it are not looked into.
            after: the file up to which an earlier run took all. Of the files that are there at
                first, those up to it count as taken. Files that come later were not there to be
                taken, whatever their times.
        """
        self.shown = shown_name(str(folder))
        self._folder = folder
        self._after = after
        self._is_passing_over = after is not None
        self._taken: dict[str, FileState] = {}
        self._damaged: dict[str, FileState] = {}
        self._growing: dict[str, tuple[float, FileState]] = {}
        self._has_told_change = False
        self._told_suffixes: set[str] = set()  # of files that are no frames

    def arrivals(
        self, stopped: threading.Event
    ) -> Iterator[Arrival | DamagedFile | LeftOut | None]:
        while not stopped.is_set():
            files, others = self._look()
            for text in left_out(self._folder, others):
                yield LeftOut(shown_name(text))
            if self._is_passing_over and files:
                self._is_passing_over = False
                self._pass_over(files)
            names = {name for name, _ in files}
            self._taken = {name: state for name, state in self._taken.items() if name in names}
            self._damaged = {name: state for name, state in self._damaged.items() if name in names}
            self._growing = {name: seen for name, seen in self._growing.items() if name in names}
            order = _TakingOrder()
            for name, status in files:
                # After a restart, files that came meanwhile would count as taken before this one.
                if not _is_to_come(status):
                    order.add(_place_of(name, status), waits=not self._is_done(name, status))
            for name, status in files:
                if stopped.is_set():
                    return
                yield from self._take(name, status, order)
            stopped.wait(SCAN_SECONDS)

    def clock(self) -> str:
        return (
            f"the images of {self.shown} hold no times, so a frame has the time at which its file "
            f"was last changed. {TIMES_DECIDE}. Copy images with their times (cp -p), or watch a "
            "video"
        )

    def awaited(self) -> str:
        if self._after is not None:
            return (
                f"the watch goes on after {self._after[1]}; images that are there and whose files "
                "were changed before it count as taken (touch gives a file the time of now)"
            )
        with contextlib.suppress(OSError):
            names = os.listdir(self._folder)
            if not any(name.lower().endswith(IMAGE_SUFFIXES) for name in names):
                return (
                    f"{self.shown} holds no image yet, and the watch waits for images there; "
                    "folders in it are not looked into"
                )
        return ""

    def _look(self) -> tuple[list[tuple[str, os.stat_result]], Listing]:
        """Return the images with their status, and the files that are no frames, of kinds that were
        not told yet.
        """
        files = []
        names_of_others = []
        try:
            with os.scandir(self._folder) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    if not entry.name.lower().endswith(IMAGE_SUFFIXES):
                        suffix = Path(entry.name).suffix.lower()
                        is_told = suffix in self._told_suffixes
                        if suffix in NO_FRAMES and not is_told and entry.is_file():
                            names_of_others.append(entry.name)
                        continue
                    with contextlib.suppress(FileNotFoundError):
                        status = entry.stat()
                        if stat.S_ISREG(status.st_mode):
                            files.append((entry.name, status))
        except OSError as error:
            raise _fault(
                "unreachable", f"folder {self.shown} cannot be read ({error.strerror})"
            ) from error
        files.sort(key=lambda file: frame_order(file[0]))
        return files, self._list_others(names_of_others)

    def _list_others(self, names: list[str]) -> Listing:
        """List files that are no frames, and note that their kinds are told now."""
        listing = Listing(self._folder)
        for name in sorted(names, key=frame_order):
            path = self._folder / name
            suffix = path.suffix.lower()
            if suffix in VIDEO_SUFFIXES:
                listing.deeper.append(path)  # those of ``videos`` count only beside images
                self._told_suffixes.update(VIDEO_SUFFIXES)
            else:
                listing.unread.append(path)
                self._told_suffixes.add(suffix)
        return listing

    def _pass_over(self, files: list[tuple[str, os.stat_result]]) -> None:
        """Note the files that an earlier run took."""
        assert self._after is not None
        for name, status in files:
            if _place_of(name, status) <= self._after:
                self._taken[name] = _state_of(status)

    def _is_done(self, name: str, status: os.stat_result) -> bool:
        """Return whether a file was taken, or is damaged and has not changed since."""
        return name in self._taken or self._damaged.get(name) == _state_of(status)

    def _take(
        self, name: str, status: os.stat_result, order: _TakingOrder
    ) -> Iterator[Arrival | DamagedFile | LeftOut]:
        """Yield the frame of a file if it is new and whole, its name where it stays damaged, and
        that it has changed since it was taken.

        Args:
            name: of the file.
            status: of the file when the folder was looked at.
            order: of the files of this look.
        """
        state = _state_of(status)
        if self._is_done(name, status):
            yield from self._note_change(name, state)
            return
        arrived = time.monotonic()
        wall = time.time()
        try:
            image = read_image(self._folder / name, strict=True)
        except (OSError, ValueError):
            since, before = self._growing.get(name, (arrived, state))
            if state != before:
                since = arrived
            self._growing[name] = since, state
            if arrived - since >= SETTLED_SECONDS:
                is_told = name in self._damaged
                self._damaged[name] = state
                if not is_told:
                    yield DamagedFile(shown_name(name))
            return
        if self._state_now(name) not in (state, None):
            return  # it is still being written, and its time is not known yet
        self._damaged.pop(name, None)
        self._taken[name] = state
        yield Arrival(
            image=lambda: image,
            arrived=arrived,
            wall=wall,
            stamp=status.st_mtime,
            name=shown_name(name),
            clock=int(_is_to_come(status)),
            taken_up_to=order.take(_place_of(name, status)),
        )

    def _state_now(self, name: str) -> FileState | None:
        """Return the state of a file; None where it is gone."""
        try:
            return _state_of(os.stat(self._folder / name))
        except OSError:
            return None

    def _note_change(self, name: str, state: FileState) -> Iterator[LeftOut]:
        """Tell once that a file has changed since it was taken. A program that gives a copy the
        earlier time of the original does not change it.
        """
        size, changed = self._taken.get(name, state)
        if self._has_told_change or (state[0] == size and state[1] <= changed):
            return
        self._has_told_change = True
        yield LeftOut(
            f"{self.shown}: {shown_name(name)} was changed after it was taken. What it holds now "
            "is left out, and so is what other files hold later; write each image under a name "
            "of its own"
        )


def _place_of(name: str, status: os.stat_result) -> FilePlace:
    """Return the place of a file among those of a folder, as lines hold it."""
    return status.st_mtime, shown_name(name)


def _is_to_come(status: os.stat_result) -> bool:
    """Return whether the time of a file is still to come: what wrote it has another clock than this
    machine.
    """
    return status.st_mtime - time.time() > JUMP_SECONDS


def _state_of(status: os.stat_result) -> FileState:
    """Return what tells that a file has changed."""
    return status.st_size, status.st_mtime_ns


class _TakingOrder:
    """The files of one look, which are taken in another order than that of their times."""

    def __init__(self) -> None:
        self._places: list[FilePlace] = []
        self._waiting: list[FilePlace] = []
        self._taken: set[FilePlace] = set()

    def add(self, place: FilePlace, *, waits: bool) -> None:
        """Add a file.

        Args:
            place: of the file.
            waits: whether it is to be taken.
        """
        self._places.append(place)
        if waits:
            self._waiting.append(place)

    def take(self, place: FilePlace) -> FilePlace | None:
        """Take a file, and return the last one of those that were added up to which none waits;
        None where the first of all waits.
        """
        if not self._taken:
            self._places.sort()
            self._waiting.sort(reverse=True)
        self._taken.add(place)
        while self._waiting and self._waiting[-1] in self._taken:
            self._waiting.pop()
        if not self._waiting:
            return self._places[-1] if self._places else None
        first_waiting = bisect_left(self._places, self._waiting[-1])
        return self._places[first_waiting - 1] if first_waiting else None


def open_live(
    spec: str | Path,
    *,
    container: str | None = None,
    settings: Mapping[str, str] | None = None,
    timeout: float | None = None,
    real_time: bool = False,
    after: FilePlace | None = None,
) -> LiveSource:
    """Return the source that a user names; network, camera and pipe are not opened yet.

    Args:
        spec: a URL, ``camera:0`` or ``/dev/video0``, ``-`` for standard input, a folder, or a
            video.
        container: FFmpeg's name of the format; None lets FFmpeg find out.
        settings: options of FFmpeg by name.
        timeout: seconds without data after which a stream or a camera has stalled.
        real_time: give the frames of a video file at their own times.
        after: see :class:`FolderSource`.

    Raises:
        InputError: there is no such source.
    """
    text = str(spec)
    make = partial(AvSource, container=container, settings=settings)
    if text == PIPE:
        return make("pipe", "standard input", "pipe:0")
    if is_url(text):
        scheme = text.partition(":")[0].lower()
        if scheme not in STREAM_SCHEMES:
            raise InputError(
                f"{shown_url(text)} is no stream: URLs of streams begin with "
                f"{', '.join(STREAM_SCHEMES)}",
                hint="segunc predict reads files under other URLs",
            )
        given = dict(settings or {})
        if scheme in ("rtsp", "rtsps"):
            # A lost datagram of UDP leaves a damaged picture that no decoder marks.
            given.setdefault("rtsp_transport", "tcp")
        shown = shown_url(text)
        return AvSource("stream", shown, text, container=container, settings=given, timeout=timeout)
    device = re.fullmatch(rf"{CAMERA}(\d+)", text)
    if text.startswith(CAMERA) and device is None:
        raise InputError(f"{text} is no camera", hint=f"{CAMERA}0, or /dev/video0")
    path = Path(f"/dev/video{device[1]}" if device else text).expanduser().absolute()
    if device or _is_device(path):
        return AvSource(
            "camera",
            str(path),
            str(path),
            container=container or "v4l2",
            settings=settings,
            timeout=timeout,
        )
    if path.is_dir():
        return FolderSource(path, after)
    if path.is_file() and is_video(path):
        return make("video", str(path), f"file:{path}", real_time=real_time)
    if not path.exists():
        near = nearest_path(path)
        raise InputError(f"--input {path} does not exist{near}", hint="check the path")
    raise InputError(
        f"--input {path} is no folder, video or camera",
        hint="name a folder, or a file such as drive.mp4",
    )


def _is_device(path: Path) -> bool:
    """Return whether a path is a character device, as cameras are."""
    try:
        return stat.S_ISCHR(path.stat().st_mode)
    except OSError:
        return False


def _fault(
    what: Literal["unreachable", "stalled", "broken"], message: str, hint: str = ""
) -> StreamError:
    """Return an error of a source."""
    error = StreamError(message, hint)
    error.what = what
    return error


def _reason_of(error: Exception) -> str:
    """Return what FFmpeg or the system says, without the address."""
    text = getattr(error, "strerror", None) or type(error).__name__
    return str(text)


@dataclass
class Inbox:
    """The frames that were read and not taken yet, and what happened meanwhile, in their order.

    Args:
        length: frames that may wait.
        drops: whether a new frame takes the place of the oldest one where no more may wait;
            otherwise the reader waits.
        first: number of the first frame.
    """

    length: int = 1
    drops: bool = True
    first: int = 0
    read: int = 0
    """Frames that were read, damaged ones too."""
    dropped: Counter[Drop] = field(default_factory=Counter)
    _items: deque[LiveFrame | DamagedFile | LeftOut | Gap | Finish] = field(
        default_factory=deque, repr=False
    )
    _waiting: int = 0
    _closed: bool = False

    def __post_init__(self) -> None:
        self._changed = threading.Condition()

    def put(self, arrival: Arrival | DamagedFile | None) -> None:
        """Add the next frame; None is a damaged one without a name."""
        with self._changed:
            while not self.drops and self._waiting >= self.length and not self._closed:
                self._changed.wait()
            if self._closed:
                return
            number = self.first + self.read
            self.read += 1
            if arrival is None:
                self.dropped["damaged"] += 1
                return
            if isinstance(arrival, DamagedFile):
                self.dropped["damaged"] += 1
                self._items.append(replace(arrival, number=number))
                self._changed.notify_all()
                return
            if self._waiting >= self.length:
                self._drop_oldest()
            self._items.append(LiveFrame(number, arrival))
            self._waiting += 1
            self._changed.notify_all()

    def _drop_oldest(self) -> None:
        for item in self._items:
            if isinstance(item, LiveFrame):
                self._items.remove(item)
                self._waiting -= 1
                self.dropped["newer"] += 1
                return

    def tell(self, item: LeftOut | Gap | Finish) -> None:
        """Add what happened behind the frames that wait."""
        with self._changed:
            self._items.append(item)
            self._changed.notify_all()

    def take(self, timeout: float) -> LiveFrame | DamagedFile | LeftOut | Gap | Finish | None:
        """Return the next frame or event, None where there is none for ``timeout`` seconds."""
        with self._changed:
            if not self._items:
                self._changed.wait(timeout)
            if not self._items:
                return None
            item = self._items.popleft()
            if isinstance(item, LiveFrame):
                self._waiting -= 1
            self._changed.notify_all()
            return item

    def lose(self, reason: Drop) -> None:
        """Count a frame that was taken and has no result."""
        with self._changed:
            self.dropped[reason] += 1

    def close(self) -> None:
        """Count the frames that still wait as dropped, and let a reader that waits go on."""
        with self._changed:
            self._closed = True
            self.dropped["end"] += self._waiting
            self._waiting = 0
            self._items.clear()
            self._changed.notify_all()

    def counts(self) -> tuple[int, dict[str, int]]:
        """Return how many frames were read, and how many were dropped by reason."""
        with self._changed:
            return self.read, {str(reason): count for reason, count in self.dropped.items()}


class Reader:
    """A thread that reads a source into an inbox, and connects again where the source is lost.

    Args:
        source: which is read.
        inbox: that gets its frames.
        attempts: how often in a row it connects again without getting a frame.
        patient: whether the first attempt may fail, too; otherwise that ends the reading.
    """

    def __init__(
        self, source: LiveSource, inbox: Inbox, *, attempts: int, patient: bool = False
    ) -> None:
        self._source = source
        self._inbox = inbox
        self._attempts = attempts
        self._patient = patient
        self._stopped = threading.Event()
        # A read that blocks must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="read-frames", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self, wait: float = 2.0) -> None:
        """End the reading; wait for the thread for at most so many seconds."""
        self._stopped.set()
        self._inbox.close()
        if self._thread.is_alive():
            self._thread.join(wait)

    def _run(self) -> None:
        try:
            self._inbox.tell(self._read())
        except BaseException as error:  # the consumer raises it
            self._inbox.tell(Finish(error=error))

    def _read(self) -> Finish:
        """Read until nothing comes any more, and return why."""
        failed = 0  # attempts in a row without a frame
        ever = self._patient
        while True:
            lost: StreamError | None = None
            begun = False
            try:
                for arrival in self._source.arrivals(self._stopped):
                    if isinstance(arrival, LeftOut):
                        self._inbox.tell(arrival)
                        continue
                    if not begun:
                        begun = ever = True
                        failed = 0
                        self._inbox.tell(Gap("connected"))
                    self._inbox.put(arrival)
            except StreamError as error:
                lost = error
            if self._stopped.is_set():
                return Finish()
            if not ever:
                if lost is None:
                    lost = _fault("broken", f"{self._source.shown} ended before its first frame")
                return Finish(error=lost)
            if not self._source.reconnects:
                return Finish(failure="" if lost is None else lost.message)
            reason = f"{self._source.shown} ended" if lost is None else one_line(lost)
            what = "ended" if lost is None else lost.what
            if failed >= self._attempts:
                tries = f" after {failed} attempts in a row" if failed else ""
                return Finish(failure=f"{reason}; given up{tries}")
            wait = min(FIRST_WAIT * 2**failed, LONGEST_WAIT)
            failed += 1
            self._inbox.tell(Gap(what, reason, failed, wait))
            if self._stopped.wait(wait):
                return Finish()
