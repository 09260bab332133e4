"""Vector scaling and Dirichlet calibration against scipy's minimisers and known distortions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from segunc.baselines import calibrators
from segunc.baselines.calibrators import fit_penalised, held_out_nll
from segunc.core.errors import InputError
from segunc.data.module import SegmentationDataModule
from segunc.posteriors.fitting import frames_as_seen
from segunc.posteriors.model import load_model
from segunc.posteriors.temperature import TemperatureConfig, fit_temperature, mean_nll, scale_temperature
from segunc.sampling import Sampler
from segunc.training.config import FitConfig
from tests.posteriors.test_temperature import Weights, camvid, numpy_nll, pooled, scalar, synthetic

__all__ = ["camvid"]


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


def test_noise_asks_for_a_strong_penalty_which_falls_back_on_the_temperature() -> None:
    sample = synthetic(300, 5, scalar(2.0), seed=4)
    found = held_out_nll(sample, [(), (1e4, 1e4), (1e-3, 1e-3)])
    assert found[(1e4, 1e4)] < found[(1e-3, 1e-3)] - 0.01
    assert found[(1e4, 1e4)] == pytest.approx(found[()], abs=2e-3)


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
    monkeypatch.setattr("segunc.posteriors.temperature.check_temperature", lambda _: None)  # an untrained network
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
    sampler = Sampler(model.network, model.posterior, draws=2, **model.fitted(("msp",)), scores=("msp",))
    data = SegmentationDataModule("camvid", str(camvid[1]))
    found = [pooled(sampler, image, truth) for _, image, truth in frames_as_seen(model, data, "val", 2, "test")]
    p, labels = (torch.cat(parts) for parts in zip(*found, strict=True))
    nll = -float(p.double().gather(1, labels[:, None]).log().mean())
    assert nll == pytest.approx(record.nll_after, rel=1e-4)
    alone = replace(config, settings=replace(values, frames=1))
    with pytest.raises(InputError, match="there is 1 frame"):
        scale_temperature(camvid[0], alone, tmp_path, device="cpu", say=said.append)
