"""Whether two numbers differ by more than chance, from bootstrap replicates of the same resampled units.

A replicate of a number is the number on a data set whose units (frames, or sequences of neighbouring frames) were
drawn anew. Where replicate r of two numbers rests on the same draw, the spread of their difference leaves out what
both share: a hard frame is hard for both.
"""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from segunc.errors import InputError
from segunc.files import write_atomically

Floats = npt.NDArray[np.float64]
LEVEL = 0.95
"""Of the intervals."""
FEWEST = 40
"""Replicates below which the 2.5 and 97.5 percentiles would be extrapolated: 1 / 0.025."""


@dataclass(frozen=True)
class PairedDifference:
    """What the replicates say of a difference.

    Attributes:
        low: 2.5 percentile of the replicate differences.
        high: 97.5 percentile.
        p_value: two-sided, in 0..1.
        replicates: pairs that were used.
    """

    low: float
    high: float
    p_value: float
    replicates: int

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval lies on one side of zero, and p < 1 - LEVEL."""
        return (self.low > 0 or self.high < 0) and self.p_value < 1 - LEVEL


def paired_difference(first: npt.ArrayLike, second: npt.ArrayLike) -> PairedDifference:
    """The bootstrap interval and p-value of second - first.

    The interval holds the 2.5 and 97.5 percentiles of the replicate differences. The p-value is
    2 min((1 + #{d <= 0}) / (1 + R), (1 + #{d >= 0}) / (1 + R)), at most 1: the percentile interval inverted, with the
    added one that keeps it from being 0 (Davison & Hinkley, Bootstrap Methods and their Application, 1997, 4.2 and 5.4).

    Args:
        first: replicates ``[R]`` of one number; NaN where a replicate has none.
        second: replicates ``[R]`` of the other, replicate r over the same draw of units.

    Raises:
        InputError: the two differ in length, or fewer than FEWEST pairs are numbers.
    """
    a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if a.ndim != 1 or a.shape != b.shape:
        raise InputError(f"replicates of the shapes {a.shape} and {b.shape}", "two of one length", "pair them by draw")
    difference = b - a
    difference = difference[np.isfinite(difference)]
    total = len(difference)
    if total < FEWEST:
        raise InputError(f"{total} replicates of both numbers", f"at least {FEWEST}", "evaluate with more replicates")
    low, high = np.percentile(difference, [50 * (1 - LEVEL), 50 * (1 + LEVEL)])
    tail = 1 + min(np.count_nonzero(difference <= 0), np.count_nonzero(difference >= 0))
    return PairedDifference(float(low), float(high), min(1.0, float(2 * tail / (total + 1))), total)


@dataclass(frozen=True)
class Replicates:
    """The bootstrap replicates of an evaluation's numbers.

    Attributes:
        paths: dotted paths of the numbers in the result, P of them.
        values: float64 ``[P, R]``, NaN where a replicate has no such number.
        seed: of the resampling.
        clusters: names of the resampled units, in order.
    """

    paths: tuple[str, ...]
    values: Floats
    seed: int
    clusters: tuple[str, ...]

    def row(self, path: str) -> Floats | None:
        """The replicates ``[R]`` of a number, None where it has none."""
        return self.values[self.paths.index(path)] if path in self.paths else None


def why_not_paired(first: Replicates, second: Replicates) -> str | None:
    """Why replicate r of two evaluations is not over the same draw of units; None where it is."""
    if first.values.shape[1] != second.values.shape[1]:
        return f"{first.values.shape[1]} and {second.values.shape[1]} replicates"
    if first.seed != second.seed:
        return f"resampled with the seeds {first.seed} and {second.seed}"
    if first.clusters != second.clusters:
        other = sorted(set(first.clusters) ^ set(second.clusters))
        detail = f", {other[0]} is in one only" if other else ", in another order"
        return f"other units were resampled ({len(first.clusters)} and {len(second.clusters)}{detail})"
    return None


def sidecar_path(result: Path) -> Path:
    """Where the replicates of a result file lie: ``X.replicates.npz`` beside ``X.json``."""
    return result.with_suffix(".replicates.npz")


def save_replicates(path: Path, replicates: Replicates) -> None:
    """Write replicates as an ``.npz`` that loads without unpickling; the file appears whole."""
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        paths=np.array(replicates.paths, np.str_),
        values=np.asarray(replicates.values, np.float64),
        seed=np.array(replicates.seed, np.int64),
        clusters=np.array(replicates.clusters, np.str_),
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
