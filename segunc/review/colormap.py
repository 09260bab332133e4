"""Colour maps with fixed ranges, and what is drawn on pictures.

A map coloured by its own minimum and maximum makes a calm frame look dangerous; here one value has one colour in
every frame, and the range is printed beside it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import cv2
import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.data.images import Image
from segunc.maps.reader import MapsReader
from segunc.scores import SCORES, Score

_OPENCV_MAPS = {
    "plasma": cv2.COLORMAP_PLASMA,
    "magma": cv2.COLORMAP_MAGMA,
    "inferno": cv2.COLORMAP_INFERNO,
    "viridis": cv2.COLORMAP_VIRIDIS,
    "cividis": cv2.COLORMAP_CIVIDIS,
}
COLOUR_MAPS = tuple(_OPENCV_MAPS)
"""Tables of matplotlib (CC0) as OpenCV carries them: lightness rises evenly, so they are read in order by
colour-blind eyes and in grey print too."""
DEFAULT_COLOUR_MAP = "plasma"
"""Its upper end is a saturated yellow; that of magma and inferno is near the white of lane markings and sky."""


@dataclass(frozen=True)
class DisplayRange:
    """The values at the two ends of a colour bar.

    Attributes:
        low: value of the first colour.
        high: value of the last colour.
        open_below: values below ``low`` occur and are shown in its colour.
        open_above: values above ``high`` occur and are shown in its colour.
    """

    low: float
    high: float
    open_below: bool = False
    open_above: bool = False

    def __post_init__(self) -> None:
        if not (np.isfinite(self.low) and np.isfinite(self.high) and self.low < self.high):
            raise InputError(
                f"display range {self.low:g}..{self.high:g}", "two numbers, low < high", "give another range"
            )

    @property
    def low_text(self) -> str:
        """How the low end is labelled: ``<=`` where lower values share its colour."""
        return f"<= {self.low:g}" if self.open_below else f"{self.low:g}"

    @property
    def high_text(self) -> str:
        """How the high end is labelled: ``>=`` where higher values share its colour."""
        return f">= {self.high:g}" if self.open_above else f"{self.high:g}"

    def place(self, values: npt.NDArray[np.floating]) -> npt.NDArray[np.float32]:
        """Where values lie in the range, float32 0..1, clipped at its ends."""
        width = np.float32(self.high - self.low)
        share = (values.astype(np.float32) - np.float32(self.low)) / width
        return np.asarray(np.clip(share, 0, 1), np.float32)


def display_range(score: str, given: tuple[float, float] | None = None) -> DisplayRange:
    """The range of a score: the one given, or the fixed one; its ends are marked open where values can lie beyond.

    Raises:
        InputError: no range is given for a score without a fixed one, or of another tool.
    """
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
def colour_table(name: str = DEFAULT_COLOUR_MAP) -> Image:
    """A colour map as RGB uint8 ``[256, 3]``; read-only.

    Raises:
        InputError: an unknown name.
    """
    if name not in _OPENCV_MAPS:
        raise InputError(f"colour map '{name}'", f"one of {', '.join(COLOUR_MAPS)}", "check the name")
    ramp = np.arange(256, dtype=np.uint8)[:, None]
    table = np.ascontiguousarray(cv2.applyColorMap(ramp, _OPENCV_MAPS[name])[:, 0, ::-1], np.uint8)
    table.flags.writeable = False
    return table


def levels(values: npt.NDArray[np.floating], shown: DisplayRange) -> npt.NDArray[np.uint8]:
    """The rows 0..255 of a colour table for values ``[H, W]``."""
    return np.rint(shown.place(values) * 255).astype(np.uint8)


def colourise(values: npt.NDArray[np.floating], shown: DisplayRange, colour_map: str = DEFAULT_COLOUR_MAP) -> Image:
    """A score map ``[H, W]`` in real units as RGB uint8 ``[H, W, 3]``."""
    return np.asarray(colour_table(colour_map)[levels(values, shown)], np.uint8)


def colourise_classes(prediction: npt.NDArray[np.uint8], palette: list[tuple[int, int, int]]) -> Image:
    """Class ids ``[H, W]`` in their palette as RGB uint8 ``[H, W, 3]``; ids beyond the palette are white."""
    table = np.full((256, 3), 255, np.uint8)
    table[: len(palette)] = palette
    return np.asarray(table[prediction], np.uint8)


Scalar = TypeVar("Scalar", bound=np.generic)
INK = (236, 236, 240)
FAINT_INK = (168, 168, 178)
PAPER = (22, 22, 26)
"""Colours of text, of minor text and of the strips that carry it, RGB."""
_FONT = cv2.FONT_HERSHEY_SIMPLEX
MINIMUM_TEXT = 12
"""Height of capital letters in pixels below which text is not drawn: smaller is not legible in a JPEG."""


def blank(height: int, width: int, colour: tuple[int, int, int] = PAPER) -> Image:
    """A picture of one colour, RGB uint8 ``[height, width, 3]``."""
    return np.full((height, width, 3), colour, np.uint8)


def printable(text: str) -> str:
    """Text in the characters that OpenCV's font has in all versions: accents removed, the rest as ``?``."""
    plain = unicodedata.normalize("NFKD", text)
    return "".join(c if " " <= c <= "~" else "?" for c in plain if not unicodedata.combining(c))


