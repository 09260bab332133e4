"""A labelled image set: where each frame and its label lie, and how both are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from segunc.core.errors import InputError
from segunc.data.images import Image, read_image, read_label_image
from segunc.data.labels import LabelMap

if TYPE_CHECKING:
    from segunc.data.transforms import Transform


@dataclass(frozen=True)
class Sample:
    """One frame of a data set and its labels; both may be the same file, read by different rules.

    Attributes:
        name: unique in the set.
        image: the image's path.
        label: the class label's path, or None where its classes are not asked about.
        anomaly: the path of the label that marks anomalies, or None where they are not asked about.
    """

    name: str
    image: Path
    label: Path | None
    anomaly: Path | None = None


def load_image(path: Path) -> Image:
    """An image file as RGB uint8 ``[H, W, 3]``; see :func:`segunc.data.images.read_image`.

    Raises:
        InputError: missing, truncated, or not an image.
    """
    try:
        return read_image(path)
    except OSError as error:
        raise InputError(
            f"image {path} cannot be read ({error.strerror})", "an image file", "check the path"
        ) from error
    except ValueError as error:
        raise InputError(
            f"image {path}: {error}", "an image file that is whole", "copy it again or remove it"
        ) from error


class SegmentationDataset(Dataset[dict[str, Any]]):
    """Frames with labels, read, checked and transformed one by one.

    Args:
        samples: the frames; at least one, each with a label.
        label_map: raw label ids -> train ids.
        transform: image RGB uint8 ``[H, W, 3]`` and label uint8 ``[H, W]`` -> ``image`` float ``[3, h, w]`` and
            ``label`` int64 ``[h, w]``; see :mod:`segunc.data.transforms`.

    Items are dictionaries with ``image``, ``label`` and ``name``.

    Raises:
        InputError: on reading a frame whose image and label differ in size, or that cannot be read.
    """

    def __init__(self, samples: Sequence[Sample], label_map: LabelMap, transform: Transform) -> None:
        if not samples:
            raise InputError("a data set without a frame", "at least one labelled image", "check its root and split")
        self.samples = list(samples)
        self.label_map = label_map
        self.transform = transform

    def __len__(self) -> int:
        return len(self.samples)

    def read(self, index: int) -> tuple[Image, npt.NDArray[np.uint8]]:
        """Image (RGB uint8 ``[H, W, 3]``) and train ids (uint8 ``[H, W]``, 255 ignored) of one frame, untransformed."""
        sample = self.samples[index]
        image = load_image(sample.image)
        if sample.label is None:
            raise InputError(f"frame {sample.name} has no label", "a label file", "remove the frame from the split")
        label = read_label_image(sample.label)
        if label.shape != image.shape[:2]:
            raise InputError(
                f"label {sample.label} is {label.shape[0]}x{label.shape[1]}, its image {image.shape[0]}x{image.shape[1]}",
                "one size for both",
                "pair the label with the right image",
            )
        return image, self.label_map.encode(label, str(sample.label))

    def __getitem__(self, index: int) -> dict[str, Any]:
        image, label = self.read(index)
        return {**self.transform(image, label), "name": self.samples[index].name}
