"""Chains: HMC against closed forms, an integrator and quadrature of SciPy, Langevin dynamics against the stationary covariance of
their own recursion, and runs of several chains."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import solve_ivp
from scipy.linalg import solve_discrete_lyapunov
from torch import Tensor

from segunc.baselines import dynamics
from segunc.baselines.chains import run_chains
from segunc.baselines.convergence import effective_sample_size, rank_normalised_rhat
from segunc.baselines.dynamics import (
    HamiltonianChain,
    HmcConfig,
    LogDensity,
    SghmcConfig,
    Show,
    leapfrog,
    sample_langevin,
)
from segunc.core.errors import InputError, PartialFailure

DOUBLE = torch.float64


def covariance(dimensions: int = 5) -> Tensor:
    """Correlated, with standard deviations from 0.3 to 2."""
    generator = torch.Generator().manual_seed(0)
    rotation, _ = torch.linalg.qr(torch.randn(dimensions, dimensions, generator=generator, dtype=DOUBLE))
    return rotation @ torch.diag(torch.linspace(0.3, 2.0, dimensions, dtype=DOUBLE) ** 2) @ rotation.T


MEAN = torch.tensor([1.0, -2.0, 0.5, 0.0, 3.0], dtype=DOUBLE)


def gaussian(cov: Tensor, mean: Tensor) -> LogDensity:
    precision = torch.linalg.inv(cov)

    def log_density(theta: Tensor) -> tuple[float, Tensor]:
        gradient = -precision @ (theta - mean)
        return 0.5 * float(gradient @ (theta - mean)), gradient

    return log_density


def banana(theta: Tensor) -> tuple[float, Tensor]:
    """x ~ N(0, 1), y | x ~ N(x^2, 0.5^2)."""
    x, y = float(theta[0]), float(theta[1])
    rest = (y - x * x) / 0.25
    return -0.5 * x * x - 0.5 * (y - x * x) * rest, torch.tensor([-x + 2 * x * rest, -rest], dtype=DOUBLE)


def chain_on(density: LogDensity, dimensions: int, seed: int = 0, **settings: Any) -> HamiltonianChain:
    """From 0, with the settings that ``segunc finetune`` has."""
    return HamiltonianChain(density, torch.zeros(dimensions, dtype=DOUBLE), HmcConfig(**settings), seed)


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
    # Four standard errors, from the effective sample size: sd / sqrt(n) of a mean, sqrt((c_ij^2 + c_ii c_jj) / n) of a covariance.
    assert bool(((pooled.mean(0) - MEAN).abs() < 4 * deviation / math.sqrt(size)).all())
    error = ((cov.square() + torch.outer(cov.diag(), cov.diag())) / size).sqrt()
    assert bool(((pooled.T.cov() - cov).abs() < 4 * error).all())


START, MOMENTUM = torch.tensor([0.5, 0.3], dtype=DOUBLE), torch.tensor([0.4, -0.7], dtype=DOUBLE)


def test_leapfrog_is_reversible_and_follows_the_flow_with_an_error_of_second_order() -> None:
    """The flow is that of SciPy's Runge-Kutta integrator of order 8."""

    def rate(_: float, state: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        _, gradient = banana(torch.from_numpy(state[:2]))
        return np.concatenate([state[2:], gradient.numpy()])

    first = torch.cat([START, MOMENTUM]).numpy()
    expected = solve_ivp(rate, (0, 1), first, "DOP853", rtol=1e-11, atol=1e-12).y[:, -1]
    value, gradient = banana(START)
    energy = 0.5 * float(MOMENTUM.square().sum()) - value
    places, energies = [], []
    for steps in (50, 100, 200):
        theta, after, end, _ = leapfrog(banana, START, MOMENTUM, gradient, 1.0 / steps, steps)
        places.append(float(np.abs(torch.cat([theta, after]).numpy() - expected).max()))
        energies.append(abs(0.5 * float(after.square().sum()) - end - energy))
    for errors in (places, energies):
        assert errors[0] / errors[1] == pytest.approx(4.0, rel=0.1)
        assert errors[1] / errors[2] == pytest.approx(4.0, rel=0.1)
    theta, after, _, gradient = leapfrog(banana, START, MOMENTUM, banana(START)[1], 0.05, 40)
    assert not torch.allclose(theta, START, atol=0.1)
    back, reversed_momentum, _, _ = leapfrog(banana, theta, -after, gradient, 0.05, 40)
    torch.testing.assert_close(back, START, atol=1e-12, rtol=0)
    torch.testing.assert_close(-reversed_momentum, MOMENTUM, atol=1e-12, rtol=0)


def test_large_steps_are_corrected() -> None:
    """Steps near the limit of stability: without the Metropolis correction the variance would be far too large."""
    density = gaussian(torch.eye(1, dtype=DOUBLE), torch.zeros(1, dtype=DOUBLE))
    chain = chain_on(density, 1, trajectory=1.7, warmup=0, samples=2500, step_size=1.7)
    x = chain.sample()
    assert chain.record()["accepted"] < 0.95
    squares = x.square().numpy().T
    size = effective_sample_size(squares)
    assert size > 500
    assert squares.mean() == pytest.approx(1.0, abs=4 * math.sqrt(2 / size))


def test_the_step_size_is_adapted_to_the_target() -> None:
    sizes = []
    for target in (0.65, 0.95):
        # Many dimensions: with few, the acceptance jumps near the limit of stability.
        density = gaussian(torch.eye(60, dtype=DOUBLE), torch.zeros(60, dtype=DOUBLE))
        chain = chain_on(density, 60, trajectory=1.5, warmup=300, samples=400, target_acceptance=target)
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


def test_a_chain_that_only_diverges_ends_and_long_trajectories_are_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PartialFailure, match=r"smaller hmc\.step_size"):
        gaussian_chain(step_size=50.0).sample()
    monkeypatch.setattr(dynamics, "MAX_LEAPFROG_STEPS", 20)
    chain = gaussian_chain(step_size=0.01, warmup=1, samples=4)
    chain.sample()
    assert chain.record()["shortened"] == 4
    assert chain.record()["leapfrog_steps"] == 20


