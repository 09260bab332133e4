"""What is gathered of the features of the training frames, in one pass and constant memory."""

from __future__ import annotations

import torch
from torch import Tensor

from segunc.data.labels import IGNORE


class Sample:
    """A uniform sample without replacement of at most ``size`` rows of a stream, in constant memory: those of the smallest random
    keys. It depends on the seed and the stream alone, not on how the stream is cut."""

    def __init__(self, size: int, seed: int) -> None:
        self.size, self._generator = size, torch.Generator().manual_seed(seed)
        self._keys, self.rows = torch.empty(0, dtype=torch.float64), torch.empty(0)

    def add(self, rows: Tensor) -> None:
        """Rows ``[M, D]``."""
        keys = torch.cat([self._keys, torch.rand(len(rows), generator=self._generator, dtype=torch.float64)])
        rows = torch.cat([self.rows, rows]) if len(self.rows) else rows
        kept = keys.argsort()[: self.size]
        self._keys, self.rows = keys[kept], rows[kept]


def places_of(labels: Tensor, size: tuple[int, int], extent: tuple[int, int]) -> Tensor:
    """For each place of a map of (height, width) ``size`` that covers ``extent`` pixels of a frame its centre's row and column as
    shares of the frame's height and width, and the train id of most of its labelled pixels (255 where none has most), ``[h w, 3]``
    float32. Train ids uint8 ``[H, W]``; what a network pads beyond the frame counts as its edge."""
    shares = [
        (torch.arange(n) + 0.5) / n * covered / side
        for n, covered, side in zip(size, extent, labels.shape, strict=True)
    ]
    at = torch.cartesian_prod(*(share.clamp_max(1.0) for share in shares)).view(-1, 2)
    row, column = (
        (2 * torch.arange(side) + 1) * n // (2 * covered)
        for n, covered, side in zip(size, extent, labels.shape, strict=True)
    )
    place = (row[:, None] * size[1] + column).clamp_max(size[0] * size[1] - 1)
    counts = torch.bincount((place * 256 + labels).flatten(), minlength=size[0] * size[1] * 256).view(-1, 256)[
        :, :IGNORE
    ]
    most, label = counts.max(1)
    label[2 * most <= counts.sum(1)] = IGNORE
    return torch.cat([at, label[:, None]], 1)
