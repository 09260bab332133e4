"""Fitted calibrations against scipy's minimisers and known distortions; the sampled pixels against
the sampler.
"""

import contextlib
import math
import warnings
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
    Calibration,
    PixelSample,
    Temperature,
    check_temperature,
    fit_temperature,
    mean_nll,
    sample_pixels,
)
from segunc.core.errors import InputError
from segunc.data.labels import label_map
from segunc.data.module import SegmentationDataModule
from segunc.networks import NetworkDescription, build_network, save_network
from segunc.posteriors.model import Model, load_model
from segunc.sampling import Sampler
from tests.conftest import change_record
from tests.data import miniatures
from tests.support.fits import fit_folder, open_fit
from tests.support.sampled import SMALL_DECODER
from tests.training.overconfident import save_abnn


def synthetic(pixels: int, classes: int, temperature: float, seed: int) -> PixelSample:
    """The mean prediction of draws, and labels drawn from what a calibration makes of it."""
    generator = torch.Generator().manual_seed(seed)
    mean_logits = torch.randn(1, pixels, classes, generator=generator) * 4
    noise = torch.randn(4, pixels, classes, generator=generator) * 0.5
    logs = (mean_logits + noise).double().softmax(2).mean(0).log()
    calibrated = (logs / temperature).softmax(1)
    labels = torch.multinomial(calibrated, 1, generator=generator)[:, 0]
    weights = torch.ones(pixels, dtype=torch.float64)
    frames = torch.arange(pixels) * 10 // pixels
    return PixelSample(logs, labels, weights, frames)


def numpy_nll(sample: PixelSample, temperature: float = 1.0) -> float:
    logs = log_softmax(sample.logs.numpy() / temperature, axis=1)
    labels = sample.labels.numpy()[:, None]
    of_labels = np.take_along_axis(logs, labels, 1)[:, 0]
    return -float(np.average(of_labels, weights=sample.weights))


TEMPERATURES = pytest.mark.parametrize("temperature", [0.6, 1.0, 3.0])


@TEMPERATURES
def test_the_temperature_is_that_of_scipy(temperature: float) -> None:
    sample = synthetic(20_000, 7, temperature, seed=1)
    best = minimize_scalar(
        lambda logarithm: numpy_nll(sample, math.exp(logarithm)),
        bounds=(-3, 3),
        options={"xatol": 1e-9},
    )
    fitted = fit_temperature(sample)
    assert fitted == pytest.approx(math.exp(best.x), rel=1e-5)
    assert float(mean_nll(sample, 1 / fitted)) == pytest.approx(best.fun, rel=1e-9)


@TEMPERATURES
def test_the_temperature_is_near_the_one_of_the_labels(temperature: float) -> None:
    sample = synthetic(20_000, 7, temperature, seed=1)
    assert fit_temperature(sample) == pytest.approx(temperature, rel=0.05)


@TEMPERATURES
def test_the_nll_is_that_of_scipy(temperature: float) -> None:
    sample = synthetic(20_000, 7, temperature, seed=1)
    assert float(mean_nll(sample)) == pytest.approx(numpy_nll(sample), rel=1e-9)


def test_weights_are_repeated_pixels() -> None:
    sample = synthetic(300, 5, 1.4, seed=0)
    repeats = torch.arange(300) % 3 + 1
    weighted = fit_temperature(sample._replace(weights=repeats.double()))
    repeated = PixelSample(*(values.repeat_interleave(repeats, 0) for values in sample))
    assert weighted == pytest.approx(fit_temperature(repeated), rel=1e-6)
    assert weighted != pytest.approx(fit_temperature(sample), rel=1e-3)


SAMPLE = synthetic(500, 5, 1.0, seed=0)
CHANCE = torch.randint(0, 5, (500,), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        (SAMPLE._replace(labels=SAMPLE.logs.argmax(1)), "T = 0.05"),
        (SAMPLE._replace(logs=SAMPLE.logs * 50, labels=CHANCE), "T = 20"),
        (SAMPLE._replace(logs=torch.zeros_like(SAMPLE.logs)), "T = 0.05"),
    ],
)
def test_a_temperature_at_a_bound_is_refused(sample: PixelSample, said: str) -> None:
    with pytest.raises(InputError, match=said):
        check_temperature(fit_temperature(sample))


