"""Pixels with keys of their own choice."""

from __future__ import annotations

import numpy as np

from segunc.metrics.counting import KEYS, Counts


def count_keys(keys: np.ndarray, rows: np.ndarray) -> Counts:
    """Pixels by uint16 key and by row (0 or 1), int64 ``[2, 65536]``."""
    return np.stack([np.bincount(keys[rows == row], minlength=KEYS) for row in (0, 1)])
