"""Histograms of a score for normal and anomalous pixels."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from segunc.metrics.histograms import ScoreHistogram
from segunc.plots.style import COLOURS, add_legend, new_figure, styled

ROW_HEIGHT = 1.25
"""Height of the panel of one score in inches."""


@styled
def histogram_figure(histograms: Mapping[str, ScoreHistogram], classes: tuple[str, str] = ("ID", "OOD")) -> Figure:
    """Density of each score on a logarithmic axis, a panel each: known pixels filled, anomalous ones dashed.

    Args:
        histograms: score -> its histogram.
        classes: names of the two rows; of failures, ``("right", "wrong")``.
    """
    figure, panels = new_figure(len(histograms), 0.35 + ROW_HEIGHT * len(histograms), 1)
    handles: list[Artist] = []
    for axes, (name, histogram) in zip(panels, histograms.items(), strict=True):
        handles = _draw(axes, histogram)
        axes.set_xlabel(name, labelpad=1)
        axes.set_ylabel("density")
    add_legend(figure, handles, [f"{classes[0]} pixels", f"{classes[1]} pixels"])
    return figure


def _draw(axes: Axes, histogram: ScoreHistogram) -> list[Artist]:
    positive = histogram.density[histogram.density > 0]
    floor = float(positive.min()) / 2 if positive.size else 0.5
    top = float(positive.max()) * 3 if positive.size else 2.0
    rows = np.maximum(np.nan_to_num(histogram.density), floor / 10)  # an empty bin lies below the axis
    known = axes.stairs(
        rows[0], histogram.edges, baseline=floor / 10, fill=True, facecolor=COLOURS[5] + "80", edgecolor=COLOURS[0]
    )
    known.set_linewidth(0.9)
    other = axes.stairs(
        rows[1], histogram.edges, baseline=floor / 10, color=COLOURS[1], linewidth=1.2, linestyle=(0, (4, 1.2))
    )
    axes.set_yscale("log")
    axes.set_ylim(floor, top)
    axes.yaxis.set_major_locator(LogLocator(numticks=4))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlim(histogram.edges[0], histogram.edges[-1])
    return [known, other]
