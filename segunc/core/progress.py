"""What stands on the terminal: how far a run over frames is, and nothing of libraries that talk."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self, TextIO

from segunc.core.terminal import say, visible

PLAIN_INTERVAL = 5.0
"""Seconds between two plain lines."""


@dataclass(frozen=True)
class Progress:
    """How far a run is: frames finished and failed in this run, frames that an earlier run had finished, the expected
    total (None where unknown) and the seconds since the start."""

    finished: int
    failed: int
    skipped: int
    total: int | None
    seconds: float


class ConsoleProgress:
    """Shows :class:`Progress` on a stream, or standard error: tqdm's bar on a terminal, elsewhere a line every
    ``interval`` s. Use it as ``with ConsoleProgress() as show: run_pipeline(..., on_progress=show)``; its end prints
    the last line. A ``label`` stands in front of the bar and of every line."""

    def __init__(self, stream: TextIO | None = None, *, interval: float = PLAIN_INTERVAL, label: str = "") -> None:
        self._stream = sys.stderr if stream is None else stream
        self._interval, self._label = interval, label
        self._bar: Any = None
        self._unprinted: Progress | None = None
        self._printed_at = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        if self._stream.isatty():
            self._advance_bar(progress)
        else:
            self._unprinted = progress
            if time.monotonic() - self._printed_at >= self._interval:
                self._print()

    def say(self, line: str) -> None:
        """A line of its own, above the bar."""
        if self._bar is not None:
            self._bar.clear()
        say(f"{self._label}: {line}" if self._label else line, stream=self._stream, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
        self._print()

    def _advance_bar(self, progress: Progress) -> None:
        from tqdm import tqdm

        if self._bar is None:
            # `initial` keeps frames of an earlier run out of the rate.
            given = {"total": progress.total, "initial": progress.skipped, "desc": visible(self._label) or None}
            self._bar = tqdm(unit="frame", file=self._stream, dynamic_ncols=True, **given)
        self._bar.update(progress.skipped + progress.finished + progress.failed - self._bar.n)
        if progress.failed:
            self._bar.set_postfix_str(f"{progress.failed} failed", refresh=False)

    def _print(self) -> None:
        if self._unprinted is not None:
            self.say(describe(self._unprinted))
            self._unprinted, self._printed_at = None, time.monotonic()


@dataclass(frozen=True)
class Counter:
    """Shows how many of how many frames are done, as told in calls with both numbers, and lines between."""

    show: ConsoleProgress
    start: float

    def __call__(self, done: int, total: int) -> None:
        self.show(Progress(done, 0, 0, total, time.monotonic() - self.start))

    def say(self, line: str) -> None:
        """As :meth:`ConsoleProgress.say`."""
        self.show.say(line)


@contextlib.contextmanager
def count_frames() -> Iterator[Counter]:
    """A counter of frames on the console."""
    with ConsoleProgress() as show:
        yield Counter(show, time.monotonic())


def describe(progress: Progress) -> str:
    """One line: frames done of how many, frames a second of this run, time left."""
    now = progress.finished + progress.failed
    done = progress.skipped + now
    rate = now / progress.seconds if progress.seconds > 0 else 0.0
    of = f" of {progress.total}" if progress.total is not None else ""
    parts = [f"{done}{of} frames", f"{rate:.2f} frames/s"]
    if progress.total is not None and rate > 0 and progress.total > done:
        minutes, seconds = divmod(round((progress.total - done) / rate), 60)
        hours, minutes = divmod(minutes, 60)
        parts.append(f"{hours}:{minutes:02d}:{seconds:02d} left" if hours else f"{minutes}:{seconds:02d} left")
    if progress.failed:
        parts.append(f"{progress.failed} failed")
    return ", ".join(parts)


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Swallow what is printed on the file descriptor of standard error, by Python too: exceptions are to say what is wrong."""
    saved, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)


@contextlib.contextmanager
def quiet_opencv() -> Iterator[None]:
    """Keep OpenCV's complaints from standard error, where our one line stands."""
    from cv2.utils import logging as opencv

    level = opencv.getLogLevel()
    opencv.setLogLevel(opencv.LOG_LEVEL_SILENT)
    try:
        yield
    finally:
        opencv.setLogLevel(level)


def quiet_lightning() -> None:
    """Keep Lightning to warnings and errors; imports it, because that sets the levels anew."""
    import lightning.pytorch  # noqa: F401

    for name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in (
        ".*isinstance\\(treespec.*",
        ".*does not have many workers.*",
        ".*The number of training batches.*",
        ".*Checkpoint directory .* exists.*",
        ".*Experiment logs directory.*",
        ".*Found .* module\\(s\\) in eval mode.*",
    ):
        warnings.filterwarnings("ignore", message=message)
