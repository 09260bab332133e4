"""What is drawn over pictures: text, legends and outlines; overlays of a score over its image, and panels."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import cv2
import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.data.images import Image
from segunc.gallery.colormap import DisplayRange, colour_table, colourise, levels

Scalar = TypeVar("Scalar", bound=np.generic)
Colour = tuple[int, int, int]
INK, FAINT_INK, PAPER = (236, 236, 240), (168, 168, 178), (22, 22, 26)  # RGB of text, minor text and its strips
MINIMUM_TEXT = 12  # height of capital letters in pixels below which text is not drawn: smaller is not legible in a JPEG
OUTLINE_NOTE = "outlined: labelled anomaly"
MINIMUM_WIDTH = 640  # smaller pictures are enlarged by a whole factor, so that their legend can be read
TILE_WIDTH = 640  # width of a panel's tiles in pixels
PHOTO_BRIGHTNESS = 0.8  # share of its brightness that the grey image keeps under the colours
_LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R BT.601 weights of red, green and blue
_FONT = cv2.FONT_HERSHEY_SIMPLEX
_GAP, _COLUMNS = 6, 3


def blank(height: int, width: int, colour: Colour = PAPER) -> Image:
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


def two_lines(text: str, size: int, width: int) -> tuple[str, str]:
    """Text in two lines of ``width`` pixels, the first of as many words as fit, the second cut."""
    words = text.split(" ")
    fit = next((n for n in range(len(words), 1, -1) if text_width(" ".join(words[:n]), size) <= width), 1)
    return shorten(" ".join(words[:fit]), size, width), shorten(" ".join(words[fit:]), size, width)


def draw_text(picture: Image, text: str, left: int, baseline: int, size: int, colour: Colour = INK) -> None:
    """Write text into a picture, capitals ``size`` pixels high, standing on ``baseline``."""
    scale = cv2.getFontScaleFromHeight(_FONT, size, 1)
    cv2.putText(picture, printable(text), (left, baseline), _FONT, scale, colour, 1, cv2.LINE_AA)


def draw_title(strip: Image, title: str, note: str, baseline: int, size: int, width: int) -> None:
    """Write a title and behind it, fainter, a note, each cut so that both fit into ``width`` pixels."""
    draw_text(strip, shorten(title, size, width - 2 * size), size, baseline, size)
    if note:
        left = 2 * size + text_width(title, size)
        draw_text(strip, shorten(note, size, width - left - size), left, baseline, size, FAINT_INK)


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
    how = cv2.INTER_AREA if width < picture.shape[1] else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(picture, (width, height), interpolation=how), np.uint8)


def resize_nearest(values: npt.NDArray[Scalar], width: int, height: int) -> npt.NDArray[Scalar]:
    """A map ``[H, W]`` or picture ``[H, W, 3]`` at another size, without values between its own."""
    if values.shape[:2] == (height, width):
        return values
    rows = np.arange(height) * values.shape[0] // height
    columns = np.arange(width) * values.shape[1] // width
    resized: npt.NDArray[Scalar] = values[rows[:, None], columns[None, :]]
    return resized


@dataclass(frozen=True)
class Legend:
    """What a legend says of a score: its unit in words, the fixed range of its colours, and the model line."""

    score: str
    unit: str
    shown: DisplayRange
    note: str = ""

    @classmethod
    def of(cls, manifest: Mapping[str, Any] | None, score: str, shown: DisplayRange) -> Self:
        """The legend of a score with what a manifest records of it."""
        return cls(score, score_unit(manifest, score), shown, model_line(manifest))

    @property
    def title(self) -> str:
        return f"{self.score} ({self.unit})" if self.unit else self.score


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
    image: Image, values: npt.NDArray[np.floating], legend: Legend, *, anomaly: npt.NDArray[np.bool_] | None = None
) -> Image:
    """A score map over its image, a legend strip below: RGB uint8, at least 640 pixels wide.

    The image is shown in grey, darkened to 80 %. Colour covers it the more, the higher the score, by a fixed rule: 10 % at the low end
    of the range, 85 % at the high end; the legend's bar is painted by the same rule over mid-grey.
    ``image`` is RGB uint8 ``[H, W, 3]``; ``values`` in real units ``[h, w]`` are taken to its size by the nearest value; labelled
    anomalies ``[H, W]`` are outlined.
    """
    _check_mask(image, anomaly)
    height, width = image.shape[:2]
    factor = math.ceil(MINIMUM_WIDTH / width)
    height, width = height * factor, width * factor
    # Darkened, so that a white lane marking cannot be taken for a high score.
    grey = resize(image, width, height).astype(np.float32) @ (_LUMINANCE * np.float32(PHOTO_BRIGHTNESS))
    picture = blend(grey, resize_nearest(levels(values, legend.shown), width, height))
    size = max(MINIMUM_TEXT, width // 72)
    strip = blank(round(size * 4.6), width)
    middle, above, below = round(width * 0.55), round(size * 1.9), round(size * 3.8)
    draw_text(strip, shorten(legend.note, size, middle - 2 * size), size, below, size, FAINT_INK)
    draw_title(strip, legend.title, "" if anomaly is None else OUTLINE_NOTE, above, size, middle)
    if anomaly is not None:
        draw_outline(picture, resize_nearest(anomaly, width, height))
    colours = blend(np.full(256, 128 * PHOTO_BRIGHTNESS, np.float32), np.arange(256))
    top, room = round(size * 0.8), width - size - middle
    draw_bar(strip, colours, middle, top, room, round(size * 1.1), legend.shown.ticks, size)
    return np.vstack([picture, strip])


def blend(grey: npt.NDArray[np.float32], level: npt.NDArray[np.integer]) -> Image:
    """Colours of the levels 0..255 over grey values 0..255, both ``[...]``, as RGB uint8 ``[..., 3]``."""
    cover = (0.10 + 0.75 * np.arange(256, dtype=np.float32) / 255)[:, None]
    mixed = grey[..., None] * (1 - cover)[level] + (colour_table().astype(np.float32) * cover)[level]
    return np.asarray(np.rint(mixed), np.uint8)


def _check_mask(image: Image, anomaly: npt.NDArray[np.bool_] | None) -> None:
    if anomaly is not None and anomaly.shape != image.shape[:2]:
        sizes = [f"{picture.shape[1]}x{picture.shape[0]}" for picture in (anomaly, image)]
        given = "an anomaly label of {} for an image of {}".format(*sizes)
        raise InputError(given, "labels of the image's size", "give the labels that were drawn on these images")


def draw_panel(
    image: Image | None,
    prediction: npt.NDArray[np.uint8] | None,
    scores: Sequence[tuple[Legend, npt.NDArray[np.floating]]],
    *,
    classes: Sequence[tuple[str, Colour]] = (),
    anomaly: npt.NDArray[np.bool_] | None = None,
    peak: tuple[float, float, str] | None = None,
) -> Image:
    """Tiles in rows of three, RGB uint8: image, prediction, class legend, then one tile a score.

    Where tiles are smaller than the maps, a tile pixel is the mean colour of those it stands for.
    The image is RGB uint8 ``[H, W, 3]``, left out where it is not at hand; the prediction class ids ``[h, w]``, left out without
    classes, which are names and colours by id; maps are in real units ``[h, w]``; anomalies ``[H, W]`` are outlined in every tile.
    The peak (row and column as shares of height and width, and what is said of it) is ringed in the image and the first score.
    """
    if image is not None:
        _check_mask(image, anomaly)
    shape = image.shape if image is not None else scores[0][1].shape if prediction is None else prediction.shape
    height, width = max(1, round(TILE_WIDTH * shape[0] / shape[1])), TILE_WIDTH
    size = max(MINIMUM_TEXT, width // 48)
    baseline, below, middle = round(size * 1.6), round(size * 3.3), round(width * 0.52)

    def with_strip(picture: Image) -> tuple[Image, Image]:
        """A tile of a picture, and the strip below as its part that is drawn on."""
        strip = blank(round(size * 4.0), width)
        tile = np.vstack([picture, strip])
        if anomaly is not None:
            draw_outline(tile[:height], resize_nearest(anomaly, width, height))
        return tile, tile[height:]

    def titled(picture: Image, title: str, note: str, text: str = "") -> Image:
        tile, strip = with_strip(picture)
        draw_title(strip, title, note, baseline, size, width)
        draw_text(strip, shorten(text, size, width - 2 * size), size, below, size)
        return tile

    def ringed(tile: Image) -> Image:
        if peak is not None:
            centre = (round(peak[1] * width), round(peak[0] * height))
            for colour, thickness in ((0, 0, 0), 5), ((255, 255, 255), 2):
                cv2.circle(tile[:height], centre, width // 32, colour, thickness, cv2.LINE_AA)
        return tile

    tiles: list[Image] = []
    if image is not None:
        said = scores[0][0].note if scores else ""
        tiles.append(ringed(titled(resize(image, width, height), "image", said, peak[2] if peak else "")))
    if prediction is not None and classes:
        colours = np.full((256, 3), 255, np.uint8)  # ids beyond the classes are white
        colours[: len(classes)] = [colour for _, colour in classes]
        shown = colours[resize_nearest(prediction, width, height)]
        tiles.append(titled(shown, "prediction", OUTLINE_NOTE if anomaly is not None else ""))
        tiles.append(_class_legend(prediction, classes, tiles[-1].shape[0], size))
    for legend, values in scores:
        tile, strip = with_strip(resize(colourise(values, legend.shown), width, height))
        for line, text in zip((baseline, below), two_lines(legend.title, size, middle - 2 * size), strict=True):
            draw_text(strip, text, size, line, size)
        top, room = round(size * 0.6), width - size - middle
        draw_bar(strip, colour_table(), middle, top, room, size, legend.shown.ticks, size)
        tiles.append(ringed(tile) if values is scores[0][1] else tile)
    height, columns = tiles[0].shape[0], min(_COLUMNS, len(tiles))
    rows = -(-len(tiles) // columns)
    picture = blank(rows * (height + _GAP) - _GAP, columns * (width + _GAP) - _GAP)
    for place, tile in enumerate(tiles):
        top, left = (place // columns) * (height + _GAP), (place % columns) * (width + _GAP)
        picture[top : top + height, left : left + width] = tile
    return picture


def _class_legend(
    prediction: npt.NDArray[np.uint8], classes: Sequence[tuple[str, Colour]], height: int, size: int
) -> Image:
    """Swatches and names: all classes where they fit, else those that cover most of the frame."""
    tile = blank(height, TILE_WIDTH)
    step, columns = round(size * 1.9), 2
    column_width = (TILE_WIDTH - size) // columns
    order = list(range(len(classes)))
    room = columns * max(1, (height - size) // step - 1)
    if len(order) > room:
        counts = np.bincount(prediction.ravel(), minlength=len(classes))[: len(classes)]
        order = sorted(np.argsort(-counts, kind="stable")[: room - 1].tolist())
    more = len(classes) - len(order)
    rows = -(-(len(order) + (more > 0)) // columns)
    for place, index in enumerate(order):
        left, top = size + (place // rows) * column_width, size + (place % rows) * step
        name, tile[top : top + size + 2, left : left + 2 * size] = classes[index]
        draw_text(tile, shorten(name, size, column_width - 4 * size), left + round(2.6 * size), top + size + 1, size)
    if more:
        left, baseline = size + (columns - 1) * column_width, size + (rows - 1) * step + size
        draw_text(tile, f"and {more} more classes", left, baseline, size, FAINT_INK)
    return tile
