"""Read a maps folder, ours or of any other tool.

Of other tools, where no manifest says which file is which, three layouts are known, looked for in this order:

* SegmentMeIfYouCan, ``anomaly_p/METHOD/DATASET/FRAME.hdf5``, given by the folder ``anomaly_p`` or the one it lies in. The
  score is the method; with several data sets the frames are named ``DATASET/FRAME``.
  https://github.com/SegmentMeIfYouCan/road-anomaly-benchmark (``road_anomaly_benchmark/evaluation.py``)
* ``SCORE/FRAME.ext``, folders inside SCORE being part of the frame's name; ``prediction/FRAME.ext`` holds class ids.
* ``FRAME.ext`` in one flat folder; the score is the folder's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.core.files import frame_order, inside
from segunc.data.entry import frame_name, is_hidden
from segunc.data.labels import LabelMap
from segunc.maps.encoding import class_ids, decode_compact
from segunc.maps.folder import OVERLAY, PREDICTION, read_map
from segunc.maps.manifest import COMPACT_VALUES, UNIT_VALUE, is_ours, read_manifest
from segunc.maps.score_files import SUFFIXES, Form, as_score, decode_stored, read_score_file
from segunc.maps.shards import MANIFEST_NAME, FrameRecords, all_shards, find_log
from segunc.maps.statistics import read_region
from segunc.maps.sums import REPAIR

BENCHMARK_FOLDER = "anomaly_p"
NOT_SCORES = (OVERLAY, "overlays", "image", "images", "label", "labels", "labels_masks", "masks")
"""Folders that stand beside score folders and hold none."""

Files = dict[str, dict[str, Path]]
"""Score (or ``prediction``) -> frame name -> file."""


class MapsReader:
    """A maps folder.

    With a manifest of this tool the frames are the lines of ``frames.jsonl``, in source order, so an unfinished frame
    is not seen. Without one (maps of another tool) they are the sorted names of the files, in any layout above.

    Attributes:
        manifest: None where there is none.
        records: frame name -> line of ``frames.jsonl`` (of all shards); empty where there is none.
        frames: names of all frames.
        class_names: of the class ids 0, 1, ...; None where the maps do not say.
        scores: names of the score maps, in the manifest's order or sorted.
        region: the pixels that count; None where all do.
        unfinished: one line on a run that has not (or not yet) reached its end; None where it has, and for other tools.

    Raises:
        InputError: the folder is missing, holds no map or two files of one frame, or its manifest is damaged, missing beside
            ``frames.jsonl``, or of another version.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise InputError(f"maps folder {folder} does not exist")
        self.folder = folder
        self.manifest = read_manifest(folder) if is_ours(folder) else None
        manifest = self.manifest or {}
        self.class_names: list[str] | None = manifest.get("classes", {}).get("names")
        if self.manifest is not None:
            self._files: Files = {score: {} for score in manifest["maps"]}
        elif log := find_log(folder):
            # Read as another tool's, uint16 codes would silently get other values.
            raise InputError(
                f"{folder} holds {log} but no {MANIFEST_NAME}",
                hint=f"restore {MANIFEST_NAME}, or remove {log} to have the maps read as another tool's",
            )
        else:
            self._files = find_maps(folder)
        self.records = FrameRecords(folder, [] if self.manifest is None else all_shards(manifest))
        self.region = read_region(folder, self.manifest)
        self.unfinished = None if self.manifest is None else self._what_is_missing(manifest)
        self.scores = [score for score in self._files if score != PREDICTION]
        named = {name for files in self._files.values() for name in files}
        self.frames = sorted(named, key=frame_order) if self.manifest is None else list(self.records)
        if not self.frames:
            kinds = ", ".join(SUFFIXES)
            raise InputError(f"maps folder {folder} holds no finished map: no file SCORE/FRAME or FRAME of {kinds}")

    def _what_is_missing(self, manifest: dict[str, Any]) -> str | None:
        status = manifest.get("status", "unknown")
        if status != "finished":
            so_far = f"(status {status:.40}, {len(self.records)} frames so far)"
            return f"the run that writes {self.folder} has not finished {so_far}"
        lost = manifest["finished"] - len(self.records)
        return f"{self.folder} has lost the lines of {lost} finished frames; {REPAIR}" if lost > 0 else None

    def has(self, name: str, score: str) -> bool:
        """Return whether a frame has a map of a score (or ``prediction``)."""
        return self._file_of(name, score) is not None

    def may_hold_floats(self, score: str) -> bool:
        """Return whether a map of a score is in a kind of file that can hold floats."""
        return any((self._file_of(name, score) or ".png").lower()[-4:] != ".png" for name in self.frames)

    def form(self, score: str) -> Form:
        """Return how whole numbers of a score's maps become values: as the manifest says, else ``linear``."""
        return "unit-code" if self._value(score) in (UNIT_VALUE, COMPACT_VALUES["unit16"]) else "linear"

    def read_stored(self, name: str, score: str) -> npt.NDArray[Any]:
        """Read a score map ``[H, W]`` as it is stored (see :func:`segunc.maps.score_files.as_score`), a compact one at the
        frame's size in the form that others have; InputError where there is none or its file is damaged."""
        return as_score(self._read(name, score))

    def read(self, name: str, score: str) -> npt.NDArray[np.float32]:
        """Read a score map in real units, float32 ``[H, W]``."""
        return decode_stored(self.read_stored(name, score), self.form(score))

    def prediction(self, name: str) -> npt.NDArray[np.uint8]:
        """Read the class ids of a frame, uint8 ``[H, W]``; any whole-numbered file whose values are 0..255."""
        return class_ids(self._read(name, PREDICTION), name)

    def _read(self, name: str, score: str) -> npt.NDArray[Any]:
        file = self._file_of(name, score)
        if file is None:
            known = ", ".join(self._files)
            raise InputError(f"frame {name} has no map '{score}' in {self.folder}, which holds {known}")
        path = inside(self._folder_of(name), file)
        known_sum = self.records[name]["sums"][score] if name in self.records else None
        stored = read_score_file(path, partial(read_map, known=known_sum), ids=score == PREDICTION)
        if (value := self._value(score)) not in COMPACT_VALUES.values():
            return stored
        floats = value == COMPACT_VALUES["float16"]
        whole = decode_compact(stored, self.records[name].get("size"), f"map {path}", floats=floats)
        return whole if self.region is None else self.region.clear({score: whole})[score]

    def _folder_of(self, name: str) -> Path:
        """Return the folder that the files of a frame lie in."""
        return self.folder

    def _value(self, score: str) -> str | None:
        """Return the formula by which the manifest says that codes become values."""
        value: str | None = (self.manifest or {}).get("maps", {}).get(score, {}).get("value")
        return value

    def _file_of(self, name: str, score: str) -> str | None:
        """Return the file of a map relative to its folder."""
        if self.manifest is None:
            path = self._files.get(score, {}).get(name)
            return None if path is None else path.relative_to(self.folder).as_posix()
        file: str | None = self.records[name]["files"].get(score) if name in self.records and score != OVERLAY else None
        return file


