"""What a written file gives, compared with the sampler pixel by pixel in the stored form of maps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from segunc.core.errors import InputError
from segunc.exporting.graph import Maps
from segunc.maps.encoding import encode_score, score_keys
from segunc.sampling.sampler import Sampler
from segunc.scores import SCORES

MAX_CODES = 1
"""Codes of the 16-bit map by which a score may differ: rounding to the next code is all that remains of two right results."""
ROUNDING = {"unit16": 1e-6, "float16": 1e-5}
"""Difference that counts as float32 rounding although it spans several codes, which near 0 lie as close as 2e-10: of scores in 0..1, whose
entropies are sums of some 20 terms that round at 6e-8 each; and of scores made of logits, as a share of the largest, because two libraries
sum a convolution in different orders, which moves logits by a few 1e-6 of the largest."""
TIE = 1e-5  # difference of the two highest probabilities below which either class is right, likewise


def check_frames(size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return a random textured frame ``[1, 3, H, W]`` in 0..1 and its mirror image."""
    generator, frame = torch.Generator().manual_seed(0), torch.zeros(1, 3, *size)
    for level in range(6):  # texture of every scale
        grid = [max(1, side >> level) for side in size]
        frame += F.interpolate(torch.rand(1, 3, *grid, generator=generator), size, mode="bilinear", align_corners=False)
    frame /= 6
    return frame, frame.flip(-1)


def compare(run: Callable[[Tensor], Maps], sampler: Sampler, frames: tuple[Tensor, ...], name: str) -> dict[str, Any]:
    """Return the largest difference of each score over some frames, in codes and in values (of those stored as float16 as a share of the
    map's largest value, where that is above 1), and how many pixels of the prediction differ.

    Raises:
        InputError: a score differs by more than a code and by more than rounding, or the prediction where no two classes are equal.
    """
    largest: dict[str, Any] = {score: {"codes": 0, "value": 0.0} for score in sampler.scores}
    differing = 0
    for frame in frames:
        maps, expected = run(frame), sampler(frame, keep_probabilities=True)
        for score, values in expected.scores.items():
            sampled, given = values.numpy(), maps[score]
            keys = [score_keys(encode_score(score, of)).astype(int) for of in (given, sampled)]
            codes, apart = np.abs(keys[0] - keys[1]), np.abs(given - sampled)
            kind = SCORES[score].stored
            apart /= 1.0 if kind == "unit16" else max(1.0, float(np.abs(sampled).max()))
            wrong = (codes > MAX_CODES) & (apart > ROUNDING[kind])
            if wrong.any():
                message = f"{score} of {name} differs from the sampler by up to {apart.max():.2g} ({codes.max()} codes)"
                raise InputError(f"{message} at {wrong.sum()} pixels", hint="another --to, another --size, or report this network")
            of_score = largest[score]
            of_score["codes"], of_score["value"] = max(of_score["codes"], int(codes.max())), max(of_score["value"], float(apart.max()))
        assert expected.probabilities is not None
        other = maps["prediction"] != expected.prediction.numpy()
        differing += int(other.sum())
        if other.any():
            best = expected.probabilities.sort(1, descending=True).values
            gap = float((best[:, 0] - best[:, 1]).numpy()[other].max())
            if gap > TIE:
                message = f"the prediction of {name} differs from the sampler where the two best classes are {gap:.2g} apart"
                raise InputError(message, hint="another --to, another --size, or report this network")
    return {"scores": largest, "prediction_pixels": differing}
