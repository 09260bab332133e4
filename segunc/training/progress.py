"""Lines and progress of a run that Lightning may have spread over several processes; Lightning itself is imported only to ask for it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from tqdm import tqdm

T = TypeVar("T")
Say = Callable[[str], None]
"""Receives a line for each step of a run."""
INTERVAL = 20.0
"""Seconds between two lines of progress, and between two moments to save at."""


def interactive() -> bool:
    """Whether standard error is a terminal."""
    return sys.stderr.isatty()


def is_first_process() -> bool:
    """Whether this is the one process of a distributed run that prints and writes; True outside of one."""
    from lightning.pytorch.utilities import rank_zero_only

    return int(getattr(rank_zero_only, "rank", 0) or 0) == 0


def say(text: str) -> None:
    """Print a line, from the first process alone."""
    if is_first_process():
        print(text, flush=True)


class StepProgress:
    """Progress of work that Lightning does not run: a bar on a terminal, else a labelled line at most every ``every`` seconds.

    Args:
        done: steps of the total that were done before.
    """

    def __init__(self, label: str, total: int, done: int = 0, every: float = INTERVAL) -> None:
        self.label, self.total, self.done, self.every = label, total, done, every
        self._start = self._last = time.monotonic()
        self._first = done
        self._bar = tqdm(total=total, initial=done, desc=label) if interactive() and is_first_process() else None

    def step(self, text: str = "") -> bool:
        """Count a step, with a few words on the work's state; True where it is time to save what was done."""
        self.done += 1
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update()
        now = time.monotonic()
        if now - self._last < self.every:
            return False
        self._last = now
        if self._bar is None and is_first_process():
            rate = (self.done - self._first) / (now - self._start)
            left = (self.total - self.done) / rate
            line = f"{self.label}: step {self.done}/{self.total}, {rate:.2f} steps/s, {left:.0f} s left"
            print(f"{line}, {text}" if text else line, file=sys.stderr, flush=True)
        return True

    def close(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.close()


def follow(items: Sequence[T], label: str) -> Iterator[T]:
    """The items one by one, with a bar on a terminal or a line on standard error now and then."""
    if interactive():
        yield from tqdm(items, desc=label, unit="frame")
        return
    last = time.monotonic()
    for done, item in enumerate(items):
        if time.monotonic() - last >= INTERVAL:
            last = time.monotonic()
            print(f"{label}: {done}/{len(items)} frames", file=sys.stderr, flush=True)
        yield item
