"""One input shared out to several processes or machines that write into one folder.

The frames of a source are dealt out in blocks, like cards. Each shard has its own file of finished frames, its own record
of how its run went, and its own lock; ``manifest.json`` belongs to all. Nothing has to be merged: a reader sees the
union of the shards in source order, and the maps are those of a single run to the byte.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segunc.errors import InputError
from segunc.files import inside, read_json, write_json
from segunc.maps.frame_log import Record, iterate_lines

FORMAT = "segunc-maps-shard"
FRAMES_STEM, MANIFEST_STEM, LOCK_STEM = "frames", "manifest", ".lock"
MOST_SHARDS = 4096
"""Parts of one folder: each has a log of its own that every reader opens."""


@dataclass(frozen=True)
class Shard:
    """Shard ``number`` of ``count``, counted from 1; 1 of 1 is everything.

    Raises:
        InputError: a count below 1 or above 4096, or a number outside of 1..count.
    """

    number: int = 1
    count: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.count <= MOST_SHARDS:
            given = f"shard {self.number}/{self.count}"
            raise InputError(given, f"1/N to N/N, N up to {MOST_SHARDS}", "number the shards from 1")

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @property
    def whole(self) -> bool:
        """Whether it is everything."""
        return self.count == 1

    @property
    def frames_name(self) -> str:
        """File of its finished frames."""
        return f"{FRAMES_STEM}{self._suffix}.jsonl"

    @property
    def record_name(self) -> str:
        """File of its status and failures; the manifest itself where it is everything."""
        return f"{MANIFEST_STEM}{self._suffix}.json"

    @property
    def lock_name(self) -> str:
        """File that is locked while a process works on it."""
        return f"{LOCK_STEM}{self._suffix}"

    def owns(self, place: int, block: int = 1) -> bool:
        """Whether the frame at a place of the source belongs to it, dealt out in blocks of so many frames."""
        return place // block % self.count == self.number - 1

    def share(self, frames: int, block: int = 1) -> int:
        """How many of the first so many frames belong to it."""
        rounds, rest = divmod(frames, block * self.count)
        return rounds * block + min(block, max(0, rest - block * (self.number - 1)))

    @property
    def _suffix(self) -> str:
        return "" if self.whole else f".{self.number}-of-{self.count}"


def parse_shard(text: str) -> Shard:
    """``i/n`` as a shard.

    Raises:
        InputError: another form, or numbers out of range.
    """
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text.strip())
    if match is None:
        raise InputError(f"a shard of '{text}'", "i/n, e.g. 2/4", "number the shards from 1")
    return Shard(int(match[1]), int(match[2]))


def all_shards(manifest: dict[str, Any] | None) -> list[Shard]:
    """The shards of a maps folder by its manifest.

    Raises:
        InputError: a number of shards that is none.
    """
    count = (manifest or {}).get("shards", 1)
    if type(count) is not int or not 1 <= count <= MOST_SHARDS:
        raise InputError(f"a manifest of {ascii(count)[:80]} shards", f"1 to {MOST_SHARDS}", "predict again")
    return [Shard(number, count) for number in range(1, count + 1)]


def iterate_records(folder: Path, shards: list[Shard]) -> Iterator[Record]:
    """The records of all shards in source order, one at a time.

    Raises:
        InputError: a line that is not torn is no record.
    """
    streams = [(record for _, record in iterate_lines(inside(folder, shard.frames_name))) for shard in shards]
    if len(streams) == 1:
        yield from streams[0]
    else:
        yield from heapq.merge(*streams, key=lambda record: record.get("index", 0))


def write_shard_record(folder: Path, shard: Shard, content: dict[str, Any]) -> None:
    """Write how a shard's run stands, by atomic rename."""
    write_json(folder / shard.record_name, {"format": FORMAT, "shard": [shard.number, shard.count], **content})


def read_shard_record(folder: Path, shard: Shard) -> dict[str, Any] | None:
    """How a shard's run stands, None where it was never started.

    Raises:
        InputError: the file is no record of a shard.
    """
    path = inside(folder, shard.record_name)
    if not path.exists():
        return None
    record = read_json(path, "a shard's record")
    kinds = {"status": str, "finished": int, "failed": list}
    if not all(isinstance(record.get(key), kind) for key, kind in kinds.items()):
        raise InputError(f"{path} is no record of a shard", f"{', '.join(kinds)}", "predict again")
    return record


def joined_state(folder: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """``status``, ``finished`` and ``failed`` of a folder in shards.

    The status is ``finished`` when all shards are, ``running`` while one is (or was killed), else ``interrupted``.
    """
    shards = all_shards(manifest)
    found = {shard: read_shard_record(folder, shard) for shard in shards}
    states = [record["status"] for record in found.values() if record is not None]
    if len(states) == len(shards) and set(states) == {"finished"}:
        status = "finished"
    else:
        status = "running" if "running" in states else "interrupted"
    return {
        "status": status,
        "finished": sum(record["finished"] for record in found.values() if record is not None),
        "failed": [failure for record in found.values() if record is not None for failure in record["failed"]],
        "missing_shards": [str(shard) for shard, r in found.items() if r is None or r["status"] != "finished"],
    }
