"""Base network to a sample of its posterior: what ``segunc finetune --method sgld|sghmc|hmc`` does."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from jsonargparse import Namespace
from torch import Tensor

from segunc.bayes.chain import HMC, SGHMC, SGLD, ChainStates
from segunc.bayes.noise import draw_noise, mix_seed
from segunc.data.labels import IGNORE
from segunc.errors import InputError
from segunc.training.batches import Batch, Minibatches, load_batches
from segunc.training.chain import Chain
from segunc.training.chain_run import run_chains
from segunc.training.finetune_run import FinetuneRun
from segunc.training.hmc import HamiltonianChain
from segunc.training.langevin import CyclicalSteps, LangevinChain
from segunc.training.progress import say
from segunc.training.resume import CHECKPOINTS, LAST
from segunc.training.selection import spaced
from segunc.training.target import LogPosterior

_BATCHES, _START, _NOISE = range(3)
"""Streams of random numbers of a run."""


def finetune_sgld(
    base: Path, config: Namespace, out: Path, *, device: str = "auto", say: Callable[[str], None] = say
) -> dict[str, Any]:
    """Sample the posterior over the affine parameters by SGLD with cyclical steps, and write the Bayesian model.

    A killed run continues exactly where its last checkpoint stands when called again with the same ``out``.

    Args:
        base: model folder of a deterministic network.
        config: resolved, with :class:`segunc.training.chain_config.SgldConfig` under ``sgld``.
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
    """The same by SGHMC; see :func:`finetune_sgld`, with :class:`segunc.training.chain_config.SghmcConfig` under ``sghmc``."""
    run = _open(base, config, "sghmc", out, device, say)
    return _langevin(run, SGHMC, run.options.momentum)


def finetune_hmc(
    base: Path, config: Namespace, out: Path, *, device: str = "auto", say: Callable[[str], None] = say
) -> dict[str, Any]:
    """The same by Hamiltonian Monte Carlo on all the data at once, with Metropolis correction: the reference.

    See :func:`finetune_sgld`, with :class:`segunc.training.chain_config.HmcConfig` under ``hmc``. The chosen frames are held in
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
