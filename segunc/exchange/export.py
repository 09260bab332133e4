"""Score maps in the files of a public benchmark."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.core.files import check_place, read_json, write_file, write_json
from segunc.data.labels import label_map
from segunc.maps.encoding import encode_npy
from segunc.maps.folder import PREDICTION
from segunc.maps.labelled import choose_scores
from segunc.maps.manifest import refuse_other_run, tool_commit, tool_version
from segunc.maps.reader import BENCHMARK_FOLDER, MapsReader
from segunc.maps.score_files import HDF5_KEY, decode_stored

Array = npt.NDArray[Any]
RECORD_NAME = "export.json"
FORMAT = "segunc-export"
NUMBERED = re.compile(r"(\d{4})(?:_|$)")  # names of Fishyscapes' images
_GZIP_LEVEL = 9  # as the benchmark's own writer


@dataclass(frozen=True)
class BenchmarkFormat:
    """How a benchmark takes score maps."""

    folder: str  # of the files in the output, with {method} and {dataset}, which are required where it names them
    stem: Callable[[str], str]  # of its files, of a frame's name without folders
    ending: str  # of its files
    encode: Callable[[Array], bytes]  # of values [H, W] of the stored type
    dtype: type[np.floating[Any]]
    classes: str = ""  # ending of its files of class ids, int32; empty where it takes none


def encode_hdf5(values: Array) -> bytes:
    """Return HDF5 bytes with the data set ``value``, gzip; the same bytes for the same values."""
    import h5py

    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        file.create_dataset(HDF5_KEY, data=values, compression="gzip", compression_opts=_GZIP_LEVEL)
    return buffer.getvalue()


def narrow(values: Array, dtype: type[np.floating[Any]]) -> Array:
    """Round values to a type; InputError for NaN, infinity or what is beyond the type."""
    largest = float(np.finfo(dtype).max)
    if not np.isfinite(values).all():
        raise InputError("the map holds NaN or infinite values")
    extreme = float(np.abs(values).max(initial=0))
    # Values up to half a step beyond the largest would be rounded down to it without a word.
    if extreme > largest:
        raise InputError(
            f"the map holds the value {extreme:.6g}, beyond the {largest:.6g} of {np.dtype(dtype).name}",
            hint="scale the score by a constant factor; its order is all that counts",
        )
    return values.astype(dtype)


FORMATS = {
    # {method_name}/{dset_name}/{fid}.hdf5, data set `value`, float16, gzip 9: road_anomaly_benchmark/evaluation.py and
    # datasets/dataset_io.py of https://github.com/SegmentMeIfYouCan/road-anomaly-benchmark; a fid is the name of the
    # image without folders, for Lost and Found also without _leftImg8bit (datasets/tracks.py).
    "smiyc": BenchmarkFormat(
        f"{BENCHMARK_FOLDER}/{{method}}/{{dataset}}",
        lambda name: name.removesuffix("_leftImg8bit"),
        ".hdf5",
        encode_hdf5,
        np.float16,
    ),
    # For an image DDDD_*.png the files DDDD_anomaly.npy and DDDD_segmentation.npy, both of the image's size: submission.md of
    # https://github.com/hermannsblum/fishyscapes. Its evaluation sorts files by that number, compares anomaly scores, higher
    # the more anomalous, in float32 (eval.py), and class ids with Cityscapes train ids (euler_cityscapes.py). It
    # says no more of their type than integer; signed 32 bits leave room for a confusion matrix's 19 * label + prediction.
    "fishyscapes": BenchmarkFormat(
        "",
        lambda name: match[1] if (match := NUMBERED.match(name)) else name,
        "_anomaly.npy",
        encode_npy,
        np.float32,
        "_segmentation.npy",
    ),
}


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
        lost = f"{len(self.failed)} of {self.total} frames could not be exported"
        return f"{lost}, first {first}; the others are in {self.folder}"


def export_maps(
    maps: Path,
    out: Path,
    score: str,
    to: str,
    *,
    method: str = "",
    dataset: str = "",
    anomaly_only: bool = False,
    on_frame: Callable[[int, int], None] | None = None,
) -> ExportResult:
    """Write a score's maps, in real units, as a benchmark takes them.

    Every file appears whole, by atomic rename, and has the same bytes whenever it is written, so the same call after a
    kill starts over and loses nothing. ``export.json`` beside the files records what they were made of; a folder with files
    of anything else is refused.

    The arguments are those of :class:`segunc.options.ExportOptions`; :data:`FORMATS` says what the benchmarks take.

    Raises:
        InputError: nothing to export, an unknown score or format, a name that is no folder name, two frames of one
            name, no predictions or classes that are none of Cityscapes', files of another export at the same place, or
            not one frame could be exported.
    """
    target, reader = FORMATS[to], MapsReader(maps)
    _check_names(target, to, method, dataset)
    if reader.manifest is None and out.resolve().is_relative_to(maps.resolve()):
        raise InputError(
            f"output {out} lies inside the maps {maps} and would be read as one", hint="give another --out"
        )
    (score,) = choose_scores(reader, [score])
    train_ids = _train_ids(reader) if target.classes and not anomaly_only else None
    stems = _stems(reader.frames, target)
    place = PurePosixPath(target.folder.format(method=method, dataset=dataset)).as_posix()
    result = ExportResult(out / place, total=len(stems))
    # The maps of this tool are told by their run, so their folder may move.
    source = {"run": reader.manifest.get("run", {})} if reader.manifest else {"maps": str(reader.folder.resolve())}
    described = {"to": to, "score": score, "form": reader.form(score), "method": method, "dataset": dataset}
    settings = described | {"source": source} | ({} if train_ids is None else {"segmentation": True})
    endings = [target.ending] if train_ids is None else [target.ending, target.classes]
    record = _claim(out, place, settings, {f"{stem}{ending}" for stem in stems.values() for ending in endings})
    for frame, stem in stems.items():
        try:
            _write_frame(reader, frame, score, target, train_ids, result.folder / stem)
            result.written += 1
        except InputError as error:
            result.failed[frame] = str(error)
        if on_frame is not None:
            on_frame(result.written + len(result.failed), result.total)
    failed = [{"name": name, "reason": reason} for name, reason in result.failed.items()]
    record["exports"][place] |= {"status": "finished", "written": result.written, "failed": failed}
    write_json(out / RECORD_NAME, record)
    if result.written == 0:
        frame, reason = next(iter(result.failed.items()))
        raise InputError(f"none of {len(stems)} frames could be exported, first {frame} ({reason})")
    result.notes = _notes(target, reader, list(stems.values()))
    return result


def _write_frame(
    reader: MapsReader, frame: str, score: str, target: BenchmarkFormat, train_ids: Array | None, path: Path
) -> None:
    """Write the files of a frame, whose names begin with ``path``."""
    stored = reader.read_stored(frame, score)
    # Floats keep their width, so that what does not fit can be told from what is infinite.
    values = stored if stored.dtype.kind == "f" else decode_stored(stored, reader.form(score))
    narrowed = narrow(values, target.dtype)
    if train_ids is not None:
        classes = _board_classes(reader.prediction(frame), train_ids, narrowed.shape, frame)
        write_file(path.with_name(f"{path.name}{target.classes}"), encode_npy(classes))
    write_file(path.with_name(f"{path.name}{target.ending}"), target.encode(narrowed))


def _notes(target: BenchmarkFormat, reader: MapsReader, stems: Sequence[str]) -> list[str]:
    """Return what a user should know of an export."""
    notes = [f"{reader.unfinished}; only finished frames were exported"] if reader.unfinished else []
    odd = [stem for stem in stems if not stem.partition("_")[0].isdigit()] if target.classes else []
    if odd:
        notes.append(f"{len(odd)} frames have no number, {odd[0]} for instance, and the board reads no such file")
    return notes


def _check_names(target: BenchmarkFormat, to: str, method: str, dataset: str) -> None:
    for option, name in (("--method", method), ("--dataset", dataset)):
        if target.folder and not name:
            raise InputError(f"{to} needs {option}", hint="e.g. --method mine --dataset ObstacleTrack-all")
        if name and (name != Path(name).name or name.startswith(".") or "\\" in name):
            raise InputError(f"{option} '{name}' can be no folder", hint="leave out slashes and leading dots")


def _train_ids(reader: MapsReader) -> npt.NDArray[np.int32]:
    """Return the train id of Cityscapes of each class id of the maps, by the classes' names.

    Raises:
        InputError: there are no predictions, the classes have no names, or one is none of Cityscapes.
    """
    hint = "--anomaly-only leaves the class ids out"
    if not any(reader.has(frame, PREDICTION) for frame in reader.frames):
        raise InputError(f"{reader.folder} holds no predictions, and the board takes class ids too", hint=hint)
    if reader.class_names is None:
        raise InputError(f"the maps in {reader.folder} do not name the classes, whose ids the board takes", hint=hint)
    cityscapes = label_map("cityscapes").classes
    for name in reader.class_names:
        if name not in cityscapes:
            raise InputError(f"class '{name}' of the maps is none of Cityscapes, whose ids the board takes", hint=hint)
    return np.array([cityscapes.index(name) for name in reader.class_names], np.int32)


def _board_classes(ids: Array, train_ids: Array, size: tuple[int, ...], frame: str) -> Array:
    """Return the train ids of a prediction; InputError where it is of another size than the score or holds unknown ids."""
    if ids.shape != size:
        raise InputError(f"prediction and score of frame {frame} are {ids.shape} and {size}")
    if ids.max(initial=0) >= len(train_ids):
        raise InputError(f"frame {frame} holds class {ids.max()} of only {len(train_ids)} classes")
    return train_ids[ids]


def _stems(frames: Sequence[str], target: BenchmarkFormat) -> dict[str, str]:
    """Return the name of each frame's files without their endings; the benchmarks know no folders, so two may collide."""
    stems = {frame: target.stem(PurePosixPath(frame).name) for frame in frames}
    owners: dict[str, str] = {}
    for frame, stem in stems.items():
        if owners.setdefault(stem, frame) != frame:
            raise InputError(
                f"the frames {owners[stem]} and {frame} would both be {stem}{target.ending}",
                hint="export folder by folder, each to its own --dataset or --out",
            )
    return stems


def _claim(out: Path, place: str, settings: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """Record an export in ``export.json`` and return the record of all exports of the output folder.

    Raises:
        InputError: its place holds files of other settings or frames, or that no record claims.
    """
    path, folder = out / RECORD_NAME, out / place
    record: dict[str, Any] = {"format": FORMAT, "exports": {}}
    if path.exists():
        record = read_json(path, "a record of exports")
    if record.get("format") != FORMAT:
        raise InputError(f"{path} is no record of exports", hint="give another --out")
    check_place(folder, folder=True)
    before = record["exports"].get(place)
    if before is not None:
        refuse_other_run(folder, before["settings"], settings, hint="give another --out")
    present = {file.name for file in folder.glob("*") if file.suffix in (".hdf5", ".npy")}
    if strangers := present - (names if before else set()):
        raise InputError(f"{folder} holds {min(strangers)}, which is no file of this export", hint="give a new --out")
    folder.mkdir(parents=True, exist_ok=True)
    tool = {"name": "segunc", "version": tool_version(), "commit": tool_commit()}
    record["exports"][place] = {"tool": tool, "settings": settings, "status": "running"}
    write_json(path, record)
    return record
