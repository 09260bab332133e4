"""What comes from outside the package: a posterior of one's own, and loaders of one's own."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from segunc import load_model
from segunc.cli.main import main
from segunc.core.errors import InputError
from segunc.posteriors.abnn import ABNN, finetune_abnn
from segunc.posteriors.methods import METHODS
from segunc.training.config import FinetuneConfig
from segunc.training.data import OwnData
from tests.conftest import Job


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The other package imported, and forgotten after the test."""
    monkeypatch.setattr(METHODS, "_entries", {name: METHODS._entries[name] for name in METHODS})
    monkeypatch.delitem(sys.modules, "tests.outside.posterior", raising=False)
    return importlib.import_module("tests.outside.posterior")


def predict(model: Path, job: Job, out: Path) -> list[dict[str, dict[str, float]]]:
    """The lines of the frames' log, after a look at the maps."""
    words = ["predict", "--model", model, "--input", job.frames, "--out", out, "--draws", "4", "--device", "cpu"]
    assert main([*map(str, words), "--maps", "entropy,epistemic"]) == 0
    lines = [json.loads(line) for line in (out / "frames.jsonl").read_text().splitlines()]
    assert len(lines) == len(list((out / "epistemic").rglob("*.png"))) > 0
    return lines


def test_a_posterior_from_outside_goes_through_finetune_save_load_and_predict(
    trained: Job, tmp_path: Path, outside: ModuleType
) -> None:
    config = tmp_path / "uniform.yaml"
    config.write_text(f"data: {{dataset: toy, root: {trained.data}}}\nuniform_noise: {{width: 0.4, scope: decoder}}\n")
    words = ["finetune", "--method", "uniform-noise", "--base", trained.base, "--config", config, "--device", "cpu"]
    assert main([*map(str, words), "--out", str(tmp_path / "model")]) == 0
    model = load_model(tmp_path / "model")
    assert model.posterior == outside.UniformNoise(0.4, "decoder")
    assert model.record["provenance"]["settings"]["width"] == 0.4
    assert all(line["mean"]["epistemic"] > 0 for line in predict(tmp_path / "model", trained, tmp_path / "maps"))


def test_a_setting_out_of_range_and_a_taken_name_are_one_line(
    trained: Job, tmp_path: Path, outside: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "uniform.yaml"
    config.write_text(f"data: {{dataset: toy, root: {trained.data}}}\n")
    words = [
        "finetune",
        "--method",
        "uniform-noise",
        "--base",
        trained.base,
        "--config",
        config,
        "--out",
        tmp_path / "m",
    ]
    assert main([*map(str, words), "--uniform_noise.width", "0"]) == 2
    assert "uniform_noise: width 0.0 is not a number above 0" in capsys.readouterr().err
    with pytest.raises(InputError, match="a method 'abnn' already"):
        METHODS.register("abnn", METHODS["uniform-noise"])


def test_abnn_is_fine_tuned_on_loaders_of_ones_own(trained: Job, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(4, 3, 64, 64, generator=generator)
    labels = torch.randint(0, 9, (4, 64, 64), generator=generator)
    data = OwnData(*(DataLoader(TensorDataset(images, labels), 2) for _ in range(2)))
    settings = ABNN(members=2, epochs=1, alpha_grid=[0.1, 0.2], class_weight_power=0.5)
    torch.set_flush_denormal(False)
    measured = finetune_abnn(
        trained.base,
        FinetuneConfig(settings, data, {"precision": "32-true"}),
        tmp_path / "model",
        device="cpu",
        say=lambda line: None,
    )
    assert float(torch.tensor([1e-30]) * torch.tensor([1e-10])) > 0, "denormals are given back"
    assert measured["steps"] == 4
    assert set(measured["alpha_nll"]) == {"0.1", "0.2"}
    model = load_model(tmp_path / "model")
    base = load_model(trained.base)
    assert model.sha256 == base.sha256
    assert not torch.equal(model.posterior.gamma[0], model.posterior.gamma[1])
    assert model.posterior.rescale is None, "members keep the statistics that they were trained with"
    assert model.record["provenance"]["dataset"] == "own loaders"
    assert all(line["mean"]["epistemic"] > 0 for line in predict(tmp_path / "model", trained, tmp_path / "maps"))


def test_a_method_that_needs_frames_by_number_says_so(trained: Job, tmp_path: Path) -> None:
    config = FinetuneConfig(METHODS["sgld"].config(), OwnData([]))
    with pytest.raises(InputError, match="sgld needs frames by their number"):
        METHODS["sgld"].fit(trained.base, config, tmp_path / "model", device="cpu")
