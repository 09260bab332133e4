"""Detection and risk-coverage curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from segunc.metrics.selective import PatchNumbers, Sparsification
from segunc.plots.lines import Line, places
from segunc.plots.style import DOTTED, FAINT, add_legend, legend_rows, line_style, new_figure, styled, unit_axis


@styled
def precision_recall_figure(lines: Sequence[Line], base_rate: float, protocol: str, what: str = "anomaly") -> Figure:
    """Precision over recall in steps, so that the area is the average precision, and the base rate.

    Args:
        lines: curves of :func:`segunc.plots.lines.precision_recall_line`.
        base_rate: share of positive pixels in 0..1, the precision of a score that says nothing.
        protocol: how pixels are pooled, named on the axes.
        what: what is detected.
    """
    labels = [*(line.label for line in lines), f"base rate {base_rate:.2g}"]
    figure, axes = _square(labels)
    handles = [
        axes.plot(line.x, line.y, drawstyle="steps-pre", **line_style(place))[0]
        for line, place in zip(lines, places(lines), strict=True)
    ]
    handles.append(axes.axhline(base_rate, color=FAINT, linewidth=0.8, linestyle=DOTTED, zorder=1))
    axes.set_xlabel(f"recall ({what}, {protocol})")
    axes.set_ylabel(f"precision ({protocol})")
    add_legend(figure, handles, labels, "AUPR")
    return figure


@styled
def roc_figure(lines: Sequence[Line], protocol: str, what: str = "anomaly") -> Figure:
    """True over false positive rate, with the diagonal of a score that says nothing and the recall of FPR95.

    Args:
        lines: curves of :func:`segunc.plots.lines.roc_line`.
        protocol: how pixels are pooled, named on the axes.
        what: what is detected.
    """
    labels = [*(line.label for line in lines), "recall of FPR95"]
    figure, axes = _square(labels)
    axes.plot([0, 1], [0, 1], color=FAINT, linewidth=0.8, linestyle=DOTTED, zorder=1)
    handles = [
        axes.plot(line.x, line.y, **line_style(place))[0] for line, place in zip(lines, places(lines), strict=True)
    ]
    handles.append(axes.axhline(0.95, color=FAINT, linewidth=0.6, zorder=1))
    axes.set_xlabel(f"false positive rate ({protocol})")
    axes.set_ylabel(f"true positive rate ({what}, {protocol})")
    add_legend(figure, handles, labels, "AUROC")
    return figure


def _square(labels: Sequence[str]) -> tuple[Figure, Axes]:
    figure, (axes,) = new_figure(legend_rows=legend_rows(labels, title=True))
    unit_axis(axes, "x")
    unit_axis(axes, "y")
    return figure, axes


@styled
def risk_coverage_figure(lines: Sequence[Line], protocol: str, top: float = 1.0) -> Figure:
    """Share of wrong pixels among the accepted ones over the share of accepted pixels.

    Args:
        lines: curves of :func:`segunc.plots.lines.risk_coverage_line`.
        protocol: how pixels are pooled, named on the axes.
        top: upper end of the risk axis in 0..1; figures that are compared need the same one. Networks err on few pixels,
            so 1 leaves most of the figure empty; :func:`risk_top` gives a round number that holds all the lines.
    """
    figure, (axes,) = new_figure(legend_rows=legend_rows([line.label for line in lines], title=True))
    handles = [
        axes.plot(line.x, line.y, **line_style(place))[0] for line, place in zip(lines, places(lines), strict=True)
    ]
    unit_axis(axes, "x")
    axes.set_ylim(0.0, top * 1.01)
    axes.set_xlabel(f"coverage: share of pixels accepted ({protocol})")
    axes.set_ylabel("risk: share of them wrong")
    add_legend(figure, handles, [line.label for line in lines], "AURC (lower is better)")
    return figure


def risk_top(lines: Sequence[Line]) -> float:
    """The least of 0.05, 0.1, 0.2, 0.5 and 1 that holds every line, for the axis of :func:`risk_coverage_figure`."""
    highest = max((float(line.y.max()) for line in lines), default=1.0)
    return next((top for top in (0.05, 0.1, 0.2, 0.5) if highest <= top), 1.0)


@styled
def sparsification_figure(curves: Sequence[tuple[Line, Sparsification]], protocol: str) -> Figure:
    """Error rate of what is left over the share of removed pixels, by each score and by the true error.

    The area between a line and that of the true error is AUSE. Scores of one model share the line of the true error;
    where models differ in error rate, each has its own, dotted and in the colour of its model.

    Args:
        curves: pairs of :func:`segunc.plots.lines.sparsification_line`.
        protocol: how pixels are pooled, named on the axes.
    """
    lines = [line for line, _ in curves]
    labels = [line.label for line in lines]
    shared = all(np.array_equal(own.by_error, curves[0][1].by_error) for _, own in curves)
    labels.append("by the true error" if shared else "dotted: by the true error")
    figure, (axes,) = new_figure(legend_rows=legend_rows(labels, title=True))
    handles = []
    for (line, own), place in zip(curves, places(lines), strict=True):
        look = line_style(place)
        handles += axes.plot(line.x, line.y, **look)
        colour = FAINT if shared else look["color"]
        axes.plot(own.removed, own.by_error, color=colour, linewidth=0.8, linestyle=DOTTED, zorder=1)
    handles += axes.plot([], [], color=FAINT, linewidth=0.8, linestyle=DOTTED)
    axes.axhline(1.0, color=FAINT, linewidth=0.6, zorder=1)
    unit_axis(axes, "x")
    # A score that is worse than chance rises above 1; how far it does beyond 2 is left to its number.
    axes.set_ylim(0.0, 1.05 if all(line.y.max() <= 1.05 for line in lines) else 2.0)
    axes.set_xlabel(f"share of pixels removed, least certain first ({protocol})")
    axes.set_ylabel("error rate left / error rate of all")
    add_legend(figure, handles, labels, "AUSE (lower is better)")
    return figure


@styled
def patch_figure(
    sweeps: Mapping[str, PatchNumbers], window: int, protocol: str, places: Mapping[str, int] | None = None
) -> Figure:
    """p(accurate | certain), p(uncertain | inaccurate) and PAvPU over the uncertainty threshold, a panel each.

    The threshold runs from the least (0) to the greatest (1) mean uncertainty of a patch, so that scores of different
    units share the axis.

    Args:
        sweeps: name -> the numbers of :func:`segunc.metrics.selective.sweep`.
        window: side of a patch in pixels, named above the panels.
        protocol: how patches are pooled, named on the axis.
        places: name -> place among what is compared, for colour and dashes; None is the order of ``sweeps``.
    """
    names = list(sweeps)
    figure, panels = new_figure(3, 4.0, legend_rows(names), share_x=True)
    order = places or {name: index for index, name in enumerate(names)}
    handles = []
    for name, numbers in sweeps.items():
        share = np.linspace(0.0, 1.0, len(numbers.thresholds))
        rows = (numbers.accurate_if_certain, numbers.uncertain_if_inaccurate, numbers.pavpu)
        drawn = [axes.plot(share, row, **line_style(order[name]))[0] for axes, row in zip(panels, rows, strict=True)]
        handles.append(drawn[0])
    what = ("p(accurate | certain)", "p(uncertain | inaccurate)", "PAvPU")
    for axes, label in zip(panels, what, strict=True):
        unit_axis(axes, "x")
        unit_axis(axes, "y")
        axes.set_title(f"{label}, patches of {window} x {window} px", loc="left")
        axes.set_ylabel("share")
    panels[-1].set_xlabel(f"uncertainty threshold, least to greatest ({protocol})")
    add_legend(figure, handles, names)
    return figure
