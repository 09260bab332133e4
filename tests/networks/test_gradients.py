"""Networks that predicted before they are trained."""

import copy
import functools

import pytest
import torch
from torch import Tensor, nn

from segunc.core.errors import InputError
from segunc.networks.gradients import run_with_gradients

IMAGES = torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))


class Keeps(nn.Module):
    """Multiplies by a ramp that it makes in its first pass, and keeps in some kind of place."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 3, 1)
        self.place = place
        self.kept: dict[str, list[Tensor]] = {}
        self.ramp: tuple[Tensor, ...] = ()

    def forward(self, images: Tensor) -> Tensor:
        if self.place == "function":
            return self.layer(images) * ramp()
        if self.place == "buffer" and "constant" not in self._buffers:
            self.register_buffer("constant", torch.linspace(0.5, 1.5, 4), persistent=False)
        if not self.kept:
            self.kept["ramps"] = [torch.linspace(0.5, 1.5, 4)]
            self.ramp = (torch.linspace(0.5, 1.5, 4),)
        places = {"tuple": self.ramp, "nested": self.kept["ramps"]}
        places["buffer"] = [self._buffers.get("constant")]
        return self.layer(images) * places[self.place][0]


@functools.cache
def ramp() -> Tensor:
    return torch.linspace(0.5, 1.5, 4)


@pytest.mark.parametrize("place", ["tuple", "nested", "buffer"])
@pytest.mark.parametrize("copied", [False, True])
def test_what_was_kept_from_inference_is_trained_with(place: str, copied: bool) -> None:
    network = Keeps(place)
    with torch.inference_mode():
        network(IMAGES)
    network = copy.deepcopy(network) if copied else network
    run_with_gradients(network, IMAGES).sum().backward()
    expected = (IMAGES * torch.linspace(0.5, 1.5, 4)).sum((0, 2, 3)).expand(3, 3)
    torch.testing.assert_close(network.layer.weight.grad[..., 0, 0], expected)


def test_what_cannot_be_replaced_is_said() -> None:
    network = Keeps("function")
    ramp.cache_clear()
    with torch.inference_mode():
        network(IMAGES)
    with pytest.raises(InputError, match="keeps a tensor that it made in inference mode"):
        run_with_gradients(network, IMAGES)


def test_other_errors_of_a_network_pass() -> None:
    with pytest.raises(RuntimeError, match="expected input"):
        run_with_gradients(nn.Conv2d(4, 3, 1), IMAGES)
