"""Pictures of one frame: a score over its image with a legend, or a panel of image, prediction and scores."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import cv2
import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.data.images import MOST_PIXELS, Image, resize_nearest
from segunc.frames.source import format_time
from segunc.gallery.colormap import DisplayRange, colour_table, colourise, levels

Colour = tuple[int, int, int]
MINIMUM_TEXT = 12  # height of capital letters in pixels: smaller text is not legible in a JPEG
LABELLED, FLAGGED = (255, 255, 255), (0, 229, 255)  # RGB of outlines
OUTLINE_NOTE = "outlined: labelled anomaly"
MINIMUM_WIDTH = 640  # smaller pictures are enlarged by a whole factor, so that their legend can be read
TILE_WIDTH = 640  # width of a panel's tiles in pixels
PHOTO_BRIGHTNESS = 0.8  # share of its brightness that the grey image keeps under the colours
_LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R BT.601 weights of red, green and blue
_FONT = cv2.FONT_HERSHEY_SIMPLEX
_GAP, _COLUMNS = 6, 3


class Theme(NamedTuple):
    """Colours of strips and of the text on them."""

    paper: Colour
    ink: Colour
    faint: Colour  # of minor text and edges


THEMES = {
    "dark": Theme((22, 22, 26), (236, 236, 240), (168, 168, 178)),
    "light": Theme((255, 255, 255), (28, 29, 33), (96, 99, 108)),
}
"""Dark for screens, light for print."""
DARK = THEMES["dark"]


def blank(height: int, width: int, colour: Colour = DARK.paper) -> Image:
    """Return a picture of one colour, RGB uint8 ``[height, width, 3]``."""
    return np.full((height, width, 3), colour, np.uint8)


def printable(text: str) -> str:
    """Return text in the characters that OpenCV's font has: without accents, and ``?`` for all others."""
    plain = unicodedata.normalize("NFKD", text)
    return "".join(c if " " <= c <= "~" else "?" for c in plain if not unicodedata.combining(c))


def text_width(text: str, size: int) -> int:
    """Return the width in pixels of text with capitals ``size`` pixels high."""
    return int(cv2.getTextSize(printable(text), _FONT, cv2.getFontScaleFromHeight(_FONT, size, 1), 1)[0][0])


def shorten(text: str, size: int, width: int) -> str:
    """Cut text with ``...`` so that it fits into ``width`` pixels."""
    if text_width(text, size) <= width:
        return text
    while text and text_width(text + "...", size) > width:
        text = text[:-1]
    return text.rstrip() + "..."


