"""One noise for each job: draws in pools, each of which serves some of the jobs that draws have.

Noise that ranks anomalies best makes probabilities underconfident and costs accuracy, so one amount of it cannot do all. Draws of all
pools are draws of one network, in one order, and share whatever of a frame no draw changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch

from segunc.affine.draws import AffineDraws, AffineLayout
from segunc.affine.noise import NoiseSource, Seed
from segunc.affine.posterior import Posterior

JOBS = ("prediction", "probabilities", "anomaly")
"""What draws are for: the most probable class; the mean probabilities and the confidence; all scores that tell what is unknown."""
OF_PREDICTION, OF_SCORES = "mean probabilities of the prediction", "mean probabilities of the scores"
"""Evidence where the pools are several: mean probabilities of the first and the last of the jobs, as ``probabilities`` of the second."""


@dataclass(frozen=True)
class Pool:
    """Draws of one posterior, by their numbers among those of all pools, and the jobs that they do."""

    posterior: Posterior
    draws: range
    jobs: tuple[str, ...]


@runtime_checkable
class Pooled(Protocol):
    """A posterior whose draws may be different for different jobs."""

    def pools(self, draws: int) -> list[Pool]:
        """In the order of their draws, where each pool with noise may have ``draws`` of them; each job is in one of them."""
        ...


class PooledDraws:
    """The draws of several pools as a sampler takes those of one posterior of M members; every pool begins at a multiple of M."""

    def __init__(self, pools: Sequence[Pool]) -> None:
        self.parts = tuple(pools)
        self.members = pools[0].posterior.members

    def affine(self, layout: AffineLayout, draws: Sequence[int], seed: Seed, scope: str | None = None) -> AffineDraws:
        noise, found = NoiseSource.of(seed), []
        for pool in self.parts:
            own = [draw - pool.draws.start for draw in draws if draw in pool.draws]
            if own:
                # The same numbers as of the pool alone: where two jobs have the same noise, they have the same draws.
                source = noise if noise.total is None else replace(noise, total=len(pool.draws))
                found.append(pool.posterior.affine(layout, own, source, scope))
        return AffineDraws(torch.cat([part.weight for part in found]), torch.cat([part.bias for part in found]))


def pools_of(posterior: Any, draws: int) -> list[Pool]:
    """The pools of any posterior: one for all jobs, unless it says otherwise."""
    if isinstance(posterior, Pooled):
        return posterior.pools(draws)
    return [Pool(posterior, range(draws), JOBS)]
