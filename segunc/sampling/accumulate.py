"""Sums over draws, added one draw at a time, and the scores made of them.

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
import torch.nn.functional as F
from torch import Tensor

from segunc.core.errors import InputError
from segunc.posteriors.max_logit import MaxLogitStatistics
from segunc.uncertainty import entropy_share, per_ln

DISAGREEMENT = ("variance", "votes", "covariance")
"""Evidence of :data:`segunc.scores.EVIDENCE` that needs sums of its own."""


class DisagreementSums:
    """Sums of one frame behind the evidence of :data:`DISAGREEMENT`.

    Memory does not depend on the number of draws: a plane ``[H, W]`` for the variance, a volume ``[C, H, W]`` of int16
    votes, a float32 volume and a plane for the covariance.

    Args:
        needs: the evidence to keep sums for.
        classes: C.
        size: (height, width) of the logits.
        device: where the sums live.
    """

    def __init__(self, needs: Collection[str], classes: int, size: tuple[int, int], device: torch.device) -> None:
        self._classes = classes
        self._squares: Tensor | None = None
        self._votes: Tensor | None = None
        self._crossed: Tensor | None = None
        if "variance" in needs:
            self._squares = torch.zeros(size, device=device)
        if "votes" in needs:
            self._votes = torch.zeros(classes, *size, device=device, dtype=torch.int16)
            self._rank = torch.arange(classes, 0, -1, device=device, dtype=torch.int16).view(-1, 1, 1)
        if "covariance" in needs:
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

    def evidence(self, draws: int) -> dict[str, Tensor]:
        """The evidence of ``draws`` draws, each ``[1, (C,) H, W]`` float32, see :data:`segunc.scores.EVIDENCE`."""
        found: dict[str, Tensor] = {}
        if self._squares is not None:
            found["variance"] = self._squares / (draws * self._classes)
        if self._votes is not None:
            found["votes"] = self._votes / draws
        if self._crossed is not None:
            # Never negative but for rounding; one draw has no pair, and its sum is 0.
            found["covariance"] = (self._crossed / max(1, draws - 1)).clamp_min_(0.0)
        return {name: values[None] for name, values in found.items()}


# Standardized max-logit, with its boundary suppression and dilated smoothing (Jung et al., ICCV 2021, arXiv 2107.11264).
#
# The max logit of a class has its own scale: 12 may be low for road and high for pole. Its mean and standard deviation
# over the training set make classes comparable. Around the borders between predicted classes the max logit is low for
# reasons that have nothing to do with anomalies, so values there are replaced by those beside them, from the outer edge of
# a band inwards; a sparse Gaussian then levels single pixels.
#
# The definitions of border and padding are those of the authors' published code, at the size of the logits.

BOUNDARY_WIDTHS = (3, 2, 1, 0)
"""By how many pixels (L1 distance) the border is widened in each pass of the suppression."""
KERNEL, SIGMA, DILATION = 7, 1.0, 6
"""Taps of the smoothing in each direction, their Gaussian's standard deviation in taps, and the step between taps in pixels."""


def standardized_max_logit(logits: Tensor, statistics: MaxLogitStatistics) -> Tensor:
    """The anomaly score ``-(max_c z_c - mean_c) / std_c``, c the predicted class, suppressed at borders and smoothed.

    Args:
        logits: ``[n, C, H, W]`` of any floating type.
        statistics: per class, of the training set.

    Returns:
        ``[n, H, W]`` float32, unbounded, in standard deviations.

    Raises:
        InputError: statistics of another number of classes.
    """
    if len(statistics.mean) != logits.shape[1]:
        raise InputError(
            f"max-logit statistics of {len(statistics.mean)} classes for logits of {logits.shape[1]}",
            "statistics of this network",
            "fit them again",
        )
    largest, predicted = logits.max(1)
    mean = torch.tensor(statistics.mean, device=logits.device)
    deviation = torch.tensor(statistics.std, device=logits.device)
    score = (mean[predicted] - largest.float()) / deviation[predicted]
    return smooth(suppress_boundaries(score, predicted))


def find_boundaries(predicted: Tensor) -> Tensor:
    """Where predicted class ids ``[n, H, W]`` meet: bool ``[n, H, W]``.

    A pixel whose largest id among itself and its four neighbours is not the smallest among its eight neighbours and
    itself; the frame's edge is no border.
    """
    ids = predicted.float()
    return _dilate(ids) != -F.max_pool2d(-ids, 3, stride=1, padding=1)


