"""What the sampler returns for a batch of frames, and the names of all scores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

from segunc.core.errors import InputError

SAMPLED_SCORES = ("msp", "entropy", "aleatoric", "epistemic")
"""Scores of the mean over draws."""
BASE_SCORES = ("deterministic-msp", "deterministic-entropy", "max-logit", "energy")
"""Scores of the base network."""
DEFAULT_SCORES = SAMPLED_SCORES + BASE_SCORES
"""Scores that need no further sum and no further statistics."""
DISAGREEMENT_SCORES = ("variance", "variation-ratio", "expected-pairwise-kl")
"""Scores of how much the draws disagree; each keeps sums of its own."""
STANDARDIZED_MAX_LOGIT = "standardized-max-logit"
"""A score of the base network that needs statistics of its training set."""
ALL_SCORES = (*DEFAULT_SCORES, *DISAGREEMENT_SCORES, STANDARDIZED_MAX_LOGIT)


def check_scores(names: Iterable[str]) -> tuple[str, ...]:
    """The names, each once, in the order given.

    Raises:
        InputError: a name that is no score, or none at all.
    """
    chosen = tuple(dict.fromkeys(names))
    if not chosen:
        raise InputError("no score is named", f"some of {', '.join(ALL_SCORES)}", "name at least one")
    for name in chosen:
        if name not in ALL_SCORES:
            raise InputError(f"score '{name}'", f"one of {', '.join(ALL_SCORES)}", "check the spelling")
    return chosen


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
