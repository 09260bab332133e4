"""Reading a maps folder, ours or of any other tool.

Of other tools, where no manifest says which file is which, four layouts are known, looked for in this order:

* SegmentMeIfYouCan, ``anomaly_p/METHOD/DATASET/FRAME.hdf5``; the folder given may be any level of it. The score is the
  method; with several data sets the frames are named ``DATASET/FRAME``.
  https://github.com/SegmentMeIfYouCan/road-anomaly-benchmark (``road_anomaly_benchmark/evaluation.py``)
* ``SCORE/FRAME.ext``, folders inside SCORE being part of the frame's name; ``prediction/FRAME.ext`` holds class ids.
* Fishyscapes, ``FRAME_anomaly.npy`` in one flat folder, with ``FRAME_segmentation.npy`` for the prediction; the score is the
  folder's name. https://github.com/hermannsblum/fishyscapes (``submission.md``, ``eval.py``)
* ``FRAME.ext`` in one flat folder, likewise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.core.files import frame_order, inside
from segunc.data.labels import LabelMap
from segunc.data.layout import composed, frame_name, is_hidden
from segunc.maps.encoding import class_ids, decode_compact
from segunc.maps.folder import OVERLAY, PREDICTION, read_map
from segunc.maps.manifest import COMPACT_VALUES, UNIT_VALUE, is_ours, read_manifest
from segunc.maps.nearest import NEAREST, NearestPlaces, strongest
from segunc.maps.score_files import SUFFIXES, Form, as_score, decode_stored, is_colour_picture, read_score_file
from segunc.maps.shards import MANIFEST_NAME, FrameRecords, all_shards, find_log
from segunc.maps.statistics import read_region
from segunc.maps.sums import REPAIR
from segunc.scores import SCORES

BENCHMARK_FOLDER = "anomaly_p"
FISHYSCAPES_ENDING, FISHYSCAPES_CLASSES = "_anomaly", "_segmentation"
NOT_SCORES = (OVERLAY, "overlays", "image", "images", "label", "labels", "labels_masks", "masks")
"""Folders that stand beside score folders and hold none."""
_PEEKS = 16
"""Files of a folder that must all be colour pictures before it is taken for a folder of pictures."""

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
        skipped: folder -> why it is not taken for a score; empty with a manifest.
        region: the pixels that count; None where all do.
        unfinished: one line on a run that has not (or not yet) reached its end; None where it has, and for other tools.

    InputError where the folder is missing, holds no map or two files of one frame, or its manifest is damaged, missing
    beside ``frames.jsonl``, or of another version.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise InputError(f"maps folder {folder} does not exist", "a folder of maps", "check the path")
        self.folder = folder
        self.manifest = read_manifest(folder) if is_ours(folder) else None
        self.class_names: list[str] | None = (self.manifest or {}).get("classes", {}).get("names")
        self.skipped: dict[str, str] = {}
        if self.manifest is not None:
            self._files: Files = {score: {} for score in self.manifest["maps"]}
        elif log := find_log(folder):
            # Read as another tool's, uint16 codes would silently get other values.
            given = f"{folder} holds {log} but no {MANIFEST_NAME}"
            remedy = f"restore {MANIFEST_NAME}, or remove {log} to have the maps read as another tool's"
            raise InputError(given, "both, as this tool writes them", remedy)
        else:
            self._files, self.skipped = find_maps(folder)
        self.records = FrameRecords(folder, [] if self.manifest is None else all_shards(self.manifest))
        self.region = read_region(folder, self.manifest)
        status = (self.manifest or {"status": "finished"}).get("status", "unknown")
        so_far = f"(status {status:.40}, {len(self.records)} frames so far)"
        self.unfinished = None if status == "finished" else f"the run that writes {folder} has not finished {so_far}"
        if self.manifest and status == "finished" and (lost := self.manifest["finished"] - len(self.records)) > 0:
            self.unfinished = f"{folder} has lost the lines of {lost} finished frames; {REPAIR}"
        self.scores = [score for score in self._files if score != PREDICTION]
        named = {name for files in self._files.values() for name in files}
        self.frames = sorted(named, key=frame_order) if self.manifest is None else list(self.records)
        if not self.frames:
            remedy = "let the prediction finish a frame first" if self.manifest else "check the path"
            aside = "".join(f"; {name}: {why}" for name, why in self.skipped.items())
            expected = f"files SCORE/FRAME or FRAME with one of {', '.join(SUFFIXES)}"
            raise InputError(f"maps folder {folder} holds no finished map{aside}", expected, remedy)

    def has(self, name: str, score: str) -> bool:
        """Whether a frame has a map of a score (or ``prediction``)."""
        return self._file_of(name, score) is not None

    def may_hold_floats(self, score: str) -> bool:
        """Whether a map of a score is in a kind of file that can hold floats."""
        return any((self._file_of(name, score) or ".png").lower()[-4:] != ".png" for name in self.frames)

    def form(self, score: str) -> Form:
        """How whole numbers of a score's maps become values: what the manifest, not the score's name, says, else ``linear``."""
        return "unit-code" if self._value(score) in (UNIT_VALUE, COMPACT_VALUES["unit16"]) else "linear"

    def read_stored(self, name: str, score: str) -> npt.NDArray[Any]:
        """A score map ``[H, W]`` as it is stored (see :func:`segunc.maps.score_files.as_score`), a compact one at the frame's size
        in the form that others have. InputError where there is no such map, or its file is damaged or no single-channel map."""
        return as_score(self._read(name, score))

    def read(self, name: str, score: str) -> npt.NDArray[np.float32]:
        """A score map in real units, float32 ``[H, W]``; whole numbers by :meth:`form`, floats as they are."""
        return decode_stored(self.read_stored(name, score), self.form(score))

    def prediction(self, name: str) -> npt.NDArray[np.uint8]:
        """The class ids of a frame, uint8 ``[H, W]``; any whole-numbered file whose values are 0..255."""
        return class_ids(self._read(name, PREDICTION), name, "convert it")

    def nearest(self, name: str) -> NearestPlaces | None:
        """What of the training frames each place of a frame is most like; None where that was not written."""
        file = self.records[name]["files"].get(NEAREST) if name in self.records else None
        if file is None:
            return None
        return NearestPlaces.read(inside(self._folder_of(name), file), self._bytes_of(name, NEAREST))

    def peak(self, score: str, values: npt.NDArray[np.floating]) -> tuple[int, int] | None:
        """(row, column) of the highest value of a map of a score, None where it is below the score's threshold."""
        recorded = (self.manifest or {}).get("maps", {}).get(score, {}).get("component_threshold")
        usual = SCORES[score].threshold if score in SCORES else None
        return strongest(values, recorded if isinstance(recorded, int | float) else usual)

    def _read(self, name: str, score: str) -> npt.NDArray[Any]:
        file = self._file_of(name, score)
        if file is None:
            known = ", ".join(self._files)
            raise InputError(f"frame {name} has no map '{score}' in {self.folder}", f"one of {known}", "check the name")
        stored = read_score_file(
            inside(self._folder_of(name), file), self._bytes_of(name, score), ids=score == PREDICTION
        )
        if (value := self._value(score)) not in COMPACT_VALUES.values():
            return stored
        floats = value == COMPACT_VALUES["float16"]
        whole = decode_compact(
            stored, self.records[name].get("size"), f"map {self._folder_of(name) / file}", floats=floats
        )
        return whole if self.region is None else self.region.clear({score: whole})[score]

    def _folder_of(self, name: str) -> Path:
        """That the files of a frame lie in."""
        return self.folder

    def _bytes_of(self, name: str, score: str) -> Callable[[Path], bytes]:
        """Reads a file of a frame, compared with the sum of its line where there is one."""
        return partial(read_map, known=self.records[name]["sums"][score] if name in self.records else None)

    def _value(self, score: str) -> str | None:
        """The formula by which the manifest says that codes become values."""
        value: str | None = (self.manifest or {}).get("maps", {}).get(score, {}).get("value")
        return value

    def _file_of(self, name: str, score: str) -> str | None:
        """Relative to the folder."""
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
        given = f"label map '{label_map.name}' does not fit the maps in {reader.folder}: {detail}"
        expected = f"the {len(names)} classes {', '.join(names)}"
        remedy = "give the label map that the network was trained with; evaluate takes others with --map-classes"
        raise InputError(given, expected, remedy)


