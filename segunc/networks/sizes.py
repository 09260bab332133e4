"""What sizes of frames a network takes, found by trial."""

from __future__ import annotations

from dataclasses import replace

import torch

from segunc.networks.network import SegmentationNetwork

DIVISORS = (1, 2, 4, 8, 16, 32, 64, 3, 6, 12, 24, 48, 7, 14, 28, 5, 10, 20, 40)
"""Of height and width, in the order in which they are tried: powers of two of strides first, then those of patches and windows."""


def takes(network: SegmentationNetwork, size: tuple[int, int]) -> bool:
    """Whether the network gives logits of a frame of (height, width) pixels."""
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