@pytest.fixture(scope="module")
def camvid(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A noise-only ABNN of the CamVid classes, and a data set whose frames have another size."""
    root = tmp_path_factory.mktemp("temperature")
    torch.manual_seed(0)
    description = NetworkDescription(
        "FPN",
        "mobilenet_v2",
        label_map("camvid").classes,
        options=SMALL_DECODER,
        inference_size=(72, 96),
    )
    save_network(build_network(description), root / "base")
    save_abnn(root / "base", root / "abnn")
    return root / "abnn", miniatures.camvid(root / "data", {"val": 3})


def pooled(
    sampler: Sampler, model: Model, data: SegmentationDataModule, frames: int
) -> tuple[Tensor, Tensor]:
    """Mean probabilities ``[P, C]`` and labels ``[P]`` of the labelled pixels of frames of val."""
    probabilities = []
    labels = []
    run = open_fit(model, Temperature(), data)
    for frame in frames_as_seen(run, run.data, "val", frames):
        of_frame = sampler(frame.image, keep_probabilities=True).probabilities
        assert of_frame is not None
        truth = torch.from_numpy(frame.labels.astype(np.int64)).flatten()
        counted = truth != 255
        probabilities.append(of_frame[0].flatten(1).T[counted])
        labels.append(truth[counted])
    return torch.cat(probabilities), torch.cat(labels)


def test_sampled_pixels_have_the_mean_prediction_of_the_sampler(camvid: tuple[Path, Path]) -> None:
    model = load_model(camvid[0])
    data = SegmentationDataModule("camvid", str(camvid[1]))
    settings = Temperature(frames=0, pixels=10**6, draws=4, seed=5)
    sample = sample_pixels(open_fit(model, settings, data))
    sampler = Sampler(model.network, model.posterior, draws=4, seed=5)
    probabilities, labels = pooled(sampler, model, data, frames=0)
    equal_weights = torch.ones(len(labels), dtype=torch.float64)
    means = sample.logs.exp().float()
    assert sample.frames.unique().tolist() == [0, 1, 2]
    assert torch.equal(sample.labels, labels)
    assert torch.equal(sample.weights, equal_weights)
    torch.testing.assert_close(means, probabilities, rtol=1e-4, atol=1e-5)


def test_a_sample_depends_on_its_seed_alone(camvid: tuple[Path, Path]) -> None:
    model = load_model(camvid[0])
    data = SegmentationDataModule("camvid", str(camvid[1]))
    settings = Temperature(frames=1, pixels=30, draws=2, seed=1)
    first = sample_pixels(open_fit(model, settings, data))
    again = sample_pixels(open_fit(model, settings, data))
    torch.testing.assert_close(first.logs, again.logs, rtol=1e-12, atol=0)
    other = sample_pixels(open_fit(model, replace(settings, seed=2), data))
    assert not torch.equal(first.labels, other.labels)


def test_a_sample_stands_for_all_labelled_pixels(camvid: tuple[Path, Path]) -> None:
    model = load_model(camvid[0])
    data = SegmentationDataModule("camvid", str(camvid[1]))
    settings = Temperature(frames=1, pixels=30, draws=2, seed=1)
    sample = sample_pixels(open_fit(model, settings, data))
    whole = sample_pixels(open_fit(model, replace(settings, pixels=10**6), data))
    assert sample.logs.shape == (30, 11)
    assert float(sample.weights.sum()) == pytest.approx(len(whole.labels))


def scaled(camvid: tuple[Path, Path], out: Path, monkeypatch: pytest.MonkeyPatch) -> Calibration:
    """The calibration of an untrained network, whose temperature may lie at a bound."""
    monkeypatch.setattr("segunc.baselines.temperature.check_temperature", lambda _: None)
    values = Temperature(frames=2, pixels=10**6, draws=2)
    model = fit_folder(values, camvid[0], out, {"dataset": "camvid", "root": str(camvid[1])})
    calibration: Calibration = model.attachments["calibration"]
    return calibration


def test_the_sampler_applies_what_is_written(
    camvid: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The NLL of all pixels through the sampler is the one in the record."""
    calibration = scaled(camvid, tmp_path, monkeypatch)
    model = load_model(tmp_path)
    assert model.attachments["calibration"] == calibration
    assert calibration.kind == "scalar"
    assert calibration.applies == "mean"
    assert calibration.nll_after < calibration.nll_before
    sampler = Sampler(
        model.network,
        model.posterior,
        draws=2,
        fitted=model.fitted(("msp",)),
        scores=("msp",),
    )
    data = SegmentationDataModule("camvid", str(camvid[1]))
    probabilities, labels = pooled(sampler, model, data, frames=2)
    likelihood = probabilities.double().gather(1, labels[:, None])
    assert -float(likelihood.log().mean()) == pytest.approx(calibration.nll_after, rel=1e-4)


@pytest.mark.parametrize("trained_on", ["camvid", "toy"])
def test_a_temperature_on_training_frames_is_noted(
    camvid: tuple[Path, Path], trained_on: str
) -> None:
    folder, root = camvid
    model = load_model(folder)
    provenance = {"trained": True, "dataset": trained_on, "validation": "val"}
    model.network.description = replace(model.network.description, provenance=provenance)
    data = {"dataset": "camvid", "root": str(root)}
    with warnings.catch_warnings(record=True) as notes, contextlib.suppress(InputError):
        warnings.simplefilter("always")
        Temperature(split="train", frames=1, pixels=20, draws=2).fit(model, data, device="cpu")
    said = any("was trained on the split train" in str(note.message) for note in notes)
    assert said == (trained_on == "camvid")


def test_a_calibration_of_another_kind_is_refused(
    camvid: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scaled(camvid, tmp_path, monkeypatch)
    change_record(tmp_path / "calibration.json", kind="vector")
    with pytest.raises(InputError, match=r"calibration\.json is a calibration of the kind vector"):
        load_model(tmp_path)
