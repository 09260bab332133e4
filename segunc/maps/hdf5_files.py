"""Maps in HDF5: one file for every so many frames instead of one for every map.

A frame is written as a small HDF5 file of its own first, whole or not at all, and counts as finished from then on. When the
run has left a segment, its frames are packed into one file by copying their compressed chunks, and the small ones go. So
no file is ever open while it could be torn, a kill at any moment loses no finished frame, and the packed bytes do not
depend on when a run was killed.

Both kinds hold ``MAP/FRAME`` data sets, one chunk each, byte-shuffled and deflated (filters of every HDF5 library).
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from segunc.core.errors import InputError
from segunc.core.files import PARTIAL_SUFFIX
from segunc.maps.frame_files import Array, is_whole, write_file
from segunc.maps.frame_log import Record

STORE_FOLDER = "store"
SUFFIX = ".h5"
SEGMENT = 64
"""Frames of a segment: a million frames are some 16,000 files, and a segment of full-HD maps about half a gigabyte."""
LEVEL = 1
"""Of the deflation: see ``tools/bench_store.py`` for what higher levels cost and save."""
_INDEX = "index"


class Hdf5Files:
    """``store/START.h5``, a segment of frames by their places; see :class:`segunc.maps.frame_files.FrameFiles`.

    Args:
        out: the maps folder.
        segment: frames of a segment.
    """

    def __init__(self, out: Path, segment: int = SEGMENT) -> None:
        self.block = segment
        self._out = out
        self._touched: set[int] = set()
        self._listed: tuple[Path, set[str]] | None = None

    def write(self, name: str, place: int, maps: Mapping[str, Array]) -> dict[str, str]:
        start = place // self.block * self.block
        self._touched.add(start)
        segment = self._out / STORE_FOLDER / f"{start:09d}{SUFFIX}"
        write_file(part_path(segment, place), _frame_bytes(name, place, maps))
        return {score: segment.relative_to(self._out).as_posix() for score in maps}

    def commit(self, place: int) -> None:
        for start in sorted(self._touched):
            if start + self.block <= place:
                self._pack(start)

    def close(self) -> None:
        for start in sorted(self._touched):
            self._pack(start)

    def holds(self, record: Record) -> bool:
        for score, relative in record["files"].items():
            path = self._out / relative
            if path.suffix != SUFFIX:
                if not is_whole(path):
                    return False
            elif is_whole(part_path(path, record["index"])):
                self._touched.add(record["index"] // self.block * self.block)
            elif f"{score}/{record['name']}" not in self._names(path):
                return False
        return True

    def _names(self, segment: Path) -> set[str]:
        """Data sets of a segment, of the last one asked for from memory; none where it cannot be read."""
        if self._listed is None or self._listed[0] != segment:
            found: set[str] = set()
            if segment.is_file():
                try:
                    with h5py.File(segment, "r") as file:
                        found = set(_datasets(file))
                except OSError:
                    found = set()
            self._listed = segment, found
        return self._listed[1]

    def _pack(self, start: int) -> None:
        self._touched.discard(start)
        segment = self._out / STORE_FOLDER / f"{start:09d}{SUFFIX}"
        parts = part_path(segment, start).parent
        if not parts.is_dir():
            return
        self._listed = None
        partial = segment.with_name(f".{segment.name}{PARTIAL_SUFFIX}")
        with h5py.File(partial, "w") as target:
            for place in range(start, start + self.block):
                part = part_path(segment, place)
                if is_whole(part):
                    with h5py.File(part, "r") as source:
                        _copy(source, target, place)
                elif segment.is_file():
                    with _readable(segment) as source:
                        if source is not None:
                            _copy(source, target, place)
        os.replace(partial, segment)
        shutil.rmtree(parts)


def part_path(segment: Path, place: int) -> Path:
    """The file of one frame, until its segment is packed."""
    return segment.with_suffix(".parts") / f"{place:09d}{SUFFIX}"


def read_map(segment: Path, place: int, name: str, score: str) -> Array:
    """A map as it is stored, from a segment or, before it is packed, from the frame's own file.

    Raises:
        InputError: neither holds it, or the file is damaged.
    """
    for path in (part_path(segment, place), segment):
        if not path.is_file():
            continue
        try:
            with h5py.File(path, "r") as file:
                if f"{score}/{name}" in file:
                    return np.asarray(file[f"{score}/{name}"][()])
        except (OSError, RuntimeError) as error:
            raise InputError(
                f"map {score} of frame {name} in {path} cannot be read ({error})", "an HDF5 file", "predict again"
            ) from error
    raise InputError(f"{segment} does not hold map {score} of frame {name}", "a whole store", "predict again")


def _frame_bytes(name: str, place: int, maps: Mapping[str, Array]) -> bytes:
    """One frame as an HDF5 file. The chunks are compressed here: h5py would compress under its global lock."""
    with h5py.File(f"{place}{SUFFIX}", "w", driver="core", backing_store=False) as file:
        for score, values in maps.items():
            pixels = np.ascontiguousarray(values)
            shuffled = pixels.view(np.uint8).reshape(-1, pixels.itemsize).T.tobytes()
            dataset = file.create_dataset(
                f"{score}/{name}",
                pixels.shape,
                pixels.dtype,
                chunks=pixels.shape,
                shuffle=True,
                compression="gzip",
                compression_opts=LEVEL,
            )
            dataset.attrs[_INDEX] = place
            dataset.id.write_direct_chunk((0, 0), zlib.compress(shuffled, LEVEL))
        file.flush()
        return bytes(file.id.get_file_image())


def _copy(source: h5py.File, target: h5py.File, place: int) -> None:
    """Copy the data sets of one frame as they are compressed."""
    for path, dataset in _datasets(source).items():
        if dataset.attrs[_INDEX] == place:
            source.copy(dataset, target, name=path)


def _datasets(file: h5py.File) -> dict[str, Any]:
    found: dict[str, Any] = {}
    file.visititems(lambda path, item: found.update({path: item}) if isinstance(item, h5py.Dataset) else None)
    return found


@contextmanager
def _readable(segment: Path) -> Iterator[h5py.File | None]:
    """A segment, None where a power failure has damaged it: none of its frames counted as finished then."""
    try:
        file = h5py.File(segment, "r")
    except OSError:
        yield None
        return
    with file:
        yield file
