"""Shards of a maps folder, and the lines of finished frames: ``frames.jsonl``, one for each shard.

The frames of a source are dealt out in blocks, like cards. Each shard has its own file of finished frames, its own record
of how its run went, and its own lock; ``manifest.json`` belongs to all, and nothing has to be merged. Lines are read as a
stream: a million of them as objects would take gigabytes.
"""

from __future__ import annotations

import heapq
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from segunc.core.errors import InputError
from segunc.core.files import (
    inside,
    open_file,
    open_new,
    partial_of,
    read_json,
    reading,
    safe_name,
    write_atomically,
    write_json,
)
from segunc.maps.sums import DamageError, open_line, seal, seal_line, unseal

MANIFEST_NAME, FRAMES_NAME, LOCK_STEM = "manifest.json", "frames.jsonl", ".lock"
MAX_SHARDS = 4096
"""Parts of one folder: each has a log of its own that every reader opens."""
STATISTICS = ("mean", "max", "p99", "component")
"""Their names in ``frames.jsonl``, each an object of numbers by score."""
Record = dict[str, Any]
"""One line of ``frames.jsonl``."""


@dataclass(frozen=True)
class Shard:
    """Shard ``number`` of ``count`` (up to 4096), counted from 1; 1 of 1 is everything. Else InputError."""

    number: int = 1
    count: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.count <= MAX_SHARDS:
            raise InputError(f"there is no shard {self.number}/{self.count}: they are 1/N to N/N, N up to {MAX_SHARDS}")

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @property
    def whole(self) -> bool:
        """Whether it is everything."""
        return self.count == 1

    def file(self, name: str) -> str:
        """Return the shard's own name of a file that a whole folder has: ``FRAMES_NAME``, ``MANIFEST_NAME`` or ``LOCK_STEM``."""
        stem, ending = os.path.splitext(name)
        return name if self.whole else f"{stem}.{self.number}-of-{self.count}{ending}"

    def owns(self, place: int, block: int = 1) -> bool:
        """Return whether the frame at a place of the source belongs to it, dealt out in blocks of so many frames."""
        return place // block % self.count == self.number - 1

    def share(self, frames: int, block: int = 1) -> int:
        """Count how many of the first ``frames`` frames belong to it."""
        rounds, rest = divmod(frames, block * self.count)
        return rounds * block + min(block, max(0, rest - block * (self.number - 1)))


def parse_shard(text: str) -> Shard:
    """Read ``i/n`` as a shard; InputError for another form, or numbers out of range."""
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text.strip())
    if match is None:
        raise InputError(f"'{text}' is no shard", hint="write i/n, counted from 1, e.g. --shard 2/4")
    return Shard(int(match[1]), int(match[2]))


def all_shards(manifest: dict[str, Any] | None) -> list[Shard]:
    """Return the shards of a maps folder by its manifest."""
    count = (manifest or {}).get("shards", 1)
    return [Shard(number, count) for number in range(1, count + 1)]


def find_log(folder: Path) -> str | None:
    """Return the name of a file with lines of finished frames, of a run or a shard; None where there is none."""
    return min((path.name for path in folder.glob(FRAMES_NAME.replace(".", "*."))), default=None)


def parse_record(line: bytes, where: str) -> Record:
    """Read the record of a line; DamageError where it was changed, InputError where a name in it is unsafe."""
    record: Record = json.loads(open_line(line, where))
    record["sums"] = {score: (size, digest) for score, (size, digest) in record["sums"].items()}
    for name in (record["name"], *record["files"].values()):
        safe_name(name, f"{where}, a frame or file")
    return record


def iterate_lines(path: Path, on_damage: Callable[[DamageError], None] | None = None) -> Iterator[tuple[bytes, Record]]:
    """Yield the complete lines of a file and their records; a torn last line is left out, and where ``on_damage`` is told
    of them, so are damaged ones."""
    if not path.exists():
        return
    with reading(str(path), "lines of finished frames"):
        file = open_file(path)
    with file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                record = parse_record(line, f"{path}, line {number}")
            except DamageError as damage:
                if on_damage is None:
                    raise
                on_damage(damage)
            else:
                yield line, record


def iterate_records(folder: Path, shards: list[Shard]) -> Iterator[Record]:
    """Yield the records of all shards in source order; DamageError at a line that was changed."""
    streams = [(record for _, record in iterate_lines(inside(folder, shard.file(FRAMES_NAME)))) for shard in shards]
    return heapq.merge(*streams, key=lambda record: int(record["index"]))


def read_state(folder: Path, shard: Shard) -> dict[str, Any] | None:
    """Read how a shard's run stands, None where it was never started; DamageError where that was changed."""
    path = inside(folder, shard.file(MANIFEST_NAME))
    return unseal(read_json(path, "a shard's record"), path) if path.exists() else None