def text_width(text: str, size: int) -> int:
    """Width in pixels of text with capitals ``size`` pixels high."""
    return int(cv2.getTextSize(printable(text), _FONT, cv2.getFontScaleFromHeight(_FONT, size, 1), 1)[0][0])


def shorten(text: str, size: int, width: int) -> str:
    """Text cut with ``...`` so that it fits into ``width`` pixels."""
    if text_width(text, size) <= width:
        return text
    while text and text_width(text + "...", size) > width:
        text = text[:-1]
    return text.rstrip() + "..."


def draw_text(
    picture: Image, text: str, left: int, baseline: int, size: int, colour: tuple[int, int, int] = INK
) -> None:
    """Write text into a picture, capitals ``size`` pixels high, standing on ``baseline``."""
    scale = cv2.getFontScaleFromHeight(_FONT, size, 1)
    cv2.putText(picture, printable(text), (left, baseline), _FONT, scale, colour, 1, cv2.LINE_AA)


def draw_bar(
    picture: Image, colours: Image, left: int, top: int, width: int, height: int, ticks: tuple[str, ...], size: int
) -> None:
    """Draw a horizontal colour bar of ``colours`` ``[K, 3]`` with evenly spaced labels below, the outer ones flush."""
    columns = np.rint(np.linspace(0, len(colours) - 1, width)).astype(np.intp)
    picture[top : top + height, left : left + width] = colours[columns]
    cv2.rectangle(picture, (left - 1, top - 1), (left + width, top + height), FAINT_INK, 1)
    for index, tick in enumerate(ticks):
        share = index / (len(ticks) - 1)
        x = left + round(share * width) - round(share * text_width(tick, size))
        draw_text(picture, tick, x, top + height + round(size * 1.7), size, FAINT_INK)


def draw_outline(picture: Image, mask: npt.NDArray[np.bool_]) -> None:
    """Outline the regions of a mask ``[H, W]`` in white with a dark edge, visible on any colour."""
    regions, _ = cv2.findContours(mask.astype(np.uint8), cv2.RETR_LIST, cv2.CHAIN_APPROX_NONE)
    thickness = max(1, round(picture.shape[1] / 640))
    cv2.drawContours(picture, regions, -1, (0, 0, 0), 3 * thickness, cv2.LINE_AA)
    cv2.drawContours(picture, regions, -1, (255, 255, 255), thickness, cv2.LINE_AA)


def resize(picture: Image, width: int, height: int) -> Image:
    """A picture at another size: means of pixels when it shrinks, linear in between when it grows."""
    if picture.shape[:2] == (height, width):
        return picture
    shrinks = width < picture.shape[1]
    return np.asarray(
        cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR), np.uint8
    )


def resize_nearest(values: npt.NDArray[Scalar], width: int, height: int) -> npt.NDArray[Scalar]:
    """A map ``[H, W]`` or picture ``[H, W, 3]`` at another size, without values between its own."""
    if values.shape[:2] == (height, width):
        return values
    rows = np.arange(height) * values.shape[0] // height
    columns = np.arange(width) * values.shape[1] // width
    resized: npt.NDArray[Scalar] = values[rows[:, None], columns[None, :]]
    return resized


_LOOKS = 32
"""Frames that the range of an unbounded score is taken from, evenly spaced over the set."""


def page_ranges(
    reader: MapsReader, given: dict[str, tuple[float, float]] | None = None, scores: Sequence[str] | None = None
) -> dict[str, DisplayRange]:
    """The range of each score of a maps folder, or of some of them.

    A range of the user's own comes first, then the fixed range of the score. Whole numbers of other tools lie in 0..1.
    An unbounded score gets the 1st to the 99th percentile of evenly spaced frames of the whole set, rounded outwards:
    it is the same for all frames, so no calm frame looks dangerous.

    Raises:
        InputError: a range for a score that is not there.
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
