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


class ConsoleProgress:
    """Show how far a run is, as tqdm writes it, on a stream (None: standard error): a line every
    ``interval`` s, behind a ``label``, on a terminal one line that changes; ``quiet`` shows
    nothing, as all processes of a distributed run but the first.
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
        self._label, self._unit, self._quiet, self._line = label, unit, quiet, ""
        self._start = self._last = time.monotonic()

    def count(self, done: int, total: int | None, state: str = "", skipped: int = 0) -> None:
        """Show that ``done`` of ``total`` (None: unknown) are done, ``skipped`` of them by an
        earlier run, and a few words on the state; the time left after ten seconds, as first frames
        take longer.
        """
        from tqdm import tqdm

        now = time.monotonic()
        left = ", {remaining} left" if total and (now - self._start >= 10 or done == total) else ""
        layout = f"{{n_fmt}}{' of {total_fmt}' if total else ''}{{unit}}, {{rate_noinv_fmt}}{left}{{postfix}}"
        settings: dict[str, Any] = {
            "unit": f" {self._unit}s",
            "initial": skipped,
            "postfix": state,
            "bar_format": layout,
        }
        self._line = str(tqdm.format_meter(done, total, now - self._start, **settings)).replace(
            "  ", " "
        )
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
        line = f"{self._label}: {line}" if self._label else line
        say(line.ljust(100) if self._terminal else line, stream=self._stream, end=end, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()

    def flush(self, end: str = "\n") -> None:
        """Print the line that is waiting for the end of the interval."""
        if self._line and not self._quiet:
            self.say(self._line, end)
        # On a terminal the last line is printed once more, to stay.
        self._line = self._line if end == "\r" else ""


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
