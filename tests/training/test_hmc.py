"""Hamiltonian Monte Carlo against closed forms, an integrator and quadrature of SciPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp, trapezoid
from torch import Tensor

from segunc.core.errors import InputError
from segunc.metrics.chains import effective_sample_size, rank_normalised_rhat
from segunc.training.chains import ChainFailure, HamiltonianChain, LogDensity, leapfrog

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


def run(chain: HamiltonianChain) -> Tensor:
    """The sample ``[K, D]`` of a chain."""
    kept = []
    while chain.step < chain.total:
        if chain.advance():
            kept.append(chain.theta)
    return torch.stack(kept)


def chain_on(density: LogDensity, dimensions: int, **settings: Any) -> HamiltonianChain:
    """From 0, with the settings that ``segunc finetune`` has."""
    usual: dict[str, Any] = {"seed": 0, "step": None, "target": 0.8, "jitter": 0.1, "max_steps": 1000}
    return HamiltonianChain(density, torch.zeros(dimensions, dtype=DOUBLE), **usual | settings)


def gaussian_chain(seed: int = 0, **settings: Any) -> HamiltonianChain:
    options = {"trajectory": math.pi, "warmup": 100, "total": 1000, **settings}
    return chain_on(gaussian(covariance(), MEAN), 5, seed=seed, **options)


def test_mean_and_covariance_of_a_correlated_gaussian() -> None:
    chains = [run(gaussian_chain(seed)) for seed in range(3)]
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


def test_moments_of_a_curved_density_against_quadrature() -> None:
    grid_x, grid_y = np.linspace(-6, 6, 1201), np.linspace(-4, 36, 2001)
    p = np.exp(-0.5 * grid_x[:, None] ** 2 - 0.5 * ((grid_y - grid_x[:, None] ** 2) / 0.5) ** 2)
    total = trapezoid(trapezoid(p, grid_y), grid_x)
    expected = trapezoid(trapezoid(p * grid_y, grid_y), grid_x) / total
    chain = chain_on(banana, 2, seed=1, trajectory=1.5, warmup=150, total=2650, target=0.9)
    x = run(chain).numpy()
    size = effective_sample_size(x[None, :, 1])
    assert size > 150
    assert x[:, 1].mean() == pytest.approx(expected, abs=4 * x[:, 1].std() / math.sqrt(size))
    assert abs(x[:, 0].mean()) < 4 / math.sqrt(effective_sample_size(x[None, :, 0]))


START, MOMENTUM = torch.tensor([0.5, 0.3], dtype=DOUBLE), torch.tensor([0.4, -0.7], dtype=DOUBLE)


def test_leapfrog_follows_the_flow_with_an_error_of_second_order() -> None:
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


def test_leapfrog_is_reversible() -> None:
    theta, after, _, gradient = leapfrog(banana, START, MOMENTUM, banana(START)[1], 0.05, 40)
    assert not torch.allclose(theta, START, atol=0.1)
    back, reversed_momentum, _, _ = leapfrog(banana, theta, -after, gradient, 0.05, 40)
    torch.testing.assert_close(back, START, atol=1e-12, rtol=0)
    torch.testing.assert_close(-reversed_momentum, MOMENTUM, atol=1e-12, rtol=0)


def test_large_steps_are_corrected() -> None:
    """Steps near the limit of stability: without the Metropolis correction the variance would be far too large."""
    density = gaussian(torch.eye(1, dtype=DOUBLE), torch.zeros(1, dtype=DOUBLE))
    chain = chain_on(density, 1, trajectory=1.7, warmup=0, total=2500, step=1.7, jitter=0.05)
    x = run(chain)
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
        chain = chain_on(density, 60, trajectory=1.5, warmup=300, total=700, target=target)
        run(chain)
        record = chain.record()
        assert record["acceptance"] == pytest.approx(target, abs=0.06)
        assert record["leapfrog_steps"] == pytest.approx(1.5 / record["step_size"], abs=1.0)
        sizes.append(record["step_size"])
    assert sizes[0] > 1.3 * sizes[1]


@pytest.mark.parametrize("stop", [3, 17])
def test_a_continued_chain_is_the_same_chain(stop: int) -> None:
    """Stopped in the warm-up and after it."""
    whole = run(gaussian_chain(warmup=10, total=30))
    chain = gaussian_chain(warmup=10, total=30)
    kept = [chain.theta for _ in range(stop) if chain.advance()]
    continued = gaussian_chain(warmup=10, total=30)
    continued.load_state_dict(chain.state_dict())
    assert torch.equal(torch.stack([*kept, *run(continued)]), whole)
    assert not torch.allclose(run(gaussian_chain(1, warmup=10, total=30)), whole), "another seed, another chain"


def test_divergent_trajectories_are_rejected_and_counted() -> None:
    def cliff(theta: Tensor) -> tuple[float, Tensor]:
        value, gradient = gaussian(torch.eye(1, dtype=DOUBLE), torch.zeros(1, dtype=DOUBLE))(theta)
        return (math.nan, gradient) if float(theta[0]) > 1 else (value, gradient)

    chain = chain_on(cliff, 1, trajectory=1.5, warmup=20, total=1020, step=0.2)
    x = run(chain)
    record = chain.record()
    assert float(x.max()) <= 1
    assert record["divergences"] > 50
    assert record["accepted"] + record["divergences"] / 1000 == pytest.approx(1.0, abs=0.02)
    # What is left is the Gaussian cut off at 1, whose mean is -phi(1) / Phi(1).
    assert float(x.mean()) == pytest.approx(-0.2876, abs=0.12)


def test_a_chain_that_only_diverges_ends_with_the_remedy() -> None:
    chain = gaussian_chain(step=50.0)
    with pytest.raises(ChainFailure, match=r"lower hmc\.step_size"):
        run(chain)
    assert torch.equal(chain.theta, torch.zeros(5, dtype=DOUBLE)), "it never left its start"
    assert torch.isfinite(chain.theta).all()


def test_long_trajectories_are_cut_short_and_counted() -> None:
    chain = gaussian_chain(step=0.01, warmup=1, total=5, max_steps=20)
    run(chain)
    assert chain.record()["shortened"] == 4
    assert chain.record()["leapfrog_steps"] == 20


@pytest.mark.parametrize(
    "settings",
    [{"trajectory": 0.0}, {"target": 1.0}, {"jitter": 1.0}, {"step": -1.0}, {"warmup": 1000}, {"max_steps": 0}],
)
def test_bad_settings(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        gaussian_chain(**settings)


def test_a_start_without_a_density_is_an_error() -> None:
    with pytest.raises(InputError, match="log density is nan"):
        chain_on(lambda theta: (math.nan, theta), 2, trajectory=1.0, warmup=0, total=1)
