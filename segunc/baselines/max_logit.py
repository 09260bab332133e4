"""Statistics of the max logit on the training set, for the score standardized-max-logit (Jung et al., arXiv 2107.11264).

Pixels are counted by the class that the network predicts, labelled or not: at prediction there are no labels either.
Frames are not augmented, and the network sees them at the size at which it will predict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from segunc.affine.posterior import Deterministic
from segunc.baselines.scores import MAX_LOGIT_STATISTICS
from segunc.core.bounds import NonNegativeInt, Settings
from segunc.core.device import flushed_denormals, resolve_device, to_device
from segunc.core.errors import InputError
from segunc.core.files import json_sha256
from segunc.posteriors.fitting import fitted_on, frames_as_seen, load_for_fitting
from segunc.posteriors.methods import Method
from segunc.posteriors.model import Attachment
from segunc.sampling.engine import draw_logits
from segunc.training.config import FitConfig
from segunc.training.progress import Say, say

MIN_PIXELS = 100  # a class predicted for fewer pixels has no standard deviation worth dividing by
BOUNDARY_WIDTHS = (3, 2, 1, 0)  # by how many pixels (L1 distance) the border is widened in each pass of the suppression
KERNEL, SIGMA, DILATION = 7, 1.0, 6
"""Taps of the smoothing in each direction, their Gaussian's standard deviation in taps, and their step in pixels."""


@dataclass(frozen=True)
class MaxLogitStatistics(Attachment):
    """How large the max logit of a pixel is where the base network predicts each class; the posterior has no part in it."""

    file: ClassVar[str] = "max_logit_statistics.json"
    what: ClassVar[str] = "max-logit statistics"

    mean: tuple[float, ...]  # one number a class
    std: tuple[float, ...]  # above 0
    pixels: tuple[int, ...]  # for which each class was predicted
    fitted_on: Mapping[str, Any]  # the data set, its split, the size that the network saw, and the date
    frames: int
    base_sha256: str

    gives = frozenset({MAX_LOGIT_STATISTICS})

    def record(self) -> dict[str, Any]:
        return {"max_logit_statistics_sha256": json_sha256([self.mean, self.std])}

    def __call__(self, *_: object) -> dict[str, Any]:
        """Return themselves, a constant."""
        return {MAX_LOGIT_STATISTICS: self}


def standardized_max_logit(logits: Tensor, statistics: MaxLogitStatistics) -> Tensor:
    """Return the anomaly score ``-(max_c z_c - mean_c) / std_c`` of logits ``[n, C, H, W]``, c the predicted class, suppressed at borders
    and smoothed: float32 ``[n, H, W]``, in standard deviations.

    Jung et al., ICCV 2021, arXiv 2107.11264; border and padding are those of the authors' published code. Around the borders between
    predicted classes the max logit is low for reasons that have nothing to do with anomalies, so values there are replaced by those
    beside them, from the outer edge of a band inwards; a sparse Gaussian then levels single pixels.
    """
    largest, predicted = logits.max(1)
    mean, deviation = (to_device(torch.tensor(v), logits.device) for v in (statistics.mean, statistics.std))
    score = (mean[predicted] - largest.float()) / deviation[predicted]
    return smooth(suppress_boundaries(score, predicted))


def find_boundaries(predicted: Tensor) -> Tensor:
    """Return where predicted class ids ``[n, H, W]`` meet: bool ``[n, H, W]``; the frame's edge is no border."""
    ids = predicted.float()
    return _dilate(ids) != -F.max_pool2d(-ids, 3, stride=1, padding=1)


def suppress_boundaries(score: Tensor, predicted: Tensor) -> Tensor:
    """Replace values ``[n, H, W]`` near borders by the mean of their 3 x 3 neighbours outside of a band that narrows with each pass."""
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
    """Smooth ``[n, H, W]`` with a Gaussian of 7 x 7 taps, six pixels apart; the edge values are repeated outwards."""
    taps = torch.arange(KERNEL, dtype=torch.float64) - KERNEL // 2
    weights = torch.exp(-taps.square() / (2 * SIGMA**2))
    # The two-dimensional kernel is the product of two of one dimension, each of which sums to 1.
    kernel = to_device((weights / weights.sum()).to(score.dtype), score.device)
    reach = KERNEL // 2 * DILATION
    padded = F.pad(score[:, None], (reach, reach, reach, reach), mode="replicate")
    rows = F.conv2d(padded, kernel.view(1, 1, KERNEL, 1), dilation=(DILATION, 1))
    return F.conv2d(rows, kernel.view(1, 1, 1, KERNEL), dilation=(1, DILATION))[:, 0]