PRECISION = torch.tensor([[2.0, 0.8], [0.8, 1.0]], dtype=torch.float64)
CENTRE = torch.tensor([1.0, -0.5], dtype=torch.float64)


def exact(theta: Tensor) -> Tensor:
    """Gradient of the energy of a correlated Gaussian."""
    return PRECISION @ (theta - CENTRE)


def constant(size: float, steps: int, burn_in: int, **more: Any) -> SghmcConfig:
    """One cycle of steps of one size; those after ``burn_in`` are noisy and kept."""
    return cyclical(1, steps, burn_in / steps, steps - burn_in, lr=size, shape="constant", **more)


def cyclical(cycles: int, length: int, exploration: float, states: int, **more: Any) -> SghmcConfig:
    usual: dict[str, Any] = {"lr": 0.1, "momentum": 0.0, "effective_pixels": 1.0}
    settings = {"cycles": cycles, "cycle_steps": length, "exploration": exploration, "states_per_cycle": states}
    return SghmcConfig(**settings, **usual | more)  # type: ignore[arg-type]


def stationary(size: float, momentum: float, temperature: float) -> np.ndarray[Any, Any]:
    """Covariance of theta in the recursion of (theta, v), from the discrete Lyapunov equation."""
    eye, precision = np.eye(2), PRECISION.numpy()
    # v' = m v - h A theta + e and theta' = theta + v'
    step = np.block([[eye - size * precision, momentum * eye], [-size * precision, momentum * eye]])
    noise = 2 * (1 - momentum) * size * temperature * np.block([[eye, eye], [eye, eye]])
    return np.asarray(solve_discrete_lyapunov(step, noise)[:2, :2])


@pytest.mark.parametrize(("size", "momentum", "temperature"), [(0.1, 0.0, 1.0), (0.02, 0.8, 0.25)])
def test_langevin_has_mean_and_covariance_of_its_recursion(size: float, momentum: float, temperature: float) -> None:
    steps = 8_000
    settings = constant(size, steps, 200, momentum=momentum, temperature=temperature)
    x = sample_langevin(exact, CENTRE, settings, 0).numpy()
    expected = stationary(size, momentum, temperature)
    # Autocorrelation time of the slowest direction, in steps.
    slowest = float(np.linalg.eigvalsh(PRECISION.numpy())[0])
    independent = steps * slowest * size / (1 - momentum) / 2
    for i in range(2):
        assert x[:, i].mean() == pytest.approx(float(CENTRE[i]), abs=4 * math.sqrt(expected[i, i] / independent))
    error = np.sqrt((expected**2 + np.outer(np.diag(expected), np.diag(expected))) / independent)
    assert (np.abs(np.cov(x.T) - expected) < 4 * error).all()


