"""Bootstrap intervals of numbers that are functions of summed counts, and whether two numbers differ beyond chance.

A Poisson bootstrap (Chamandy et al. 2012, "Estimating uncertainty for massive data streams"): each resampled unit, a
frame or a group of neighbouring frames, enters replicate r with a weight from Poisson(1), a function of the seed and the
unit's name alone. So no second pass is needed, and replicate r of two models over the same frames has the same weights:
their differences are paired, and the spread of a difference leaves out what both share (a hard frame is hard for both).
"""

from __future__ import annotations

import hashlib
import io
import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.core.files import write_atomically

LEVEL = 0.95
MOST_UNDEFINED = 0.05  # share of replicates without a number (no anomaly was drawn, say) that leaves an interval
FEWEST = 40  # replicates below which the 2.5 and 97.5 percentiles would be extrapolated: 1 / 0.025
NumberPath = tuple[str, ...]  # of a number in a result: ("scores", "entropy", "pooled", "auroc"); dotted in a file


@dataclass(frozen=True)
class Resampling:
    """How many replicates R (0 makes no intervals), and from which seed of the weights."""

    replicates: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        if self.replicates < 0 or 0 < self.replicates < FEWEST:
            given = f"{self.replicates} bootstrap replicates"
            raise InputError(given, f"0, or at least {FEWEST}", "200 is the default, 0 makes none")

    def weights(self, unit: str) -> npt.NDArray[np.int64]:
        """How often a unit is in each replicate, int64 ``[R]``; a function of (seed, unit) alone."""
        digest = hashlib.sha256(f"{self.seed}\n{unit}".encode()).digest()
        key = [int.from_bytes(digest[start : start + 8], "little") for start in (0, 8)]
        return np.random.Generator(np.random.Philox(key=key)).poisson(1.0, self.replicates)


def resampled_units(how: str) -> Callable[[str], str]:
    """The function from a frame's name to the unit that is resampled.

    That is the ``frame``, its ``folder``, or what a regular expression finds in the name (its first group, where it has one).
    InputError: not a regular expression; from the function, one that finds nothing.
    """
    if how == "frame":
        return lambda name: name
    if how == "folder":
        return lambda name: name.rpartition("/")[0]
    try:
        pattern = re.compile(how)
    except re.error as error:
        expected, remedy = "frame, folder or a regular expression", "e.g. '^[^_]+' for a sequence"
        raise InputError(f"--resample '{how}' ({error})", expected, remedy) from error

    def unit(name: str) -> str:
        found = pattern.search(name)
        if found is None:
            given = f"the regular expression '{how}' finds nothing in the frame name {name}"
            raise InputError(given, "a match in every name", "widen it, or resample frames")
        return str(found.group(1) if pattern.groups else found.group())

    return unit


