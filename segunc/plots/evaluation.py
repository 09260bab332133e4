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
from segunc.evaluation.labelled_frame import CONFIDENCE, decode_keys
from segunc.evaluation.parts import ConfidenceCalibration, Patches, Pooled, Selective, Smiyc, confidence_of_keys
from segunc.metrics import counting, selective
from segunc.metrics.bins import ScoreBins
from segunc.metrics.calibration import Reliability, bin_counts, reliability
from segunc.metrics.counting import KEYS, DetectionCurve, Floats, detection_curve
from segunc.metrics.selective import RiskCoverage, Sparsification
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
BAR, GAP = 0.13, 0.07  # height of a bar and space between classes in inches
ROW_HEIGHT = 1.25  # of the histogram of one score in inches


def write_plots(gatherer: Gatherer, result: Result, folder: Path, name: str) -> list[Path]:
    """Write the figures that the counts of an evaluation allow into a folder, made if missing: PR, ROC, histograms, reliability,
    risk-coverage, sparsification, patches and class bars; and ``curves.json`` with the points of the curves, as drawn.

    ``result`` holds the numbers of the same evaluation; figures that show one model call it ``name``. InputError where nothing can
    be drawn, or the folder is a file.
    """
    points: Points = {}
    figures = _anomaly_figures(gatherer, points) | _class_figures(gatherer, result, name, points)
    if not figures:
        raise InputError("nothing to draw", "labels with both classes of pixels, or class labels", "check the labels")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--plots {folder} is a file", "a folder", "give another path")
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
                form = gatherer.forms[score]
                values = form.middles if isinstance(form, ScoreBins) else decode_keys(form, np.arange(KEYS))
                limits = (0.0, 1.0) if stored_as_codes(score) else None
                histograms[score] = counting.score_histogram(pooled[score], values, limits)
            figures["score-histograms"] = histogram_figure(histograms)
    return figures


def _class_figures(gatherer: Gatherer, result: Result, name: str, points: Points) -> dict[str, Figure]:
    figures = {}
    segmentation = result["segmentation"]
    if any(value is not None for value in segmentation["per_class"].values()):
        figures["class-iou"] = class_bars_figure(name, segmentation["per_class"], segmentation["miou"])
    (confidence,) = gatherer.counts(ConfidenceCalibration).values()
    if confidence is not None and confidence.any():
        diagram = reliability(bin_counts(confidence, confidence_of_keys(gatherer.forms[CONFIDENCE])))
        figures["reliability"] = reliability_figure(name, diagram, result["calibration"]["ece"])
        filled = diagram.pixels > 0
        columns = {"x": diagram.confidence, "y": diagram.accuracy, "pixels": diagram.pixels}
        points["reliability"] = {name: {key: values[filled].tolist() for key, values in columns.items()}}
    counts = gatherer.counts(Selective)
    places = {score: place for place, score in enumerate(counts)}
    curves = {score: selective.risk_coverage(rows) for score, rows in counts.items() if rows is not None}
    curves = {score: curve for score, curve in curves.items() if curve.failures}
    if curves:
        lines = [risk_coverage_line(score, curve, places[score]) for score, curve in curves.items()]
        figures["risk-coverage"] = risk_coverage_figure(lines)
        pairs = [sparsification_line(score, curve, places[score]) for score, curve in curves.items()]
        figures["sparsification"] = sparsification_figure(pairs)
        points |= {"risk-coverage": _points(lines), "sparsification": _points([line for line, _ in pairs])}
    sweeps = {score: selective.sweep(rows) for score, rows in gatherer.counts(Patches).items() if rows is not None}
    drawn = {score: numbers for score, numbers in sweeps.items() if numbers is not None}
    for score, numbers in drawn.items():
        if isinstance(form := gatherer.forms[score], ScoreBins):
            numbers["thresholds"] = form.centre + form.scale * numbers["thresholds"]
    if drawn:
        figures["patches"] = patch_figure(drawn, places)
        points["patches"] = _points([Line(s, numbers["thresholds"], numbers["pavpu"]) for s, numbers in drawn.items()])
    return figures


