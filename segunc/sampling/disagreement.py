"""How much draws disagree, summed draw by draw: variance, variation ratio and expected pairwise KL.

With n draws p_1 ... p_n, their running mean and the deviation d = p_n - mean of the n - 1 draws before it, a sum of
squared (or crossed) deviations from the mean grows by ``(n - 1) / n`` times d squared (or d times the other's
deviation): Welford 1962. Nothing is subtracted in the end, so a disagreement of 1e-9 keeps its digits, where
``mean p^2 - (mean p)^2`` in float32 would be rounding noise.

Expected pairwise KL is such a sum too. The mean over ordered pairs i != j of ``sum_c p_ic (l_ic - l_jc)``, l = ln p,
is half the mean of ``sum_c (p_ic - p_jc)(l_ic - l_jc)`` (the pairs (i, j) and (j, i) together), and a sum over all pairs
of products of differences is 2 S times the sum of products of deviations from the mean. So it equals
``sum_c cov(p_c, ln p_c)`` over the draws with divisor S - 1. Deviations of p sum to 0 over the classes, so a constant
added to all l of a draw changes nothing: logits stand for ln p, and no logarithm of an underflown p is ever taken.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor


class DisagreementSums:
    """Sums of one frame behind some scores of :data:`segunc.sampling.prediction.DISAGREEMENT_SCORES`.

    Memory does not depend on the number of draws: a plane ``[H, W]`` for the variance, a volume ``[C, H, W]`` of int16
    votes for the variation ratio, a float32 volume and a plane for expected pairwise KL.

    Args:
        names: the scores to keep sums for.
        classes: C.
        size: (height, width) of the logits.
        device: where the sums live.
    """

    def __init__(self, names: Collection[str], classes: int, size: tuple[int, int], device: torch.device) -> None:
        self._classes = classes
        self._squares: Tensor | None = None
        self._votes: Tensor | None = None
        self._crossed: Tensor | None = None
        if "variance" in names:
            self._squares = torch.zeros(size, device=device)
        if "variation-ratio" in names:
            self._votes = torch.zeros(classes, *size, device=device, dtype=torch.int16)
            self._rank = torch.arange(classes, 0, -1, device=device, dtype=torch.int16).view(-1, 1, 1)
        if "expected-pairwise-kl" in names:
            self._crossed = torch.zeros(size, device=device)
            self._logits = torch.zeros(classes, *size, device=device)

    def add(self, rows: slice, logits: Tensor, probabilities: Tensor, earlier: Tensor, draws: int) -> None:
        """Add one draw's strip of rows.

        Args:
            rows: which rows of the frame.
            logits: ``[C, rows, W]`` float32 less their maximum at each pixel, so that the largest is 0.
            probabilities: ``[C, rows, W]`` their softmax.
            earlier: ``[C, rows, W]`` sum of the probabilities of the draws before.
            draws: how many draws were added before.
        """
        if self._votes is not None:
            if draws == torch.iinfo(self._votes.dtype).max:
                self._votes = self._votes.int()
            # The first of the classes whose logit is the maximum: ten times as fast as argmax over the outer axis.
            winners = self._classes - ((logits == 0) * self._rank).amax(0, keepdim=True).long()
            self._votes[:, rows].scatter_add_(0, winners, torch.ones_like(winners, dtype=self._votes.dtype))
        if draws and (self._squares is not None or self._crossed is not None):
            share = draws / (draws + 1)
            deviation = probabilities - earlier / draws
            if self._squares is not None:
                self._squares[rows] += deviation.square().sum(0) * share
            if self._crossed is not None:
                self._crossed[rows] += deviation.mul_(logits - self._logits[:, rows] / draws).sum(0) * share
        if self._crossed is not None:
            self._logits[:, rows] += logits

    def scores(self, draws: int) -> dict[str, Tensor]:
        """The scores of ``draws`` draws, each ``[H, W]`` float32: variance and ratio in 0..1, KL in nats."""
        found: dict[str, Tensor] = {}
        if self._squares is not None:
            found["variance"] = self._squares / (draws * self._classes)
        if self._votes is not None:
            found["variation-ratio"] = 1.0 - self._votes.amax(0) / draws
        if self._crossed is not None:
            # Never negative but for rounding; one draw has no pair, and its sum is 0.
            found["expected-pairwise-kl"] = (self._crossed / max(1, draws - 1)).clamp_min_(0.0)
        return found
