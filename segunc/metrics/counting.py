"""Counting the pixels of a stored score map by key and label, in one pass over memory.

A histogram of the raw 16-bit patterns is enough: order-preserving keys, the check for NaN and the union of -0.0 and
+0.0 are rearrangements of 65,536 bins, not of millions of pixels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from segunc.data.labels import IGNORE
from segunc.errors import InputError
from segunc.maps.encoding import keys_to_half
from segunc.metrics.pixel_curves import KEYS, Counts, count_rows

_FINITE_KEYS = slice(0x0400, 0xFC00)
_ROW = np.full(256, 3, np.int64)  # normal, anomalous, ignored, anything else
_ROW[[0, 1, IGNORE]] = 0, 1, 2
_PATTERN_OF_KEY = keys_to_half(np.arange(KEYS, dtype=np.uint16)).view(np.uint16)


def count_scores(stored: npt.NDArray[Any], anomaly: npt.NDArray[np.uint8]) -> Counts:
    """Count the labelled pixels of a score map in its stored form, by 16-bit key and label.

    The same counts as :func:`segunc.metrics.pixel_curves.count_keys` of
    :func:`segunc.maps.encoding.score_keys` without the ignored pixels, several times faster.

    Args:
        stored: uint16 or uint8 codes, or floats (taken as float16), any shape.
        anomaly: uint8, the same shape; 0 normal, 1 anomaly, 255 ignored. Ignored scores may be anything.

    Returns:
        int64 ``[2, 65536]``; row 0 normal, row 1 anomalous.

    Raises:
        InputError: the shapes or types do not fit, a label has another value, or a counted score is NaN, infinite or
            beyond the range of float16.
    """
    if stored.shape != anomaly.shape:
        raise InputError(f"scores of shape {stored.shape} and labels of shape {anomaly.shape}", "one label each")
    if anomaly.dtype != np.uint8:
        raise InputError(f"an anomaly label of type {anomaly.dtype}", "uint8")
    floating = np.issubdtype(stored.dtype, np.floating)
    if floating:
        with np.errstate(over="ignore", invalid="ignore"):
            patterns = np.ascontiguousarray(stored, np.float16).view(np.uint16)
    elif stored.dtype in (np.uint8, np.uint16):
        patterns = stored
    else:
        raise InputError(f"a score map of type {stored.dtype}", "uint8, uint16 or a floating type", "convert the map")
    rows = count_rows(anomaly, patterns, _ROW, KEYS)
    if rows[3].any():
        unknown = sorted(set(np.unique(anomaly).tolist()) - {0, 1, IGNORE})
        raise InputError(f"an anomaly label holds the values {unknown[:8]}", "0 normal, 1 anomaly, 255 ignored")
    return _by_key(rows[:2]) if floating else rows[:2].copy()


def _by_key(by_pattern: Counts) -> Counts:
    """Counts by float16 bit pattern as counts by key, with -0.0 made +0.0."""
    counts = by_pattern[:, _PATTERN_OF_KEY]
    if counts[:, _FINITE_KEYS].sum() != counts.sum():
        raise InputError(
            "a score is NaN, infinite or beyond the range of float16",
            "finite values within +-65504",
            "mask such pixels as ignored in the labels or repair the map",
        )
    counts[:, 0x8000] += counts[:, 0x7FFF]
    counts[:, 0x7FFF] = 0
    return counts