def precision_recall_line(name: str, curve: DetectionCurve, place: int) -> Line:
    """Precision over recall, to be drawn as steps, with the average precision."""
    recall, precision = thin(np.append(0.0, curve.recall), np.append(curve.precision[0], curve.precision))
    return Line(name, recall, precision, counting.average_precision(curve), place)


@styled
def precision_recall_figure(lines: Sequence[Line], base_rate: float, protocol: str) -> Figure:
    """Precision over recall in steps, so that the area is the average precision, and the base rate: the share of positive
    pixels in 0..1, which is the precision of a score that says nothing."""
    figure, (axes,) = new_figure()
    draw_lines(axes, lines, drawstyle="steps-pre")
    axes.axhline(base_rate, label=f"base rate {base_rate:.2g}", **REFERENCE)
    unit_axis(axes, "xy")
    axes.set(xlabel=f"recall (anomaly, {protocol})", ylabel=f"precision ({protocol})")
    add_legend(figure, "AUPR")
    return figure


def roc_line(name: str, curve: DetectionCurve, place: int) -> Line:
    """True over false positive rate, with the area under it."""
    x, y = thin(np.append(0.0, curve.false_positive_rate), np.append(0.0, curve.recall))
    return Line(name, x, y, counting.auroc(curve), place)


@styled
def roc_figure(lines: Sequence[Line], protocol: str) -> Figure:
    """True over false positive rate, with the diagonal of a score that says nothing and the recall of FPR95."""
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
    """Density of each score (densities ``[2, B]`` and edges) on a logarithmic axis, a panel each: normal pixels filled,
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
def class_bars_figure(name: str, numbers: Mapping[str, float | None], mean: float | None) -> Figure:
    """The IoU of each class of a model as bars, a dash where there is none, with the mean over classes as a line."""
    figure, (axes,) = new_figure(1, 0.5 + len(numbers) * (GAP + BAR))
    widths, height = [value or 0.0 for value in numbers.values()], 1.0 / (1 + GAP / BAR) * 0.92
    look: dict[str, Any] = {"facecolor": COLOURS[0], "edgecolor": "white", "linewidth": 0}
    axes.barh(np.arange(len(numbers)), widths, height, label=Line(name, np.zeros(0), np.zeros(0), mean).label, **look)
    beside: dict[str, Any] = {"xytext": (2, 0), "textcoords": "offset points", "va": "center", "fontsize": 6}
    beside["bbox"] = {"facecolor": "white", "edgecolor": "none", "pad": 0.3}  # the line of the mean passes below it
    for place, value in enumerate(numbers.values()):
        axes.annotate("–" if value is None else f"{value:.2f}", (value or 0.0, place), **beside)
    if mean is not None:
        axes.axvline(mean, color=COLOURS[0], linewidth=0.8, linestyle=(0, (3, 2)), zorder=1)
    axes.set_yticks(range(len(numbers)), [*numbers])
    axes.set_ylim(len(numbers) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")
    axes.spines["left"].set_color(FAINT)
    # Room on the right for the number of a bar that reaches 1.
    axes.set(xlim=(0.0, 1.12), xticks=[0.0, 0.25, 0.5, 0.75, 1.0], xlabel="IoU of the class (dashed: mean)")
    add_legend(figure, "mean IoU")
    return figure


@styled
def reliability_figure(name: str, diagram: Reliability, error: float | None) -> Figure:
    """Accuracy over mean confidence of each bin, the diagonal of perfect calibration (a point above it is right more often than
    it says), and below, because a point may stand for a handful of them, the pixels of each bin."""
    figure, (upper, lower) = new_figure(2, 3.3, share_x=True, ratios=(2.6, 1.0))
    upper.plot([0, 1], [0, 1], **REFERENCE)
    draw_lines(upper, [Line(name, diagram.confidence, diagram.accuracy, error)], marker="o", markersize=3)
    lower.stairs(diagram.pixels, diagram.edges, linewidth=1.1, baseline=None, **line_style(0))
    unit_axis(upper, "xy")
    lower.set_yscale("log")
    lower.set_ylim(0.8, max(1, int(diagram.pixels.max())) * 2.0)
    upper.set_ylabel("accuracy (pooled)")
    lower.set_ylabel("pixels")
    lower.set_xlabel(f"confidence of the predicted class ({len(diagram.pixels)} bins)")
    add_legend(figure, "ECE")
    return figure


def risk_coverage_line(name: str, curve: RiskCoverage, place: int) -> Line:
    """Expected selective risk at 1,000 coverages, with AURC."""
    coverage = np.arange(1, 1001) / 1000
    return Line(name, coverage, curve.risk_at(coverage), selective.aurc(curve), place)


@styled
def risk_coverage_figure(lines: Sequence[Line]) -> Figure:
    """Share of wrong pixels among the accepted ones over the share of accepted pixels.

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


