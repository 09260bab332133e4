"""Score maps in the files of a public benchmark.

``smiyc``: METHOD/DATASET/FRAME.hdf5, data set ``value``, float16, gzip 9, FRAME being the name of the image without folders and
_leftImg8bit: evaluation.py and datasets/*.py of https://github.com/SegmentMeIfYouCan/road-anomaly-benchmark.

``fishyscapes``: for an image DDDD_*.png the files DDDD_anomaly.npy and DDDD_segmentation.npy of its size: submission.md of
https://github.com/hermannsblum/fishyscapes. Its evaluation sorts files by that number, compares anomaly scores, higher the more
anomalous, in float32 (eval.py), and class ids with Cityscapes train ids (euler_cityscapes.py), of any integer type.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from segunc.core.errors import InputError
from segunc.core.files import check_place, read_json, write_file, write_json
from segunc.data.labels import label_map
from segunc.maps.encoding import HDF5_KEY, Array, decode_stored, encode_npy
from segunc.maps.labelled import choose_scores
from segunc.maps.manifest import refuse_other_run
from segunc.maps.reader import BENCHMARK_FOLDER, MapsReader

RECORD_NAME, FORMAT = "export.json", "segunc-export"


@dataclass
class ExportResult:
    """What an export did."""

    folder: Path  # where the files are
    written: int = 0  # frames
    total: int = 0
    failed: dict[str, str] = field(default_factory=dict)  # frame -> why it has no file
    notes: list[str] = field(default_factory=list)  # what a user should know

    @property
    def failure(self) -> str:
        """Say which frames failed, in one line; empty where none did."""
        if not self.failed:
            return ""
        first = "{} ({})".format(*next(iter(self.failed.items())))
        return f"{len(self.failed)} of {self.total} frames could not be exported, first {first}"


def export_maps(
    maps: Path,
    out: Path,
    score: str,
    to: str,
    *,
    method: str = "",
    dataset: str = "",
    anomaly_only: bool = False,
    on_frame: Callable[[int, int], object] = lambda *_: None,
) -> ExportResult:
    """Write a score's maps, in real units, as a benchmark takes them.

    The arguments are those of :class:`segunc.options.ExportOptions`. Every file appears whole and has the same bytes whenever it is
    written, so the same call goes on after a kill. ``export.json`` records what the files were made of.
    """
    smiyc, reader = to == "smiyc", MapsReader(maps)
    for option, name in (("--method", method), ("--dataset", dataset)):
        if smiyc and not re.fullmatch(r"\w[\w .-]*", name):
            raise InputError(f"{to} needs {option}, and '{name}' can be no folder", hint=f"{option} mine")
    if reader.manifest is None and out.resolve().is_relative_to(maps.resolve()):
        raise InputError(f"output {out} lies inside the maps {maps}, which it would join", hint="give another --out")
    (score,) = choose_scores(reader, [score])
    train_ids = None if smiyc or anomaly_only else _train_ids(reader)
    endings = (".hdf5",) if smiyc else ("_anomaly.npy", "_segmentation.npy")[: 1 if train_ids is None else 2]
    place = f"{BENCHMARK_FOLDER}/{method}/{dataset}" if smiyc else "."
    stems = _stems(reader, smiyc)
    # The maps of this tool are told by their run, so their folder may move.
    source = {"run": reader.manifest.get("run", {})} if reader.manifest else {"maps": str(reader.folder.resolve())}
    settings: dict[str, Any] = {"to": to, "score": score, "method": method, "dataset": dataset, "source": source}
    settings |= {"form": reader.form(score)} | ({} if train_ids is None else {"segmentation": True})
    record = _claim(out, place, settings, {f"{stem}{ending}" for stem in stems.values() for ending in endings})
    result = ExportResult(out / place, total=len(stems))
    for done, (frame, stem) in enumerate(stems.items(), start=1):
        try:
            for ending, data in zip(endings, _contents(reader, frame, score, smiyc, train_ids), strict=True):
                write_file(result.folder / f"{stem}{ending}", data)
            result.written += 1
        except InputError as error:
            result.failed[frame] = str(error)
        on_frame(done, result.total)
    record["exports"][place] |= {"status": "finished", "written": result.written, "failed": result.failed}
    write_json(out / RECORD_NAME, record)
    if result.written == 0:
        raise InputError(result.failure)
    if reader.unfinished:
        result.notes.append(f"{reader.unfinished}; only finished frames were exported")
    if not smiyc and (odd := [stem for stem in stems.values() if not stem.partition("_")[0].isdigit()]):
        result.notes.append(f"{len(odd)} frames have no number, first {odd[0]}, and the board reads no such file")
    return result


def _contents(reader: MapsReader, frame: str, score: str, smiyc: bool, train_ids: Array | None) -> list[bytes]:
    """Return the bytes of the files of a frame, the same for the same values."""
    stored = reader.read_stored(frame, score)
    values = stored if stored.dtype.kind == "f" else decode_stored(stored, reader.form(score))
    with np.errstate(over="ignore"):
        values = values.astype(np.float16 if smiyc else np.float32)
    if not np.isfinite(values).all():
        raise InputError(f"the map holds NaN, or values beyond those of {values.dtype}", hint="scale it by a constant")
    if smiyc:
        import h5py

        buffer = io.BytesIO()
        with h5py.File(buffer, "w") as file:
            file.create_dataset(HDF5_KEY, data=values, compression="gzip", compression_opts=9)
        return [buffer.getvalue()]
    if train_ids is None:
        return [encode_npy(values)]
    ids = reader.prediction(frame)
    if ids.shape != values.shape or ids.max(initial=0) >= len(train_ids):
        raise InputError(
            f"prediction {ids.shape} with ids up to {ids.max()} does not fit {values.shape} and the classes"
        )
    return [encode_npy(values), encode_npy(train_ids[ids])]


def _train_ids(reader: MapsReader) -> Array:
    """Return the train id of Cityscapes of each class id of the maps, by the classes' names."""
    cityscapes, names = label_map("cityscapes").classes, reader.class_names or ["without a name"]
    if strange := [name for name in names if name not in cityscapes]:
        raise InputError(
            f"class '{strange[0]}' is none of Cityscapes, whose ids the board takes", hint="--anomaly-only"
        )
    return np.array([cityscapes.index(name) for name in names], np.int32)


