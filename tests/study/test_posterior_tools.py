"""The tools that compare posteriors with a reference and measure the noise of gradients, on the tiny toy set."""

from __future__ import annotations

import json
import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import wasserstein_distance
from torch import Tensor

from segunc.affine.convert import convert
from segunc.affine.draws import AffineLayout
from segunc.affine.files import save_posterior
from segunc.affine.posterior import Posterior
from segunc.networks.files import load_network, save_network
from segunc.posteriors.abnn import ABNNPosterior
from segunc.posteriors.chains import HMC
from tests.conftest import Job
from tests.study.conftest import Run
from tools import study_gradient_variance, study_posterior, study_steadiness
from tools.study_gradient_variance import LocalGradients, WeightGradients
from tools.study_posterior import predictive_agreement, total_variation


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
        keep(lambda layout, a=alpha: ABNNPosterior.around(layout, alpha=a), trained.base, tmp_path / f"alpha-{alpha}")
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
    other = keep(lambda layout: ABNNPosterior.around(layout, alpha=0.1), tmp_path / "other", tmp_path / "of-other")
    assert run(study_posterior, "--models", other, *words) == 2
    assert "has another base" in capsys.readouterr().err


def test_every_posterior_over_affine_parameters_has_a_row(run: Run, tmp_path: Path) -> None:
    assert {method for method, _ in study_posterior.RUNS.values()} < set(study_posterior.COMPARED)
    assert {"mc-dropout", "hmc", "abnn"} < set(study_posterior.COMPARED)
    with pytest.raises(SystemExit):
        run(study_posterior, "--methods", "deterministic", "--out", tmp_path)


def test_the_noise_of_gradients(trained: Job, tmp_path: Path, run: Run) -> None:
    words = ("--base", trained.base, "--data", trained.data, "--batches", 2, "--batch-size", 2, "--draws", 2)
    run(study_gradient_variance, *words, "--alpha", 0.3, "--sigma", 0.2, "--shares", 0.1, "--out", tmp_path)
    rows = json.loads((tmp_path / "gradients.json").read_text())["rows"]
    plain, abnn, matched, gaussian, all_plain, *all_noisy = rows.values()
    assert plain["variance_of_draws"] == all_plain["variance_of_draws"] == 0 < plain["variance"]
    for row in (abnn, matched, gaussian, *all_noisy):
        assert row["variance_of_draws"] > 0
    # The same drawn networks; ABNN's gradient is that of the mean times 1 + alpha eps.
    assert abnn["variance_of_draws"] != matched["variance_of_draws"]
    assert abnn["loss"] == pytest.approx(matched["loss"], rel=1e-6)
    assert gaussian["log_sigma_variance"] > 0
    assert abnn["log_sigma_variance"] is None
    # Without noise the gradient of gamma and beta is the same, however it is asked for.
    assert all_plain["affine"] == pytest.approx(plain["affine"], rel=1e-4)
    assert plain["affine"]["parameters"] == plain["parameters"] < all_plain["parameters"]
    run(study_gradient_variance, *words, "--alpha", 0, "--sigma", 0, "--shares", 0, "--out", tmp_path)
    silent = list(json.loads((tmp_path / "gradients.json").read_text())["rows"].values())
    assert [row["variance"] for row in silent[:4]] == pytest.approx([plain["variance"]] * 4, rel=1e-4)
    assert [row["variance"] for row in silent[4:7]] == pytest.approx([all_plain["variance"]] * 3, rel=1e-4)
    assert silent[7]["variance"] == pytest.approx(all_plain["variance"], rel=1e-2)  # the root of TINY is noise of 1e-6


def test_variances_of_known_gradients() -> None:
    """g = mu + minibatch + draw, with the standard deviations 2 and 3 in 50 coordinates and mu = 1."""
    generator = torch.Generator().manual_seed(0)
    of_batch, of_draw = (torch.randn(400, k, 50, generator=generator) for k in (1, 4))
    found = study_gradient_variance.nested(1 + 2 * of_batch + 3 * of_draw)
    expected = {"variance": 50 * (4 + 9), "variance_of_draws": 50 * 9, "variance_a_parameter": 13, "squared_mean": 50}
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=0.1), name
    assert found["ratio"] == pytest.approx(13, rel=0.1)
    assert study_gradient_variance.nested(torch.tensor([[[1.0], [1.0]], [[-1.0], [-1.0]]]))["ratio"] is None


