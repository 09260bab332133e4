"""The look of every figure (colours, dashes, sizes), charts of lines that are compared, and figures as files."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from segunc.core.files import write_atomically
from segunc.metrics.counting import Floats

WIDTH = 3.15  # of a figure in inches: 8 cm, one column of a two-column page
PANEL = 2.35  # height of a panel in inches, without the legend
LEGEND_ROW = 0.155  # height of a row of the legend in inches
INK, FAINT, GRID = "#1c1d21", "#6b6e78", "#dcdde2"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe & Ito's palette, told apart by colour-blind readers, without its yellow, which vanishes on white."""
DASHES: tuple[tuple[float, ...] | None, ...] = (None, (4, 1.4), (1, 1.2), (5, 1.2, 1, 1.2), (8, 2))
"""On-off lengths in line widths, None solid: lines are told apart in grey print too. 7 colours and 5 dashes repeat
together only after 35 lines."""
MOST_POINTS = 2000  # of a drawn line; more only make the files large
# Dotted lines of reference: chance, base rate, the best possible.
REFERENCE: dict[str, Any] = {"color": FAINT, "linewidth": 0.8, "linestyle": (0, (2, 2)), "zorder": 1}
FORMATS = ("pdf", "svg", "png")
LOOK: dict[str, Any] = {
    "font.size": 7.5,
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that a figure is the same on every machine
    **dict.fromkeys(("axes.labelsize", "axes.titlesize"), 7.5),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize", "legend.title_fontsize"), 7),
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    "axes.edgecolor": FAINT,
    **dict.fromkeys(("axes.linewidth", "xtick.major.width", "ytick.major.width"), 0.6),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    **dict.fromkeys(("axes.grid", "axes.axisbelow"), True),
    "grid.color": GRID,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.3,
    "pdf.fonttype": 42,  # text stays text that can be searched and edited
    "svg.fonttype": "none",
    "svg.hashsalt": "segunc",  # the same figure gives the same bytes
}
Parameters = ParamSpec("Parameters")
Made = TypeVar("Made")


def styled(make: Callable[Parameters, Made]) -> Callable[Parameters, Made]:
    """Run a function in the common look, whatever the settings of the process or of its user are."""

    @wraps(make)
    def in_look(*arguments: Parameters.args, **options: Parameters.kwargs) -> Made:
        with style.context(["default", LOOK]):
            return make(*arguments, **options)

    return in_look


def line_style(place: int) -> dict[str, Any]:
    """Colour and dashes of the line at a place in the list of what is compared, as matplotlib's keywords."""
    dashes = DASHES[place % len(DASHES)]
    return {"color": COLOURS[place % len(COLOURS)], "linestyle": "-" if dashes is None else (0, dashes)}


def new_figure(
    panels: int = 1, height: float = PANEL, share_x: bool = False, ratios: Sequence[float] | None = None
) -> tuple[Figure, list[Axes]]:
    """A figure of stacked panels, ``height`` inches all together, and its axes from the top; ``ratios`` are relative heights of the
    panels, None for equal ones."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.subplots(panels, 1, squeeze=False, sharex=share_x, height_ratios=ratios)[:, 0]
    return figure, list(axes)


def add_legend(figure: Figure, title: str = "") -> None:
    """Put a legend of what is labelled in the panels below them, where it covers no data, and make the figure as much higher."""
    labelled: dict[str, Any] = {}
    for axes in figure.axes:
        labelled = dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True)) | labelled
    columns = 2 if len(labelled) > 1 and max(map(len, labelled)) <= 22 else 1
    rows = -(-len(labelled) // columns) + bool(title)
    figure.set_size_inches(WIDTH, figure.get_figheight() + LEGEND_ROW * rows)
    look = {"handlelength": 2.6, "columnspacing": 1.2, "labelspacing": 0.3, "ncols": columns, "title": title or None}
    figure.legend([*labelled.values()], [*labelled], loc="outside lower center", **look)


def unit_axis(axes: Axes, which: str) -> None:
    """Fix an axis (``x``, ``y``, or both: ``xy``) to 0..1, whatever the data."""
    for axis in which:
        axes.set(**{f"{axis}lim": (-0.01, 1.01), f"{axis}ticks": [0.0, 0.25, 0.5, 0.75, 1.0]})


@styled
def save_figure(figure: Figure, path_without_suffix: Path) -> list[Path]:
    """Write a figure as ``.pdf`` and ``.svg``, which stay sharp at any size, and ``.png`` of 300 dots an inch; the folder must
    exist. The same figure gives the same bytes."""
    written = []
    metadata: dict[str, dict[str, Any]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}
    for suffix in FORMATS:
        stream = io.BytesIO()
        figure.savefig(stream, format=suffix, dpi=300, metadata=metadata[suffix])
        path = path_without_suffix.with_name(f"{path_without_suffix.name}.{suffix}")
        write_atomically(path, stream.getvalue())
        written.append(path)
    return written


@dataclass(frozen=True)
class Line:
    """One curve ``x[P], y[P]`` of a figure.

    ``place`` among what is compared decides colour and dashes; None is its place in the list. Give it where figures of one report do
    not all show the same names.
    """

    name: str  # what it belongs to, a score or a model
    x: Floats
    y: Floats
    value: float | None = None  # the number of the curve, shown beside the name; None shows none
    place: int | None = None

    @property
    def label(self) -> str:
        """Name and number as the legend shows them."""
        return self.name if self.value is None else f"{self.name}  {self.value:.3f}"


def thin(x: Floats, y: Floats, most: int = MOST_POINTS) -> tuple[Floats, Floats]:
    """At most ``most`` (2 or more) of the points, evenly along the curve, so that steep and flat parts stay; ends stay."""
    if len(x) <= most:
        return x, y
    # Each axis in units of its own span, so that neither decides alone.
    steps = [np.abs(np.diff(axis)) / max(float(np.ptp(axis)), np.finfo(float).tiny) for axis in (x, y)]
    length = np.append(0.0, np.cumsum(steps[0] + steps[1]))
    kept = np.unique(np.searchsorted(length, np.linspace(0.0, length[-1], most)))
    return x[kept], y[kept]


def draw_lines(axes: Axes, lines: Sequence[Line], **look: Any) -> None:
    """Draw lines with their labels in the styles of their places, with further keywords of matplotlib."""
    for index, line in enumerate(lines):
        place = index if line.place is None else line.place
        axes.plot(line.x, line.y, label=line.label, **look, **line_style(place))
