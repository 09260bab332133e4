"""Fitted calibrations against scipy's minimisers and known distortions; the sampled pixels against
the sampler.
"""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from torch import Tensor

from segunc.baselines.fitted import frames_as_seen
from segunc.baselines.temperature import (
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
from segunc.posteriors.model import load_model
from segunc.sampling import Sampler
from segunc.training.config import FitConfig
from tests.conftest import change_record
from tests.data import miniatures
from tests.support.sampled import SMALL_DECODER
from tests.training.overconfident import save_abnn


def synthetic(pixels: int, classes: int, temperature: float, seed: int) -> PixelSample:
    """The mean prediction of draws, and labels drawn from what a calibration makes of it."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(1, pixels, classes, generator=generator) * 4
    logits = logits + torch.randn(4, pixels, classes, generator=generator) * 0.5
    logs = logits.double().softmax(2).mean(0).log()
    labels = torch.multinomial((logs / temperature).softmax(1), 1, generator=generator)[:, 0]
    return PixelSample(
        logs, labels, torch.ones(pixels, dtype=torch.float64), torch.arange(pixels) * 10 // pixels
    )


def numpy_nll(sample: PixelSample, temperature: float = 1.0) -> float:
    found = log_softmax(sample.logs.numpy() / temperature, axis=1)
    of_labels = np.take_along_axis(found, sample.labels.numpy()[:, None], 1)[:, 0]
    return -float(np.average(of_labels, weights=sample.weights))


@pytest.mark.parametrize("temperature", [0.6, 1.0, 3.0])
def test_the_temperature_is_that_of_scipy_and_near_the_one_of_the_labels(
    temperature: float,
) -> None:
    sample = synthetic(20_000, 7, temperature, seed=1)
    best = minimize_scalar(
        lambda t: numpy_nll(sample, math.exp(t)), bounds=(-3, 3), options={"xatol": 1e-9}
    )
    found = fit_temperature(sample)
    assert found == pytest.approx(math.exp(best.x), rel=1e-5)
    assert found == pytest.approx(temperature, rel=0.05)
    assert float(mean_nll(sample, 1 / found)) == pytest.approx(best.fun, rel=1e-9)
    assert float(mean_nll(sample)) == pytest.approx(numpy_nll(sample), rel=1e-9)


def test_weights_are_repeated_pixels_and_a_temperature_at_a_bound_is_refused() -> None:
    sample = synthetic(300, 5, 1.4, seed=0)
    repeats = torch.arange(300) % 3 + 1
    weighted = sample._replace(weights=repeats.double())
    repeated = PixelSample(*(p.repeat_interleave(repeats, 0) for p in sample))
    assert fit_temperature(weighted) == pytest.approx(fit_temperature(repeated), rel=1e-6)
    assert fit_temperature(weighted) != pytest.approx(fit_temperature(sample), rel=1e-3)
    sample = synthetic(500, 5, 1.0, seed=0)
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
    """A noise-only ABNN of the CamVid classes with a size of its own, and a set whose frames have
    another.
    """
    root = tmp_path_factory.mktemp("temperature")
    torch.manual_seed(0)
    classes = label_map("camvid").classes
    description = NetworkDescription(
        "FPN", "mobilenet_v2", classes, options=SMALL_DECODER, inference_size=(72, 96)
    )
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
    found = [
        pooled(sampler, image, truth)
        for _, image, truth, *_ in frames_as_seen(model, data, "val", 0, "test")
    ]
    assert every.frames.unique().tolist() == [0, 1, 2]
    assert torch.equal(every.labels, torch.cat([labels for _, labels in found]))
    assert torch.equal(every.weights, torch.ones(len(every.labels), dtype=torch.float64))
    torch.testing.assert_close(
        every.logs.exp().float(), torch.cat([p for p, _ in found]), rtol=1e-4, atol=1e-5
    )


def test_a_sample_is_of_those_pixels_stands_for_all_and_depends_on_its_seed_alone(
    camvid: tuple[Path, Path],
) -> None:
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


def test_what_is_written_is_what_the_sampler_applies(
    camvid: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The NLL of all pixels through the sampler is the one in the record; a calibration of another
    kind is refused.
    """
    monkeypatch.setattr(
        "segunc.baselines.temperature.check_temperature", lambda _: None
    )  # an untrained network
    values = TemperatureConfig(frames=2, pixels=10**6, draws=2)
    config = FitConfig(values, {"dataset": "camvid", "root": str(camvid[1])})
    record = scale_temperature(camvid[0], config, tmp_path, device="cpu", say=lambda line: None)
    model = load_model(tmp_path)
    assert model.attachments["calibration"] == record
    assert (record.kind, record.applies) == ("scalar", "mean")
    assert record.nll_after < record.nll_before
    sampler = Sampler(
        model.network, model.posterior, draws=2, fitted=model.fitted(("msp",)), scores=("msp",)
    )
    data = SegmentationDataModule("camvid", str(camvid[1]))
    found = [
        pooled(sampler, image, truth)
        for _, image, truth, *_ in frames_as_seen(model, data, "val", 2, "test")
    ]
    p, labels = (torch.cat(parts) for parts in zip(*found, strict=True))
    nll = -float(p.double().gather(1, labels[:, None]).log().mean())
    assert nll == pytest.approx(record.nll_after, rel=1e-4)
    change_record(tmp_path / "calibration.json", kind="vector")
    with pytest.raises(InputError, match=r"calibration\.json is a calibration of the kind vector"):
        load_model(tmp_path)
