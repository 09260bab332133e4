"""Frames on which the ranges of INT8 and the price of a lower precision are measured."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from segunc.core.errors import InputError
from segunc.frames.source import Frame, FrameSource
from segunc.frames.sources import open_source
from segunc.networks.description import NetworkDescription
from segunc.networks.network import inference_size
from segunc.sampling.sampler import network_input

MIN_FRAMES = 8
"""Fewest frames on which ranges or a price are measured. Ranges of one frame cut off what brighter
and busier frames need, and a price of one frame says nothing of others.
"""


@dataclass(frozen=True)
class FrameSet:
    """Frames as the network sees them.

    Attributes:
        hashes: SHA-256 of the pixels of each frame, at its own size, by name.
        pixels: of each frame as the network sees it, uint8 ``[1, 3, H, W]``.
    """

    hashes: Mapping[str, str]
    pixels: tuple[Tensor, ...]

    def __len__(self) -> int:
        return len(self.pixels)

    def __iter__(self) -> Iterator[Tensor]:
        """Yield each frame, float32 ``[1, 3, H, W]`` in 0..1."""
        for pixels in self.pixels:
            yield pixels.float().div_(255.0)


def read_frames(
    place: Path | str,
    count: int,
    description: NetworkDescription,
    size: tuple[int, int] | None,
    option: str,
    halves: int = 1,
) -> FrameSet:
    """Return frames spread evenly over an input, read and resized as ``predict`` does.

    Args:
        place: an image, a folder, a glob pattern, a video or a recording.
        count: how many frames are taken at most.
        description: of the network.
        size: (height, width) that the network sees; None is its inference size for each frame.
        option: that names the input, for messages.
        halves: 2 where the frames are split, so that each half has enough.

    Raises:
        InputError: there are fewer frames than :data:`MIN_FRAMES` in each half, or one cannot be
            read.
    """
    source = open_source(place, all_images=False)
    chosen = _spread(_length(source), count)
    hashes: dict[str, str] = {}
    pixels: list[Tensor] = []
    for frame in source.frames(lambda index, _: index not in chosen):
        if frame.index in chosen:
            image = _image_of(frame, place)
            hashes[frame.name] = hashlib.sha256(image.tobytes()).hexdigest()
            seen = inference_size(description, (image.shape[0], image.shape[1]), size)
            pixels.append(network_input([image], seen).mul(255.0).round().to(torch.uint8))
    fewest = halves * MIN_FRAMES
    if len(pixels) < fewest:
        frames = f"{len(pixels)} frame{'s'[: len(pixels) != 1]}"
        reason = "what few frames do not show has no range and no price"
        if halves == 2:
            reason = f"{MIN_FRAMES} for the ranges, and {MIN_FRAMES} others for the price"
        message = f"{option} {place} gives {frames}, and {fewest} are the fewest: {reason}"
        raise InputError(message, hint=f"give at least {fewest} frames of different scenes")
    return FrameSet(hashes, tuple(pixels))


def _length(source: FrameSource) -> int:
    """Return how many frames a source has; they are counted where nothing else tells."""
    if source.length is not None:
        return source.length
    if source.length_hint is not None:
        return source.length_hint
    return sum(1 for _ in source.frames())


def _spread(length: int, count: int) -> frozenset[int]:
    """Return the indices of at most ``count`` frames, spread evenly over ``length``."""
    taken = min(length, count)
    return frozenset(index * length // taken for index in range(taken))


def _image_of(
    frame: Frame, place: Path | str
) -> np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]:
    """Return the image of a frame; InputError where it cannot be read."""
    if frame.image is None:
        message = f"frame {frame.name} of {place} cannot be read: {frame.error}"
        raise InputError(message, hint="repair or remove the file")
    return np.ascontiguousarray(frame.image)


def split_in_two(frames: FrameSet) -> tuple[FrameSet, FrameSet]:
    """Return the first, third, fifth ... and the second, fourth, sixth ... of frames."""
    names = list(frames.hashes)
    halves: list[FrameSet] = []
    for start in (0, 1):
        hashes = {name: frames.hashes[name] for name in names[start::2]}
        halves.append(FrameSet(hashes, frames.pixels[start::2]))
    return halves[0], halves[1]


def check_apart(calibration: FrameSet, held_out: FrameSet) -> None:
    """Raise InputError where a frame is in both sets, by its pixels."""
    names = {digest: name for name, digest in calibration.hashes.items()}
    for name, digest in held_out.hashes.items():
        if digest in names:
            message = (
                f"frame {name} of --check-frames is frame {names[digest]} of --calibration, "
                "so it would hide what INT8 costs on other frames"
            )
            raise InputError(message, hint="give --check-frames other frames, or leave it out")
