"""Bars, histograms, reliability diagrams and scatter plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from segunc.metrics.calibration import Reliability
from segunc.metrics.counting import ScoreHistogram
from segunc.plots.style import (
    COLOURS,
    DOTTED,
    FAINT,
    HATCHES,
    PANEL,
    add_legend,
    legend_rows,
    line_style,
    new_figure,
    styled,
    unit_axis,
)

BAR = 0.13
"""Height of a bar in inches."""
GAP = 0.07
"""Space between classes in inches."""


@styled
def class_bars_figure(
    models: Mapping[str, Mapping[str, float | None]],
    means: Mapping[str, float | None],
    quantity: str = "IoU",
    places: Mapping[str, int] | None = None,
) -> Figure:
    """A number of each class as bars, one for each model, with the mean over classes as a line.

    Args:
        models: model -> class -> number in 0..1; None where it does not exist, shown as a dash, not as 0.
        means: model -> its mean over classes in 0..1, shown beside the name.
        quantity: what the number is.
        places: model -> place among what is compared, for colour and hatching; None is the order of ``models``.
    """
    classes = list(dict.fromkeys(name for numbers in models.values() for name in numbers))
    labels = [name if means.get(name) is None else f"{name}  {means[name]:.3f}" for name in models]
    height = 0.5 + len(classes) * (GAP + BAR * len(models))
    figure, (axes,) = new_figure(1, height, legend_rows(labels, title=True))
    order = places or {name: index for index, name in enumerate(models)}
    step = 1.0 / (len(models) + GAP / BAR)
    handles = []
    for row, (model, numbers) in enumerate(models.items()):
        at = np.arange(len(classes)) + (row - (len(models) - 1) / 2) * step
        values = [numbers.get(name) for name in classes]
        colour = COLOURS[order[model] % len(COLOURS)]
        handles.append(
            axes.barh(
                at,
                [0.0 if value is None else value for value in values],
                step * 0.92,
                facecolor=colour,
                hatch=HATCHES[order[model] % len(HATCHES)],
                edgecolor="white",
                linewidth=0,
            )
        )
        for place, value in zip(at, values, strict=True):
            text = "–" if value is None else f"{value:.2f}"
            axes.annotate(
                text,
                (value or 0.0, place),
                xytext=(2, 0),
                textcoords="offset points",
                va="center",
                fontsize=6,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.3},  # the lines of the means pass below it
            )
        mean = means.get(model)
        if mean is not None:
            axes.axvline(mean, color=colour, linewidth=0.8, linestyle=(0, (3, 2)), zorder=1)
    axes.set_yticks(range(len(classes)), classes)
    axes.set_ylim(len(classes) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")
    # Room on the right for the number of a bar that reaches 1.
    axes.set_xlim(0.0, 1.12)
    axes.set_xticks([0.0, 0.25, 0.5, 0.75, 1.0])
    axes.spines["left"].set_color(FAINT)
    axes.set_xlabel(f"{quantity} of the class (dashed: mean)")
    add_legend(figure, handles, labels, f"mean {quantity}")
    return figure


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


MARKERS = ("o", "s", "^", "D", "v")


@styled
def reliability_figure(
    diagrams: Mapping[str, Reliability],
    errors: Mapping[str, float | None],
    protocol: str,
    places: Mapping[str, int] | None = None,
) -> Figure:
    """Accuracy over mean confidence of each bin, the diagonal of perfect calibration, and the pixels of each bin.

    A point above the diagonal is a bin that is right more often than it says. The counts lie below, on a logarithmic
    axis, because a point may stand for a handful of pixels.

    Args:
        diagrams: name -> its bins.
        errors: name -> ECE in 0..1, shown beside the name.
        protocol: how pixels are pooled, named on the axes.
        places: name -> place among what is compared, for colour and dashes; None is the order of ``diagrams``.
    """
    labels = [name if errors.get(name) is None else f"{name}  {errors[name]:.3f}" for name in diagrams]
    figure, (upper, lower) = new_figure(2, 3.3, legend_rows(labels, title=True), share_x=True, ratios=(2.6, 1.0))
    upper.plot([0, 1], [0, 1], color=FAINT, linewidth=0.8, linestyle=DOTTED, zorder=1)
    order = places or {name: index for index, name in enumerate(diagrams)}
    handles = []
    most = 1
    for name, diagram in diagrams.items():
        look = line_style(order[name])
        marker = MARKERS[order[name] % len(MARKERS)]
        handles += upper.plot(diagram.confidence, diagram.accuracy, marker=marker, markersize=3, **look)
        lower.stairs(diagram.pixels, diagram.edges, linewidth=1.1, baseline=None, **look)
        most = max(most, int(diagram.pixels.max()))
    for axis in ("x", "y"):
        unit_axis(upper, axis)
    lower.set_yscale("log")
    lower.set_ylim(0.8, most * 2.0)
    bins = len(next(iter(diagrams.values())).pixels) if diagrams else 0
    upper.set_ylabel(f"accuracy ({protocol})")
    lower.set_ylabel("pixels")
    lower.set_xlabel(f"confidence of the predicted class ({bins} bins)")
    add_legend(figure, handles, labels, "ECE")
    return figure


MARKERS_scatter = ("o", "s", "^", "D", "v", "P", "X", "p")
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
            marker = MARKERS_scatter[point.place % len(MARKERS_scatter)]
            handles[point.name] = axes.plot(
                point.x, point.y, marker, color=colour, markersize=4.5, markeredgecolor="white", markeredgewidth=0.4
            )[0]
        axes.set_ylabel(panel.label)
    if logarithmic:
        every[-1].set_xscale("log")
    every[-1].set_xlabel(x_label)
    add_legend(figure, [handles[name] for name in labels], labels)
    return figure
