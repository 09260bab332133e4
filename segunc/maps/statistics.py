"""Statistics of frames, and their table."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from segunc.core.files import replacing
from segunc.maps.encoding import CODE_MAX, Array, decode_unit, keys_to_half, score_keys
from segunc.maps.shards import Shard, iterate_records

PERCENT = 99
TABLE_NAME = "frames.csv"
STATISTICS = ("mean", "max", "p99", "component")
"""Their names in ``frames.jsonl``, each an object of numbers by score."""


class MapStatistics(NamedTuple):
    """Statistics of one map, of its stored values in real units.

    Attributes:
        mean: over all pixels.
        maximum: the largest value.
        p99: the smallest stored value that at least 99 % of the pixels do not exceed.
        component: pixels of the largest 8-connected component of values at or above the threshold; None without one.
    """

    mean: float
    maximum: float
    p99: float
    component: int | None


def map_statistics(
    stored: Array, threshold: float | None = None, kept: npt.NDArray[np.bool_] | None = None
) -> MapStatistics:
    """The statistics of one map.

    Args:
        stored: uint16 codes of a score in 0..1 or float16 values ``[H, W]``.
        threshold: of the component, in the score's unit.
        kept: pixels that count ``[H, W]``; all where None.
    """
    pixels = stored if kept is None else stored[kept]
    counts = np.bincount(score_keys(pixels).ravel(), minlength=CODE_MAX + 1)
    present = np.flatnonzero(counts)
    needed = -(-PERCENT * pixels.size // 100)
    middle = int(np.searchsorted(np.cumsum(counts[present]), needed))
    keys = present[[middle, -1]].astype(np.uint16)
    percentile, maximum = decode_unit(keys) if stored.dtype == np.uint16 else keys_to_half(keys)
    values = decode_unit(stored) if stored.dtype == np.uint16 else stored
    mean = (values if kept is None else values[kept]).mean(dtype=np.float64)

    def short(value: float) -> float:  # nine digits hold a float32; more would be rounding noise of the summation
        return float(f"{float(value):.9g}")

    component = None if threshold is None else largest_component(values >= threshold, kept)
    return MapStatistics(short(mean), short(maximum), short(percentile), component)


def largest_component(high: npt.NDArray[np.bool_], kept: npt.NDArray[np.bool_] | None = None) -> int:
    """Pixels of the largest 8-connected component of a mask ``[H, W]``, 0 where it is empty."""
    mask = (high if kept is None else high & kept).astype(np.uint8)
    if not mask.any():
        return 0
    return int(cv2.connectedComponentsWithStats(mask, connectivity=8)[2][1:, cv2.CC_STAT_AREA].max())


def write_frame_table(folder: Path, shards: list[Shard], scores: Sequence[str]) -> None:
    """Write the table of a maps folder, in source order, by atomic rename.

    The columns are name, index, time (seconds; empty for images), height, width, and ``SCORE.STATISTIC`` for each score;
    a statistic that a score does not have is empty.
    """
    columns = [(score, statistic) for score in scores for statistic in STATISTICS]
    with replacing(folder / TABLE_NAME) as file, io.TextIOWrapper(file, encoding="utf-8", newline="") as text:
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(["name", "index", "time", "height", "width", *(".".join(column) for column in columns)])
        for record in iterate_records(folder, shards):
            numbers = [record.get(statistic, {}).get(score) for score, statistic in columns]
            rows.writerow([record["name"], record.get("index"), record.get("time"), *record["size"], *numbers])
