"""Every method of ``segunc finetune`` but ABNN from the command line on the tiny toy set."""

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from segunc.baselines.chains import ChainStates
from segunc.networks import SegmentationNetwork, load_network, save_network
from segunc.networks.model_folder import network_sha256
from segunc.posteriors.methods import METHODS
from segunc.posteriors.model import load_model
from segunc.sampling.sampler import Sampler
from tests.conftest import Job
from tests.verbs.processes import FAST, Command, refuse, succeed
from tests.verbs.test_interrupted import kill_when

SETTINGS = {
    "laplace": "images: 8, samples: 1, prior_scale: 0.02",
    "mc-dropout": "sites: own, p: 0.02",
    "swag": "epochs: 3, burn_in: 0, collect_every: 1, rank: 4",
    "variational": "epochs: 1",
}
"""A small run of each method but ABNN, whose tests are the others of this folder."""
OWN = {
    "laplace": "prior_scale 0.3",
    "mc-dropout": "p 0.1",
    "swag": "scale 20.0",
    "variational": "initial_sigma 0.1",
}
"""The method's own parameter, larger than in that run."""
RECORDED = {"laplace": ("prior_scale", 0.02), "mc-dropout": ("where", "own"), "swag": ("scale", 1)}
RECORDED |= {"variational": ("scope", "all")}
"""A parameter of the posterior as its record, the manifest of its maps and the review page say it.
"""


@dataclass(frozen=True)
class Tuned:
    job: Job
    method: str
    config: Path
    model: Path
    stronger: Path


def configuration(job: Job, method: str, settings: str, folder: Path) -> Path:
    key = METHODS[method].key
    path = folder / f"{key}.yaml"
    data = f"data: {{dataset: toy, root: {job.data}, crop: [64, 64], batch_size: 4}}"
    path.write_text(
        f"{data}\n{key}: {{{settings}}}\ntrainer: {{precision: 32-true}}\n", encoding="utf-8"
    )
    return path


def words(job: Job, method: str, config: Path, out: Path) -> list[object]:
    return [
        f"finetune --device cpu --method {method} --base",
        job.base,
        "--config",
        config,
        "--out",
        out,
    ]


@pytest.fixture(scope="module", params=sorted(SETTINGS))
def tuned(
    request: pytest.FixtureRequest, trained: Job, tmp_path_factory: pytest.TempPathFactory
) -> Tuned:
    folder = tmp_path_factory.mktemp(request.param)
    config = configuration(trained, request.param, SETTINGS[request.param], folder)
    done = Tuned(trained, request.param, config, folder / "model", folder / "stronger")
    succeed(*words(trained, request.param, config, done.model))
    own = f"--{METHODS[request.param].key}.{OWN[request.param]}"
    succeed(*words(trained, request.param, config, done.stronger), own)
    return done


def test_every_method_is_run_here() -> None:
    made = {name for name, method in METHODS.items() if not method.finished}
    elsewhere = {"abnn", "hmc", "sghmc", "sgld"}  # below, and in test_job
    assert {*SETTINGS} | elsewhere == {*OWN} | elsewhere == made


def test_maps_metrics_page_and_doctor_read_it(tuned: Tuned, tmp_path: Path) -> None:
    weaker, stronger = (float(epistemic_map(path).mean()) for path in (tuned.model, tuned.stronger))
    assert 1e-5 < weaker < 0.7 * stronger, "the method's own parameter changes the maps"
    maps = tmp_path / "maps"
    words = ("--input", tuned.job.frames, "--out", maps, "--draws 2 --maps entropy,epistemic", FAST)
    succeed("predict --model", tuned.model, *words)
    for line in map(json.loads, (maps / "frames.jsonl").read_text().splitlines()):
        assert line["mean"]["epistemic"] > 0
    model, record = (
        json.loads(path.read_text())
        for path in (maps / "manifest.json", tuned.model / "posterior.json")
    )
    name, value = RECORDED[tuned.method]
    assert model["model"]["parameters"][name] == record[name] == value
    assert model["model"]["provenance"] == record["provenance"]
    labels = ("--anomaly-labels", tuned.job.masks, "--out")
    succeed("evaluate --replicates 0 --maps", maps, *labels, tmp_path / "metrics.json")
    assert (
        json.loads((tmp_path / "metrics.json").read_text())["scores"]["epistemic"]["pooled"][
            "auroc"
        ]
        > 0
    )
    succeed("review --maps", maps, *labels, tmp_path / "page")
    page = "".join(path.read_text() for path in (tmp_path / "page" / "data").glob("*.js"))
    assert tuned.method in page
    assert name in page
    done = succeed("doctor --draws 2 --size 64x128 --model", tuned.model, FAST)
    assert done.stdout.rstrip().endswith("the uncertainty is alive")
    # Another own parameter is another posterior: its maps are not mixed with these.
    assert "posterior" in refuse("predict --model", tuned.stronger, *words)


