"""Read a maps folder, ours or of any other tool: files ``SCORE/FRAME.ext``, folders inside SCORE
being part of the frame's name, and class ids in ``prediction/FRAME.ext``. So the files of
SegmentMeIfYouCan lie below ``anomaly_p``: ``METHOD/DATASET/FRAME.hdf5``.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError, NoteWarning
from segunc.core.files import file_sha256, frame_order, inside
from segunc.core.urls import place_of
from segunc.data.frame_names import frame_name
from segunc.data.image_files import is_hidden
from segunc.data.labels import LabelMap
from segunc.maps.encoding import (
    SUFFIXES,
    Form,
    class_ids,
    decode_compact,
    decode_stored,
    keys_to_half,
    read_score_file,
)
from segunc.maps.folder import OVERLAY, PREDICTION, read_map
from segunc.maps.manifest import (
    COMPACT_VALUES,
    UNIT_VALUE,
    is_ours,
    read_manifest,
    what_is_missing,
)
from segunc.maps.regions import Mask, read_region
from segunc.maps.shards import (
    MANIFEST_NAME,
    REPAIR,
    FrameRecords,
    Shard,
    all_shards,
    find_log,
    sizes_of,
)

BENCHMARK_FOLDER = "anomaly_p"
NOT_SCORES = (
    OVERLAY,
    "overlays",
    "image",
    "images",
    "label",
    "labels",
    "labels_masks",
    "masks",
)
"""Folders that may lie beside those of the scores."""


class MapsReader:
    """A maps folder. Its frames are the lines of ``frames.jsonl``, in source order; of another
    tool, the sorted names of the files.

    Attributes:
        folder: of this machine.
        place: what messages call it: the URL of which it is a copy, or else its path.
        records: frame name -> line of ``frames.jsonl`` (of all shards); empty where there is none.
        class_names: of the class ids 0, 1, ...; None where the maps do not say.
        region: the pixels that count; None where all do.
        unfinished: one line on what the folder lacks (:func:`what_is_missing`); None where
            nothing, and for other tools.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise InputError(f"maps folder {folder} does not exist")
        self.folder = folder
        self.place = place_of(folder)
        self.manifest = read_manifest(folder) if is_ours(folder) else None
        self.class_names: list[str] | None = None
        self.unfinished: str | None = None
        self._files: dict[str, dict[str, Path]] = {}  # score -> frame -> file, of another tool
        # Score -> the formula by which the manifest says that codes become values.
        self._formulas: dict[str, str | None] = {}
        if self.manifest is None:
            _check_is_foreign(folder)
            self._files = find_maps(folder)
            self._maps = [*self._files]
            shards: list[Shard] = []
        else:
            self.class_names = self.manifest.get("classes", {}).get("names")
            self._maps = [*self.manifest["maps"]]
            for score, described in self.manifest["maps"].items():
                self._formulas[score] = described.get("value")
            shards = all_shards(self.manifest)
        self.scores = [name for name in self._maps if name != PREDICTION]
        self.region = read_region(folder, self.manifest)
        self.records = FrameRecords(folder, shards)
        if self.manifest is None:
            names = {name for files in self._files.values() for name in files}
            self.frames = sorted(names, key=frame_order)
        else:
            self.frames = list(self.records)
            self.unfinished = what_is_missing(self.place, self.manifest, len(self.records))
        if not self.frames:
            raise InputError(
                f"maps folder {self.place} holds no finished map, "
                f"SCORE/FRAME of {', '.join(SUFFIXES)}"
            )

    def has(self, name: str, score: str) -> bool:
        """Return whether a frame has a map of a score (or ``prediction``)."""
        return self._file_of(name, score) is not None

    def kept(self, shape: tuple[int, ...]) -> Mask | None:
        """Return which pixels of a frame of this shape count, bool ``[H, W]``; None where all
        do.
        """
        if self.region is None:
            return None
        height, width = shape
        return self.region.at(height, width)

    def may_hold_floats(self, score: str) -> bool:
        """Return whether a map of a score is in a kind of file that can hold floats."""
        for name in self.frames:
            file = self._file_of(name, score)
            if file is not None and not file.lower().endswith(".png"):
                return True
        return False

    def form(self, score: str) -> Form:
        """Return how whole numbers of a score's maps become values: as the manifest says, else
        ``linear``.
        """
        if self._formulas.get(score) in (UNIT_VALUE, COMPACT_VALUES["unit16"]):
            return "unit-code"
        return "linear"

    def read_stored(self, name: str, score: str) -> npt.NDArray[Any]:
        """Read a score map ``[H, W]`` as it is stored.

        A compact one is brought to the frame's size, in the form that others have. Whole numbers of
        a wider or signed type become float64: the range of the type says nothing about that of the
        scores, so they are values.
        """
        stored = self._read(name, score)
        if stored.dtype in (np.uint8, np.uint16) or stored.dtype.kind == "f":
            return stored
        return stored.astype(np.float64)

    def read(self, name: str, score: str) -> npt.NDArray[np.float32]:
        """Read a score map in real units, float32 ``[H, W]``."""
        return decode_stored(self.read_stored(name, score), self.form(score))

    def prediction(self, name: str) -> npt.NDArray[np.uint8]:
        """Read the class ids of a frame, uint8 ``[H, W]``.

        Raises:
            InputError: the file holds anything but whole numbers in 0..255.
        """
        return class_ids(self._read(name, PREDICTION), name)

    def prediction_of(self, name: str) -> npt.NDArray[np.uint8] | None:
        """Return the class ids of a frame, uint8 ``[H, W]``; None where it has no prediction."""
        return self.prediction(name) if self.has(name, PREDICTION) else None

    def identity(self, name: str, score: str) -> str:
        """Return the hash by which a frame is known again: that of its image (``stamp_of``) where
        the maps record it, else of its map.
        """
        record = self.records.get(name, {})
        _, digest_of_map = record.get("sums", {}).get(score, (0, ""))
        recorded = record.get("stamp") or digest_of_map
        if recorded:
            return str(recorded)
        return file_sha256(self.folder / str(self._file_of(name, score)))

    def image_hash(self, name: str) -> str | None:
        """Return the hash of a frame's image (``stamp_of``); None where the maps record none: of
        frames of a video, and of another tool's maps.
        """
        stamp: str | None = self.records.get(name, {}).get("stamp")
        return stamp

    def _read(self, name: str, score: str) -> npt.NDArray[Any]:
        file = self._file_of(name, score)
        if file is None:
            raise InputError(
                f"frame {name} has no map '{score}' in {self.place}, "
                f"which holds {', '.join(self._maps)}"
            )
        path = inside(self.folder, file)
        expected = self.records[name]["sums"][score] if name in self.records else None
        read_bytes = partial(read_map, expected=expected)
        stored = read_score_file(path, read_bytes, ids=score == PREDICTION)
        formula = self._formulas.get(score)
        compact = formula in COMPACT_VALUES.values()
        if name in self.records:
            self._check_recorded(path, name, score, stored, compact=compact)
        if not compact:
            return stored
        height, width = self.records[name]["size"]
        floats = formula == COMPACT_VALUES["float16"]
        whole = decode_compact(stored, height, width, floats=floats)
        return whole if self.region is None else self.region.clear({score: whole})[score]

    def sizes(self, names: Iterable[str] | None = None) -> tuple[str, ...]:
        """Return width x height of frames, each size once; empty for maps of another tool.

        Args:
            names: of the frames; None for all.
        """
        chosen = self.frames if names is None else names
        return sizes_of({name: self.records[name] for name in chosen if name in self.records})

    def _check_recorded(
        self, path: Path, name: str, score: str, stored: npt.NDArray[Any], *, compact: bool
    ) -> None:
        """Raise InputError for a map of ours whose type, shape or values its frame's line and the
        manifest do not allow: sums that fit do not say who wrote it."""
        described = (self.manifest or {})["maps"][score]
        dtype = described.get("dtype")
        sides = self.records[name]["size"]
        shape = tuple(-(-side // 2) for side in sides) if compact else tuple(sides)
        fault = ""
        if stored.dtype != dtype or stored.shape != shape:
            fault = f"{stored.dtype} {list(stored.shape)}, not {dtype} {list(shape)} as recorded"
        elif score == PREDICTION and self.class_names and stored.max() >= len(self.class_names):
            fault = f"a prediction of class {stored.max()}, of {len(self.class_names)} classes"
        elif not _is_finite(stored, keys=compact and dtype == "uint16"):
            fault = "a map with NaN or infinite values"
        if fault:
            raise InputError(f"{path} is {fault}", hint=REPAIR)

    def _file_of(self, name: str, score: str) -> str | None:
        """Return the file of a map relative to the folder; None where there is none."""
        if self.manifest is None:
            path = self._files.get(score, {}).get(name)
            return None if path is None else path.relative_to(self.folder).as_posix()
        if name not in self.records or score == OVERLAY:
            return None
        file: str | None = self.records[name]["files"].get(score)
        return file


def _check_is_foreign(folder: Path) -> None:
    """Raise InputError where maps of ours lack their manifest: read as another tool's, uint16 codes
    would silently get other values."""
    log = find_log(folder)
    if log:
        raise InputError(
            f"{folder} holds {log} but no {MANIFEST_NAME}",
            hint=f"restore {MANIFEST_NAME}, or remove {log} to have the maps read as another "
            "tool's",
        )


def _is_finite(stored: npt.NDArray[Any], *, keys: bool) -> bool:
    """Return whether all values of a map are finite; ``keys`` says that it holds keys of floats."""
    if keys:
        stored = keys_to_half(stored)
    return stored.dtype.kind != "f" or bool(np.isfinite(stored).all())


def check_classes(reader: MapsReader, label_map: LabelMap) -> None:
    """Raise InputError for a label map that numbers the classes otherwise than the network did;
    other words for them may pass."""
    names = reader.class_names
    if names is None:
        return
    detail = ""
    if len(names) != label_map.num_classes:
        detail = f"it has {label_map.num_classes} classes"
    for number, name in enumerate(names):
        if name in label_map.classes and label_map.classes.index(name) != number:
            detail = f"class '{name}' has another number"
            break
    if detail:
        raise InputError(
            f"label map '{label_map.name}' does not fit the {len(names)} classes of the maps in "
            f"{reader.place}: {detail}",
            hint="give the label map that the network was trained with, or one that names the "
            "classes as the network does",
        )


def find_maps(folder: Path) -> dict[str, dict[str, Path]]:
    """Find the maps in a folder of another tool: score (or ``prediction``) -> frame name -> file.

    Links to folders are not followed, which a warning says.
    """
    root = folder / BENCHMARK_FOLDER
    if not root.is_dir():
        root = folder
    scores: dict[str, dict[str, Path]] = {}
    links: list[Path] = []
    for path in sorted(root.rglob("*")):
        if path.suffix.lower() not in SUFFIXES:
            if path.is_symlink() and path.is_dir():
                links.append(path)
            continue
        score, *rest = path.relative_to(root).parts
        if not rest or score.lower() in NOT_SCORES or is_hidden(path, root) or path.is_dir():
            continue
        frames = scores.setdefault(score, {})
        name = frame_name(root / score, path)
        if name in frames:
            raise InputError(
                f"{frames[name]} and {path} are both frame '{name}'", hint="remove one of them"
            )
        frames[name] = path
    if links:
        first = links[0].relative_to(root).as_posix()
        warnings.warn(
            f"{folder}: {len(links)} links to folders left out, first {first}; "
            "put the folder itself in the place of the link",
            NoteWarning,
            stacklevel=2,
        )
    return scores
