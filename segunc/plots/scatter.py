"""Points of two numbers, one for each of what is compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from segunc.plots.style import COLOURS, PANEL, add_legend, legend_rows, new_figure, styled

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")
"""Shapes tell points apart in grey print too; with 7 colours they repeat together only after 56 points."""
Interval = tuple[float, float]


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
    x_interval: Interval | None
    y: float
    y_interval: Interval | None
    place: int


@dataclass(frozen=True)
class Panel:
    """Points over one vertical axis, with its label."""

    label: str
    points: Sequence[Point]


@styled
def scatter_figure(panels: Sequence[Panel], x_label: str, logarithmic: bool = False) -> Figure:
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
            if point.x_interval:
                axes.plot(point.x_interval, (point.y, point.y), color=colour, linewidth=0.6, alpha=0.45, zorder=2)
            if point.y_interval:
                axes.plot((point.x, point.x), point.y_interval, color=colour, linewidth=0.6, alpha=0.45, zorder=2)
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
