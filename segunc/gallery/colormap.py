"""The colours of scores, over fixed ranges: a map coloured by its own extremes makes a calm frame look dangerous; and those of classes."""

from __future__ import annotations

import colorsys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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

_SAMPLED_FRAMES = 32  # frames that the range of an unbounded score is taken from, evenly spaced over the set
_TURN = 0.618034  # the golden section of the colour circle: neighbouring class ids get distant hues


@dataclass(frozen=True)
class DisplayRange:
    """The values at the two ends of a colour bar; an end is open where values beyond it occur and share its colour."""

    low: float
    high: float
    open_below: bool = False
    open_above: bool = False

    def __post_init__(self) -> None:
        if not (np.isfinite(self.low) and np.isfinite(self.high) and self.low < self.high):
            raise InputError(f"the display range {self.low:g}..{self.high:g} does not rise from low to high")

    @property
    def ticks(self) -> tuple[str, str, str]:
        """Labels of the low end, the middle and the high end; ``<=`` and ``>=`` mark open ends."""
        below, above = "<= " if self.open_below else "", ">= " if self.open_above else ""
        return f"{below}{self.low:g}", f"{(self.low + self.high) / 2:g}", f"{above}{self.high:g}"


def display_range(score: str, given: tuple[float, float] | None = None) -> DisplayRange:
    """Return the range of a score, the one given or else its fixed one; an end is open where values can lie beyond it.

    Raises:
        InputError: no range is given and the score has no fixed one.
    """
    entry = SCORES.get(score)
    shown = given or (entry.colours if entry else None)
    if shown is None:
        raise InputError(f"the score '{score}' has no fixed display range", hint=f"give one, e.g. --range {score}=0:1")
    low, high = shown
    lower, upper = (entry.lower, entry.upper) if entry else (None, None)
    return DisplayRange(low, high, lower is None or low > lower, upper is None or high < upper)


@cache
def colour_table() -> Image:
    """Return the colours of all scores from the lowest value to the highest, RGB uint8 ``[256, 3]``; read-only.

    Plasma is a table of matplotlib (CC0): its lightness rises evenly, so it is read in order by colour-blind eyes and in grey print too.
    Its upper end is a saturated yellow; that of magma and inferno is near the white of lane markings.
    """
    ramp = np.arange(256, dtype=np.uint8)[:, None]
    table = np.ascontiguousarray(cv2.applyColorMap(ramp, cv2.COLORMAP_PLASMA)[:, 0, ::-1], np.uint8)
    table.flags.writeable = False
    return table


def levels(values: npt.NDArray[np.floating], shown: DisplayRange) -> npt.NDArray[np.uint8]:
    """Return the rows 0..255 of the colour table for values ``[H, W]``, clipped at the ends of the range."""
    share = (values.astype(np.float32) - np.float32(shown.low)) / np.float32(shown.high - shown.low)
    return np.asarray(np.rint(np.clip(share, 0, 1) * 255), np.uint8)


def colourise(values: npt.NDArray[np.floating], shown: DisplayRange) -> Image:
    """Paint a score map ``[H, W]`` in real units as RGB uint8 ``[H, W, 3]``."""
    return np.asarray(colour_table()[levels(values, shown)], np.uint8)


def usual_scores(reader: MapsReader) -> list[str]:
    """Return the scores that a page or panel shows where nobody names any: the first to show, entropy and epistemic."""
    scores = choose_scores(reader, None)
    return [score for score in dict.fromkeys((first_shown(scores), "entropy", "epistemic")) if score in scores]


def page_ranges(
    reader: MapsReader, scores: Sequence[str], given: Mapping[str, tuple[float, float]] | None = None
) -> dict[str, DisplayRange]:
    """Return the range of each of some scores of a maps folder; it is the same for all frames.

    A range that is given comes first, then the fixed range of the score. Whole numbers of other tools lie in 0..1. An
    unbounded score gets the 1st to the 99th percentile of evenly spaced frames of the whole set, rounded outwards.

    Raises:
        InputError: a range is given for a score without maps.
    """
    given = given or {}
    if unknown := sorted(set(given) - set(reader.scores)):
        scores_there = ", ".join(reader.scores)
        raise InputError(f"the maps have no score '{unknown[0]}' to give a range for; they have {scores_there}")
    return {
        score: display_range(score, given.get(score))
        if score in given or (score in SCORES and SCORES[score].colours)
        else _range_of_set(reader, score)
        for score in scores
    }


def _range_of_set(reader: MapsReader, score: str) -> DisplayRange:
    names = [name for name in reader.frames if reader.has(name, score)]
    low, high = np.inf, -np.inf
    for name in names[:: max(1, -(-len(names) // _SAMPLED_FRAMES))]:
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


def class_colours(reader: MapsReader, label_map: LabelMap | None = None) -> list[dict[str, Any]]:
    """Return name and colour of each class id: of the manifest, else of the label map, else numbers in distant hues."""
    recorded = (reader.manifest or {}).get("classes", {})
    names: Sequence[str] = recorded.get("names", [])
    palette: list[Sequence[int]] = list(recorded.get("palette", []))
    if label_map is not None and not names:
        names, palette = label_map.classes, list(label_map.palette)
    names = names or [f"class {index}" for index in range(255)]
    for index in range(len(palette), len(names)):
        rgb = colorsys.hls_to_rgb(index * _TURN % 1, 0.45 + 0.2 * (index % 2), 0.6)
        palette.append([round(255 * channel) for channel in rgb])
    return [{"name": str(name), "colour": list(colour)} for name, colour in zip(names, palette, strict=False)]
