"""What the page knows of every frame without its maps: statistics of a score, and how well labelled objects are seen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

STATISTICS = ("mean", "p99", "max")
"""Statistics of a score over a frame: arithmetic mean, 99th percentile (the smallest value that at least 99 % of
the pixels do not exceed), largest value."""
SHARES = {"any": 0.0, "tenth": 0.1, "half": 0.5, "most": 0.9}
"""Which share of an object's pixels must reach the threshold for it to be found; ``any`` is one pixel."""
SMALLEST_OBJECT = 10
"""Pixels below which a labelled region is taken for a speck of the labelling, unless a frame has no larger one."""

Pixels = npt.NDArray[np.intp]


def frame_statistics(values: npt.NDArray[np.float32]) -> dict[str, float]:
    """:data:`STATISTICS` of a map ``[H, W]`` in its own unit; empty where a value is not finite."""
    if not np.isfinite(values).all():
        return {}
    found = (values.mean(dtype=np.float64), np.percentile(values, 99, method="inverted_cdf"), values.max())
    return {name: rounded(float(value)) for name, value in zip(STATISTICS, found, strict=True)}


def recorded_statistics(record: Mapping[str, Any], score: str) -> dict[str, float]:
    """Every statistic of a score that a line of ``frames.jsonl`` holds as ``{statistic: {score: number}}``."""
    return {
        name: float(entry[score])
        for name, entry in record.items()
        if isinstance(entry, dict) and isinstance(entry.get(score), int | float) and math.isfinite(entry[score])
    }


def labelled_objects(anomaly: npt.NDArray[np.uint8]) -> list[Pixels]:
    """Flat pixel indices of each labelled object: 8-connected regions of label 1 in ``[H, W]``."""
    count, regions = cv2.connectedComponents((anomaly == 1).astype(np.uint8), connectivity=8)
    order = np.argsort(regions, axis=None, kind="stable")
    ends = np.cumsum(np.bincount(regions.ravel(), minlength=count))
    objects = [order[ends[i - 1] : ends[i]] for i in range(1, count)]
    return [pixels for pixels in objects if len(pixels) >= SMALLEST_OBJECT] or objects


def found_up_to(values: npt.NDArray[np.float32], objects: Sequence[Pixels]) -> dict[str, float]:
    """The highest threshold at which every object is found, for each of :data:`SHARES`.

    An object is found at threshold t where at least the share of its pixels have a value >= t. So a frame's objects
    are all found exactly at the thresholds up to the number given here.

    Args:
        values: the score ``[H, W]`` in its own unit.
        objects: :func:`labelled_objects`; at least one.
    """
    flat = values.ravel()
    descending = [np.sort(flat[pixels])[::-1] for pixels in objects]
    return {
        name: float(min(pixels[max(math.ceil(share * len(pixels)), 1) - 1] for pixels in descending))
        for name, share in SHARES.items()
    }


def rounded(value: float) -> float:
    """A statistic with nine digits, which hold a float32."""
    return float(f"{value:.9g}")
