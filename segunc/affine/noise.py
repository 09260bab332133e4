"""The random numbers of draws: each a function of (seed, draw number) alone, in one of three
schemes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from segunc.core.errors import InputError

Scheme = Literal["independent", "antithetic", "latin-hypercube"]
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
DEFAULT_SCHEME: Scheme = "latin-hypercube"
"""Of the sampler: at 24 draws the smallest error of epistemic, and of entropy next to it
(docs/mechanisms.md, "How to spread draws").
"""


def mix_seed(*parts: int) -> int:
    """Return one 63-bit seed from several integers (numpy's SeedSequence hash); the order
    matters.
    """
    return int(
        np.random.SeedSequence([p & 0xFFFFFFFFFFFFFFFF for p in parts]).generate_state(
            1, np.uint64
        )[0]
        >> 1
    )


def draw_noise(seed: int, draws: Sequence[int], length: int) -> Tensor:
    """Return standard normal ``[len(draws), length]`` float32 on the CPU; row i depends on (seed,
    draws[i]) alone.
    """
    return torch.from_numpy(
        np.stack([_generator(seed, s).standard_normal(length, dtype=np.float32) for s in draws])
    )


def draw_uniform(seed: int, draws: Sequence[int], length: int) -> Tensor:
    """Return uniform numbers in [0, 1) as :func:`draw_noise` makes normal ones: ``[len(draws),
    length]`` float32.
    """
    return torch.from_numpy(
        np.stack([_generator(seed, s).random(length, dtype=np.float32) for s in draws])
    )


def _generator(*key: int) -> np.random.Generator:
    # A counter-based generator: any draw can be made anywhere, in any order.
    return np.random.Generator(np.random.Philox(key=mix_seed(*key)))


@dataclass(frozen=True)
class NoiseSource:
    """Where posteriors take their random numbers from. Draw s belongs to member s mod M and is that
    member's draw k = s div M. Schemes:

    * ``independent``: plain Monte Carlo.
    * ``antithetic``: draws k = 0 and 1, 2 and 3 of a member have opposite signs (Hammersley &
      Morton 1956): what is odd in it cancels.
    * ``latin-hypercube``: for each channel the K draws of a member lie one in each of K equally
      probable intervals (McKay, Beckman & Conover 1979). The draws then depend on how many there
      are.
    """

    seed: int  # at least 0
    scheme: Scheme = "independent"
    total: int | None = None  # S, the number of draws of the run; needed by latin-hypercube

    def __post_init__(self) -> None:
        if self.scheme not in SCHEMES:
            raise InputError(
                f"draw scheme '{self.scheme}' is none of {', '.join(SCHEMES)}",
                hint="check the spelling",
            )
        if self.scheme == "latin-hypercube" and self.total is None:
            raise InputError("a Latin hypercube needs its number of draws", hint="give total")

    @classmethod
    def of(cls, seed: int | NoiseSource) -> NoiseSource:
        """Return independent draws from a seed; a source as it is."""
        return seed if isinstance(seed, NoiseSource) else cls(seed)

    def normal(self, draws: Sequence[int], length: int, *, members: int = 1) -> Tensor:
        """Return standard normal numbers, float32 ``[len(draws), length]`` on the CPU, for draw
        numbers of at least 0 and M members.
        """
        if self.scheme == "latin-hypercube":
            # torch's inverse normal distribution function is vectorised and exact to float64's
            # rounding.
            normal: Tensor = torch.special.ndtri(
                torch.from_numpy(self._stratified(draws, length, members))
            )
            return normal.float()
        sources, odd = self._sources(draws, members)
        return draw_noise(self.seed, sources, length) * torch.where(odd, -1.0, 1.0)

    def uniform(self, draws: Sequence[int], length: int, *, members: int = 1) -> Tensor:
        """Return numbers uniform in 0..1, float32 ``[len(draws), length]``; arguments as in
        :meth:`normal`.
        """
        if self.scheme == "latin-hypercube":
            return torch.from_numpy(self._stratified(draws, length, members)).float()
        sources, odd = self._sources(draws, members)
        uniform = draw_uniform(self.seed, sources, length)
        return torch.where(odd, 1.0 - uniform, uniform)

    def _sources(self, draws: Sequence[int], members: int) -> tuple[list[int], Tensor]:
        """Return the draws whose numbers are used, and ``[len(draws), 1]`` whether they are
        mirrored.
        """
        odd = [self.scheme == "antithetic" and (s // members) % 2 == 1 for s in draws]
        return [s - members if o else s for s, o in zip(draws, odd, strict=True)], torch.tensor(
            odd
        )[:, None]

    def _stratified(
        self, draws: Sequence[int], length: int, members: int
    ) -> npt.NDArray[np.float64]:
        assert self.total is not None
        # One permutation of the strata for each channel, the same for all draws of a member.
        orders: dict[int, npt.NDArray[np.int64]] = {}
        rows = []
        for draw in draws:
            member, index = draw % members, draw // members
            strata = len(range(member, self.total, members))
            if index >= strata:
                raise InputError(
                    f"draw {draw} is beyond the last of {self.total} draws, {self.total - 1}"
                )
            if member not in orders:
                keys = _generator(self.seed, member, 1).random((length, strata), dtype=np.float32)
                orders[member] = keys.argsort(1, kind="stable")
            rows.append(
                (orders[member][:, index] + _generator(self.seed, draw, 2).random(length)) / strata
            )
        return np.clip(np.stack(rows), 2.0**-53, 1.0 - 2.0**-53)


Seed = int | NoiseSource


class TrainingNoise(NoiseSource):
    """Independent numbers of which draw s takes those of k = s div M: the images of a batch are the
    k of the member whose turn it is.
    """

    def _sources(self, draws: Sequence[int], members: int) -> tuple[list[int], Tensor]:
        return [s // members for s in draws], torch.zeros(len(draws), 1, dtype=torch.bool)
