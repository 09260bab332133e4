"""The tools that compare posteriors with a reference and measure the noise of gradients, on the tiny toy set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from segunc.affine.convert import convert
from segunc.affine.draws import AffineLayout
from segunc.affine.files import save_posterior
from segunc.affine.posterior import Posterior
from segunc.networks.files import load_network, save_network
from segunc.posteriors.abnn import ABNN
from segunc.posteriors.chains import HMC
from tests.conftest import Job
from tests.study.conftest import Run
from tools import study_gradient_variance, study_posterior


def keep(make: Any, base: Path, folder: Path) -> Path:
    """The model folder of a posterior that is made of the layout of a base."""
    network = load_network(base)
    report = convert(network.body)
    layout = AffineLayout(network)
    posterior: Posterior = make(layout)
    save_posterior(posterior, layout, report, base, folder, seed=0, provenance={"seconds": 3.0})
    return folder


def two_chains(layout: AffineLayout) -> HMC:
    """Four states each, the second chain with twice the spread of the first."""
    noise = torch.randn(8, layout.total, generator=torch.Generator().manual_seed(0))
    noise[4:] *= 2
    return HMC(layout.weight * (1 + 0.1 * noise), layout.bias.repeat(8, 1), 2)


def test_posteriors_are_compared_with_a_reference_of_their_base(
    trained: Job, tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = keep(two_chains, trained.base, tmp_path / "hmc")
    near, far = (
        keep(lambda layout, a=alpha: ABNN.around(layout, alpha=a), trained.base, tmp_path / f"alpha-{alpha}")
        for alpha in (0.1, 1.0)
    )
    words = ("--reference", reference, "--data", trained.data, "--draws", 8, "--out", tmp_path / "study")
    assert run(study_posterior, "--models", reference, near, far, *words) == 0
    rows = json.loads((tmp_path / "study" / "study.json").read_text())["rows"]
    assert list(rows) == ["reference", "reference: chain 1 against chain 2", "hmc", "alpha-0.1", "alpha-1.0"]
    for split in study_posterior.SPLITS:
        assert (rows["hmc"][split]["agreement"], rows["hmc"][split]["total_variation"]) == (1, 0)
        distances = [rows[name][split]["total_variation"] for name in ("hmc", "alpha-0.1", "alpha-1.0")]
        assert distances == sorted(set(distances))
        assert 0 < rows["reference: chain 1 against chain 2"][split]["total_variation"] < distances[2]
        assert rows["alpha-0.1"][split]["epistemic"] < rows["alpha-1.0"][split]["epistemic"]
    assert rows["reference"]["train_seconds"] == 3.0
    assert "| alpha-1.0 |" in capsys.readouterr().out

    network = load_network(trained.base)
    with torch.no_grad():
        next(network.parameters()).mul_(2)
    save_network(network, tmp_path / "other")
    other = keep(lambda layout: ABNN.around(layout, alpha=0.1), tmp_path / "other", tmp_path / "of-other")
    assert run(study_posterior, "--models", other, *words) == 2
    assert "has another base" in capsys.readouterr().err


def test_every_posterior_over_affine_parameters_has_a_row(run: Run, tmp_path: Path) -> None:
    assert {method for method, _ in study_posterior.RUNS.values()} < set(study_posterior.COMPARED)
    assert {"mc-dropout", "hmc", "abnn"} < set(study_posterior.COMPARED)
    with pytest.raises(SystemExit):
        run(study_posterior, "--methods", "deterministic", "--out", tmp_path)


def test_the_noise_of_gradients(trained: Job, tmp_path: Path, run: Run) -> None:
    words = ("--base", trained.base, "--data", trained.data, "--batches", 3, "--batch-size", 2)
    run(study_gradient_variance, *words, "--alpha", 0.3, "--sigma", 0.2, "--out", tmp_path)
    rows = json.loads((tmp_path / "gradients.json").read_text())["rows"]
    plain, abnn, matched, gaussian = rows.values()
    assert plain["variance_of_draws"] == 0 < plain["variance"]
    for row in (abnn, matched, gaussian):
        assert row["variance_of_draws"] > 0
    # The same drawn networks; ABNN's gradient is that of the mean times 1 + alpha eps.
    assert abnn["variance_of_draws"] != matched["variance_of_draws"]
    assert gaussian["log_sigma_variance"] > 0
    assert abnn["log_sigma_variance"] is None
    run(study_gradient_variance, *words, "--alpha", 0, "--sigma", 0, "--out", tmp_path)
    silent = list(json.loads((tmp_path / "gradients.json").read_text())["rows"].values())
    assert [row["variance"] for row in silent] == pytest.approx([plain["variance"]] * 4, rel=1e-4)
