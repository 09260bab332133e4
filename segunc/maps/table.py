"""``frames.csv``: the statistics of every frame as a table, made from ``frames.jsonl`` line by line."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path

from segunc.files import PARTIAL_SUFFIX, open_new
from segunc.maps.shards import Shard, iterate_records
from segunc.maps.statistics import STATISTICS

TABLE_NAME = "frames.csv"


def write_frame_table(folder: Path, shards: list[Shard], scores: Sequence[str]) -> Path:
    """Write the table of a maps folder, in source order, by atomic rename.

    The columns are name, index, time (seconds; empty for images), height, width, and ``SCORE.STATISTIC`` for each score;
    a statistic that a score does not have is empty.

    Raises:
        InputError: a line of ``frames.jsonl`` is damaged.
    """
    columns = [(score, statistic) for score in scores for statistic in STATISTICS]
    path = folder / TABLE_NAME
    partial = path.with_name(f".{path.name}{PARTIAL_SUFFIX}")
    with io.TextIOWrapper(open_new(partial), encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["name", "index", "time", "height", "width", *(".".join(column) for column in columns)])
        for record in iterate_records(folder, shards):
            numbers = [record.get(statistic, {}).get(score) for score, statistic in columns]
            rows.writerow([record["name"], record.get("index"), record.get("time"), *record["size"], *numbers])
    os.replace(partial, path)
    return path
