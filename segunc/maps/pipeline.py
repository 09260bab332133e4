"""Frames through a network to maps on disk: decoding, computing and writing at once, in constant memory.

The stages are joined by bounded queues: one thread decodes, the caller's thread computes, a small pool encodes and
writes, and one thread appends the finished frames to ``frames.jsonl`` in source order.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby
from typing import Protocol

from segunc.core.errors import InputError, PartialFailure, one_line
from segunc.core.progress import Progress
from segunc.data.images import Image, difference_hash
from segunc.frames.source import Frame, FrameSource
from segunc.maps.folder import expected_of_maps
from segunc.maps.nearest import NearestPlaces
from segunc.maps.shards import Record
from segunc.maps.store import Maps, MapsWriter

Process = Callable[[list[Frame]], Sequence[Maps | Exception]]
"""Maps of some frames of one size, in their order; an exception in a frame's place fails that frame alone."""
DrawOverlay = Callable[[Frame, Maps], Image]
"""The picture for ``overlay/`` from a frame and the maps that ``process`` gave."""
FindNearest = Callable[[Frame, Maps], NearestPlaces]
"""What goes to ``nearest/`` of the same."""

_POLL_SECONDS = 0.1


class Sequential(Protocol):
    """What a process remembers of earlier frames; frames then come one after the other, in one shard."""

    def resume(self, place: int) -> int:
        """Take up a state from before a place; returns the first place to compute, finished or not."""

    def finish(self) -> None:
        """The last frame has been computed."""


@dataclass
class Summary:
    """What a run did: frames finished in it, and before it; name -> reason of those that failed; wall-clock seconds."""

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
    group: int = 1,
    prefetch: int = 4,
    writers: int = 2,
    draw_overlay: DrawOverlay | None = None,
    find_nearest: FindNearest | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_note: Callable[[str], None] | None = None,
    sequence: Sequential | None = None,
) -> Summary:
    """Write the maps of every frame of a source that the writer has not finished, and close the writer.

    Groups are cut by the frames' place in the source, and a group that an earlier run left half finished is computed
    whole again: the frames that share a batch decide the last bits of its results.

    Args:
        source: of the frames.
        process: called in this thread with up to ``group`` frames of one size.
        writer: of the maps.
        group: frames a call of ``process``.
        prefetch: groups decoded ahead. As many frames, but at least two groups, may wait for being written, so that one
            group is written while the next is computed.
        writers: threads that encode and write, draw ``overlay/F.jpg`` by ``draw_overlay`` and make ``nearest/F.json`` by
            ``find_nearest``.
        on_progress: called after each frame, from one thread at a time, not always this one.
        on_note: called with a line on finished frames that are made again, and after the first frame on the bytes that all take.
        sequence: the part of ``process`` that remembers earlier frames, where there is one.

    What was finished is kept after a PartialFailure (a file could not be written), an InputError (by its first frame, the rest
    does not fit on the disk) and whatever ``process`` or ``draw_overlay`` raise; a frame that fails is in the summary.
    """
    if group < 1:
        raise InputError(f"a group of {group} frames", "at least 1", "give another --chunk")
    try:
        writer.begin(source, in_sequence=sequence is not None)
        if writer.forgotten and on_note is not None:
            on_note(
                f"{writer.forgotten} finished frames are made again: their maps or images are missing, damaged or others"
            )
        again_from = None if sequence is None else sequence.resume(writer.lines.next)
        run = _Run(source, writer, group, prefetch, draw_overlay, find_nearest, on_progress, on_note, again_from)
        with ThreadPoolExecutor(writers, thread_name_prefix="write-maps") as pool:
            try:
                for frames in run.groups():
                    run.compute(frames, process, pool)
            finally:
                run.stop()
    except BaseException:
        with contextlib.suppress(OSError):  # on a full disk the manifest stays as it was; the first error is the news
            writer.close("interrupted")
        raise
    if sequence is not None:
        sequence.finish()
    writer.close("finished")
    return Summary(run.written, run.skipped, dict(writer.failed), time.monotonic() - run.started)


