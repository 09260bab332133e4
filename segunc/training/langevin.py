"""Stochastic-gradient Langevin and Hamiltonian dynamics with cyclical steps, over any energy with noisy gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from segunc.affine.noise import draw_noise
from segunc.core.errors import InputError
from segunc.training.chain_run import Chain, ChainFailure

EnergyGradient = Callable[[Tensor, int], Tensor]
"""theta ``[D]`` and the step -> an unbiased estimate ``[D]`` of the gradient of the energy -log p (at T = 1)."""


@dataclass(frozen=True)
class CyclicalSteps:
    """Steps of a chain in cycles: each begins with large steps that explore, and ends with the states that are kept.

    The cosine of Zhang et al. 2020 (cSG-MCMC, arXiv 1902.03932, equation 1 and section 3):
    ``step = peak / 2 (cos(pi r) + 1)``, r = share of the cycle that is done; noise only where r is at least
    ``exploration``. ``constant`` keeps the peak.

    Attributes:
        peak: largest step size.
        cycles, length: how many, and steps of one.
        exploration: share of a cycle that descends without noise, 0..1.
        states: states kept from each cycle, evenly spaced over its noisy part, its last one among them.
    """

    peak: float
    cycles: int
    length: int
    exploration: float
    states: int
    shape: Literal["cosine", "constant"]

    def __post_init__(self) -> None:
        if not (self.peak > 0 and 0 <= self.exploration < 1 and min(self.cycles, self.length, self.states) >= 1):
            given = f"{self}"
            raise InputError(given, "positive numbers, exploration in 0..1 (1 excluded)", "repair the configuration")
        if self.states > self.length - self._first_noisy:
            given = f"{self.states} states from the {self.length - self._first_noisy} noisy steps of a cycle"
            raise InputError(given, "at most one a step", "raise cycle_steps, or lower exploration or states_per_cycle")

    @property
    def total(self) -> int:
        return self.cycles * self.length

    @property
    def _first_noisy(self) -> int:
        return math.ceil(self.exploration * self.length)

    def size(self, step: int) -> float:
        """The step size of a step, counted from 0."""
        if self.shape == "constant":
            return self.peak
        return 0.5 * self.peak * (math.cos(math.pi * (step % self.length) / self.length) + 1.0)

    def noisy(self, step: int) -> bool:
        """Whether a step adds noise."""
        return step % self.length >= self._first_noisy

    def kept(self, step: int) -> bool:
        """Whether the state after a step belongs to the sample."""
        inside, noisy = step % self.length - self._first_noisy + 1, self.length - self._first_noisy
        # The j-th kept state of a cycle is the noisy step number ceil(j noisy / states), j = 1..states.
        return inside > 0 and inside * self.states // noisy > (inside - 1) * self.states // noisy


class LangevinChain(Chain):
    """One chain of SGHMC, or of SGLD where ``momentum`` is 0.

    With step size h, momentum decay m and temperature T::

        v <- m v - h g(theta) + sqrt(2 (1 - m) h T) eps,   theta <- theta + v

    SGHMC (Chen, Fox & Guestrin 2014, equation 15 with their estimate of the gradient noise set to 0) in the form of Zhang et al. 2020;
    m = 0 is SGLD (Welling & Teh 2011, equation 4 with their step 2 h). Small steps sample exp(-energy / T); the noise of g adds
    to the temperature in proportion to h. There is no preconditioner.

    Args:
        gradient: see :data:`EnergyGradient`.
        start: ``[D]``.
        steps: sizes and cycles.
        seed: of this chain's noise.
        momentum: m in 0..1 (1 excluded).
        temperature: T, at least 0; 0 adds no noise at all.

    Raises:
        InputError: a momentum or temperature out of its range.
    """

    def __init__(
        self,
        gradient: EnergyGradient,
        start: Tensor,
        steps: CyclicalSteps,
        *,
        seed: int,
        momentum: float,
        temperature: float,
    ) -> None:
        if not (0 <= momentum < 1 and temperature >= 0):
            raise InputError(
                f"momentum {momentum}, temperature {temperature}",
                "momentum in 0..1 (1 excluded) and a temperature of at least 0",
                "repair the configuration",
            )
        self._gradient, self._steps, self._seed = gradient, steps, seed
        self._momentum, self._temperature = momentum, temperature
        self.theta, self._velocity = start, torch.zeros_like(start)
        self.total, self.step = steps.total, 0

    def advance(self) -> bool:
        size = self._steps.size(self.step)
        gradient = self._gradient(self.theta, self.step)
        velocity = self._momentum * self._velocity - size * gradient
        if self._steps.noisy(self.step):
            scale = math.sqrt(2.0 * (1.0 - self._momentum) * size * self._temperature)
            noise = draw_noise(self._seed, [self.step], len(self.theta))[0]
            velocity = velocity + scale * noise.to(velocity)
        theta = self.theta + velocity
        if not bool(torch.isfinite(theta).all()):
            what = "state" if bool(torch.isfinite(gradient).all()) else "gradient"
            raise ChainFailure(f"the {what} became NaN or infinite", "lower the learning rate")
        self.theta, self._velocity = theta, velocity
        self.step += 1
        return self._steps.kept(self.step - 1)

    def describe(self) -> str:
        step = max(self.step - 1, 0)
        phase = "sampling" if self._steps.noisy(step) else "exploring"
        return f"cycle {step // self._steps.length + 1}/{self._steps.cycles}, {phase}"

    def state_dict(self) -> dict[str, Any]:
        return {"theta": self.theta, "velocity": self._velocity, "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.theta, self._velocity = state["theta"].to(self.theta), state["velocity"].to(self.theta)
        self.step = state["step"]
