"""What a fine-tuning trains on: batches, and the data set that gives them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from segunc.core.errors import InputError
from segunc.networks.description import COLOUR
from segunc.networks.network import check_axes, check_unit_images
from segunc.training.losses import check_labels

if TYPE_CHECKING:
    from segunc.data.module import SegmentationDataModule

Batch = tuple[Tensor, Tensor]  # images ``[N, K, H, W]`` in 0..1 and labels ``[N, H, W]``


def unpack_batch(batch: Any) -> Batch:
    """Return images ``[N, K, H, W]`` and int64 train ids ``[N, H, W]`` of a pair or of a dictionary
    with these keys; labels may be ``[N, 1, H, W]``.
    """
    if isinstance(batch, Mapping) and {"image", "label"} <= set(batch):
        return _tensor(batch["image"], "images"), class_ids(_tensor(batch["label"], "labels"))
    if isinstance(batch, Sequence) and len(batch) >= 2:
        return _tensor(batch[0], "images"), class_ids(_tensor(batch[1], "labels"))
    kind = type(batch).__name__
    raise InputError(
        f"a batch of type {kind} is neither (image, label) nor a dictionary with these keys"
    )


def _tensor(values: Any, name: str) -> Tensor:
    """Return tensors as they are, and arrays as tensors.

    Raises:
        InputError: the values are neither.
    """
    if isinstance(values, Tensor):
        return values
    if isinstance(values, np.ndarray):
        return torch.from_numpy(values)
    raise InputError(
        f"the {name} of a batch are of type {type(values).__name__}, not a tensor",
        hint="let the loader make tensors: images [N, 3, H, W] and labels [N, H, W]",
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


def checked_batch(batch: Any, classes: int, channels: int = COLOUR) -> Batch:
    """Return float32 images and labels of a batch that a program hands over, which any method
    takes. Images of the type uint8 are divided by 255.

    Args:
        batch: as :func:`unpack_batch` takes it.
        classes: number of classes of the network.
        channels: number of channels of its images.

    Raises:
        InputError: images of another shape or range, labels of another size, or neither class ids
            nor 255.
        NotFiniteError: the images hold NaN or infinite values.
    """
    images, labels = unpack_batch(batch)
    check_axes(images, channels)
    if images.dtype == torch.uint8:
        images = images.float() / 255
    check_unit_images(images)
    expected = (len(images), *images.shape[2:])
    if tuple(labels.shape) != expected:
        message = f"labels of shape {tuple(labels.shape)} do not fit images of shape"
        hint = f"give labels of shape {expected}"
        raise InputError(f"{message} {tuple(images.shape)}", hint=hint)
    check_labels(labels, classes)
    return _trainable(images.float()), _trainable(labels)


def _trainable(tensor: Tensor) -> Tensor:
    """Return a tensor with which gradients can be computed, though inference mode made it."""
    return tensor.clone() if tensor.is_inference() else tensor


def count_batches(loader: Iterable[Any], most: int = 0) -> int:
    """Return how many batches a pass over a loader gives.

    Args:
        loader: gives the batches. One without a length is gone through.
        most: stop counting at this number of batches, so that a loader that never ends can be used;
            0 counts all.

    Raises:
        InputError: no batch, or an iterator, which gives its batches only once.
    """
    check_repeatable(loader)
    try:
        batches = len(cast(Sequence[Any], loader))
    except TypeError:
        counted = islice(loader, most) if most else loader
        batches = sum(1 for _ in counted)
    if not batches:
        raise no_batch()
    return batches


def check_repeatable(loader: Iterable[Any]) -> None:
    """Raise InputError for an iterator: a fit goes through its batches more than once."""
    if isinstance(loader, Iterator):
        raise InputError(
            f"the loader is a {type(loader).__name__}, which can be gone through once",
            hint="give a DataLoader, or a list of its batches",
        )


def no_batch() -> InputError:
    """Return the error of a loader without a batch."""
    return InputError("the loader holds no batch", hint="check its data set and batch size")


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
