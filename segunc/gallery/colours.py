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

_SAMPLED_FRAMES = (
    32  # frames that the range of an unbounded score is taken from, evenly spaced over the set
)


@dataclass(frozen=True)
class DisplayRange:
    """The values at the two ends of a colour bar; an end is open where values beyond it occur and
    share its colour.
    """

    low: float
    high: float
    open_below: bool = False
    open_above: bool = False
    measured_to: float | None = (
        None  # in the middle of the bar: what is beyond is extrapolated, in its upper half
    )

    def __post_init__(self) -> None:
        if not (np.isfinite(self.low) and np.isfinite(self.high) and self.low < self.high):
            raise InputError(
                f"the display range {self.low:g}..{self.high:g} does not rise from low to high"
            )

    @property
    def ticks(self) -> tuple[str, str, str]:
        """Labels of the low end, the middle and the high end; ``<=`` and ``>=`` mark open ends."""
        middle = (self.low + self.high) / 2 if self.measured_to is None else self.measured_to
        below, above = "<= " if self.open_below else "", ">= " if self.open_above else ""
        return f"{below}{self.low:g}", f"{middle:g}", f"{above}{self.high:g}"

    def share(self, values: Any) -> Any:
        """Return the places of float32 values on the bar, 0..1 within the range."""
        if self.measured_to is None:
            return (values - np.float32(self.low)) / np.float32(self.high - self.low)
        ends = np.array([self.low, self.measured_to, self.high], np.float32)
        return np.interp(values, ends, np.array([0, 0.5, 1], np.float32)).astype(np.float32)


def display_range(score: str, given: tuple[float, float] | None = None) -> DisplayRange:
    """Return the range of a score, the one given or else its fixed one; InputError where there is
    neither. An end is open where values can lie beyond it.
    """
    entry = SCORES.get(score)
    shown = given or (entry.colours if entry else None)
    if shown is None:
        raise InputError(
            f"the score '{score}' has no fixed display range",
            hint=f"give one, e.g. --range {score}=0:1",
        )
    low, high = shown
    lower, upper = (entry.lower, entry.upper) if entry else (None, None)
    return DisplayRange(low, high, lower is None or low > lower, upper is None or high < upper)


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
    scores = choose_scores(reader, None)
    return [
        score
        for score in dict.fromkeys((first_shown(scores), "entropy", "epistemic"))
        if score in scores
    ]


def page_ranges(
    reader: MapsReader,
    scores: Sequence[str],
    given: Mapping[str, tuple[float, float]] | None = None,
) -> dict[str, DisplayRange]:
    """Return the range of each of some scores of a maps folder; it is the same for all frames. A
    range that is given comes first, then the fixed range of the score. Whole numbers of other tools
    lie in 0..1. An unbounded score gets the 1st to the 99th percentile of evenly spaced frames of
    the whole set, rounded outwards.
    """
    fixed = {score: SCORES[score].colours for score in scores if score in SCORES}
    own = dict.fromkeys(scores) | fixed | dict(given or {})
    choose_scores(reader, list(given or {}))  # each has maps
    ranges = {s: display_range(s, own[s]) if own[s] else _range_of_set(reader, s) for s in scores}
    described = (reader.manifest or {}).get("maps", {})
    for score in scores:
        measured, shown = SCORES[score].measured_to if score in SCORES else None, ranges[score]
        measured = described.get(score, {}).get("measured_to", measured)  # older maps do not say
        if measured is not None and score not in (given or {}):
            # Up to the largest value of the run, so that what lies beyond the fixed range is told
            # apart.
            largest = (record.get("max", {}).get(score, 0.0) for record in reader.records.values())
            high = max(
                shown.high,
                math.floor(measured) + 1,
                *(math.ceil(v) for v in largest if math.isfinite(v)),
            )
            ranges[score] = DisplayRange(shown.low, high, measured_to=measured)
        elif measured is not None and shown.low < measured < shown.high:
            ranges[score] = replace(shown, measured_to=measured)
    return ranges


def _range_of_set(reader: MapsReader, score: str) -> DisplayRange:
    names = [name for name in reader.frames if reader.has(name, score)]
    ends: list[float] = []
    for name in names[:: max(1, -(-len(names) // _SAMPLED_FRAMES))]:
        try:
            stored = reader.read_stored(name, score)
        except InputError:
            continue  # said where the frame is written
        if stored.dtype.kind == "u":
            return DisplayRange(0, 1)
        finite = stored[np.isfinite(stored)].astype(np.float32)
        if finite.size:
            ends += np.percentile(finite, (1, 99)).tolist()
    if not ends or not min(ends) < max(ends):
        return DisplayRange(0, 1, open_below=True, open_above=True)
    low, high = min(ends), max(ends)
    step = 10.0 ** (np.floor(np.log10(high - low)) - 1)
    low, high = (
        float(f"{end:.9g}") for end in (np.floor(low / step) * step, np.ceil(high / step) * step)
    )
    return DisplayRange(low, high, open_below=True, open_above=True)


def class_colours(reader: MapsReader, label_map: LabelMap | None = None) -> list[dict[str, Any]]:
    """Return name and colour of each class id: of the manifest, else of the label map, else numbers
    in distant colours.
    """
    recorded = (reader.manifest or {}).get("classes", {})
    names: Sequence[str] = recorded.get("names", [])
    palette: Sequence[Sequence[int]] = recorded.get("palette", [])
    if label_map is not None and not names:
        names, palette = label_map.classes, label_map.palette
    names = names or [f"class {index}" for index in range(255)]
    palette = [
        *palette,
        *(colour_table()[97 * i % 256].tolist() for i in range(len(palette), len(names))),
    ]
    return [
        {"name": str(name), "colour": list(colour)}
        for name, colour in zip(names, palette, strict=False)
    ]
