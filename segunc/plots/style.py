"""The look of every figure: colours, dashes, sizes, and the files that a figure is written to."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from segunc.core.files import write_atomically

WIDTH = 3.15
"""Width of a figure in inches: 8 cm, one column of a two-column page."""
PANEL = 2.35
"""Height of a panel in inches, without the legend."""
LEGEND_ROW = 0.155
"""Height of a row of the legend in inches."""
INK, FAINT, GRID = "#1c1d21", "#6b6e78", "#dcdde2"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe & Ito's palette, told apart by colour-blind readers, without its yellow, which vanishes on white."""
DASHES: tuple[tuple[float, ...] | None, ...] = (None, (4, 1.4), (1, 1.2), (5, 1.2, 1, 1.2), (8, 2))
"""On-off lengths in line widths, None solid: lines are told apart in grey print too. 7 colours and 5 dashes repeat
together only after 35 lines."""
DOTTED: Any = (0, (2, 2))
"""Dashes of lines of reference: chance, base rate, the best possible."""
FORMATS = ("pdf", "svg", "png")

Parameters = ParamSpec("Parameters")
Made = TypeVar("Made")

LOOK: dict[str, Any] = {
    "font.size": 7.5,
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that a figure is the same on every machine
    "axes.labelsize": 7.5,
    "axes.titlesize": 7.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.title_fontsize": 7,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.3,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # text stays text that can be searched and edited
    "svg.fonttype": "none",
    "svg.hashsalt": "segunc",  # the same figure gives the same bytes
}


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
    panels: int = 1,
    height: float = PANEL,
    legend_rows: int = 0,
    share_x: bool = False,
    ratios: Sequence[float] | None = None,
) -> tuple[Figure, list[Axes]]:
    """A figure of stacked panels, and its axes from the top.

    Args:
        panels: number of panels.
        height: height of all panels in inches.
        legend_rows: rows for which room is added below.
        share_x: whether the panels have one x axis.
        ratios: relative heights of the panels; None is equal ones.
    """
    figure = Figure(figsize=(WIDTH, height + LEGEND_ROW * legend_rows), layout="constrained")
    axes = figure.subplots(panels, 1, squeeze=False, sharex=share_x, height_ratios=ratios)[:, 0]
    return figure, list(axes)


def legend_rows(labels: Sequence[str], title: bool = False) -> int:
    """Rows of the legend below that holds these labels."""
    columns = _columns(labels)
    return -(-len(labels) // columns) + int(title)


def add_legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str], title: str = "") -> None:
    """Put the legend below the panels, where it covers no data."""
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=_columns(labels),
        title=title or None,
        handlelength=2.6,
        columnspacing=1.2,
        labelspacing=0.3,
    )


def unit_axis(axes: Axes, which: str) -> None:
    """Fix an axis (``x``, ``y``, or both: ``xy``) to 0..1, whatever the data."""
    for axis in which:
        axes.set(**{f"{axis}lim": (-0.01, 1.01), f"{axis}ticks": [0.0, 0.25, 0.5, 0.75, 1.0]})


@styled
def save_figure(figure: Figure, path_without_suffix: Path) -> list[Path]:
    """Write a figure as PDF and SVG, which stay sharp at any size, and PNG; the same figure gives the same bytes.

    Args:
        figure: the figure.
        path_without_suffix: where to; the folder must exist. ``.pdf``, ``.svg`` and ``.png`` are appended.

    Returns:
        the three files; the PNG has 300 dots an inch.
    """
    written = []
    metadata: dict[str, dict[str, Any]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}
    for suffix in FORMATS:
        stream = io.BytesIO()
        figure.savefig(stream, format=suffix, dpi=300, metadata=metadata[suffix])
        path = path_without_suffix.with_name(f"{path_without_suffix.name}.{suffix}")
        write_atomically(path, stream.getvalue())
        written.append(path)
    return written


def _columns(labels: Sequence[str]) -> int:
    return 2 if len(labels) > 1 and max(map(len, labels)) <= 22 else 1
