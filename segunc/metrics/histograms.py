"""Histograms of a score by known and anomalous pixels, from counts by key."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from segunc.errors import InputError
from segunc.metrics.pixel_curves import Counts

HISTOGRAM_BINS = 100


@dataclass(frozen=True)
class ScoreHistogram:
    """Densities of a score over equal-width bins; each integrates to the share of its pixels inside the range.

    Attributes:
        edges: ``[B + 1]`` in the unit of the score.
        density: ``[2, B]`` share of pixels per unit of the score; row 0 normal, row 1 anomalous; NaN for a row without
            pixels.
        pixels: int64 ``[2]`` pixels of each row.
        outside: int64 ``[2]`` those of them that lie outside the range.
    """

    edges: npt.NDArray[np.float64]
    density: npt.NDArray[np.float64]
    pixels: npt.NDArray[np.int64]
    outside: npt.NDArray[np.int64]


def score_histogram(
    counts: Counts,
    values: npt.NDArray[np.floating],
    limits: tuple[float, float] | None = (0.0, 1.0),
    bins: int = HISTOGRAM_BINS,
) -> ScoreHistogram:
    """The histogram of pixels that are counted by a key.

    Args:
        counts: int64 ``[2, K]`` pixels by key; row 0 normal, row 1 anomalous.
        values: ``[K]`` the score that each key stands for; keys without a pixel may be anything.
        limits: the range of the bins, 0..1 for the scores in 0..1; None is from the least to the greatest score.
        bins: B.

    Raises:
        InputError: the range is empty, or there is no pixel and no range.
    """
    used = np.flatnonzero(counts.any(axis=0))
    scores = values[used].astype(np.float64)
    if limits is None:
        if not len(scores):
            raise InputError("a histogram of no pixel", "counts of at least one pixel, or a range")
        limits = float(scores.min()), float(scores.max())
        limits = limits if limits[0] < limits[1] else (limits[0] - 0.5, limits[1] + 0.5)  # a constant score
    if not limits[0] < limits[1]:
        raise InputError(f"a score range of {limits[0]:g}..{limits[1]:g}", "a lower end below the upper one")
    rows = [np.histogram(scores, bins, limits, weights=row[used])[0] for row in counts]
    edges = np.linspace(*limits, bins + 1)
    pixels = counts.sum(axis=1)
    density = np.full((2, bins), np.nan)
    np.divide(np.stack(rows), (pixels * np.diff(edges)[0])[:, None], out=density, where=(pixels > 0)[:, None])
    inside = np.array([int(row.sum()) for row in rows], np.int64)
    return ScoreHistogram(edges, density, pixels.astype(np.int64), pixels.astype(np.int64) - inside)
