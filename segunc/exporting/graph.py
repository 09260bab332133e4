"""The maps of one frame as one graph of plain operators: traced from the sampler itself, so that no
formula is written twice, and written as ONNX or as a program of ``torch.export``.
"""

from __future__ import annotations

import importlib.util
import io
import itertools
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel

from segunc.core.errors import InputError, one_line
from segunc.core.files import open_file
from segunc.core.removal import file_content
from segunc.exporting.placement import Placement
from segunc.sampling.sampler import Sampler

Maps = dict[str, npt.NDArray[Any]]
INPUTS = ("image", "draws")  # the second only where draws are given
OPSET = 18  # of ONNX: the first with ReduceSum, Resize and antialiasing in their present form
PACKAGES = ("onnx", "onnxscript", "onnxruntime")
_RESIZES = {
    torch.ops.aten.upsample_bilinear2d.default: 3,
    torch.ops.aten.upsample_nearest2d.default: 2,
}
"""By operator, how many arguments stand before the scales."""
# The exporter of torch 2.11 fails at what it makes of this itself: -p ln p, 0 where p is 0. A
# smaller bound would be 0 in float32, as it is written.
_DECOMPOSED = {torch.ops.aten.special_entr.default: lambda p: -p * p.clamp_min(1e-37).log()}
_SMALL_SIDES = (32, 33, 40, 47, 48, 56, 63, 64, 65, 96, 97, 128, 192, 224, 256)
_LARGE_SIDES = (320, 384, 448, 512, 640, 800, 1024, 1536, 2048, 4096)
_GUARD_SIDES = _SMALL_SIDES + _LARGE_SIDES
_GUARD_SIZES = sorted(
    itertools.product(_GUARD_SIDES, _GUARD_SIDES), key=lambda size: (size[0] * size[1], size)
)
"""(height, width) for which conditions on sizes are tried, by their number of pixels."""
_ONNX_INT64 = 7  # of onnx.TensorProto
TRITON_SHA256 = "segunc_sha256"
"""Parameter of a model of Triton: the SHA-256 of the exported file, by which a client knows it."""
_TRITON = {"tensor(float)": "TYPE_FP32", "tensor(uint8)": "TYPE_UINT8"}
_MISSING = re.compile(r"No ONNX function found for (?:<OpOverload\(op=')?([\w.:]+)")

_MISSING_IN_OPENVINO = re.compile(r"No conversion rule found for operations: (.+)")


def require_packages() -> None:
    """Raise InputError where a package is missing that writes or runs ONNX."""
    for name in PACKAGES:
        if importlib.util.find_spec(name) is None:
            raise InputError(
                f"ONNX needs the package {name}, which is not installed",
                hint='pip install "segunc[export]"',
            )


def require_openvino() -> None:
    """Raise InputError where the package openvino is missing."""
    if importlib.util.find_spec("openvino") is None:
        raise InputError(
            "a run in OpenVINO needs the package openvino, which is not installed",
            hint='pip install "segunc[openvino]"',
        )


@dataclass(frozen=True)
class SizeGuard:
    """A condition on the size of the frame that the network's code asked for while it was traced.
    The graph holds the branch that was taken; sizes for which the condition is false take another
    one."""

    condition: str  # with H and W for the height and the width of the frame
    place: str  # file and line of the code that asked
    # (height, width) for which it is false, the smallest frame first
    sizes: tuple[tuple[int, int], ...]


def size_guards(graph: Any) -> list[SizeGuard]:
    """Return the conditions of a graph traced for any size that some size does not meet, of those
    that code outside of torch asked for. Conditions of torch itself choose between kernels and
    memory formats that give the same numbers."""
    image = next(node for node in graph.graph.nodes if node.op == "placeholder").meta["val"]
    # Code that asks for three channels fixes that side. From then on ``expr`` is the number 3, but
    # the condition itself names the symbol.
    symbols = [side.node._expr if isinstance(side, torch.SymInt) else None for side in image.shape]
    _, channels, height, width = symbols
    guards: dict[tuple[str, str], SizeGuard] = {}
    for guard in graph.shape_env.guards:
        code_line = _place_of(guard)
        if code_line is None:
            continue
        condition = guard.expr
        if channels is not None:
            condition = condition.subs(channels, image.shape[1].node.hint)
        failing = _failing_sizes(condition, height, width)
        if failing:
            text = str(condition).replace(str(height), "H").replace(str(width), "W")
            guards[code_line, text] = SizeGuard(text, code_line, failing)
    return list(guards.values())


