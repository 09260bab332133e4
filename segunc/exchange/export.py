"""Score maps in the files of a public benchmark."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
from segunc.maps.reader import BENCHMARK_FOLDER, FISHYSCAPES_CLASSES, FISHYSCAPES_ENDING, MapsReader
from segunc.maps.score_files import HDF5_KEY, decode_stored

Array = npt.NDArray[Any]
RECORD_NAME = "export.json"
FORMAT = "segunc-export"
NUMBERED = re.compile(r"(\d{4})(?:_|$)")  # names of Fishyscapes' images
_ENDINGS = (".hdf5", ".npy")
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
    """HDF5 bytes with the data set ``value``, gzip; the same bytes for the same values."""
    import h5py

    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        file.create_dataset(HDF5_KEY, data=values, compression="gzip", compression_opts=_GZIP_LEVEL)
    return buffer.getvalue()


def narrow(values: Array, dtype: type[np.floating[Any]]) -> Array:
    """The values in a type, none changed by more than its rounding; InputError for NaN, infinity or what is beyond the type."""
    largest = float(np.finfo(dtype).max)
    if not np.isfinite(values).all():
        raise InputError("the map holds NaN or infinite values", "finite values", "repair the map")
    extreme = float(np.abs(values).max(initial=0))
    # Values up to half a step beyond the largest would be rounded down to it without a word.
    if extreme > largest:
        given = f"the map holds the value {extreme:.6g}, beyond {np.dtype(dtype).name}"
        remedy = "scale the score by a constant factor; its order is all that counts"
        raise InputError(given, f"values within +-{largest:.6g}", remedy)
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
        f"{FISHYSCAPES_ENDING}.npy",
        encode_npy,
        np.float32,
        f"{FISHYSCAPES_CLASSES}.npy",
    ),
}


@dataclass
class ExportResult:
    """What an export did."""

    folder: Path  # where the files are
    written: int = 0  # frames
    total: int = 0
    failed: dict[str, str] = field(default_factory=dict)  # frame -> why it has no file
    flushed: int = 0  # pixels other than 0 that became 0, being nearer to it than the stored type can tell
    notes: list[str] = field(default_factory=list)  # what a user should know

    @property
    def failure(self) -> str:
        """One line where frames failed, naming the first; empty where none did."""
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
    overwrite: bool = False,
    on_frame: Callable[[int, int], None] | None = None,
) -> ExportResult:
    """Write a score's maps, in real units, as a benchmark takes them.

    Every file appears whole, by atomic rename, and has the same bytes whenever it is written, so the same call after a
    kill starts over and loses nothing. ``export.json`` beside the files records what they were made of; files of
    another score, of other maps or of other frames are never mixed with them.

    The arguments are those of :class:`segunc.options.ExportOptions`; :data:`FORMATS` says what the benchmarks take.

    Raises:
        InputError: nothing to export, an unknown score or format, a name that is no folder name, two frames of one
            name, no predictions or classes that are none of Cityscapes', files of another export at the same place, or
            not one frame could be exported.
    """
    target, reader = FORMATS[to], MapsReader(maps)
    _check_names(target, to, method, dataset)
    if reader.manifest is None and out.resolve().is_relative_to(maps.resolve()):
        # Its files would be maps of the folder that they were made of.
        raise InputError(f"output {out} lies inside {maps}", "a folder outside the maps", "give another --out")
    (score,) = choose_scores(reader, [score])
    train_ids = _train_ids(reader) if target.classes and not anomaly_only else None
    stems = _stems(reader.frames, target)
    endings = [target.ending] if train_ids is None else [target.ending, target.classes]
    place = PurePosixPath(target.folder.format(method=method, dataset=dataset)).as_posix()
    result = ExportResult(out / place, total=len(stems))
    # The maps of this tool are told by their run, so their folder may move.
    source = {"run": reader.manifest.get("run", {})} if reader.manifest else {"maps": str(reader.folder.resolve())}
    described = {"to": to, "score": score, "form": reader.form(score), "method": method, "dataset": dataset}
    settings = described | {"source": source} | ({} if train_ids is None else {"segmentation": True})
    record = _read_record(out / RECORD_NAME)
    files = {f"{stem}{ending}" for stem in stems.values() for ending in endings}
    _make_room(result.folder, record["exports"].get(place), settings, files, overwrite=overwrite)
    tool = {"name": "segunc", "version": tool_version(), "commit": tool_commit()}
    entry = {"tool": tool, "settings": settings, "files": sorted(files), "status": "running"}
    record["exports"][place] = entry
    write_json(out / RECORD_NAME, record)
    for frame, stem in stems.items():
        try:
            result.flushed += _write_frame(reader, frame, score, target, train_ids, result.folder / stem)
            result.written += 1
        except InputError as error:
            result.failed[frame] = str(error)
        if on_frame is not None:
            on_frame(result.written + len(result.failed), result.total)
    failed = [{"name": name, "reason": reason} for name, reason in result.failed.items()]
    entry |= {"status": "finished", "written": result.written, "failed": failed}
    write_json(out / RECORD_NAME, record)
    if result.written == 0:
        frame, reason = next(iter(result.failed.items()))
        raise InputError(f"none of {len(stems)} frames could be exported (first {frame}: {reason})", "readable maps")
    unnamed_classes = train_ids is not None and not reader.class_names
    result.notes += _notes(target, reader.unfinished, stems.values(), result.flushed, unnamed_classes=unnamed_classes)
    return result


def _write_frame(
    reader: MapsReader, frame: str, score: str, target: BenchmarkFormat, train_ids: Array | None, path: Path
) -> int:
    """Write the files of a frame, whose names begin with ``path``, and return how many values became 0."""
    stored = reader.read_stored(frame, score)
    # Floats keep their width, so that what does not fit can be told from what is infinite.
    values = stored if stored.dtype.kind == "f" else decode_stored(stored, reader.form(score))
    narrowed = narrow(values, target.dtype)
    if train_ids is not None:
        classes = _board_classes(reader.prediction(frame), train_ids, narrowed.shape, frame)
        write_file(path.with_name(f"{path.name}{target.classes}"), encode_npy(classes))
    write_file(path.with_name(f"{path.name}{target.ending}"), target.encode(narrowed))
    return int(np.count_nonzero(values)) - int(np.count_nonzero(narrowed))


def _notes(
    target: BenchmarkFormat, unfinished: str | None, stems: Collection[str], flushed: int, *, unnamed_classes: bool
) -> Iterator[str]:
    if unfinished:
        yield f"{unfinished}; only finished frames were exported"
    if unnamed_classes:
        yield "the maps do not name their classes; their ids were taken for train ids of Cityscapes"
    odd = [stem for stem in stems if not stem.partition("_")[0].isdigit()] if target.classes else []
    if odd:
        why = "the board's images are named DDDD_*.png, and it reads no file without a number"
        yield f"{len(odd)} frames have no number, {odd[0]} for instance: {why}"
    if flushed:
        smallest = float(np.finfo(target.dtype).smallest_subnormal)
        nearer = f"nearer to it than {target.dtype.__name__} can tell ({smallest:.1g})"
        yield f"{flushed} pixels became 0: they are {nearer}; scale the score by a constant factor if their order counts"


def _check_names(target: BenchmarkFormat, to: str, method: str, dataset: str) -> None:
    for option, name in (("--method", method), ("--dataset", dataset)):
        if target.folder and not name:
            remedy = "e.g. --method mine --dataset ObstacleTrack-all"
            raise InputError(f"--to {to} without {option}", f"{option} NAME", remedy)
        if name and (name != Path(name).name or name.startswith(".") or "\\" in name):
            raise InputError(f"{option} {name}", "a name that can be one folder", "leave out slashes and leading dots")


def _train_ids(reader: MapsReader) -> npt.NDArray[np.int32]:
    """The train id of Cityscapes of each class id of the maps, by the classes' names; the same ids where they have none. InputError
    where there are no predictions, or a class is none of Cityscapes."""
    remedy = "--anomaly-only leaves the class ids out"
    if not any(reader.has(frame, PREDICTION) for frame in reader.frames):
        given = f"{reader.folder} holds no predictions, and the board takes class ids too"
        raise InputError(given, "maps with the folder prediction", f"predict again, or {remedy}")
    theirs = label_map("cityscapes").classes
    names = reader.class_names or theirs
    unknown = [name for name in names if name not in theirs]
    if unknown:
        given = f"the board takes class ids of Cityscapes, and class '{unknown[0]}' of the maps is none of them"
        raise InputError(given, f"classes of {', '.join(theirs)}", remedy)
    return np.array([theirs.index(name) for name in names], np.int32)


def _board_classes(ids: Array, train_ids: Array, size: tuple[int, ...], frame: str) -> Array:
    """Train ids ``[H, W]`` of a prediction; InputError where it holds an unknown class or is of another size than the score."""
    if ids.shape != size:
        raise InputError(f"prediction and score of frame {frame} are {ids.shape} and {size}", "maps of one size")
    if ids.max(initial=0) >= len(train_ids):
        raise InputError(f"frame {frame} holds class {ids.max()}", f"class ids below {len(train_ids)}")
    return train_ids[ids]


def _stems(frames: Sequence[str], target: BenchmarkFormat) -> dict[str, str]:
    """Frame -> name of its files without their endings; the benchmarks know no folders, so two frames may want one name."""
    stems = {frame: target.stem(PurePosixPath(frame).name) for frame in frames}
    owners: dict[str, str] = {}
    for frame, stem in stems.items():
        if owners.setdefault(stem, frame) != frame:
            given = f"the frames {owners[stem]} and {frame} would both be {stem}{target.ending}"
            remedy = "export folder by folder, each to its own --dataset or --out"
            raise InputError(given, "frames that the benchmark tells apart", remedy)
    return stems


def _read_record(path: Path) -> dict[str, Any]:
    """``export.json``: the exports of an output folder, each with what it was made of."""
    content = read_json(path, "a record of exports written by segunc") if path.exists() else {"format": FORMAT}
    if content.get("format") != FORMAT:
        raise InputError(f"{path} is no record of exports", f'"format": "{FORMAT}"', "give another --out")
    return {"exports": {}} | content


def _make_room(
    folder: Path, before: Mapping[str, Any] | None, settings: Mapping[str, Any], names: set[str], *, overwrite: bool
) -> None:
    """Refuse or remove what another export left in the folder; InputError where a file is there that no record claims."""
    known = set(before["files"]) if before else set()
    if before and not overwrite:
        refuse_other_run(folder, before["settings"], settings)
    present = {path.name for path in folder.iterdir() if path.suffix in _ENDINGS} if folder.is_dir() else set()
    for name in present & known if overwrite else ():
        (folder / name).unlink()
    if strangers := present - (known if overwrite else names & known):
        given = f"{folder} holds files that are not of this export, {min(strangers)} for instance"
        raise InputError(
            given, "an empty or new folder", "give another --out, or --overwrite to remove an earlier export"
        )
    check_place(folder, folder=True)
    folder.mkdir(parents=True, exist_ok=True)
