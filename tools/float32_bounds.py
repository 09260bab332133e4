"""What errors the proof of ``docs/float32.md`` allows: the entropies of logits in float64, and the
bound of each in float32. Names are the letters of that page.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[np.float64]
UNIT = 2.0**-24  # the largest relative error of one float32 operation
EXP = 4.0  # assumed: exp errs by at most 4 units, which is 2 ulp
LOG = 4.0  # assumed: the same of log, also near 1
PIXELS = 48
WIDTHS = (0.0, 1.0, 10.0, 300.0)
"""How far the logits of a pixel lie apart: from flat to saturated."""
SPREADS = (0.0, 1e-4, 0.03, 1.0, 30.0)
"""How far the draws lie apart."""


def draws_of_logits(classes: int, draws: int, widths: Sequence[float] = WIDTHS) -> Tensor:
    """Return logits ``[S, C, 1, W]`` float32 of pixels of all widths and spreads."""
    generator = torch.Generator().manual_seed(100 * classes + draws)
    parts = []
    for width, spread in itertools.product(widths, SPREADS):
        base = width * torch.randn(1, classes, 1, PIXELS, generator=generator)
        noise = spread * torch.randn(draws, classes, 1, PIXELS, generator=generator)
        parts.append(base + noise)
    return torch.cat(parts, 3)


class Exact:
    """The probabilities of draws and what is made of them, in float64. Names are the letters of
    ``docs/float32.md``.
    """

    def __init__(self, logits: Tensor, temperature: float) -> None:
        z = logits.double().numpy()[:, :, 0]  # [S, C, W]
        self.draws, self.classes, _ = z.shape
        x = (z - z.max(1, keepdims=True)) / temperature
        total = np.exp(x).sum(1, keepdims=True)
        self.log_total = np.log(total)  # [S, 1, W]
        self.log_p = x - self.log_total
        self.p = np.exp(self.log_p)
        self.q = self.p.mean(0)  # [C, W]
        self.log_q = np.log(np.maximum(self.q, 1e-300))
        self.distance = np.abs(x).clip(max=104.0)  # the tail takes no smaller exponent
        self.mean_distance = (self.p * self.distance).sum(1, keepdims=True)
        # The share by which a probability may be wrong is u times it.
        self.a = 3 * self.distance + 3 * self.mean_distance + 2 * EXP + self.classes

    @property
    def total(self) -> Array:
        """Entropy of the mean, ``[W]`` in nats."""
        return -(self.q * self.log_q).sum(0)

    @property
    def entropies(self) -> Array:
        """Entropy of each draw, ``[S, W]``."""
        return -(self.p * self.log_p).sum(1)

    @property
    def log_ratio(self) -> Array:
        """ln(p / q), ``[S, C, W]``; of close p and q from their difference."""
        with np.errstate(divide="ignore", invalid="ignore"):
            close = np.where(self.p > 0, np.log1p((self.p - self.q) / self.q), 0.0)
        return np.where(np.abs(close) > 0.5, self.log_p - self.log_q, close)

    @property
    def information(self) -> Array:
        """Mutual information, ``[W]``."""
        return (self.p * self.log_ratio - self.p + self.q).sum(1).mean(0)

    @property
    def second_order(self) -> Array:
        """Bound of the products of two errors, ``[W]``."""
        epsilon = UNIT * (self.a + 1)
        of_draws = 4 * epsilon.max((0, 1)) * (self.p * epsilon).sum(1).mean(0)
        return np.asarray(((self.draws + 2) * UNIT) ** 2 + of_draws)

    @property
    def information_bound(self) -> Array:
        ratios = (self.p * np.abs(self.log_ratio) * (self.a + LOG + 3)).sum(1).mean(0)
        differences = np.abs(self.p - self.q).sum(1).mean(0)
        sums = (self.draws + self.classes + 4) * self.information
        return self.second_order + UNIT * (ratios + 2 * differences + sums)

    @property
    def expected_bound(self) -> Array:
        products = (self.p * self.distance * (self.a + self.classes + 4)).sum(1)
        of_total = EXP + 3 * self.mean_distance[:, 0] + self.classes + LOG * self.log_total[:, 0]
        one_draw = of_total + products + self.entropies
        sums = (self.draws + 3) * self.entropies.mean(0)
        return self.second_order + UNIT * (one_draw.mean(0) + sums)

    @property
    def total_bound(self) -> Array:
        of_draws = (self.p * self.a * (np.abs(self.log_q) + 1)).sum(1).mean(0)
        of_mean = self.draws * (self.total + 1)
        sums = (LOG + self.classes + 4) * self.total
        return self.second_order + UNIT * (of_draws + of_mean + sums)
