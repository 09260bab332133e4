"""One score of several: its scales, the pixels that they are measured on, and the surprise that it is told as."""

from __future__ import annotations

import math
import re
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from segunc import Model, Sampler, build_network, load_model, load_network, save_network
from segunc.core.errors import InputError
from segunc.core.files import write_record
from segunc.data.labels import label_map
from segunc.data.module import SegmentationDataModule
from segunc.networks.description import NetworkDescription
from segunc.posteriors.anomaly import AnomalyConfig, ScoreSum, Standard, Surprise, fit_sum, known_pixels, weighted_sum
from segunc.posteriors.fitting import frames_as_seen
from segunc.scores import SUM
from segunc.training.config import FitConfig
from tests.records import change_record


def known(count: int = 200_000, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).exponential(size=count)).float()


def test_surprise_is_the_share_of_known_pixels_that_score_as_high() -> None:
    values = known()
    surprise = Surprise.of(values)
    for share in (1.0, 0.5, 0.1, 0.03, 0.001):
        at = torch.quantile(values[:100_000].double(), 1 - share).float()
        measured = -math.log10(float((values >= at).float().mean()))
        assert float(surprise(at[None])) == pytest.approx(measured, abs=0.05)
    # exp(-x) of the pixels of an exponential law exceed x, and its tail goes on as it must where none was seen.
    far = torch.tensor([9.0, 14.0, 30.0])
    np.testing.assert_allclose(surprise(far).numpy(), far.numpy() / math.log(10), rtol=0.1)


def test_surprise_keeps_the_order_and_takes_equal_levels() -> None:
    surprise = Surprise.of(torch.cat([torch.zeros(90_000), known(10_000)]))  # nine in ten are one value
    assert len(set(surprise.levels)) < len(surprise.levels)
    values = torch.linspace(-1, 20, 2001).reshape(3, 23, 29)
    found = surprise(values)
    assert found.shape == values.shape
    assert torch.isfinite(found).all()
    assert float(found.min()) >= 0
    assert (found.flatten().diff() >= 0).all()
    assert (found[values > 1e-3].diff() > 0).all()
    assert float(found[values <= 0].max()) == 0  # all pixels reach the value that nine in ten have


def test_a_largest_value_that_many_share_has_a_tail_all_the_same() -> None:
    surprise = Surprise.of(known(5000).clamp(max=2.0))
    assert surprise.excess > 0
    found = surprise(torch.tensor([1.0, 2.0, 3.0]))
    assert float(found[1]) == pytest.approx(
        2 / math.log(10), abs=0.13
    )  # the share that reaches it: a step below is within 1 / 8
    assert float(found[2]) > 3.0 > float(found[1]) > float(found[0])


@pytest.fixture
def base(toy_set: Path, tmp_path: Path) -> Path:
    torch.manual_seed(0)
    network = build_network(NetworkDescription("FPN", "mobilenet_v2", label_map("toy").classes))
    save_network(network, tmp_path / "base")
    return tmp_path / "base"


def test_parts_are_measured_on_normal_scenes_and_3_is_one_pixel_in_a_thousand(base: Path, toy_set: Path) -> None:
    parts, data = ["deterministic-energy", "deterministic-entropy"], {"dataset": "toy", "root": str(toy_set)}
    config = FitConfig(AnomalyConfig(parts=parts, weights=[2.0, 1.0], frames=3), data)
    total = fit_sum(base, config, base, device="cpu")
    assert (total.parts, total.weights, total.frames, total.features_sha256) == (tuple(parts), (2.0, 1.0), 3, None)
    model, module = load_model(base), SegmentationDataModule(**data)
    sampler, pixels = Sampler(model.network, scores=parts), []
    for _, image, labels in frames_as_seen(model, module, "val", 3, "test"):
        maps = sampler(image).scores
        pixels.append(torch.stack([maps[name][0][torch.from_numpy(labels != 255)] for name in parts]))
    values = torch.cat(pixels, 1)
    for scale, of_part in zip(total.scales, values.double().numpy(), strict=True):
        assert (scale.mean, scale.std) == pytest.approx((of_part.mean(), of_part.std()), rel=1e-5)
    surprise = total(dict(zip(parts, values[:, None, None], strict=True)))[SUM].flatten()
    for decades in (1, 2, 3):
        assert float((surprise >= decades).float().mean()) == pytest.approx(10.0**-decades, rel=0.2)


