"""Ensembles, test-time augmentation and the network's own dropout in the one sampler, against loops
by hand.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segunc.affine.convert import convert
from segunc.affine.draws import AffineLayout
from segunc.affine.noise import DEFAULT_SCHEME, NoiseSource, mix_seed
from segunc.affine.posterior import Deterministic
from segunc.baselines.mc_dropout import OwnDropout, convert_dropout
from segunc.baselines.mixtures import EnsemblePosterior, TestTimeAugmentation
from segunc.core.errors import InputError
from segunc.sampling import Prediction, Sampler
from segunc.sampling.branches import AnyPosterior, Branch
from tests.affine.networks import small_network
from tests.sampling.plain import assert_mean_of, draw_logits, posterior_of

IMAGES = torch.rand(2, 3, 24, 32, generator=torch.Generator().manual_seed(0))
SIZE = (24, 32)


def plain(seed: int) -> nn.Module:
    network = small_network(seed=seed)
    with torch.no_grad():
        network.get_submodule("head").weight.mul_(4)  # type: ignore[operator]
    return network


def stochastic(seed: int, alpha: float = 0.3, members: int = 1) -> Branch:
    network = plain(seed)
    return Branch(network, posterior_of(network, alpha, members))


class Low(nn.Module):
    """A small network at half resolution, upsampled in the end as real ones do."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.body = plain(seed)

    def forward(self, x: Tensor) -> Tensor:
        logits = self.body(F.avg_pool2d(x, 2))
        return F.interpolate(logits, x.shape[-2:], mode="bilinear", align_corners=False)


@torch.no_grad()
def by_hand(
    member: Branch, images: Tensor, number: int = 0, seed: int = 0, total: int = 1
) -> Tensor:
    if isinstance(member.posterior, Deterministic):
        return member.network(images)  # type: ignore[no-any-return]
    layout = AffineLayout(member.network)
    with layout.active(
        member.posterior.affine(layout, [number], NoiseSource(seed, DEFAULT_SCHEME, total))
    ):
        logits: Tensor = member.network(images)
    return logits


