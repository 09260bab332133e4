"""A study's figure: quality against price, a point a row, families of rows as lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, StrMethodFormatter

from segunc.figure_style import WIDTH, styled
from segunc.plots import COLOURS, LEGEND_ROW, PANEL

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")
# Of a panel's span: what is nearer to a cheaper point is no better for a reader of a figure.
LEAST_STEP = 0.08


@dataclass(frozen=True)
class Point:
    """One of what is compared: its numbers across and up with their (low, high), None for none.
    Points of one ``family`` are joined by a line and share a colour and a marker, places in
    ``COLOURS`` and ``MARKERS``.
    """

    name: str
    x: float
    x_interval: tuple[float, float] | None
    y: float
    y_interval: tuple[float, float] | None
    family: str
    colour: int = 0
    marker: int = 0


@dataclass(frozen=True)
class Panel:
    """Points of one vertical axis, its label, and whether higher is better there."""

    label: str
    points: Sequence[Point]
    higher: bool


def frontier(panel: Panel) -> list[Point]:
    """The points that no point further left is as good as, from the left, but for steps below
    ``LEAST_STEP`` from one family to another; of a family the last.
    """
    sign = 1.0 if panel.higher else -1.0
    least = LEAST_STEP * float(np.ptp([point.y for point in panel.points]))
    kept: dict[str, Point] = {}
    best = -np.inf
    for point in sorted(panel.points, key=lambda point: (point.x, -sign * point.y)):
        if sign * point.y > best + (0.0 if point.family in kept else least):
            kept[point.family], best = point, sign * point.y
    return list(kept.values())


@styled
def scatter_figure(panels: Sequence[Panel], x_label: str, logarithmic: bool) -> Figure:
    """Panels of points over one horizontal axis, two beside each other on the width of a page, with
    their intervals as thin bars; named are the points of the :func:`frontier`. A point may lack in
    some panels.
    """
    columns = min(2, len(panels))
    rows = math.ceil(len(panels) / columns)
    legend_columns = columns + 1
    names = _family_names(panels)
    height = PANEL * rows + LEGEND_ROW * math.ceil(len(names) / legend_columns)
    figure = Figure(figsize=(columns * WIDTH, height), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True)
    middle = _middle([point.x for panel in panels for point in panel.points], logarithmic)
    handles: dict[str, Any] = {}
    for axes, panel in zip(grid.flat, panels, strict=False):
        for name in names:
            points = [point for point in panel.points if point.family == name]
            if points:
                handles[name] = _draw_family(axes, sorted(points, key=lambda point: point.x))
        _name_points(axes, panel, middle)
        axes.set_ylabel(panel.label)
        if logarithmic:
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    for axes in grid.flat[len(panels) - columns : len(panels)]:
        axes.set_xlabel(x_label)
        axes.tick_params(labelbottom=True)  # there may be no panel below it
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    figure.legend(
        [handles[name] for name in names],
        names,
        loc="outside lower center",
        ncols=legend_columns,
        columnspacing=1.2,
        labelspacing=0.3,
    )
    return figure


def _family_names(panels: Sequence[Panel]) -> list[str]:
    """Return the names of the families in the order of their colours and markers."""
    families = {point.family: point for panel in panels for point in panel.points}
    return sorted(families, key=lambda name: (families[name].colour, families[name].marker))


def _middle(values: Sequence[float], logarithmic: bool) -> float:
    """Return the value in the middle of an axis that holds all values."""
    if logarithmic:
        return float(np.sqrt(min(values) * max(values)))
    return float(np.mean([min(values), max(values)]))


def _name_points(axes: Axes, panel: Panel, middle: float) -> None:
    """Write the names of the frontier's points away from the points that are no better, and from
    the nearer edge: a name beyond it would make all panels narrower.
    """
    for point in frontier(panel):
        to_the_right = point.x < middle
        axes.annotate(
            point.name,
            (point.x, point.y),
            (2 if to_the_right else -2, 2 if panel.higher else -2),
            fontsize=6.5,
            ha="left" if to_the_right else "right",
            va="bottom" if panel.higher else "top",
            textcoords="offset points",
        )


def _draw_family(axes: Axes, points: Sequence[Point]) -> Any:
    """Draw the points of one family, from the left, and their intervals; the handle of
    their line.
    """
    colour, marker = (
        COLOURS[points[0].colour % len(COLOURS)],
        MARKERS[points[0].marker % len(MARKERS)],
    )
    bar: dict[str, Any] = {"color": colour, "linewidth": 0.6, "alpha": 0.3, "zorder": 1}
    for point in points:
        if point.x_interval:
            axes.plot(point.x_interval, (point.y, point.y), **bar)
        if point.y_interval:
            axes.plot((point.x, point.x), point.y_interval, **bar)
    look: dict[str, Any] = {
        "linewidth": 0.8,
        "markersize": 4.5,
        "markeredgecolor": "white",
        "markeredgewidth": 0.4,
    }
    return axes.plot(
        [p.x for p in points], [p.y for p in points], color=colour, marker=marker, **look
    )[0]
