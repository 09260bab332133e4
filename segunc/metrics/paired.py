"""Whether two numbers differ by more than chance, from bootstrap replicates of the same resampled units.

A replicate of a number is the number on a data set whose units (frames, or sequences of neighbouring frames) were
drawn anew. Where replicate r of two numbers rests on the same draw, the spread of their difference leaves out what
both share: a hard frame is hard for both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from segunc.errors import InputError
from segunc.metrics.resampling import LEVEL, MOST_UNDEFINED, Replicates

FEWEST = 40
"""Replicates below which the 2.5 and 97.5 percentiles would be extrapolated: 1 / 0.025."""


@dataclass(frozen=True)
class PairedDifference:
    """What the replicates say of a difference.

    Attributes:
        low: 2.5 percentile of the replicate differences.
        high: 97.5 percentile.
        p_value: two-sided, in 0..1.
        replicates: pairs that were used.
    """

    low: float
    high: float
    p_value: float
    replicates: int

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval lies on one side of zero, and p < 1 - LEVEL."""
        return (self.low > 0 or self.high < 0) and self.p_value < 1 - LEVEL


def paired_difference(first: npt.ArrayLike, second: npt.ArrayLike) -> PairedDifference:
    """The bootstrap interval and p-value of second - first.

    The interval holds the 2.5 and 97.5 percentiles of the replicate differences. The p-value is
    2 min((1 + #{d <= 0}) / (1 + R), (1 + #{d >= 0}) / (1 + R)), at most 1: the percentile interval inverted, with the
    added one that keeps it from being 0 (Davison & Hinkley, Bootstrap Methods and their Application, 1997, eq. 4.11 and section 5.3).

    Args:
        first: replicates ``[R]`` of one number; NaN where a replicate has none.
        second: replicates ``[R]`` of the other, replicate r over the same draw of units.

    Raises:
        InputError: the two differ in length, fewer than FEWEST pairs are numbers, or more than MOST_UNDEFINED are not.
    """
    a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if a.ndim != 1 or a.shape != b.shape:
        raise InputError(f"replicates of the shapes {a.shape} and {b.shape}", "two of one length", "pair them by draw")
    difference = b - a
    difference = difference[np.isfinite(difference)]
    total = len(difference)
    if total < FEWEST or total < (1 - MOST_UNDEFINED) * len(a):
        raise InputError(
            f"{total} of {len(a)} replicates have both numbers",
            f"at least {FEWEST}, and {1 - MOST_UNDEFINED:.0%} of them",
            "evaluate with more replicates, or more frames",
        )
    low, high = np.percentile(difference, [50 * (1 - LEVEL), 50 * (1 + LEVEL)])
    tail = 1 + min(np.count_nonzero(difference <= 0), np.count_nonzero(difference >= 0))
    return PairedDifference(float(low), float(high), min(1.0, float(2 * tail / (total + 1))), total)


def why_not_paired(first: Replicates, second: Replicates) -> str | None:
    """Why replicate r of two evaluations is not over the same draw of units; None where it is."""
    if first.values.shape[1] != second.values.shape[1]:
        return f"{first.values.shape[1]} and {second.values.shape[1]} replicates"
    if first.seed != second.seed:
        return f"resampled with the seeds {first.seed} and {second.seed}"
    if len(first.units) < 2:
        return "a single unit was resampled"
    if first.units != second.units:
        other = sorted(set(first.units) ^ set(second.units))
        detail = f", {other[0]} is in one only" if other else ", in another order"
        return f"other units were resampled ({len(first.units)} and {len(second.units)}{detail})"
    return None
