"""The device that is computed on, and how precisely by default."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn

from segunc.core.bounds import Threads, check_device_name, check_value
from segunc.core.errors import InputError

Precision = Literal["float32", "bfloat16"]
"""Of a network that predicts."""


def resolve_device(text: str) -> torch.device:
    """The device of ``auto``, ``cpu`` or ``cuda[:N]``; InputError for another form, or a CUDA device that is not there."""
    check_device_name(text)
    if text == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, index = text.partition(":")
    if kind == "cuda" and int(index or 0) >= (count := torch.cuda.device_count()):
        raise InputError(f"--device {text}", f"one of the {count} CUDA devices here", "use --device cpu")
    return torch.device(text)


DEPTHWISE = 0.02
"""Share of depthwise multiply-adds above which bfloat16 is slow on a CPU. Float32 seconds over bfloat16's, one thread of a Xeon
(tools/compare_precision.py of a2e48dd): with AMX a pass of DeepLabV3+ with ResNet-18 (share .003) has 3.1 and with EfficientNet-Lite0 (.057) 1.7,
a training step 2.3 and 0.8, one of the affine parameters 2.1 and 1.1; without AMX Lite0 has 0.9, 0.6 and 0.8 to 1. Steps of others
with AMX: 1.4 to 1.6 for .011, .012 and .017 (SegFormer, Xception, ConvNeXt), 0.8 to 1 for .018 (Lite0's FPN), .036 and .047."""


def choose_precision(
    text: str, device: torch.device, network: nn.Module, *, training: bool = False
) -> tuple[Precision, str]:
    """The precision asked for, or for ``auto`` bfloat16 where the hardware multiplies it, but on a CPU not for a network of
    depthwise convolutions if their weights are in training or AMX lacks. And why, where the network made it float32; else nothing."""
    if text != "auto":
        return ("float32" if text == "float32" else "bfloat16"), ""
    if device.type != "cpu":
        return ("bfloat16" if torch.cuda.is_bf16_supported() else "float32"), ""
    amx = torch.cpu._is_amx_tile_supported()
    if not (amx or torch.cpu._is_avx512_bf16_supported()):
        return "float32", ""
    if (amx and not training) or (share := depthwise_share(network)) <= DEPTHWISE:
        return "bfloat16", ""
    where = "in training on a CPU" if amx else "on a CPU without AMX"
    return "float32", f"float32: {share:.1%} of the multiply-adds are depthwise, which bfloat16 slows down {where}"


@torch.no_grad()
def depthwise_share(network: nn.Module) -> float:
    """Share of depthwise convolutions in the multiply-adds of all convolutions and linear layers on a small image, 0..1."""

    def depthwise(layer: nn.Module) -> bool:
        return isinstance(layer, nn.Conv2d) and layer.groups == layer.in_channels > 1

    def count(layer: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        work[depthwise(layer)] += output.numel() * layer.weight[0].numel()

    work, twin = [0, 0], copy.deepcopy(network).eval()  # modes and statistics of the network stay
    layers = [module for module in twin.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    if any(map(depthwise, layers)):
        for layer in layers:
            layer.register_forward_hook(count)
        twin(torch.zeros(1, 3, 128, 128))
    return work[1] / max(sum(work), 1)


def describe_device(device: torch.device) -> str:
    """The device in words."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)} ({device})"
    return f"cpu, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}"


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device. To a GPU the copy is queued, from pinned memory: from any other the host waits for all that is queued
    before it. A copy from a GPU is waited for, so that it can be read."""
    to_gpu = device.type == "cuda"
    return (tensor.pin_memory() if to_gpu and not tensor.is_cuda else tensor).to(device, non_blocking=to_gpu)


@contextlib.contextmanager
def full_float32() -> Iterator[None]:
    """Let a GPU convolve float32 numbers as such meanwhile; on a CPU nothing changes. PyTorch's default for convolutions, unlike that
    for products of matrices, is TF32, which keeps 10 of their 23 bits: relative errors of 5e-4, many steps of a stored score. The cost,
    from data sheets and not measured: the peak rate is an eighth (A100: 19.5 instead of 156 TFLOPS); who wants speed has bfloat16."""
    cudnn: Any = torch.backends.cudnn
    newer = (cudnn.conv, cudnn.rnn) if hasattr(cudnn, "conv") else ()  # since PyTorch 2.9, and stronger
    before = [(each, "fp32_precision", each.fp32_precision) for each in newer]
    with contextlib.suppress(RuntimeError):  # the older cannot be read where a user chose by the newer alone
        before.insert(0, (cudnn, "allow_tf32", cudnn.allow_tf32))
    for owner, name, _ in before:
        setattr(owner, name, "ieee" if name == "fp32_precision" else False)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


@contextlib.contextmanager
def flushed_denormals() -> Iterator[None]:
    """Let the CPU take denormal numbers for 0 while open: dead channels make them, and CPUs multiply them very slowly.
    The state before comes back, also where it was this one. It is that of the calling thread and of threads started
    meanwhile."""
    # There is no getter: the product is a denormal, which a CPU that flushes gives as 0.
    flushed = float(torch.tensor([1e-30]) * torch.tensor([1e-10])) == 0.0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(flushed)


@contextlib.contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Compute on so many CPU threads meanwhile; None changes nothing, a number that is none of threads is an InputError."""
    if count is not None:
        check_value("--threads", count, Threads, "leave it out for all cores")
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
