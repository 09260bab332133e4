"""``segunc export``: one file that gives prediction and score maps of a frame without
this package, or the files of a benchmark.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor
from torch.export import ExportedProgram

from segunc.core.bounds import check_value
from segunc.core.errors import InputError, one_line
from segunc.core.files import (
    inside,
    json_sha256,
    read_bytes,
    read_json,
    replacing,
    safe_name,
    write_json,
)
from segunc.core.progress import ConsoleProgress, say_step
from segunc.core.removal import (
    FileSum,
    check_files,
    check_result,
    file_content,
    is_listed,
    remove_checked,
    remove_empty,
)
from segunc.core.results import VerbResult
from segunc.core.terminal import agreeing, counted
from segunc.core.urls import local_folder
from segunc.core.version import full_version
from segunc.decisions.guarantee import GuaranteedThreshold, read_threshold
from segunc.exporting import graph
from segunc.exporting.benchmarks import RECORD as BENCHMARK_RECORD, Benchmark, write_benchmark
from segunc.exporting.calibration import InputForm
from segunc.exporting.check import (
    MAX_CODES,
    ROUNDING,
    SIZES,
    check_guards,
    check_inputs,
    compare,
)
from segunc.exporting.graph import SizeGuard
from segunc.exporting.lower_precision import BIN, ONNX, XML
from segunc.exporting.operators import tensorrt_check
from segunc.exporting.placement import FLAGGED, Flag, Placement
from segunc.exporting.price import Price
from segunc.maps.encoding import encode_npy
from segunc.networks.description import COLOUR, NetworkDescription
from segunc.networks.network import gives_logarithms, inference_size
from segunc.options import ExportOptions, SamplingOptions, Size, takes
from segunc.posteriors.model import Model, SeenSize, default_scores, load_model
from segunc.sampling.sampler import Sampler
from segunc.scores import SCORES, SET_THRESHOLD, check_scores
from segunc.verbs.execution import fitted_record, make_sampler
from segunc.verbs.lower_export import (
    OF_LOWER,
    LowerExport,
    LowerPlan,
    check_lower_options,
    lower,
    plan_lower,
)
from segunc.verbs.model_cache import model_folder

DRAWS = "draws.npy"
_MODEL_FILES = {"onnx": ONNX, "triton": f"1/{ONNX}", "openvino": XML, "pt2": "model.pt2"}
RECORD = "model.json"
HINT_CALIBRATE = (
    "calibrate on maps of segunc predict --precision float32, with the draws, the seed and the "
    "size of this file"
)
CONDITION = (
    "the second encoder sees frames at the size of the network here, and predict shows it their "
    "own size, at which it was fitted; the two agree only where frames have the size of the "
    "network: on other frames, peaks may be far lower or higher than those of predict, so "
    "thresholds of predict do not hold for the file"
)
TRITON = "config.pbtxt"
SEAL = "record_sha256"  # the last key of the record: the SHA-256 of all others
OF_BENCHMARKS = ("maps", "score", "method", "track")
OF_MODELS = (
    "model",
    "draws",
    "seed",
    "draws_as_input",
    "size",
    "scores",
    "batch",
    "input",
    "frame_size",
    "threshold",
    "check_in",
    "precision",
    *OF_LOWER,
)
UNUSED = ExportOptions(to="onnx", out="out")  # the value of each option that is not given


@dataclass(frozen=True, repr=False)
class ExportResult(VerbResult):
    """What was written.

    Attributes:
        path: the model file, or the folder with the files of a benchmark.
        record: the file model.json or benchmark.json.
        codes: of a model file, the largest difference in codes of the 16-bit map, by score.
        line: the result of the check of a model file, or what a benchmark gets, in one line.
        notes: what a user should know.
        failure: which frames have no file, in one line; empty where all have.
        condition: which scores of a model file are not those of predict, and why, in one line;
            empty where all are.
        price: of a model file in a lower precision, how far its maps are from those of its
            float32 file, whose differences are the codes; None for other files.
    """

    path: Path
    record: Path
    codes: Mapping[str, int]
    line: str
    notes: tuple[str, ...]
    failure: str = ""
    condition: str = ""
    price: Price | None = None


@takes(ExportOptions)
def export(options: ExportOptions) -> ExportResult:
    """Write a model as one file, which is compared with the sampler, or maps for a benchmark.

    Raises:
        InputError: a network or a score that no graph holds, a file whose maps are not the
            sampler's, or maps that a benchmark cannot read.
        PartialFailure: no frame could be written for a benchmark.

    >>> export(model=abnn, to="pt2", out=folder / "exported", draws=2, size=(64, 96)).path.name
    'model.pt2'
    """
    if options.to == "smiyc" or options.to == "fishyscapes":
        return _export_maps(options, options.to)
    _check_model_options(options)
    return _export_model(options)


def _check_model_options(options: ExportOptions) -> None:
    """Check what can be checked of the options of a model file before the model is loaded.

    Raises:
        InputError: options do not go together, or a package is missing.
    """
    if options.to != "pt2":
        graph.require_packages()
    elif options.check_in is not None:
        raise InputError(
            "--check-in openvino checks ONNX files, and --to pt2 writes a program of torch",
            hint="--to onnx",
        )
    _check_unused(options, OF_BENCHMARKS)
    check_lower_options(options)
    if options.check_in == "openvino":
        graph.require_openvino()
    if options.size != "dynamic":
        check_value("--size", options.size, Size | None, "see --help")
    _check_input(options)


def _export_model(options: ExportOptions) -> ExportResult:
    """Write a model as one file whose maps are those of the sampler, and say each step that takes
    long.
    """
    if options.model is None:
        raise InputError(f"a file of --to {options.to} is made of a model", hint="--model DIR")
    folder = model_folder(options.model, trust=options.trust)
    scores = check_scores(options.scores or default_scores(folder))
    files = _Files(Path(options.out), options)
    files.check()
    model = load_model(folder)
    placement = _placement(options, model)
    form = InputForm(model.network.description, placement, options.size == "dynamic")
    plan = plan_lower(options, form)
    sampler = _graph_sampler(options, model, scores, placement)
    threshold = _threshold_of(options, sampler)
    about = _about(options, model, sampler, placement, threshold)
    if threshold is not None:
        placement = replace(placement, flag=Flag(threshold.score, threshold.value))
    say_step(_trace_line(options, sampler, placement))
    traced = _trace(options, sampler, placement)
    if traced.draws is not None:
        about["draws_input"] = {
            "name": "draws",
            "type": "float32",
            "shape": list(traced.draws.shape),
            "file": DRAWS,
            "sha256": hashlib.sha256(encode_npy(traced.draws.numpy())).hexdigest(),
        }
    files.check()
    check, made = _write(options, traced, about, files, plan)
    lacks = check.get("tensorrt", {}).get("lacks", ())
    price_notes = () if made is None else made.notes
    return ExportResult(
        path=inside(files.out, files.model),
        record=files.out / RECORD,
        codes={name: difference["codes"] for name, difference in check["scores"].items()},
        line=_check_lines(check) if made is None else made.line,
        notes=(
            *_notes(options, sampler, placement, threshold, model.network.description),
            *price_notes,
            *lacks,
        ),
        condition=_condition_line(sampler),
        price=None if made is None else made.price,
    )


def _check_unused(options: ExportOptions, names: Sequence[str]) -> None:
    """Raise InputError where one of these options, which this format does not take, has a value."""
    for name in names:
        if getattr(options, name) != getattr(UNUSED, name):
            flag = "--" + name.replace("_", "-")
            raise InputError(f"--to {options.to} takes no {flag}", hint=f"leave out {flag}")


def _export_maps(options: ExportOptions, to: Benchmark) -> ExportResult:
    """Write the files of a benchmark."""
    _check_unused(options, OF_MODELS)
    if options.maps is None:
        raise InputError(f"the files of --to {to} are made of maps", hint="--maps DIR")
    names: dict[str, str] = {}
    if to == "fishyscapes":
        _check_unused(options, ("method", "track"))
    else:
        names["method"] = options.method or "segunc"
        names["track"] = options.track or "AnomalyTrack-all"
    with ConsoleProgress() as progress:
        written = write_benchmark(
            local_folder(options.maps),
            Path(options.out),
            to,
            score=options.score,
            on_frame=progress.count,
            **names,
        )
    frames = len(written.frames)
    return ExportResult(
        path=written.folder,
        record=Path(options.out) / BENCHMARK_RECORD,
        codes={},
        line=f"maps of {written.score}, {frames} frame{'s'[: frames != 1]}",
        notes=tuple(written.notes),
        failure=written.failure,
    )


def _check_input(options: ExportOptions) -> None:
    """Raise InputError where the options on the input of a model file contradict each other."""
    if options.frame_size is not None and options.input != "uint8":
        raise InputError(
            "--frame-size is for uint8 frames, which the file resizes", hint="--input uint8"
        )
    if options.size == "dynamic" and (options.input == "uint8" or options.batch > 1):
        raise InputError(
            "a file of --size dynamic takes one float32 image in a call",
            hint="--size HxW, or leave out --batch and --input",
        )


def _placement(options: ExportOptions, model: Model) -> Placement:
    """Return how frames come into the file.

    Raises:
        InputError: neither the options nor the model name a size, or the frames cannot be resized.
    """
    frame_size = options.frame_size
    if frame_size is None or options.size is not None:
        network_size = _traced_size(options, model)
    else:
        network_size = inference_size(model.network.description, frame_size)
    if options.input == "uint8" and frame_size is None:
        frame_size = network_size
    channels = model.network.description.channels
    return Placement(network_size, options.batch, frame_size, channels=channels)


def _traced_size(options: ExportOptions, model: Model) -> tuple[int, int]:
    """Return the (height, width) of the frame on which the model is traced.

    Raises:
        InputError: neither the options nor the model name a size, or the network takes no dynamic
            size.
    """
    if options.size == "dynamic":
        if gives_logarithms(model.network):
            # transformers keeps positions of its masks by the size of the frame, which torch has
            # no number for then. It would say so after minutes.
            raise InputError(
                "a network that classifies masks is not exported for frames of any size",
                hint="--size HxW, a file for each size",
            )
        return SIZES[0]
    size = options.size or model.network.description.inference_size
    if size is None:
        message = f"the network in {options.model} has no size of its own"
        raise InputError(message, hint="--size 512x1024, or dynamic")
    return size


def _graph_sampler(
    options: ExportOptions, model: Model, scores: Sequence[str], placement: Placement
) -> Sampler:
    """Return the sampler that is traced: in float32 on the CPU."""
    sizes: list[SeenSize] = ["dynamic"]
    if options.size != "dynamic":
        size = placement.network_size
        sizes = [size]
        if inference_size(model.network.description, size) == size:
            sizes.append(None)  # at which predict shows frames of such a shape, if nothing is asked
    sampling = SamplingOptions(
        draws=options.draws,
        seed=options.seed,
        device="cpu",
        precision="float32",
        # The graph holds draws as a batch. Only a sampler with batches of two draws or more
        # compares them with draws one by one.
        chunk=2,
    )
    return make_sampler(model, sampling, scores, sizes)


@dataclass(frozen=True)
class _Traced:
    """A program and what its file is compared with."""

    program: ExportedProgram
    guards: list[SizeGuard]  # conditions on the size under which the program is right
    sampler: Sampler
    placement: Placement
    frames: tuple[Tensor, ...]  # inputs of the file
    draws: Tensor | None  # the second input of the program; None where it holds its draws


def _trace_line(options: ExportOptions, sampler: Sampler, placement: Placement) -> str:
    """Return what is traced, in one line."""
    height, width = placement.network_size
    size = "frames of any size" if options.size == "dynamic" else f"{height}x{width}"
    return f"tracing the model with {counted(sampler.draws, 'draw')} for {size}"


def _trace(options: ExportOptions, sampler: Sampler, placement: Placement) -> _Traced:
    """Return the program of a sampler, traced on frames as they come in.

    Raises:
        InputError: the network does not take the frame, cannot be traced, or has no draws that
            could be an input.
    """
    any_size = options.size == "dynamic"
    frames: list[Tensor] = []
    for network_size in SIZES if any_size else [placement.network_size]:
        frames.extend(check_inputs(replace(placement, network_size=network_size)))
    try:
        placement.prepare(sampler, frames[0])
    except RuntimeError as error:
        size = placement.network_size
        message = f"the network takes no frame of {size[0]}x{size[1]} ({one_line(error)})"
        raise InputError(message, hint="--size HxW with sides that it takes") from error
    draws = _draws_input(sampler, str(options.model)) if options.draws_as_input else None
    program, guards = graph.trace_with_guards(
        sampler, frames[0], draws, any_size=any_size, placement=placement
    )
    return _Traced(program, guards, sampler, placement, tuple(frames), draws)


def _draws_input(sampler: Sampler, model: Path | str) -> Tensor:
    """Return the draws that become an input of the program, of a sampler that was called before.

    Raises:
        InputError: the model is not one network with drawn normalisation layers.
    """
    draws = sampler.drawn()
    if draws is None:
        message = (
            f"{model} is not one network whose normalisation layers are drawn, "
            "so its draws cannot be an input"
        )
        raise InputError(message, hint="leave out --draws-as-input")
    return draws


def _write(
    options: ExportOptions,
    traced: _Traced,
    about: Mapping[str, Any],
    files: _Files,
    plan: LowerPlan | None,
) -> tuple[dict[str, Any], LowerExport | None]:
    """Write a program and the files beside it.

    The model file gets its name only after it was opened, run and found right.

    Returns:
        How the maps of the float32 file compare with the sampler's, and the file of a lower
        precision that was made of it; None if the plan is None.

    Raises:
        InputError: the program has an operator that the format lacks, or the file gives other maps.
    """
    metadata = {
        key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for key, value in about.items()
    }
    beside: dict[str, bytes] = {}
    if traced.draws is not None:
        beside[DRAWS] = encode_npy(traced.draws.numpy())
    path = inside(files.out, files.model)
    made: LowerExport | None = None
    with files.folders(), ExitStack() as stack:
        file = stack.enter_context(replacing(path))
        if plan is None:
            check = _write_checked(options, traced, metadata, file, path.name)
        else:
            with tempfile.TemporaryDirectory() as folder:
                parent = Path(folder) / "float32.onnx"
                name = f"{path.name} in float32"
                with parent.open("wb") as float32_file:
                    check = _write_checked(options, traced, metadata, float32_file, name)
                made = lower(plan, parent, metadata)
            file.write(made.model)
            file.flush()
            beside |= made.beside
            about = {**about, **made.record}
            check = _check_of_lower(check, Path(file.name), options)
        written = Path(file.name)
        if options.to == "triton":
            beside[TRITON] = graph.triton_config(written, options.batch).encode()
        # All are on the disk before the first takes its place: OpenVINO reads model.xml with any
        # model.bin, also with that of an earlier export.
        for name, data in beside.items():
            file_beside = stack.enter_context(replacing(files.out / name))
            file_beside.write(data)
            file_beside.flush()
        files.record({**about, "check": check}, file_content(written), beside)
    files.remove_draws(beside)
    return check, made


def _check_of_lower(
    check: Mapping[str, Any], written: Path, options: ExportOptions
) -> dict[str, Any]:
    """Return what the record of a file of a lower precision says under ``check``.

    Args:
        check: of the float32 file.
        written: the file of the lower precision, whose operators are others.
        options: of the export.
    """
    of_lower = {"precision": "float32", **check}
    del of_lower["tensorrt"]
    if options.to != "openvino":
        of_lower["tensorrt"] = tensorrt_check(graph.read_onnx(written))
    return of_lower


def _write_checked(
    options: ExportOptions,
    traced: _Traced,
    metadata: Mapping[str, str],
    file: BinaryIO,
    name: str,
) -> dict[str, Any]:
    """Write a program in float32, and return how its maps compare with the sampler's.

    Args:
        options: of the export.
        traced: the program.
        metadata: of the file.
        file: to write.
        name: of the file, for messages.

    Raises:
        InputError: the program has an operator that the format lacks, or the file gives other maps.
    """
    say_step(f"writing {name}")
    if options.to == "pt2":
        graph.write_pt2(traced.program, file, metadata)
    else:
        graph.write_onnx(traced.program, file, metadata)
    file.flush()
    written = Path(file.name)
    frames = counted(sum(len(batch) for batch in traced.frames), "frame")
    say_step(f"comparing {name} with the sampler on {frames}")
    run = graph.open_pt2(written) if options.to == "pt2" else graph.open_onnx(written)
    check = _compare_file(run, traced, name)
    if options.check_in == "openvino":
        say_step(f"comparing {name} in OpenVINO")
        run = graph.open_openvino(written)
        check["openvino"] = _compare_file(run, traced, f"{name} in OpenVINO")
    if options.to != "pt2":
        check["tensorrt"] = tensorrt_check(graph.read_onnx(written))
    return check


def _compare_file(run: Callable[..., graph.Maps], traced: _Traced, name: str) -> dict[str, Any]:
    """Return how the maps of a written file compare with the sampler's, for the record.

    Raises:
        InputError: the maps differ, on the traced frames or at a size of another branch.
    """

    def maps_of(frame: Tensor) -> graph.Maps:
        return run(frame) if traced.draws is None else run(frame, traced.draws)

    check = compare(maps_of, traced.sampler, traced.frames, name, traced.placement)
    check_guards(maps_of, traced.sampler, traced.guards, name)
    check["bound"] = {"codes": MAX_CODES, "or_share": ROUNDING}
    return check


def _check_lines(check: Mapping[str, Any]) -> str:
    """Return the results of the check in all runtimes, in one line."""
    line = f"checked against the sampler: {_largest_difference(check['scores'])}"
    if "openvino" in check:
        line += f"; in OpenVINO: {_largest_difference(check['openvino']['scores'])}"
    return line


def _largest_difference(differences: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the largest difference from the sampler over all scores, in words."""
    largest = max(differences, key=lambda name: int(differences[name]["codes"]))
    codes = differences[largest]["codes"]
    share = max(difference["share"] for difference in differences.values())
    return f"at most {counted(codes, 'code')} ({largest}), {share:.1e} of a largest value"


