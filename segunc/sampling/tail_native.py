"""The compiled tail on a CPU (:mod:`segunc.sampling.native`)."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from segunc.sampling.native import PIECES, Library, compiled
from segunc.sampling.shortcuts import Upsampling
from segunc.uncertainty import per_ln

SOURCE = Path(__file__).with_name("tail_native.cpp")


class NativeTail(Library):
    """The compiled functions."""

    def add_draws(
        self,
        logits: Tensor,
        upsampling: Upsampling,
        entropy: Tensor,
        probabilities: Tensor | None = None,
        planes: Sequence[Tensor | None] = (),
        temperature: float = 1.0,
        earlier: int = 0,
    ) -> None:
        """Add draws to sums, in their order. All sums are contiguous.

        Args:
            logits: ``[S, C, h, w]`` of any floating type and strides.
            upsampling: of the logits to the frame.
            entropy: H(p) in nats, ``[H, W]`` float64.
            probabilities: p, ``[C, H, W]`` float32; None leaves them out.
            planes: of :class:`segunc.sampling.tail.LogitSums`; empty leaves them out.
            temperature: T, by which logits are divided before the softmax.
            earlier: how many draws the sums hold already.
        """
        if logits.dtype not in (torch.float32, torch.bfloat16):
            logits = logits.float()
        draws, classes = logits.shape[:2]
        height, width = upsampling.kept
        strides = (ctypes.c_int64 * 4)(*logits.stride())
        source = (logits.data_ptr(), logits.dtype == torch.bfloat16, strides)
        taps = (*upsampling.taps(0), *upsampling.taps(1))  # held while their memory is read
        lines = [line.data_ptr() for line in taps]
        sums = (probabilities, entropy, *(planes or [None] * 4))
        targets = [None if values is None else values.data_ptr() for values in sums]
        arguments = (
            *source,
            draws,
            classes,
            2.0 / temperature,
            *lines,
            height,
            width,
            earlier,
            *targets,
        )
        self.call("segunc_add_draws", arguments, height)

    def finish(
        self, probabilities: Tensor, entropy: Tensor, draws: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return prediction (uint8), total and expected entropy (float64, shares of ln C), each
        ``[H, W]``, from the sums.
        """
        classes, height, width = probabilities.shape
        prediction = torch.empty(height, width, dtype=torch.uint8)
        total = torch.empty_like(entropy)
        expected = torch.empty_like(entropy)
        targets = [tensor.data_ptr() for tensor in (prediction, total, expected)]
        sums = (probabilities.data_ptr(), entropy.data_ptr())
        sizes = (classes, height * width, draws, per_ln(classes))
        self.call("segunc_finish", (*sums, *sizes, *targets), height * width)
        return prediction, total, expected


@functools.cache
def native_tail() -> NativeTail:
    """Return the compiled tail of this machine."""
    library = compiled(SOURCE)
    if library.functions is not None:
        _declare(library.functions)
    return NativeTail(library.functions, library.reason)


def _declare(functions: ctypes.CDLL) -> None:
    """Say which arguments the functions take, before the last four (:meth:`Library.call`)."""
    pointer = ctypes.c_void_p
    number = ctypes.c_int64
    functions.segunc_add_draws.argtypes = [
        pointer,  # logits, whether they are bfloat16, and their strides
        ctypes.c_int32,
        pointer,
        number,  # draws and classes
        number,
        ctypes.c_float,  # factor of the half logits
        *[pointer] * 6,  # lines
        *[number] * 3,  # height, width, earlier draws
        *[pointer] * 6,  # sums
        *PIECES,
    ]
    functions.segunc_finish.argtypes = [
        pointer,  # sums
        pointer,
        number,  # classes, pixels and draws
        number,
        number,
        ctypes.c_double,  # 1 / ln C
        pointer,  # prediction, total and expected entropy
        pointer,
        pointer,
        *PIECES,
    ]
