"""The figure of the maps of images: each image, its prediction with a legend, and scores with their
colour bars, without any state of pyplot.

All sizes are inches: the panels get the shape of the images, and what stands below them gets the
room that its text needs.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from segunc.colours import (
    DisplayRange,
    class_table,
    colour_of_class,
    colour_table,
    display_range,
    range_of_maps,
    up_to_measured,
)
from segunc.data.channels import COLOUR, shown_colours
from segunc.posteriors.map_origin import MapsOfImage
from segunc.scores import OF_DRAWS, SCORES, first_shown, scale_words, title_of

LOOK: dict[str, Any] = {
    # Comes with matplotlib, so that a figure is the same on every machine.
    "font.family": "DejaVu Sans",
    "font.size": 7.5,
    "text.color": "#1c1d21",
    "figure.dpi": 100,
    "hatch.linewidth": 0.6,
}
styled = style.context(["default", LOOK])
"""Decorates a function to run in this look, whatever the settings of the process or of its user
are.
"""
MOST_SHOWN = 6  # scores that a figure shows where none are named
MOST_CLASSES = 24  # that a legend names
PANEL_AREA = 7.6  # of a panel in square inches
SMALLEST_BAR = 1.2  # width of a colour bar in inches
LARGEST_SIDE = 5.2  # of a panel in inches
LEAST_CELL = 2.7  # width of a panel with what stands below it in inches
LEAST_CELL_OF_ROW = 2.0  # likewise where several images stand one below the other
WIDEST = 12.8  # width of a figure in inches
GAP = 0.2  # between panels in inches
TITLE = 0.3  # height of a title in inches
BAR = 0.12  # height of a colour bar in inches
LINE = 0.16  # height of a line of text in inches
LETTER = 0.056  # mean width of a letter in inches
LETTER_OF_TITLE = 0.071
SWATCH = 0.2  # width of a swatch with its margin in inches
FAINT = "#5c5f69"
SIDES = ("left", "center", "right")  # of the text of the three ticks


class MapsFigure(Figure):
    """A figure that a notebook shows without pyplot, in its own colours."""

    def savefig(self, fname: Any, **settings: Any) -> None:
        # By default matplotlib paints the ground as ``savefig.facecolor`` of the user says. On that
        # of a dark style the dark text would be lost.
        super().savefig(fname, **{"facecolor": "auto", "edgecolor": "auto", **settings})

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=100)
        return buffer.getvalue()


@dataclass(frozen=True)
class Bar:
    """What a figure shows of a score.

    Attributes:
        score: its name.
        shown: values at the two ends of its colours.
        words: what the scale means.
    """

    score: str
    shown: DisplayRange
    words: str

    @property
    def title(self) -> str:
        """The title of its panel, with the name that a program uses."""
        title = title_of(self.score)
        return title if title.lower() == self.score else f"{title}  [{self.score}]"

    def lines(self, width: float) -> list[str]:
        """Return the words in lines of a width in inches."""
        return wrap(self.words, max(16, int(width / LETTER)), break_on_hyphens=False)


@dataclass(frozen=True)
class Swatch:
    """A class of a prediction: its colour in 0..1, its name and its share of the pixels."""

    colour: tuple[float, float, float]
    words: str


@dataclass(frozen=True)
class Panels:
    """The panels of one image, and where they stand in inches.

    Attributes:
        image: whether the first panel shows the image.
        legend: of the prediction, in the next panel.
        bars: of the scores, in the others.
        panel: (width, height) of a panel.
        cell: width of a panel with what stands below it.
        columns: panels beside each other.
    """

    image: bool
    legend: Sequence[Swatch]
    bars: Sequence[Bar]
    panel: tuple[float, float]
    cell: float
    columns: int

    @classmethod
    def of(cls, maps: MapsOfImage, bars: Sequence[Bar], *, one_row: bool) -> Panels:
        """Return the panels of an image, in the shape of the image.

        Args:
            maps: of the image.
            bars: of the scores.
            one_row: whether panels shrink until they stand in a row, which helps to compare images.
        """
        height, width = maps.prediction.shape
        panel = panel_size(width / height)
        cell = max(LEAST_CELL, panel[0])
        count = (maps.image is not None) + 1 + len(bars)
        share = (WIDEST - GAP) / count - GAP
        if one_row and LEAST_CELL_OF_ROW <= share < cell:
            cell = share
            shrunk = min(1.0, cell / panel[0])
            panel = (panel[0] * shrunk, panel[1] * shrunk)
        most = max(1, min(count, int((WIDEST - GAP) / (cell + GAP))))
        rows = math.ceil(count / most)
        columns = math.ceil(count / rows)
        return cls(maps.image is not None, legend_of(maps), bars, panel, cell, columns)

    @property
    def legend_columns(self) -> int:
        """Columns of the legend."""
        longest = max(len(swatch.words) for swatch in self.legend)
        return max(1, int(self.cell / (longest * LETTER + 1.6 * SWATCH)))

    @property
    def below(self) -> list[float]:
        """The height of what stands below each row of panels."""
        heights = [0.0] * self.image
        heights.append(LINE * math.ceil(len(self.legend) / self.legend_columns))
        for bar in self.bars:
            heights.append(BAR + LINE * (1 + len(bar.lines(self.cell))))
        starts = range(0, len(heights), self.columns)
        return [max(heights[start : start + self.columns]) + 1.5 * GAP for start in starts]

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of all panels."""
        below = self.below
        width = self.columns * (self.cell + GAP) + GAP
        return width, len(below) * (TITLE + self.panel[1]) + sum(below)

    def corner(self, number: int) -> tuple[float, float]:
        """Return the left edge of the cell of a panel, and how far below the top its upper edge
        is.
        """
        row, column = divmod(number, self.columns)
        top = row * (TITLE + self.panel[1]) + sum(self.below[:row]) + TITLE
        return GAP + column * (self.cell + GAP), top


