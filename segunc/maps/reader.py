"""Maps from disk, of this tool or any other that writes one file a frame and score."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from segunc.errors import InputError
from segunc.files import inside
from segunc.maps.folder import OVERLAY, PREDICTION
from segunc.maps.frame_log import Record
from segunc.maps.layouts import FoundMaps, find_maps
from segunc.maps.manifest import FRAMES_NAME, MANIFEST_NAME, UNIT_VALUE, is_ours, read_manifest
from segunc.maps.records import FrameRecords
from segunc.maps.region import MASK_NAME, Region
from segunc.maps.score_files import SUFFIXES, Form, as_score, decode_stored, read_score_file
from segunc.maps.shards import all_shards

_EXPECTED = f"files SCORE/FRAME or FRAME with one of {', '.join(SUFFIXES)}"


class MapsReader:
    """A maps folder.

    With a manifest of this tool the frames are the lines of ``frames.jsonl``, in source order, so an unfinished frame
    is not seen. Without one (maps of another tool) they are the sorted names of the files, in any layout of
    :mod:`segunc.maps.layouts`.

    Attributes:
        folder: the folder.
        manifest: its manifest, None where there is none.
        records: frame name -> line of ``frames.jsonl`` (of all shards); empty where there is none.
        frames: names of all frames.
        scores: names of the score maps, in the manifest's order or sorted; empty where only class ids are there.
        skipped: folder -> why it is not taken for a score; empty with a manifest.
        region: the pixels that count; None where all do.
        unfinished: one line on a run that has not (or not yet) reached its end; None where it has, and for other tools.

    Raises:
        InputError: the folder is missing, holds no map or two files of one frame, or its manifest is damaged, missing
            beside ``frames.jsonl``, or of another version.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise InputError(f"maps folder {folder} does not exist", "a folder of maps", "check the path")
        self.folder = folder
        self.manifest = read_manifest(folder) if is_ours(folder) else None
        self.records: Mapping[str, Record] = {}
        if self.manifest is not None:
            self.records = FrameRecords(folder, all_shards(self.manifest))
            found = FoundMaps({score: {} for score in self.manifest.get("maps", {})})
        elif (folder / FRAMES_NAME).exists():
            # Read as another tool's, uint16 codes would silently get other values.
            raise InputError(
                f"{folder} holds {FRAMES_NAME} but no {MANIFEST_NAME}",
                "both, as this tool writes them",
                f"restore {MANIFEST_NAME}, or remove {FRAMES_NAME} to have the maps read as another tool's",
            )
        else:
            found = find_maps(folder)
        masked = self.manifest is not None and "mask" in self.manifest
        self.region = Region(inside(folder, MASK_NAME)) if masked else None
        self._files, self.skipped = found.files, found.skipped
        self.unfinished = self._why_unfinished()
        self.scores = [score for score in self._files if score != PREDICTION]
        named = {name for files in self._files.values() for name in files}
        self.frames = sorted(named) if self.manifest is None else list(self.records)
        if not self.frames:
            self._refuse_empty()

    def __len__(self) -> int:
        return len(self.frames)

    def has(self, name: str, score: str) -> bool:
        """Whether a frame has a map of a score (or ``prediction``)."""
        return self._find(name, score) is not None

    def missing(self, score: str) -> list[str]:
        """The frames that have no map of a score (or ``prediction``)."""
        return [name for name in self.frames if not self.has(name, score)]

    def form(self, score: str) -> Form:
        """How whole numbers of a score's maps become values: what the manifest says, ``linear`` without one.

        The name of a score decides nothing: another tool's 16-bit ``entropy`` is no code of ours.
        """
        if self.manifest is None:
            return "linear"
        described = self.manifest.get("maps", {}).get(score, {})
        return "unit-code" if described.get("value") == UNIT_VALUE else "linear"

    def read_stored(self, name: str, score: str) -> npt.NDArray[Any]:
        """A score map as it is stored: uint8 or uint16 ``[H, W]``, or floats of any width.

        Other whole numbers and booleans are float64 of the same values.

        Raises:
            InputError: there is no such map, or its file is damaged or no single-channel map.
        """
        return as_score(self._read(name, score))

    def read(self, name: str, score: str) -> npt.NDArray[np.float32]:
        """A score map in real units, float32 ``[H, W]``; whole numbers by :meth:`form`, floats as they are."""
        return decode_stored(self.read_stored(name, score), self.form(score))

    def prediction(self, name: str) -> npt.NDArray[np.uint8]:
        """The class ids of a frame, uint8 ``[H, W]``; any whole-numbered file whose values are 0..255."""
        stored = self._read(name, PREDICTION)
        if stored.dtype == np.uint8:
            return stored.astype(np.uint8, copy=False)
        if stored.dtype.kind not in "iu" or stored.min(initial=0) < 0 or stored.max(initial=0) > 255:
            raise InputError(f"the prediction of frame {name} is {stored.dtype}", "class ids 0..255", "convert it")
        return stored.astype(np.uint8)

    def _read(self, name: str, score: str) -> npt.NDArray[Any]:
        file = self._find(name, score)
        if file is None:
            known = ", ".join(self._files)
            raise InputError(f"frame {name} has no map '{score}' in {self.folder}", f"one of {known}", "check the name")
        return read_score_file(inside(self.folder, file))

    def _find(self, name: str, score: str) -> str | None:
        """The file of a map, relative to the folder."""
        if self.manifest is None:
            path = self._files.get(score, {}).get(name)
            return None if path is None else path.relative_to(self.folder).as_posix()
        file: str | None = self.records[name]["files"].get(score) if name in self.records and score != OVERLAY else None
        return file

    def _why_unfinished(self) -> str | None:
        if self.manifest is None or self.manifest.get("status") == "finished":
            return None
        status = self.manifest.get("status", "unknown")
        return (
            f"the run that writes {self.folder} has not finished (status {status}, {len(self.records)} frames so far)"
        )

    def _refuse_empty(self) -> None:
        remedy = "let the prediction finish a frame first" if self.manifest else "check the path"
        aside = "".join(f"; {name}: {why}" for name, why in self.skipped.items())
        raise InputError(f"maps folder {self.folder} holds no finished map{aside}", _EXPECTED, remedy)
