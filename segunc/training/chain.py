"""What every Markov chain over the affine parameters offers to the run that drives it."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor


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
