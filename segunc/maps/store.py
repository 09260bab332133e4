"""Maps to disk, so that a run killed at any moment can be continued to the same bytes.

The order of writes carries the guarantee. Every file of a frame appears whole, by atomic rename; only then is the
frame's line appended to ``frames.jsonl``. A frame without a line is unfinished whatever files it has, and is written
again. The state of a run is those lines and nothing else.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import cv2
import numpy as np
import numpy.typing as npt

from segunc.data.images import Image
from segunc.errors import InputError
from segunc.files import write_atomically
from segunc.maps.encoding import UNIT_SCORES, decode_unit, encode_score
from segunc.maps.folder import (
    OVERLAY,
    PREDICTION,
    Record,
    clear_folder,
    continued_manifest,
    lock_folder,
    recover_frames,
    remove_partial_files,
)
from segunc.maps.manifest import (
    FRAMES_NAME,
    MANIFEST_NAME,
    Manifest,
    read_manifest,
    refuse_other_run,
    write_manifest,
)

# Measured on three uint16 maps of 960 x 540 (a noisy, a smooth and a real one), process time of one core: run lengths
# at level 1 take 17 to 19 ms, the general strategy 25 to 35 ms at level 1 and 35 ms at level 3, for sizes within 3 % of
# each other. Every parameter is fixed, because a resumed run must give the same bytes.
_PNG = [cv2.IMWRITE_PNG_COMPRESSION, 1, cv2.IMWRITE_PNG_STRATEGY, cv2.IMWRITE_PNG_STRATEGY_RLE]
_JPEG = [cv2.IMWRITE_JPEG_QUALITY, 90]

Array = npt.NDArray[Any]
Maps = Mapping[str, Array]
"""The maps of one frame by name: ``prediction`` as class ids, scores as real values or in their stored form."""


class MapsWriter:
    """Writes a maps folder, or continues one.

    Args:
        out: the folder; made if missing.
        manifest: :func:`segunc.maps.manifest.build_manifest`; its ``run`` part must equal that of an existing folder.
        overwrite: remove the maps of an existing maps folder first. A folder without a manifest is never cleared.

    Attributes:
        out: the folder.
        finished: names of the frames that have a line in ``frames.jsonl``.
        failed: name -> reason of the frames that failed in this run.
        was_complete: the folder had been finished without a failure before this run.

    Raises:
        InputError: the folder holds other files, was written with other settings, or is being written by another run.
    """

    def __init__(self, out: Path, manifest: Mapping[str, Any], *, overwrite: bool = False) -> None:
        self.out = out
        self.failed: dict[str, str] = {}
        self._closed = False
        before = read_manifest(out)
        if before is None and out.is_dir() and any(out.iterdir()):
            raise InputError(
                f"output {out} holds files but no {MANIFEST_NAME}", "an empty or new folder", "give another --out"
            )
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"output {out} cannot be made ({error.strerror})", "a folder that can be written", "give another --out"
            ) from error
        self._lock = lock_folder(out)
        try:
            if before is not None and overwrite:
                clear_folder(out, before)
                before = None
            if before is not None:
                refuse_other_run(out, before.get("run", {}), manifest.get("run", {}))
                remove_partial_files(out)
            self._manifest = continued_manifest(before, manifest)
            self._scores = [name for name in self._manifest["maps"] if name != PREDICTION]
            self.finished = recover_frames(out) if before is not None else []
            self._known = set(self.finished)
            self.was_complete = before is not None and before.get("status") == "finished" and not before.get("failed")
            self._lines = (out / FRAMES_NAME).open("ab", buffering=0)
            self._write_manifest("running")
        except BaseException:
            self._unlock()
            raise

    @property
    def manifest(self) -> Manifest:
        """The manifest as it stands."""
        return self._manifest

    def is_finished(self, name: str) -> bool:
        """Whether a frame's maps are all in place."""
        return name in self._known

    def store(self, name: str, maps: Maps, overlay: Image | None = None) -> Record:
        """Write the files of one frame and return its record; safe from several threads for different frames.

        Scores in 0..1 are encoded here (a uint16 array is taken as encoded), unbounded ones become float16; mean and
        max in the record are of the stored values, in real units.

        Args:
            name: the frame's name.
            maps: ``prediction`` as integers ``[H, W]`` and every score of the manifest ``[H, W]``.
            overlay: RGB uint8 picture for ``overlay/``.

        Raises:
            InputError: a map is missing, has another size or type, or holds NaN.
            OSError: a file cannot be written.
        """
        expected = {PREDICTION, *self._scores}
        if set(maps) != expected:
            raise InputError(f"frame {name} has the maps {sorted(maps)}", f"{sorted(expected)}", "repair the process")
        height, width = maps[PREDICTION].shape
        files: dict[str, str] = {}
        mean: dict[str, float] = {}
        peak: dict[str, float] = {}
        for score in (PREDICTION, *self._scores):
            values = maps[score]
            if values.shape != (height, width):
                raise InputError(
                    f"map {score} of frame {name} is {values.shape}", f"{(height, width)}", "repair the process"
                )
            if score == PREDICTION:
                stored: Array = _class_ids(values, name)
            else:
                stored = _stored_score(score, values)
                mean[score], peak[score] = _mean_and_max(score, stored)
            files[score] = f"{score}/{name}.{'npy' if stored.dtype == np.float16 else 'png'}"
            self._write_file(files[score], encode_npy(stored) if stored.dtype == np.float16 else encode_png(stored))
        if overlay is not None:
            files[OVERLAY] = f"{OVERLAY}/{name}.jpg"
            self._write_file(files[OVERLAY], encode_jpeg(overlay))
        return {"name": name, "size": [height, width], "files": files, "mean": mean, "max": peak}

    def commit(self, record: Record) -> None:
        """Append a stored frame's line; call it in source order, from one thread."""
        line = json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"
        # One write to an unbuffered file: the line is with the operating system when this returns.
        self._lines.write(line.encode())
        self.finished.append(record["name"])
        self._known.add(record["name"])
        self.failed.pop(record["name"], None)

    def write(self, name: str, maps: Maps, overlay: Image | None = None) -> Record:
        """:meth:`store` and :meth:`commit` in one step."""
        record = self.store(name, maps, overlay)
        self.commit(record)
        return record

    def fail(self, name: str, reason: str) -> None:
        """Note that a frame failed; the manifest lists it and the next run tries it again."""
        self.failed[name] = reason

    def close(self, status: str = "finished", *, position: Callable[[str], int] | None = None) -> None:
        """End the run: bring the lines into source order, write the manifest with its status and failures.

        Args:
            status: ``finished`` (every frame was reached) or ``interrupted``.
            position: the place of a frame name in the source. Frames that failed in an earlier run and succeeded in
                this one have their line at the end; they are moved to where an unbroken run has them.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self._lines.close()
            if position is not None:
                self._sort_lines(position)
            self._write_manifest(status)
        finally:
            self._unlock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close("finished" if kind is None else "interrupted")

    def _write_file(self, relative: str, data: bytes) -> None:
        path = self.out / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data)

    def _sort_lines(self, position: Callable[[str], int]) -> None:
        places = [position(name) for name in self.finished]
        if places == sorted(places):
            return
        lines = (self.out / FRAMES_NAME).read_bytes().splitlines(keepends=True)
        order = sorted(range(len(lines)), key=places.__getitem__)
        write_atomically(self.out / FRAMES_NAME, b"".join(lines[i] for i in order))
        self.finished = [self.finished[i] for i in order]

    def _write_manifest(self, status: str) -> None:
        self._manifest["status"] = status
        self._manifest["finished"] = len(self.finished)
        self._manifest["failed"] = [{"name": name, "reason": reason} for name, reason in sorted(self.failed.items())]
        write_manifest(self.out, self._manifest)

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def encode_png(values: Array) -> bytes:
    """PNG bytes of a ``[H, W]`` uint8 or uint16 map, or of an RGB uint8 ``[H, W, 3]`` picture."""
    pixels = cv2.cvtColor(values, cv2.COLOR_RGB2BGR) if values.ndim == 3 else values
    return cv2.imencode(".png", pixels, _PNG)[1].tobytes()


def encode_jpeg(picture: Image) -> bytes:
    """JPEG bytes (quality 90) of an RGB uint8 ``[H, W, 3]`` picture."""
    return cv2.imencode(".jpg", cv2.cvtColor(picture, cv2.COLOR_RGB2BGR), _JPEG)[1].tobytes()


def encode_npy(values: Array) -> bytes:
    """``.npy`` bytes of an array."""
    buffer = io.BytesIO()
    np.save(buffer, np.ascontiguousarray(values), allow_pickle=False)
    return buffer.getvalue()


def _class_ids(values: Array, name: str) -> npt.NDArray[np.uint8]:
    if not np.issubdtype(values.dtype, np.integer) or values.min(initial=0) < 0 or values.max(initial=0) > 255:
        raise InputError(f"the prediction of frame {name} is {values.dtype}", "class ids 0..255", "repair the process")
    return np.ascontiguousarray(values, np.uint8)


def _stored_score(score: str, values: Array) -> Array:
    if np.issubdtype(values.dtype, np.floating):
        return encode_score(score, values)
    if values.dtype == np.uint16 and score in UNIT_SCORES:
        return values
    raise InputError(
        f"map {score} is {values.dtype}", "floating values, or uint16 codes of a score in 0..1", "repair the process"
    )


def _mean_and_max(score: str, stored: Array) -> tuple[float, float]:
    values = decode_unit(stored) if score in UNIT_SCORES else stored
    # Nine digits hold a float32; more would be rounding noise of the summation.
    return float(f"{values.mean(dtype=np.float64):.9g}"), float(f"{float(values.max()):.9g}")
