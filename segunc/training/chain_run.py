"""Chains: their states, and running them to their end, resumably."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from segunc.core.errors import PartialFailure
from segunc.core.files import write_atomically
from segunc.metrics.chains import SHORTEST, effective_sample_size, rank_normalised_rhat
from segunc.training.progress import StepProgress


class ChainFailure(RuntimeError):
    """A chain cannot go on; it stays in its last good state.

    Args:
        reason: what happened.
        remedy: what the user can do now.
    """

    def __init__(self, reason: str, remedy: str) -> None:
        self.reason, self.remedy = reason, remedy
        super().__init__(f"{reason}; {remedy}")


class Chain(Protocol):
    """A chain that advances step by step and can be continued in another process.

    Attributes:
        theta: ``[D]`` its state.
        step: steps done.
        total: steps in all.
    """

    theta: Tensor
    step: int
    total: int

    def advance(self) -> bool:
        """One step; whether the state after it belongs to the sample.

        Raises:
            ChainFailure: the chain cannot go on.
        """
        ...

    def describe(self) -> str:
        """The state of the chain in a few words."""
        ...

    def record(self) -> dict[str, Any]:
        """What the sample was made with, for the provenance."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything that a continued chain needs: tensors, numbers, names and containers of them."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict` of a chain with the same settings."""
        ...


@dataclass(frozen=True)
class ChainSample:
    """The states of M chains.

    Attributes:
        states: ``[M, K, D]`` float32, K states of each chain in their order.
        records: one for each chain, see :meth:`segunc.training.chain_run.Chain.record`.
    """

    states: Tensor
    records: list[dict[str, Any]]

    def convergence(self) -> dict[str, Any]:
        """Rank-normalised split R-hat and bulk effective sample size over the D parameters.

        Keys ``rhat_max``, ``rhat_median``, ``rhat_below_1.1`` (share of the parameters, 0..1), ``ess_min`` and
        ``ess_median``; all None where the chains are too short, with the reason.
        """
        names = ("rhat_max", "rhat_median", "rhat_below_1.1", "ess_min", "ess_median")
        chains, length, count = self.states.shape
        if length < SHORTEST:
            return {**dict.fromkeys(names), "reason": f"{length} states a chain, R-hat needs {SHORTEST}"}
        series = self.states.double().numpy().transpose(2, 0, 1)
        rhat = np.array([rank_normalised_rhat(x) for x in series])
        size = np.array([effective_sample_size(x) for x in series])
        known = np.isfinite(rhat) & np.isfinite(size)
        if not known.any():
            return {**dict.fromkeys(names), "reason": f"none of {count} parameters varies within {chains} chains"}
        rhat, size = rhat[known], size[known]
        values = (rhat.max(), np.median(rhat), (rhat < 1.1).mean(), size.min(), np.median(size))
        return {name: round(float(value), 4) for name, value in zip(names, values, strict=True)}


def run_chains(
    make_chain: Callable[[int], Chain], count: int, last: Path, *, resume: bool = False, label: str = "finetune"
) -> ChainSample:
    """Run chains one after the other and collect their states.

    Args:
        make_chain: the chain of a number from 0, at its start.
        count: M.
        last: the checkpoint; written atomically, so that a killed run continues exactly where it stood.
        resume: continue from it.
        label: what stands before lines of progress.

    Raises:
        PartialFailure: a chain cannot go on. Its last good state and all states so far are in the checkpoint.
    """
    held: dict[str, Any] = {"chain": 0, "state": None, "kept": [], "finished": [], "records": []}
    if resume:
        held = torch.load(last, map_location="cpu", weights_only=True)
    while held["chain"] < count:
        _run_one(make_chain, count, held, last, label)
        held["finished"].append(torch.stack(held["kept"]))
        held.update(chain=held["chain"] + 1, state=None, kept=[])
        _save(held, last)
    return ChainSample(torch.stack(held["finished"]), held["records"])


def _run_one(make_chain: Callable[[int], Chain], count: int, held: dict[str, Any], last: Path, label: str) -> None:
    """The chain under way from where it stands to its end; ``held`` gathers what it leaves."""
    number = held["chain"]
    step, first = 0, True
    try:
        chain = make_chain(number)
        if held["state"] is not None:
            chain.load_state_dict(held["state"])
        progress = StepProgress(f"{label}: chain {number + 1}/{count}", chain.total, chain.step)
        while chain.step < chain.total:
            step = chain.step
            if chain.advance():
                held["kept"].append(chain.theta.detach().float().cpu())
            held["state"] = chain.state_dict()
            if progress.step(chain.describe()) or first:
                _save(held, last)
            first = False
        progress.close()
    except ChainFailure as failure:
        _save(held, last)
        raise PartialFailure(
            f"chain {number + 1} of {count} stopped at step {step}: {failure.reason}; its last good state and the "
            f"{len(held['kept']) + sum(map(len, held['finished']))} states collected are in {last}; {failure.remedy}, and give another --out"
        ) from failure
    held["records"].append(chain.record())


def _save(held: dict[str, Any], last: Path) -> None:
    buffer = io.BytesIO()
    torch.save(held, buffer)
    write_atomically(last, buffer.getvalue())
