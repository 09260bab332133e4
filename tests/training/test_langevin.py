"""Langevin chains against the stationary covariance of their own recursion, and their schedule."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import solve_discrete_lyapunov
from torch import Tensor

from segunc.core.errors import InputError
from segunc.training.chains import ChainFailure, CyclicalSteps, EnergyGradient, LangevinChain

PRECISION = torch.tensor([[2.0, 0.8], [0.8, 1.0]], dtype=torch.float64)
MEAN = torch.tensor([1.0, -0.5], dtype=torch.float64)


def exact(theta: Tensor, step: int) -> Tensor:
    """Gradient of the energy of a correlated Gaussian."""
    return PRECISION @ (theta - MEAN)


def constant(size: float, steps: int, burn_in: int) -> CyclicalSteps:
    return CyclicalSteps(size, 1, steps, burn_in / steps, steps - burn_in, "constant")


def cosine(cycles: int, length: int, exploration: float, states: int, peak: float = 0.1) -> CyclicalSteps:
    return CyclicalSteps(peak, cycles, length, exploration, states, "cosine")


def chain_of(
    gradient: EnergyGradient,
    steps: CyclicalSteps,
    start: Tensor = MEAN,
    *,
    seed: int = 0,
    momentum: float = 0.0,
    temperature: float = 1.0,
) -> LangevinChain:
    return LangevinChain(gradient, start, steps, seed=seed, momentum=momentum, temperature=temperature)


def sample(chain: LangevinChain, steps: int | None = None) -> Tensor:
    """The states kept from so many of its steps, or all."""
    return torch.stack([chain.theta for _ in range(steps or chain.total - chain.step) if chain.advance()])


def run(gradient: EnergyGradient, steps: CyclicalSteps, start: Tensor = MEAN, **settings: Any) -> Tensor:
    return sample(chain_of(gradient, steps, start, **settings))


def stationary(size: float, momentum: float, temperature: float) -> np.ndarray[Any, Any]:
    """Covariance of theta in the recursion of (theta, v), from the discrete Lyapunov equation."""
    eye, precision = np.eye(2), PRECISION.numpy()
    # v' = m v - h A theta + e and theta' = theta + v'
    step = np.block([[eye - size * precision, momentum * eye], [-size * precision, momentum * eye]])
    noise = 2 * (1 - momentum) * size * temperature * np.block([[eye, eye], [eye, eye]])
    return np.asarray(solve_discrete_lyapunov(step, noise)[:2, :2])


@pytest.mark.parametrize(("size", "momentum", "temperature"), [(0.1, 0.0, 1.0), (0.02, 0.8, 0.25)])
def test_mean_and_covariance_of_a_gaussian(size: float, momentum: float, temperature: float) -> None:
    steps = 8_000
    x = run(exact, constant(size, steps, 200), momentum=momentum, temperature=temperature).numpy()
    expected = stationary(size, momentum, temperature)
    # Autocorrelation time of the slowest direction, in steps.
    slowest = float(np.linalg.eigvalsh(PRECISION.numpy())[0])
    independent = steps * slowest * size / (1 - momentum) / 2
    for i in range(2):
        assert x[:, i].mean() == pytest.approx(float(MEAN[i]), abs=4 * math.sqrt(expected[i, i] / independent))
    error = np.sqrt((expected**2 + np.outer(np.diag(expected), np.diag(expected))) / independent)
    assert (np.abs(np.cov(x.T) - expected) < 4 * error).all()


def test_noise_of_the_gradient_adds_to_the_temperature_as_computed() -> None:
    """SGLD on N(0, 1) with gradient noise of variance s^2: variance (2 h + h^2 s^2) / (1 - (1 - h)^2)."""
    noise = np.random.default_rng(0).normal(size=8_000)
    size, spread = 0.1, 3.0
    steps = constant(size, 8_000, 100)
    zero = torch.zeros(1, dtype=torch.float64)
    x = run(lambda theta, step: theta + spread * float(noise[step]), steps, zero)
    expected = (2 * size + (size * spread) ** 2) / (1 - (1 - size) ** 2)
    assert float(x.var()) == pytest.approx(expected, rel=4 * math.sqrt(2 / (8_000 * size / 2)))


def test_temperature_zero_and_exploration_have_no_noise() -> None:
    x = run(exact, constant(0.1, 400, 0), MEAN + 1, temperature=0.0)
    torch.testing.assert_close(x[-1], MEAN, atol=1e-6, rtol=0)
    chain = chain_of(exact, cosine(2, 10, 0.5, 2))
    states = []
    for _ in range(20):
        chain.advance()
        states.append(chain.theta)
    assert all(torch.equal(state, MEAN) for state in states[:5]), "at the mode, without noise, it stands"
    assert not any(torch.equal(state, MEAN) for state in states[5:])


@given(cycles=st.integers(1, 4), length=st.integers(1, 40), exploration=st.floats(0, 0.95), states=st.integers(1, 40))
def test_every_cycle_keeps_its_number_of_states_and_its_last_one(
    cycles: int, length: int, exploration: float, states: int
) -> None:
    noisy = length - math.ceil(exploration * length)
    if states > noisy:
        with pytest.raises(InputError):
            cosine(cycles, length, exploration, states)
        return
    steps = cosine(cycles, length, exploration, states)
    kept = [steps.kept(step) for step in range(steps.total)]
    assert all(steps.noisy(step) for step in range(steps.total) if kept[step])
    for cycle in range(cycles):
        part = kept[cycle * length : (cycle + 1) * length]
        assert sum(part) == states
        assert part[-1]
        places = np.flatnonzero(part)
        assert np.ptp(np.diff(places)) <= 1 if states > 2 else True, "evenly spaced"


def test_the_cosine_of_a_cycle() -> None:
    steps = cosine(2, 100, 0.5, 1, peak=0.4)
    assert steps.size(0) == steps.size(100) == 0.4
    assert steps.size(50) == pytest.approx(0.2)
    assert steps.size(99) == pytest.approx(0.2 * (math.cos(0.99 * math.pi) + 1))
    assert CyclicalSteps(0.4, 2, 100, 0.5, 1, "constant").size(99) == 0.4


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_continued_chain_is_the_same_chain(momentum: float) -> None:
    steps = cosine(2, 20, 0.3, 5, peak=0.05)
    chain = chain_of(exact, steps, seed=3, momentum=momentum)
    first = sample(chain, 24)
    continued = chain_of(exact, steps, seed=3, momentum=momentum)
    continued.load_state_dict(chain.state_dict())
    assert torch.equal(torch.cat([first, sample(continued)]), run(exact, steps, seed=3, momentum=momentum))
    assert not torch.equal(first, run(exact, steps, seed=4, momentum=momentum)[: len(first)])


def test_a_chain_that_breaks_stays_in_its_last_good_state() -> None:
    def breaks(theta: Tensor, step: int) -> Tensor:
        return exact(theta, step) * (math.nan if step == 7 else 1.0)

    chain = chain_of(breaks, constant(0.1, 20, 0))
    with pytest.raises(ChainFailure, match="gradient became NaN"):
        sample(chain)
    assert chain.step == 7
    assert torch.isfinite(chain.theta).all()
    with pytest.raises(ChainFailure, match="state became NaN or infinite; lower the learning rate"):
        run(exact, constant(1e6, 200, 0))


@pytest.mark.parametrize("settings", [{"momentum": 1.0}, {"momentum": -0.1}, {"temperature": -1.0}])
def test_bad_settings(settings: dict[str, float]) -> None:
    with pytest.raises(InputError):
        chain_of(exact, constant(0.1, 10, 0), **settings)
