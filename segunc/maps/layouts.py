"""Which files of a folder are the maps of which score and frame, where no manifest of this tool says it.

Four layouts are known, looked for in this order:

* SegmentMeIfYouCan, ``anomaly_p/METHOD/DATASET/FRAME.hdf5``; the folder given may be any level of it. The score is the
  method. With several data sets the frames are named ``DATASET/FRAME``.
  https://github.com/SegmentMeIfYouCan/road-anomaly-benchmark (``road_anomaly_benchmark/evaluation.py``)
* ``SCORE/FRAME.ext``, folders inside SCORE being part of the frame's name; ``prediction/FRAME.ext`` holds class ids.
* Fishyscapes, ``FRAME_anomaly.npy`` in one flat folder; the score is the folder's name.
  https://github.com/hermannsblum/fishyscapes (``eval.py``)
* ``FRAME.ext`` in one flat folder, likewise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from segunc.core.errors import InputError
from segunc.maps.folder import OVERLAY, PREDICTION
from segunc.maps.score_files import SUFFIXES, is_colour_picture

BENCHMARK_FOLDER = "anomaly_p"
FISHYSCAPES_ENDING = "_anomaly"
NOT_SCORES = (OVERLAY, "overlays", "image", "images", "label", "labels", "labels_masks", "masks")
"""Folders that stand beside score folders and hold none."""
_PEEKS = 16
"""Files of a folder that must all be colour pictures before it is taken for a folder of pictures."""

Files = dict[str, dict[str, Path]]
"""Score (or ``prediction``) -> frame name -> file."""


@dataclass(frozen=True)
class FoundMaps:
    """The maps of a folder.

    Attributes:
        files: score -> frame name -> file.
        skipped: name of a folder that holds no score -> why.
    """

    files: Files
    skipped: dict[str, str] = field(default_factory=dict)


def find_maps(folder: Path) -> FoundMaps:
    """The maps of a folder of another tool.

    Raises:
        InputError: two files are the same frame of the same score.
    """
    methods = _benchmark_methods(folder)
    if methods:
        return FoundMaps(_benchmark_files(methods))
    found = FoundMaps({})
    for path in sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")):
        files = _frames(path, _map_files(path))
        if not files:
            continue
        why = None if path.name == PREDICTION else _why_no_score(path, list(files.values()))
        if why is None:
            found.files[path.name] = files
        else:
            found.skipped[path.name] = why
    if not found.files:
        flat = [path for path in _map_files(folder) if path.parent == folder]
        if flat and _all_colour(flat):
            found.skipped[folder.resolve().name] = "it holds colour pictures"
        elif flat:
            found.files[folder.resolve().name] = _flat_frames(folder, flat)
    return found


def _benchmark_methods(folder: Path) -> dict[str, list[Path]]:
    """Method -> its data set folders, where the folder is any level of the SegmentMeIfYouCan layout."""
    full = folder.resolve()
    if full.parent.parent.name == BENCHMARK_FOLDER:
        return {full.parent.name: [folder]}
    if full.parent.name == BENCHMARK_FOLDER:
        return {full.name: _subfolders(folder)}
    root = folder if full.name == BENCHMARK_FOLDER else folder / BENCHMARK_FOLDER
    return {method.name: _subfolders(method) for method in _subfolders(root)} if root.is_dir() else {}


def _benchmark_files(methods: dict[str, list[Path]]) -> Files:
    frames = {
        (method, dataset.resolve().name): _frames(dataset, _map_files(dataset))
        for method, datasets in methods.items()
        for dataset in datasets
    }
    several = len({dataset for (_, dataset), found in frames.items() if found}) > 1
    files: Files = {}
    for (method, dataset), found in frames.items():
        prefix = f"{dataset}/" if several else ""
        if found:
            files.setdefault(method, {}).update({f"{prefix}{name}": path for name, path in found.items()})
    return files


def _subfolders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _map_files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file():
            yield path


def _frames(folder: Path, paths: Iterator[Path] | list[Path]) -> dict[str, Path]:
    frames: dict[str, Path] = {}
    for path in paths:
        name = path.relative_to(folder).with_suffix("").as_posix()
        if name in frames:
            raise InputError(f"{frames[name]} and {path} are both frame '{name}'", "one file", "remove one")
        frames[name] = path
    return frames


def _flat_frames(folder: Path, paths: list[Path]) -> dict[str, Path]:
    marked = [path for path in paths if path.suffix == ".npy" and path.stem.endswith(FISHYSCAPES_ENDING)]
    if marked:
        return {path.stem.removesuffix(FISHYSCAPES_ENDING): path for path in marked}
    return _frames(folder, paths)


def _why_no_score(folder: Path, paths: list[Path]) -> str | None:
    if folder.name.lower() in NOT_SCORES:
        return f"a folder named {folder.name} is not taken for a score"
    return "it holds colour pictures" if _all_colour(paths) else None


def _all_colour(paths: list[Path]) -> bool:
    step = max(1, len(paths) // _PEEKS)
    return all(is_colour_picture(path) for path in paths[::step])
