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
    "mcbn": "batches: 2, batch_size: 6",
    "swag": "epochs: 3, burn_in: 0, collect_every: 1, rank: 4",
    "variational": "epochs: 1",
}
"""A small run of each method but ABNN, whose tests are the others of this folder."""
OWN = {
    "laplace": "prior_scale 0.3",
    "mc-dropout": "p 0.1",
    "mcbn": "batch_size 1",
    "swag": "scale 20.0",
    "variational": "initial_sigma 0.1",
}
"""The method's own parameter, with which the draws differ more than in that run."""
RECORDED: dict[str, tuple[str, Any]] = {
    "laplace": ("prior_scale", 0.02),
    "mc-dropout": ("where", "own"),
    "mcbn": ("batches", 2),
    "swag": ("scale", 1),
    "variational": ("scope", "all"),
}
"""A parameter of the posterior as its record, the manifest of its maps and the review page say it.
"""


@dataclass(frozen=True)
class Tuned:
    """Two models of a method, the second with a stronger parameter of its own."""

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
    method = request.param
    folder = tmp_path_factory.mktemp(method)
    config = configuration(trained, method, SETTINGS[method], folder)
    done = Tuned(trained, method, config, folder / "model", folder / "stronger")
    succeed(*words(trained, method, config, done.model))
    own_parameter = f"--{METHODS[method].key}.{OWN[method]}"
    succeed(*words(trained, method, config, done.stronger), own_parameter)
    return done


def predict_words(tuned: Tuned, out: Path) -> list[object]:
    return ["--input", tuned.job.frames, "--out", out, "--draws 2 --maps entropy,epistemic", FAST]


