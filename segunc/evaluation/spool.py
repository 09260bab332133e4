"""The counts of many frames, kept for bootstrap replicates in bounded memory.

A replicate is a weighted sum of the counts of its units. So counts are kept frame by frame, sparse
and compressed, in a temporary file once they are many, and sums are taken over a stretch of frames
at a time. Counts are whole numbers, so no order changes a sum.
"""

from __future__ import annotations

import struct
import tempfile
import weakref
import zlib
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from segunc.core.errors import PartialFailure
from segunc.evaluation.resampling import Resampling, units_at_once
from segunc.metrics.counting import Counts

# Bytes of compressed counts; more of them lie in a temporary file.
IN_MEMORY = 4 << 20
# Numbers, 128 MiB: of more replicates the frames are read several times.
SUMS_AT_ONCE = 1 << 24
# Share of counts that are not 0, from which on a plain product is faster.
DENSE_FROM = 0.05
# Poisson(1) exceeds it once in 10^89 draws.
LARGEST_WEIGHT = 64
_HEAD = struct.Struct("<III")  # number of the unit, counts that are not 0, compressed bytes

Rows = npt.NDArray[Any]


class _FrameCounts(NamedTuple):
    """The counts of a frame that are not 0.

    Attributes:
        unit: the number of the frame's unit.
        places: of the counts, flat, uint32 ``[n]``.
        values: of the counts, ``[n]``.
    """

    unit: int
    places: npt.NDArray[np.uint32]
    values: Counts


class CountSpool:
    """Counts of frames by resampled unit: whole numbers of one size.

    Attributes:
        units: name of a unit -> its number, in the order in which they came.
    """

    def __init__(self) -> None:
        self.units: dict[str, int] = {}
        self._file = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY)  # noqa: SIM115 (kept open)
        # Python warns of a temporary file that nobody closed.
        weakref.finalize(self, self._file.close)
        self._total: npt.NDArray[np.float64] = np.zeros(0)  # of magnitudes
        self._used: npt.NDArray[np.bool_] = np.zeros(0, bool)

    def add(self, counts: Counts, unit: str) -> None:
        """Keep the counts of a frame, of any shape.

        Raises:
            PartialFailure: the disk of temporary files is full.
        """
        flat = counts.ravel().astype(np.int64)
        if not self._used.size:
            self._used = np.zeros(flat.size, bool)
            self._total = np.zeros(flat.size)
        places = np.flatnonzero(flat)
        self._used[places] = True
        self._total[places] += np.abs(flat[places].astype(np.float64))
        number = self.units.setdefault(unit, len(self.units))
        content = places.astype(np.uint32).tobytes() + flat[places].tobytes()
        packed = zlib.compress(content, level=1)
        head = _HEAD.pack(number, len(places), len(packed))
        try:
            self._file.write(head + packed)
        except OSError as error:
            raise PartialFailure(
                f"the counts for the intervals do not fit into {tempfile.gettempdir()} "
                f"({error.strerror}); --replicates 0, or set TMPDIR to another"
            ) from error

    def used(self) -> npt.NDArray[np.bool_]:
        """Return which counts are not 0 in some frame, flat."""
        return self._used

    def sums(
        self, resampling: Resampling, columns: npt.NDArray[np.bool_], at_once: int
    ) -> Iterator[Rows]:
        """Yield the sums of replicates, ``at_once`` of them at a time.

        They are whole numbers ``[R, K]`` of the K flat ``columns``.
        """
        size = int(columns.sum())
        # Whole numbers below 2^53 add exactly in float64 too, and floats are multiplied faster.
        exact = self._total.max(initial=0) * LARGEST_WEIGHT < 1 << 53
        dtype = np.float64 if exact else np.int64
        step = max(SUMS_AT_ONCE // max(size, 1) // at_once, 1) * at_once
        for start in range(0, resampling.replicates, step):
            end = min(start + step, resampling.replicates)
            blocks = [slice(i, min(i + at_once, end)) for i in range(start, end, at_once)]
            rows: list[Any] = [0] * len(blocks)
            for units, counts in self._stretches(resampling, columns):
                weights = resampling.weights_of(units).astype(dtype)
                counts = counts.astype(dtype)
                for place, block in enumerate(blocks):
                    rows[place] = rows[place] + weights[:, block].T @ counts
            yield from rows

    def _stretches(
        self, resampling: Resampling, columns: npt.NDArray[np.bool_]
    ) -> Iterator[tuple[tuple[str, ...], Any]]:
        """Yield the units of some frames in a row and their counts by unit.

        Counts are whole numbers ``[U, K]``, sparse where most are 0.
        """
        from scipy.sparse import csr_array

        size = int(columns.sum())
        column_of_place = np.cumsum(columns) - 1
        names = tuple(self.units)
        frames = self._frames()
        while stretch := list(islice(frames, units_at_once(resampling.replicates))):
            present, row_of_frame = np.unique(
                [frame.unit for frame in stretch], return_inverse=True
            )
            rows = np.repeat(row_of_frame, [len(frame.values) for frame in stretch])
            places = np.concatenate([frame.places for frame in stretch])
            values = np.concatenate([frame.values for frame in stretch])
            # Cells that several frames of a unit have are summed.
            shape = (len(present), size)
            counts = csr_array((values, (rows, column_of_place[places])), shape=shape)
            if counts.nnz > DENSE_FROM * len(present) * size:
                counts = counts.toarray()
            yield tuple(names[number] for number in present.tolist()), counts

    def _frames(self) -> Iterator[_FrameCounts]:
        """Yield the counts of each frame, in the order in which they came."""
        self._file.seek(0)
        while head := self._file.read(_HEAD.size):
            unit, length, packed_bytes = _HEAD.unpack(head)
            content = zlib.decompress(self._file.read(packed_bytes))
            places = np.frombuffer(content, np.uint32, length)
            values = np.frombuffer(content, np.int64, length, offset=places.nbytes)
            yield _FrameCounts(unit, places, values)