def test_the_same_command_gives_the_same_posterior(tuned: Tuned, tmp_path: Path) -> None:
    before = (tuned.model / "posterior.safetensors").read_bytes()
    for out in (tuned.model, tmp_path / "again"):  # the first continues a finished run
        succeed(*words(tuned.job, tuned.method, tuned.config, out))
        assert (out / "posterior.safetensors").read_bytes() == before


def test_a_training_killed_and_continued_gives_a_model(trained: Job, tmp_path: Path) -> None:
    out = tmp_path / "out"
    config = configuration(
        trained, "swag", "epochs: 16, burn_in: 12, collect_every: 4, rank: 4", tmp_path
    )
    command = words(trained, "swag", config, out)
    kill_when(Command(*command), (out / "checkpoints" / "last.ckpt").exists)
    assert not (out / "posterior.json").exists()
    assert "swag.lr 0.005 there, 0.01 asked for" in refuse(*command, "--swag.lr 0.01")
    succeed(*command)
    made = load_model(out).record["provenance"]
    assert (made["resumed"], made["steps"], made["snapshots"]) == (True, 32, 5)


LANGEVIN = (
    "cycles: 2, cycle_steps: 4, exploration: 0.25, states_per_cycle: 2, effective_pixels: 1000,"
    " scope: decoder"
)
SECTIONS = {
    "sgld": LANGEVIN,
    "sghmc": LANGEVIN,
    "hmc": (
        "scope: decoder, frames: 2, effective_pixels: 300, chains: 2, warmup: 1, samples: 4,"
        " trajectory: 0.01, step_size: 0.003"
    ),
}
FRAME = torch.rand(1, 3, 64, 128, generator=torch.Generator().manual_seed(0))
OWN_PARAMETER = {
    "sgld": ("temperature", 0.01),
    "sghmc": ("momentum", 0.3),
    "hmc": ("effective_pixels", 30),
}


def chain_words(job: Job, method: str, out: Path, *more: object) -> list[object]:
    return [
        *words(job, method, configuration(job, method, SECTIONS[method], job.data.parent), out),
        *more,
    ]


def record(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "posterior.json").read_text(encoding="utf-8"))


def epistemic_map(folder: Path) -> torch.Tensor:
    model = load_model(folder)
    return Sampler(model.network, model.posterior, draws=8)(FRAME).scores["epistemic"]


@pytest.mark.parametrize("method", SECTIONS)
def test_a_chain_leaves_the_base_and_its_own_parameter_changes_the_maps(
    trained: Job, tmp_path: Path, method: str
) -> None:
    done = succeed(*chain_words(trained, method, tmp_path / "one"))
    assert "rhat_max" in done.stdout
    held = record(tmp_path / "one")
    states = 8 if method == "hmc" else 4
    assert (held["method"], held["states"], held["members"]) == (
        method,
        states,
        2 if method == "hmc" else 1,
    )
    assert held["target"]["effective_pixels"] == (300 if method == "hmc" else 1000)
    assert held["provenance"]["convergence"]["rhat_max"] > 0
    assert isinstance(load_model(tmp_path / "one").posterior, ChainStates)
    assert not load_model(trained.base).bayesian
    assert float(epistemic_map(tmp_path / "one").mean()) > 1e-6
    key, value = OWN_PARAMETER[method]
    succeed(*chain_words(trained, method, tmp_path / "other", f"--{method}.{key}", value))
    assert (
        float((epistemic_map(tmp_path / "one") - epistemic_map(tmp_path / "other")).abs().mean())
        > 1e-6
    )
    if method == "hmc":
        chains = held["provenance"]["chain_records"]
        assert len(chains) == 2
        assert all(0 <= chain["accepted"] <= 1 and chain["step_size"] > 0 for chain in chains)


def test_killed_chains_go_on_to_the_same_states(trained: Job, tmp_path: Path) -> None:
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    succeed(*chain_words(trained, "sgld", whole, "--sgld.cycle_steps 15 --sgld.chains 2"))
    command = chain_words(trained, "sgld", killed, "--sgld.cycle_steps 15 --sgld.chains 2")
    kill_when(Command(*command), (killed / "checkpoints" / "last.ckpt").exists)
    assert not (killed / "posterior.json").exists()
    assert "sgld.lr" in refuse(*command, "--sgld.lr 0.1")
    succeed(*command)
    assert record(killed)["provenance"]["resumed"] is True
    assert (killed / "posterior.safetensors").read_bytes() == (
        whole / "posterior.safetensors"
    ).read_bytes()
    line = refuse(*chain_words(trained, "sgld", tmp_path / "out", "--sgld.lr", 1e9), code=1)
    assert "chain 1 of 1 stopped: the" in line
    assert "lower the learning rate" in line


def make(method: str, base: object, out: Path, *words: object) -> str:
    bases = base if isinstance(base, list) else [base]
    return succeed(
        f"finetune --device cpu --method {method} --base", *bases, "--out", out, *words
    ).stdout


