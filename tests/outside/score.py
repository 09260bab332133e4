"""Scores as another package would write them: one over the draws, one over the base network."""

from __future__ import annotations

from torch import Tensor

from segunc.scores import Score


def margin(probabilities: Tensor) -> Tensor:
    """Return how near the second class is to the first, ``[n, H, W]``.

    Args:
        probabilities: ``[n, C, H, W]``, the mean over the draws.
    """
    two_largest = probabilities.topk(2, dim=1).values
    largest = two_largest[:, 0]
    second = two_largest[:, 1]
    return 1.0 - (largest - second)


def logit_spread(logits: Tensor) -> Tensor:
    """Return how near the logits are to each other, ``[n, H, W]``.

    Args:
        logits: ``[n, C, H, W]`` of the base network.
    """
    return -logits.std(dim=1)


# Values in 0..1 can be stored as 16-bit codes.
MARGIN = Score(
    name="margin",
    meaning="how near the second class is to the first",
    source="Scheffer et al. 2001",
    unit="1 - (largest - second)",
    lower=0,
    upper=1,
    stored="unit16",
    needs=("probabilities",),
    formula=margin,
    colours=(0, 0.8),
    threshold=0.7,
    resized="evidence",
)

# Values without a lower bound are stored as float16.
SPREAD = Score(
    name="logit-spread",
    meaning="how near the logits of the base network are to each other",
    source="made up",
    unit="negative deviation",
    lower=None,
    upper=0,
    stored="float16",
    needs=("base logits",),
    formula=logit_spread,
)
