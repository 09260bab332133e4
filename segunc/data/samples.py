"""Frames with labels, read one by one and made tensors, for training with augmentation; the only module that imports albumentations."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from segunc.core.errors import InputError
from segunc.data.entry import Sample
from segunc.data.images import Image, PixelDepth, load_image, resize_nearest
from segunc.data.labels import IGNORE, LabelMap

Labels = npt.NDArray[np.uint8]
Transform = Callable[[Image, Labels], dict[str, Tensor]]
"""Image RGB uint8 ``[H, W, 3]`` and train ids uint8 ``[H, W]`` -> ``image`` float ``[3, h, w]``, ``label`` int64 ``[h, w]``."""


class SegmentationDataset(Dataset[dict[str, Any]]):
    """Frames with labels, read, checked and transformed one by one into ``image``, ``label`` and ``name``.

    Args:
        samples: the frames; at least one, each with a label.
        label_map: raw label ids -> train ids.
        transform: see :data:`Transform`.
        bits: of 16-bit images, see :class:`segunc.data.images.PixelDepth`.

    Raises:
        InputError: on reading a frame whose image and label differ in size, or that cannot be read.
    """

    def __init__(
        self, samples: Sequence[Sample], label_map: LabelMap, transform: Transform, bits: int | None = None
    ) -> None:
        if not samples:
            raise InputError("the data set has no labelled frame", hint="check its root and split")
        self.samples, self.label_map, self.transform = list(samples), label_map, transform
        self.depth = PixelDepth(bits)

    def __len__(self) -> int:
        return len(self.samples)

    def read(self, index: int) -> tuple[Image, Labels]:
        """Return image (RGB uint8 ``[H, W, 3]``) and train ids (uint8 ``[H, W]``, 255 ignored) of one frame, untransformed."""
        sample = self.samples[index]
        image = load_image(sample.image, self.depth)
        if sample.label is None:
            raise InputError(f"frame {sample.name} has no label", hint="remove the frame from the split")
        label = self.label_map.read(sample.label)
        if label.shape != image.shape[:2]:
            sizes = (*label.shape, *image.shape[:2])
            raise InputError("label {} is {}x{}, its image {}x{}".format(sample.label, *sizes))
        return image, label

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {**self.transform(*self.read(index)), "name": self.samples[index].name}


def collate(items: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a batch of frames; raise InputError where they differ in size."""
    shapes = sorted({tuple(item["image"].shape[1:]) for item in items})
    if len(shapes) > 1:
        raise InputError(
            f"frames of the sizes {shapes} make no batch",
            hint="give data.size, or for validation data.eval_batch_size 1",
        )
    return dict(default_collate(list(items)))


def resized(image: Image, label: Labels, size: tuple[int, int], how: int) -> tuple[Image, Labels]:
    """Return both at a size (height, width), the image by an interpolation of OpenCV, the label by its nearest pixels."""
    target = (size[1], size[0])
    return np.asarray(cv2.resize(image, target, interpolation=how), np.uint8), resize_nearest(label, *target)


def to_tensors(image: Image, label: Labels) -> dict[str, Tensor]:
    """Return both as tensors, the image in 0..1 (networks normalise by themselves)."""
    pixels = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))).float().div_(255.0)
    return {"image": pixels, "label": torch.from_numpy(label.astype(np.int64))}


class EvalTransform:
    """No augmentation; resized to ``size`` (height, width) when given: image bilinear (area when shrinking), label nearest."""

    def __init__(self, size: tuple[int, int] | None = None) -> None:
        self.size = size

    def __call__(self, image: Image, label: Labels) -> dict[str, Tensor]:
        if self.size is not None and image.shape[:2] != self.size:
            how = cv2.INTER_AREA if self.size[0] < image.shape[0] else cv2.INTER_LINEAR
            image, label = resized(image, label, self.size, how)
        return to_tensors(image, label)


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
        # It asks a server for its newest version on import unless told not to; and it is for those who train.
        os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
        import albumentations as A

        class RandomScale(A.RandomScale):  # type: ignore[misc]
            def apply_to_mask(self, mask: Labels, scale: float, **params: Any) -> Labels:
                return resize_nearest(mask, int(mask.shape[1] * scale), int(mask.shape[0] * scale))

        self.size, self._settings = size, (crop, size, scale, flip, colour, blur)
        around_1 = (1 - colour, 1 + colour)
        steps = [
            RandomScale((scale[0] - 1.0, scale[1] - 1.0), interpolation=cv2.INTER_LINEAR, p=1.0),
            A.PadIfNeeded(*crop, border_mode=cv2.BORDER_CONSTANT, fill=0, fill_mask=IGNORE),
            A.RandomCrop(*crop),
            A.HorizontalFlip(p=flip),
            A.ColorJitter(around_1, around_1, around_1, (-0.1 * colour, 0.1 * colour), p=0.8),
            A.GaussianBlur(blur_limit=(3, 5), p=blur),
        ]
        self._compose = A.Compose(steps)

    def __reduce__(self) -> tuple[Any, ...]:
        # Workers that do not fork get the settings: a class that is made where its base is imported cannot be pickled.
        return TrainTransform, self._settings

    def __call__(self, image: Image, label: Labels) -> dict[str, Tensor]:
        if self.size is not None:
            image, label = resized(image, label, self.size, cv2.INTER_LINEAR)
        # Seeded from torch's generator of this worker, so that Lightning's seed decides every crop.
        seed = int(torch.randint(0, 2**31 - 1, ()).item())
        self._compose.set_random_seed(seed)
        random.seed(seed)
        done = self._compose(image=image, mask=label)
        return to_tensors(done["image"], done["mask"])
