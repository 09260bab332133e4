"""Frames through a network to maps on disk, in constant memory: one thread decodes ahead, the
caller's computes, a pool encodes and writes.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from segunc.core.errors import InputError, PartialFailure, one_line
from segunc.core.terminal import agreeing, counted
from segunc.data.images import Image
from segunc.frames.source import Frame, FrameSource
from segunc.maps.shards import Record
from segunc.maps.store import EncodedFrame, FrameEncoder, Maps, MapsWriter

Process = Callable[[Frame], Maps | Callable[[], Maps | EncodedFrame] | Exception]
"""Gives maps, or what waits for them in a writing thread; an exception that is returned fails its
frame alone. A process on other machines gives files that are encoded there.
"""
DrawOverlay = Callable[[Frame, Maps], Image]
FULL = (errno.ENOSPC, errno.EDQUOT)  # what the system says of a full disk, or a full share of it
Show = Callable[[int, int | None, str, int], object]
"""Takes frames done, of how many, the state in words, and frames done by an earlier run."""


@dataclass
class Summary:
    """What a run did."""

    finished: int = 0  # frames of this run
    skipped: int = 0  # frames that were finished before it
    failed: dict[str, str] = field(default_factory=dict)  # name -> reason
    seconds: float = 0.0  # by the clock on the wall

    @property
    def failure(self) -> str:
        """How many frames failed and the first reason, in one line; empty where none did."""
        if not self.failed:
            return ""
        done = self.finished + self.skipped
        first, reason = next(iter(self.failed.items()))
        return (
            f"{len(self.failed)} of {len(self.failed) + done} frames failed, "
            f"first {first} ({reason}); the other {done} {agreeing('is', done)} kept, "
            "all failures are listed in manifest.json, and the same command tries them again"
        )


def encode_maps(
    encoder: FrameEncoder,
    frame: Frame,
    made: Maps | Callable[[], Maps],
    draw_overlay: DrawOverlay | None,
) -> EncodedFrame:
    """Return the files of a frame, and its record with its time and stamp.

    Args:
        encoder: of the maps folder.
        frame: the frame.
        made: its maps, or what waits for them.
        draw_overlay: draws its overlay; None for none.
    """
    maps = made() if callable(made) else made
    overlay = None
    if draw_overlay is not None:
        overlay = draw_overlay(frame, encoder.visible(maps))
    encoded = encoder.encode(frame.name, maps, overlay, place=frame.index)
    if frame.time is not None:
        encoded.record["time"] = frame.time
    if frame.stamp is not None:
        encoded.record["stamp"] = frame.stamp
    return encoded


def run_pipeline(  # noqa: PLR0913  each listener has a name
    source: FrameSource,
    process: Process,
    writer: MapsWriter,
    *,
    prefetch: int = 4,
    writers: int = 2,
    draw_overlay: DrawOverlay | None = None,
    on_progress: Show | None = None,
    on_note: Callable[[str], None] | None = None,
    on_stop: Callable[[], None] | None = None,
) -> Summary:
    """Write the maps of every frame of a source that the writer has not finished, and close it.

    What was finished is kept whatever is raised.

    Args:
        source: of the frames.
        process: makes the maps of a frame.
        writer: of the maps folder.
        prefetch: number of frames that are decoded ahead, and of those that may wait for being
            written.
        writers: number of threads that encode and write maps, and draw overlays.
        draw_overlay: draws ``overlay/F.jpg``; None for no overlays.
        on_progress: is called after each frame.
        on_note: gets a line on finished frames that are made again.
        on_stop: is called where the run ends early. What waits for maps may then raise
            CancelledError, and the frames from there on are left to the next run.

    Returns:
        What the run did; a frame that fails is listed there.

    Raises:
        PartialFailure: a file could not be written, or the maps to come do not fit on the disk.
    """
    try:
        writer.begin(source)
        if writer.forgotten and on_note is not None:
            why = "maps or images are missing, damaged or others"
            frames = counted(writer.forgotten, "finished frame", "is")
            on_note(f"{frames} made again: {why}")
        decoder = ThreadPoolExecutor(1, "decode-frames")
        pool = ThreadPoolExecutor(writers, "write-maps")
        with decoder, pool:
            run = _Run(source, writer, pool, prefetch, draw_overlay, on_progress)
            try:
                for frame in _ahead(run.frames(), prefetch, decoder):
                    run.put(frame, process)
                run.commit(waiting=0)
            except BaseException:
                if on_stop is not None:
                    on_stop()
                raise
            finally:
                decoder.shutdown(wait=False, cancel_futures=True)
                run.commit(waiting=0)
    except BaseException:
        # On a full disk the manifest stays as it was; the first error is the news.
        with contextlib.suppress(OSError):
            writer.close("interrupted")
        raise
    writer.close("finished")
    return Summary(
        finished=run.written,
        skipped=run.skipped,
        failed=dict(writer.failed),
        seconds=time.monotonic() - run.started,
    )


def _size_words(number: int) -> str:
    """Return a number of bytes in the unit that suits it."""
    return f"{number / 1e9:.3g} GB" if number >= 1e9 else f"{number / 1e6:.3g} MB"


def _ahead(frames: Iterator[Frame], number: int, decoder: ThreadPoolExecutor) -> Iterator[Frame]:
    """Yield the frames, and let the one thread of ``decoder`` make so many of them in advance."""
    coming = deque(decoder.submit(next, frames, None) for _ in range(number))
    while True:
        frame = coming.popleft().result()
        if frame is None:
            return
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

    def __post_init__(self) -> None:
        self.started = time.monotonic()
        self.written = 0
        self.skipped = len(self.writer.lines)
        self.pending: deque[tuple[Frame, Future[Record]]] = deque()
        self.bytes_of_frame = 0  # of the first frame of this run; 0 before it is written

    def frames(self) -> Iterator[Frame]:
        """Decode the frames that are not finished."""
        if self.writer.was_complete and self.source.kind == "video":
            return  # nothing is left that a look through the whole video could find
        shard = self.writer.shard
        lines = self.writer.lines
        yield from self.source.frames(lambda index, _: not shard.owns(index) or index in lines)

    def put(self, frame: Frame, process: Process) -> None:
        """Compute a frame and hand its maps to the writers; wait if too many are being written."""
        if frame.image is None:
            self._fail(frame.name, frame.error or "no image")
            return
        maps = process(frame)
        if isinstance(maps, Exception):
            self._fail(frame.name, one_line(maps))
            return
        self.pending.append((frame, self.pool.submit(self._store, frame, maps)))
        self.commit(self.waiting)

    def commit(self, waiting: int) -> None:
        """Append the lines of the frames that are written, in their order, until at most
        ``waiting`` frames are still being written."""
        while self.pending and (len(self.pending) > waiting or self.pending[0][1].done()):
            frame, stored = self.pending.popleft()
            try:
                record = stored.result()
                self.writer.commit(record)
            except (InputError, MemoryError) as error:
                # This frame alone is unfit to be stored or drawn.
                self._fail(frame.name, one_line(error))
                continue
            except CancelledError:  # the run ends early
                self.pending.clear()  # nothing may follow out of order
                return
            except PartialFailure:
                self.pending.clear()
                raise
            except OSError as error:
                self.pending.clear()
                if error.errno in FULL:
                    raise self._lack_of_room() from error
                raise PartialFailure(
                    f"writing to {self.writer.out} failed ({error.strerror or error}); "
                    f"{self._kept()} and the same command continues after them"
                ) from error
            self.written += 1
            self._report()
            if not self.bytes_of_frame:
                self._expect(record)

    def _store(self, frame: Frame, made: Maps | Callable[[], Maps | EncodedFrame]) -> Record:
        """Write the files of a frame and return its record."""
        maps = made() if callable(made) else made
        if isinstance(maps, EncodedFrame):
            return self.writer.store_encoded(maps)
        encoded = encode_maps(self.writer.encoder, frame, maps, self.draw_overlay)
        return self.writer.store_encoded(encoded)

    def _expect(self, record: Record) -> None:
        """Raise PartialFailure where the maps to come do not fit on the disk, by the size of the
        first frame's.
        """
        self.bytes_of_frame = sum(size for size, _ in record["sums"].values())
        self.commit(waiting=0)  # whose files may be on the disk already
        needed = self._coming() * self.bytes_of_frame
        if needed > shutil.disk_usage(self.writer.out).free:
            raise self._lack_of_room()

    def _coming(self) -> int:
        """Return how many frames have no line yet; 0 where the length is not known."""
        total = self.source.length or self.source.length_hint or 0
        return max(0, self.writer.shard.share(total) - len(self.writer.lines))

    def _kept(self) -> str:
        return f"{counted(len(self.writer.lines), 'finished frame', 'is')} kept"

    def _lack_of_room(self) -> PartialFailure:
        """Return the error of a disk that is full, or too small for the maps to come."""
        coming = self._coming()
        needed = ""
        if coming and self.bytes_of_frame:
            needed = (
                f" for the maps of {counted(coming, 'further frame')}: they need "
                f"{_size_words(coming * self.bytes_of_frame)}, and "
                f"{_size_words(shutil.disk_usage(self.writer.out).free)} are free"
            )
        return PartialFailure(
            f"{self.writer.out} has no room{needed}; {self._kept()}. Free space, and the same "
            "command continues after them; or begin anew (--overwrite) with --compact or fewer "
            "--scores"
        )

    def _fail(self, name: str, reason: str) -> None:
        """Note that a frame failed, and go on."""
        self.writer.failed[name] = reason
        self._report()

    def _report(self) -> None:
        if self.on_progress is None:
            return
        total = self.source.length or self.source.length_hint
        share = None if total is None else self.writer.shard.share(total)
        failed = len(self.writer.failed)
        done = self.skipped + self.written + failed
        self.on_progress(done, share, f"{failed} failed" if failed else "", self.skipped)