def _notes(
    options: ExportOptions,
    sampler: Sampler,
    placement: Placement,
    threshold: GuaranteedThreshold | None,
    description: NetworkDescription,
) -> tuple[str, ...]:
    """Return what a user should know of an exported file."""
    notes: list[str] = []
    if threshold is not None:
        if options.size != "dynamic":
            height, width = placement.frame_size or placement.network_size
            notes.append(threshold.size_note([f"{width}x{height}"], str(options.threshold)))
        else:
            notes.append(_note_on_any_size(_sizes_seen(threshold, description)))
        notes.append(threshold.note_on_silence)
        if "false-alarms" in threshold.levels and threshold.smallest > 1:
            notes.append(
                f"{FLAGGED} holds smaller regions, too: a false alarm of the promise has at least "
                f"{threshold.smallest} pixels, which also touch at corners"
            )
    if _has_sets(sampler) and options.precision != "float32":
        notes.append(_sets_of_another_precision(options.precision))
    if options.draws_as_input and (threshold is not None or _has_sets(sampler)):
        notes.append(f"the promise holds for the draws of {DRAWS} alone, not for other draws")
    return (*filter(None, notes), *sampler.report.messages)


def _has_sets(sampler: Sampler) -> bool:
    """Return whether a score of a file is made of class sets, which have a promise."""
    return any(SET_THRESHOLD in SCORES[name].needs for name in sampler.scores)


