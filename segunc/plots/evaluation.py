"""Every figure of one evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from segunc.core.errors import InputError
from segunc.core.files import write_json
from segunc.evaluation.evaluator import Gatherer, Result
from segunc.evaluation.labelled_frame import decode_keys
from segunc.evaluation.parts import ConfidenceCalibration, Patches, Pooled, Selective, Smiyc, confidence_of_keys
from segunc.metrics.calibration import bin_counts, reliability
from segunc.metrics.counting import KEYS, DetectionCurve, detection_curve, score_histogram
from segunc.metrics.selective import WINDOW, patch_curve, risk_coverage, sweep
from segunc.metrics.smiyc import smiyc_curve
from segunc.plots.bars import class_bars_figure, histogram_figure, reliability_figure
from segunc.plots.curves import (
    patch_figure,
    precision_recall_figure,
    risk_coverage_figure,
    risk_top,
    roc_figure,
    sparsification_figure,
)
from segunc.plots.lines import Line, precision_recall_line, risk_coverage_line, roc_line, sparsification_line
from segunc.plots.style import save_figure
from segunc.scores import stored_as_codes

Curves = dict[str, dict[str, dict[str, list[float]]]]
"""Figure -> line -> ``x`` and ``y`` (for the reliability diagram also ``pixels``)."""


def write_plots(gatherer: Gatherer, result: Result, folder: Path, name: str = "network") -> list[Path]:
    """Write the figures that the counts of an evaluation allow: PR, ROC, histograms, reliability, risk-coverage,
    sparsification, patches and class bars; and ``curves.json`` with the points of the curves, thinned as they are drawn.

    Args:
        gatherer: the counts.
        result: the numbers of the same evaluation.
        folder: is made if missing.
        name: of the model, in the figures that show one.

    Returns:
        the files.

    Raises:
        InputError: nothing can be drawn, or the folder is a file.
    """
    curves: Curves = {}
    figures = _anomaly_figures(gatherer, curves) | _class_figures(gatherer, result, name, curves)
    if not figures:
        raise InputError("nothing to draw", "labels with both classes of pixels, or class labels", "check the labels")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--plots {folder} is a file", "a folder", "give another path")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "curves.json", curves)
    return [path for stem, figure in figures.items() for path in save_figure(figure, folder / stem)]


def _points(lines: Sequence[Line]) -> dict[str, dict[str, list[float]]]:
    return {line.name: {"x": line.x.tolist(), "y": line.y.tolist()} for line in lines}


def _scores(gatherer: Gatherer, kind: type[Any]) -> list[str]:
    """Scores that have a part of a kind."""
    return [part.score for part in gatherer.parts if isinstance(part, kind)]


def _anomaly_figures(gatherer: Gatherer, points: Curves) -> dict[str, Figure]:
    figures = {}
    for protocol, kind in (("pooled", Pooled), ("smiyc", Smiyc)):
        curves: dict[str, DetectionCurve] = {}
        places = {score: place for place, score in enumerate(_scores(gatherer, kind))}
        for score in places:
            counts = gatherer.counts(kind, ("scores", score, protocol))
            curve = None if counts is None else smiyc_curve(counts) if kind is Smiyc else detection_curve(counts)
            if curve is not None and not curve.undefined:
                curves[score] = curve
        if not curves:
            continue
        first = next(iter(curves.values()))
        base_rate = first.positives / (first.positives + first.negatives)
        pr = [precision_recall_line(score, curve, places[score]) for score, curve in curves.items()]
        figures[f"precision-recall-{protocol}"] = precision_recall_figure(pr, base_rate, protocol)
        roc = [roc_line(score, curve, places[score]) for score, curve in curves.items()]
        figures[f"roc-{protocol}"] = roc_figure(roc, protocol)
        points |= {f"precision-recall-{protocol}": _points(pr), f"roc-{protocol}": _points(roc)}
        if kind is Pooled:
            figures["score-histograms"] = histogram_figure(
                {score: _histogram(gatherer, score) for score in curves}, ("ID", "OOD")
            )
    return figures


def _histogram(gatherer: Gatherer, score: str) -> Any:
    values = decode_keys(gatherer.forms[score], np.arange(KEYS, dtype=np.uint16))
    counts = gatherer.counts(Pooled, ("scores", score, "pooled"))
    return score_histogram(counts, values, (0.0, 1.0) if stored_as_codes(score) else None)


def _class_figures(gatherer: Gatherer, result: Result, name: str, points: Curves) -> dict[str, Figure]:
    figures = {}
    per_class = result["segmentation"]["per_class"]
    if any(value is not None for value in per_class.values()):
        figures["class-iou"] = class_bars_figure({name: per_class}, {name: result["segmentation"]["miou"]})
    confidence = gatherer.counts(ConfidenceCalibration, ("calibration",))
    if confidence is not None and confidence.any():
        diagram = reliability(bin_counts(confidence, confidence_of_keys(gatherer.forms["msp"])))
        figures["reliability"] = reliability_figure({name: diagram}, {name: result["calibration"]["ece"]}, "pooled")
        filled = diagram.pixels > 0
        columns = {"x": diagram.confidence, "y": diagram.accuracy, "pixels": diagram.pixels}
        points["reliability"] = {name: {key: values[filled].tolist() for key, values in columns.items()}}
    places = {score: place for place, score in enumerate(_scores(gatherer, Selective))}
    counts = {score: gatherer.counts(Selective, ("selective", score)) for score in places}
    curves = {score: risk_coverage(rows) for score, rows in counts.items() if rows is not None and rows.any()}
    curves = {score: curve for score, curve in curves.items() if curve.failures}
    if curves:
        lines = [risk_coverage_line(score, curve, places[score]) for score, curve in curves.items()]
        figures["risk-coverage"] = risk_coverage_figure(lines, "pooled", risk_top(lines))
        pairs = [sparsification_line(score, curve, places[score]) for score, curve in curves.items()]
        figures["sparsification"] = sparsification_figure(pairs, "pooled")
        points |= {"risk-coverage": _points(lines), "sparsification": _points([line for line, _ in pairs])}
    patches = {score: gatherer.counts(Patches, ("selective", score)) for score in places}
    sweeps = {score: sweep(patch_curve(rows)) for score, rows in patches.items() if rows is not None}
    drawn = {score: numbers for score, numbers in sweeps.items() if numbers is not None}
    if drawn:
        figures["patches"] = patch_figure(drawn, WINDOW, "pooled", {score: places[score] for score in drawn})
        points["patches"] = {
            score: {"x": numbers.thresholds.tolist(), "y": numbers.pavpu.tolist()} for score, numbers in drawn.items()
        }
    return figures
