"""The tail on CUDA: one Triton kernel that upsamples, takes the softmax and adds up all draws in registers.

Logits are read at low resolution (the four taps of neighbouring pixels lie in the cache), the sums are read and written
once for all draws of a call. It was checked in Triton's interpreter and compiled; nothing ran on a GPU. It needs Triton.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from segunc.core.device import to_device
from segunc.sampling.ending import Upsampling
from segunc.sampling.logit_sums import LogitSums

TILE = 4096
"""Classes times columns that one program holds; probabilities and logits of a tile fill about its registers."""


@triton.jit  # type: ignore[untyped-decorator]
def _add_draws(  # type: ignore[no-untyped-def]  # Triton cannot read annotations of its arguments but constexpr
    logits, probabilities, entropy, above, below, down, left, right, across,
    maxima, normalisers, squares, means, deviations, stride_draw, stride_class,
    stride_row, stride_column, draws, earlier, classes, height, width, factor,
    ENERGY: tl.constexpr, SPREAD: tl.constexpr, VARIANCE: tl.constexpr, CLASSES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
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
    pixel = y * width + x
    h_sum = tl.load(entropy + pixel, inside, 0.0)
    # Sums that nobody asked for are compiled away, with their pointers.
    if ENERGY:
        largest_sum = tl.load(maxima + pixel, inside, 0.0)
        normaliser_sum = tl.load(normalisers + pixel, inside, 0.0)
    if SPREAD:
        squares_sum = tl.load(squares + pixel, inside, 0.0)
    if VARIANCE:
        mean = tl.load(means + plane, held, 0.0)
        deviations_sum = tl.load(deviations + pixel, inside, 0.0)
    for n in range(earlier, earlier + draws):
        upper = logits + y0 * stride_row + at
        lower = logits + y1 * stride_row + at
        a = tl.load(upper + column0, held, 0.0).to(tl.float32) * factor
        b = tl.load(upper + column1, held, 0.0).to(tl.float32) * factor
        first = a + wx * (b - a)
        a = tl.load(lower + column0, held, 0.0).to(tl.float32) * factor
        b = tl.load(lower + column1, held, 0.0).to(tl.float32) * factor
        second = a + wx * (b - a)
        z = tl.where((c < classes)[:, None], first + wy * (second - first), float("-inf"))
        if VARIANCE:
            deviation = tl.where((c < classes)[:, None], z - mean, 0.0)
            mean += deviation / (n + 1.0)
            deviations_sum += (tl.sum(deviation * deviation, 0) * (n / (n + 1.0))).to(tl.float64)
        largest = tl.max(z, 0)
        z = z - largest[None, :]
        e = tl.exp(z)
        total = tl.sum(e, 0)
        # Absent classes are -inf here and must not make 0 x inf.
        dot = tl.sum(tl.where(e > 0, e * z, 0.0), 0)
        p_sum += e / total[None, :]
        h = tl.log(total) - dot / total
        h_sum += tl.where(h > 0, h, 0.0).to(tl.float64)
        if ENERGY:
            wide, normaliser = largest.to(tl.float64), tl.log(total.to(tl.float64))
            if SPREAD:
                apart = wide + normaliser - (largest_sum + normaliser_sum) / tl.maximum(n, 1)
                squares_sum += apart * apart * (n / (n + 1.0))
            largest_sum += wide
            normaliser_sum += normaliser
        logits += stride_draw
    tl.store(probabilities + plane, p_sum, held)
    tl.store(entropy + pixel, h_sum, inside)
    if ENERGY:
        tl.store(maxima + pixel, largest_sum, inside)
        tl.store(normalisers + pixel, normaliser_sum, inside)
    if SPREAD:
        tl.store(squares + pixel, squares_sum, inside)
    if VARIANCE:
        tl.store(means + plane, mean, held)
        tl.store(deviations + pixel, deviations_sum, inside)


def add_draws_triton(
    logits: Tensor,
    upsampling: Upsampling,
    entropy: Tensor,
    probabilities: Tensor,
    logit_sums: LogitSums | None = None,
    temperature: float = 1.0,
    earlier: int = 0,
) -> None:
    """Add draws ``[S, C, h, w]`` to the sums of ``earlier`` ones: of H(p) ``[H, W]`` float64, of p ``[C, H, W]`` float32, both
    contiguous, and of the logits."""
    draws, classes = logits.shape[:2]
    height, width = upsampling.kept
    padded = triton.next_power_of_2(classes)
    planes = [None] * 5 if logit_sums is None else list(logit_sums.planes)
    energy, _, spread, variance, _ = (plane is not None for plane in planes)
    columns = max(16, min(128, TILE // padded // (2 if variance else 1)))  # mean logits take as many registers again
    taps = [to_device(t, logits.device) for axis in (0, 1) for t in upsampling.taps(axis)]
    with torch.cuda.device_of(logits):  # type: ignore[no-untyped-call]  # Triton launches on the current device
        numbers = (*logits.stride(), draws, earlier, classes, height, width, 1.0 / temperature)
        grid = (triton.cdiv(width, columns), height)
        flags = {"ENERGY": energy, "SPREAD": spread, "VARIANCE": variance}
        _add_draws[grid](
            logits, probabilities, entropy, *taps, *planes, *numbers, **flags, CLASSES=padded, COLUMNS=columns
        )
