"""Chains: the log posterior against scikit-learn, differences and quadrature; HMC against closed
forms and an integrator of SciPy, Langevin dynamics against the stationary covariance of their own
recursion; convergence against ArviZ; and runs of several chains.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from arviz_stats.base import array_stats
from hypothesis import example, given, strategies as st
from scipy.integrate import solve_ivp
from scipy.linalg import solve_discrete_lyapunov
from sklearn.metrics import log_loss
from torch import Tensor, nn

from segunc.affine.convert import convert
from segunc.affine.posterior import Prior, PriorMean
from segunc.baselines import dynamics
from segunc.baselines.chains import ChainStates, SGLDPosterior, run_chains
from segunc.baselines.convergence import convergence, effective_sample_size, rank_normalised_rhat
from segunc.baselines.dynamics import (
    HMC,
    SGHMC,
    HamiltonianChain,
    LogDensity,
    Show,
    leapfrog,
    sample_langevin,
)
from segunc.baselines.target import LogPosterior, load_batches, minibatches
from segunc.core.errors import InputError, PartialFailure
from segunc.data.module import SegmentationDataModule, SegmentationDataset
from tests.affine.networks import layout_of, small_network, with_affine

PRIOR_SIGMA = 0.2
EFFECTIVE_PIXELS = 500.0


def data(frames: int = 6, size: int = 8) -> tuple[Tensor, Tensor]:
    """Frames whose shares of ignored pixels differ."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(frames, 3, size, size, generator=generator)
    labels = (images.mean(1) * 4).long().clamp(0, 3)
    for i in range(frames):
        labels[i, : i % size] = 255
    return images, labels


def target(
    scope: str = "all", temperature: float = 1.0, network: nn.Module | None = None
) -> LogPosterior:
    if network is None:
        network = small_network()
    network = network.double()
    convert(network)
    prior = Prior(PRIOR_SIGMA, EFFECTIVE_PIXELS, temperature=temperature)
    return LogPosterior(network, prior, scope)


def moved(posterior: LogPosterior) -> Tensor:
    """Return affine parameters near those of the base network."""
    noise = torch.randn(
        len(posterior.base),
        generator=torch.Generator().manual_seed(0),
        dtype=torch.float64,
    )
    return posterior.base + 0.1 * noise


def log_prior_of(posterior: LogPosterior, gamma: Tensor, beta: Tensor) -> float:
    """Return the log density of the prior up to a constant."""
    layout = posterior.layout
    offset = torch.cat([gamma - layout.weight, beta - layout.bias])
    return -float(offset.square().sum()) / (2 * PRIOR_SIGMA**2)


def test_the_value_is_scikit_learns_log_loss_and_the_prior() -> None:
    posterior = target(temperature=0.5)
    images, labels = data()
    theta = moved(posterior)
    gamma, beta = posterior.expand(theta)
    network = with_affine(small_network().double(), gamma, beta)
    with torch.no_grad():
        probabilities = network(images.double()).softmax(1).movedim(1, -1)
    valid = labels != 255
    loss = log_loss(
        labels[valid].numpy(),
        probabilities[valid].numpy(),
        labels=[0, 1, 2, 3],
    )
    log_prior = log_prior_of(posterior, gamma, beta)
    expected = (-EFFECTIVE_PIXELS * loss + log_prior) / 0.5
    value, _ = posterior.on([(images, labels)])(theta)
    assert value == pytest.approx(expected, rel=1e-9)


def test_streaming_in_batches_of_several_sizes_changes_nothing() -> None:
    posterior = target(temperature=0.5)
    images, labels = data()
    theta = moved(posterior)
    value, gradient = posterior.on([(images, labels)])(theta)
    sizes = [1, 3, 2]
    batches = list(zip(images.split(sizes), labels.split(sizes), strict=True))
    of_batches, gradient_of_batches = posterior.on(batches)(theta)
    assert of_batches == pytest.approx(value, rel=1e-12)
    torch.testing.assert_close(gradient_of_batches, gradient, rtol=1e-10, atol=1e-10)


