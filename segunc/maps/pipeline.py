"""Frames through a network to maps on disk, in constant memory: one thread decodes ahead, the
caller's computes, a pool encodes and writes.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from segunc.core.errors import InputError, PartialFailure, one_line
from segunc.data.images import Image
from segunc.frames.source import Frame, FrameSource
from segunc.maps.shards import Record
from segunc.maps.store import Maps, MapsWriter

Process = Callable[[Frame], Maps | Callable[[], Maps] | Exception]
"""Gives maps, or what waits for them in a writing thread; an exception that is returned fails its
frame alone.
"""
DrawOverlay = Callable[[Frame, Maps], Image]
Show = Callable[
    [int, int | None, str, int], object
]  # frames done, of how many, state in words, done by an earlier run


@dataclass
class Summary:
    """What a run did: frames finished in it, and before it; name -> reason of those that failed;
    wall-clock seconds.
    """

    finished: int = 0
    skipped: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def failure(self) -> str:
        """How many frames failed and the first reason, in one line; empty where none did."""
        if not self.failed:
            return ""
        done = self.finished + self.skipped
        first = "{} ({})".format(*next(iter(self.failed.items())))
        return (
            f"{len(self.failed)} of {len(self.failed) + done} frames failed, first {first}; the other {done} are kept, "
            "all failures are listed in manifest.json, and the same command tries them again"
        )


def run_pipeline(
    source: FrameSource,
    process: Process,
    writer: MapsWriter,
    *,
    prefetch: int = 4,
    writers: int = 2,
    draw_overlay: DrawOverlay | None = None,
    on_progress: Show | None = None,
    on_note: Callable[[str], None] | None = None,
) -> Summary:
    """Write the maps of every frame of a source that the writer has not finished, and close the
    writer. ``prefetch`` frames are decoded ahead, and as many may wait for being written;
    ``writers`` threads encode and write them, and draw ``overlay/F.jpg``. ``on_note`` gets a line
    on finished frames that are made again.

    What was finished is kept whatever is raised: PartialFailure where a file could not be written,
    InputError where the rest does not fit on the disk. A frame that fails is in the summary.
    """
    try:
        writer.begin(source)
        if writer.forgotten and on_note is not None:
            why = "their maps or images are missing, damaged or others"
            on_note(f"{writer.forgotten} finished frames are made again: {why}")
        decoder, pool = (
            ThreadPoolExecutor(1, "decode-frames"),
            ThreadPoolExecutor(writers, "write-maps"),
        )
        with decoder, pool:
            run = _Run(source, writer, pool, prefetch, draw_overlay, on_progress, on_note)
            try:
                for frame in _ahead(run.frames(), prefetch, decoder):
                    run.put(frame, process)
            finally:
                decoder.shutdown(wait=False, cancel_futures=True)
                run.commit(waiting=0)
    except BaseException:
        with contextlib.suppress(
            OSError
        ):  # on a full disk the manifest stays as it was; the first error is the news
            writer.close("interrupted")
        raise
    writer.close("finished")
    return Summary(run.written, run.skipped, dict(writer.failed), time.monotonic() - run.started)


def _ahead(frames: Iterator[Frame], number: int, decoder: ThreadPoolExecutor) -> Iterator[Frame]:
    """Yield the frames, and let the one thread of ``decoder`` make so many of them in advance."""
    coming = deque(decoder.submit(next, frames, None) for _ in range(number))
    while (frame := coming.popleft().result()) is not None:
        coming.append(decoder.submit(next, frames, None))
        yield frame


@dataclass
class _Run:
    """The frames of one run: those still to come, and those that are being written."""

    source: FrameSource
    writer: MapsWriter
    pool: ThreadPoolExecutor
    waiting: int  # frames that may be being written while the next is computed
    draw_overlay: DrawOverlay | None
    on_progress: Show | None
    on_note: Callable[[str], None] | None

    def __post_init__(self) -> None:
        self.started = time.monotonic()
        self.written, self.skipped = 0, len(self.writer.lines)
        self.pending: deque[tuple[Frame, Future[Record]]] = deque()

    def frames(self) -> Iterator[Frame]:
        """Decode the frames that are not finished."""
        if self.writer.was_complete and self.source.kind == "video":
            return  # nothing is left that a look through the whole video could find
        shard, lines = self.writer.shard, self.writer.lines
        yield from self.source.frames(lambda index, _: not shard.owns(index) or index in lines)

    def put(self, frame: Frame, process: Process) -> None:
        """Compute a frame and hand its maps to the writers, and wait where too many are being
        written.
        """
        if frame.image is None:
            return self._fail(frame.name, frame.error or "no image")
        maps = process(frame)
        if isinstance(maps, Exception):
            return self._fail(frame.name, str(maps))
        self.pending.append((frame, self.pool.submit(self._store, frame, maps)))
        self.commit(self.waiting)

    def commit(self, waiting: int) -> None:
        """Append the lines of the frames that are written, in their order; wait for all but so
        many.
        """
        while self.pending and (len(self.pending) > waiting or self.pending[0][1].done()):
            frame, stored = self.pending.popleft()
            try:
                self.writer.commit(record := stored.result())
            except (
                InputError,
                MemoryError,
            ) as error:  # this frame alone is unfit to be stored or drawn
                self._fail(frame.name, one_line(error))
                continue
            except OSError as error:
                self.pending.clear()  # after a failure nothing may follow out of order
                raise PartialFailure(
                    f"writing to {self.writer.out} failed ({error.strerror or error}); {len(self.writer.lines)} finished "
                    "frames are kept and the same command continues after them"
                ) from error
            self.written += 1
            self._report()
            if self.written == 1:
                self._expect(record)

    def _store(self, frame: Frame, made: Maps | Callable[[], Maps]) -> Record:
        maps = made() if callable(made) else made
        overlay = (
            None
            if self.draw_overlay is None
            else self.draw_overlay(frame, self.writer.visible(maps))
        )
        record = self.writer.store(frame.name, maps, overlay, place=frame.index)
        origin = (("time", frame.time), ("stamp", frame.stamp))
        return record | {key: value for key, value in origin if value is not None}

    def _expect(self, record: Record) -> None:
        """Raise InputError where the maps to come do not fit on the disk, by the size of the first
        frame's.
        """
        total = self.source.length or self.source.length_hint or 0
        coming = self.writer.shard.share(total) - len(self.writer.lines)
        taken = coming * sum(size for size, _ in record["sums"].values())
        if taken > (free := shutil.disk_usage(self.writer.out).free):
            message = f"the maps of {coming} more frames take {taken / 1e9:.3g} GB, but {free / 1e9:.3g} GB are free"
            remedy = "free space and run the same command again, or begin anew (--overwrite) with --compact or fewer --scores"
            raise InputError(f"{message} in {self.writer.out}", hint=remedy)

    def _fail(self, name: str, reason: str) -> None:
        self.writer.failed[name] = reason
        self._report()

    def _report(self) -> None:
        if self.on_progress is not None:
            total = self.source.length or self.source.length_hint
            share = None if total is None else self.writer.shard.share(total)
            failed = len(self.writer.failed)
            done = self.skipped + self.written + failed
            self.on_progress(done, share, f"{failed} failed" if failed else "", self.skipped)
