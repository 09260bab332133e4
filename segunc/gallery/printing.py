"""A score map over its image as a page for print: the picture in pixels, its legend as text."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from matplotlib.textpath import TextPath

from segunc.data.images import Image
from segunc.decisions.preparation import Prediction
from segunc.figure_style import FAINT, INK, WIDTH, styled
from segunc.gallery.drawing import (
    FLAGGED,
    Colour,
    Legend,
    Mask,
    Outline,
    Outlines,
    bar_colours,
    draw_scores,
)
from segunc.scores import title_of

PageFormat = Literal["pdf", "svg"]
TEXT = 7.0  # points, at the natural size of the page
LINE = 1.6 * TEXT / 72  # inches from one line of text to the next
MARGIN = 0.5 * LINE
BAR = 0.09  # height of the colour bar in inches
SAMPLE_WIDTH = 0.28  # inches of a piece of an outline and the space behind it
FONT = FontProperties(family="DejaVu Sans")  # that of the look
# The same page gives the same bytes.
METADATA: dict[str, dict[str, Any]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}


@styled
def draw_page(
    image: Image,
    values: npt.NDArray[np.floating],
    legend: Legend,
    format: PageFormat,
    *,
    anomaly: Mask | None = None,
    prediction: Prediction | None = None,
    kept: Mask | None = None,
    caption: str = "",
) -> bytes:
    """Draw a score map over its image as a page that is one column (8 cm) wide.

    The picture has the pixels of the image. The legend below it is text of 7 points, which stays
    text in the file.

    Args:
        image, values, legend, anomaly, prediction, kept, caption: those of
            :func:`segunc.gallery.drawing.draw_overlay`.
        format: of the file.

    Returns:
        The content of the file; the same arguments give the same bytes.

    Raises:
        InputError: a label of another size than the image.
    """
    height, width = image.shape[:2]
    picture, outlines = draw_scores(
        image,
        values,
        legend,
        (width, height),
        anomaly=anomaly,
        prediction=prediction,
        kept=kept,
    )
    legend = replace(legend, gaps=bool(np.isnan(values).any()))
    rows = _rows(legend, outlines, caption)
    picture_height = WIDTH * height / width
    strip = MARGIN * 2 + LINE * rows
    figure = Figure(figsize=(WIDTH, picture_height + strip))
    share = strip / (picture_height + strip)
    above = figure.add_axes((0, share, 1, 1 - share))
    above.imshow(picture, aspect="auto", interpolation="none")
    above.set_axis_off()
    below = figure.add_axes((0, 0, 1, share))
    below.set_xlim(0, WIDTH)
    below.set_ylim(strip, 0)  # inches from the picture down
    below.set_axis_off()
    _write_legend(below, legend, outlines, caption)
    stream = io.BytesIO()
    figure.savefig(stream, format=format, metadata=METADATA[format])
    return stream.getvalue()


def _upper_lines(legend: Legend, caption: str) -> list[str]:
    """Return the lines above the colour bar: the score, then the model and the frame."""
    about = ". ".join(text for text in (legend.note, caption) if text)
    return [*_wrapped(title_of(legend.score)), *_wrapped(about)]


def _rows(legend: Legend, outlines: Outlines, caption: str) -> int:
    """Return the number of lines of the legend; the bar and its labels take two."""
    rows = len(_upper_lines(legend, caption)) + 2
    for outline in outlines:
        rows += len(_meaning_lines(outline.words))
    return rows + len(_wrapped(legend.words))


def _meaning_lines(meaning: str) -> list[str]:
    """Return the lines of what an outline means, which stand beside a piece of it."""
    return _wrapped(meaning, WIDTH - 2 * MARGIN - SAMPLE_WIDTH)


def _width(text: str) -> float:
    """Return the width of text in inches."""
    return float(TextPath((0, 0), text, size=TEXT, prop=FONT).get_extents().x1) / 72


def _wrapped(text: str, width: float = WIDTH - 2 * MARGIN) -> list[str]:
    """Return text in lines of at most ``width`` inches, broken between words where that is
    possible.
    """
    lines: list[str] = []
    line = ""
    for word in text.split():
        longer = f"{line} {word}".strip()
        if _width(longer) <= width:
            line = longer
            continue
        if line:
            lines.append(line)
        line = ""
        for letter in word:
            if _width(line + letter) > width:
                lines.append(line)
                line = ""
            line += letter
    return [*lines, line] if line else lines


def _write_legend(axes: Axes, legend: Legend, outlines: Outlines, caption: str) -> None:
    """Write the legend: the score, the model and the frame, the colours, the outlines, and what the
    scale means.
    """
    row = 0
    for text in _upper_lines(legend, caption):
        _text(axes, text, MARGIN, row, INK if row == 0 else FAINT)
        row += 1
    _draw_bar(axes, legend, row)
    row += 2
    for outline in outlines:
        _line_sample(axes, outline, row)
        for line in _meaning_lines(outline.words):
            _text(axes, line, MARGIN + SAMPLE_WIDTH, row, INK)
            row += 1
    for line in _wrapped(legend.words):
        _text(axes, line, MARGIN, row, FAINT)
        row += 1


def _baseline(row: int) -> float:
    """Return where a line of text stands, in inches below the picture."""
    return MARGIN + LINE * (row + 0.75)


def _text(axes: Axes, text: str, left: float, row: int, colour: str, **words: Any) -> None:
    axes.text(left, _baseline(row), text, color=colour, fontsize=TEXT, va="baseline", **words)


def _draw_bar(axes: Axes, legend: Legend, row: int) -> None:
    """Draw the colour bar with its labels below, a mark at the threshold, and hatches where values
    are extrapolated.
    """
    shown = legend.shown
    left = MARGIN
    right = WIDTH - MARGIN
    top = _baseline(row) - 0.8 * BAR
    bottom = top + BAR
    extent = (left, right, bottom, top)
    axes.imshow(bar_colours()[None], aspect="auto", extent=extent, interpolation="none", zorder=1)
    if shown.measured_to is not None:
        middle = (left + right) / 2
        extrapolated = Rectangle(
            (middle, top), right - middle, BAR, fill=False, hatch="/////", linewidth=0, zorder=2
        )
        axes.add_patch(extrapolated)
    edge = Rectangle((left, top), right - left, BAR, fill=False, color=FAINT, linewidth=0.5)
    axes.add_patch(edge)
    last = len(shown.ticks) - 1
    for index, tick in enumerate(shown.ticks):
        alignment = "center"
        if index == 0:
            alignment = "left"
        elif index == last:
            alignment = "right"
        place = left + index / last * (right - left)
        _text(axes, tick, place, row + 1, FAINT, ha=alignment)
    mark_at = legend.threshold_on_scale
    if mark_at is not None:
        place = left + float(shown.share(np.float32(mark_at))) * (right - left)
        mark = Rectangle((place - 0.012, top - 0.02), 0.024, BAR + 0.04, color=_hex(FLAGGED))
        axes.add_patch(mark)


def _line_sample(axes: Axes, outline: Outline, row: int) -> None:
    """Draw a piece of an outline at the beginning of a line of text; without strokes a piece of
    what is striped.
    """
    middle = _baseline(row) - 0.3 * TEXT / 72
    if not outline.strokes:
        axes.add_patch(
            Rectangle((MARGIN, middle - 0.04), 0.2, 0.08, fill=False, hatch="/////", lw=0)
        )
    for number, (colour, width) in enumerate(outline.strokes, start=1):
        height = width * 0.011
        pieces = [(0.0, 0.2)]  # from the left, in inches, and their length
        if outline.dashed and number == len(outline.strokes):
            pieces = [(0.0, 0.05), (0.1, 0.05)]
        for start, length in pieces:
            corner = (MARGIN + start, middle - height / 2)
            axes.add_patch(Rectangle(corner, length, height, color=_hex(colour), lw=0))


def _hex(colour: Colour) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)
