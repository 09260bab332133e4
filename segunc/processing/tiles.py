"""Frames larger than a network likes: cut into tiles that overlap, and blended without seams."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from segunc.core.errors import InputError
from segunc.processing.means import FrameMeans

STRIDE = 32
"""Tiles start at multiples of this: a network of such a stride then sees the same grid of cells as in the whole frame."""


@dataclass(frozen=True)
class Span:
    """Where a tile lies along one axis: pixels ``start`` to ``end`` (exclusive), and the weights ``[end - start]`` of each.

    The weights of all spans of an axis add up to 1 at every pixel.
    """

    start: int
    end: int
    weights: Tensor


@dataclass(frozen=True)
class Tiling:
    """Tiles of (height, width) ``size`` at most, of which neighbours share at least ``overlap`` pixels.

    In the shared strip the outer quarters count for one tile alone and the weights change linearly in between: a network
    sees least of the scene at its borders. So where nothing farther than a quarter of the overlap decides a pixel, tiled
    and whole frames have the same maps.

    Raises:
        InputError: an overlap below 0, or so large that tiles would not advance.
    """

    size: tuple[int, int]
    overlap: int

    def __post_init__(self) -> None:
        if self.overlap < 0 or min(self.size) - self.overlap < STRIDE:
            raise InputError(
                f"an overlap of {self.overlap} pixels for tiles of {self.size[0]}x{self.size[1]}",
                f"0 to {max(0, min(self.size) - STRIDE)}",
                "give another --overlap, or larger tiles",
            )

    def run(self, image: Tensor, process: Callable[[Tensor], FrameMeans]) -> FrameMeans:
        """The blended means of an image ``[1, 3, H, W]``.

        Args:
            image: the whole frame.
            process: makes the means of a tile ``[1, 3, h, w]``.
        """
        height, width = image.shape[-2:]
        blended: FrameMeans | None = None
        for rows, columns in self.tiles(height, width):
            part = process(image[..., rows.start : rows.end, columns.start : columns.end])
            if blended is None:
                blended = _empty(part, height, width)
            weights = (rows.weights[:, None] * columns.weights[None]).to(part.probabilities.device)
            window = (..., slice(rows.start, rows.end), slice(columns.start, columns.end))
            blended.probabilities[window] += weights * part.probabilities
            blended.aleatoric[window] += weights * part.aleatoric
            for name, values in part.others.items():
                blended.others[name][window] += weights * values
        assert blended is not None
        return blended

    def tiles(self, height: int, width: int) -> Iterator[tuple[Span, Span]]:
        """Rows and columns of each tile of a frame."""
        across = spans(width, self.size[1], self.overlap)
        for rows in spans(height, self.size[0], self.overlap):
            for columns in across:
                yield rows, columns


def spans(length: int, tile: int, overlap: int) -> list[Span]:
    """Tiles along one axis of ``length`` pixels; the last one may be up to a stride shorter."""
    step = (tile - overlap) // STRIDE * STRIDE
    starts = list(range(0, max(1, length - tile), step))
    if length > tile:
        starts.append(-(-(length - tile) // STRIDE) * STRIDE)
    ends = [min(start + tile, length) for start in starts]
    # How far the weight has passed from the tiles before a tile to it: 0 before its ramp, 1 behind it.
    pixels = torch.arange(length, dtype=torch.float32) + 0.5
    passed = [torch.ones(length)]
    for start, end in zip(starts[1:], ends[:-1], strict=True):
        margin = (end - start) // 4
        ramp = max(end - start - 2 * margin, 1e-3)  # without an overlap a step
        passed.append(((pixels - (start + margin)) / ramp).clamp(0.0, 1.0))
    passed.append(torch.zeros(length))
    return [
        Span(start, end, (passed[number] - passed[number + 1])[start:end])
        for number, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]


def _empty(part: FrameMeans, height: int, width: int) -> FrameMeans:
    return FrameMeans(
        part.probabilities.new_zeros(part.probabilities.shape[0], height, width),
        part.aleatoric.new_zeros(height, width),
        {name: values.new_zeros(height, width) for name, values in part.others.items()},
    )