def _sets_of_another_precision(precision: str) -> str:
    """Return what a user should know of class sets in a file of a lower precision."""
    return (
        f"the class sets were calibrated on maps of the model itself, and their promise does not "
        f"hold for maps of a file of {precision}"
    )


def _note_on_any_size(sizes: Collection[tuple[int, int]]) -> str:
    """Return for which images (height, width) the promise of a file of any size holds; empty where
    that is not known.
    """
    words = [f"{height}x{width}" for height, width in sorted(sizes)]
    if not words:
        return ""
    return (
        f"the promise holds for images of {' and '.join(words)} alone, and the file takes any size"
    )


def _condition_line(sampler: Sampler) -> str:
    """Return which scores of a file are not those of predict, and why; empty where all are."""
    names = [name for name in sampler.scores if _is_of_whole_frames(name, sampler)]
    if not names:
        return ""
    return f"{' and '.join(names)} {agreeing('is', len(names))} not predict's: {CONDITION}"


class _Files:
    """The files that an export writes below a folder, and those that an earlier one lists there."""

    def __init__(self, out: Path, options: ExportOptions) -> None:
        self.out = out
        self.model = _MODEL_FILES[options.to]
        self.names = [self.model]
        if options.to == "openvino":
            self.names.append(BIN)
        self.before: dict[str, FileSum] = {}  # the files of an earlier export, as they are there
        if options.draws_as_input:
            self.names.append(DRAWS)
        if options.to == "triton":
            self.names.append(TRITON)

    def check(self) -> None:
        """Read what an earlier export lists.

        Raises:
            InputError: somebody's file has a name that is to be written, an earlier export left a
                file of another format, or a link leads out of the folder.
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
        in_the_way = [name for name in self.names if os.path.lexists(self.out / name)]
        check_files(self.out, in_the_way, listed)
        self.before = {}
        for file, contents in listed.items():
            if not is_listed(self.out / file, contents):
                continue
            if file not in self.names and file != DRAWS:
                # The new record would be beside a file of which it says nothing true.
                raise InputError(
                    f"{self.out} holds {file} of an earlier export, and its {RECORD} would be that "
                    f"of {self.model}",
                    hint=f"give another --out, or remove {file} first",
                )
            self.before[file] = file_content(self.out / file)

    @contextmanager
    def folders(self) -> Iterator[None]:
        """Make the folders of the files; after an error those that were not there are gone."""
        model_folder = (self.out / self.model).parent
        made = [folder for folder in (model_folder, self.out) if not folder.exists()]
        model_folder.mkdir(parents=True, exist_ok=True)
        try:
            yield
        except BaseException:
            for folder in made:
                remove_empty(folder)
            raise

    def record(self, about: Mapping[str, Any], model: FileSum, beside: Mapping[str, bytes]) -> None:
        """Write the record, before any of the files that it lists.

        So a run after a kill knows which files are its own.

        Args:
            about: what the model file says of itself.
            model: size and SHA-256 of the model file.
            beside: the content of each file beside it, by name.
        """
        listed = {self.model: model}
        for name, data in beside.items():
            listed[name] = len(data), hashlib.sha256(data).hexdigest()
        record = {
            **about,
            "file": self.model,
            "sha256": model[1],
            "files": listed,
            "replaced": self.before,
        }
        plain = json.loads(json.dumps(record))
        write_json(self.out / RECORD, {**plain, SEAL: json_sha256(plain)})

    def remove_draws(self, beside: Collection[str]) -> None:
        """Remove the draws of an earlier export, unless they are a file ``beside`` the model file
        again.
        """
        if DRAWS in self.before and DRAWS not in beside:
            remove_checked(self.out, [DRAWS])


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


def _channel_order(channels: int) -> str:
    """Return the order of the channels of an exported file's input in words."""
    if channels == COLOUR:
        return "RGB"
    return f"the {channels} channels of the network, in the order of mean and std"


