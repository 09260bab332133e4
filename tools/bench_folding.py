"""Whether a drawn affine pays in the weights of the convolution before it: seconds of a pass on a
CPU, the best of several.

    python -m tools.bench_folding DeepLabV3Plus resnet18 512x1024 bfloat16

Rows: the affine as a function of its own, as the sampler runs it; a network without any affine,
which is faster than any folding can be; and folding itself, where each pass multiplies the weights
of each convolution and arranges them again. Weights are random: time does not depend on them.
"""

from __future__ import annotations

import copy
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segunc import NetworkDescription, build_network
from segunc.options import image_size
from segunc.sampling.layouts import ArrangedWeights, ChannelsLast
from tools.measuring import provenance

PASSES = 10
ROUNDS = 2
CLASSES = 19


class Affine(nn.Module):
    """A batch norm in eval mode as a drawn affine: a scale and a shift for each channel."""

    def __init__(self, norm: nn.BatchNorm2d, dtype: torch.dtype) -> None:
        super().__init__()
        assert norm.running_var is not None
        assert norm.running_mean is not None
        scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
        shift = norm.bias - norm.running_mean * scale
        self.scale = scale.detach().to(dtype).view(1, -1, 1, 1)
        self.shift = shift.detach().to(dtype).view(1, -1, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.shift, x, self.scale)


class FoldedEachPass(ChannelsLast):
    """Multiplies the weights of each convolution before it, as another draw would need."""

    def _convolve(self, args: tuple[Any, ...]) -> Tensor:
        images, weight, *others = args
        scale = torch.ones(len(weight), 1, 1, 1)
        drawn = (weight.float() * scale).to(weight.dtype)
        channels_last = images.contiguous(memory_format=torch.channels_last)
        return F.conv2d(channels_last, drawn, *others)


def replace_norms(network: nn.Module, replacement: Callable[[nn.BatchNorm2d], nn.Module]) -> None:
    """Replace each batch norm of a network."""
    for name, child in list(network.named_children()):
        if isinstance(child, nn.BatchNorm2d):
            setattr(network, name, replacement(child))
        else:
            replace_norms(child, replacement)


def best_seconds(network: nn.Module, images: Tensor, mode: ChannelsLast) -> float:
    """Return the seconds of the fastest of several passes behind one that is not timed."""
    seconds: list[float] = []
    for _ in range(PASSES + 1):
        start = time.perf_counter()
        with mode:
            network(images)
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


def main(words: Sequence[str]) -> None:
    architecture, encoder, size, precision = words
    dtype: torch.dtype = getattr(torch, precision)
    classes = tuple(str(number) for number in range(CLASSES))
    network = build_network(NetworkDescription(architecture, encoder, classes)).eval()
    network.to(memory_format=torch.channels_last)
    drawn = copy.deepcopy(network)
    replace_norms(drawn, lambda norm: Affine(norm, dtype))
    plain = copy.deepcopy(network)
    replace_norms(plain, lambda norm: nn.Identity())
    drawn.to(dtype)
    plain.to(dtype)
    images = torch.rand(1, 3, *image_size(size)).to(dtype)
    images = images.contiguous(memory_format=torch.channels_last)
    rows = {
        "affine as a function": (drawn, ChannelsLast(ArrangedWeights())),
        "no affine": (plain, ChannelsLast(ArrangedWeights())),
        "folded in each pass": (plain, FoldedEachPass(ArrangedWeights())),
    }
    seconds: dict[str, list[float]] = {name: [] for name in rows}
    with torch.no_grad():
        for _ in range(ROUNDS):
            for name, (timed, mode) in rows.items():
                seconds[name].append(best_seconds(timed, images, mode))
    print(json.dumps({**provenance(), "seconds": seconds}, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
