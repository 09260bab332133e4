"""``segunc finetune --method sgld|sghmc|hmc`` on the tiny toy set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from segunc.baselines.chains import ChainStates
from segunc.posteriors.model import load_model
from segunc.sampling.sampler import Sampler
from tests.conftest import Job
from tests.verbs.processes import Command, refuse, succeed
from tests.verbs.test_interrupted import kill_when

LANGEVIN = "{cycles: 2, cycle_steps: 4, exploration: 0.25, states_per_cycle: 2, effective_pixels: 1000, scope: decoder}"
SECTIONS = {
    "sgld": LANGEVIN,
    "sghmc": LANGEVIN,
    "hmc": "{scope: decoder, frames: 2, effective_pixels: 300, chains: 2, warmup: 1, samples: 4, trajectory: 0.01, step_size: 0.003}",
}
CONFIG = "data: {{dataset: toy, root: {root}, crop: [64, 64], batch_size: 4}}\n{method}: {section}\n"
FRAME = torch.rand(1, 3, 64, 128, generator=torch.Generator().manual_seed(0))
OWN_PARAMETER = {"sgld": ("temperature", 0.01), "sghmc": ("momentum", 0.3), "hmc": ("effective_pixels", 30)}


def words(job: Job, method: str, out: Path, *more: object) -> list[object]:
    config = job.data.parent / f"{method}.yaml"
    if not config.exists():
        config.write_text(CONFIG.format(root=job.data, method=method, section=SECTIONS[method]), encoding="utf-8")
    common = [f"finetune --device cpu --method {method} --base", job.base, "--config", config, "--out", out]
    return [*common, *more]


def record(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "posterior.json").read_text(encoding="utf-8"))


def epistemic_map(folder: Path) -> torch.Tensor:
    model = load_model(folder)
    return Sampler(model.network, model.posterior, draws=8)(FRAME).scores["epistemic"]


@pytest.mark.parametrize("method", SECTIONS)
def test_a_chain_leaves_the_base_and_its_own_parameter_changes_the_maps(
    trained: Job, tmp_path: Path, method: str
) -> None:
    done = succeed(*words(trained, method, tmp_path / "one"))
    assert "rhat_max" in done.stdout
    held = record(tmp_path / "one")
    states = 8 if method == "hmc" else 4
    assert (held["method"], held["states"], held["members"]) == (method, states, 2 if method == "hmc" else 1)
    assert held["target"]["effective_pixels"] == (300 if method == "hmc" else 1000)
    assert held["provenance"]["convergence"]["rhat_max"] > 0
    assert isinstance(load_model(tmp_path / "one").posterior, ChainStates)
    assert not load_model(trained.base).bayesian
    assert float(epistemic_map(tmp_path / "one").mean()) > 1e-6
    key, value = OWN_PARAMETER[method]
    succeed(*words(trained, method, tmp_path / "other", f"--{method}.{key}", value))
    assert float((epistemic_map(tmp_path / "one") - epistemic_map(tmp_path / "other")).abs().mean()) > 1e-6
    if method == "hmc":
        chains = held["provenance"]["chain_records"]
        assert len(chains) == 2
        assert all(0 <= chain["accepted"] <= 1 and chain["step_size"] > 0 for chain in chains)


def test_killed_chains_go_on_to_the_same_states(trained: Job, tmp_path: Path) -> None:
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    succeed(*words(trained, "sgld", whole, "--sgld.cycle_steps 15 --sgld.chains 2"))
    command = words(trained, "sgld", killed, "--sgld.cycle_steps 15 --sgld.chains 2")
    kill_when(Command(*command), (killed / "checkpoints" / "last.ckpt").exists)
    assert not (killed / "posterior.json").exists()
    assert "sgld.lr" in refuse(*command, "--sgld.lr 0.1")
    succeed(*command)
    assert record(killed)["provenance"]["resumed"] is True
    assert (killed / "posterior.safetensors").read_bytes() == (whole / "posterior.safetensors").read_bytes()


def test_a_chain_that_breaks_ends_with_one_line(trained: Job, tmp_path: Path) -> None:
    line = refuse(*words(trained, "sgld", tmp_path / "out", "--sgld.lr", 1e9), code=1)
    assert "chain 1 of 1 stopped: the" in line
    assert "lower the learning rate" in line
