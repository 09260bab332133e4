"""The colours of scores, over fixed ranges: a map coloured by its own extremes makes a calm frame look dangerous."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import cv2
import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.data.images import Image
from segunc.maps.reader import MapsReader
from segunc.scores import SCORES, Score

_LOOKS = 32  # frames that the range of an unbounded score is taken from, evenly spaced over the set


@dataclass(frozen=True)
class DisplayRange:
    """The values at the two ends of a colour bar; an end is open where values beyond it occur and share its colour."""

    low: float
    high: float
    open_below: bool = False
    open_above: bool = False

    def __post_init__(self) -> None:
        if not (np.isfinite(self.low) and np.isfinite(self.high) and self.low < self.high):
            given = f"display range {self.low:g}..{self.high:g}"
            raise InputError(given, "two numbers, low < high", "give another range")

    @property
    def ticks(self) -> tuple[str, str, str]:
        """Labels of the low end, the middle and the high end; ``<=`` and ``>=`` mark open ends."""
        below, above = "<= " if self.open_below else "", ">= " if self.open_above else ""
        return f"{below}{self.low:g}", f"{(self.low + self.high) / 2:g}", f"{above}{self.high:g}"


def display_range(score: str, given: tuple[float, float] | None = None) -> DisplayRange:
    """The range of a score: the one given, or the fixed one (InputError where there is none); its ends are marked open where values
    can lie beyond."""
    known: Score | None = SCORES.get(score)
    shown = given or (known.colours if known else None)
    if shown is None:
        fixed = [name for name in SCORES if SCORES[name].colours]
        raise InputError(
            f"score '{score}' has no fixed display range",
            f"one of {', '.join(fixed)}, or a range of your own",
            "give low and high (they must not follow a frame's own extremes)",
        )
    low, high = shown
    lower, upper = (known.lower, known.upper) if known else (None, None)
    return DisplayRange(low, high, lower is None or low > lower, upper is None or high < upper)


@cache
def colour_table() -> Image:
    """The colours of all scores from the lowest value to the highest, RGB uint8 ``[256, 3]``; read-only.

    Plasma is a table of matplotlib (CC0): its lightness rises evenly, so it is read in order by colour-blind eyes and in grey print too.
    Its upper end is a saturated yellow; that of magma and inferno is near the white of lane markings.
    """
    ramp = np.arange(256, dtype=np.uint8)[:, None]
    table = np.ascontiguousarray(cv2.applyColorMap(ramp, cv2.COLORMAP_PLASMA)[:, 0, ::-1], np.uint8)
    table.flags.writeable = False
    return table


def levels(values: npt.NDArray[np.floating], shown: DisplayRange) -> npt.NDArray[np.uint8]:
    """The rows 0..255 of the colour table for values ``[H, W]``, clipped at the ends of the range."""
    share = (values.astype(np.float32) - np.float32(shown.low)) / np.float32(shown.high - shown.low)
    return np.asarray(np.rint(np.clip(share, 0, 1) * 255), np.uint8)


def colourise(values: npt.NDArray[np.floating], shown: DisplayRange) -> Image:
    """A score map ``[H, W]`` in real units as RGB uint8 ``[H, W, 3]``."""
    return np.asarray(colour_table()[levels(values, shown)], np.uint8)


def page_ranges(
    reader: MapsReader, given: Mapping[str, tuple[float, float]] | None = None, scores: Sequence[str] | None = None
) -> dict[str, DisplayRange]:
    """The range of each score of a maps folder, or of some of them; it is the same for all frames.

    A range of the user's own comes first, then the fixed range of the score. Whole numbers of other tools lie in 0..1. An unbounded
    score gets the 1st to the 99th percentile of evenly spaced frames of the whole set, rounded outwards. A range for a score that is
    not there is an InputError.
    """
    given = given or {}
    unknown = sorted(set(given) - set(reader.scores))
    if unknown:
        raise InputError(f"a range for '{unknown[0]}'", f"one of {', '.join(reader.scores)}", "check the name")
    return {
        score: display_range(score, given.get(score))
        if score in given or (score in SCORES and SCORES[score].colours)
        else _range_of_set(reader, score)
        for score in (reader.scores if scores is None else scores)
    }


def _range_of_set(reader: MapsReader, score: str) -> DisplayRange:
    names = [name for name in reader.frames if reader.has(name, score)]
    low, high = np.inf, -np.inf
    for name in names[:: max(1, -(-len(names) // _LOOKS))]:
        try:
            stored = reader.read_stored(name, score)
        except InputError:
            continue  # said where the frame is written
        if stored.dtype.kind == "u":
            return DisplayRange(0, 1)
        finite = stored[np.isfinite(stored)].astype(np.float32)
        if finite.size:
            ends = np.percentile(finite, (1, 99))
            low, high = min(low, float(ends[0])), max(high, float(ends[1]))
    if not low < high:
        return DisplayRange(0, 1, open_below=True, open_above=True)
    step = 10.0 ** (np.floor(np.log10(high - low)) - 1)
    low, high = (float(f"{end:.9g}") for end in (np.floor(low / step) * step, np.ceil(high / step) * step))
    return DisplayRange(low, high, open_below=True, open_above=True)


Colour = tuple[int, int, int]
Colours = npt.NDArray[np.float64]

VISIONS = {
    "usual": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}
"""What eyes make of linear red, green and blue: Machado, Oliveira and Fernandes 2009, severity 1."""
APART = 14.0
"""Distance (CIE 1976, in L*a*b*) that two classes are to have for each of :data:`VISIONS`; 2.3 is just noticeable, side by side."""
_STEPS = tuple(
    sign * step for step in range(0, 85, 6) for sign in ((1, -1) if step else (1,))
)  # of lightness, nearest first


def seen(colours: Sequence[Colour] | Colours, vision: str) -> Colours:
    """L*a*b* ``[n, 3]`` of red, green and blue 0..255 as eyes of one of :data:`VISIONS` see them."""
    share = np.asarray(colours, np.float64).reshape(-1, 3) / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4) @ VISIONS[vision].T
    linear = linear.clip(0, 1)
    share = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return np.asarray(cv2.cvtColor(share.astype(np.float32)[None], cv2.COLOR_RGB2LAB)[0], np.float64)


def kept_apart(palette: Sequence[Colour]) -> list[Colour]:
    """The palette with the lightness of some colours changed, as little as keeps each :data:`APART` from those before it; where none
    does, as far from them as it can be. Equal palettes give equal colours, and the first keeps its own."""
    found: list[Colour] = []
    for colour in palette:
        start = seen([colour], "usual")[0]
        candidates = [colour, *(_with_lightness(start, step) for step in _STEPS[1:] if 12 <= start[0] + step <= 97)]
        if found:
            distances = np.min(
                [
                    np.linalg.norm(seen(candidates, vision)[:, None] - seen(found, vision)[None], axis=2).min(1)
                    for vision in VISIONS
                ],
                axis=0,
            )
            enough = np.flatnonzero(distances >= APART)
            colour = candidates[int(enough[0] if len(enough) else distances.argmax())]
        found.append((int(colour[0]), int(colour[1]), int(colour[2])))
    return found


def _with_lightness(start: npt.NDArray[np.float64], step: float) -> Colour:
    lab = np.array([[[start[0] + step, start[1], start[2]]]], np.float32)
    red, green, blue = np.rint(cv2.cvtColor(lab, cv2.COLOR_LAB2RGB)[0, 0].clip(0, 1) * 255).astype(int)
    return int(red), int(green), int(blue)
