"""The device that is computed on, and how precisely by default."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Literal

import torch

from segunc.core.errors import InputError

Precision = Literal["float32", "bfloat16"]
"""Of a network that predicts."""


def resolve_device(text: str) -> torch.device:
    """The device of ``auto``, ``cpu`` or ``cuda[:N]``; InputError for another form, or a CUDA device that is not there."""
    if text == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, colon, index = text.partition(":")
    if kind not in ("cpu", "cuda") or (colon and not index.isdigit()) or (kind == "cpu" and colon):
        raise InputError(f"--device {text}", "auto, cpu, cuda or cuda:N", "check the spelling")
    if kind == "cuda" and int(index or 0) >= (count := torch.cuda.device_count()):
        raise InputError(f"--device {text}", f"one of the {count} CUDA devices here", "use --device cpu")
    return torch.device(text)


def default_precision(device: str = "auto") -> str:
    """``bf16-mixed`` where the hardware multiplies bfloat16, else ``32-true``."""
    if device != "cpu" and torch.cuda.is_available():
        return "bf16-mixed" if torch.cuda.is_bf16_supported() else "32-true"
    capable = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return "bf16-mixed" if capable else "32-true"


def resolve_precision(text: str, device: torch.device) -> Precision:
    """``auto`` is bfloat16 where the hardware multiplies it, else float32."""
    wide = default_precision(device.type) == "32-true" if text == "auto" else text == "float32"
    return "float32" if wide else "bfloat16"


def describe_device(device: torch.device) -> str:
    """The device in words."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)} ({device})"
    return f"cpu, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}"


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
    """Compute on so many CPU threads meanwhile; None changes nothing, fewer than one is an InputError."""
    if count is not None and count < 1:
        raise InputError(f"--threads {count}", "at least 1", "leave it out for all cores")
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
