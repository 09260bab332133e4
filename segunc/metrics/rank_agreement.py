"""How far two maps of one frame put its pixels in the same order, whatever their scales are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from segunc.maps.encoding import score_keys

HIGHEST_SHARE = 0.05
"""Share of the pixels of a frame that count as its highest."""
Values = npt.NDArray[Any]


def mean_ranks(values: Values) -> npt.NDArray[np.float64]:
    """Return the rank of each value, from 1 for the lowest; equal values share their mean rank.

    Args:
        values: numbers ``[N]`` without NaN.

    >>> import numpy as np
    >>> mean_ranks(np.array([0.5, 0.1, 0.5]))
    array([2.5, 1. , 2.5])
    """
    if values.dtype == np.float16:
        values = score_keys(values)
    if values.dtype in (np.uint8, np.uint16):
        # Counting is several times faster than sorting.
        places = values
        counts = np.bincount(values)
    else:
        _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    last_ranks = counts.cumsum()
    ranks = last_ranks - (counts - 1) / 2
    return np.asarray(ranks[places], np.float64)


def rank_correlation(first: Values, second: Values) -> float | None:
    """Return Spearman's rank correlation of two scores of the same pixels, -1 to 1.

    It is Pearson's correlation of the ranks (:func:`mean_ranks`).

    Args:
        first, second: finite scores ``[N]``, as values or as they are stored.

    Returns:
        None where all pixels have one score in either.

    >>> import numpy as np
    >>> rank_correlation(np.array([1.0, 2.0, 3.0]), np.array([10.0, 100.0, 1000.0]))
    1.0
    """
    if not first.size:
        return None
    centred_first = _centred(mean_ranks(first))
    centred_second = _centred(mean_ranks(second))
    scale = math.sqrt(centred_first @ centred_first) * math.sqrt(centred_second @ centred_second)
    if scale == 0:
        return None
    return float(np.clip(centred_first @ centred_second / scale, -1, 1))


def _centred(ranks: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return ranks - (len(ranks) + 1) / 2


def highest_overlap(first: Values, second: Values, share: float = HIGHEST_SHARE) -> float | None:
    """Return how far the highest pixels of two scores are the same: the intersection over union of
    both sets, 0 to 1.

    Args:
        first, second: finite scores of the same pixels ``[N]``, as values or as they are stored.
        share: of the pixels that are in a set. Pixels that tie with the last of them are in the
            set, too.

    Returns:
        None where ties make a set larger than twice the share.

    >>> import numpy as np
    >>> highest_overlap(np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 4.0, 2.0, 3.0]), share=0.5)
    0.3333333333333333
    """
    if not first.size:
        return None
    count = math.ceil(share * first.size)
    highest_first = _highest(first, count)
    highest_second = _highest(second, count)
    if max(highest_first.sum(), highest_second.sum()) > 2 * count:
        return None
    union = (highest_first | highest_second).sum()
    return float((highest_first & highest_second).sum() / union)


def _highest(values: Values, count: int) -> npt.NDArray[np.bool_]:
    """Return which values are at or above the ``count``-th largest, bool ``[N]``."""
    place = len(values) - count
    return np.asarray(values >= np.partition(values, place)[place])
