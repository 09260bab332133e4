"""``segunc export --precision``: a model file of a lower precision, and what it costs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from segunc.core.errors import InputError
from segunc.core.files import read_bytes
from segunc.core.progress import ConsoleProgress, say_step
from segunc.core.terminal import counted
from segunc.exporting.calibration import (
    FrameSet,
    InputForm,
    check_apart,
    check_enough,
    read_frames,
    split_in_two,
)
from segunc.exporting.lower_precision import (
    FLOAT16_MAX,
    ONNX,
    XML,
    LowerFile,
    Precision,
    Runtime,
    largest_value,
    lower_onnx,
    lower_openvino,
    open_onnx,
    open_openvino,
    require_tools,
)
from segunc.exporting.price import Price, Run, measure_price
from segunc.options import ExportOptions

MAX_CHANGED = 0.05
"""Share of the pixels whose predicted class may change, unless the user says another one. Another
seed of four draws alone changes 2.3 to 4.7 % in the table of docs/guides/exporting.md. A file that
changes more than this is no copy of the model any more.
"""
CALIBRATION_FRAMES = 32
"""Frames for the ranges of INT8, and as many for the price, unless the user says another number."""
OF_LOWER = ("calibration", "calibration_frames", "check_frames", "max_changed")
_FORMATS = ("onnx", "triton", "openvino")
_MEASURED: dict[tuple[Runtime, Precision], str] = {
    ("onnxruntime", "float16"): (
        "the price is that of ONNX Runtime on this CPU, where it computes float16 in float32; a "
        "device that computes in float16 has another price"
    ),
    ("onnxruntime", "int8"): (
        "the price is that of ONNX Runtime on this CPU; x86 processors without VNNI add INT8 "
        "products in 16 bits, and may have a higher price"
    ),
    ("openvino", "float16"): (
        "the price is that of OpenVINO with INFERENCE_PRECISION_HINT f32; its default on "
        "processors with bfloat16 and on GPUs computes in fewer bits, and has another price"
    ),
    ("openvino", "int8"): (
        "the price is that of OpenVINO with INFERENCE_PRECISION_HINT f32; its default on "
        "processors with bfloat16 and on GPUs computes what is not INT8 in fewer bits, and has "
        "another price"
    ),
}
"""By runtime and precision, on what the price was measured and where it does not hold."""


@dataclass(frozen=True)
class LowerPlan:
    """How a float32 file becomes one of a lower precision.

    Attributes:
        precision: of the new file.
        runtime: that runs it.
        calibration: frames on which the ranges of INT8 are measured; None for float16.
        held_out: frames on which the price is measured.
        max_changed: share of the pixels whose predicted class may change, at most.
    """

    precision: Precision
    runtime: Runtime
    calibration: FrameSet | None
    held_out: FrameSet
    max_changed: float


@dataclass(frozen=True)
class LowerExport:
    """A file of a lower precision that was measured.

    Attributes:
        model: bytes of the model file.
        beside: bytes of the files beside it, by name.
        record: what ``model.json`` says of it.
        price: what it costs.
    """

    model: bytes
    beside: Mapping[str, bytes]
    record: Mapping[str, Any]
    price: Price

    @property
    def line(self) -> str:
        """Say what the file costs, in one line."""
        return self.price.sentence(self.record["precision"])

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know of the price: that of each score, where it was measured, and what
        it does not show.
        """
        about = self.record["lower_precision"]
        notes = [*self.price.lines(), about["measured"]]
        largest = about.get("largest_value", 0.0)
        if not largest <= FLOAT16_MAX:
            notes.append(
                f"the network reaches {largest:.3g} on these frames, and float16 holds at most "
                f"{FLOAT16_MAX:,.0f}: on a device that computes in float16 its maps may be NaN"
            )
        return tuple(notes)


def check_lower_options(options: ExportOptions) -> None:
    """Check the options of a lower precision, before a model is loaded.

    Raises:
        InputError: options do not go together, or a package is missing.
    """
    if options.precision == "float32":
        for name in OF_LOWER:
            if getattr(options, name) is not None:
                flag = "--" + name.replace("_", "-")
                message = f"{flag} is of a lower precision, and the file is float32"
                raise InputError(message, hint="--precision int8")
        if options.to == "openvino":
            message = (
                "--to openvino writes float16 or int8; in float32 OpenVINO reads the ONNX file"
            )
            raise InputError(message, hint="--to onnx --check-in openvino, or --precision int8")
        return
    if options.to not in _FORMATS:
        message = f"--precision {options.precision} is of ONNX and OpenVINO files"
        raise InputError(message, hint="--to onnx or --to openvino")
    _check_float32_options(options)
    if options.precision == "int8" and options.calibration is None:
        message = "INT8 needs frames on which the range of each layer is measured"
        raise InputError(message, hint="--calibration FRAMES, frames as the camera sees them")
    if options.precision == "float16":
        if options.check_frames is None:
            message = "float16 needs frames on which its price is measured"
            raise InputError(message, hint="--check-frames FRAMES, frames as the camera sees them")
        if options.calibration is not None:
            message = "float16 has no ranges, so it takes no --calibration"
            raise InputError(message, hint="--check-frames FRAMES alone")
    require_tools(_runtime_of(options), options.precision)


