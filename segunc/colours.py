"""Colours of score maps and classes, over ranges that all frames share.

A map that is coloured by its own extremes makes a calm frame look dangerous.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.data.images import Image
from segunc.scores import SCORES

PERCENTILES = (1, 99)
"""Of the values of an unbounded score: the two ends of its colours."""

CLASS_COLOURS = (
    # Okabe and Ito's colours.
    (0, 114, 178),
    (230, 159, 0),
    (0, 158, 115),
    (204, 121, 167),
    (86, 180, 233),
    (213, 94, 0),
    (240, 228, 66),
    # Tol's muted colours, without those near the ones above.
    (51, 34, 136),
    (136, 34, 85),
    (17, 119, 51),
    (153, 153, 51),
    (170, 68, 153),
    (221, 204, 119),
    # Of Green-Armytage's colour alphabet (2010), each time the one farthest from all before.
    (116, 10, 255),
    (43, 206, 72),
    (94, 241, 242),
    (255, 0, 16),
    (148, 255, 181),
    (153, 0, 0),
    (240, 163, 255),
    (157, 204, 0),
    (0, 117, 220),
    (66, 102, 0),
    (255, 168, 187),
    (255, 255, 0),
    (194, 0, 136),
    (76, 0, 92),
    (153, 63, 0),
)
"""Colours that readers tell apart, the first 13 also colour-blind ones; none is grey, since grey
pixels may be ids.
"""


@dataclass(frozen=True)
class DisplayRange:
    """The values at the two ends of a colour bar; an end is open where values beyond it occur and
    share its colour.
    """

    low: float
    high: float
    open_below: bool = False
    open_above: bool = False
    # in the middle of the bar: what is beyond is extrapolated, in its upper half
    measured_to: float | None = None

    def __post_init__(self) -> None:
        if not (np.isfinite(self.low) and np.isfinite(self.high) and self.low < self.high):
            raise InputError(
                f"the display range {self.low:g}..{self.high:g} does not rise from low to high"
            )

    @property
    def ticks(self) -> tuple[str, str, str]:
        """Labels of the low end, the middle and the high end; ``<=`` and ``>=`` mark open ends."""
        middle = (self.low + self.high) / 2 if self.measured_to is None else self.measured_to
        low = f"<= {self.low:g}" if self.open_below else f"{self.low:g}"
        high = f">= {self.high:g}" if self.open_above else f"{self.high:g}"
        return low, f"{middle:g}", high

    def share(self, values: Any) -> Any:
        """Return the places of float32 values on the bar, 0..1 within the range."""
        if self.measured_to is None:
            return (values - np.float32(self.low)) / np.float32(self.high - self.low)
        ends = np.array([self.low, self.measured_to, self.high], np.float32)
        return np.interp(values, ends, np.array([0, 0.5, 1], np.float32)).astype(np.float32)


def display_range(score: str, asked: tuple[float, float] | None = None) -> DisplayRange:
    """Return the range of a score: the one asked for, or else its fixed one.

    An end is open where values can lie beyond it.

    Raises:
        InputError: there is neither.
    """
    entry = SCORES.get(score)
    shown = asked
    lower = None
    upper = None
    if entry is not None:
        shown = asked or entry.colours
        lower = entry.lower
        upper = entry.upper
    if shown is None:
        raise InputError(
            f"the score '{score}' has no fixed display range",
            hint=f"give one, e.g. --range {score}=0:1",
        )
    low, high = shown
    return DisplayRange(
        low,
        high,
        open_below=lower is None or low > lower,
        open_above=upper is None or high < upper,
    )


def up_to_measured(shown: DisplayRange, measured: float | None) -> DisplayRange:
    """Return a range that marks what is extrapolated.

    Args:
        shown: a range.
        measured: the value that a score was measured up to. None, or a value outside the range,
            changes nothing.
    """
    if measured is None or not shown.low < measured < shown.high:
        return shown
    return replace(shown, measured_to=measured)


@cache
def colour_table() -> Image:
    """Return the colours of all scores from the lowest value to the highest, RGB uint8 ``[256,
    3]``; read-only.
    """
    # Plasma is a table of matplotlib (CC0): its lightness rises evenly, so it is read in order by
    # colour-blind eyes and in grey print too. Its upper end is a saturated yellow; that of magma
    # and inferno is near the white of lane markings.
    ramp = np.arange(256, dtype=np.uint8)[:, None]
    table = np.ascontiguousarray(cv2.applyColorMap(ramp, cv2.COLORMAP_PLASMA)[:, 0, ::-1], np.uint8)
    table.flags.writeable = False
    return table


def levels(values: npt.NDArray[np.floating], shown: DisplayRange) -> npt.NDArray[np.uint8]:
    """Return the rows 0..255 of the colour table for values ``[H, W]``, clipped at the ends of the
    range. A pixel without a value (NaN) gets the lowest.
    """
    share = np.nan_to_num(shown.share(values.astype(np.float32)), nan=0.0)
    return np.asarray(np.rint(np.clip(share, 0, 1) * 255), np.uint8)


def colourise(values: npt.NDArray[np.floating], shown: DisplayRange) -> Image:
    """Paint a score map ``[H, W]`` in real units as RGB uint8 ``[H, W, 3]``."""
    return np.asarray(colour_table()[levels(values, shown)], np.uint8)


def range_of_ends(ends: Sequence[float]) -> DisplayRange:
    """Return the range of an unbounded score from low and high percentiles of its maps, rounded
    outwards; both ends are open.

    Args:
        ends: :data:`PERCENTILES` of any number of maps; none gives 0..1.
    """
    if not ends or not min(ends) < max(ends):
        return DisplayRange(0, 1, open_below=True, open_above=True)
    low = min(ends)
    high = max(ends)
    step = 10.0 ** (np.floor(np.log10(high - low)) - 1)
    return DisplayRange(
        _nine_digits(np.floor(low / step) * step),
        _nine_digits(np.ceil(high / step) * step),
        open_below=True,
        open_above=True,
    )


def range_of_maps(score: str, maps: Sequence[npt.NDArray[np.floating]]) -> DisplayRange:
    """Return the range of a score for maps that are shown together: its fixed one, so that it
    compares with that of other maps, or without one that of the percentiles of these maps.

    Args:
        score: its name, also one that this package does not know.
        maps: each ``[H, W]``.
    """
    entry = SCORES.get(score)
    if entry is not None and entry.colours is not None:
        return display_range(score)
    ends: list[float] = []
    for values in maps:
        finite = values[np.isfinite(values)]
        if finite.size:
            ends += np.percentile(finite, PERCENTILES).tolist()
    shown = range_of_ends(ends)
    if entry is not None and entry.lower is not None and shown.low <= entry.lower:
        return replace(shown, low=entry.lower, open_below=False)
    return shown


def _nine_digits(value: float) -> float:
    """Round away what the binary form of a decimal step adds."""
    return float(f"{value:.9g}")


def colour_of_class(number: int, palette: Sequence[tuple[int, int, int]]) -> tuple[int, int, int]:
    """Return the RGB colour of a class id: of the palette, else one of :data:`CLASS_COLOURS`, light
    ones of these when they are used up, then dark ones.
    """
    if number < len(palette):
        return palette[number]
    turn, place = divmod(number, len(CLASS_COLOURS))
    red, green, blue = CLASS_COLOURS[place]
    towards = (None, 255, 0)[turn % 3]
    if towards is None:
        return red, green, blue
    return (red + towards) // 2, (green + towards) // 2, (blue + towards) // 2


def class_table(ids: Iterable[int], palette: Sequence[tuple[int, int, int]]) -> Image:
    """Return :func:`colour_of_class` of each of some class ids, uint8 ``[256, 3]``; the others are
    black.
    """
    table = np.zeros((256, 3), np.uint8)
    for number in ids:
        table[number] = colour_of_class(int(number), palette)
    return table
