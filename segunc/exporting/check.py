"""Compare the maps of a written file with the sampler's, pixel by pixel in their stored form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from segunc.core.errors import InputError, one_line
from segunc.exporting.graph import Maps, SizeGuard
from segunc.exporting.placement import FLAGGED, Flag, Placement
from segunc.maps.encoding import encode_score, score_keys
from segunc.networks.description import COLOUR
from segunc.networks.network import channels_of
from segunc.sampling.engine import TOLERANCE
from segunc.sampling.sampler import Prediction, Sampler

MAX_CODES = 1
"""Codes of the 16-bit map by which a score may differ: rounding to the next code is all that
remains of two right results.
"""
ROUNDING = TOLERANCE
"""Difference, as a share of the map's largest value (or of :data:`SMALLEST`, where that is larger),
that counts as float32 rounding. It is the bound of the sampler's own self-check of logits. Near 0,
where codes lie as close as 2e-10, and in deep networks it spans several codes.
"""
SMALLEST = 0.01
SIZES = ((152, 216), (128, 192), (97, 331), (320, 480))
"""(height, width) of frames on which a file of any size is compared. The first one, which is
traced, is padded by networks of the usual strides: a graph of a frame that needs none would not pad
others.
"""


def check_inputs(placement: Placement) -> tuple[Tensor, ...]:
    """Return inputs of a file: random textured frames and their mirror images.

    Two inputs of one frame each, or one input of all frames of a batch.
    """
    frames: list[Tensor] = []
    for number in range((placement.batch + 1) // 2):
        size = placement.frame_size or placement.network_size
        frames.extend(check_frames(size, placement.channels, number))
    if placement.frame_size is not None:
        frames = [(255 * frame).round().byte().permute(0, 2, 3, 1) for frame in frames]
    if placement.batch == 1:
        return tuple(frames)
    return (torch.cat(frames[: placement.batch]),)


def check_frames(
    size: tuple[int, int], channels: int = COLOUR, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Return a random textured frame ``[1, channels, H, W]`` in 0..1 and its mirror image."""
    generator = torch.Generator().manual_seed(seed)
    frame = torch.zeros(1, channels, *size)
    for level in range(6):  # texture of every scale
        grid = [max(1, side >> level) for side in size]
        noise = torch.rand(1, channels, *grid, generator=generator)
        frame += F.interpolate(noise, size, mode="bilinear", align_corners=False)
    frame /= 6
    return frame, frame.flip(-1)


def compare(
    run: Callable[[Tensor], Maps],
    sampler: Sampler,
    frames: tuple[Tensor, ...],
    name: str,
    placement: Placement | None = None,
) -> dict[str, Any]:
    """Return by how much a written file differs from the sampler.

    Args:
        run: gives the maps of the file for an input.
        sampler: from which the file was traced.
        frames: inputs, ``[N, K, H, W]`` in 0..1 each, or what the placement takes.
        name: of the file, for messages.
        placement: how frames come in; None is as they are.

    Returns:
        ``scores``: of each score the largest difference over the frames, in ``codes`` and as a
        ``share`` of the map's largest value; ``prediction_pixels``: how many pixels of the
        prediction differ, where two classes are equally likely up to rounding. With a flag,
        ``flagged_pixels``: how many pixels of its mask differ, where the score is at the threshold
        up to rounding.

    Raises:
        InputError: a score differs by more than a code and by more than rounding, the prediction
            by a class that is less probable, or the mask away from the threshold.
    """
    flag = None if placement is None else placement.flag
    largest: dict[str, Any] = {score: {"codes": 0, "share": 0.0} for score in sampler.scores}
    differing = 0
    flagged_differing = 0
    for frame in frames:
        maps = _run(run, frame, name)
        if placement is None:
            expected = sampler(frame, keep_probabilities=True)
        else:
            expected = placement.expected(sampler, frame)
        for score, values in expected.scores.items():
            codes, share = _score_difference(score, maps[score], values.numpy(), name)
            largest[score]["codes"] = max(codes, largest[score]["codes"])
            largest[score]["share"] = max(share, largest[score]["share"])
        differing += _differing_predictions(maps["prediction"], expected, name)
        if flag is not None:
            flagged_differing += _differing_flags(maps[FLAGGED], expected, flag, name)
    difference = {"scores": largest, "prediction_pixels": differing}
    if flag is not None:
        difference["flagged_pixels"] = flagged_differing
    return difference


