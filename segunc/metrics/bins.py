"""Bins for scores that 16 bits cannot hold, so that the ranks of pixels are those of the stored numbers.

The float32 scores 98.01 and 98.02 are one float16. So the maps of another tool are read twice. The first pass collects the edges of
bins: the distinct scores of the *positive* pixels (anomalous or wrongly predicted ones), the next number after each, and samples of
the *negative* ones. The second pass counts the pixels of each bin.

Then every positive score has a bin of its own, and no number is changed by what lies between two of them: a run of negative pixels
gives the same AUROC, AUPR, FPR95, best F1 and risks whether its scores are told apart or not. Where the distinct positive scores are
too many, they are sampled too. Then a bin holds about one in MOST_BINS of the pixels, which bounds the errors of AUROC and FPR95, and
the pixels that are merged with other scores of the other kind are counted (:meth:`ScoreBins.merged`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.metrics.counting import Counts

MOST_BINS = 1 << 20
"""Of a score: all of half as many distinct positive scores, else samples, by which numbers were off by at most 1e-6."""
MOST_CELLS = 1 << 26
"""Counts that all parts of an evaluation hold together, 512 MiB; with very many parts each score has fewer bins."""
NEGATIVE_EDGES = 1 << 12
"""Sampled scores of negative pixels where every positive score is an edge: they only shape histograms."""

Scores = npt.NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class ScoreBins:
    """Bins of a score: bin i holds the scores from edge i on, below edge i + 1."""

    edges: Scores  # [K] float32 or float64, rising; the first and the last are the lowest and the highest score
    centre: float  # the mean score

    def __str__(self) -> str:
        return "float"  # the form of these maps, as a result names it

    def keys(self, scores: Scores) -> npt.NDArray[np.intp]:
        """Return the bin of each score, of any shape."""
        return np.asarray(np.searchsorted(self.edges, scores, side="right") - 1)

    def count(self, scores: Scores, rows: npt.NDArray[np.uint8]) -> Counts:
        """Return the pixels of each bin, int64 ``[2, K]``, as :func:`segunc.metrics.counting.count_scores` does by key."""
        # The edges are looked up among the sorted pixels, which is faster than the other way round.
        below = [np.searchsorted(np.sort(part), self.edges) for part in _parts(scores, rows)]
        sizes = np.array([[np.count_nonzero(rows == row)] for row in (0, 1)])
        return np.diff(below, append=sizes).astype(np.int64)

    def merged(self, counts: Counts) -> int:
        """Return how many pixels of counts ``[2, K]`` share a bin with another score of the other kind, as if all were equal."""
        wide = np.append(self.edges[1:] > np.nextafter(self.edges[:-1], self.edges.dtype.type(np.inf)), False)
        return int(counts[:, wide & counts.all(axis=0)].sum())

    @property
    def middles(self) -> Scores:
        """A score of each bin ``[K]``, for pictures."""
        return self.edges / 2 + np.append(self.edges[1:], self.edges[-1]) / 2

    @cached_property
    def scale(self) -> float:
        """The spread of the scores; (score - centre) / scale is within the range of float16, which is finest at the mean."""
        low, high = np.quantile(self.edges, (0.25, 0.75)).tolist()
        farthest = max(float(self.edges[-1]) - self.centre, self.centre - float(self.edges[0]))
        return max(high - low, farthest / 6e4) or 1.0


class BinFinder:
    """Collects the edges of a score over all frames, in bounded memory.

    Args:
        rows: of counts by bin that an evaluation holds.
        most: how many bins there may be.
    """

    def __init__(self, rows: int = 0, most: int = MOST_BINS) -> None:
        self._most = min(most, max(MOST_CELLS // max(rows, 1), 4 * NEGATIVE_EDGES))
        self._samples = _Sample(3 * self._most // 4), _Sample(self._most // 4)
        self._positive: Scores = np.zeros(0, np.float32)  # distinct scores; the highest where they are too many
        self._all = True

    def add(self, scores: Scores, rows: npt.NDArray[np.uint8]) -> None:
        """Take in a frame; InputError as of :meth:`ScoreBins.count`."""
        parts = _parts(scores, rows)
        for sample, part in zip(self._samples, parts, strict=True):
            sample.add(part)
        self._positive = np.unique(np.concatenate([self._positive, parts[1]]))
        self._all &= 2 * len(self._positive) <= self._most
        if not self._all:  # precision changes fastest among the highest scores
            self._positive = self._positive[-self._most // 32 :]

    def bins(self) -> ScoreBins | None:
        """Return the bins of all frames so far; None without a labelled pixel."""
        pixels, (negative, positive) = sum(sample.pixels for sample in self._samples), self._samples
        if not pixels:
            return None
        ends = min(negative.low, positive.low), max(negative.high, positive.high)
        above = np.nextafter(self._positive, self._positive.dtype.type(np.inf))
        some = negative.scores[:: max(1, len(negative.scores) // NEGATIVE_EDGES)]
        parts = [self._positive, above, *((some,) if self._all else (negative.scores, positive.scores))]
        edges = np.unique(np.concatenate([*parts, np.array(ends, np.result_type(*parts))]))
        return ScoreBins(edges[edges <= ends[1]], (negative.total + positive.total) / pixels)


class _Sample:
    """One of n scores of one kind of pixels, at most ``most``; n grows by doubling."""

    def __init__(self, most: int) -> None:
        self.most, self.step, self.random = most, 1, np.random.default_rng(0)
        self.scores: Scores = np.zeros(0, np.float32)
        self.pixels, self.total, self.low, self.high = 0, 0.0, np.inf, -np.inf

    def add(self, scores: Scores) -> None:
        if not len(scores):
            return
        # From where the last frame ended, so that small frames are not passed over, and not the same columns of each row.
        places = np.arange(-self.pixels % self.step, len(scores), self.step)
        places = np.minimum(places + self.random.integers(self.step, size=len(places)), len(scores) - 1)
        self.scores = np.concatenate([self.scores, scores[places]])
        while len(self.scores) > self.most:
            self.scores, self.step = np.sort(self.scores)[::2], 2 * self.step
        self.pixels, self.total = self.pixels + len(scores), self.total + float(scores.sum(dtype=np.float64))
        self.low, self.high = min(self.low, float(scores.min())), max(self.high, float(scores.max()))


def _parts(scores: Scores, rows: npt.NDArray[np.uint8]) -> list[Scores]:
    """The scores of row 0 and of row 1, float32 or float64; InputError where one is NaN or infinite."""
    wide = scores.astype(np.float32) if scores.dtype == np.float16 else scores
    parts = [wide[rows == row] for row in (0, 1)]
    if not all(np.isfinite(part).all() for part in parts):
        remedy = "mask such pixels as ignored in the labels or repair the map"
        raise InputError("a score is NaN or infinite", "finite values", remedy)
    return parts
