"""Which frames of an input are taken: every N-th, and from one moment of a video to another."""

from __future__ import annotations

import math
from dataclasses import dataclass

from segunc.errors import InputError


@dataclass(frozen=True)
class Selection:
    """Frames whose number in the input is a multiple of ``every`` and whose time t is in ``start <= t < end``.

    Numbers count from the first frame of the input, whatever ``start`` is, so that two ranges of one video take frames
    of one raster.

    Attributes:
        every: 1 takes all frames.
        start: seconds from the first frame, None for the first frame.
        end: seconds, None for the last frame.

    Raises:
        InputError: ``every`` below 1, a negative start, or an end that is not after the start.
    """

    every: int = 1
    start: float | None = None
    end: float | None = None

    def __post_init__(self) -> None:
        if self.every < 1:
            raise InputError(f"every {self.every} frames", "at least 1", "the default is 1")
        if self.start is not None and not (math.isfinite(self.start) and self.start >= 0):
            raise InputError(f"a start of {self.start} s", "0 or later", "leave it out for the first frame")
        if self.end is not None and not self.end > (self.start or 0.0):
            raise InputError(f"an end of {self.end} s", f"later than {self.start or 0.0} s", "check both moments")

    @property
    def timed(self) -> bool:
        """Whether it asks for the time of frames."""
        return self.start is not None or self.end is not None

    def takes(self, number: int, time: float | None) -> bool:
        """Whether the frame of a number in the input and a time in seconds is taken."""
        if number % self.every:
            return False
        return not self.timed or (time is not None and time >= (self.start or 0.0) and not self.is_past(time))

    def is_past(self, time: float | None) -> bool:
        """Whether a frame of this time, and with it all that follow, lies behind the end."""
        return self.end is not None and time is not None and time >= self.end

    def expected(self, frames: int, fps: float | None) -> int:
        """How many of so many frames are taken; with a time range an estimate from the frame rate."""
        if self.timed and fps is not None:
            duration = frames / fps
            taken = min(duration, self.end if self.end is not None else duration) - (self.start or 0.0)
            frames = max(0, round(taken * fps))
        return -(-frames // self.every)


ALL_FRAMES = Selection()


def parse_time(text: str) -> float:
    """Seconds of ``90``, ``90.5``, ``1:30`` or ``0:01:30.5``.

    Raises:
        InputError: another form.
    """
    parts = text.strip().split(":")
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        numbers = [math.nan]
    whole = all(part.isdigit() for part in parts[:-1]) and all(number < 60 for number in numbers[1:])
    if len(parts) > 3 or not whole or not all(math.isfinite(number) and number >= 0 for number in numbers):
        raise InputError(f"a time of '{text}'", "seconds or HH:MM:SS, e.g. 90.5 or 0:01:30.5", "check the spelling")
    seconds = 0.0
    for number in numbers:
        seconds = 60.0 * seconds + number
    return seconds


def format_time(seconds: float) -> str:
    """``H:MM:SS.mmm`` of seconds."""
    milliseconds = round(seconds * 1000)
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest // 1000:02d}.{rest % 1000:03d}"
