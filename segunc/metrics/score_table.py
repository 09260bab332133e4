"""How many positive and negative pixels have each score: a table in constant memory, that adds.

A table holds each distinct score once, by an order-preserving 64-bit key of its float64 value, with
the pixels that have it. So every curve made of it is exact. At most :data:`MAX_DISTINCT` scores are
told apart: as many as the bins of :mod:`segunc.metrics.counting` do, positive and negative ones
together. All maps of this package have fewer, because they hold 16 bits. Of more scores, keys lose
low bits: as few as are needed, the same number for all keys, so that a bin holds the scores from
its key up. This number depends on the set of all scores alone. So no order of pixels and no
division between processes changes a bit of the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from segunc.metrics.counting import MAX_BINS, DetectionCurve, detection_curve

MAX_DISTINCT = MAX_BINS // 2 + MAX_BINS // 4
"""Scores that a table tells apart: all positive and all negative ones that the two samples of
:class:`segunc.metrics.counting.BinFinder` hold."""
STRIP = 1 << 18  # pixels that are sorted at a time
_SIGN_FREE = (1 << 63) - 1
_HALVES = 1 << 16  # patterns of float16


@dataclass(frozen=True)
class ScoreTable:
    """Pixels by score.

    Attributes:
        keys: of the distinct scores, rising, int64 ``[K]``.
        negatives: pixels that have it, int64 ``[K]``.
        positives: likewise, int64 ``[K]``.
        level: low bits of each key that are 0, because there were too many scores.
    """

    keys: Tensor
    negatives: Tensor
    positives: Tensor
    level: int = 0

    @classmethod
    def empty(cls, device: torch.device | str = "cpu", level: int = 0) -> ScoreTable:
        """Return a table of no pixel, whose keys lose the low bits of a level."""
        nothing = torch.zeros(0, dtype=torch.int64, device=device)
        return cls(nothing, nothing, nothing, level)

    def with_pixels(self, scores: Tensor, positive: Tensor) -> ScoreTable:
        """Return this table with more pixels, of their finite scores ``[n]`` and bool ``[n]``."""
        table = self
        for start in range(0, len(scores), STRIP):
            strip = slice(start, start + STRIP)
            table = merged([table, _counted(scores[strip], positive[strip], table.level)])
        return table

    def curve(self) -> DetectionCurve:
        """Return the curve over the scores, float64, from the highest down."""
        counts = torch.stack([self.negatives, self.positives]).cpu().numpy()
        curve = detection_curve(counts)
        values = values_of_keys(self.keys).cpu().numpy()
        return DetectionCurve(
            values[curve.thresholds.astype(np.int64)], curve.true_positives, curve.false_positives
        )

    def counts(self) -> Tensor:
        """Return the pixels by score ``[2, K]``, negative ones first."""
        return torch.stack([self.negatives, self.positives])

    def auroc_error(self) -> float:
        """Return how far the AUROC may be off because keys lost bits; 0 where none did."""
        pixels = float(self.positives.sum()) * float(self.negatives.sum())
        if not self.level or not pixels:
            return 0.0
        tied = (self.positives.double() * self.negatives.double()).sum()
        return float(tied) / 2 / pixels


def keys_of_values(values: Tensor) -> Tensor:
    """Return the int64 keys of floats: equal values have equal keys, higher ones higher keys."""
    bits = (values.double() + 0.0).view(torch.int64)  # -0.0 + 0.0 = +0.0
    return bits ^ ((bits >> 63) & _SIGN_FREE)


def values_of_keys(keys: Tensor) -> Tensor:
    """Return the float64 values of :func:`keys_of_values`."""
    return (keys ^ ((keys >> 63) & _SIGN_FREE)).view(torch.float64)


def merged(tables: Sequence[ScoreTable]) -> ScoreTable:
    """Return the sum of tables."""
    level = max(table.level for table in tables)
    keys = [_floored(table.keys, level - table.level, level) for table in tables]
    largest = max(range(len(tables)), key=lambda number: len(keys[number]))
    distinct = keys[largest]
    if not all(_holds(distinct, keys[number]) for number in range(len(tables))):
        distinct = torch.unique(torch.cat(keys))
    if len(distinct) > MAX_DISTINCT:
        level = _level_for(distinct, level)
        distinct = torch.unique_consecutive(distinct >> level << level)
        keys = [each >> level << level for each in keys]
    negatives = torch.zeros_like(distinct)
    positives = torch.zeros_like(distinct)
    for table, table_keys in zip(tables, keys, strict=True):
        places = torch.searchsorted(distinct, table_keys)
        negatives.index_add_(0, places, table.negatives)
        positives.index_add_(0, places, table.positives)
    return ScoreTable(distinct, negatives, positives, level)


def _floored(keys: Tensor, lost: int, level: int) -> Tensor:
    """Return keys without their low bits; they lose none where no more are ``lost``."""
    return keys >> level << level if lost else keys


def _holds(distinct: Tensor, keys: Tensor) -> bool:
    """Return whether rising keys are distinct, and hold all of some other keys."""
    if keys is distinct:
        return bool((keys[1:] > keys[:-1]).all())
    if not len(keys):
        return True
    places = torch.searchsorted(distinct, keys).clamp_(max=len(distinct) - 1)
    return bool((distinct[places] == keys).all())


def _level_for(distinct: Tensor, level: int) -> int:
    """Return how many low bits rising keys must lose to be few enough."""
    differing = distinct[1:] ^ distinct[:-1]
    low, high = level, 63
    while low < high:
        middle = (low + high) // 2
        if int(((differing >> middle) != 0).sum()) + 1 <= MAX_DISTINCT:
            high = middle
        else:
            low = middle + 1
    return low


def _counted(scores: Tensor, positive: Tensor, level: int) -> ScoreTable:
    """Return the table of some pixels, whose keys lose the low bits of a level."""
    halves = scores.half()
    if scores.dtype == torch.float16 or bool((halves == scores).all()):
        return _counted_halves(halves, positive, level)
    keys = keys_of_values(scores)
    if level:
        keys = keys >> level << level
    distinct, places = torch.unique(keys, return_inverse=True)
    of_all = torch.bincount(places, minlength=len(distinct))
    of_positives = torch.bincount(places[positive], minlength=len(distinct))
    return ScoreTable(distinct, of_all - of_positives, of_positives, level)


def _counted_halves(halves: Tensor, positive: Tensor, level: int) -> ScoreTable:
    """Count scores that float16 holds by their 16 bits, which is faster than to sort them."""
    patterns = (halves + 0.0).view(torch.int16).long() & (_HALVES - 1)
    patterns += positive.long() * _HALVES
    counts = torch.bincount(patterns, minlength=2 * _HALVES).view(2, _HALVES)
    used = counts.any(0).nonzero()[:, 0]
    values = torch.where(used >= _HALVES // 2, used - _HALVES, used).to(torch.int16)
    keys = keys_of_values(values.view(torch.float16))
    order = keys.argsort()
    used = used[order]
    table = ScoreTable(keys[order], counts[0, used], counts[1, used])
    return merged([table, ScoreTable.empty(halves.device, level)]) if level else table
