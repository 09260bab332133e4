"""Several maps folders of one model, as one: what ``predict`` writes of several inputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from segunc.core.errors import InputError
from segunc.maps.reader import MapsReader
from segunc.maps.shards import FrameRecords

_INPUT_KEYS = ("input", "input_hash")  # settings in which runs of one model differ


class SeveralMaps(MapsReader):
    """The maps folders that lie in one folder; their frames are named ``RUN/FRAME``, RUN being the name of the folder.

    Attributes:
        runs: the reader of each folder, in the order of their names.

    Raises:
        InputError: a folder cannot be read, or has other maps, another model or another region of interest than the first.
    """

    def __init__(self, folder: Path, folders: Sequence[Path]) -> None:
        self.folder = folder
        self.runs = {path.name: MapsReader(path) for path in folders}
        first, *others = self.runs.values()
        for other in others:
            for what, of in _compared(first).items():
                if _compared(other)[what] != of:
                    raise InputError(
                        f"{other.folder} has other {what} than {first.folder}, so they are no runs of one model",
                        hint=f"give one of them: --maps {first.folder}",
                    )
        manifests = [reader.manifest or {} for reader in self.runs.values()]
        failed = [
            entry | {"name": f"{run}/{entry['name']}"}
            for run, manifest in zip(self.runs, manifests, strict=True)
            for entry in manifest.get("failed", [])
        ]
        inputs = ", ".join(str(manifest["run"].get("input")) for manifest in manifests if "run" in manifest)
        run = {key: value for key, value in manifests[0].get("run", {}).items() if key not in _INPUT_KEYS}
        self.manifest = manifests[0] | {"run": run | {"input": inputs}, "failed": failed, "source": {}}
        self.class_names, self.scores, self.region = first.class_names, first.scores, first.region
        self._files = first._files
        self.records = FrameRecords.of_runs({run: reader.records for run, reader in self.runs.items()})
        self.frames = list(self.records)
        self.unfinished = "; ".join(reader.unfinished for reader in self.runs.values() if reader.unfinished) or None

    def _folder_of(self, name: str) -> Path:
        return self.runs[name.partition("/")[0]].folder


def _compared(reader: MapsReader) -> dict[str, Any]:
    manifest = reader.manifest or {}
    run = {key: value for key, value in manifest.get("run", {}).items() if key not in _INPUT_KEYS}
    region = None if reader.region is None else reader.region.sha256
    return {"maps": manifest.get("maps"), "model": manifest.get("model"), "settings": run, "mask": region}
