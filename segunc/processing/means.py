"""The means over draws of one frame, which can be blended over tiles and averaged over time, and the maps of them.

The entropy of blended or averaged probabilities is taken afterwards: H is concave, so
``H(sum_i w_i p_i) >= sum_i w_i H(p_i)``, and with the mean entropies weighted alike epistemic stays above zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from segunc.core.device import to_device
from segunc.core.errors import InputError
from segunc.sampling.frames import calibrate, finish_frame
from segunc.sampling.sampler import Sampler
from segunc.scores import MEANS, SCORES
from segunc.uncertainty import Calibrator, entropy_share

NEEDED = "aleatoric"
"""The score that a sampler must return besides its probabilities."""
STRIDE = 32
"""Tiles start at multiples of this: a network of such a stride then sees the same grid of cells as in the whole frame."""


@dataclass(frozen=True)
class FrameMeans:
    """What a frame's draws amount to, float32 at the size of the network's input."""

    probabilities: Tensor  # [C, h, w], mean over draws, not calibrated
    aleatoric: Tensor  # [h, w], mean entropy of a draw divided by ln C
    others: dict[str, Tensor]  # [h, w] by name: the scores that do not follow from the two


def sample_means(sampler: Sampler, image: Tensor, seed: int | None = None) -> FrameMeans:
    """The means of one image ``[1, 3, h, w]``, from draws of a seed; the sampler must return the score :data:`NEEDED`."""
    result = sampler(image, keep_probabilities=True, calibrated=False, seed=seed)
    assert result.probabilities is not None
    others = {name: maps[0] for name, maps in result.scores.items() if not MEANS.issuperset(SCORES[name].needs)}
    return FrameMeans(result.probabilities[0], result.scores[NEEDED][0], others)


def finish_maps(
    means: FrameMeans, size: tuple[int, int], scores: Sequence[str], calibrator: Calibrator | None = None
) -> dict[str, Tensor]:
    """Prediction (uint8) and the scores named (float32) of a frame, each ``[H, W]`` of (height, width) ``size``; the calibrator is the
    sampler's."""
    probabilities = means.probabilities[None]
    # float64: near zero, epistemic is a small difference of two entropies.
    entropy = entropy_share(probabilities.double()).float()
    evidence = {
        "probabilities": probabilities,
        "calibrated entropy": entropy,
        "total entropy": entropy,
        "expected entropy": means.aleatoric[None],
    }
    if calibrator is not None:
        evidence = calibrate(evidence, calibrator)
    derived = [SCORES[name] for name in scores if name not in means.others]
    others = {name: maps for name, maps in means.others.items() if name in scores}
    found = finish_frame(derived, evidence, size, ready=others)
    return {"prediction": found.prediction, **{name: found.scores[name] for name in scores}}


class Span(NamedTuple):
    """Where a tile lies along one axis, and the weights of its pixels, which over all spans add up to 1 at every pixel."""

    start: int
    end: int  # exclusive
    weights: Tensor  # [end - start]


@dataclass(frozen=True)
class Tiling:
    """Tiles of (height, width) ``size`` at most, of which neighbours share at least ``overlap`` pixels.

    In the shared strip the outer quarters count for one tile alone and the weights change linearly in between: a network
    sees least of the scene at its borders. So where nothing farther than a quarter of the overlap decides a pixel, tiled
    and whole frames have the same maps. InputError where the overlap is below 0, or so large that tiles would not advance.
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
        size = image.shape[-2:]
        sums: list[Tensor] = []
        for rows, columns in self.tiles(*size):
            window = (..., slice(rows.start, rows.end), slice(columns.start, columns.end))
            part = process(image[window])
            values = [part.probabilities, part.aleatoric, *part.others.values()]
            sums = sums or [value.new_zeros(*value.shape[:-2], *size) for value in values]
            weights = to_device(rows.weights[:, None] * columns.weights[None], part.probabilities.device)
            for blended, value in zip(sums, values, strict=True):
                blended[window] += weights * value
        return FrameMeans(sums[0], sums[1], dict(zip(part.others, sums[2:], strict=True)))

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
