"""Ensembles, test-time augmentation, own dropout and plain fine-tuning from the command line on the tiny toy set."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from segunc.networks import SegmentationNetwork, load_network, save_network
from segunc.networks.files import network_sha256
from segunc.posteriors.model import load_model
from segunc.sampling import Sampler
from tests.conftest import Job
from tests.verbs.processes import FAST, refuse, succeed
from tests.verbs.test_chains import FRAME, epistemic_map

SMALL = f"--size 64x128 {FAST}"


def make(method: str, base: object, out: Path, *words: object) -> str:
    bases = base if isinstance(base, list) else [base]
    return succeed(f"finetune --device cpu --method {method} --base", *bases, "--out", out, *words).stdout


def epistemic(folder: Path) -> float:
    return float(epistemic_map(folder).mean())


@pytest.fixture(scope="module")
def seeds(trained: Job, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two networks of one command."""
    out = tmp_path_factory.mktemp("seeds")
    words = ("train --seeds 0,1 --device cpu --config", trained.train_config, "--out", out)
    assert "--method ensemble" in succeed(*words).stdout
    before = {path: path.stat().st_mtime_ns for path in out.glob("seed-*/network.safetensors")}
    assert len(before) == 2
    done = succeed(*words)
    assert done.stdout.count("is finished") + done.stderr.count("is finished") == 2
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert "optimisation.lr" in refuse(*words, "--optimisation.lr 0.5")
    return out


