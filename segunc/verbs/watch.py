"""``segunc watch``: what a threshold flags in frames that come while they are processed."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Generator, Iterator
from dataclasses import InitVar, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch

from segunc.core.device import describe_device, flushed_denormals, resolve_device, threads
from segunc.core.errors import InputError, PartialFailure, one_line
from segunc.core.files import LineFile, Lock, file_sha256, inside, make_output, read_text
from segunc.core.histogram import TimeHistogram
from segunc.core.periods import whole_periods
from segunc.core.progress import say_step
from segunc.core.results import VerbResult
from segunc.core.urls import has_hidden_query
from segunc.core.version import tool_version
from segunc.data.channels import COLOUR
from segunc.data.image_files import check_names
from segunc.data.images import Image
from segunc.decisions.events import BOX, MAX_FOLLOWED_REGIONS, Follower
from segunc.decisions.flags import Threshold, check_promises, read_thresholds
from segunc.decisions.guarantee import block_seconds
from segunc.frames.source import Frame
from segunc.frames.streams import (
    JUMP_SECONDS,
    REPEATS,
    Arrival,
    DamagedFile,
    Drop,
    Finish,
    Gap,
    Inbox,
    LeftOut,
    LiveFrame,
    LiveSource,
    Reader,
    open_live,
)
from segunc.maps.encoding import Array, class_ids, decode_stored, encode_score, is_flagged
from segunc.maps.folder import PREDICTION
from segunc.maps.known_frames import note_on_known_maps
from segunc.maps.manifest import build_manifest
from segunc.maps.regions import Mask, Region, StrongRegion, strongest_regions
from segunc.maps.store import Maps
from segunc.networks.network import SegmentationNetwork, inference_size
from segunc.options import WatchOptions, recorded_command, takes
from segunc.posteriors.map_records import (
    component_thresholds,
    extrapolated_beyond,
    model_record,
)
from segunc.posteriors.model import load_model
from segunc.processing import FrameProcess
from segunc.scores import check_scores
from segunc.verbs.execution import flag_settings, make_sampler, sampling_settings
from segunc.verbs.model_cache import model_folder
from segunc.verbs.watch_log import (
    LINES_NAME,
    VERSION,
    WRITTEN_BY,
    EarlierWatch,
    KeptFrames,
    moment,
    note_on_running,
    pictures_of,
    read_earlier,
    running_settings,
)
from segunc.verbs.watch_monitor import WatchMonitor

LOCK_NAME = ".lock"
TICK = 0.2  # seconds after which a watch that waits for a frame looks at its clocks
GRACE = 5.0  # seconds that the reader has to notice a stall by itself
PERCENTS = (50, 95, 99)
_SECRET = re.compile("pass|pwd|token|secret|auth|key|header|cookie", re.IGNORECASE)
Event = dict[str, Any]
"""One line: ``kind`` says which fields it has."""


class _UnderWay:
    """What a result keeps of the work that goes on: no fields, which JSON would show."""

    _watch: _Watch
    _events: Generator[Event, None, None]


@dataclass(frozen=True, repr=False)
class WatchResult(VerbResult, _UnderWay):
    """The events of a watch, one by one as they come: iterate over it.

    Reading begins with the first event. Breaking out of the loop and calling :meth:`close`, or
    leaving a ``with`` block, ends the watch.

    Attributes:
        out: folder of the lines; None if they are not written.
        end: the last line, with the counts of the run; empty while it runs.
    """

    shown_properties: ClassVar[tuple[str, ...]] = ("processed", "alarms")

    watched: InitVar[_Watch]
    out: Path | None = None
    end: Event = field(default_factory=dict)

    def __post_init__(self, watched: _Watch) -> None:
        object.__setattr__(self, "_watch", watched)
        object.__setattr__(self, "_events", watched.events())

    @property
    def failure(self) -> str:
        """Why the watch ended too early, in one line; empty if it did not."""
        return str(self.end.get("failure", ""))

    @property
    def path(self) -> Path | None:
        """The file of the lines; None if they are not written."""
        return None if self.out is None else self.out / LINES_NAME

    @property
    def processed(self) -> int | None:
        """Frames that were processed; None while the watch runs."""
        return self.end.get("processed")

    @property
    def alarms(self) -> int | None:
        """Frames with an alarm; None while the watch runs."""
        return self.end.get("alarms")

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        try:
            return next(self._events)
        finally:
            self._take_end()

    def close(self, reason: str = "closed") -> None:
        """End the watch, where it has not ended yet; ``reason`` stands in its last line."""
        self._watch.closed_by = reason
        self._events.close()
        self._watch.finish(reason)
        self._take_end()

    def _take_end(self) -> None:
        self.end.update(self._watch.end)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@takes(WatchOptions)
def watch(options: WatchOptions) -> WatchResult:
    """Watch a stream, and give each alarm, gap and state of the run as an event.

    Raises:
        InputError: model, threshold, input and folder cannot be used together. An address that does
            not answer is found when the first event is asked for.

    >>> with watch(model=abnn, input=frames, flag=["entropy=0.9"], device="cpu") as events:
    ...     print(next(events)["kind"], next(events)["kind"])
    start note
    """
    watched = _Watch(options)
    return WatchResult(watched, out=None if options.out is None else Path(options.out))


STANDS_STILL = (
    "the stream gives all frames the same time, so their time is now that of their arrival; times "
    "of alarms and the monitor rest on it"
)
HIDDEN_QUERY = (
    "what stands behind ? in the address may be secret and is not recorded; if it names another "
    "stream than before, give another --out"
)
JUMPS = (
    "the times of the stream jump ahead, as where its sender begins again, so from here on they "
    "are set by the clock of this machine; later jumps are not named"
)
STANDS = (
    "the times of frames go back, so the time of the watch stands until they have come as far; a "
    "monitor of frames that are --apart in time tests none meanwhile"
)


class _RunningClock:
    """Seconds since the first watch began: by the stream's clock, which is set by the clock of this
    machine whenever a stream begins, or its clock jumps. They never decrease.

    Args:
        last: the time of the last frame of earlier runs; None if there was none.
        begun: when the first watch began, in seconds since 1970; None for this one.
    """

    def __init__(self, last: float | None, begun: float | None) -> None:
        self._last = last or 0.0
        self._begun = begun
        # Within a run the clock that nobody sets counts, from the first frame on.
        self._first: tuple[float, float] | None = None  # time and moment of arrival
        self._start: tuple[float, float] | None = None  # time and stamp of a stream's first frame
        self._last_stamp = 0.0
        self._previous: float | None = None  # stamp of the frame before
        self._repeats = 0  # frames in a row with the stamp of the frame before
        self._clock: int | None = None  # number of the stream's clock
        self.has_jumped = False
        """Whether the stream's clock ever jumped ahead."""
        self.has_stood = False
        """Whether the time ever stood because frames were earlier by more than
        :data:`segunc.frames.streams.JUMP_SECONDS`."""

    @property
    def stands_still(self) -> bool:
        """Whether the stream gives frame after frame the same time."""
        return self._repeats >= REPEATS

    def restart(self) -> None:
        """Note that a stream begins: its clock has nothing to do with that of before."""
        self._start = None
        self._previous = None
        self._clock = None

    def time_of(self, arrival: Arrival) -> float:
        """Return the time of the next frame."""
        if self._first is None:
            begun = arrival.wall if self._begun is None else self._begun
            self._first = max(self._last, arrival.wall - begun), arrival.arrived
        first, moment_of_first = self._first
        time = first + arrival.arrived - moment_of_first
        if self._clock is not None and arrival.clock != self._clock:
            self.restart()
            self.has_jumped = True
        self._clock = arrival.clock
        stamp = arrival.stamp
        is_repeated = stamp is not None and stamp == self._previous
        self._repeats = self._repeats + 1 if is_repeated else 0
        self._previous = stamp
        if stamp is None or self.stands_still:
            self._start = None
        else:
            if self._start is None or stamp < self._last_stamp:
                self._start = time, stamp
            started, first_stamp = self._start
            time = started + stamp - first_stamp
            self._last_stamp = stamp
        if self._last - time > JUMP_SECONDS:
            self.has_stood = True
        self._last = round(max(self._last, time), 6)
        return self._last


