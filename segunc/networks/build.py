"""A network from its description, whatever kind of network it is."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import nn

from segunc.core.registry import Registry
from segunc.networks.description import SMP, NetworkDescription
from segunc.networks.dropping import cut_last_layer, with_all_outputs
from segunc.networks.network import SegmentationNetwork

Build = Callable[[NetworkDescription], tuple[nn.Module, int]]
"""Makes the body with random weights (normalised images ``[N, 3, H, W]`` to logits ``[N, C, H, W]``) and says what height
and width must be divisible by (1: nothing). It loads no weights and opens no connection."""
KINDS: Registry[Build] = Registry(
    "kind of network",
    "segunc.networks",
    {
        SMP: "segunc.networks.smp:build",
        "torchvision": "segunc.networks.torchvision:build",
        "transformers": "segunc.networks.transformers:build",
        "python": "segunc.networks.python:build",
    },
)
"""What :attr:`NetworkDescription.kind` can name."""


def build_network(description: NetworkDescription) -> SegmentationNetwork:
    """A network with random weights; see :mod:`segunc.networks.files` for weights by path.

    Raises:
        InputError: an unknown kind, or a description that its kind cannot build.
    """
    dropped = description.dropped_outputs
    body, stride = KINDS[description.kind](with_all_outputs(description) if dropped else description)
    if description.last_layer:
        cut_last_layer(body, description)
    return SegmentationNetwork(body, description, math.lcm(stride, description.divisor or 1))