@dataclass
class _Run:
    """The threads and queues of one run, started."""

    source: FrameSource
    writer: MapsWriter
    group: int
    prefetch: int
    draw_overlay: DrawOverlay | None
    find_nearest: FindNearest | None
    on_progress: Callable[[Progress], None] | None
    on_note: Callable[[str], None] | None
    again_from: int | None

    def __post_init__(self) -> None:
        self.started = time.monotonic()
        self.written, self.skipped = 0, self.writer.finished
        self.decoded: queue.Queue[list[Frame] | None] = queue.Queue(self.prefetch)
        waiting = max(self.prefetch, 2 * self.group)
        self.pending: queue.Queue[tuple[Frame, Future[Record]] | None] = queue.Queue(waiting)
        self.stopping, self.reporting = threading.Event(), threading.Lock()
        self.errors: list[BaseException] = []
        stages = {"decode-frames": self._decode, "commit-frames": self._commit}
        self.threads = [threading.Thread(target=stage, name=name, daemon=True) for name, stage in stages.items()]
        for thread in self.threads:
            thread.start()

    def groups(self) -> Iterator[list[Frame]]:
        """Decoded groups until the source ends or a thread fails."""
        while not self.errors:
            try:
                frames = self.decoded.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                continue
            if frames is None or self.errors:
                return
            yield frames

    def compute(self, frames: list[Frame], process: Process, pool: ThreadPoolExecutor) -> None:
        """Compute one group and hand its frames to the writers."""
        for frame in frames:
            if frame.image is None:
                self._fail(frame.name, frame.error or "no image")
        readable = [(frame.image.shape, frame) for frame in frames if frame.image is not None]
        for _, same_size in groupby(readable, key=lambda pair: pair[0]):
            batch = [frame for _, frame in same_size]
            results = process(batch)
            if len(results) != len(batch):
                raise RuntimeError(f"process gave {len(results)} results for {len(batch)} frames")
            for frame, maps in zip(batch, results, strict=True):
                if frame.index in self.writer.lines:
                    continue  # computed again only for the sake of its group
                if isinstance(maps, Exception):
                    self._fail(frame.name, str(maps))
                else:
                    self.pending.put((frame, pool.submit(self._store, frame, maps)))

    def stop(self) -> None:
        """Let the writers finish what they were given, then end all threads; raises what a thread raised."""
        self.stopping.set()
        self.pending.put(None)
        for thread in self.threads:
            thread.join()
        if self.errors:
            raise self.errors[0]

    def _decode(self) -> None:
        try:
            if not (self.writer.was_complete and self.source.kind == "video"):
                frames = self.source.frames(self._skip)
                for _, members in groupby(frames, key=lambda frame: frame.index // self.group):
                    if not self._offer(list(members)):
                        return
        except BaseException as error:
            self.errors.append(error)
        self._offer(None)

    def _offer(self, item: list[Frame] | None) -> bool:
        while not self.stopping.is_set():
            with contextlib.suppress(queue.Full):
                self.decoded.put(item, timeout=_POLL_SECONDS)
                return True
        return False

    def _skip(self, index: int, name: str) -> bool:
        if not self.writer.shard.owns(index, self.group):
            return True
        if self.again_from is not None and not self.writer.was_complete:
            return index < self.again_from
        first = index - index % self.group
        group = range(first, first + self.group)
        return all(place in self.writer.lines or self.source.name_of(place) is None for place in group)

    def _store(self, frame: Frame, maps: Maps) -> Record:
        overlay = None if self.draw_overlay is None else self.draw_overlay(frame, self.writer.visible(maps))
        near = None if self.find_nearest is None else self.find_nearest(frame, maps)
        record = self.writer.store(frame.name, maps, overlay, place=frame.index, nearest=near)
        origin = {"time": frame.time, "stamp": frame.stamp}
        if frame.time is None and frame.image is not None:
            origin["look"] = (
                f"{difference_hash(frame.image):016x}"  # in place of a time: which frames are of one moment
            )
        return record | {key: value for key, value in origin.items() if value is not None}

    def _commit(self) -> None:
        while (item := self.pending.get()) is not None:
            frame, stored = item
            try:
                record = stored.result()
                if not self.errors:  # after a failure nothing may follow out of order
                    self.writer.commit(record)
                    self.written += 1
                    self._report()
                    if self.written == 1:
                        self._expect(record)
            except (InputError, MemoryError) as error:  # this frame alone is unfit to be stored or drawn
                self._fail(frame.name, one_line(error))
            except OSError as error:
                failure = PartialFailure(
                    f"writing to {self.writer.out} failed ({error.strerror or error}); {self.writer.finished} finished "
                    "frames are kept and the same command continues after them"
                )
                failure.__cause__ = error
                self.errors.append(failure)
            except BaseException as error:
                self.errors.append(error)

    def _expect(self, record: Record) -> None:
        """Say what the maps take, by the first frame; an error of the run where those to come do not fit."""
        total, shard, compact = self._total(), self.writer.shard, bool(self.writer.manifest["run"].get("compact"))
        coming = None if total is None else max(0, shard.share(total, self.group) - self.writer.finished)
        try:
            line = expected_of_maps(self.writer.out, record, total, coming, compact=compact)
        except InputError as error:
            self.errors.append(error)
        else:
            if self.on_note is not None and shard.number == 1:
                self.on_note(line)

    def _total(self) -> int | None:
        """Frames of the source as far as it says so."""
        return self.source.length or self.source.length_hint

    def _fail(self, name: str, reason: str) -> None:
        self.writer.failed[name] = reason
        self._report()

    def _report(self) -> None:
        if self.on_progress is not None:
            total = self._total()
            share = None if total is None else self.writer.shard.share(total, self.group)
            with self.reporting:
                seconds = time.monotonic() - self.started
                self.on_progress(Progress(self.written, len(self.writer.failed), self.skipped, share, seconds))
