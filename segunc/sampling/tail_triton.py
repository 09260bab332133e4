"""The tail on CUDA: one Triton kernel that upsamples, takes the softmax and adds up all draws in registers; the sums are read and written
once. It was checked in Triton's interpreter and compiled; nothing ran on a GPU."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from segunc.core.device import to_device
from segunc.sampling.shortcuts import Upsampling

TILE = 4096  # classes times columns that one program holds; probabilities and logits of a tile fill about its registers


@triton.jit
def _lerp(row, column0, column1, wx, held, factor):  # type: ignore[no-untyped-def]  # logits between two columns of a row
    a = tl.load(row + column0, held, 0.0).to(tl.float32) * factor
    b = tl.load(row + column1, held, 0.0).to(tl.float32) * factor
    return a + wx * (b - a)


@triton.jit  # type: ignore[untyped-decorator]
def _add_draws(  # type: ignore[no-untyped-def]  # Triton cannot read annotations of its arguments but constexpr
    logits, probabilities, entropy, above, below, down, left, right, across,
    stride_draw, stride_class, stride_row, stride_column, draws, classes, height, width, factor,
    CLASSES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    y = tl.program_id(1)
    x = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    c = tl.arange(0, CLASSES)
    inside = x < width
    held = (c < classes)[:, None] & inside[None, :]
    wx = tl.load(across + x, inside, 0.0)[None, :]
    y0, y1, wy = tl.load(above + y), tl.load(below + y), tl.load(down + y)
    column0 = (tl.load(left + x, inside, 0) * stride_column)[None, :]
    column1 = (tl.load(right + x, inside, 0) * stride_column)[None, :]
    at = (c * stride_class)[:, None]
    pixel = y * width + x
    plane = c.to(tl.int64)[:, None] * height * width + pixel[None, :]
    p_sum = tl.load(probabilities + plane, held, 0.0)
    h_sum = tl.load(entropy + pixel, inside, 0.0)
    for _ in range(draws):
        first = _lerp(logits + y0 * stride_row + at, column0, column1, wx, held, factor)
        second = _lerp(logits + y1 * stride_row + at, column0, column1, wx, held, factor)
        z = tl.where((c < classes)[:, None], first + wy * (second - first), float("-inf"))
        z = z - tl.max(z, 0)[None, :]
        e = tl.exp(z)
        total = tl.sum(e, 0)
        # Absent classes are -inf here and must not make 0 x inf.
        dot = tl.sum(tl.where(e > 0, e * z, 0.0), 0)
        p_sum += e / total[None, :]
        h = tl.log(total) - dot / total
        h_sum += tl.where(h > 0, h, 0.0).to(tl.float64)
        logits += stride_draw
    tl.store(probabilities + plane, p_sum, held)
    tl.store(entropy + pixel, h_sum, inside)


def add_draws_triton(logits: Tensor, upsampling: Upsampling, entropy: Tensor, probabilities: Tensor, temperature: float = 1.0) -> None:
    """Add draws ``[S, C, h, w]`` to sums of H(p) ``[H, W]`` float64 and of p ``[C, H, W]`` float32, both contiguous."""
    draws, classes = logits.shape[:2]
    height, width = upsampling.kept
    padded = triton.next_power_of_2(classes)
    columns = max(16, min(128, TILE // padded))
    taps = [to_device(t, logits.device) for axis in (0, 1) for t in upsampling.taps(axis)]
    with torch.cuda.device_of(logits):  # type: ignore[no-untyped-call]  # Triton launches on the current device
        numbers = (*logits.stride(), draws, classes, height, width, 1.0 / temperature)
        grid = (triton.cdiv(width, columns), height)
        _add_draws[grid](logits, probabilities, entropy, *taps, *numbers, CLASSES=padded, COLUMNS=columns)