@pytest.fixture(scope="module")
def mixed(overconfident: Job, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ensemble of a deterministic network and an ABNN, moved after it was made."""
    folder = tmp_path_factory.mktemp("mixed")
    make("ensemble", [overconfident.base, overconfident.abnn], folder / "made")
    shutil.move(folder / "made", folder / "moved")
    return folder / "moved"


def test_a_member_is_the_network_of_its_seed_alone(trained: Job, seeds: Path) -> None:
    single = load_model(trained.base).sha256  # the configuration has seed 0
    first, second = (load_model(seeds / f"seed-{seed}").sha256 for seed in (0, 1))
    assert first == single != second


def test_an_ensemble_of_a_folder_of_seeds(seeds: Path, tmp_path: Path) -> None:
    make("ensemble", seeds, tmp_path / "model")
    model = load_model(tmp_path / "model")
    assert model.posterior.members == 2
    networks = [load_network(seeds / f"seed-{seed}") for seed in (0, 1)]
    with torch.no_grad():
        seen = FRAME.contiguous(memory_format=torch.channels_last)  # kernels of another layout round differently
        mean = torch.stack([network(seen).softmax(1) for network in networks]).mean(0)
    result = Sampler(model.network, model.posterior)(FRAME, keep_probabilities=True)
    torch.testing.assert_close(result.probabilities, mean, atol=2e-6, rtol=0)
    assert float(result.scores["epistemic"].mean()) > 1e-6
    make("ensemble", seeds, tmp_path / "model")  # once more
    assert load_model(tmp_path / "model").posterior_sha256 == model.posterior_sha256


@pytest.mark.parametrize("augmented", [False, True])
def test_every_verb_takes_a_mixture(overconfident: Job, mixed: Path, tmp_path: Path, augmented: bool) -> None:
    model = mixed
    if augmented:
        model = tmp_path / "augmented"
        make("tta", mixed, model, "--tta.scales [1.0,0.75] --tta.flip false")
        assert epistemic(model) != epistemic(mixed)
    method = "tta" if augmented else "ensemble"
    done = succeed("doctor --draws 4 --model", model, SMALL)
    assert "the uncertainty is alive" in done.stdout
    assert method in done.stdout.splitlines()[0]
    assert "member 1: alpha = 0" in done.stdout
    calibrated = tmp_path / "calibrated"
    config = tmp_path / "temperature.yaml"
    config.write_text(f"data: {{dataset: toy, root: {overconfident.data}}}\ntemperature: {{pixels: 200, draws: 4}}\n")
    make("temperature", model, calibrated, "--config", config)
    maps = tmp_path / "maps"
    succeed("predict --draws 4 --model", calibrated, "--input", overconfident.frames, "--out", maps, FAST)
    manifest = json.loads((maps / "manifest.json").read_text())
    assert manifest["model"]["method"] == method
    assert manifest["run"]["calibrator"] != "temperature 1.0000"
    assert all(json.loads(line)["mean"]["epistemic"] > 0 for line in (maps / "frames.jsonl").read_text().splitlines())
    succeed("review", "--maps", maps, "--out", tmp_path / "page")
    words = ("--root", overconfident.data, "--out", tmp_path / "pass.json", "--draws 4 --replicates 0", FAST)
    succeed("evaluate --dataset toy-anomaly --split anomaly --model", calibrated, *words)
    succeed(
        "evaluate --replicates 0 --maps", maps, "--anomaly-labels", overconfident.masks, "--out", tmp_path / "maps.json"
    )
    results = [json.loads((tmp_path / name).read_text()) for name in ("pass.json", "maps.json")]
    assert results[0]["scores"]["epistemic"]["pooled"] == results[1]["scores"]["epistemic"]["pooled"]


def test_augmentation_of_a_deterministic_network(trained: Job, tmp_path: Path) -> None:
    make("tta", trained.base, tmp_path / "flip")
    make("tta", trained.base, tmp_path / "flip")  # once more
    make("tta", trained.base, tmp_path / "scales", "--tta.scales [1.0,0.5,1.5]")
    record = json.loads((tmp_path / "flip" / "posterior.json").read_text())
    assert (record["method"], record["scales"], record["flip"]) == ("tta", [1.0, 0.75], True)
    flip, scales = epistemic(tmp_path / "flip"), epistemic(tmp_path / "scales")
    assert 0 < flip != scales > 1e-6
    assert "the uncertainty is alive" in succeed("doctor --model", tmp_path / "scales", SMALL).stdout
    words = ("--model", tmp_path / "flip", "--input", trained.frames, "--out", tmp_path / "maps", FAST)
    assert "--scope decoder has no effect on this model: its method is tta" in refuse("predict --scope decoder", *words)


def test_own_dropout_and_norm_sites(trained: Job, tmp_path: Path) -> None:
    config = tmp_path / "dropout.yaml"
    config.write_text(f"data: {{dataset: toy, root: {trained.data}}}\nmc_dropout: {{sites: own}}\n")

    def drop(name: str, words: str = "") -> str:
        return make("mc-dropout", trained.base, tmp_path / name, "--config", config, *[words] if words else [])

    said = drop("own")  # FPN carries dropout 0.2 in its decoder
    assert "p 0.2" in said
    drop("stronger", "--mc_dropout.p 0.6")
    model = load_model(tmp_path / "own")
    assert model.posterior.p == (0.2,)
    assert 1e-6 < epistemic(tmp_path / "own") < 0.7 * epistemic(tmp_path / "stronger")
    Sampler(model.network, model.posterior, draws=4)(FRAME)
    assert network_sha256(model.network.body, model.network.description) == model.sha256, "statistics are untouched"
    drop("norm", "--mc_dropout.sites norm --mc_dropout.p 0.1")
    assert json.loads((tmp_path / "norm" / "posterior.json").read_text())["where"] == "norm"
    assert "the uncertainty is alive" in succeed("doctor --draws 4 --model", tmp_path / "own", SMALL).stdout


def test_what_cannot_be_an_ensemble_is_one_line(finetuned: Job, seeds: Path, mixed: Path, tmp_path: Path) -> None:
    first, second, out = seeds / "seed-0", seeds / "seed-1", tmp_path / "out"

    def refused(*bases: object) -> str:
        return refuse("finetune --method ensemble --base", *bases, "--out", out)

    assert "at least two model folders" in refused(first)
    assert "is the same model as" in refused(first, finetuned.base)
    assert "holds several networks (ensemble)" in refused(first, mixed)
    assert "--method ensemble has no settings" in refused(first, second, "--tta.flip true")
    network = load_network(second)
    for key, value, said in (("inference_size", (32, 64), "inference size"), ("classes", None, "has the classes")):
        other = tmp_path / key
        changed = {key: value if value is not None else network.description.classes[::-1]}
        save_network(SegmentationNetwork(network.body, replace(network.description, **changed)), other)
        assert said in refused(first, other)
    assert not out.exists()
    words = ("--config", finetuned.finetune_config, "--out", out)
    assert "takes one folder at --base" in refuse("finetune --base", first, second, *words)
    assert "there is no --config" in refuse("finetune --base", first, "--out", out)
    assert "Bayesian model" in refuse("finetune --base", mixed, *words)