@pytest.mark.parametrize("chunk", [2, None])
def test_an_ensemble_of_posteriors_in_any_chunk(chunk: int | None) -> None:
    """ABNN of two members, a deterministic network, ABNN: draw s is draw s // 3 of member s mod 3,
    noise of its own.
    """
    members = [stochastic(0, members=2), Branch(plain(5), Deterministic()), stochastic(2)]
    expected = []
    for draw in range(8):
        part = len(range(draw % 3, 8, 3))
        expected.append(by_hand(members[draw % 3], IMAGES, draw // 3, mix_seed(7, draw % 3), part))
    sampler = Sampler(members[0].network, EnsemblePosterior(members), draws=8, seed=7, chunk=chunk)
    assert_mean_of(sampler(IMAGES, keep_probabilities=True), expected)
    held = draw_logits(members[0].network, EnsemblePosterior(members), IMAGES, 8, 7)
    for logits, other in zip(held, expected, strict=True):
        torch.testing.assert_close(logits, other)


def test_sums_have_the_same_bits_in_any_chunk() -> None:
    """A network of single pixels sums alike in any batch, so what is left is the order of the
    draws.
    """
    members = [stochastic(seed) for seed in (0, 1)]
    for member in members:
        broadcast_convolutions(member.network)
    posteriors: list[AnyPosterior] = [
        EnsemblePosterior(members),
        TestTimeAugmentation(members[0].posterior, (1.0, 0.75)),
    ]
    for posterior in posteriors:
        results = []
        for chunk in (1, 2, 3, 9):
            sampler = Sampler(members[0].network, posterior, draws=9, chunk=chunk)
            results.append(sampler(IMAGES, keep_probabilities=True))
        for other in results[1:]:
            assert_same_bits(other, results[0])


def assert_same_bits(first: Prediction, second: Prediction) -> None:
    assert torch.equal(first.probabilities, second.probabilities)  # type: ignore[arg-type]
    for name in first.scores:
        assert torch.equal(first.scores[name], second.scores[name])


def broadcast_convolutions(network: nn.Module) -> None:
    for name, module in list(network.named_modules()):
        if isinstance(module, nn.Conv2d):
            parent, _, attribute = name.rpartition(".")
            setattr(network.get_submodule(parent), attribute, Broadcast(module))


class Broadcast(nn.Module):
    """A convolution's middle tap as sums over channels in one order, whatever the batch."""

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        middle = convolution.kernel_size[0] // 2
        self.weight, self.bias = convolution.weight[:, :, middle, middle].detach(), convolution.bias

    def forward(self, x: Tensor) -> Tensor:
        assert self.bias is not None
        out = torch.zeros(len(x), len(self.weight), *x.shape[2:]) + self.bias.detach().view(
            1, -1, 1, 1
        )
        for channel in range(x.shape[1]):
            out = out + x[:, channel : channel + 1] * self.weight[:, channel].view(1, -1, 1, 1)
        return out


def test_flips_and_scales_are_brought_back_before_the_softmax() -> None:
    network = Low(0)
    expected = []
    with torch.no_grad():
        for flip in (False, True):
            for size in ((24, 32), (18, 24), (30, 40)):
                seen = (
                    IMAGES
                    if size == SIZE
                    else F.interpolate(IMAGES, size, mode="bilinear", antialias=size < SIZE)
                )
                logits = network(seen.flip(-1)).flip(-1) if flip else network(seen)
                expected.append(
                    logits if size == SIZE else F.interpolate(logits, SIZE, mode="bilinear")
                )
    sampler = Sampler(
        network, TestTimeAugmentation(Deterministic(), (1.0, 0.75, 1.25), flip=True), draws=24
    )
    assert sampler.draws == 6
    assert_mean_of(sampler(IMAGES, keep_probabilities=True), expected)
    for logits, other in zip(
        draw_logits(network, sampler.posterior, IMAGES, 1), expected, strict=True
    ):  # type: ignore[arg-type]
        torch.testing.assert_close(logits, other)


@pytest.mark.parametrize(
    "scales",
    [
        (1.0, 0.75),
        (0.75, 1.0),
    ],
)
def test_augmentation_over_a_posterior_takes_its_draws_in_turn(scales: tuple[float, ...]) -> None:
    member = stochastic(0)
    expected = []
    for draw in range(5):
        scale = scales[draw % 2]
        seen = (
            IMAGES
            if scale == 1
            else F.interpolate(IMAGES, (18, 24), mode="bilinear", antialias=True)
        )
        logits = by_hand(member, seen, draw, 3, 5)
        expected.append(logits if scale == 1 else F.interpolate(logits, SIZE, mode="bilinear"))
    posterior = TestTimeAugmentation(member.posterior, scales, flip=False)
    result = Sampler(member.network, posterior, draws=5, seed=3)(IMAGES, keep_probabilities=True)
    assert_mean_of(result, expected)
    with torch.no_grad():
        base = member.network(IMAGES)
    torch.testing.assert_close(
        result.scores["deterministic-max-logit"], -base.amax(1), atol=1e-5, rtol=0
    )


def dropping(layer: nn.Module) -> nn.Module:
    network = plain(0)
    network.get_submodule("encoder").add_module("dropout", layer)
    network.eval()
    convert(network)
    convert_dropout(network)
    return network


@pytest.mark.parametrize(
    ("layer", "chunk"),
    [
        (nn.Dropout(0.4), 3),
        (nn.Dropout2d(0.4), None),
    ],
)
def test_own_dropout_is_the_mean_over_its_masks(layer: nn.Module, chunk: int | None) -> None:
    network = dropping(layer)
    posterior = OwnDropout(convert_dropout(network))
    expected = [by_hand(Branch(network, posterior), IMAGES, draw, 2, 7) for draw in range(7)]
    sampler = Sampler(network, posterior, draws=7, seed=2, chunk=chunk)
    result = sampler(IMAGES, keep_probabilities=True)
    assert sampler.report.shared
    assert sampler.report.batched
    assert_mean_of(result, expected)
    assert float(result.scores["epistemic"].mean()) > 1e-5
    # Base scores are of the network without dropout.
    with torch.no_grad():
        torch.testing.assert_close(
            result.scores["deterministic-max-logit"], -network(IMAGES).amax(1), atol=1e-5, rtol=0
        )


def test_too_few_draws_and_mixtures_that_cannot_be() -> None:
    members = [stochastic(0, members=2), stochastic(1)]
    augmented = TestTimeAugmentation(members[1].posterior, (1.0, 0.5), flip=True)
    for network, posterior in (
        (members[0].network, EnsemblePosterior(members)),
        (members[1].network, augmented),
    ):
        with pytest.raises(InputError, match="3 draws are too few for 4 members"):
            Sampler(network, posterior, draws=3)
    with pytest.raises(InputError, match="has test-time augmentation already"):
        TestTimeAugmentation(augmented)
    mixed = EnsemblePosterior(
        [Branch(network, Deterministic()) for network in (plain(0), nn.Conv2d(3, 5, 1))]
    )
    with pytest.raises(InputError, match=r"\(4, 24, 32\) and \(5, 24, 32\)"):
        Sampler(plain(0), mixed)(IMAGES)
    with pytest.raises(InputError, match="drawn dropout layers none"):
        Sampler(members[0].network, OwnDropout({"drop": 0.5}))(IMAGES)