def sparsification_line(name: str, curve: RiskCoverage, place: int) -> tuple[Line, Sparsification]:
    """The normalised sparsification curve by the score, with AUSE, and the curves it was taken from."""
    curves = selective.sparsification(curve, points=1000)
    return Line(name, curves.removed, curves.by_score, selective.ause(curve), place), curves


@styled
def sparsification_figure(curves: Sequence[tuple[Line, Sparsification]]) -> Figure:
    """Error rate of what is left over the share of removed pixels, by each score and by the true error.

    The area between a line and that of the true error is AUSE. Scores of the same pixels share the line of the true error;
    where a map lacks in some frames, each has its own, dotted and in its colour.
    """
    lines = [line for line, _ in curves]
    shared = all(np.array_equal(own.by_error, curves[0][1].by_error) for _, own in curves)
    figure, (axes,) = new_figure()
    draw_lines(axes, lines)
    for drawn, (_, own) in zip(list(axes.lines), curves, strict=True):
        axes.plot(own.removed, own.by_error, **(REFERENCE if shared else REFERENCE | {"color": drawn.get_color()}))
    axes.plot(
        [], [], label="by the true error" if shared else "dotted: by the true error", **(REFERENCE | {"zorder": 2})
    )
    axes.axhline(1.0, color=FAINT, linewidth=0.6, zorder=1)
    unit_axis(axes, "x")
    # A score that is worse than chance rises above 1; how far it does beyond 2 is left to its number.
    axes.set_ylim(0.0, 1.05 if all(line.y.max() <= 1.05 for line in lines) else 2.0)
    axes.set_xlabel("share of pixels removed, least certain first (pooled)")
    axes.set_ylabel("error rate left / error rate of all")
    add_legend(figure, "AUSE (lower is better)")
    return figure


@styled
def patch_figure(sweeps: Mapping[str, Mapping[str, Floats]], places: Mapping[str, int]) -> Figure:
    """p(accurate | certain), p(uncertain | inaccurate) and PAvPU over the uncertainty threshold, a panel each.

    The threshold runs from the least (0) to the greatest (1) mean uncertainty of a patch, so that scores of different
    units share the axis; ``places`` among what is compared decide colour and dashes.
    """
    figure, panels = new_figure(3, 4.0, share_x=True)
    what = ("p(accurate | certain)", "p(uncertain | inaccurate)", "PAvPU")
    for axes, label, share in zip(panels, what, selective.SHARES, strict=True):
        lines = [
            Line(n, np.linspace(0.0, 1.0, len(row[share])), row[share], place=places[n]) for n, row in sweeps.items()
        ]
        draw_lines(axes, lines)
        unit_axis(axes, "xy")
        axes.set_title(f"{label}, patches of {selective.WINDOW} x {selective.WINDOW} px", loc="left")
        axes.set_ylabel("share")
    panels[-1].set_xlabel("uncertainty threshold, least to greatest (pooled)")
    add_legend(figure)
    return figure
