"""Sampling a density over parameters: Langevin dynamics with cyclical steps from noisy gradients,
and Hamiltonian Monte Carlo with Metropolis correction from exact ones (Neal 2011, arXiv 1206.1901).
Random numbers depend on (seed, step) alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from segunc.affine.noise import draw_noise, draw_uniform, mix_seed
from segunc.affine.posterior import Prior
from segunc.core.bounds import (
    BelowOne,
    Bound,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)
from segunc.core.errors import InputError, PartialFailure
from segunc.posteriors.settings import MethodSettings

EnergyGradient = Callable[[Tensor], Tensor]
"""theta ``[D]`` -> an unbiased estimate ``[D]`` of the gradient of the energy -log p (at T = 1)."""
LogDensity = Callable[[Tensor], tuple[float, Tensor]]
"""theta ``[D]`` -> log density up to a constant, and its gradient ``[D]``; NaN where it is not
defined.
"""
Show = Callable[[int, int, str], object]
"""Receives the steps done, the steps of the chain, and its state in a few words."""
MAX_ENERGY_ERROR = 1000.0  # a trajectory with a larger error counts as divergent (as in Stan)
MAX_DIVERGENCES_IN_A_ROW = 20
MAX_LEAPFROG_STEPS = 1000  # a trajectory that needs more is cut short
# The step size of each trajectory is uniform within this share around the adapted one.
STEP_JITTER = 0.1
# What the record of a chain of HMC says of its samples: means, and numbers of trajectories.
MEANS = ("acceptance", "accepted", "leapfrog_steps")
NUMBERS = ("divergences", "warmup_divergences", "shortened")
_MOMENTUM_STREAM, _CHOICE_STREAM, _FIRST_STEP_STREAM = range(3)


@dataclass(frozen=True)
class ChainConfig(MethodSettings):
    """Settings of all chains: the posterior that they sample, and where they start.

    Args:
        scope: normalisation layers whose affine parameters are sampled: all, encoder, decoder,
            last:N, every:N or a regular expression.
        effective_pixels: N_eff, the number of independent pixels that the training set counts for.
        prior_scale: standard deviation s of the Gaussian prior N(theta; theta_base, s^2) on the
            affine parameters.
        temperature: temperature T of the posterior; a T below 1 gives a cold posterior.
        frames: number of evenly spaced training frames that the chains use as their data (0: all).
        chains: number of chains, run one after the other.
        start_spread: standard deviation of the starts around the trained values, in units of the
            prior's standard deviation; 0 starts at the trained values.
        seed: random seed of everything that is random.
    """

    scope: str = "all"
    effective_pixels: PositiveFloat = Prior.effective_pixels
    prior_scale: PositiveFloat = Prior.scale
    temperature: PositiveFloat = Prior.temperature
    frames: NonNegativeInt = 0
    chains: PositiveInt = 1
    start_spread: NonNegativeFloat = 0.0
    seed: NonNegativeInt = 0

    uses_trainer: ClassVar[bool] = False  # a chain does not run in Lightning's

    def prior(self) -> Prior:
        return Prior(self.prior_scale, self.effective_pixels, temperature=self.temperature)


@dataclass(frozen=True)
class SGLD(ChainConfig):
    """How SGLD runs: steps in cycles. A cycle begins with large steps that explore, and ends with
    the states that are kept.

    The cosine of Zhang et al. 2020 (cSG-MCMC, arXiv 1902.03932, equation 1 and section 3): ``step =
    peak / 2 (cos(pi r) + 1)``, r = share of the cycle that is done; noise only where r is at least
    ``exploration``.

    Args:
        lr: largest learning rate, for the mean-pixel loss, as in a training by SGD; the step of the
            dynamics is lr / N_eff. If the data say little, states are independent after about N_eff
            s^2 / lr steps. So choose the largest lr that stays stable.
        cycles: number of cycles.
        cycle_steps: steps of one cycle.
        exploration: share of a cycle that descends without noise, 0..1 (1 excluded).
        states_per_cycle: states kept from each cycle, evenly spaced over its noisy part.
        shape: schedule of the steps of a cycle: cosine lets them fall to 0, constant keeps them.

    >>> import torch
    >>> import segunc
    >>> _ = torch.manual_seed(0)
    >>> first = torch.nn.Conv2d(3, 4, 3, padding=1)
    >>> net = torch.nn.Sequential(first, torch.nn.BatchNorm2d(4), torch.nn.Conv2d(4, 2, 1))
    >>> base = segunc.wrap(net, ("road", "other"))
    >>> images = torch.rand(4, 3, 64, 64)
    >>> labels = (images.mean(1) > 0.5).long()
    >>> batches = [(images[:2], labels[:2]), (images[2:], labels[2:])]
    >>> model = segunc.SGLD(cycles=1, cycle_steps=8, states_per_cycle=2).fit(base, batches)
    >>> model.posterior.method
    'sgld'
    """

    section = "sgld"
    method = "sgld"
    momentum: ClassVar[float] = 0.0
    lr: PositiveFloat = 0.02
    cycles: PositiveInt = 4
    cycle_steps: PositiveInt = 200
    exploration: BelowOne = 0.5
    states_per_cycle: PositiveInt = 6
    shape: Literal["cosine", "constant"] = "cosine"

    def __post_init__(self) -> None:
        super().__post_init__()
        noisy_steps = self.cycle_steps - self._first_noisy
        if self.states_per_cycle > noisy_steps:
            raise InputError(
                f"states_per_cycle {self.states_per_cycle} is more than the {noisy_steps} noisy "
                "steps of a cycle",
                hint="raise cycle_steps, or lower exploration",
            )

    @property
    def total_steps(self) -> int:
        return self.cycles * self.cycle_steps

    @property
    def _first_noisy(self) -> int:
        return math.ceil(self.exploration * self.cycle_steps)

    def step_size(self, step: int) -> float:
        """Return the size of a step."""
        peak = self.lr / self.effective_pixels
        if self.shape == "constant":
            return peak
        return 0.5 * peak * (math.cos(math.pi * (step % self.cycle_steps) / self.cycle_steps) + 1.0)

    def is_noisy(self, step: int) -> bool:
        """Return whether noise is added in a step."""
        return step % self.cycle_steps >= self._first_noisy

    def is_kept(self, step: int) -> bool:
        """Return whether the state after a step belongs to the sample."""
        noisy_steps = self.cycle_steps - self._first_noisy
        noisy_done = step % self.cycle_steps - self._first_noisy + 1
        if noisy_done <= 0:
            return False
        # The j-th kept state of a cycle is that of its noisy step number ceil(j noisy_steps /
        # states), j = 1..states.
        states = self.states_per_cycle
        return noisy_done * states // noisy_steps > (noisy_done - 1) * states // noisy_steps


@dataclass(frozen=True)
class SGHMC(SGLD):
    """How SGHMC runs. It is SGLD with momentum.

    Args:
        momentum: share of the velocity that is kept from step to step, 0..1 (1 excluded); 0 is
            SGLD.

    >>> import torch
    >>> import segunc
    >>> _ = torch.manual_seed(0)
    >>> first = torch.nn.Conv2d(3, 4, 3, padding=1)
    >>> net = torch.nn.Sequential(first, torch.nn.BatchNorm2d(4), torch.nn.Conv2d(4, 2, 1))
    >>> base = segunc.wrap(net, ("road", "other"))
    >>> images = torch.rand(4, 3, 64, 64)
    >>> labels = (images.mean(1) > 0.5).long()
    >>> batches = [(images[:2], labels[:2]), (images[2:], labels[2:])]
    >>> model = segunc.SGHMC(cycles=1, cycle_steps=8, states_per_cycle=2).fit(base, batches)
    >>> model.posterior.method
    'sghmc'
    """

    section = "sghmc"
    method = "sghmc"
    lr: PositiveFloat = 0.01
    momentum: BelowOne = 0.9  # type: ignore[misc]  # a setting here, 0 for SGLD


def sample_langevin(
    gradient: EnergyGradient,
    start: Tensor,
    settings: SGLD,
    seed: int,
    show: Show = lambda *_: None,
) -> Tensor:
    """Run one chain of SGHMC, or of SGLD where the momentum is 0, and return its states ``[K, D]``;
    PartialFailure where it breaks.

    With step size h, momentum decay m and temperature T::

        v <- m v - h g(theta) + sqrt(2 (1 - m) h T) eps,   theta <- theta + v

    SGHMC (Chen, Fox & Guestrin 2014, equation 15 with their estimate of the gradient noise set to
    0) in the form of Zhang et al. 2020; m = 0 is SGLD (Welling & Teh 2011, equation 4 with their
    step 2 h). Small steps sample exp(-energy / T); the noise of g adds to the temperature in
    proportion to h. There is no preconditioner.
    """
    momentum = settings.momentum
    theta = start
    velocity = torch.zeros_like(start)
    states = []
    for step in range(settings.total_steps):
        size = settings.step_size(step)
        noisy = settings.is_noisy(step)
        slope = gradient(theta)
        velocity = momentum * velocity - size * slope
        if noisy:
            scale = math.sqrt(2.0 * (1.0 - momentum) * size * settings.temperature)
            velocity = velocity + scale * draw_noise(seed, [step], len(theta))[0].to(velocity)
        theta = theta + velocity
        if not bool(torch.isfinite(theta).all()):
            broken = "state" if bool(torch.isfinite(slope).all()) else "gradient"
            raise PartialFailure(
                f"the {broken} became NaN or infinite at step {step}. Hint: lower the learning rate"
            )
        if settings.is_kept(step):
            states.append(theta)
        cycle = step // settings.cycle_steps + 1
        phase = "sampling" if noisy else "exploring"
        show(step + 1, settings.total_steps, f"cycle {cycle}/{settings.cycles}, {phase}")
    return torch.stack(states)


@dataclass(frozen=True)
class HMC(ChainConfig):
    """How HMC runs. Every step uses all training frames.

    Args:
        samples: number of states that are kept from each chain, one after each trajectory.
        warmup: number of trajectories before the first kept state; they adapt the step size.
        trajectory: length of a trajectory; none takes pi s sqrt(T) / 2 with the scale s of the
            prior.
        step_size: step size of the leapfrog integrator; none adapts it during the warm-up.
        target_acceptance: acceptance probability that the adaptation of the step size aims at,
            0..1.

    >>> import torch
    >>> import segunc
    >>> _ = torch.manual_seed(0)
    >>> first = torch.nn.Conv2d(3, 4, 3, padding=1)
    >>> net = torch.nn.Sequential(first, torch.nn.BatchNorm2d(4), torch.nn.Conv2d(4, 2, 1))
    >>> base = segunc.wrap(net, ("road", "other"))
    >>> images = torch.rand(4, 3, 64, 64)
    >>> labels = (images.mean(1) > 0.5).long()
    >>> batches = [(images[:2], labels[:2]), (images[2:], labels[2:])]
    >>> model = segunc.HMC(samples=2, warmup=1, trajectory=0.001).fit(base, batches)
    >>> model.posterior.method
    'hmc'
    """

    section = "hmc"
    method = "hmc"
    chains: PositiveInt = 2
    start_spread: NonNegativeFloat = 1.0
    samples: PositiveInt = 50
    warmup: NonNegativeInt = 30
    trajectory: PositiveFloat | None = None
    step_size: PositiveFloat | None = None
    target_acceptance: Annotated[float, Bound(above=0, below=1)] = 0.8


class StepSizeAdaptation:
    """Dual averaging of the acceptance towards a target, 0..1, from a first step size (Hoffman &
    Gelman 2014, section 3.2).
    """

    def __init__(self, first: float, target: float) -> None:
        self.first = first
        self.target = target
        self.updates = 0
        self.mean_error = 0.0
        self.log_average = 0.0

    def update(self, acceptance: float) -> float:
        """Return the next step size of the warm-up, after a trajectory with this acceptance
        probability.
        """
        self.updates += 1
        share = 1.0 / (self.updates + 10.0)
        self.mean_error += share * (self.target - acceptance - self.mean_error)
        log_step = math.log(10.0 * self.first) - math.sqrt(self.updates) / 0.05 * self.mean_error
        self.log_average += self.updates**-0.75 * (log_step - self.log_average)
        return math.exp(log_step)


class PhasePoint(NamedTuple):
    """A state of the Hamiltonian flow, and the density there."""

    theta: Tensor  # [D]
    momentum: Tensor  # [D]
    value: float  # log density
    gradient: Tensor  # [D], of the log density


def leapfrog(
    log_density: LogDensity,
    theta: Tensor,
    momentum: Tensor,
    gradient: Tensor,
    step: float,
    steps: int,
) -> PhasePoint:
    """Follow the Hamiltonian flow with unit masses and return its end: reversible,
    volume-preserving, energy error O(step^2).

    A log density or gradient that is not finite ends the trajectory early, with the value NaN.
    """
    momentum = momentum + 0.5 * step * gradient
    for index in range(steps):
        theta = theta + step * momentum
        value, gradient = log_density(theta)
        if not (math.isfinite(value) and bool(torch.isfinite(gradient).all())):
            return PhasePoint(theta, momentum, math.nan, gradient)
        share = 0.5 if index == steps - 1 else 1.0
        momentum = momentum + share * step * gradient
    return PhasePoint(theta, momentum, value, gradient)


class HamiltonianChain:
    """One chain of Hamiltonian Monte Carlo with unit masses.

    Step sizes vary a little, so that no period of the density fits the trajectory (Neal 2011,
    section 3.2). The length of a trajectory, pi s / 2 with the prior's s, is enough for any
    narrower posterior (Izmailov et al. 2021).
    """

    def __init__(self, log_density: LogDensity, start: Tensor, settings: HMC, seed: int) -> None:
        self.log_density = log_density
        self.settings = settings
        self.seed = seed
        deviation = settings.prior_scale * math.sqrt(settings.temperature)
        self.length = settings.trajectory or math.pi * deviation / 2
        self.theta = start
        self.value, self.gradient = log_density(start)
        if not (math.isfinite(self.value) and bool(torch.isfinite(self.gradient).all())):
            raise InputError(
                f"the log density is {self.value} where a chain starts",
                hint="lower start_spread, or check the base network",
            )
        self.step_size = settings.step_size or self._first_step_size()
        self.acceptance = 0.0
        self.counts: dict[str, float] = dict.fromkeys((*MEANS, *NUMBERS), 0)

    def sample(self, show: Show = lambda *_: None) -> Tensor:
        """Run the chain and return its states ``[K, D]``.

        Raises:
            PartialFailure: too many trajectories in a row diverge.
        """
        settings = self.settings
        total = settings.warmup + settings.samples
        adaptation = StepSizeAdaptation(self.step_size, settings.target_acceptance)
        states = []
        divergences_in_a_row = 0
        for step in range(total):
            warming = step < settings.warmup
            divergent = self._follow_trajectory(step, warming)
            divergences_in_a_row = divergences_in_a_row + 1 if divergent else 0
            if divergences_in_a_row >= MAX_DIVERGENCES_IN_A_ROW:
                raise PartialFailure(
                    f"the last {MAX_DIVERGENCES_IN_A_ROW} trajectories diverged, with steps of "
                    f"{self.step_size:.2e}. Hint: give a smaller hmc.step_size"
                )
            if not warming:
                states.append(self.theta)
            elif settings.step_size is None:
                self.step_size = adaptation.update(self.acceptance)
                if step == settings.warmup - 1:
                    self.step_size = math.exp(adaptation.log_average)
            show(step + 1, total, self._describe(warming))
        return torch.stack(states)

    def _describe(self, warming: bool) -> str:
        """Return the state of the chain in a few words."""
        phase = "warm-up" if warming else "sample"
        diverged = self.counts["divergences"] + self.counts["warmup_divergences"]
        return (
            f"{phase}, log density {self.value:.1f}, acceptance {self.acceptance:.2f}, "
            f"step {self.step_size:.2e}, {diverged} diverged"
        )

    def record(self) -> dict[str, float]:
        """Return what the finished chain measured: means over its samples, and numbers of
        trajectories.
        """
        record = {"step_size": self.step_size}
        for name in MEANS:
            record[name] = self.counts[name] / self.settings.samples
        for name in NUMBERS:
            record[name] = self.counts[name]
        return record

    def _follow_trajectory(self, step: int, warming: bool) -> bool:
        """Move to the end of a new trajectory or stay, by Metropolis; return whether the trajectory
        diverged.
        """
        shift, uniform = draw_uniform(mix_seed(self.seed, _CHOICE_STREAM), [step], 2)[0].tolist()
        size = self.step_size * (1.0 + STEP_JITTER * (2.0 * shift - 1.0))
        wanted = max(1, math.ceil(self.length / size))
        steps = min(wanted, MAX_LEAPFROG_STEPS)
        momentum = self._momentum(_MOMENTUM_STREAM, step)
        end = leapfrog(self.log_density, self.theta, momentum, self.gradient, size, steps)
        error = self._energy(end.momentum, end.value) - self._energy(momentum, self.value)
        divergent = not abs(error) <= MAX_ENERGY_ERROR
        self.acceptance = 0.0 if divergent else min(1.0, math.exp(-error))
        accepted = uniform < self.acceptance
        if accepted:
            self.theta = end.theta
            self.value = end.value
            self.gradient = end.gradient
        self.counts["warmup_divergences" if warming else "divergences"] += divergent
        if not warming:
            self.counts["acceptance"] += self.acceptance
            self.counts["accepted"] += accepted
            self.counts["leapfrog_steps"] += steps
            self.counts["shortened"] += wanted > steps
        return divergent

    def _momentum(self, stream: int, number: int) -> Tensor:
        return draw_noise(mix_seed(self.seed, stream), [number], len(self.theta))[0].to(self.theta)

    @staticmethod
    def _energy(momentum: Tensor, value: float) -> float:
        return 0.5 * float(momentum.square().sum()) - value

    def _first_step_size(self) -> float:
        """Return a step size whose single leapfrog step is accepted with a probability near 1/2
        (Hoffman & Gelman 2014, algorithm 4).
        """
        momentum = self._momentum(_FIRST_STEP_STREAM, 0)
        before = self._energy(momentum, self.value)

        def log_acceptance(step: float) -> float:
            end = leapfrog(self.log_density, self.theta, momentum, self.gradient, step, steps=1)
            error = self._energy(end.momentum, end.value) - before
            return -error if math.isfinite(error) else -math.inf

        step = self.length
        grows = log_acceptance(step) > -math.log(2.0)
        for _ in range(60):
            step *= 2.0 if grows else 0.5
            if (log_acceptance(step) > -math.log(2.0)) != grows:
                return step
        raise PartialFailure(
            f"no step size around {self.length:.1e} has a usable acceptance. "
            "Hint: check the base network and the frames for NaN"
        )
