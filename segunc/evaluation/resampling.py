"""Bootstrap intervals of numbers that are functions of summed counts, in one pass and constant memory.

A Poisson bootstrap (Chamandy et al. 2012, "Estimating uncertainty for massive data streams"): each resampled unit, a
frame or a group of neighbouring frames, enters replicate r with a weight from Poisson(1). The weights come from the
seed and the unit's name alone. So replicates of shards add to those of the whole, no second pass is needed, and
replicate r of two models over the same frames has the same weights: their differences are paired.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.core.files import write_atomically

Counts = npt.NDArray[np.int64]
Key = TypeVar("Key")
State = TypeVar("State")
LEVEL = 0.95
MOST_UNDEFINED = 0.05
"""Largest share of replicates without a number (no anomaly was drawn, for instance) that leaves an interval."""


@dataclass(frozen=True)
class Resampling:
    """How many replicates, and from which seed.

    Attributes:
        replicates: R; 0 makes no intervals.
        seed: of the weights.
    """

    replicates: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        if self.replicates < 0 or 0 < self.replicates < 40:
            raise InputError(
                f"{self.replicates} bootstrap replicates", "0, or at least 40", "200 is the default, 0 makes none"
            )

    def weights(self, unit: str) -> Counts:
        """How often a unit is in each replicate, int64 ``[R]``; a function of (seed, unit) alone."""
        digest = hashlib.sha256(f"{self.seed}\n{unit}".encode()).digest()
        key = [int.from_bytes(digest[start : start + 8], "little") for start in (0, 8)]
        return np.random.Generator(np.random.Philox(key=key)).poisson(1.0, self.replicates)


class Additive(Protocol[State]):
    """What a tally must know of the counts that it adds."""

    @property
    def batch(self) -> int:
        """Frames whose counts are kept before they are combined."""
        ...

    def combine(self, counts: Sequence[State]) -> State:
        """The sum of counts."""
        ...

    def coarsen(self, counts: State) -> Counts:
        """Counts in the form of the replicates: whole numbers of a fixed shape that add."""
        ...

    def refine(self, coarse: Counts) -> State:
        """Counts again, of that form."""
        ...


class Tally(Generic[State]):
    """A sum of counts with its bootstrap replicates, which are kept in a coarser form because there are many.

    Args:
        kind: how counts add.
        resampling: the replicates.
    """

    def __init__(self, kind: Additive[State], resampling: Resampling) -> None:
        self.kind, self.resampling = kind, resampling
        self._counts: list[State] = []
        self._replicates: Counts | None = None
        self._unit: str | None = None
        self._pending: Counts | None = None

    def add(self, counts: State, unit: str) -> None:
        """Add the counts of a frame that belongs to a resampled unit."""
        self._counts.append(counts)
        if len(self._counts) > self.kind.batch:
            self._counts = [self.kind.combine(self._counts)]
        if not self.resampling.replicates:
            return
        if unit != self._unit:
            self._flush()
            self._unit = unit
        coarse = self.kind.coarsen(counts)
        # Frames of a unit share their weights: one round over the replicates serves the whole unit.
        self._pending = coarse if self._pending is None else self._pending + coarse

    def merge(self, other: Tally[State]) -> None:
        """Add another tally of other frames; the units of both must not be divided between them."""
        self._counts += other._counts
        self._flush()
        theirs = other.replicates
        if theirs is not None:
            self._replicates = theirs.copy() if self._replicates is None else self._replicates + theirs

    @property
    def total(self) -> State | None:
        """The counts of all frames, None before the first."""
        if len(self._counts) > 1:
            self._counts = [self.kind.combine(self._counts)]
        return self._counts[0] if self._counts else None

    @property
    def replicates(self) -> Counts | None:
        """int64 ``[R, ...]`` coarse counts of each replicate; None before the first count or without replicates."""
        self._flush()
        return self._replicates

    def _flush(self) -> None:
        if self._pending is None or self._unit is None:
            return
        weights = self.resampling.weights(self._unit)
        if self._replicates is None:
            self._replicates = np.zeros((len(weights), *self._pending.shape), np.int64)
        for replicate in np.flatnonzero(weights):
            self._replicates[replicate] += weights[replicate] * self._pending
        self._unit = self._pending = None


@dataclass(frozen=True)
class Replicates:
    """The numbers of every bootstrap replicate, for intervals and paired tests.

    Attributes:
        paths: dotted paths of the numbers, P of them.
        values: float64 ``[P, R]``, NaN where a replicate defines no number.
        seed: of the weights.
        units: the resampled units, sorted.
    """

    paths: tuple[str, ...]
    values: npt.NDArray[np.float64]
    seed: int
    units: tuple[str, ...]

    def joined(self, other: Replicates) -> Replicates:
        """These and other numbers of the same replicates."""
        values = np.concatenate([self.values, other.values])
        return Replicates(self.paths + other.paths, values, self.seed, self.units)

    def intervals(self) -> dict[str, list[float]]:
        """The 95 % percentile interval of each number that enough replicates define: dotted path -> [low, high]."""
        found = {}
        for path, row in zip(self.paths, self.values, strict=True):
            defined = row[~np.isnan(row)]
            if len(self.units) > 1 and len(defined) >= (1.0 - MOST_UNDEFINED) * len(row) > 0:
                low, high = np.percentile(defined, [50.0 * (1.0 - LEVEL), 50.0 * (1.0 + LEVEL)])
                found[path] = [float(low), float(high)]
        return found


def resampled_units(how: str) -> Callable[[str], str]:
    """The function from a frame's name to the unit that is resampled.

    Args:
        how: ``frame`` (frames are independent), ``folder`` (frames of one folder stay together), or a regular
            expression: frames with the same match (its first group where it has one) stay together.

    Raises:
        InputError: not a regular expression.
    """
    import re

    if how == "frame":
        return lambda name: name
    if how == "folder":
        return lambda name: name.rpartition("/")[0]
    try:
        pattern = re.compile(how)
    except re.error as error:
        raise InputError(
            f"--resample '{how}' ({error})", "frame, folder or a regular expression", "e.g. '^[^_]+' for a sequence"
        ) from error

    def unit(name: str) -> str:
        found = pattern.search(name)
        if found is None:
            raise InputError(
                f"the regular expression '{how}' finds nothing in the frame name {name}",
                "a match in every name",
                "widen it, or resample frames",
            )
        return str(found.group(1) if pattern.groups else found.group())

    return unit


def replicate_numbers(
    numbers: Callable[[State], dict[Key, float | None]], tally: Tally[State]
) -> dict[Key, npt.NDArray[np.float64]]:
    """The numbers of each replicate of a tally.

    Args:
        numbers: from counts to numbers.
        tally: whose replicates.

    Returns:
        for each number that all frames together define its replicates ``[R]``, NaN where one defines none. They are
        moved by the difference that the coarser counts make over all frames.
    """
    total, replicates = tally.total, tally.replicates
    if total is None or replicates is None:
        return {}
    exact, coarse = numbers(total), numbers(tally.kind.refine(tally.kind.coarsen(total)))
    rows = [numbers(tally.kind.refine(replicate)) for replicate in replicates]
    columns = {}
    for key, value in exact.items():
        near = coarse[key]
        if value is not None and near is not None:
            column = np.array([row[key] for row in rows], np.float64)  # None becomes NaN
            columns[key] = column + (value - near)
    return columns


def sidecar_path(result: Path) -> Path:
    """Where the replicates of a result file lie: ``X.replicates.npz`` beside ``X.json``."""
    return result.with_suffix(".replicates.npz")


def save_replicates(path: Path, replicates: Replicates) -> None:
    """Write replicates as an ``.npz`` that loads without unpickling; the file appears whole.

    Its arrays are ``paths`` ``[P]``, ``values`` ``[P, R]``, ``seed``, and ``clusters``, the resampled units.
    """
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        paths=np.array(replicates.paths, np.str_),
        values=np.asarray(replicates.values, np.float64),
        seed=np.array(replicates.seed, np.int64),
        clusters=np.array(replicates.units, np.str_),
    )
    write_atomically(path, buffer.getvalue())


def load_replicates(path: Path) -> Replicates:
    """Read what :func:`save_replicates` wrote.

    Raises:
        InputError: the file cannot be read, or its arrays are not those of replicates.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            paths, values, seed, clusters = (arrays[name] for name in ("paths", "values", "seed", "clusters"))
    except (OSError, ValueError, EOFError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{path} holds no replicates ({error})", "the sidecar of a result", "evaluate again"
        ) from error
    unfit = [
        name for name, array in (("paths", paths), ("clusters", clusters)) if array.ndim != 1 or array.dtype.kind != "U"
    ]
    if values.ndim != 2 or values.dtype.kind != "f" or len(values) != len(paths):
        unfit.append("values")
    if seed.size != 1 or seed.dtype.kind not in "iu":
        unfit.append("seed")
    if unfit:
        raise InputError(f"{path}: '{unfit[0]}' has another form", "the sidecar of a result", "evaluate again")
    return Replicates(tuple(paths.tolist()), values.astype(np.float64), int(seed), tuple(clusters.tolist()))
