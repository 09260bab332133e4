"""Where a verb computes, and how precisely."""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from segunc.affine.branches import branches_of
from segunc.affine.draws import AffineLayout
from segunc.affine.noise import DEFAULT_SCHEME
from segunc.affine.scope import in_scope
from segunc.core.device import describe_device, resolve_device, resolve_precision
from segunc.core.errors import InputError
from segunc.maps.manifest import environment, tool_commit
from segunc.posteriors.files import Model
from segunc.sampling.sampler import Sampler
from segunc.scores import DEFAULT_SCORES


def make_sampler(model: Model, arguments: argparse.Namespace, scores: Sequence[str] = DEFAULT_SCORES) -> Sampler:
    """The sampler that a verb's sampling options describe; also sets the thread count and denormal handling.

    Args:
        model: with its temperature and its max-logit statistics.
        arguments: draws, seed, scope, chunk, precision, threads, device and compile, whose ``auto`` is off until the caller
            knows how much there is to compute.
        scores: that the sampler is to return.
    """
    if arguments.draws < 1:
        raise InputError(f"--draws {arguments.draws}", "at least 1", "the default is 24")
    # Dead channels (running variances of 1e-45) make denormal numbers, which CPUs multiply very slowly.
    torch.set_flush_denormal(True)
    if arguments.threads is not None:
        if arguments.threads < 1:
            raise InputError(f"--threads {arguments.threads}", "at least 1", "leave it out for all cores")
        torch.set_num_threads(arguments.threads)
    device = resolve_device(arguments.device)
    if arguments.scope is not None:
        if not model.bayesian:
            raise InputError(
                f"--scope {arguments.scope} with a deterministic model", "a Bayesian model", "leave --scope out"
            )
        _check_scope(arguments.scope, model)
    model.place(device)
    return Sampler(
        model.network,
        model.posterior if model.bayesian else None,
        draws=arguments.draws,
        seed=arguments.seed,
        scheme=arguments.scheme or DEFAULT_SCHEME,
        scope=arguments.scope,
        chunk=arguments.chunk,
        precision=resolve_precision(arguments.precision, device),
        compiled=arguments.compile == "on",
        scores=scores,
        temperature=model.temperature,
        max_logit_statistics=model.max_logit_statistics,
    )


def _check_scope(scope: str, model: Model) -> None:
    """Fail here, not at every frame."""
    drawn = [b for b in branches_of(model.network, model.posterior) if b.stochastic]
    if not drawn:
        raise InputError(
            f"--scope {scope} with the method {model.posterior.method} of networks without noise",
            "a posterior over the affine parameters",
            "leave --scope out",
        )
    for branch in drawn:
        layout = AffineLayout(branch.network)
        in_scope(scope, layout.dropout_names or layout.names)


def provenance(device: torch.device | None = None) -> dict[str, Any]:
    """Command, date, hardware, versions and commit.

    Args:
        device: that the numbers were measured on; None is the CPU.
    """
    return {
        "command": " ".join(["python", Path(sys.argv[0]).as_posix(), *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": f"{processor()}, {describe_device(device or torch.device('cpu'))}",
        "versions": environment(),
        "commit": tool_commit(),
    }


def processor() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
