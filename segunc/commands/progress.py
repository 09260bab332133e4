"""Progress of a run over frames: a bar on a terminal, plain lines now and then elsewhere."""

from __future__ import annotations

import sys
import time

from tqdm import tqdm


class FrameProgress:
    """Shows frames done, frames a second and the time left, on standard error.

    Args:
        label: what is being done.
        every: seconds between plain lines.
    """

    def __init__(self, label: str, every: float = 5.0) -> None:
        self.label, self.every = label, every
        self._bar = tqdm(desc=label, unit="frame", file=sys.stderr) if sys.stderr.isatty() else None
        self._start = self._last = time.monotonic()
        self._first = 0

    def update(self, done: int, total: int | None, *, skipped: int = 0, failed: int = 0) -> None:
        """``done`` frames of this run are finished; ``skipped`` had been before, ``failed`` could not be."""
        if self._bar is not None:
            self._bar.total = total
            self._bar.n = done + skipped + failed
            if failed:
                self._bar.set_postfix(failed=failed)
            self._bar.refresh()
            return
        now = time.monotonic()
        reached = done + skipped + failed
        if now - self._last < self.every and reached != total:
            return
        self._last = now
        rate = done / max(now - self._start, 1e-9)
        left = f", {(total - reached) / rate:.0f} s left" if total and rate > 0 else ""
        lost = f", {failed} failed" if failed else ""
        of = f"/{total}" if total else ""
        print(f"{self.label}: {reached}{of} frames, {rate:.2f} frames/s{left}{lost}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.close()