def _sees_whole(sampler: Sampler) -> bool:
    """Return whether scores are made of frames at their own size as well."""
    return any(getattr(provider, "whole", False) for provider in sampler.fitted.providers)


def _threshold_of(options: ExportOptions, sampler: Sampler) -> GuaranteedThreshold | None:
    """Return the threshold that a file shall hold; None where none was given."""
    if options.threshold is None:
        return None
    return _read_exported_threshold(Path(options.threshold), sampler)


def _about(
    options: ExportOptions,
    model: Model,
    sampler: Sampler,
    placement: Placement,
    threshold: GuaranteedThreshold | None,
) -> dict[str, Any]:
    """Return what a file says of itself; sides that it leaves open are None."""
    description = model.network.description
    run = _run_record(model, sampler)
    about: dict[str, Any] = {
        "kind": "segunc export",
        "version": 1,
        "segunc": full_version(),
        "torch": torch.__version__,
        "input": _input_record(options, placement),
        "classes": list(description.classes),
        "palette": list(description.palette),
        "mean": list(description.mean),
        "std": list(description.std),
        "scores": {name: _score_record(name, sampler) for name in sampler.scores},
        "method": model.posterior.method,
        "alpha": model.posterior.settings().get("alpha"),
        **run,
    }
    for attachment in model.used(sampler.scores):
        about.update(attachment.exported_record())
    if options.precision != "float32" and _has_sets(sampler):
        about["class_sets"]["condition"] = _sets_of_another_precision(options.precision)
    if threshold is not None:
        path = Path(str(options.threshold))
        run_size = _run_size(options, description, placement, threshold)
        threshold.check_run({**run, "size": run_size}, str(path), HINT_CALIBRATE)
        sizes = _sizes_seen(threshold, description)
        if options.size != "dynamic" and placement.network_size in sizes:
            sizes = {placement.network_size}
        about["threshold"] = {
            **_threshold_record(threshold, min(sizes) if len(sizes) == 1 else None),
            "file_sha256": hashlib.sha256(read_bytes(path)).hexdigest(),
        }
    return about


