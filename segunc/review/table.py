"""The table of all frames: one column for each number, because ten thousand rows of names and keys would be slow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from segunc.review.frame_files import FrameRow
from segunc.review.statistics import SHARES


def frame_table(rows: Sequence[FrameRow], scores: Sequence[str], times: Sequence[float | None]) -> dict[str, Any]:
    """The columns of the page's table, each with one entry a frame and null where there is none.

    Args:
        rows: the frames in source order.
        scores: the scores written.
        times: seconds from the start of a video, None for frames without.
    """
    kinds = sorted({tuple(row.contents) for row in rows})
    kind_of = {kind: index for index, kind in enumerate(kinds)}
    return {
        "names": [row.name for row in rows],
        "places": [row.place for row in rows],
        "times": list(times) if any(time is not None for time in times) else None,
        "sizes": [list(row.size) if row.size else None for row in rows],
        "kinds": [list(kind) for kind in kinds],
        "kind": [kind_of[tuple(row.contents)] for row in rows],
        "objects": [row.objects for row in rows],
        "statistics": _statistics(rows, scores, lambda row: row.statistics),
        "other": _statistics(rows, scores, lambda row: row.other),
        "found": {
            score: {share: [row.found.get(score, {}).get(share) for row in rows] for share in SHARES}
            for score in scores
            if any(score in row.found for row in rows)
        },
        "problems": {str(index): row.problems for index, row in enumerate(rows) if row.problems},
    }


def _statistics(
    rows: Sequence[FrameRow], scores: Sequence[str], read: Callable[[FrameRow], dict[str, dict[str, float]]]
) -> dict[str, dict[str, list[float | None]]]:
    """Score -> statistic -> column."""
    found = {}
    for score in scores:
        entries = [read(row).get(score, {}) for row in rows]
        # The order in which they first occur: mean, p99, max, then what the record of a frame adds.
        names = dict.fromkeys(name for entry in entries for name in entry)
        if names:
            found[score] = {name: [entry.get(name) for entry in entries] for name in names}
    return found
