"""The lines of a maps folder as a mapping, without holding them in memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path

from segunc.files import inside
from segunc.maps.frame_log import Record, iterate_lines, parse_record
from segunc.maps.shards import Shard


class FrameRecords(Mapping[str, Record]):
    """Frame name -> its line of ``frames.jsonl``, in source order, for all shards of a folder.

    Of each frame its name and the place of its line in the file are kept; the line is read when it is asked for. The last
    one is remembered, because frames are mostly looked at one after the other.

    Args:
        folder: the maps folder.
        shards: its shards.

    Raises:
        InputError: a line that is not torn is no record.
    """

    def __init__(self, folder: Path, shards: list[Shard]) -> None:
        self._paths = [inside(folder, shard.frames_name) for shard in shards]
        self._lines: dict[str, int] = {}
        self._file, self._start, self._length = array("H"), array("Q"), array("L")
        places = array("q")
        names: list[str] = []
        for number, path in enumerate(self._paths):
            start = 0
            for line, record in iterate_lines(path):
                self._file.append(number)
                self._start.append(start)
                self._length.append(len(line))
                places.append(record.get("index", len(places)))
                names.append(record["name"])
                start += len(line)
        for place in sorted(range(len(names)), key=places.__getitem__):
            self._lines[names[place]] = place
        self._last: tuple[str, Record] | None = None

    def __getitem__(self, name: str) -> Record:
        if self._last is None or self._last[0] != name:
            line = self._lines[name]
            with self._paths[self._file[line]].open("rb") as file:
                file.seek(self._start[line])
                record = parse_record(file.read(self._length[line]), f"{file.name}, frame {name}")
            self._last = name, record
        return self._last[1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)

    def __contains__(self, name: object) -> bool:
        return name in self._lines