def check_classes(reader: MapsReader, label_map: LabelMap) -> None:
    """Refuse a label map that numbers the classes otherwise than the network did; other words for them may pass."""
    names = reader.class_names
    if names is None:
        return
    moved = [name for i, name in enumerate(names) if name in label_map.classes and label_map.classes.index(name) != i]
    if len(names) != label_map.num_classes or moved:
        detail = f"class '{moved[0]}' has another number" if moved else f"it has {label_map.num_classes} classes"
        raise InputError(
            f"label map '{label_map.name}' does not fit the {len(names)} classes of the maps in {reader.folder}: {detail}",
            hint="give the label map that the network was trained with, or one that names the classes as the network does",
        )


def find_maps(folder: Path) -> Files:
    """Find the maps in a folder of another tool."""
    root = folder if folder.resolve().name == BENCHMARK_FOLDER else folder / BENCHMARK_FOLDER
    if root.is_dir():
        return _benchmark_files(root)
    scores = [path for path in _subfolders(folder) if path.name.lower() not in NOT_SCORES]
    files = {path.name: frames for path in scores if (frames := _frames(path, _map_files(path)))}
    flat = [] if files else [path for path in _map_files(folder) if path.parent == folder]
    return files or ({folder.resolve().name: _frames(folder, flat)} if flat else {})


def _benchmark_files(root: Path) -> Files:
    """Return the maps below ``anomaly_p``; where all are of one data set, its name is left out of the frames' names."""
    datasets = {path.name for method in _subfolders(root) for path in _subfolders(method)}
    files: Files = {}
    for method in _subfolders(root):
        folders = [method] if len(datasets) > 1 else _subfolders(method)
        frames = {name: path for folder in folders for name, path in _frames(folder, _map_files(folder)).items()}
        if frames:
            files[method.name] = frames
    return files


def _subfolders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _map_files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in SUFFIXES and not is_hidden(path, folder) and not path.is_dir():
            yield path


def _frames(folder: Path, paths: Iterable[Path]) -> dict[str, Path]:
    frames: dict[str, Path] = {}
    for path in paths:
        name = frame_name(folder, path)
        if name in frames:
            raise InputError(f"{frames[name]} and {path} are both frame '{name}'", hint="remove one of them")
        frames[name] = path
    return frames
