"""Settings of the chains: SGLD, SGHMC and HMC."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from jsonargparse import Namespace
from jsonargparse.typing import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from segunc.affine.noise import draw_noise, mix_seed
from segunc.core.errors import InputError
from segunc.data.labels import IGNORE
from segunc.posteriors.chains import HMC, SGHMC, SGLD, ChainStates
from segunc.training.batches import Batch, Minibatches, load_batches
from segunc.training.chain_run import Chain, run_chains
from segunc.training.finetune_run import FinetuneRun
from segunc.training.hmc import HamiltonianChain
from segunc.training.langevin import CyclicalSteps, LangevinChain
from segunc.training.progress import say
from segunc.training.resume import CHECKPOINTS, LAST
from segunc.training.selection import spaced
from segunc.training.target import LogPosterior


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


_BATCHES, _START, _NOISE = range(3)
"""Streams of random numbers of a run."""


def finetune_sgld(
    base: Path, config: Namespace, out: Path, *, device: str = "auto", say: Callable[[str], None] = say
) -> dict[str, Any]:
    """Sample the posterior over the affine parameters by SGLD with cyclical steps, and write the Bayesian model.

    A killed run continues exactly where its last checkpoint stands when called again with the same ``out``.

    Args:
        base: model folder of a deterministic network.
        config: resolved, with :class:`segunc.training.finetune_chain.SgldConfig` under ``sgld``.
        out: the new model folder.
        device: ``auto``, ``cpu`` or ``cuda[:N]``.
        say: receives a line for each step.

    Returns:
        what was measured: R-hat, effective sample size, seconds, steps.

    Raises:
        InputError: the base, the data, the configuration and the output folder do not fit together.
        PartialFailure: a chain became NaN; its last good state is in the checkpoint.
    """
    run = _open(base, config, "sgld", out, device, say)
    return _langevin(run, SGLD, 0.0)


def finetune_sghmc(
    base: Path, config: Namespace, out: Path, *, device: str = "auto", say: Callable[[str], None] = say
) -> dict[str, Any]:
    """The same by SGHMC; see :func:`finetune_sgld`, with :class:`segunc.training.finetune_chain.SghmcConfig` under ``sghmc``."""
    run = _open(base, config, "sghmc", out, device, say)
    return _langevin(run, SGHMC, run.options.momentum)


def finetune_hmc(
    base: Path, config: Namespace, out: Path, *, device: str = "auto", say: Callable[[str], None] = say
) -> dict[str, Any]:
    """The same by Hamiltonian Monte Carlo on all the data at once, with Metropolis correction: the reference.

    See :func:`finetune_sgld`, with :class:`segunc.training.finetune_chain.HmcConfig` under ``hmc``. The chosen frames are held in
    memory. Acceptance, divergences and step size of each chain are among what was measured.

    Raises:
        PartialFailure: nothing but divergent trajectories.
    """
    run = _open(base, config, "hmc", out, device, say)
    options = run.options
    target = _target(run, getattr(torch, options.dtype))
    data = run.data.dataset("train")
    density = target.on(load_batches(data, spaced(len(data), options.frames), run.data.batch_size))
    deviation = options.prior_scale * math.sqrt(options.temperature)

    def chain(number: int) -> Chain:
        return HamiltonianChain(
            density,
            _start(target, options, number),
            seed=mix_seed(options.seed, number, _NOISE),
            trajectory=options.trajectory or math.pi * deviation / 2,
            warmup=options.warmup,
            total=options.warmup + options.samples,
            step=options.step_size,
            target=options.target_acceptance,
            jitter=options.jitter,
            max_steps=options.max_steps,
        )

    return _sample(run, target, HMC, chain)


def _open(
    base: Path, config: Namespace, section: str, out: Path, device: str, say: Callable[[str], None]
) -> FinetuneRun:
    if config.trainer:
        raise InputError(
            f"trainer settings {', '.join(config.trainer)} for {section}",
            "none: chains do not run in Lightning's Trainer",
            f"remove them, and see {section} for what a chain can be told",
        )
    return FinetuneRun(base, config, section, out, device, say)


def _target(run: FinetuneRun, dtype: torch.dtype) -> LogPosterior:
    options = run.options
    run.place()
    run.network.to(dtype)
    run.settings["precision"] = "64-true" if dtype == torch.float64 else "32-true"
    return LogPosterior(
        run.network,
        scope=options.scope,
        effective_pixels=options.effective_pixels,
        prior_scale=options.prior_scale,
        temperature=options.temperature,
    )


def _start(target: LogPosterior, options: Namespace, number: int) -> Tensor:
    """Where a chain starts: the trained values, and a draw of the prior times the spread."""
    noise = draw_noise(mix_seed(options.seed, number, _START), [0], len(target.base))[0].to(target.base)
    spread: float = options.start_spread * options.prior_scale * math.sqrt(options.temperature)
    return target.base + spread * noise


def _langevin(run: FinetuneRun, posterior: type[ChainStates], momentum: float) -> dict[str, Any]:
    options = run.options
    steps = CyclicalSteps(
        options.lr / options.effective_pixels,
        options.cycles,
        options.cycle_steps,
        options.exploration,
        options.states_per_cycle,
        options.shape,
    )
    target = _target(run, torch.float32)
    data = run.data.dataset("train", augment=options.augment)
    frames = spaced(len(data), options.frames)
    size = run.data.batch_size
    pixels: float | None = None
    if not options.augment:
        # Every pixel of the set weighs the same, whichever batch it comes in.
        pixels = size * sum(int((data[i]["label"] != IGNORE).sum()) for i in frames) / len(frames)
        if pixels == 0:
            raise InputError("the frames hold no labelled pixel", "frames with labels", "check the training split")

    def chain(number: int) -> Chain:
        seed = mix_seed(options.seed, number, _BATCHES)
        batches = Minibatches(data, frames, size, seed, run.data.workers)
        stream: list[Iterator[Batch]] = []

        def gradient(theta: Tensor, step: int) -> Tensor:
            if not stream:
                stream.append(batches.between(step, steps.total))
            images, labels = next(stream[0])
            return target.energy_gradient(theta, images, labels, pixels)

        noise = mix_seed(options.seed, number, _NOISE)
        start = _start(target, options, number)
        return LangevinChain(gradient, start, steps, seed=noise, momentum=momentum, temperature=options.temperature)

    return _sample(run, target, posterior, chain)


def _sample(
    run: FinetuneRun, target: LogPosterior, posterior: type[ChainStates], chain: Callable[[int], Chain]
) -> dict[str, Any]:
    """Run the chains, look at their convergence and write the model."""
    options = run.options
    run.say(f"{posterior.method}: {options.chains} chains over {target.parameters.count:,} affine parameters")
    sample = run_chains(chain, options.chains, run.out / CHECKPOINTS / LAST, resume=run.resume is not None)
    for number, record in enumerate(sample.records):
        if record:
            run.say(f"chain {number + 1}: " + ", ".join(f"{key} {value:.4g}" for key, value in record.items()))
    convergence = sample.convergence()
    run.measured.update(dimensions=target.parameters.count, chain_records=sample.records, convergence=convergence)
    run.say("convergence: " + ", ".join(f"{key} {value}" for key, value in convergence.items()))
    gamma, beta = target.parameters.expand(sample.states.flatten(0, 1).double().to(target.base.device))
    settings = {key: options[key] for key in ("effective_pixels", "prior_scale", "temperature")}
    made = posterior(gamma.float().cpu(), beta.float().cpu(), options.chains, options.scope, settings)
    return run.finish(made, f"{len(made.gamma)} states of {made.chains} chains")
