"""What a fine-tuning trains and selects on: a data set, as a whole or frame by frame for chains, or loaders of the user's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from segunc.affine.noise import mix_seed
from segunc.core.errors import InputError

if TYPE_CHECKING:
    from segunc.data.module import SegmentationDataModule, SegmentationDataset

Batch = tuple[Tensor, Tensor]
"""Images ``[N, 3, H, W]`` in 0..1 and labels ``[N, H, W]``."""


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


def load_batches(data: SegmentationDataset, frames: Sequence[int], size: int) -> list[Batch]:
    """Return frames, all of one size in pixels, in batches of ``size``; the last batch may be smaller."""
    starts = range(0, len(frames), size)
    return [_stack([data[i] for i in frames[start : start + size]]) for start in starts]


def minibatches(
    data: SegmentationDataset, frames: Sequence[int], size: int, seed: int, steps: int, workers: int = 0
) -> Iterator[Batch]:
    """Yield the batches of a chain, of which (seed, k) decides that of step k, whatever ran before. Each pass over ``frames``, the indices
    of ``data`` that belong to the chain, has its own order; what is left of it after its last whole batch of ``size`` is left out."""
    if len(frames) < size:
        few = f"{len(frames)} training frames do not fill a batch of {size}"
        raise InputError(few, hint="lower data.batch_size")
    each, plan = len(frames) // size, list[list[tuple[int, int]]]()
    for step in range(steps):
        order = np.random.Generator(np.random.Philox(key=mix_seed(seed, step // each))).permutation(len(frames))
        first = (step % each) * size
        chosen = [frames[i] for i in order[first : first + size]]
        plan.append([(frame, mix_seed(seed, step, row)) for row, frame in enumerate(chosen)])
    # Without a generator the loader takes a number from the global one.
    more: dict[str, Any] = {"collate_fn": _stack, "generator": torch.Generator().manual_seed(seed)}
    return iter(DataLoader(_Keyed(data), batch_sampler=plan, num_workers=workers, **more))


@dataclass(frozen=True)
class _Keyed(Dataset[dict[str, Any]]):
    """Frames whose augmentation is seeded one by one: indices are (frame, seed)."""

    data: SegmentationDataset

    def __getitem__(self, index: tuple[int, int]) -> dict[str, Any]:
        frame, seed = index
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.data[frame]


def _stack(items: Sequence[dict[str, Any]]) -> Batch:
    from segunc.data.module import collate

    batch = collate(items)
    return batch["image"], batch["label"]
