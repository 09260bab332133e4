"""Networks that predicted before they are trained."""

import copy
import functools

import pytest
import torch
from torch import Tensor, nn

from segunc.core.errors import InputError
from segunc.networks.gradients import run_with_gradients

IMAGES = torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))


def new_ramp() -> Tensor:
    return torch.linspace(0.5, 1.5, 4)


class Keeping(nn.Module):
    """Multiplies by a ramp that it makes in its first pass, and keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 3, 1)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.layer(images) * self.ramp()
        return logits

    def ramp(self) -> Tensor:
        raise NotImplementedError


class InTuple(Keeping):
    kept: tuple[Tensor, ...] = ()

    def ramp(self) -> Tensor:
        if not self.kept:
            self.kept = (new_ramp(),)
        return self.kept[0]


class InNestedList(Keeping):
    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, list[Tensor]] = {}

    def ramp(self) -> Tensor:
        if not self.kept:
            self.kept["ramps"] = [new_ramp()]
        return self.kept["ramps"][0]


class InBuffer(Keeping):
    def ramp(self) -> Tensor:
        if "constant" not in self._buffers:
            self.register_buffer("constant", new_ramp(), persistent=False)
        return self.get_buffer("constant")


cached_ramp = functools.cache(new_ramp)


class InFunction(Keeping):
    def ramp(self) -> Tensor:
        return cached_ramp()


@pytest.mark.parametrize("kind", [InTuple, InNestedList, InBuffer])
@pytest.mark.parametrize("copied", [False, True])
def test_what_was_kept_from_inference_is_trained_with(kind: type[Keeping], copied: bool) -> None:
    network = kind()
    with torch.inference_mode():
        network(IMAGES)
    if copied:
        network = copy.deepcopy(network)
    run_with_gradients(network, IMAGES).sum().backward()
    expected = (IMAGES * new_ramp()).sum((0, 2, 3)).expand(3, 3)
    gradient = network.layer.weight.grad
    assert gradient is not None
    torch.testing.assert_close(gradient[..., 0, 0], expected)


def test_what_cannot_be_replaced_is_said() -> None:
    network = InFunction()
    cached_ramp.cache_clear()
    with torch.inference_mode():
        network(IMAGES)
    with pytest.raises(InputError, match="keeps a tensor that it made in inference mode"):
        run_with_gradients(network, IMAGES)


def test_other_errors_of_a_network_pass() -> None:
    with pytest.raises(RuntimeError, match="expected input"):
        run_with_gradients(nn.Conv2d(4, 3, 1), IMAGES)
