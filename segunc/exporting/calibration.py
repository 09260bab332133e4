"""Frames on which the ranges of INT8 and the price of a lower precision are measured."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor

from segunc.core.errors import InputError
from segunc.data.images import AnyImage
from segunc.exporting.placement import Placement
from segunc.frames.source import Frame, FrameSource
from segunc.frames.sources import open_source
from segunc.networks.description import NetworkDescription
from segunc.networks.network import inference_size
from segunc.sampling.sampler import network_input

MIN_FRAMES = 8
"""Fewest frames on which ranges or a price are measured. One frame shows neither the light of other
hours nor how much the price differs from frame to frame.
"""


@dataclass(frozen=True)
class FrameSet:
    """Frames as a file takes them.

    Attributes:
        hashes: SHA-256 of the pixels of each frame, at its own size, by name.
        pixels: of each frame as the file takes it, uint8 ``[1, K, H, W]``, or ``[1, H, W, K]`` for
            files that take uint8; float32 in 0..1 of frames that are no bytes.
        takes_uint8: whether the file takes uint8 frames; otherwise float32 in 0..1.
        batch: number of frames in a call. Frames that fill no batch are not used, see
            :meth:`whole_batches`.
    """

    hashes: Mapping[str, str]
    pixels: tuple[Tensor, ...]
    takes_uint8: bool = False
    batch: int = 1

    def __len__(self) -> int:
        """Return how many frames are used."""
        return len(self.pixels) - len(self.pixels) % self.batch

    def __iter__(self) -> Iterator[Tensor]:
        """Yield the inputs of the file, one for each batch of frames."""
        for start in range(0, len(self), self.batch):
            frames = [self._input(pixels) for pixels in self.pixels[start : start + self.batch]]
            yield torch.cat(frames)

    def _input(self, pixels: Tensor) -> Tensor:
        """Return a frame as an input of the file."""
        is_input = self.takes_uint8 or pixels.dtype != torch.uint8
        return pixels if is_input else pixels.float().div_(255.0)

    def whole_batches(self) -> FrameSet:
        """Return the frames that are used, so that no record names a frame that no file met."""
        names = list(self.hashes)[: len(self)]
        hashes = {name: self.hashes[name] for name in names}
        return replace(self, hashes=hashes, pixels=self.pixels[: len(self)])


@dataclass(frozen=True)
class InputForm:
    """What a file takes.

    Attributes:
        description: of the network.
        placement: of the frames.
        any_size: whether the file takes frames of any size.
    """

    description: NetworkDescription
    placement: Placement
    any_size: bool = False

    @property
    def takes_uint8(self) -> bool:
        """Whether the file takes uint8 frames, which it resizes itself."""
        return self.placement.frame_size is not None

    @property
    def batch(self) -> int:
        """Number of frames in a call."""
        return self.placement.batch

    def pixels(self, image: AnyImage, name: str) -> Tensor:
        """Return a frame as the file takes it, ``[1, K, H, W]``, or uint8 ``[1, H, W, K]``.

        Args:
            image: ``[H, W, K]``, uint8 or float32 in 0..1.
            name: of the frame, for messages.

        Raises:
            InputError: the file takes uint8 frames, and the frame has another size or type.
        """
        size = (image.shape[0], image.shape[1])
        wanted = self.placement.frame_size
        if wanted is not None:
            if size != wanted:
                message = (
                    f"frame {name} has {size[0]}x{size[1]} pixels, "
                    f"and the file takes {wanted[0]}x{wanted[1]}"
                )
                raise InputError(message, hint=f"--frame-size {size[0]}x{size[1]}")
            if image.dtype != np.uint8:
                message = f"frame {name} holds more than bytes, and the file takes uint8 frames"
                raise InputError(message, hint="leave out --input, or give frames of 8 bits")
            return torch.from_numpy(image)[None]
        seen = self.placement.network_size
        if self.any_size:
            seen = inference_size(self.description, size)
        planes = network_input([image], seen)
        if image.dtype != np.uint8:
            return planes
        return planes.mul(255.0).round().to(torch.uint8)


def read_frames(
    place: Path | str,
    count: int,
    form: InputForm,
    option: str,
    halves: int = 1,
) -> FrameSet:
    """Return frames spread evenly over an input, read and resized as ``predict`` does.

    Args:
        place: an image, a folder, a glob pattern, a video or a recording.
        count: how many frames are taken at most.
        form: of the input of the file.
        option: that names the input, for messages.
        halves: 2 where the frames are split, so that each half has enough.

    Raises:
        InputError: there are fewer different frames than :data:`MIN_FRAMES` in each half, or one
            cannot be read.
    """
    source = open_source(place, all_images=False, channels=form.placement.channels)
    chosen = _spread(_length(source), count)
    hashes: dict[str, str] = {}
    pixels: list[Tensor] = []
    for frame in source.frames(lambda index, _: index not in chosen):
        if frame.index in chosen:
            image = _image_of(frame, place)
            hashes[frame.name] = hashlib.sha256(image.tobytes()).hexdigest()
            pixels.append(form.pixels(image, frame.name))
    fewest = halves * MIN_FRAMES
    different = len(set(hashes.values()))
    if different < fewest:
        frames = f"{len(pixels)} frame{'s'[: len(pixels) != 1]}"
        if different < len(pixels):
            frames += f", {different} without copies"
        reason = "what few frames do not show has no range and no price"
        if halves == 2:
            reason = f"{MIN_FRAMES} for the ranges, and {MIN_FRAMES} others for the price"
        message = f"{option} {place} gives {frames}, and {fewest} are the fewest: {reason}"
        hint = f"give at least {fewest} frames of different scenes"
        if halves == 2:
            hint += ", or other frames for the price by --check-frames"
        raise InputError(message, hint=hint)
    return FrameSet(hashes, tuple(pixels), form.takes_uint8, form.batch)


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


def _image_of(frame: Frame, place: Path | str) -> AnyImage:
    """Return the image of a frame; InputError where it cannot be read."""
    if frame.image is None:
        message = f"frame {frame.name} of {place} cannot be read: {frame.error}"
        raise InputError(message, hint="repair or remove the file")
    return cast(AnyImage, np.ascontiguousarray(frame.image))


def split_in_two(frames: FrameSet) -> tuple[FrameSet, FrameSet]:
    """Return the first, third, fifth ... and the second, fourth, sixth ... of frames."""
    names = list(frames.hashes)
    halves: list[FrameSet] = []
    for start in (0, 1):
        hashes = {name: frames.hashes[name] for name in names[start::2]}
        halves.append(replace(frames, hashes=hashes, pixels=frames.pixels[start::2]))
    return halves[0], halves[1]


def check_apart(calibration: FrameSet, held_out: FrameSet, *, are_halves: bool = False) -> None:
    """Raise InputError where a frame is in both sets, by its pixels.

    Args:
        calibration: gives the ranges.
        held_out: gives the price.
        are_halves: whether both are halves of --calibration.
    """
    names = {digest: name for name, digest in calibration.hashes.items()}
    for name, digest in held_out.hashes.items():
        if digest not in names:
            continue
        if are_halves:
            message = (
                f"frames {names[digest]} and {name} of --calibration have the same pixels, and one "
                "is for the ranges, the other for the price: it would hide what INT8 costs on "
                "other frames"
            )
            hint = "leave out copies, or give other frames for the price by --check-frames"
        else:
            message = (
                f"frame {name} of --check-frames is frame {names[digest]} of --calibration, "
                "so it would hide what INT8 costs on other frames"
            )
            hint = "give --check-frames other frames, or leave it out"
        raise InputError(message, hint=hint)


def check_enough(frames: FrameSet, count: int, purpose: str) -> None:
    """Raise InputError where whole batches hold fewer than :data:`MIN_FRAMES` frames.

    Args:
        frames: in whole batches.
        count: how many there were before.
        purpose: what they are for, in words.
    """
    if len(frames) >= MIN_FRAMES:
        return
    fewest = -(-MIN_FRAMES // frames.batch) * frames.batch
    message = (
        f"of {count} frames for {purpose}, {len(frames)} fill a --batch of {frames.batch}, and "
        f"{MIN_FRAMES} are the fewest"
    )
    hint = f"--calibration-frames {fewest} or more and as many frames, or a smaller --batch"
    raise InputError(message, hint=hint)
