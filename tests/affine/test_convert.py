"""Conversion keeps what a network computes, and says what it did."""

import copy
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


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_keeps_its_output_and_batches_its_draws(name: str) -> None:
    torch.manual_seed(0)
    network = randomise(Pixelwise(LAYERS[name]()).eval())
    report = convert(network)
    assert len(report.sites) == 1, "a shared layer is one site"
    assert not report.left
    assert report.channels == 8
    images = torch.randn(3, 3, 6, 8)
    assert (
        max(conversion_difference(network, images), batch_difference(network, images))
        <= IDENTITY_BOUND
    )


@pytest.mark.parametrize(("architecture", "encoder"), list(cells()))
def test_every_smp_architecture(architecture: str, encoder: str) -> None:
    torch.set_flush_denormal(True)
    network = build(architecture, encoder)
    if network is None:
        pytest.skip(f"smp does not accept {architecture} with {encoder}")
    sites, identity, batched = measure(network, size=128 if architecture == "PAN" else 64)
    assert sites > 5
    assert max(identity, batched) <= IDENTITY_BOUND


def test_a_conversion_is_judged_in_whole_float32() -> None:
    """On a GPU, where TF32 is the default of convolutions, every network was called unsound."""
    network, seen = Pixelwise(nn.BatchNorm2d(8)).eval(), list[str]()
    network.register_forward_pre_hook(
        lambda *_: seen.append(torch.backends.cudnn.conv.fp32_precision)
    )
    convert(network)
    conversion_difference(network, torch.randn(1, 3, 6, 8))
    assert {*seen} == {"ieee"}


def test_state_dict_modes_and_classes_survive() -> None:
    network = Pixelwise(nn.BatchNorm2d(8, eps=0.01, momentum=0.2)).train()
    before = copy.deepcopy(network.state_dict())
    convert(network)
    assert network.norm.training
    assert (network.norm.eps, network.norm.momentum) == (0.01, 0.2)
    assert isinstance(network.norm, nn.BatchNorm2d)
    assert isinstance(network.norm, StochasticSite)
    after = network.state_dict()
    assert list(before) == list(after)
    assert all(torch.equal(before[k], after[k]) for k in before)
    network(torch.randn(4, 3, 6, 6))
    assert not torch.equal(before["norm.running_mean"], network.norm.running_mean), (
        "it still trains"
    )
    revert(network)
    assert type(network.norm) is nn.BatchNorm2d
    assert not is_converted(network)


class Followed(nn.BatchNorm2d):
    """A BatchNorm with another function behind it, and a channel of a huge mean over a tiny
    variance.
    """

    def __init__(self, behind: Any = None) -> None:
        super().__init__(8)
        self.behind = behind or nn.Identity()
        self.running_mean[3], self.running_var[3] = -200.0, 1e-12  # type: ignore[index]

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
    assert [site.name for site in report.sites] == ["2"], (
        "one that only passes its input on is drawn"
    )
    assert [left.name for left in report.left] == ["1"]
    assert reason in report.left[0].reason


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ([nn.Conv2d(3, 4, 1), nn.ReLU()], "no normalisation layer"),
        (
            [nn.BatchNorm2d(3), nn.BatchNorm2d(3, track_running_stats=False)],
            "1: BatchNorm2d without running",
        ),
    ],
)
def test_what_cannot_be_converted_is_refused_and_nothing_changes(
    layers: list[nn.Module], said: str
) -> None:
    network = nn.Sequential(*layers)
    with pytest.raises(InputError, match=said):
        convert(network)
    assert not is_converted(network)
    convert(converted := small_network())
    with pytest.raises(InputError, match="converted already"):
        convert(converted)


def test_a_layer_may_be_called_by_keyword_but_not_with_more_than_its_input() -> None:
    network = randomise(nn.Sequential(nn.BatchNorm2d(8)).eval())
    norm, x = network[0], torch.randn(2, 8, 3, 5)
    expected = norm(x)
    convert(network)
    torch.testing.assert_close(norm(input=x), expected)
    layout = AffineLayout(network)
    with layout.active(ABNNPosterior.around(layout, 0.0).affine(layout, [0], 0)):
        torch.testing.assert_close(norm(input=x), expected)
        torch.testing.assert_close(norm(x, None), expected)
        with pytest.raises(InputError, match="further arguments"):
            norm(x, x)


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
    others = [nn.Conv2d(8, 8, 1, groups=8), nn.Linear(1, 1), nn.PReLU(8), nn.Embedding(8, 1)]
    assert not convert(nn.Sequential(*others, nn.BatchNorm2d(8)).eval()).left


def test_scripted_layers_beside_a_normalisation_are_passed_over() -> None:
    encoder = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())
    network = nn.Sequential(torch.jit.script(encoder), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1)).eval()
    images = torch.rand(1, 3, 4, 6, generator=torch.Generator().manual_seed(0))
    expected = network(images)
    report = convert(network)
    assert [site.name for site in report.sites] == ["1"]
    torch.testing.assert_close(network(images), expected)
