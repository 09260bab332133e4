"""Figures for reports and print: one look, fixed ranges, legible at a column width of 8 cm, without
any state of pyplot.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from segunc.core.errors import InputError
from segunc.core.files import write_file, write_json
from segunc.evaluation.evaluator import Gatherer, Result
from segunc.evaluation.parts import Pooled, Selective
from segunc.figure_style import FAINT, WIDTH, styled
from segunc.metrics import counting
from segunc.metrics.counting import DetectionCurve, Floats, detection_curve
from segunc.metrics.prediction import BINS, RiskCoverage, aurc, risk_coverage
from segunc.scores import title_of

PANEL = 2.35  # height of a panel in inches, without the legend
LEGEND_ROW = 0.155  # height of a row of the legend in inches
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe & Ito's palette, told apart by colour-blind readers, without its yellow, which vanishes on
white."""
# On-off lengths in line widths, None solid: lines are told apart in grey print too.
DASHES: tuple[tuple[float, ...] | None, ...] = (
    None,
    (4, 1.4),
    (1, 1.2),
    (5, 1.2, 1, 1.2),
    (8, 2),
)
MAX_POINTS = 2000  # of a drawn line; more only make the files large
RISK_LIMITS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)  # upper ends of the axis of risk
UNIT_TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)
MAX_NARROW_LABEL = 22  # characters of a label of which two stand beside each other
# Dotted lines of reference: chance, base rate, the best possible.
REFERENCE: dict[str, Any] = {
    "color": FAINT,
    "linewidth": 0.8,
    "linestyle": (0, (2, 2)),
    "zorder": 1,
}


@dataclass(frozen=True)
class Line:
    """One curve ``x[P], y[P]`` of a figure; ``place`` among what is compared decides colour and
    dashes.
    """

    name: str  # what it belongs to, a score or a model
    x: Floats
    y: Floats
    value: float | None = None  # the number of the curve, shown beside the name; None shows none
    place: int = 0


@dataclass
class Plots:
    """The figures of an evaluation, and the points of their lines as drawn."""

    figures: dict[str, Figure] = field(default_factory=dict)
    # figure -> line -> x and y
    points: dict[str, dict[str, dict[str, list[float]]]] = field(default_factory=dict)

    def add(self, stem: str, figure: Figure, lines: Sequence[Line]) -> None:
        """Add a figure under the stem of its files."""
        self.figures[stem] = figure
        self.points[stem] = {}
        for line in lines:
            self.points[stem][line.name] = {"x": line.x.tolist(), "y": line.y.tolist()}


def write_plots(gatherer: Gatherer, result: Result, folder: Path, name: str) -> list[Path]:
    """Write the figures that the counts of an evaluation allow into a folder: PR, ROC, reliability
    and risk-coverage. ``curves.json`` holds the points of the curves as drawn.

    Args:
        gatherer: the counts.
        result: the numbers made of them.
        folder: the output folder.
        name: of the model.

    Returns:
        The files of the figures.

    Raises:
        InputError: the counts allow no figure.
    """
    plots = Plots()
    _add_detection(plots, gatherer)
    _add_reliability(plots, result, name)
    _add_risk(plots, gatherer)
    if not plots.figures:
        raise InputError(
            "there is nothing to draw: --plots needs class labels, "
            "or labels with both kinds of pixels"
        )
    write_json(folder / "curves.json", plots.points)
    written = []
    for stem, figure in plots.figures.items():
        written += save_figure(figure, folder / stem)
    return written


def _add_detection(plots: Plots, gatherer: Gatherer) -> None:
    """Add PR and ROC of all scores, where there are anomalous and normal pixels."""
    curves = {
        score: detection_curve(counts)
        for score, counts in gatherer.counts(Pooled).items()
        if counts is not None
    }
    if not curves or any(curve.undefined for curve in curves.values()):
        return
    first = next(iter(curves.values()))
    base_rate = first.positives / (first.positives + first.negatives)
    precision = []
    roc = []
    for place, (score, curve) in enumerate(curves.items()):
        precision.append(precision_recall_line(score, curve, place))
        roc.append(roc_line(score, curve, place))
    plots.add("precision-recall-pooled", precision_recall_figure(precision, base_rate), precision)
    plots.add("roc-pooled", roc_figure(roc), roc)


