"""``segunc export``: one file that gives prediction and score maps of a frame without
this package.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch

from segunc.core.bounds import check_value
from segunc.core.errors import InputError, one_line
from segunc.core.files import (
    inside,
    json_sha256,
    read_json,
    replacing,
    safe_name,
    write_file,
    write_json,
)
from segunc.core.removal import (
    FileSum,
    check_files,
    check_result,
    file_content,
    is_listed,
    remove_checked,
    remove_empty,
)
from segunc.decisions.guarantee import read_threshold
from segunc.exporting import graph
from segunc.exporting.check import (
    MAX_CODES,
    ROUNDING,
    SIZES,
    check_frames,
    check_guards,
    compare,
)
from segunc.maps.encoding import encode_npy
from segunc.maps.manifest import tool_version
from segunc.options import ExportOptions, SamplingOptions, Size, takes
from segunc.posteriors.model import Model, default_scores, load_model
from segunc.sampling.sampler import Sampler
from segunc.scores import SCORES, check_scores
from segunc.verbs.execution import fitted_record, make_sampler

DRAWS, RECORD, TRITON = "draws.npy", "model.json", "config.pbtxt"
SEAL = "record_sha256"  # the last key of the record: the SHA-256 of all others


class ExportResult(NamedTuple):
    """What was written."""

    path: Path  # of the model file
    record: Path  # model.json
    codes: Mapping[
        str, int
    ]  # largest difference of each score from the sampler, in codes of the 16-bit map
    line: str  # the check in one line
    notes: tuple[str, ...]  # what a user should know


@takes(ExportOptions)
def export(options: ExportOptions) -> ExportResult:
    """Write a model as one file, after it was run and compared with the sampler.

    Raises:
        InputError: a network or a score that no graph holds, or a file whose maps are not the
            sampler's.

    >>> export(model=abnn, to="pt2", out=folder / "exported", draws=2, size=(64, 96)).path.name
    'model.pt2'
    """
    if options.to != "pt2":
        graph.require_packages()
    folder, out, any_size = Path(options.model), Path(options.out), options.size == "dynamic"
    if not any_size:
        check_value("--size", options.size, Size | None, "see --help")
    scores = check_scores(options.scores or default_scores(folder))
    files = _Files(out, options)
    files.check()
    model = load_model(folder)
    description = model.network.description
    size = SIZES[0] if any_size else options.size or description.inference_size
    if size is None:
        raise InputError(
            f"the network in {folder} has no size of its own", hint="--size 512x1024, or dynamic"
        )
    # The graph holds draws as a batch, which only a batch of two or more compares with one by one.
    how: dict[str, Any] = {"device": "cpu", "precision": "float32", "chunk": 2}
    sampler = make_sampler(
        model, SamplingOptions(draws=options.draws, seed=options.seed, **how), scores
    )
    about = _about(options, model, sampler, size)
    frames = tuple(
        frame for each in (SIZES if any_size else [size]) for frame in check_frames(each)
    )
    try:
        sampler(frames[0])
    except RuntimeError as error:
        message = f"the network takes no frame of {size[0]}x{size[1]} ({one_line(error)})"
        raise InputError(message, hint="--size HxW with sides that it takes") from error
    given = []
    if options.draws_as_input:
        if (drawn := sampler.drawn()) is None:
            message = f"{folder} is not one network whose normalisation layers are drawn, so its draws are no input"
            raise InputError(message, hint="leave out --draws-as-input")
        given, about["draws_input"] = (
            [drawn],
            {"name": "draws", "type": "float32", "shape": list(drawn.shape), "file": DRAWS},
        )
    program, guards = graph.trace_with_guards(sampler, frames[0], *given, any_size=any_size)
    metadata = {
        key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for key, value in about.items()
    }
    files.check()
    path = inside(out, files.model)
    write, run = (
        (graph.write_pt2, graph.open_pt2)
        if options.to == "pt2"
        else (graph.write_onnx, graph.open_onnx)
    )
    beside: dict[str, bytes] = {}
    for tensor in given:
        beside[DRAWS] = encode_npy(tensor.numpy())
    with files.folders(), replacing(path) as file:
        write(program, file, metadata)
        file.flush()
        written = Path(file.name)
        opened = run(written)
        found = compare(lambda frame: opened(frame, *given), sampler, frames, path.name)
        check_guards(lambda frame: opened(frame, *given), sampler, guards, path.name)
        found["bound"] = {"codes": MAX_CODES, "or_share": ROUNDING}
        if options.to == "triton":
            beside[TRITON] = graph.triton_config(written).encode()
        files.record({**about, "check": found}, file_content(written), beside)
    files.finish(beside)
    codes, share = (
        {name: of["codes"] for name, of in found["scores"].items()},
        max(of["share"] for of in found["scores"].values()),
    )
    line = f"checked against the sampler: at most {max(codes.values())} codes ({max(codes, key=lambda name: codes[name])}), {share:.1e} of a largest value"
    note = (
        [
            "the second encoder sees frames at the size of the network here, where predict shows it their own"
        ]
        if _sees_whole(sampler)
        else []
    )
    return ExportResult(path, out / RECORD, codes, line, (*note, *sampler.report.messages))


class _Files:
    """The files that an export writes below a folder, and those that an earlier one lists there."""

    def __init__(self, out: Path, options: ExportOptions) -> None:
        self.out = out
        self.model = "1/model.onnx" if options.to == "triton" else f"model.{options.to}"
        self.names = [self.model]
        self.before: dict[str, FileSum] = {}  # the files of an earlier export, as they are there
        if options.draws_as_input:
            self.names.append(DRAWS)
        if options.to == "triton":
            self.names.append(TRITON)

    def check(self) -> None:
        """Read what an earlier export lists.

        Raises:
            InputError: somebody's file has a name that is to be written, or a link leads out of
                the folder.
        """
        for name in self.names:
            inside(self.out, name)
        check_result(self.out / RECORD, is_export_record, "the whole record of an export")
        listed: dict[str, list[FileSum]] = {}
        if (self.out / RECORD).exists():
            record = read_json(self.out / RECORD, "the record of an export")
            for files in (record["files"], record["replaced"]):
                for file, (size, digest) in files.items():
                    safe_name(file, f"a file of {self.out / RECORD}")
                    listed.setdefault(file, []).append((size, digest))
        there = [name for name in self.names if os.path.lexists(self.out / name)]
        check_files(self.out, there, listed)
        self.before = {}
        for file, contents in listed.items():
            if is_listed(self.out / file, contents):
                self.before[file] = file_content(self.out / file)

    @contextmanager
    def folders(self) -> Iterator[None]:
        """Make the folders of the files; after an error those that were not there are gone."""
        place = (self.out / self.model).parent
        made = [folder for folder in (place, self.out) if not folder.exists()]
        place.mkdir(parents=True, exist_ok=True)
        try:
            yield
        except BaseException:
            for folder in made:
                remove_empty(folder)
            raise

    def record(self, about: Mapping[str, Any], model: FileSum, beside: Mapping[str, bytes]) -> None:
        """Write the record, which lists the model file, those ``beside`` it and those that they
        replace. It is there before any of them, so that a run after a kill knows its own files."""
        listed = {self.model: model}
        for name, data in beside.items():
            listed[name] = len(data), hashlib.sha256(data).hexdigest()
        going = {*listed, DRAWS}
        others = {file: content for file, content in self.before.items() if file not in going}
        content = {
            **about,
            "file": self.model,
            "sha256": model[1],
            "files": {**others, **listed},
            "replaced": {file: self.before[file] for file in self.before if file in going},
        }
        plain = json.loads(json.dumps(content))
        write_json(self.out / RECORD, {**plain, SEAL: json_sha256(plain)})

    def finish(self, beside: Mapping[str, bytes]) -> None:
        """Write what lies ``beside`` the model file, and remove the draws of an earlier export."""
        if DRAWS in self.before and DRAWS not in beside:
            remove_checked(self.out, [DRAWS])
        for name, data in beside.items():
            write_file(self.out / name, data)


def is_export_record(path: Path) -> bool:
    """Return whether a file is the record of an export with its files, as it was written."""
    with suppress(InputError):
        content = read_json(path, "the record of an export")
        seal = content.pop(SEAL, None)
        lists = [content.get("files"), content.get("replaced")]
        return seal == json_sha256(content) and all(_is_list_of_files(files) for files in lists)
    return False


def _is_list_of_files(files: object) -> bool:
    return isinstance(files, dict) and all(_is_content(value) for value in files.values())


def _is_content(value: object) -> bool:
    """Return whether a value of a record is a size and a SHA-256."""
    return (
        isinstance(value, list)
        and len(value) == 2
        and isinstance(value[0], int)
        and isinstance(value[1], str)
    )


def _sees_whole(sampler: Sampler) -> bool:
    """Return whether scores are made of frames at their own size as well."""
    return any(getattr(provider, "whole", False) for provider in sampler.fitted.providers)


def _about(
    options: ExportOptions, model: Model, sampler: Sampler, size: tuple[int, int]
) -> dict[str, Any]:
    """Return what a file says of itself; sides that it leaves open are None."""
    description, any_size = model.network.description, options.size == "dynamic"
    run = {
        **{
            "base_sha256": model.sha256,
            "posterior_sha256": model.posterior_sha256,
            **fitted_record(model, sampler),
        },
        **{
            "draws": sampler.draws,
            "seed": sampler.seed,
            "scheme": sampler.noise.scheme,
            "precision": sampler.precision,
        },
    }
    about: dict[str, Any] = {
        **{
            "kind": "segunc export",
            "version": 1,
            "segunc": tool_version(),
            "torch": torch.__version__,
        },
        "input": {
            "name": "image",
            "type": "float32",
            "shape": [1, 3, *([None, None] if any_size else size)],
            "channels": "RGB",
            "range": [0, 1],
        },
        **{key: list(getattr(description, key)) for key in ("classes", "palette", "mean", "std")},
        "scores": {
            name: {
                key: getattr(SCORES[name], key)
                for key in ("meaning", "unit", "lower", "upper", "stored")
            }
            for name in sampler.scores
        },
        **{
            "method": model.posterior.method,
            "alpha": model.posterior.settings().get("alpha"),
            **run,
        },
    }
    if options.threshold is not None:
        made = read_threshold(Path(options.threshold))
        if made.score not in sampler.scores:
            raise InputError(
                f"{options.threshold} is a threshold of {made.score}, which is not exported",
                hint=f"--scores {made.score}",
            )
        if SCORES[made.score].sources & {"frame", "scores"} and _sees_whole(sampler):
            message = f"{options.threshold} holds where the second encoder sees frames at their own size, and the file shows it others"
            raise InputError(
                message, hint="leave out --threshold, or fit with --features.resolution network"
            )
        # Maps without --size are of the inference size, or of the frame's own: the graph is for
        # frames of its size.
        asked = made.settings.get("size")
        seen = asked or description.inference_size
        made.check_run(
            run | {"size": asked if any_size or tuple(seen or size) == size else list(size)},
            str(options.threshold),
        )
        about["threshold"] = {
            key: value for key, value in asdict(made).items() if key not in ("frames", "settings")
        }
        about["threshold"]["size"] = seen  # of the frames that it holds for; None: their own
    return about
