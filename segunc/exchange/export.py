"""Score maps in the files of a public benchmark."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.core.files import read_json, write_file, write_json
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

    @contextmanager
    def counting(self, frame: str, on_frame: Callable[[int, int], None] | None) -> Iterator[None]:
        """Count the frame that is written inside; one that is refused is noted, and stops no other."""
        try:
            yield
        except InputError as error:
            self.failed[frame] = str(error)
        else:
            self.written += 1
        if on_frame is not None:
            on_frame(self.written + len(self.failed), self.total)

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

    Args:
        maps: a maps folder, of this tool or any other.
        to: ``smiyc`` (``anomaly_p/METHOD/DATASET/FRAME.hdf5``, data set ``value``, float16, gzip) or ``fishyscapes``
            (``DDDD_anomaly.npy``, float32, and ``DDDD_segmentation.npy``, int32 train ids of Cityscapes, of frame ``DDDD_*``;
            frames without such a number keep their names).
        method, dataset: names of the method and, as the benchmark's (``AnomalyTrack-all``), of the data set; required for
            ``smiyc``.
        anomaly_only: leave out the class ids, where the format has them.
        overwrite: remove the files of an earlier export at the same place first.

    Raises:
        InputError: nothing to export, an unknown score or format, a name that is no folder name, two frames of one
            name, no predictions or classes that are none of Cityscapes', files of another export at the same place, or
            not one frame could be exported.
    """
    target = FORMATS.get(to)
    if target is None:
        raise InputError(f"the format '{to}'", f"one of {', '.join(FORMATS)}", "check the spelling")
    _check_names(target, to, method, dataset)
    reader = MapsReader(maps)
    if reader.manifest is None and out.resolve().is_relative_to(maps.resolve()):
        # Its files would be maps of the folder that they were made of.
        raise InputError(f"output {out} lies inside {maps}", "a folder outside the maps", "give another --out")
    (score,) = choose_scores(reader, [score])
    train_ids = _train_ids(reader) if target.classes and not anomaly_only else None
    stems = _stems(reader.frames, target)
    endings = [target.ending] if train_ids is None else [target.ending, target.classes]
    files = {f"{stem}{ending}" for stem in stems.values() for ending in endings}
    place = PurePosixPath(target.folder.format(method=method, dataset=dataset)).as_posix()
    folder = out / place
    # The maps of this tool are told by their run, so their folder may move.
    source = {"run": reader.manifest.get("run", {})} if reader.manifest else {"maps": str(reader.folder.resolve())}
    described = {"to": to, "score": score, "form": reader.form(score), "method": method, "dataset": dataset}
    settings = described | {"source": source} | ({} if train_ids is None else {"segmentation": True})
    record = _read_record(out / RECORD_NAME)
    _make_room(folder, record["exports"].get(place, {}), settings, files, overwrite=overwrite)
    tool = {"name": "segunc", "version": tool_version(), "commit": tool_commit()}
    entry: dict[str, Any] = {"tool": tool, "settings": settings, "files": sorted(files), "status": "running"}
    record["exports"][place] = entry
    write_json(out / RECORD_NAME, record)
    summary = ExportResult(folder, total=len(stems))
    for frame, stem in stems.items():
        with summary.counting(frame, on_frame):
            stored = reader.read_stored(frame, score)
            # Floats keep their width, so that what does not fit can be told from what is infinite.
            floats = np.issubdtype(stored.dtype, np.floating)
            values = stored if floats else decode_stored(stored, reader.form(score))
            narrowed = narrow(values, target.dtype)
            if train_ids is not None:
                classes = _board_classes(reader.prediction(frame), train_ids, narrowed.shape, frame)
                write_file(folder / f"{stem}{target.classes}", encode_npy(classes))
            write_file(folder / f"{stem}{target.ending}", target.encode(narrowed))
            summary.flushed += int(np.count_nonzero(values)) - int(np.count_nonzero(narrowed))
    failed = [{"name": name, "reason": reason} for name, reason in summary.failed.items()]
    entry |= {"status": "finished", "written": summary.written, "failed": failed}
    write_json(out / RECORD_NAME, record)
    if summary.written == 0:
        frame, reason = next(iter(summary.failed.items()))
        raise InputError(f"none of {len(stems)} frames could be exported (first {frame}: {reason})", "readable maps")
    if reader.unfinished:
        summary.notes.append(f"{reader.unfinished}; only finished frames were exported")
    if train_ids is not None and not reader.class_names:
        summary.notes.append("the maps do not name their classes; their ids were taken for train ids of Cityscapes")
    odd = [stem for stem in stems.values() if not stem.partition("_")[0].isdigit()] if target.classes else []
    if odd:
        why = "the board's images are named DDDD_*.png, and it reads no file without a number"
        summary.notes.append(f"{len(odd)} frames have no number, {odd[0]} for instance: {why}")
    if summary.flushed:
        smallest = float(np.finfo(target.dtype).smallest_subnormal)
        summary.notes.append(
            f"{summary.flushed} pixels became 0: they are nearer to it than {target.dtype.__name__} can tell "
            f"({smallest:.1g}); scale the score by a constant factor if their order counts"
        )
    return summary


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
    if not path.exists():
        return {"format": FORMAT, "exports": {}}
    content = read_json(path, "a record of exports written by segunc")
    if content.get("format") != FORMAT or not isinstance(content.get("exports"), dict):
        raise InputError(f"{path} is no record of exports", f'"format": "{FORMAT}"', "give another --out")
    return content


def _make_room(
    folder: Path, before: Mapping[str, Any], settings: Mapping[str, Any], names: set[str], *, overwrite: bool
) -> None:
    """Make the folder, and refuse or remove what another export left there; a file that no record claims stays."""
    if before and not overwrite:
        refuse_other_run(folder, before.get("settings", {}), settings)
    present = {path.name for path in folder.iterdir() if path.suffix in _ENDINGS} if folder.is_dir() else set()
    ours = present.intersection(before.get("files", []))
    for name in ours if overwrite else ():
        (folder / name).unlink()
    strangers = present - (ours if overwrite else names & ours)
    if strangers:
        given = f"{folder} holds files that are not of this export, {min(strangers)} for instance"
        remedy = "give another --out, or --overwrite to remove an earlier export"
        raise InputError(given, "an empty or new folder", remedy)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        given = f"output {folder} cannot be made ({error.strerror})"
        raise InputError(given, "a folder that can be written", "give another --out") from error