def _add_reliability(plots: Plots, result: Result, name: str) -> None:
    """Add the bins of the confidence of a model, where there are any."""
    bins = result["calibration"].get("reliability")
    if not bins:
        return
    confidence, accuracy, pixels = np.transpose(bins)
    line = Line(name, confidence, accuracy, result["calibration"]["ece"])
    plots.add("reliability", reliability_figure(line), [line])
    plots.points["reliability"][name]["pixels"] = pixels.tolist()


def _add_risk(plots: Plots, gatherer: Gatherer) -> None:
    """Add risk over coverage of the scores that have pixels with a class label."""
    lines = []
    for place, (score, counts) in enumerate(gatherer.counts(Selective).items()):
        if counts is not None and counts[1].any():
            lines.append(risk_coverage_line(score, risk_coverage(counts), place))
    if lines:
        plots.add("risk-coverage", risk_coverage_figure(lines), lines)


@styled
def save_figure(figure: Figure, path_without_suffix: Path) -> list[Path]:
    """Write a figure as ``.pdf``, ``.svg`` and ``.png`` of 300 dots an inch; the same figure gives
    the same bytes.
    """
    written = []
    metadata: dict[str, dict[str, Any]] = {
        "pdf": {"CreationDate": None},
        "svg": {"Date": None},
        "png": {},
    }
    for suffix, fields in metadata.items():
        stream = io.BytesIO()
        figure.savefig(stream, format=suffix, dpi=300, metadata=fields)
        path = path_without_suffix.with_name(f"{path_without_suffix.name}.{suffix}")
        write_file(path, stream.getvalue())
        written.append(path)
    return written


def precision_recall_line(name: str, curve: DetectionCurve, place: int) -> Line:
    recall, precision = thin(
        np.append(0.0, curve.recall), np.append(curve.precision[0], curve.precision)
    )
    return Line(name, recall, precision, counting.average_precision(curve), place)


@styled
def precision_recall_figure(lines: Sequence[Line], base_rate: float) -> Figure:
    """Draw precision over recall in steps, so that the area is the average precision, and the share
    of positive pixels in 0..1.
    """
    figure, axes = _new_figure()
    _draw_lines(axes, lines, drawstyle="steps-pre")
    axes.axhline(base_rate, label=f"Chance  {base_rate:.3f}", **REFERENCE)
    _unit_axis(axes, "xy")
    axes.set(
        xlabel="Recall (share of anomalous pixels)", ylabel="Precision (share of flagged pixels)"
    )
    _add_legend(figure, "Precision and recall of anomalies, all frames", "Average precision (AUPR)")
    return figure


def roc_line(name: str, curve: DetectionCurve, place: int) -> Line:
    x, y = thin(np.append(0.0, curve.false_positive_rate), np.append(0.0, curve.recall))
    return Line(name, x, y, counting.auroc(curve), place)


@styled
def roc_figure(lines: Sequence[Line]) -> Figure:
    """Draw true over false positive rate, with the diagonal of a score that says nothing and the
    recall of FPR95.
    """
    figure, axes = _new_figure()
    _draw_lines(axes, lines)
    axes.plot([0, 1], [0, 1], label="Chance  0.500", **REFERENCE)
    axes.axhline(0.95, color=FAINT, linewidth=0.6, zorder=1, label="Recall 0.95 (FPR95)")
    _unit_axis(axes, "xy")
    axes.set(
        xlabel="False positives (share of normal pixels)",
        ylabel="Recall (share of anomalous pixels)",
    )
    _add_legend(
        figure, "ROC: anomalies and false alarms, all frames", "Area under the curve (AUROC)"
    )
    return figure


@styled
def reliability_figure(line: Line) -> Figure:
    """Draw accuracy over mean confidence of the bins of a model, with the diagonal of perfect
    calibration and the ECE.
    """
    figure, axes = _new_figure()
    _draw_lines(axes, [line], str, marker="o", markersize=3)
    axes.plot([0, 1], [0, 1], label="Perfect calibration", **REFERENCE)
    _unit_axis(axes, "xy")
    axes.set(
        xlabel=f"Confidence (predicted class, {BINS} bins)",
        ylabel="Accuracy (share of pixels right)",
    )
    _add_legend(
        figure, "Reliability of class probabilities, all frames", "Expected calibration error (ECE)"
    )
    return figure


