"""Pictures of one frame: a score over its image with a legend, or a panel of image, prediction and scores."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import cv2
import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.data.images import MOST_PIXELS, Image, resize_nearest
from segunc.frames.source import format_time
from segunc.gallery.colormap import DisplayRange, colour_table, colourise, levels

Colour = tuple[int, int, int]
Mask = npt.NDArray[np.bool_]
MINIMUM_TEXT = 12  # height of capital letters in pixels: smaller text is not legible in a JPEG
LABELLED, FLAGGED = (255, 255, 255), (0, 229, 255)  # RGB of outlines
MINIMUM_WIDTH = 640  # smaller pictures are enlarged by a whole factor, so that their legend can be read
TILE_WIDTH = 640  # width of a panel's tiles in pixels
PHOTO_BRIGHTNESS = 0.8  # share of its brightness that the grey image keeps under the colours
_LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R BT.601 weights of red, green and blue
_FONT = cv2.FONT_HERSHEY_SIMPLEX
_GAP, _COLUMNS = 6, 3


PAPER, INK, FAINT = (22, 22, 26), (236, 236, 240), (168, 168, 178)
"""Colours of strips, of the text on them, and of minor text and edges."""


def text_width(text: str, size: int) -> int:
    """Return the width in pixels of text with capitals ``size`` pixels high."""
    return int(cv2.getTextSize(text, _FONT, cv2.getFontScaleFromHeight(_FONT, size, 1), 1)[0][0])


class Sheet:
    """An empty picture, RGB uint8 ``[H, W, 3]`` in ``pixels``, for pictures, text and legends."""

    def __init__(self, height: int, width: int) -> None:
        self.pixels: Image = np.full((height, width, 3), PAPER, np.uint8)

    def lay(self, picture: Image, left: int = 0, top: int = 0) -> None:
        """Lay a picture on the sheet."""
        self.pixels[top : top + picture.shape[0], left : left + picture.shape[1]] = picture

    def write(self, words: str, left: int, baseline: int, size: int, width: int, colour: Colour = INK) -> None:
        """Write text, cut to ``width`` pixels.

        OpenCV's font has no accents, and ``?`` stands for all other characters.
        """
        if not words:
            return
        plain = (c for c in unicodedata.normalize("NFKD", words) if not unicodedata.combining(c))
        words = "".join(c if " " <= c <= "~" else "?" for c in plain)
        if text_width(words, size) > width:
            while words and text_width(words + "...", size) > width:
                words = words[:-1]
            words = words.rstrip() + "..."
        scale = cv2.getFontScaleFromHeight(_FONT, size, 1)
        cv2.putText(self.pixels, words, (left, baseline), _FONT, scale, colour, 1, cv2.LINE_AA)

    def bar(self, colours: Image, left: int, top: int, width: int, height: int) -> None:
        """Draw a horizontal bar of colours ``[K, 3]`` with a thin edge."""
        columns = np.rint(np.linspace(0, len(colours) - 1, width)).astype(np.intp)
        self.pixels[top : top + height, left : left + width] = colours[columns]
        cv2.rectangle(self.pixels, (left - 1, top - 1), (left + width, top + height), FAINT, 1)

    def swatch(self, words: str, colour: Colour, left: int, baseline: int, size: int, width: int) -> None:
        """Draw a swatch and its meaning, from ``left`` on in ``width`` pixels."""
        self.bar(np.array([colour], np.uint8), left, baseline - size - 1, 2 * size, size + 2)
        self.write(words, left + round(2.6 * size), baseline, size, width - round(2.6 * size))

    def scale(self, colours: Image, legend: Legend, left: int, top: int, width: int, size: int) -> None:
        """Draw a colour bar of ``colours`` ``[K, 3]`` with evenly spaced labels below, and a mark at the threshold."""
        height, shown, ticks = round(size * 1.1), legend.shown, legend.shown.ticks
        self.bar(colours, left, top, width, height)
        for index, tick in enumerate(ticks):
            share = index / (len(ticks) - 1)
            x = left + round(share * width) - round(share * text_width(tick, size))
            self.write(tick, x, top + height + round(size * 1.7), size, width, FAINT)
        if legend.threshold is not None and shown.low <= legend.threshold <= shown.high:
            x = left + round((legend.threshold - shown.low) / (shown.high - shown.low) * width)
            thick = max(4, size // 4)
            self.bar(np.array([FLAGGED], np.uint8), x - thick // 2, top - size // 3, thick, height + 2 * (size // 3))


def draw_outline(picture: Image, mask: Mask, colour: Colour = LABELLED) -> None:
    """Outline the regions of a mask ``[h, w]`` of the same view in a light colour with a dark edge, visible on any colour."""
    drawn = resize_nearest(mask, *picture.shape[1::-1]).astype(np.uint8)
    regions, _ = cv2.findContours(drawn, cv2.RETR_LIST, cv2.CHAIN_APPROX_NONE)
    thickness = max(1, round(picture.shape[1] / 640))
    cv2.drawContours(picture, regions, -1, (0, 0, 0), 3 * thickness, cv2.LINE_AA)
    cv2.drawContours(picture, regions, -1, colour, thickness, cv2.LINE_AA)


def _outline(
    picture: Image, anomaly: Mask | None, legend: Legend | None = None, values: npt.NDArray[np.floating] | None = None
) -> list[tuple[str, Colour]]:
    """Outline in a picture what a legend flags of a map of the same view, and a labelled anomaly; say of each what it is."""
    outlines = []
    if legend is not None and values is not None and legend.threshold is not None:
        draw_outline(picture, values >= legend.threshold, FLAGGED)
        outlines.append((f"flagged: {legend.score} >= {legend.threshold:g}", FLAGGED))
    if anomaly is not None:
        draw_outline(picture, anomaly)
        outlines.append(("outlined: labelled anomaly", LABELLED))
    return outlines


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
    anomaly: Mask | None = None,
    caption: str = "",
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
    """
    factor = math.ceil(MINIMUM_WIDTH / image.shape[1])
    height, width = image.shape[0] * factor, image.shape[1] * factor
    size = max(MINIMUM_TEXT, width // 72)
    _check_sizes(image, anomaly, height + 9 * size, width)
    # Darkened, so that a white lane marking cannot be taken for a high score.
    grey = resize(image, width, height).astype(np.float32) @ (_LUMINANCE * np.float32(PHOTO_BRIGHTNESS))
    picture = blend(grey, resize_nearest(levels(values, legend.shown), width, height))
    outlines = _outline(picture, anomaly, legend, values)
    title = f"{legend.score} ({legend.unit})" if legend.unit else legend.score
    colours = blend(np.full(256, 128 * PHOTO_BRIGHTNESS, np.float32), np.arange(256))
    rows = max(len(outlines), bool(caption))
    words = (title, legend.note, caption)
    return _with_strip(picture, words, rows, size, legend, outlines=outlines, colours=colours)


def _with_strip(
    picture: Image,
    words: tuple[str, str, str],
    rows: int,
    size: int,
    legend: Legend | None = None,
    *,
    outlines: Sequence[tuple[str, Colour]] = (),
    colours: Image | None = None,
) -> Image:
    """Return a picture with a strip below: title, note and caption to the left; to the right the scale of a legend and, in
    ``rows`` rows below it, what is outlined."""
    height, width = picture.shape[:2]
    sheet = Sheet(height + round(size * (4.6 + 1.9 * rows)), width)
    sheet.lay(picture)
    middle, first, second, third = round(width * 0.55), *(height + round(size * row) for row in (1.9, 3.8, 5.7))
    title, note, caption = words
    beside = middle if legend or outlines else width
    sheet.write(title, size, first, size, beside - 2 * size)
    sheet.write(note, size, second, size, beside - 2 * size, FAINT)
    sheet.write(caption, size, third, size, (middle if outlines else width) - 2 * size)
    room = width - size - middle
    for row, (meaning, colour) in enumerate(outlines):
        baseline = (third if legend else first) + round(1.9 * size * row)
        sheet.swatch(meaning, colour, middle, baseline, size, room)
    if legend is not None:
        sheet.scale(
            colour_table() if colours is None else colours, legend, middle, height + round(size * 0.8), room, size
        )
    return sheet.pixels


def blend(grey: npt.NDArray[np.float32], level: npt.NDArray[np.integer]) -> Image:
    """Lay the colours of levels 0..255 over grey values 0..255, both ``[...]``; returns RGB uint8 ``[..., 3]``."""
    cover = (0.10 + 0.75 * np.arange(256, dtype=np.float32) / 255)[:, None]
    mixed = grey[..., None] * (1 - cover)[level] + (colour_table().astype(np.float32) * cover)[level]
    return np.asarray(np.rint(mixed), np.uint8)


def _check_sizes(image: Image | None, anomaly: Mask | None, height: int, width: int) -> None:
    """Refuse a label that is not its image's, and a picture with more pixels than an image may have: that of a frame of few
    columns becomes very tall."""
    if image is not None and anomaly is not None and anomaly.shape != image.shape[:2]:
        label, picture = (f"{shape[1]}x{shape[0]}" for shape in (anomaly.shape, image.shape))
        raise InputError(f"the anomaly label has {label} pixels for an image of {picture}")
    if height * width > MOST_PIXELS:
        raise InputError(f"a picture of {width} x {height} pixels is too large: at most {MOST_PIXELS:,} are drawn")


def draw_panel(
    image: Image | None,
    prediction: npt.NDArray[np.uint8] | None,
    scores: Sequence[tuple[Legend, npt.NDArray[np.floating]]],
    *,
    classes: Sequence[tuple[str, Colour]] = (),
    anomaly: Mask | None = None,
    caption: str = "",
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
    """
    shape = image.shape if image is not None else scores[0][1].shape if prediction is None else prediction.shape
    height, width = max(1, round(TILE_WIDTH * shape[0] / shape[1])), TILE_WIDTH
    _check_sizes(image, anomaly, height, width)
    size = max(MINIMUM_TEXT, width // 48)
    rows = (anomaly is not None) + any(legend.threshold is not None for legend, _ in scores)

    def tile(picture: Image, title: str, note: str, *of_score: Any) -> Image:
        drawn = resize(picture, width, height).copy()
        outlines = _outline(drawn, anomaly, *of_score)
        return _with_strip(drawn, (title, note, ""), rows, size, *of_score[:1], outlines=outlines)

    tiles = []
    if image is not None:
        tiles.append(tile(image, "image", scores[0][0].note if scores else ""))
    if prediction is not None and classes:
        colours = np.full((256, 3), 255, np.uint8)  # ids beyond the classes are white
        colours[: len(classes)] = [colour for _, colour in classes]
        tiles.append(tile(colours[resize_nearest(prediction, width, height)], "prediction", ""))
        tiles.append(_class_legend(prediction, classes, tiles[0].shape[0], size))
    for legend, values in scores:
        tiles.append(tile(colourise(values, legend.shown), legend.score, legend.unit, legend, values))
    return _arranged(tiles, caption, size)


def _arranged(tiles: Sequence[Image], caption: str, size: int) -> Image:
    """Lay tiles of one size in rows below their caption."""
    height, width = (side + _GAP for side in tiles[0].shape[:2])
    above, columns = round(size * 2.4) if caption else 0, min(_COLUMNS, len(tiles))
    sheet = Sheet(above + -(-len(tiles) // columns) * height - _GAP, columns * width - _GAP)
    sheet.write(caption, size, round(size * 1.7), size, sheet.pixels.shape[1] - 2 * size)
    for index, tile in enumerate(tiles):
        sheet.lay(tile, (index % columns) * width, above + (index // columns) * height)
    return sheet.pixels


def _class_legend(
    prediction: npt.NDArray[np.uint8], classes: Sequence[tuple[str, Colour]], height: int, size: int
) -> Image:
    """Draw swatches and names of the classes that a frame has, of those that cover most of it where not all fit."""
    sheet, step, columns = Sheet(height, TILE_WIDTH), round(size * 1.9), 2
    column_width, rows = (TILE_WIDTH - size) // columns, max(1, (height - size) // step)
    counts = np.bincount(prediction.ravel(), minlength=len(classes))[: len(classes)]
    shown = np.argsort(-counts, kind="stable")[: min(columns * rows, np.count_nonzero(counts))]
    for index, class_id in enumerate(sorted(shown.tolist())):
        left, top = size + (index // rows) * column_width, size + (index % rows) * step
        sheet.swatch(*classes[class_id], left, top + size + 1, size, column_width - round(1.4 * size))
    return sheet.pixels
