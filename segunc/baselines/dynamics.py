"""Markov chains: running them to their end, resumably; Langevin dynamics with cyclical steps, over any energy with noisy gradients;
and Hamiltonian Monte Carlo with Metropolis correction, over any log density (Neal 2011, arXiv 1206.1901)."""

from __future__ import annotations

import io
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from segunc.affine.noise import draw_noise, draw_uniform, mix_seed
from segunc.affine.posterior import Prior
from segunc.core.bounds import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Settings
from segunc.core.errors import InputError, PartialFailure
from segunc.core.files import write_atomically
from segunc.core.progress import ConsoleProgress
from segunc.networks.weights import read_checkpoint
from segunc.training.progress import INTERVAL

EnergyGradient = Callable[[Tensor, int], Tensor]
"""theta ``[D]`` and the step -> an unbiased estimate ``[D]`` of the gradient of the energy -log p (at T = 1)."""
LogDensity = Callable[[Tensor], tuple[float, Tensor]]
"""theta ``[D]`` -> log density up to a constant, and its gradient ``[D]``; NaN where it is not defined."""
DIVERGENCE = 1000.0
"""Energy error beyond which a trajectory has left the dynamics (as in Stan)."""
HOPELESS = 20
"""Divergences one after the other at which a chain is given up."""
_MOMENTUM, _CHOICES, _FIRST_STEP = range(3)
"""Streams of random numbers of a chain."""
_STATE = ("value", "step", "step_size", "acceptance", "sums", "divergences", "in_a_row", "shortened")
"""What a chain's state is beside its tensors and the averaging."""


class ChainFailure(RuntimeError):
    """A chain cannot go on, what happened and what the user can do now; it stays in its last good state."""

    def __init__(self, reason: str, remedy: str) -> None:
        self.reason, self.remedy = reason, remedy
        super().__init__(f"{reason}; {remedy}")


class Chain(ABC):
    """A chain with a state theta ``[D]``, ``step`` of ``total`` steps done; its seed decides it, continued in another process or not."""

    theta: Tensor
    step: int
    total: int

    @abstractmethod
    def advance(self) -> bool:
        """One step, or a :class:`ChainFailure`; whether the state after it belongs to the sample."""

    @abstractmethod
    def describe(self) -> str:
        """Its state in a few words."""

    def record(self) -> dict[str, Any]:
        """What the sample was made with beside its settings, for the provenance."""
        return {}

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything that a continued chain needs: tensors, numbers, names and containers of them."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict` of a chain with the same settings."""


def run_chains(
    make_chain: Callable[[int], Chain], count: int, last: Path, *, resume: bool = False
) -> tuple[Tensor, list[dict[str, Any]]]:
    """Run ``count`` chains, M, one after the other and collect their states.

    Args:
        make_chain: the chain of a number from 0, at its start.
        last: the checkpoint; written atomically, so that a killed run continues exactly where it stood.
        resume: continue from it.

    Returns:
        ``[M, K, D]`` float32, K states of each chain in their order, and the record of each chain.

    Raises:
        PartialFailure: a chain cannot go on. Its last good state and all states so far are in the checkpoint.
    """
    held: dict[str, Any] = {"chain": 0, "state": None, "kept": [], "finished": [], "records": []}
    if resume:
        held = read_checkpoint(last)
    for number in range(held["chain"], count):
        step = 0
        try:
            chain = make_chain(number)
            if held["state"] is not None:
                chain.load_state_dict(held["state"])
            first, label = chain.step, f"finetune: chain {number + 1}/{count}"
            with ConsoleProgress(label=label, unit="step", interval=INTERVAL, skipped=first) as show:
                while chain.step < chain.total:
                    step = chain.step
                    if chain.advance():
                        held["kept"].append(chain.theta.detach().float().cpu())
                    held["state"] = chain.state_dict()
                    show.count(step + 1, chain.total, chain.describe())
                    if show.due or step == first:
                        _save(held, last)
        except ChainFailure as failure:
            _save(held, last)
            raise PartialFailure(
                f"chain {number + 1} of {count} stopped at step {step}: {failure.reason}; its last good state and the "
                f"{len(held['kept']) + sum(map(len, held['finished']))} states collected are in {last}; "
                f"{failure.remedy}, and give another --out"
            ) from failure
        held["records"].append(chain.record())
        held["finished"].append(torch.stack(held["kept"]))
        held.update(chain=number + 1, state=None, kept=[])
        _save(held, last)
    return torch.stack(held["finished"]), held["records"]


