"""Feature maps stay channels last on a CPU, weights are arranged once, and the numbers are those of
the network as it is written.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segunc.affine.convert import convert
from segunc.affine.draws import AffineLayout
from segunc.core.device import Precision
from segunc.posteriors.abnn import ABNNPosterior
from segunc.sampling import Sampler, engine as engine_module
from segunc.sampling.engine import Engine
from segunc.sampling.layouts import ArrangedWeights, ChannelsLast
from segunc.uncertainty import relative_difference
from tests.affine.networks import randomise

IMAGES = torch.rand(1, 3, 32, 64, generator=torch.Generator().manual_seed(0)).contiguous(
    memory_format=torch.channels_last
)
NATIVE_BFLOAT16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()


class Pooled(nn.Module):
    """A branch that is pooled to one pixel and enlarged again, beside one that is not."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU())
        self.wide = nn.Conv2d(16, 16, 3, padding="same", groups=4)
        self.pooled = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, 8, 1), nn.BatchNorm2d(8), nn.ReLU()
        )
        self.decoder = nn.Sequential(
            nn.Conv2d(24, 24, 3, 1, 2, 2, groups=24), nn.BatchNorm2d(24), nn.Conv2d(24, 4, 1)
        )
        randomise(self.eval())

    def forward(self, x: Tensor) -> Tensor:
        features = self.encoder(x)
        pooled = F.interpolate(
            self.pooled(features), features.shape[-2:], mode="bilinear", align_corners=False
        )
        logits = self.decoder(torch.cat([pooled, self.wide(features)], 1))
        return F.interpolate(logits, x.shape[-2:], mode="bilinear", align_corners=False)


def formats_of(network: Pooled) -> list[bool]:
    """Return a list that gets whether each input of the decoder is channels last."""
    formats: list[bool] = []

    def note(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        formats.append(inputs[0].is_contiguous(memory_format=torch.channels_last))

    network.decoder[0].register_forward_pre_hook(note)
    return formats


@torch.inference_mode()
def test_a_branch_of_one_pixel_does_not_change_the_order_of_what_follows() -> None:
    network = Pooled().to(memory_format=torch.channels_last)
    engine = Engine(network, "float32")
    formats = formats_of(network)
    logits, _ = engine.logits(IMAGES, None, None)
    with engine.as_written():
        written, _ = engine.logits(IMAGES, None, None)
    assert formats == [True, False]
    assert relative_difference(logits, written) < 1e-6


@pytest.mark.skipif(not NATIVE_BFLOAT16, reason="the CPU does not multiply bfloat16")
@torch.inference_mode()
def test_bfloat16_passes_have_the_bits_of_the_network_as_written() -> None:
    engine = Engine(Pooled().to(memory_format=torch.channels_last), "bfloat16")
    logits, _ = engine.logits(IMAGES, None, None)
    with engine.as_written():
        written, _ = engine.logits(IMAGES, None, None)
    assert torch.equal(logits, written)


@torch.inference_mode()
def test_weights_are_arranged_once_for_all_passes() -> None:
    engine = Engine(Pooled(), "float32")
    for images in (IMAGES, 0.5 * IMAGES, torch.cat([IMAGES, IMAGES])):
        engine.logits(images, None, None)
    # Not the one whose padding is a word.
    assert len(engine._weights) == 4


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@torch.inference_mode()
def test_the_size_that_comes_first_changes_no_bit(precision: Precision) -> None:
    """By it oneDNN chooses how weights are arranged."""
    network = Pooled()
    large = torch.rand(2, 3, 160, 256).contiguous(memory_format=torch.channels_last)
    engine = Engine(network, precision)
    engine.logits(IMAGES, None, None)
    later, _ = engine.logits(large, None, None)
    first, _ = Engine(network, precision).logits(large, None, None)
    assert torch.equal(later, first)


def test_passes_with_gradients_run_as_written() -> None:
    engine = Engine(Pooled(), "float32")
    logits, _ = engine.logits(IMAGES, None, None)
    assert len(engine._weights) == 0
    assert logits.requires_grad


class Standardised(nn.Conv2d):
    """A convolution whose weight is computed in each pass."""

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight - self.weight.mean(), self.bias, self.stride, self.padding)


CONVOLUTIONS: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "defaults": lambda x, weight, bias: F.conv2d(x, weight),
    "bias": lambda x, weight, bias: F.conv2d(x, weight, bias),
    "pairs": lambda x, weight, bias: F.conv2d(x, weight, bias, (2, 1), (1, 0), (1, 2)),
    "numbers": lambda x, weight, bias: F.conv2d(x, weight, bias, 2, 1, 2),
    "a word": lambda x, weight, bias: F.conv2d(x, weight, bias, 1, "same"),
    "by keyword": lambda x, weight, bias: F.conv2d(input=x, weight=weight, stride=2),
    "one image": lambda x, weight, bias: F.conv2d(x[0], weight, bias),
    "no image": lambda x, weight, bias: F.conv2d(x[:0], weight, bias),
}


