"""Depthwise convolutions with a wide dilation, computed by convolutions without one.

A convolution with dilation d joins only pixels whose rows, and whose columns, have the same
remainder by d: a phase. So it is a convolution without dilation of each phase, whose pixels lie
side by side after one copy. It sums the same products; only their order may be another.

On a CPU, oneDNN's kernel for depthwise convolutions takes small dilations alone. Its fallback for
others is 1.3 to 12 times slower (``docs/benchmarks.md``). DeepLabV3+ has three such layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

SLOW_FROM = {"AVX2": 6, "AVX512": 7}
"""Least dilation that was measured to be slow, by the instructions that torch uses, for kernels of
3 x 3."""


@dataclass(frozen=True)
class Phases:
    """How the phases of a feature map lie in it.

    Attributes:
        number: of phases along the rows and the columns.
        size: rows and columns of a phase.
    """

    number: tuple[int, int]
    size: tuple[int, int]

    def convolve(self, images: Tensor, convolve: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the convolution of feature maps ``[n, C, H, W]``, of the same shape and channels
        last.

        Args:
            images: the feature maps.
            convolve: the same convolution without dilation, which keeps the size, of phases
                ``[n * phases, C, rows, columns]``, channels last.
        """
        height, width = images.shape[-2:]
        joined = self._joined(convolve(self._parted(images)), len(images))
        return joined[:, :, :height, :width].contiguous(memory_format=torch.channels_last)

    def _parted(self, images: Tensor) -> Tensor:
        """Return the phases ``[n * phases, C, rows, columns]`` of images, channels last."""
        height, width = images.shape[-2:]
        down, across = self.number
        rows, columns = self.size
        zeros = (0, columns * across - width, 0, rows * down - height)
        pixels = F.pad(images, zeros).permute(0, 2, 3, 1)
        parts = pixels.reshape(len(images), rows, down, columns, across, -1)
        ordered = parts.permute(0, 2, 4, 1, 3, 5)
        return ordered.reshape(-1, rows, columns, pixels.shape[-1]).permute(0, 3, 1, 2)

    def _joined(self, phases: Tensor, count: int) -> Tensor:
        """Return ``count`` feature maps of their phases, channels last: the inverse."""
        down, across = self.number
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
    is_depthwise = groups == images.shape[1] and weight.shape[1] == 1
    if not is_depthwise or stride != [1, 1] or min(dilation) < _slow_from():
        return None
    number = []
    size = []
    for axis, length in enumerate(images.shape[-2:]):
        side = weight.shape[2 + axis]
        if side % 2 == 0 or padding[axis] != dilation[axis] * (side // 2):
            return None  # the map would move, or change its size
        # Pixels that are further apart than the map is long meet zeros alone.
        phases = min(dilation[axis], length)
        number.append(phases)
        size.append(-(-length // phases))
    return Phases(number=(number[0], number[1]), size=(size[0], size[1]))


def _slow_from() -> float:
    return SLOW_FROM.get(torch.backends.cpu.get_cpu_capability(), float("inf"))
