"""Fitted calibrations against scipy's minimisers and known distortions; the sampled pixels against the sampler."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import minimize, minimize_scalar
from scipy.special import log_softmax
from torch import Tensor

from segunc.baselines import calibrators
from segunc.baselines.calibrators import fit_penalised, held_out_nll
from segunc.baselines.temperature import (
    ZERO,
    PixelSample,
    TemperatureConfig,
    check_temperature,
    fit_temperature,
    mean_nll,
    sample_pixels,
    scale_temperature,
)
from segunc.core.errors import InputError
from segunc.data.labels import label_map
from segunc.data.module import SegmentationDataModule
from segunc.networks import NetworkDescription, build_network, save_network
from segunc.posteriors.fitting import frames_as_seen
from segunc.posteriors.model import load_model
from segunc.sampling import Sampler
from segunc.training.config import FitConfig
from segunc.uncertainty import calibrated
from tests.data import miniatures
from tests.posteriors.test_attachments import SMALL
from tests.training.overconfident import save_abnn

Weights = tuple[Tensor, Tensor]
"""W and b."""


def synthetic(pixels: int, classes: int, fit: Weights, seed: int, draws: int = 4, frames: int = 10) -> PixelSample:
    """The mean prediction of draws, and labels drawn from what a calibration makes of it."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(1, pixels, classes, generator=generator) * 4
    logits = logits + torch.randn(draws, pixels, classes, generator=generator) * 0.5
    logs = logits.double().softmax(2).mean(0).log()
    labels = torch.multinomial(calibrated(logs, *fit).exp(), 1, generator=generator)[:, 0]
    return PixelSample(logs, labels, torch.ones(pixels, dtype=torch.float64), torch.arange(pixels) * frames // pixels)


def scalar(temperature: float) -> Weights:
    return torch.tensor(1 / temperature, dtype=torch.float64), ZERO


def numpy_nll(sample: PixelSample, weight: np.ndarray, bias: np.ndarray | float = 0.0) -> float:
    """Of a matrix."""
    found = log_softmax(sample.logs.numpy() @ weight.T + bias, axis=1)
    return -float(
        np.average(np.take_along_axis(found, sample.labels.numpy()[:, None], 1)[:, 0], weights=sample.weights)
    )


@pytest.mark.parametrize("temperature", [0.6, 1.0, 3.0])
def test_the_temperature_is_that_of_scipy_and_near_the_one_of_the_labels(temperature: float) -> None:
    sample = synthetic(20_000, 7, scalar(temperature), seed=1)
    eye = np.eye(7)
    best = minimize_scalar(lambda t: numpy_nll(sample, eye / math.exp(t)), bounds=(-3, 3), options={"xatol": 1e-9})
    found = fit_temperature(sample)
    assert found == pytest.approx(math.exp(best.x), rel=1e-5)
    assert found == pytest.approx(temperature, rel=0.05)
    assert float(mean_nll(sample, *scalar(found))) == pytest.approx(best.fun, rel=1e-9)
    assert float(mean_nll(sample)) == pytest.approx(numpy_nll(sample, eye), rel=1e-9)


def test_weights_are_repeated_pixels() -> None:
    sample = synthetic(300, 5, scalar(1.4), seed=0)
    repeats = torch.arange(300) % 3 + 1
    weighted, repeated = (
        sample._replace(weights=repeats.double()),
        PixelSample(*(p.repeat_interleave(repeats, 0) for p in sample)),
    )
    assert fit_temperature(weighted) == pytest.approx(fit_temperature(repeated), rel=1e-6)
    assert fit_temperature(weighted) != pytest.approx(fit_temperature(sample), rel=1e-3)


def test_a_temperature_at_a_bound_is_refused() -> None:
    sample = synthetic(500, 5, scalar(1.0), seed=0)
    chance = torch.randint(0, 5, (500,), generator=torch.Generator().manual_seed(1))
    for changed, said in (
        (sample._replace(labels=sample.logs.argmax(1)), "T = 0.05"),
        (sample._replace(logs=sample.logs * 50, labels=chance), "T = 20"),
        (sample._replace(logs=torch.zeros_like(sample.logs)), "T = 0.05"),
    ):
        with pytest.raises(InputError, match=said):
            check_temperature(fit_temperature(changed))


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


def pooled(sampler: Sampler, image: Tensor, truth: np.ndarray) -> tuple[Tensor, Tensor]:
    """Mean probabilities ``[P, C]`` and labels ``[P]`` of the labelled pixels of a frame."""
    labels = torch.from_numpy(truth.astype(np.int64)).flatten()
    probabilities = sampler(image, keep_probabilities=True).probabilities
    assert probabilities is not None
    return probabilities[0].flatten(1).T[labels != 255], labels[labels != 255]


def test_sampled_pixels_have_the_mean_prediction_of_the_sampler(camvid: tuple[Path, Path]) -> None:
    model = load_model(camvid[0])
    data = SegmentationDataModule("camvid", str(camvid[1]))
    every = sample_pixels(model, data, TemperatureConfig(frames=0, pixels=10**6, draws=4, seed=5))
    sampler = Sampler(model.network, model.posterior, draws=4, seed=5)
    found = [pooled(sampler, image, truth) for _, image, truth, *_ in frames_as_seen(model, data, "val", 0, "test")]
    assert every.frames.unique().tolist() == [0, 1, 2]
    assert torch.equal(every.labels, torch.cat([labels for _, labels in found]))
    assert torch.equal(every.weights, torch.ones(len(every.labels), dtype=torch.float64))
    torch.testing.assert_close(every.logs.exp().float(), torch.cat([p for p, _ in found]), rtol=1e-4, atol=1e-5)


def test_a_sample_is_of_those_pixels_stands_for_all_and_depends_on_its_seed_alone(camvid: tuple[Path, Path]) -> None:
    model = load_model(camvid[0])
    data = SegmentationDataModule("camvid", str(camvid[1]))
    settings = TemperatureConfig(frames=1, pixels=30, draws=2, seed=1)
    first, again = sample_pixels(model, data, settings), sample_pixels(model, data, settings)
    torch.testing.assert_close(first.logs, again.logs, rtol=1e-12, atol=0)
    other = sample_pixels(model, data, replace(settings, seed=2))
    assert not torch.equal(first.labels, other.labels)
    every = sample_pixels(model, data, replace(settings, pixels=10**6))
    assert first.logs.shape == (30, 11)
    assert float(first.weights.sum()) == pytest.approx(len(every.labels))


def distortion(classes: int) -> Weights:
    """A matrix that mixes each class with the next, and intercepts."""
    weight = 0.6 * torch.eye(classes, dtype=torch.float64) + 0.2 * torch.eye(classes, dtype=torch.float64).roll(1, 1)
    return weight, torch.linspace(-1, 1, classes, dtype=torch.float64)


@pytest.mark.parametrize("strengths", [(0.3,), (0.3, 2.0)])
def test_what_is_minimised_is_nll_and_penalty(strengths: tuple[float, ...]) -> None:
    """Against scipy on the formula of the docstring, written out."""
    sample, classes = synthetic(500, 3, distortion(3), seed=2), 3

    def loss(x: np.ndarray) -> float:
        bias, rest = x[:classes], x[classes:]
        weight = np.diag(rest) if len(strengths) == 1 else rest.reshape(classes, classes)
        penalty = strengths[0] * sum(bias[i] ** 2 + (weight[i, i] - 0.5) ** 2 for i in range(classes)) / classes
        if len(strengths) > 1:
            penalty += strengths[1] * sum(weight[i, j] ** 2 for i in range(3) for j in range(3) if i != j) / 6
        return numpy_nll(sample, weight, bias) + penalty

    size = classes + classes ** len(strengths)
    best = minimize(loss, np.full(size, 0.1), method="BFGS", options={"gtol": 1e-7})
    weight, bias = fit_penalised(sample, 2.0, strengths)
    assert loss(np.concatenate([bias.numpy(), weight.flatten().numpy()])) == pytest.approx(best.fun, abs=1e-7)
    np.testing.assert_allclose(weight.flatten().numpy(), best.x[classes:], atol=2e-3)


def test_a_known_distortion_comes_back_and_frames_held_out_say_so() -> None:
    true = distortion(4)
    sample = synthetic(8000, 4, true, seed=3)
    weight, bias = fit_penalised(sample, fit_temperature(sample), (1e-4, 1e-4))
    # A row and a constant added to all of W and b change nothing.
    torch.testing.assert_close(weight - weight.mean(0), true[0] - true[0].mean(0), rtol=0, atol=0.05)
    torch.testing.assert_close(bias - bias.mean(), true[1] - true[1].mean(), rtol=0, atol=0.15)
    found = held_out_nll(sample, [(), (0.1,), (0.1, 0.1)])
    assert found[(0.1, 0.1)] < found[(0.1,)] - 0.005 < found[()] - 0.02
    assert found[(0.1, 0.1)] == pytest.approx(float(mean_nll(sample, *true)), abs=0.02)


def test_what_is_held_out_are_whole_blocks_of_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frame by frame a rule of its own: whoever has seen a frame knows it, and its neighbours say nothing."""
    sample = synthetic(60, 3, scalar(1.0), seed=5, frames=6)
    seen: list[list[int]] = []

    def fit(rest: object) -> float:
        seen.append(rest.frames.unique().tolist())  # type: ignore[attr-defined]
        return fit_temperature(rest)  # type: ignore[arg-type]

    monkeypatch.setattr(calibrators, "fit_temperature", fit)
    monkeypatch.setattr(calibrators, "FOLDS", 3)
    found = held_out_nll(sample, [()])
    assert seen == [[2, 3, 4, 5], [0, 1, 4, 5], [0, 1, 2, 3]]
    expected = []
    for rest in seen:
        inside = torch.isin(sample.frames, torch.tensor(rest))
        fitted, out = (type(sample)(*(part[chosen] for part in sample)) for chosen in (inside, ~inside))
        expected.append(float(mean_nll(out, *scalar(fit_temperature(fitted)))))
    assert found[()] == pytest.approx(np.mean(expected))


@pytest.mark.parametrize("strengths", [(0.1,), (0.1, 0.1)])
def test_a_class_without_pixels_stays_near_its_temperature(strengths: tuple[float, ...]) -> None:
    sample = synthetic(3000, 5, scalar(1.5), seed=6)
    sample = type(sample)(*(part[sample.labels != 4] for part in sample))
    weight, bias = fit_penalised(sample, fit_temperature(sample), strengths)
    assert float((weight.diagonal() if weight.dim() == 2 else weight)[4]) < 2.0
    assert float(bias.abs().max()) < 2.0


@pytest.mark.parametrize("kind", ["vector", "dirichlet"])
def test_what_is_written_is_what_the_sampler_applies(
    camvid: tuple[Path, Path], tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The NLL of all pixels through the sampler is the one in the record, and a single frame cannot be held out."""
    monkeypatch.setattr("segunc.baselines.temperature.check_temperature", lambda _: None)  # an untrained network
    monkeypatch.setattr(calibrators, "PENALTIES", (1.0, 0.1) if kind == "vector" else (100.0,))
    values = TemperatureConfig(kind=kind, frames=2, pixels=10**6, draws=2)
    config = FitConfig(values, {"dataset": "camvid", "root": str(camvid[1])})
    said: list[str] = []
    record = scale_temperature(camvid[0], config, tmp_path, device="cpu", say=said.append)
    model = load_model(tmp_path)
    assert model.attachments["calibration"] == record
    assert (record.kind, record.applies, record.temperature) == (kind, "mean", None)
    assert record.penalty == min(list(record.held_out)[1:], key=lambda name: record.held_out[name])
    assert f"{record.held_out[record.penalty]:.4f} on frames held out ({record.penalty})" in said[-1]
    assert record.nll_after < record.nll_before
    sampler = Sampler(model.network, model.posterior, draws=2, fitted=model.fitted(("msp",)), scores=("msp",))
    data = SegmentationDataModule("camvid", str(camvid[1]))
    found = [pooled(sampler, image, truth) for _, image, truth, *_ in frames_as_seen(model, data, "val", 2, "test")]
    p, labels = (torch.cat(parts) for parts in zip(*found, strict=True))
    nll = -float(p.double().gather(1, labels[:, None]).log().mean())
    assert nll == pytest.approx(record.nll_after, rel=1e-4)
    alone = replace(config, settings=replace(values, frames=1))
    with pytest.raises(InputError, match="there is 1 frame"):
        scale_temperature(camvid[0], alone, tmp_path, device="cpu", say=said.append)
