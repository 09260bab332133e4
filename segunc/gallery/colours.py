"""Colours of score maps over ranges that all frames share.

A map that is coloured by its own extremes makes a calm frame look dangerous.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.data.images import Image
from segunc.data.labels import LabelMap
from segunc.maps.labelled import choose_scores
from segunc.maps.reader import MapsReader
from segunc.scores import SCORES, first_shown

# Frames that the range of an unbounded score is taken from, evenly spaced over the set.
_SAMPLED_FRAMES = 32
_PERCENTILES = (1, 99)


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
    range.
    """
    share = shown.share(values.astype(np.float32))
    return np.asarray(np.rint(np.clip(share, 0, 1) * 255), np.uint8)


def colourise(values: npt.NDArray[np.floating], shown: DisplayRange) -> Image:
    """Paint a score map ``[H, W]`` in real units as RGB uint8 ``[H, W, 3]``."""
    return np.asarray(colour_table()[levels(values, shown)], np.uint8)


def usual_scores(reader: MapsReader) -> list[str]:
    """Return the scores that a page shows where nobody names any: the first to show, entropy and
    epistemic.
    """
    available = choose_scores(reader, None)
    usual = dict.fromkeys((first_shown(available), "entropy", "epistemic"))
    return [score for score in usual if score in available]


def page_ranges(
    reader: MapsReader,
    scores: Sequence[str],
    asked: Mapping[str, tuple[float, float]] | None = None,
) -> dict[str, DisplayRange]:
    """Return the range of each of some scores of a maps folder; it is the same for all frames.

    A range that is asked for comes first, then the fixed range of the score. Whole numbers of other
    tools lie in 0..1. An unbounded score gets the 1st to the 99th percentile of evenly spaced
    frames of the whole set, rounded outwards.
    """
    asked = asked or {}
    choose_scores(reader, list(asked))  # each has maps
    ranges = {}
    for score in scores:
        fixed = SCORES[score].colours if score in SCORES else None
        if score in asked or fixed is not None:
            shown = display_range(score, asked.get(score, fixed))
        else:
            shown = _range_of_set(reader, score)
        ranges[score] = shown
    for score, shown in ranges.items():
        measured = _measured_to(reader, score)
        if measured is not None and score not in asked:
            ranges[score] = _up_to_largest(reader, score, shown, measured)
        elif measured is not None and shown.low < measured < shown.high:
            ranges[score] = replace(shown, measured_to=measured)
    return ranges


def _measured_to(reader: MapsReader, score: str) -> float | None:
    """Return up to which value a score was measured; beyond it is extrapolated. None where it is
    measured everywhere.
    """
    described = (reader.manifest or {}).get("maps", {}).get(score, {})
    usual = SCORES[score].measured_to if score in SCORES else None  # older maps do not say
    measured: float | None = described.get("measured_to", usual)
    return measured


def _up_to_largest(
    reader: MapsReader, score: str, shown: DisplayRange, measured: float
) -> DisplayRange:
    """Return a range up to the largest value of the run, so that what lies beyond the fixed range
    is told apart.
    """
    high = max(shown.high, math.floor(measured) + 1)
    for record in reader.records.values():
        largest = record.get("max", {}).get(score, 0.0)
        if math.isfinite(largest):
            high = max(high, math.ceil(largest))
    return DisplayRange(shown.low, high, measured_to=measured)


def _range_of_set(reader: MapsReader, score: str) -> DisplayRange:
    """Return the range of a score without a fixed one, of evenly spaced frames of the set."""
    names = [name for name in reader.frames if reader.has(name, score)]
    every = max(1, math.ceil(len(names) / _SAMPLED_FRAMES))
    ends: list[float] = []
    for name in names[::every]:
        try:
            stored = reader.read_stored(name, score)
        except InputError:
            continue  # said where the frame is written
        if stored.dtype.kind == "u":
            return DisplayRange(0, 1)
        finite = stored[np.isfinite(stored)].astype(np.float32)
        if finite.size:
            ends += np.percentile(finite, _PERCENTILES).tolist()
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


def _nine_digits(value: float) -> float:
    """Round away what the binary form of a decimal step adds."""
    return float(f"{value:.9g}")


def class_colours(reader: MapsReader, label_map: LabelMap | None = None) -> list[dict[str, Any]]:
    """Return name and colour of each class id: of the manifest, else of the label map, else numbers
    in distant colours.
    """
    recorded = (reader.manifest or {}).get("classes", {})
    names: Sequence[str] = recorded.get("names", [])
    palette: Sequence[Sequence[int]] = recorded.get("palette", [])
    if label_map is not None and not names:
        names = label_map.classes
        palette = label_map.palette
    if not names:
        names = [f"class {index}" for index in range(255)]
    classes = []
    for index, name in enumerate(names):
        colour = palette[index] if index < len(palette) else _distant_colour(index)
        classes.append({"name": str(name), "colour": list(colour)})
    return classes


def _distant_colour(index: int) -> list[int]:
    """Return a colour that lies far from those of the neighbouring indices."""
    colour: list[int] = colour_table()[97 * index % 256].tolist()
    return colour