def test_the_gradient_is_the_slope_of_the_value() -> None:
    posterior = target(temperature=0.5)
    density = posterior.on([data()])
    theta = moved(posterior)
    _, gradient = density(theta)
    for index in (0, 5, 9, 20, 31):
        step = torch.zeros_like(theta)
        step[index] = 1e-5
        after, _ = density(theta + step)
        before, _ = density(theta - step)
        slope = (after - before) / 2e-5
        assert float(gradient[index]) == pytest.approx(slope, rel=1e-5, abs=1e-5)


def test_minibatch_gradients_are_unbiased_though_labels_are_unequal() -> None:
    posterior = target(temperature=0.5)
    images, labels = data()
    theta = moved(posterior)
    _, exact = posterior.on([(images, labels)])(theta)

    def mean_gradient(pixels: list[float]) -> Tensor:
        gradients = []
        for i, count in enumerate(pixels):
            image = images[i : i + 1]
            label = labels[i : i + 1]
            gradients.append(posterior.energy_gradient(theta, image, label, count))
        return torch.stack(gradients).mean(0)

    labelled = (labels != 255).sum((1, 2))
    mean_count = float(labelled.sum()) / 6
    mean = mean_gradient([mean_count] * 6)
    torch.testing.assert_close(mean, -0.5 * exact, rtol=1e-10, atol=1e-10)
    ratio = mean_gradient(labelled.tolist())
    assert not torch.allclose(ratio, mean, rtol=1e-3), (
        "dividing by the pixels of each batch is another estimate"
    )


@pytest.mark.parametrize("mean", ["base", "zero"])
def test_a_batch_without_labels_leaves_the_prior(mean: PriorMean) -> None:
    network = small_network()
    convert(network)
    prior = Prior(PRIOR_SIGMA, EFFECTIVE_PIXELS, mean)
    posterior = LogPosterior(network, prior)
    images, labels = data()
    unlabelled = torch.full_like(labels, 255)
    theta = moved(posterior)
    gradient = posterior.energy_gradient(theta, images, unlabelled, 64.0)
    centre = posterior.base if mean == "base" else torch.zeros_like(posterior.base)
    torch.testing.assert_close(gradient, (theta - centre) / PRIOR_SIGMA**2)


def test_data_without_labels_are_refused() -> None:
    images, labels = data()
    unlabelled = torch.full_like(labels, 255)
    with pytest.raises(InputError, match="no labelled pixel"):
        target().on([(images, unlabelled)])


def test_a_missing_beta_is_no_dimension() -> None:
    network = small_network(nn.LayerNorm([8, 8, 8], bias=False))
    posterior = target(network=network)
    layout = posterior.layout
    dimensions = layout.total + int(layout.has_bias.sum())
    assert len(posterior.base) == dimensions
    assert dimensions < 2 * layout.total


def test_the_scope_decides_the_dimension() -> None:
    decoder = target("decoder")
    assert len(decoder.base) == 16


def test_parameters_of_a_scope_expand_to_all() -> None:
    decoder = target("decoder")
    layout = decoder.layout
    theta = decoder.base + torch.arange(1.0, 17.0)
    gamma, beta = decoder.expand(theta.expand(3, -1))
    assert gamma.shape == (3, layout.total)
    assert beta.shape == (3, layout.total)
    assert torch.equal(gamma[1, :8].float(), layout.weight[:8])
    torch.testing.assert_close(gamma[1, 8:].float(), layout.weight[8:] + torch.arange(1.0, 9.0))
    torch.testing.assert_close(beta[1, 8:].float(), layout.bias[8:] + torch.arange(9.0, 17.0))


def frames(root: Path, *, augment: bool) -> SegmentationDataset:
    module = SegmentationDataModule("toy", str(root), crop=(32, 32))
    return module.dataset("train", augment=augment)


