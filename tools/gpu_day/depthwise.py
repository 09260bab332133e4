"""Dilated depthwise convolutions as sums of shifted products, beside cuDNN's.

A profile of DeepLabV3+ spent 40 to 46 % of its kernel time in cuDNN's convolution of single
channels with a dilation (docs/benchmarks.md). Commits c12846db and ba04b6e7 put a sum of shifted
products in its place in compiled passes, which inductor makes one kernel of. They went out of the
package unmeasured. :func:`shifted_products` is that sum.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, make_fx

from segunc.baselines.feature_extractor import hooked
from segunc.core.device import full_float32
from segunc.networks.network import SegmentationNetwork
from segunc.sampling import compiled as compiled_module
from segunc.sampling.sampler import CUDA_CHUNK_PIXELS
from segunc.uncertainty import relative_difference
from tools.bench_sampler import job, make_network
from tools.cost_table import in_turns
from tools.gpu_day.networks import (
    Size,
    arguments_of,
    dilated_network,
    dilated_sizes,
    size_words,
)
from tools.gpu_day.steps import Day, Row, Step
from tools.gpu_day.timing import kernel_seconds, prepare

WORTH_TAKING = 0.1
"""Share of the time of compiled maps that the sum has to save to come into the package."""
ROUNDS = 15
TINY_ROUNDS = 2
CONVOLUTION = torch.ops.aten.convolution.default
UNIT = 2.0**-24  # the largest relative error of one float32 operation
BFLOAT16_UNIT = 2.0**-8  # likewise of bfloat16
SMALLEST_NORMAL = torch.finfo(torch.float32).tiny


def steps(day: Day) -> Iterator[Step]:
    """Give the steps of the part ``depthwise``."""
    name = dilated_network(day)
    for size in dilated_sizes(day):
        words = f"{name.words} {size_words(size)}"
        yield Step(f"dilated layers of {words}", partial(measure_layers, day, size))
    yield Step(f"dilated layers in a compiled pass of {name.words}", partial(check_pass, day))
    for size in dilated_sizes(day):
        words = f"{name.words} {size_words(size)}"
        yield Step(
            f"compiled maps with shifted products, {words}", partial(measure_maps, day, size)
        )


def shifted_products(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    *_: Any,
) -> Any:
    """Return a dilated convolution of single channels as a sum of shifted products.

    The arguments are those of ``aten.convolution``. The weights become a constant of the graph, so
    this is for a network whose weights stay.

    Returns:
        ``[n, C, H, W]`` in the type of x, summed in float32; NotImplemented for any other
        convolution, which then stays what it is.
    """
    geometry = (stride, padding, dilation)
    if transposed or not isinstance(weight, nn.Parameter) or weight.dim() != 4:
        return NotImplemented
    if not is_dilated_depthwise(weight, x.shape[1], *geometry):
        return NotImplemented
    rows, columns = weight.shape[2:]
    height, width = x.shape[2:]
    with disable_proxy_modes_tracing():
        # [taps, C, 1, 1]: channels lie side by side, as in x.
        taps = weight.detach().flatten(2).permute(2, 1, 0).contiguous()[..., None, None]
    padded = F.pad(x, (padding[1], padding[1], padding[0], padding[0]))
    total = torch.zeros((), device=x.device)
    if bias is not None:
        total = bias.float().view(1, -1, 1, 1)
    places = itertools.product(range(rows), range(columns))
    for tap, (row, column) in zip(taps, places, strict=True):
        top = row * dilation[0]
        left = column * dilation[1]
        if abs(top - padding[0]) >= height or abs(left - padding[1]) >= width:
            continue  # it sees the padding alone
        shifted = padded[:, :, top : top + height, left : left + width]
        total = total + shifted.float() * tap.float()
    return total.to(x.dtype)


def is_dilated_depthwise(
    weight: Tensor,
    channels: int,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> bool:
    """Return whether a convolution has a dilation, single channels, and maps of the size of its
    input.
    """
    if weight.shape[1] != 1 or weight.shape[0] != channels:
        return False
    if set(stride) != {1} or max(dilation) == 1:
        return False
    for side, pad, step in zip(weight.shape[2:], padding, dilation, strict=True):
        if side % 2 == 0 or 2 * pad != step * (side - 1):
            return False
    return True


class Counter:
    """:func:`shifted_products`, and how many convolutions it took the place of."""

    def __init__(self) -> None:
        self.replaced = 0

    def __call__(self, *arguments: Any) -> Any:
        product = shifted_products(*arguments)
        if product is not NotImplemented:
            self.replaced += 1
        return product


@dataclass(frozen=True)
class Layer:
    """A dilated depthwise convolution of a network, without its bias, and what comes into it.

    Attributes:
        weight: ``[C, 1, k, k]``.
        padding: of rows and columns.
        dilation: likewise.
        shape: ``[1, C, H, W]`` of its input.
    """

    weight: Tensor
    padding: tuple[int, int]
    dilation: tuple[int, int]
    shape: torch.Size

    @property
    def words(self) -> str:
        _, channels, height, width = self.shape
        return f"{channels} x {height} x {width}, dilation {self.dilation[0]}"

    def convolution(self, x: Tensor) -> Tensor:
        weight = self.weight.to(x.dtype)
        return F.conv2d(x, weight, None, 1, self.padding, self.dilation, len(weight))

    def sizes(self, x: Tensor) -> Tensor:
        """Return the sums of the absolute products."""
        weight = self.weight.to(x.dtype).abs()
        return F.conv2d(x.abs(), weight, None, 1, self.padding, self.dilation, len(weight))

    def products(self, x: Tensor) -> Tensor:
        weight = nn.Parameter(self.weight, requires_grad=False)
        product = shifted_products(x, weight, None, (1, 1), self.padding, self.dilation, False)
        assert isinstance(product, Tensor), self.words
        return product


@torch.inference_mode()
def layers_of(network: SegmentationNetwork, images: Tensor, dtype: torch.dtype) -> list[Layer]:
    """Return the dilated depthwise convolutions of a network for images of a size, with weights of
    a type.
    """
    layers: list[Layer] = []

    def keep(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(module, nn.Conv2d)
        if isinstance(module.padding, str):
            return
        padding = (module.padding[0], module.padding[1])
        dilation = (module.dilation[0], module.dilation[1])
        channels = inputs[0].shape[1]
        if is_dilated_depthwise(module.weight, channels, module.stride, padding, dilation):
            weight = module.weight.to(dtype)
            layers.append(Layer(weight, padding, dilation, inputs[0].shape))

    convolutions = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    with hooked(convolutions, keep):
        network(images)
    return layers


@torch.inference_mode()
def measure_layers(day: Day, size: Size) -> Row:
    """Return the times of each dilated layer at its shape, and how many bounds both ways take.

    A pass has as many images as compiled draws of this size come in a batch.
    """
    network = make_network(arguments_of(day, dilated_network(day), size))
    dtype = torch.bfloat16 if day.on_gpu else torch.float32
    layers = layers_of(network, torch.rand(1, 3, *size, device=day.device), dtype)
    images = max(1, CUDA_CHUNK_PIXELS // 2 // (size[0] * size[1]))
    if day.tiny:
        images = 1
    row: Row = {"images": images, "layers": len(layers)}
    largest_share = 0.0
    for layer in layers:
        shape = (images, *layer.shape[1:])
        x = torch.randn(shape, device=day.device, dtype=dtype)
        x = x.contiguous(memory_format=torch.channels_last)
        sums: Any = torch.compile(frozen_products(layer, x), dynamic=False)
        with full_float32():
            shares = {
                "convolution": share_of_bound(layer, x, layer.convolution(x)),
                "sum": share_of_bound(layer, x, sums(x)),
            }
            runs = {"convolution": partial(layer.convolution, x), "sum": partial(sums, x)}
            ms = in_turns(runs, TINY_ROUNDS if day.tiny else ROUNDS, day.device)
        largest_share = max(largest_share, *shares.values())
        for name, value in ms.items():
            row[f"{layer.words}: {name}, ms"] = value
            row[f"{layer.words}: {name}, share of the bound"] = shares[name]
    row["met"] = bool(layers) and largest_share <= 1.0
    return row


def frozen_products(layer: Layer, x: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the graph of a layer's sum, whose weights are a constant."""

    def products(x: Tensor) -> Tensor:
        return layer.products(x)

    graph: Callable[[Tensor], Tensor] = make_fx(products)(x)
    return graph


