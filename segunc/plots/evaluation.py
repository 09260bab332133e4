"""Every figure of one evaluation, from its counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from segunc.core.errors import InputError
from segunc.core.files import write_json
from segunc.evaluation.evaluator import Gatherer, Result
from segunc.evaluation.labelled_frame import CONFIDENCE
from segunc.evaluation.parts import ConfidenceCalibration, Pooled, Selective, Smiyc, confidence_of, values_of
from segunc.metrics import counting, selective
from segunc.metrics.calibration import bin_counts
from segunc.metrics.counting import DetectionCurve, Floats, detection_curve
from segunc.metrics.selective import RiskCoverage
from segunc.metrics.smiyc import smiyc_curve
from segunc.plots.charts import (
    COLOURS,
    FAINT,
    REFERENCE,
    Line,
    add_legend,
    draw_lines,
    line_style,
    new_figure,
    save_figure,
    styled,
    thin,
    unit_axis,
)
from segunc.scores import stored_as_codes

Points = dict[str, dict[str, dict[str, list[float]]]]
"""Figure -> line -> ``x`` and ``y`` (for the reliability diagram also ``pixels``)."""
ROW_HEIGHT = 1.25  # of the histogram of one score in inches


def write_plots(gatherer: Gatherer, result: Result, folder: Path, name: str) -> list[Path]:
    """Write the figures that the counts of an evaluation allow, and return their files.

    These are PR, ROC, histograms, reliability and risk-coverage; ``curves.json`` holds the points of the curves as drawn.

    Args:
        gatherer: of the evaluation.
        result: its numbers.
        folder: of the files, made if missing.
        name: of the model in figures that show one.

    Raises:
        InputError: nothing can be drawn, or the folder is a file.
    """
    points: Points = {}
    figures = _anomaly_figures(gatherer, points) | _class_figures(gatherer, result, name, points)
    if not figures:
        raise InputError("there is nothing to draw: --plots needs class labels, or labels with both kinds of pixels")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--plots {folder} is a file, and not a folder")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "curves.json", points)
    return [path for stem, figure in figures.items() for path in save_figure(figure, folder / stem)]


def _points(lines: Sequence[Line]) -> dict[str, dict[str, list[float]]]:
    return {line.name: {"x": line.x.tolist(), "y": line.y.tolist()} for line in lines}


def _anomaly_figures(gatherer: Gatherer, points: Points) -> dict[str, Figure]:
    figures = {}
    pooled, binned = gatherer.counts(Pooled), gatherer.counts(Smiyc)
    for protocol, curves in (
        ("pooled", {score: None if rows is None else detection_curve(rows) for score, rows in pooled.items()}),
        ("smiyc", {score: None if bins is None else smiyc_curve(bins) for score, bins in binned.items()}),
    ):
        # A score keeps its place, and so its look, where the curve of another lacks.
        places = [(score, curve, place) for place, (score, curve) in enumerate(curves.items())]
        drawn = [(score, curve, place) for score, curve, place in places if curve is not None and not curve.undefined]
        if not drawn:
            continue
        first = drawn[0][1]
        base_rate = first.positives / (first.positives + first.negatives)
        pr = [precision_recall_line(*one) for one in drawn]
        roc = [roc_line(*one) for one in drawn]
        figures[f"precision-recall-{protocol}"] = precision_recall_figure(pr, base_rate, protocol)
        figures[f"roc-{protocol}"] = roc_figure(roc, protocol)
        points |= {f"precision-recall-{protocol}": _points(pr), f"roc-{protocol}": _points(roc)}
        if protocol == "pooled":
            histograms = {}
            for score, _, _ in drawn:
                counts = pooled[score]
                used = np.flatnonzero(counts.any(axis=0))  # keys without a pixel may stand for NaN
                values = values_of(gatherer.forms[score], counts.shape[1])[used].astype(np.float64)
                limits = (0.0, 1.0) if stored_as_codes(score) else None
                rows = [np.histogram(values, 100, limits, density=True, weights=row[used]) for row in counts]
                histograms[score] = np.stack([density for density, _ in rows]), rows[0][1]
            figures["score-histograms"] = histogram_figure(histograms)
    return figures


def _class_figures(gatherer: Gatherer, result: Result, name: str, points: Points) -> dict[str, Figure]:
    figures = {}
    (counts,) = gatherer.counts(ConfidenceCalibration).values()
    if counts is not None and counts.any():
        bins = bin_counts(counts, confidence_of(gatherer.forms[CONFIDENCE], counts.shape[1]))
        figures["reliability"] = reliability_figure(name, bins, result["calibration"]["ece"])
        pixels, correct, confidence = bins[:, bins[0] > 0]
        columns = {"x": confidence / pixels, "y": correct / pixels, "pixels": np.rint(pixels).astype(np.int64)}
        points["reliability"] = {name: {key: values.tolist() for key, values in columns.items()}}
    curves = {score: selective.risk_coverage(n) for score, n in gatherer.counts(Selective).items() if n is not None}
    lines = [risk_coverage_line(s, curve, place) for place, (s, curve) in enumerate(curves.items()) if curve.failures]
    if lines:
        figures["risk-coverage"] = risk_coverage_figure(lines)
        points["risk-coverage"] = _points(lines)
    return figures


def precision_recall_line(name: str, curve: DetectionCurve, place: int) -> Line:
    """Return precision over recall, to be drawn as steps, with the average precision."""
    recall, precision = thin(np.append(0.0, curve.recall), np.append(curve.precision[0], curve.precision))
    return Line(name, recall, precision, counting.average_precision(curve), place)


@styled
def precision_recall_figure(lines: Sequence[Line], base_rate: float, protocol: str) -> Figure:
    """Draw precision over recall in steps, so that the area is the average precision, and the base rate: the share of positive
    pixels in 0..1, which is the precision of a score that says nothing."""
    figure, (axes,) = new_figure()
    draw_lines(axes, lines, drawstyle="steps-pre")
    axes.axhline(base_rate, label=f"base rate {base_rate:.2g}", **REFERENCE)
    unit_axis(axes, "xy")
    axes.set(xlabel=f"recall (anomaly, {protocol})", ylabel=f"precision ({protocol})")
    add_legend(figure, "AUPR")
    return figure


def roc_line(name: str, curve: DetectionCurve, place: int) -> Line:
    """Return true over false positive rate, with the area under it."""
    x, y = thin(np.append(0.0, curve.false_positive_rate), np.append(0.0, curve.recall))
    return Line(name, x, y, counting.auroc(curve), place)


@styled
def roc_figure(lines: Sequence[Line], protocol: str) -> Figure:
    """Draw true over false positive rate, with the diagonal of a score that says nothing and the recall of FPR95."""
    figure, (axes,) = new_figure()
    axes.plot([0, 1], [0, 1], **REFERENCE)
    draw_lines(axes, lines)
    axes.axhline(0.95, color=FAINT, linewidth=0.6, zorder=1, label="recall of FPR95")
    unit_axis(axes, "xy")
    axes.set(xlabel=f"false positive rate ({protocol})", ylabel=f"true positive rate (anomaly, {protocol})")
    add_legend(figure, "AUROC")
    return figure


@styled
def histogram_figure(histograms: Mapping[str, tuple[Floats, Floats]]) -> Figure:
    """Draw the density of each score (densities ``[2, B]`` and edges) on a logarithmic axis, a panel each: normal pixels filled,
    anomalous ones dashed."""
    figure, panels = new_figure(len(histograms), 0.35 + ROW_HEIGHT * len(histograms))
    filled: dict[str, Any] = {"fill": True, "facecolor": COLOURS[5] + "80", "edgecolor": COLOURS[0], "linewidth": 0.9}
    dashed: dict[str, Any] = {"color": COLOURS[1], "linewidth": 1.2, "linestyle": (0, (4, 1.2))}
    for axes, (name, (density, edges)) in zip(panels, histograms.items(), strict=True):
        positive = density[density > 0]
        floor = float(positive.min()) / 2 if positive.size else 0.5
        top = float(positive.max()) * 3 if positive.size else 2.0
        base = floor / 10  # an empty bin lies below the axis
        rows = np.maximum(np.nan_to_num(density), base)
        for row, label, look in zip(rows, ("ID pixels", "OOD pixels"), (filled, dashed), strict=True):
            axes.stairs(row, edges, baseline=base, label=label, **look)
        axes.set_yscale("log")
        axes.set_ylim(floor, top)
        axes.yaxis.set_major_locator(LogLocator(numticks=4))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_xlim(edges[0], edges[-1])
        axes.set_xlabel(name, labelpad=1)
        axes.set_ylabel("density")
    add_legend(figure)
    return figure


@styled
def reliability_figure(name: str, bins: Floats, error: float | None) -> Figure:
    """Draw accuracy over mean confidence of each bin, the diagonal of perfect calibration, and the pixels of each bin below.

    Args:
        name: of the model.
        bins: of :func:`segunc.metrics.calibration.bin_counts`.
        error: the ECE.
    """
    pixels, correct, confidence = bins
    with np.errstate(invalid="ignore"):  # 0 / 0 of an empty bin is NaN, which is not drawn
        line = Line(name, confidence / pixels, correct / pixels, error)
    figure, (upper, lower) = new_figure(2, 3.3, share_x=True, ratios=(2.6, 1.0))
    upper.plot([0, 1], [0, 1], **REFERENCE)
    draw_lines(upper, [line], marker="o", markersize=3)
    lower.stairs(np.rint(pixels), np.linspace(0, 1, len(pixels) + 1), linewidth=1.1, baseline=None, **line_style(0))
    unit_axis(upper, "xy")
    lower.set_yscale("log")
    lower.set_ylim(0.8, max(1.0, float(pixels.max())) * 2.0)
    upper.set_ylabel("accuracy (pooled)")
    lower.set_ylabel("pixels")
    lower.set_xlabel(f"confidence of the predicted class ({len(pixels)} bins)")
    add_legend(figure, "ECE")
    return figure


def risk_coverage_line(name: str, curve: RiskCoverage, place: int) -> Line:
    """Return the expected selective risk at 1,000 coverages, with AURC."""
    coverage = np.arange(1, 1001) / 1000
    return Line(name, coverage, curve.risk_at(coverage), selective.aurc(curve), place)


@styled
def risk_coverage_figure(lines: Sequence[Line]) -> Figure:
    """Draw the share of wrong pixels among the accepted ones over the share of accepted pixels.

    Networks err on few pixels, so an axis up to 1 leaves most of the figure empty: it ends at the least of 0.05, 0.1, 0.2,
    0.5 and 1 that holds every line.
    """
    highest = max(float(line.y.max()) for line in lines)
    top = next((top for top in (0.05, 0.1, 0.2, 0.5) if highest <= top), 1.0)
    figure, (axes,) = new_figure()
    draw_lines(axes, lines)
    unit_axis(axes, "x")
    axes.set_ylim(0.0, top * 1.01)
    axes.set(xlabel="coverage: share of pixels accepted (pooled)", ylabel="risk: share of them wrong")
    add_legend(figure, "AURC (lower is better)")
    return figure
