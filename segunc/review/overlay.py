"""Overlays of a score over its image, and panels with legends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.data.images import Image
from segunc.review.colormap import (
    DEFAULT_COLOUR_MAP,
    FAINT_INK,
    MINIMUM_TEXT,
    DisplayRange,
    blank,
    colour_table,
    colourise,
    colourise_classes,
    draw_bar,
    draw_outline,
    draw_text,
    levels,
    resize,
    resize_nearest,
    shorten,
    text_width,
)

OUTLINE_NOTE = "outlined: labelled anomaly"
MINIMUM_WIDTH = 640
"""Smaller pictures are enlarged by a whole factor, so that their legend can be read."""
PHOTO_BRIGHTNESS = 0.8
"""Share of its brightness that the grey image keeps under the colours."""
_LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)
"""ITU-R BT.601 weights of red, green and blue."""


@dataclass(frozen=True)
class Legend:
    """What a legend says.

    Attributes:
        score: the score's name.
        unit: its unit in words.
        shown: the fixed range of the colours.
        note: the model line, :func:`model_line`.
        colour_map: name of the colour table.
    """

    score: str
    unit: str
    shown: DisplayRange
    note: str = ""
    colour_map: str = DEFAULT_COLOUR_MAP

    @property
    def title(self) -> str:
        return f"{self.score} ({self.unit})" if self.unit else self.score

    @property
    def ticks(self) -> tuple[str, str, str]:
        """Labels of the low end, the middle and the high end."""
        middle = (self.shown.low + self.shown.high) / 2
        return self.shown.low_text, f"{middle:g}", self.shown.high_text


def model_line(manifest: Mapping[str, Any] | None) -> str:
    """One line on the model and its posterior from a manifest: what of it is recorded, nothing else."""
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
    """The unit of a score as a manifest records it, empty where there is none."""
    return str(((manifest or {}).get("maps", {}).get(score) or {}).get("unit", ""))


def draw_overlay(
    image: Image,
    values: npt.NDArray[np.floating],
    legend: Legend,
    *,
    anomaly: npt.NDArray[np.bool_] | None = None,
) -> Image:
    """A score map over its image, a legend strip below.

    The image is shown in grey, darkened to 80 %. Colour covers it the more, the higher the score, by a fixed rule: 10 % at the low end
    of the range, 85 % at the high end; the legend's bar is painted by the same rule over mid-grey.

    Args:
        image: RGB uint8 ``[H, W, 3]``.
        values: the score in real units ``[h, w]``; taken to the image's size by the nearest value.
        legend: what it is and how it is shown.
        anomaly: labelled anomalies ``[H, W]``, outlined.

    Returns:
        RGB uint8, at least 640 pixels wide.
    """
    check_mask(image, anomaly)
    height, width = image.shape[:2]
    factor = math.ceil(MINIMUM_WIDTH / width)
    height, width = height * factor, width * factor
    # Darkened, so that a white lane marking cannot be taken for a high score.
    grey = resize(image, width, height).astype(np.float32) @ (_LUMINANCE * np.float32(PHOTO_BRIGHTNESS))
    picture = blend(grey, resize_nearest(levels(values, legend.shown), width, height), legend.colour_map)
    if anomaly is not None:
        draw_outline(picture, resize_nearest(anomaly, width, height))
    return np.vstack([picture, _legend_strip(legend, width, outlined=anomaly is not None)])


def blend(grey: npt.NDArray[np.float32], level: npt.NDArray[np.integer], colour_map: str) -> Image:
    """Colours of the levels 0..255 over grey values 0..255, both ``[...]``, as RGB uint8 ``[..., 3]``."""
    cover = (0.10 + 0.75 * np.arange(256, dtype=np.float32) / 255)[:, None]
    added = colour_table(colour_map).astype(np.float32) * cover
    mixed = grey[..., None] * (1 - cover)[level] + added[level]
    return np.asarray(np.rint(mixed), np.uint8)


def check_mask(image: Image, anomaly: npt.NDArray[np.bool_] | None) -> None:
    """Raise InputError where labels do not lie on their image."""
    if anomaly is not None and anomaly.shape != image.shape[:2]:
        raise InputError(
            f"an anomaly label of {anomaly.shape[1]}x{anomaly.shape[0]} for an image of {image.shape[1]}x{image.shape[0]}",
            "labels of the image's size",
            "give the labels that were drawn on these images",
        )


def _legend_strip(legend: Legend, width: int, *, outlined: bool) -> Image:
    size = max(MINIMUM_TEXT, width // 72)
    strip = blank(round(size * 4.6), width)
    margin, middle = size, round(width * 0.55)
    draw_text(strip, shorten(legend.title, size, middle - 2 * margin), margin, round(size * 1.9), size)
    draw_text(strip, shorten(legend.note, size, middle - 2 * margin), margin, round(size * 3.8), size, FAINT_INK)
    if outlined:
        left = 2 * margin + text_width(legend.title, size)
        draw_text(strip, shorten(OUTLINE_NOTE, size, middle - left - margin), left, round(size * 1.9), size, FAINT_INK)
    colours = blend(np.full(256, 128 * PHOTO_BRIGHTNESS, np.float32), np.arange(256), legend.colour_map)
    draw_bar(strip, colours, middle, round(size * 0.8), width - margin - middle, round(size * 1.1), legend.ticks, size)
    return strip


TILE_WIDTH = 640
_GAP = 6


def draw_panel(
    image: Image | None,
    prediction: npt.NDArray[np.uint8] | None,
    scores: Sequence[tuple[Legend, npt.NDArray[np.floating]]],
    *,
    classes: Sequence[str] = (),
    palette: Sequence[tuple[int, int, int]] = (),
    note: str = "",
    anomaly: npt.NDArray[np.bool_] | None = None,
    columns: int = 3,
    tile_width: int = TILE_WIDTH,
) -> Image:
    """Tiles in rows: image, prediction, class legend, then one tile a score.

    Where tiles are smaller than the maps, a tile pixel is the mean colour of those it stands for.

    Args:
        image: RGB uint8 ``[H, W, 3]``; left out where it is not at hand.
        prediction: class ids ``[h, w]``; left out without a palette.
        scores: legends and maps in real units ``[h, w]``.
        classes: class names in the order of their ids.
        palette: their colours.
        note: the model line.
        anomaly: labelled anomalies ``[H, W]``, outlined in every tile.
        columns: tiles in a row.
        tile_width: width of a tile in pixels.

    Returns:
        RGB uint8.
    """
    if image is not None:
        check_mask(image, anomaly)
    shape = image.shape if image is not None else scores[0][1].shape if prediction is None else prediction.shape
    height = max(1, round(tile_width * shape[0] / shape[1]))
    size = max(MINIMUM_TEXT, tile_width // 48)
    tiles: list[Image] = []
    if image is not None:
        tiles.append(_tile(image, height, tile_width, anomaly, _title_strip("image", note, tile_width, size)))
    if prediction is not None and palette:
        strip = _title_strip("prediction", OUTLINE_NOTE if anomaly is not None else "", tile_width, size)
        colours = colourise_classes(prediction, list(palette))
        tiles.append(_tile(colours, height, tile_width, anomaly, strip, nearest=True))
        tiles.append(_class_legend(prediction, classes, palette, height + strip.shape[0], tile_width, size))
    for legend, values in scores:
        picture = colourise(values, legend.shown, legend.colour_map)
        tiles.append(_tile(picture, height, tile_width, anomaly, _bar_strip(legend, tile_width, size)))
    return _grid(tiles, min(columns, len(tiles)))


def _tile(
    picture: Image,
    height: int,
    width: int,
    anomaly: npt.NDArray[np.bool_] | None,
    strip: Image,
    *,
    nearest: bool = False,
) -> Image:
    scaled = resize_nearest(picture, width, height) if nearest else resize(picture, width, height)
    if anomaly is not None:
        scaled = scaled.copy()
        draw_outline(scaled, resize_nearest(anomaly, width, height))
    return np.vstack([scaled, strip])


def _strip_height(size: int) -> int:
    return round(size * 4.0)


def _title_strip(title: str, note: str, width: int, size: int) -> Image:
    strip = blank(_strip_height(size), width)
    draw_text(strip, title, size, round(size * 1.6), size)
    left = 2 * size + text_width(title, size)
    draw_text(strip, shorten(note, size, width - left - size), left, round(size * 1.6), size, FAINT_INK)
    return strip


def _bar_strip(legend: Legend, width: int, size: int) -> Image:
    strip = blank(_strip_height(size), width)
    middle = round(width * 0.52)
    draw_text(strip, shorten(legend.title, size, middle - 2 * size), size, round(size * 1.6), size)
    colours = colour_table(legend.colour_map)
    draw_bar(strip, colours, middle, round(size * 0.6), width - size - middle, size, legend.ticks, size)
    return strip


def _class_legend(
    prediction: npt.NDArray[np.uint8],
    classes: Sequence[str],
    palette: Sequence[tuple[int, int, int]],
    height: int,
    width: int,
    size: int,
) -> Image:
    """Swatches and names: all classes where they fit, else those that cover most of the frame."""
    tile = blank(height, width)
    step, columns = round(size * 1.9), 2
    column_width = (width - size) // columns
    rows = max(1, (height - size) // step - 1)
    order = list(range(len(palette)))
    room = rows * columns
    if len(order) > room:
        counts = np.bincount(prediction.ravel(), minlength=len(palette))[: len(palette)]
        order = sorted(np.argsort(-counts, kind="stable")[: room - 1].tolist())
    rows = -(-(len(order) + (len(order) < len(palette))) // columns)
    for place, index in enumerate(order):
        left, top = size + (place // rows) * column_width, size + (place % rows) * step
        tile[top : top + size + 2, left : left + 2 * size] = palette[index]
        name = classes[index] if index < len(classes) else str(index)
        draw_text(tile, shorten(name, size, column_width - 4 * size), left + round(2.6 * size), top + size + 1, size)
    if len(order) < len(palette):
        text = f"and {len(palette) - len(order)} more classes"
        draw_text(tile, text, size + (columns - 1) * column_width, size + (rows - 1) * step + size, size, FAINT_INK)
    return tile


def _grid(tiles: Sequence[Image], columns: int) -> Image:
    height, width = tiles[0].shape[:2]
    rows = -(-len(tiles) // columns)
    picture = blank(rows * (height + _GAP) - _GAP, columns * (width + _GAP) - _GAP)
    for place, tile in enumerate(tiles):
        top, left = (place // columns) * (height + _GAP), (place % columns) * (width + _GAP)
        picture[top : top + height, left : left + width] = tile
    return picture