class Numbers:
    """Frames that are their own number, with a random label."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": torch.tensor(float(index)), "label": torch.rand(())}


def numbered_batches(seed: int, steps: int = 12) -> list[Tensor]:
    """Batches of two of six frames: their numbers and their labels, ``[2, 2]``."""
    batches = minibatches(Numbers(), range(6), 2, seed, steps)  # type: ignore[arg-type]
    return [torch.stack(batch) for batch in batches]


def test_each_pass_shows_every_frame_once_in_another_order() -> None:
    batches = numbered_batches(seed=1)
    passes = []
    for first in range(0, 12, 3):
        numbers, _ = torch.cat(batches[first : first + 3], 1)
        passes.append(numbers.int().tolist())
    for numbers in passes:
        assert sorted(numbers) == list(range(6))
    assert len({tuple(numbers) for numbers in passes}) > 1


def test_fewer_steps_show_the_same_batches() -> None:
    batches = numbered_batches(seed=1)
    fewer = numbered_batches(seed=1, steps=5)
    assert all(map(torch.equal, batches[:5], fewer))


def test_another_seed_shows_other_batches() -> None:
    batches = numbered_batches(seed=1)
    others = numbered_batches(seed=2)
    assert not all(map(torch.equal, batches, others))


def test_augmentation_differs_from_step_to_step() -> None:
    first, second = numbered_batches(seed=1)[:2]
    assert not torch.equal(first[1], second[1])


def test_batches_leave_the_global_generator_alone() -> None:
    torch.manual_seed(123)
    state = torch.get_rng_state()
    numbered_batches(seed=1)
    assert torch.equal(torch.get_rng_state(), state)


def test_frames_that_do_not_fill_a_batch_are_refused(toy_set: Path) -> None:
    eight = frames(toy_set, augment=False)
    with pytest.raises(InputError, match="cannot fill a batch of 9"):
        minibatches(eight, range(8), 9, 0, 1)


def test_batches_of_all_data_hold_the_frames_that_are_named(toy_set: Path) -> None:
    data = frames(toy_set, augment=False)
    first, last = load_batches(data, [1, 3, 6], 2)
    assert len(first[0]) == 2
    assert len(last[0]) == 1
    assert torch.equal(last[0][0], data[6]["image"])
    assert torch.equal(first[1][1], data[3]["label"])


def test_minibatches_of_a_data_set_have_its_crop(toy_set: Path) -> None:
    eight = frames(toy_set, augment=True)
    ((images, labels),) = minibatches(eight, range(8), 3, 0, 1)
    assert images.shape == (3, 3, 32, 32)
    assert labels.shape == (3, 32, 32)


DOUBLE = torch.float64


def covariance(dimensions: int = 5) -> Tensor:
    """Correlated, with standard deviations from 0.3 to 2."""
    generator = torch.Generator().manual_seed(0)
    random = torch.randn(dimensions, dimensions, generator=generator, dtype=DOUBLE)
    rotation, _ = torch.linalg.qr(random)
    deviations = torch.linspace(0.3, 2.0, dimensions, dtype=DOUBLE)
    return rotation @ torch.diag(deviations**2) @ rotation.T


MEAN = torch.tensor([1.0, -2.0, 0.5, 0.0, 3.0], dtype=DOUBLE)


def gaussian(cov: Tensor, mean: Tensor) -> LogDensity:
    precision = torch.linalg.inv(cov)

    def log_density(theta: Tensor) -> tuple[float, Tensor]:
        offset = theta - mean
        gradient = -precision @ offset
        return 0.5 * float(gradient @ offset), gradient

    return log_density


def banana(theta: Tensor) -> tuple[float, Tensor]:
    """x ~ N(0, 1), y | x ~ N(x^2, 0.5^2)."""
    x, y = theta.tolist()
    rest = (y - x * x) / 0.25
    value = -0.5 * x * x - 0.5 * (y - x * x) * rest
    return value, torch.tensor([-x + 2 * x * rest, -rest], dtype=DOUBLE)


def chain_on(
    density: LogDensity, dimensions: int, seed: int = 0, **settings: Any
) -> HamiltonianChain:
    start = torch.zeros(dimensions, dtype=DOUBLE)
    return HamiltonianChain(density, start, HMC(**settings), seed)


def gaussian_chain(seed: int = 0, **settings: Any) -> HamiltonianChain:
    options = {
        "trajectory": math.pi,
        "warmup": 100,
        "samples": 900,
        **settings,
    }
    return chain_on(gaussian(covariance(), MEAN), 5, seed, **options)


@pytest.fixture(scope="module")
def three_chains() -> Tensor:
    """The states ``[3, 900, 5]`` of HMC on a correlated Gaussian."""
    return torch.stack([gaussian_chain(seed).sample() for seed in range(3)])


def smallest_sample_size(chains: Tensor) -> float:
    """Return the effective sample size of the dimension that has the smallest."""
    return min(effective_sample_size(x) for x in chains.numpy().transpose(2, 0, 1))


def test_hmc_chains_agree(three_chains: Tensor) -> None:
    assert smallest_sample_size(three_chains) > 600
    for x in three_chains.numpy().transpose(2, 0, 1):
        assert rank_normalised_rhat(x) < 1.01


def test_hmc_has_the_mean_of_a_correlated_gaussian(three_chains: Tensor) -> None:
    deviation = covariance().diag().sqrt()
    error = deviation / math.sqrt(smallest_sample_size(three_chains))
    mean = three_chains.flatten(0, 1).mean(0)
    assert bool(((mean - MEAN).abs() < 4 * error).all())


def test_hmc_has_the_covariance_of_a_correlated_gaussian(three_chains: Tensor) -> None:
    expected = covariance()
    variances = torch.outer(expected.diag(), expected.diag())
    # The standard error of an entry is sqrt((c_ij^2 + c_ii c_jj) / n).
    error = ((expected.square() + variances) / smallest_sample_size(three_chains)).sqrt()
    found = three_chains.flatten(0, 1).T.cov()
    assert bool(((found - expected).abs() < 4 * error).all())


START = torch.tensor([0.5, 0.3], dtype=DOUBLE)
MOMENTUM = torch.tensor([0.4, -0.7], dtype=DOUBLE)


def hamiltonian(momentum: Tensor, value: float) -> float:
    return 0.5 * float(momentum.square().sum()) - value


def test_leapfrog_follows_the_flow_with_an_error_of_second_order() -> None:
    """The flow is that of SciPy's Runge-Kutta integrator of order 8."""

    def rate(_: float, state: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        _, gradient = banana(torch.from_numpy(state[:2]))
        return np.concatenate([state[2:], gradient.numpy()])

    first = torch.cat([START, MOMENTUM]).numpy()
    flow = solve_ivp(rate, (0, 1), first, "DOP853", rtol=1e-11, atol=1e-12)
    expected = flow.y[:, -1]
    value, gradient = banana(START)
    place_errors = []
    energy_errors = []
    for steps in (50, 100, 200):
        end = leapfrog(banana, START, MOMENTUM, gradient, 1.0 / steps, steps)
        state = torch.cat([end.theta, end.momentum])
        place_errors.append(float(np.abs(state.numpy() - expected).max()))
        energy = hamiltonian(end.momentum, end.value)
        energy_errors.append(abs(energy - hamiltonian(MOMENTUM, value)))
    for errors in (place_errors, energy_errors):
        assert errors[0] / errors[1] == pytest.approx(4.0, rel=0.1)
        assert errors[1] / errors[2] == pytest.approx(4.0, rel=0.1)


def test_leapfrog_is_reversible() -> None:
    _, gradient = banana(START)
    end = leapfrog(banana, START, MOMENTUM, gradient, 0.05, 40)
    assert not torch.allclose(end.theta, START, atol=0.1)
    back = leapfrog(banana, end.theta, -end.momentum, end.gradient, 0.05, 40)
    torch.testing.assert_close(back.theta, START, atol=1e-12, rtol=0)
    torch.testing.assert_close(-back.momentum, MOMENTUM, atol=1e-12, rtol=0)


def standard_gaussian(dimensions: int) -> LogDensity:
    cov = torch.eye(dimensions, dtype=DOUBLE)
    return gaussian(cov, torch.zeros(dimensions, dtype=DOUBLE))


def adapted(target_acceptance: float) -> dict[str, Any]:
    """Return the record of a chain whose step size was adapted to a target.

    It has many dimensions: with few, the acceptance jumps near the limit of stability.
    """
    chain = chain_on(
        standard_gaussian(60),
        60,
        trajectory=1.5,
        warmup=300,
        samples=400,
        target_acceptance=target_acceptance,
    )
    chain.sample()
    return chain.record()


def test_the_step_size_is_adapted_to_the_target() -> None:
    sizes = []
    for target_acceptance in (0.65, 0.95):
        record = adapted(target_acceptance)
        size = record["step_size"]
        assert record["acceptance"] == pytest.approx(target_acceptance, abs=0.06)
        assert record["leapfrog_steps"] == pytest.approx(1.5 / size, abs=1.0)
        sizes.append(size)
    assert sizes[0] > 1.3 * sizes[1]


def cliff(theta: Tensor) -> tuple[float, Tensor]:
    """A standard Gaussian that has no density above 1."""
    value, gradient = standard_gaussian(1)(theta)
    if float(theta[0]) > 1:
        value = math.nan
    return value, gradient


@pytest.fixture(scope="module")
def on_a_cliff() -> tuple[Tensor, dict[str, Any]]:
    """The states of a chain with divergent trajectories, and its record."""
    chain = chain_on(
        cliff,
        1,
        trajectory=1.5,
        warmup=20,
        samples=1000,
        step_size=0.2,
    )
    states = chain.sample()
    return states, chain.record()


def test_divergent_trajectories_are_rejected(on_a_cliff: Any) -> None:
    states, _ = on_a_cliff
    assert float(states.max()) <= 1
    # What is left is the Gaussian cut off at 1, whose mean is -phi(1) / Phi(1).
    assert float(states.mean()) == pytest.approx(-0.2876, abs=0.12)


def test_divergent_trajectories_are_counted(on_a_cliff: Any) -> None:
    _, record = on_a_cliff
    assert record["divergences"] > 50
    rejected = record["divergences"] / 1000
    assert record["accepted"] + rejected == pytest.approx(1.0, abs=0.02)


def test_a_chain_that_only_diverges_ends() -> None:
    with pytest.raises(PartialFailure, match=r"smaller hmc\.step_size"):
        gaussian_chain(step_size=50.0).sample()


def test_long_trajectories_are_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamics, "MAX_LEAPFROG_STEPS", 20)
    chain = gaussian_chain(step_size=0.01, warmup=1, samples=4)
    chain.sample()
    assert chain.record()["shortened"] == 4
    assert chain.record()["leapfrog_steps"] == 20


