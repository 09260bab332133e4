"""Fractions as whole numbers of steps, so that sums do not depend on their order.

Floating-point sums of shards differ in their last bits from the sum of the whole. A fraction of 1 in steps of 2^-40
(about 1e-12) is rounded once, and from there everything is integer addition: 64 bits hold the sum of 8 million ones.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

STEPS_PER_UNIT = 2**40


def to_steps(fractions: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Numbers of steps of 2^-40, rounded to nearest; the shape of ``fractions``."""
    # Scaling by a power of two is exact; only the rounding loses anything.
    return np.rint(np.asarray(fractions, np.float64) * STEPS_PER_UNIT).astype(np.int64)


def mean_of_steps(steps: int, number: int) -> float | None:
    """Mean of ``number`` fractions whose steps sum to ``steps``; None of no fraction."""
    return int(steps) / (int(number) * STEPS_PER_UNIT) if number else None