def _failing_sizes(condition: Any, height: Any, width: Any) -> tuple[tuple[int, int], ...]:
    """Return the sizes of :data:`_GUARD_SIZES` for which a condition on the symbols of height and
    width is false."""
    return tuple(
        (rows, columns)
        for rows, columns in _GUARD_SIZES
        if not _holds(condition, {height: rows, width: columns})
    )


def _place_of(guard: Any) -> str | None:
    """Return file and line of the code that asked for a condition; None where that is torch."""
    frame = getattr(getattr(guard, "sloc", None), "framework_loc", None)
    file = getattr(frame, "filename", str(frame))
    if Path(torch.__file__).parent.as_posix() in Path(file).as_posix():
        return None
    return f"{Path(file).name}, line {getattr(frame, 'lineno', 'unknown')}"


def _holds(condition: Any, sides: dict[Any, int]) -> bool:
    """Return whether a condition is true for the sides of a frame; one that cannot be decided is
    not."""
    # A condition is an expression of sympy, or a truth value where it holds for every size.
    value = condition if isinstance(condition, bool) else condition.subs(sides)
    return str(value) == "True"


def trace(
    sampler: Sampler,
    frames: Tensor,
    draws: Tensor | None = None,
    *,
    any_size: bool = False,
    placement: Placement | None = None,
) -> ExportedProgram:
    """Return the program from frames of exactly this size to their maps, by name.

    The maps are ``prediction`` uint8 and each score float32, ``[N, H, W]``. The sampler was called
    on a frame of this size before. What all draws share comes once in it, because the function
    modes that share it act while it is traced.

    Args:
        sampler: over the network.
        frames: ``[N, K, H, W]`` in 0..1, or what the placement takes.
        draws: :meth:`Sampler.drawn`, which then are a second input.
        any_size: the program takes frames of any size.
        placement: how frames come in; None is as they are.

    Raises:
        InputError: a network whose code reads values of the frame, draws random numbers, or cannot
            be traced.
    """
    program, _ = trace_with_guards(sampler, frames, draws, any_size=any_size, placement=placement)
    return program


def trace_with_guards(
    sampler: Sampler,
    frames: Tensor,
    draws: Tensor | None = None,
    *,
    any_size: bool = False,
    placement: Placement | None = None,
) -> tuple[ExportedProgram, list[SizeGuard]]:
    """Return the program of :func:`trace`, and the conditions on sizes under which its operators
    are those of the network."""
    inputs = (frames,) if draws is None else (frames, draws)
    if placement is None:
        placement = Placement((frames.shape[2], frames.shape[3]), len(frames))

    def maps(*inputs: Tensor) -> dict[str, Tensor]:
        return placement.maps(sampler, *inputs, any_size=any_size)

    tracing: dict[str, Any] = {}
    dynamic_shapes: Any = None
    if any_size:
        tracing = {"tracing_mode": "symbolic", "_allow_non_fake_inputs": True}
        of_the_image = {2: Dim.DYNAMIC, 3: Dim.DYNAMIC}
        dynamic_shapes = (of_the_image,) if draws is None else (of_the_image, {})
    try:
        # Attention as matrix products: the fused kernels of one kind of processor are no operators
        # of another runtime.
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graph: Any = make_fx(maps, _DECOMPOSED, **tracing)(*inputs)
            guards = size_guards(graph) if any_size else []
            _copy_constants(graph)
            _prefer_scales(graph)
            _compare_whole_numbers(graph)
            graph.graph.eliminate_dead_code()
            graph.recompile()
            _refuse_random_numbers(graph)
            program = torch.export.export(graph, inputs, dynamic_shapes=dynamic_shapes)
    except RuntimeError as error:
        raise InputError(f"the network cannot be traced ({one_line(error)})") from error
    return program, guards


