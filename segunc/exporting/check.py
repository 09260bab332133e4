"""What a written file gives, compared with the sampler pixel by pixel in the stored form
of maps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from segunc.core.errors import InputError, one_line
from segunc.exporting.graph import Maps, SizeGuard
from segunc.maps.encoding import encode_score, score_keys
from segunc.sampling.engine import TOLERANCE
from segunc.sampling.sampler import Sampler

MAX_CODES = 1
"""Codes of the 16-bit map by which a score may differ: rounding to the next code is all that
remains of two right results.
"""
ROUNDING, SMALLEST = TOLERANCE, 0.01
"""Difference, as a share of the map's largest value (or of :data:`SMALLEST`, where that is larger),
that counts as float32 rounding, as the sampler's own self-check takes it of logits: near 0, where
codes lie as close as 2e-10, and in deep networks it spans several codes.
"""


SIZES = ((152, 216), (128, 192), (97, 331), (320, 480))
"""(height, width) of frames on which a file of any size is compared. The first one, which is
traced, is padded by networks of the usual strides: a graph of a frame that needs none would not pad
others.
"""


def check_frames(size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return a random textured frame ``[1, 3, H, W]`` in 0..1 and its mirror image."""
    generator, frame = torch.Generator().manual_seed(0), torch.zeros(1, 3, *size)
    for level in range(6):  # texture of every scale
        grid = [max(1, side >> level) for side in size]
        frame += F.interpolate(
            torch.rand(1, 3, *grid, generator=generator), size, mode="bilinear", align_corners=False
        )
    frame /= 6
    return frame, frame.flip(-1)


def compare(
    run: Callable[[Tensor], Maps], sampler: Sampler, frames: tuple[Tensor, ...], name: str
) -> dict[str, Any]:
    """Return the largest difference of each score over some frames, in codes and as a share of the
    map's largest value, and how many pixels of the prediction differ, where two classes are equally
    likely but for rounding.

    Raises:
        InputError: a score differs by more than a code and by more than rounding, or the prediction
            where no two classes are equal.
    """
    largest: dict[str, Any] = {score: {"codes": 0, "share": 0.0} for score in sampler.scores}
    differing = 0

    def refuse(what: str, by: str) -> InputError:
        return InputError(
            f"{what} of {name} differs from the sampler {by}",
            hint="another --to or --size, or report this network",
        )

    for frame in frames:
        try:
            maps = run(frame)
        except Exception as error:  # those of ONNX Runtime have no other common type
            shown = f"{name} does not run for a frame of {frame.shape[2]}x{frame.shape[3]} ({one_line(error)})"
            raise InputError(shown, hint="--size HxW of the frames that you have") from error
        expected = sampler(frame, keep_probabilities=True)
        for score, values in expected.scores.items():
            sampled, written = values.numpy(), maps[score]
            keys = [score_keys(encode_score(score, of)).astype(int) for of in (written, sampled)]
            codes = np.abs(keys[0] - keys[1])
            shares = np.abs(written - sampled) / max(SMALLEST, float(np.abs(sampled).max()))
            if (wrong := (codes > MAX_CODES) & (shares > ROUNDING)).any():
                raise refuse(
                    score,
                    f"by {codes[wrong].max()} codes, or {shares.max():.2g} of its largest value, at {wrong.sum()} pixels",
                )
            found = {"codes": int(codes.max()), "share": float(shares.max())}
            largest[score] = {key: max(value, largest[score][key]) for key, value in found.items()}
        assert expected.probabilities is not None
        best = expected.probabilities.topk(
            min(2, expected.probabilities.shape[1]), 1
        ).values.numpy()
        other = maps["prediction"] != expected.prediction.numpy()
        differing += int(other.sum())
        if (apart := (best[:, 0] - best[:, -1])[other]).size and apart.max() > ROUNDING:
            raise refuse(
                "prediction", f"where the two most probable classes are {apart.max():.2g} apart"
            )
    return {"scores": largest, "prediction_pixels": differing}


MAX_GUARD_PIXELS = 1 << 20
"""Largest frame on which the other side of a condition on sizes is looked at."""


def check_guards(
    run: Callable[[Tensor], Maps], sampler: Sampler, guards: Sequence[SizeGuard], name: str
) -> None:
    """Compare a written file with the sampler at sizes that take another branch of the network's
    code than the traced frame: for each condition the smallest such frame and the largest one that
    can be checked.

    Raises:
        InputError: the maps differ at such a size, or there is none that is small enough to be
            checked.
    """
    for guard in guards:
        checkable = [size for size in guard.sizes if size[0] * size[1] <= MAX_GUARD_PIXELS]
        try:
            if not checkable:
                raise InputError("frames of such a size are too large to be compared")
            for size in {checkable[0], checkable[-1]}:
                compare(run, sampler, check_frames(size), name)
        except InputError as error:
            height, width = guard.sizes[0]
            raise InputError(
                f"the network's code takes another branch where {guard.condition} is false "
                f"(height H and width W of the frame, {guard.place}), for instance for "
                f"{height}x{width}: one file holds one branch ({error.message})",
                hint=f"one file for each size of your frames, for instance --size {height}x{width}",
            ) from error
