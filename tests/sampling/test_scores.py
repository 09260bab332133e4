"""Which scores the sampler returns, and what temperature does to each."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from segunc.affine.convert import convert
from segunc.affine.draws import AffineLayout
from segunc.core.errors import InputError
from segunc.posteriors.abnn import ABNN
from segunc.posteriors.max_logit import MaxLogitStatistics
from segunc.sampling import Sampler
from segunc.sampling.runner import draw_logits
from segunc.scores import DEFAULT_SCORES, SCORES
from segunc.uncertainty import energy, entropy_from_probabilities, max_logit, max_softmax, standardized_max_logit
from tests.affine.networks import small_network
from tests.scores.stacked import decompose_draws, draw_variance, expected_pairwise_kl, variation_ratio

DISAGREEMENT_SCORES = ("variance", "variation-ratio", "expected-pairwise-kl")
IMAGES = torch.rand(2, 3, 20, 28, generator=torch.Generator().manual_seed(0))
STATISTICS = MaxLogitStatistics((1.0, 2.0, 0.5, 1.5), (0.5, 1.0, 0.25, 2.0), (9, 9, 9, 9), {}, 1, "")


def model() -> tuple[nn.Module, ABNN]:
    network = small_network()
    convert(network)
    return network, ABNN.around(AffineLayout(network), 0.4, 2)


def all_logits(network: nn.Module, posterior: ABNN, draws: int, seed: int) -> torch.Tensor:
    """``[S, n, C, H, W]``."""
    return torch.stack(list(draw_logits(network, posterior, IMAGES, draws, seed)))


@pytest.mark.parametrize("chunk", [1, 3, 6])
def test_disagreement_equals_that_of_stacked_draws_in_any_chunk(chunk: int) -> None:
    network, posterior = model()
    found = Sampler(network, posterior, draws=6, seed=3, chunk=chunk, scores=DISAGREEMENT_SCORES)(IMAGES).scores
    p = all_logits(network, posterior, 6, 3).double().softmax(2)
    assert set(found) == set(DISAGREEMENT_SCORES)
    for name, pure in zip(DISAGREEMENT_SCORES, (draw_variance, variation_ratio, expected_pairwise_kl), strict=True):
        torch.testing.assert_close(found[name], pure(p).float(), rtol=1e-3, atol=1e-6)
    assert float(found["variation-ratio"].max()) > 0


def test_a_deterministic_network_does_not_disagree_with_itself() -> None:
    found = Sampler(small_network(), scores=DISAGREEMENT_SCORES)(IMAGES).scores
    assert all(torch.equal(values, torch.zeros(2, 20, 28)) for values in found.values())


def test_every_score_at_the_frames_own_size_is_finite_and_in_its_range() -> None:
    network, posterior = model()
    sampler = Sampler(network, posterior, draws=4, scores=SCORES, max_logit_statistics=STATISTICS)
    found = sampler(IMAGES, size=(37, 51)).scores
    assert list(found) == list(SCORES)
    assert all(values.shape == (2, 37, 51) and bool(torch.isfinite(values).all()) for values in found.values())
    for name in ("variance", "variation-ratio"):
        assert float(found[name].min()) >= 0
        assert float(found[name].max()) <= 1
    assert float(found["expected-pairwise-kl"].min()) >= 0


def test_the_standardized_max_logit_is_that_of_the_base_network() -> None:
    network, posterior = model()
    sampler = Sampler(network, posterior, draws=2, scores=["standardized-max-logit"], max_logit_statistics=STATISTICS)
    with torch.no_grad():
        expected = standardized_max_logit(small_network()(IMAGES), STATISTICS)
    torch.testing.assert_close(sampler(IMAGES).scores["standardized-max-logit"], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("temperature", [1.0, 1.7])
def test_temperature_divides_the_logits_of_draws_and_base_but_not_the_max_logit(temperature: float) -> None:
    network, posterior = model()
    sampler = Sampler(network, posterior, draws=5, seed=1, temperature=temperature)
    result = sampler(IMAGES, keep_probabilities=True)
    p = (all_logits(network, posterior, 5, 1) / temperature).softmax(2)
    parts = decompose_draws(p)
    with torch.no_grad():
        base = small_network()(IMAGES)
    base_p = (base / temperature).softmax(1)
    expected = {
        "msp": 1 - p.mean(0).amax(1),
        "entropy": parts.entropy,
        "aleatoric": parts.aleatoric,
        "epistemic": parts.epistemic,
        "deterministic-msp": max_softmax(base_p),
        "deterministic-entropy": entropy_from_probabilities(base_p) / math.log(4),
        "max-logit": max_logit(base),
        "energy": energy(base, temperature=temperature),
    }
    assert set(result.scores) == set(DEFAULT_SCORES) == set(expected)
    for name, values in expected.items():
        torch.testing.assert_close(result.scores[name], values, rtol=1e-4, atol=1e-5, msg=name)
    torch.testing.assert_close(result.probabilities, p.mean(0))


def test_draws_one_by_one_are_those_of_the_sampler() -> None:
    network, posterior = model()
    mean = all_logits(network, posterior, 6, 9).softmax(2).mean(0)
    torch.testing.assert_close(
        Sampler(network, posterior, draws=6, seed=9)(IMAGES, keep_probabilities=True).probabilities, mean
    )
    with pytest.raises(InputError, match="1 draws for 2 members"):
        next(draw_logits(network, posterior, IMAGES, 1))
    with pytest.raises(InputError, match="NaN or infinite"):
        next(draw_logits(network, posterior.with_alpha(1e38), IMAGES, 2))


def test_settings_that_cannot_be() -> None:
    with pytest.raises(InputError, match="score 'sharpness'; expected one of msp, "):
        Sampler(small_network(), scores=["msp", "sharpness"])
    with pytest.raises(InputError, match="finetune --method standardized-max-logit"):
        Sampler(small_network(), scores=["standardized-max-logit"])
    for temperature in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="temperature"):
            Sampler(small_network(), temperature=temperature)