def panel_size(ratio: float) -> tuple[float, float]:
    """Return the (width, height) in inches of the panel of an image of a ratio width / height."""
    width = min(LARGEST_SIDE, math.sqrt(PANEL_AREA * ratio))
    height = width / ratio
    if height > LARGEST_SIDE:
        height = LARGEST_SIDE
        width = height * ratio
    return width, height


@dataclass
class Page:
    """A figure and what draws on it, in inches from its upper left corner."""

    figure: MapsFigure
    width: float
    height: float

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """Return axes without ticks, whose upper left corner is at a place."""
        bottom = self.height - top - height
        box = (
            left / self.width,
            bottom / self.height,
            width / self.width,
            height / self.height,
        )
        axes = self.figure.add_axes(box)
        axes.set_xticks([])
        axes.set_yticks([])
        for spine in axes.spines.values():
            spine.set_color(FAINT)
            spine.set_linewidth(0.5)
        return axes

    def write(self, words: str, left: float, top: float, **look: Any) -> None:
        """Write a line of text whose upper edge is at a place."""
        x = left / self.width
        y = 1 - top / self.height
        self.figure.text(x, y, words, va="top", **look)


@styled
def draw_maps(
    maps: Sequence[MapsOfImage],
    scores: Sequence[str] | None,
    ranges: Mapping[str, tuple[float, float]],
) -> MapsFigure:
    """Return the figure of some images, a block of panels for each.

    Args:
        maps: of the images, which have the same scores.
        scores: of the maps; None chooses.
        ranges: score -> values at the two ends of its colours.

    Raises:
        InputError: a range that does not rise.
    """
    names = usual_scores(maps[0]) if scores is None else list(dict.fromkeys(scores))
    bars = [bar_of(name, maps, ranges.get(name)) for name in names]
    blocks = [Panels.of(image, bars, one_row=len(maps) > 1) for image in maps]
    width = max(block.size[0] for block in blocks)
    height = sum(block.size[1] for block in blocks)
    page = Page(MapsFigure(figsize=(width, height)), width, height)
    FigureCanvasAgg(page.figure)  # its pixels can be read, whatever the user's backend is
    top = 0.0
    for number, (image, block) in enumerate(zip(maps, blocks, strict=True)):
        title = "Image" if len(maps) == 1 else f"Image {number}"
        draw_block(page, block, image, top, title)
        top += block.size[1]
    return page.figure


def usual_scores(maps: MapsOfImage) -> list[str]:
    """Return the scores that a figure shows where none are named: all of up to six, else those of a
    review page. Of a single draw those are left out that tell how draws differ.
    """
    names = list(maps.scores)
    if maps.origin is not None and maps.origin.run.get("draws") == 1:
        names = [name for name in names if name not in OF_DRAWS] or names
    if len(names) <= MOST_SHOWN:
        return names
    usual = dict.fromkeys((first_shown(names), "entropy", "epistemic"))
    return [name for name in usual if name in names]


def bar_of(score: str, maps: Sequence[MapsOfImage], asked: tuple[float, float] | None) -> Bar:
    """Return the colour bar of a score.

    Args:
        score: its name.
        maps: of all images of the figure.
        asked: values at the two ends, or None.
    """
    entry = SCORES.get(score)
    unit = entry.unit if entry is not None else ""
    words = scale_words(score, unit)
    if asked is not None:
        return Bar(score, display_range(score, asked), words)
    shown = range_of_maps(score, [image.scores[score] for image in maps])
    if entry is None or entry.colours is None:
        whose = "this image" if len(maps) == 1 else "these images"
        parts = [words, f"range of {whose}"]
        return Bar(score, shown, "; ".join(part for part in parts if part))
    origin = maps[0].origin
    measured = origin.measured_to.get(score) if origin is not None else None
    shown = up_to_measured(shown, measured)
    if shown.measured_to is not None:
        words = f"{words}; hatched: beyond what was measured"
    return Bar(score, shown, words)


