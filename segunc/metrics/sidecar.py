"""The bootstrap replicates of a result, in a file beside it."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np

from segunc.errors import InputError
from segunc.files import write_atomically
from segunc.metrics.resampling import Replicates


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
