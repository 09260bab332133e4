"""What the sampler returns for a batch of frames."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Prediction:
    """Maps of n frames.

    Attributes:
        prediction: uint8 ``[n, H, W]``, the class of the largest mean probability.
        scores: float32 ``[n, H, W]`` for each name that the sampler was asked for; entropies divided by ln C (0..1).
        probabilities: float32 ``[n, C, H, W]`` mean over draws, only when asked for.
    """

    prediction: Tensor
    scores: Mapping[str, Tensor]
    probabilities: Tensor | None = None
