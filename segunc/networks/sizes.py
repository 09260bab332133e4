"""What sizes of frames a network takes, found by trial."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from segunc.core.errors import InputError
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


def settle_stride(network: SegmentationNetwork, scales: Iterable[float]) -> None:
    """Make a network pad frames at ``scales`` to what it takes, if its folder does not say what that is: one of kind ``python`` that
    an earlier version imported, or that takes frames of one size alone, for which this raises InputError."""
    height, width = network.description.inference_size or (129, 193)  # a network for frames of any size takes odd ones
    if network.description.kind != "python" or network.description.divisor is not None or network.stride > 1:
        return
    if not all(takes(network, (round(height * scale), round(width * scale))) for scale in scales):
        if (divisor := find_divisor(network)) is None:
            given = f"a network that takes no frames of another size than {height} x {width}"
            raise InputError(given, "one that does, for test-time augmentation at several scales", "--tta.scales [1.0]")
        network.stride = divisor
