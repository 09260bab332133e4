"""Frames for chains: a fixed set in memory, and minibatches that depend on the seed and the step alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from segunc.affine.noise import mix_seed
from segunc.core.errors import InputError
from segunc.data.samples import SegmentationDataset

Batch = tuple[Tensor, Tensor]
"""Images ``[N, 3, H, W]`` and labels ``[N, H, W]``."""


def load_batches(data: SegmentationDataset, frames: Sequence[int], size: int) -> list[Batch]:
    """The chosen frames in memory, ``size`` to a batch; the last batch may be smaller.

    Raises:
        InputError: frames of several sizes.
    """
    starts = range(0, len(frames), size)
    return [_stack([data[i] for i in frames[start : start + size]]) for start in starts]


class Minibatches:
    """Step k of a chain meets the batch that (seed, k) decides, whatever ran before: so a killed chain continues exactly.

    Each pass over the frames has its own order; what is left of a pass after its last whole batch is left out.

    Args:
        data: the frames, augmented or not.
        frames: the indices that belong to the data set of the chain.
        size: frames in a batch.
        seed: of the order and the augmentation.
        workers: loader processes.

    Raises:
        InputError: fewer frames than a batch.
    """

    def __init__(
        self, data: SegmentationDataset, frames: Sequence[int], size: int, seed: int, workers: int = 0
    ) -> None:
        if len(frames) < size:
            raise InputError(f"{len(frames)} training frames", f"at least a batch of {size}", "lower data.batch_size")
        self._data, self._frames, self._size, self._seed, self._workers = data, list(frames), size, seed, workers

    def frames_of(self, step: int) -> list[int]:
        """The frames of a step's batch."""
        each = len(self._frames) // self._size
        generator = np.random.Generator(np.random.Philox(key=mix_seed(self._seed, step // each)))
        order = generator.permutation(len(self._frames))
        first = (step % each) * self._size
        return [self._frames[i] for i in order[first : first + self._size]]

    def between(self, first: int, last: int) -> Iterator[Batch]:
        """The batches of the steps first..last-1."""
        plan = [
            [(frame, mix_seed(self._seed, step, place)) for place, frame in enumerate(self.frames_of(step))]
            for step in range(first, last)
        ]
        loader: DataLoader[Any] = DataLoader(
            _Keyed(self._data),
            batch_sampler=plan,
            num_workers=self._workers,
            collate_fn=_stack,
            generator=torch.Generator().manual_seed(self._seed),  # else the loader takes a number from the global one
        )
        return iter(loader)


class _Keyed(Dataset[dict[str, Any]]):
    """Frames whose augmentation is seeded one by one: indices are (frame, seed)."""

    def __init__(self, data: SegmentationDataset) -> None:
        self._data = data

    def __getitem__(self, index: tuple[int, int]) -> dict[str, Any]:
        frame, seed = index
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self._data[frame]


def _stack(items: Sequence[dict[str, Any]]) -> Batch:
    shapes = sorted({tuple(item["image"].shape[1:]) for item in items})
    if len(shapes) > 1:
        raise InputError(f"frames of the sizes {shapes}", "frames of one size", "give data.size")
    batch = default_collate([{"image": item["image"], "label": item["label"]} for item in items])
    return batch["image"], batch["label"]
