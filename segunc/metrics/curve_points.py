"""ROC and precision-recall curves as arrays, for plots and files.

A curve of millions of pixels can have 65,536 points. Points in the inside of a horizontal or vertical run lie on the
line between their neighbours and are left out: neither the drawing nor an area under the curve changes. ``points``
thins further, for a plot.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.metrics.counting import DetectionCurve

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class CurvePoints:
    """Points of a curve, from the highest threshold down.

    Attributes:
        x: ``[P]`` false positive rate (ROC) or recall (precision-recall), in 0..1, never falling.
        y: ``[P]`` true positive rate (ROC) or precision (precision-recall), in 0..1.
        thresholds: ``[P]`` in the units of the curve they come from (keys or values), as float64; the first is
            infinite: nothing is called anomalous there.
    """

    x: Floats
    y: Floats
    thresholds: Floats


def roc_points(curve: DetectionCurve, points: int | None = None) -> CurvePoints | None:
    """The ROC curve, from (0, 0) to (1, 1): false positive rate and true positive rate.

    Args:
        curve: the curve.
        points: at most so many points, evenly spread over the length of the curve; None keeps its exact shape.

    Returns:
        The points; None without anomalous or without normal pixels.

    Raises:
        InputError: ``points`` is below 2.
    """
    if curve.undefined:
        return None
    true_steps, false_steps = _steps(curve)
    kept = _ends_of_runs(true_steps == 0) & _ends_of_runs(false_steps == 0)
    x = np.concatenate(([0.0], curve.false_positive_rate))
    y = np.concatenate(([0.0], curve.recall))
    return _thinned(x, y, curve, kept, points)


def precision_recall_points(curve: DetectionCurve, points: int | None = None) -> CurvePoints | None:
    """The precision-recall curve, from recall 0 with precision 1 (nothing is called anomalous) to recall 1.

    Its area is by the step rule (:func:`segunc.metrics.counting.average_precision`), so draw it with steps that
    take the precision of their right end.

    Args:
        curve: the curve.
        points: at most so many points, evenly spread over the length of the curve; None keeps its exact shape.

    Returns:
        The points; None without anomalous or without normal pixels.

    Raises:
        InputError: ``points`` is below 2.
    """
    if curve.undefined:
        return None
    true_steps, _ = _steps(curve)
    x = np.concatenate(([0.0], curve.recall))
    y = np.concatenate(([1.0], curve.precision))
    return _thinned(x, y, curve, _ends_of_runs(true_steps == 0), points)


def _steps(curve: DetectionCurve) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    return np.diff(curve.true_positives, prepend=0), np.diff(curve.false_positives, prepend=0)


def _ends_of_runs(run: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Which of the T + 1 points are not between two of the T steps that both belong to a run."""
    kept = np.ones(len(run) + 1, np.bool_)
    kept[1:-1] = ~(run[:-1] & run[1:])
    return kept


def _thinned(
    x: Floats, y: Floats, curve: DetectionCurve, kept: npt.NDArray[np.bool_], points: int | None
) -> CurvePoints:
    thresholds = np.concatenate(([np.inf], curve.thresholds.astype(np.float64)))
    x, y, thresholds = x[kept], y[kept], thresholds[kept]
    if points is not None and points < 2:
        raise InputError(f"a curve of {points} points", "2 or more, or None for its exact shape")
    if points is not None and len(x) > points:
        length = np.concatenate(([0.0], np.cumsum(np.abs(np.diff(x)) + np.abs(np.diff(y)))))
        chosen = np.searchsorted(length, np.linspace(0.0, length[-1], points))
        chosen[[0, -1]] = 0, len(x) - 1
        chosen = np.unique(chosen)
        x, y, thresholds = x[chosen], y[chosen], thresholds[chosen]
    return CurvePoints(x, y, thresholds)
