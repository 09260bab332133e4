"""The protocol of every posterior, and the deterministic one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from segunc.affine.draws import AffineDraws, AffineLayout
from segunc.affine.noise import NoiseSource


@runtime_checkable
class Posterior(Protocol):
    """A way to make affine draws over one network.

    Attributes:
        method: its name in files and on the command line.
        members: M; draw s belongs to member s mod M.
    """

    method: ClassVar[str]

    @property
    def members(self) -> int: ...

    def affine(
        self, layout: AffineLayout, draws: Sequence[int], seed: int | NoiseSource, scope: str | None = None
    ) -> AffineDraws:
        """The draws with the given numbers; each depends on (seed, number) alone.

        Args:
            layout: of the network that the posterior belongs to.
            draws: draw numbers, each at least 0.
            seed: of the noise, or where the noise comes from (a scheme that couples the draws).
            scope: narrower than the posterior's own, or None.
        """
        ...

    def tensors(self) -> dict[str, Tensor]:
        """What ``posterior.safetensors`` holds."""
        ...

    def settings(self) -> dict[str, Any]:
        """What ``posterior.json`` holds beside the sites."""
        ...

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        """The posterior that gave these :meth:`tensors` and :meth:`settings` (among other keys).

        Raises:
            KeyError: one of them is missing.
        """
        ...


class Deterministic:
    """One draw: the trained affine itself."""

    method: ClassVar[str] = "deterministic"
    members = 1

    def affine(
        self, layout: AffineLayout, draws: Sequence[int], seed: int | NoiseSource, scope: str | None = None
    ) -> AffineDraws:
        rows = torch.ones(len(draws), 1, device=layout.device)
        return AffineDraws(rows * layout.weight, rows * layout.bias)

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def settings(self) -> dict[str, Any]:
        return {}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        return cls()
