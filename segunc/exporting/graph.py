"""The maps of one frame as one graph of plain operators: traced from the sampler itself, so that no formula is written twice, and written as
ONNX or as a program of ``torch.export``."""

from __future__ import annotations

import importlib.util
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel

from segunc.core.errors import InputError, one_line
from segunc.core.files import open_file
from segunc.sampling.sampler import Sampler

Maps = dict[str, npt.NDArray[Any]]
OPSET = 18  # of ONNX: the first with ReduceSum, Resize and antialiasing in their present form
PACKAGES = ("onnx", "onnxscript", "onnxruntime")
_RESIZES = {
    torch.ops.aten.upsample_bilinear2d.default: 3,
    torch.ops.aten.upsample_nearest2d.default: 2,
}  # how many arguments stand before the scales
_MISSING = re.compile(r"No ONNX function found for (?:<OpOverload\(op=')?([\w.:]+)")


def require_packages() -> None:
    """Raise InputError where a package is missing that writes or runs ONNX."""
    for name in PACKAGES:
        if importlib.util.find_spec(name) is None:
            raise InputError(f"--to onnx needs the package {name}, which is not installed", hint='pip install "segunc[export]"')


def trace(sampler: Sampler, image: Tensor) -> ExportedProgram:
    """Return the program from a frame ``[1, 3, H, W]`` in 0..1 of exactly this size to ``prediction`` uint8 and each score float32, ``[1, H,
    W]``, by name. The sampler was called on a frame of this size before. What all draws share comes once in it, because the function modes
    that share it act while it is traced.

    Raises:
        InputError: a network whose code reads values of the frame, draws random numbers, or cannot be traced.
    """

    def maps(image: Tensor) -> dict[str, Tensor]:
        found = sampler.one_frame(image)
        return {"prediction": found.prediction[None], **{name: found.scores[name][None] for name in sampler.scores}}

    try:
        # Attention as matrix products: the fused kernels of one kind of processor are no operators of another runtime.
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graph: Any = make_fx(maps)(image)
            for name, constant in list(graph.named_buffers()):
                graph.register_buffer(name, constant.clone())  # the sampler's draws were made in inference mode, which no program keeps
            for node in graph.graph.nodes:
                if node.target in _RESIZES:  # of their two forms this one becomes a Resize of ONNX, the other a table of all pixels
                    image_or_features, size, *corners = node.args[: (count := _RESIZES[node.target])]
                    scales = [scale for scale in node.args[count:] if scale is not None]
                    node.target = node.target.overloadpacket.vec
                    node.args = (image_or_features, None if scales else size, *corners, scales or None)
            graph.graph.eliminate_dead_code()
            graph.recompile()
            for node in graph.graph.nodes:
                if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
                    raise InputError(f"the network draws random numbers itself ({node.target}), which no graph repeats")
            return torch.export.export(graph, (image,))
    except RuntimeError as error:
        raise InputError(f"the network cannot be traced ({one_line(error)})") from error


def write_onnx(program: ExportedProgram, file: BinaryIO, metadata: Mapping[str, str]) -> None:
    """Write a traced program as ONNX of opset 18, whose one input is ``image``; InputError, with its name, for an operator that ONNX lacks."""
    outputs = list(program.call_spec.out_spec.context)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            made: Any = torch.onnx.export(
                program, dynamo=True, opset_version=OPSET, input_names=["image"], output_names=outputs, verbose=False
            )
        except torch.onnx.OnnxExporterError as error:
            causes: list[Any] = [error]
            while cause := causes[-1].__cause__:
                causes.append(cause)
            operators = [found[1] for cause in causes if (found := _MISSING.search(str(cause)))]
            what = f"the operator {operators[0]}, which ONNX lacks" if operators else one_line(causes[-1])
            raise InputError(f"the network cannot be written as ONNX: {what}", hint="--to pt2") from error
    made.model.metadata_props.update(metadata)
    file.write(made.model_proto.SerializeToString())


def write_pt2(program: ExportedProgram, file: BinaryIO, metadata: Mapping[str, str]) -> None:
    """Write a traced program for ``torch.export.load``; the metadata are its extra files."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it tells of weights in channels-last order, which are whole
        torch.export.save(program, file, extra_files=dict(metadata))


def open_onnx(path: Path) -> Callable[[Tensor], Maps]:
    """Return what runs a written file on the CPU in ONNX Runtime, on as many threads as torch."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda image: dict(zip(names, session.run(names, {"image": image.numpy()}), strict=True))


def open_pt2(path: Path) -> Callable[[Tensor], Maps]:
    """Return what runs a written program in torch."""
    with open_file(path) as file:
        module = torch.export.load(file).module()

    def run(image: Tensor) -> Maps:
        with torch.no_grad():
            return {name: np.asarray(values) for name, values in module(image).items()}

    return run