def share_of_bound(layer: Layer, x: Tensor, result: Tensor) -> float:
    """Return the largest error of a result against float64, as a share of its bound.

    The sum of k products in float32 errs by at most ``k u sum |x w|`` up to terms of u^2, in any
    order and fused or not. Rounding the result to bfloat16 adds the share 2^-8.
    """
    exact = layer.convolution(x.double())
    products = layer.weight[0].numel()
    bound = (products + 1) * UNIT * layer.sizes(x.double()) + SMALLEST_NORMAL
    if result.dtype == torch.bfloat16:
        bound = bound + BFLOAT16_UNIT * (exact.abs() + bound)
    return float(((result.double() - exact).abs() / bound).max())


@torch.no_grad()
def check_pass(day: Day) -> Row:
    """Compare the logits of compiled passes in float32 with those of the network in float64."""
    size = dilated_sizes(day)[0]
    network = make_network(arguments_of(day, dilated_network(day), size))
    images = torch.rand(1, 3, *size, device=day.device)
    exact = copy.deepcopy(network).double()(images.double())
    counter = Counter()
    with full_float32():
        convolutions: Any = torch.compile(make_fx(network)(images), dynamic=False)
        graph = make_fx(network, {CONVOLUTION: counter})(images)
        sums: Any = torch.compile(graph, dynamic=False)
        of_convolutions = relative_difference(convolutions(images).double(), exact)
        of_sums = relative_difference(sums(images).double(), exact)
    met = counter.replaced > 0 and of_sums <= 2 * of_convolutions
    return {
        "convolutions replaced": counter.replaced,
        "convolutions, difference from float64": of_convolutions,
        "sums, difference from float64": of_sums,
        "met": met,
    }


