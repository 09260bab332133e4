"""Code of a network that function modes do not see: branches, changes and state that shortcuts must
not miss."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segunc.affine.convert import convert
from segunc.affine.draws import AffineLayout
from segunc.posteriors.abnn import ABNNPosterior
from segunc.sampling import Sampler
from tests.affine.networks import randomise
from tests.sampling.plain import (
    assert_maps_of_a_plain_loop,
    assert_mean_of,
    draw_logits,
    posterior_of,
)

IMAGES = torch.rand(1, 3, 32, 48, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """Logits of half the size, upsampled; ``change`` sees them before, and the frame."""

    def __init__(self, change: Callable[[Tensor], Tensor] = lambda low: low) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder: nn.Module = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU())
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Conv2d(8, 4, 1)
        self.change = change
        randomise(self.eval())

    def forward(self, images: Tensor) -> Tensor:
        features = self.norm(self.encoder(images))
        low = self.change(self.head(features))
        return F.interpolate(low, images.shape[-2:], mode="bilinear", align_corners=False)


def middle(network: Net) -> float:
    """Return a threshold between the draws' means of the logits, so that some draws lie on either
    side."""
    with torch.no_grad():
        logits = network.head(network.norm(network.encoder(IMAGES)))
    return float(logits.mean())


def read_repr(t: Tensor) -> float:
    """Read the number in ``tensor(0.5, dtype=torch.float64)``."""
    text = repr(t.mean().double())
    number = text.split("(")[1].split(",")[0]
    return float(number)


def read_slice(t: Tensor) -> float:
    """Read the mean as the length of a slice."""
    end = (t.mean() * 1e4).long() + 500_000
    length = 1.0 * len(torch.zeros(10**6)[:end])
    return length / 1e4 - 50


READS: dict[str, Callable[[Tensor], float]] = {
    "numpy": lambda t: float(t.numpy().mean()),
    "asarray": lambda t: float(np.asarray(t).mean()),
    "dlpack": lambda t: float(np.from_dlpack(t).mean()),
    "format": lambda t: float(f"{t.mean()}"),
    "repr": read_repr,
    "complex": lambda t: complex(t.mean()).real,
    "tolist": lambda t: sum(t.flatten().tolist()) / t.numel(),
    "data": lambda t: float(t.data.mean()),
    "a deep copy": lambda t: float(copy.deepcopy(t).mean()),
    "a slice": read_slice,
    "a scripted function": lambda t: torch.jit.script(_mean)(t),  # type: ignore[no-any-return]
}


def _mean(t: Tensor) -> float:
    return float(t.mean())


def assert_branch_is_seen(network: nn.Module) -> None:
    sampler = Sampler(network, posterior_of(network, 1.0), draws=8, chunk=8)
    assert_maps_of_a_plain_loop(sampler, IMAGES)
    assert any("branch" in message for message in sampler.report.messages)


@pytest.mark.parametrize("read", READS)
def test_a_branch_on_a_value_is_taken_for_each_draw(read: str) -> None:
    network = Net()
    threshold = middle(network)
    network.change = lambda low: low if READS[read](low) > threshold else -low
    assert_branch_is_seen(network)


@pytest.mark.parametrize("same", [torch.equal, torch.allclose])
def test_a_comparison_of_tensors_is_a_read(same: Callable[[Tensor, Tensor], bool]) -> None:
    network = Net(lambda low: low if same(low, low.clamp(-1e9, 2.0)) else 0.5 * low)
    assert_branch_is_seen(network)


def test_a_branch_behind_a_scripted_encoder_is_seen() -> None:
    network = Net()
    threshold = middle(network)
    network.encoder = torch.jit.script(network.encoder)
    network.change = lambda low: low if float(low.mean()) > threshold else -low
    assert_branch_is_seen(network)


@torch.jit.script
def clamp_in_place(logits: Tensor) -> None:
    logits.clamp_(-20.0, 20.0)


class Clamped(Net):
    def forward(self, images: Tensor) -> Tensor:
        logits = super().forward(images)
        clamp_in_place(logits)
        return logits


def test_a_scripted_function_that_changes_the_upsampled_logits_is_seen() -> None:
    """The first frame does not reach the bounds, the second does."""
    network = Clamped()
    frames = (0.01 * IMAGES, 1000 * IMAGES)
    with torch.no_grad():
        small, clamped = (network(frame) for frame in frames)
    assert float(small.abs().max()) < 20
    assert float(clamped.abs().max()) == 20
    convert(network)
    sampler = Sampler(network, ABNNPosterior.around(AffineLayout(network), 0.0), draws=1)
    for frame, logits in zip(frames, (small, clamped), strict=True):
        found = sampler(frame, keep_probabilities=True).probabilities
        torch.testing.assert_close(found, logits.softmax(1), atol=1e-5, rtol=0)
    assert sampler.report.upsampled is False


class CachedGrid(Net):
    """Keeps coordinates of the last size, which it makes of the frame."""

    grid: Tensor | None = None

    def forward(self, images: Tensor) -> Tensor:
        if self.grid is None or self.grid.shape[-2:] != images.shape[-2:]:
            self.grid = torch.ones_like(images[:1]).cumsum(-1) / images.shape[-1]
        return super().forward(images + self.grid)


def test_state_that_is_kept_for_a_size_does_not_end_the_run() -> None:
    network = CachedGrid()
    posterior = posterior_of(network)
    sampler = Sampler(network, posterior, draws=4, chunk=2)
    plain = copy.deepcopy(network)
    for columns in (48, 32, 48, 32):
        frame = IMAGES[..., :columns]
        found = sampler(frame, keep_probabilities=True)
        draws = list(draw_logits(plain, posterior, frame, 4))
        assert_mean_of(found, draws)
    shared = [message for message in sampler.report.messages if "cannot be shared" in message]
    assert len(shared) == 1


class Turning(Net):
    """Crops another side of the frame in each pass, once it is told to: the same functions on
    tensors of the same shapes. It is told by a dictionary, because numbers, texts and tuples that
    change between two calls are noticed before."""

    passes = 0

    def __init__(self) -> None:
        super().__init__()
        self.turns = {"each pass": 0}

    def forward(self, images: Tensor) -> Tensor:
        self.passes += self.turns["each pass"]
        left = self.passes % 2
        return super().forward(images[..., left : images.shape[-1] - 1 + left])


def test_an_operation_with_other_numbers_is_another_operation() -> None:
    network = Turning()
    sampler = Sampler(network, posterior_of(network), draws=2, chunk=1)
    sampler(IMAGES)
    assert sampler.report.messages == []
    network.turns["each pass"] = 1
    sampler(IMAGES)
    assert any("operation 2 on the frames" in message for message in sampler.report.messages)


def first_draw_lost(low: Tensor) -> Tensor:
    """Give the first draw the logits of the second where frames are wide and several draws come as
    a batch."""
    if low.shape[-1] > 128 and len(low) > 1:
        return torch.cat([low[1:2], low[1:]])
    return low


def test_every_draw_of_the_first_batch_is_compared() -> None:
    network = Net(first_draw_lost)
    sampler = Sampler(network, posterior_of(network), draws=4, chunk=4)
    assert_maps_of_a_plain_loop(sampler, torch.rand(1, 3, 16, 272))
    assert any("self-check failed" in message for message in sampler.report.messages)


class Scripted(Net):
    """A scripted part behind the first drawn layer."""

    def __init__(self) -> None:
        super().__init__()
        self.head: Any = torch.jit.script(self.head)


def test_a_part_that_cannot_be_followed_shares_nothing() -> None:
    network = Scripted()
    sampler = Sampler(network, posterior_of(network), draws=4, chunk=2)
    assert_maps_of_a_plain_loop(sampler, IMAGES)
    assert any("cannot be followed" in message for message in sampler.report.messages)


class Fill(torch.autograd.Function):
    """Writes into memory that it was given empty, as kernels outside of torch do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        filled = torch.empty_like(x)
        filled.data.copy_(x)
        return filled


