"""Image, prediction and uncertainty maps of one frame side by side, each with its own legend."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from segunc.data.images import Image
from segunc.review.colormap import colour_table, colourise, colourise_classes
from segunc.review.drawing import (
    FAINT_INK,
    MINIMUM_TEXT,
    blank,
    draw_bar,
    draw_outline,
    draw_text,
    resize,
    resize_nearest,
    shorten,
    text_width,
)
from segunc.review.overlay import OUTLINE_NOTE, Legend, check_mask

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
