"""The random numbers of draws, in one of three schemes.

Those of a draw are a function of (seed, draw number) alone, or of (seed, draw number, S) for a
Latin hypercube of S draws.
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
"""The sampler's scheme. At 24 draws it has the smallest error of epistemic, and the second smallest
of entropy (docs/mechanisms.md, "How to spread draws").
"""


def mix_seed(*parts: int) -> int:
    """Return one 63-bit seed of several integers in their order (numpy's SeedSequence hash)."""
    sequence = np.random.SeedSequence([part & 0xFFFFFFFFFFFFFFFF for part in parts])
    return int(sequence.generate_state(1, np.uint64)[0] >> 1)


def draw_noise(seed: int, draws: Sequence[int], length: int) -> Tensor:
    """Return standard normal numbers, float32 ``[len(draws), length]`` on the CPU.

    Row i depends on (seed, draws[i]) alone.
    """
    rows = [_generator(seed, draw).standard_normal(length, dtype=np.float32) for draw in draws]
    return torch.from_numpy(np.stack(rows))


def draw_uniform(seed: int, draws: Sequence[int], length: int) -> Tensor:
    """Return uniform numbers in [0, 1), as :func:`draw_noise` returns normal ones."""
    rows = [_generator(seed, draw).random(length, dtype=np.float32) for draw in draws]
    return torch.from_numpy(np.stack(rows))


def _generator(*key: int) -> np.random.Generator:
    # A counter-based generator: any draw can be made anywhere, in any order.
    return np.random.Generator(np.random.Philox(key=mix_seed(*key)))


@dataclass(frozen=True)
class NoiseSource:
    """Where posteriors take their random numbers from.

    Draw s belongs to member s mod M and is that member's draw k = s div M. The schemes are:

    * ``independent``: plain Monte Carlo.
    * ``antithetic``: draws k = 0 and 1, 2 and 3 of a member have opposite signs, so that what is
      odd in the noise cancels (Hammersley & Morton 1956).
    * ``latin-hypercube``: for each channel the K draws of a member lie one in each of K equally
      probable intervals (McKay, Beckman & Conover 1979). The draws then depend on their number.

    Attributes:
        seed: at least 0.
        scheme: one of the above.
        total: S, the number of draws of the run; a Latin hypercube needs it.
    """

    seed: int
    scheme: Scheme = "independent"
    total: int | None = None

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
        """Return the source of independent draws from a seed; a source as it is."""
        return seed if isinstance(seed, NoiseSource) else cls(seed)

    def normal(self, draws: Sequence[int], length: int, *, members: int = 1) -> Tensor:
        """Return standard normal numbers, float32 ``[len(draws), length]`` on the CPU.

        Args:
            draws: their numbers, at least 0.
            length: how many numbers a draw needs.
            members: M.
        """
        if self.scheme == "latin-hypercube":
            uniform = torch.from_numpy(self._stratified(draws, length, members))
            # torch's inverse normal distribution function is vectorised and exact to float64's
            # rounding.
            normal: Tensor = torch.special.ndtri(uniform)
            return normal.float()
        sources, mirrored = self._sources(draws, members)
        return draw_noise(self.seed, sources, length) * torch.where(mirrored, -1.0, 1.0)

    def uniform(self, draws: Sequence[int], length: int, *, members: int = 1) -> Tensor:
        """Return numbers uniform in 0..1, float32 ``[len(draws), length]``, as :meth:`normal`."""
        if self.scheme == "latin-hypercube":
            return torch.from_numpy(self._stratified(draws, length, members)).float()
        sources, mirrored = self._sources(draws, members)
        uniform = draw_uniform(self.seed, sources, length)
        return torch.where(mirrored, 1.0 - uniform, uniform)

    def _sources(self, draws: Sequence[int], members: int) -> tuple[list[int], Tensor]:
        """Return the draws whose numbers are used, and ``[len(draws), 1]`` whether they are
        mirrored.
        """
        sources = []
        mirrored = []
        for draw in draws:
            is_mirrored = self.scheme == "antithetic" and (draw // members) % 2 == 1
            mirrored.append(is_mirrored)
            sources.append(draw - members if is_mirrored else draw)
        return sources, torch.tensor(mirrored)[:, None]

    def _stratified(
        self, draws: Sequence[int], length: int, members: int
    ) -> npt.NDArray[np.float64]:
        """Return uniform numbers in (0, 1), ``[len(draws), length]``, of a Latin hypercube."""
        assert self.total is not None
        # One permutation of the strata for each channel, the same for all draws of a member.
        orders: dict[int, npt.NDArray[np.int64]] = {}
        rows = []
        for draw in draws:
            member = draw % members
            index = draw // members
            strata = len(range(member, self.total, members))
            if index >= strata:
                raise InputError(
                    f"draw {draw} is beyond the last of {self.total} draws, {self.total - 1}"
                )
            if member not in orders:
                keys = _generator(self.seed, member, 1).random((length, strata), dtype=np.float32)
                orders[member] = keys.argsort(1, kind="stable")
            within_stratum = _generator(self.seed, draw, 2).random(length)
            rows.append((orders[member][:, index] + within_stratum) / strata)
        return np.clip(np.stack(rows), 2.0**-53, 1.0 - 2.0**-53)


Seed = int | NoiseSource


class TrainingNoise(NoiseSource):
    """Independent numbers, of which draw s takes those of k = s div M: the images of a batch are
    the draws k of the member whose turn it is.
    """

    def _sources(self, draws: Sequence[int], members: int) -> tuple[list[int], Tensor]:
        sources = [draw // members for draw in draws]
        return sources, torch.zeros(len(draws), 1, dtype=torch.bool)
