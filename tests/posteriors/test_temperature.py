"""The fitted temperature against scipy's scalar minimiser and known temperatures; the sampled pixels against the sampler."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp
from torch import Tensor

import segunc.posteriors.temperature as module
from segunc.core.errors import InputError
from segunc.data.labels import label_map
from segunc.data.module import SegmentationDataModule
from segunc.networks import NetworkDescription, build_network, save_network
from segunc.posteriors.files import load_model
from segunc.posteriors.fitting import frames_as_seen
from segunc.posteriors.temperature import TemperatureConfig, fit_temperature, mean_nll, sample_pixels
from segunc.sampling import Sampler
from tests.data import miniatures
from tests.posteriors.test_attachments import SMALL
from tests.training.overconfident import save_abnn


def synthetic(draws: int, pixels: int, classes: int, temperature: float, seed: int) -> tuple[Tensor, Tensor]:
    """Logits ``[S, P, C]`` around shared ones, and labels drawn from their mean prediction at a temperature."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(1, pixels, classes, generator=generator) * 4
    logits = logits + torch.randn(draws, pixels, classes, generator=generator) * (0.5 if draws > 1 else 0.0)
    mean = (logits.double() / temperature).softmax(2).mean(0)
    return logits, torch.multinomial(mean, 1, generator=generator)[:, 0]


def numpy_nll(logits: Tensor, labels: Tensor, temperature: float) -> float:
    scaled = logits.double().numpy() / temperature
    chosen = np.take_along_axis(scaled, labels.numpy()[None, :, None], 2)[..., 0]
    likelihood = logsumexp(chosen - logsumexp(scaled, axis=2), axis=0) - math.log(len(scaled))
    return float(-likelihood.mean())


@pytest.mark.parametrize(("draws", "temperature"), [(1, 0.6), (1, 3.0), (6, 1.0), (6, 2.2)])
def test_the_temperature_is_that_of_scipy_and_near_the_one_of_the_labels(draws: int, temperature: float) -> None:
    logits, labels = synthetic(draws, 20_000, 7, temperature, seed=draws)
    fit = fit_temperature(logits, labels)
    best = minimize_scalar(lambda t: numpy_nll(logits, labels, math.exp(t)), bounds=(-3, 3), options={"xatol": 1e-9})
    assert fit.temperature == pytest.approx(math.exp(best.x), rel=1e-5)
    assert fit.temperature == pytest.approx(temperature, rel=0.05)
    assert fit.nll_before == pytest.approx(numpy_nll(logits, labels, 1.0), rel=1e-9)
    assert fit.nll_after == pytest.approx(best.fun, rel=1e-9)
    assert fit.nll_after <= fit.nll_before


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 4), st.integers(2, 6), st.floats(0.3, 5.0), st.integers(0, 1000))
def test_scaled_logits_scale_the_temperature(draws: int, classes: int, factor: float, seed: int) -> None:
    logits, labels = synthetic(draws, 400, classes, 1.5, seed)
    plain, scaled = fit_temperature(logits.double(), labels), fit_temperature(logits.double() * factor, labels)
    assert scaled.temperature == pytest.approx(plain.temperature * factor, rel=1e-4)


def test_weights_are_repeated_pixels_and_blocks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = synthetic(3, 300, 5, 1.4, seed=0)
    repeats = torch.arange(300) % 3 + 1
    weighted = fit_temperature(logits, labels, repeats.double())
    repeated = fit_temperature(logits.repeat_interleave(repeats, 1), labels.repeat_interleave(repeats))
    assert weighted.temperature == pytest.approx(repeated.temperature, rel=1e-6)
    assert weighted.temperature != pytest.approx(fit_temperature(logits, labels).temperature, rel=1e-3)
    whole = mean_nll(logits, labels, repeats.double(), torch.tensor(0.3))
    monkeypatch.setattr(module, "BLOCK_NUMBERS", 3 * 5 * 7)
    torch.testing.assert_close(mean_nll(logits, labels, repeats.double(), torch.tensor(0.3)), whole)
    again = fit_temperature(logits, labels, repeats.double())
    assert again.temperature == pytest.approx(weighted.temperature, rel=1e-6)


def test_a_temperature_at_a_bound_is_refused() -> None:
    logits, labels = synthetic(1, 500, 5, 1.0, seed=0)
    with pytest.raises(InputError, match="lower bound"):
        fit_temperature(logits, logits[0].argmax(1))
    with pytest.raises(InputError, match="upper bound"):
        fit_temperature(logits * 50, torch.randint(0, 5, (500,), generator=torch.Generator().manual_seed(1)))
    with pytest.raises(InputError, match="lower bound"):
        fit_temperature(torch.zeros_like(logits), labels)


@pytest.fixture(scope="module")
def camvid(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A noise-only ABNN of the CamVid classes with a size of its own, and a set whose frames have another."""
    root = tmp_path_factory.mktemp("temperature")
    torch.manual_seed(0)
    classes = label_map("camvid").classes
    description = NetworkDescription("FPN", "mobilenet_v2", classes, options=SMALL, inference_size=(72, 96))
    save_network(build_network(description), root / "base")
    save_abnn(root / "base", root / "abnn")
    return root / "abnn", miniatures.camvid(root / "data", {"val": 3})


def test_sampled_pixels_have_the_mean_prediction_of_the_sampler(camvid: tuple[Path, Path]) -> None:
    model = load_model(camvid[0])
    data = SegmentationDataModule("camvid", str(camvid[1]))
    every = sample_pixels(model, data, TemperatureConfig(frames=0, pixels=10**6, draws=4, seed=5))
    sampler = Sampler(model.network, model.posterior, draws=4, seed=5)
    expected, labels = [], []
    for _, image, truth in frames_as_seen(model, data, "val", 0, "test"):
        assert tuple(image.shape[-2:]) == (72, 96)
        labelled = torch.from_numpy(truth.astype(np.int64)).flatten()
        probabilities = sampler(image, keep_probabilities=True).probabilities
        assert probabilities is not None
        expected.append(probabilities[0].flatten(1).T[labelled != 255])
        labels.append(labelled[labelled != 255])
    assert every.frames == 3
    assert torch.equal(every.labels, torch.cat(labels))
    assert torch.equal(every.weights, torch.ones(len(every.labels), dtype=torch.float64))
    torch.testing.assert_close(every.logits.softmax(2).mean(0), torch.cat(expected), rtol=1e-4, atol=1e-5)


def test_a_sample_is_of_those_pixels_stands_for_all_and_depends_on_its_seed_alone(camvid: tuple[Path, Path]) -> None:
    model = load_model(camvid[0])
    data = SegmentationDataModule("camvid", str(camvid[1]))
    settings = TemperatureConfig(frames=1, pixels=30, draws=2, seed=1)
    first, again = sample_pixels(model, data, settings), sample_pixels(model, data, settings)
    assert torch.equal(first.logits, again.logits)
    other = sample_pixels(model, data, replace(settings, seed=2))
    assert not torch.equal(first.labels, other.labels)
    every = sample_pixels(model, data, replace(settings, pixels=10**6))
    assert first.logits.shape == (2, 30, 11)
    assert float(first.weights.sum()) == pytest.approx(len(every.labels))
    for pixel in range(30):
        same = (every.logits == first.logits[:, pixel : pixel + 1]).all(2).all(0)
        assert bool((same & (every.labels == first.labels[pixel])).any())
