"""Bins for float scores that 16 bits cannot hold, so that pixels are ranked by the numbers that are stored.

The float32 scores 98.01 and 98.02 are one float16. So the maps of another tool are read twice. The first pass samples the scores of
the *positive* pixels (anomalous or wrongly predicted ones) and of the *negative* ones; these are the edges of the bins. The second
pass counts the pixels of each bin.

Where all positive scores fit into the sample, each has a bin of its own, and no number is changed by what lies between two of them:
a run of negative pixels gives the same AUROC, AUPR, FPR95, best F1 and risks whether its scores are told apart or not. Where they are
too many, a bin holds about one in MAX_BINS of the pixels, which bounds the errors of AUROC and FPR95 (measured: at most 1e-6).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.metrics.counting import Counts

MAX_BINS, MIN_BINS = 1 << 20, 1 << 14  # of one score
MAX_CELLS = (
    1 << 26
)  # counts that all parts of an evaluation hold together, 512 MiB; with many parts a score has fewer bins

Scores = npt.NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class ScoreBins:
    """Bins of a score: bin i holds the scores from edge i on, below edge i + 1."""

    edges: Scores  # [K] float32 or float64, rising; the first and the last are the lowest and the highest score

    def __str__(self) -> str:
        return "float"  # how a result names the form of these maps

    def keys(self, scores: Scores) -> npt.NDArray[np.intp]:
        """Return the bin of each score, of any shape."""
        return np.asarray(np.searchsorted(self.edges, scores, side="right") - 1)

    def count(self, scores: Scores, rows: npt.NDArray[np.uint8]) -> Counts:
        """Count the pixels of each bin, int64 ``[2, K]``, as :func:`segunc.metrics.counting.count_scores` does by key."""
        # Looking up the edges among the sorted pixels is faster than the other way round.
        below = [np.searchsorted(np.sort(part), self.edges) for part in _split(scores, rows)]
        sizes = np.array([[np.count_nonzero(rows == row)] for row in (0, 1)])
        return np.diff(below, append=sizes).astype(np.int64)


class BinFinder:
    """Collects the edges of at most ``most`` bins of a score over all frames; ``rows`` of counts by bin are held by the evaluation."""

    def __init__(self, rows: int = 0, most: int = MAX_BINS) -> None:
        most = min(most, max(MAX_CELLS // max(rows, 1), MIN_BINS))
        self._samples = _Sample(most // 2), _Sample(most // 4)  # a positive score takes two edges

    def add(self, scores: Scores, rows: npt.NDArray[np.uint8]) -> None:
        """Take in a frame; raises InputError where a labelled score is NaN or infinite."""
        for sample, part in zip(self._samples, _split(scores, rows), strict=True):
            sample.add(part)

    def bins(self) -> ScoreBins | None:
        """Return the bins of all frames so far; None without a labelled pixel."""
        negative, positive = self._samples
        if not negative.pixels and not positive.pixels:
            return None
        ends = min(negative.low, positive.low), max(negative.high, positive.high)
        above = np.nextafter(positive.scores, positive.scores.dtype.type(np.inf))
        parts = (positive.scores, above, negative.scores)
        edges = np.unique(np.concatenate([*parts, np.array(ends, np.result_type(*parts))]))
        return ScoreBins(edges[edges <= ends[1]])


class _Sample:
    """Every n-th score of one kind of pixels, at most ``most`` of them; n doubles as pixels come in."""

    def __init__(self, most: int) -> None:
        self.most, self.step, self.random = most, 1, np.random.default_rng(0)
        self.scores: Scores = np.zeros(0, np.float32)
        self.pixels, self.low, self.high = 0, np.inf, -np.inf

    def add(self, scores: Scores) -> None:
        if not len(scores):
            return
        # From where the last frame ended, so that small frames are not passed over, and not the same columns of each row.
        picked = np.arange(-self.pixels % self.step, len(scores), self.step)
        picked = np.minimum(picked + self.random.integers(self.step, size=len(picked)), len(scores) - 1)
        self.scores = np.concatenate([self.scores, scores[picked]])
        if self.step == 1:
            self.scores = np.unique(self.scores)
        while len(self.scores) > self.most:
            self.scores, self.step = np.sort(self.scores)[::2], 2 * self.step
        self.pixels += len(scores)
        self.low, self.high = min(self.low, float(scores.min())), max(self.high, float(scores.max()))


def _split(scores: Scores, rows: npt.NDArray[np.uint8]) -> list[Scores]:
    """Return the scores of row 0 and of row 1, float32 or float64; raises InputError where one is NaN or infinite."""
    wide = scores.astype(np.float32) if scores.dtype == np.float16 else scores
    parts = [wide[rows == row] for row in (0, 1)]
    if not all(np.isfinite(part).all() for part in parts):
        hint = "repair the map, or mark such pixels as ignored in the labels"
        raise InputError("a score is NaN or infinite", hint=hint)
    return parts
