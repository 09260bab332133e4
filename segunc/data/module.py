"""Frames with labels, read one by one and made tensors, for training with augmentation, and one
LightningDataModule for every data set.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import cv2
import lightning as L
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from segunc.core.bounds import (
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Seed,
    Settings,
    UnitInterval,
)
from segunc.core.errors import InputError, shortened
from segunc.core.patterns import Searcher, pattern_of_file
from segunc.data.datasets import dataset_entry
from segunc.data.entries import Sample
from segunc.data.images import Image, Labels, load_image, resize_nearest
from segunc.data.labels import IGNORE, LabelMap, check_label_files

Transform = Callable[[Image, Labels], dict[str, Tensor]]
"""Image RGB uint8 ``[H, W, 3]`` and train ids uint8 ``[H, W]`` -> ``image`` float ``[3, h, w]``,
``label`` int64 ``[h, w]``.
"""


class SegmentationDataset(Dataset[dict[str, Any]]):
    """At least one frame with a label, read, checked and transformed one by one into ``image``,
    ``label`` and ``name``.
    """

    def __init__(
        self, samples: Sequence[Sample], label_map: LabelMap, transform: Transform
    ) -> None:
        if not samples:
            raise InputError("the data set has no labelled frame", hint="check its root and split")
        self.samples = list(samples)
        self.label_map = label_map
        self.transform = transform
        self._whole: set[Path] = set()  # images that were found without a hole

    def __len__(self) -> int:
        return len(self.samples)

    def read(self, index: int) -> tuple[Image, Labels]:
        """Return image (RGB uint8 ``[H, W, 3]``) and train ids (uint8 ``[H, W]``, 255 ignored) of
        one frame, untransformed.

        Raises:
            InputError: the image or the label cannot be read, the image is a JPEG in which data is
                missing, or both differ in size.
        """
        sample = self.samples[index]
        # The search for holes takes as long as decoding, so it runs when a file is first read.
        image = load_image(sample.image, strict=sample.image not in self._whole)
        self._whole.add(sample.image)
        assert sample.label is not None, "labelled frames alone are given"
        label = self.label_map.read(sample.label)
        if label.shape != image.shape[:2]:
            sizes = "{}x{}, its image {}x{}".format(*label.shape, *image.shape[:2])
            raise InputError(f"label {sample.label} is {sizes}")
        return image, label

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {**self.transform(*self.read(index)), "name": self.samples[index].name}


def collate(items: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a batch of frames; raise InputError where they differ in size."""
    shapes = sorted({tuple(item["image"].shape[1:]) for item in items})
    if len(shapes) > 1:
        hint = "give data.size, or for validation data.eval_batch_size 1"
        raise InputError(f"frames of the sizes {shapes} make no batch", hint=hint)
    return dict(default_collate(list(items)))


def resized(image: Image, label: Labels, size: tuple[int, int], how: int) -> tuple[Image, Labels]:
    target = (size[1], size[0])
    return np.asarray(cv2.resize(image, target, interpolation=how), np.uint8), resize_nearest(
        label, *target
    )


def to_tensors(image: Image, label: Labels) -> dict[str, Tensor]:
    """Return both as tensors, the image in 0..1 (networks normalise by themselves)."""
    pixels = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))).float().div_(255.0)
    return {"image": pixels, "label": torch.from_numpy(label.astype(np.int64))}


@dataclass(frozen=True)
class EvalTransform:
    """No augmentation; resized to ``size`` (height, width) when given: image bilinear (area when
    shrinking), label nearest.
    """

    size: tuple[int, int] | None = None

    def __call__(self, image: Image, label: Labels) -> dict[str, Tensor]:
        if self.size is not None and image.shape[:2] != self.size:
            how = cv2.INTER_AREA if self.size[0] < image.shape[0] else cv2.INTER_LINEAR
            image, label = resized(image, label, self.size, how)
        return to_tensors(image, label)


