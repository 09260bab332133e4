"""Numbers along one quantity (strength of a corruption, place on a line), a line for each of what is compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from segunc.plots.lines import Line, places
from segunc.plots.style import DOTTED, FAINT, PANEL, add_legend, legend_rows, line_style, new_figure, styled


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
        handles = [
            axes.plot(line.x, line.y, marker="o", markersize=2.2, **line_style(place))[0]
            for line, place in zip(panel.lines, places(panel.lines), strict=True)
        ]
        for mark in marks:
            axes.axvline(mark, color=FAINT, linewidth=0.8, linestyle=DOTTED, zorder=1)
        axes.set_ylabel(panel.label)
    every[-1].set_xlabel(x_label)
    add_legend(figure, handles, names)
    return figure
