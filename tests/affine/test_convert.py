"""Conversion keeps what a network computes, and says what it did."""

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from segunc.affine.convert import StochasticSite, convert, is_converted, revert
from segunc.affine.draws import AffineDraws, AffineLayout
from segunc.core.errors import InputError
from segunc.posteriors.abnn import ABNNPosterior
from segunc.verbs.doctor import IDENTITY_BOUND, conversion_difference
from tests.affine.networks import LAYERS, Pixelwise, SequenceFirst, randomise, small_network
from tools.identity_table import batch_difference, build, cells, measure


def converted_with_layer(name: str) -> nn.Module:
    torch.manual_seed(0)
    network = randomise(Pixelwise(LAYERS[name]()).eval())
    convert(network)
    return network


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_is_one_site_of_8_channels(name: str) -> None:
    report = convert(Pixelwise(LAYERS[name]()).eval())
    assert len(report.sites) == 1, "a shared layer is one site"
    assert not report.left
    assert report.channels == 8


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_keeps_its_output(name: str) -> None:
    network = converted_with_layer(name)
    images = torch.randn(3, 3, 6, 8)
    assert conversion_difference(network, images) <= IDENTITY_BOUND


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_batches_its_draws(name: str) -> None:
    network = converted_with_layer(name)
    images = torch.randn(3, 3, 6, 8)
    assert batch_difference(network, images) <= IDENTITY_BOUND


@pytest.mark.parametrize(("architecture", "encoder"), list(cells()))
def test_every_smp_architecture(architecture: str, encoder: str) -> None:
    torch.set_flush_denormal(True)
    network = build(architecture, encoder)
    if network is None:
        pytest.skip(f"smp does not accept {architecture} with {encoder}")
    size = 128 if architecture == "PAN" else 64
    sites, identity, batched = measure(network, size=size)
    assert sites > 5
    assert identity <= IDENTITY_BOUND
    assert batched <= IDENTITY_BOUND


def test_a_conversion_is_judged_in_whole_float32() -> None:
    """On a GPU, where TF32 is the default of convolutions, every network was called unsound."""
    network = Pixelwise(nn.BatchNorm2d(8)).eval()
    precisions: list[str] = []
    network.register_forward_pre_hook(
        lambda *_: precisions.append(torch.backends.cudnn.conv.fp32_precision)
    )
    convert(network)
    conversion_difference(network, torch.randn(1, 3, 6, 8))
    assert {*precisions} == {"ieee"}


@pytest.fixture
def in_training() -> nn.Module:
    return Pixelwise(nn.BatchNorm2d(8, eps=0.01, momentum=0.2)).train()


def test_mode_settings_and_class_survive(in_training: nn.Module) -> None:
    convert(in_training)
    norm = in_training.get_submodule("norm")
    assert norm.training
    assert isinstance(norm, nn.BatchNorm2d)
    assert isinstance(norm, StochasticSite)
    assert norm.eps == 0.01
    assert norm.momentum == 0.2


def test_the_state_dict_survives(in_training: nn.Module) -> None:
    before = copy.deepcopy(in_training.state_dict())
    convert(in_training)
    after = in_training.state_dict()
    assert list(after) == list(before)
    for name, value in before.items():
        assert torch.equal(after[name], value), name


def test_a_converted_network_still_trains(in_training: nn.Module) -> None:
    convert(in_training)
    before = in_training.get_buffer("norm.running_mean").clone()
    in_training(torch.randn(4, 3, 6, 6))
    assert not torch.equal(in_training.get_buffer("norm.running_mean"), before)


def test_a_conversion_is_reverted(in_training: nn.Module) -> None:
    convert(in_training)
    in_training(torch.randn(4, 3, 6, 6))
    revert(in_training)
    assert type(in_training.get_submodule("norm")) is nn.BatchNorm2d
    assert not is_converted(in_training)


class Followed(nn.BatchNorm2d):
    """A BatchNorm with another function behind it, and a channel of a huge mean over a tiny
    variance.
    """

    def __init__(self, behind: Any = None) -> None:
        super().__init__(8)
        self.behind = behind or nn.Identity()
        self.running_mean[3] = -200.0  # type: ignore[index]
        self.running_var[3] = 1e-12  # type: ignore[index]

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.behind(super().forward(input))


def replaced() -> nn.Module:
    layer = nn.BatchNorm2d(8)
    layer.forward = lambda x: nn.BatchNorm2d.forward(layer, x).relu()  # type: ignore[method-assign]
    return layer


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (Followed(behind=nn.ReLU()), "forward of Followed"),
        (Followed(behind=nn.Softshrink(0.1)), "forward of Followed"),
        (Followed(behind=nn.Hardtanh(-100.0, 100.0)), "forward of Followed"),
        (replaced(), "replaced"),
        (parametrizations.weight_norm(nn.LayerNorm(8), dim=None), "weight is computed"),
        (nn.BatchNorm2d(8, affine=False), "no affine"),
    ],
)
def test_a_layer_that_cannot_be_drawn_is_left_with_the_reason(
    layer: nn.Module, reason: str
) -> None:
    report = convert(nn.Sequential(nn.Conv2d(3, 8, 1), layer, Followed()))
    drawn = [site.name for site in report.sites]
    assert drawn == ["2"], "one that only passes its input on is drawn"
    assert [left.name for left in report.left] == ["1"]
    assert reason in report.left[0].reason