def measure_maps(day: Day, size: Size) -> Row:
    """Return the times of compiled maps of ABNN draws, with convolutions and with sums in turns.

    The compiled engine compares each new graph with the plain pass, and leaves a wrong one out.
    """
    arguments = arguments_of(day, dilated_network(day), size, compiled=True)
    convolutions, _ = job("maps", arguments)
    of_convolutions = prepare(convolutions, day.device)
    sums, _ = job("maps", arguments)
    counter = Counter()
    with_sums = partial(make_fx, decomposition_table={CONVOLUTION: counter})
    with patch.object(compiled_module, "make_fx", with_sums):
        of_sums = prepare(sums, day.device)
    runs = {"convolutions": of_convolutions.run, "sums": of_sums.run}
    with day.turns:
        ms = in_turns(runs, TINY_ROUNDS if day.tiny else ROUNDS, day.device)
        kernels = kernel_seconds(of_convolutions, day.device)
        kernels_of_sums = kernel_seconds(of_sums, day.device)
    difference = largest_difference(convolutions(), sums())
    saved = 1.0 - ms["sums"] / ms["convolutions"]
    row: Row = {"convolutions replaced": counter.replaced}
    row |= {f"{name}, ms": value for name, value in ms.items()}
    if kernels and kernels_of_sums:
        row["convolutions, ms of kernels"] = 1e3 * kernels
        row["sums, ms of kernels"] = 1e3 * kernels_of_sums
        saved = 1.0 - kernels_of_sums / kernels
    row["saved"] = saved
    row["largest difference of entropy"] = difference
    row["take it into the package"] = "yes" if saved >= WORTH_TAKING else "no"
    row["met"] = counter.replaced > 0
    return row


def largest_difference(first: Any, second: Any) -> float:
    """Return the largest difference of two entropy maps in 0..1."""
    gap = first.scores["entropy"] - second.scores["entropy"]
    return float(gap.abs().max())
