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

from segunc.core.terminal import say, visible

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

    @property
    def done(self) -> int:
        return self.skipped + self.finished + self.failed

    @property
    def postfix(self) -> str:
        return ", ".join(filter(None, [f"{self.failed} failed" if self.failed else "", self.state]))


class ConsoleProgress:
    """Show :class:`Progress` on a stream (None: standard error) while open: tqdm's bar on a terminal, elsewhere a line every ``interval`` s,
    behind a ``label``. ``skipped`` of what :meth:`count` counts an earlier run had finished; ``quiet`` shows nothing, as all processes of a
    distributed run but the first."""

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
        self._interval, self._label, self._unit, self._skipped, self._quiet = interval, label, unit, skipped, quiet
        self._bar: Any = None
        self._unprinted: Progress | None = None
        self._start = self._last = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        """Show it."""
        if self._quiet:
            return
        if self._stream.isatty():
            if self._bar is None:
                from tqdm import tqdm

                # `initial` keeps frames of an earlier run out of the rate.
                settings = {"total": progress.total, "initial": progress.skipped, "desc": visible(self._label) or None}
                self._bar = tqdm(unit=self._unit, file=self._stream, dynamic_ncols=True, **settings)
            self._bar.set_postfix_str(visible(progress.postfix), refresh=False)
            self._bar.update(progress.done - self._bar.n)
            return
        self._unprinted = progress
        if time.monotonic() - self._last >= self._interval:
            self._last = time.monotonic()
            self.flush()

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

    def say(self, line: str) -> None:
        """Print a line of its own, above the bar."""
        if self._bar is not None:
            self._bar.clear()
        say(f"{self._label}: {line}" if self._label else line, stream=self._stream, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Show the last state."""
        if self._bar is not None:
            self._bar.close()
        self.flush()

    def flush(self) -> None:
        """Print the line that is waiting for the end of the interval."""
        if self._unprinted is not None:
            self.say(describe(self._unprinted, self._unit))
        self._unprinted = None


def describe(progress: Progress, unit: str = "frame") -> str:
    """Return one line: frames done of how many, frames a second of this run, time left, failures and the state."""
    from tqdm import tqdm

    ending = (
        " of {total_fmt}{unit}, {rate_noinv_fmt}, {remaining} left" if progress.total else "{unit}, {rate_noinv_fmt}"
    )
    settings: dict[str, Any] = {"unit": f" {unit}s", "initial": progress.skipped, "postfix": progress.postfix}
    settings["bar_format"] = "{n_fmt}" + ending + "{postfix}"
    return str(tqdm.format_meter(progress.done, progress.total, progress.seconds, **settings)).replace("  ", " ")


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