def legend_of(maps: MapsOfImage) -> list[Swatch]:
    """Return the classes of a prediction, the largest first, with their shares of the pixels."""
    counts = np.bincount(maps.prediction.ravel(), minlength=1)
    order = [int(number) for number in np.argsort(-counts, kind="stable") if counts[number]]
    legend = []
    for number in order[:MOST_CLASSES]:
        name = maps.classes[number] if number < len(maps.classes) else f"class {number}"
        red, green, blue = colour_of_class(number, maps.palette)
        share = percent(counts[number] / maps.prediction.size)
        legend.append(Swatch((red / 255, green / 255, blue / 255), f"{name} {share}"))
    others = order[MOST_CLASSES:]
    if others:
        share = percent(counts[others].sum() / maps.prediction.size)
        legend.append(Swatch((1, 1, 1), f"{len(others)} other classes {share}"))
    return legend


def percent(share: float) -> str:
    """Return a share above 0 in per cent."""
    return f"{share:.0%}" if share >= 0.01 else "<1%"


def draw_block(page: Page, block: Panels, maps: MapsOfImage, top: float, name: str) -> None:
    """Draw the panels of one image.

    Args:
        page: the figure.
        block: where the panels stand.
        maps: of the image.
        top: upper edge of the block.
        name: of the image.
    """
    number = 0
    if block.image and maps.image is not None:
        height, width = maps.prediction.shape
        title = f"{name}  [{height} x {width}]"
        shown = maps.image
        if shown.shape[2] != COLOUR:
            shown = shown_colours(shown)
            title += ", channels 1 to 3" if maps.image.shape[2] > COLOUR else ", channel 1"
        draw_panel(page, block, number, top, title, shown, interpolation="auto")
        number += 1
    painted = class_table(np.unique(maps.prediction), maps.palette)[maps.prediction]
    draw_panel(page, block, number, top, "Prediction", painted, interpolation="nearest")
    draw_legend(page, block, number, top)
    colour_map = ListedColormap(colour_table() / 255)
    for bar in block.bars:
        number += 1
        shares = np.clip(bar.shown.share(maps.scores[bar.score]), 0, 1)
        draw_panel(page, block, number, top, bar.title, shares, cmap=colour_map, vmin=0, vmax=1)
        draw_bar(page, block, number, top, bar, colour_map)


def draw_panel(
    page: Page, block: Panels, number: int, top: float, title: str, pixels: Any, **look: Any
) -> None:
    """Draw a picture with its title."""
    left, below = block.corner(number)
    width, height = block.panel
    axes = page.axes(left, top + below, width, height)
    axes.imshow(pixels, aspect="auto", **look)
    size = 9 * min(1.0, block.cell / (len(title) * LETTER_OF_TITLE))
    page.write(title, left, top + below - 0.21, fontsize=size)


def draw_legend(page: Page, block: Panels, number: int, top: float) -> None:
    """Draw the legend of a prediction below its panel, row by row."""
    left, below = block.corner(number)
    first_line = top + below + block.panel[1] + 0.08
    columns = block.legend_columns
    step = block.cell / columns
    for place, swatch in enumerate(block.legend):
        row, column = divmod(place, columns)
        x = left + column * step
        y = first_line + row * LINE
        height = 0.1 / page.height
        corner = (x / page.width, 1 - (y + 0.01) / page.height - height)
        patch = Rectangle(
            corner,
            0.14 / page.width,
            height,
            facecolor=swatch.colour,
            edgecolor=FAINT,
            linewidth=0.5,
            transform=page.figure.transFigure,
        )
        page.figure.add_artist(patch)
        page.write(swatch.words, x + SWATCH, y)


def draw_bar(
    page: Page, block: Panels, number: int, top: float, bar: Bar, colour_map: ListedColormap
) -> None:
    """Draw the colour bar of a score below its panel, with its ends and what it means."""
    left, below = block.corner(number)
    width = max(block.panel[0], SMALLEST_BAR)
    upper = top + below + block.panel[1] + 0.08
    axes = page.axes(left, upper, width, BAR)
    axes.imshow(np.linspace(0, 1, 256)[None], aspect="auto", cmap=colour_map, vmin=0, vmax=1)
    if bar.shown.measured_to is not None:
        beyond = Rectangle((0.5, 0), 0.5, 1, transform=axes.transAxes, fill=False, hatch="/////")
        beyond.set_linewidth(0)
        axes.add_patch(beyond)
    below_bar = upper + BAR + 0.04
    for tick, share, side in zip(bar.shown.ticks, (0, 0.5, 1), SIDES, strict=True):
        words = tick.replace("<=", "≤").replace(">=", "≥")
        page.write(words, left + share * width, below_bar, ha=side)
    for row, line in enumerate(bar.lines(block.cell)):
        y = below_bar + LINE * (1 + row)
        page.write(line, left, y, color=FAINT)
