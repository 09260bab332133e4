"""Precision-recall and ROC curves."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

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