@pytest.mark.parametrize("call", CONVOLUTIONS)
@torch.inference_mode()
def test_every_call_of_a_convolution_has_its_result(call: str) -> None:
    x = torch.rand(2, 6, 9, 11)
    weight = nn.Parameter(torch.rand(4, 6, 3, 3) - 0.5)
    bias = nn.Parameter(torch.rand(4))
    expected = CONVOLUTIONS[call](x, weight, bias)
    with ChannelsLast(ArrangedWeights()):
        found = CONVOLUTIONS[call](x, weight, bias)
    torch.testing.assert_close(found, expected)


@torch.inference_mode()
def test_a_weight_that_is_computed_in_each_pass_is_not_arranged() -> None:
    layer = Standardised(3, 4, 3)
    weights = ArrangedWeights()
    expected = layer(IMAGES)
    with ChannelsLast(weights):
        torch.testing.assert_close(layer(IMAGES), expected)
    assert len(weights) == 0


@torch.inference_mode()
def write(weight: nn.Parameter, values: Tensor) -> None:
    weight.copy_(values)


def write_unseen(weight: nn.Parameter, values: Tensor) -> None:
    weight.data.copy_(values)  # no version counter rises


def exchange(weight: nn.Parameter, values: Tensor) -> None:
    weight.data = values


class Dynamic(nn.Module):
    """A network that computes the weight of a convolution from each frame."""

    def __init__(self, store: Callable[[nn.Parameter, Tensor], None]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.dynamic = nn.Conv2d(8, 4, 3, padding=1)
        self.register_buffer("filters", torch.randn(4, 8, 3, 3))
        self.store = store

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        features = self.norm(self.first(images)).relu()
        self.store(self.dynamic.weight, self.filters * images.mean())
        logits: Tensor = self.dynamic(features)
        return logits


@pytest.mark.parametrize("store", [write, write_unseen, exchange])
def test_a_parameter_that_each_pass_computes_is_not_arranged(
    store: Callable[[nn.Parameter, Tensor], None],
) -> None:
    network = randomise(Dynamic(store).eval())
    sampler = Sampler(copy.deepcopy(network))  # which nothing else calls
    for frame in (IMAGES, 0.1 * IMAGES, IMAGES):
        expected = network(frame).softmax(1)
        found = sampler(frame, keep_probabilities=True).probabilities
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


def test_a_wrong_call_raises_what_torch_raises() -> None:
    weight = nn.Parameter(torch.rand(4, 6, 3, 3))
    with ChannelsLast(ArrangedWeights()):
        with pytest.raises(RuntimeError, match="expected input"):
            F.conv2d(torch.rand(1, 5, 9, 9), weight)
        with pytest.raises(RuntimeError, match="Kernel size"):
            F.conv2d(torch.rand(1, 6, 2, 2), weight)


@torch.inference_mode()
def test_joined_tensors_of_other_dimensions_are_left() -> None:
    with ChannelsLast(ArrangedWeights()):
        assert torch.cat([torch.ones(2, 3), torch.zeros(1, 3)]).shape == (3, 3)
        assert torch.cat([IMAGES, torch.empty(0)]).shape == IMAGES.shape


def test_a_weight_that_is_trained_on_is_arranged_again() -> None:
    network = Pooled()
    convert(network)
    posterior = ABNNPosterior.around(AffineLayout(network), 0.1)
    sampler = Sampler(network, posterior, draws=2)
    before = sampler(IMAGES).scores["entropy"]
    with torch.no_grad():
        head: Any = network.decoder[2]
        head.weight.mul_(0.5)
    after = sampler(IMAGES).scores["entropy"]
    fresh = Sampler(network, posterior, draws=2)(IMAGES).scores["entropy"]
    assert torch.equal(after, fresh)
    assert not torch.allclose(after, before)


def test_weights_that_are_arranged_wrongly_are_found_and_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Wrong(ArrangedWeights):
        def of(self, weight: nn.Parameter, shape: torch.Size, settings: Any) -> Tensor:
            return super().of(nn.Parameter(1.1 * weight), shape, settings)

    network = Pooled()
    convert(network)
    posterior = ABNNPosterior.around(AffineLayout(network), 0.1)
    scores = ("entropy", "deterministic-entropy")
    expected = Sampler(network, posterior, draws=3, scores=scores)(IMAGES)
    monkeypatch.setattr(engine_module, "ArrangedWeights", Wrong)
    sampler = Sampler(network, posterior, draws=3, scores=scores)
    sampler.warns = False
    found = sampler(IMAGES)
    for score in scores:
        torch.testing.assert_close(
            found.scores[score], expected.scores[score], atol=2e-6, rtol=1e-5
        )
    assert any("cannot be arranged" in message for message in sampler.report.messages)