@dataclass
class _Counter:
    """The next number that nothing has."""

    next: int


class _FollowedEvents:
    """Numbers the flagged regions of one score so that those of one thing have one number, which is
    unique in all runs of a folder.

    Args:
        unused: the numbers that no event has, of all scores.
    """

    def __init__(self, unused: _Counter) -> None:
        self._unused = unused
        self._follower = Follower()
        self._events: dict[int, int] = {}  # number of the follower -> number of the event

    def numbers(self, boxes: list[tuple[int, int, int, int]]) -> list[tuple[int, bool]]:
        """Return the number of each region of the next frame, and whether it begins an event.

        Args:
            boxes: left, top, width and height of the regions.
        """
        numbers = []
        for number in self._follower.follow("", boxes):
            is_new = number not in self._events
            if is_new:
                self._events[number] = self._unused.next
                self._unused.next += 1
            numbers.append((self._events[number], is_new))
        remembered = self._follower.remembered
        self._events = {key: event for key, event in self._events.items() if key in remembered}
        return numbers

    def restart(self) -> None:
        """Begin new events from the next frame on."""
        self._follower = Follower()
        self._events = {}


class _Density:
    """Finds out whether frames come more densely than those that a promise is about.

    Args:
        threshold: with its promise.
    """

    def __init__(self, threshold: Threshold) -> None:
        self._threshold = threshold
        self._block = -1
        self._frames = 0  # of the block
        self._last_time = -1.0
        self._has_told = False

    def note(self, time: float) -> str:
        """Count a frame, and return once that they come too densely; else an empty text.

        Args:
            time: its seconds since the watch began.
        """
        guarantee = self._threshold.guarantee
        seconds = None if guarantee is None else block_seconds(guarantee.unit)
        if guarantee is None or not seconds or self._has_told:
            return ""
        if time == self._last_time:  # it stands, as where a stream comes in bursts
            return ""
        self._last_time = time
        block = whole_periods(time, seconds)
        self._frames = self._frames + 1 if block == self._block else 1
        self._block = block
        note = self._threshold.density_note(self._frames)
        self._has_told = bool(note)
        return note


