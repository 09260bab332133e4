"""The means over draws of one frame, which can be blended and averaged, and the maps that follow from them.

Entropies of blended or averaged probabilities must be taken afterwards: H is concave, so
``H(sum_i w_i p_i) >= sum_i w_i H(p_i)``, and with the mean entropies weighted alike epistemic stays above zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from segunc.sampling.sampler import Sampler
from segunc.uncertainty import entropy_from_probabilities

NEEDED = "aleatoric"
"""The score that a sampler must return besides its probabilities."""
DERIVED = ("msp", "entropy", "epistemic")
"""Scores that follow from the means."""


@dataclass(frozen=True)
class FrameMeans:
    """What a frame's draws amount to, at the size of the network's input.

    Attributes:
        probabilities: float32 ``[C, h, w]``, mean over draws.
        aleatoric: float32 ``[h, w]``, mean entropy of a draw divided by ln C.
        others: float32 ``[h, w]`` by name: the scores that do not follow from the two.
    """

    probabilities: Tensor
    aleatoric: Tensor
    others: dict[str, Tensor]


def sample_means(sampler: Sampler, image: Tensor, seed: int | None = None) -> FrameMeans:
    """The means of one image ``[1, 3, h, w]``, from draws of a seed; the sampler must return the score :data:`NEEDED`."""
    result = sampler(image, keep_probabilities=True, seed=seed)
    assert result.probabilities is not None
    others = {name: maps[0] for name, maps in result.scores.items() if name not in (*DERIVED, NEEDED)}
    return FrameMeans(result.probabilities[0], result.scores[NEEDED][0], others)


def finish_maps(means: FrameMeans, size: tuple[int, int]) -> dict[str, Tensor]:
    """Prediction (uint8) and all scores (float32) of a frame, each ``[H, W]`` of (height, width) ``size``.

    As in the sampler, entropies are resized as maps, epistemic is the difference of the resized entropies, and prediction
    and msp come from the resized probabilities.
    """
    probabilities = means.probabilities
    classes = probabilities.shape[0]
    scale = 1.0 / math.log(classes) if classes > 1 else 1.0
    # float64: near zero, epistemic is a small difference of two entropies.
    entropy = (entropy_from_probabilities(probabilities.double(), 0) * scale).float()
    scores = {"entropy": entropy, NEEDED: means.aleatoric, **means.others}
    if probabilities.shape[1:] != size:
        stacked = _resized(torch.stack(list(scores.values())), size)
        scores = dict(zip(scores, stacked, strict=True))
        probabilities = _resized(probabilities, size)
    best, winner = probabilities.max(0)
    return {
        "prediction": winner.to(torch.uint8),
        "msp": (1.0 - best).clamp_(0.0, 1.0),
        "epistemic": (scores["entropy"] - scores[NEEDED]).clamp_min_(0.0),
        **scores,
    }


def _resized(planes: Tensor, size: tuple[int, int]) -> Tensor:
    return F.interpolate(planes[None], size, mode="bilinear", align_corners=False)[0]
