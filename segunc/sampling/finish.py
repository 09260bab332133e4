"""From the sums over draws of one frame to its maps, at the frame's size."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from segunc.sampling.accumulate import DrawAccumulator
from segunc.sampling.prediction import Prediction
from segunc.sampling.tail import Backend, finish


def finish_frame(
    sums: DrawAccumulator, base: dict[str, Tensor], size: tuple[int, int] | None, keep: bool, backend: Backend
) -> Prediction:
    """One frame's maps, each ``[H, W]``.

    Args:
        sums: of its draws; used up.
        base: the scores of the base network at the size of the sums.
        size: (height, width) of the maps, None for that of the sums. Maps and mean probabilities are resized
            bilinearly, epistemic is the difference of the resized entropies, prediction and msp come from the resized
            probabilities.
        keep: also return the mean probabilities.
        backend: of :func:`segunc.sampling.tail.choose_backend`.
    """
    own = (sums.entropy.shape[0], sums.entropy.shape[1])
    prediction, sampled = finish(sums, backend)
    scores = {**sampled, **base}
    if size is None or size == own:
        return Prediction(prediction, scores, sums.probabilities.div_(sums.draws) if keep else None)
    stacked = _resized(torch.stack(list(scores.values())), size)
    scores = dict(zip(scores, stacked, strict=True))
    probabilities = _resized(sums.probabilities.div_(sums.draws), size)
    best, index = probabilities.max(0)
    # The confidence must be that of the class that is predicted at this resolution.
    scores["msp"] = 1.0 - best
    scores["epistemic"] = (scores["entropy"] - scores["aleatoric"]).clamp_min_(0.0)
    return Prediction(index.to(torch.uint8), scores, probabilities if keep else None)


def _resized(planes: Tensor, size: tuple[int, int]) -> Tensor:
    return F.interpolate(planes[None], size, mode="bilinear", align_corners=False)[0]
