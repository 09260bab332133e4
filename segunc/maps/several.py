"""Several maps folders of one model, as one: what ``predict`` writes of several inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.maps.nearest import NearestPlaces
from segunc.maps.reader import MapsReader
from segunc.maps.shards import Record

_OF_INPUT = ("input", "input_hash")  # settings in which runs of one model differ


class SeveralMaps(MapsReader):
    """The maps folders that lie in one folder; their frames are named ``RUN/FRAME``, RUN being the name of the folder.

    Attributes:
        runs: the reader of each folder, in the order of their names.

    InputError: a folder cannot be read, holds other maps than the first or those of another model, or has another region of interest.
    """

    def __init__(self, folder: Path, folders: Sequence[Path]) -> None:
        self.folder = folder
        self.runs = {path.name: MapsReader(path) for path in folders}
        first, *others = self.runs.values()
        for other in others:
            for what, of in _compared(first).items():
                if _compared(other)[what] != of:
                    given = f"{other.folder} has other {what} than {first.folder}"
                    raise InputError(given, "runs of one model, which differ in their input alone", "give one --maps")
        everything = [reader.manifest or {} for reader in self.runs.values()]
        failed = [
            entry | {"name": f"{run}/{entry['name']}"}
            for run, manifest in zip(self.runs, everything, strict=True)
            for entry in manifest.get("failed", [])
        ]
        inputs = ", ".join(str(manifest["run"].get("input")) for manifest in everything if "run" in manifest)
        run = {key: value for key, value in everything[0].get("run", {}).items() if key not in _OF_INPUT}
        self.manifest = everything[0] | {"run": run | {"input": inputs}, "failed": failed, "source": {}}
        self.class_names, self.scores, self.region = first.class_names, first.scores, first.region
        self.skipped = {}
        self.frames = [f"{run}/{name}" for run, reader in self.runs.items() for name in reader.frames]
        self.records = _Records(self)
        self.unfinished = "; ".join(reader.unfinished for reader in self.runs.values() if reader.unfinished) or None

    def of(self, name: str) -> tuple[MapsReader | None, str]:
        """The reader of a frame, None where there is no such run, and the frame's name in it."""
        run, _, inner = name.partition("/")
        return self.runs.get(run), inner

    def nearest(self, name: str) -> NearestPlaces | None:
        reader, inner = self.of(name)
        return None if reader is None else reader.nearest(inner)

    def _read(self, name: str, score: str) -> npt.NDArray[Any]:
        reader, inner = self.of(name)
        if reader is None:
            raise InputError(
                f"frame {name} is of no run in {self.folder}", f"one of {', '.join(self.runs)}", "check it"
            )
        return reader._read(inner, score)

    def _file_of(self, name: str, score: str) -> str | None:
        reader, inner = self.of(name)
        return None if reader is None else reader._file_of(inner, score)


class _Records(Mapping[str, Record]):
    """The lines of all runs, by the frames' long names."""

    def __init__(self, maps: SeveralMaps) -> None:
        self._maps = maps

    def __getitem__(self, name: str) -> Record:
        reader, inner = self._maps.of(name)
        if reader is None:
            raise KeyError(name)
        return reader.records[inner]

    def __iter__(self) -> Iterator[str]:
        return iter(self._maps.frames)

    def __len__(self) -> int:
        return len(self._maps.frames)


def _compared(reader: MapsReader) -> dict[str, Any]:
    manifest = reader.manifest or {}
    run = {key: value for key, value in manifest.get("run", {}).items() if key not in _OF_INPUT}
    region = None if reader.region is None else reader.region.sha256
    return {"maps": manifest.get("maps"), "model": manifest.get("model"), "settings": run, "mask": region}
