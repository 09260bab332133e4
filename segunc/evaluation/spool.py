"""The counts of many frames, kept for bootstrap replicates in memory that does not grow with the
frames.

A replicate is a weighted sum of the counts of its units. So counts are kept frame by frame, sparse
and compressed, in a temporary file once they are many, and sums are taken over a stretch of frames
at a time. Counts are whole numbers, so no order changes a sum.
"""

from __future__ import annotations

import struct
import tempfile
import zlib
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from segunc.core.errors import PartialFailure
from segunc.evaluation.resampling import Resampling, units_at_once
from segunc.metrics.counting import Counts

IN_MEMORY = 4 << 20  # bytes of compressed counts; more of them lie in a temporary file
SUMS_AT_ONCE = 1 << 24  # numbers, 128 MiB: of more replicates the frames are read several times
DENSE_FROM = 0.05  # share of counts that are not 0, from which on a plain product is faster
LARGEST_WEIGHT = 64  # Poisson(1) exceeds it once in 10^89 draws
_HEAD = struct.Struct("<III")  # number of the unit, counts that are not 0, compressed bytes

Rows = npt.NDArray[Any]


class CountSpool:
    """Counts of frames by resampled unit: whole numbers of one size.

    Attributes:
        units: name of a unit -> its number, in the order in which they came.
    """

    def __init__(self) -> None:
        self.units: dict[str, int] = {}
        self._file = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY)  # noqa: SIM115 (kept open)
        self._total: npt.NDArray[np.float64] = np.zeros(0)  # of magnitudes
        self._used: npt.NDArray[np.bool_] = np.zeros(0, bool)

    def add(self, counts: Counts, unit: str) -> None:
        """Keep the counts of a frame, of any shape. PartialFailure where the disk of temporary
        files is full."""
        flat = counts.ravel().astype(np.int64)
        if not self._used.size:
            self._used = np.zeros(flat.size, bool)
            self._total = np.zeros(flat.size)
        places = np.flatnonzero(flat)
        self._used[places] = True
        self._total[places] += np.abs(flat[places].astype(np.float64))
        number = self.units.setdefault(unit, len(self.units))
        packed = zlib.compress(places.astype(np.uint32).tobytes() + flat[places].tobytes(), 1)
        try:
            self._file.write(_HEAD.pack(number, len(places), len(packed)) + packed)
        except OSError as error:
            place = tempfile.gettempdir()
            message = f"the counts for the intervals do not fit into {place} ({error.strerror})"
            raise PartialFailure(f"{message}; --replicates 0, or set TMPDIR to another") from error

    def used(self) -> npt.NDArray[np.bool_]:
        """Return which counts are not 0 in some frame, flat."""
        return self._used

    def sums(
        self, resampling: Resampling, columns: npt.NDArray[np.bool_], at_once: int
    ) -> Iterator[Rows]:
        """Yield the sums of replicates, ``at_once`` of them at a time: whole numbers ``[R, K]`` of
        the K flat ``columns``."""
        size = int(columns.sum())
        # Whole numbers below 2^53 add exactly in float64 too, and floats are multiplied faster.
        exact = self._total.max(initial=0) * LARGEST_WEIGHT < 1 << 53
        dtype = np.float64 if exact else np.int64
        step = max(SUMS_AT_ONCE // max(size, 1) // at_once, 1) * at_once
        for start in range(0, resampling.replicates, step):
            block = slice(start, min(start + step, resampling.replicates))
            rows = np.zeros((block.stop - start, size), dtype)
            for units, counts in self._stretches(resampling, columns):
                weights = resampling.weights_of(units)[:, block].astype(dtype)
                rows += weights.T @ counts.astype(dtype)
            for first in range(0, len(rows), at_once):
                yield rows[first : first + at_once]

    def _stretches(
        self, resampling: Resampling, columns: npt.NDArray[np.bool_]
    ) -> Iterator[tuple[tuple[str, ...], Any]]:
        """Yield the units of some frames in a row and their counts by unit ``[U, K]``, whole
        numbers, sparse where most are 0."""
        from scipy.sparse import csr_array

        size = int(columns.sum())
        place_of = np.cumsum(columns) - 1
        names = tuple(self.units)
        frames = self._frames()
        while stretch := list(islice(frames, units_at_once(resampling.replicates))):
            numbers = np.array([number for number, _, _ in stretch])
            lengths = [len(values) for _, _, values in stretch]
            present, rows = np.unique(numbers, return_inverse=True)
            places = place_of[np.concatenate([places for _, places, _ in stretch])]
            values = np.concatenate([values for _, _, values in stretch])
            cells = (values, (np.repeat(rows, lengths), places))
            counts = csr_array(cells, shape=(len(present), size))  # sums what has one cell
            if counts.nnz > DENSE_FROM * len(present) * size:
                counts = counts.toarray()
            yield tuple(names[number] for number in present.tolist()), counts

    def _frames(self) -> Iterator[tuple[int, npt.NDArray[np.uint32], Counts]]:
        """Yield the unit of each frame by its number, and the flat places and the values of its
        counts."""
        self._file.seek(0)
        while head := self._file.read(_HEAD.size):
            number, length, packed = _HEAD.unpack(head)
            data = zlib.decompress(self._file.read(packed))
            places = np.frombuffer(data, np.uint32, length)
            yield number, places, np.frombuffer(data, np.int64, length, 4 * length)
