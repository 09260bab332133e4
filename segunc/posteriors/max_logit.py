"""Statistics of the max logit on the training set, for the score standardized-max-logit (Jung et al., arXiv 2107.11264).

Pixels are counted by the class that the network predicts, labelled or not: at prediction there are no labels either.
Frames are not augmented, and the network sees them at the size at which it will predict.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from segunc.affine.posterior import Deterministic
from segunc.core.bounds import NonNegativeInt, Settings
from segunc.core.device import flushed_denormals, resolve_device
from segunc.core.errors import InputError
from segunc.posteriors.fitting import Attachment, fitted_on, frames_as_seen, load_for_fitting
from segunc.posteriors.methods import Method
from segunc.sampling.runner import draw_logits
from segunc.training.config import FitConfig
from segunc.training.progress import Say, say

FEWEST_PIXELS = 100
"""A class predicted for fewer pixels has no standard deviation worth dividing by."""


@dataclass(frozen=True)
class MaxLogitStatistics(Attachment):
    """How large the max logit of a pixel is where the base network predicts each class; the posterior has no part in it.

    A class that is predicted for too few pixels has the mean and deviation of all pixels together.
    """

    file: ClassVar[str] = "max_logit_statistics.json"
    what: ClassVar[str] = "max-logit statistics"
    outdates: ClassVar[tuple[str, ...]] = ("anomaly.json",)

    mean: tuple[float, ...]  # one number a class
    std: tuple[float, ...]  # above 0
    pixels: tuple[int, ...]  # for which each class was predicted
    fitted_on: Mapping[str, Any]  # the data set, its split, the size that the network saw, and the date
    frames: int
    base_sha256: str

    @property
    def sha256(self) -> str:
        """Over the numbers that decide the score."""
        return hashlib.sha256(json.dumps([self.mean, self.std]).encode()).hexdigest()

    @classmethod
    def read(cls, folder: Path, base_sha256: str) -> Self | None:
        """Return the statistics in the folder of a model with this hash, None where there are none; see :meth:`content`."""
        content = cls.content(folder, base_sha256=base_sha256)
        return None if content is None else cls(**content)


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
    """Streaming count, mean and sum of squared deviations from it for each class, ``[C]`` float64 (Chan, Golub & LeVeque 1979:
    parts are merged by their means)."""

    def __init__(self, classes: int) -> None:
        self.count, self.mean, self.squares = (torch.zeros(classes, dtype=torch.float64) for _ in range(3))

    def add(self, values: Tensor, classes: Tensor) -> None:
        """Add values ``[n]`` of any floating type with their class ids ``[n]``."""
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
        """Mean and population standard deviation over all classes together."""
        total = self.count.sum()
        mean = (self.count * self.mean).sum() / total
        squares = (self.squares + self.count * (self.mean - mean).square()).sum()
        return float(mean), float((squares / total).sqrt())


def usable_statistics(moments: ClassMoments) -> tuple[list[float], list[float], list[int]]:
    """Means and population standard deviations (above 0) of the classes, and the ids of those that were predicted for fewer than
    :data:`FEWEST_PIXELS` pixels or always with one value: they get mean and deviation of all pixels together, which must vary."""
    pooled_mean, pooled_deviation = moments.pooled()
    if not pooled_deviation > 0:
        given = f"the max logit is {pooled_mean:g} at every pixel"
        raise InputError(given, "a network that tells pixels apart", "check the model")
    deviation = (moments.squares / moments.count.clamp_min(1)).sqrt()
    replaced = (moments.count < FEWEST_PIXELS) | (deviation <= 0)
    mean = torch.where(replaced, pooled_mean, moments.mean)
    deviation = torch.where(replaced, pooled_deviation, deviation)
    return mean.tolist(), deviation.tolist(), replaced.nonzero().flatten().tolist()


@flushed_denormals()
def standardize_max_logit(
    base: Path, config: FitConfig[MaxLogitConfig], out: Path, *, device: str = "auto", say: Say = say
) -> MaxLogitStatistics:
    """Gather the statistics of a model's base network and write the same model with them; a posterior plays no part, and ``out``
    may be ``base``.

    See :class:`segunc.posteriors.methods.Method`; InputError for NaN logits, or a max logit that is one number everywhere.
    """
    settings = config.settings
    model, data = load_for_fitting(base, config, resolve_device(device))
    moments = ClassMoments(model.network.description.num_classes)
    frames = 0
    for _, image, _ in frames_as_seen(model, data, settings.split, settings.frames, METHOD.name):
        (logits,) = draw_logits(model.network, Deterministic(), image, 1)
        largest, predicted = logits[0].max(0)
        moments.add(largest.flatten(), predicted.flatten())
        frames += 1
    mean, deviation, replaced = usable_statistics(moments)
    if replaced:
        names = ", ".join(model.network.description.classes[c] for c in replaced)
        say(f"predicted for fewer than {FEWEST_PIXELS} pixels, given the statistics of all classes together: {names}")
    pixels = tuple(int(n) for n in moments.count)
    data_set = fitted_on(config, settings.split)
    statistics = MaxLogitStatistics(tuple(mean), tuple(deviation), pixels, data_set, frames, model.sha256)
    statistics.attach(base, config, out, METHOD.name, say)
    say(f"wrote {out}: max-logit statistics of {sum(pixels):,} pixels of {frames} frames")
    return statistics


METHOD = Method("standardized-max-logit", MaxLogitConfig, standardize_max_logit, finished=True)
