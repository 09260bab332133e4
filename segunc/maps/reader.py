"""Maps from disk, of this tool or any other that writes ``SCORE/FRAME.{png,npy}``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from segunc.data.images import find_damage
from segunc.errors import InputError
from segunc.maps.encoding import UNIT_SCORES, decode_unit
from segunc.maps.folder import OVERLAY, PREDICTION, Record, read_lines
from segunc.maps.manifest import FRAMES_NAME, read_manifest

_SUFFIXES = (".png", ".npy")


class MapsReader:
    """A maps folder.

    With ``frames.jsonl`` the frames are its lines, in source order, so an unfinished frame is not seen. Without it
    (maps of another tool) they are the sorted names of the files in the score folders.

    Attributes:
        folder: the folder.
        manifest: its manifest, None where there is none.
        records: frame name -> line of ``frames.jsonl``; empty where there is none.
        frames: names of all frames.
        scores: names of the score maps, in the manifest's order or sorted.

    Raises:
        InputError: the folder is missing, or holds no map.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise InputError(
                f"maps folder {folder} does not exist", "a folder of SCORE/FRAME.png or .npy", "check the path"
            )
        self.folder = folder
        self.manifest = read_manifest(folder)
        self.records: dict[str, Record] = {}
        if (folder / FRAMES_NAME).exists():
            self.records = {record["name"]: record for record in read_lines(folder / FRAMES_NAME)[0]}
        self._files = self._from_records() if self.records or self.manifest else self._from_folders()
        self.scores = [score for score in self._files if score != PREDICTION]
        if self.records:
            self.frames = list(self.records)
        else:
            self.frames = sorted({name for score in self.scores for name in self._files[score]})
        if not self.frames:
            remedy = "let the prediction finish a frame first" if self.manifest else "check the path"
            raise InputError(f"maps folder {folder} holds no finished map", "files SCORE/FRAME.png or .npy", remedy)

    def __len__(self) -> int:
        return len(self.frames)

    def has(self, name: str, score: str) -> bool:
        """Whether a frame has a map of a score (or ``prediction``)."""
        return name in self._files.get(score, {})

    def read_stored(self, name: str, score: str) -> npt.NDArray[Any]:
        """A map as it is stored: uint8 or uint16 ``[H, W]`` of a PNG, any float type of an ``.npy``.

        Raises:
            InputError: there is no such map, or its file is damaged or no single-channel map.
        """
        try:
            path = self._files[score][name]
        except KeyError:
            known = ", ".join(self._files)
            raise InputError(
                f"frame {name} has no map '{score}' in {self.folder}", f"one of {known}", "check the name"
            ) from None
        stored = _read_npy(path) if path.suffix == ".npy" else _read_png(path)
        if stored.ndim != 2:
            raise InputError(f"map {path} has the shape {stored.shape}", "one channel, [H, W]", "convert the map")
        return stored

    def read(self, name: str, score: str) -> npt.NDArray[np.float32]:
        """A score map in real units, float32 ``[H, W]``.

        uint16 codes of the scores in 0..1 that this tool names are ``(code / 65535)^2``; any other whole-numbered map
        of another tool is taken as linear, 0..1 over the range of its type; floats are taken as they are.
        """
        stored = self.read_stored(name, score)
        if np.issubdtype(stored.dtype, np.floating):
            return stored.astype(np.float32)
        if stored.dtype == np.uint16 and score in UNIT_SCORES:
            return decode_unit(stored)
        return stored.astype(np.float32) / np.float32(np.iinfo(stored.dtype).max)

    def prediction(self, name: str) -> npt.NDArray[np.uint8]:
        """The class ids of a frame, uint8 ``[H, W]``."""
        stored = self.read_stored(name, PREDICTION)
        if stored.dtype != np.uint8:
            raise InputError(f"the prediction of frame {name} is {stored.dtype}", "uint8 class ids", "convert it")
        return stored.astype(np.uint8, copy=False)

    def overlay(self, name: str) -> Path | None:
        """The overlay picture of a frame, None where there is none."""
        path = self.folder / OVERLAY / f"{name}.jpg"
        return path if path.is_file() else None

    def _from_records(self) -> dict[str, dict[str, Path]]:
        files: dict[str, dict[str, Path]] = {score: {} for score in (self.manifest or {}).get("maps", {})}
        for name, record in self.records.items():
            for score, relative in record["files"].items():
                if score != OVERLAY:
                    files.setdefault(score, {})[name] = self.folder / relative
        return files

    def _from_folders(self) -> dict[str, dict[str, Path]]:
        files: dict[str, dict[str, Path]] = {}
        for folder in sorted(path for path in self.folder.iterdir() if path.is_dir() and path.name != OVERLAY):
            for path in sorted(folder.rglob("*")):
                if path.suffix.lower() not in _SUFFIXES or not path.is_file() or path.name.startswith("."):
                    continue
                name = path.relative_to(folder).with_suffix("").as_posix()
                found = files.setdefault(folder.name, {})
                if name in found:
                    raise InputError(f"{found[name]} and {path} are both frame '{name}'", "one file", "remove one")
                found[name] = path
        return files


def _read_npy(path: Path) -> npt.NDArray[Any]:
    try:
        loaded = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"map {path} cannot be read ({error})", "an .npy array", "write the map again") from error
    if not isinstance(loaded, np.ndarray):
        raise InputError(f"map {path} is an archive of arrays", "one .npy array", "write the map again")
    return loaded


def _read_png(path: Path) -> npt.NDArray[Any]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"map {path} cannot be read ({error.strerror})", "a PNG", "write the map again") from error
    damage = find_damage(data)
    decoded = None if damage else cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    if decoded is None:
        raise InputError(f"map {path} cannot be read ({damage or 'no image'})", "a PNG", "write the map again")
    return np.asarray(decoded)
