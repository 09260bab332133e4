"""Frames as arrays in, their maps out: what prediction and evaluation share.

Sums are kept at the network's size. Then entropy and aleatoric are resized bilinearly to the frame, epistemic is their
difference, and prediction and msp come from the resized mean probabilities: computing entropy from resized
probabilities would mix neighbouring classes and write that into epistemic. Mean probabilities are calibrated before
they are resized, at the size at which calibrators are fitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from segunc.core.errors import InputError, is_out_of_memory, one_line
from segunc.data.images import Image
from segunc.scores import Score
from segunc.uncertainty import Calibrator


@dataclass(frozen=True)
class Prediction:
    """Maps of n frames."""

    prediction: Tensor  # uint8 [n, H, W], the class of the largest mean probability
    scores: Mapping[str, Tensor]  # float32 [n, H, W] by name; entropies divided by ln C (0..1)
    probabilities: Tensor | None = None  # float32 [n, C, H, W] mean over draws, only when asked for


def fault_of(error: Exception, image: Image | None) -> InputError:
    """Return why one frame has no maps, where that is the frame's own: it is refused, or memory does not suffice for it. Any other error
    is raised again."""
    if isinstance(error, InputError):
        return error
    if image is None or not is_out_of_memory(error):
        raise error
    height, width = image.shape[:2]
    return InputError(
        f"there is not enough memory for a frame of {width} x {height} pixels ({one_line(error)})",
        hint="give a smaller --size, --tile or --chunk",
    )


def network_input(images: Sequence[Image], size: tuple[int, int]) -> Tensor:
    """Return RGB uint8 images ``[H, W, 3]`` as float32 ``[n, 3, h, w]`` in 0..1, resized to (height, width) ``size``. Shrinking averages
    over areas, enlarging is bilinear."""
    resized = []
    for image in images:
        if image.shape[:2] != size:
            interpolation = cv2.INTER_AREA if size[0] < image.shape[0] else cv2.INTER_LINEAR
            image = np.asarray(cv2.resize(image, (size[1], size[0]), interpolation=interpolation), np.uint8)
        resized.append(np.ascontiguousarray(image.transpose(2, 0, 1)))
    return torch.from_numpy(np.stack(resized)).float().div_(255.0)


def calibrate(evidence: Mapping[str, Any], calibrator: Calibrator) -> dict[str, Any]:
    """Return a frame's evidence with calibrated mean probabilities and their entropy."""
    probabilities, entropy = calibrator(evidence["probabilities"])
    return {**evidence, "probabilities": probabilities, "calibrated entropy": entropy}


def finish_frame(
    scores: Iterable[Score],
    evidence: Mapping[str, Any],
    size: tuple[int, int] | None,
    prediction: Tensor | None = None,
    ready: Mapping[str, Tensor] | None = None,
    *,
    keep: bool = False,
) -> Prediction:
    """Return one frame's maps of some scores, each ``[H, W]``.

    Args:
        scores: to make of the evidence.
        evidence: of the frame, see :data:`segunc.scores.EVIDENCE`; at least its probabilities.
        size: (height, width) of the maps, None for that of the evidence. Maps are resized bilinearly, or the evidence
            of those scores that say so; the prediction then comes from the resized probabilities.
        prediction: at the size of the evidence; None for the most probable class.
        ready: further maps, only to be resized.
        keep: the mean probabilities too.
    """
    probabilities: Tensor = evidence["probabilities"]
    resize = size is not None and size != probabilities.shape[-2:]
    late = [score for score in scores if resize and score.resized == "evidence"]
    maps = {s.name: s(evidence)[0].float() for s in scores if s not in late} | dict(ready or {})
    if size is not None and resize:
        if maps:
            maps = dict(zip(maps, _resized(torch.stack(list(maps.values())), size), strict=True))
        needed = {"probabilities", *(name for score in late for name in score.needs)}
        evidence = {name: _resized(evidence[name], size) for name in needed}
        probabilities = evidence["probabilities"]
        maps |= {score.name: score(evidence)[0].float() for score in late}
    if prediction is None or resize:
        prediction = evidence["probabilities"][0].max(0).indices.to(torch.uint8)
    return Prediction(prediction, maps, probabilities[0] if keep else None)


def _resized(planes: Any, size: tuple[int, int]) -> Any:
    if not isinstance(planes, Tensor):
        return planes
    volume = planes.float() if planes.dim() == 4 else planes[None].float()
    resized = F.interpolate(volume, size, mode="bilinear", align_corners=False)
    return resized if planes.dim() == 4 else resized[0]