class Sheet:
    """A picture, RGB uint8 ``[H, W, 3]`` in ``pixels``, that text and legends are drawn on in the colours of a theme."""

    def __init__(self, pixels: Image, theme: Theme) -> None:
        self.pixels, self.theme = pixels, theme

    def write(self, words: str, left: int, baseline: int, size: int, width: int, colour: Colour | None = None) -> None:
        """Write text (in ink where no colour is given), cut to ``width`` pixels."""
        if not words:
            return
        words = shorten(printable(words), size, width)
        scale = cv2.getFontScaleFromHeight(_FONT, size, 1)
        cv2.putText(self.pixels, words, (left, baseline), _FONT, scale, colour or self.theme.ink, 1, cv2.LINE_AA)

    def bar(self, colours: Image, left: int, top: int, width: int, height: int) -> None:
        """Draw a horizontal bar of colours ``[K, 3]`` with a thin edge."""
        columns = np.rint(np.linspace(0, len(colours) - 1, width)).astype(np.intp)
        self.pixels[top : top + height, left : left + width] = colours[columns]
        cv2.rectangle(self.pixels, (left - 1, top - 1), (left + width, top + height), self.theme.faint, 1)

    def swatch(self, words: str, colour: Colour, left: int, baseline: int, size: int, width: int) -> None:
        """Draw a swatch and its meaning, from ``left`` on in ``width`` pixels."""
        self.bar(np.array([colour], np.uint8), left, baseline - size - 1, 2 * size, size + 2)
        self.write(words, left + round(2.6 * size), baseline, size, width - round(2.6 * size))

    def scale(self, colours: Image, legend: Legend, left: int, top: int, width: int, height: int, size: int) -> None:
        """Draw a colour bar of ``colours`` ``[K, 3]`` with evenly spaced labels below, and a mark at the threshold."""
        self.bar(colours, left, top, width, height)
        shown, ticks = legend.shown, legend.shown.ticks
        for index, tick in enumerate(ticks):
            share = index / (len(ticks) - 1)
            x = left + round(share * width) - round(share * text_width(tick, size))
            self.write(tick, x, top + height + round(size * 1.7), size, width, self.theme.faint)
        if legend.threshold is not None and shown.low <= legend.threshold <= shown.high:
            x = left + round((legend.threshold - shown.low) / (shown.high - shown.low) * width)
            thick = max(4, size // 4)
            self.bar(np.array([FLAGGED], np.uint8), x - thick // 2, top - size // 3, thick, height + 2 * (size // 3))


def draw_outline(picture: Image, mask: npt.NDArray[np.bool_], colour: Colour = LABELLED) -> None:
    """Outline the regions of a mask ``[H, W]`` in a light colour with a dark edge, visible on any colour."""
    regions, _ = cv2.findContours(mask.astype(np.uint8), cv2.RETR_LIST, cv2.CHAIN_APPROX_NONE)
    thickness = max(1, round(picture.shape[1] / 640))
    cv2.drawContours(picture, regions, -1, (0, 0, 0), 3 * thickness, cv2.LINE_AA)
    cv2.drawContours(picture, regions, -1, colour, thickness, cv2.LINE_AA)


def resize(picture: Image, width: int, height: int) -> Image:
    """Resize a picture: means of pixels when it shrinks, linear interpolation when it grows."""
    if picture.shape[:2] == (height, width):
        return picture
    interpolation = cv2.INTER_AREA if width < picture.shape[1] else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(picture, (width, height), interpolation=interpolation), np.uint8)


@dataclass(frozen=True)
class Legend:
    """What a legend says of a score: its unit, the fixed range of its colours, a line on the model, and the threshold at
    or above which pixels are flagged, None where none are."""

    score: str
    unit: str
    shown: DisplayRange
    note: str = ""
    threshold: float | None = None

    @classmethod
    def of(
        cls, manifest: Mapping[str, Any] | None, score: str, shown: DisplayRange, threshold: float | None = None
    ) -> Self:
        """Return the legend of a score with what a manifest records of it."""
        return cls(score, score_unit(manifest, score), shown, model_line(manifest), threshold)

    @property
    def title(self) -> str:
        return f"{self.score} ({self.unit})" if self.unit else self.score

    @property
    def flags(self) -> str:
        """Say what is flagged; empty where nothing is."""
        return "" if self.threshold is None else f"flagged: {self.score} >= {self.threshold:g}"

    def outline(self, picture: Image, values: npt.NDArray[np.floating]) -> None:
        """Outline in a picture what is flagged of a map of the same view."""
        if self.threshold is not None:
            draw_outline(picture, resize_nearest(values >= self.threshold, *picture.shape[1::-1]), FLAGGED)


def frame_caption(name: str, time: float | None) -> str:
    """Name a frame and, of a video, its time."""
    return f"frame {name}" if time is None else f"frame {name}, {format_time(time)}"


def model_line(manifest: Mapping[str, Any] | None) -> str:
    """Describe the model and its posterior in one line, as far as a manifest records them."""
    manifest = manifest or {}
    model, run = manifest.get("model", {}), manifest.get("run", {})
    parts = [str(model[key]) for key in ("architecture", "method") if model.get(key)]
    if members := model.get("members"):
        parts.append(f"{members} member{'' if members == 1 else 's'}")
    if run.get("draws"):
        parts.append(f"{run['draws']} draws")
    parts += [f"{key} {run[key]}" for key in ("seed", "scope") if run.get(key) is not None]
    return ", ".join(parts)


def score_unit(manifest: Mapping[str, Any] | None, score: str) -> str:
    """Return the unit of a score as a manifest records it, empty where there is none."""
    return str(((manifest or {}).get("maps", {}).get(score) or {}).get("unit", ""))


def draw_overlay(
    image: Image,
    values: npt.NDArray[np.floating],
    legend: Legend,
    *,
    anomaly: npt.NDArray[np.bool_] | None = None,
    caption: str = "",
    theme: Theme = DARK,
) -> Image:
    """Draw a score map over its image with a legend strip below, at least 640 pixels wide.

    The image is shown in grey at 80 % of its brightness. The colour of a pixel covers 10 % of it at the low end of the
    score's range and 85 % at the high end; the legend's bar is painted by the same rule over mid-grey.

    Args:
        image: RGB uint8 ``[H, W, 3]``.
        values: in real units ``[h, w]``, resized to the image by the nearest value.
        legend: of the score; what it flags is outlined.
        anomaly: labelled pixels ``[H, W]`` to outline.
        caption: written in the strip.
        theme: of the strip.
    """
    _check_label_size(image, anomaly)
    factor = math.ceil(MINIMUM_WIDTH / image.shape[1])
    height, width = image.shape[0] * factor, image.shape[1] * factor
    size = max(MINIMUM_TEXT, width // 72)
    _check_picture_size(height + 9 * size, width)
    # Darkened, so that a white lane marking cannot be taken for a high score.
    grey = resize(image, width, height).astype(np.float32) @ (_LUMINANCE * np.float32(PHOTO_BRIGHTNESS))
    picture = blend(grey, resize_nearest(levels(values, legend.shown), width, height))
    legend.outline(picture, values)
    outlines = [(legend.flags, FLAGGED)] if legend.flags else []
    if anomaly is not None:
        draw_outline(picture, resize_nearest(anomaly, width, height))
        outlines.append((OUTLINE_NOTE, LABELLED))
    middle, first, second, third = round(width * 0.55), *(height + round(size * rows) for rows in (1.9, 3.8, 5.7))
    strip = blank(round(size * (4.6 + 1.9 * max(len(outlines), bool(caption)))), width, theme.paper)
    sheet = Sheet(np.vstack([picture, strip]), theme)
    sheet.write(legend.title, size, first, size, middle - 2 * size)
    sheet.write(legend.note, size, second, size, middle - 2 * size, theme.faint)
    sheet.write(caption, size, third, size, (middle if outlines else width) - 2 * size)
    room = width - size - middle
    for row, (words, colour) in enumerate(outlines):
        sheet.swatch(words, colour, middle, third + round(1.9 * size * row), size, room)
    colours = blend(np.full(256, 128 * PHOTO_BRIGHTNESS, np.float32), np.arange(256))
    sheet.scale(colours, legend, middle, height + round(size * 0.8), room, round(size * 1.1), size)
    return sheet.pixels


def blend(grey: npt.NDArray[np.float32], level: npt.NDArray[np.integer]) -> Image:
    """Lay the colours of levels 0..255 over grey values 0..255, both ``[...]``; returns RGB uint8 ``[..., 3]``."""
    cover = (0.10 + 0.75 * np.arange(256, dtype=np.float32) / 255)[:, None]
    mixed = grey[..., None] * (1 - cover)[level] + (colour_table().astype(np.float32) * cover)[level]
    return np.asarray(np.rint(mixed), np.uint8)


def _check_picture_size(height: int, width: int) -> None:
    """Refuse a picture with more pixels than an image may have: that of a frame of few columns becomes very tall."""
    if height * width > MOST_PIXELS:
        raise InputError(f"a picture of {width} x {height} pixels is too large: at most {MOST_PIXELS:,} are drawn")


def _check_label_size(image: Image, anomaly: npt.NDArray[np.bool_] | None) -> None:
    if anomaly is not None and anomaly.shape != image.shape[:2]:
        label, picture = (f"{shape[1]}x{shape[0]}" for shape in (anomaly.shape, image.shape))
        raise InputError(f"the anomaly label has {label} pixels for an image of {picture}")


def draw_panel(
    image: Image | None,
    prediction: npt.NDArray[np.uint8] | None,
    scores: Sequence[tuple[Legend, npt.NDArray[np.floating]]],
    *,
    classes: Sequence[tuple[str, Colour]] = (),
    anomaly: npt.NDArray[np.bool_] | None = None,
    caption: str = "",
    theme: Theme = DARK,
) -> Image:
    """Draw tiles in rows of three: image, prediction, class legend, then one tile a score.

    Where tiles are smaller than the maps, a tile pixel is the mean colour of those it stands for.

    Args:
        image: RGB uint8 ``[H, W, 3]``; None leaves it out.
        prediction: class ids ``[h, w]``; left out where it is None or there are no classes.
        scores: the legend and the map in real units ``[h, w]`` of each score; what a legend flags is outlined in its tile.
        classes: name and colour of each class id.
        anomaly: labelled pixels ``[H, W]``, outlined in every tile.
        caption: written above the tiles.
        theme: of all text.
    """
    if image is not None:
        _check_label_size(image, anomaly)
    shape = image.shape if image is not None else scores[0][1].shape if prediction is None else prediction.shape
    height, width = max(1, round(TILE_WIDTH * shape[0] / shape[1])), TILE_WIDTH
    _check_picture_size(height, width)
    size = max(MINIMUM_TEXT, width // 48)
    first, second, third = (height + round(size * rows) for rows in (1.6, 3.3, 5.0))
    below = round(size * (5.7 if any(legend.flags for legend, _ in scores) else 4.0))

    def tile(picture: Image, title: str, note: str, room: int) -> Sheet:
        """Return a tile of a picture with its title and a note in a strip below."""
        sheet = Sheet(np.vstack([picture, blank(below, width, theme.paper)]), theme)
        if anomaly is not None:
            draw_outline(sheet.pixels[:height], resize_nearest(anomaly, width, height))
        sheet.write(title, size, first, size, room)
        sheet.write(note, size, second, size, room, theme.faint)
        return sheet

    tiles: list[Sheet] = []
    if image is not None:
        note = scores[0][0].note if scores else ""
        tiles.append(tile(resize(image, width, height), "image", note, width - 2 * size))
    if prediction is not None and classes:
        note = OUTLINE_NOTE if anomaly is not None else ""
        painted = _paint(resize_nearest(prediction, width, height), classes)
        tiles.append(tile(painted, "prediction", note, width - 2 * size))
        tiles.append(_class_legend(prediction, classes, height + below, size, theme))
    middle = round(width * 0.52)
    for legend, values in scores:
        sheet = tile(
            resize(colourise(values, legend.shown), width, height), legend.score, legend.unit, middle - 2 * size
        )
        legend.outline(sheet.pixels[:height], values)
        sheet.scale(colour_table(), legend, middle, height + round(size * 0.6), width - size - middle, size, size)
        if legend.flags:
            sheet.swatch(legend.flags, FLAGGED, size, third, size, width - 2 * size)
        tiles.append(sheet)
    return _arranged(tiles, caption, size, theme)


def _paint(prediction: npt.NDArray[np.uint8], classes: Sequence[tuple[str, Colour]]) -> Image:
    """Paint class ids in the colours of their classes; ids beyond the classes are white."""
    colours = np.full((256, 3), 255, np.uint8)
    colours[: len(classes)] = [colour for _, colour in classes]
    return np.asarray(colours[prediction], np.uint8)


def _arranged(tiles: Sequence[Sheet], caption: str, size: int, theme: Theme) -> Image:
    """Lay tiles of one size in rows below their caption."""
    height, width = tiles[0].pixels.shape[:2]
    above, columns = round(size * 2.4) if caption else 0, min(_COLUMNS, len(tiles))
    rows = -(-len(tiles) // columns)
    sheet = Sheet(blank(above + rows * (height + _GAP) - _GAP, columns * (width + _GAP) - _GAP, theme.paper), theme)
    sheet.write(caption, size, round(size * 1.7), size, sheet.pixels.shape[1] - 2 * size)
    for index, tile in enumerate(tiles):
        top, left = above + (index // columns) * (height + _GAP), (index % columns) * (width + _GAP)
        sheet.pixels[top : top + height, left : left + width] = tile.pixels
    return sheet.pixels


def _class_legend(
    prediction: npt.NDArray[np.uint8], classes: Sequence[tuple[str, Colour]], height: int, size: int, theme: Theme
) -> Sheet:
    """Draw swatches and names of all classes where they fit, else of those that cover most of the frame."""
    sheet = Sheet(blank(height, TILE_WIDTH, theme.paper), theme)
    step, columns = round(size * 1.9), 2
    column_width = (TILE_WIDTH - size) // columns
    rows = max(1, (height - size) // step - 1)
    shown = list(range(len(classes)))
    if len(shown) > columns * rows:
        counts = np.bincount(prediction.ravel(), minlength=len(classes))[: len(classes)]
        shown = sorted(np.argsort(-counts, kind="stable")[: columns * rows].tolist())
        sheet.write(f"and {len(classes) - len(shown)} more classes", size, height - size, size, TILE_WIDTH, theme.faint)
    for index, class_id in enumerate(shown):
        left, top = size + (index // rows) * column_width, size + (index % rows) * step
        sheet.swatch(*classes[class_id], left, top + size + 1, size, column_width - round(1.4 * size))
    return sheet
