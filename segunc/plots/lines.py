"""Curves as they are drawn: thinned to what print can show, with the name and the number that the legend gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from segunc.core.errors import InputError
from segunc.metrics.counting import DetectionCurve, auroc, average_precision
from segunc.metrics.selective import RiskCoverage, Sparsification, aurc, ause, sparsification
from segunc.plots.style import DOTTED, FAINT, PANEL, add_legend, legend_rows, line_style, new_figure, styled

MOST_POINTS = 2000
"""Points of a drawn line; more only make the files large."""

Values = npt.NDArray[np.float64]


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
    x: Values
    y: Values
    value: float | None = None
    place: int | None = None

    @property
    def label(self) -> str:
        """Name and number as the legend shows them."""
        return self.name if self.value is None else f"{self.name}  {self.value:.3f}"


def thin(x: Values, y: Values, most: int = MOST_POINTS) -> tuple[Values, Values]:
    """At most ``most`` of the points, evenly along the curve, so that steep and flat parts both stay; ends stay.

    Raises:
        InputError: ``most`` is below 2.
    """
    if most < 2:
        raise InputError(f"a curve of {most} points", "at least 2")
    if len(x) <= most:
        return x, y
    # Each axis in units of its own span, so that neither decides alone.
    steps = [np.abs(np.diff(axis)) / max(float(np.ptp(axis)), np.finfo(float).tiny) for axis in (x, y)]
    length = np.append(0.0, np.cumsum(steps[0] + steps[1]))
    kept = np.unique(np.searchsorted(length, np.linspace(0.0, length[-1], most)))
    return x[kept], y[kept]


def places(lines: Sequence[Line]) -> list[int]:
    """The place of each line, for its style."""
    return [index if line.place is None else line.place for index, line in enumerate(lines)]


def precision_recall_line(name: str, curve: DetectionCurve, place: int | None = None) -> Line:
    """Precision over recall, to be drawn as steps, with the average precision.

    Raises:
        InputError: there are no anomalous or no normal pixels.
    """
    _refuse_undefined(curve)
    recall, precision = thin(np.append(0.0, curve.recall), np.append(curve.precision[0], curve.precision))
    return Line(name, recall, precision, average_precision(curve), place)


def roc_line(name: str, curve: DetectionCurve, place: int | None = None) -> Line:
    """True over false positive rate, with the area under it.

    Raises:
        InputError: there are no anomalous or no normal pixels.
    """
    _refuse_undefined(curve)
    x, y = thin(np.append(0.0, curve.false_positive_rate), np.append(0.0, curve.recall))
    return Line(name, x, y, auroc(curve), place)


def risk_coverage_line(name: str, curve: RiskCoverage, place: int | None = None) -> Line:
    """Expected selective risk at 1,000 coverages, with AURC.

    Raises:
        InputError: there is no pixel.
    """
    coverage = np.arange(1, 1001) / 1000
    return Line(name, coverage, curve.risk_at(coverage), aurc(curve), place)


def sparsification_line(name: str, curve: RiskCoverage, place: int | None = None) -> tuple[Line, Sparsification]:
    """The normalised sparsification curve by the score, with AUSE, and the curves it was taken from.

    Raises:
        InputError: no pixel is wrongly predicted.
    """
    curves = sparsification(curve, points=1000)
    if curves is None:
        raise InputError("a sparsification curve without a wrongly predicted pixel", "at least one")
    return Line(name, curves.removed, curves.by_score, ause(curve), place), curves


def _refuse_undefined(curve: DetectionCurve) -> None:
    if curve.undefined:
        raise InputError(curve.undefined, "both normal and anomalous pixels")


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