def _copy_constants(graph: Any) -> None:
    """Replace the constants of a graph by copies: the sampler's draws were made in inference mode,
    which no program keeps."""
    for name, constant in list(graph.named_buffers()):
        graph.register_buffer(name, constant.clone())


def _prefer_scales(graph: Any) -> None:
    """Call each resizing of a graph by its form with scales, where it has any.

    ONNX makes one Resize of this form, and a table of all pixels of the other one.
    """
    for node in graph.graph.nodes:
        if node.target not in _RESIZES:
            continue
        count = _RESIZES[node.target]
        image, size, *corners = node.args[:count]
        scales = [scale for scale in node.args[count:] if scale is not None]
        node.target = node.target.overloadpacket.vec
        node.args = (image, None, *corners, scales) if scales else (image, size, *corners, None)


def _compare_whole_numbers(graph: Any) -> None:
    """Clamp whole numbers by comparisons: TensorRT's Clip takes floats alone."""
    aten = torch.ops.aten
    for node in list(graph.graph.nodes):
        if node.target not in (aten.clamp.default, aten.clamp_.default):
            continue
        values, *bounds = node.args
        if values.meta["val"].is_floating_point() or len(values.users) > 1:
            continue
        with graph.graph.inserting_before(node):
            for bound, operator in zip(bounds, (aten.maximum, aten.minimum), strict=False):
                if bound is not None:
                    limit = graph.graph.call_function(aten.full_like.default, (values, bound))
                    values = graph.graph.call_function(operator.default, (values, limit))
        node.replace_all_uses_with(values)
        graph.graph.erase_node(node)


def _refuse_random_numbers(graph: Any) -> None:
    """Raise InputError for an operator that draws random numbers."""
    for node in graph.graph.nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            message = (
                f"the network draws random numbers itself ({node.target}), which no graph repeats"
            )
            raise InputError(message)


def write_onnx(program: ExportedProgram, file: BinaryIO, metadata: Mapping[str, str]) -> None:
    """Write a traced program as ONNX of opset 18, with :data:`INPUTS`.

    Raises:
        InputError: the program has an operator that ONNX lacks, which is named, or more weights
            than a file holds.
    """
    from google.protobuf.message import EncodeError  # type: ignore[import-untyped]

    num_inputs = len(program.graph_signature.user_inputs)
    settings: dict[str, Any] = {
        "input_names": INPUTS[:num_inputs],
        "output_names": list(program.call_spec.out_spec.context),
        "opset_version": OPSET,
        "verbose": False,
        "custom_translation_table": {torch.ops.aten.searchsorted.Tensor: _searchsorted},
    }
    with warnings.catch_warnings(), _silent_below_errors("onnx_ir"):
        warnings.simplefilter("ignore")
        try:
            made: Any = torch.onnx.export(program, dynamo=True, **settings)
        except torch.onnx.OnnxExporterError as error:
            message = f"the network cannot be written as ONNX: {_reason_of(error)}"
            raise InputError(message, hint="--to pt2") from error
    made.model.metadata_props.update(metadata)
    try:
        content = made.model_proto.SerializeToString()
    except EncodeError as error:
        raise InputError(
            "the network has more weights than one ONNX file holds, which is 2 GB", hint="--to pt2"
        ) from error
    file.write(content)