class _Watch:
    """A watch under way: the model, the source, what is counted, and what is written."""

    def __init__(self, options: WatchOptions) -> None:
        """Check everything that can be checked before the first frame."""
        self.options = options
        self.end: Event = {}
        self.closed_by = "closed"
        self._out = None if options.out is None else Path(options.out)
        self._check_options()
        self._flag = read_thresholds(options.flag)
        self._scores = tuple(check_scores([*self._flag]))
        self._region = Region(Path(options.mask)) if options.mask else None
        self._bytes_before = self._bytes_of_lines()
        self._earlier = None if self._out is None else read_earlier(self._out)
        self._source = self._open_source()
        say_step(f"loading {options.model}")  # which takes seconds, and no line comes before
        folder = model_folder(options.model, trust=options.trust)
        self._model = load_model(folder)
        self._check_channels()
        sampling = self._sampling_options()
        self._threads = sampling.threads
        with threads(self._threads):
            self._sampler = make_sampler(self._model, sampling, self._scores)
            self._run = self._run_settings()
        check_promises(self._flag, self._run)
        self._monitors = [] if options.no_monitor else self._make_monitors()
        self._first = self._first_line()
        if self._earlier is not None and self._out is not None:
            self._earlier.check(self._first, self._out / LINES_NAME)
            for monitor in self._monitors:
                monitor.replay(self._earlier.monitored)
            self._earlier.monitored.clear()
        self._prepare_state(self._earlier or EarlierWatch({}))
        self._process: FrameProcess | None = None
        self._lines: LineFile | None = None
        self._waiting_lines: list[Event] = []
        self._lock: Lock | None = None
        self._kept: KeptFrames | None = None
        self._latency = TimeHistogram()
        self._recent = TimeHistogram()
        self._behind = 0.0
        self._processed = 0
        self._in_work = False  # whether a frame was taken of which nothing is told yet
        self._alarms = 0
        self._connections = 0
        self._in_fault = False
        self._in_other_size = False
        self._stalled = False
        self._told_notes = 0
        self._told_clock = False
        self._told_known = False
        self._told_stillness = False
        self._begun = False

    def _prepare_state(self, earlier: EarlierWatch) -> None:
        """Take up the numbers of earlier runs, and prepare the queue and its reader."""
        options = self.options
        self._size = None if earlier.size is None else tuple(earlier.size)
        self._chunk = options.chunk or earlier.chunk
        self._clock = _RunningClock(earlier.time, earlier.begun)
        self._told_jump = False
        self._told_standing = False
        self._densities = [_Density(threshold) for threshold in self._flag.values()]
        self._last_file = earlier.last_file
        self._unused_events = _Counter(earlier.next_event)
        self._events_of = {score: _FollowedEvents(self._unused_events) for score in self._scores}
        self._inbox = Inbox(options.queue, drops=not self._every_frame, first=earlier.next_frame)
        self._reader = Reader(
            self._source,
            self._inbox,
            attempts=options.reconnect,
            patient=self._earlier is not None,
        )

    @property
    def _every_frame(self) -> bool:
        """Whether frames wait and none is dropped for a newer one."""
        free_file = self._source.kind == "video" and self.options.pace == "free"
        return self.options.every_frame or free_file

    def _check_options(self) -> None:
        """Raise InputError for options that contradict each other."""
        options = self.options
        if not options.flag:
            raise InputError("--flag names no threshold", hint="--flag threshold.json")
        if options.keep != "none" and options.out is None:
            raise InputError(f"--keep {options.keep} needs a folder", hint="add --out DIR")
        if self._out is not None:
            check_names([self._out.absolute()])

    def _check_channels(self) -> None:
        """Raise InputError for a network of other images than colour images."""
        channels = self._model.network.description.channels
        if channels != COLOUR:
            raise InputError(
                f"watch reads colour frames, and {self.options.model} takes images of {channels} "
                f"channel{'s'[: channels != 1]}",
                hint="segunc predict --input FOLDER reads images of other channels",
            )

    def _sampling_options(self) -> WatchOptions:
        """Return the options with the threads and the precision that the earlier watch recorded, if
        the user leaves them open: another machine may choose others.
        """
        options = self.options
        recorded = {} if self._earlier is None else self._earlier.first.get("run", {})
        if options.threads is None:
            options = replace(options, threads=recorded.get("threads"))
        if options.precision == "auto":
            options = replace(options, precision=recorded.get("precision", "auto"))
        return options

    def _open_source(self) -> LiveSource:
        """Return the source of the frames."""
        options = self.options
        source = open_live(
            options.input,
            container=options.stream_format,
            settings=options.stream_options,
            timeout=options.stall,
            real_time=options.pace == "real",
            after=None if self._earlier is None else self._earlier.last_file,
        )
        if options.every_frame and not source.can_wait:
            raise InputError(
                f"--every-frame: {source.shown} does not wait until a frame is processed",
                hint="leave --every-frame out, or give a larger --queue",
            )
        if options.pace == "real" and source.kind != "video":
            raise InputError(
                f"--pace real is for video files, and --input is a {source.kind}",
                hint="leave --pace out",
            )
        return source

    def _make_monitors(self) -> list[WatchMonitor]:
        """Return a monitor for each threshold that was calibrated on frames."""
        monitors = []
        for score, path in self._threshold_files().items():
            monitors.append(WatchMonitor(self._flag[score], path, self.options))
        if self.options.reference is not None and not monitors:
            raise InputError(
                "--reference needs a threshold with calibration frames",
                hint="--flag threshold.json",
            )
        return monitors

    def _threshold_files(self) -> dict[str, Path]:
        """Return the file of each threshold that has one, by its score."""
        files = {}
        for word in self.options.flag:
            for score, threshold in read_thresholds([word]).items():
                if threshold.guarantee is not None:
                    files[score] = Path(word.partition(".json")[0] + ".json")
        return files

    def _run_settings(self) -> dict[str, Any]:
        """Return what decides the maps, as the manifest of ``segunc predict`` records it; without
        the draws in a batch, which the first frame decides.
        """
        options = self.options
        shown = self._source.shown
        return {
            "input": shown if self._out is None else str(pictures_of(self._out.absolute())),
            "every": 1,
            "start": None,
            "end": None,
            **sampling_settings(self._model, self._sampler, options),
            "precision": self._sampler.precision,
            "group": 1,
            "threads": torch.get_num_threads(),
            "device": self._sampler.device.type,
            "maps": list(self._scores),
            "overlay": None,
            **flag_settings(self._flag),
            "component_thresholds": component_thresholds(self._scores),
            "mask_sha256": None if self._region is None else self._region.sha256,
        }

    def _first_line(self) -> Event:
        """Return the first line of a run: what watches what, with the hashes of all parts."""
        options = self.options
        files = self._threshold_files()
        described = []
        for score, threshold in self._flag.items():
            described.append(_threshold_record(score, threshold, files.get(score)))
        hidden: dict[str, str] = {}
        for name, value in options.stream_options.items():
            hidden[name] = "***" if _SECRET.search(name) else value
        options = replace(options, stream_options=hidden)
        return {
            "kind": "start" if self._earlier is None else "restart",
            "by": WRITTEN_BY,
            "version": VERSION,
            "segunc": tool_version(),
            "command": recorded_command("watch", options),
            "input": self._source.shown,
            "source": self._source.kind,
            "device": describe_device(resolve_device(options.device)),
            "model": str(options.model),
            "thresholds": described,
            "monitor": [monitor.settings for monitor in self._monitors],
            "run": self._run,
            "running": running_settings(options),
            "process": os.getpid(),
        }

    # The run.

    def events(self) -> Generator[Event, None, None]:
        """Yield the events; the last one is ``end``."""
        try:
            with flushed_denormals(), threads(self._threads):
                yield from self._all_events()
        except GeneratorExit:
            self.finish(self.closed_by)
            raise
        except KeyboardInterrupt:
            self.finish("interrupted")
            raise
        except BaseException as error:
            self.finish("failed", one_line(error) if isinstance(error, Exception) else "")
            raise

    def _all_events(self) -> Iterator[Event]:
        self._begin()
        yield self._emit(self._start_event())
        for text in self._first_notes():
            yield self._emit({"kind": "note", "text": text})
        self._reader.start()
        started = time.monotonic()
        next_status = started + self.options.status
        self._last_frame = started
        while True:
            item = self._inbox.take(TICK)
            now = time.monotonic()
            if isinstance(item, Finish) and item.error is not None:
                raise item.error
            if item is not None or now >= next_status:
                self._open_lines()
            if isinstance(item, Finish):
                yield self.finish("lost" if item.failure else "ended", item.failure)
                return
            if isinstance(item, Gap | DamagedFile | LeftOut):
                yield from self._on_news(item)
            elif item is not None:
                self._last_frame = now
                self._in_work = True
                yield from self._on_frame(item)
                if self.end:
                    return
            elif now - self._last_frame > self._patience and not self._stalled:
                self._stalled = True
                yield self._gap("stalled", silent=round(now - self._last_frame, 3))
            now = time.monotonic()
            if now >= next_status:
                yield self._emit(self._status())
                next_status += self.options.status * (
                    1 + (now - next_status) // self.options.status
                )
            if self.options.duration and now - started >= self.options.duration:
                # Also a watch that saw no frame leaves its lines: that it saw none is a result.
                self._open_lines()
                yield self.finish("duration")
                return

    def _first_notes(self) -> Iterator[str]:
        """Yield what a user should know of the run and of the frames that come."""
        if self._earlier is not None:
            changed = note_on_running(self._earlier.first, self._first)
            if changed:
                yield changed
        if self._earlier is not None and self._source.kind == "video":
            yield "the video is read again from its first frame; numbers of frames go on"
        if self._earlier is not None and has_hidden_query(self.options.input):
            yield HIDDEN_QUERY
        notes_on_monitors = {monitor.note for monitor in self._monitors}
        yield from sorted(filter(None, notes_on_monitors))
        awaited = self._source.awaited()
        if awaited:
            yield awaited

    @property
    def _patience(self) -> float:
        """Seconds without a frame after which this thread notes a stall. That of a stream is the
        reader's to note, which opens it again."""
        is_opened_again = self._source.kind in ("stream", "camera")
        return self.options.stall + (GRACE if is_opened_again else 0.0)

    def _begin(self) -> None:
        """Take the folder of the lines."""
        self._begun = True
        if self._out is None:
            return
        make_output(self._out)
        self._lock = Lock(self._out / LOCK_NAME, f"output {self._out}")
        if self._bytes_of_lines() != self._bytes_before:
            # Its numbers of frames and events, its monitor and its last file are not known here.
            self._lock.release()
            raise InputError(
                f"another watch wrote into {self._out} while this one was being prepared",
                hint="run the same command again, and it goes on after the other one",
            )
        if self._earlier is not None:
            self._open_lines()

    def _bytes_of_lines(self) -> int:
        """Return the bytes of the file of the lines; 0 where there is none."""
        if self._out is None:
            return 0
        try:
            return (self._out / LINES_NAME).stat().st_size
        except OSError:
            return 0

    def _open_lines(self) -> None:
        """Open the file of the lines, and write those that wait.

        A first watch whose source cannot be opened leaves no file, so that it can be tried again
        with another address.
        """
        if self._out is None or self._lines is not None:
            return
        self._lines = LineFile(inside(self._out, LINES_NAME))
        for event in self._waiting_lines:
            self._append(self._lines, event)
        self._waiting_lines.clear()

    def _append(self, lines: LineFile, event: Event) -> None:
        """Append a line to the file of the lines.

        Raises:
            PartialFailure: it cannot be written, as on a full disk.
        """
        try:
            lines.append(event)
        except OSError as error:
            raise PartialFailure(
                f"{lines.path} cannot be written ({error.strerror}), so the watch ends: later "
                "alarms would be lost"
            ) from error

    def _start_event(self) -> Event:
        """Return the first line; of a restart it says how long the watch was away."""
        event = dict(self._first)
        if self._earlier is not None:
            event["away"] = round(time.time() - self._earlier.wall, 3)
            event["next_frame"] = self._earlier.next_frame
        return event

    def finish(self, reason: str, failure: str = "") -> Event:
        """End the reading, and return the last line, which is written; a second call returns the
        same."""
        if self.end or not self._begun:
            return self.end
        self._reader.stop()
        if self._in_work:
            self._inbox.lose("end")
        counts = self._counts()
        self.end = {
            "kind": "end",
            "wall": moment(time.time()),
            "reason": reason,
            "failure": failure,
            **counts,
            "latency": _latency_record(self._latency),
            "memory_mb": _memory_mb(),
            "monitor": [monitor.state for monitor in self._monitors],
        }
        with contextlib.ExitStack() as closing:
            if self._lock is not None:
                closing.callback(self._lock.release)
            if self._lines is not None:
                closing.callback(self._lines.close)
                closing.callback(self._append, self._lines, self.end)
            if self._kept is not None:
                closing.callback(self._kept.close)
        return self.end

    def _emit(self, event: Event) -> Event:
        """Write an event with the time of this machine, and return it."""
        event = {"kind": event.pop("kind"), "wall": moment(time.time()), **event}
        if self._lines is not None:
            self._append(self._lines, event)
        elif self._out is not None:
            self._waiting_lines.append(event)
        return event

    def _gap(self, what: str, **facts: Any) -> Event:
        """Write what happened to the stream."""
        return self._emit({"kind": "gap", "what": what, **facts})

    def _on_news(self, gap: Gap | DamagedFile | LeftOut) -> Iterator[Event]:
        """Note that the stream was opened or lost, that a file is damaged, or that files are no
        frames.
        """
        if isinstance(gap, LeftOut):
            yield self._emit({"kind": "note", "text": gap.text})
            return
        if isinstance(gap, DamagedFile):
            yield self._emit(_damage_note(gap))
            return
        self._clock.restart()
        if gap.what == "connected":
            self._connections += 1
            self._begin_events()
            return  # the line follows with the first frame, whose size it holds
        self._stalled = True
        yield self._gap(gap.what, reason=gap.reason, attempt=gap.attempt, wait=gap.wait)

    def _begin_events(self) -> None:
        """Begin new events: nobody saw what was there meanwhile, so an alarm that comes now is a
        new one, also at the place of an earlier one."""
        for events in self._events_of.values():
            events.restart()

    # One frame.

    def _on_frame(self, frame: LiveFrame) -> Iterator[Event]:
        """Process a frame, and yield what is to be told of it."""
        arrival = frame.arrival
        limit = self.options.max_latency
        if limit is not None and frame.age > limit:
            self._lose("late")
            return
        image = arrival.image()
        yield from self._note_clock()
        yield from self._note_connection(frame, image)
        if self.end:
            return
        if image.shape[:2] != self._size:
            self._lose("size")
            return
        running = self._clock.time_of(arrival)
        if self._clock.stands_still and not self._told_stillness:
            self._told_stillness = True
            yield self._emit({"kind": "note", "text": STANDS_STILL})
        if self._clock.has_jumped and not self._told_jump:
            self._told_jump = True
            yield self._emit({"kind": "note", "frame": frame.number, "text": JUMPS})
        if self._clock.has_stood and not self._told_standing:
            self._told_standing = True
            yield self._emit({"kind": "note", "frame": frame.number, "text": STANDS})
        name = f"{frame.number:06d}"
        made = self._maps_of(Frame(name, frame.number, image, time=running))
        if isinstance(made, Exception):
            self._lose("failed")
            self._note_file(arrival)
            if not self._in_fault:
                self._in_fault = True
                reason = one_line(made)
                yield self._gap("failed", frame=frame.number, reason=reason)
            return
        self._in_fault = False
        # A watch that is ended before all is written has not processed the frame.
        told = [self._emit(event) for event in self._results(frame, name, running, made)]
        self._in_work = False
        self._processed += 1
        self._behind = arrival.behind
        self._note_file(arrival)
        is_alarm = any(event["kind"] == "alarm" for event in told)
        self._alarms += is_alarm
        yield from told
        for density in self._densities:
            note = density.note(running)
            if note:
                yield self._emit({"kind": "note", "text": note})
        yield from self._note_known(name, made)
        yield from self._keep(frame, name, running, image, made, is_alarm=is_alarm)
        yield from self._notes()

    def _note_known(self, name: str, maps: Maps) -> Iterator[Event]:
        """Tell once that the bank of features seems to hold a frame."""
        if self._told_known or "anomaly" not in self._scores:
            return
        values = np.asarray(maps["anomaly"])
        if self._region is not None:
            values = values[self._region.at(*values.shape)]
        largest = float(np.max(values))
        note = note_on_known_maps({"run": self._run}, {name: {"max": {"anomaly": largest}}})
        if note:
            self._told_known = True
            yield self._emit({"kind": "note", "text": f"{note}; later ones are not named"})

    def _note_file(self, arrival: Arrival) -> None:
        """Note up to which file of a folder all were taken."""
        if arrival.name:
            self._last_file = arrival.taken_up_to

    def _lose(self, reason: Drop) -> None:
        """Count the frame that was taken as one without a result."""
        self._in_work = False
        self._inbox.lose(reason)

    def _note_clock(self) -> Iterator[Event]:
        """Tell once what the times of frames are, where the source gives none."""
        if self._told_clock:
            return
        self._told_clock = True
        note = self._source.clock()
        if note:
            yield self._emit({"kind": "note", "text": note})

    def _note_connection(self, frame: LiveFrame, image: Image) -> Iterator[Event]:
        """Tell that frames come, and whether they have another size than before."""
        size = image.shape[:2]
        if self._size is None:
            self._size = size
            yield from self._note_size(size)
        if self._process is None:
            self._prepare(size)
        if self._connections:
            number = self._connections
            self._connections = 0
            yield self._gap(
                "connected",
                frame=frame.number,
                size=list(self._size),
                chunk=self._chunk,
                connections=number,
            )
        elif self._stalled:
            yield self._gap("resumed", frame=frame.number)
        self._stalled = False
        if size != self._size and not self._in_other_size:
            self._in_other_size = True
            text = (
                f"frames have {size[0]} x {size[1]} pixels, and the threshold is applied to "
                f"{self._size[0]} x {self._size[1]}: nothing is flagged"
            )
            yield self._gap("size", frame=frame.number, size=list(size), reason=text)
            if self.options.size_change == "stop":
                self._lose("size")
                hint = "with --size-change skip the watch waits until that size comes back"
                yield self.finish("size", f"{self._source.shown}: {text}; {hint}")
        elif size == self._size and self._in_other_size:
            self._in_other_size = False
            self._begin_events()
            yield self._gap("size", frame=frame.number, size=list(size), reason="flagging goes on")

    def _note_size(self, size: tuple[int, ...]) -> Iterator[Event]:
        """Tell where frames have another size than those that a threshold was calibrated on."""
        for threshold in self._flag.values():
            if threshold.guarantee is None:
                continue
            note = threshold.guarantee.size_note([f"{size[1]}x{size[0]}"], threshold.source)
            if note:
                yield self._emit({"kind": "note", "text": note})

    def _prepare(self, size: tuple[int, ...]) -> None:
        """Choose how many draws are in a batch, and open the folder of kept frames."""
        options = self.options
        network = self._sampler.network
        assert isinstance(network, SegmentationNetwork)
        description = network.description
        if not self._chunk:
            seen = inference_size(description, (size[0], size[1]), options.size)
            self._chunk = self._sampler.chunk_for(1, seen, description.num_classes)
        sampler = self._sampler.with_chunk(self._chunk)
        self._process = FrameProcess(sampler, self._scores, size=options.size)
        if options.keep == "none" or self._out is None:
            return
        manifest = build_manifest(
            {**self._run, "chunk": self._chunk},
            self._scores,
            device=describe_device(sampler.device),
            command=self._first["command"],
            classes=description.classes,
            palette=description.palette,
            source={"kind": "folder", "fps": None, "frames": None},
            model=model_record(
                self._model.network,
                self._model.posterior,
                self._model.record.get("provenance"),
                self._model.attachments,
            ),
            measured_to=extrapolated_beyond(self._model.attachments.values()),
        )
        limit = options.keep_limit * 1e9
        self._kept = KeptFrames(
            self._out,
            manifest,
            limit=limit,
            alarms_only=options.keep == "alarms",
            region=self._region,
        )

    def _maps_of(self, frame: Frame) -> Maps | Exception:
        """Return the maps of a frame, or why there are none."""
        assert self._process is not None
        made = self._process(frame)
        if isinstance(made, Exception):
            return made
        try:
            maps = made() if callable(made) else made
            for score in self._scores:
                encode_score(score, maps[score])  # refuses NaN
        except InputError as error:
            return error
        return maps

    def _results(self, frame: LiveFrame, name: str, running: float, maps: Maps) -> Iterator[Event]:
        """Yield the alarms of a frame, a line where it has none and lines are asked for, and what
        the monitor says.
        """
        stored, kept = self._as_stored(name, maps)
        about: Event = {"frame": frame.number, "time": running, "stamp": frame.arrival.stamp}
        if frame.arrival.name:
            about["file"] = frame.arrival.name
            taken_up_to = frame.arrival.taken_up_to
            if taken_up_to != (frame.arrival.stamp, frame.arrival.name):
                about["last_file"] = None if taken_up_to is None else list(taken_up_to)
        has_alarm = False
        flagged: dict[str, int] = {}
        for score, threshold in self._flag.items():
            facts = self._flagged_by(score, threshold, stored, kept)
            flagged[score] = facts["flagged_pixels"]
            if not facts["regions"]:
                continue
            has_alarm = True
            yield {
                "kind": "alarm",
                **about,
                **facts,
                "latency": self._latency_of(frame),
                "behind": round(frame.arrival.behind, 3),
            }
        seconds = self._latency_of(frame)
        self._latency.add(seconds)
        self._recent.add(seconds)
        if not has_alarm and self.options.frame_lines:
            yield {"kind": "frame", **about, "flagged_pixels": flagged, "latency": seconds}
        for monitor in self._monitors:
            yield from monitor.look(frame.number, running, stored[monitor.score], kept)

    def _as_stored(self, name: str, maps: Maps) -> tuple[dict[str, Array], Mask | None]:
        """Return maps in their stored form, with 0 outside of the mask, and which pixels count.

        A reader of the maps of ``segunc predict`` gets the same, so the same pixels are flagged.
        """
        stored: dict[str, Array] = {PREDICTION: class_ids(np.asarray(maps[PREDICTION]), name)}
        for score in self._scores:
            stored[score] = encode_score(score, np.asarray(maps[score]))
        if self._region is None:
            return stored, None
        stored = self._region.clear(stored)
        return stored, self._region.at(*stored[PREDICTION].shape)

    def _flagged_by(
        self, score: str, threshold: Threshold, stored: dict[str, Array], kept: Mask | None
    ) -> Event:
        """Return what a line says of the pixels that a threshold flags."""
        prediction = stored[PREDICTION]
        values = decode_stored(stored[score], "unit-code")
        values = threshold.prepared(values, lambda: prediction, kept)
        regions = strongest_regions(
            values,
            threshold.value,
            smallest=threshold.smallest,
            kept=kept,
            most=MAX_FOLLOWED_REGIONS + 1,
        )
        high = is_flagged(values, threshold.value)
        if kept is not None:
            high = high & kept
        described = self._described(score, regions, values, prediction)
        return {
            "score": score,
            "threshold": threshold.value,
            "flagged_pixels": int(high.sum()),
            "new": any(region["new"] for region in described),
            "regions": described,
            "more_regions": len(regions) > MAX_FOLLOWED_REGIONS,
        }

    def _latency_of(self, frame: LiveFrame) -> float:
        """Return the seconds from the arrival of a frame until now."""
        return round(time.monotonic() - frame.arrival.arrived, 6)

    def _described(
        self, score: str, regions: list[StrongRegion], values: Array, prediction: Array
    ) -> list[Event]:
        """Return what a line says of flagged regions, each with the number of its event."""
        followed = regions[:MAX_FOLLOWED_REGIONS]
        numbers = self._events_of[score].numbers([region.box for region in followed])
        described = []
        classes = self._model.network.description.classes
        for (number, is_new), region in zip(numbers, followed, strict=True):
            column, row = region.peak
            class_id = region.class_of(np.asarray(prediction, np.uint8))
            described.append(
                {
                    "event": number,
                    "new": is_new,
                    "box": dict(zip(BOX, region.box, strict=True)),
                    "area": region.area,
                    "peak": float(values[row, column]),
                    "at": [column, row],
                    "strength": float(f"{region.strength:.9g}"),
                    "class": classes[class_id] if class_id is not None else None,
                }
            )
        return described

    def _keep(
        self,
        frame: LiveFrame,
        name: str,
        running: float,
        image: Image,
        maps: Maps,
        *,
        is_alarm: bool,
    ) -> Iterator[Event]:
        """Keep image and maps of a frame if that is asked for; tell once that the limit is
        reached."""
        kept = self._kept
        if kept is None:
            return
        kept.count()
        if not is_alarm and self.options.keep != "all":
            return
        was_full = kept.full
        kept.keep(name, frame.number, running, image, maps)
        if kept.full and not was_full:
            text = f"{kept.bytes} bytes are kept; nothing more is kept (--keep-limit)"
            if kept.failure:
                text = f"{kept.failure}; nothing more is kept, and alarms go on"
            yield self._emit({"kind": "note", "text": text})

    def _notes(self) -> Iterator[Event]:
        """Tell what the sampler found out about the network."""
        messages = self._sampler.report.messages
        for text in messages[self._told_notes :]:
            yield self._emit({"kind": "note", "text": text})
        self._told_notes = len(messages)

    # The state.

    def _counts(self) -> Event:
        """Return the counts of this run, and the numbers with which a later one goes on."""
        read, dropped = self._inbox.counts()
        return {
            "read": read,
            "processed": self._processed,
            "dropped": dropped,
            "alarms": self._alarms,
            "next_frame": self._inbox.first + read,
            "next_event": self._unused_events.next,
            "last_file": None if self._last_file is None else list(self._last_file),
        }

    def _status(self) -> Event:
        """Return how the run stands."""
        recent = _latency_record(self._recent)
        self._recent = TimeHistogram()
        status = {
            "kind": "status",
            **self._counts(),
            "latency": recent,
            "behind": round(self._behind, 3),
            "silent": round(time.monotonic() - self._last_frame, 3),
            "flagging": recent["frames"] > 0,
            "memory_mb": _memory_mb(),
            "monitor": [monitor.state for monitor in self._monitors],
        }
        if self._kept is not None:
            status["kept_bytes"] = self._kept.bytes
        return status


def _damage_note(damaged: DamagedFile) -> Event:
    """Return the line that names a damaged file."""
    text = f"{damaged.name} cannot be decoded whole, and is left out unless it changes"
    return {"kind": "note", "frame": damaged.number, "file": damaged.name, "text": text}


def _threshold_record(score: str, threshold: Threshold, path: Path | None) -> Event:
    """Return what the first line says of a threshold."""
    record: Event = {
        "score": score,
        "value": threshold.value,
        "smallest": threshold.smallest,
        "source": threshold.source,
        "promise": threshold.statement,
    }
    if path is not None:
        record["sha256"] = file_sha256(path)
    return record


def _latency_record(times: TimeHistogram) -> Event:
    """Return the percentiles of latencies in seconds, with how many there were."""
    record: Event = {"frames": times.count}
    for percent, seconds in zip(PERCENTS, times.percentiles(PERCENTS), strict=True):
        record[f"p{percent}"] = None if seconds is None else round(seconds, 6)
    record["max"] = times.largest if times.count else None
    return record


def _memory_mb() -> float | None:
    """Return the memory of this process that is resident, in MB; None where the system does not
    say.
    """
    try:
        pages = int(read_text(Path("/proc/self/statm")).split()[1])
    except OSError:
        return None
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)
