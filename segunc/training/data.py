"""What a fine-tuning trains and selects on: a data set of ours, or loaders of the user's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from segunc.core.errors import InputError
from segunc.data.labels import IGNORE

if TYPE_CHECKING:
    from segunc.data.module import SegmentationDataModule


@dataclass(frozen=True)
class OwnData:
    """Loaders of your own in place of a data set of ours.

    Batches are ``(image, label)`` pairs or dictionaries with these keys: float images ``[N, 3, H, W]`` in 0..1, which the network
    of a model folder normalises itself, and integer class ids ``[N, H, W]``, 255 ignored.

    Attributes:
        train: a loader with a length, which is gone through once an epoch.
        val: a loader whose first images hyper-parameters are selected on; None where all are given.
    """

    train: Iterable[Any]
    val: Iterable[Any] | None = None

    def validation(self, frames: int) -> list[dict[str, Tensor]]:
        """The first images of ``val`` (0: all), each with its label.

        Raises:
            InputError: there is no ``val``.
        """
        if self.val is None:
            raise InputError("a selection on loaders without val", "validation batches", "give val, or every value")
        pairs = (pair for batch in self.val for pair in zip(*unpack_batch(batch), strict=True))
        return [{"image": image, "label": label} for image, label in islice(pairs, frames or None)]

    def class_frequencies(self, num_classes: int) -> list[float]:
        """Share of the labelled training pixels of each class, over one epoch."""
        counts = torch.zeros(num_classes, dtype=torch.float64)
        for batch in self.train:
            labels = unpack_batch(batch)[1]
            counts += torch.bincount(labels[labels != IGNORE].flatten().cpu(), minlength=num_classes)[:num_classes]
        if not counts.any():
            raise InputError("the training labels hold only ignored pixels", f"ids other than {IGNORE}", "check them")
        return [float(share) for share in counts / counts.sum()]


def unpack_batch(batch: Any) -> tuple[Tensor, Tensor]:
    """Images ``[N, 3, H, W]`` and int64 train ids ``[N, H, W]`` of a pair or of a dictionary with these keys."""
    if isinstance(batch, Mapping) and {"image", "label"} <= set(batch):
        return batch["image"], batch["label"].long()
    if isinstance(batch, Sequence) and len(batch) >= 2:
        return batch[0], batch[1].long()
    raise InputError(
        f"a batch of type {type(batch).__name__}", "(image, label) or a dictionary with these keys", "adapt the loader"
    )


def open_data(data: Mapping[str, Any], classes: int) -> SegmentationDataModule:
    """A data set of ours for a network.

    Args:
        data: arguments of :class:`segunc.data.module.SegmentationDataModule`.
        classes: of the network.

    Raises:
        InputError: the data set cannot be opened, or has another number of classes.
    """
    from segunc.data.module import SegmentationDataModule

    module = SegmentationDataModule(**data)
    if module.label_map.num_classes != classes:
        raise InputError(
            f"data set {data['dataset']} has {module.label_map.num_classes} classes, the network {classes}",
            "the classes that the network was trained on",
            "choose the data set or the base again",
        )
    return module
