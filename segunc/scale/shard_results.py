"""What goes to a worker and what comes back: names and numbers, never frames or maps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class ShardTask:
    """One shard of one input.

    Attributes:
        input: the place of the input in the run, from 0.
        number: of the shard, from 1.
        count: shards of this input.
    """

    input: int
    number: int
    count: int


@dataclass(frozen=True)
class ShardResult:
    """How a shard ended.

    Attributes:
        task: which one.
        finished: frames whose maps were written now.
        skipped: frames that an earlier run, or a worker that died, had finished.
        failed: frames that cannot be predicted; the shard's record names them.
        error: why the shard did not reach its end; empty where it did.
        host: the machine that worked on it.
        unusable: the worker could not start, so whatever it is given fails.
        notes: lines for the user.
    """

    task: ShardTask
    finished: int = 0
    skipped: int = 0
    failed: int = 0
    error: str = ""
    host: str = ""
    unusable: bool = False
    notes: tuple[str, ...] = ()

    def to_row(self) -> dict[str, Any]:
        """As a row of a table."""
        return {**asdict(self), "task": asdict(self.task), "notes": "\n".join(self.notes)}

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> ShardResult:
        """The result of a row of :meth:`to_row`."""
        return cls(**{**row, "task": ShardTask(**row["task"]), "notes": tuple(filter(None, row["notes"].split("\n")))})


Work = Callable[[ShardTask], ShardResult]
"""Predicts a shard; everything that is large goes to disk."""
MakeWork = Callable[[], Work]
"""Loads what all shards need, in the worker's process; must be picklable."""