def _check_float32_options(options: ExportOptions) -> None:
    """Raise InputError for an option that only a float32 file takes."""
    if options.threshold is not None:
        message = (
            f"{options.threshold} was calibrated on maps of float32, and its promise does not hold "
            f"for maps of a file of {options.precision}"
        )
        hint = "leave out --threshold, and calibrate one on maps that the new file gave"
        raise InputError(message, hint=hint)
    if options.check_in is not None:
        message = (
            f"--check-in {options.check_in} compares a float32 file with the sampler, and the file "
            f"is {options.precision}"
        )
        hint = "leave it out; --to openvino makes a file that is measured in OpenVINO"
        raise InputError(message, hint=hint)
    if options.draws_as_input:
        message = "the ranges of a lower precision are those of the draws of the file"
        raise InputError(message, hint="leave out --draws-as-input")


def _runtime_of(options: ExportOptions) -> Runtime:
    """Return the runtime for which a file is made."""
    return "openvino" if options.to == "openvino" else "onnxruntime"


def plan_lower(options: ExportOptions, form: InputForm) -> LowerPlan | None:
    """Return how the float32 file of an export becomes one of a lower precision; None where it does
    not.

    Raises:
        InputError: frames are too few, cannot be read, or are in both sets.
    """
    if options.precision == "float32":
        return None
    count = options.calibration_frames or CALIBRATION_FRAMES
    calibration: FrameSet | None = None
    if options.check_frames is not None:
        held_out = read_frames(options.check_frames, count, form, "--check-frames")
        if options.calibration is not None:
            calibration = read_frames(options.calibration, count, form, "--calibration")
            check_apart(calibration, held_out)
    else:
        assert options.calibration is not None
        frames = read_frames(options.calibration, 2 * count, form, "--calibration", halves=2)
        calibration, held_out = split_in_two(frames)
        check_apart(calibration, held_out, are_halves=True)
    return LowerPlan(
        precision=options.precision,
        runtime=_runtime_of(options),
        calibration=None if calibration is None else _used(calibration, "the ranges"),
        held_out=_used(held_out, "the price"),
        max_changed=MAX_CHANGED if options.max_changed is None else options.max_changed,
    )


def _used(frames: FrameSet, purpose: str) -> FrameSet:
    """Return the frames that fill whole batches; InputError where these are too few."""
    used = frames.whole_batches()
    check_enough(used, len(frames.pixels), purpose)
    return used


def _followed(frames: FrameSet) -> Iterator[Tensor]:
    """Yield the inputs of a file, and show on the terminal how far they are."""
    with ConsoleProgress() as progress:
        for done, batch in enumerate(frames, 1):
            yield batch
            progress.count(done * frames.batch, len(frames))


def lower(plan: LowerPlan, source: Path, metadata: Mapping[str, str]) -> LowerExport:
    """Return a float32 ONNX file in a lower precision, with its price.

    Args:
        plan: how.
        source: the float32 file.
        metadata: of the new file.

    Raises:
        InputError: the tool does not take the file, the file does not run, or it changes the
            prediction at more pixels than the plan allows.
    """
    metadata = {**metadata, "precision": plan.precision}
    calibration = plan.calibration or ()
    ranges = f", with ranges from {counted(len(calibration), 'frame')}" if calibration else ""
    say_step(f"making the file of {plan.precision}{ranges}")
    made: LowerFile
    run: Run
    if plan.runtime == "openvino":
        made = lower_openvino(source, plan.precision, calibration, metadata)
        run = open_openvino(made.contents)
    else:
        made = lower_onnx(source, plan.precision, calibration, metadata)
        run = open_onnx(made.contents[ONNX])
    held_out = plan.held_out
    say_step(f"measuring what it costs on {counted(len(held_out), 'frame')}")
    parent = open_onnx(read_bytes(source))
    price = measure_price(run, parent, _followed(held_out), len(held_out))
    if price.changed > plan.max_changed:
        message = (
            f"{price.sentence(plan.precision)}, and --max-changed allows "
            f"{100 * plan.max_changed:.2g} %"
        )
        hint = "a larger --max-changed, or --precision float32"
        if plan.precision == "int8":
            hint = "--precision float16, other --calibration frames, or a larger --max-changed"
        raise InputError(message, hint=hint)
    about = dict(made.about)
    if plan.precision == "float16" and plan.runtime == "onnxruntime":
        about["largest_value"] = largest_value(source, held_out)
    beside = dict(made.contents)
    model = beside.pop(XML if plan.runtime == "openvino" else ONNX)
    record = {
        "precision": plan.precision,
        "lower_precision": {
            "runtime": plan.runtime,
            **about,
            "calibration_frames": {} if plan.calibration is None else plan.calibration.hashes,
            "check_frames": held_out.hashes,
            "max_changed": plan.max_changed,
            "measured": _MEASURED[plan.runtime, plan.precision],
            "price": price.record(),
        },
    }
    return LowerExport(model, beside, json.loads(json.dumps(record)), price)
