"""A segmentation network with its input handling: normalise, pad to the stride, run, crop back."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segunc.core.errors import InputError
from segunc.networks.description import NetworkDescription


class SegmentationNetwork(nn.Module):
    """A body (any module from ``[N, 3, H, W]`` to logits ``[N, C, H, W]``) and its description.

    Takes images in 0..1 of any size. Sizes that the body's stride divides reach it untouched; others are padded at
    the right and bottom by repeating the border and the logits are cropped back.

    Args:
        body: the module that makes the logits.
        description: classes, input normalisation, inference size.
        stride: what height and width must be divisible by.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, body: nn.Module, description: NetworkDescription, stride: int = 32) -> None:
        super().__init__()
        self.body = body
        self.description = description
        self.stride = stride
        self.sha256 = ""  # by which others are bound to it; of a network that was loaded
        # Not persistent: the description is their one home.
        self.register_buffer("mean", torch.tensor(description.mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(description.std).view(1, -1, 1, 1), persistent=False)

    @property
    def logarithms(self) -> bool:
        """Whether the logits are the logarithms of scores, as of mask classification."""
        return bool(getattr(self.body, "logarithms", False))

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits ``[N, C, H, W]`` of images ``[N, 3, H, W]`` in 0..1."""
        if images.ndim != 4 or images.shape[1] != self.mean.shape[1]:
            message = f"images of shape {tuple(images.shape)} are not [N, {self.mean.shape[1]}, H, W]"
            raise InputError(message, hint="check the order of the axes")
        height, width = images.shape[-2:]
        images = (images - self.mean) / self.std
        pad_height, pad_width = -height % self.stride, -width % self.stride
        if pad_height or pad_width:
            images = F.pad(images, (0, pad_width, 0, pad_height), mode="replicate")
        logits = self.body(images)
        if not isinstance(logits, Tensor):
            raise InputError(f"the network returns {type(logits).__name__}, not one tensor of logits")
        if logits.ndim != 4 or logits.shape[-2:] != images.shape[-2:]:
            size, side = (" x ".join(map(str, tensor.shape[2:])) for tensor in (logits, images))
            message = f"the network gives logits of {size or tuple(logits.shape)} for frames of {side}"
            raise InputError(message, hint="interpolate them inside the network")
        dropped = self.description.dropped_outputs
        outputs = self.description.num_classes + len(dropped)
        if logits.shape[1] != outputs:
            message = f"the network has {logits.shape[1]} output channels, but {outputs} have a class"
            raise InputError(message, hint="name the class of each, or leave out others: segunc import --drop-classes")
        if dropped:
            logits = logits[:, self.description.kept_outputs]
        return logits[..., :height, :width]


def inference_size(
    description: NetworkDescription, frame: tuple[int, int], override: tuple[int, int] | None = None
) -> tuple[int, int]:
    """Return the (height, width) at which the network sees a frame of (height, width) ``frame``.

    ``override`` decides alone when given. A frame whose aspect ratio is that of the description's inference size
    (within 2 %) gets exactly that size; another keeps its own aspect ratio, with as many pixels, each side a multiple of 16.
    Without an inference size the frame keeps its own.
    """
    if override is not None:
        return override
    wanted = description.inference_size
    if wanted is None:
        return frame
    ratio = (frame[1] / frame[0]) / (wanted[1] / wanted[0])
    if abs(ratio - 1.0) <= 0.02:
        return wanted
    height = (wanted[0] * wanted[1] * frame[0] / frame[1]) ** 0.5
    return max(16, 16 * round(height / 16)), max(16, 16 * round(height * frame[1] / frame[0] / 16))


DIVISORS = (1, 2, 4, 8, 16, 32, 64, 3, 6, 12, 24, 48, 7, 14, 28, 5, 10, 20, 40)
"""Of height and width, in the order in which they are tried: powers of two of strides first, then those of patches and windows."""


def takes(network: SegmentationNetwork, size: tuple[int, int]) -> bool:
    """Return whether the network gives logits of a frame of (height, width) pixels."""
    try:
        with torch.inference_mode():
            network(torch.full((1, 3, *size), 0.5, device=network.mean.device))
    except Exception:  # whatever the network raises where sizes do not match
        return False
    return True


def find_divisor(network: SegmentationNetwork) -> int | None:
    """Return what height and width must be divisible by, whatever the network's stride; None where none of :data:`DIVISORS` is enough.

    Tried are frames of about 128 to 320 pixels whose sides are odd multiples of the divisor: a network that needs more fails there.
    """
    bare = SegmentationNetwork(network.body, network.description, stride=1).eval()
    for divisor in DIVISORS:
        times = -(-128 // divisor) | 1
        sides = divisor * times, divisor * (times + 2)
        if takes(bare, sides) and takes(bare, sides[::-1]):
            return divisor
    return None


def settle_size(network: SegmentationNetwork) -> None:
    """Let a network whose kind does not say what sizes it takes pad frames to those that it was found to take."""
    if network.stride == 1:
        divisor = find_divisor(network)
        network.description, network.stride = replace(network.description, divisor=divisor), divisor or 1