def suppress_boundaries(score: Tensor, predicted: Tensor) -> Tensor:
    """Replace values near borders, pass by pass from a wide band to the border itself.

    In each pass a pixel of the band becomes the mean of those of its 3 x 3 neighbours that are outside of the band (values
    and band are repeated beyond the frame's edge); one without such a neighbour keeps its value.

    Args:
        score: ``[n, H, W]`` float32.
        predicted: ``[n, H, W]`` class ids.
    """
    bands = [find_boundaries(predicted).float()]
    for _ in range(max(BOUNDARY_WIDTHS)):
        bands.append(_dilate(bands[-1]))
    for width in BOUNDARY_WIDTHS:
        outside = 1.0 - bands[width]
        count = _neighbourhood_sum(outside)
        mean = _neighbourhood_sum(score * outside) / count
        score = torch.where((bands[width] > 0) & (count > 0), mean, score)
    return score


def smooth(score: Tensor) -> Tensor:
    """A Gaussian of 7 x 7 taps, six pixels apart, over ``[n, H, W]``; the edge values are repeated outwards."""
    taps = torch.arange(KERNEL, dtype=torch.float64) - KERNEL // 2
    weights = torch.exp(-taps.square() / (2 * SIGMA**2))
    # The two-dimensional kernel is the product of two of one dimension, each of which sums to 1.
    kernel = (weights / weights.sum()).to(score)
    reach = KERNEL // 2 * DILATION
    padded = F.pad(score[:, None], (reach, reach, reach, reach), mode="replicate")
    rows = F.conv2d(padded, kernel.view(1, 1, KERNEL, 1), dilation=(DILATION, 1))
    return F.conv2d(rows, kernel.view(1, 1, 1, KERNEL), dilation=(1, DILATION))[:, 0]


def _dilate(values: Tensor) -> Tensor:
    """The largest value among a pixel and its four neighbours inside of the frame."""
    vertical = F.max_pool2d(values, (3, 1), stride=1, padding=(1, 0))
    return torch.maximum(vertical, F.max_pool2d(values, (1, 3), stride=1, padding=(0, 1)))


def _neighbourhood_sum(values: Tensor) -> Tensor:
    padded = F.pad(values[:, None], (1, 1, 1, 1), mode="replicate")
    return F.avg_pool2d(padded, 3, stride=1, divisor_override=1)[:, 0]


# Streaming sums over draws: S draws of logits become the sum of p and the sum of H(p), never S x C x H x W.
#
# Draws are added one at a time and in their order, in strips of rows of a fixed size, so that neither the chunk size
# nor the number of frames in a batch changes a sum.

STRIP_BYTES = 1 << 20
"""Working memory of one strip: it should stay in the cache while the passes of the softmax go over it."""


class DrawAccumulator:
    """Sums over the draws of one frame.

    Args:
        classes: C.
        size: (height, width) of the logits.
        device: where the sums live.
        needs: the evidence that will be asked for; of how much the draws disagree sums are kept only then.
        temperature: T, by which every draw's logits are divided before the softmax.
    """

    def __init__(
        self,
        classes: int,
        size: tuple[int, int],
        device: torch.device,
        *,
        needs: Collection[str] = (),
        temperature: float = 1.0,
    ) -> None:
        self.probabilities = torch.zeros(classes, *size, device=device)
        # float64: epistemic is a small difference of two entropies, and this plane is 1 / C of the probabilities' memory.
        self.entropy = torch.zeros(size, device=device, dtype=torch.float64)
        self.draws = 0
        self.temperature = temperature
        further = [name for name in DISAGREEMENT if name in needs]
        self.disagreement = DisagreementSums(further, classes, size, device) if further else None
        self._rows = max(1, STRIP_BYTES // (4 * classes * size[1])) if device.type == "cpu" else size[0]

    def add(self, logits: Tensor) -> None:
        """Add one draw's logits ``[C, H, W]`` of any floating type; sums are kept in float32."""
        for top in range(0, logits.shape[1], self._rows):
            rows = slice(top, top + self._rows)
            # One contiguous float32 copy: the passes below then run along rows whatever the layout was.
            z = logits[:, rows].to(torch.float32, copy=True, memory_format=torch.contiguous_format)
            if self.temperature != 1.0:
                z /= self.temperature
            z -= z.amax(0)
            p = z.exp()
            total = p.sum(0)
            p /= total
            if self.disagreement is not None:
                self.disagreement.add(rows, z, p, self.probabilities[:, rows], self.draws)
            self.probabilities[:, rows] += p
            # H = ln sum exp z - sum p z, with z shifted by its maximum.
            self.entropy[rows] += total.log_().sub_(p.mul_(z).sum(0)).clamp_min_(0.0)
        self.draws += 1

    def entropies(self) -> tuple[Tensor, Tensor]:
        """Total and expected entropy of the draws so far, as shares of ln C, each ``[H, W]`` float64."""
        total = torch.empty_like(self.entropy)
        for top in range(0, len(total), self._rows):
            rows = slice(top, top + self._rows)
            total[rows] = entropy_share(self.probabilities[None, :, rows].double() / self.draws)[0]
        return total, self.entropy * (per_ln(len(self.probabilities)) / self.draws)
