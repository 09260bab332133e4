"""Percentiles of times in constant memory, however long a run is."""

from __future__ import annotations

import math
from collections.abc import Sequence

SMALLEST = 1e-4
"""Seconds; shorter times count as this one."""
RATIO = 1.02
"""Of the two ends of a bin: a percentile is at most 2 % too high, and never too low."""
BINS = 1 + math.ceil(math.log(1e8) / math.log(RATIO))  # up to 10,000 s


class TimeHistogram:
    """Counts times in bins whose width grows with the time.

    >>> times = TimeHistogram()
    >>> for milliseconds in range(1, 101):
    ...     times.add(milliseconds / 1000)
    >>> [round(seconds, 2) for seconds in times.percentiles([50, 95, 99])]
    [0.05, 0.1, 0.1]
    """

    def __init__(self) -> None:
        self.count = 0
        self.largest = 0.0
        self._bins = [0] * BINS

    def add(self, seconds: float) -> None:
        """Count one time, in seconds."""
        place = 0
        if seconds > SMALLEST:
            place = math.ceil(math.log(seconds / SMALLEST) / math.log(RATIO))
        self._bins[min(place, BINS - 1)] += 1
        self.count += 1
        self.largest = max(self.largest, seconds)

    def percentiles(self, percents: Sequence[float]) -> list[float | None]:
        """Return the upper end of the bin that holds each percentile, in seconds, and at most the
        largest time.

        The percentile q of n times is the smallest that at least q % of them do not exceed. None
        stands for each where nothing was counted.
        """
        if not self.count:
            return [None] * len(percents)
        return [self._percentile(percent) for percent in percents]

    def _percentile(self, percent: float) -> float:
        needed = max(1, math.ceil(percent / 100 * self.count))
        below = 0
        for place, number in enumerate(self._bins):
            below += number
            if below >= needed:
                return min(SMALLEST * RATIO**place, self.largest)
        return self.largest