def _save(held: dict[str, Any], last: Path) -> None:
    buffer = io.BytesIO()
    torch.save(held, buffer)
    write_atomically(last, buffer.getvalue())


@dataclass(frozen=True)
class ChainConfig(Settings):
    """What all chains have in common: the posterior that they sample, and where they start.

    Args:
        scope: norm sites whose affine parameters move: all, encoder, decoder, last:N, every:N or a regular expression.
        effective_pixels: N_eff, how many independent pixels the training set counts for.
        prior_scale: s of the Gaussian prior N(theta; theta_base, s^2) on the affine parameters.
        temperature: T of the posterior; below 1 it is a cold one.
        frames: training frames that are the data, evenly spaced (0: all).
        chains: how many, run one after the other.
        start_spread: standard deviation of the starts around the trained values, in units of the prior's; 0 starts at them.
        seed: of everything random.
    """

    scope: str = "all"
    effective_pixels: PositiveFloat = Prior.effective_pixels
    prior_scale: PositiveFloat = Prior.scale
    temperature: PositiveFloat = Prior.temperature
    frames: NonNegativeInt = 0
    chains: PositiveInt = 1
    start_spread: NonNegativeFloat = 0.0
    seed: NonNegativeInt = 0

    def prior(self) -> Prior:
        """The prior of these settings."""
        return Prior(self.prior_scale, self.effective_pixels, temperature=self.temperature)


