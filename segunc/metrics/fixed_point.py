"""Reals as whole numbers, so that states add without rounding and shards merge to the whole, to the bit.

A real that a frame contributes is made in float64 and rounded once to a multiple of a power of two; everything after
that is integer addition, which is exact in any order. Two steps serve two kinds of numbers:

* sums over the pixels of a frame, in steps of 2^-18: the rounding moves the sum of a frame by at most 2^-19 = 1.9e-6 of
  a pixel. The largest is a log loss of 87.4 nats a pixel: 10^5 frames of 2^21 pixels reach at most 4.8e18, below the
  9.2e18 of int64;
* fractions of 1 (the AUROC of an image, the sIoU of a component), in steps of 2^-40, about 1e-12: 64 bits hold the sum
  of 8 million ones.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

STEPS_PER_UNIT = 1 << 18
"""A stored sum over pixels of 1.0 is this number."""
STEPS_PER_FRACTION = 1 << 40
"""A stored fraction of 1.0 is this number."""


def to_fixed_point(values: npt.ArrayLike, steps: int = STEPS_PER_UNIT) -> npt.NDArray[np.int64]:
    """The int64 form of float64 values, rounded to nearest; any shape."""
    # Scaling by a power of two is exact; only the rounding loses anything.
    return np.rint(np.asarray(values, np.float64) * steps).astype(np.int64)


def from_fixed_point(stored: npt.NDArray[np.int64], steps: int = STEPS_PER_UNIT) -> npt.NDArray[np.float64]:
    """The float64 values of stored ones, any shape."""
    return stored / steps


def mean_of_fractions(stored: int, number: int) -> float | None:
    """Mean of ``number`` fractions whose stored forms sum to ``stored``; None of no fraction."""
    return int(stored) / (int(number) * STEPS_PER_FRACTION) if number else None
