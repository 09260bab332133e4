"""Hamiltonian Monte Carlo with Metropolis correction over any log density (Neal 2011, arXiv 1206.1901)."""

from __future__ import annotations

import math
from copy import copy
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from segunc.affine.noise import draw_noise, draw_uniform, mix_seed
from segunc.core.errors import InputError
from segunc.training.chain_run import Chain, ChainFailure
from segunc.training.target import LogDensity

DIVERGENCE = 1000.0
"""Energy error beyond which a trajectory has left the dynamics (as in Stan)."""
HOPELESS = 20
"""Divergences one after the other at which a chain is given up."""
_MOMENTUM, _CHOICES, _FIRST_STEP = range(3)
"""Streams of random numbers of a chain."""
_STATE = ("value", "step", "step_size", "acceptance", "sums", "divergences", "in_a_row", "shortened")
"""What a chain's state is beside its tensors and the averaging."""


@dataclass
class DualAveraging:
    """Step size by Nesterov's dual averaging of the acceptance (Hoffman & Gelman 2014, section 3.2, with their constants).

    Attributes:
        first: the step size to start from.
        target: acceptance probability to reach, in 0..1.
        count, error, log_average: state: updates, averaged error, logarithm of the averaged step size.
    """

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
        log_density: of the potential -log p.
        theta, momentum: ``[D]``.
        gradient: of the log density at theta ``[D]``.
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


class HamiltonianChain(Chain):
    """One chain of Hamiltonian Monte Carlo; a step is a trajectory, accepted or not.

    Masses are 1. Step sizes vary a little from trajectory to trajectory, so that no mode of the density has a period
    that fits the trajectory exactly (Neal 2011, section 3.2).

    Args:
        log_density: its domain is ``[D]``.
        start: ``[D]``.
        seed: of this chain.
        trajectory: length of a trajectory, step size times steps. For a Gaussian of standard deviation s it is independent of
            its start after pi s / 2, so pi s / 2 with the prior's s is enough for any posterior narrower than the prior
            (Izmailov et al. 2021, section 3).
        warmup, total: trajectories that adapt the step size and do not belong to the sample, and trajectories in all.
        step, target: step size to keep, or None to adapt it to this acceptance probability, in 0..1.
        jitter, max_steps: see :class:`segunc.posteriors.chains.HmcConfig`.

    Raises:
        InputError: settings out of their range, or a start where the density is not finite.
    """

    def __init__(
        self,
        log_density: LogDensity,
        start: Tensor,
        *,
        seed: int,
        trajectory: float,
        warmup: int,
        total: int,
        step: float | None,
        target: float,
        jitter: float,
        max_steps: int,
    ) -> None:
        if not (trajectory > 0 and 0 < target < 1 and 0 <= jitter < 1 and max_steps > 0 and (step is None or step > 0)):
            raise InputError(
                f"trajectory {trajectory}, step_size {step}, target_acceptance {target}, jitter {jitter}, max_steps {max_steps}",
                "positive numbers, the acceptance and the jitter below 1",
                "repair the configuration",
            )
        if not 0 <= warmup < total:
            raise InputError(f"{warmup} of {total} trajectories to warm up", "some left for the sample", "lower warmup")
        self._density, self._seed = log_density, seed
        self._trajectory, self._jitter, self._max_steps = trajectory, jitter, max_steps
        self.warmup, self.total, self.step = warmup, total, 0
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
