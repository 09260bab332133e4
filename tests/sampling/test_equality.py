"""The engine against a plain loop at the ends of what it may meet: odd sizes, one draw, one class, 150 classes, bfloat16.

Every smp architecture runs inside :class:`SegmentationNetwork`, which pads odd sizes and crops the logits, so that the early
end, the crop and the tail are checked together.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from segunc.affine.convert import convert
from segunc.affine.draws import AffineLayout
from segunc.networks import NetworkDescription, SegmentationNetwork, build_network
from segunc.posteriors.abnn import ABNN
from segunc.sampling import Sampler
from segunc.sampling.prediction import Prediction
from segunc.sampling.sampler import Precision
from tests.scores.stacked import decompose_draws
from tools.identity_table import architectures, randomise

ODD = (67, 93)
EXACT = 2e-5
"""Largest difference of a map in 0..1 in float32: only the order of sums differs."""
BFLOAT16_MEAN, BFLOAT16_LARGEST = 0.02, 0.35
"""Mean and largest difference of a map in 0..1 between bfloat16 and float32 for random networks, whose logits are closer to
each other than those of trained ones."""


def network(architecture: str, classes: int) -> SegmentationNetwork:
    torch.manual_seed(0)
    encoder = "tu-vit_tiny_patch16_224" if architecture == "DPT" else "resnet18"
    options = {"dynamic_img_size": True} if architecture == "DPT" else {}
    names = tuple(f"class {index}" for index in range(classes))
    built = build_network(NetworkDescription(architecture, encoder, names, options=options))
    randomise(built.eval())
    convert(built.body)
    return built


def maps(of: nn.Module, draws: int, images: torch.Tensor, precision: Precision = "float32") -> Prediction:
    posterior = ABNN.around(AffineLayout(of), 0.1)
    sampler = Sampler(of, posterior, draws=draws, seed=3, scheme="independent", precision=precision)
    return sampler(images, keep_probabilities=True)


def assert_equal_to_a_loop(of: nn.Module, draws: int, images: torch.Tensor) -> Prediction:
    layout = AffineLayout(of)
    posterior = ABNN.around(layout, 0.1)
    held = []
    with torch.no_grad():
        for draw in range(draws):
            with layout.active(posterior.affine(layout, [draw], 3)):
                held.append(of(images).softmax(1))
    expected = decompose_draws(torch.stack(held))
    found = maps(of, draws, images)
    torch.testing.assert_close(found.probabilities, torch.stack(held).mean(0), atol=EXACT, rtol=0)
    for name in ("entropy", "aleatoric", "epistemic"):
        torch.testing.assert_close(found.scores[name], getattr(expected, name), atol=EXACT, rtol=0)
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
    assert_equal_to_a_loop(network(architecture, 5), 1, images)


# DeepLabV3+ ends in an upsampling, Unet does not.
@pytest.mark.parametrize(
    ("architecture", "classes", "draws"),
    [("DeepLabV3Plus", 1, 3), ("DeepLabV3Plus", 2, 3), ("DeepLabV3Plus", 150, 3), ("Unet", 1, 1), ("Unet", 150, 1)],
)
def test_numbers_of_classes(architecture: str, classes: int, draws: int) -> None:
    images = torch.rand(2, 3, *ODD, generator=torch.Generator().manual_seed(2))
    of = network(architecture, classes)
    exact = assert_equal_to_a_loop(of, draws, images)
    if classes == 1:
        assert not any(exact.scores[name].any() for name in ("msp", "entropy", "aleatoric", "epistemic"))
        assert not exact.prediction.any()
    rounded = maps(of, draws, images, "bfloat16")
    for name in ("msp", "entropy", "aleatoric", "epistemic"):
        gap = (rounded.scores[name] - exact.scores[name]).abs()
        assert float(gap.mean()) <= BFLOAT16_MEAN, name
        assert float(gap.max()) <= BFLOAT16_LARGEST, name
