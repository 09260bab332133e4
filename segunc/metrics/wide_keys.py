"""20-bit keys of float32 scores: the pooled curve at twice the resolution of float16 and the range of float32.

A key is the sign, the exponent and the first 11 of the 23 mantissa bits, in an order-preserving form. Scores of one key
differ by less than 2^-11 (4.9e-4) of their value, half the spacing of float16, which besides overflows at 65,504 and
loses digits below 6.1e-5. Scores are not rounded to nearest but down to the lower edge of their key, so a threshold
that comes back from a key is an inclusive lower edge in exact float32: ``score >= edge`` holds where ``key >= k``.

What the keys can change: pairs of an anomalous and a normal pixel that share a key count as ties. The AUROC of the
unrounded scores therefore lies within :func:`auroc_error_bound` of the one of the keys, and every point of the curve
of the keys is a point of the exact curve.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.metrics.counting import ROW_OF_LABEL, Counts, DetectionCurve, check_anomaly_labels, count_rows, order_by_key

WIDE_KEYS = 1 << 20
"""Number of 20-bit keys."""
RELATIVE_WIDTH = 2.0**-11
"""Largest relative distance of two normal float32 scores of one key."""
_DROPPED_BITS = np.uint32(12)


def wide_keys(scores: npt.NDArray[np.floating]) -> npt.NDArray[np.uint32]:
    """Order-preserving 20-bit keys of scores; the shape of ``scores``.

    Args:
        scores: floats, rounded to float32 first; -0.0 is taken as +0.0.

    Raises:
        InputError: a value is NaN, infinite or beyond the range of float32, or the type is no floating type.
    """
    with np.errstate(over="ignore"):
        single = _singles(scores)
    if not np.isfinite(single).all():
        raise InputError("a score is NaN, infinite or beyond the range of float32", "finite values", "repair the map")
    bits = single.view(np.uint32)
    ordered = np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31))
    return np.asarray(ordered >> _DROPPED_BITS, np.uint32)


def wide_key_edges(keys: npt.NDArray[np.unsignedinteger]) -> npt.NDArray[np.float32]:
    """Inclusive lower edges of keys: the smallest float32 score that has each key; the shape of ``keys``."""
    ordered = keys.astype(np.uint32) << _DROPPED_BITS
    bits = np.where(ordered >> 31, ordered & 0x7FFFFFFF, ~ordered).astype(np.uint32)
    return bits.view(np.float32)


def count_wide_scores(scores: npt.NDArray[np.floating], anomaly: npt.NDArray[np.uint8]) -> Counts:
    """Count the labelled pixels of a float score map by 20-bit key and label.

    Args:
        scores: floats, any shape. Ignored scores may be anything.
        anomaly: the same shape; 0 normal, 1 anomaly, 255 ignored.

    Returns:
        int64 ``[2, 1048576]`` (16 MiB); row 0 normal, row 1 anomalous. Counts add.

    Raises:
        InputError: the shapes differ, a label has another value, or a counted score has no key.
    """
    if scores.shape != anomaly.shape:
        raise InputError(f"scores of shape {scores.shape} and labels of shape {anomaly.shape}", "one label each")
    check_anomaly_labels(anomaly)
    with np.errstate(over="ignore", invalid="ignore"):
        patterns = _singles(scores).view(np.uint32) >> _DROPPED_BITS
    rows = count_rows(anomaly, patterns, ROW_OF_LABEL, WIDE_KEYS)
    return order_by_key(rows, exponent_bits=8)


def _singles(scores: npt.NDArray[np.floating]) -> npt.NDArray[np.float32]:
    if not np.issubdtype(scores.dtype, np.floating):
        raise InputError(
            f"scores of type {scores.dtype} for 20-bit keys", "floats", "codes are exact with 16-bit keys already"
        )
    return np.asarray(scores.astype(np.float32, copy=False) + np.float32(0.0), np.float32)  # -0.0 + 0.0 = +0.0


def auroc_error_bound(curve: DetectionCurve) -> float | None:
    """How far the AUROC of unrounded scores can lie from the AUROC of their keys, at most; in 0..0.5.

    Half of the share of pairs (anomalous, normal) that share a key: each counts one half, and could be 0 or 1.
    None without anomalous or without normal pixels.
    """
    if curve.undefined:
        return None
    anomalous = np.diff(curve.true_positives, prepend=0) / curve.positives
    normal = np.diff(curve.false_positives, prepend=0) / curve.negatives
    return float(np.sum(anomalous * normal)) / 2.0
