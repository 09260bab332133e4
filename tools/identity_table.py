"""The identity table: every smp architecture with several encoders, converted and compared with
itself.

For each pair, in float32 with randomised affine parameters and statistics and a batch of 3 frames,
the largest difference of logits relative to the largest logit: draws at alpha = 0 against the
unconverted network, and two draws at alpha = 0.1 as a batch against the same draws one by one.

    python -m tools.identity_table [--markdown]
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator

import segmentation_models_pytorch as smp
import torch
from torch import Tensor, nn

from segunc import ABNNPosterior, AffineLayout, InputError, convert
from segunc.core.device import full_float32
from segunc.verbs.doctor import IDENTITY_BOUND, conversion_difference

ENCODERS = (
    "resnet18",
    "efficientnet-b0",
    "mobilenet_v2",
    "tu-mobilenetv3_small_100",
    "tu-convnext_atto",
    "mit_b0",
)
VIT = "tu-vit_tiny_patch16_224"


class Plain(nn.Module):
    """A hand-written network with one BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 5, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x)
        return logits


class TorchvisionDeepLab(nn.Module):
    """torchvision's DeepLabV3 ResNet-50 without its dictionary."""

    def __init__(self) -> None:
        super().__init__()
        from torchvision.models.segmentation import deeplabv3_resnet50

        self.network = deeplabv3_resnet50(weights=None, weights_backbone=None, num_classes=5)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.network(x)["out"]
        return logits


def architectures() -> list[str]:
    """The smp architectures by class name."""
    return [cls.__name__ for cls in smp.MODEL_ARCHITECTURES_MAPPING.values()]


def build(architecture: str, encoder: str) -> nn.Module | None:
    """The network, or None where smp does not accept the pair."""
    options = {"dynamic_img_size": True} if architecture == "DPT" else {}
    try:
        return smp.create_model(architecture, encoder, encoder_weights=None, classes=5, **options)
    except (KeyError, ValueError, RuntimeError, NotImplementedError, AttributeError, TypeError):
        return None


def randomise(network: nn.Module) -> None:
    """Random affine parameters and statistics: fresh ones (1, 0, 0, 1) would hide a lost statistic
    or bias.
    """
    generator = torch.Generator().manual_seed(1)

    def uniform(tensor: Tensor, low: float, high: float) -> None:
        tensor.data.copy_(torch.rand(tensor.shape, generator=generator) * (high - low) + low)

    for module in network.modules():
        if "norm" in type(module).__name__.lower():
            if isinstance(getattr(module, "weight", None), Tensor):
                uniform(module.weight, 0.5, 1.5)
            if isinstance(getattr(module, "bias", None), Tensor):
                uniform(module.bias, -0.2, 0.2)
            if isinstance(getattr(module, "running_mean", None), Tensor):
                uniform(module.running_mean, -0.2, 0.2)
                uniform(module.running_var, 0.5, 2.0)


def measure(network: nn.Module, size: int = 128) -> tuple[int, float, float]:
    """Norm sites, identity difference and batch difference of a network that is converted here."""
    torch.manual_seed(0)
    randomise(network.eval())
    report = convert(network)
    images = torch.rand(3, 3, size, size)
    return (
        len(report.sites),
        conversion_difference(network, images),
        batch_difference(network, images),
    )


@torch.inference_mode()
@full_float32()
def batch_difference(network: nn.Module, images: Tensor) -> float:
    """The largest difference of two draws at alpha = 0.1 of a converted network as a batch and one
    by one, relative to the largest logit; infinite where the network does not keep the batch
    outermost.
    """
    layout = AffineLayout(network)
    noisy = ABNNPosterior.around(layout, 0.1)
    single = []
    for draw in (0, 1):
        with layout.active(noisy.affine(layout, [draw], 0)):
            single.append(network(images))
    expected = torch.cat(single)
    try:
        with layout.active(noisy.affine(layout, [0, 1], 0)):
            return float(
                (network(images.repeat(2, 1, 1, 1)) - expected).abs().max()
                / expected.abs().max().clamp_min(1e-12)
            )
    except InputError:
        return math.inf


def cells() -> Iterator[tuple[str, str]]:
    """All pairs of the table."""
    for architecture in architectures():
        for encoder in (VIT,) if architecture == "DPT" else ENCODERS:
            yield architecture, encoder


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--markdown", action="store_true", help="print a table for the documentation"
    )
    arguments = parser.parse_args()
    torch.set_flush_denormal(True)
    rows: list[tuple[str, str, str]] = []
    worst = 0.0
    named: list[tuple[str, str, nn.Module | None]] = [
        ("torchvision DeepLabV3", "resnet50", TorchvisionDeepLab())
    ]
    named.append(("plain module", "-", Plain()))
    pairs = [(a, e, None) for a, e in cells()]
    for architecture, encoder, given in [*pairs, *named]:
        network = given or build(architecture, encoder)
        if network is None:
            rows.append((architecture, encoder, "smp does not accept the pair"))
        else:
            sites, identity, batched = measure(network)
            worst = max(worst, identity, batched)
            rows.append(
                (
                    architecture,
                    encoder,
                    f"{sites:3d} sites, alpha 0: {identity:.1e}, batch: {batched:.1e}",
                )
            )
        row = rows[-1]
        print(
            (
                f"| {' | '.join(row)} |"
                if arguments.markdown
                else f"{row[0]:22s} {row[1]:26s} {row[2]}"
            ),
            flush=True,
        )
    print(
        f"\nlargest difference {worst:.1e} of the largest logit (bound {IDENTITY_BOUND:.0e}); torch"
        f" {torch.__version__}, smp {smp.__version__}"
    )
    return 0 if worst <= IDENTITY_BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
