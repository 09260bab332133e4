"""Frames of an evaluation as one picture: a row for each frame, with the image, its label, the
prediction, its errors and the scores side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from segunc.colours import DisplayRange, class_table, colour_table, colourise, range_of_maps
from segunc.data.images import Image, resize_nearest
from segunc.data.labels import IGNORE
from segunc.gallery.drawing import FAINT, Sheet, resize, text_width
from segunc.scores import title_of

TILE_WIDTH = 320  # pixels of each picture
TEXT = 12  # height of capital letters in pixels
GAP = 8  # pixels between pictures
MARGIN = 12
IGNORED = 90  # shade of pixels without a label among the errors
LEGEND_WIDTH = 164  # pixels of a class in the legend


@dataclass(frozen=True)
class DrawnFrame:
    """What is drawn of a frame.

    Attributes:
        number: of the frame in the validation set.
        image: RGB uint8 ``[H, W, 3]``.
        prediction: class ids uint8 ``[H, W]``.
        scores: ``[H, W]`` by name.
        label: class ids ``[H, W]``, 255 ignored; None without class labels.
        anomaly: 1 where an anomaly is labelled, ``[H, W]``; None without such labels.
    """

    number: int
    image: Image
    prediction: npt.NDArray[np.uint8]
    scores: dict[str, npt.NDArray[np.float32]]
    label: npt.NDArray[np.uint8] | None = None
    anomaly: npt.NDArray[np.uint8] | None = None


@dataclass(frozen=True)
class Column:
    """A column of the picture: its title, and the ends of its scale where it is a score."""

    title: str
    shown: DisplayRange | None = None


def draw_sheet(
    frames: Sequence[DrawnFrame],
    classes: Sequence[str],
    palette: Sequence[tuple[int, int, int]] = (),
    *,
    title: str = "",
) -> Image:
    """Return the frames as one picture, RGB uint8.

    Args:
        frames: at least one, all with the same scores.
        classes: names of the classes, for the legend.
        palette: a colour (red, green, blue) for each class; empty takes the usual ones.
        title: a line above.
    """
    colours = class_table(range(len(classes)), palette)
    columns, tiles = _columns_and_tiles(frames, colours)
    heights = [row[0].shape[0] for row in tiles]
    width = 2 * MARGIN + len(columns) * TILE_WIDTH + (len(columns) - 1) * GAP
    legend_rows = _legend_rows(classes, width)
    head = MARGIN + 5 * TEXT
    foot = 4 * TEXT + legend_rows * 2 * TEXT + MARGIN
    sheet = Sheet(head + sum(heights) + GAP * len(heights) + foot, width)
    sheet.write(title, MARGIN, MARGIN + TEXT, TEXT, width - 2 * MARGIN)
    top = head
    for row, height in zip(tiles, heights, strict=True):
        for index, tile in enumerate(row):
            left = _left_of(index)
            sheet.pixels[top : top + height, left : left + TILE_WIDTH] = tile
        top += height + GAP
    for index, column in enumerate(columns):
        sheet.write(column.title, _left_of(index), head - TEXT // 2, TEXT, TILE_WIDTH)
        if column.shown is not None:
            _write_scale(sheet, column.shown, _left_of(index), top)
    _write_legend(sheet, classes, colours, top + 4 * TEXT)
    return sheet.pixels


def _left_of(column: int) -> int:
    return MARGIN + column * (TILE_WIDTH + GAP)


def _columns_and_tiles(
    frames: Sequence[DrawnFrame], colours: Image
) -> tuple[list[Column], list[list[Image]]]:
    """Return the columns and the pictures of each frame, ``[h, TILE_WIDTH, 3]``."""
    has_labels = any(frame.label is not None for frame in frames)
    has_anomalies = any(frame.anomaly is not None for frame in frames)
    columns = [Column("Image, labelled anomaly in white" if has_anomalies else "Image")]
    if has_labels:
        columns.append(Column("Label, ignored in black"))
    columns.append(Column("Prediction"))
    if has_labels:
        columns.append(Column("Errors in white, ignored in grey"))
    ranges = {}
    for score in frames[0].scores:
        shown = range_of_maps(score, [frame.scores[score] for frame in frames])
        ranges[score] = shown
        columns.append(Column(title_of(score), shown))
    tiles = []
    for frame in frames:
        row = [_outlined(frame)]
        if has_labels:
            row.append(_painted(frame.label, frame, colours))
        row.append(_painted(frame.prediction, frame, colours))
        if has_labels:
            row.append(_errors(frame))
        for score, shown in ranges.items():
            values = frame.scores[score]
            row.append(resize(colourise(values, shown), *_tile_size(frame)))
        tiles.append(row)
    return columns, tiles


def _tile_size(frame: DrawnFrame) -> tuple[int, int]:
    """Return width and height of the pictures of a frame."""
    height, width = frame.image.shape[:2]
    return TILE_WIDTH, max(1, round(height * TILE_WIDTH / width))


def _outlined(frame: DrawnFrame) -> Image:
    """Return the image with the labelled anomaly outlined."""
    width, height = _tile_size(frame)
    picture = resize(frame.image, width, height).copy()
    if frame.anomaly is not None:
        mask = resize_nearest((frame.anomaly == 1).astype(np.uint8), width, height)
        regions, _ = cv2.findContours(mask, cv2.RETR_LIST, cv2.CHAIN_APPROX_NONE)
        for colour, thickness in (((0, 0, 0), 4), ((255, 255, 255), 2)):
            cv2.drawContours(picture, regions, -1, colour, thickness, cv2.LINE_AA)
    return picture


def _painted(labels: npt.NDArray[np.uint8] | None, frame: DrawnFrame, colours: Image) -> Image:
    """Return class ids in their colours; black without labels."""
    width, height = _tile_size(frame)
    if labels is None:
        return np.zeros((height, width, 3), np.uint8)
    return np.asarray(colours[resize_nearest(labels, width, height)], np.uint8)


def _errors(frame: DrawnFrame) -> Image:
    """Return where the prediction is wrong: white, right pixels in black and ignored ones in grey.

    A score is good where it looks like this.
    """
    width, height = _tile_size(frame)
    if frame.label is None:
        return np.full((height, width, 3), IGNORED, np.uint8)
    shades = np.where(frame.label != frame.prediction, 255, 0).astype(np.uint8)
    shades[frame.label == IGNORE] = IGNORED
    return np.repeat(resize_nearest(shades, width, height)[..., None], 3, axis=2)


def _write_scale(sheet: Sheet, shown: DisplayRange, left: int, top: int) -> None:
    """Draw the colour bar of a score with the numbers at its ends."""
    low, _, high = shown.ticks
    sheet.bar(colour_table(), left, top + 2, TILE_WIDTH, TEXT)
    baseline = top + 2 + round(2.6 * TEXT)
    sheet.write(f"{low} certain", left, baseline, TEXT, TILE_WIDTH // 2, FAINT)
    words = f"{high} uncertain"
    right = left + TILE_WIDTH - text_width(words, TEXT)
    sheet.write(words, right, baseline, TEXT, TILE_WIDTH // 2, FAINT)


def _legend_rows(classes: Sequence[str], width: int) -> int:
    """Return how many rows the legend of the classes needs."""
    return -(-len(classes) // _classes_in_a_row(width))


def _classes_in_a_row(width: int) -> int:
    return max(1, (width - 2 * MARGIN) // LEGEND_WIDTH)


def _write_legend(sheet: Sheet, classes: Sequence[str], colours: Image, top: int) -> None:
    """Write the colour and the name of each class, in rows."""
    in_a_row = _classes_in_a_row(sheet.pixels.shape[1])
    for index, name in enumerate(classes):
        row, column = divmod(index, in_a_row)
        red, green, blue = (int(value) for value in colours[index])
        left = MARGIN + column * LEGEND_WIDTH
        baseline = top + (2 * row + 1) * TEXT
        sheet.swatch(name, (red, green, blue), left, baseline, TEXT, LEGEND_WIDTH - GAP)
