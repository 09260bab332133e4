"""The device that is computed on, and how precisely by default."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from segunc.core.bounds import Threads, check_device, check_value
from segunc.core.errors import InputError
from segunc.core.modes import eval_mode
from segunc.core.terminal import counted

Precision = Literal["float32", "bfloat16"]
"""Of a network that predicts."""


def resolve_device(text: str) -> torch.device:
    """Return the device of ``auto``, ``cpu`` or ``cuda[:N]``.

    Raises:
        InputError: the text has another form, or the CUDA device does not exist.
    """
    check_device(text)
    if text == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, index = text.partition(":")
    if kind == "cuda":
        count = torch.cuda.device_count()
        if int(index or 0) >= count:
            raise InputError(
                f"--device {text} is not one of the {count} CUDA devices of this machine",
                hint="use --device cpu",
            )
    return torch.device(text)


MAX_DEPTHWISE_SHARE = 0.02
"""Share of depthwise multiply-adds above which a CPU computes in float32.

Such light networks lose most by the rounding of bfloat16. Float32's seconds over bfloat16's are 1.7
for a pass of EfficientNet-Lite0 (share .057) with AMX, 3.1 of ResNet-18 (.003).
"""


def choose_precision(
    text: str, device: torch.device, network: nn.Module, channels: int = 3
) -> Precision:
    """Return the precision that was asked for.

    ``auto`` is bfloat16 on a GPU that multiplies it, and on a CPU that is faster with it. A CPU
    computes in float32 above :data:`MAX_DEPTHWISE_SHARE`. The network takes images of so many
    ``channels``.
    """
    if text != "auto":
        return "float32" if text == "float32" else "bfloat16"
    if device.type != "cpu":
        return "bfloat16" if torch.cuda.is_bf16_supported() else "float32"
    if is_faster_in_bfloat16() and depthwise_share(network, channels) <= MAX_DEPTHWISE_SHARE:
        return "bfloat16"
    return "float32"


def is_faster_in_bfloat16() -> bool:
    """Return whether this CPU computes most networks faster in bfloat16 than in float32.

    It does with AMX, and with the instructions of AVX-512 on processors of AMD. On Intel's these
    instructions alone are slower than float32, and many virtual machines hide AMX.
    """
    # oneDNN that is told to use less of the processor emulates bfloat16, thirty times slower than
    # float32.
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "DEFAULT").upper()
    uses_all = limit in ("DEFAULT", "ALL")
    if torch.cpu._is_amx_tile_supported() and (uses_all or "AMX" in limit):
        return True
    uses_avx512 = uses_all or any(word in limit for word in ("BF16", "FP16", "AMX", "AVX10"))
    if not uses_avx512 or not torch.cpu._is_avx512_bf16_supported():
        return False
    return any("AuthenticAMD" in line for line in processor_lines())


def processor_lines() -> list[str]:
    """Return what Linux says of the processors, as ``key : value``; elsewhere one line, the name.

    On Windows, the name ends with the vendor.
    """
    try:
        return Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return [f"model name : {platform.machine()} {platform.processor()}"]


@torch.no_grad()
def depthwise_share(network: nn.Module, channels: int = 3) -> float:
    """Return the share of depthwise convolutions in all multiply-adds, 0..1.

    The multiply-adds are those of convolutions and linear layers on a small image of so many
    ``channels``.
    """

    def is_depthwise(layer: nn.Module) -> bool:
        return isinstance(layer, nn.Conv2d) and layer.groups == layer.in_channels > 1

    multiply_adds = {"depthwise": 0, "other": 0}

    def count(layer: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        kind = "depthwise" if is_depthwise(layer) else "other"
        multiply_adds[kind] += output.numel() * layer.weight[0].numel()

    layers = [module for module in network.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    if not any(is_depthwise(layer) for layer in layers):
        return 0.0
    hooks = [layer.register_forward_hook(count) for layer in layers]
    try:
        with eval_mode([network]):
            network(torch.zeros(1, channels, 128, 128))
    finally:
        for hook in hooks:
            hook.remove()
    return multiply_adds["depthwise"] / max(sum(multiply_adds.values()), 1)


def describe_device(device: torch.device) -> str:
    """Return the device in words."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)} ({device})"
    threads = counted(torch.get_num_threads(), "thread")
    return f"cpu, {threads}, {torch.backends.cpu.get_cpu_capability()}"


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return the tensor on a device.

    A copy to a GPU is queued, from pinned memory: from other memory the host would wait for all
    that is queued before it. A copy from a GPU is waited for, so that it can be read.
    """
    to_gpu = device.type == "cuda"
    if to_gpu and not tensor.is_cuda:
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=to_gpu)


@contextlib.contextmanager
def full_float32() -> Iterator[None]:
    """Let a GPU convolve float32 numbers as such while open.

    PyTorch's default for convolutions is TF32, which keeps 10 of their 23 bits: relative errors of
    5e-4, many steps of a stored score. Who wants speed has bfloat16.
    """
    cudnn: Any = torch.backends.cudnn
    before: list[tuple[Any, str, Any]] = []
    # The older setting cannot be read if a user chose by the newer ones alone.
    with contextlib.suppress(RuntimeError):
        before.append((cudnn, "allow_tf32", cudnn.allow_tf32))
    # Since PyTorch 2.9, and stronger.
    if hasattr(cudnn, "conv"):
        before.append((cudnn.conv, "fp32_precision", cudnn.conv.fp32_precision))
        before.append((cudnn.rnn, "fp32_precision", cudnn.rnn.fp32_precision))
    for owner, name, _ in before:
        setattr(owner, name, "ieee" if name == "fp32_precision" else False)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


@contextlib.contextmanager
def flushed_denormals() -> Iterator[None]:
    """Let the CPU take denormal numbers for 0 while open.

    Dead channels make denormal numbers, and CPUs multiply them very slowly. This holds for the
    calling thread and for threads that it starts.
    """
    # There is no getter: the product is a denormal, which a CPU that flushes gives as 0.
    flushed = float(torch.tensor([1e-30]) * torch.tensor([1e-10])) == 0.0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(flushed)


@contextlib.contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Compute on so many CPU threads while open; None changes nothing.

    Raises:
        InputError: the number is out of bounds.
    """
    before = torch.get_num_threads()
    if count is not None:
        check_value("--threads", count, Threads, "leave it out for all cores")
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
