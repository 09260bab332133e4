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
from segunc.metrics.pixel_curves import KEYS, Counts, count_rows

ROW_OF_LABEL = np.minimum(np.arange(256), 2)
"""Row of each label value: 0 normal, 1 anomalous, 2 ignored."""


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
    floating = np.issubdtype(stored.dtype, np.floating)
    if floating:
        with np.errstate(over="ignore", invalid="ignore"):
            patterns = np.ascontiguousarray(stored, np.float16).view(np.uint16)
    elif stored.dtype in (np.uint8, np.uint16):
        patterns = stored
    else:
        raise InputError(f"a score map of type {stored.dtype}", "uint8, uint16 or a floating type", "convert the map")
    check_anomaly_labels(anomaly)
    rows = count_rows(anomaly, patterns, ROW_OF_LABEL, KEYS)
    if not floating:
        return rows[:2].copy()
    counts = order_by_key(rows, exponent_bits=5)
    counts[:, 0x8000] += counts[:, 0x7FFF]  # -0.0 is +0.0
    counts[:, 0x7FFF] = 0
    return counts


def order_by_key(by_pattern: Counts, exponent_bits: int) -> Counts:
    """Counts by the leading bits of a floating-point pattern, rearranged into the order of the values.

    Args:
        by_pattern: int64 ``[R, K]`` by sign, exponent and any number of mantissa bits.
        exponent_bits: of the floating type.

    Returns:
        int64 ``[2, K]``, the first two rows: negative values from the largest magnitude, then positive ones.

    Raises:
        InputError: those rows hold infinity or NaN (the exponents of all ones).
    """
    half = by_pattern.shape[1] // 2
    counts = np.concatenate((by_pattern[:2, : half - 1 : -1], by_pattern[:2, :half]), axis=1)
    beyond = half >> exponent_bits
    if counts[:, :beyond].any() or counts[:, -beyond:].any():
        raise InputError(
            "a score is NaN, infinite or beyond the range of its floating type",
            "finite values, within +-65504 for 16-bit keys",
            "mask such pixels as ignored in the labels or repair the map",
        )
    return counts


def check_anomaly_labels(anomaly: npt.NDArray[np.uint8]) -> None:
    """Raise InputError where labels are not uint8, or one is none of 0 (normal), 1 (anomaly) and 255 (ignored)."""
    if anomaly.dtype != np.uint8:
        raise InputError(f"an anomaly label of type {anomaly.dtype}", "uint8")
    if ((anomaly > 1) & (anomaly != IGNORE)).any():
        unknown = sorted(set(np.unique(anomaly).tolist()) - {0, 1, IGNORE})
        raise InputError(f"an anomaly label holds the values {unknown[:8]}", "0 normal, 1 anomaly, 255 ignored")
