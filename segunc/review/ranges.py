"""The range in which the page shows each score: one for all of its frames."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from segunc.errors import InputError
from segunc.maps.reader import MapsReader
from segunc.review.colormap import DISPLAY_RANGES, DisplayRange, display_range

_LOOKS = 32
"""Frames that the range of an unbounded score is taken from, evenly spaced over the set."""


def page_ranges(
    reader: MapsReader, given: dict[str, tuple[float, float]] | None = None, scores: Sequence[str] | None = None
) -> dict[str, DisplayRange]:
    """The range of each score of a maps folder, or of some of them.

    A range of the user's own comes first, then the fixed range of the score. Whole numbers of other tools lie in 0..1.
    An unbounded score gets the 1st to the 99th percentile of evenly spaced frames of the whole set, rounded outwards:
    it is the same for all frames, so no calm frame looks dangerous.

    Raises:
        InputError: a range for a score that is not there.
    """
    given = given or {}
    unknown = sorted(set(given) - set(reader.scores))
    if unknown:
        raise InputError(f"a range for '{unknown[0]}'", f"one of {', '.join(reader.scores)}", "check the name")
    return {
        score: display_range(score, given.get(score))
        if score in given or score in DISPLAY_RANGES
        else _range_of_set(reader, score)
        for score in (reader.scores if scores is None else scores)
    }


def _range_of_set(reader: MapsReader, score: str) -> DisplayRange:
    names = [name for name in reader.frames if reader.has(name, score)]
    low, high = np.inf, -np.inf
    for name in names[:: max(1, -(-len(names) // _LOOKS))]:
        try:
            stored = reader.read_stored(name, score)
        except InputError:
            continue  # said where the frame is written
        if stored.dtype.kind == "u":
            return DisplayRange(0, 1)
        finite = stored[np.isfinite(stored)].astype(np.float32)
        if finite.size:
            ends = np.percentile(finite, (1, 99))
            low, high = min(low, float(ends[0])), max(high, float(ends[1]))
    if not low < high:
        return DisplayRange(0, 1, open_below=True, open_above=True)
    step = 10.0 ** (np.floor(np.log10(high - low)) - 1)
    low, high = (float(f"{end:.9g}") for end in (np.floor(low / step) * step, np.ceil(high / step) * step))
    return DisplayRange(low, high, open_below=True, open_above=True)
