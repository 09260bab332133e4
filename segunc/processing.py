"""From a frame to its maps: sampling, as a whole or in tiles, on the way from the device to the threads that write.

Large frames are cut into tiles: the means over the draws of each tile are blended, and the maps follow from the blended means. Entropy is
taken after blending: H is concave, so ``H(sum_i w_i p_i) >= sum_i w_i H(p_i)``, and with the expected entropies weighted alike epistemic
stays above zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from segunc.core.device import to_device
from segunc.core.errors import InputError
from segunc.frames.source import Frame
from segunc.maps.encoding import Array
from segunc.maps.store import Maps
from segunc.sampling.sampler import Sampler, calibrate, fault_of, finish_frame, network_input, sample_frames
from segunc.scores import MEANS, SCORES
from segunc.uncertainty import Calibrator, entropy_share

NEEDED_SCORE = "aleatoric"  # a sampler of tiles must return this score besides its probabilities
STRIDE = 32
"""Tiles start at multiples of this: a network of such a stride then sees the same grid of cells as in the whole frame."""

Means = Mapping[str, Tensor]
"""What the draws of a frame or a tile amount to, float32: mean probabilities ``[C, h, w]`` before calibration, the mean entropy of a
draw divided by ln C ``[h, w]``, by the names of the evidence, and each score ``[h, w]`` that does not follow from these two."""


class HostMaps(Mapping[str, Array]):
    """Maps by name as arrays. Copies from a GPU are queued behind the computation; whoever looks at a map waits for them, so that the
    thread that computes goes on to the next frames at once. On a CPU nothing is copied."""

    def __init__(self, maps: Mapping[str, Tensor]) -> None:
        device = next(iter(maps.values())).device
        self._maps = {name: values.to("cpu", non_blocking=True) for name, values in maps.items()}
        self._copied: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record(torch.cuda.current_stream(device))

    def __getitem__(self, name: str) -> Array:
        if self._copied is not None:
            self._copied.synchronize()
        array: Array = self._maps[name].numpy()
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._maps)

    def __len__(self) -> int:
        return len(self._maps)


@dataclass(frozen=True)
class FrameProcess:
    """Makes the maps of frames of one size; a frame that the network refuses fails alone.

    Frames share a batch, except with tiles, where they run one after the other.
    """

    sampler: Sampler  # over a :class:`SegmentationNetwork`; with tiles it must return aleatoric
    scores: Sequence[str]  # names of the maps to return
    _: KW_ONLY
    size: tuple[int, int] | None = None  # that the network sees; None: its inference size, with tiles the frame's
    tiling: Tiling | None = None  # cut frames (after resizing to ``size``) into tiles

    def __call__(self, frames: Sequence[Frame]) -> Sequence[Maps | Exception]:
        """Return the maps of each frame, or why there are none."""
        if self.tiling is not None and len(frames) > 1:
            return [self([frame])[0] for frame in frames]
        images = [frame.image for frame in frames if frame.image is not None]
        try:
            size = (images[0].shape[0], images[0].shape[1])
            if self.tiling is None:
                result = sample_frames(self.sampler, images, size=self.size)
                maps = {"prediction": result.prediction, **{name: result.scores[name] for name in self.scores}}
            else:
                whole = network_input(images, self.size or size)
                means = self.tiling.run(whole, lambda tile: sample_means(self.sampler, tile))
                finished = finish_maps(means, size, self.scores, self.sampler.fitted.calibrator)
                maps = {name: values[None] for name, values in finished.items()}
        except Exception as error:
            failure = fault_of(error, images[0])
            if len(frames) > 1:  # one of them may be at fault, or all together too many
                return [self([frame])[0] for frame in frames]
            return [failure]
        return [HostMaps({name: values[index] for name, values in maps.items()}) for index in range(len(images))]


def sample_means(sampler: Sampler, image: Tensor) -> Means:
    """Sample one image ``[1, 3, h, w]``; the sampler must return :data:`NEEDED_SCORE`."""
    result = sampler(image, keep_probabilities=True, calibrated=False)
    assert result.probabilities is not None
    others = {name: maps[0] for name, maps in result.scores.items() if not MEANS.issuperset(SCORES[name].needs)}
    return {"probabilities": result.probabilities[0], "expected entropy": result.scores[NEEDED_SCORE][0], **others}


def finish_maps(
    means: Means, size: tuple[int, int], scores: Sequence[str], calibrator: Calibrator | None = None
) -> dict[str, Tensor]:
    """Return the prediction (uint8) and the scores (float32) of a frame, each ``[H, W]`` of (height, width) ``size``; the calibrator is
    the sampler's."""
    probabilities = means["probabilities"][None]
    # float64: near zero, epistemic is a small difference of two entropies.
    entropy = entropy_share(probabilities.double()).float()
    evidence = {"probabilities": probabilities, "calibrated entropy": entropy, "total entropy": entropy}
    evidence["expected entropy"] = means["expected entropy"][None]
    if calibrator is not None:
        evidence = calibrate(evidence, calibrator)
    derived = [SCORES[name] for name in scores if name not in means]
    others = {name: means[name] for name in scores if name in means}
    frame = finish_frame(derived, evidence, size, ready=others)
    return {"prediction": frame.prediction, **{name: frame.scores[name] for name in scores}}


class Span(NamedTuple):
    """Where a tile lies along one axis, and the weights of its pixels; the weights of all tiles add up to 1 at every pixel."""

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
            message = f"an overlap of {self.overlap} pixels does not fit tiles of {self.size[0]}x{self.size[1]}"
            hint = f"give an --overlap of 0 to {max(0, min(self.size) - STRIDE)}, or larger tiles"
            raise InputError(message, hint=hint)

    def run(self, image: Tensor, process: Callable[[Tensor], Means]) -> Means:
        """Blend the means of the tiles of an image ``[1, 3, H, W]``; ``process`` makes those of a tile ``[1, 3, h, w]``."""
        size = image.shape[-2:]
        blended: dict[str, Tensor] = {}
        for rows, columns in self.tiles(*size):
            window = (..., slice(rows.start, rows.end), slice(columns.start, columns.end))
            for name, values in process(image[window]).items():
                whole = blended.setdefault(name, values.new_zeros(*values.shape[:-2], *size))
                whole[window] += to_device(rows.weights[:, None] * columns.weights[None], values.device) * values
        return blended

    def tiles(self, height: int, width: int) -> Iterator[tuple[Span, Span]]:
        """Yield the rows and columns of each tile of a frame."""
        return product(spans(height, self.size[0], self.overlap), spans(width, self.size[1], self.overlap))


def spans(length: int, tile: int, overlap: int) -> list[Span]:
    """Cut an axis of ``length`` pixels into tiles; the last one may be up to a stride shorter."""
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