def _stems(reader: MapsReader, smiyc: bool) -> dict[str, str]:
    """Return the name of each frame's files without their endings; the benchmarks know no folders, so two may collide."""
    owners: dict[str, str] = {}
    for frame in reader.frames:
        name = PurePosixPath(frame).name
        number = None if smiyc else re.match(r"(\d{4})(?:_|$)", name)
        stem = number[1] if number else name.removesuffix("_leftImg8bit" if smiyc else "")
        if stem in owners:
            raise InputError(
                f"the frames {owners[stem]} and {frame} would both be {stem}", hint="export each folder alone"
            )
        owners[stem] = frame
    return {frame: stem for stem, frame in owners.items()}


def _claim(out: Path, place: str, settings: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """Record an export and return the record of all exports of the output folder; refuse a place with files of anything else."""
    path, folder = out / RECORD_NAME, out / place
    record: dict[str, Any] = {"format": FORMAT, "exports": {}}
    record = read_json(path, "a record of exports") if path.exists() else record
    if record.get("format") != FORMAT:
        raise InputError(f"{path} is no record of exports", hint="give another --out")
    check_place(folder, folder=True)
    if before := record["exports"].get(place):
        refuse_other_run(folder, before["settings"], settings, hint="give another --out")
    present = {file.name for file in folder.glob("*") if file.suffix in (".hdf5", ".npy")}
    if strangers := present - (names if before else set()):
        raise InputError(f"{folder} holds {min(strangers)}, which is no file of this export", hint="give a new --out")
    folder.mkdir(parents=True, exist_ok=True)
    record["exports"][place] = {"settings": settings, "status": "running"}
    write_json(path, record)
    return record
