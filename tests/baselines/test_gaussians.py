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
from segunc.baselines.laplace import FisherSum, Laplace, LaplacePosterior, Structure
from segunc.baselines.swag import SWAG, Trajectory
from segunc.baselines.variational import MeanFieldTraining, Variational
from segunc.core import registry
from segunc.core.errors import InputError
from segunc.data.labels import IGNORE
from segunc.posteriors.methods import METHODS
from segunc.posteriors.model import load_model, load_recorded
from segunc.training.affine_task import AffineTask
from tests.affine.networks import layout_of, randomise, small_network
from tests.conftest import Job
from tests.support.fits import fit_folder
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
LABELS[0, 0] = IGNORE
LABELS[2, :, 3:] = IGNORE
PIXELS = int((LABELS != IGNORE).sum())


def exact(network: nn.Module) -> Tensor:
    """Return the Fisher ``[2T, 2T]`` of the mean pixel, by brute force: for every pixel and class
    the outer product of the gradient of its log-probability.
    """
    layout = AffineLayout(network)
    size = 2 * layout.total
    total = torch.zeros(size, size, dtype=torch.float64)
    gamma = layout.weight.clone()[None].requires_grad_()
    beta = layout.bias.clone()[None].requires_grad_()
    for image, label in zip(IMAGES, LABELS, strict=True):
        with layout.active(AffineDraws(gamma, beta)):
            logs = network(image[None])[0].log_softmax(0)
        for log in logs[:, label != IGNORE].T.flatten():
            slopes = torch.autograd.grad(log, (gamma, beta), retain_graph=True)
            gradient = torch.cat(slopes, 1)[0].double()
            probability = float(log.detach().exp())
            total += probability * torch.outer(gradient, gradient)
    return total / PIXELS


def summed(structure: Structure, samples: int, batch: int = 3, scope: str = "all") -> FisherSum:
    network = tiny_network()
    fisher = FisherSum(network, AffineLayout(network).affine, structure, scope)
    for number, start in enumerate(range(0, 3, batch)):
        part = slice(start, start + batch)
        fisher.add(IMAGES[part], LABELS[part], number, samples)
    return fisher


SAMPLES = 1500


@pytest.fixture(scope="module")
def fisher() -> FisherSum:
    return summed("block", SAMPLES)


def test_a_sum_counts_its_pixels_and_gradients(fisher: FisherSum) -> None:
    assert fisher.pixels == SAMPLES * PIXELS
    assert fisher.gradients == SAMPLES * 3


def test_it_converges_to_the_exact_fisher_of_the_mean_pixel(fisher: FisherSum) -> None:
    full = exact(tiny_network())
    # gamma with gamma, beta with beta, gamma with beta; F_ii, F_jj and F_ij of each entry.
    first = full.diagonal()[:4]
    second = full.diagonal()[4:]
    crossed = full[:4, 4:].diagonal()
    expected = torch.stack([first, second, crossed])
    products = torch.stack([first.square(), second.square(), first * second])
    # Three images' gradients, each nearly Gaussian: an entry ij has a variance of at most (F_ii
    # F_jj + F_ij^2) / samples.
    bound = 5 * ((products + expected.square()) / SAMPLES).sqrt()
    mean = fisher.mean().double()
    difference = (mean - expected).abs()
    assert bool((difference <= bound).all())
    # And the check can see: twice the matrix, as a lost factor would give, lies outside.
    difference_of_twice = (2 * mean - expected).abs()
    assert bool((difference_of_twice > bound)[:2].all())


def test_the_diagonal_is_that_of_the_block() -> None:
    diagonal = summed("diagonal", 3).mean()
    block = summed("block", 3).mean()
    assert torch.equal(diagonal, block[:2])


def test_a_scope_leaves_the_other_layers_at_zero() -> None:
    block = summed("block", 2, scope="last:1").mean()
    assert torch.equal(block[:, :2], torch.zeros(3, 2))
    assert float(block[:2, 2:].min()) > 0


def test_layers_without_beta_have_no_entry_for_it() -> None:
    layer_norm = nn.LayerNorm([8, 4, 4], bias=False)
    network = small_network(layer_norm).requires_grad_(False)
    fisher = FisherSum(network, layout_of(network).affine, "diagonal")
    images = torch.rand(2, 3, 4, 4)
    labels = torch.zeros(2, 4, 4, dtype=torch.int64)
    fisher.add(images, labels, 0)
    of_gamma, of_beta = fisher.total[:2]
    assert not (of_beta[8:] > 0).any()
    assert (of_gamma[8:] > 0).any()


