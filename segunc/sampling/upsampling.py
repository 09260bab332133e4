"""The bilinear upsampling at the end of a network, as data: what it does to logits, and its taps for fused kernels."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Upsampling:
    """Bilinear interpolation of ``[N, C, h, w]``, of which the upper left part is kept.

    Attributes:
        source: (h, w) of the low-resolution logits.
        full: (height, width) they are interpolated to.
        kept: (H, W) that is left after cropping the lower and right border away.
        align_corners: whether corner pixels lie on corner pixels (smp) or pixel areas match (torchvision).
        factors: the scale factors that were asked for, or None where a size was: with areas matched, PyTorch
            computes positions from the factor if it has one.
    """

    source: tuple[int, int]
    full: tuple[int, int]
    kept: tuple[int, int]
    align_corners: bool = False
    factors: tuple[float, float] | None = None

    @classmethod
    def none(cls, size: tuple[int, int]) -> Upsampling:
        """Logits that have their size already."""
        return cls(size, size, size)

    @property
    def identity(self) -> bool:
        """Whether nothing is interpolated."""
        return self.source == self.full

    def apply(self, logits: Tensor) -> Tensor:
        """Logits ``[N, C, h, w]`` as ``[N, C, H, W]``."""
        if not self.identity:
            size, factor = (None, self.factors) if self.factors is not None else (self.full, None)
            corners = self.align_corners
            logits = F.interpolate(logits, size, factor, mode="bilinear", align_corners=corners)
        return logits[..., : self.kept[0], : self.kept[1]]

    def taps(self, axis: int) -> tuple[Tensor, Tensor, Tensor]:
        """For each kept row (axis 0) or column (axis 1): the two source lines (int32) and the second's weight (float32)."""
        factor = None if self.factors is None else self.factors[axis]
        return _taps(self.source[axis], self.full[axis], self.kept[axis], self.align_corners, factor)


@functools.lru_cache(maxsize=64)
def _taps(source: int, full: int, kept: int, corners: bool, factor: float | None) -> tuple[Tensor, Tensor, Tensor]:
    # float32 on purpose: the positions shall round as they do in PyTorch's own kernels.
    position = torch.arange(kept, dtype=torch.float32)
    if source == full:
        return position.int(), position.int(), torch.zeros(kept)
    if corners:
        at = position * torch.tensor((source - 1) / (full - 1) if full > 1 else 0.0, dtype=torch.float32)
    else:
        scale = torch.tensor(source / full if factor is None else 1.0 / factor, dtype=torch.float32)
        at = ((position + 0.5) * scale - 0.5).clamp_min(0.0)
    first = at.floor().clamp_max(source - 1)
    second = (first + 1).clamp_max(source - 1)
    return first.int(), second.int(), (at - first).clamp(0.0, 1.0)
