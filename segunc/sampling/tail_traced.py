"""The tail of a graph: the evidence of a frame from the logits of its draws, in float32 alone.

Runtimes of embedded devices have no float64. The sampler needs it, because it takes epistemic as
the difference of two entropies. Here epistemic is a sum of terms that are all at least 0, so no
difference takes digits away. ``docs/float32.md`` proves a bound of the error.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from segunc.sampling.shortcuts import Upsampling
from segunc.sampling.tail import LOWEST_EXPONENT, OF_LOGITS, DrawAccumulator, LogitSums
from segunc.scores import MUTUAL_INFORMATION
from segunc.uncertainty import entropy_share, per_ln

SMALLEST_NORMAL = torch.finfo(torch.float32).tiny
"""Some runtimes take smaller numbers for 0."""


class GraphAccumulator(DrawAccumulator):
    """Keeps the draws of one frame, and makes its evidence of plain float32 operators.

    The probabilities of all draws are kept, because epistemic compares each with their mean.

    Args:
        classes: C.
        size: (height, width) of the frame.
        needs: names of evidence.
        temperature: T, by which logits are divided before the softmax.
    """

    def __init__(
        self,
        classes: int,
        size: tuple[int, int],
        *,
        needs: Collection[str] = (),
        temperature: float = 1.0,
    ) -> None:
        self.draws = 0
        self.temperature = temperature
        self.logit_sums = None
        if not set(OF_LOGITS).isdisjoint(needs):
            self.logit_sums = GraphLogitSums(needs, temperature)
        self._shape = (classes, *size)
        self._probabilities: list[Tensor] = []  # [C, H, W] of each draw
        self._entropies: list[Tensor] = []  # [H, W] of each draw, in nats

    @property
    def shape(self) -> tuple[int, ...]:
        """(classes, height, width)."""
        return self._shape

    def add(self, logits: Tensor, upsampling: Upsampling) -> None:
        """Add draws ``[S, C, h, w]`` of any floating type, which are upsampled to the frame."""
        for draw in logits:
            # Neither an interpolation nor a difference of two halves can leave float32.
            half_logits = upsampling.apply(draw[None].float() * 0.5)[0]
            if isinstance(self.logit_sums, GraphLogitSums):
                self.logit_sums.add_draw(half_logits)
            shifted = (half_logits - half_logits.amax(0)) * (2.0 / self.temperature)
            # Below it p is 0, and 0 times minus infinity would be NaN.
            shifted = shifted.clamp_min(LOWEST_EXPONENT)
            exponentials = shifted.exp()
            total = exponentials.sum(0)
            probabilities = exponentials / total
            self._probabilities.append(probabilities)
            # H = ln sum exp z - sum p z, with z shifted by its maximum.
            self._entropies.append(total.log() - (probabilities * shifted).sum(0))
            self.draws += 1

    def finish(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the prediction int64 ``[H, W]`` and the evidence of the draws, ``[1, (C,) H, W]``
        float32.
        """
        sums = _sum(self._probabilities)
        mean = sums / self.draws
        share = per_ln(len(mean))
        total = entropy_share(mean[None])
        # One draw is its own mean. The two are sums in different orders, and the stored code is so
        # fine near 0 that it would show it.
        expected = total
        if self.draws > 1:
            expected = (_sum(self._entropies) * (share / self.draws)).clamp_min(0.0)[None]
        evidence = {
            "probabilities": mean[None],
            "total entropy": total,
            "expected entropy": expected,
            MUTUAL_INFORMATION: mutual_information_of_draws(self._probabilities, mean) * share,
            "calibrated entropy": total,  # a calibrator replaces it
        }
        if self.logit_sums is not None:
            evidence |= self.logit_sums.evidence(self.draws)
        return sums.argmax(0), evidence


def mutual_information_of_draws(draws: list[Tensor], mean: Tensor) -> Tensor:
    """Return the mutual information of class and draw ``[1, H, W]`` in nats, float32.

    It is ``sum_c q_c mean_s(w_sc ln w_sc - (w_sc - 1))`` with the ratio ``w = p / q``. In exact
    arithmetic this is the mean over draws of ``sum_c p ln(p / q) - p + q``. Each term is at least
    0 for any p and q. The rounding of w acts like a tiny change of p, so terms near 0 stay exact.

    Args:
        draws: probabilities p ``[C, H, W]`` float32 of each of S draws.
        mean: of the draws, q.
    """
    divisor = mean.clamp_min(SMALLEST_NORMAL)
    terms = []
    for probabilities in draws:
        ratio = probabilities / divisor
        # Where the ratio is 0, 0 times minus infinity would be NaN.
        logarithm = ratio.clamp_min(SMALLEST_NORMAL).log()
        terms.append(ratio * logarithm - (ratio - 1.0))
    information = (_sum(terms) * mean).sum(0) / len(draws)
    return information.clamp_min(0.0)[None]


def _sum(planes: list[Tensor]) -> Tensor:
    """Return the sum of tensors of one shape, added in their order as the sampler adds draws."""
    total = planes[0]
    for plane in planes[1:]:
        total = total + plane
    return total


class GraphLogitSums(LogitSums):
    """The evidence of :class:`segunc.sampling.tail.LogitSums`, in float32.

    The variance is that of the differences to the first draw. So the mean that Welford's update
    subtracts is no larger than these differences, and rounding is small against the variance.
    """

    def __init__(self, needs: Collection[str], temperature: float) -> None:
        self._needs = needs
        self._temperature = temperature
        self._maxima: list[Tensor] = []  # max z [H, W] of each draw
        self._normalisers: list[Tensor] = []  # ln sum exp((z - max z) / T) [H, W] of each draw
        self._half_logits: list[Tensor] = []  # [C, H, W] of each draw

    def add_draw(self, half_logits: Tensor) -> None:
        """Add a draw ``[C, H, W]`` float32: half its logits."""
        maximum = half_logits.amax(0)
        shifted = (half_logits - maximum) * (2.0 / self._temperature)
        self._maxima.append(2.0 * maximum)
        self._normalisers.append(shifted.exp().sum(0).log())
        self._half_logits.append(half_logits)

    def evidence(self, draws: int) -> dict[str, Tensor]:
        """Return the evidence of ``draws`` draws, each ``[1, H, W]``, in units of the logits."""
        max_logit, energy, variance = OF_LOGITS
        maxima = _sum(self._maxima)
        normalisers = _sum(self._normalisers)
        values = {
            max_logit: maxima / -draws,
            energy: (maxima + normalisers * self._temperature) / -draws,
            variance: self._variance(),
        }
        return {name: plane[None] for name, plane in values.items() if name in self._needs}

    def _variance(self) -> Tensor:
        """Return the variance of the logits over the draws, mean over the classes, ``[H, W]``."""
        first = self._half_logits[0]
        mean = torch.zeros_like(first)
        squares = torch.zeros_like(first[0])
        for earlier, half_logits in enumerate(self._half_logits):
            difference = 2.0 * (half_logits - first)
            deviation = difference - mean
            mean = mean + deviation / (earlier + 1)
            squares = squares + deviation.square().sum(0) * (earlier / (earlier + 1))
        return squares / (len(self._half_logits) * len(first))