def _input_record(options: ExportOptions, placement: Placement) -> dict[str, Any]:
    """Return what a file says of its input."""
    if placement.frame_size is not None:
        return {
            "name": "image",
            "type": "uint8",
            "shape": list(placement.shape),
            "channels": _channel_order(placement.channels),
            "range": [0, 255],
            "network_size": list(placement.network_size),
        }
    sides = [None, None] if options.size == "dynamic" else list(placement.network_size)
    return {
        "name": "image",
        "type": "float32",
        "shape": [placement.batch, placement.channels, *sides],
        "channels": _channel_order(placement.channels),
        "range": [0, 1],
    }


def _run_size(
    options: ExportOptions,
    description: NetworkDescription,
    placement: Placement,
    threshold: GuaranteedThreshold,
) -> Any:
    """Return the size that a run of ``predict`` would record for the maps of a file: that of the
    run of a threshold where both show the network frames at the same size.
    """
    recorded_size = threshold.settings.get("size")
    size = placement.network_size
    if options.size == "dynamic":
        return recorded_size
    if recorded_size is not None:
        is_same = tuple(recorded_size) == size
    else:
        # Where nothing names a size, float32 frames of another size are noted.
        is_same = description.inference_size is None or size in _sizes_seen(threshold, description)
        if placement.frame_size is not None:
            # The network's size follows from the frame's, as in predict without --size.
            is_same = is_same and inference_size(description, placement.frame_size) == size
    return recorded_size if is_same else list(size)


