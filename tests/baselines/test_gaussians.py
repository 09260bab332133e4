"""Laplace against the exact Fisher, SWAG against numpy over its trajectory, mean-field variational
inference against closed forms; and that baselines are found as another package's methods are.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

from segunc.affine.convert import convert
from segunc.affine.draws import AffineDraws, AffineLayout
from segunc.affine.posterior import Prior
from segunc.baselines.laplace import FisherSum, Laplace, LaplaceConfig, Structure, finetune_laplace
from segunc.baselines.swag import SwagConfig, Trajectory
from segunc.baselines.variational import MeanFieldTraining, VariationalConfig
from segunc.core import registry
from segunc.core.errors import InputError
from segunc.data.labels import IGNORE
from segunc.posteriors.methods import METHODS
from segunc.posteriors.model import load_model, load_recorded
from segunc.training.affine_task import AffineTask
from segunc.training.config import FinetuneConfig
from tests.affine.networks import layout_of, randomise, small_network
from tests.conftest import Job
from tests.training.fitting import fit, swag_task, variational_task


def tiny_network() -> nn.Module:
    """Two norm layers of two channels, a batch and a group one, from 3 channels to 3 classes; 8
    parameters.
    """
    torch.manual_seed(0)
    head = nn.Conv2d(2, 3, 1)
    stem = nn.Conv2d(3, 2, 3, padding=1)
    middle = nn.Conv2d(2, 2, 3, padding=1)
    head.weight.data *= 3
    network = nn.Sequential(stem, nn.BatchNorm2d(2), nn.Tanh(), middle, nn.GroupNorm(1, 2), head)
    randomise(network.eval().requires_grad_(False))
    convert(network)
    return network


IMAGES = torch.rand(3, 3, 4, 5, generator=torch.Generator().manual_seed(1))
LABELS = torch.zeros(3, 4, 5, dtype=torch.int64)
LABELS[0, 0] = LABELS[2, :, 3:] = IGNORE
PIXELS = int((LABELS != IGNORE).sum())


def exact(network: nn.Module) -> Tensor:
    """``[2T, 2T]``: for every pixel and class the outer product of the gradient of its
    log-probability, by brute force.
    """
    layout = AffineLayout(network)
    total = torch.zeros(2 * layout.total, 2 * layout.total, dtype=torch.float64)
    gamma = layout.weight.clone()[None].requires_grad_()
    beta = layout.bias.clone()[None].requires_grad_()
    for image, label in zip(IMAGES, LABELS, strict=True):
        with layout.active(AffineDraws(gamma, beta)):
            logs = network(image[None])[0].log_softmax(0)
        for y, x in (label != IGNORE).nonzero().tolist():
            for log in logs[:, y, x]:
                slopes = torch.autograd.grad(log, (gamma, beta), retain_graph=True)
                gradient = torch.cat(slopes, 1)[0].double()
                total += float(log.detach().exp()) * torch.outer(gradient, gradient)
    return total / PIXELS


def summed(structure: Structure, samples: int, batch: int = 3, scope: str = "all") -> FisherSum:
    network = tiny_network()
    fisher = FisherSum(network, AffineLayout(network).affine, structure, scope)
    for number, start in enumerate(range(0, 3, batch)):
        part = slice(start, start + batch)
        fisher.add(IMAGES[part], LABELS[part], number, samples)
    return fisher


def test_it_converges_to_the_exact_fisher_of_the_mean_pixel() -> None:
    samples = 1500
    full = exact(tiny_network())
    fisher = summed("block", samples)
    assert fisher.pixels == samples * PIXELS
    assert fisher.gradients == samples * 3
    # gamma with gamma, beta with beta, gamma with beta; F_ii, F_jj and F_ij of each entry.
    first = full.diagonal()[:4]
    second = full.diagonal()[4:]
    crossed = full[:4, 4:].diagonal()
    expected = torch.stack([first, second, crossed])
    products = torch.stack([first.square(), second.square(), first * second])
    # Three images' gradients, each nearly Gaussian: an entry ij has a variance of at most (F_ii
    # F_jj + F_ij^2) / samples.
    bound = 5 * ((products + expected.square()) / samples).sqrt()
    difference = (fisher.mean().double() - expected).abs()
    assert bool((difference <= bound).all())
    # And the check can see: twice the matrix, as a lost factor would give, lies outside.
    assert bool(((2 * fisher.mean().double() - expected).abs() > bound)[:2].all())
    assert torch.equal(summed("diagonal", 3).mean(), summed("block", 3).mean()[:2])


def test_a_scope_leaves_the_other_layers_at_zero() -> None:
    block = summed("block", 2, scope="last:1").mean()
    assert torch.equal(block[:, :2], torch.zeros(3, 2))
    assert float(block[:2, 2:].min()) > 0


def test_layers_without_beta_have_no_entry_for_it() -> None:
    network = small_network(nn.LayerNorm([8, 4, 4], bias=False)).requires_grad_(False)
    fisher = FisherSum(network, layout_of(network).affine, "diagonal")
    fisher.add(torch.rand(2, 3, 4, 4), torch.zeros(2, 4, 4, dtype=torch.int64), 0)
    assert not (fisher.total[1] > 0)[8:].any()
    assert (fisher.total[0] > 0)[8:].any()


def run(job: Job, out: Path, **settings: Any) -> Laplace:
    """Twelve crops in three batches."""
    data = {"dataset": "toy", "root": str(job.data), "crop": (64, 64), "batch_size": 4}
    config = FinetuneConfig(
        LaplaceConfig(images=12, samples=1, **settings), data, {"precision": "32-true"}
    )
    finetune_laplace(job.base, config, out, device="cpu", say=lambda text: None)
    posterior = load_model(out).posterior
    assert isinstance(posterior, Laplace)
    return posterior


def test_a_second_fisher_is_the_same(trained: Job, tmp_path: Path) -> None:
    first = run(trained, tmp_path / "base")
    assert torch.equal(run(trained, tmp_path / "again").fisher, first.fisher)


def test_the_fisher_is_of_the_tuned_network_and_its_scope(trained: Job, tmp_path: Path) -> None:
    base = run(trained, tmp_path / "base")
    tuned = run(trained, tmp_path / "tuned", epochs=1, scope="last:1")
    assert float((tuned.mean - base.mean).abs().max()) > 1e-4
    in_scope = tuned.fisher[0] > 0
    assert 0 < int(in_scope.sum()) < len(in_scope)
    assert not torch.allclose(tuned.fisher[:, in_scope], base.fisher[:, in_scope], rtol=1e-3)


class Recorded(AffineTask[Any]):
    def on_train_batch_end(self, *arguments: Any) -> None:
        if not hasattr(self, "trajectory"):
            self.trajectory: dict[int, np.ndarray] = {}
            self.rates: list[float] = []
        self.trajectory[self.global_step] = self.trained.affine.detach().double().numpy().copy()
        self.rates.append(float(self.trainer.optimizers[0].param_groups[0]["lr"]))
        super().on_train_batch_end(*arguments)


def test_the_statistics_are_those_of_the_snapshots(tmp_path: Path) -> None:
    config = SwagConfig(warmup_steps=3, burn_in=5, collect_every=2, rank=3, lr=0.02)
    task = Recorded(small_network(), 4, lambda layout: Trajectory(layout, config), config)
    fit(task, tmp_path, 4)  # 16 steps
    taken = np.stack([task.trajectory[n] for n in (7, 9, 11, 13, 15)])
    posterior = task.trained.gaussian()
    np.testing.assert_allclose(posterior.mean, taken.mean(0), rtol=1e-6)
    np.testing.assert_allclose(posterior.variance, taken.var(0), rtol=1e-5, atol=1e-14)
    running = taken.cumsum(0) / np.arange(1, 6)[:, None, None]
    np.testing.assert_allclose(posterior.deviations, (taken - running)[-3:], rtol=1e-4, atol=1e-8)
    assert int(task.trained.snapshots) == 5
    # The rate of step n, read after it: a linear rise over the warm-up, then constant.
    assert task.rates == pytest.approx([0.01, 0.015, *[0.02] * 14])


def test_accumulated_gradients_give_one_snapshot_a_step_and_each_below_the_rank_a_column(
    tmp_path: Path,
) -> None:
    task = swag_task(small_network(), burn_in=0, collect_every=1, rank=10)
    fit(task, tmp_path, 2, accumulate_grad_batches=2)
    assert int(task.trained.snapshots) == 4
    assert task.trained.gaussian().deviations.shape == (4, 2, 16)


def test_one_snapshot_is_one_clear_line(tmp_path: Path) -> None:
    task = swag_task(small_network(), burn_in=10, collect_every=4)
    said = "at least 2 snapshots, and 16 steps give 1 with burn_in 10 and collect_every 4"
    with pytest.raises(InputError, match=said):
        fit(task, tmp_path, 4)
    assert int(task.trained.snapshots) == 0, "said before the first step"
    task.trained.collect(AffineLayout(task.network))
    with pytest.raises(InputError, match="at least 2 snapshots, not 1"):
        task.trained.gaussian()


LAYOUT = layout_of(small_network())


@pytest.mark.parametrize("scope", ["all", "decoder"])
@pytest.mark.parametrize("prior_mean", ["base", "zero"])
def test_the_kl_is_that_of_torch(scope: str, prior_mean: Any) -> None:
    prior = Prior(0.3, mean=prior_mean)
    made = MeanFieldTraining(
        LAYOUT, VariationalConfig(initial_sigma=0.05, kl_weight=0.7, scope=scope), prior
    )
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        made.mean.add_(0.1 * torch.randn(made.mean.shape, generator=generator))
        made.rho.add_(torch.randn(made.rho.shape, generator=generator))
    chosen = slice(8, 16) if scope == "decoder" else slice(0, 16)
    base = LAYOUT.affine[:, chosen]
    centre = base if prior_mean == "base" else torch.zeros_like(base)
    q = Normal(made.mean[:, chosen], torch.nn.functional.softplus(made.rho)[:, chosen])
    expected = (
        0.7
        * kl_divergence(q, Normal(centre, torch.full_like(base, 0.3))).sum()
        / prior.effective_pixels
    )
    torch.testing.assert_close(made.regulariser(LAYOUT, 0), expected, rtol=1e-5, atol=1e-9)


def test_draws_in_training_are_independent_for_images_and_seeds_and_gamma_and_beta() -> None:
    task = variational_task(small_network(), initial_sigma=0.1)
    draws = task.training_draws(3, 0)
    noise = (torch.cat([draws.weight, draws.bias], 1) - task.trained.mean.flatten()) / 0.1
    assert float(torch.corrcoef(noise.detach()).triu(1).abs().max()) < 0.5
    assert float(noise.detach().abs().max()) < 5
    assert not torch.allclose(noise[:, :16], noise[:, 16:])
    task.seed = 1
    assert not torch.allclose(draws.weight, task.training_draws(3, 0).weight)


MODULES = {
    "hmc": "chains",
    "laplace": "laplace",
    "sghmc": "chains",
    "sgld": "chains",
    "swag": "swag",
    "variational": "variational",
    "mc-dropout": "mc_dropout",
    "ensemble": "mixtures",
    "tta": "mixtures",
    "temperature": "temperature",
    "distil": "distil",
    "features": "features",
    "anomaly": "anomaly",
    "class-sets": "class_sets",
}


def test_each_baseline_is_found_under_its_name() -> None:
    modules = {}
    for name in METHODS:
        module = METHODS[name].fit.__module__
        if module.startswith("segunc.baselines."):
            modules[name] = module.removeprefix("segunc.baselines.")
    assert modules == MODULES


@pytest.mark.parametrize(
    "ask", [lambda: METHODS["sgld"], lambda: load_recorded(Path("model"), {"method": "laplace"})]
)
def test_a_baseline_without_its_entry_point_says_to_install_again(
    ask: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a checkout that was updated but not installed again."""
    monkeypatch.setattr(registry, "entry_points", lambda group: [])
    entries = {name: None if name in MODULES else entry for name, entry in METHODS._entries.items()}
    monkeypatch.setattr(METHODS, "_entries", entries)
    monkeypatch.setattr(METHODS, "_looked_outside", False)
    with pytest.raises(InputError, match=r"entry point of .* '(sgld|laplace)' .* pip install -e "):
        ask()
    assert {"sgld", "laplace"} <= set(METHODS), "their names are listed all the same"
