"""What is drawn over pictures: text, legends and outlines; overlays of a score over its image, and panels."""

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
INK, FAINT_INK, PAPER = (236, 236, 240), (168, 168, 178), (22, 22, 26)  # RGB, on screens
MINIMUM_TEXT = 12  # height of capital letters in pixels below which text is not drawn: smaller is not legible in a JPEG
LABELLED, FLAGGED = (255, 255, 255), (0, 229, 255)  # RGB of outlines
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


@dataclass(frozen=True)
class Theme:
    """Colours of strips and of what stands on them."""

    paper: Colour
    ink: Colour
    faint: Colour  # of minor text and edges


THEMES = {"dark": Theme(PAPER, INK, FAINT_INK), "light": Theme((255, 255, 255), (28, 29, 33), (96, 99, 108))}
"""For screens, and for print."""


class Text(NamedTuple):
    """A line of text, capitals ``size`` pixels high, that stands on ``baseline``."""

    words: str
    left: int
    baseline: int
    size: int
    colour: Colour


class Bar(NamedTuple):
    """A horizontal bar of colours ``[K, 3]``, or a swatch of one, with a thin edge."""

    colours: Image
    left: int
    top: int
    width: int
    height: int
    edge: Colour


class Sheet:
    """A picture and, apart from its pixels, the text and the legends on it, which a PDF keeps as text and vectors.

    Attributes:
        pixels: RGB uint8 ``[H, W, 3]``, the image parts over the paper of the theme.
    """

    def __init__(self, pixels: Image, theme: Theme) -> None:
        self.pixels, self.theme = pixels, theme
        self.texts: list[Text] = []
        self.bars: list[Bar] = []

    def write(self, words: str, left: int, baseline: int, size: int, width: int, colour: Colour | None = None) -> None:
        """Write text (in ink where no colour is given), cut to ``width`` pixels."""
        if words:
            words = shorten(printable(words), size, width)
            self.texts.append(Text(words, left, baseline, size, colour or self.theme.ink))

    def title(self, title: str, note: str, left: int, baseline: int, size: int, width: int) -> None:
        """Write a title and behind it, fainter, a note, each cut so that both fit into ``width`` pixels from ``left``."""
        self.write(title, left + size, baseline, size, width - 2 * size)
        behind = 2 * size + text_width(title, size)
        if width - behind - size > 3 * size:
            self.write(note, left + behind, baseline, size, width - behind - size, self.theme.faint)

    def swatch(self, words: str, colour: Colour, left: int, baseline: int, size: int, width: int) -> None:
        """A swatch and what it means, from ``left`` on in ``width`` pixels."""
        self.bars.append(
            Bar(np.array([colour], np.uint8), left, baseline - size - 1, 2 * size, size + 2, self.theme.faint)
        )
        self.write(words, left + round(2.6 * size), baseline, size, width - round(2.6 * size))

    def scale(self, colours: Image, legend: Legend, left: int, top: int, width: int, height: int, size: int) -> None:
        """A colour bar of ``colours`` ``[K, 3]`` with evenly spaced labels below, the outer ones flush, and a mark at the threshold."""
        self.bars.append(Bar(colours, left, top, width, height, self.theme.faint))
        ticks, shown = legend.shown.ticks, legend.shown
        for index, tick in enumerate(ticks):
            share = index / (len(ticks) - 1)
            x = left + round(share * width) - round(share * text_width(tick, size))
            self.write(tick, x, top + height + round(size * 1.7), size, width, self.theme.faint)
        if legend.threshold is not None and shown.low <= legend.threshold <= shown.high:
            x = left + round((legend.threshold - shown.low) / (shown.high - shown.low) * width)
            thick = max(4, size // 4)
            mark = Bar(
                np.array([FLAGGED], np.uint8),
                x - thick // 2,
                top - size // 3,
                thick,
                height + 2 * (size // 3),
                (0, 0, 0),
            )
            self.bars.append(mark)

    def paste(self, other: Sheet, top: int, left: int) -> None:
        """Lay another sheet over this one."""
        height, width = other.pixels.shape[:2]
        self.pixels[top : top + height, left : left + width] = other.pixels
        self.texts += [text._replace(left=text.left + left, baseline=text.baseline + top) for text in other.texts]
        self.bars += [bar._replace(left=bar.left + left, top=bar.top + top) for bar in other.bars]

    def picture(self) -> Image:
        """All of it as RGB uint8 ``[H, W, 3]``."""
        picture = self.pixels.copy()
        for bar in self.bars:
            right, below = bar.left + bar.width, bar.top + bar.height
            columns = np.rint(np.linspace(0, len(bar.colours) - 1, bar.width)).astype(np.intp)
            picture[bar.top : below, bar.left : right] = bar.colours[columns]
            cv2.rectangle(picture, (bar.left - 1, bar.top - 1), (right, below), bar.edge, 1)
        for text in self.texts:
            scale = cv2.getFontScaleFromHeight(_FONT, text.size, 1)
            cv2.putText(picture, text.words, (text.left, text.baseline), _FONT, scale, text.colour, 1, cv2.LINE_AA)
        return picture


def draw_outline(picture: Image, mask: npt.NDArray[np.bool_], colour: Colour = LABELLED) -> None:
    """Outline the regions of a mask ``[H, W]`` in a light colour with a dark edge, visible on any colour."""
    regions, _ = cv2.findContours(mask.astype(np.uint8), cv2.RETR_LIST, cv2.CHAIN_APPROX_NONE)
    thickness = max(1, round(picture.shape[1] / 640))
    cv2.drawContours(picture, regions, -1, (0, 0, 0), 3 * thickness, cv2.LINE_AA)
    cv2.drawContours(picture, regions, -1, colour, thickness, cv2.LINE_AA)


def resize(picture: Image, width: int, height: int) -> Image:
    """A picture at another size: means of pixels when it shrinks, linear in between when it grows."""
    if picture.shape[:2] == (height, width):
        return picture
    how = cv2.INTER_AREA if width < picture.shape[1] else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(picture, (width, height), interpolation=how), np.uint8)


@dataclass(frozen=True)
class Legend:
    """What a legend says of a score: its unit in words, the fixed range of its colours, the model line, and the value from which
    on pixels are flagged, None where none are."""

    score: str
    unit: str
    shown: DisplayRange
    note: str = ""
    threshold: float | None = None

    @classmethod
    def of(
        cls, manifest: Mapping[str, Any] | None, score: str, shown: DisplayRange, threshold: float | None = None
    ) -> Self:
        """The legend of a score with what a manifest records of it."""
        return cls(score, score_unit(manifest, score), shown, model_line(manifest), threshold)

    @property
    def title(self) -> str:
        # The unit last: where there is little room, the end is cut.
        named = self.score if self.threshold is None else f"{self.score}, flagged >= {self.threshold:g}"
        return f"{named} ({self.unit})" if self.unit else named

    @property
    def flags(self) -> str:
        """What is flagged, empty where nothing is."""
        return "" if self.threshold is None else f"flagged: {self.score} >= {self.threshold:g}"

    def outline(self, picture: Image, values: npt.NDArray[np.floating]) -> None:
        """Outline in a picture what is flagged of a map of the same view."""
        if self.threshold is not None:
            draw_outline(picture, resize_nearest(values >= self.threshold, *picture.shape[1::-1]), FLAGGED)


def frame_caption(name: str, time: float | None) -> str:
    """What a picture says of its frame: its name, and of a video its moment."""
    return f"frame {name}" if time is None else f"frame {name}, {format_time(time)}"


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
    caption: str = "",
    theme: Theme = THEMES["dark"],
) -> Sheet:
    """A score map over its image, a legend strip below: at least 640 pixels wide.

    The image is shown in grey, darkened to 80 %. Colour covers it the more, the higher the score, by a fixed rule: 10 % at the low end
    of the range, 85 % at the high end; the legend's bar is painted by the same rule over mid-grey.
    ``image`` is RGB uint8 ``[H, W, 3]``; ``values`` in real units ``[h, w]`` are taken to its size by the nearest value; labelled
    anomalies ``[H, W]``, and what the legend flags, are outlined; the caption stands in the strip.
    """
    _check_mask(image, anomaly)
    height, width = image.shape[:2]
    factor = math.ceil(MINIMUM_WIDTH / width)
    height, width = height * factor, width * factor
    size = max(MINIMUM_TEXT, width // 72)
    _check_drawable(height + 9 * size, width)
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
    for place, (words, colour) in enumerate(outlines):
        sheet.swatch(words, colour, middle, third + round(1.9 * size * place), size, room)
    colours = blend(np.full(256, 128 * PHOTO_BRIGHTNESS, np.float32), np.arange(256))
    sheet.scale(colours, legend, middle, height + round(size * 0.8), room, round(size * 1.1), size)
    return sheet


def blend(grey: npt.NDArray[np.float32], level: npt.NDArray[np.integer]) -> Image:
    """Colours of the levels 0..255 over grey values 0..255, both ``[...]``, as RGB uint8 ``[..., 3]``."""
    cover = (0.10 + 0.75 * np.arange(256, dtype=np.float32) / 255)[:, None]
    mixed = grey[..., None] * (1 - cover)[level] + (colour_table().astype(np.float32) * cover)[level]
    return np.asarray(np.rint(mixed), np.uint8)


def _check_drawable(height: int, width: int) -> None:
    """Raise InputError for a picture with more pixels than an image may have: a frame of few columns becomes very tall."""
    if height * width > MOST_PIXELS:
        raise InputError(f"a picture of {width} x {height} pixels", f"at most {MOST_PIXELS:,}", "leave the frame out")


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
    caption: str = "",
    theme: Theme = THEMES["dark"],
) -> Sheet:
    """Tiles in rows of three: image, prediction, class legend, then one tile a score.

    Where tiles are smaller than the maps, a tile pixel is the mean colour of those it stands for.
    The image is RGB uint8 ``[H, W, 3]``, left out where it is not at hand; the prediction class ids ``[h, w]``, left out without
    classes, which are names and colours by id; maps are in real units ``[h, w]``; anomalies ``[H, W]`` are outlined in every tile, what
    a legend flags in that of its score. The caption stands above, with what is flagged.
    """
    if image is not None:
        _check_mask(image, anomaly)
    shape = image.shape if image is not None else scores[0][1].shape if prediction is None else prediction.shape
    height, width = max(1, round(TILE_WIDTH * shape[0] / shape[1])), TILE_WIDTH
    _check_drawable(height, width)
    size = max(MINIMUM_TEXT, width // 48)
    flags = ", ".join(legend.flags for legend, _ in scores if legend.flags)
    first, second, third = (height + round(size * rows) for rows in (1.6, 3.3, 5.0))
    below, middle = round(size * (5.7 if flags else 4.0)), round(width * 0.52)

    def tile(picture: Image) -> Sheet:
        """A tile of a picture with an empty strip below."""
        made = Sheet(np.vstack([picture, blank(below, width, theme.paper)]), theme)
        if anomaly is not None:
            draw_outline(made.pixels[:height], resize_nearest(anomaly, width, height))
        return made

    tiles: list[Sheet] = []
    if image is not None:
        tiles.append(tile(resize(image, width, height)))
        tiles[-1].title("image", scores[0][0].note if scores else "", 0, first, size, width)
    if prediction is not None and classes:
        colours = np.full((256, 3), 255, np.uint8)  # ids beyond the classes are white
        colours[: len(classes)] = [colour for _, colour in classes]
        tiles.append(tile(colours[resize_nearest(prediction, width, height)]))
        tiles[-1].title("prediction", OUTLINE_NOTE if anomaly is not None else "", 0, first, size, width)
        tiles.append(_class_legend(prediction, classes, height + below, size, theme))
    for legend, values in scores:
        made = tile(resize(colourise(values, legend.shown), width, height))
        legend.outline(made.pixels[:height], values)
        for baseline, text in zip((first, second), two_lines(legend.title, size, middle - 2 * size), strict=True):
            made.write(text, size, baseline, size, middle - 2 * size)
        made.scale(colour_table(), legend, middle, height + round(size * 0.6), width - size - middle, size, size)
        if legend.flags:
            made.swatch(legend.flags, FLAGGED, size, third, size, width - 2 * size)
        tiles.append(made)
    above, tall, columns = round(size * 2.4) if caption or flags else 0, height + below, min(_COLUMNS, len(tiles))
    rows = -(-len(tiles) // columns)
    sheet = Sheet(blank(above + rows * (tall + _GAP) - _GAP, columns * (width + _GAP) - _GAP, theme.paper), theme)
    sheet.title(*((caption, flags) if caption else (flags, "")), 0, round(size * 1.7), size, sheet.pixels.shape[1])
    for place, made in enumerate(tiles):
        sheet.paste(made, above + (place // columns) * (tall + _GAP), (place % columns) * (width + _GAP))
    return sheet


def _class_legend(
    prediction: npt.NDArray[np.uint8], classes: Sequence[tuple[str, Colour]], height: int, size: int, theme: Theme
) -> Sheet:
    """Swatches and names: all classes where they fit, else those that cover most of the frame."""
    sheet = Sheet(blank(height, TILE_WIDTH, theme.paper), theme)
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
        sheet.swatch(*classes[index], left, top + size + 1, size, column_width - round(1.4 * size))
    if more:
        left, baseline = size + (columns - 1) * column_width, size + (rows - 1) * step + size
        sheet.write(f"and {more} more classes", left, baseline, size, column_width, theme.faint)
    return sheet