def test_a_function_of_autograd_is_followed() -> None:
    network = Net()
    threshold = middle(network)
    apply: Callable[[Tensor], Tensor] = Fill.apply
    network.change = lambda low: low if float(apply(low).mean()) > threshold else -low
    assert_branch_is_seen(network)


def ask_for_sizes(low: Tensor) -> None:
    assert low.dim() == low.ndim == len(low.shape) == 4
    sizes = (
        low.size(0),
        low.numel(),
        low.stride(),
        low.storage_offset(),
        low.element_size(),
        len(low),
    )
    for size in sizes:
        assert size is not None


def looked_at(low: Tensor) -> Tensor:
    """Ask for everything of a tensor but its values."""
    ask_for_sizes(low)
    assert low.is_floating_point()
    assert not low.is_sparse
    assert low.type() == "torch.FloatTensor"
    assert low.is_contiguous() or low.is_contiguous(memory_format=torch.channels_last)
    counts = torch.tensor([0, 1, 2, 3])
    return low[:, counts] if int(counts[3]) == 3 else low


def test_shapes_and_constants_are_no_values_of_the_frame() -> None:
    network = Net(looked_at)
    sampler = Sampler(network, posterior_of(network), draws=4, chunk=2)
    assert_maps_of_a_plain_loop(sampler, IMAGES)
    assert sampler.report.messages == []
    assert sampler.report.upsampled
    assert sampler.report.shared
