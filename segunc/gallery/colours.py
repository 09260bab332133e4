"""Which colours the pictures of a maps folder have: ranges that all its frames share, and those of
its classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from segunc.colours import (
    PERCENTILES,
    DisplayRange,
    colour_of_class,
    display_range,
    range_of_ends,
    up_to_measured,
)
from segunc.core.errors import InputError
from segunc.data.labels import LabelMap
from segunc.maps.labelled import choose_scores
from segunc.maps.reader import MapsReader
from segunc.scores import SCORES, first_shown

# Frames that the range of an unbounded score is taken from, evenly spaced over the set.
_SAMPLED_FRAMES = 32


def usual_scores(reader: MapsReader) -> list[str]:
    """Return the scores that a page shows where nobody names any: the first to show, entropy and
    epistemic.
    """
    available = choose_scores(reader, None)
    usual = dict.fromkeys((first_shown(available), "entropy", "epistemic"))
    return [score for score in usual if score in available]


def page_ranges(
    reader: MapsReader,
    scores: Sequence[str],
    asked: Mapping[str, tuple[float, float]] | None = None,
) -> dict[str, DisplayRange]:
    """Return the range of each of some scores of a maps folder; it is the same for all frames.

    A range that is asked for comes first, then the fixed range of the score. Whole numbers of other
    tools lie in 0..1. An unbounded score gets the 1st to the 99th percentile of evenly spaced
    frames of the whole set, rounded outwards.
    """
    asked = asked or {}
    choose_scores(reader, list(asked))  # each has maps
    ranges = {}
    for score in scores:
        fixed = SCORES[score].colours if score in SCORES else None
        if score in asked or fixed is not None:
            shown = display_range(score, asked.get(score, fixed))
        else:
            shown = _range_of_set(reader, score)
        ranges[score] = shown
    for score, shown in ranges.items():
        measured = measured_to(reader.manifest, score)
        if measured is not None and score not in asked:
            ranges[score] = _up_to_largest(reader, score, shown, measured)
        else:
            ranges[score] = up_to_measured(shown, measured)
    return ranges


def measured_to(manifest: Mapping[str, Any] | None, score: str) -> float | None:
    """Return up to which value a score was measured; beyond it is extrapolated. None where it is
    measured everywhere.

    Args:
        manifest: of the maps, or None.
        score: its name.
    """
    described = (manifest or {}).get("maps", {}).get(score, {})
    usual = SCORES[score].measured_to if score in SCORES else None  # older maps do not say
    measured: float | None = described.get("measured_to", usual)
    return measured


def _up_to_largest(
    reader: MapsReader, score: str, shown: DisplayRange, measured: float
) -> DisplayRange:
    """Return a range up to the largest value of the run, so that what lies beyond the fixed range
    is told apart.
    """
    high = max(shown.high, math.floor(measured) + 1)
    for record in reader.records.values():
        largest = record.get("max", {}).get(score, 0.0)
        if math.isfinite(largest):
            high = max(high, math.ceil(largest))
    return DisplayRange(shown.low, high, measured_to=measured)


def _range_of_set(reader: MapsReader, score: str) -> DisplayRange:
    """Return the range of a score without a fixed one, of evenly spaced frames of the set."""
    names = [name for name in reader.frames if reader.has(name, score)]
    every = max(1, math.ceil(len(names) / _SAMPLED_FRAMES))
    ends: list[float] = []
    for name in names[::every]:
        try:
            stored = reader.read_stored(name, score)
        except InputError:
            continue  # said where the frame is written
        if stored.dtype.kind == "u":
            return DisplayRange(0, 1)
        counted = np.isfinite(stored)
        kept = reader.kept(stored.shape)
        if kept is not None:  # maps hold 0 where a mask leaves pixels out
            counted &= kept
        finite = stored[counted].astype(np.float32)
        if finite.size:
            ends += np.percentile(finite, PERCENTILES).tolist()
    return range_of_ends(ends)


def class_colours(reader: MapsReader, label_map: LabelMap | None = None) -> list[dict[str, Any]]:
    """Return name and colour of each class id: of the manifest, else of the label map, else numbers
    in the colours of classes without a palette.
    """
    recorded = (reader.manifest or {}).get("classes", {})
    names: Sequence[str] = recorded.get("names", [])
    palette: Sequence[tuple[int, int, int]] = recorded.get("palette", [])
    if label_map is not None and not names:
        names = label_map.classes
        palette = label_map.palette
    if not names:
        names = [f"class {index}" for index in range(255)]
    classes = []
    for index, name in enumerate(names):
        classes.append({"name": str(name), "colour": list(colour_of_class(index, palette))})
    return classes