@contextmanager
def _silent_below_errors(logger_name: str) -> Iterator[None]:
    """Keep a library's logger from telling users of its own guesses."""
    logger = logging.getLogger(logger_name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _searchsorted(levels: Any, values: Any, **settings: Any) -> Any:
    """Return, in operators of ONNX, how many of the ascending levels lie below each value."""
    from onnxscript import opset18

    op: Any = opset18
    last_axis = op.Constant(value_ints=[-1])
    below = op.Less(levels, op.Unsqueeze(values, last_axis))
    return op.ReduceSum(op.Cast(below, to=_ONNX_INT64), [-1], keepdims=0)


def _reason_of(error: Exception) -> str:
    """Return why torch could not write ONNX: the first operator that ONNX lacks, else the error
    that all others come from."""
    cause: Any = error
    while True:
        missing = _MISSING.search(str(cause))
        if missing:
            return f"the operator {missing[1]}, which ONNX lacks"
        if cause.__cause__ is None:
            return one_line(cause)
        cause = cause.__cause__


def write_pt2(program: ExportedProgram, file: BinaryIO, metadata: Mapping[str, str]) -> None:
    """Write a traced program for ``torch.export.load``; the metadata are its extra files. It is
    made in memory, because torch ends the whole process where a disk is full."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # It warns of weights in channels-last order, which it writes whole.
        warnings.simplefilter("ignore")
        torch.export.save(program, buffer, extra_files=dict(metadata))
    file.write(buffer.getbuffer())


def read_onnx(path: Path) -> Any:
    """Return a written ONNX file as an ``onnx.ModelProto``."""
    import onnx

    with open_file(path) as file:
        return onnx.load(file)


def open_onnx(path: Path) -> Callable[..., Maps]:
    """Return what runs a written file on the CPU in ONNX Runtime, on as many threads as torch."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4  # what fails is raised, and not printed as well
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(*inputs: Tensor) -> Maps:
        arrays: Maps = {}
        for name, tensor in zip(INPUTS, inputs, strict=False):
            arrays[name] = tensor.numpy()
        return dict(zip(names, session.run(names, arrays), strict=True))

    return run


def open_openvino(path: Path) -> Callable[..., Maps]:
    """Return what runs a written ONNX file on the CPU in OpenVINO, in float32, on as many threads
    as torch.

    Raises:
        InputError: OpenVINO is not installed, or does not take the file.
    """
    require_openvino()
    import openvino

    settings = {
        # On processors with bfloat16 its default is not float32.
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
    }
    core = openvino.Core()
    try:
        compiled = core.compile_model(core.read_model(path), "CPU", settings)
    except RuntimeError as error:
        missing = _MISSING_IN_OPENVINO.search(str(error))
        reason = f"it lacks {missing[1]}" if missing else one_line(error)
        raise InputError(
            f"OpenVINO does not take the file: {reason}", hint="leave out --check-in openvino"
        ) from error

    def run(*inputs: Tensor) -> Maps:
        arrays: Maps = {}
        for name, tensor in zip(INPUTS, inputs, strict=False):
            arrays[name] = tensor.numpy()
        maps: Maps = {}
        for output, values in compiled(arrays).items():
            for name in output.names:  # its own name, and perhaps those of equal tensors inside
                maps[name] = np.array(values)
        return maps

    return run


def open_pt2(path: Path) -> Callable[..., Maps]:
    """Return what runs a written program in torch."""
    with open_file(path) as file:
        # Of a program for any size the guards say how the traced frame was padded; another one is
        # padded by the same operators.
        module = torch.export.load(file).module(check_guards=False)

    def run(*inputs: Tensor) -> Maps:
        with torch.no_grad():
            return {name: np.asarray(values) for name, values in module(*inputs).items()}

    return run


def triton_config(path: Path, batch: int = 1) -> str:
    """Return the ``config.pbtxt`` with which Triton Inference Server takes a written ONNX file. A
    server tells its parameters, of which one is the SHA-256 of the file.

    Args:
        path: the file.
        batch: number of frames in a call.
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    lines = [
        'platform: "onnxruntime_onnx"',
        f"max_batch_size: 0  # of the file: the first dimension is {batch}",
    ]
    lines += [_triton_line("input", value) for value in session.get_inputs()]
    lines += [_triton_line("output", value) for value in session.get_outputs()]
    _, digest = file_content(path)
    lines.append(f'parameters {{ key: "{TRITON_SHA256}" value {{ string_value: "{digest}" }} }}')
    return "\n".join(lines) + "\n"


def _triton_line(kind: str, value: Any) -> str:
    """Return the line of a ``config.pbtxt`` on an input or an output; -1 for an open side."""
    shape = ", ".join(str(side) if isinstance(side, int) else "-1" for side in value.shape)
    return f'{kind} {{ name: "{value.name}" data_type: {_TRITON[value.type]} dims: [{shape}] }}'
