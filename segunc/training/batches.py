"""What a fine-tuning trains on: batches, and the data set that gives them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from torch import Tensor

from segunc.core.errors import InputError

if TYPE_CHECKING:
    from segunc.data.module import SegmentationDataModule

Batch = tuple[Tensor, Tensor]  # images ``[N, 3, H, W]`` in 0..1 and labels ``[N, H, W]``


def unpack_batch(batch: Any) -> Batch:
    """Return images ``[N, 3, H, W]`` and int64 train ids ``[N, H, W]`` of a pair or of a dictionary
    with these keys; labels may be ``[N, 1, H, W]``.
    """
    if isinstance(batch, Mapping) and {"image", "label"} <= set(batch):
        return batch["image"], class_ids(batch["label"])
    if isinstance(batch, Sequence) and len(batch) >= 2:
        return batch[0], class_ids(batch[1])
    kind = type(batch).__name__
    raise InputError(
        f"a batch of type {kind} is neither (image, label) nor a dictionary with these keys"
    )


def class_ids(labels: Tensor) -> Tensor:
    """Return labels ``[N, H, W]`` or ``[N, 1, H, W]`` as int64 ``[N, H, W]``.

    Raises:
        InputError: another number of axes, or numbers between the class ids.
    """
    if labels.ndim == 4 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 3:
        message = f"labels of shape {tuple(labels.shape)} are neither [N, H, W] nor [N, 1, H, W]"
        raise InputError(message, hint="give a class id for each pixel")
    ids = labels.long()
    if labels.is_floating_point() and not bool((ids == labels).all()):
        message = f"labels of the type {labels.dtype} hold fractions, not class ids"
        raise InputError(message, hint="read them as whole numbers: ToTensor divides by 255")
    return ids


def count_batches(loader: Iterable[Any], most: int = 0) -> int:
    """Return how many batches a pass over a loader gives.

    Args:
        loader: gives the batches. One without a length is gone through.
        most: stop counting at this number of batches, so that a loader that never ends can be used;
            0 counts all.

    Raises:
        InputError: no batch, or an iterator, which gives its batches only once.
    """
    if isinstance(loader, Iterator):
        message = (
            f"the training loader is a {type(loader).__name__}, which can be gone through once"
        )
        raise InputError(message, hint="give a DataLoader, or a list of its batches")
    try:
        batches = len(cast(Sequence[Any], loader))
    except TypeError:
        counted = islice(loader, most) if most else loader
        batches = sum(1 for _ in counted)
    if not batches:
        hint = "check its data set and batch size"
        raise InputError("the training loader holds no batch", hint=hint)
    return batches


def open_data(data: Mapping[str, Any], classes: int) -> SegmentationDataModule:
    """Return the data set that a configuration describes.

    Args:
        data: arguments of :class:`segunc.data.module.SegmentationDataModule`.
        classes: how many classes the network has.

    Raises:
        InputError: the data set has another number of classes.
    """
    from segunc.data.module import SegmentationDataModule

    module = SegmentationDataModule(**data)
    count = module.label_map.num_classes
    if count != classes:
        raise InputError(
            f"data set {data['dataset']} has {count} classes, but the network has {classes}",
            hint="give the data set of its training, or data.labels with its classes",
        )
    return module


def spaced(count: int, limit: int) -> list[int]:
    """Return at most ``limit`` evenly spaced indices below ``count`` (0: all)."""
    number = min(limit or count, count)
    positions = np.linspace(0, count - 1, number)
    return sorted({int(position) for position in positions})