def run(job: Job, out: Path, **settings: Any) -> LaplacePosterior:
    """Twelve crops in three batches."""
    method = Laplace(images=12, samples=1, **settings)
    data = {
        "dataset": "toy",
        "root": str(job.data),
        "crop": (64, 64),
        "batch_size": 4,
    }
    fit_folder(method, job.base, out, data, trainer={"precision": "32-true"})
    posterior = load_model(out).posterior
    assert isinstance(posterior, LaplacePosterior)
    return posterior


def test_a_second_fisher_is_the_same(trained: Job, tmp_path: Path) -> None:
    first = run(trained, tmp_path / "base")
    again = run(trained, tmp_path / "again")
    assert torch.equal(again.fisher, first.fisher)


def test_the_fisher_is_of_the_tuned_network_and_its_scope(trained: Job, tmp_path: Path) -> None:
    base = run(trained, tmp_path / "base")
    tuned = run(trained, tmp_path / "tuned", epochs=1, scope="last:1")
    change = (tuned.mean - base.mean).abs()
    assert float(change.max()) > 1e-4
    in_scope = tuned.fisher[0] > 0
    assert 0 < int(in_scope.sum()) < len(in_scope)
    before = base.fisher[:, in_scope]
    after = tuned.fisher[:, in_scope]
    assert not torch.allclose(after, before, rtol=1e-3)


class Recorded(AffineTask[Any]):
    def on_train_batch_end(self, *arguments: Any) -> None:
        if not hasattr(self, "trajectory"):
            self.trajectory: dict[int, np.ndarray] = {}
            self.rates: list[float] = []
        affine = self.trained.affine.detach().double()
        self.trajectory[self.global_step] = affine.numpy().copy()
        (group,) = self.trainer.optimizers[0].param_groups
        self.rates.append(float(group["lr"]))
        super().on_train_batch_end(*arguments)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """SWAG after 16 steps."""
    config = SWAG(
        warmup_steps=3,
        burn_in=5,
        collect_every=2,
        rank=3,
        lr=0.02,
    )
    task = Recorded(small_network(), 4, lambda layout: Trajectory(layout, config), config)
    fit(task, tmp_path_factory.mktemp("swag"), 4)
    return task


def test_the_statistics_are_those_of_the_snapshots(recorded: Recorded) -> None:
    taken = np.stack([recorded.trajectory[step] for step in (7, 9, 11, 13, 15)])
    assert int(recorded.trained.snapshots) == len(taken)
    posterior = recorded.trained.gaussian()
    np.testing.assert_allclose(posterior.mean, taken.mean(0), rtol=1e-6)
    np.testing.assert_allclose(posterior.variance, taken.var(0), rtol=1e-5, atol=1e-14)
    running = taken.cumsum(0) / np.arange(1, 6)[:, None, None]
    deviations = (taken - running)[-3:]
    np.testing.assert_allclose(posterior.deviations, deviations, rtol=1e-4, atol=1e-8)


def test_the_rate_rises_over_the_warm_up_and_is_constant_then(recorded: Recorded) -> None:
    # The rate of step n, read after it.
    rise = [0.01, 0.015]
    constant = [0.02] * 14
    assert recorded.rates == pytest.approx(rise + constant)


def test_accumulated_gradients_give_one_snapshot_a_step(tmp_path: Path) -> None:
    task = swag_task(small_network(), burn_in=0, collect_every=1, rank=10)
    fit(task, tmp_path, 2, accumulate_grad_batches=2)
    assert int(task.trained.snapshots) == 4
    # Fewer snapshots than the rank: each gives a column.
    assert task.trained.gaussian().deviations.shape == (4, 2, 16)


def test_steps_for_one_snapshot_are_refused_before_the_first(tmp_path: Path) -> None:
    task = swag_task(small_network(), burn_in=10, collect_every=4)
    said = "at least 2 snapshots, and 16 steps give 1 with burn_in 10 and collect_every 4"
    with pytest.raises(InputError, match=said):
        fit(task, tmp_path, 4)
    assert int(task.trained.snapshots) == 0


