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
from segunc.posteriors.files import load_model
from segunc.sampling import Sampler
from tests.conftest import Job
from tests.verbs.processes import FAST, refuse, succeed
from tests.verbs.test_finetune_methods import FRAME, epistemic_map


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


def test_an_ensemble_of_a_folder_of_seeds(trained: Job, seeds: Path, tmp_path: Path) -> None:
    single = load_model(trained.base).sha256  # the configuration has seed 0
    first, second = (load_model(seeds / f"seed-{seed}").sha256 for seed in (0, 1))
    assert first == single != second
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


def test_every_verb_takes_augmentation_of_a_mixture(overconfident: Job, mixed: Path, tmp_path: Path) -> None:
    model, calibrated, maps = tmp_path / "augmented", tmp_path / "calibrated", tmp_path / "maps"
    make("tta", mixed, model, "--tta.scales [1.0,0.75] --tta.flip false")
    assert epistemic(model) != epistemic(mixed)
    done = succeed("doctor --draws 4 --model", model, f"--size 64x128 {FAST}").stdout
    assert "tta" in done.splitlines()[0]
    assert "member 1: alpha = 0" in done
    assert "the uncertainty is alive" in done
    data = ("--data.dataset toy --data.root", overconfident.data)
    make("temperature", model, calibrated, *data, "--temperature.pixels 200 --temperature.draws 4")
    succeed("predict --draws 4 --model", calibrated, "--input", overconfident.frames, "--out", maps, FAST)
    manifest = json.loads((maps / "manifest.json").read_text())
    assert manifest["model"]["method"] == "tta"
    assert manifest["run"]["calibrator"] != "temperature 1.0000"
    assert all(json.loads(line)["mean"]["epistemic"] > 0 for line in (maps / "frames.jsonl").read_text().splitlines())
    words = ("--root", overconfident.data, "--out", tmp_path / "pass.json", "--draws 4 --replicates 0", FAST)
    succeed("evaluate --dataset toy-anomaly --split anomaly --model", calibrated, *words)
    labels = ("--anomaly-labels", overconfident.masks)
    succeed("evaluate --replicates 0 --maps", maps, *labels, "--out", tmp_path / "maps.json")
    results = [json.loads((tmp_path / name).read_text()) for name in ("pass.json", "maps.json")]
    assert results[0]["scores"]["epistemic"]["pooled"] == results[1]["scores"]["epistemic"]["pooled"]


def test_augmentation_of_a_deterministic_network(trained: Job, tmp_path: Path) -> None:
    make("tta", trained.base, tmp_path / "flip")
    make("tta", trained.base, tmp_path / "flip")  # once more
    make("tta", trained.base, tmp_path / "scales", "--tta.scales [1.0,0.5,1.5]")
    record = json.loads((tmp_path / "flip" / "posterior.json").read_text())
    assert (record["method"], record["scales"], record["flip"]) == ("tta", [1.0, 0.75], True)
    assert 0 < epistemic(tmp_path / "flip") != epistemic(tmp_path / "scales") > 1e-6
    words = ("--model", tmp_path / "flip", "--input", trained.frames, "--out", tmp_path / "maps", FAST)
    assert "--scope decoder has no effect on this model: its method is tta" in refuse("predict --scope decoder", *words)


def test_own_dropout_and_normalisation_layers(trained: Job, tmp_path: Path) -> None:
    data = ("--data.dataset toy --data.root", trained.data)

    def drop(name: str, words: str) -> str:
        return make("mc-dropout", trained.base, tmp_path / name, *data, words)

    said = drop("own", "--mc_dropout.sites own")  # FPN carries dropout 0.2 in its decoder
    assert "1 dropout layers are active" in said
    assert "they keep the p that the network was trained with" in said
    drop("stronger", "--mc_dropout.sites own --mc_dropout.p 0.6")
    drop("auto", "--mc_dropout.sites auto")
    model = load_model(tmp_path / "own")
    assert model.posterior.p == (0.2,)
    assert load_model(tmp_path / "auto").posterior_sha256 == model.posterior_sha256
    assert 1e-6 < epistemic(tmp_path / "own") < 0.7 * epistemic(tmp_path / "stronger")
    Sampler(model.network, model.posterior, draws=4)(FRAME)
    assert network_sha256(model.network.body, model.network.description) == model.sha256, "statistics are untouched"
    few = "--mc_dropout.sites own --mc_dropout.selection_frames 1 --mc_dropout.selection_draws 2"
    drop("selected", f"{few} --mc_dropout.p_grid [0.3,0.9]")
    selected = json.loads((tmp_path / "selected" / "posterior.json").read_text())
    nll = selected["provenance"]["p_nll"]
    assert set(nll) == {"0.3", "0.9"}
    assert selected["p"] == [float(min(nll, key=lambda key: nll[key]))]
    drop("norm", "--mc_dropout.sites norm --mc_dropout.p 0.1")
    assert json.loads((tmp_path / "norm" / "posterior.json").read_text())["where"] == "norm"


def test_plain_finetuning_gives_a_deterministic_network(trained: Job, tmp_path: Path) -> None:
    words = ("--data.dataset toy --data.crop [64,64] --data.batch_size 4 --data.root", trained.data)
    words = (*words, "--deterministic.epochs 1 --trainer.precision 32-true")
    make("deterministic", trained.base, tmp_path / "out", *words)
    tuned, base = load_model(tmp_path / "out"), load_model(trained.base)
    assert not tuned.bayesian
    ours, others = dict(tuned.network.named_parameters()), dict(base.network.named_parameters())
    changed = [ours[name].ndim for name in ours if not torch.equal(ours[name], others[name])]
    assert set(changed) == {1}, "affine parameters only"
    assert float(Sampler(tuned.network, tuned.posterior)(FRAME).scores["epistemic"].max()) == 0.0
    again = ("--base", trained.base, *words, "--out", trained.base)
    assert "holds another model" in refuse("finetune --method deterministic", *again)


def test_what_cannot_be_an_ensemble_is_one_line(finetuned: Job, seeds: Path, mixed: Path, tmp_path: Path) -> None:
    first, second, out = seeds / "seed-0", seeds / "seed-1", tmp_path / "out"
    network = load_network(second)
    for key, value in (("inference_size", (32, 64)), ("classes", network.description.classes[::-1])):
        changed = replace(network.description, **{key: value})
        save_network(SegmentationNetwork(network.body, changed), tmp_path / key)
    for bases, said in (
        ([first], "at least two model folders"),
        ([first, finetuned.base], "is the same model as"),
        ([first, mixed], "holds several networks (ensemble)"),
        ([first, second, "--tta.flip true"], "--method ensemble has no settings"),
        ([first, tmp_path / "inference_size"], "inference size"),
        ([first, tmp_path / "classes"], "has the classes"),
    ):
        assert said in refuse("finetune --method ensemble --out", out, "--base", *bases)
    words = ("--config", finetuned.finetune_config, "--out", out)
    assert "takes one folder at --base" in refuse("finetune --base", first, second, *words)
    assert "Bayesian model" in refuse("finetune --base", mixed, *words)
    assert not out.exists()
