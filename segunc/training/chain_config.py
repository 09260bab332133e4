"""Settings of the chains: SGLD, SGHMC and HMC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jsonargparse.typing import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt


@dataclass
class ChainConfig:
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
    effective_pixels: PositiveFloat = 100_000.0
    prior_scale: PositiveFloat = 0.1
    temperature: PositiveFloat = 1.0
    frames: NonNegativeInt = 0
    chains: PositiveInt = 1
    start_spread: NonNegativeFloat = 0.0
    seed: NonNegativeInt = 0


@dataclass
class SgldConfig(ChainConfig):
    """How SGLD runs: steps in cycles, each of which ends with the states that are kept.

    Args:
        lr: largest step of the mean-pixel loss, as in a training by SGD; the step of the dynamics is lr / N_eff. Steps are
            stable up to about 2 over the loss's largest curvature, and states are independent after about
            N_eff s^2 / lr steps where the data say little: take lr as large as stays stable.
        cycles: how many.
        cycle_steps: steps of one cycle.
        exploration: share of a cycle that descends without noise, 0..1 (1 excluded).
        states_per_cycle: states kept from each cycle, evenly spaced over its noisy part.
        shape: cosine lets the steps of a cycle fall to 0, constant keeps them.
        augment: true takes the augmented crops of training instead of the whole frames. The mean over pixels is then that
            of each batch, and the likelihood is no longer that of the fixed frames.
    """

    lr: PositiveFloat = 0.02
    cycles: PositiveInt = 4
    cycle_steps: PositiveInt = 200
    exploration: NonNegativeFloat = 0.5
    states_per_cycle: PositiveInt = 6
    shape: Literal["cosine", "constant"] = "cosine"
    augment: bool = False


@dataclass
class SghmcConfig(SgldConfig):
    """How SGHMC runs: as SGLD, with a momentum.

    Args:
        momentum: share of the velocity that is kept from step to step, 0..1 (1 excluded); 0 is SGLD.
    """

    lr: PositiveFloat = 0.01
    momentum: NonNegativeFloat = 0.9


@dataclass
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