def find_maps(folder: Path) -> tuple[Files, dict[str, str]]:
    """The maps of a folder of another tool, and the names of its folders that hold no score -> why."""
    files, skipped = _benchmark_files(folder), dict[str, str]()
    if files is not None:
        return files, skipped
    files = {}
    for path in _subfolders(folder):
        frames = _frames(path, _map_files(path))
        colour = path.name != PREDICTION and _all_colour(list(frames.values()))
        if frames and path.name.lower() in NOT_SCORES:
            skipped[path.name] = f"a folder named {path.name} is not taken for a score"
        elif colour:
            skipped[path.name] = "it holds colour pictures"
        elif frames:
            files[path.name] = frames
    flat = [] if files else [path for path in _map_files(folder) if path.parent == folder]
    if _all_colour(flat):
        skipped[folder.resolve().name] = "it holds colour pictures"
    elif flat:
        marked = _marked(flat, FISHYSCAPES_ENDING)
        files[folder.resolve().name] = marked or _frames(folder, flat)
        if marked and (predictions := _marked(flat, FISHYSCAPES_CLASSES)):
            files[PREDICTION] = predictions
    return files, skipped


def _benchmark_files(folder: Path) -> Files | None:
    """The maps where the folder is any level of the SegmentMeIfYouCan layout, None where it is none."""
    full = folder.resolve()
    root = folder if full.name == BENCHMARK_FOLDER else folder / BENCHMARK_FOLDER
    if full.parent.parent.name == BENCHMARK_FOLDER:
        methods = {full.parent.name: [folder]}
    elif full.parent.name == BENCHMARK_FOLDER:
        methods = {full.name: _subfolders(folder)}
    else:
        methods = {method.name: _subfolders(method) for method in _subfolders(root)} if root.is_dir() else {}
    found = [(m, d.resolve().name, _frames(d, _map_files(d))) for m, datasets in methods.items() for d in datasets]
    several = len({dataset for _, dataset, frames in found if frames}) > 1
    files: Files = {}
    for method, dataset, frames in found:
        if frames:
            prefix = f"{dataset}/" if several else ""
            files.setdefault(method, {}).update({f"{prefix}{name}": path for name, path in frames.items()})
    return files if methods else None


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
            raise InputError(f"{frames[name]} and {path} are both frame '{name}'", "one file", "remove one")
        frames[name] = path
    return frames


def _marked(paths: Iterable[Path], ending: str) -> dict[str, Path]:
    """The ``.npy`` files whose stem has the ending, by their frames."""
    return {composed(p.stem).removesuffix(ending): p for p in paths if p.suffix == ".npy" and p.stem.endswith(ending)}


def _all_colour(paths: list[Path]) -> bool:
    step = max(1, len(paths) // _PEEKS)
    return bool(paths) and all(is_colour_picture(path) for path in paths[::step])
