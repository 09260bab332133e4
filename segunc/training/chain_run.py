"""Chains: their states, and running them to their end, resumably."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from segunc.core.errors import PartialFailure
from segunc.core.files import write_atomically
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


class Chain(ABC):
    """A chain that advances step by step; its seed decides it, continued in another process or not.

    Attributes:
        theta: ``[D]`` its state.
        step: steps done.
        total: steps in all.
    """

    theta: Tensor
    step: int
    total: int

    @abstractmethod
    def advance(self) -> bool:
        """One step; whether the state after it belongs to the sample.

        Raises:
            ChainFailure: the chain cannot go on; it stays where it was.
        """

    @abstractmethod
    def describe(self) -> str:
        """The state of the chain in a few words."""

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
    """Run chains one after the other and collect their states.

    Args:
        make_chain: the chain of a number from 0, at its start.
        count: M.
        last: the checkpoint; written atomically, so that a killed run continues exactly where it stood.
        resume: continue from it.

    Returns:
        ``[M, K, D]`` float32, K states of each chain in their order, and the record of each chain.

    Raises:
        PartialFailure: a chain cannot go on. Its last good state and all states so far are in the checkpoint.
    """
    held: dict[str, Any] = {"chain": 0, "state": None, "kept": [], "finished": [], "records": []}
    if resume:
        held = torch.load(last, map_location="cpu", weights_only=True)
    for number in range(held["chain"], count):
        step = 0
        try:
            chain = make_chain(number)
            if held["state"] is not None:
                chain.load_state_dict(held["state"])
            progress = StepProgress(f"finetune: chain {number + 1}/{count}", chain.total, chain.step)
            first = chain.step
            while chain.step < chain.total:
                step = chain.step
                if chain.advance():
                    held["kept"].append(chain.theta.detach().float().cpu())
                held["state"] = chain.state_dict()
                if progress.step(chain.describe()) or step == first:
                    _save(held, last)
            progress.close()
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
