"""The data loaders of somebody else's training, read once more without a trace in them, and shared
out over several processes.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from segunc.core.errors import InputError
from segunc.data.labels import IGNORE
from segunc.networks.network import HIGHEST_VALUE, LOWEST_VALUE
from segunc.training.batches import class_ids, spaced

Unpack = Callable[[Any], Any]
KEYS = ("image", "label", "anomaly")


def one_loader(loaders: Any, which: str, argument: str) -> Any:
    """Return the one loader of a Trainer.

    Args:
        loaders: as the Trainer holds them: a loader, a list, a dictionary, or None.
        which: they are, in the message: training or validation.
        argument: of the callback that takes other data in their place.

    Raises:
        InputError: there are several, or none.
    """
    hint = f"give UncertaintyCallback({argument}=...) a loader"
    if isinstance(loaders, Mapping):
        loaders = list(loaders.values())
    # A list of loaders; a list of batches is a loader itself.
    if isinstance(loaders, list | tuple) and all(isinstance(one, DataLoader) for one in loaders):
        if len(loaders) > 1:
            message = f"the trainer has {len(loaders)} {which} loaders, and one is needed"
            raise InputError(message, hint=hint)
        loaders = loaders[0] if loaders else None
    if loaders is None:
        raise InputError(f"the trainer has no {which} loader", hint=hint)
    return loaders


@dataclass(frozen=True)
class BatchForm:
    """How the batches of a loader become images and labels.

    Attributes:
        unpack: of the user, from a batch to ``(image, label)`` or a dictionary; None takes the
            batch as it is.
        mean, std: by which the images were normalised, a number for each channel; None for images
            in 0..1.
        ignore_index: value of labels that are ignored.
    """

    unpack: Unpack | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    ignore_index: int = IGNORE

    def read(self, batch: Any) -> dict[str, Tensor]:
        """Return ``image``, ``[N, C, H, W]`` in 0..1, and where the batch has them ``label``
        and ``anomaly``, int64 ``[N, H, W]`` with 255 where a pixel is ignored.

        Raises:
            InputError: a batch of another form, or labels of another size than the images.
        """
        parts = _parts_of(batch if self.unpack is None else self.unpack(batch))
        images = parts["image"]
        if images.dtype == torch.uint8:
            if self.mean is not None:
                message = "images of the type uint8 are not normalised"
                raise InputError(message, hint="leave normalised out")
            images = images.float() / 255
        if self.mean is not None and self.std is not None:
            images = self._unit_range(images)
        else:
            _check_unit_range(images)
        tensors = {"image": images}
        for key in KEYS[1:]:
            if parts.get(key) is None:
                continue
            labels = class_ids(parts[key])
            expected = (len(images), *images.shape[-2:])
            if tuple(labels.shape) != expected:
                message = f"{key}s of shape {tuple(labels.shape)} do not fit images of shape"
                hint = f"give labels of shape {expected}"
                raise InputError(f"{message} {tuple(images.shape)}", hint=hint)
            if key == "label" and self.ignore_index != IGNORE:
                labels = torch.where(labels == self.ignore_index, IGNORE, labels)
            tensors[key] = labels
        return tensors

    def _unit_range(self, images: Tensor) -> Tensor:
        """Return normalised images as they were in 0..1.

        Raises:
            InputError: they are farther from 0..1 than rounding and resampling go.
        """
        mean = torch.tensor(self.mean).to(images).view(1, -1, 1, 1)
        std = torch.tensor(self.std).to(images).view(1, -1, 1, 1)
        unit = images * std + mean
        low, high = (float(bound) for bound in unit.aminmax())
        if low < LOWEST_VALUE or high > HIGHEST_VALUE:
            message = (
                f"without their normalisation the images have values from {low:.3g} to {high:.3g}, "
                "not in 0..1"
            )
            hint = "give the mean and std of the loader, or leave normalised out"
            raise InputError(message, hint=hint)
        return unit.clamp(0, 1)


def _check_unit_range(images: Tensor) -> None:
    """Raise InputError for images that are not in 0..1, which the loader may give normalised."""
    if not images.is_floating_point() or images.numel() == 0:
        return
    low, high = (float(bound) for bound in images.aminmax())
    if low >= LOWEST_VALUE and high <= HIGHEST_VALUE:
        return
    if not (math.isfinite(low) and math.isfinite(high)):
        return  # which the network says
    hint = "mean=..., std=..., normalised=True, if the loader normalises them"
    if low >= 0:
        hint = "divide by 255, in the data set or in unpack=..."
    message = f"the loader gives images with values from {low:.3g} to {high:.3g}, not in 0..1"
    raise InputError(message, hint=hint)


def _parts_of(batch: Any) -> Mapping[str, Any]:
    """Return image, label and anomaly of a batch, what it has of them."""
    parts: Mapping[str, Any]
    if isinstance(batch, Mapping) and "image" in batch:
        parts = batch
    elif isinstance(batch, Tensor):
        parts = {"image": batch}
    elif isinstance(batch, Sequence) and batch and not isinstance(batch, str):
        parts = dict(zip(KEYS[:2], batch, strict=False))
    else:
        held = f" with the keys {', '.join(map(str, batch))}" if isinstance(batch, Mapping) else ""
        message = f"a batch of type {type(batch).__name__}{held} has no known form"
        hint = "unpack=lambda batch: (images, labels) says where they are"
        raise InputError(message, hint=hint)
    images = parts["image"]
    if not isinstance(images, Tensor) or images.ndim != 4:
        shape = tuple(images.shape) if isinstance(images, Tensor) else type(images).__name__
        message = f"the images of a batch are {shape}, not a tensor [N, C, H, W]"
        raise InputError(message, hint="unpack=lambda batch: (images, labels) says where they are")
    return parts


@dataclass(frozen=True)
class Share:
    """The frames that one of several processes takes: every ``processes``-th from ``number`` on."""

    number: int = 0
    processes: int = 1


@dataclass
class Frames:
    """The frames of a validation set, one by one.

    Attributes:
        source: a DataLoader, or any iterable of batches.
        form: of the batches.
        limit: frames at most; None takes all.
        pictures: how many are drawn, evenly spaced over the set.
        batches: batches at most; None takes all.
        is_shared_out: whether the source gives each process other frames.
    """

    source: Any
    form: BatchForm
    limit: int | None = None
    pictures: int = 0
    batches: int | None = None
    is_shared_out: bool = False
    drawn: set[int] = field(default_factory=set, init=False)

    def of(self, share: Share) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """Yield the number of each frame of a share in the whole set and its tensors, see
        :meth:`BatchForm.read`; each has one row.
        """
        loader = self.source
        if is_indexed(loader):
            indices: list[Any] = []
            for batch in itertools.islice(batches_of(loader, seed=0), self.batches):
                indices += batch
            indices = indices[: self.limit]
            self.drawn = set(spaced(len(indices), self.pictures)) if self.pictures else set()
            mine = range(share.number, len(indices), share.processes)
            chosen = [indices[number] for number in mine]
            size = loader.batch_size or 1
            batches = [chosen[start : start + size] for start in range(0, len(chosen), size)]
            loader = loader_like(loader, batches, seed=0)
            for number, frame in zip(mine, self._single(loader), strict=True):
                yield number, frame
            return
        self.drawn = set(range(self.pictures))
        chosen_batches = itertools.islice(loader, self.batches)
        for place, frame in enumerate(self._single(chosen_batches)):
            number = place
            if self.is_shared_out:
                number = place * share.processes + share.number
            if self.limit is not None and number >= self.limit:
                return
            if number % share.processes == share.number:
                yield number, frame

    def first_sum(self) -> str:
        """Return a sum of the first batch of a stream, by which processes see whether they have the
        same frames; empty where all of them have, or where reading it would take it away.
        """
        if is_indexed(self.source) or isinstance(self.source, Iterator):
            return ""
        for batch in self.source:
            return batch_sum(self.form.read(batch))
        return ""

    def _single(self, batches: Iterable[Any]) -> Iterator[dict[str, Tensor]]:
        """Yield the frames of batches."""
        for batch in batches:
            tensors = self.form.read(batch)
            for row in range(len(tensors["image"])):
                yield {key: tensor[row : row + 1] for key, tensor in tensors.items()}


@dataclass
class TrainBatches:
    """Batches to fit a method on. A loader that shuffles does so anew in each pass, and in the same
    way in every process and in every evaluation.

    Attributes:
        source: a DataLoader, or any iterable of batches that can be gone through several times.
        form: of the batches.
        seed: of the order, where the loader shuffles.
        first_sum: a sum of the first batch of a stream, by which processes see whether they have
            the same batches; empty of a loader that gives all processes the same.
    """

    source: Any
    form: BatchForm
    seed: int
    passes: int = field(default=0, init=False)
    first_sum: str = field(default="", init=False)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        source = self.source
        if is_indexed(source):
            seed = self.seed + self.passes
            source = loader_like(source, batches_of(source, seed), seed)
            self.passes += 1
            return map(self.form.read, source)
        return self._of_stream()

    def _of_stream(self) -> Iterator[dict[str, Tensor]]:
        """Yield the batches of a stream, and take the sum of its first one."""
        for batch in self.source:
            tensors = self.form.read(batch)
            self.first_sum = self.first_sum or batch_sum(tensors)
            yield tensors

    def __len__(self) -> int:
        if is_indexed(self.source):
            return len(batches_of(self.source, self.seed))
        return len(self.source)


def batch_sum(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of the values of a batch."""
    digest = hashlib.sha256()
    for key in sorted(tensors):
        values = tensors[key].detach().cpu().contiguous()
        digest.update(f"{key} {tuple(values.shape)}".encode())
        digest.update(values.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def is_indexed(loader: Any) -> bool:
    """Return whether a loader gives batches of frames that it takes by their number."""
    if not isinstance(loader, DataLoader) or loader.batch_sampler is None:
        return False
    return not isinstance(loader.dataset, IterableDataset)


def loader_like(loader: DataLoader[Any], batches: Any, seed: int) -> DataLoader[Any]:
    """Return a new loader over the data set of another, with other batches of its numbers.

    It has workers of its own, so that those of the other go on where they are. ``seed`` decides
    their random numbers.
    """
    start_worker: Any = loader.worker_init_fn
    if getattr(getattr(start_worker, "func", None), "__name__", "") == "pl_worker_init_function":
        # Lightning gives the workers of each process other random numbers.
        start_worker = functools.partial(start_worker.func, rank=0)
    return DataLoader(
        loader.dataset,
        batch_sampler=batches,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        worker_init_fn=start_worker,
        multiprocessing_context=loader.multiprocessing_context,
        generator=torch.Generator().manual_seed(seed),
    )


def batches_of(loader: DataLoader[Any], seed: int) -> Any:
    """Return the batch sampler of a loader for one process, whose order ``seed`` decides where it
    shuffles.

    Several processes share the frames of a training out by a distributed sampler. Here each takes
    all of them.
    """
    batch_sampler: Any = loader.batch_sampler
    batch_sampler = getattr(batch_sampler, "_batch_sampler", batch_sampler)  # of Lightning
    sampler: Any = getattr(batch_sampler, "sampler", None)
    is_shared_out = isinstance(sampler, DistributedSampler)
    if type(batch_sampler) is not BatchSampler:
        if is_shared_out:
            name = type(batch_sampler).__name__
            message = f"a loader with the batch sampler {name} cannot be read whole in each process"
            raise InputError(message, hint="give UncertaintyCallback(fit_data=..., frames=...)")
        return batch_sampler
    if is_shared_out:
        sampler = _whole_sampler(sampler, loader.dataset)
    if type(sampler) is RandomSampler:
        sampler = RandomSampler(
            sampler.data_source,
            replacement=sampler.replacement,
            num_samples=sampler._num_samples,
            generator=torch.Generator().manual_seed(seed),
        )
    return BatchSampler(sampler, batch_sampler.batch_size, batch_sampler.drop_last)


def _whole_sampler(sampler: DistributedSampler[Any], dataset: Any) -> Any:
    """Return the sampler that a distributed sampler shares out."""
    wrapped = getattr(sampler.dataset, "_sampler", None)  # of Lightning, around a user's own
    if wrapped is not None:
        return wrapped
    return RandomSampler(dataset) if sampler.shuffle else SequentialSampler(dataset)