def _sizes_seen(
    threshold: GuaranteedThreshold, description: NetworkDescription
) -> set[tuple[int, int]]:
    """Return the (height, width) at which the network saw the frames of a calibration; empty where
    nothing tells.
    """
    recorded_size = threshold.settings.get("size")
    if recorded_size is not None:
        return {(recorded_size[0], recorded_size[1])}
    seen: set[tuple[int, int]] = set()
    for words in threshold.sizes:
        width, height = words.split("x")
        seen.add(inference_size(description, (int(height), int(width))))
    if not seen and description.inference_size is not None:
        seen.add(description.inference_size)
    return seen


def _run_record(model: Model, sampler: Sampler) -> dict[str, Any]:
    """Return what decides the maps of a file, as the manifest of maps records it."""
    return {
        "base_sha256": model.sha256,
        "posterior_sha256": model.posterior_sha256,
        **fitted_record(model, sampler),
        "draws": sampler.draws,
        "seed": sampler.seed,
        "scheme": sampler.noise.scheme,
        "precision": sampler.precision,
    }


def _is_of_whole_frames(name: str, sampler: Sampler) -> bool:
    """Return whether a score of ``predict`` is made of frames at their own size."""
    return bool(SCORES[name].sources & {"frame", "scores"}) and _sees_whole(sampler)


