"""What a file of a lower precision costs: how far its maps are from those of its float32 file, in
every score, on frames of the user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from segunc.core.errors import InputError, one_line
from segunc.exporting.graph import Maps
from segunc.maps.encoding import encode_score, score_keys
from segunc.metrics.rank_agreement import rank_correlation

PREDICTION = "prediction"
NEXT_CODE = 1
"""Codes of the 16-bit map that a float32 file may differ by (:mod:`segunc.exporting.check`)."""
MANY_CODES = 65
"""A thousandth of the 65,535 codes of a score in 0..1."""
RANKED_PIXELS = 1 << 20
"""Pixels of all frames together from which the correlation is computed: every k-th one, so that
memory does not grow with the frames."""

Run = Callable[[Tensor], Maps]
"""Return the maps of an input of the file by name."""


@dataclass(frozen=True)
class ScorePrice:
    """How far the maps of one score are from those of the float32 file.

    Attributes:
        mean: mean value of the maps of the float32 file, in the unit of the score.
        mean_difference: mean absolute difference, in the unit of the score.
        over_next_code: share of the pixels that differ by more than one 16-bit code.
        over_many_codes: share of the pixels that differ by more than 65 codes.
        rank_correlation: Spearman's, over pixels of all frames; 0 where only the maps of the
            lower precision are constant, so that no order is left, and None where those of the
            float32 file are.
    """

    mean: float
    mean_difference: float
    over_next_code: float
    over_many_codes: float
    rank_correlation: float | None


@dataclass(frozen=True)
class Price:
    """What a file of a lower precision costs.

    Attributes:
        frames: on how many frames it was measured.
        changed: share of the pixels whose predicted class is another one.
        scores: the price of each score, by name.
    """

    frames: int
    changed: float
    scores: Mapping[str, ScorePrice]

    def record(self) -> dict[str, Any]:
        """Return the price as a record holds it."""
        return asdict(self)

    def sentence(self, precision: str) -> str:
        """Return the price in one sentence.

        Args:
            precision: of the file, the first word.
        """
        words = (
            f"{precision} changes the predicted class of {100 * self.changed:.2g} % of the pixels "
            f"of {self.frames} frame{'s'[: self.frames != 1]}"
        )
        ranked = [name for name in self.scores if self.scores[name].rank_correlation is not None]
        if ranked:
            worst = min(ranked, key=lambda name: self.scores[name].rank_correlation or 0.0)
            words += (
                f"; the score that keeps its order least is {worst}, "
                f"rank correlation {self.scores[worst].rank_correlation:.3f}"
            )
        return words

    def lines(self) -> tuple[str, ...]:
        """Return the price of each score in one line."""
        lines: list[str] = []
        for name, price in self.scores.items():
            line = (
                f"{name}: mean difference {price.mean_difference:.2g} of a mean of "
                f"{price.mean:.2g}; more than {NEXT_CODE} code at "
                f"{100 * price.over_next_code:.3g} % of the pixels, more than {MANY_CODES} at "
                f"{100 * price.over_many_codes:.3g} %"
            )
            if price.rank_correlation is not None:
                line += f"; rank correlation {price.rank_correlation:.3f}"
            lines.append(line)
        return tuple(lines)


def measure_price(lower: Run, parent: Run, frames: Iterable[Tensor], count: int) -> Price:
    """Return what a file of a lower precision costs.

    Args:
        lower: gives the maps of the file of the lower precision.
        parent: gives the maps of its float32 file.
        frames: inputs of the file, of a frame or a batch each.
        count: how many frames there are, at least 1.

    Raises:
        InputError: the file does not run, or its maps hold NaN or infinite values.
    """
    sums: dict[str, _ScoreSums] = {}
    changed = 0
    pixels = 0
    for frame in frames:
        expected = parent(frame)
        try:
            maps = lower(frame)
        except Exception as error:  # those of the runtimes have no other common type
            raise InputError(f"the file does not run ({one_line(error)})") from error
        for name, values in expected.items():
            if name == PREDICTION:
                changed += int((maps[name] != values).sum())
                pixels += values.size
            else:
                score = sums.setdefault(name, _ScoreSums(name))
                step = max(1, values[0].size * count // RANKED_PIXELS)
                score.add(maps[name], values, step)
    scores = {name: score.price() for name, score in sums.items()}
    return Price(count, changed / pixels, scores)


@dataclass
class _ScoreSums:
    """Sums over the pixels of a score, and the pixels that are ranked."""

    name: str
    pixels: int = 0
    values: float = 0.0
    differences: float = 0.0
    over_next_code: int = 0
    over_many_codes: int = 0
    ranked: list[tuple[npt.NDArray[Any], npt.NDArray[Any]]] = field(default_factory=list)

    def add(self, lower: npt.NDArray[Any], parent: npt.NDArray[Any], step: int) -> None:
        """Add the maps of a frame.

        Args:
            lower: of the file of the lower precision, ``[N, H, W]``.
            parent: of its float32 file.
            step: every how manieth pixel is ranked.
        """
        try:
            lower_keys = score_keys(encode_score(self.name, lower))
        except InputError as error:
            raise error.within(self.name) from error
        parent_keys = score_keys(encode_score(self.name, parent))
        codes = np.abs(lower_keys.astype(int) - parent_keys.astype(int))
        self.pixels += parent.size
        self.values += float(parent.sum(dtype=np.float64))
        self.differences += float(np.abs(lower - parent).sum(dtype=np.float64))
        self.over_next_code += int((codes > NEXT_CODE).sum())
        self.over_many_codes += int((codes > MANY_CODES).sum())
        self.ranked.append((lower_keys.ravel()[::step], parent_keys.ravel()[::step]))

    def price(self) -> ScorePrice:
        """Return the price of the score."""
        lower = np.concatenate([pair[0] for pair in self.ranked])
        parent = np.concatenate([pair[1] for pair in self.ranked])
        correlation = rank_correlation(lower, parent)
        if correlation is None and np.ptp(parent) > 0:
            correlation = 0.0
        return ScorePrice(
            mean=self.values / self.pixels,
            mean_difference=self.differences / self.pixels,
            over_next_code=self.over_next_code / self.pixels,
            over_many_codes=self.over_many_codes / self.pixels,
            rank_correlation=correlation,
        )