@pytest.mark.parametrize(
    ("layers", "reason"),
    [
        (
            [nn.Conv2d(3, 4, 1), nn.ReLU()],
            "no normalisation layer",
        ),
        (
            [nn.BatchNorm2d(3), nn.BatchNorm2d(3, track_running_stats=False)],
            "1: BatchNorm2d without running",
        ),
    ],
)
def test_what_cannot_be_converted_is_refused_and_nothing_changes(
    layers: list[nn.Module], reason: str
) -> None:
    network = nn.Sequential(*layers)
    with pytest.raises(InputError, match=reason):
        convert(network)
    assert not is_converted(network)


def test_a_converted_network_is_not_converted_again() -> None:
    network = small_network()
    convert(network)
    with pytest.raises(InputError, match="converted already"):
        convert(network)


@dataclass
class ConvertedNorm:
    """A converted BatchNorm, an input of it, and what it made of this input before."""

    network: nn.Module
    x: torch.Tensor
    expected: torch.Tensor

    @property
    def norm(self) -> nn.Module:
        return self.network.get_submodule("0")

    def base_draw(self) -> Any:
        """Let the layer run with a draw without noise."""
        layout = AffineLayout(self.network)
        return layout.active(ABNNPosterior.around(layout, 0.0).affine(layout, [0], 0))


@pytest.fixture
def converted_norm() -> ConvertedNorm:
    network = randomise(nn.Sequential(nn.BatchNorm2d(8)).eval())
    x = torch.randn(2, 8, 3, 5)
    expected = network(x)
    convert(network)
    return ConvertedNorm(network, x, expected)


def test_a_layer_may_be_called_by_keyword(converted_norm: ConvertedNorm) -> None:
    norm = converted_norm.norm
    torch.testing.assert_close(norm(input=converted_norm.x), converted_norm.expected)
    with converted_norm.base_draw():
        torch.testing.assert_close(norm(input=converted_norm.x), converted_norm.expected)


def test_a_layer_may_be_called_with_none_more_but_with_no_tensor(
    converted_norm: ConvertedNorm,
) -> None:
    x = converted_norm.x
    with converted_norm.base_draw():
        torch.testing.assert_close(converted_norm.norm(x, None), converted_norm.expected)
        with pytest.raises(InputError, match="further arguments"):
            converted_norm.norm(x, x)


def test_sequence_first_networks_differ_as_a_batch() -> None:
    # The case that the sampler's self-check exists for: with 48 tokens, 2 draws divide the first
    # axis.
    network = randomise(Pixelwise(SequenceFirst()).eval())
    convert(network)
    images = torch.randn(1, 3, 6, 8)
    assert conversion_difference(network, images) <= IDENTITY_BOUND
    assert batch_difference(network, images) > 1e-3


class OwnFrozen(nn.Module):
    """The frozen BatchNorm of detection frameworks: four buffers and an eps that only its code
    knows.
    """

    def __init__(self, behind: Any = None) -> None:
        super().__init__()
        self.behind = behind
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, torch.linspace(0.5, 1.5, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = self.weight * (self.running_var + 1e-5).rsqrt()
        shift = self.bias - self.running_mean * scale
        y = x * scale[:, None, None] + shift[:, None, None]
        return y if self.behind is None else self.behind(y)


class InPlaceBN(OwnFrozen):
    """Changes its input in place, with which the network may go on."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.copy_(super().forward(x))


def test_a_frozen_batch_norm_of_the_users_own_is_drawn() -> None:
    torch.manual_seed(0)
    network = Pixelwise(OwnFrozen()).eval()
    plain = copy.deepcopy(network)
    assert [site.kind for site in convert(network).sites] == ["batch"]
    images = torch.rand(1, 3, 6, 8)
    layout = AffineLayout(network)
    gamma = torch.linspace(-1.0, 2.0, 8)
    with layout.active(AffineDraws(gamma[None], layout.bias[None])):
        drawn = network(images)
    plain.norm.weight.copy_(gamma)
    torch.testing.assert_close(drawn, plain(images))


class OwnScale(nn.Module):
    """Ends in gamma * x + beta, under names of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(8, 1, 1))
        self.beta = nn.Parameter(torch.zeros(8, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gamma * (x - x.mean(1, keepdim=True)) + self.beta


class ABN(nn.Module):
    """Named like a normalisation, with a weight alone."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale[:, None, None]


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (OwnFrozen(behind=torch.relu), "the forward of OwnFrozen is not that of a batch"),
        (InPlaceBN(), "the forward of InPlaceBN is not that of a batch"),
        (OwnScale(), "OwnScale has no known per-channel affine"),
        (ABN(), "ABN has no known per-channel affine"),
    ],
)
def test_what_looks_like_a_normalisation_and_is_not_drawn_is_named(
    layer: nn.Module, reason: str
) -> None:
    report = convert(nn.Sequential(nn.Conv2d(3, 8, 1), layer, nn.BatchNorm2d(8)).eval())
    assert [left.name for left in report.left] == ["1"]
    assert f"e.g. 1 ({reason}" in str(report)


def test_layers_with_weights_for_channels_are_not_all_normalisations() -> None:
    network = nn.Sequential(
        nn.Conv2d(8, 8, 1, groups=8),
        nn.Linear(1, 1),
        nn.PReLU(8),
        nn.Embedding(8, 1),
        nn.BatchNorm2d(8),
    )
    assert not convert(network.eval()).left


def test_scripted_layers_beside_a_normalisation_are_passed_over() -> None:
    encoder = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())
    scripted = torch.jit.script(encoder)
    network = nn.Sequential(scripted, nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1)).eval()
    images = torch.rand(1, 3, 4, 6, generator=torch.Generator().manual_seed(0))
    expected = network(images)
    report = convert(network)
    assert [site.name for site in report.sites] == ["1"]
    torch.testing.assert_close(network(images), expected)
