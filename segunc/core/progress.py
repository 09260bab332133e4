"""What stands on the terminal: how far a run over frames is, and nothing of libraries that talk."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self, TextIO, TypeVar

from segunc.core.terminal import say

T = TypeVar("T")


@dataclass(frozen=True)
class Progress:
    """How far a run is: frames or steps finished and failed in it, those that an earlier run had finished, the expected total (None where
    unknown), the seconds since the start, and a few words on the state."""

    finished: int
    failed: int
    skipped: int
    total: int | None
    seconds: float
    state: str = ""


class ConsoleProgress:
    """Show :class:`Progress` on a stream (None: standard error) while open: a line every ``interval`` s, behind a ``label``, on a terminal
    one line that changes. ``skipped`` of what :meth:`count` counts an earlier run had finished; ``quiet`` shows nothing, as all processes
    of a distributed run but the first."""

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        interval: float = 5.0,
        label: str = "",
        unit: str = "frame",
        skipped: int = 0,
        quiet: bool = False,
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._terminal = self._stream.isatty()
        self._interval = 0.2 if self._terminal else interval
        self._label, self._unit, self._skipped, self._quiet = label, unit, skipped, quiet
        self._unprinted: Progress | None = None
        self._start = self._last = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        """Show it."""
        if not self._quiet:
            self._unprinted = progress
            if time.monotonic() - self._last >= self._interval:
                self._last = time.monotonic()
                self.flush(end="\r" if self._terminal else "\n")

    def count(self, done: int, total: int, state: str = "") -> None:
        """Show that ``done`` of ``total`` are done."""
        seconds = time.monotonic() - self._start
        self(Progress(done - self._skipped, 0, self._skipped, total, seconds, state))

    def follow(self, items: Sequence[T]) -> Iterator[T]:
        """Yield the items one by one, and count them."""
        with self:
            for done, item in enumerate(items, 1):
                yield item
                self.count(done, len(items))

    def say(self, line: str, end: str = "\n") -> None:
        """Print a line of its own."""
        line = f"{self._label}: {line}" if self._label else line
        say(line.ljust(100) if self._terminal else line, stream=self._stream, end=end, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()

    def flush(self, end: str = "\n") -> None:
        """Print the line that is waiting for the end of the interval."""
        if self._unprinted is not None:
            self.say(describe(self._unprinted, self._unit), end)
        if end == "\n":
            self._unprinted = None


def describe(progress: Progress, unit: str = "frame") -> str:
    """Return one line: frames done of how many, frames a second, time left after ten seconds (first frames take longer), failures, state."""
    from tqdm import tqdm

    done = progress.skipped + progress.finished + progress.failed
    state = ", ".join(filter(None, [f"{progress.failed} failed" if progress.failed else "", progress.state]))
    left = ", {remaining} left" if progress.total and (progress.seconds >= 10 or done == progress.total) else ""
    ending = f"{' of {total_fmt}' if progress.total else ''}{{unit}}, {{rate_noinv_fmt}}{left}"
    settings: dict[str, Any] = {"unit": f" {unit}s", "initial": progress.skipped, "postfix": state}
    settings["bar_format"] = "{n_fmt}" + ending + "{postfix}"
    return str(tqdm.format_meter(done, progress.total, progress.seconds, **settings)).replace("  ", " ")


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
    usual = (
        r"isinstance\(treespec|does not have many workers|The number of training batches|Checkpoint directory .* exists|"
        r"Experiment logs directory|Found .* module\(s\) in eval mode"
    )
    warnings.filterwarnings("ignore", message=f".*({usual})")
