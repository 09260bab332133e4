"""Scores as another package would write them: one of the draws' mean, one of the base network's
logits.
"""

from __future__ import annotations

from torch import Tensor

from segunc.scores import Score


def margin(probabilities: Tensor) -> Tensor:
    best = probabilities.topk(2, dim=1).values
    return 1.0 - (best[:, 0] - best[:, 1])


MARGIN = Score(
    *(
        "margin",
        "how near the second class is to the first",
        "Scheffer et al. 2001",
        "1 - (largest - second)",
    ),
    *(0, 1, "unit16", ("probabilities",), margin),
    colours=(0, 0.8),
    threshold=0.7,
    resized="evidence",
)
SPREAD = Score(
    *(
        "logit-spread",
        "how near the logits of the base network are to each other",
        "made up",
        "negative deviation",
    ),
    *(None, 0, "float16", ("base logits",), lambda logits: -logits.std(1)),
)
