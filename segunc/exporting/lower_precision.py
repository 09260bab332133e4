"""A float32 ONNX file in a lower precision, by the tools of the runtime that will run it.

* ONNX Runtime, float16: ``onnxruntime.transformers.float16``. What follows the last convolution or
  product of matrices stays float32: the logits are resized, become probabilities and are added up.
* ONNX Runtime, INT8: ``onnxruntime.quantization.quantize_static`` of the convolutions but the
  depthwise ones. It writes pairs of QuantizeLinear and DequantizeLinear (QDQ), with a scale for
  each output channel of a weight and one for each tensor of activations.
* OpenVINO, float16: weights are stored as float16 (``openvino.save_model``).
* OpenVINO, INT8: ``nncf.quantize``.

All draws of a frame are one batch, so a tensor of activations has one scale for all draws. Scale
and shift of a draw stand behind the convolution and stay float32; the weights are those of all
draws.
"""

from __future__ import annotations

import importlib.util
import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from segunc.core.errors import InputError, one_line
from segunc.core.files import read_bytes
from segunc.exporting.graph import INPUTS, Maps

Precision = Literal["float16", "int8"]
Runtime = Literal["onnxruntime", "openvino"]
WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Operators of ONNX that hold nearly all multiplications of a network."""
CONVOLUTIONS = frozenset({"Convolution", "GroupConvolution", "ConvolutionBackpropData"})
"""Operators of OpenVINO that are quantised. With all that NNCF would quantise by itself, also in
the formulas of the scores, FDDWNet changes the predicted class of 4.2 % of the pixels, and with
these 2.2 % (docs/guides/exporting.md).
"""
FLOAT16_MAX = float(np.finfo(np.float16).max)
ONNX = "model.onnx"
XML = "model.xml"
BIN = "model.bin"
"""Of OpenVINO: the graph, and its weights beside it."""


@dataclass(frozen=True)
class LowerFile:
    """A file of a lower precision.

    Attributes:
        contents: bytes of each file, by its name.
        about: the tool, its version and its settings, as a record holds them.
    """

    contents: Mapping[str, bytes]
    about: Mapping[str, Any]


def require_tools(runtime: Runtime, precision: str) -> None:
    """Raise InputError where a package is missing that writes or runs such a file."""
    packages: list[tuple[str, str]] = []
    if runtime == "openvino":
        packages.append(("openvino", "openvino"))
        if precision == "int8":
            packages.append(("nncf", "openvino"))
    for package, extra in packages:
        if importlib.util.find_spec(package) is None:
            raise InputError(
                f"a file of {precision} for {runtime} needs the package {package}, "
                "which is not installed",
                hint=f'pip install "segunc[{extra}]"',
            )


def lower_onnx(
    source: Path, precision: Precision, frames: Iterable[Tensor], metadata: Mapping[str, str]
) -> LowerFile:
    """Return a float32 ONNX file in a lower precision, for ONNX Runtime.

    Args:
        source: the float32 file.
        precision: of the new file.
        frames: inputs of the file, on which the ranges of INT8 are measured.
        metadata: of the new file.

    Raises:
        InputError: the tool does not take the file.
    """
    import onnx

    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "lower.onnx"
        try:
            if precision == "float16":
                about = _write_float16(source, target)
            else:
                about = _write_int8(source, target, frames)
        except InputError:
            raise
        except Exception as error:  # those of onnx and of ONNX Runtime have no other common type
            message = f"{precision} cannot be made by ONNX Runtime's tool ({one_line(error)})"
            raise InputError(message, hint="--precision float32, or --to openvino") from error
        made = onnx.load(target)
    made.metadata_props.clear()
    for key, value in metadata.items():
        made.metadata_props.add(key=key, value=value)
    return LowerFile({ONNX: made.SerializeToString()}, about)


def _write_float16(source: Path, target: Path) -> dict[str, Any]:
    """Write an ONNX file whose network computes in float16, and return the settings of the tool.

    The tool can leave nodes in float32, but what such nodes hand to each other is rounded to
    float16, and the logarithm of a probability that became 0 is infinite. So the tool only gets the
    network, and what follows it is put behind the result.
    """
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    model = onnx.shape_inference.infer_shapes(onnx.load(source))
    network, tail = split_at_the_tail(model)
    converted = convert_float_to_float16(network, keep_io_types=True)
    onnx.save(_joined(model, converted, tail), target)
    return {
        "tool": "onnxruntime.transformers.float16.convert_float_to_float16",
        "version": version("onnxruntime"),
        "settings": {"float32": "what follows the last convolution or product of matrices"},
    }


def split_at_the_tail(model: Any) -> tuple[Any, list[Any]]:
    """Return the network of a file as a model of its own, and the nodes behind it: those from which
    neither a convolution nor a product of matrices can be reached.

    Args:
        model: an ``onnx.ModelProto`` with inferred types.
    """
    import onnx

    needed: set[str] = set()  # tensors from which a convolution can be reached
    network_nodes: list[Any] = []
    tail: list[Any] = []
    for node in reversed(model.graph.node):
        if node.op_type in WEIGHTED or not needed.isdisjoint(node.output):
            needed.update(node.input)
            network_nodes.insert(0, node)
        else:
            tail.insert(0, node)
    wanted = {output.name for output in model.graph.output}
    for node in tail:
        wanted.update(node.input)
    values = {value.name: value for value in (*model.graph.value_info, *model.graph.output)}
    outputs: list[Any] = []
    for node in network_nodes:
        outputs.extend(values[name] for name in node.output if name in wanted)
    constants = [entry for entry in model.graph.initializer if entry.name in needed]
    graph = onnx.helper.make_graph(
        network_nodes, "network", model.graph.input, outputs, initializer=constants
    )
    network = onnx.helper.make_model(
        graph, opset_imports=model.opset_import, functions=model.functions
    )
    network.ir_version = model.ir_version
    return network, tail


LOWEST_VALUE = -1e30
"""Lower values are those of a mask, such as -inf before a softmax, which may be -inf in float16."""


def largest_value(source: Path, frames: Iterable[Tensor]) -> float:
    """Return the largest absolute value of all float32 tensors in the network of an ONNX file,
    those of masks left out; where one is infinite, the largest of float32.

    A device that computes in float16 has infinity in place of values above :data:`FLOAT16_MAX`.
    ONNX Runtime on a CPU computes float16 in float32, so the maps that it gives do not show it.

    Args:
        source: the float32 file.
        frames: inputs of the file.
    """
    import onnx

    model = onnx.shape_inference.infer_shapes(onnx.load(source))
    network, _ = split_at_the_tail(model)
    values = (*model.graph.value_info, *model.graph.output)
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    nodes = list(network.graph.node)
    maxima: list[str] = []
    for node in network.graph.node:
        for name in node.output:
            if types.get(name) == onnx.TensorProto.FLOAT:
                nodes += _nodes_of_largest(name)
                maxima.append(nodes[-1].output[0])
    nodes.append(onnx.helper.make_node("Max", maxima, ["largest"]))
    lowest = onnx.numpy_helper.from_array(np.asarray(LOWEST_VALUE, np.float32), "lowest")
    zero = onnx.numpy_helper.from_array(np.zeros((), np.float32), "zero")
    graph = onnx.helper.make_graph(
        nodes,
        "largest",
        network.graph.input,
        [onnx.helper.make_tensor_value_info("largest", onnx.TensorProto.FLOAT, [])],
        initializer=[*network.graph.initializer, lowest, zero],
    )
    watched = onnx.helper.make_model(
        graph, opset_imports=network.opset_import, functions=network.functions
    )
    watched.ir_version = network.ir_version
    run = open_onnx(watched.SerializeToString())
    largest_of_frames = max(float(run(frame)["largest"]) for frame in frames)
    return min(largest_of_frames, float(np.finfo(np.float32).max))


def _nodes_of_largest(name: str) -> list[Any]:
    """Return the nodes that find the largest absolute value of a tensor, of which the last one has
    it as its output. They read the constants ``lowest`` and ``zero``.
    """
    from onnx.helper import make_node

    is_of_mask = f"{name}_is_of_mask"
    kept = f"{name}_kept"
    absolute = f"{name}_absolute"
    return [
        make_node("Less", [name, "lowest"], [is_of_mask]),
        make_node("Where", [is_of_mask, "zero", name], [kept]),
        make_node("Abs", [kept], [absolute]),
        make_node("ReduceMax", [absolute], [f"{name}_largest"], keepdims=0),
    ]


def _joined(model: Any, network: Any, tail: Sequence[Any]) -> Any:
    """Return a file of a converted network and of the nodes behind it, as they were in a model."""
    import onnx
    from onnxruntime.transformers.onnx_model import OnnxModel

    read_by_tail = {name for node in tail for name in node.input}
    held_by_network = {entry.name for entry in network.graph.initializer}
    constants = list(network.graph.initializer)
    new_names: dict[str, str] = {}
    for entry in model.graph.initializer:
        if entry.name not in read_by_tail:
            continue
        constant = onnx.TensorProto()
        constant.CopyFrom(entry)
        if entry.name in held_by_network:  # perhaps in float16
            constant.name = f"{entry.name}_of_tail"
            new_names[entry.name] = constant.name
        constants.append(constant)
    nodes = list(network.graph.node)
    for node in tail:
        renamed = onnx.NodeProto()
        renamed.CopyFrom(node)
        renamed.input[:] = [new_names.get(name, name) for name in node.input]
        nodes.append(renamed)
    graph = onnx.helper.make_graph(
        nodes, model.graph.name, model.graph.input, model.graph.output, initializer=constants
    )
    joined = onnx.helper.make_model(
        graph, opset_imports=model.opset_import, functions=model.functions
    )
    joined.ir_version = model.ir_version
    OnnxModel(joined).topological_sort()  # the tool puts its casts of inputs behind their readers
    return joined


def _write_int8(source: Path, target: Path, frames: Iterable[Tensor]) -> dict[str, Any]:
    """Write an ONNX file whose convolutions compute in INT8, and return its settings."""
    import onnx
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        """Gives the frames to the tool one by one."""

        def __init__(self) -> None:
            self.frames: Iterator[Tensor] = iter(frames)

        def get_next(self) -> dict[str, Any] | None:
            frame = next(self.frames, None)
            return None if frame is None else {INPUTS[0]: frame.numpy()}

    prepared = target.with_name("prepared.onnx")
    # Its symbolic inference of shapes fails at tensors without a rank; that of ONNX suffices. Its
    # optimisation writes constants out and weights twice: 13.8 MB for 4.1, at the same price.
    quant_pre_process(source, prepared, skip_symbolic_shape=True, skip_optimization=True)
    depthwise = depthwise_nodes(onnx.load(prepared))
    quantization.quantize_static(
        prepared,
        target,
        Reader(),
        quant_format=quantization.QuantFormat.QDQ,
        op_types_to_quantize=["Conv"],
        nodes_to_exclude=depthwise,
        per_channel=True,
        # Unsigned activations and signed weights have the fastest kernels on x86.
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
        calibrate_method=quantization.CalibrationMethod.MinMax,
    )
    convolutions, quantised = _quantised_convolutions(onnx.load(target))
    if not quantised:
        raise _nothing_in_int8("ONNX Runtime")
    return {
        "tool": "onnxruntime.quantization.quantize_static",
        "version": version("onnxruntime"),
        "settings": {
            "format": "QDQ",
            "operators": ["Conv"],
            "depthwise": "float32",
            "per_channel": True,
            "activations": "uint8",
            "weights": "int8",
            "ranges": "MinMax",
        },
        "quantised": quantised,
        "convolutions": convolutions,
    }


def _quantised_convolutions(model: Any) -> tuple[int, int]:
    """Return how many convolutions an ``onnx.ModelProto`` has, and how many of them are INT8."""
    dequantised: set[str] = set()
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear":
            dequantised.update(node.output)
    convolutions = [node for node in model.graph.node if node.op_type == "Conv"]
    quantised = [node for node in convolutions if dequantised.issuperset(node.input[:2])]
    return len(convolutions), len(quantised)


def _nothing_in_int8(tool: str) -> InputError:
    """Return the error of a file of INT8 in which nothing would be INT8."""
    return InputError(
        f"{tool} found no convolution that it makes INT8 in this network, so the file would be "
        "float32",
        hint="--precision float16, or leave out --precision",
    )


def depthwise_nodes(model: Any) -> list[str]:
    """Return the names of the depthwise convolutions of an ``onnx.ModelProto``: those whose output
    channels see one input channel each.

    ONNX Runtime has one scale for all channels of the output, and the channels of a depthwise
    convolution differ most. With them in INT8, FDDWNet changes the predicted class of 21 % of the
    pixels, and without 2.2 % (docs/guides/exporting.md).
    """
    weights = {entry.name: entry.dims for entry in model.graph.initializer}
    names: list[str] = []
    for node in model.graph.node:
        if node.op_type != "Conv":
            continue
        groups = [attribute.i for attribute in node.attribute if attribute.name == "group"]
        shape = weights.get(node.input[1], ())
        if groups and groups[0] > 1 and len(shape) > 1 and shape[1] == 1:
            names.append(node.name)
    return names


def lower_openvino(
    source: Path, precision: str, frames: Iterable[Tensor], metadata: Mapping[str, str]
) -> LowerFile:
    """Return a float32 ONNX file as a graph of OpenVINO and its weights.

    Args:
        source: the float32 file.
        precision: of the graph: float32, float16 (weights alone) or int8.
        frames: inputs of the file, on which the ranges of INT8 are measured.
        metadata: what the graph says of itself, below ``segunc``.

    Raises:
        InputError: OpenVINO or NNCF does not take the file.
    """
    import openvino

    about: dict[str, Any] = {
        "tool": "openvino.save_model",
        "version": version("openvino"),
        "settings": {"compress_to_fp16": precision == "float16"},
    }
    try:
        model = openvino.Core().read_model(source)
        if precision == "int8":
            model, about = _quantised_by_nncf(model, frames)
        for key, value in metadata.items():
            model.set_rt_info(value, ["segunc", key])
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / XML
            openvino.save_model(model, path, compress_to_fp16=precision == "float16")
            contents = {XML: read_bytes(path), BIN: read_bytes(path.with_name(BIN))}
    except RuntimeError as error:
        message = f"OpenVINO cannot write the graph in {precision} ({one_line(error)})"
        raise InputError(message, hint="--to onnx") from error
    return LowerFile(contents, about)


def _quantised_by_nncf(model: Any, frames: Iterable[Tensor]) -> tuple[Any, dict[str, Any]]:
    """Return a graph of OpenVINO with INT8 operators, and the settings of the tool."""
    import nncf

    kinds = {operator.get_type_name() for operator in model.get_ops()}
    arrays = [frame.numpy() for frame in frames]
    nncf.set_log_level(logging.ERROR)
    quantised = nncf.quantize(
        model,
        nncf.Dataset(arrays),
        subset_size=len(arrays),
        ignored_scope=nncf.IgnoredScope(types=sorted(kinds - CONVOLUTIONS), validate=False),
    )
    quantised_inputs = sum(op.get_type_name() == "FakeQuantize" for op in quantised.get_ops())
    if not quantised_inputs:
        raise _nothing_in_int8("NNCF")
    about = {
        "tool": "nncf.quantize",
        "version": version("nncf"),
        "settings": {"operators": sorted(kinds & CONVOLUTIONS), "preset": "performance"},
    }
    return quantised, about


def open_onnx(contents: bytes) -> Callable[[Tensor], Maps]:
    """Return what runs an ONNX file on the CPU in ONNX Runtime, on as many threads as torch.

    Args:
        contents: of the file.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4  # what fails is raised, and not printed as well
    session = onnxruntime.InferenceSession(contents, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(frame: Tensor) -> Maps:
        values = session.run(names, {INPUTS[0]: frame.numpy()})
        return dict(zip(names, values, strict=True))

    return run


def open_openvino(
    contents: Mapping[str, bytes], *, precision_hint: str = "f32"
) -> Callable[[Tensor], Maps]:
    """Return what runs a graph of OpenVINO on the CPU, on as many threads as torch.

    Args:
        contents: of the files ``model.xml`` and ``model.bin``.
        precision_hint: in which float operators compute: f32, f16 or bf16.
    """
    import openvino

    core = openvino.Core()
    model = core.read_model(contents[XML], contents[BIN])
    settings = {
        "INFERENCE_PRECISION_HINT": precision_hint,
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
    }
    compiled = core.compile_model(model, "CPU", settings)

    def run(frame: Tensor) -> Maps:
        maps: Maps = {}
        for output, values in compiled({INPUTS[0]: frame.numpy()}).items():
            for name in output.names:
                maps[name] = np.array(values)
        return maps

    return run
