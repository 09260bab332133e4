"""What the sampler returns for a batch of frames."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

SAMPLED_SCORES = ("msp", "entropy", "aleatoric", "epistemic")
"""Scores of the mean over draws."""
BASE_SCORES = ("deterministic-msp", "deterministic-entropy", "max-logit", "energy")
"""Scores of the base network."""
ALL_SCORES = SAMPLED_SCORES + BASE_SCORES


@dataclass(frozen=True)
class Prediction:
    """Maps of n frames.

    Attributes:
        prediction: uint8 ``[n, H, W]``, the class of the largest mean probability.
        scores: float32 ``[n, H, W]`` for each name of :data:`ALL_SCORES`; entropies divided by ln C (0..1).
        probabilities: float32 ``[n, C, H, W]`` mean over draws, only when asked for.
    """

    prediction: Tensor
    scores: Mapping[str, Tensor]
    probabilities: Tensor | None = None
