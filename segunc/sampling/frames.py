"""Frames as arrays in, maps as arrays out: what prediction and evaluation share."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
import numpy.typing as npt
import torch

from segunc.networks.network import SegmentationNetwork, inference_size
from segunc.sampling.prediction import Prediction
from segunc.sampling.sampler import Sampler

Image = npt.NDArray[np.uint8]


def network_input(images: Sequence[Image], size: tuple[int, int]) -> torch.Tensor:
    """RGB uint8 images ``[H, W, 3]`` as float32 ``[n, 3, h, w]`` in 0..1, resized to (height, width) ``size``.

    Shrinking averages over areas, enlarging is bilinear.
    """
    resized = []
    for image in images:
        if image.shape[:2] != size:
            way = cv2.INTER_AREA if size[0] < image.shape[0] else cv2.INTER_LINEAR
            image = np.asarray(cv2.resize(image, (size[1], size[0]), interpolation=way), np.uint8)
        resized.append(np.ascontiguousarray(image.transpose(2, 0, 1)))
    return torch.from_numpy(np.stack(resized)).float().div_(255.0)


def sample_frames(
    sampler: Sampler,
    images: Sequence[Image],
    *,
    size: tuple[int, int] | None = None,
    keep_probabilities: bool = False,
    seed: int | None = None,
) -> Prediction:
    """The maps of frames of one size, at their own size.

    Args:
        sampler: over a :class:`SegmentationNetwork`.
        images: RGB uint8 ``[H, W, 3]``, all of one size.
        size: (height, width) the network sees; None for the network's inference size.
        keep_probabilities: also return the mean probabilities.
        seed: of other draws for these frames alone; None for the sampler's own.
    """
    network = sampler.network
    assert isinstance(network, SegmentationNetwork)
    frame = (images[0].shape[0], images[0].shape[1])
    seen = inference_size(network.description, frame, size)
    given = network_input(images, seen)
    if sampler.device.type == "cuda":
        # From pinned memory the copy is queued; from any other the thread would wait for all that is queued before it.
        given = given.pin_memory().to(sampler.device, non_blocking=True)
    return sampler(given, size=frame, keep_probabilities=keep_probabilities, seed=seed)
