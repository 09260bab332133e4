"""What stands on the terminal: how far a run over frames is, and nothing of libraries that talk."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Self, TextIO, TypeVar

from segunc.core.terminal import say

T = TypeVar("T")
LIGHTNING_LOGGERS = (
    "lightning.pytorch",
    "lightning.fabric",
    "lightning.pytorch.utilities.rank_zero",
)


class ConsoleProgress:
    """Show how far a run is, as tqdm writes it.

    A terminal gets one line that changes, another stream a line every ``interval`` seconds.

    Args:
        stream: where to write, standard error for None.
        interval: seconds between two lines.
        label: stands before each line.
        unit: what is counted.
        quiet: show nothing, as all processes of a distributed run except the first do.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        interval: float = 5.0,
        label: str = "",
        unit: str = "frame",
        quiet: bool = False,
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._terminal = self._stream.isatty()
        self._interval = 0.2 if self._terminal else interval
        self._label = label
        self._unit = unit
        self._quiet = quiet
        self._line = ""
        self._start = time.monotonic()
        self._last = self._start

    def count(self, done: int, total: int | None, state: str = "", skipped: int = 0) -> None:
        """Show how far the run is.

        The time left appears after ten seconds, because the first frames take longer.

        Args:
            done: what is done, with ``skipped``.
            total: of how many; None if unknown.
            state: a few words on the state.
            skipped: what an earlier run did.
        """
        from tqdm import tqdm

        now = time.monotonic()
        seconds = now - self._start
        of_total = " of {total_fmt}" if total else ""
        is_estimated = total and (seconds >= 10 or done == total)
        left = ", {remaining} left" if is_estimated else ""
        layout = "{n_fmt}" + of_total + "{unit}, {rate_noinv_fmt}" + left + "{postfix}"
        settings: dict[str, Any] = {
            "unit": f" {self._unit}s",
            "initial": skipped,
            "postfix": state,
            "bar_format": layout,
        }
        line = str(tqdm.format_meter(done, total, seconds, **settings))
        self._line = line.replace("  ", " ")
        if now - self._last >= self._interval:
            self._last = now
            self.flush(end="\r" if self._terminal else "\n")

    def follow(self, items: Sequence[T]) -> Iterator[T]:
        """Yield the items one by one, and count them."""
        with self:
            for done, item in enumerate(items, 1):
                yield item
                self.count(done, len(items))

    def say(self, line: str, end: str = "\n") -> None:
        """Print a line of its own."""
        if self._label:
            line = f"{self._label}: {line}"
        if self._terminal:
            line = line.ljust(100)  # to cover a longer line that stood there
        say(line, stream=self._stream, end=end, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()

    def flush(self, end: str = "\n") -> None:
        """Print the line that is waiting for the end of the interval."""
        if self._line and not self._quiet:
            self.say(self._line, end)
        # On a terminal the last line is printed once more, to stay.
        if end != "\r":
            self._line = ""


def say_step(text: str) -> None:
    """Say which step of a run begins, on standard error, where progress stands."""
    say(text, stream=sys.stderr, flush=True)


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


@contextlib.contextmanager
def quiet_while_open() -> Iterator[None]:
    """Do :func:`quiet_lightning` while open: a program may want to hear of its own trainings."""
    import lightning.pytorch  # noqa: F401 - sets the levels

    levels = {name: logging.getLogger(name).level for name in LIGHTNING_LOGGERS}
    try:
        with warnings.catch_warnings():
            quiet_lightning()
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def quiet_lightning() -> None:
    """Keep Lightning to warnings and errors; imports it, because that sets the levels anew."""
    import lightning.pytorch  # noqa: F401

    for name in LIGHTNING_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    usual_warnings = (
        r"isinstance\(treespec",
        "does not have many workers",
        "The number of training batches",
        "Checkpoint directory .* exists",
        "Experiment logs directory",
        r"Found .* module\(s\) in eval mode",
    )
    warnings.filterwarnings("ignore", message=f".*({'|'.join(usual_warnings)})")
