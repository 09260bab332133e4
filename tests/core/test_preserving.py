"""A training is as it was after whatever ran in the middle of it."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import segunc
from segunc.core.preserving import random_sources, seed_random_sources


@pytest.fixture
def network() -> nn.Module:
    """A network in training, with gradients, a frozen layer and a layer in eval mode."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.Conv2d(4, 2, 1))
    body[3].weight.requires_grad_(False)
    body[1].eval()
    body(torch.rand(2, 3, 8, 8)).sum().backward()
    return body


def state_of(network: nn.Module) -> list[Any]:
    """Everything that a training continues from."""
    state: list[Any] = [module.training for module in network.modules()]
    for tensor in (*network.parameters(), *network.buffers()):
        gradient = None if tensor.grad is None else tensor.grad.tolist()
        place = (id(tensor), tensor.data_ptr(), tensor.stride(), tensor.dtype)
        state.append((place, tensor.tolist(), tensor.requires_grad, gradient))
    return state


def disturb(network: nn.Module) -> None:
    """Change all that can be changed."""
    network.train(not network.training)
    for parameter in network.parameters():
        parameter.requires_grad_(not parameter.requires_grad)
        parameter.data.mul_(2).add_(1)
    network(torch.rand(2, 3, 8, 8)).sum().backward()
    norm: Any = network[1]
    norm.running_mean = torch.full((4,), 7.0)
    norm.train()
    norm(torch.rand(2, 4, 8, 8))
    network.to(memory_format=torch.channels_last).double()


def test_a_network_is_as_it_was(network: nn.Module) -> None:
    before = state_of(network)
    with segunc.preserve_training(network):
        disturb(network)
        assert state_of(network) != before
    assert state_of(network) == before


def test_a_network_is_as_it_was_after_an_error(network: nn.Module) -> None:
    before = state_of(network)

    def fail() -> None:
        with segunc.preserve_training(network):
            disturb(network)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert state_of(network) == before


def test_nan_stays_nan(network: nn.Module) -> None:
    layer: Any = network[0]
    layer.weight.data[0] = torch.nan
    before = layer.weight.detach().clone()
    with segunc.preserve_training(network):
        layer.weight.data.zero_()
    torch.testing.assert_close(layer.weight.detach(), before, rtol=0, atol=0, equal_nan=True)


def test_no_gradient_of_the_training_is_added_to(network: nn.Module) -> None:
    gradients = [parameter.grad for parameter in network.parameters()]
    with segunc.preserve_training(network):
        assert all(parameter.grad is None for parameter in network.parameters())
    after = [parameter.grad for parameter in network.parameters()]
    assert all(one is other for one, other in zip(gradients, after, strict=True))


DRAWS: list[Callable[[], float]] = [
    random.random,
    np.random.rand,
    lambda: float(torch.rand(())),
]


@pytest.mark.parametrize("draw", DRAWS)
def test_random_numbers_of_the_process_go_on(draw: Callable[[], float]) -> None:
    with segunc.preserve_training():
        expected = draw()
    with segunc.preserve_training():
        draw()
        draw()
    assert draw() == expected


class Crop:
    """A transform with generators of its own, as albumentations has them."""

    def __init__(self) -> None:
        self.parts = {"numpy": np.random.default_rng(0), "python": random.Random(0)}
        self.old = [np.random.RandomState(0)]

    def __call__(self, image: Tensor) -> Tensor:
        numbers = self.parts["numpy"].random() + self.parts["python"].random() + self.old[0].rand()
        return image * numbers


class Images(torch.utils.data.Dataset[Tensor]):
    def __init__(self) -> None:
        self.transform = Crop()

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Tensor:
        return self.transform(torch.full((2,), float(index + 1)))


def passes(loader: DataLoader[Any]) -> Iterator[list[Any]]:
    while True:
        yield [batch.tolist() for batch in loader]


def test_generators_of_a_loader_and_its_data_set_go_on() -> None:
    def new_loader() -> DataLoader[Any]:
        return DataLoader(
            Images(), batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(3)
        )

    alone = passes(new_loader())
    loader = new_loader()
    disturbed = passes(loader)
    assert next(alone) == next(disturbed)
    with segunc.preserve_training(loader):
        next(passes(loader))
    assert next(alone) == next(disturbed)


def test_generators_are_found_in_functions_and_methods() -> None:
    held = [random.Random(number) for number in range(3)]
    inner = held[0]

    def closure() -> float:
        return inner.random()

    class Owner:
        def __init__(self, source: random.Random) -> None:
            self.source = source
            self.itself = self

        def draw(self) -> float:
            return self.source.random()

    things = [closure, functools.partial(print, held[1]), Owner(held[2]).draw]
    assert {id(source) for source in random_sources(things)} == {id(source) for source in held}


def test_generators_start_from_a_seed_in_whatever_holds_them() -> None:
    def numbers(crop: Crop) -> list[float]:
        seed_random_sources([crop], 4)
        return [float(crop(torch.ones(1))) for _ in range(3)]

    moved = Crop()
    moved(torch.ones(1))
    assert numbers(moved) == numbers(Crop())
    generator = torch.Generator()
    seed_random_sources({"loader": generator}.values(), 4)
    assert generator.initial_seed() == 4


def test_gradients_are_made_where_the_training_makes_none(network: nn.Module) -> None:
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        with segunc.preserve_training(network):
            logits = network(torch.rand(2, 3, 8, 8))
            logits.sum().backward()
            assert logits.dtype == torch.float32
        assert torch.is_inference_mode_enabled()
        assert network(torch.rand(2, 3, 8, 8)).dtype == torch.bfloat16


def test_settings_of_the_process_are_as_they_were() -> None:
    threads = torch.get_num_threads()
    with segunc.preserve_training():
        torch.set_num_threads(threads + 1)
        torch.set_default_dtype(torch.float64)
        torch.use_deterministic_algorithms(True)
    assert torch.get_num_threads() == threads
    assert torch.get_default_dtype() == torch.float32
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_loop_trains_the_same_network_with_a_fit_in_its_middle() -> None:
    """The plain loop: weights bit for bit, with dropout, BatchNorm, momentum and a shuffle."""

    def train(with_fit: bool) -> list[Any]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        net += nn.Sequential(nn.Dropout2d(0.3), nn.Conv2d(4, 3, 1))
        data = [(torch.rand(3, 16, 16), torch.randint(0, 3, (16, 16))) for _ in range(6)]
        loader = DataLoader(data, batch_size=2, shuffle=True)  # type: ignore[arg-type]
        optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
        for _ in range(3):
            net.train()
            for images, labels in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(images), labels).backward()
                optimizer.step()
            if with_fit:
                with segunc.preserve_training(net, loader):
                    base = segunc.wrap(net, ["road", "car", "sky"], mean=(0, 0, 0), std=(1, 1, 1))
                    model = segunc.ABNN(members=2, epochs=1).fit(base, loader)
                    model(np.zeros((16, 16, 3), np.uint8))
        return [*state_of_values(net), optimizer.state_dict()["state"][0]["momentum_buffer"]]

    alone = train(with_fit=False)
    disturbed = train(with_fit=True)
    assert all(torch.equal(one, other) for one, other in zip(alone, disturbed, strict=True))


def state_of_values(network: nn.Module) -> list[Tensor]:
    return list(network.state_dict().values())
