"""Lines and points that are compared, in panels over one horizontal axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from segunc.metrics.counting import Floats
from segunc.plots.style import COLOURS, DOTTED, FAINT, PANEL, add_legend, legend_rows, line_style, new_figure, styled

MOST_POINTS = 2000
"""Points of a drawn line; more only make the files large."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")
"""Shapes tell points apart in grey print too; with 7 colours they repeat together only after 56 points."""


@dataclass(frozen=True)
class Line:
    """One curve of a figure.

    Attributes:
        name: what it belongs to, a score or a model.
        x: ``[P]``.
        y: ``[P]``.
        value: the number of the curve, shown beside the name; None shows none.
        place: its place among what is compared, which decides colour and dashes; None is its place in the list. Give it
            where figures of one report do not all show the same names.
    """

    name: str
    x: Floats
    y: Floats
    value: float | None = None
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


def draw_lines(axes: Axes, lines: Sequence[Line], **look: Any) -> list[Any]:
    """Draw lines in the styles of their places, with further keywords of matplotlib; their handles."""
    places = [index if line.place is None else line.place for index, line in enumerate(lines)]
    return [
        axes.plot(line.x, line.y, **look, **line_style(place))[0] for line, place in zip(lines, places, strict=True)
    ]


@dataclass(frozen=True)
class SeriesPanel:
    """Lines over one vertical axis, with its label."""

    label: str
    lines: Sequence[Line]


@styled
def series_figure(panels: Sequence[SeriesPanel], x_label: str, marks: Sequence[float] = ()) -> Figure:
    """Panels of lines over one horizontal axis.

    Args:
        panels: from the top; all with the same names in the same order.
        x_label: of the common horizontal axis.
        marks: places on it that are marked by a dotted line.
    """
    names = [line.name for line in panels[0].lines]
    figure, every = new_figure(len(panels), 0.75 * PANEL * len(panels), legend_rows(names), share_x=True)
    handles: list[Any] = []
    for axes, panel in zip(every, panels, strict=True):
        handles = draw_lines(axes, panel.lines, marker="o", markersize=2.2)
        for mark in marks:
            axes.axvline(mark, color=FAINT, linewidth=0.8, linestyle=DOTTED, zorder=1)
        axes.set_ylabel(panel.label)
    every[-1].set_xlabel(x_label)
    add_legend(figure, handles, names)
    return figure


@dataclass(frozen=True)
class Point:
    """One of what is compared.

    Attributes:
        name: for the legend.
        x: across.
        x_interval: its (low, high), None for none.
        y: up.
        y_interval: likewise.
        place: among what is compared, decides colour and marker.
    """

    name: str
    x: float
    x_interval: tuple[float, float] | None
    y: float
    y_interval: tuple[float, float] | None
    place: int


@dataclass(frozen=True)
class PointPanel:
    """Points over one vertical axis, with its label."""

    label: str
    points: Sequence[Point]


@styled
def scatter_figure(panels: Sequence[PointPanel], x_label: str, logarithmic: bool) -> Figure:
    """Panels of points over one horizontal axis, with their intervals as thin bars.

    Args:
        panels: from the top; a point may lack in some of them.
        x_label: of the common horizontal axis.
        logarithmic: whether that axis is.
    """
    names = {point.name: point.place for panel in panels for point in panel.points}
    labels = sorted(names, key=lambda name: names[name])
    figure, every = new_figure(len(panels), PANEL * len(panels), legend_rows(labels), share_x=True)
    handles = {}
    for axes, panel in zip(every, panels, strict=True):
        for point in panel.points:
            colour = COLOURS[point.place % len(COLOURS)]
            bar: dict[str, Any] = {"color": colour, "linewidth": 0.6, "alpha": 0.45, "zorder": 2}
            if point.x_interval:
                axes.plot(point.x_interval, (point.y, point.y), **bar)
            if point.y_interval:
                axes.plot((point.x, point.x), point.y_interval, **bar)
            marker = MARKERS[point.place % len(MARKERS)]
            handles[point.name] = axes.plot(
                point.x, point.y, marker, color=colour, markersize=4.5, markeredgecolor="white", markeredgewidth=0.4
            )[0]
        axes.set_ylabel(panel.label)
    if logarithmic:
        every[-1].set_xscale("log")
    every[-1].set_xlabel(x_label)
    add_legend(figure, [handles[name] for name in labels], labels)
    return figure
