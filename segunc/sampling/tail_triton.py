"""The tail on CUDA: one Triton kernel that upsamples, takes the softmax and adds up all draws in registers.

Logits are read at low resolution (the four taps of neighbouring pixels lie in the cache), the sums are read and written
once for all draws of a call. It was checked in Triton's interpreter; nothing was measured on a GPU. It needs Triton.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from segunc.sampling.ending import Upsampling

TILE = 4096
"""Classes times columns that one program holds; probabilities and logits of a tile fill about its registers."""


@triton.jit  # type: ignore[untyped-decorator]
def _add_draws(
    logits: Any, probabilities: Any, entropy: Any, above: Any, below: Any, down: Any, left: Any, right: Any, across: Any,
    stride_draw: Any, stride_class: Any, stride_row: Any, stride_column: Any, draws: Any, classes: Any, height: Any,
    width: Any, factor: Any, CLASSES: tl.constexpr, COLUMNS: tl.constexpr,
) -> None:  # fmt: skip
    y = tl.program_id(1)
    x = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    c = tl.arange(0, CLASSES)
    inside = x < width
    held = (c < classes)[:, None] & inside[None, :]
    x0, x1 = tl.load(left + x, inside, 0), tl.load(right + x, inside, 0)
    wx = tl.load(across + x, inside, 0.0)[None, :]
    y0, y1, wy = tl.load(above + y), tl.load(below + y), tl.load(down + y)
    column0, column1 = (x0 * stride_column)[None, :], (x1 * stride_column)[None, :]
    at = (c * stride_class)[:, None]
    plane = c.to(tl.int64)[:, None] * height * width + (y * width + x)[None, :]
    p_sum = tl.load(probabilities + plane, held, 0.0)
    h_sum = tl.load(entropy + y * width + x, inside, 0.0)
    for _ in range(draws):
        upper = logits + y0 * stride_row + at
        lower = logits + y1 * stride_row + at
        a = tl.load(upper + column0, held, 0.0).to(tl.float32) * factor
        b = tl.load(upper + column1, held, 0.0).to(tl.float32) * factor
        first = a + wx * (b - a)
        a = tl.load(lower + column0, held, 0.0).to(tl.float32) * factor
        b = tl.load(lower + column1, held, 0.0).to(tl.float32) * factor
        second = a + wx * (b - a)
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
    tl.store(entropy + y * width + x, h_sum, inside)


def add_draws_triton(
    logits: Tensor, upsampling: Upsampling, probabilities: Tensor, entropy: Tensor, temperature: float = 1.0
) -> None:
    """Add draws ``[S, C, h, w]`` to the contiguous sums of p ``[C, H, W]`` float32 and of H(p) ``[H, W]`` float64."""
    draws, classes = logits.shape[:2]
    height, width = upsampling.kept
    padded = triton.next_power_of_2(classes)
    columns = max(16, min(128, TILE // padded))
    taps = [t.to(logits.device) for axis in (0, 1) for t in upsampling.taps(axis)]
    with torch.device(logits.device):
        numbers = (*logits.stride(), draws, classes, height, width, 1.0 / temperature)
        grid = (triton.cdiv(width, columns), height)
        _add_draws[grid](logits, probabilities, entropy, *taps, *numbers, CLASSES=padded, COLUMNS=columns)
