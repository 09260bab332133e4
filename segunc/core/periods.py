"""Periods of time in a video, whose times are floating-point numbers."""

from __future__ import annotations

SLACK = 1e-3
"""Seconds by which a time may fall short of the end of a period: the resolution of WebM."""


def whole_periods(seconds: float, period: float) -> int:
    """Return how many periods have passed after some seconds.

    A period that ends at most a millisecond later counts, because a difference of times that are
    not exact in binary falls short: ``4.0 - 3.2 < 0.8``. For periods below a tenth of a second it
    is a hundredth of the period.

    Args:
        seconds: at least 0.
        period: in seconds, above 0.

    >>> whole_periods(4.0 - 3.2, 0.8)
    1
    >>> whole_periods(9.99, 10)
    0
    """
    return int((seconds + min(SLACK, period / 100)) // period)