@dataclass(frozen=True)
class CyclicalSteps:
    """Steps of a chain in cycles: each begins with large steps that explore, and ends with the states that are kept.

    The cosine of Zhang et al. 2020 (cSG-MCMC, arXiv 1902.03932, equation 1 and section 3):
    ``step = peak / 2 (cos(pi r) + 1)``, r = share of the cycle that is done; noise only where r is at least
    ``exploration``. ``constant`` keeps the peak.

    Attributes:
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
        """Of a step, counted from 0."""
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
        start: ``[D]``.
        momentum: m in 0..1 (1 excluded).
        temperature: T, at least 0; 0 adds no noise at all.
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


@dataclass
class DualAveraging:
    """Step size by Nesterov's dual averaging of the acceptance towards a target, 0..1, from a first one (Hoffman & Gelman 2014,
    section 3.2, with their constants); state: updates, averaged error, logarithm of the averaged step size."""

    first: float
    target: float
    count: int = 0
    error: float = 0.0
    log_average: float = 0.0

    def update(self, acceptance: float) -> float:
        """The next step size of the warm-up, after a trajectory with this acceptance probability."""
        self.count += 1
        share = 1.0 / (self.count + 10.0)
        self.error += share * (self.target - acceptance - self.error)
        log_step = math.log(10.0 * self.first) - math.sqrt(self.count) / 0.05 * self.error
        weight = self.count**-0.75
        self.log_average += weight * (log_step - self.log_average)
        return math.exp(log_step)


def leapfrog(
    log_density: LogDensity, theta: Tensor, momentum: Tensor, gradient: Tensor, step: float, steps: int
) -> tuple[Tensor, Tensor, float, Tensor]:
    """Follow the Hamiltonian flow with unit masses: reversible, volume-preserving, energy error O(step^2).

    Args:
        theta, momentum, gradient: ``[D]``; the last is that of the log density at theta.
        step: step size, at most about 2 over the largest frequency (square root of the curvature).
        steps: number of steps; a value that is not finite ends the trajectory early.

    Returns:
        theta, momentum, log density and gradient at the end.
    """
    momentum = momentum + 0.5 * step * gradient
    for index in range(steps):
        theta = theta + step * momentum
        value, gradient = log_density(theta)
        if not (math.isfinite(value) and bool(torch.isfinite(gradient).all())):
            return theta, momentum, math.nan, gradient
        momentum = momentum + (0.5 if index == steps - 1 else 1.0) * step * gradient
    return theta, momentum, value, gradient


@dataclass(frozen=True)
class HmcConfig(ChainConfig):
    """How HMC runs, on the whole data at every step.

    Args:
        samples: states kept from each chain, one after each trajectory.
        warmup: trajectories before them, which adapt the step size.
        trajectory: length of a trajectory, or none for pi s sqrt(T) / 2 with the prior's s.
        step_size: of the leapfrog integrator, or none to adapt it.
        target_acceptance: acceptance probability that it is adapted to, 0..1.
        jitter: the step size of each trajectory is uniform within this share around it, 0..1.
        max_steps: leapfrog steps of a trajectory at most; those that need more are cut short and counted.
        dtype: floating type of the network.
    """

    section = "hmc"
    chains: PositiveInt = 2
    start_spread: NonNegativeFloat = 1.0
    samples: PositiveInt = 50
    warmup: NonNegativeInt = 30
    trajectory: PositiveFloat | None = None
    step_size: PositiveFloat | None = None
    target_acceptance: PositiveFloat = 0.8
    jitter: NonNegativeFloat = 0.1
    max_steps: PositiveInt = 1000
    dtype: Literal["float32", "float64"] = "float32"


class HamiltonianChain(Chain):
    """One chain of Hamiltonian Monte Carlo; a step is a trajectory, accepted or not.

    Masses are 1. Step sizes vary a little from trajectory to trajectory, so that no mode of the density has a period
    that fits the trajectory exactly (Neal 2011, section 3.2).

    A Gaussian of standard deviation s is independent of its start after a trajectory of pi s / 2, so pi s / 2 with the prior's s is
    enough for any posterior narrower than the prior (Izmailov et al. 2021, section 3). ``start`` is ``[D]``; of the settings those
    that make a single chain are read, without the seed.
    """

    def __init__(self, log_density: LogDensity, start: Tensor, settings: HmcConfig, seed: int) -> None:
        deviation = settings.prior_scale * math.sqrt(settings.temperature)
        self._trajectory, step = settings.trajectory or math.pi * deviation / 2, settings.step_size
        target, self._jitter, self._max_steps = settings.target_acceptance, settings.jitter, settings.max_steps
        if not (target < 1 and self._jitter < 1):
            raise InputError(
                f"trajectory {self._trajectory}, step_size {step}, target_acceptance {target}, jitter {self._jitter}, "
                f"max_steps {self._max_steps}",
                "positive numbers, the acceptance and the jitter below 1",
                "repair the configuration",
            )
        self._density, self._seed = log_density, seed
        self.warmup, self.total, self.step = settings.warmup, settings.warmup + settings.samples, 0
        self.theta = start
        self.value, self._gradient = log_density(start)
        if not (math.isfinite(self.value) and bool(torch.isfinite(self._gradient).all())):
            given = f"a chain that starts where the log density is {self.value}"
            raise InputError(given, "finite values", "lower start_spread, or check the base network")
        self.step_size = self._reasonable_step() if step is None else step
        self._averaging = DualAveraging(self.step_size, target) if step is None else None
        self.acceptance = 0.0
        self.sums = {"acceptance": 0.0, "accepted": 0, "leapfrog_steps": 0}
        self.divergences = {"warmup": 0, "sample": 0}
        self.in_a_row = self.shortened = 0

    def advance(self) -> bool:
        shift, uniform = draw_uniform(mix_seed(self._seed, _CHOICES), [self.step], 2)[0].tolist()
        step = self.step_size * (1.0 + self._jitter * (2.0 * shift - 1.0))
        wanted = max(1, math.ceil(self._trajectory / step))
        steps = min(wanted, self._max_steps)
        momentum = self._noise(_MOMENTUM, self.step)
        end, end_momentum, value, gradient = leapfrog(self._density, self.theta, momentum, self._gradient, step, steps)
        error = (0.5 * float(end_momentum.square().sum()) - value) - (0.5 * float(momentum.square().sum()) - self.value)
        divergent = not abs(error) <= DIVERGENCE
        self.acceptance = 0.0 if divergent else min(1.0, math.exp(-error))
        accepted = not divergent and uniform < self.acceptance
        if accepted:
            self.theta, self.value, self._gradient = end, value, gradient
        warming = self.step < self.warmup
        self.divergences["warmup" if warming else "sample"] += divergent
        self.in_a_row = self.in_a_row + 1 if divergent else 0
        if self.in_a_row >= HOPELESS:
            raise ChainFailure(
                f"the last {HOPELESS} trajectories diverged, with steps of {step:.2e}",
                "lower hmc.step_size, or leave it out to have it adapted"
                if self._averaging is None
                else "give a smaller hmc.step_size, or set hmc.dtype to float64",
            )
        if warming:
            if self._averaging is not None:
                self.step_size = self._averaging.update(self.acceptance)
                if self.step == self.warmup - 1:
                    self.step_size = math.exp(self._averaging.log_average)
        else:
            self.shortened += wanted > steps
            self.sums["acceptance"] += self.acceptance
            self.sums["accepted"] += accepted
            self.sums["leapfrog_steps"] += steps
        self.step += 1
        return not warming

    def describe(self) -> str:
        phase = "warm-up" if self.step <= self.warmup else "sample"
        diverged = sum(self.divergences.values())
        numbers = f"acceptance {self.acceptance:.2f}, step {self.step_size:.2e}, {diverged} diverged"
        return f"{phase}, log density {self.value:.1f}, {numbers}"

    def record(self) -> dict[str, Any]:
        return {
            "step_size": self.step_size,
            **{name: value / max(self.step - self.warmup, 1) for name, value in self.sums.items()},
            "divergences": self.divergences["sample"],
            "warmup_divergences": self.divergences["warmup"],
            "shortened": self.shortened,
        }

    def state_dict(self) -> dict[str, Any]:
        averaging = None if self._averaging is None else asdict(self._averaging)
        # Counts go on in the same dictionaries.
        state = {name: copy(getattr(self, name)) for name in _STATE}
        return {"theta": self.theta, "gradient": self._gradient, "averaging": averaging, **state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.theta, self._gradient = state["theta"].to(self.theta), state["gradient"].to(self.theta)
        self._averaging = None if state["averaging"] is None else DualAveraging(**state["averaging"])
        for name in _STATE:
            setattr(self, name, copy(state[name]))

    def _noise(self, stream: int, number: int) -> Tensor:
        return draw_noise(mix_seed(self._seed, stream), [number], len(self.theta))[0].to(self.theta)

    def _reasonable_step(self) -> float:
        """A step size whose single leapfrog step is accepted with a probability near 1/2 (Hoffman & Gelman 2014, algorithm 4)."""
        momentum = self._noise(_FIRST_STEP, 0)
        before = 0.5 * float(momentum.square().sum()) - self.value

        def log_acceptance(step: float) -> float:
            _, after, value, _ = leapfrog(self._density, self.theta, momentum, self._gradient, step, 1)
            error = 0.5 * float(after.square().sum()) - value - before
            return -error if math.isfinite(error) else -math.inf

        step = self._trajectory
        grows = log_acceptance(step) > -math.log(2.0)
        for _ in range(60):
            step *= 2.0 if grows else 0.5
            if (log_acceptance(step) > -math.log(2.0)) != grows:
                return step
        raise ChainFailure(
            f"no step size around {self._trajectory:.1e} has a usable acceptance",
            "check the base network and the frames for NaN",
        )
