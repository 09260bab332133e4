"""Posteriors made of the states of Markov chains: SGLD, SGHMC and HMC."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from segunc.affine.draws import AffineDraws, AffineLayout
from segunc.affine.noise import NoiseSource, Seed, draw_noise, mix_seed
from segunc.affine.posterior import Posterior
from segunc.baselines.convergence import convergence
from segunc.baselines.dynamics import (
    Chain,
    ChainConfig,
    CyclicalSteps,
    HamiltonianChain,
    HmcConfig,
    LangevinChain,
    run_chains,
)
from segunc.baselines.target import LogPosterior
from segunc.core.bounds import NonNegativeFloat, PositiveFloat, PositiveInt
from segunc.core.errors import InputError
from segunc.data.labels import IGNORE
from segunc.posteriors.fitting import finetuning
from segunc.posteriors.methods import Method
from segunc.training.config import FinetuneConfig
from segunc.training.data import Batch, Minibatches, load_batches, spaced
from segunc.training.finetune_run import FinetuneRun
from segunc.training.progress import CHECKPOINTS, LAST


class ChainStates(Posterior):
    """A draw is one state of one chain.

    Chains are the members: draw s belongs to chain c = s mod M, and takes that chain's state number (s // M) mod (K / M) in an order
    that (seed, c) decides. So S draws are S different states, spread over the chains, and S = K is the whole sample; beyond that
    the states come again.

    Args:
        gamma, beta: ``[K, T]`` affine parameters of the states, chain after chain, each in its own order.
        chains: M, a divisor of K.
        scope: the sites that the chains moved; the others are the base's.
        target: what the chains sampled, for the record: ``effective_pixels``, ``prior_scale``, ``temperature``.
    """

    method: ClassVar[str]

    def __init__(
        self, gamma: Tensor, beta: Tensor, chains: int = 1, scope: str = "all", target: dict[str, float] | None = None
    ) -> None:
        if gamma.ndim != 2 or gamma.shape != beta.shape or len(gamma) == 0:
            raise InputError(f"gamma {tuple(gamma.shape)} and beta {tuple(beta.shape)}", "both [K, T], K at least 1")
        if chains < 1 or len(gamma) % chains:
            raise InputError(f"{len(gamma)} states of {chains} chains", "equally many states of each chain")
        self.gamma, self.beta, self.chains, self.scope, self.target = gamma, beta, chains, scope, dict(target or {})

    @property
    def members(self) -> int:
        return self.chains

    def affine(self, layout: AffineLayout, draws: Sequence[int], seed: Seed, scope: str | None = None) -> AffineDraws:
        """See :class:`segunc.affine.posterior.Posterior`; outside a narrower scope a draw has the mean of its chain."""
        states = torch.tensor([self._state(s, NoiseSource.of(seed).seed) for s in draws])
        gamma, beta = self.gamma[states], self.beta[states]
        if scope is not None:
            mask = layout.mask(scope).cpu()
            chain = torch.tensor([s % self.chains for s in draws])
            means = (held.reshape(self.chains, -1, held.shape[1]).mean(1)[chain] for held in (self.gamma, self.beta))
            gamma, beta = (torch.where(mask, x, mean) for x, mean in zip((gamma, beta), means, strict=True))
        return AffineDraws(gamma.to(layout.device), beta.to(layout.device))

    def _state(self, draw: int, seed: int) -> int:
        each = len(self.gamma) // self.chains
        chain, turn = draw % self.chains, draw // self.chains
        generator = np.random.Generator(np.random.Philox(key=mix_seed(seed, chain)))
        return chain * each + int(generator.permutation(each)[turn % each])

    def settings(self) -> dict[str, Any]:
        return {"scope": self.scope, "chains": self.chains, "states": len(self.gamma), "target": self.target}


class SGLD(ChainStates):
    """Stochastic-gradient Langevin dynamics (Welling & Teh 2011)."""

    method = "sgld"


class SGHMC(ChainStates):
    """Stochastic-gradient Hamiltonian Monte Carlo (Chen, Fox & Guestrin 2014)."""

    method = "sghmc"


class HMC(ChainStates):
    """Hamiltonian Monte Carlo (Neal 2011)."""

    method = "hmc"


@dataclass(frozen=True)
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

    section = "sgld"
    lr: PositiveFloat = 0.02
    cycles: PositiveInt = 4
    cycle_steps: PositiveInt = 200
    exploration: NonNegativeFloat = 0.5
    states_per_cycle: PositiveInt = 6
    shape: Literal["cosine", "constant"] = "cosine"
    augment: bool = False


@dataclass(frozen=True)
class SghmcConfig(SgldConfig):
    """How SGHMC runs: as SGLD, with a momentum.

    Args:
        momentum: share of the velocity that is kept from step to step, 0..1 (1 excluded); 0 is SGLD.
    """

    section = "sghmc"
    lr: PositiveFloat = 0.01
    momentum: NonNegativeFloat = 0.9


_BATCHES, _START, _NOISE = range(3)
"""Streams of random numbers of a run."""


def _no_trainer(base: Path, config: FinetuneConfig[Any], out: Path) -> None:
    if config.trainer:
        section = config.settings.section
        raise InputError(
            f"trainer settings {', '.join(config.trainer)} for {section}",
            "none: chains do not run in Lightning's Trainer",
            f"remove them, and see {section} for what a chain can be told",
        )


def _target(run: FinetuneRun[Any], dtype: torch.dtype = torch.float32) -> LogPosterior:
    """The density that is sampled, with the network on its device in a type."""
    run.place()
    run.network.to(dtype)
    run.settings["precision"] = "64-true" if dtype == torch.float64 else "32-true"
    return LogPosterior(run.network, run.options.prior(), run.options.scope)


@finetuning(check=_no_trainer)
def finetune_langevin(run: FinetuneRun[SgldConfig]) -> dict[str, Any]:
    """Sample the posterior over the affine parameters by SGLD, or SGHMC with a :class:`SghmcConfig`, and write the Bayesian model.

    A killed run continues exactly where its last checkpoint stands. Measured are R-hat, effective sample size, seconds and steps.
    """
    settings = run.config.settings
    posterior, momentum = (SGHMC, settings.momentum) if isinstance(settings, SghmcConfig) else (SGLD, 0.0)
    target = _target(run)
    steps = CyclicalSteps(
        settings.lr / settings.effective_pixels,
        settings.cycles,
        settings.cycle_steps,
        settings.exploration,
        settings.states_per_cycle,
        settings.shape,
    )
    data = run.data.dataset("train", augment=settings.augment)
    frames = spaced(len(data), settings.frames)
    size = run.data.batch_size
    pixels: float | None = None
    if not settings.augment:
        # Every pixel of the set weighs the same, whichever batch it comes in.
        pixels = size * sum(int((data[i]["label"] != IGNORE).sum()) for i in frames) / len(frames)
        if pixels == 0:
            raise InputError("the frames hold no labelled pixel", "frames with labels", "check the training split")

    def chain(number: int) -> Chain:
        batches = Minibatches(data, frames, size, mix_seed(settings.seed, number, _BATCHES), run.data.workers)
        stream: list[Iterator[Batch]] = []

        def gradient(theta: Tensor, step: int) -> Tensor:
            if not stream:
                stream.append(batches.between(step, steps.total))
            return target.energy_gradient(theta, *next(stream[0]), pixels)

        noise = mix_seed(settings.seed, number, _NOISE)
        start = _start(target, settings, number)
        return LangevinChain(gradient, start, steps, seed=noise, momentum=momentum, temperature=settings.temperature)

    return _sample(run, target, posterior, chain)


@finetuning(check=_no_trainer)
def finetune_hmc(run: FinetuneRun[HmcConfig]) -> dict[str, Any]:
    """The same by Hamiltonian Monte Carlo on all the data at once, with Metropolis correction: the reference.

    The chosen frames are held in memory. Acceptance, divergences and step size of each chain are among what is measured.
    """
    settings = run.config.settings
    target = _target(run, getattr(torch, settings.dtype))
    data = run.data.dataset("train")
    density = target.on(load_batches(data, spaced(len(data), settings.frames), run.data.batch_size))

    def chain(number: int) -> Chain:
        seed = mix_seed(settings.seed, number, _NOISE)
        return HamiltonianChain(density, _start(target, settings, number), settings, seed)

    return _sample(run, target, HMC, chain)


def _start(target: LogPosterior, settings: ChainConfig, number: int) -> Tensor:
    """Where a chain starts: the trained values, and a draw of the prior times the spread."""
    noise = draw_noise(mix_seed(settings.seed, number, _START), [0], len(target.base))[0].to(target.base)
    spread = settings.start_spread * settings.prior_scale * math.sqrt(settings.temperature)
    return target.base + spread * noise


def _sample(
    run: FinetuneRun[Any], target: LogPosterior, posterior: type[ChainStates], chain: Callable[[int], Chain]
) -> dict[str, Any]:
    """Run the chains, look at their convergence and write the model."""
    chains, count = run.options.chains, len(target.base)
    run.say(f"{posterior.method}: {chains} chains over {count:,} affine parameters")
    states, records = run_chains(chain, chains, run.out / CHECKPOINTS / LAST, resume=run.resume is not None)
    for number, record in enumerate(records):
        if record:
            run.say(f"chain {number + 1}: " + ", ".join(f"{key} {value:.4g}" for key, value in record.items()))
    converged = convergence(states.numpy())
    run.measured.update(dimensions=count, chain_records=records, convergence=converged)
    run.say("convergence: " + ", ".join(f"{key} {value}" for key, value in converged.items()))
    gamma, beta = target.expand(states.flatten(0, 1).double().to(target.base.device))
    sampled = {key: getattr(run.options, key) for key in ("effective_pixels", "prior_scale", "temperature")}
    made = posterior(gamma.float().cpu(), beta.float().cpu(), chains, run.options.scope, sampled)
    return run.finish(made, f"{len(made.gamma)} states of {chains} chains")


SGLD_METHOD = Method("sgld", SgldConfig, finetune_langevin, SGLD.from_tensors)
SGHMC_METHOD = Method("sghmc", SghmcConfig, finetune_langevin, SGHMC.from_tensors)
HMC_METHOD = Method("hmc", HmcConfig, finetune_hmc, HMC.from_tensors)