@dataclass(frozen=True)
class DataConfig(Settings):
    """Train, validation and test frames of one data set.

    Args:
        dataset: a name of :data:`segunc.data.datasets.DATASETS`.
        root: the folder it lies in.
        crop: (height, width) of training crops; frames that are smaller after scaling are padded,
            labels with 255.
        size: (height, width) that frames are resized to, or None for their own.
        batch_size: crops in a training batch; validation takes ``eval_batch_size`` frames.
        eval_batch_size: frames in a validation batch; with ``size`` None and frames of several
            sizes it must be 1.
        workers: loader processes; 0 loads in the training process.
        labels: a label map's name or CSV path instead of the data set's own (``folder`` has none).
        frames: a CSV with the columns split,image,label, paths relative to ``root``, in the place
            of the data set's own layout: ``segunc init`` writes one.
        scale: range of the random scale factor.
        flip: probability of a left-right flip.
        colour: strength 0..1 of random brightness, contrast, saturation and hue.
        blur: probability of a slight Gaussian blur.
        seed: of the shuffle, and with ``workers`` of the augmentation, which without takes torch's
            global generator. ``train`` adds its own seed and ``finetune`` its method's, so that
            members of several seeds see other crops in another order.
        anomaly_class: classes (a list, or names with commas between) that are anomalies: frames
            that hold one are not trained on, and the network does not know them; see
            :mod:`segunc.data.datasets`.
        validation: what split ``val`` is: the data set's own, or, for ``leave-sequence-out``, one
            sequence of the training frames, which is then not trained on. Neighbours of training
            frames choose too much certainty for frames that are not.
        sequence: regular expression whose first group (or whole match) in a frame's name is its
            sequence, ``^([^_]+)_`` for CamVid.
        held_out: the sequence that is ``val``. Without one, ``train`` is all training frames,
            :meth:`SegmentationDataModule.folds` holds out each sequence in turn, and ``val`` itself
            is an InputError, so that nothing is trained and selected on the same frames.
    """

    section = "data"
    dataset: str
    root: str
    crop: tuple[PositiveInt, PositiveInt] = (256, 256)
    size: tuple[PositiveInt, PositiveInt] | None = None
    batch_size: PositiveInt = 8
    eval_batch_size: PositiveInt = 4
    workers: NonNegativeInt = 0
    labels: str | None = None
    scale: tuple[PositiveFloat, PositiveFloat] = (0.75, 1.75)
    flip: UnitInterval = 0.5
    colour: UnitInterval = 0.3
    blur: UnitInterval = 0.1
    seed: Seed = 0
    anomaly_class: str | list[str] | None = None
    validation: Literal["val", "leave-sequence-out"] = "val"
    sequence: str | None = None
    held_out: str | None = None
    frames: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale[0] > self.scale[1]:
            raise InputError(f"scale {list(self.scale)} does not begin with the smaller number")
        if self.validation != "val" and self.sequence is None:
            message = f"validation {self.validation} needs data.sequence, a pattern of frame names"
            raise InputError(message, hint="e.g. ^([^_]+)_")
        sequence_pattern(self.sequence)


def sequence_pattern(sequence: str | None) -> Searcher:
    """Return the search of a sequence in a frame's name; a configuration says it, and may be a
    stranger's. InputError where it is no regular expression."""
    return pattern_of_file(sequence or "", f"sequence '{shortened(sequence or '')}'")


class TrainTransform:
    """Random scale, crop, flip and colour, the usual augmentation of road scenes, as the fields of
    :class:`DataConfig` say.
    """

    def __init__(self, config: DataConfig) -> None:
        # It asks a server for its newest version on import unless told not to; and it is for those
        # who train.
        os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
        import albumentations as A

        class RandomScale(A.RandomScale):  # type: ignore[misc]
            def apply_to_mask(self, mask: Labels, scale: float, **params: Any) -> Labels:
                return resize_nearest(mask, int(mask.shape[1] * scale), int(mask.shape[0] * scale))

        self._config, crop, scale, colour = config, config.crop, config.scale, config.colour
        around_1 = (1 - colour, 1 + colour)
        steps = [
            RandomScale((scale[0] - 1.0, scale[1] - 1.0), interpolation=cv2.INTER_LINEAR, p=1.0),
            A.PadIfNeeded(*crop, border_mode=cv2.BORDER_CONSTANT, fill=0, fill_mask=IGNORE),
            A.RandomCrop(*crop),
            A.HorizontalFlip(p=config.flip),
            A.ColorJitter(around_1, around_1, around_1, (-0.1 * colour, 0.1 * colour), p=0.8),
            A.GaussianBlur(blur_limit=(3, 5), p=config.blur),
        ]
        self._compose = A.Compose(steps)

    def __reduce__(self) -> tuple[Any, ...]:
        # Workers that do not fork get the settings: a class that is made where its base is imported
        # cannot be pickled.
        return TrainTransform, (self._config,)

    def __call__(self, image: Image, label: Labels) -> dict[str, Tensor]:
        if self._config.size is not None:
            image, label = resized(image, label, self._config.size, cv2.INTER_LINEAR)
        # Seeded from torch's generator of this process, which the loader's seeds in a worker, and
        # Lightning's seed without workers.
        seed = int(torch.randint(0, 2**31 - 1, ()).item())
        self._compose.set_random_seed(seed)
        random.seed(seed)
        done = self._compose(image=image, mask=label)
        return to_tensors(done["image"], done["mask"])


