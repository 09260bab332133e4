"""Statistics of the max logit on the training set, for the score standardized-max-logit (Jung et al., arXiv 2107.11264).

Pixels are counted by the class that the network predicts, labelled or not: at prediction there are no labels either.
Frames are not augmented, and the network sees them at the size at which it will predict.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from jsonargparse import Namespace
from jsonargparse.typing import NonNegativeInt
from torch import Tensor

from segunc.affine.posterior import Deterministic
from segunc.core.errors import InputError
from segunc.posteriors.files import copy_model
from segunc.posteriors.fitted import MaxLogitStatistics
from segunc.sampling.logits import draw_logits
from segunc.training.config import save_config
from segunc.training.finetune_run import fitted_on, frames_as_seen, load_for_fitting
from segunc.training.progress import say

FEWEST_PIXELS = 100
"""A class predicted for fewer pixels has no standard deviation worth dividing by."""


@dataclass
class MaxLogitConfig:
    """How the statistics are gathered.

    Args:
        split: of the data set; the one that the network was trained on.
        frames: how many evenly spaced frames (0: all).
    """

    split: str = "train"
    frames: NonNegativeInt = 0


class ClassMoments:
    """Streaming mean and variance for each class, in float64 (Chan, Golub & LeVeque 1979: parts are merged by their means).

    Args:
        classes: C.

    Attributes:
        count, mean, squares: ``[C]`` numbers, their mean, and the sum of squared deviations from it.
    """

    def __init__(self, classes: int) -> None:
        self.count, self.mean, self.squares = (torch.zeros(classes, dtype=torch.float64) for _ in range(3))

    def add(self, values: Tensor, classes: Tensor) -> None:
        """Add values ``[n]`` of any floating type with their class ids ``[n]``."""
        wide, ids, total = values.double(), classes.long(), len(self.count)
        count = torch.bincount(ids, minlength=total).double()
        mean = torch.bincount(ids, wide, total) / count.clamp_min(1)
        squares = torch.bincount(ids, (wide - mean[ids]).square(), total)
        self._merge(count.cpu(), mean.cpu(), squares.cpu())

    def _merge(self, count: Tensor, mean: Tensor, squares: Tensor) -> None:
        together = self.count + count
        share = count / together.clamp_min(1)
        difference = mean - self.mean
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
    """Mean and standard deviation of each class, and those whose place the pooled ones had to take.

    Returns:
        means, population standard deviations above 0, and the class ids that were predicted for fewer than
        :data:`FEWEST_PIXELS` pixels or always with one value: they get mean and deviation of all pixels together.

    Raises:
        InputError: the max logit is one number everywhere.
    """
    pooled_mean, pooled_deviation = moments.pooled()
    if not pooled_deviation > 0:
        raise InputError(
            f"the max logit is {pooled_mean:g} at every pixel", "a network that tells pixels apart", "check the model"
        )
    deviation = (moments.squares / moments.count.clamp_min(1)).sqrt()
    replaced = (moments.count < FEWEST_PIXELS) | (deviation <= 0)
    mean = torch.where(replaced, pooled_mean, moments.mean)
    deviation = torch.where(replaced, pooled_deviation, deviation)
    return mean.tolist(), deviation.tolist(), replaced.nonzero().flatten().tolist()


def standardize_max_logit(
    base: Path, config: Namespace, out: Path, *, device: torch.device, say: Callable[[str], None] = say
) -> MaxLogitStatistics:
    """Gather the statistics of a model's base network and write the same model with its ``max_logit_statistics.json``.

    Args:
        base: a model folder of either kind; a posterior plays no part.
        config: ``data`` and ``max_logit``, a :class:`MaxLogitConfig`.
        out: the new model folder; may be ``base`` itself.
        device: where to compute.
        say: receives a line for each step.

    Raises:
        InputError: NaN logits, or a max logit that is one number everywhere.
    """
    settings = config.max_logit
    model, data = load_for_fitting(base, config, device)
    moments = ClassMoments(model.network.description.num_classes)
    frames = 0
    for _, image, _ in frames_as_seen(model, data, settings.split, settings.frames, "standardized-max-logit"):
        (logits,) = draw_logits(model.network, Deterministic(), image, 1)
        largest, predicted = logits[0].max(0)
        moments.add(largest.flatten(), predicted.flatten())
        frames += 1
    mean, deviation, replaced = usable_statistics(moments)
    if replaced:
        names = ", ".join(model.network.description.classes[c] for c in replaced)
        say(f"predicted for fewer than {FEWEST_PIXELS} pixels, given the statistics of all classes together: {names}")
    copy_model(base, out)
    save_config(config, out, "standardized-max-logit")
    statistics = MaxLogitStatistics(
        mean=tuple(mean),
        std=tuple(deviation),
        pixels=tuple(int(n) for n in moments.count),
        fitted_on=fitted_on(config, settings.split),
        frames=frames,
        base_sha256=model.sha256,
    )
    statistics.write(out)
    say(f"wrote {out}: max-logit statistics of {int(moments.count.sum()):,} pixels of {frames} frames")
    return statistics