def write_state(folder: Path, shard: Shard, content: Mapping[str, Any]) -> None:
    """Write a manifest, of a folder or of a shard's run."""
    write_json(folder / shard.file(MANIFEST_NAME), seal(content))


def joined_state(folder: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """Join ``status``, ``finished`` and ``failed`` of a folder in shards. The status is ``finished`` when all shards are,
    ``running`` while one is (or was killed), else ``interrupted``."""
    states = {shard: read_state(folder, shard) for shard in all_shards(manifest)}
    records = [record for record in states.values() if record is not None]
    missing = [str(shard) for shard, record in states.items() if record is None or record["status"] != "finished"]
    running = any(record["status"] == "running" for record in records)
    return {
        "status": "finished" if not missing else "running" if running else "interrupted",
        "finished": sum(record["finished"] for record in records),
        "failed": [failure for record in records for failure in record["failed"]],
        "missing_shards": missing,
    }


class FrameLog:
    """Finished frames by their place in the source, and the file of their lines, made when the log is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.next = 0  # the place behind the last one
        self._finished: set[int] = set()
        self._sorted = True
        self._file: BinaryIO | None = None

    def __contains__(self, place: int) -> bool:
        return place in self._finished

    @property
    def count(self) -> int:
        """How many frames are finished."""
        return len(self._finished)

    def recover(self, place_of: Callable[[Record], int | None]) -> int:
        """Read what an earlier run left, cut a torn last line, and return how many lines were forgotten, damaged ones too.

        Args:
            place_of: the place of a record in the source, None to forget it.
        """
        if not self.path.exists():
            return 0
        partial = partial_of(self.path)
        forgotten, moved, damaged = 0, False, list[DamageError]()
        try:
            with open_new(partial) as file:
                for line, record in iterate_lines(self.path, damaged.append):
                    place = place_of(record)
                    if place is None or place in self:
                        forgotten += 1
                        continue
                    if record["index"] != place:
                        line, moved = seal_line({**record, "index": place}), True
                    self._mark(place)
                    file.write(line)
            if moved or partial.stat().st_size != self.path.stat().st_size:
                os.replace(partial, self.path)
        finally:
            partial.unlink(missing_ok=True)
        return forgotten + len(damaged)

    def open(self) -> None:
        """Open the file for appending."""
        self._file = self.path.open("ab", buffering=0)

    def append(self, record: Record) -> None:
        """Append the line of a finished frame; ``index`` is its place."""
        assert self._file is not None
        # One write to an unbuffered file: the line is with the operating system when this returns.
        self._file.write(seal_line(record))
        self._mark(record["index"])

    def close(self) -> None:
        """Close the file and bring its lines into the order of their places."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if not self._sorted:  # frames that failed in an earlier run go where an unbroken run has them
            lines = sorted((record["index"], line) for line, record in iterate_lines(self.path))
            write_atomically(self.path, b"".join(line for _, line in lines))
            self._sorted = True

    def _mark(self, place: int) -> None:
        self._finished.add(place)
        self._sorted = self._sorted and place >= self.next
        self.next = max(self.next, place + 1)


class FrameRecords(Mapping[str, Record]):
    """Frame name -> its line of ``frames.jsonl``, in source order, for all shards of a folder.

    Names and places of lines are kept; a line is read when it is asked for, and the last one is remembered.
    """

    def __init__(self, folder: Path, shards: list[Shard]) -> None:
        lines: list[tuple[int, str, tuple[Path, int]]] = []
        for shard in shards:
            path, start = inside(folder, shard.file(FRAMES_NAME)), 0
            for line, record in iterate_lines(path):
                lines.append((record["index"], record["name"], (path, start)))
                start += len(line)
        self._lines = {name: where for _, name, where in sorted(lines)}
        self._last: tuple[str, Record] | None = None

    @classmethod
    def of_runs(cls, runs: Mapping[str, FrameRecords]) -> FrameRecords:
        """Join the lines of several folders, whose frames are called ``RUN/FRAME``."""
        joined = cls(Path(), [])
        joined._lines = {
            f"{run}/{name}": line for run, records in runs.items() for name, line in records._lines.items()
        }
        return joined

    def __getitem__(self, name: str) -> Record:
        if self._last is None or self._last[0] != name:
            path, start = self._lines[name]
            with open_file(path) as file:
                file.seek(start)
                self._last = name, parse_record(file.readline(), f"{path}, frame {name}")
        return self._last[1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)

    def __contains__(self, name: object) -> bool:
        return name in self._lines
