"""The random numbers of draws: each a function of (seed, draw number) alone, in one of three schemes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from segunc.errors import InputError

Scheme = Literal["independent", "antithetic", "latin-hypercube"]
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
Floats = npt.NDArray[np.float32]


def mix_seed(*parts: int) -> int:
    """One 63-bit seed from several integers (numpy's SeedSequence hash); the order matters."""
    return int(np.random.SeedSequence([p & 0xFFFFFFFFFFFFFFFF for p in parts]).generate_state(1, np.uint64)[0] >> 1)


@dataclass(frozen=True)
class NoiseSource:
    """Where posteriors take their random numbers from.

    Draw s belongs to member s mod M and is that member's draw k = s div M. The schemes couple draws of one member:

    * ``independent``: plain Monte Carlo.
    * ``antithetic``: draws come in pairs of opposite sign (Hammersley & Morton 1956), k = 0 with 1, 2 with 3. Whatever is
      odd in the noise cancels within a pair. A last draw without a partner is an independent one.
    * ``latin-hypercube``: for each channel the K draws of a member lie one in each of K equally probable intervals
      (McKay, Beckman & Conover 1979), so each channel's own distribution is covered evenly. The draws then depend on how
      many there are.

    Attributes:
        seed: at least 0.
        scheme: one of the three.
        total: S, the number of draws of the run; needed by ``latin-hypercube``.

    Raises:
        InputError: an unknown scheme, or a Latin hypercube without its number of draws.
    """

    seed: int
    scheme: Scheme = "independent"
    total: int | None = None

    def __post_init__(self) -> None:
        if self.scheme not in SCHEMES:
            raise InputError(f"draw scheme '{self.scheme}'", f"one of {', '.join(SCHEMES)}", "check the spelling")
        if self.scheme == "latin-hypercube" and self.total is None:
            raise InputError("a Latin hypercube without its number of draws", "total", "give the number of draws")

    def normal(self, draws: Sequence[int], length: int, *, members: int = 1, stream: int = 0) -> Tensor:
        """Standard normal numbers, float32 ``[len(draws), length]`` on the CPU.

        Args:
            draws: draw numbers, each at least 0.
            length: numbers a draw.
            members: M.
            stream: posteriors that need several vectors a draw number them.
        """
        if self.scheme == "latin-hypercube":
            # torch's inverse normal distribution function is vectorised and exact to float64's rounding.
            uniform = torch.from_numpy(np.stack([self._stratified(s, length, members, stream) for s in draws]))
            normal: Tensor = torch.special.ndtri(uniform)
            return normal.float()
        rows = [self._normal_row(s, length, members, stream) for s in draws]
        return torch.from_numpy(np.stack(rows))

    def uniform(self, draws: Sequence[int], length: int, *, members: int = 1, stream: int = 0) -> Tensor:
        """Numbers uniform in (0, 1), float32 ``[len(draws), length]``; arguments as in :meth:`normal`."""
        if self.scheme == "latin-hypercube":
            rows = [self._stratified(s, length, members, stream).astype(np.float32) for s in draws]
        else:
            rows = [self._uniform_row(s, length, members, stream) for s in draws]
        return torch.from_numpy(np.stack(rows))

    def _normal_row(self, draw: int, length: int, members: int, stream: int) -> Floats:
        source, sign = self._source(draw, members)
        return np.float32(sign) * self._generator(source, stream).standard_normal(length, dtype=np.float32)

    def _uniform_row(self, draw: int, length: int, members: int, stream: int) -> Floats:
        source, sign = self._source(draw, members)
        row = self._generator(source, stream).random(length, dtype=np.float32)
        return row if sign > 0 else np.float32(1.0) - row

    def _source(self, draw: int, members: int) -> tuple[int, int]:
        """The draw whose numbers are used, and their sign."""
        if self.scheme == "antithetic" and (draw // members) % 2 == 1:
            return draw - members, -1
        return draw, 1

    def _stratified(self, draw: int, length: int, members: int, stream: int) -> npt.NDArray[np.float64]:
        assert self.total is not None
        member, index = draw % members, draw // members
        strata = len(range(member, self.total, members))
        if index >= strata:
            raise InputError(f"draw {draw} of {self.total}", f"draws 0 to {self.total - 1}")
        # One permutation of the strata for each channel, the same for all draws of the member.
        order = (
            self._generator(member, stream, 1).random((length, strata), dtype=np.float32).argsort(axis=1, kind="stable")
        )
        inside = self._generator(draw, stream, 2).random(length)
        uniform: npt.NDArray[np.float64] = (order[:, index] + inside) / strata
        return np.clip(uniform, 2.0**-53, 1.0 - 2.0**-53)

    def _generator(self, draw: int, *stream: int) -> np.random.Generator:
        # A counter-based generator: any draw can be made anywhere, in any order. Stream 0 has no mark of its own.
        return np.random.Generator(np.random.Philox(key=mix_seed(self.seed, draw, *(n for n in stream if n))))
