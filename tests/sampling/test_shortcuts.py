"""What is decided on a first frame holds for the next ones: each is compared with a plain forward pass of the network."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segunc.affine.convert import convert
from segunc.affine.draws import AffineLayout
from segunc.core.errors import InputError, NotFiniteError
from segunc.networks import NetworkDescription, SegmentationNetwork
from segunc.posteriors.abnn import ABNNPosterior, ABNNTuner
from segunc.sampling import Sampler
from tests.affine.networks import randomise
from tests.sampling.plain import assert_maps_of_a_plain_loop, posterior_of

QUIET = 0.01 * torch.rand(1, 3, 32, 48, generator=torch.Generator().manual_seed(0))
LOUD = 40 * torch.randn(1, 3, 32, 48, generator=torch.Generator().manual_seed(1))
End = Callable[[Tensor, Tensor], Tensor]


class Ended(nn.Module):
    """Logits at half of the size, and any end."""

    def __init__(self, end: End = lambda _, low: upsampled(low)) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU())
        self.head, self.end = nn.Conv2d(8, 4, 1), end
        randomise(self.eval())

    def forward(self, images: Tensor) -> Tensor:
        return self.end(images, self.head(self.encoder(images)))


def upsampled(low: Tensor) -> Tensor:
    return F.interpolate(low, scale_factor=2, mode="bilinear", align_corners=False)


def masked(logits: Tensor) -> Tensor:
    logits[logits > 20] = 20.0
    return logits


def emptied(logits: Tensor) -> Tensor:
    logits[..., :-2].clamp_(-20, 20)  # through a view, and None is what counts
    return logits


ENDS: dict[str, End] = {
    "clamp in place": lambda _, low: upsampled(low).clamp_(-20, 20),
    "clamp into it": lambda _, low: torch.clamp(y := upsampled(low), -20, 20, out=y),
    "clamp of a view": lambda _, low: emptied(upsampled(low)),
    "clamp of its data": lambda _, low: (y := upsampled(low), y.data.clamp_(-20, 20))[0],
    "mask": lambda _, low: masked(upsampled(low)),
    "branch on the frame": lambda x, low: upsampled(low) if x.abs().mean() < 1 else upsampled(low).clamp(-20, 20),
    "branch on the logits": lambda _, low: upsampled(low if float(low.abs().amax()) < 20 else 0.1 * low),
}


@pytest.mark.parametrize("end", ENDS)
def test_an_end_that_the_first_frame_does_not_show(end: str) -> None:
    network = Ended(ENDS[end])
    with torch.no_grad():
        expected = [network(frame).softmax(1) for frame in (QUIET, LOUD)]
    convert(network)
    sampler = Sampler(network, ABNNPosterior.around(AffineLayout(network), 0.0), draws=1)
    for frame, probabilities in zip((QUIET, LOUD), expected, strict=True):
        result = sampler(frame, keep_probabilities=True).probabilities
        torch.testing.assert_close(result, probabilities, atol=1e-5, rtol=0)
    assert sampler.report.upsampled is False


def test_a_branch_that_a_draw_decides() -> None:
    network = Ended(lambda _, low: upsampled(low if float(low.mean()) < 0.3 else -low))
    sampler = Sampler(network, posterior_of(network, 1.0), draws=8, chunk=8)
    assert_maps_of_a_plain_loop(sampler, LOUD)
    assert any("branch" in message for message in sampler.report.messages)


def test_a_branch_is_taken_for_each_frame_of_a_batch() -> None:
    network = Ended(lambda x, low: upsampled(-low if float(x.max()) > 0.5 else low))
    frames = torch.cat([0.4 * LOUD.clamp(0, 1), LOUD.clamp(0, 1)])
    with torch.no_grad():
        expected = torch.cat([network(frame[None]).softmax(1) for frame in frames])
        assert not torch.allclose(network(frames).softmax(1), expected, atol=0.1)
    convert(network)
    sampler = Sampler(network, ABNNPosterior.around(AffineLayout(network), 0.0), draws=1)
    for _ in range(2):
        found = sampler(frames, keep_probabilities=True).probabilities
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


class Tiled(Ended):
    """Cuts frames wider than 64 pixels into tiles, which come before the frames in the batch."""

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[-1] <= 64:
            return super().forward(images)
        tiles = super().forward(torch.cat(list(torch.stack(images.chunk(2, -1), 1).flatten(0, 1).split(1))))
        return torch.cat(list(tiles.unflatten(0, (-1, 2)).unbind(1)), -1)


class TilesFirst(Ended):
    """The same with the tiles outermost: the draws are no more, as two draws of one frame are two tiles."""

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[-1] <= 64:
            return super().forward(images)
        return torch.cat(list(super().forward(torch.cat(images.chunk(2, -1))).chunk(2)), -1)


@pytest.mark.parametrize(("kind", "said"), [(Tiled, False), (TilesFirst, True)])
def test_draws_are_checked_at_each_size(kind: type[Ended], said: bool) -> None:
    network = kind()
    sampler = Sampler(network, posterior_of(network), draws=4, chunk=2)
    for columns in (64, 96, 64, 128):
        assert_maps_of_a_plain_loop(sampler, torch.rand(1, 3, 32, columns))
    assert any("96 x 32" in message for message in sampler.report.messages) is said


def test_random_numbers_of_the_network_are_named_as_such() -> None:
    network = Ended(lambda _, low: F.dropout(upsampled(low), 0.5, training=True))
    sampler = Sampler(network, posterior_of(network), draws=2)
    sampler(QUIET)
    assert "random numbers" in " ".join(sampler.report.messages)
    assert "as a batch" not in " ".join(sampler.report.messages)


def test_a_softmax_is_no_logit() -> None:
    network = Ended(lambda _, low: (upsampled(low) / 50).softmax(1))
    with pytest.raises(InputError, match="softmax"):
        Sampler(network)(QUIET)
    with pytest.raises(InputError, match="softmax"):
        ABNNTuner(network, 4).loss(QUIET, torch.zeros(1, 32, 48, dtype=torch.long), 0)
    said = Sampler(Ended(lambda _, low: upsampled(low).log_softmax(1)))
    said(QUIET)
    assert "log-softmax" in " ".join(said.report.messages)
    Sampler(Ended(lambda x, low: 0.25 + upsampled(low) * (x.abs() > 1).any()))(QUIET)  # sums to 1 at this frame alone


@pytest.mark.parametrize(
    ("images", "error", "said"),
    [
        (255 * torch.rand(1, 3, 32, 48), InputError, "255"),
        (torch.randn(1, 3, 32, 48), InputError, "normalisation"),
        (torch.zeros(1, 3, 32, 48, dtype=torch.uint8), InputError, "255"),
        (torch.full((1, 3, 32, 48), torch.nan), NotFiniteError, "NaN"),
    ],
)
def test_images_of_another_range(images: Tensor, error: type[Exception], said: str) -> None:
    network = SegmentationNetwork(Ended(), NetworkDescription("own", "", tuple("abcd")), 2).eval()
    with pytest.raises(error, match=said):
        Sampler(network)(images)
    with pytest.raises(error, match=said):
        ABNNTuner(network, 4).loss(images, torch.zeros(1, 32, 48, dtype=torch.long), 0)