def _run(run: Callable[[Tensor], Maps], frame: Tensor, name: str) -> Maps:
    """Return the maps of a frame; InputError where the file does not run."""
    try:
        return run(frame)
    except Exception as error:  # those of ONNX Runtime have no other common type
        height, width = frame.shape[1:3] if frame.dtype == torch.uint8 else frame.shape[2:]
        message = f"{name} does not run for a frame of {height}x{width} ({one_line(error)})"
        raise InputError(message, hint="--size HxW of the frames that you have") from error


def _score_difference(
    score: str, written: npt.NDArray[Any], sampled: npt.NDArray[Any], name: str
) -> tuple[int, float]:
    """Return the largest difference of two maps ``[1, H, W]`` of a score, in codes and as a share
    of the largest sampled value.

    Raises:
        InputError: a pixel differs by more than a code and by more than rounding.
    """
    written_keys = score_keys(encode_score(score, written)).astype(int)
    sampled_keys = score_keys(encode_score(score, sampled)).astype(int)
    codes = np.abs(written_keys - sampled_keys)
    largest_value = float(np.abs(sampled).max())
    shares = np.abs(written - sampled) / max(SMALLEST, largest_value)
    wrong = (codes > MAX_CODES) & (shares > ROUNDING)
    if wrong.any():
        difference = (
            f"by {codes[wrong].max()} codes, or {shares.max():.2g} of its largest value, "
            f"at {wrong.sum()} pixels"
        )
        raise _differs(score, difference, name)
    return int(codes.max()), float(shares.max())


def _differing_predictions(written: npt.NDArray[Any], expected: Prediction, name: str) -> int:
    """Return at how many pixels a prediction ``[1, H, W]`` is another class than the sampler's.

    Raises:
        InputError: the class of such a pixel is not as probable as the sampler's up to rounding.
    """
    assert expected.probabilities is not None
    probabilities = expected.probabilities.numpy()
    num_classes = probabilities.shape[1]
    classes = np.minimum(written, num_classes - 1).astype(np.int64)
    chosen = np.take_along_axis(probabilities, classes[:, None], 1)[:, 0]
    chosen = np.where(written < num_classes, chosen, 0.0)
    margin = probabilities.max(1) - chosen
    other = written != expected.prediction.numpy()
    if other.any() and margin[other].max() > ROUNDING:
        difference = f"by a class that is {margin[other].max():.2g} less probable"
        raise _differs("prediction", difference, name)
    return int(other.sum())


def _differing_flags(written: npt.NDArray[Any], expected: Prediction, flag: Flag, name: str) -> int:
    """Return at how many pixels a mask ``[N, H, W]`` is not that of the sampler's stored score.

    Raises:
        InputError: the score of such a pixel is not at the threshold up to rounding.
    """
    values = expected.scores[flag.score].numpy()
    other = written != (values >= flag.least)
    if other.any():
        keys = score_keys(encode_score(flag.score, values[other])).astype(int)
        at_threshold = np.array([flag.least], np.float32)
        codes = np.abs(keys - int(score_keys(encode_score(flag.score, at_threshold))[0]))
        shares = np.abs(values[other] - flag.least) / max(SMALLEST, float(np.abs(values).max()))
        if ((codes > MAX_CODES) & (shares > ROUNDING)).any():
            difference = f"where the score is {shares.max():.2g} of its largest value away"
            raise _differs("the flagged mask", difference, name)
    return int(other.sum())


def _differs(map_name: str, difference: str, name: str) -> InputError:
    """Return the error of a file whose map is not the sampler's."""
    return InputError(
        f"{map_name} of {name} differs from the sampler {difference}",
        hint="another --to or --size, or report this network",
    )


MAX_GUARD_PIXELS = 1 << 20
"""Pixels of the largest frame on which the other branch of a condition on sizes is compared."""


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
                compare(run, sampler, check_frames(size, channels_of(sampler.network)), name)
        except InputError as error:
            height, width = guard.sizes[0]
            raise InputError(
                f"the network's code takes another branch where {guard.condition} is false "
                f"(height H and width W of the frame, {guard.place}), for instance for "
                f"{height}x{width}: one file holds one branch ({error.message})",
                hint=f"one file for each size of your frames, for instance --size {height}x{width}",
            ) from error
