"""Augmentation and normalisation; the only module that imports albumentations."""

from __future__ import annotations

import os

# albumentations asks a server for its newest version on import unless told not to.
os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")

import random
from typing import Any, Protocol

import albumentations as A
import cv2
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from segunc.data.labels import IGNORE


class Transform(Protocol):
    """Image RGB uint8 ``[H, W, 3]`` and train ids uint8 ``[H, W]`` -> tensors ``image`` and ``label``."""

    def __call__(self, image: npt.NDArray[np.uint8], label: npt.NDArray[np.uint8]) -> dict[str, Tensor]: ...


def to_tensor(image: npt.NDArray[np.uint8]) -> Tensor:
    """RGB uint8 ``[H, W, 3]`` -> float32 ``[3, H, W]`` in 0..1 (networks normalise by themselves)."""
    return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))).float().div_(255.0)


def _tensors(image: npt.NDArray[np.uint8], label: npt.NDArray[np.uint8]) -> dict[str, Tensor]:
    return {"image": to_tensor(image), "label": torch.from_numpy(label.astype(np.int64))}


class EvalTransform:
    """No augmentation; resized to ``size`` (height, width) when given: image bilinear (area when shrinking), label nearest."""

    def __init__(self, size: tuple[int, int] | None = None) -> None:
        self.size = size

    def __call__(self, image: npt.NDArray[np.uint8], label: npt.NDArray[np.uint8]) -> dict[str, Tensor]:
        if self.size is not None and image.shape[:2] != self.size:
            target = (self.size[1], self.size[0])
            shrinks = self.size[0] < image.shape[0]
            image = np.asarray(
                cv2.resize(image, target, interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR), np.uint8
            )
            label = np.asarray(cv2.resize(label, target, interpolation=cv2.INTER_NEAREST), np.uint8)
        return _tensors(image, label)


class TrainTransform:
    """Random scale, crop, flip and colour: the usual augmentation of road scenes.

    Args:
        crop: (height, width) of the crop; frames that are smaller after scaling are padded, labels with 255.
        size: (height, width) that frames are resized to first, or None.
        scale: range of the random scale factor.
        flip: probability of a left-right flip.
        colour: strength 0..1 of random brightness, contrast, saturation and hue.
        blur: probability of a slight Gaussian blur.
    """

    def __init__(
        self,
        crop: tuple[int, int],
        size: tuple[int, int] | None = None,
        scale: tuple[float, float] = (0.75, 1.75),
        flip: float = 0.5,
        colour: float = 0.3,
        blur: float = 0.1,
    ) -> None:
        steps: list[Any] = [A.Resize(*size, interpolation=cv2.INTER_LINEAR)] if size is not None else []
        steps += [
            A.RandomScale((scale[0] - 1.0, scale[1] - 1.0), interpolation=cv2.INTER_LINEAR, p=1.0),
            A.PadIfNeeded(*crop, border_mode=cv2.BORDER_CONSTANT, fill=0, fill_mask=IGNORE),
            A.RandomCrop(*crop),
            A.HorizontalFlip(p=flip),
            A.ColorJitter(
                (1 - colour, 1 + colour),
                (1 - colour, 1 + colour),
                (1 - colour, 1 + colour),
                (-0.1 * colour, 0.1 * colour),
                p=0.8,
            ),
            A.GaussianBlur(blur_limit=(3, 5), p=blur),
        ]
        self._compose = A.Compose(steps)

    def __call__(self, image: npt.NDArray[np.uint8], label: npt.NDArray[np.uint8]) -> dict[str, Tensor]:
        # Seeded from torch's generator of this worker, so that Lightning's seed decides every crop.
        seed = int(torch.randint(0, 2**31 - 1, ()).item())
        self._compose.set_random_seed(seed)
        random.seed(seed)
        done = self._compose(image=image, mask=label)
        return _tensors(done["image"], done["mask"])