def _score_record(name: str, sampler: Sampler) -> dict[str, Any]:
    """Return what a file says of a score."""
    score = SCORES[name]
    record: dict[str, Any] = {
        "meaning": score.meaning,
        "unit": score.unit,
        "lower": score.lower,
        "upper": score.upper,
        "stored": score.stored,
    }
    if _is_of_whole_frames(name, sampler):
        record["condition"] = CONDITION
    return record


def _read_exported_threshold(path: Path, sampler: Sampler) -> GuaranteedThreshold:
    """Return the threshold in a file.

    Raises:
        InputError: its score is not exported, is made of frames at another size than here, or is
            prepared before it is flagged.
    """
    threshold = read_threshold(path)
    if threshold.score not in sampler.scores:
        raise InputError(
            f"{path} is a threshold of {threshold.score}, which is not exported",
            hint=f"--scores {threshold.score}",
        )
    if threshold.preparation:
        raise InputError(
            f"{path} flags prepared maps ({threshold.preparation.words}), "
            "and an exported file holds maps as they are",
            hint="leave out --threshold, or calibrate without --place, --margin, --level-frames",
        )
    if _is_of_whole_frames(threshold.score, sampler):
        message = (
            f"{path} holds where the second encoder sees frames at their own size, "
            "and the exported file shows it frames at the size of the network"
        )
        hint = "leave out --threshold, or fit with --features.resolution network"
        raise InputError(message, hint=hint)
    return threshold


def _threshold_record(threshold: GuaranteedThreshold, size: Sequence[int] | None) -> dict[str, Any]:
    """Return what a file says of its threshold.

    Args:
        threshold: as it was read.
        size: (height, width) at which the network saw the frames of the calibration; None where
            these are several or not known.
    """
    record = asdict(threshold)
    del record["frames"]
    del record["group_of"]  # of these frames
    del record["settings"]
    return {**record, "size": size}