def _dilate(values: Tensor) -> Tensor:
    """Return the largest value among a pixel and its four neighbours inside of the frame."""
    vertical = F.max_pool2d(values, (3, 1), stride=1, padding=(1, 0))
    return torch.maximum(vertical, F.max_pool2d(values, (1, 3), stride=1, padding=(0, 1)))


def _neighbourhood_sum(values: Tensor) -> Tensor:
    padded = F.pad(values[:, None], (1, 1, 1, 1), mode="replicate")
    return F.avg_pool2d(padded, 3, stride=1, divisor_override=1)[:, 0]


@dataclass(frozen=True)
class MaxLogitConfig(Settings):
    """How the statistics are gathered.

    Args:
        split: of the data set; the one that the network was trained on.
        frames: how many evenly spaced frames (0: all).
    """

    section = "max_logit"
    split: str = "train"
    frames: NonNegativeInt = 0


class ClassMoments:
    """Streaming count, mean and sum of squared deviations for each class, ``[C]`` float64 (Chan, Golub & LeVeque 1979)."""

    def __init__(self, classes: int) -> None:
        self.count, self.mean, self.squares = (torch.zeros(classes, dtype=torch.float64) for _ in range(3))

    def add(self, values: Tensor, classes: Tensor) -> None:
        wide, ids, total = values.double(), classes.long(), len(self.count)
        count = torch.bincount(ids, minlength=total).double()
        mean = torch.bincount(ids, wide, total) / count.clamp_min(1)
        squares = torch.bincount(ids, (wide - mean[ids]).square(), total)
        count, mean, squares = count.cpu(), mean.cpu(), squares.cpu()
        together, difference = self.count + count, mean - self.mean
        share = count / together.clamp_min(1)
        self.squares += squares + difference.square() * self.count * share
        self.mean += difference * share
        self.count = together

    def pooled(self) -> tuple[float, float]:
        """Return mean and population standard deviation over all classes together."""
        total = self.count.sum()
        mean = (self.count * self.mean).sum() / total
        squares = (self.squares + self.count * (self.mean - mean).square()).sum()
        return float(mean), float((squares / total).sqrt())


def usable_statistics(moments: ClassMoments) -> tuple[list[float], list[float], list[int]]:
    """Return means and population standard deviations of the classes, and the ids of those that get what all pixels together have, as
    they were predicted for fewer than :data:`MIN_PIXELS` pixels or always with one value."""
    pooled_mean, pooled_deviation = moments.pooled()
    if not pooled_deviation > 0:
        raise InputError(f"the max logit is {pooled_mean:g} at every pixel", hint="check the model")
    deviation = (moments.squares / moments.count.clamp_min(1)).sqrt()
    replaced = (moments.count < MIN_PIXELS) | (deviation <= 0)
    mean = torch.where(replaced, pooled_mean, moments.mean)
    deviation = torch.where(replaced, pooled_deviation, deviation)
    return mean.tolist(), deviation.tolist(), replaced.nonzero().flatten().tolist()


@flushed_denormals()
def standardize_max_logit(
    base: Path, config: FitConfig[MaxLogitConfig], out: Path, *, device: str = "auto", say: Say = say
) -> MaxLogitStatistics:
    """Gather the statistics of a model's base network and write the same model with them; ``out`` may be ``base``. InputError for NaN
    logits, or a max logit that is one number everywhere."""
    settings = config.settings
    model, data = load_for_fitting(base, config, resolve_device(device))
    moments = ClassMoments(model.network.description.num_classes)
    frames = 0
    for _, image, *_ in frames_as_seen(model, data, settings.split, settings.frames, METHOD.name):
        (logits,) = draw_logits(model.network, Deterministic(), image, 1)
        largest, predicted = logits[0].max(0)
        moments.add(largest.flatten(), predicted.flatten())
        frames += 1
    mean, deviation, replaced = usable_statistics(moments)
    if replaced:
        names = ", ".join(model.network.description.classes[c] for c in replaced)
        say(f"predicted for fewer than {MIN_PIXELS} pixels, given the statistics of all classes together: {names}")
    pixels = tuple(int(n) for n in moments.count)
    data_set = fitted_on(config, settings.split)
    statistics = MaxLogitStatistics(tuple(mean), tuple(deviation), pixels, data_set, frames, model.sha256)
    statistics.attach(base, config, out, METHOD.name, say)
    say(f"wrote {out}: max-logit statistics of {sum(pixels):,} pixels of {frames} frames")
    return statistics


METHOD = Method("standardized-max-logit", MaxLogitConfig, standardize_max_logit, finished=True)