PRECISION = torch.tensor([[2.0, 0.8], [0.8, 1.0]], dtype=torch.float64)
CENTRE = torch.tensor([1.0, -0.5], dtype=torch.float64)


def exact(theta: Tensor) -> Tensor:
    return PRECISION @ (theta - CENTRE)


def constant(size: float, steps: int, burn_in: int, **more: Any) -> SGHMC:
    """One cycle of steps of one size; those after ``burn_in`` are noisy and kept."""
    return cyclical(
        cycles=1,
        length=steps,
        exploration=burn_in / steps,
        states=steps - burn_in,
        lr=size,
        shape="constant",
        **more,
    )


def cyclical(cycles: int, length: int, exploration: float, states: int, **more: Any) -> SGHMC:
    settings: dict[str, Any] = {
        "cycles": cycles,
        "cycle_steps": length,
        "exploration": exploration,
        "states_per_cycle": states,
        "lr": 0.1,
        "momentum": 0.0,
        "effective_pixels": 1.0,
    }
    return SGHMC(**settings | more)


def stationary(size: float, momentum: float, temperature: float) -> np.ndarray[Any, Any]:
    """Covariance of theta in the recursion of (theta, v), from the discrete Lyapunov equation."""
    eye = np.eye(2)
    kept = momentum * eye
    slope = -size * PRECISION.numpy()
    # v' = m v - h A theta + e and theta' = theta + v'
    step = np.block(
        [
            [eye + slope, kept],
            [slope, kept],
        ]
    )
    variance = 2 * (1 - momentum) * size * temperature
    noise = variance * np.block([[eye, eye], [eye, eye]])
    solution = solve_discrete_lyapunov(step, noise)
    return np.asarray(solution[:2, :2])


