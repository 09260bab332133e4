"""Standardized max-logit, with its boundary suppression and dilated smoothing (Jung et al., ICCV 2021, arXiv 2107.11264).

The max logit of a class has its own scale: 12 may be low for road and high for pole. Its mean and standard deviation
over the training set make classes comparable. Around the borders between predicted classes the max logit is low for
reasons that have nothing to do with anomalies, so values there are replaced by those beside them, from the outer edge of
a band inwards; a sparse Gaussian then levels single pixels.

The definitions of border and padding are those of the authors' published code, at the size of the logits.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from segunc.bayes.attachments import MaxLogitStatistics
from segunc.errors import InputError

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
