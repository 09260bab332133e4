"""A score map of one frame over its image, with a legend below."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import cv2
import numpy as np
import numpy.typing as npt

from segunc.colours import DisplayRange, colour_table, colourise, levels
from segunc.core.errors import InputError
from segunc.data.images import MOST_PIXELS, Image, resize_nearest
from segunc.decisions.flags import Threshold
from segunc.decisions.preparation import AS_IT_IS, Prediction, Preparation
from segunc.frames.source import format_time
from segunc.maps.encoding import is_flagged, threshold_text
from segunc.maps.labelled import LabelSources
from segunc.scores import scale_words, title_of

Colour = tuple[int, int, int]
Mask = npt.NDArray[np.bool_]
Strokes = tuple[tuple[Colour, int], ...]
Points = npt.NDArray[np.int32]  # [N, 1, 2], x and y of the pixels of a contour


class Outline(NamedTuple):
    """What the lines or the stripes of a picture mean, as its legend says it."""

    words: str
    strokes: Strokes  # the lowest first; none for stripes
    dashed: bool = False  # the uppermost stroke


Outlines = list[Outline]
NO_LABELS = LabelSources()
MINIMUM_TEXT = 12  # height of capital letters in pixels: smaller text is not legible in a JPEG
BLACK = (0, 0, 0)
LABELLED = (255, 255, 255)  # RGB of outlines
FLAGGED = (0, 229, 255)
# The strokes of each outline, the lowest first, with their widths as multiples of one thickness. As
# on the review page the label has two lines and what is flagged has one, so that nobody needs to
# tell their colours apart.
LABELLED_STROKES: Strokes = ((BLACK, 7), (LABELLED, 5), (BLACK, 2))
FLAGGED_STROKES: Strokes = ((BLACK, 3), (FLAGGED, 1))
DASH = 6  # length of a dash and of a gap, as a multiple of the same thickness
# In pixels. Smaller pictures are enlarged by a whole factor, so that their legend can be read.
MINIMUM_WIDTH = 640
PHOTO_BRIGHTNESS = 0.8  # share of its brightness that the grey image keeps under the colours
# ITU-R BT.601 weights of red, green and blue
_LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)
_FONT = cv2.FONT_HERSHEY_SIMPLEX
PAPER = (22, 22, 26)  # colour of strips
INK = (236, 236, 240)  # of the text on them
FAINT = (168, 168, 178)  # of minor text and edges


def text_width(text: str, size: int) -> int:
    """Return the width in pixels of text with capitals ``size`` pixels high."""
    scale = cv2.getFontScaleFromHeight(_FONT, size, 1)
    (width, _), _ = cv2.getTextSize(text, _FONT, scale, 1)
    return int(width)


def printable(words: str) -> str:
    """Return text in the characters of OpenCV's font, which has no accents; ``?`` stands for all
    other characters.
    """
    decomposed = unicodedata.normalize("NFKD", words.replace("−", "-"))
    letters = [letter for letter in decomposed if not unicodedata.combining(letter)]
    return "".join(letter if " " <= letter <= "~" else "?" for letter in letters)


class Sheet:
    """A picture, RGB uint8 ``[H, W, 3]`` in ``pixels``, for pictures, text and legends; empty but
    for one at its top.
    """

    def __init__(self, height: int, width: int, picture: Image | None = None) -> None:
        self.pixels: Image = np.full((height, width, 3), PAPER, np.uint8)
        if picture is not None:
            self.pixels[: picture.shape[0], : picture.shape[1]] = picture

    def write(
        self, words: str, left: int, baseline: int, size: int, width: int, colour: Colour = INK
    ) -> None:
        """Write text, cut to ``width`` pixels."""
        if not words:
            return
        words = printable(words)
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

    def swatch(
        self, words: str, colour: Colour, left: int, baseline: int, size: int, width: int
    ) -> None:
        """Draw a swatch and its meaning, from ``left`` on in ``width`` pixels."""
        self.bar(np.array([colour], np.uint8), left, baseline - size - 1, 2 * size, size + 2)
        self.write(words, left + round(2.6 * size), baseline, size, width - round(2.6 * size))

    def line_sample(
        self, outline: Outline, left: int, baseline: int, size: int, width: int
    ) -> None:
        """Draw a piece of an outline and its meaning, from ``left`` on in ``width`` pixels; without
        strokes a piece of what is striped.
        """
        height = size + 2
        top = baseline - size - 1
        self.bar(np.array([FAINT], np.uint8), left, top, 2 * size, height)
        thickness = outline_thickness(self.pixels.shape[1])
        if not outline.strokes:
            self._hatch(left, left + 2 * size, top, height)
        for number, (colour, wide) in enumerate(outline.strokes, start=1):
            line = wide * thickness
            above = top + (height - line) // 2
            columns = np.arange(left, left + 2 * size)
            if outline.dashed and number == len(outline.strokes):
                columns = columns[(columns - left) // (size // 2) % 2 == 0]
            self.pixels[above : above + line, columns] = colour
        self.write(
            outline.words, left + round(2.6 * size), baseline, size, width - round(2.6 * size)
        )

    def scale(
        self, colours: Image, legend: Legend, left: int, top: int, width: int, size: int
    ) -> None:
        """Draw a colour bar of ``colours`` ``[K, 3]`` with evenly spaced labels below, and a mark
        at the threshold.
        """
        shown = legend.shown
        height = round(size * 1.1)
        self.bar(colours, left, top, width, height)
        if shown.measured_to is not None:
            self._hatch(left + width // 2 + 2, left + width, top, height)
        baseline = top + height + round(size * 1.7)
        for index, tick in enumerate(shown.ticks):
            share = index / (len(shown.ticks) - 1)
            x = left + round(share * width) - round(share * text_width(tick, size))
            self.write(tick, x, baseline, size, width, FAINT)
        mark_at = legend.threshold_on_scale
        if mark_at is not None:
            x = left + round(float(shown.share(np.float32(mark_at))) * width)
            thickness = max(4, size // 4)
            margin = size // 3
            mark = np.array([FLAGGED], np.uint8)
            self.bar(mark, x - thickness // 2, top - margin, thickness, height + 2 * margin)

    def _hatch(self, left: int, right: int, top: int, height: int) -> None:
        """Draw slanted lines over a part of a bar: values that are extrapolated, or left out."""
        for x in range(left, right - height, 2 * height):
            start = (x, top + height - 1)
            end = (x + height - 1, top)
            cv2.line(self.pixels, start, end, PAPER, 1, cv2.LINE_AA)


def _outline(
    picture: Image, anomaly: Mask | None, legend: Legend, prepared: npt.NDArray[np.floating]
) -> Outlines:
    """Outline in a picture what a legend flags of a prepared map of the same view, and a labelled
    anomaly, in light lines with dark edges, visible on any colour. The line around a hole in what
    is flagged is dashed, because a closed line inside another one would look like a flagged region.

    Returns:
        The meaning and the strokes of each outline.
    """
    outlined: list[tuple[Mask, str, Strokes]] = []
    if legend.threshold is not None:
        words = f"Flagged: {legend.flagged}"
        outlined.append((is_flagged(prepared, legend.threshold), words, FLAGGED_STROKES))
    if anomaly is not None:
        outlined.append((anomaly, "Outlined: labelled anomaly", LABELLED_STROKES))
    # The label lies below: where both lines meet, that of flagged pixels stands between its two.
    for mask, _, strokes in reversed(outlined):
        draw_outline(picture, mask, strokes, dashed_holes=strokes is FLAGGED_STROKES)
    outlines = [Outline(words, strokes) for _, words, strokes in outlined]
    if legend.threshold is not None:
        # Also where a frame has no hole: the pictures of a video have one size.
        outlines.append(Outline("Dashed: a hole, not flagged", FLAGGED_STROKES, dashed=True))
    return outlines


MOST = 0.5
"""Share of a picture that is flagged from which on what is not flagged is outlined."""


def draw_outline(
    picture: Image, mask: Mask, strokes: Strokes, *, dashed_holes: bool = False
) -> None:
    """Outline the regions of a mask in a picture.

    Args:
        picture: RGB uint8 ``[H, W, 3]``, which is changed.
        mask: bool ``[h, w]``, resized to the picture by the nearest value.
        strokes: of the outline, the lowest first.
        dashed_holes: whether the line around a hole in a region is dashed.
    """
    thickness = outline_thickness(picture.shape[1])
    drawn = resize_nearest(mask, *picture.shape[1::-1]).astype(np.uint8)
    # The eye takes the smaller area for the thing that is outlined, also at the border of a
    # picture. So where most is flagged, all that is not counts as a hole.
    covers = dashed_holes and drawn.mean() > MOST
    regions, holes = _contours(drawn, covers=covers)
    if not dashed_holes:
        regions += holes
        holes = []
    for colour, wide in strokes:
        cv2.drawContours(picture, regions, -1, colour, wide * thickness, cv2.LINE_AA)
    for colour, wide in strokes[:-1]:
        cv2.drawContours(picture, holes, -1, colour, wide * thickness, cv2.LINE_AA)
    colour, wide = strokes[-1]
    for points in holes:
        dashes = _dashes(points, DASH * thickness)
        cv2.polylines(picture, dashes, False, colour, wide * thickness, cv2.LINE_AA)


def _contours(
    mask: npt.NDArray[np.uint8], *, covers: bool = False
) -> tuple[list[Points], list[Points]]:
    """Return the outer contours of the regions of a mask ``[H, W]``, and those of their holes.

    Args:
        mask: 0 and 1.
        covers: whether the mask goes on around the picture, so that a part that is 0 at its border
            is a hole.
    """
    around = cv2.copyMakeBorder(mask, 1, 1, 1, 1, cv2.BORDER_CONSTANT, value=int(covers))
    contours, levels_of = cv2.findContours(
        around, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE, offset=(-1, -1)
    )
    regions: list[Points] = []
    holes: list[Points] = []
    for place, points in enumerate(contours):
        is_hole = levels_of[0][place][3] >= 0  # it has a contour around it
        (holes if is_hole else regions).append(np.asarray(points, np.int32))
    if covers:  # the region around the picture ends outside of it
        regions = [points for points in regions if points.min() >= 0]
    return regions, holes


def _dashes(points: Points, length: int) -> list[Points]:
    """Return every second piece of so many points of a contour."""
    return [points[start : start + length] for start in range(0, len(points), 2 * length)]


def outline_thickness(width: int) -> int:
    """Return the pixels of the thinnest stroke of an outline in a picture of this width."""
    return max(1, round(width / 640))


def resize(picture: Image, width: int, height: int) -> Image:
    """Resize a picture: means of pixels when it shrinks, linear interpolation when it grows."""
    interpolation = cv2.INTER_AREA if width < picture.shape[1] else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(picture, (width, height), interpolation=interpolation), np.uint8)


@dataclass(frozen=True)
class Legend:
    """What a legend says of a score, its colours and what is flagged by it.

    A promise stands there for maps of the calibration's own input alone: a legend has no room for
    the condition under which it holds elsewhere.
    """

    score: str
    unit: str
    shown: DisplayRange  # of the colours
    note: str = ""  # a line on the model
    threshold: float | None = None  # at or above which pixels are flagged; None where none are
    promise: str = ""  # what is promised of the threshold, in few words
    source: str = ""  # name of the file of the threshold
    preparation: Preparation = AS_IT_IS  # of a map, before it is compared with the threshold
    gaps: bool = False  # whether the map has pixels without a value

    @classmethod
    def of(
        cls,
        manifest: Mapping[str, Any] | None,
        score: str,
        shown: DisplayRange,
        flag: Threshold | None = None,
    ) -> Self:
        """Return the legend of a score with what a manifest records of it."""
        unit = (manifest or {}).get("maps", {}).get(score, {}).get("unit", "")
        legend = cls(score, unit, shown, model_words(manifest))
        if flag is None:
            return legend
        promise = flag.short if flag.claims((manifest or {}).get("run", {})) else ""
        return replace(
            legend,
            threshold=flag.value,
            promise=promise,
            source=flag.source,
            preparation=flag.preparation,
        )

    @property
    def threshold_on_scale(self) -> float | None:
        """The threshold, if it is a value of the scale that is shown; a level within the frame is
        none.
        """
        if self.threshold is None or self.preparation.level != "none":
            return None
        return self.threshold if self.shown.low <= self.threshold <= self.shown.high else None

    @property
    def flagged(self) -> str:
        """What a flagged pixel is: the promise, or else the threshold and its file."""
        if self.promise or self.threshold is None:
            return self.promise
        title = self.preparation.name_of(title_of(self.score, capital=False))
        words = f"{title} >= {threshold_text(self.threshold)}"
        if self.preparation.margin:
            words += f", {self.preparation.margin} pixels wider"
        return f"{words} ({self.source})" if self.source else words

    @property
    def words(self) -> str:
        """What the scale means to a reader."""
        hatched = "" if self.shown.measured_to is None else "; hatched: beyond what was measured"
        striped = "; striped: no value" if self.gaps else ""
        return scale_words(self.score, self.unit) + hatched + striped


def frame_caption(name: str, time: float | None) -> str:
    """Name a frame and, of a video, its time."""
    return f"Frame {name}" if time is None else f"Frame {name}, {format_time(time)}"


METHOD_WORDS = {
    "abnn": "ABNN",
    "deterministic": "deterministic network, no draws",
    "tta": "test-time augmentation",
    "ensemble": "deep ensemble",
    "mc-dropout": "MC dropout",
    "mcbn": "Monte Carlo batch normalisation",
    **{name: name.upper() for name in ("swag", "sgld", "sghmc", "hmc")},
}


def model_words(manifest: Mapping[str, Any] | None) -> str:
    """Describe the model for a reviewer in words, ``ABNN, 3 members, 8 draws``; empty where a
    manifest records none.
    """
    model = (manifest or {}).get("model", {})
    run = (manifest or {}).get("run", {})
    method = str(model.get("method") or "")
    if not method or method == "deterministic":
        return METHOD_WORDS.get(method, "")
    words = [METHOD_WORDS.get(method, method.replace("-", " "))]
    for count, noun in ((model.get("members"), "member"), (run.get("draws"), "draw")):
        if count:
            words.append(f"{count} {noun}" if int(count) == 1 else f"{count} {noun}s")
    return ", ".join(words)


def draw_overlay(
    image: Image,
    values: npt.NDArray[np.floating],
    legend: Legend,
    *,
    anomaly: Mask | None = None,
    prediction: Prediction | None = None,
    kept: Mask | None = None,
    caption: str = "",
) -> Image:
    """Draw a score map over its image with a legend strip below, at least 640 pixels wide.

    The image is shown in grey at 80 % of its brightness. The colour of a pixel covers 10 % of it at
    the low end of the score's range and 85 % at the high end; the legend's bar is painted by the
    same rule over mid-grey.

    Args:
        image: RGB uint8 ``[H, W, 3]``.
        values: in real units ``[h, w]``, resized to the image by the nearest value; what the legend
            flags is outlined.
        legend: of the score.
        anomaly: labelled pixels ``[H, W]`` to outline.
        prediction: class ids ``[h, w]``, for a legend that flags a surface alone.
        kept: which pixels of the map count, ``[h, w]``; None for all.
        caption: a line on the frame.

    Returns:
        RGB uint8.

    Raises:
        InputError: a label of another size than the image, or a picture that is too large.
    """
    factor = math.ceil(MINIMUM_WIDTH / image.shape[1])
    height = image.shape[0] * factor
    width = image.shape[1] * factor
    size = max(MINIMUM_TEXT, width // 72)
    whole_height = height + 9 * size
    if width * whole_height > MOST_PIXELS:  # that of a frame of few columns becomes very tall
        raise InputError(
            f"a picture of {width} x {whole_height} pixels is too large: "
            f"at most {MOST_PIXELS:,} are drawn"
        )
    picture, outlines = draw_scores(
        image,
        values,
        legend,
        (width, height),
        anomaly=anomaly,
        prediction=prediction,
        kept=kept,
    )
    caption_lines = 1 if caption else 0
    lines = max(len(outlines), caption_lines)
    sheet = Sheet(height + round(size * (6.5 + 1.9 * lines)), width, picture)
    legend = replace(legend, gaps=bool(np.isnan(values).any()))
    _write_legend(sheet, legend, outlines, caption, height, size)
    return sheet.pixels


def draw_scores(
    image: Image,
    values: npt.NDArray[np.floating],
    legend: Legend,
    size: tuple[int, int],
    *,
    anomaly: Mask | None = None,
    prediction: Prediction | None = None,
    kept: Mask | None = None,
) -> tuple[Image, Outlines]:
    """Draw a score map over its image without a legend strip.

    Args:
        image, values, legend, anomaly, prediction, kept: those of :func:`draw_overlay`.
        size: (width, height) of the picture in pixels.

    Returns:
        The picture, and the meaning and the strokes of each outline in it.

    Raises:
        InputError: a label of another size than the image.
    """
    if anomaly is not None and anomaly.shape != image.shape[:2]:
        raise InputError(
            f"the anomaly label has {anomaly.shape[1]}x{anomaly.shape[0]} pixels for an image of "
            f"{image.shape[1]}x{image.shape[0]}"
        )
    # Darkened, so that a white lane marking cannot be taken for a high score.
    darkened = _LUMINANCE * np.float32(PHOTO_BRIGHTNESS)
    grey = resize(image, *size).astype(np.float32) @ darkened
    picture = blend(grey, resize_nearest(levels(values, legend.shown), *size))
    prepared = values
    if legend.threshold is not None and legend.preparation:
        prepared = legend.preparation(values, prediction, kept)
    if kept is not None:  # maps hold 0 where a mask leaves pixels out, and a threshold may be below
        prepared = np.where(kept, prepared, prepared.dtype.type(-np.inf))
    left_out = np.zeros(values.shape, bool) if kept is None else ~kept
    striped = resize_nearest(left_out | np.isnan(values), *size)
    _hatch_left_out(picture, striped)
    outlines: Outlines = []
    if left_out.any():
        outlines.append(Outline("Striped: left out by the mask", ()))
    return picture, [*_outline(picture, anomaly, legend, prepared), *outlines]


def score_colours(
    values: npt.NDArray[np.floating], shown: DisplayRange, kept: Mask | None
) -> Image:
    """Return the colours of a map ``[H, W]`` as RGB uint8 ``[H, W, 3]``, in stripes where a pixel
    does not count or has no value.

    Args:
        values: of the score.
        shown: the range of its colours.
        kept: which pixels count, bool ``[H, W]``; None for all.
    """
    colours = colourise(values, shown)
    left_out = np.isnan(values)
    if kept is not None:
        left_out |= ~kept
    _hatch_left_out(colours, left_out)
    return colours


def _hatch_left_out(picture: Image, left_out: Mask) -> None:
    """Darken the pixels that a mask leaves out or that have no value, in slanted stripes: they look
    like a score of 0, but nobody measured that the network is certain there.
    """
    height, width = left_out.shape
    period = max(8, width // 40)
    rows = np.arange(height)[:, None]
    columns = np.arange(width)[None]
    is_dark = (rows + columns) % period < period // 2
    picture[left_out] = (picture[left_out] * 0.6).astype(np.uint8)
    striped = left_out & is_dark
    picture[striped] = (picture[striped] * 0.4).astype(np.uint8)


def bar_colours() -> Image:
    """Return the colours ``[256, 3]`` of the bar of a legend, from its low to its high end."""
    return blend(np.full(256, 128 * PHOTO_BRIGHTNESS, np.float32), np.arange(256))


def _write_legend(
    sheet: Sheet, legend: Legend, outlines: Outlines, caption: str, top: int, size: int
) -> None:
    """Write the legend strip of a picture from the row ``top`` on: on the left the score, the model
    and the frame, on the right the colours and the outlines.
    """
    height, width = sheet.pixels.shape[:2]
    middle = round(width * 0.55)
    left_width = middle - 2 * size
    right_width = width - size - middle
    third_line = top + round(size * 5.7)
    sheet.write(title_of(legend.score), size, top + round(size * 1.9), size, left_width)
    sheet.write(legend.note, size, top + round(size * 3.8), size, left_width, FAINT)
    caption_width = left_width if outlines else width - 2 * size
    sheet.write(caption, size, third_line, size, caption_width)
    last_line = height - round(0.8 * size)
    sheet.write(legend.words, size, last_line, size, width - 2 * size, FAINT)
    for row, outline in enumerate(outlines):
        baseline = third_line + round(1.9 * size * row)
        sheet.line_sample(outline, middle, baseline, size, right_width)
    sheet.scale(bar_colours(), legend, middle, top + round(size * 0.8), right_width, size)


def blend(grey: npt.NDArray[np.float32], level: npt.NDArray[np.integer]) -> Image:
    """Lay the colours of levels 0..255 over grey values 0..255, both ``[...]``; return RGB uint8
    ``[..., 3]``.
    """
    cover = (0.10 + 0.75 * np.arange(256, dtype=np.float32) / 255)[:, None]
    uncovered = grey[..., None] * (1 - cover)[level]
    colours = (colour_table().astype(np.float32) * cover)[level]
    return np.asarray(np.rint(uncovered + colours), np.uint8)
