"""The lines of finished frames: ``frames.jsonl``, appended as frames finish and read as a stream.

A million lines take gigabytes as objects, so none is kept: of each finished frame only a byte says that it is finished.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from segunc.errors import InputError
from segunc.files import PARTIAL_SUFFIX, open_new, safe_name

Record = dict[str, Any]
"""One line of ``frames.jsonl``."""
PLACES = 1 << 31
"""Frames that a source may have; a byte is held for each."""


def parse_record(line: bytes, where: str) -> Record:
    """The record of a line; its name and those of its scores and files are safe, its place is a whole number.

    Raises:
        InputError: the line is no record, or holds a name that is none.
    """
    try:
        record: Record = json.loads(line)
        name, files, place = record["name"], record["files"].items(), record.get("index", 0)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            f"{where}, is no record of a frame", "JSON with a name and files", "predict again into a new folder"
        ) from error
    safe_name(name, f"{where}, the frame")
    for score, file in files:
        safe_name(score, f"{where}, a map", single=True)
        safe_name(file, f"{where}, the file of {score}")
    if type(place) is not int or not 0 <= place < PLACES:
        raise InputError(f"{where}, has the index {ascii(place)[:80]}", "a place in the source", "predict again")
    return record


def iterate_lines(path: Path) -> Iterator[tuple[bytes, Record]]:
    """The complete lines of a file and their records, one at a time; a torn last line is left out.

    Raises:
        InputError: a line that is not torn is no record, see :func:`parse_record`.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            yield line, parse_record(line, f"{path}, line {number}")


def encode_record(record: Record) -> bytes:
    """The line of a record."""
    return (json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n").encode()


class FrameLog:
    """Finished frames by their place in the source, and the file of their lines.

    Args:
        path: the file; made when the first line is appended or the log is opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        self._finished = bytearray()
        self._last = -1
        self._sorted = True
        self._file: BinaryIO | None = None

    def __contains__(self, place: int) -> bool:
        return 0 <= place < len(self._finished) and self._finished[place] == 1

    @property
    def next(self) -> int:
        """The place behind the last one."""
        return self._last + 1

    def recover(self, place_of: Callable[[Record], int | None], *, in_sequence: bool = False) -> bool:
        """Read what an earlier run left: cut a torn last line, and forget frames that have no place any more.

        Args:
            place_of: the place of a record in the source, None to forget it.
            in_sequence: keep frames only while they follow one another without a gap, because each depends on those
                before it.

        Returns:
            whether every frame of the earlier run was kept.
        """
        if not self.path.exists():
            return True
        partial = self.path.with_name(f".{self.path.name}{PARTIAL_SUFFIX}")
        whole, moved, kept = True, False, 0
        with open_new(partial) as file:
            for line, record in iterate_lines(self.path):
                place = place_of(record)
                if place is None or place in self:
                    whole = False
                    continue
                if in_sequence and self.count and place != self.next:
                    whole = False
                    break
                if record.get("index") != place:
                    line, moved = encode_record({**record, "index": place}), True
                self._mark(place)
                file.write(line)
                kept += len(line)
        if whole and not moved and kept == self.path.stat().st_size:
            partial.unlink()
        else:
            os.replace(partial, self.path)
        return whole

    def open(self) -> None:
        """Open the file for appending."""
        self._file = self.path.open("ab", buffering=0)

    def append(self, record: Record) -> None:
        """Append the line of a finished frame; ``index`` is its place."""
        assert self._file is not None
        # One write to an unbuffered file: the line is with the operating system when this returns.
        self._file.write(encode_record(record))
        self._mark(record["index"])

    def close(self) -> None:
        """Close the file and bring its lines into the order of their places."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if not self._sorted:
            self._sort()

    def _mark(self, place: int) -> None:
        if place >= len(self._finished):
            self._finished.extend(bytes(max(place + 1 - len(self._finished), len(self._finished), 1024)))
        self._finished[place] = 1
        self._sorted = self._sorted and place > self._last
        self._last = max(self._last, place)
        self.count += 1

    def _sort(self) -> None:
        """Frames that failed in an earlier run and succeeded in this one go where an unbroken run has them."""
        places, starts, end = [], [0], 0
        for line, record in iterate_lines(self.path):
            end += len(line)
            places.append(record["index"])
            starts.append(end)
        partial = self.path.with_name(f".{self.path.name}{PARTIAL_SUFFIX}")
        with self.path.open("rb") as old, open_new(partial) as new:
            for number in np.argsort(np.array(places), kind="stable"):
                old.seek(starts[number])
                new.write(old.read(starts[number + 1] - starts[number]))
        os.replace(partial, self.path)
        self._sorted = True
