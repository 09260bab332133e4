"""Copies of networks against their originals: what Python does not copy is said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import segunc
from segunc.affine.posterior import Deterministic
from segunc.core.device import depthwise_share
from segunc.core.errors import InputError
from segunc.networks.copies import check_copyable, copy_network
from segunc.sampling import Sampler

IMAGE = np.random.default_rng(0).integers(0, 256, (128, 192, 3), dtype=np.uint8)


class Skipping(nn.Module):
    """Adds features that a hook kept, or calls something of its own, to those of its
    second layer.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Conv2d(4, 5, 1)
        self.skips: dict[str, Tensor] = {}
        self.further: Callable[[Tensor], Tensor] = torch.zeros_like

    def forward(self, images: Tensor) -> Tensor:
        features = self.first(images)
        kept = self.skips.get("first", torch.zeros(()))
        return self.head(self.norm(features).relu() + kept) + self.further(images)[:, :1]  # type: ignore[no-any-return]


def hooked_on_itself() -> Skipping:
    network = Skipping()

    def keep(layer: nn.Module, inputs: Any, output: Tensor) -> None:
        network.skips["first"] = output

    network.first.register_forward_hook(keep)
    return network


def with_a_layer_from_outside() -> Skipping:
    network = Skipping()
    inside = network.first
    network.further = lambda images: inside(images)
    return network


def with_weights_from_outside() -> Skipping:
    network = Skipping()
    inside = network.first.weight
    network.further = lambda images: F.conv2d(images, inside, padding=1)
    return network


def randomised(network: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.5)
    return network.eval().requires_grad_(False)


@pytest.mark.parametrize("seen_before", [False, True])
def test_a_hook_that_writes_into_the_original_is_refused(seen_before: bool) -> None:
    network = randomised(hooked_on_itself())
    if seen_before:
        network(torch.rand(1, 3, 128, 192))
    with pytest.raises(InputError, match="a copy of the network gives other logits"):
        copy_network(network)


def test_a_layer_of_the_original_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="would use the layer first of the original"):
        check_copyable(randomised(with_a_layer_from_outside()))


def test_weights_of_the_original_are_refused_by_name() -> None:
    with pytest.raises(InputError, match="would use the tensor first"):
        copy_network(randomised(with_weights_from_outside()))


def test_a_network_that_cannot_be_copied_is_refused() -> None:
    network = randomised(Skipping())
    network.lock = (number for number in range(3))  # type: ignore[assignment]
    with pytest.raises(InputError, match="the network cannot be copied"):
        copy_network(network)


def test_a_copy_has_the_modes_and_statistics_of_its_original() -> None:
    network = randomised(Skipping()).train()
    network.norm.eval()  # type: ignore[union-attr, operator]
    before = {name: value.clone() for name, value in network.state_dict().items()}
    copied = copy_network(network)
    assert [module.training for module in copied.modules()] == [True, True, False, True]
    assert [module.training for module in network.modules()] == [True, True, False, True]
    for name, value in copied.state_dict().items():
        assert torch.equal(value, before[name])


class Noisy(Skipping):
    def forward(self, images: Tensor) -> Tensor:
        noise = torch.from_numpy(np.random.default_rng().normal(size=(1, 5, 1, 1))).float()
        return super().forward(images) + noise


def test_a_network_that_draws_random_numbers_can_be_copied() -> None:
    copy_network(randomised(Noisy()))


def test_fit_refuses_a_network_whose_copy_reads_another_image() -> None:
    model = segunc.wrap(randomised(hooked_on_itself()), ("a", "b", "c", "d", "e"))
    model(IMAGE)
    with pytest.raises(InputError, match="a copy of the network"):
        segunc.ABNN(alpha=0.1).fit(model)


def test_bfloat16_of_a_network_whose_copy_reads_another_image_runs_under_autocast() -> None:
    network = randomised(hooked_on_itself())
    exact = Sampler(network, Deterministic(), draws=1)
    sampler = Sampler(network, Deterministic(), draws=1, precision="bfloat16")
    images = torch.rand(1, 3, 64, 96, generator=torch.Generator().manual_seed(0))
    difference = sampler(images).scores["entropy"] - exact(images).scores["entropy"]
    assert float(difference.abs().max()) < 0.02
    assert any("it runs under autocast" in message for message in sampler.report.messages)


def test_the_share_of_depthwise_layers_leaves_modes_and_statistics_alone() -> None:
    network = nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3, padding=1, groups=4)
    )
    before = {name: value.clone() for name, value in network.state_dict().items()}
    # 3 x 4 multiply-adds a pixel of the first layer, 9 x 4 of the depthwise one.
    assert depthwise_share(network) == 36 / 48
    assert all(module.training for module in network.modules())
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])


def test_fit_of_a_network_of_one_output_draws_two_classes() -> None:
    """Of one logit z the entropy is that of its sigmoid, as alpha 0 leaves it."""
    module = randomised(
        nn.Sequential(nn.Conv2d(3, 4, 3, 1, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 1, 1))
    )
    model = segunc.wrap(module, ("background", "road"), mean=(0, 0, 0), std=(1, 1, 1))
    maps = segunc.ABNN(alpha=0.0).fit(model)(IMAGE, draws=1)
    images = torch.from_numpy(IMAGE).permute(2, 0, 1)[None] / 255
    p = module(images).double().sigmoid()[0, 0]
    entropy = -(torch.special.xlogy(p, p) + torch.special.xlogy(1 - p, 1 - p)) / np.log(2)
    np.testing.assert_allclose(maps.entropy, entropy.numpy(), atol=1e-5)
    drawn = segunc.ABNN(alpha=0.3).fit(model)(IMAGE, draws=4)
    assert drawn.epistemic.max() > 1e-3
