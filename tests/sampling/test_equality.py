"""The engine against a plain loop at the ends of what it may meet: odd sizes, one draw, 1 and 150 classes, bfloat16.

Every smp architecture runs inside :class:`SegmentationNetwork`, which pads odd sizes and crops the logits, so that the
early end, the crop and the tail are checked together.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from segunc.affine.convert import convert
from segunc.affine.draws import AffineLayout
from segunc.networks import NetworkDescription, SegmentationNetwork, build_network
from segunc.posteriors.abnn import ABNN
from segunc.sampling import Prediction, Sampler
from tests.sampling.test_engine import assert_maps_of_a_plain_loop
from tools.identity_table import architectures, randomise

ODD = (67, 93)
EXACT = 2e-5
"""Largest difference of a map in 0..1 in float32: only the order of sums differs."""
BFLOAT16_MEAN, BFLOAT16_LARGEST = 0.02, 0.35
"""Mean and largest difference of a map in 0..1 between bfloat16 and float32 for random networks, whose logits are closer
to each other than those of trained ones."""


def network(architecture: str, classes: int) -> SegmentationNetwork:
    torch.manual_seed(0)
    encoder = "tu-vit_tiny_patch16_224" if architecture == "DPT" else "resnet18"
    options = {"dynamic_img_size": True} if architecture == "DPT" else {}
    names = tuple(f"class {index}" for index in range(classes))
    built = build_network(NetworkDescription(architecture, encoder, names, options=options))
    randomise(built.eval())
    convert(built.body)
    return built


def exact_maps(of: SegmentationNetwork, draws: int, images: Tensor) -> Prediction:
    """The maps in float32, which are those of a plain loop."""
    layout = AffineLayout(of)
    posterior = ABNN.around(layout, 0.1)
    sampler = Sampler(of, posterior, draws=draws, seed=3, scheme="independent")
    assert_maps_of_a_plain_loop(sampler, layout, posterior, images, EXACT)
    found = sampler(images)
    if draws == 1:
        assert not found.scores["epistemic"].any(), "one draw has nothing to disagree with"
        assert torch.equal(found.scores["entropy"], found.scores["aleatoric"])
    return found


@pytest.fixture(autouse=True)
def flushed() -> None:
    torch.set_flush_denormal(True)


@pytest.mark.parametrize("architecture", architectures())
def test_odd_sizes_and_one_draw(architecture: str) -> None:
    size = (131, 135) if architecture == "PAN" else ODD  # its pyramid needs four cells of stride 32
    images = torch.rand(1, 3, *size, generator=torch.Generator().manual_seed(1))
    exact_maps(network(architecture, 5), 1, images)


# DeepLabV3+ ends in an upsampling, Unet does not.
@pytest.mark.parametrize(
    ("architecture", "classes", "draws"),
    [("DeepLabV3Plus", 1, 3), ("DeepLabV3Plus", 2, 3), ("DeepLabV3Plus", 150, 3), ("Unet", 1, 1), ("Unet", 150, 1)],
)
def test_numbers_of_classes(architecture: str, classes: int, draws: int) -> None:
    images = torch.rand(2, 3, *ODD, generator=torch.Generator().manual_seed(2))
    of = network(architecture, classes)
    exact = exact_maps(of, draws, images)
    if classes == 1:
        assert not any(exact.scores[name].any() for name in ("msp", "entropy", "aleatoric", "epistemic"))
        assert not exact.prediction.any()
    posterior = ABNN.around(AffineLayout(of), 0.1)
    rounded = Sampler(of, posterior, draws=draws, seed=3, scheme="independent", precision="bfloat16")(images)
    for name in ("msp", "entropy", "aleatoric", "epistemic"):
        gap = (rounded.scores[name] - exact.scores[name]).abs()
        assert float(gap.mean()) <= BFLOAT16_MEAN, name
        assert float(gap.max()) <= BFLOAT16_LARGEST, name