def _interval(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    """The percentiles between which a share LEVEL of the values lies."""
    low, high = np.percentile(values, [50.0 * (1.0 - LEVEL), 50.0 * (1.0 + LEVEL)])
    return float(low), float(high)


@dataclass(frozen=True)
class Replicates:
    """The numbers of every bootstrap replicate: their dotted paths, values float64 ``[P, R]`` (NaN where a replicate defines no
    number), the seed of the weights, and the resampled units, sorted."""

    paths: tuple[str, ...]
    values: npt.NDArray[np.float64]
    seed: int
    units: tuple[str, ...]

    def of(self, path: NumberPath) -> npt.NDArray[np.float64] | None:
        """The replicates ``[R]`` of a number, None where there are none."""
        dotted = ".".join(path)
        return self.values[self.paths.index(dotted)] if dotted in self.paths else None

    def joined(self, other: Replicates) -> Replicates:
        """These and other numbers of the same replicates."""
        values = np.concatenate([self.values, other.values])
        return replace(self, paths=self.paths + other.paths, values=values)

    def intervals(self) -> dict[str, list[float]]:
        """The 95 % percentile interval of each number that enough replicates define: dotted path -> [low, high]."""
        found = {}
        for path, row in zip(self.paths, self.values, strict=True):
            defined = row[~np.isnan(row)]
            if len(self.units) > 1 and len(defined) >= (1.0 - MOST_UNDEFINED) * len(row) > 0:
                found[path] = [*_interval(defined)]
        return found


@dataclass(frozen=True)
class PairedDifference:
    """What the replicates say of a difference: its 2.5 and 97.5 percentiles, the two-sided p-value in 0..1, and from how many
    pairs."""

    low: float
    high: float
    p_value: float
    replicates: int

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval lies on one side of zero, and p < 1 - LEVEL."""
        return (self.low > 0 or self.high < 0) and self.p_value < 1 - LEVEL


def paired_difference(first: npt.ArrayLike, second: npt.ArrayLike) -> PairedDifference:
    """The bootstrap interval and p-value of second - first, from replicates ``[R]`` of two numbers over the same draws of units;
    NaN where a replicate has none.

    The p-value is 2 min((1 + #{d <= 0}) / (1 + R), (1 + #{d >= 0}) / (1 + R)), at most 1: the percentile interval inverted,
    with the added one that keeps it from being 0 (Davison & Hinkley, Bootstrap Methods and their Application, 1997, eq. 4.11
    and section 5.3). InputError: the two differ in length, fewer than FEWEST pairs are numbers, or more than MOST_UNDEFINED are not.
    """
    a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if a.ndim != 1 or a.shape != b.shape:
        raise InputError(f"replicates of the shapes {a.shape} and {b.shape}", "two of one length", "pair them by draw")
    difference = (b - a)[np.isfinite(b - a)]
    total = len(difference)
    if total < FEWEST or total < (1 - MOST_UNDEFINED) * len(a):
        expected = f"at least {FEWEST}, and {1 - MOST_UNDEFINED:.0%} of them"
        remedy = "evaluate with more replicates, or more frames"
        raise InputError(f"{total} of {len(a)} replicates have both numbers", expected, remedy)
    tail = 1 + min(np.count_nonzero(difference <= 0), np.count_nonzero(difference >= 0))
    return PairedDifference(*_interval(difference), min(1.0, float(2 * tail / (total + 1))), total)


def why_not_paired(first: Replicates, second: Replicates) -> str | None:
    """Why replicate r of two evaluations is not over the same draw of units; None where it is."""
    if first.values.shape[1] != second.values.shape[1]:
        return f"{first.values.shape[1]} and {second.values.shape[1]} replicates"
    if first.seed != second.seed:
        return f"resampled with the seeds {first.seed} and {second.seed}"
    if len(first.units) < 2:
        return "a single unit was resampled"
    if first.units != second.units:
        other = sorted(set(first.units) ^ set(second.units))
        detail = f", {other[0]} is in one only" if other else ", in another order"
        return f"other units were resampled ({len(first.units)} and {len(second.units)}{detail})"
    return None


def sidecar_path(result: Path) -> Path:
    """Where the replicates of a result file lie: ``X.replicates.npz`` beside ``X.json``."""
    return result.with_suffix(".replicates.npz")


def save_replicates(path: Path, replicates: Replicates) -> None:
    """Write replicates as an ``.npz`` that loads without unpickling: ``paths`` ``[P]``, ``values`` ``[P, R]``, ``seed``, and
    ``clusters``, the resampled units; the file appears whole."""
    buffer = io.BytesIO()
    paths, units = (np.array(names, np.str_) for names in (replicates.paths, replicates.units))
    seed, values = np.array(replicates.seed, np.int64), np.asarray(replicates.values, np.float64)
    np.savez_compressed(buffer, paths=paths, values=values, seed=seed, clusters=units)
    write_atomically(path, buffer.getvalue())


def load_replicates(path: Path) -> Replicates:
    """Read what :func:`save_replicates` wrote; InputError where a file cannot be read or holds something else."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            paths, values, seed, clusters = (arrays[name] for name in ("paths", "values", "seed", "clusters"))
    except (OSError, ValueError, EOFError, KeyError, TypeError, zipfile.BadZipFile) as error:
        given = f"{path} holds no replicates ({error})"
        raise InputError(given, "the sidecar of a result", "evaluate again") from error
    fits = {
        "paths": paths.ndim == 1 and paths.dtype.kind == "U",
        "clusters": clusters.ndim == 1 and clusters.dtype.kind == "U",
        "values": values.ndim == 2 and values.dtype.kind == "f" and len(values) == len(paths),
        "seed": seed.size == 1 and seed.dtype.kind in "iu",
    }
    unfit = [name for name, fit in fits.items() if not fit]
    if unfit:
        raise InputError(f"{path}: '{unfit[0]}' has another form", "the sidecar of a result", "evaluate again")
    return Replicates(tuple(paths.tolist()), values.astype(np.float64), int(seed), tuple(clusters.tolist()))
