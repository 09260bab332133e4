"""The means over draws of one frame, which can be blended over tiles and averaged over time, and the maps of them.

Entropies of blended or averaged probabilities must be taken afterwards: H is concave, so
``H(sum_i w_i p_i) >= sum_i w_i H(p_i)``, and with the mean entropies weighted alike epistemic stays above zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

from segunc.core.errors import InputError
from segunc.sampling.sampler import Sampler
from segunc.uncertainty import entropy_from_probabilities

NEEDED = "aleatoric"
"""The score that a sampler must return besides its probabilities."""
DERIVED = ("msp", "entropy", "epistemic")
"""Scores that follow from the means."""
STRIDE = 32
"""Tiles start at multiples of this: a network of such a stride then sees the same grid of cells as in the whole frame."""


@dataclass(frozen=True)
class FrameMeans:
    """What a frame's draws amount to, at the size of the network's input.

    Attributes:
        probabilities: float32 ``[C, h, w]``, mean over draws.
        aleatoric: float32 ``[h, w]``, mean entropy of a draw divided by ln C.
        others: float32 ``[h, w]`` by name: the scores that do not follow from the two.
    """

    probabilities: Tensor
    aleatoric: Tensor
    others: dict[str, Tensor]


def sample_means(sampler: Sampler, image: Tensor) -> FrameMeans:
    """The means of one image ``[1, 3, h, w]``; the sampler must return the score :data:`NEEDED`."""
    result = sampler(image, keep_probabilities=True)
    assert result.probabilities is not None
    others = {name: maps[0] for name, maps in result.scores.items() if name not in (*DERIVED, NEEDED)}
    return FrameMeans(result.probabilities[0], result.scores[NEEDED][0], others)


def finish_maps(means: FrameMeans, size: tuple[int, int]) -> dict[str, Tensor]:
    """Prediction (uint8) and all scores (float32) of a frame, each ``[H, W]`` of (height, width) ``size``.

    As in the sampler, entropies are resized as maps, epistemic is the difference of the resized entropies, and prediction
    and msp come from the resized probabilities.
    """
    probabilities = means.probabilities
    classes = probabilities.shape[0]
    scale = 1.0 / math.log(classes) if classes > 1 else 1.0
    # float64: near zero, epistemic is a small difference of two entropies.
    entropy = (entropy_from_probabilities(probabilities.double(), 0) * scale).float()
    scores = {"entropy": entropy, NEEDED: means.aleatoric, **means.others}
    if probabilities.shape[1:] != size:
        stacked = _resized(torch.stack(list(scores.values())), size)
        scores = dict(zip(scores, stacked, strict=True))
        probabilities = _resized(probabilities, size)
    best, winner = probabilities.max(0)
    return {
        "prediction": winner.to(torch.uint8),
        "msp": (1.0 - best).clamp_(0.0, 1.0),
        "epistemic": (scores["entropy"] - scores[NEEDED]).clamp_min_(0.0),
        **scores,
    }


def _resized(planes: Tensor, size: tuple[int, int]) -> Tensor:
    return F.interpolate(planes[None], size, mode="bilinear", align_corners=False)[0]


@dataclass(frozen=True)
class Span:
    """Where a tile lies along one axis: pixels ``start`` to ``end`` (exclusive), and the weights ``[end - start]`` of each,
    which over all spans of the axis add up to 1 at every pixel."""

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
            given = f"an overlap of {self.overlap} pixels for tiles of {self.size[0]}x{self.size[1]}"
            expected = f"0 to {max(0, min(self.size) - STRIDE)}"
            raise InputError(given, expected, "give another --overlap, or larger tiles")

    def run(self, image: Tensor, process: Callable[[Tensor], FrameMeans]) -> FrameMeans:
        """The blended means of an image ``[1, 3, H, W]``, where ``process`` makes those of a tile ``[1, 3, h, w]``."""
        height, width = image.shape[-2:]
        blended: FrameMeans | None = None
        for rows, columns in self.tiles(height, width):
            part = process(image[..., rows.start : rows.end, columns.start : columns.end])
            if blended is None:
                empty = part.aleatoric.new_zeros(height, width)
                classes = part.probabilities.new_zeros(part.probabilities.shape[0], height, width)
                blended = FrameMeans(classes, empty, {name: torch.zeros_like(empty) for name in part.others})
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
        return product(spans(height, self.size[0], self.overlap), spans(width, self.size[1], self.overlap))


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