class SegmentationDataModule(L.LightningDataModule):
    """The frames of a data set in loaders; arguments are those of :class:`DataConfig`."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__()
        self.config = config = DataConfig(*arguments, **named)
        self.batch_size, self.workers, self.seed = config.batch_size, config.workers, config.seed
        self.validation, self.held_out = config.validation, config.held_out
        self.size = None if config.size is None else (config.size[0], config.size[1])
        names = config.anomaly_class or []
        names = names.split(",") if isinstance(names, str) else names
        anomalies = [name.strip() for name in names if name.strip()]
        self.entry = dataset_entry(
            config.dataset, labels=config.labels, anomaly_classes=anomalies, frames=config.frames
        )
        self.root = Path(config.root)
        self.label_map: LabelMap = self.entry.label_map()
        self._sets: dict[tuple[str, bool], SegmentationDataset] = {}

    def dataset(self, split: str, *, augment: bool = False) -> SegmentationDataset:
        """Return the frames of one split that have class labels; built once."""
        if (split, augment) not in self._sets:
            config, samples = self.config, self._samples(split)
            transform: Transform = TrainTransform(config) if augment else EvalTransform(self.size)
            labels = [sample.label for sample in samples if sample.label]
            check_label_files(labels, self.label_map, training=split in ("train", "val"))
            self._sets[split, augment] = SegmentationDataset(samples, self.label_map, transform)
        return self._sets[split, augment]

    def _samples(self, split: str) -> list[Sample]:
        if split not in ("train", "val"):
            return [
                sample
                for sample in self.entry.samples(self.root, split)
                if sample.label is not None
            ]
        if self.validation == "val":
            return self.entry.training_samples(self.root, split)
        sequences = self.sequences()
        if split == "train":
            return [
                sample
                for name, samples in sequences.items()
                if name != self.held_out
                for sample in samples
            ]
        if self.held_out is None:
            raise InputError(
                "leave-sequence-out has no split val",
                hint=f"data.held_out, one of {_counts(sequences)}",
            )
        return sequences[self.held_out]

    def sequences(self) -> dict[str, list[Sample]]:
        """Return the training frames of each sequence; raise InputError where a name belongs to
        none, or none is called ``held_out``.
        """
        pattern = sequence_pattern(self.config.sequence)
        sequences: dict[str, list[Sample]] = defaultdict(list)
        for sample in self.entry.training_samples(self.root, "train"):
            match = pattern.search(sample.name)
            sequences[(match[min(1, pattern.groups)] or "") if match else ""].append(sample)
        if unmatched := sequences.pop("", []):
            first = f"in {len(unmatched)} training frames, the first is {unmatched[0].name}"
            hint = f"sequences found: {_counts(sequences)}"
            raise InputError(
                f"data.sequence {pattern.pattern} finds no sequence {first}", hint=hint
            )
        if self.held_out is not None and self.held_out not in sequences:
            raise InputError(
                f"data.held_out {self.held_out} is no sequence", hint=f"one of {_counts(sequences)}"
            )
        return dict(sequences)

    def folds(self) -> list[Self]:
        """Return modules whose ``val`` to select on, each with the ``train`` that goes with it:
        this one, or with leave-sequence-out and no ``held_out`` one for each sequence.
        """
        if self.validation == "val" or self.held_out is not None:
            return [self]
        folds = []
        for name in self.sequences():
            folds.append(fold := copy(self))
            fold.held_out, fold._sets = name, {}
        return folds

    def prepare_data(self, *, selects: bool = True) -> None:
        """Raise InputError before the work, where a split is missing or holds nothing to learn or,
        if it ``selects``, to select on.
        """
        frames, _ = len(self.dataset("train", augment=True)), selects and self.dataset("val")
        if frames < self.batch_size:
            few = f"{frames} training frames are fewer than a batch of {self.batch_size}"
            raise InputError(few, hint="lower data.batch_size")

    def train_dataloader(self) -> DataLoader[dict[str, Any]]:
        order = {"shuffle": True, "generator": torch.Generator().manual_seed(self.seed)}
        return self._loader(
            self.dataset("train", augment=True), self.batch_size, drop_last=True, **order
        )

    def val_dataloader(self) -> DataLoader[dict[str, Any]]:
        return self._loader(self.dataset("val"), self.config.eval_batch_size)

    def _loader(
        self, data: SegmentationDataset, batch_size: int, **more: Any
    ) -> DataLoader[dict[str, Any]]:
        more |= {"persistent_workers": self.workers > 0, "pin_memory": torch.cuda.is_available()}
        return DataLoader(data, batch_size, num_workers=self.workers, collate_fn=collate, **more)

    def class_frequencies(self, limit: int = 400) -> list[float]:
        """Return the share of the labelled training pixels of each class, from at most ``limit``
        evenly spaced frames.
        """
        data = self.dataset("train")
        counts = np.zeros(256, np.int64)
        for index in np.unique(np.linspace(0, len(data) - 1, min(limit, len(data))).astype(int)):
            counts += np.bincount(data.read(int(index))[1].ravel(), minlength=256)
        of_classes = counts[: self.label_map.num_classes]
        if of_classes.sum() == 0:
            raise InputError(f"the training labels hold only ignored pixels (train id {IGNORE})")
        return [float(share) for share in of_classes / of_classes.sum()]


def _counts(sequences: dict[str, list[Sample]]) -> str:
    return (
        ", ".join(f"{name} ({len(samples)} frames)" for name, samples in sequences.items())
        or "none"
    )