@pytest.mark.parametrize(
    ("size", "momentum", "temperature"),
    [
        (0.1, 0.0, 1.0),
        (0.02, 0.8, 0.25),
    ],
)
def test_langevin_has_mean_and_covariance_of_its_recursion(
    size: float, momentum: float, temperature: float
) -> None:
    steps = 8_000
    settings = constant(size, steps, 200, momentum=momentum, temperature=temperature)
    x = sample_langevin(exact, CENTRE, settings, 0).numpy()
    expected = stationary(size, momentum, temperature)
    # Autocorrelation time of the slowest direction, in steps.
    slowest = float(np.linalg.eigvalsh(PRECISION.numpy())[0])
    independent = steps * slowest * size / (1 - momentum) / 2
    for i in range(2):
        error_of_mean = math.sqrt(expected[i, i] / independent)
        assert x[:, i].mean() == pytest.approx(float(CENTRE[i]), abs=4 * error_of_mean)
    variances = np.diag(expected)
    error = np.sqrt((expected**2 + np.outer(variances, variances)) / independent)
    assert (np.abs(np.cov(x.T) - expected) < 4 * error).all()


@given(
    cycles=st.integers(1, 4),
    length=st.integers(1, 40),
    exploration=st.floats(0, 0.95),
    states=st.integers(1, 40),
)
def test_every_cycle_keeps_its_number_of_states_and_its_last_one(
    cycles: int, length: int, exploration: float, states: int
) -> None:
    noisy = length - math.ceil(exploration * length)
    if states > noisy:
        with pytest.raises(InputError, match="noisy steps of a cycle"):
            cyclical(cycles, length, exploration, states)
        return
    settings = cyclical(cycles, length, exploration, states)
    kept = [step for step in range(settings.total_steps) if settings.is_kept(step)]
    assert all(settings.is_noisy(step) for step in kept)
    for cycle in range(cycles):
        last = (cycle + 1) * length - 1
        of_cycle = [step for step in kept if last - length < step <= last]
        assert len(of_cycle) == states
        assert of_cycle[-1] == last
        if states > 2:
            assert np.ptp(np.diff(of_cycle)) <= 1, "evenly spaced"


