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
        logits: Tensor = self.head(self.norm(features).relu() + kept)
        return logits + self.further(images)[:, :1]


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
    network = randomised(with_a_layer_from_outside())
    with pytest.raises(InputError, match="would use the layer first of the original"):
        check_copyable(network)


def test_weights_of_the_original_are_refused_by_name() -> None:
    network = randomised(with_weights_from_outside())
    with pytest.raises(InputError, match="would use the tensor first"):
        copy_network(network)


def test_a_network_that_cannot_be_copied_is_refused() -> None:
    network = randomised(Skipping())
    network.lock = (number for number in range(3))  # type: ignore[assignment]
    with pytest.raises(InputError, match="the network cannot be copied"):
        copy_network(network)


State = dict[str, Tensor]


def state_of(network: nn.Module) -> State:
    return {name: value.clone() for name, value in network.state_dict().items()}


def assert_same_state(network: nn.Module, expected: State) -> None:
    for name, value in network.state_dict().items():
        assert torch.equal(value, expected[name])


def modes_of(network: nn.Module) -> list[bool]:
    """Return which modules are in training mode."""
    return [module.training for module in network.modules()]


@pytest.fixture
def mixed_modes() -> nn.Module:
    """A network in training mode, but for its norm layer."""
    network = randomised(Skipping()).train()
    network.norm.eval()  # type: ignore[union-attr, operator]
    return network


def test_a_copy_has_the_modes_of_its_original(mixed_modes: nn.Module) -> None:
    copied = copy_network(mixed_modes)
    assert modes_of(copied) == [True, True, False, True]
    assert modes_of(mixed_modes) == [True, True, False, True]


def test_a_copy_has_the_statistics_of_its_original(mixed_modes: nn.Module) -> None:
    before = state_of(mixed_modes)
    assert_same_state(copy_network(mixed_modes), before)


class Noisy(Skipping):
    def forward(self, images: Tensor) -> Tensor:
        noise = np.random.default_rng().normal(size=(1, 5, 1, 1))
        return super().forward(images) + torch.from_numpy(noise).float()


def test_a_network_that_draws_random_numbers_can_be_copied() -> None:
    copy_network(randomised(Noisy()))


def test_fit_refuses_a_network_whose_copy_reads_another_image() -> None:
    classes = ("a", "b", "c", "d", "e")
    model = segunc.wrap(randomised(hooked_on_itself()), classes)
    model(IMAGE)
    abnn = segunc.ABNN(alpha=0.1)
    with pytest.raises(InputError, match="a copy of the network"):
        abnn.fit(model)


def test_bfloat16_of_a_network_whose_copy_reads_another_image_runs_under_autocast() -> None:
    network = randomised(hooked_on_itself())
    exact = Sampler(network, Deterministic(), draws=1)
    sampler = Sampler(network, Deterministic(), draws=1, precision="bfloat16")
    images = torch.rand(1, 3, 64, 96, generator=torch.Generator().manual_seed(0))
    difference = sampler(images).scores["entropy"] - exact(images).scores["entropy"]
    assert float(difference.abs().max()) < 0.02
    assert any("it runs under autocast" in message for message in sampler.report.messages)


@pytest.fixture
def with_depthwise_layer() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 1),
        nn.BatchNorm2d(4),
        nn.Conv2d(4, 4, 3, padding=1, groups=4),
    )


def test_the_share_of_depthwise_layers(with_depthwise_layer: nn.Module) -> None:
    # Multiply-adds a pixel: 3 x 4 of the first layer, 9 x 4 of the depthwise one.
    assert depthwise_share(with_depthwise_layer) == 36 / 48


def test_the_share_of_depthwise_layers_leaves_modes_and_statistics_alone(
    with_depthwise_layer: nn.Module,
) -> None:
    before = state_of(with_depthwise_layer)
    depthwise_share(with_depthwise_layer)
    assert all(modes_of(with_depthwise_layer))
    assert_same_state(with_depthwise_layer, before)


@pytest.fixture
def one_output() -> nn.Module:
    """A network that makes one logit z."""
    network = nn.Sequential(
        nn.Conv2d(3, 4, 3, 1, 1),
        nn.BatchNorm2d(4),
        nn.Conv2d(4, 1, 1),
    )
    return randomised(network)


def wrapped(one_output: nn.Module) -> segunc.Model:
    classes = ("background", "road")
    return segunc.wrap(one_output, classes, mean=(0, 0, 0), std=(1, 1, 1))


def test_entropy_of_one_output_is_that_of_its_sigmoid(one_output: nn.Module) -> None:
    """As alpha 0 leaves it."""
    fitted = segunc.ABNN(alpha=0.0).fit(wrapped(one_output))
    maps = fitted(IMAGE, draws=1)
    images = torch.from_numpy(IMAGE).permute(2, 0, 1)[None] / 255
    p = one_output(images).double().sigmoid()[0, 0]
    of_road = torch.special.xlogy(p, p)
    of_background = torch.special.xlogy(1 - p, 1 - p)
    entropy = -(of_road + of_background) / np.log(2)
    np.testing.assert_allclose(maps.entropy, entropy.numpy(), atol=1e-5)


def test_draws_of_one_output_differ(one_output: nn.Module) -> None:
    fitted = segunc.ABNN(alpha=0.3).fit(wrapped(one_output))
    maps = fitted(IMAGE, draws=4)
    assert maps.epistemic.max() > 1e-3