@pytest.mark.parametrize(("held_out", "left_out"), [(None, list("01234567")), ("3", ["3"])])
def test_a_frame_is_not_compared_with_features_of_its_own_sequence(
    base: Path, toy_set: Path, monkeypatch: pytest.MonkeyPatch, held_out: str | None, left_out: list[str]
) -> None:
    sequence = "0([0-7])_000019_leftImg8bit$"  # each of the eight training frames is one
    folds = {"validation": "leave-sequence-out", "sequence": sequence, "held_out": held_out}
    compared: list[set[str]] = []

    def noted(self: Model, scores: Any, frames: Any = None) -> dict[str, Any]:
        compared.append({re.search(sequence, name)[1] for name in frames})  # type: ignore[index]
        return {}

    monkeypatch.setattr(Model, "fitted", noted)
    known, frames = known_pixels(
        load_model(base),
        SegmentationDataModule("toy", str(toy_set), **folds),
        ["deterministic-entropy"],
        AnomalyConfig(),
        1,
    )
    assert sorted(map(sorted, compared)) == sorted(sorted(set("01234567") - {name}) for name in left_out)
    assert (len(known), frames) == (1, len(left_out))


def test_frames_without_a_label_and_scores_without_spread_are_refused(
    base: Path, toy_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = {"dataset": "toy", "root": str(toy_set)}
    config = FitConfig(AnomalyConfig(parts=["deterministic-entropy"]), data)
    with pytest.raises(InputError, match="'anomaly' is a sum"):
        fit_sum(base, FitConfig(AnomalyConfig(parts=["anomaly", "knn"]), data), tmp_path / "out", device="cpu")
    with torch.no_grad():
        network = load_network(base)
        network.body.segmentation_head[0].weight.zero_()
        network.body.segmentation_head[0].bias.zero_()
    save_network(network, tmp_path / "flat")
    with pytest.raises(InputError, match="deterministic-entropy is 1 at every pixel"):
        fit_sum(tmp_path / "flat", config, tmp_path / "out", device="cpu")
    monkeypatch.setattr("segunc.posteriors.anomaly.IGNORE", 256)
    monkeypatch.setattr(
        "segunc.posteriors.anomaly.frames_as_seen",
        lambda *_: iter([(0, torch.rand(1, 3, 32, 32), np.full((32, 32), 256))]),
    )
    with pytest.raises(InputError, match="no labelled pixel"):
        fit_sum(base, config, tmp_path / "out", device="cpu")


def model(temperature: float = 1.0, bank: str | None = "bank") -> Any:
    hashes = {"base_sha256": "base", "posterior_sha256": None, "calibrator_sha256": None}
    return SimpleNamespace(hashes=hashes | {"temperature": temperature, "features_sha256": bank})


def total() -> ScoreSum:
    values = torch.stack([known(seed=0), known(seed=1)])
    scales = (Standard.of(values[0]), Standard.of(values[1]))
    surprise = Surprise.of(weighted_sum(values, (1.0, 2.0), scales))
    parts = ("deterministic-energy", "knn")
    return ScoreSum(parts, (1.0, 2.0), scales, surprise, {"dataset": "toy"}, 3, 1, 1.0, "base", None, "bank")


def test_a_sum_comes_back_and_tells_a_surprise(tmp_path: Path) -> None:
    written = total()
    write_record(tmp_path / written.file, asdict(written))
    again = ScoreSum.load(tmp_path, model())
    assert again == written
    maps = {"deterministic-energy": known(600, 5).view(1, 20, 30), "knn": known(600, 6).view(1, 20, 30)}
    energy, knn = ((values - scale.mean) / scale.std for values, scale in zip(maps.values(), again.scales, strict=True))
    torch.testing.assert_close(again(maps), {SUM: written.surprise(energy + 2 * knn)})
    for other, said in ((model(1.5), "whose temperature is"), (model(bank=None), "with other features")):
        with pytest.raises(InputError, match=said):
            ScoreSum.load(tmp_path, other)
    change_record(tmp_path / written.file, scales=[{"levels": [0, 1], "excess": 1}] * 2)
    with pytest.raises(InputError, match="earlier version"):
        ScoreSum.load(tmp_path, model())