def test_local_noise_has_the_spread_of_the_weights_noise(trained: Job) -> None:
    """In the last convolution, over the same activations: the variance of its outputs, before they are upsampled, by both ways."""
    images = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    spreads = []
    for kind in (WeightGradients, LocalGradients):
        network = load_network(trained.base)
        outputs: list[torch.Tensor] = []
        network.body.segmentation_head[1].register_forward_pre_hook(
            lambda _, inputs, out=outputs: out.append(inputs[0])
        )
        one = kind(network, 0.3)
        noisy = [torch.full((s.numel(),), float("head" in n)) for n, s in zip(one.names, one.shapes, strict=True)]
        for seed in range(60):
            one.drawn(one.mean, torch.cat(noisy) * one.sigma, images, seed)
        spreads.append(float(torch.cat(outputs).var(0).mean()))
    assert spreads[1] == pytest.approx(spreads[0], rel=0.25)


def test_training_beside_the_gradients(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run: Run, trained: Job) -> None:
    monkeypatch.setattr(study_steadiness, "build_base", lambda base, *rest: shutil.copytree(trained.base, base))
    monkeypatch.setattr(study_steadiness, "generate_toy", lambda data, scenes: shutil.copytree(trained.data, data))
    make_rows = study_steadiness.make_rows
    monkeypatch.setattr(study_steadiness, "rows", lambda *given: islice(study_gradient_variance.rows(*given), 2))
    kept = ("affine: deterministic", "affine: ABNN", "all weights: variational, sigma learned")
    monkeypatch.setattr(
        study_steadiness, "make_rows", lambda *given: [row for row in make_rows(*given) if row[0].startswith(kept)]
    )
    small = ("--seeds", 2, "--steps", 4, "--batches", 2, "--draws", 2, "--predictions", 2, "--share", 0.05)
    run(study_steadiness, "--out", tmp_path, *small)
    result = json.loads((tmp_path / "gradients.json").read_text())
    assert result["made"]["seeds"] == 2
    for name, row in result["training"].items():
        rates = result["val_nll_of_rates"][name]
        assert rates[f"{row['lr']:g}"] == min(rates.values()) == row["val_nll"][0]
        assert row["noise"][1] <= row["noise"][0] <= row["noise"][2]
        assert (row["val_nll"] == row["val_point"]) == ("deterministic" in name)  # no noise: each draw is the network
    assert len(result["training"]) == 3
    assert [len(row["variance"]) for row in result["gradients"].values()] == [3, 3]


def test_steps_and_their_noise() -> None:
    assert study_steadiness.noise([9.0] * 10 + [1.0, 3.0] * 50) == pytest.approx(2**0.5 / 2, rel=0.1)
    assert study_steadiness.noise([float(i) for i in range(1, 101)]) < 0.01  # a steady fall or rise is no noise
    start = torch.tensor([0.3, -0.2])
    row = study_steadiness.Trained(start, (), None, None)  # type: ignore[arg-type]
    wide = torch.distributions.Normal(start, study_steadiness.PRIOR_SCALE)
    mean, log_sigma = torch.tensor([0.1, 0.4]), torch.tensor([-3.0, -1.0])
    divergence = torch.distributions.kl_divergence(torch.distributions.Normal(mean, log_sigma.exp()), wide).sum()
    found = study_steadiness.regulariser(row, mean, log_sigma) * study_steadiness.EFFECTIVE_PIXELS
    torch.testing.assert_close(found, divergence)


def random(seed: int, classes: int = 4) -> Tensor:
    logits = torch.randn(3, classes, 2, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (2 * logits).softmax(1)


@given(st.integers(0, 1000), st.integers(0, 1000))
def test_of_two_classes_total_variation_is_scipys_wasserstein_distance(one: int, two: int) -> None:
    p, q = random(one, 2), random(two, 2)
    pairs = zip(p.movedim(1, -1).reshape(-1, 2), q.movedim(1, -1).reshape(-1, 2), strict=True)
    expected = [wasserstein_distance([0, 1], [0, 1], a.numpy(), b.numpy()) for a, b in pairs]
    assert total_variation(p, q) == pytest.approx(sum(expected) / len(expected), abs=1e-12)


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000))
def test_total_variation_is_a_distance_in_0_to_1(one: int, two: int, three: int) -> None:
    p, q, r = random(one), random(two), random(three)
    assert total_variation(p, p) == 0.0
    assert total_variation(p, q) == pytest.approx(total_variation(q, p))
    assert total_variation(p, r) <= total_variation(p, q) + total_variation(q, r) + 1e-12
    assert 0.0 <= total_variation(p, q) <= 1.0


def test_agreement_and_total_variation_by_hand() -> None:
    p = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
    q = torch.tensor([[0.2, 0.6, 0.2], [0.1, 0.2, 0.7]])
    assert (predictive_agreement(p, q), total_variation(p, q)) == (0.5, pytest.approx((0.3 + 0.1) / 2))
    p = torch.tensor([[1.0, 0.0]])
    assert (predictive_agreement(p, p), predictive_agreement(p, 1 - p), total_variation(p, 1 - p)) == (1.0, 0.0, 1.0)
