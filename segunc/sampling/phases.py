"""Depthwise convolutions with a wide dilation, computed by convolutions without one.

A convolution with dilation d joins only pixels whose rows, and whose columns, have the same
remainder by d: a phase. So it is a convolution without dilation of each phase, whose pixels lie
side by side after one copy. Products and their order are the same, and so is every bit of the
result. On a CPU, oneDNN's kernel for depthwise convolutions takes small dilations alone; its
fallback for others is 3 to 20 times slower (``docs/benchmarks.md``), and DeepLabV3+ has three such
layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

SLOW_FROM = {"AVX2": 6, "AVX512": 7}
"""Least dilation at which oneDNN falls back, by the instructions that torch uses; measured for
kernels of 3 x 3."""
MAX_GROWTH = 2.0
"""Phases are made equally large by zeros; more of them than this factor of the pixels cost more
than they save."""


@dataclass(frozen=True)
class Phases:
    """How the phases of a depthwise convolution lie in its feature maps.

    Attributes:
        dilation: of rows and columns, which is the number of phases along each.
        size: rows and columns of a phase.
        padding: of a phase, in its own pixels.
    """

    dilation: tuple[int, int]
    size: tuple[int, int]
    padding: tuple[int, int]

    def convolve(self, images: Tensor, convolve: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the convolution of feature maps.

        Args:
            images: ``[n, C, H, W]``.
            convolve: the same convolution without dilation, with the padding of a phase, of phases
                ``[n * phases, C, rows, columns]``, channels last.

        Returns:
            ``[n, C, H', W']``, channels last, whose last rows and columns may have to be cut.
        """
        return self._joined(convolve(self._parted(images)), len(images))

    def _parted(self, images: Tensor) -> Tensor:
        """Return the phases ``[n * phases, C, rows, columns]`` of images, channels last."""
        height, width = images.shape[-2:]
        (down, across), (rows, columns) = self.dilation, self.size
        zeros = (0, columns * across - width, 0, rows * down - height)
        pixels = F.pad(images, zeros).permute(0, 2, 3, 1)
        parts = pixels.reshape(len(images), rows, down, columns, across, -1)
        ordered = parts.permute(0, 2, 4, 1, 3, 5)
        return ordered.reshape(-1, rows, columns, pixels.shape[-1]).permute(0, 3, 1, 2)

    def _joined(self, phases: Tensor, count: int) -> Tensor:
        """Return ``count`` feature maps of their phases, channels last: the inverse."""
        down, across = self.dilation
        channels, rows, columns = phases.shape[1:]
        parts = phases.permute(0, 2, 3, 1).reshape(count, down, across, rows, columns, channels)
        ordered = parts.permute(0, 3, 1, 4, 2, 5)
        pixels = ordered.reshape(count, rows * down, columns * across, channels)
        return pixels.permute(0, 3, 1, 2)


def phases_of(
    images: Tensor,
    weight: Tensor,
    padding: list[int],
    stride: list[int],
    dilation: list[int],
    groups: int,
) -> Phases | None:
    """Return the phases of a convolution that is faster by them; None for any other.

    Args:
        images: ``[n, C, H, W]``.
        weight: ``[O, C / groups, kh, kw]``.
        padding, stride, dilation: of rows and columns.
        groups: C for a depthwise convolution.
    """
    down, across = dilation
    is_depthwise = groups == images.shape[1] and weight.shape[1] == 1
    is_whole = padding[0] % down == 0 and padding[1] % across == 0
    if not is_depthwise or not is_whole or stride != [1, 1] or min(dilation) < _slow_from():
        return None
    height, width = images.shape[-2:]
    rows = -(-height // down)
    columns = -(-width // across)
    if rows * down * columns * across > MAX_GROWTH * height * width:
        return None
    return Phases(
        dilation=(down, across),
        size=(rows, columns),
        padding=(padding[0] // down, padding[1] // across),
    )


def _slow_from() -> float:
    return SLOW_FROM.get(torch.backends.cpu.get_cpu_capability(), float("inf"))
