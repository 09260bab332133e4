"""An exported file of four draws of an ABNN in ONNX Runtime and in TensorRT: megabytes,
milliseconds, and how far its maps are from those of the float32 file in ONNX Runtime on the CPU.

The columns are those of :mod:`tools.runtime_table`. TF32 is off wherever float32 is said. The
float16 file is that of ``segunc export --precision float16``: the network is in float16, and what
follows its last convolution in float32. TensorRT takes the types of a file as they are (a strongly
typed network). Milliseconds are those of a frame that comes from the host and whose maps go back to
it.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import segunc
from segunc.core.errors import InputError
from segunc.core.files import file_sha256, read_json, write_file
from segunc.decisions.guarantee import model_of
from segunc.exporting.check import check_frames
from segunc.exporting.graph import INPUTS, PACKAGES, Maps, read_onnx
from segunc.exporting.lower_precision import ONNX, lower_onnx
from segunc.exporting.price import measure_price
from segunc.verbs.export import RECORD, is_export_record
from tools.gpu_day.fast import random_model
from tools.gpu_day.networks import networks_of, size_words, sizes_of
from tools.gpu_day.steps import Day, NotMeasured, Row, Step
from tools.latency import check_recorded
from tools.runtime_table import DRAWS, SCORES, Run, milliseconds, price_cells

FRAMES = 8
TINY_FRAMES = 2
LARGEST_SHARE = 0.001
"""Of the pixels, whose entropy may be off by more than 65 codes in float32, and of those whose
predicted class may change.
"""
PROVIDERS: dict[str, Any] = {
    "CPU": "CPUExecutionProvider",
    "CUDA": ("CUDAExecutionProvider", {"use_tf32": 0}),
}
TRTEXEC = "trtexec"
PARENT = "float32_sha256"
"""In the metadata of the float16 file, the SHA-256 of the float32 file of which it was made."""


@dataclass(frozen=True)
class Engine:
    """A file in a runtime.

    Attributes:
        run: gives the maps of a frame.
        size: of the file, or of what the runtime built of it, in bytes.
        milliseconds: of a frame, where the runtime says it itself.
    """

    run: Run
    size: int
    milliseconds: Callable[[], float] | None = None


Opened = Callable[[Path], Engine]
"""Opens an ONNX file."""


def steps(day: Day) -> Iterator[Step]:
    """Give the steps of the part ``runtimes``.

    Raises:
        InputError: the folder holds an exported file of another model or size, and so its rows.
    """
    runtimes = Runtimes(day)
    runtimes.check()
    openers: dict[str, Opened] = {
        "ONNX Runtime on the CPU": partial(open_in_onnxruntime, "CPU"),
        "ONNX Runtime on CUDA": partial(open_in_onnxruntime, "CUDA"),
        "TensorRT": open_in_tensorrt,
    }
    for name, opener in openers.items():
        for precision in ("float32", "float16"):
            yield Step(f"{name}, {precision}", partial(runtimes.measure, opener, precision))


class Runtimes:
    """The files of a model, and the frames that its maps are compared on."""

    def __init__(self, day: Day) -> None:
        self.day = day
        self.folder = day.out / "runtimes"

    def file(self, precision: str) -> Path:
        """Return the ONNX file of a precision, which the first call exports."""
        if precision == "float32":
            return self._float32_file()
        source = self._float32_file()
        path = self.folder / precision / ONNX
        # Of another float32 file, it would be measured as if it were of this model.
        digest = file_sha256(source)
        if not path.exists() or _parent_of(path) != digest:
            made = lower_onnx(source, "float16", (), {PARENT: digest})
            write_file(path, made.contents[ONNX])
        return path

    def _float32_file(self) -> Path:
        """Return the float32 file, which the first call exports."""
        path = self.folder / "float32" / ONNX
        if path.exists():
            self.check()
            return path
        size = sizes_of(self.day)[0]
        segunc.export(
            model=str(self._model()), to="onnx", out=str(path.parent), size=size, draws=DRAWS,
            scores=SCORES,
        )  # fmt: skip
        return path

    def check(self) -> None:
        """Raise InputError where an exported file is there that is not of the model, its size and
        its draws. The file of float16 is made of it, and the rows of the table are measured on it.
        """
        folder = self.folder / "float32"
        if not (folder / ONNX).exists():
            return
        hint = f"give another --out, or remove {self.folder} and the rows of the part runtimes"
        if not is_export_record(folder / RECORD):
            raise InputError(f"{folder / ONNX} has no record of its model", hint=hint)
        record = read_json(folder / RECORD, "the record of an export")
        check_recorded(folder, record)
        model = segunc.load(self._model())
        wanted = {"base_sha256": model.sha256, "posterior_sha256": model.posterior_sha256}
        if model_of(record) != model_of(wanted):
            message = f"{folder / ONNX} is of another model than {self._model()}"
            raise InputError(message, hint=hint)
        size = sizes_of(self.day)[0]
        if record["input"]["shape"][2:] != list(size) or record["draws"] != DRAWS:
            message = f"{folder / ONNX} is not of {DRAWS} draws at {size_words(size)}"
            raise InputError(message, hint=hint)

    def _model(self) -> Path:
        """Return the model folder that was named, or one of random weights."""
        if self.day.model is not None:
            return self.day.model
        name = networks_of(self.day)[0]
        folder = self.folder / f"model-{name.architecture}-{name.encoder}"
        if not folder.exists():
            random_model(folder, name)
        return folder

    @functools.cached_property
    def frames(self) -> list[Tensor]:
        """Random textured frames ``[1, 3, H, W]`` in 0..1."""
        count = TINY_FRAMES if self.day.tiny else FRAMES
        size = sizes_of(self.day)[0]
        return [check_frames(size, seed=number)[0] for number in range(count)]

    def measure(self, opener: Opened, precision: str) -> Row:
        """Return megabytes, milliseconds and the price of a file in a runtime.

        Raises:
            NotMeasured: the runtime, or a package that writes ONNX, is not here.
        """
        for package in PACKAGES:
            if importlib.util.find_spec(package) is None:
                raise NotMeasured(f"{package} is not installed")
        engine = opener(self.file(precision))
        reference = open_in_onnxruntime("CPU", self.file("float32"))
        price = measure_price(engine.run, reference.run, self.frames, len(self.frames))
        if engine.milliseconds is None:
            ms = milliseconds(engine.run, self.frames)
        else:
            ms = engine.milliseconds()
        cells = price_cells(asdict(price))
        row: Row = {
            "network": self.day.model.name if self.day.model else networks_of(self.day)[0].words,
            "size": size_words(sizes_of(self.day)[0]),
            "MB": engine.size / 1e6,
            "ms": ms,
            "predictions changed": cells.changed,
            "entropy off by > 1, > 65 codes; lowest rank correlation": cells.entropy,
        }
        if precision == "float32":
            largest = max(price.changed, price.scores["entropy"].over_many_codes)
            row["met"] = largest <= LARGEST_SHARE
        return row


def _parent_of(path: Path) -> str | None:
    """Return the SHA-256 of the float32 file of which an ONNX file was made; None where it does not
    say.
    """
    for entry in read_onnx(path).metadata_props:
        if entry.key == PARENT:
            return str(entry.value)
    return None


def open_in_onnxruntime(provider: str, path: Path) -> Engine:
    """Return an ONNX file in ONNX Runtime.

    Args:
        provider: a name of PROVIDERS.
        path: of the file.

    Raises:
        NotMeasured: this ONNX Runtime has no such provider, or it does not start.
    """
    import onnxruntime

    wanted = PROVIDERS[provider]
    name = wanted if isinstance(wanted, str) else wanted[0]
    if name not in onnxruntime.get_available_providers():
        raise NotMeasured(f"ONNX Runtime has no provider for {provider} here")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4  # what fails is raised, and not printed as well
    session = onnxruntime.InferenceSession(str(path), options, providers=[wanted])
    if session.get_providers()[0] != name:
        raise NotMeasured(f"ONNX Runtime's provider for {provider} does not start here")
    names = [output.name for output in session.get_outputs()]

    def run(frame: Tensor) -> Maps:
        values = session.run(names, {INPUTS[0]: frame.numpy()})
        return dict(zip(names, values, strict=True))

    return Engine(run, path.stat().st_size)


def open_in_tensorrt(path: Path) -> Engine:
    """Return an ONNX file as an engine of TensorRT, by its Python package or by ``trtexec``.

    Raises:
        NotMeasured: neither is here.
        RuntimeError: TensorRT does not take the file.
    """
    if importlib.util.find_spec("tensorrt") is not None:
        return TensorRTEngine(path).opened()
    program = shutil.which(TRTEXEC)
    if program is not None:
        return TrtexecEngine(path, program).opened()
    raise NotMeasured("TensorRT is not here: neither the package tensorrt nor trtexec")


class TensorRTEngine:
    """An engine that the package ``tensorrt`` builds and runs on the current CUDA device.

    Raises:
        RuntimeError: TensorRT does not take the file.
    """

    def __init__(self, path: Path) -> None:
        import tensorrt  # type: ignore[import-not-found]

        logger = tensorrt.Logger(tensorrt.Logger.ERROR)
        built = _built_by_tensorrt(path, logger)
        self.size = int(built.nbytes)
        self._runtime = tensorrt.Runtime(logger)  # which has to outlive its engine
        self._engine = self._runtime.deserialize_cuda_engine(built)
        self._context = self._engine.create_execution_context()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._tensors: dict[str, Tensor] = {}
        self._outputs: list[str] = []
        for number in range(self._engine.num_io_tensors):
            name = self._engine.get_tensor_name(number)
            self._tensors[name] = self._tensor(name)
            self._context.set_tensor_address(name, self._tensors[name].data_ptr())
            if self._engine.get_tensor_mode(name) == tensorrt.TensorIOMode.OUTPUT:
                self._outputs.append(name)

    def _tensor(self, name: str) -> Tensor:
        """Return the memory of an input or output of the engine."""
        import tensorrt

        shape = tuple(self._engine.get_tensor_shape(name))
        numpy_type = tensorrt.nptype(self._engine.get_tensor_dtype(name))
        dtype = torch.from_numpy(np.empty(0, numpy_type)).dtype
        return torch.empty(shape, dtype=dtype, device="cuda")

    def opened(self) -> Engine:
        return Engine(self.run, self.size)

    def run(self, frame: Tensor) -> Maps:
        """Return the maps of a frame."""
        with torch.cuda.stream(self._stream):
            self._tensors[INPUTS[0]].copy_(frame)
            if not self._context.execute_async_v3(self._stream.cuda_stream):
                raise RuntimeError("TensorRT's engine does not run")
            return {name: self._tensors[name].cpu().numpy() for name in self._outputs}


def _built_by_tensorrt(path: Path, logger: Any) -> Any:
    """Return the engine that TensorRT builds of an ONNX file, in memory of the host."""
    import tensorrt

    builder = tensorrt.Builder(logger)
    strongly_typed = int(tensorrt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    network = builder.create_network(1 << strongly_typed)
    parser = tensorrt.OnnxParser(network, logger)
    if not parser.parse(path.read_bytes()):
        errors = [str(parser.get_error(number)) for number in range(parser.num_errors)]
        raise RuntimeError(f"TensorRT does not read the file ({'; '.join(errors)})")
    settings = builder.create_builder_config()
    settings.clear_flag(tensorrt.BuilderFlag.TF32)
    built = builder.build_serialized_network(network, settings)
    if built is None:
        raise RuntimeError("TensorRT builds no engine of the file")
    return built


class TrtexecEngine:
    """An engine that the program ``trtexec`` builds and runs, a process for each frame.

    It writes maps as text of about six digits, so single codes may differ.

    Args:
        path: of the ONNX file.
        program: path of trtexec.

    Raises:
        RuntimeError: TensorRT does not take the file.
    """

    def __init__(self, path: Path, program: str) -> None:
        self.program = program
        self.engine = path.with_suffix(".engine")
        self._call(
            f"--onnx={path}", f"--saveEngine={self.engine}", "--stronglyTyped", "--noTF32",
            "--skipInference",
        )  # fmt: skip

    def _call(self, *words: str) -> None:
        done = subprocess.run(
            [self.program, *words], capture_output=True, text=True, check=False, env=os.environ
        )
        if done.returncode:
            lines = (done.stdout + done.stderr).strip().splitlines() or ["no message"]
            raise RuntimeError(f"trtexec ended with {done.returncode} ({lines[-1]})")

    def opened(self) -> Engine:
        return Engine(self.run, self.engine.stat().st_size, self.milliseconds)

    def run(self, frame: Tensor) -> Maps:
        """Return the maps of a frame."""
        given = self.engine.with_suffix(".frame")
        written = self.engine.with_suffix(".maps.json")
        given.write_bytes(frame.numpy().tobytes())
        self._call(
            f"--loadEngine={self.engine}", f"--loadInputs={INPUTS[0]}:{given}",
            f"--exportOutput={written}", "--iterations=1", "--duration=0", "--warmUp=0",
        )  # fmt: skip
        maps: Maps = {}
        for output in json.loads(written.read_text(encoding="utf-8")):
            shape = [int(side) for side in output["dimensions"].split("x")]
            dtype = np.uint8 if output["name"] == "prediction" else np.float32
            maps[output["name"]] = np.array(output["values"], dtype).reshape(shape)
        return maps

    def milliseconds(self) -> float:
        """Return the median of a frame, its copies included, as trtexec measures it."""
        written = self.engine.with_suffix(".times.json")
        self._call(f"--loadEngine={self.engine}", f"--exportTimes={written}")
        times = json.loads(written.read_text(encoding="utf-8"))
        return statistics.median(float(time["latencyMs"]) for time in times)