def epistemic(folder: Path) -> float:
    return float(epistemic_map(folder).mean())


@pytest.fixture(scope="module")
def seeds(trained: Job, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("seeds")
    words = ("train --seeds 0,1 --device cpu --config", trained.train_config, "--out", out)
    assert "--method ensemble" in succeed(*words).stdout
    done = succeed(*words)
    assert done.stdout.count("is finished") + done.stderr.count("is finished") == 2
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
        seen = FRAME.contiguous(
            memory_format=torch.channels_last
        )  # kernels of another layout round differently
        mean = torch.stack([network(seen).softmax(1) for network in networks]).mean(0)
    result = Sampler(model.network, model.posterior)(FRAME, keep_probabilities=True)
    torch.testing.assert_close(result.probabilities, mean, atol=2e-6, rtol=0)
    assert float(result.scores["epistemic"].mean()) > 1e-6
    make("ensemble", seeds, tmp_path / "model")  # once more
    assert load_model(tmp_path / "model").posterior_sha256 == model.posterior_sha256


def test_every_verb_takes_augmentation_of_a_mixture(
    overconfident: Job, mixed: Path, tmp_path: Path
) -> None:
    model, calibrated, maps = tmp_path / "augmented", tmp_path / "calibrated", tmp_path / "maps"
    make("tta", mixed, model, "--tta.scales [1.0,0.75] --tta.flip false")
    make("tta", mixed, model, "--tta.scales [1.0,0.75] --tta.flip false")  # once more
    assert 0 < epistemic(model) != epistemic(mixed)
    done = succeed("doctor --draws 4 --model", model, f"--size 64x128 {FAST}").stdout
    assert "tta" in done.splitlines()[0]
    assert "member 1: alpha = 0" in done
    assert "the uncertainty is alive" in done
    data = ("--data.dataset toy --data.root", overconfident.data)
    make("temperature", model, calibrated, *data, "--temperature.pixels 200 --temperature.draws 4")
    succeed(
        "predict --draws 4 --model",
        calibrated,
        "--input",
        overconfident.frames,
        "--out",
        maps,
        FAST,
    )
    manifest = json.loads((maps / "manifest.json").read_text())
    assert manifest["model"]["method"] == "tta"
    assert manifest["run"]["calibrator"] != "temperature 1.0000"
    assert all(
        json.loads(line)["mean"]["epistemic"] > 0
        for line in (maps / "frames.jsonl").read_text().splitlines()
    )
    words = (
        "--root",
        overconfident.data,
        "--out",
        tmp_path / "pass.json",
        "--draws 4 --replicates 0",
        FAST,
    )
    succeed("evaluate --dataset toy-anomaly --split anomaly --model", calibrated, *words)
    labels = ("--anomaly-labels", overconfident.masks)
    succeed("evaluate --replicates 0 --maps", maps, *labels, "--out", tmp_path / "maps.json")
    results = [json.loads((tmp_path / name).read_text()) for name in ("pass.json", "maps.json")]
    assert (
        results[0]["scores"]["epistemic"]["pooled"] == results[1]["scores"]["epistemic"]["pooled"]
    )


def test_own_dropout_and_normalisation_layers(trained: Job, tmp_path: Path) -> None:
    data = ("--data.dataset toy --data.root", trained.data)

    def drop(name: str, words: str) -> str:
        return make("mc-dropout", trained.base, tmp_path / name, *data, words)

    said = drop("own", "--mc_dropout.sites own")  # FPN carries dropout 0.2 in its decoder
    assert "own 1 dropout layers, nothing is trained" in said
    drop("stronger", "--mc_dropout.sites own --mc_dropout.p 0.6")
    model = load_model(tmp_path / "own")
    assert model.posterior.p == (0.2,)
    assert 1e-6 < epistemic(tmp_path / "own") < 0.7 * epistemic(tmp_path / "stronger")
    Sampler(model.network, model.posterior, draws=4)(FRAME)
    assert network_sha256(model.network.body, model.network.description) == model.sha256, (
        "statistics are untouched"
    )
    drop("norm", "--mc_dropout.sites norm --mc_dropout.p 0.1")
    assert json.loads((tmp_path / "norm" / "posterior.json").read_text())["where"] == "norm"


def test_what_cannot_be_an_ensemble_is_one_line(
    finetuned: Job, seeds: Path, mixed: Path, tmp_path: Path
) -> None:
    first, second, out = seeds / "seed-0", seeds / "seed-1", tmp_path / "out"
    network = load_network(second)
    for key, value in (
        ("inference_size", (32, 64)),
        ("classes", network.description.classes[::-1]),
    ):
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
    for method in ("tta", "distil"):
        assert "holds another network" in refuse(
            f"finetune --method {method} --base", first, "--out", second
        )
    assert not out.exists()
