"""Deep ensembles: several networks, each deterministic or with a posterior of its own (Lakshminarayanan et al. 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from segunc.affine.branches import Branch, Mixture
from segunc.affine.posterior import Posterior
from segunc.core.errors import InputError


@dataclass(frozen=True)
class EnsembleMember:
    """A network from images to logits of the same classes as the others', and its posterior."""

    network: nn.Module
    posterior: Posterior


class Ensemble(Mixture):
    """Draw s is draw s // M of the posterior of member s mod M, with noise of the member's own.

    Base scores (deterministic-msp, max-logit and so on) are those of member 0.

    Args:
        parts: the M members.

    Raises:
        InputError: fewer than two members.
    """

    method: ClassVar[str] = "ensemble"

    def __init__(self, parts: Sequence[EnsembleMember]) -> None:
        if len(parts) < 2:
            raise InputError(
                f"an ensemble of {len(parts)} network",
                "at least 2 networks",
                "train more: segunc train --seeds 0,1,2,3",
            )
        self.parts = tuple(parts)

    @property
    def members(self) -> int:
        return len(self.parts)

    @property
    def least_draws(self) -> int:
        return self.members * max(part.posterior.members for part in self.parts)

    def branches(self, network: nn.Module) -> list[Branch]:
        count = self.members
        return [Branch(p.network, p.posterior, networks=count, index=i) for i, p in enumerate(self.parts)]

    def settings(self) -> dict[str, Any]:
        return {"parts": [{"method": p.posterior.method, **p.posterior.settings()} for p in self.parts]}