def test_one_snapshot_is_no_posterior() -> None:
    task = swag_task(small_network(), burn_in=10, collect_every=4)
    task.trained.collect(AffineLayout(task.network))
    with pytest.raises(InputError, match="at least 2 snapshots, not 1"):
        task.trained.gaussian()


LAYOUT = layout_of(small_network())


@pytest.mark.parametrize("scope", ["all", "decoder"])
@pytest.mark.parametrize("prior_mean", ["base", "zero"])
def test_the_kl_is_that_of_torch(scope: str, prior_mean: Any) -> None:
    prior = Prior(0.3, mean=prior_mean)
    config = Variational(initial_sigma=0.05, kl_weight=0.7, scope=scope)
    made = MeanFieldTraining(LAYOUT, config, prior)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        made.mean.add_(0.1 * torch.randn(made.mean.shape, generator=generator))
        made.rho.add_(torch.randn(made.rho.shape, generator=generator))
    chosen = slice(8, 16) if scope == "decoder" else slice(0, 16)
    base = LAYOUT.affine[:, chosen]
    centre = base if prior_mean == "base" else torch.zeros_like(base)
    sigma = torch.nn.functional.softplus(made.rho)
    approximation = Normal(made.mean[:, chosen], sigma[:, chosen])
    prior_normal = Normal(centre, torch.full_like(base, 0.3))
    divergence = kl_divergence(approximation, prior_normal).sum()
    expected = 0.7 * divergence / prior.effective_pixels
    torch.testing.assert_close(made.regulariser(LAYOUT, 0), expected, rtol=1e-5, atol=1e-9)


@pytest.fixture
def variational() -> Any:
    return variational_task(small_network(), initial_sigma=0.1)


@pytest.fixture
def noise(variational: Any) -> Tensor:
    """The standard noise ``[3, 32]`` of the draws of a batch, first that of gamma."""
    draws = variational.training_draws(3, 0)
    affine = torch.cat([draws.weight, draws.bias], 1)
    scaled: Tensor = (affine - variational.trained.mean.flatten()) / 0.1
    return scaled.detach()


def test_images_have_independent_draws_in_training(noise: Tensor) -> None:
    correlations = torch.corrcoef(noise).triu(1)
    assert float(correlations.abs().max()) < 0.5
    assert float(noise.abs().max()) < 5


def test_gamma_and_beta_have_independent_draws_in_training(noise: Tensor) -> None:
    assert not torch.allclose(noise[:, :16], noise[:, 16:])


def test_another_seed_gives_other_draws_in_training(variational: Any) -> None:
    first = variational.training_draws(3, 0)
    variational.seed = 1
    other = variational.training_draws(3, 0)
    assert not torch.allclose(first.weight, other.weight)


MODULES = {
    "hmc": "chains",
    "laplace": "laplace",
    "sghmc": "chains",
    "sgld": "chains",
    "swag": "swag",
    "variational": "variational",
    "mc-dropout": "mc_dropout",
    "mcbn": "mcbn",
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


@pytest.fixture
def without_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a checkout that was updated but not installed again."""
    monkeypatch.setattr(registry, "entry_points", lambda group: [])
    entries = METHODS._entries | dict.fromkeys(MODULES)
    monkeypatch.setattr(METHODS, "_entries", entries)
    monkeypatch.setattr(METHODS, "_looked_outside", False)


@pytest.mark.usefixtures("without_entry_points")
@pytest.mark.parametrize(
    "ask",
    [
        lambda: METHODS["sgld"],
        lambda: load_recorded(Path("model"), {"method": "laplace"}),
    ],
)
def test_a_baseline_without_its_entry_point_says_to_install_again(
    ask: Callable[[], object],
) -> None:
    with pytest.raises(InputError, match=r"entry point of .* '(sgld|laplace)' .* pip install -e "):
        ask()
    assert {"sgld", "laplace"} <= set(METHODS), "their names are listed all the same"


def test_laplace_takes_the_data_that_its_base_was_trained_on(trained: Job) -> None:
    """``images`` is a number of crops here, and not a folder that would stand for the data."""
    model = Laplace(images=8, samples=8).fit(load_model(trained.base))
    assert model.posterior.method == "laplace"
