"""Parts with their sums and bootstrap replicates: what both passes of an evaluation gather."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from segunc.errors import InputError
from segunc.metrics.labelled_frame import LabelledFrame
from segunc.metrics.parts.base import Part, Path
from segunc.metrics.resampling import Replicates, Resampling, Tally, replicate_numbers

Result = dict[str, Any]
"""The content of ``metrics.json``."""


class Gatherer:
    """Sums the counts of parts over frames; a frame is counted by all parts or by none.

    Args:
        parts: what is counted.
        resampling: of the intervals.
        unit: from a frame's name to the unit that is resampled; None resamples single frames.
    """

    def __init__(
        self, parts: Sequence[Part[Any]], resampling: Resampling, unit: Callable[[str], str] | None = None
    ) -> None:
        self.parts, self.resampling = tuple(parts), resampling
        self.unit = unit or (lambda name: name)
        self.tallies = [Tally(part, resampling) for part in self.parts]
        self.counted = [0] * len(self.parts)
        self.forms: dict[str, str] = {}
        self.units: set[str] = set()

    def add(self, frame: LabelledFrame) -> None:
        """Count a frame.

        Raises:
            InputError: a part cannot count it, or a map is stored in another form than in the frames before; then
                nothing of the frame is counted.
        """
        counts = [part.count(frame) for part in self.parts]
        forms = dict(self.forms)
        for name in frame.stored:
            form = frame.form(name)
            if forms.setdefault(name, form) != form:
                raise InputError(f"the map '{name}' is stored as {form}", f"{forms[name]}, as in the frames before it")
        unit = self.unit(frame.name)
        self.forms = forms
        self.units.add(unit)
        for index, part_counts in enumerate(counts):
            if part_counts is not None:
                self.tallies[index].add(part_counts, unit)
                self.counted[index] += 1

    def merge(self, other: Gatherer) -> None:
        """Add the counts of other frames; the sums are those of one gatherer over all frames, to the last bit.

        Raises:
            InputError: the two do not gather the same, hold a resampled unit in common, or maps of different forms.
        """
        if [p.section for p in self.parts] != [p.section for p in other.parts]:
            raise InputError("two evaluations of different scores or protocols", "the same in both")
        if self.resampling != other.resampling:
            raise InputError(f"intervals by {self.resampling} and {other.resampling}", "the same in both")
        common = self.units & other.units
        if common and self.resampling.replicates:
            raise InputError(f"'{min(common)}' is in both shards", "each resampled unit in one shard")
        for name in self.forms.keys() & other.forms.keys():
            if self.forms[name] != other.forms[name]:
                raise InputError(f"the map '{name}' as {other.forms[name]}", f"{self.forms[name]}, as in both shards")
        self.forms |= other.forms
        self.units |= other.units
        for mine, theirs in zip(self.tallies, other.tallies, strict=True):
            mine.merge(theirs)
        self.counted = [a + b for a, b in zip(self.counted, other.counted, strict=True)]

    def counts(self, kind: type[Part[Any]], section: Path) -> Any:
        """The summed counts of the part of a kind and section; None where no frame was counted."""
        found = [
            t for p, t in zip(self.parts, self.tallies, strict=True) if isinstance(p, kind) and p.section == section
        ]
        return found[0].total if found else None

    def place_numbers(
        self, result: Result, reasons: dict[str, str], incomplete: Callable[[Part[Any], int], str | None]
    ) -> None:
        """Put every number into a result, None with its reason where there is none.

        Args:
            result: is filled.
            reasons: dotted path -> reason, is filled.
            incomplete: why a part that so many frames were counted by has no numbers, or None.
        """
        for part, tally, counted in zip(self.parts, self.tallies, self.counted, strict=True):
            why = incomplete(part, counted)
            numbers = dict.fromkeys(part.names)
            if tally.total is not None and not why:
                numbers |= part.numbers(tally.total, self.forms)
            for name in part.names:
                path = (*part.section, *name)
                _place(result, path, numbers[name])
                if numbers[name] is None:
                    reasons[".".join(path)] = why or part.why(tally.total, name)

    def replicates(self, incomplete: Callable[[Part[Any], int], str | None]) -> Replicates:
        """The numbers of every bootstrap replicate; no paths without resampling."""
        rows: dict[str, npt.NDArray[np.float64]] = {}
        for part, tally, counted in zip(self.parts, self.tallies, self.counted, strict=True):
            if not incomplete(part, counted):
                columns = replicate_numbers(partial(part.numbers, forms=self.forms), tally)
                rows |= {".".join((*part.section, *n)): row for n, row in columns.items() if n not in part.point}
        values = np.stack([*rows.values()]) if rows else np.zeros((0, self.resampling.replicates))
        return Replicates(tuple(rows), values, self.resampling.seed, tuple(sorted(self.units)))


def _place(result: Result, path: Path, value: float | None) -> None:
    for key in path[:-1]:
        result = result.setdefault(key, {})
    result[path[-1]] = value