def test_the_cosine_of_a_cycle() -> None:
    settings = cyclical(2, 100, 0.5, 1, lr=0.4)
    assert settings.step_size(0) == 0.4
    assert settings.step_size(100) == 0.4
    assert settings.step_size(50) == pytest.approx(0.2)
    last = 0.2 * (math.cos(0.99 * math.pi) + 1)
    assert settings.step_size(99) == pytest.approx(last)


def test_a_cycle_of_a_constant_step_size() -> None:
    settings = cyclical(2, 100, 0.5, 1, lr=0.4, shape="constant")
    assert settings.step_size(99) == 0.4


def test_a_gradient_that_breaks_is_reported_with_its_step() -> None:
    slopes = iter([1.0] * 7 + [math.nan])

    def gradient(theta: Tensor) -> Tensor:
        return next(slopes) * exact(theta)

    with pytest.raises(PartialFailure, match="gradient became NaN or infinite at step 7"):
        sample_langevin(gradient, CENTRE, constant(0.1, 20, 0), 0)


def test_a_state_that_breaks_is_reported() -> None:
    said = r"state became NaN or infinite .* lower the learning rate"
    with pytest.raises(PartialFailure, match=said):
        sample_langevin(exact, CENTRE, constant(1e6, 200, 0), 0)


def test_a_start_without_a_density_is_refused() -> None:
    with pytest.raises(InputError, match="log density is nan"):
        chain_on(lambda theta: (math.nan, theta), 2, trajectory=1.0, warmup=0, samples=1)


