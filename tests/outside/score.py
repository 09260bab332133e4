"""Scores as another package would write them: one of the draws' mean, one of the base network's logits."""

from __future__ import annotations

from torch import Tensor

from segunc.scores import Score


def margin(probabilities: Tensor) -> Tensor:
    best = probabilities.topk(2, dim=1).values
    return 1.0 - (best[:, 0] - best[:, 1])


MARGIN = Score(
    name="margin",
    meaning="how near the second class is to the first",
    source="Scheffer et al. 2001",
    unit="1 - (largest - second mean probability)",
    lower=0,
    upper=1,
    stored="unit16",
    needs=("probabilities",),
    formula=margin,
    colours=(0, 0.8),
    threshold=0.7,
    resized="evidence",
)
SPREAD = Score(
    name="logit-spread",
    meaning="how near the logits of the base network are to each other",
    source="made up",
    unit="negative standard deviation of the logits",
    lower=None,
    upper=0,
    stored="float16",
    needs=("base logits",),
    formula=lambda logits: -logits.std(1),
)
