"""The tail on CUDA: one Triton kernel that upsamples, takes the softmax and adds up all draws in
registers; the sums are read and written once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from segunc.core.device import to_device
from segunc.sampling.shortcuts import Upsampling

# Of a program: its threads lie along a row and hold all classes of their pixels, so that sums over
# classes stay in registers.
COLUMNS = 32


@triton.jit  # type: ignore[untyped-decorator]
def _half_logits(at, column0, column1, wx, held, shape: tl.constexpr, UPSAMPLED: tl.constexpr):  # type: ignore[no-untyped-def]  # of a row
    # Neither an interpolation nor a difference of two halves can leave float32.
    a = tl.reshape(tl.load(at + column0, held, 0.0), shape).to(tl.float32) * 0.5
    if UPSAMPLED:
        b = tl.reshape(tl.load(at + column1, held, 0.0), shape).to(tl.float32) * 0.5
        a = (1.0 - wx) * a + wx * b
    return a


# Of a width known as a multiple of 16 a thread would read four pixels of a plane at once, and their
# classes would lie in four threads.
# Triton reads no annotation of an argument other than constexpr.
@triton.jit(do_not_specialize=["width"])  # type: ignore[untyped-decorator]
def _add_draws(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0914  a kernel
    logits, probabilities, entropy, above, below, down, left, right, across,
    stride_draw, stride_row, stride_column, draws, height, width, factor,
    STRIDE_CLASS: tl.constexpr, CLASSES: tl.constexpr, PADDED: tl.constexpr,
    COLUMNS: tl.constexpr, UPSAMPLED: tl.constexpr,
):  # fmt: skip
    y = tl.program_id(1)
    x = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    c = tl.arange(0, PADDED)[:, None]
    inside = x < width
    there = c < CLASSES
    wx = tl.load(across + x, inside, 0.0)[None, :]
    y0 = tl.load(above + y)
    y1 = tl.load(below + y)
    wy = tl.load(down + y)
    column0 = (tl.load(left + x, inside, 0) * stride_column)[None, :] + c * STRIDE_CLASS
    column1 = (tl.load(right + x, inside, 0) * stride_column)[None, :] + c * STRIDE_CLASS
    pixel = y * width + x
    plane = c.to(tl.int64) * height * width + pixel[None, :]
    # Loaded as one row of pixels behind the other: what lies side by side in a matrix decides which
    # thread takes what, and where neighbouring threads take neighbouring classes, sums over these
    # go from thread to thread.
    shape: tl.constexpr = (PADDED, COLUMNS)
    row: tl.constexpr = (PADDED * COLUMNS,)
    column0 = tl.reshape(column0, row)
    column1 = tl.reshape(column1, row)
    plane = tl.reshape(plane, row)
    held = tl.reshape(there & inside[None, :], row)
    p_sum = tl.reshape(tl.load(probabilities + plane, held, 0.0), shape)
    h_sum = tl.load(entropy + pixel, inside, 0.0)
    for _ in range(draws):
        z = _half_logits(logits + y0 * stride_row, column0, column1, wx, held, shape, UPSAMPLED)
        if UPSAMPLED:
            below_z = _half_logits(
                logits + y1 * stride_row, column0, column1, wx, held, shape, UPSAMPLED
            )
            z = (1.0 - wy) * z + wy * below_z
        z = tl.where(there, z, float("-inf"))
        z = (z - tl.max(z, 0)[None, :]) * factor
        e = tl.exp(z)
        total = tl.sum(e, 0)
        # Absent classes are -inf here, and masked ones may be: they must not make 0 x inf.
        dot = tl.sum(tl.where(e > 0, e * z, 0.0), 0)
        p_sum += e * (1.0 / total)[None, :]
        h = tl.log(total) - dot / total
        h_sum += tl.where(h < 0, 0.0, h).to(tl.float64)  # NaN stays NaN
        logits += stride_draw
    tl.store(probabilities + plane, tl.reshape(p_sum, row), held)
    tl.store(entropy + pixel, h_sum, inside)


def add_draws_triton(
    logits: Tensor,
    upsampling: Upsampling,
    entropy: Tensor,
    probabilities: Tensor,
    temperature: float = 1.0,
) -> None:
    """Add draws ``[S, C, h, w]`` to sums of H(p) ``[H, W]`` float64 and of p ``[C, H, W]`` float32,
    both contiguous.
    """
    draws, classes = logits.shape[:2]
    height, width = upsampling.kept
    padded = triton.next_power_of_2(classes)
    lines = (*upsampling.taps(0), *upsampling.taps(1))
    taps = [to_device(line, logits.device) for line in lines]
    grid = (triton.cdiv(width, COLUMNS), height)
    stride_draw, stride_class, stride_row, stride_column = logits.stride()
    # Triton launches on the current device.
    with torch.cuda.device_of(logits):  # type: ignore[no-untyped-call]
        _add_draws[grid](
            logits,
            probabilities,
            entropy,
            *taps,
            stride_draw,
            stride_row,
            stride_column,
            draws,
            height,
            width,
            2.0 / temperature,
            STRIDE_CLASS=stride_class,
            CLASSES=classes,
            PADDED=padded,
            COLUMNS=COLUMNS,
            UPSAMPLED=upsampling.source != upsampling.full,
            num_warps=max(1, padded // 32),
        )
