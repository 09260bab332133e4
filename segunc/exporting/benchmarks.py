"""Score maps in the files of a public benchmark.

* ``smiyc``: ``anomaly_p/METHOD/TRACK/FRAME.hdf5`` with the data set ``value``, float16 ``[H, W]``,
  as https://github.com/SegmentMeIfYouCan/road-anomaly-benchmark reads it in ``evaluation.py``.
  FRAME is the name of the image file without its folders, and without ``_leftImg8bit``.
* ``fishyscapes``: ``NUMBER_anomaly.npy``, float32 ``[H, W]``, and ``NUMBER_segmentation.npy``, the
  Cityscapes train ids of the prediction, uint8 ``[H, W]``, as ``eval.py`` of
  https://github.com/hermannsblum/fishyscapes reads them. NUMBER is the whole number that the name
  of the image file begins with; the benchmark sorts the files by it.

In both, a higher score means that an anomaly is likelier.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError, PartialFailure, failed_frames, one_line
from segunc.core.files import is_whole_record, read_record, write_record
from segunc.core.removal import Ledger, check_result
from segunc.data.labels import label_map
from segunc.decisions.guarantee import model_of
from segunc.maps.encoding import decode_stored, encode_hdf5, encode_npy
from segunc.maps.labelled import choose_scores, open_maps
from segunc.maps.manifest import is_ours
from segunc.maps.reader import BENCHMARK_FOLDER, MapsReader
from segunc.scores import first_shown

Benchmark = Literal["smiyc", "fishyscapes"]
RECORD = "benchmark.json"
_FOLDER_NAME = re.compile(r"\w[\w .+-]*")


@dataclass
class BenchmarkFiles:
    """The files that were written.

    Attributes:
        folder: that holds them.
        score: whose maps they hold.
        frames: names of the frames that have files.
        failed: frame -> why it has no file.
        notes: what a user should know.
    """

    folder: Path
    score: str
    frames: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def failure(self) -> str:
        """Say which frames failed, in one line; empty where none did."""
        return failed_frames(self.failed, "has no file")


def write_benchmark(
    maps: Path,
    out: Path,
    to: Benchmark,
    *,
    score: str | None = None,
    method: str = "segunc",
    track: str = "AnomalyTrack-all",
    on_frame: Callable[[int, int], object] = lambda done, total: None,
) -> BenchmarkFiles:
    """Write the maps of a score as a benchmark reads them.

    A frame that cannot be written does not stop the others. Every file appears whole and has the
    same bytes in every run, so the same call goes on after a kill.

    Args:
        maps: a maps folder.
        out: the folder to write; of ``smiyc`` the one that the benchmark calls ``DIR_OUTPUTS``.
        to: the benchmark.
        score: None takes anomaly if there are maps of it, otherwise entropy.
        method: name of the method on the board, a folder of ``smiyc``.
        track: name of the data set in the benchmark, a folder of ``smiyc``.
        on_frame: is called with the number of frames done and their total.

    Raises:
        InputError: the maps lack the score, two frames would have the same file, or ``out`` holds
            other files or those of another export.
        PartialFailure: no frame could be written.
    """
    reader = open_maps(maps)
    if is_ours(out) or out.resolve().is_relative_to(maps.resolve()):
        raise InputError(f"output {out} is or lies inside a maps folder", hint="give another --out")
    (chosen,) = choose_scores(reader, [score or first_shown(reader.scores)])
    subfolder = _subfolder(to, method, track)
    stems = _stems(reader, to)
    train_ids = _train_ids(reader) if to == "fishyscapes" else None
    ledger = Ledger(out)
    run = (reader.manifest or {}).get("run") or {}
    settings = {"to": to, "score": chosen, "maps": reader.folder.resolve().as_posix()}
    _claim(out, {**settings, "model": model_of(run)})
    written = BenchmarkFiles(out / subfolder, chosen)
    for done, (frame, stem) in enumerate(stems.items(), start=1):
        try:
            for ending, data in _contents(reader, frame, chosen, to, train_ids).items():
                ledger.write((PurePosixPath(subfolder) / f"{stem}{ending}").as_posix(), data)
        except InputError as error:
            written.failed[frame] = one_line(error)
        else:
            written.frames.append(frame)
        on_frame(done, len(stems))
    if not written.frames:
        raise PartialFailure(written.failure)
    if reader.unfinished:
        written.notes.append(reader.unfinished)
    if to == "fishyscapes" and train_ids is None:
        written.notes.append(
            "There are no segmentation files, which Fishyscapes takes beside the scores: the maps "
            "have no prediction of Cityscapes classes."
        )
    return written


def _subfolder(to: Benchmark, method: str, track: str) -> str:
    """Return the folder of the files, relative to the output.

    Raises:
        InputError: a name can be no folder.
    """
    if to == "fishyscapes":
        return "."
    for parameter, name in (("method", method), ("track", track)):
        if not _FOLDER_NAME.fullmatch(name):
            raise InputError(f"--{parameter} '{name}' is no name of a folder", hint="use letters")
    return f"{BENCHMARK_FOLDER}/{method}/{track}"


def _stems(reader: MapsReader, to: Benchmark) -> dict[str, str]:
    """Return what the names of each frame's files begin with.

    Raises:
        InputError: two frames would have the same file, or a frame has no number.
    """
    frame_of_stem: dict[str, str] = {}
    for frame in reader.frames:
        name = PurePosixPath(frame).name
        stem = name.removesuffix("_leftImg8bit")
        if to == "fishyscapes":
            number = re.match(r"\d+(?=_|$)", name, re.ASCII)
            if number is None:
                raise InputError(
                    f"the name of frame {frame} does not begin with a number, by which Fishyscapes "
                    "sorts its files",
                    hint="give maps of its images, such as 0004_rgb",
                )
            stem = number[0]
        if stem in frame_of_stem:
            raise InputError(
                f"frames {frame_of_stem[stem]} and {frame} would both be '{stem}', because the "
                "benchmark knows no folders",
                hint="predict each folder of images into its own --out",
            )
        frame_of_stem[stem] = frame
    return {frame: stem for stem, frame in frame_of_stem.items()}


def _train_ids(reader: MapsReader) -> npt.NDArray[np.uint8] | None:
    """Return the Cityscapes train id of each class id of the maps, uint8 ``[C]``.

    None where the maps have no prediction or name other classes.
    """
    cityscapes = label_map("cityscapes").classes
    names = reader.class_names
    if not names or not set(names).issubset(cityscapes):
        return None
    return np.array([cityscapes.index(name) for name in names], np.uint8)


def _claim(out: Path, settings: Mapping[str, Any]) -> None:
    """Record what the files are made of, before the first of them.

    Raises:
        InputError: the folder holds the files of another export.
    """
    path = out / RECORD
    check_result(path, is_whole_record, "the record of an export to a benchmark")
    if path.exists():
        before = read_record(path, "the record of an export to a benchmark")
        for key, value in settings.items():
            if key == "model" and key not in before:
                continue  # an earlier version wrote the record
            if before.get(key) != value:
                raise InputError(
                    f"{out} holds an export of another {key}: {before.get(key)}, not {value}",
                    hint="give another --out",
                )
        return
    out.mkdir(parents=True, exist_ok=True)
    write_record(path, settings)


def _contents(
    reader: MapsReader,
    frame: str,
    score: str,
    to: Benchmark,
    train_ids: npt.NDArray[np.uint8] | None,
) -> dict[str, bytes]:
    """Return the bytes of each file of a frame by the ending of its name.

    Raises:
        InputError: a map is damaged, or holds values that the benchmark cannot read.
    """
    stored = reader.read_stored(frame, score)
    is_float = np.issubdtype(stored.dtype, np.floating)
    values = stored if is_float else decode_stored(stored, reader.form(score))
    dtype = np.float16 if to == "smiyc" else np.float32
    with np.errstate(over="ignore", invalid="ignore"):
        values = values.astype(dtype)
    if not np.isfinite(values).all():
        raise InputError(
            f"the map '{score}' of frame {frame} holds NaN or values beyond "
            f"{np.finfo(dtype).max:g}, the largest {dtype.__name__}"
        )
    if to == "smiyc":
        return {".hdf5": encode_hdf5(values)}
    contents = {"_anomaly.npy": encode_npy(values)}
    if train_ids is not None:
        prediction = reader.prediction(frame)
        if prediction.shape != values.shape:
            raise InputError(f"the prediction of frame {frame} has another size than its scores")
        contents["_segmentation.npy"] = encode_npy(train_ids[prediction])
    return contents
