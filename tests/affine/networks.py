"""Small networks for the tests of conversion, draws and sampling."""

import torch
from timm.layers import BatchNormAct2d, GroupNormAct, LayerNorm2d, LayerNormAct2d
from torch import Tensor, nn
from torchvision.ops import FrozenBatchNorm2d

from segunc.affine.convert import convert
from segunc.affine.draws import AffineLayout


class Pixelwise(nn.Module):
    """Convolution, one given layer, convolution to 4 classes; 8 channels in between."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = layer
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.stem(x)))
        return logits


class ChannelsLast(nn.Module):
    """A norm over the last axis, as in transformers."""

    def __init__(self, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.norm = norm or nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Reshaped(nn.Module):
    """A norm over another number of axes than height and width."""

    def __init__(self, norm: nn.Module, *shape: int) -> None:
        super().__init__()
        self.norm = norm
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        reshaped = x.reshape(*x.shape[:2], *self.shape)
        return self.norm(reshaped).view_as(x)


def shared() -> nn.Module:
    norm = nn.BatchNorm2d(8)
    return nn.Sequential(norm, nn.Conv2d(8, 8, 1), norm)


class WindowFolding(nn.Module):
    """Folds 2 x 2 windows into the batch, draw-major, as Swin does."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        windows = x.view(n, c, 2, h // 2, 2, w // 2)
        tokens = windows.permute(0, 2, 4, 3, 5, 1).reshape(n * 4, -1, c)
        windows = self.norm(tokens).view(n, 2, 2, h // 2, w // 2, c)
        return windows.permute(0, 5, 1, 3, 2, 4).reshape(n, c, h, w)


class SequenceFirst(nn.Module):
    """Puts the tokens before the batch: draws as a batch come out wrong here, and must be
    noticed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(2).permute(2, 0, 1)
        return self.norm(tokens).permute(1, 2, 0).view_as(x)


LAYERS = {
    "BatchNorm2d": lambda: nn.BatchNorm2d(8),
    "BatchNorm1d": lambda: Reshaped(nn.BatchNorm1d(8), -1),
    "BatchNorm3d": lambda: Reshaped(nn.BatchNorm3d(8), 1, 1, -1),
    "SyncBatchNorm": lambda: nn.SyncBatchNorm(8),
    "timm BatchNormAct2d": lambda: BatchNormAct2d(8),
    "timm GroupNormAct": lambda: GroupNormAct(8, group_size=4),
    "timm LayerNormAct2d": lambda: LayerNormAct2d(8),
    "timm LayerNorm2d": lambda: LayerNorm2d(8),
    "torchvision FrozenBatchNorm2d": lambda: FrozenBatchNorm2d(8),
    "GroupNorm": lambda: nn.GroupNorm(2, 8),
    "LayerNorm": ChannelsLast,
    "RMSNorm": lambda: ChannelsLast(nn.RMSNorm(8)),
    "InstanceNorm2d": lambda: nn.InstanceNorm2d(8, affine=True),
    "InstanceNorm2d running": lambda: nn.InstanceNorm2d(8, affine=True, track_running_stats=True),
    "InstanceNorm1d": lambda: Reshaped(nn.InstanceNorm1d(8, affine=True), -1),
    "InstanceNorm3d": lambda: Reshaped(nn.InstanceNorm3d(8, affine=True), 1, 1, -1),
    "shared BatchNorm2d": shared,
    "windows in the batch": WindowFolding,
}
"""Every form of normalisation layer that is converted, in a module from 8 to 8 channels."""


RANGES = (
    ("weight", 0.5, 1.5),
    ("bias", -0.5, 0.5),
    ("running_mean", -0.5, 0.5),
    ("running_var", 0.3, 3.0),
)
"""Of the parameters and statistics of a normalisation layer: name, smallest and largest value."""


def randomise(network: nn.Module, seed: int = 0) -> nn.Module:
    """Random affine parameters and statistics; fresh ones would hide a lost statistic or bias."""
    generator = torch.Generator().manual_seed(seed)
    for module in network.modules():
        if "norm" not in type(module).__name__.lower():
            continue
        for name, low, high in RANGES:
            tensor = getattr(module, name, None)
            if isinstance(tensor, Tensor):
                values = torch.rand(tensor.shape, generator=generator)
                tensor.data.copy_(values * (high - low) + low)
    return network


def block(channels: int, norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, 8, 3, padding=1), norm, nn.ReLU())


def small_network(norm: nn.Module | None = None, seed: int = 0) -> nn.Module:
    """A converted-to-be network of two norm layers from 3 channels to 4 classes, randomised, in
    eval mode.
    """
    torch.manual_seed(seed)
    network = nn.Sequential()
    network.add_module("encoder", block(3, nn.BatchNorm2d(8)))
    network.add_module("decoder", block(8, norm or nn.BatchNorm2d(8)))
    network.add_module("head", nn.Conv2d(8, 4, 1))
    return randomise(network.eval())


@torch.no_grad()
def with_affine(network: nn.Module, gamma: Tensor, beta: Tensor) -> nn.Module:
    """A :func:`small_network` with other affine parameters ``[16]``."""
    encoder = network.get_submodule("encoder.1")
    encoder.get_parameter("weight").copy_(gamma[:8])
    encoder.get_parameter("bias").copy_(beta[:8])
    decoder = network.get_submodule("decoder.1")
    decoder.get_parameter("weight").copy_(gamma[8:])
    decoder.get_parameter("bias").copy_(beta[8:])
    return network


def layout_of(network: nn.Module) -> AffineLayout:
    convert(network)
    return AffineLayout(network)