def test_temperature_zero_and_exploration_have_no_noise() -> None:
    x = sample_langevin(exact, CENTRE + 1, constant(0.1, 400, 0, temperature=1e-30), 0)
    torch.testing.assert_close(x[-1], CENTRE, atol=1e-6, rtol=0)
    states: list[Tensor] = []

    def seen(theta: Tensor) -> Tensor:
        states.append(theta)
        return exact(theta)

    sample_langevin(seen, CENTRE, cyclical(2, 10, 0.5, 2), 0)
    assert all(torch.equal(state, CENTRE) for state in states[:6]), "at the mode, without noise, it stands"
    assert not any(torch.equal(state, CENTRE) for state in states[6:])


@given(cycles=st.integers(1, 4), length=st.integers(1, 40), exploration=st.floats(0, 0.95), states=st.integers(1, 40))
def test_every_cycle_keeps_its_number_of_states_and_its_last_one(
    cycles: int, length: int, exploration: float, states: int
) -> None:
    noisy = length - math.ceil(exploration * length)
    if states > noisy:
        with pytest.raises(InputError, match="noisy steps of a cycle"):
            cyclical(cycles, length, exploration, states)
        return
    settings = cyclical(cycles, length, exploration, states)
    kept = [settings.is_kept(step) for step in range(settings.total_steps)]
    assert all(settings.is_noisy(step) for step in range(settings.total_steps) if kept[step])
    for cycle in range(cycles):
        part = kept[cycle * length : (cycle + 1) * length]
        assert sum(part) == states
        assert part[-1]
        places = np.flatnonzero(part)
        assert np.ptp(np.diff(places)) <= 1 if states > 2 else True, "evenly spaced"


def test_the_cosine_of_a_cycle() -> None:
    settings = cyclical(2, 100, 0.5, 1, lr=0.4)
    assert settings.step_size(0) == settings.step_size(100) == 0.4
    assert settings.step_size(50) == pytest.approx(0.2)
    assert settings.step_size(99) == pytest.approx(0.2 * (math.cos(0.99 * math.pi) + 1))
    assert cyclical(2, 100, 0.5, 1, lr=0.4, shape="constant").step_size(99) == 0.4


def test_a_chain_that_breaks_says_where() -> None:
    slopes = iter([1.0] * 7 + [math.nan])
    with pytest.raises(PartialFailure, match="gradient became NaN or infinite at step 7"):
        sample_langevin(lambda theta: next(slopes) * exact(theta), CENTRE, constant(0.1, 20, 0), 0)
    with pytest.raises(PartialFailure, match=r"state became NaN or infinite .* lower the learning rate"):
        sample_langevin(exact, CENTRE, constant(1e6, 200, 0), 0)
    with pytest.raises(InputError, match="log density is nan"):
        chain_on(lambda theta: (math.nan, theta), 2, trajectory=1.0, warmup=0, samples=1)


def test_a_chain_is_decided_by_its_seed() -> None:
    for sample in (
        lambda seed: gaussian_chain(seed, warmup=10, samples=20).sample(),
        lambda seed: sample_langevin(exact, CENTRE, cyclical(2, 20, 0.3, 5), seed),
    ):
        assert torch.equal(sample(3), sample(3))
        assert not torch.allclose(sample(3), sample(4))


def test_finished_chains_are_not_run_again_and_one_that_fails_says_which(tmp_path: Path) -> None:
    last, started = tmp_path / "last.ckpt", list[int]()

    def sample(number: int, show: Show) -> tuple[Tensor, dict[str, float]]:
        started.append(number)
        if started == [0, 1]:
            raise PartialFailure("the gradient became NaN or infinite. Hint: lower the learning rate")
        return sample_langevin(exact, CENTRE, cyclical(2, 10, 0.3, 3), number, show), {"number": number}

    with pytest.raises(PartialFailure, match=r"chain 2 of 3 stopped: the gradient became NaN.*give another --out"):
        run_chains(sample, 3, last)
    states, records = run_chains(sample, 3, last, resume=True)
    assert started == [0, 1, 1, 2]
    assert states.shape == (3, 6, 2)
    assert records == [{"number": 0}, {"number": 1}, {"number": 2}]
    assert torch.equal(states[1], sample(1, lambda *_: None)[0].float())
