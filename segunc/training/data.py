"""What a fine-tuning trains and selects on: a data set, or loaders of the user's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from segunc.core.errors import InputError

if TYPE_CHECKING:
    from segunc.data.module import SegmentationDataModule

Batch = tuple[Tensor, Tensor]  # images ``[N, 3, H, W]`` in 0..1 and labels ``[N, H, W]``


@dataclass(frozen=True)
class OwnData:
    """Loaders of your own in place of a data set of ours: ``train`` with a length, which is gone through once an epoch, and ``val``, on
    whose first images hyper-parameters are selected; None where all are given.

    Batches are ``(image, label)`` pairs or dictionaries with these keys: float images ``[N, 3, H, W]`` in 0..1, which the network
    of a model folder normalises itself, and integer class ids ``[N, H, W]``, 255 ignored.
    """

    train: Iterable[Any]
    val: Iterable[Any] | None = None

    def validation(self, frames: int) -> list[dict[str, Tensor]]:
        """Return the first images of ``val`` (0: all), each with its label."""
        if self.val is None:
            lack = "a selection needs validation batches, but there are none"
            raise InputError(lack, hint="give val, or every value")
        pairs = (pair for batch in self.val for pair in zip(*unpack_batch(batch), strict=True))
        return [{"image": image, "label": label} for image, label in islice(pairs, frames or None)]

    @property
    def batch_size(self) -> int:
        """Number of images in a training batch; 1 where the loader does not say."""
        return int(getattr(self.train, "batch_size", None) or 1)

    def prepare_data(self) -> None:
        """Check nothing: the loaders are the user's."""

    def train_dataloader(self) -> Iterable[Any]:
        return self.train


def unpack_batch(batch: Any) -> Batch:
    """Return images ``[N, 3, H, W]`` and int64 train ids ``[N, H, W]`` of a pair or of a dictionary with these keys."""
    if isinstance(batch, Mapping) and {"image", "label"} <= set(batch):
        return batch["image"], batch["label"].long()
    if isinstance(batch, Sequence) and len(batch) >= 2:
        return batch[0], batch[1].long()
    kind = type(batch).__name__
    raise InputError(f"a batch of type {kind} is neither (image, label) nor a dictionary with these keys")


def open_data(data: Mapping[str, Any], classes: int) -> SegmentationDataModule:
    """Return a data set from the arguments of its module, for a network of so many classes."""
    from segunc.data.module import SegmentationDataModule

    module = SegmentationDataModule(**data)
    if (count := module.label_map.num_classes) != classes:
        raise InputError(f"data set {data['dataset']} has {count} classes, the network {classes}")
    return module


def spaced(count: int, limit: int) -> list[int]:
    """Return at most ``limit`` evenly spaced indices below ``count`` (0: all)."""
    return sorted({int(i) for i in np.linspace(0, count - 1, min(limit or count, count))})
