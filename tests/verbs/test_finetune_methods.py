"""Every method of ``segunc finetune`` from the command line on the tiny toy set."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from segunc.posteriors.methods import METHODS
from segunc.posteriors.model import load_model
from tests.conftest import Job
from tests.verbs.processes import FAST, Command, refuse, succeed
from tests.verbs.test_chains import epistemic_map
from tests.verbs.test_interrupted import kill_when

SETTINGS = {
    "laplace": "images: 8, samples: 1, prior_scale: 0.02",
    "mc-dropout": "sites: own, p: 0.02",
    "swag": "epochs: 3, burn_in: 0, collect_every: 1, rank: 4",
    "variational": "epochs: 1",
}
"""A small run of each method but ABNN, whose tests are the others of this folder."""
OWN = {"laplace": "prior_scale 0.3", "mc-dropout": "p 0.1", "swag": "scale 20.0", "variational": "initial_sigma 0.1"}
"""The method's own parameter, larger than in that run."""
RECORDED = {
    "laplace": ("prior_scale", 0.02),
    "mc-dropout": ("where", "own"),
    "swag": ("scale", 1),
    "variational": ("scope", "all"),
}
"""A parameter of the posterior as its record, the manifest of its maps and the review page say it."""


@dataclass(frozen=True)
class Tuned:
    """A configuration, its model folder, and the model of a larger own parameter."""

    job: Job
    method: str
    config: Path
    model: Path
    stronger: Path


def configuration(job: Job, method: str, settings: str, folder: Path) -> Path:
    key = METHODS[method].key
    path = folder / f"{key}.yaml"
    data = f"data: {{dataset: toy, root: {job.data}, crop: [64, 64], batch_size: 4}}"
    path.write_text(f"{data}\n{key}: {{{settings}}}\ntrainer: {{precision: 32-true}}\n", encoding="utf-8")
    return path


def words(job: Job, method: str, config: Path, out: Path) -> list[object]:
    return [f"finetune --device cpu --method {method} --base", job.base, "--config", config, "--out", out]


@pytest.fixture(scope="module", params=sorted(SETTINGS))
def tuned(request: pytest.FixtureRequest, trained: Job, tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    folder = tmp_path_factory.mktemp(request.param)
    config = configuration(trained, request.param, SETTINGS[request.param], folder)
    done = Tuned(trained, request.param, config, folder / "model", folder / "stronger")
    succeed(*words(trained, request.param, config, done.model))
    own = f"--{METHODS[request.param].key}.{OWN[request.param]}"
    succeed(*words(trained, request.param, config, done.stronger), own)
    return done


def test_every_method_is_run_here() -> None:
    made = {name for name, method in METHODS.items() if not method.finished}
    elsewhere = {"abnn", "hmc", "sghmc", "sgld"}  # test_job, test_mixtures, test_chains
    elsewhere |= {"decoder-ensemble"}  # tests/baselines/test_decoder_ensemble
    assert {*SETTINGS} | elsewhere == {*OWN} | elsewhere == made


def test_the_draws_differ_and_the_own_parameter_changes_the_maps(tuned: Tuned) -> None:
    weaker, stronger = (float(epistemic_map(path).mean()) for path in (tuned.model, tuned.stronger))
    assert 1e-5 < weaker < 0.7 * stronger


def test_maps_metrics_page_and_doctor_read_it(tuned: Tuned, tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    words = ("--input", tuned.job.frames, "--out", maps, "--draws 2 --maps entropy,epistemic", FAST)
    succeed("predict --model", tuned.model, *words)
    for line in map(json.loads, (maps / "frames.jsonl").read_text().splitlines()):
        assert line["mean"]["epistemic"] > 0
    model, record = (json.loads(path.read_text()) for path in (maps / "manifest.json", tuned.model / "posterior.json"))
    name, value = RECORDED[tuned.method]
    assert model["model"]["parameters"][name] == record[name] == value
    assert model["model"]["provenance"] == record["provenance"]
    succeed(
        "evaluate --replicates 0 --maps", maps, "--anomaly-labels", tuned.job.masks, "--out", tmp_path / "metrics.json"
    )
    assert json.loads((tmp_path / "metrics.json").read_text())["scores"]["epistemic"]["pooled"]["auroc"] > 0
    succeed("review --maps", maps, "--anomaly-labels", tuned.job.masks, "--out", tmp_path / "page")
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
    config = configuration(trained, "swag", "epochs: 16, burn_in: 12, collect_every: 4, rank: 4", tmp_path)
    command = words(trained, "swag", config, out)
    kill_when(Command(*command), (out / "checkpoints" / "last.ckpt").exists)
    assert not (out / "posterior.json").exists()
    assert "swag.lr 0.005 there, 0.01 asked for" in refuse(*command, "--swag.lr 0.01")
    succeed(*command)
    made = load_model(out).record["provenance"]
    assert (made["resumed"], made["steps"], made["snapshots"]) == (True, 32, 5)