def risk_coverage_line(name: str, curve: RiskCoverage, place: int) -> Line:
    coverage = np.arange(1, 1001) / 1000
    return Line(name, coverage, curve.risk_at(coverage), aurc(curve), place)


@styled
def risk_coverage_figure(lines: Sequence[Line]) -> Figure:
    """Draw the share of wrong pixels among the accepted ones over the share of accepted pixels."""
    # Networks err on few pixels, so an axis up to 1 would leave most of the figure empty.
    highest = max(float(line.y.max()) for line in lines)
    top = next((limit for limit in RISK_LIMITS if highest <= limit), 1.0)
    figure, axes = _new_figure()
    _draw_lines(axes, lines)
    _unit_axis(axes, "x")
    axes.set_ylim(0.0, top * 1.01)
    axes.set(
        xlabel="Coverage (share of pixels accepted)", ylabel="Risk (share of these that are wrong)"
    )
    _add_legend(
        figure, "Risk of accepting the surest pixels, all frames", "Area (AURC), lower is better"
    )
    return figure


@styled
def monitor_figure(path: Floats, alarm: float, name: str, against: str) -> Figure:
    """Draw log10 of a martingale of exchangeability after each frame ``[T]``, with the value of its
    alarm; ``against`` says in words which frames they are compared with.
    """
    figure, axes = _new_figure()
    frames = np.arange(1.0, len(path) + 1)
    x, y = thin(frames, path)
    _draw_lines(axes, [Line(name, x, y)], str)
    axes.axhline(alarm, label=f"Alarm at {alarm:g}", **REFERENCE)
    axes.set(xlabel="Compared frames", ylabel="log10 of the martingale")
    axes.locator_params(axis="x", integer=True)  # half a frame is none
    _add_legend(figure, f"Are the frames like {against}?", "Compared by")
    return figure


def thin(x: Floats, y: Floats, most: int = MAX_POINTS) -> tuple[Floats, Floats]:
    """Return at most ``most`` (2 or more) of the points, evenly along the curve, so that steep and
    flat parts stay; ends stay.
    """
    if len(x) <= most:
        return x, y
    # Each axis in units of its own span, so that neither decides alone.
    length = np.append(0.0, np.cumsum(_relative_steps(x) + _relative_steps(y)))
    kept = np.unique(np.searchsorted(length, np.linspace(0.0, length[-1], most)))
    return x[kept], y[kept]


def _relative_steps(values: Floats) -> Floats:
    """Return the sizes of the steps between values, as shares of their span."""
    span = max(float(np.ptp(values)), np.finfo(float).tiny)
    steps: Floats = np.abs(np.diff(values)) / span
    return steps


def _new_figure() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, PANEL), layout="constrained")
    return figure, figure.subplots()


def _draw_lines(
    axes: Axes, lines: Sequence[Line], words: Callable[[str], str] = title_of, **look: Any
) -> None:
    for line in lines:
        label = words(line.name)
        if line.value is not None:
            label += f"  {line.value:.3f}"
        colour = COLOURS[line.place % len(COLOURS)]
        dashes = DASHES[line.place % len(DASHES)]
        axes.plot(
            line.x,
            line.y,
            label=label,
            color=colour,
            linestyle="-" if dashes is None else (0, dashes),
            **look,
        )


def _unit_axis(axes: Axes, which: str) -> None:
    """Fix an axis (``x``, ``y``, or both: ``xy``) to 0..1, whatever the data."""
    for axis in which:
        axes.set(**{f"{axis}lim": (-0.01, 1.01), f"{axis}ticks": UNIT_TICKS})


def _add_legend(figure: Figure, title: str, numbers: str) -> None:
    """Put a title above the panel and a legend of what is labelled below, where it covers no data,
    and make the figure as much higher; ``numbers`` says what stands beside the names.
    """
    figure.axes[0].set_title(title)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    narrow = len(labels) > 1 and max(map(len, labels)) <= MAX_NARROW_LABEL
    columns = 2 if narrow else 1
    rows = math.ceil(len(labels) / columns) + 2
    figure.set_size_inches(WIDTH, figure.get_figheight() + LEGEND_ROW * rows)
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        title=numbers,
        ncols=columns,
        handlelength=2.6,
        columnspacing=1.2,
        labelspacing=0.3,
    )
