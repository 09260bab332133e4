"""Posteriors made of the states of Markov chains: SGLD, SGHMC and HMC."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from segunc.affine.draws import AffineDraws, AffineLayout
from segunc.affine.noise import NoiseSource, Seed, draw_noise, mix_seed
from segunc.affine.posterior import Posterior
from segunc.baselines.convergence import convergence
from segunc.baselines.dynamics import (
    HMC,
    SGHMC,
    SGLD,
    ChainConfig,
    HamiltonianChain,
    Show,
    sample_langevin,
)
from segunc.baselines.target import LogPosterior, load_batches, minibatches
from segunc.core.errors import InputError, PartialFailure
from segunc.core.files import write_atomically
from segunc.core.progress import ConsoleProgress
from segunc.data.labels import IGNORE
from segunc.networks.weights import read_checkpoint
from segunc.posteriors.finetune_run import FinetuneRun
from segunc.posteriors.methods import Method
from segunc.posteriors.model import Model
from segunc.training.batches import spaced
from segunc.training.lightning_runs import CHECKPOINTS, INTERVAL, LAST

SampleChain = Callable[[int, Show], tuple[Tensor, dict[str, float]]]
"""The number of a chain, from 0, and what shows its progress -> its states ``[K, D]`` and what it
measured.
"""
# Streams of random numbers of one seed.
_BATCH_STREAM = 0
_START_STREAM = 1
_NOISE_STREAM = 2


class ChainStates(Posterior):
    """A draw is one state of one chain, and the chains are the members.

    Draw s belongs to chain c = s mod M, and takes that chain's state number (s // M) mod (K / M) in
    an order that (seed, c) decides. So S draws are S different states, spread over the chains;
    beyond S = K they come again.

    Args:
        gamma: of the states, chain after chain, ``[K, T]``.
        beta: likewise.
        chains: M, which divides K.
        target: what was sampled, for the record.
    """

    method: ClassVar[str]

    def __init__(
        self,
        gamma: Tensor,
        beta: Tensor,
        chains: int = 1,
        scope: str = "all",
        target: dict[str, float] | None = None,
    ) -> None:
        self.gamma = gamma
        self.beta = beta
        self.chains = chains
        self.scope = scope
        self.target = dict(target or {})

    @property
    def members(self) -> int:
        return self.chains

    def affine(
        self, layout: AffineLayout, draws: Sequence[int], seed: Seed, scope: str | None = None
    ) -> AffineDraws:
        """Return the affine parameters of some draws; outside a narrower scope, a draw has the
        mean of its chain.
        """
        states = torch.tensor([self._state(s, NoiseSource.of(seed).seed) for s in draws])
        gamma = self.gamma[states]
        beta = self.beta[states]
        if scope is not None:
            mask = layout.mask(scope).cpu()
            gamma = torch.where(mask, gamma, self._chain_means(self.gamma, draws))
            beta = torch.where(mask, beta, self._chain_means(self.beta, draws))
        return AffineDraws(gamma.to(layout.device), beta.to(layout.device))

    def _chain_means(self, states: Tensor, draws: Sequence[int]) -> Tensor:
        """Return the mean of the chain of each draw, of states ``[K, T]``."""
        chain = torch.tensor([draw % self.chains for draw in draws])
        return states.reshape(self.chains, -1, states.shape[1]).mean(1)[chain]

    def _state(self, draw: int, seed: int) -> int:
        """Return the number of the state of a draw."""
        states = len(self.gamma) // self.chains
        chain = draw % self.chains
        turn = draw // self.chains
        generator = np.random.Generator(np.random.Philox(key=mix_seed(seed, chain)))
        return chain * states + int(generator.permutation(states)[turn % states])

    def settings(self) -> dict[str, Any]:
        return {
            "scope": self.scope,
            "chains": self.chains,
            "states": len(self.gamma),
            "target": self.target,
        }


class SGLDPosterior(ChainStates):
    """Stochastic-gradient Langevin dynamics (Welling & Teh 2011)."""

    method = "sgld"


class SGHMCPosterior(ChainStates):
    """Stochastic-gradient Hamiltonian Monte Carlo (Chen, Fox & Guestrin 2014)."""

    method = "sghmc"


class HMCPosterior(ChainStates):
    """Hamiltonian Monte Carlo (Neal 2011)."""

    method = "hmc"


def run_chains(
    sample: SampleChain,
    count: int,
    last: Path,
    *,
    resume: bool = False,
    quiet: bool = False,
) -> tuple[Tensor, list[dict[str, float]]]:
    """Run chains one after the other.

    Args:
        count: M, the number of chains.
        last: checkpoint that holds the finished chains.
        resume: whether finished chains are taken from the checkpoint.
        quiet: whether no progress is shown.

    Returns:
        Their states ``[M, K, D]`` float32 on the CPU, and what each chain measured.

    Raises:
        PartialFailure: a chain cannot go on.
    """
    finished: dict[str, Any] = read_checkpoint(last) if resume else {"states": [], "records": []}
    for number in range(len(finished["states"]), count):
        label = f"finetune: chain {number + 1}/{count}"
        try:
            show = ConsoleProgress(label=label, unit="step", interval=INTERVAL, quiet=quiet)
            with show as progress:
                states, record = sample(number, progress.count)
        except PartialFailure as failure:
            raise PartialFailure(
                f"chain {number + 1} of {count} stopped: {failure}, and give another --out"
            ) from failure
        finished["states"].append(states.detach().float().cpu())
        finished["records"].append(record)
        buffer = io.BytesIO()
        torch.save(finished, buffer)
        write_atomically(last, buffer.getvalue())
    return torch.stack(finished["states"]), finished["records"]


def _target(run: FinetuneRun[Any]) -> LogPosterior:
    """Return the density that is sampled, with the network on its device."""
    run.place()
    run.trainer["precision"] = "32-true"
    return LogPosterior(run.network, run.options.prior(), run.options.scope)


def finetune_langevin(run: FinetuneRun[SGLD]) -> Model:
    """Return a base network with samples of the posterior over its affine parameters, by SGLD or
    SGHMC.
    """
    settings = run.config.settings
    target = _target(run)
    data = run.data.dataset("train", augment=False)
    size = run.data.batch_size
    frames = spaced(len(data), settings.frames)
    # Every pixel of the set weighs the same, whichever batch it comes in.
    labelled = sum(int((data[i]["label"] != IGNORE).sum()) for i in frames)
    pixels = size * labelled / len(frames)
    if pixels == 0:
        raise InputError(
            "the training frames have no labelled pixel", hint="check the training split"
        )

    def sample(number: int, show: Show) -> tuple[Tensor, dict[str, float]]:
        seed = mix_seed(settings.seed, number, _BATCH_STREAM)
        batches = minibatches(data, frames, size, seed, settings.total_steps, run.data.workers)
        noise_seed = mix_seed(settings.seed, number, _NOISE_STREAM)
        start = _start(target, settings, number)

        def gradient(theta: Tensor) -> Tensor:
            images, labels = next(batches)
            return target.energy_gradient(theta, images, labels, pixels)

        return sample_langevin(gradient, start, settings, noise_seed, show), {}

    return _finish(
        run, target, SGHMCPosterior if isinstance(settings, SGHMC) else SGLDPosterior, sample
    )


def finetune_hmc(run: FinetuneRun[HMC]) -> Model:
    """Sample the posterior by Hamiltonian Monte Carlo on all chosen frames at once, held in memory:
    the reference for the other chains.
    """
    settings = run.config.settings
    target = _target(run)
    data = run.data.dataset("train")
    frames = spaced(len(data), settings.frames)
    density = target.on(load_batches(data, frames, run.data.batch_size))

    def sample(number: int, show: Show) -> tuple[Tensor, dict[str, float]]:
        seed = mix_seed(settings.seed, number, _NOISE_STREAM)
        chain = HamiltonianChain(density, _start(target, settings, number), settings, seed)
        return chain.sample(show), chain.record()

    return _finish(run, target, HMCPosterior, sample)


def _start(target: LogPosterior, settings: ChainConfig, number: int) -> Tensor:
    """Return where a chain starts: the trained values, and a draw of the prior times the spread."""
    seed = mix_seed(settings.seed, number, _START_STREAM)
    noise = draw_noise(seed, [0], len(target.base))[0].to(target.base)
    spread = settings.start_spread * settings.prior_scale * math.sqrt(settings.temperature)
    return target.base + spread * noise


def _finish(
    run: FinetuneRun[Any], target: LogPosterior, posterior: type[ChainStates], sample: SampleChain
) -> Model:
    """Run the chains, measure their convergence and return the model."""
    options = run.options
    chains = options.chains
    dimensions = len(target.base)
    run.say(f"{posterior.method}: {chains} chains over {dimensions:,} affine parameters")
    last = run.out / CHECKPOINTS / LAST
    states, records = run_chains(
        sample, chains, last, resume=run.resume is not None, quiet=run.quiet
    )
    for number, record in enumerate(filter(None, records)):
        measured = ", ".join(f"{name} {value:.4g}" for name, value in record.items())
        run.say(f"chain {number + 1}: {measured}")
    numbers = convergence(states.numpy())
    run.measured.update(dimensions=dimensions, chain_records=records, convergence=numbers)
    run.say("convergence: " + ", ".join(f"{name} {value}" for name, value in numbers.items()))
    gamma, beta = target.expand(states.flatten(0, 1).double().to(target.base.device))
    sampled = {
        "effective_pixels": options.effective_pixels,
        "prior_scale": options.prior_scale,
        "temperature": options.temperature,
    }
    made = posterior(gamma.float().cpu(), beta.float().cpu(), chains, options.scope, sampled)
    return run.finish(made, f"{len(made.gamma)} states of {chains} chains")


SGLD_METHOD = Method("sgld", SGLD, finetune_langevin, SGLDPosterior.from_tensors)
SGHMC_METHOD = Method("sghmc", SGHMC, finetune_langevin, SGHMCPosterior.from_tensors)
HMC_METHOD = Method("hmc", HMC, finetune_hmc, HMCPosterior.from_tensors)
