"""Score maps in the files of a public benchmark."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.core.files import read_json, write_atomically, write_json
from segunc.gallery.inputs import choose_scores
from segunc.maps.encoding import encode_npy
from segunc.maps.manifest import refuse_other_run, tool_commit, tool_version
from segunc.maps.reader import BENCHMARK_FOLDER, FISHYSCAPES_ENDING, MapsReader
from segunc.maps.score_files import HDF5_KEY, decode_stored

Array = npt.NDArray[Any]
RECORD_NAME = "export.json"
FORMAT = "segunc-export"
_ENDINGS = (".hdf5", ".npy")
_GZIP_LEVEL = 9  # as the benchmark's own writer


@dataclass(frozen=True)
class BenchmarkFormat:
    """How a benchmark takes score maps."""

    folder: str  # of the files in the output, with {method} and {dataset}, which are required where it names them
    stripped: str  # ending of frames' names that its files' do not carry
    ending: str  # of its files
    encode: Callable[[Array], bytes]  # of values [H, W] of the stored type
    dtype: type[np.floating[Any]]


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
        f"{BENCHMARK_FOLDER}/{{method}}/{{dataset}}", "_leftImg8bit", ".hdf5", encode_hdf5, np.float16
    ),
    # The benchmark's evaluation takes the files *_anomaly.npy of one folder, and compares in float32: eval.py of
    # https://github.com/hermannsblum/fishyscapes; its sample output is named by the image, 15.png -> 15_anomaly.npy.
    "fishyscapes": BenchmarkFormat("", "", f"{FISHYSCAPES_ENDING}.npy", encode_npy, np.float32),
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
            (``FRAME_anomaly.npy``, float32).
        method, dataset: names of the method and, as the benchmark's (``AnomalyTrack-all``), of the data set; required for
            ``smiyc``.
        overwrite: remove the files of an earlier export at the same place first.

    Raises:
        InputError: nothing to export, an unknown score or format, a name that is no folder name, two frames of one
            name, files of another export at the same place, or not one frame could be exported.
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
    names = _file_names(reader.frames, target)
    place = PurePosixPath(target.folder.format(method=method, dataset=dataset)).as_posix()
    folder = out / place
    # The maps of this tool are told by their run, so their folder may move.
    source = {"run": reader.manifest.get("run", {})} if reader.manifest else {"maps": str(reader.folder.resolve())}
    described = {"to": to, "score": score, "form": reader.form(score), "method": method, "dataset": dataset}
    settings = described | {"source": source}
    record = _read_record(out / RECORD_NAME)
    _make_room(folder, record["exports"].get(place, {}), settings, set(names.values()), overwrite=overwrite)
    tool = {"name": "segunc", "version": tool_version(), "commit": tool_commit()}
    entry: dict[str, Any] = {"tool": tool, "settings": settings, "files": sorted(names.values()), "status": "running"}
    record["exports"][place] = entry
    write_json(out / RECORD_NAME, record)
    summary = ExportResult(folder, total=len(names))
    for frame, name in names.items():
        with summary.counting(frame, on_frame):
            stored = reader.read_stored(frame, score)
            # Floats keep their width, so that what does not fit can be told from what is infinite.
            floats = np.issubdtype(stored.dtype, np.floating)
            values = stored if floats else decode_stored(stored, reader.form(score))
            narrowed = narrow(values, target.dtype)
            write_atomically(folder / name, target.encode(narrowed))
            summary.flushed += int(np.count_nonzero(values)) - int(np.count_nonzero(narrowed))
    failed = [{"name": name, "reason": reason} for name, reason in summary.failed.items()]
    entry |= {"status": "finished", "written": summary.written, "failed": failed}
    write_json(out / RECORD_NAME, record)
    if summary.written == 0:
        frame, reason = next(iter(summary.failed.items()))
        raise InputError(f"none of {len(names)} frames could be exported (first {frame}: {reason})", "readable maps")
    if reader.unfinished:
        summary.notes.append(f"{reader.unfinished}; only finished frames were exported")
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


def _file_names(frames: Sequence[str], target: BenchmarkFormat) -> dict[str, str]:
    """Frame -> name of its file; the benchmarks know no folders, so two frames may want one name."""
    names = {f: f"{PurePosixPath(f).name.removesuffix(target.stripped)}{target.ending}" for f in frames}
    owners: dict[str, str] = {}
    for frame, name in names.items():
        if owners.setdefault(name, frame) != frame:
            given = f"the frames {owners[name]} and {frame} would both be {name}"
            remedy = "export folder by folder, each to its own --dataset or --out"
            raise InputError(given, "frames whose names differ in their last part", remedy)
    return names


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
