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
from segunc.baselines.chains import SGLD, ChainStates, run_chains
from segunc.baselines.convergence import convergence, effective_sample_size, rank_normalised_rhat
from segunc.baselines.dynamics import (
    HamiltonianChain,
    HmcConfig,
    LogDensity,
    SghmcConfig,
    Show,
    leapfrog,
    sample_langevin,
)
from segunc.baselines.target import LogPosterior, load_batches, minibatches
from segunc.core.errors import InputError, PartialFailure
from segunc.data.module import SegmentationDataModule, SegmentationDataset
from tests.affine.networks import layout_of, small_network, with_affine

S, N_EFF = 0.2, 500.0


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
    network = (small_network() if network is None else network).double()
    convert(network)
    return LogPosterior(network, Prior(S, N_EFF, temperature=temperature), scope)


def moved(posterior: LogPosterior, scale: float = 0.1, seed: int = 0) -> Tensor:
    noise = torch.randn(
        len(posterior.base), generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    return posterior.base + scale * noise


def test_the_value_is_scikit_learns_log_loss_and_the_prior() -> None:
    posterior = target(temperature=0.5)
    images, labels = data()
    theta = moved(posterior)
    gamma, beta = posterior.expand(theta)
    network = with_affine(small_network().double(), gamma, beta)
    with torch.no_grad():
        probabilities = network(images.double()).softmax(1).movedim(1, -1)
    valid = labels != 255
    loss = log_loss(labels[valid].numpy(), probabilities[valid].numpy(), labels=[0, 1, 2, 3])
    layout = posterior.layout
    offset = torch.cat([gamma - layout.weight, beta - layout.bias])
    log_prior = -float(offset.square().sum()) / (2 * S**2)
    value, _ = posterior.on([(images, labels)])(theta)
    assert value == pytest.approx((-N_EFF * loss + log_prior) / 0.5, rel=1e-9)


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
        slope = (density(theta + step)[0] - density(theta - step)[0]) / 2e-5
        assert float(gradient[index]) == pytest.approx(slope, rel=1e-5, abs=1e-5)


def test_minibatch_gradients_are_unbiased_though_labels_are_unequal() -> None:
    posterior = target(temperature=0.5)
    images, labels = data()
    theta = moved(posterior)
    _, exact = posterior.on([(images, labels)])(theta)

    def mean_gradient(pixels: list[float]) -> Tensor:
        gradients = []
        for i, count in enumerate(pixels):
            part = slice(i, i + 1)
            gradients.append(posterior.energy_gradient(theta, images[part], labels[part], count))
        return torch.stack(gradients).mean(0)

    labelled = (labels != 255).sum((1, 2))
    mean = mean_gradient([float(labelled.sum()) / 6] * 6)
    torch.testing.assert_close(mean, -0.5 * exact, rtol=1e-10, atol=1e-10)
    ratio = mean_gradient(labelled.tolist())
    assert not torch.allclose(ratio, mean, rtol=1e-3), (
        "dividing by the pixels of each batch is another estimate"
    )


@pytest.mark.parametrize("mean", ["base", "zero"])
def test_a_batch_without_labels_leaves_the_prior(mean: PriorMean) -> None:
    network = small_network()
    convert(network)
    posterior = LogPosterior(network, Prior(S, N_EFF, mean))
    images, labels = data()
    theta = moved(posterior)
    gradient = posterior.energy_gradient(theta, images, torch.full_like(labels, 255), 64.0)
    torch.testing.assert_close(gradient, (theta - (posterior.base if mean == "base" else 0)) / S**2)
    with pytest.raises(InputError, match="no labelled pixel"):
        posterior.on([(images, torch.full_like(labels, 255))])


def test_the_scope_and_missing_betas_decide_the_dimension() -> None:
    network = small_network(nn.LayerNorm([8, 8, 8], bias=False))
    posterior = target(network=network)
    layout = posterior.layout
    assert len(posterior.base) == layout.total + int(layout.has_bias.sum()) < 2 * layout.total
    decoder = target("decoder")
    layout = decoder.layout
    assert len(decoder.base) == 16
    theta = decoder.base + torch.arange(1.0, 17.0)
    gamma, beta = decoder.expand(theta.expand(3, -1))
    assert gamma.shape == beta.shape == (3, layout.total)
    assert torch.equal(gamma[1, :8].float(), layout.weight[:8])
    torch.testing.assert_close(gamma[1, 8:].float(), layout.weight[8:] + torch.arange(1.0, 9.0))
    torch.testing.assert_close(beta[1, 8:].float(), layout.bias[8:] + torch.arange(9.0, 17.0))


def frames(root: Path, *, augment: bool) -> SegmentationDataset:
    return SegmentationDataModule("toy", str(root), crop=(32, 32)).dataset("train", augment=augment)


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


def test_batches_depend_on_seed_and_step_alone() -> None:
    batches = numbered_batches(seed=1)
    assert all(map(torch.equal, batches[:5], numbered_batches(seed=1, steps=5)))
    assert not all(map(torch.equal, batches, numbered_batches(seed=2)))
    assert not torch.equal(batches[0][1], batches[1][1]), "augmentation differs from step to step"


def test_batches_leave_the_global_generator_alone() -> None:
    torch.manual_seed(123)
    state = torch.get_rng_state()
    numbered_batches(seed=1)
    assert torch.equal(torch.get_rng_state(), state)


def test_frames_that_do_not_fill_a_batch_are_refused(toy_set: Path) -> None:
    with pytest.raises(InputError, match="do not fill a batch of 9"):
        minibatches(frames(toy_set, augment=False), range(8), 9, 0, 1)


def test_batches_of_all_data_hold_the_frames_that_are_named(toy_set: Path) -> None:
    data = frames(toy_set, augment=False)
    first, last = load_batches(data, [1, 3, 6], 2)
    assert len(first[0]) == 2
    assert len(last[0]) == 1
    assert torch.equal(last[0][0], data[6]["image"])
    assert torch.equal(first[1][1], data[3]["label"])


def test_minibatches_of_a_data_set_have_its_crop(toy_set: Path) -> None:
    ((images, labels),) = minibatches(frames(toy_set, augment=True), range(8), 3, 0, 1)
    assert images.shape == (3, 3, 32, 32)
    assert labels.shape == (3, 32, 32)


DOUBLE = torch.float64


def covariance(dimensions: int = 5) -> Tensor:
    """Correlated, with standard deviations from 0.3 to 2."""
    generator = torch.Generator().manual_seed(0)
    random = torch.randn(dimensions, dimensions, generator=generator, dtype=DOUBLE)
    rotation, _ = torch.linalg.qr(random)
    variances = torch.linspace(0.3, 2.0, dimensions, dtype=DOUBLE) ** 2
    return rotation @ torch.diag(variances) @ rotation.T


MEAN = torch.tensor([1.0, -2.0, 0.5, 0.0, 3.0], dtype=DOUBLE)


def gaussian(cov: Tensor, mean: Tensor) -> LogDensity:
    precision = torch.linalg.inv(cov)

    def log_density(theta: Tensor) -> tuple[float, Tensor]:
        gradient = -precision @ (theta - mean)
        return 0.5 * float(gradient @ (theta - mean)), gradient

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
    return HamiltonianChain(
        density, torch.zeros(dimensions, dtype=DOUBLE), HmcConfig(**settings), seed
    )


def gaussian_chain(seed: int = 0, **settings: Any) -> HamiltonianChain:
    options = {"trajectory": math.pi, "warmup": 100, "samples": 900, **settings}
    return chain_on(gaussian(covariance(), MEAN), 5, seed, **options)


def test_hmc_has_mean_and_covariance_of_a_correlated_gaussian() -> None:
    chains = [gaussian_chain(seed).sample() for seed in range(3)]
    x = torch.stack(chains).numpy()
    size = min(effective_sample_size(x[:, :, i]) for i in range(5))
    assert size > 600
    assert max(rank_normalised_rhat(x[:, :, i]) for i in range(5)) < 1.01
    cov = covariance()
    pooled = torch.cat(chains)
    deviation = cov.diag().sqrt()
    # Four standard errors, from the effective sample size: sd / sqrt(n) of a mean, sqrt((c_ij^2 +
    # c_ii c_jj) / n) of a covariance.
    assert bool(((pooled.mean(0) - MEAN).abs() < 4 * deviation / math.sqrt(size)).all())
    error = ((cov.square() + torch.outer(cov.diag(), cov.diag())) / size).sqrt()
    assert bool(((pooled.T.cov() - cov).abs() < 4 * error).all())


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
    expected = solve_ivp(rate, (0, 1), first, "DOP853", rtol=1e-11, atol=1e-12).y[:, -1]
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


def test_the_step_size_is_adapted_to_the_target() -> None:
    sizes = []
    for target in (0.65, 0.95):
        # Many dimensions: with few, the acceptance jumps near the limit of stability.
        density = gaussian(torch.eye(60, dtype=DOUBLE), torch.zeros(60, dtype=DOUBLE))
        chain = chain_on(
            density, 60, trajectory=1.5, warmup=300, samples=400, target_acceptance=target
        )
        chain.sample()
        record = chain.record()
        assert record["acceptance"] == pytest.approx(target, abs=0.06)
        assert record["leapfrog_steps"] == pytest.approx(1.5 / record["step_size"], abs=1.0)
        sizes.append(record["step_size"])
    assert sizes[0] > 1.3 * sizes[1]


def test_divergent_trajectories_are_rejected_and_counted() -> None:
    def cliff(theta: Tensor) -> tuple[float, Tensor]:
        value, gradient = gaussian(torch.eye(1, dtype=DOUBLE), torch.zeros(1, dtype=DOUBLE))(theta)
        return (math.nan, gradient) if float(theta[0]) > 1 else (value, gradient)

    chain = chain_on(cliff, 1, trajectory=1.5, warmup=20, samples=1000, step_size=0.2)
    x = chain.sample()
    record = chain.record()
    assert float(x.max()) <= 1
    assert record["divergences"] > 50
    assert record["accepted"] + record["divergences"] / 1000 == pytest.approx(1.0, abs=0.02)
    # What is left is the Gaussian cut off at 1, whose mean is -phi(1) / Phi(1).
    assert float(x.mean()) == pytest.approx(-0.2876, abs=0.12)


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


def constant(size: float, steps: int, burn_in: int, **more: Any) -> SghmcConfig:
    """One cycle of steps of one size; those after ``burn_in`` are noisy and kept."""
    return cyclical(1, steps, burn_in / steps, steps - burn_in, lr=size, shape="constant", **more)


def cyclical(cycles: int, length: int, exploration: float, states: int, **more: Any) -> SghmcConfig:
    usual: dict[str, Any] = {"lr": 0.1, "momentum": 0.0, "effective_pixels": 1.0}
    settings = {
        "cycles": cycles,
        "cycle_steps": length,
        "exploration": exploration,
        "states_per_cycle": states,
    }
    return SghmcConfig(**settings, **usual | more)  # type: ignore[arg-type]


def stationary(size: float, momentum: float, temperature: float) -> np.ndarray[Any, Any]:
    """Covariance of theta in the recursion of (theta, v), from the discrete Lyapunov equation."""
    eye, precision = np.eye(2), PRECISION.numpy()
    # v' = m v - h A theta + e and theta' = theta + v'
    step = np.block([[eye - size * precision, momentum * eye], [-size * precision, momentum * eye]])
    noise = 2 * (1 - momentum) * size * temperature * np.block([[eye, eye], [eye, eye]])
    return np.asarray(solve_discrete_lyapunov(step, noise)[:2, :2])


@pytest.mark.parametrize(("size", "momentum", "temperature"), [(0.1, 0.0, 1.0), (0.02, 0.8, 0.25)])
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
        assert x[:, i].mean() == pytest.approx(
            float(CENTRE[i]), abs=4 * math.sqrt(expected[i, i] / independent)
        )
    error = np.sqrt((expected**2 + np.outer(np.diag(expected), np.diag(expected))) / independent)
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
    assert settings.step_size(0) == settings.step_size(100) == 0.4
    assert settings.step_size(50) == pytest.approx(0.2)
    assert settings.step_size(99) == pytest.approx(0.2 * (math.cos(0.99 * math.pi) + 1))
    assert cyclical(2, 100, 0.5, 1, lr=0.4, shape="constant").step_size(99) == 0.4


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


def test_finished_chains_are_not_run_again_and_one_that_fails_says_which(tmp_path: Path) -> None:
    last = tmp_path / "last.ckpt"
    started: list[int] = []

    def sample(number: int, show: Show) -> tuple[Tensor, dict[str, float]]:
        started.append(number)
        if started == [0, 1]:
            raise PartialFailure(
                "the gradient became NaN or infinite. Hint: lower the learning rate"
            )
        states = sample_langevin(exact, CENTRE, cyclical(2, 10, 0.3, 3), number, show)
        return states, {"number": number}

    with pytest.raises(
        PartialFailure, match=r"chain 2 of 3 stopped: the gradient became NaN.*give another --out"
    ):
        run_chains(sample, 3, last)
    states, records = run_chains(sample, 3, last, resume=True)
    assert started == [0, 1, 1, 2]
    assert states.shape == (3, 6, 2)
    assert records == [{"number": 0}, {"number": 1}, {"number": 2}]
    assert torch.equal(states[1], sample(1, lambda *_: None)[0].float())


Array = npt.NDArray[np.float64]


def autoregressive(
    chains: int, draws: int, correlation: float, seed: int, apart: float = 0.0
) -> Array:
    """Chains of AR(1) draws with unit variance, their means ``apart`` standard deviations apart on
    average.
    """
    generator = np.random.default_rng(seed)
    noise = generator.normal(size=(chains, draws))
    x = noise.copy()
    for i in range(1, draws):
        x[:, i] = correlation * x[:, i - 1] + math.sqrt(1 - correlation**2) * noise[:, i]
    return np.asarray(x + apart * generator.normal(size=(chains, 1)), np.float64)


@given(
    chains=st.integers(1, 4),
    draws=st.integers(4, 80),
    correlation=st.floats(-0.9, 0.95),
    apart=st.sampled_from([0.0, 1.0]),
    ties=st.booleans(),
    seed=st.integers(0, 10_000),
)
@example(
    chains=4, draws=20, correlation=0.0, apart=1.0, ties=True, seed=1872
)  # the lags end in a negative even one
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
    drifting = np.arange(100.0)[None] + np.random.default_rng(0).normal(size=(1, 100))
    assert rank_normalised_rhat(drifting) > 1.5


def test_r_hat_notices_another_scale() -> None:
    scales = np.array([[1.0], [5.0]])
    x = np.random.default_rng(0).normal(size=(2, 400)) * scales
    assert rank_normalised_rhat(x) > 1.1, "their means agree, their spreads do not"


def test_r_hat_of_chains_that_stand_still_elsewhere_is_infinite() -> None:
    stuck = np.repeat([[0.0], [1.0]], 10, 1)
    assert rank_normalised_rhat(stuck) == math.inf


def test_what_does_not_vary_or_is_not_finite_has_no_number() -> None:
    assert math.isnan(rank_normalised_rhat(np.ones((2, 10))))
    assert math.isnan(effective_sample_size(np.ones((2, 10))))
    assert math.isnan(rank_normalised_rhat(np.array([[0.0, 1.0, np.nan, 2.0]])))


def test_convergence_over_the_parameters() -> None:
    states = np.random.default_rng(0).normal(size=(2, 200, 5))
    good = convergence(states)
    assert good["rhat_max"] < 1.05
    assert good["rhat_below_1.1"] == 1.0
    assert good["ess_min"] > 100
    states[1, :, 3] += 3
    bad = convergence(states)
    assert bad["rhat_max"] > 1.5
    assert bad["rhat_median"] == pytest.approx(good["rhat_median"], abs=0.02)
    assert bad["rhat_below_1.1"] == 0.8
    states[:, :, 0] = 1.0  # a parameter that never moves has no R-hat, and spoils no other's
    assert convergence(states)["rhat_below_1.1"] == 0.75


@pytest.mark.parametrize(
    ("length", "reason"), [(3, "3 states a chain"), (8, "none of 5 parameters varies")]
)
def test_chains_without_convergence_have_a_reason(length: int, reason: str) -> None:
    record = convergence(np.zeros((2, length, 5)))
    assert record["rhat_max"] is None
    assert record["ess_min"] is None
    assert reason in record["reason"]


LAYOUT = layout_of(small_network())


def numbered(states: int, chains: int) -> SGLD:
    """State k holds the number k everywhere."""
    gamma = torch.arange(float(states))[:, None].repeat(1, LAYOUT.total)
    return SGLD(gamma, gamma + 0.5, chains)


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
    assert states_of(posterior, range(24), seed) != states_of(posterior, range(24), seed + 1)


def test_outside_a_narrower_scope_a_draw_is_the_mean_of_its_chain() -> None:
    posterior = numbered(6, 2)
    affine = posterior.affine(LAYOUT, range(6), 0, "decoder")
    assert torch.equal(affine.weight[:, 0], torch.tensor([1.0, 4.0] * 3))
    assert torch.equal(affine.bias[:, 0], torch.tensor([1.5, 4.5] * 3))
    assert torch.equal(affine.weight[:, 8:], posterior.affine(LAYOUT, range(6), 0).weight[:, 8:])
