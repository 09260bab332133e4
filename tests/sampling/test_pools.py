"""Draws in pools: each job has the maps of a sampler with its noise alone, and what no draw changes is computed once for all."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from segunc.affine.draws import AffineLayout
from segunc.affine.pools import JOBS
from segunc.core.errors import InputError
from segunc.posteriors.abnn import ABNN
from segunc.processing.means import Tiling, finish_maps, sample_means
from segunc.sampling import Sampler
from segunc.uncertainty import Calibrator
from tests.affine.networks import small_network
from tests.sampling.plain import posterior_of
from tests.sampling.test_engine import ConvolutionRows

IMAGES = torch.rand(2, 3, 20, 28, generator=torch.Generator().manual_seed(0))
ALPHAS = (0.0, 0.1, 0.4)
SCORES = ("msp", "entropy", "aleatoric", "epistemic", "variance", "mean-energy", "deterministic-energy")


def members_of(network: nn.Module, alpha: float | tuple[float, ...], count: int = 3, scope: str = "all") -> ABNN:
    """Members apart from each other and from a base that sees several classes."""
    with torch.no_grad():
        for layer in network.modules():
            if isinstance(layer, nn.Conv2d):
                layer.weight.mul_(4)
    plain = posterior_of(network, 0.0, count)
    apart = 0.3 * torch.randn(plain.gamma.shape, generator=torch.Generator().manual_seed(1))
    apart *= AffineLayout(network).mask(scope)
    return ABNN(plain.gamma + apart, plain.beta - apart, alpha, scope)


@pytest.mark.parametrize("size", [None, (31, 40)])
@pytest.mark.parametrize(("chunk", "scope"), [(None, "all"), (2, "all"), (5, "decoder")])
def test_each_job_has_the_maps_of_its_own_noise(chunk: int | None, scope: str, size: tuple[int, int] | None) -> None:
    network = small_network()
    posterior = members_of(network, ALPHAS, scope=scope)
    sampler = Sampler(network, posterior, draws=6, chunk=chunk, scores=SCORES)
    found = sampler(IMAGES, size=size, keep_probabilities=True)
    assert sampler.draws == 3 + 6 + 6
    alone = [
        Sampler(network, posterior.with_alpha(alpha), draws=6, scores=SCORES)(
            IMAGES, size=size, keep_probabilities=True
        )
        for alpha in ALPHAS
    ]
    assert torch.equal(found.prediction, alone[0].prediction)
    assert not torch.equal(found.prediction, alone[2].prediction)
    torch.testing.assert_close(found.probabilities, alone[1].probabilities)
    for score in SCORES:
        torch.testing.assert_close(found.scores[score], alone[1 if score == "msp" else 2].scores[score], msg=score)


def test_jobs_with_the_same_noise_share_their_draws() -> None:
    posterior = members_of(small_network(), (0.0, 0.0, 0.2))
    assert [(pool.jobs, pool.draws) for pool in posterior.pools(7)] == [
        (("prediction", "probabilities"), range(3)),
        (("anomaly",), range(3, 12)),
    ]
    assert [(pool.jobs, pool.draws) for pool in posterior.with_alpha(0.3).pools(7)] == [(JOBS, range(7))]


def test_without_noise_every_member_is_one_draw_and_one_member_is_certain_of_itself() -> None:
    network = small_network()
    three = members_of(network, 0.0)
    assert Sampler(network, three, draws=24).draws == 3
    control = Sampler(network, ABNN(three.gamma[:1], three.beta[:1], 0.0), draws=24)
    assert not control(IMAGES).scores["epistemic"].any(), "not even rounding"


def test_the_encoder_runs_once_for_all_jobs_of_a_decoder() -> None:
    network = small_network()
    sampler = Sampler(network, members_of(network, ALPHAS, scope="decoder"), draws=3, chunk=1)
    sampler(IMAGES)  # with its self-checks
    with ConvolutionRows() as watch:
        sampler(IMAGES)
    # Two convolutions and the head for the base network; then what lies behind the decoder's norm for 3 + 3 + 3 draws.
    assert watch.rows == [2, 2, 2] + 9 * [2]


def test_blended_tiles_keep_the_jobs_apart() -> None:
    network = small_network()
    sampler = Sampler(network, members_of(network, ALPHAS), draws=3, scores=SCORES)
    image, scores = torch.rand(1, 3, 64, 96, generator=torch.Generator().manual_seed(2)), SCORES[:4]
    whole = finish_maps(sample_means(sampler, image), (64, 96), scores)
    tiled = finish_maps(Tiling((48, 64), 16).run(image, lambda tile: sample_means(sampler, tile)), (64, 96), scores)
    at_once = sampler(image)
    assert torch.equal(whole["prediction"], at_once.prediction[0])
    for score in scores:
        torch.testing.assert_close(whole[score], at_once.scores[score][0], atol=1e-6, rtol=1e-5)
        assert float((tiled[score] - whole[score]).abs().mean()) < 0.02


@pytest.mark.parametrize("calibrator", [Calibrator((0.5,)), Calibrator((0.5, 1.0, 2.0, 1.0), (0.0, 4.0, 0.0, 0.0))])
@pytest.mark.parametrize("alphas", [ALPHAS, (0.0, 0.0, 0.4), (0.0, 0.1, 0.1)])
def test_a_calibrator_acts_on_the_draws_of_the_probabilities(alphas: tuple[float, ...], calibrator: Calibrator) -> None:
    network = small_network()
    posterior = members_of(network, alphas)
    raw, found = (
        Sampler(network, posterior, draws=6, scores=SCORES, **given) for given in ({}, {"calibrator": calibrator})
    )
    image = IMAGES[:1]
    before, after = raw(image, keep_probabilities=True), found(image, keep_probabilities=True)
    expected, entropy = calibrator(before.probabilities)
    torch.testing.assert_close(after.probabilities, expected)
    same = alphas[1] == alphas[2]
    torch.testing.assert_close(after.scores["entropy"], entropy if same else before.scores["entropy"])
    torch.testing.assert_close(after.scores["epistemic"], before.scores["epistemic"])
    decided = expected.argmax(1) if alphas[0] == alphas[1] else before.prediction.long()
    assert torch.equal(after.prediction.long(), decided)
    blended = finish_maps(sample_means(found, image), (20, 28), SCORES[:4], calibrator)
    for score in ("msp", "entropy", "epistemic"):
        torch.testing.assert_close(blended[score], after.scores[score][0], atol=1e-6, rtol=1e-5)
    assert torch.equal(blended["prediction"], after.prediction[0])


def test_statistics_belong_to_a_job_and_survive_the_disk() -> None:
    network = small_network()
    plain = members_of(network, 0.0)
    own = [ABNN(plain.gamma, plain.beta, a, "all", torch.full_like(plain.gamma, 1 + a), plain.beta * a) for a in ALPHAS]
    posterior = ABNN.by_job(own)
    assert posterior.settings()["alpha"] == dict(zip(JOBS, ALPHAS, strict=True))
    again = ABNN.from_tensors(posterior.tensors(), posterior.settings())
    layout = AffineLayout(network)
    for job, one in zip(JOBS, own, strict=True):
        expected, found = one.affine(layout, [0, 1], 3), again.of(job).affine(layout, [0, 1], 3)
        assert torch.equal(found.weight, expected.weight)
        assert torch.equal(found.bias, expected.bias)
    assert torch.equal(again.affine(layout, [4], 0).weight, own[1].affine(layout, [4], 0).weight), "without a sampler"


@pytest.mark.parametrize("alpha", [(0.1, 0.2), -0.1, (0.0, 0.1, float("nan")), float("inf")])
def test_other_noise_scales_are_refused(alpha: float | tuple[float, ...]) -> None:
    with pytest.raises(InputError, match="or three: for prediction, probabilities, anomaly"):
        members_of(small_network(), alpha)


def test_a_damaged_scale_is_refused() -> None:
    posterior = members_of(small_network(), ALPHAS)
    with pytest.raises(InputError, match="one for each job"):
        ABNN.from_tensors(posterior.tensors(), {**posterior.settings(), "alpha": "0.1"})
