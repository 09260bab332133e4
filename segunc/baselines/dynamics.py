"""Sampling a density over parameters: Langevin dynamics with cyclical steps from noisy gradients. Random numbers depend on (seed, step) alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from segunc.affine.noise import draw_noise
from segunc.affine.posterior import Prior
from segunc.core.bounds import BelowOne, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Settings
from segunc.core.errors import InputError, PartialFailure

EnergyGradient = Callable[[Tensor], Tensor]
"""theta ``[D]`` -> an unbiased estimate ``[D]`` of the gradient of the energy -log p (at T = 1)."""
Show = Callable[[int, int, str], object]
"""Receives the steps done, the steps of the chain, and its state in a few words."""


@dataclass(frozen=True)
class SgldConfig(Settings):
    """How SGLD runs: steps in cycles. A cycle begins with large steps that explore, and ends with the states that are kept.

    The cosine of Zhang et al. 2020 (cSG-MCMC, arXiv 1902.03932, equation 1 and section 3):
    ``step = peak / 2 (cos(pi r) + 1)``, r = share of the cycle that is done; noise only where r is at least ``exploration``.

    Args:
        scope: normalisation layers whose affine parameters move: all, encoder, decoder, last:N, every:N or a regular expression.
        effective_pixels: N_eff, how many independent pixels the training set counts for.
        prior_scale: s of the Gaussian prior N(theta; theta_base, s^2) on the affine parameters.
        temperature: T of the posterior; below 1 it is a cold one.
        frames: training frames that are the data, evenly spaced (0: all).
        chains: number of chains, run one after the other.
        start_spread: standard deviation of the starts around the trained values, in units of the prior's; 0 starts at them.
        seed: of everything random.
        lr: largest step of the mean-pixel loss, as in a training by SGD; the step of the dynamics is lr / N_eff. States are independent
            after about N_eff s^2 / lr steps where the data say little: take lr as large as stays stable.
        cycles: number of cycles.
        cycle_steps: steps of one cycle.
        exploration: share of a cycle that descends without noise, 0..1 (1 excluded).
        states_per_cycle: states kept from each cycle, evenly spaced over its noisy part.
        shape: cosine lets the steps of a cycle fall to 0, constant keeps them.
    """

    section = "sgld"
    momentum: ClassVar[float] = 0.0
    scope: str = "all"
    effective_pixels: PositiveFloat = Prior.effective_pixels
    prior_scale: PositiveFloat = Prior.scale
    temperature: PositiveFloat = Prior.temperature
    frames: NonNegativeInt = 0
    chains: PositiveInt = 1
    start_spread: NonNegativeFloat = 0.0
    seed: NonNegativeInt = 0
    lr: PositiveFloat = 0.02
    cycles: PositiveInt = 4
    cycle_steps: PositiveInt = 200
    exploration: BelowOne = 0.5
    states_per_cycle: PositiveInt = 6
    shape: Literal["cosine", "constant"] = "cosine"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.states_per_cycle > (noisy := self.cycle_steps - self._first_noisy):
            message = f"states_per_cycle {self.states_per_cycle} is more than the {noisy} noisy steps of a cycle"
            raise InputError(message, hint="raise cycle_steps, or lower exploration")

    def prior(self) -> Prior:
        return Prior(self.prior_scale, self.effective_pixels, temperature=self.temperature)

    @property
    def total_steps(self) -> int:
        return self.cycles * self.cycle_steps

    @property
    def _first_noisy(self) -> int:
        return math.ceil(self.exploration * self.cycle_steps)

    def step_size(self, step: int) -> float:
        peak = self.lr / self.effective_pixels
        if self.shape == "constant":
            return peak
        return 0.5 * peak * (math.cos(math.pi * (step % self.cycle_steps) / self.cycle_steps) + 1.0)

    def is_noisy(self, step: int) -> bool:
        return step % self.cycle_steps >= self._first_noisy

    def is_kept(self, step: int) -> bool:
        """Return whether the state after a step belongs to the sample."""
        noisy_steps = self.cycle_steps - self._first_noisy
        noisy_done = step % self.cycle_steps - self._first_noisy + 1
        # The j-th kept state of a cycle is that of its noisy step number ceil(j noisy_steps / states), j = 1..states.
        states = self.states_per_cycle
        return noisy_done > 0 and noisy_done * states // noisy_steps > (noisy_done - 1) * states // noisy_steps


@dataclass(frozen=True)
class SghmcConfig(SgldConfig):
    """How SGHMC runs: as SGLD, with a momentum.

    Args:
        momentum: share of the velocity that is kept from step to step, 0..1 (1 excluded); 0 is SGLD.
    """

    section = "sghmc"
    lr: PositiveFloat = 0.01
    momentum: BelowOne = 0.9  # type: ignore[misc]  # a setting here, 0 for SGLD


def sample_langevin(gradient: EnergyGradient, start: Tensor, settings: SgldConfig, seed: int, show: Show = lambda *_: None) -> Tensor:
    """Run one chain of SGHMC, or of SGLD where the momentum is 0, and return its states ``[K, D]``; PartialFailure where it breaks.

    With step size h, momentum decay m and temperature T::

        v <- m v - h g(theta) + sqrt(2 (1 - m) h T) eps,   theta <- theta + v

    SGHMC (Chen, Fox & Guestrin 2014, equation 15 with their estimate of the gradient noise set to 0) in the form of Zhang et al. 2020;
    m = 0 is SGLD (Welling & Teh 2011, equation 4 with their step 2 h). Small steps sample exp(-energy / T); the noise of g adds
    to the temperature in proportion to h. There is no preconditioner.
    """
    theta, velocity, momentum = start, torch.zeros_like(start), settings.momentum
    states = []
    for step in range(settings.total_steps):
        size, noisy = settings.step_size(step), settings.is_noisy(step)
        slope = gradient(theta)
        velocity = momentum * velocity - size * slope
        if noisy:
            scale = math.sqrt(2.0 * (1.0 - momentum) * size * settings.temperature)
            velocity = velocity + scale * draw_noise(seed, [step], len(theta))[0].to(velocity)
        theta = theta + velocity
        if not bool(torch.isfinite(theta).all()):
            what = "state" if bool(torch.isfinite(slope).all()) else "gradient"
            raise PartialFailure(f"the {what} became NaN or infinite at step {step}. Hint: lower the learning rate")
        if settings.is_kept(step):
            states.append(theta)
        phase = "sampling" if noisy else "exploring"
        show(step + 1, settings.total_steps, f"cycle {step // settings.cycle_steps + 1}/{settings.cycles}, {phase}")
    return torch.stack(states)