@pytest.fixture(scope="module")
def maps(tuned: Tuned, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Maps of the weaker model."""
    out = tmp_path_factory.mktemp("maps") / "maps"
    succeed("predict --model", tuned.model, *predict_words(tuned, out))
    return out


def test_every_method_is_run_here() -> None:
    trained = {name for name, method in METHODS.items() if not method.finished}
    elsewhere = {"abnn", "hmc", "sghmc", "sgld"}  # below, and in test_job
    assert {*SETTINGS} | elsewhere == trained
    assert {*OWN} | elsewhere == trained


def test_the_methods_own_parameter_changes_the_maps(tuned: Tuned) -> None:
    assert 1e-5 < epistemic(tuned.model) < 0.7 * epistemic(tuned.stronger)


def test_maps_have_epistemic_uncertainty_and_the_record_of_the_model(
    tuned: Tuned, maps: Path
) -> None:
    for line in (maps / "frames.jsonl").read_text().splitlines():
        assert json.loads(line)["mean"]["epistemic"] > 0
    model = json.loads((maps / "manifest.json").read_text())["model"]
    posterior = record(tuned.model)
    name, value = RECORDED[tuned.method]
    assert model["parameters"][name] == value
    assert posterior[name] == value
    assert model["provenance"] == posterior["provenance"]


def test_maps_can_be_evaluated(tuned: Tuned, maps: Path, tmp_path: Path) -> None:
    out = tmp_path / "metrics.json"
    labels = ("--anomaly-labels", tuned.job.masks)
    succeed("evaluate --replicates 0 --maps", maps, *labels, "--out", out)
    scores = json.loads(out.read_text())["scores"]
    assert scores["epistemic"]["pooled"]["auroc"] > 0


def test_the_page_names_the_method_and_its_parameter(
    tuned: Tuned, maps: Path, tmp_path: Path
) -> None:
    labels = ("--anomaly-labels", tuned.job.masks)
    succeed("review --maps", maps, *labels, "--out", tmp_path / "page")
    page = "".join(path.read_text() for path in (tmp_path / "page" / "data").glob("*.js"))
    name, _ = RECORDED[tuned.method]
    assert tuned.method in page
    assert name in page


def test_the_doctor_finds_the_uncertainty_alive(tuned: Tuned) -> None:
    done = succeed("doctor --draws 2 --size 64x128 --model", tuned.model, FAST)
    assert done.stdout.rstrip().endswith("the uncertainty is alive")


def test_maps_of_another_posterior_are_not_mixed_with_these(tuned: Tuned, maps: Path) -> None:
    assert "posterior" in refuse("predict --model", tuned.stronger, *predict_words(tuned, maps))


def test_the_same_command_gives_the_same_posterior(tuned: Tuned, tmp_path: Path) -> None:
    before = (tuned.model / "posterior.safetensors").read_bytes()
    for out in (tuned.model, tmp_path / "again"):  # the first continues a finished run
        succeed(*words(tuned.job, tuned.method, tuned.config, out))
        assert (out / "posterior.safetensors").read_bytes() == before


def test_a_training_killed_and_continued_gives_a_model(trained: Job, tmp_path: Path) -> None:
    out = tmp_path / "out"
    settings = "epochs: 16, burn_in: 12, collect_every: 4, rank: 4"
    config = configuration(trained, "swag", settings, tmp_path)
    command = words(trained, "swag", config, out)
    kill_when(Command(*command), (out / "checkpoints" / "last.ckpt").exists)
    assert not (out / "posterior.json").exists()
    assert "swag.lr 0.005 there, 0.01 asked for" in refuse(*command, "--swag.lr 0.01")
    succeed(*command)
    provenance = load_model(out).record["provenance"]
    assert provenance["resumed"] is True
    assert provenance["steps"] == 32
    assert provenance["snapshots"] == 5
    assert provenance["seen_splits"] == [{"dataset": "toy", "split": "train"}]


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
    config = configuration(job, method, SECTIONS[method], job.data.parent)
    return [*words(job, method, config, out), *more]


def record(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "posterior.json").read_text(encoding="utf-8"))


def epistemic_map(folder: Path) -> torch.Tensor:
    model = load_model(folder)
    return Sampler(model.network, model.posterior, draws=8)(FRAME).scores["epistemic"]


@dataclass(frozen=True)
class Chain:
    """A model of a method that runs chains, and what its making printed."""

    job: Job
    method: str
    model: Path
    printed: str


@pytest.fixture(scope="module", params=SECTIONS)
def chain(
    request: pytest.FixtureRequest, trained: Job, tmp_path_factory: pytest.TempPathFactory
) -> Chain:
    method = request.param
    model = tmp_path_factory.mktemp(method) / "model"
    done = succeed(*chain_words(trained, method, model))
    return Chain(trained, method, model, done.stdout)


def test_a_chain_leaves_the_base_as_it_is(chain: Chain) -> None:
    assert isinstance(load_model(chain.model).posterior, ChainStates)
    assert not load_model(chain.job.base).bayesian


def test_a_chain_records_its_states(chain: Chain) -> None:
    posterior = record(chain.model)
    assert posterior["method"] == chain.method
    if chain.method == "hmc":
        assert posterior["members"] == 2
        assert posterior["states"] == 8
        assert posterior["target"]["effective_pixels"] == 300
    else:
        assert posterior["members"] == 1
        assert posterior["states"] == 4
        assert posterior["target"]["effective_pixels"] == 1000


def test_a_chain_says_how_far_it_converged(chain: Chain) -> None:
    assert "rhat_max" in chain.printed
    assert record(chain.model)["provenance"]["convergence"]["rhat_max"] > 0


def test_a_chains_own_parameter_changes_its_epistemic_map(chain: Chain, tmp_path: Path) -> None:
    uncertainty = epistemic_map(chain.model)
    assert float(uncertainty.mean()) > 1e-6
    key, value = OWN_PARAMETER[chain.method]
    option = f"--{chain.method}.{key}"
    succeed(*chain_words(chain.job, chain.method, tmp_path / "other", option, value))
    difference = uncertainty - epistemic_map(tmp_path / "other")
    assert float(difference.abs().mean()) > 1e-6


@pytest.mark.parametrize("chain", ["hmc"], indirect=True)
def test_chains_of_hmc_record_their_steps(chain: Chain) -> None:
    chains = record(chain.model)["provenance"]["chain_records"]
    assert len(chains) == 2
    for steps in chains:
        assert 0 <= steps["accepted"] <= 1
        assert steps["step_size"] > 0


def test_killed_chains_go_on_to_the_same_states(trained: Job, tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    whole = tmp_path / "whole"
    options = "--sgld.cycle_steps 15 --sgld.chains 2"
    succeed(*chain_words(trained, "sgld", whole, options))
    command = chain_words(trained, "sgld", killed, options)
    kill_when(Command(*command), (killed / "checkpoints" / "last.ckpt").exists)
    assert not (killed / "posterior.json").exists()
    assert "sgld.lr" in refuse(*command, "--sgld.lr 0.1")
    succeed(*command)
    assert record(killed)["provenance"]["resumed"] is True
    states = (killed / "posterior.safetensors").read_bytes()
    assert states == (whole / "posterior.safetensors").read_bytes()


def test_a_chain_that_diverges_says_which_and_why(trained: Job, tmp_path: Path) -> None:
    command = chain_words(trained, "sgld", tmp_path / "out", "--sgld.lr", 1e9)
    line = refuse(*command, code=1)
    assert "chain 1 of 1 stopped: the" in line
    assert "lower the learning rate" in line


def make(method: str, base: object, out: Path, *words: object) -> str:
    bases = base if isinstance(base, list) else [base]
    command = f"finetune --device cpu --method {method} --base"
    return succeed(command, *bases, "--out", out, *words).stdout


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


def test_each_seed_is_a_network_of_its_own(trained: Job, seeds: Path) -> None:
    single = load_model(trained.base).sha256  # the configuration has seed 0
    assert load_model(seeds / "seed-0").sha256 == single
    assert load_model(seeds / "seed-1").sha256 != single


def test_an_ensemble_is_the_mean_of_its_networks(seeds: Path, tmp_path: Path) -> None:
    make("ensemble", seeds, tmp_path / "model")
    model = load_model(tmp_path / "model")
    assert model.posterior.members == 2
    frame = FRAME.contiguous(memory_format=torch.channels_last)
    in_float32 = torch.zeros(1, 9, 64, 128)
    exact = torch.zeros(1, 9, 64, 128, dtype=torch.float64)
    with torch.no_grad():
        for seed in (0, 1):
            network = load_network(seeds / f"seed-{seed}")
            in_float32 += network(frame).softmax(1) / 2
            exact += network.double()(frame.double()).softmax(1) / 2
    result = Sampler(model.network, model.posterior)(FRAME, keep_probabilities=True)
    assert result.probabilities is not None
    # Kernels differ in their rounding: the sampler's may err as the networks' own passes do.
    own_rounding = float((in_float32 - exact).abs().max())
    assert float((result.probabilities - exact).abs().max()) < own_rounding + 2e-6
    assert float(result.scores["epistemic"].mean()) > 1e-6


def test_an_ensemble_that_is_made_once_more_is_the_same(seeds: Path, tmp_path: Path) -> None:
    make("ensemble", seeds, tmp_path / "model")
    before = load_model(tmp_path / "model").posterior_sha256
    make("ensemble", seeds, tmp_path / "model")
    assert load_model(tmp_path / "model").posterior_sha256 == before


@pytest.fixture(scope="module")
def augmented(mixed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Test-time augmentation of that ensemble, made twice into one folder."""
    model = tmp_path_factory.mktemp("augmented") / "model"
    for _ in range(2):
        make("tta", mixed, model, "--tta.scales [1.0,0.75] --tta.flip false")
    return model


@pytest.fixture(scope="module")
def calibrated(
    overconfident: Job, augmented: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The same with a temperature."""
    model = tmp_path_factory.mktemp("calibrated") / "model"
    data = ("--data.dataset toy --data.root", overconfident.data)
    settings = "--temperature.pixels 200 --temperature.draws 4"
    make("temperature", augmented, model, *data, settings)
    return model


@pytest.fixture(scope="module")
def calibrated_maps(
    overconfident: Job, calibrated: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    out = tmp_path_factory.mktemp("calibrated") / "maps"
    words = ("--input", overconfident.frames, "--out", out, FAST)
    succeed("predict --draws 4 --model", calibrated, *words)
    return out


def test_augmentation_changes_the_uncertainty_of_a_mixture(augmented: Path, mixed: Path) -> None:
    assert 0 < epistemic(augmented) != epistemic(mixed)


def test_the_doctor_examines_augmentation_of_a_mixture(augmented: Path) -> None:
    done = succeed("doctor --draws 4 --model", augmented, f"--size 64x128 {FAST}")
    assert "tta" in done.stdout.splitlines()[0]
    assert "member 1: alpha = 0" in done.stdout
    assert "the uncertainty is alive" in done.stdout


def test_maps_of_an_augmented_mixture_are_calibrated(calibrated_maps: Path) -> None:
    manifest = json.loads((calibrated_maps / "manifest.json").read_text())
    assert manifest["model"]["method"] == "tta"
    assert manifest["run"]["calibrator"] != "temperature 1.0000"
    for line in (calibrated_maps / "frames.jsonl").read_text().splitlines():
        assert json.loads(line)["mean"]["epistemic"] > 0


def test_maps_and_model_of_an_augmented_mixture_have_the_same_numbers(
    overconfident: Job, calibrated: Path, calibrated_maps: Path, tmp_path: Path
) -> None:
    one_pass = tmp_path / "pass.json"
    words = ("--root", overconfident.data, "--out", one_pass, "--draws 4 --replicates 0", FAST)
    succeed("evaluate --dataset toy-anomaly --split anomaly --model", calibrated, *words)
    from_maps = tmp_path / "maps.json"
    words = ("--anomaly-labels", overconfident.masks, "--out", from_maps)
    succeed("evaluate --replicates 0 --maps", calibrated_maps, *words)
    first = json.loads(one_pass.read_text())["scores"]["epistemic"]["pooled"]
    second = json.loads(from_maps.read_text())["scores"]["epistemic"]["pooled"]
    assert first == second


def drop(job: Job, out: Path, words: str) -> str:
    data = ("--data.dataset toy --data.root", job.data)
    return make("mc-dropout", job.base, out, *data, words)


def test_a_networks_own_dropout_layers_are_drawn(trained: Job, tmp_path: Path) -> None:
    """FPN carries dropout 0.2 in its decoder."""
    printed = drop(trained, tmp_path / "own", "--mc_dropout.sites own")
    assert "own 1 dropout layer, nothing is trained" in printed
    assert load_model(tmp_path / "own").posterior.p == (0.2,)


def test_a_larger_dropout_rate_gives_more_uncertainty(trained: Job, tmp_path: Path) -> None:
    drop(trained, tmp_path / "own", "--mc_dropout.sites own")
    drop(trained, tmp_path / "stronger", "--mc_dropout.sites own --mc_dropout.p 0.6")
    assert 1e-6 < epistemic(tmp_path / "own") < 0.7 * epistemic(tmp_path / "stronger")


def test_dropout_leaves_the_statistics_of_the_network(trained: Job, tmp_path: Path) -> None:
    drop(trained, tmp_path / "own", "--mc_dropout.sites own")
    model = load_model(tmp_path / "own")
    Sampler(model.network, model.posterior, draws=4)(FRAME)
    assert network_sha256(model.network.body, model.network.description) == model.sha256


def test_dropout_can_follow_normalisation_layers(trained: Job, tmp_path: Path) -> None:
    drop(trained, tmp_path / "norm", "--mc_dropout.sites norm --mc_dropout.p 0.1")
    assert record(tmp_path / "norm")["where"] == "norm"


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("inference_size", "inference size"),
        ("classes", "has the classes"),
    ],
)
def test_networks_of_different_descriptions_are_no_ensemble(
    seeds: Path, tmp_path: Path, key: str, message: str
) -> None:
    network = load_network(seeds / "seed-1")
    values: dict[str, Any] = {
        "inference_size": (32, 64),
        "classes": network.description.classes[::-1],
    }
    description = replace(network.description, **{key: values[key]})
    other = tmp_path / key
    save_network(SegmentationNetwork(network.body, description), other)
    bases = ("--base", seeds / "seed-0", other)
    out = tmp_path / "out"
    assert message in refuse("finetune --method ensemble --out", out, *bases)
    assert not out.exists()


def test_what_cannot_be_an_ensemble_is_one_line(
    finetuned: Job, seeds: Path, mixed: Path, tmp_path: Path
) -> None:
    first = seeds / "seed-0"
    second = seeds / "seed-1"
    out = tmp_path / "out"
    for bases, message in (
        ([first], "at least two model folders"),
        ([first, finetuned.base], "is the same model as"),
        ([first, mixed], "holds several networks (ensemble)"),
        ([first, second, "--tta.flip true"], "--method ensemble has no settings"),
    ):
        assert message in refuse("finetune --method ensemble --out", out, "--base", *bases)
    assert not out.exists()


def test_what_cannot_be_the_base_of_an_abnn_is_one_line(
    finetuned: Job, seeds: Path, mixed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = ("--config", finetuned.finetune_config, "--out", out)
    two = ("--base", seeds / "seed-0", seeds / "seed-1")
    assert "takes one folder at --base" in refuse("finetune", *two, *words)
    assert "Bayesian model" in refuse("finetune --base", mixed, *words)
    assert not out.exists()


@pytest.mark.parametrize("method", ["tta", "distil"])
def test_a_folder_of_another_network_is_not_overwritten(seeds: Path, method: str) -> None:
    words = ("--base", seeds / "seed-0", "--out", seeds / "seed-1")
    assert "holds another network" in refuse(f"finetune --method {method}", *words)
