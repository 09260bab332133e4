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
    """Return what height and width must be divisible by; None where no number of :data:`DIVISORS` is enough.

    Tried are frames of about 128 to 320 pixels whose sides are odd multiples of the divisor, as a network that needs more than it
    fails there. The network's own stride is not used.
    """
    stride, network.stride = network.stride, 1
    try:
        for divisor in DIVISORS:
            times = -(-128 // divisor) | 1
            sizes = [(divisor * times, divisor * (times + 2)), (divisor * (times + 2), divisor * times)]
            if all(takes(network, size) for size in sizes):
                return divisor
    finally:
        network.stride = stride
    return None


def settle_stride(network: SegmentationNetwork, scales: Iterable[float]) -> None:
    """Make a network pad frames at ``scales`` to what it takes, where nobody has said yet what that is: networks of kind ``python``
    whose folder records no divisor.

    Raises:
        InputError: the network takes frames of its own size alone.
    """
    description = network.description
    if description.kind != "python" or description.divisor is not None or network.stride > 1:
        return
    height, width = description.inference_size or (129, 193)  # a network for frames of any size takes odd ones
    if all(takes(network, (round(height * scale), round(width * scale))) for scale in scales):
        return
    if (divisor := find_divisor(network)) is None:
        given = f"a network that takes no frames of another size than {height} x {width}"
        raise InputError(given, "one that does, for test-time augmentation at several scales", "--tta.scales [1.0]")
    network.stride = divisor
