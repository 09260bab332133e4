"""The sampler against a plain loop, and what must not change its maps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from segunc.affine.convert import convert
from segunc.affine.draws import AffineLayout
from segunc.affine.noise import DEFAULT_SCHEME, NoiseSource
from segunc.core.errors import InputError, NotFiniteError
from segunc.maps.encoding import encode_unit
from segunc.posteriors.abnn import ABNN
from segunc.sampling import Sampler
from tests.affine.networks import Pixelwise, SequenceFirst, randomise, small_network
from tests.scores.stacked import decompose_draws

IMAGES = torch.rand(3, 3, 20, 28, generator=torch.Generator().manual_seed(0))


def converted(norm: nn.Module | None = None) -> tuple[nn.Module, AffineLayout]:
    network = small_network(norm)
    convert(network)
    return network, AffineLayout(network)


def loop(
    network: nn.Module, layout: AffineLayout, posterior: ABNN, draws: int, seed: int, images: torch.Tensor
) -> torch.Tensor:
    """Probabilities ``[S, N, C, H, W]`` one draw at a time, as people write it by hand."""
    stacked = []
    with torch.no_grad():
        for draw in range(draws):
            with layout.active(posterior.affine(layout, [draw], NoiseSource(seed, DEFAULT_SCHEME, draws))):
                stacked.append(network(images).softmax(1))
    return torch.stack(stacked)


@pytest.mark.parametrize("members", [1, 3])
def test_maps_equal_a_plain_loop(members: int) -> None:
    network, layout = converted()
    posterior = ABNN.around(layout, 0.4, members)
    result = Sampler(network, posterior, draws=7, seed=5)(IMAGES, keep_probabilities=True)
    probabilities = loop(network, layout, posterior, 7, 5, IMAGES)
    expected = decompose_draws(probabilities)
    mean = probabilities.mean(0)
    torch.testing.assert_close(result.probabilities, mean)
    # Where two classes are as good as equal, either is right.
    chosen = mean.gather(1, result.prediction.long()[:, None])
    assert float((mean.amax(1, keepdim=True) - chosen).max()) < 1e-6
    assert float((result.prediction != mean.argmax(1)).float().mean()) < 0.01
    torch.testing.assert_close(result.scores["msp"], 1 - mean.amax(1), atol=1e-6, rtol=1e-4)
    for name in ("entropy", "aleatoric", "epistemic"):
        torch.testing.assert_close(result.scores[name], getattr(expected, name), atol=2e-6, rtol=1e-4)
    assert float(result.scores["epistemic"].mean()) > 1e-5


@pytest.mark.parametrize("chunk", [1, 3, 4, None])
def test_any_chunk_gives_the_same_codes(chunk: int | None) -> None:
    network, layout = converted()
    posterior = ABNN.around(layout, 0.3, 2)
    reference = Sampler(network, posterior, draws=8, chunk=8)(IMAGES)
    result = Sampler(network, posterior, draws=8, chunk=chunk)(IMAGES)
    for name in ("msp", "entropy", "aleatoric", "epistemic"):
        a, b = (encode_unit(r.scores[name].numpy()).astype(int) for r in (reference, result))
        assert np.abs(a - b).max() <= 1, name
    assert torch.equal(reference.prediction, result.prediction)


def test_frames_in_any_order_and_batch_give_the_same_codes() -> None:
    network, layout = converted()
    sampler = Sampler(network, ABNN.around(layout, 0.3, 2), draws=6)
    together = sampler(IMAGES)
    for index in (2, 0, 1):
        alone = sampler(IMAGES[index : index + 1])
        for name in ("msp", "entropy", "aleatoric", "epistemic"):
            a, b = (encode_unit(v.numpy()).astype(int) for v in (together.scores[name][index], alone.scores[name][0]))
            assert np.abs(a - b).max() <= 1, name


def test_the_seed_decides() -> None:
    network, layout = converted()
    posterior = ABNN.around(layout, 0.3)
    one, same, other = (Sampler(network, posterior, draws=4, seed=s)(IMAGES).scores["epistemic"] for s in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_alpha_zero_with_one_member_has_no_epistemic() -> None:
    network, layout = converted()
    result = Sampler(network, ABNN.around(layout, 0.0), draws=5)(IMAGES)
    assert float(result.scores["epistemic"].max()) < 1e-6
    torch.testing.assert_close(result.scores["entropy"], result.scores["deterministic-entropy"], atol=1e-5, rtol=1e-5)


def test_the_deterministic_network_through_the_same_interface() -> None:
    result = Sampler(small_network(), draws=24)(IMAGES)
    torch.testing.assert_close(result.scores["msp"], result.scores["deterministic-msp"], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(result.scores["entropy"], result.scores["deterministic-entropy"], atol=1e-6, rtol=1e-5)
    assert float(result.scores["epistemic"].max()) < 1e-6


def test_a_network_that_reorders_the_batch_runs_one_draw_at_a_time_and_says_so() -> None:
    network = randomise(Pixelwise(SequenceFirst()).eval())
    convert(network)
    layout = AffineLayout(network)
    posterior = ABNN.around(layout, 0.4)
    sampler = Sampler(network, posterior, draws=4)
    result = sampler(IMAGES)
    assert not sampler.report.batched
    assert any("one at a time" in message for message in sampler.report.messages)
    expected = decompose_draws(loop(network, layout, posterior, 4, 0, IMAGES))
    torch.testing.assert_close(result.scores["entropy"], expected.entropy, atol=1e-5, rtol=1e-4)


def test_unreached_sites_are_reported() -> None:
    network = small_network()
    network.add_module("unused", nn.Sequential(nn.Identity()))
    network.forward = lambda x: network.head(network.decoder(network.encoder(x)))  # type: ignore[method-assign]
    network.unused.add_module("norm", nn.BatchNorm2d(4))
    convert(network)
    sampler = Sampler(network, ABNN.around(AffineLayout(network), 0.1), draws=2)
    sampler(IMAGES)
    assert sampler.report.unreached == ("unused.norm",)


def test_maps_at_the_frames_own_size_are_consistent() -> None:
    network, layout = converted()
    result = Sampler(network, ABNN.around(layout, 0.4), draws=4)(IMAGES[:1], size=(37, 51), keep_probabilities=True)
    assert result.prediction.shape == (1, 37, 51)
    assert result.probabilities is not None
    torch.testing.assert_close(result.probabilities.sum(1), torch.ones(1, 37, 51))
    torch.testing.assert_close(result.scores["msp"], 1 - result.probabilities.amax(1))
    difference = result.scores["entropy"] - result.scores["aleatoric"]
    torch.testing.assert_close(result.scores["epistemic"], difference.clamp_min(0))


def test_bfloat16_stays_near_float32() -> None:
    network, layout = converted()
    posterior = ABNN.around(layout, 0.3)
    full, half = (
        Sampler(network, posterior, draws=4, precision=p)(IMAGES).scores["entropy"] for p in ("float32", "bfloat16")
    )
    assert float((full - half).abs().max()) < 0.05
    assert not torch.equal(full, half), "the option must do something"


def test_nan_weights_and_dead_alpha_are_errors() -> None:
    network, layout = converted()
    with pytest.raises(NotFiniteError, match="a draw gives NaN"):
        Sampler(network, ABNN.around(layout, 1e38), draws=2)(IMAGES)
    with torch.no_grad():
        network.head.weight[0] = float("nan")
    with pytest.raises(NotFiniteError, match="NaN or infinite logits"):
        Sampler(network, ABNN.around(layout, 0.1), draws=2)(IMAGES)


def test_bad_settings() -> None:
    network, layout = converted()
    with pytest.raises(InputError, match="2 draws for 3 members"):
        Sampler(network, ABNN.around(layout, 0.1, 3), draws=2)
    with pytest.raises(InputError, match="chunk"):
        Sampler(network, ABNN.around(layout, 0.1), chunk=0)
    with pytest.raises(InputError, match="unconverted"):
        Sampler(small_network(), ABNN.around(layout, 0.1))
    pooled = nn.Sequential(nn.BatchNorm2d(3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    convert(pooled)
    with pytest.raises(InputError, match="logits"):
        Sampler(pooled, ABNN.around(AffineLayout(pooled), 0.1), draws=2)(IMAGES)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 1000))
def test_maps_lie_in_their_range(draws: int, chunk: int, seed: int) -> None:
    network, layout = converted()
    scores = Sampler(network, ABNN.around(layout, 0.5), draws=draws, chunk=chunk, seed=seed)(IMAGES[:1]).scores
    for name in ("msp", "entropy", "aleatoric", "epistemic"):
        assert float(scores[name].min()) >= 0
        assert float(scores[name].max()) <= 1 + 1e-6
    assert float((scores["entropy"] - scores["aleatoric"] - scores["epistemic"]).abs().max()) < 1e-5


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_equals_cpu() -> None:
    network, layout = converted()
    cpu = Sampler(network, ABNN.around(layout, 0.3, 2), draws=6)(IMAGES)
    network.cuda()
    gpu = Sampler(network, ABNN.around(AffineLayout(network), 0.3, 2), draws=6)(IMAGES)
    for name, values in cpu.scores.items():
        torch.testing.assert_close(gpu.scores[name].cpu(), values, atol=1e-4, rtol=1e-3)
