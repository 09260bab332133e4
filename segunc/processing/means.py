"""The means over draws of one frame, which can be blended and averaged, and the maps that follow from them.

Entropies of blended or averaged probabilities must be taken afterwards: H is concave, so
``H(sum_i w_i p_i) >= sum_i w_i H(p_i)``, and with the mean entropies weighted alike epistemic stays above zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from segunc.sampling.sampler import Sampler, finish_frame
from segunc.scores import MEANS, SCORES
from segunc.uncertainty import entropy_share

NEEDED = "aleatoric"
"""The score that a sampler must return besides its probabilities."""


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
    others = {name: maps[0] for name, maps in result.scores.items() if not MEANS.issuperset(SCORES[name].needs)}
    return FrameMeans(result.probabilities[0], result.scores[NEEDED][0], others)


def finish_maps(means: FrameMeans, size: tuple[int, int], scores: Sequence[str]) -> dict[str, Tensor]:
    """Prediction (uint8) and the scores named (float32) of a frame, each ``[H, W]`` of (height, width) ``size``."""
    # float64: near zero, epistemic is a small difference of two entropies.
    entropy = entropy_share(means.probabilities[None].double()).float()
    evidence = {
        "probabilities": means.probabilities[None],
        "total entropy": entropy,
        "expected entropy": means.aleatoric[None],
    }
    derived = [SCORES[name] for name in scores if name not in means.others]
    others = {name: maps for name, maps in means.others.items() if name in scores}
    found = finish_frame(derived, evidence, size, ready=others)
    return {"prediction": found.prediction, **{name: found.scores[name] for name in scores}}
