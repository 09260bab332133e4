"""Shards of a maps folder, and the lines of finished frames: ``frames.jsonl``, one for each shard.

The frames of a source are dealt out one by one, like cards. Each shard has its own file of finished
frames, record of how its run went, and lock; ``manifest.json`` belongs to all. Lines are read as a
stream: a million objects would take gigabytes. Each line and manifest holds a checksum of itself, a
line also those of its frame's files. They find damage and no forgery.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from segunc.core.errors import InputError
from segunc.core.files import (
    append_whole,
    frame_order,
    inside,
    json_sha256,
    open_file,
    parse_json,
    read_json,
    reading,
    replacing,
    safe_name,
    write_json,
)

MANIFEST_NAME = "manifest.json"
FRAMES_NAME = "frames.jsonl"
LOCK_STEM = ".lock"
MAX_SHARDS = 4096  # of one folder: each has a log of its own that every reader opens
STATISTICS = ("region", "mean", "max", "p99", "component")
"""Fields of a line, each an object of numbers by score."""
REPAIR = "make it again: the same segunc predict command with --verify"
Record = dict[str, Any]  # one line of frames.jsonl
Sum = tuple[int, str]  # the bytes of a file, and the first 16 hex digits of their SHA-256


class DamageError(InputError):
    """A file or line of a maps folder is not what was written."""


def file_sum(data: bytes) -> Sum:
    """Return what the line of a frame says of a file of these bytes."""
    return len(data), hashlib.sha256(data).hexdigest()[:16]


def seal_line(content: Mapping[str, Any]) -> bytes:
    """Return a line of compact JSON whose last value, ``sum``, begins the SHA-256 of the object
    without it.
    """
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    return text[:-1] + f',"sum":"{file_sum(text)[1]}"}}\n'.encode()


def seal(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object with the SHA-256 of its values, whatever their order and layout, as
    ``sha256``.
    """
    as_read_back = json.loads(json.dumps(content))
    return {**content, "sha256": json_sha256(as_read_back)}


def unseal(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return what :func:`seal` was given.

    Raises:
        DamageError: the sum does not fit, or is missing.
    """
    inner = {key: value for key, value in content.items() if key != "sha256"}
    if content.get("sha256") != json_sha256(inner):
        raise DamageError(
            f"{path} was changed since it was written",
            hint="restore it, or predict into a new folder",
        )
    return inner


@dataclass(frozen=True)
class Shard:
    """Shard ``number`` of ``count``, counted from 1; 1 of 1 is everything."""

    number: int = 1
    count: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.count <= MAX_SHARDS:
            raise InputError(
                f"there is no shard {self.number}/{self.count}: "
                f"they are 1/N to N/N, N up to {MAX_SHARDS}"
            )

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @property
    def whole(self) -> bool:
        """Whether it is everything."""
        return self.count == 1

    def file(self, name: str) -> str:
        """Return the shard's own name of a file that a whole folder has."""
        if self.whole:
            return name
        stem, ending = os.path.splitext(name)
        return f"{stem}.{self.number}-of-{self.count}{ending}"

    def owns(self, place: int) -> bool:
        """Return whether the frame at a place of the source belongs to it."""
        return place % self.count == self.number - 1

    def share(self, frames: int) -> int:
        """Count how many of the first ``frames`` frames belong to it."""
        return (frames + self.count - self.number) // self.count


def parse_shard(text: str) -> Shard:
    """Read ``i/n`` as a shard.

    Raises:
        InputError: the text has another form, or its numbers are out of range.
    """
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text.strip())
    if match is None:
        raise InputError(
            f"'{text}' is not a shard; expected i/n, counted from 1", hint="--shard 2/4"
        )
    return Shard(int(match[1]), int(match[2]))


def all_shards(manifest: Mapping[str, Any]) -> list[Shard]:
    """Return the shards of a maps folder by its manifest."""
    count = manifest.get("shards", 1)
    return [Shard(number, count) for number in range(1, count + 1)]


def find_log(folder: Path) -> str | None:
    """Return the name of a file with lines of finished frames, of a run or a shard; None where
    there is none.
    """
    pattern = FRAMES_NAME.replace(".", "*.")
    return min((path.name for path in folder.glob(pattern)), default=None)


def read_state(folder: Path, shard: Shard) -> dict[str, Any] | None:
    """Read how a shard's run stands, None where it was never started."""
    path = inside(folder, shard.file(MANIFEST_NAME))
    return unseal(read_json(path, "a shard's record"), path) if path.exists() else None


def write_state(folder: Path, shard: Shard, content: Mapping[str, Any]) -> None:
    """Write a manifest, of a folder or of a shard's run."""
    write_json(folder / shard.file(MANIFEST_NAME), seal(content))