class FailingSampler:
    """Samples chains, and fails at its second call."""

    def __init__(self) -> None:
        self.started: list[int] = []

    def __call__(self, number: int, show: Show) -> tuple[Tensor, dict[str, float]]:
        self.started.append(number)
        if self.started == [0, 1]:
            raise PartialFailure(
                "the gradient became NaN or infinite. Hint: lower the learning rate"
            )
        settings = cyclical(2, 10, 0.3, 3)
        states = sample_langevin(exact, CENTRE, settings, number, show)
        return states, {"number": number}


def test_a_chain_that_fails_says_which(tmp_path: Path) -> None:
    said = r"chain 2 of 3 stopped: the gradient became NaN.*give another --out"
    with pytest.raises(PartialFailure, match=said):
        run_chains(FailingSampler(), 3, tmp_path / "last.ckpt")


def test_finished_chains_are_not_run_again(tmp_path: Path) -> None:
    last = tmp_path / "last.ckpt"
    sample = FailingSampler()
    with pytest.raises(PartialFailure):
        run_chains(sample, 3, last)
    states, records = run_chains(sample, 3, last, resume=True)
    assert sample.started == [0, 1, 1, 2]
    assert states.shape == (3, 6, 2)
    assert records == [{"number": 0}, {"number": 1}, {"number": 2}]
    alone, _ = sample(1, lambda *_: None)
    assert torch.equal(states[1], alone.float())


Array = npt.NDArray[np.float64]


def autoregressive(
    chains: int, draws: int, correlation: float, seed: int, apart: float = 0.0
) -> Array:
    """Chains of AR(1) draws of unit variance, whose means lie ``apart`` deviations apart."""
    generator = np.random.default_rng(seed)
    noise = generator.normal(size=(chains, draws))
    innovation = math.sqrt(1 - correlation**2)
    x = noise.copy()
    for i in range(1, draws):
        x[:, i] = correlation * x[:, i - 1] + innovation * noise[:, i]
    shifts = apart * generator.normal(size=(chains, 1))
    return np.asarray(x + shifts, np.float64)


@given(
    chains=st.integers(1, 4),
    draws=st.integers(4, 80),
    correlation=st.floats(-0.9, 0.95),
    apart=st.sampled_from([0.0, 1.0]),
    ties=st.booleans(),
    seed=st.integers(0, 10_000),
)
# The lags end in a negative even one.
@example(
    chains=4,
    draws=20,
    correlation=0.0,
    apart=1.0,
    ties=True,
    seed=1872,
)
def test_both_agree_with_arviz(
    chains: int, draws: int, correlation: float, apart: float, ties: bool, seed: int
) -> None:
    x = autoregressive(chains, draws, correlation, seed, apart)
    if ties:
        x = np.round(2 * x)
    if np.ptp(x) == 0:
        return
    expected = float(array_stats.ess(x, chain_axis=0, draw_axis=1, method="bulk"))
    assert effective_sample_size(x) == pytest.approx(expected, rel=1e-9)
    # ArviZ has no R-hat of a single chain: the two halves of an even number of draws are the same
    # comparison.
    if chains == 1:
        return
    expected = float(array_stats.rhat(x, chain_axis=0, draw_axis=1, method="rank"))
    assert rank_normalised_rhat(x) == pytest.approx(expected, rel=1e-9)


def test_r_hat_notices_drift() -> None:
    steady = np.random.default_rng(0).normal(size=(1, 400))
    assert rank_normalised_rhat(steady) < 1.05
    noise = np.random.default_rng(0).normal(size=(1, 100))
    drifting = np.arange(100.0)[None] + noise
    assert rank_normalised_rhat(drifting) > 1.5


def test_r_hat_notices_another_scale() -> None:
    scales = np.array([[1.0], [5.0]])
    x = np.random.default_rng(0).normal(size=(2, 400)) * scales
    assert rank_normalised_rhat(x) > 1.1, "their means agree, their spreads do not"


def test_r_hat_of_chains_that_stand_still_elsewhere_is_infinite() -> None:
    stuck = np.repeat([[0.0], [1.0]], 10, 1)
    assert rank_normalised_rhat(stuck) == math.inf