def joined_state(folder: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """Join ``status``, ``finished`` and ``failed`` of a folder in shards. The status is
    ``finished`` when all shards are, ``running`` while one is (or was killed), else
    ``interrupted``.
    """
    records = []
    missing = []
    for shard in all_shards(manifest):
        record = read_state(folder, shard)
        if record is not None:
            records.append(record)
        if record is None or record["status"] != "finished":
            missing.append(str(shard))
    if not missing:
        status = "finished"
    elif any(record["status"] == "running" for record in records):
        status = "running"
    else:
        status = "interrupted"
    # The damaged end of a video belongs to no shard, and each one names it.
    failed: dict[tuple[str, str], dict[str, str]] = {}
    for record in records:
        for failure in record["failed"]:
            failed[failure["name"], failure["reason"]] = failure
    return {
        "status": status,
        "finished": sum(record["finished"] for record in records),
        "failed": list(failed.values()),
        "missing_shards": missing,
    }


def parse_record(line: bytes, where: str) -> Record:
    """Read the record of a line.

    Raises:
        DamageError: the line was changed.
        InputError: a name in it is unsafe.
    """
    text, _, digest = line.rpartition(b',"sum":"')
    text += b"}"
    if digest != f'{file_sum(text)[1]}"}}\n'.encode():
        raise DamageError(f"{where}, was changed since it was written", hint=REPAIR)
    record: Record = parse_json(text)
    for score, (size, digest_of_file) in record["sums"].items():
        record["sums"][score] = (size, digest_of_file)
    for name in (record["name"], *record["files"].values()):
        safe_name(name, f"{where}, a frame or file")
    return record


def iterate_lines(
    path: Path, on_damage: Callable[[DamageError], None] | None = None
) -> Iterator[tuple[bytes, Record]]:
    """Yield the complete lines of a file and their records. A torn last line is left out.

    Args:
        path: of the file, which may be missing.
        on_damage: is called for each damaged line, which is left out then.

    Raises:
        DamageError: a line is damaged, and there is no ``on_damage``.
    """
    if not path.exists():
        return
    with reading(str(path), "lines of finished frames"), open_file(path) as file:
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


class FrameLog:
    """The finished frames of a shard by their place in the source, and the file of their lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._places: dict[int, None] = {}  # of the finished frames, in the order of their lines
        self._file: BinaryIO | None = None

    def __contains__(self, place: int) -> bool:
        return place in self._places

    def __len__(self) -> int:
        return len(self._places)

    def recover(
        self, keeps: Callable[[Record], bool], check: Callable[[int], None] = lambda damaged: None
    ) -> int:
        """Take up the lines of an earlier run that ``keeps`` accepts, and open the file for more.

        Args:
            keeps: whether the frame of a record is finished.
            check: is called with the number of damaged lines before the file is changed; what it
                raises leaves the file as it was.

        Returns:
            How many other lines there were, damaged ones too. A torn last line is cut.
        """
        forgotten = 0
        damaged: list[DamageError] = []
        with replacing(self.path) as file:
            for line, record in iterate_lines(self.path, damaged.append):
                if record["index"] in self or not keeps(record):
                    forgotten += 1
                    continue
                self._places[record["index"]] = None
                file.write(line)
            check(len(damaged))
        self._file = self.path.open("ab", buffering=0)
        return forgotten + len(damaged)

    def append(self, record: Record) -> None:
        """Append the line of a finished frame; ``index`` is its place."""
        assert self._file is not None
        # The file has no buffer: the line is with the operating system when this returns.
        append_whole(self._file, seal_line(record))
        self._places[record["index"]] = None

    def close(self) -> None:
        """Close the file and bring its lines into the order of their places."""
        if self._file is not None:
            self._file.close()
        places = list(self._places)
        if places != sorted(places):  # frames that failed before go where an unbroken run has them
            lines = sorted((record["index"], line) for line, record in iterate_lines(self.path))
            with replacing(self.path) as file:
                file.writelines(line for _, line in lines)


class FrameRecords(Mapping[str, Record]):
    """Frame name -> its line of ``frames.jsonl``, in source order, for all shards of a folder.

    Names and places of lines are kept in memory. A line is read when it is asked for, and the last
    one is remembered.
    """

    def __init__(self, folder: Path, shards: list[Shard]) -> None:
        lines: list[tuple[int, str, tuple[Path, int]]] = []
        for shard in shards:
            path = inside(folder, shard.file(FRAMES_NAME))
            start = 0
            for line, record in iterate_lines(path):
                lines.append((record["index"], record["name"], (path, start)))
                start += len(line)
        self._lines = {name: where for _, name, where in sorted(lines)}
        self._last: tuple[str, Record] | None = None

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


def every_of(manifest: Mapping[str, Any] | None) -> int:
    """Return the N of a run that took every N-th frame of its source; 1 where none is recorded."""
    return int((manifest or {}).get("run", {}).get("every") or 1)


def frame_times(
    frames: Iterable[str],
    records: Mapping[str, Record],
    manifest: Mapping[str, Any] | None,
    rate: float | None = None,
) -> Iterator[float | None]:
    """Yield the seconds of each frame in its video, None where they are not known.

    Args:
        frames: names, in source order.
        records: the lines of the frames by name. The place of a frame in its source counts, so
            frames that were left out or failed do not move the others.
        manifest: of their folder.
        rate: frames a second of images that are a video, each folder one of its own; it counts
            where no time is recorded.
    """
    first_places: dict[str, int] = {}  # by folder
    every = every_of(manifest)
    failed_by_folder: dict[str, list[str]] = {}
    for failure in (manifest or {}).get("failed", ()):
        folder = failure["name"].rpartition("/")[0]
        failed_by_folder.setdefault(folder, []).append(failure["name"])
    for number, name in enumerate(frames):
        record = records.get(name, {})
        index = record.get("index", number)
        folder = name.rpartition("/")[0]
        if folder not in first_places:
            failed = failed_by_folder.get(folder, ())
            earlier = [other for other in failed if frame_order(other) < frame_order(name)]
            first_places[folder] = index - len(earlier)
        first = first_places[folder]
        seconds = (index - first) * every / rate if rate else None
        yield record.get("time", seconds)


def sizes_of(records: Mapping[str, Record]) -> tuple[str, ...]:
    """Return width x height of frames by their lines, each size once.

    >>> sizes_of({"a": {"size": [64, 96]}, "b": {"size": [64, 96]}})
    ('96x64',)
    """
    found = set()
    for record in records.values():
        height, width = record["size"]
        found.add(f"{width}x{height}")
    return tuple(sorted(found))