def test_what_does_not_vary_has_no_number() -> None:
    constant = np.ones((2, 10))
    assert math.isnan(rank_normalised_rhat(constant))
    assert math.isnan(effective_sample_size(constant))


def test_what_is_not_finite_has_no_number() -> None:
    with_nan = np.array([[0.0, 1.0, np.nan, 2.0]])
    assert math.isnan(rank_normalised_rhat(with_nan))


@pytest.fixture
def converged() -> Array:
    """Two chains of 200 states of 5 independent parameters."""
    return np.random.default_rng(0).normal(size=(2, 200, 5))


def test_convergence_over_the_parameters(converged: Array) -> None:
    record = convergence(converged)
    assert record["rhat_max"] < 1.05
    assert record["rhat_below_1.1"] == 1.0
    assert record["ess_min"] > 100


def test_a_parameter_whose_chains_lie_apart_is_noticed(converged: Array) -> None:
    good = convergence(converged)
    converged[1, :, 3] += 3
    bad = convergence(converged)
    assert bad["rhat_max"] > 1.5
    assert bad["rhat_median"] == pytest.approx(good["rhat_median"], abs=0.02)
    assert bad["rhat_below_1.1"] == 0.8


def test_a_parameter_that_never_moves_spoils_no_other(converged: Array) -> None:
    converged[1, :, 3] += 3
    converged[:, :, 0] = 1.0
    assert convergence(converged)["rhat_below_1.1"] == 0.75


@pytest.mark.parametrize(
    ("length", "reason"),
    [
        (3, "3 states a chain"),
        (8, "none of 5 parameters varies"),
    ],
)
def test_chains_without_convergence_have_a_reason(length: int, reason: str) -> None:
    record = convergence(np.zeros((2, length, 5)))
    assert record["rhat_max"] is None
    assert record["ess_min"] is None
    assert reason in record["reason"]


LAYOUT = layout_of(small_network())


def numbered(states: int, chains: int) -> SGLDPosterior:
    """State k holds the number k everywhere."""
    gamma = torch.arange(float(states))[:, None].repeat(1, LAYOUT.total)
    return SGLDPosterior(gamma, gamma + 0.5, chains)


def states_of(posterior: ChainStates, draws: range | list[int], seed: int = 0) -> list[int]:
    affine = posterior.affine(LAYOUT, draws, seed)
    assert torch.equal(affine.bias, affine.weight + 0.5), "gamma and beta belong to one state"
    return [int(row[0]) for row in affine.weight]


@given(chains=st.integers(1, 4), length=st.integers(1, 6), seed=st.integers(0, 1000))
def test_draws_go_round_the_chains_and_take_every_state_once(
    chains: int, length: int, seed: int
) -> None:
    count = chains * length
    posterior = numbered(count, chains)
    assert posterior.members == chains
    drawn = states_of(posterior, range(count), seed)
    assert sorted(drawn) == list(range(count)), "S = K is the whole sample"
    chain_of_draw = [state // length for state in drawn]
    assert chain_of_draw == [draw % chains for draw in range(count)]
    again = states_of(posterior, range(count, 2 * count), seed)
    assert again == drawn, "then they come again"
    alone = states_of(posterior, [count - 1, 0], seed)
    assert alone == [drawn[-1], drawn[0]], "each draw by its number alone"


@given(seed=st.integers(0, 1000))
def test_the_seed_decides_the_order_of_the_states(seed: int) -> None:
    posterior = numbered(24, 2)
    order = states_of(posterior, range(24), seed)
    other = states_of(posterior, range(24), seed + 1)
    assert order != other


def test_outside_a_narrower_scope_a_draw_is_the_mean_of_its_chain() -> None:
    posterior = numbered(6, 2)
    affine = posterior.affine(LAYOUT, range(6), 0, "decoder")
    whole = posterior.affine(LAYOUT, range(6), 0)
    assert torch.equal(affine.weight[:, 0], torch.tensor([1.0, 4.0] * 3))
    assert torch.equal(affine.bias[:, 0], torch.tensor([1.5, 4.5] * 3))
    assert torch.equal(affine.weight[:, 8:], whole.weight[:, 8:])
