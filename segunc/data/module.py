"""Frames with labels for training: read one by one, augmented and made tensors.

One LightningDataModule serves every data set.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
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
from segunc.core.terminal import agreeing, counted
from segunc.data.channels import COLOUR, load_frame
from segunc.data.datasets import dataset_entry
from segunc.data.entries import Sample
from segunc.data.images import AnyImage, Labels, resize_image, resize_nearest
from segunc.data.labels import IGNORE, LabelMap, check_label_files
from segunc.data.training_frames import TrainingFrames

Transform = Callable[[AnyImage, Labels], dict[str, Tensor]]
"""Image ``[H, W, K]``, uint8 or float32 in 0..1, and train ids uint8 ``[H, W]`` -> ``image`` float
``[K, h, w]``, ``label`` int64 ``[h, w]``.
"""


class SegmentationDataset(Dataset[dict[str, Any]]):
    """Frames with labels, read, checked and transformed one by one.

    An item has ``image``, ``label`` and ``name``. There is at least one frame.
    """

    def __init__(
        self,
        samples: Sequence[Sample],
        label_map: LabelMap,
        transform: Transform,
        channels: int = COLOUR,
    ) -> None:
        if not samples:
            raise InputError("the data set has no labelled frame", hint="check its root and split")
        self.samples = list(samples)
        self.label_map = label_map
        self.transform = transform
        self.channels = channels
        self._whole: set[Path] = set()  # images that were found without a hole

    def __len__(self) -> int:
        return len(self.samples)

    def read(self, index: int) -> tuple[AnyImage, Labels]:
        """Return image (uint8 ``[H, W, K]``, or float32 in 0..1) and train ids (uint8 ``[H, W]``,
        255 ignored) of one frame, untransformed.

        Raises:
            InputError: the image or the label cannot be read, the image is a JPEG in which data is
                missing, or both differ in size.
        """
        sample = self.samples[index]
        # The search for holes takes as long as decoding, so it runs when a file is first read.
        is_first = sample.image not in self._whole
        image = load_frame(sample.image, self.channels, strict=is_first)
        self._whole.add(sample.image)
        assert sample.label is not None, "labelled frames alone are given"
        label = self.label_map.read(sample.label)
        if label.shape != image.shape[:2]:
            label_size = "{}x{}".format(*label.shape)
            image_size = "{}x{}".format(*image.shape[:2])
            raise InputError(f"label {sample.label} is {label_size}, its image {image_size}")
        return image, label

    def __getitem__(self, index: int) -> dict[str, Any]:
        image, label = self.read(index)
        item: dict[str, Any] = dict(self.transform(image, label))
        item["name"] = self.samples[index].name
        return item


def collate(items: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a batch of frames.

    Raises:
        InputError: the frames differ in size.
    """
    shapes = sorted({tuple(item["image"].shape[1:]) for item in items})
    if len(shapes) > 1:
        raise InputError(
            f"frames of the sizes {shapes} make no batch",
            hint="give data.size, or for validation data.eval_batch_size 1",
        )
    return dict(default_collate(list(items)))


def resized(
    image: AnyImage, label: Labels, size: tuple[int, int], interpolation: int
) -> tuple[AnyImage, Labels]:
    """Return both at another size (height, width), the label by its nearest pixels."""
    height, width = size
    scaled = cv2.resize(image, (width, height), interpolation=interpolation)
    # OpenCV drops an axis of one channel.
    pixels: Any = np.asarray(scaled, image.dtype).reshape(height, width, image.shape[2])
    return pixels, resize_nearest(label, width, height)


def to_tensors(image: AnyImage, label: Labels) -> dict[str, Tensor]:
    """Return both as tensors, the image in 0..1 (networks normalise by themselves)."""
    channels_first = np.ascontiguousarray(image.transpose(2, 0, 1))
    pixels = torch.from_numpy(channels_first).float()
    if image.dtype == np.uint8:
        pixels = pixels.div_(255.0)
    return {"image": pixels, "label": torch.from_numpy(label.astype(np.int64))}


@dataclass(frozen=True)
class EvalTransform:
    """No augmentation; frames are resized to ``size`` (height, width) if it is given.

    The image is resized bilinearly (by areas when shrinking), the label by its nearest pixels.
    """

    size: tuple[int, int] | None = None

    def __call__(self, image: AnyImage, label: Labels) -> dict[str, Tensor]:
        if self.size is not None and image.shape[:2] != self.size:
            height, width = self.size
            image = resize_image(image, self.size)
            label = resize_nearest(label, width, height)
        return to_tensors(image, label)


@dataclass(frozen=True)
class DataConfig(Settings):
    """Train, validation and test frames of one data set.

    Args:
        dataset: name of a data set; docs/data-sets.md lists them.
        root: folder of the data set.
        crop: height and width of training crops. A frame that is smaller after scaling is padded,
            and its labels are padded with 255.
        size: height and width to which frames are resized; none keeps their own size.
        batch_size: number of crops in a training batch; validation uses ``eval_batch_size``.
        eval_batch_size: number of frames in a validation batch; it must be 1 if frames have several
            sizes and ``size`` is none.
        workers: number of loader processes; 0 loads in the training process.
        labels: name of a label map, or path of its CSV file, instead of the data set's own label
            map. The data set ``folder`` has none of its own, so it needs this key.
        frames: CSV file with the columns split,image,label and paths relative to ``root``, instead
            of the data set's own folders; ``segunc init`` writes one.
        scale: range of the random factor by which training frames are scaled.
        flip: probability of a left-right flip.
        colour: strength of random changes of brightness, contrast, saturation and hue, 0..1.
            Frames of other than three channels are not changed so.
        blur: probability of a slight Gaussian blur.
        seed: random seed of the shuffle. With ``workers`` it is also the seed of the augmentation;
            without, the augmentation uses torch's global generator. ``train`` adds its own seed,
            and ``finetune`` the seed of its method. So each member sees its own crops in its own
            order.
        anomaly_class: classes (a list, or names with commas between) that count as anomalies. The
            network does not know these classes, and frames that hold one are not used for training.
            If every frame of ``val`` holds one, a fifth of the other training frames (2 to 30)
            stands in for ``val`` and is not trained on.
        validation: which frames the split ``val`` holds: val takes the data set's own split;
            leave-sequence-out takes one sequence of the training frames, which is then not used for
            training. Choose the second if the frames of ``val`` are neighbours of training frames,
            because settings that are chosen on such frames are too certain for other frames.
        sequence: regular expression that finds the sequence in the name of a frame. The sequence is
            its first group, or the whole match if it has no group; e.g. ``^([^_]+)_`` for CamVid.
        held_out: sequence that is the split ``val`` with leave-sequence-out. Without one, all
            sequences are ``train``, and methods that need held-out frames leave out each sequence
            in turn. Opening ``val`` is then an error, so nothing is trained and chosen on the same
            frames.
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
            raise InputError(
                f"validation {self.validation} needs data.sequence, a pattern of frame names",
                hint="e.g. ^([^_]+)_",
            )
        sequence_pattern(self.sequence)


def sequence_pattern(sequence: str | None) -> Searcher:
    """Return the search of a sequence in a frame's name.

    The pattern comes from a configuration, which may be somebody else's.

    Raises:
        InputError: the text is not a regular expression.
    """
    return pattern_of_file(sequence or "", f"sequence '{shortened(sequence or '')}'")


class TrainTransform:
    """Random scale, crop, flip and colour, the usual augmentation of road scenes.

    The fields of :class:`DataConfig` say how much. Frames of other than three channels keep their
    values: nothing says what a change of colour is in them.
    """

    def __init__(self, config: DataConfig, channels: int = COLOUR) -> None:
        # Albumentations asks a server for its newest version on import unless told not to. It is
        # imported here because only training needs it.
        os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
        import albumentations as A

        class RandomScale(A.RandomScale):  # type: ignore[misc]
            def apply_to_mask(self, mask: Labels, scale: float, **params: Any) -> Labels:
                height, width = mask.shape[:2]
                return resize_nearest(mask, int(width * scale), int(height * scale))

        self._config = config
        self._channels = channels
        smallest, largest = config.scale
        colour = config.colour
        around_1 = (1 - colour, 1 + colour)
        hue = (-0.1 * colour, 0.1 * colour)
        steps = [
            RandomScale((smallest - 1.0, largest - 1.0), interpolation=cv2.INTER_LINEAR, p=1.0),
            A.PadIfNeeded(*config.crop, border_mode=cv2.BORDER_CONSTANT, fill=0, fill_mask=IGNORE),
            A.RandomCrop(*config.crop),
            A.HorizontalFlip(p=config.flip),
            A.ColorJitter(around_1, around_1, around_1, hue, p=0.8),
            A.GaussianBlur(blur_limit=(3, 5), p=config.blur),
        ]
        if channels != COLOUR:
            steps = [step for step in steps if not isinstance(step, A.ColorJitter)]
        self._compose = A.Compose(steps)

    def __reduce__(self) -> tuple[Any, ...]:
        # Workers that do not fork get the settings: a class that is made where its base is imported
        # cannot be pickled.
        return TrainTransform, (self._config, self._channels)

    def __call__(self, image: AnyImage, label: Labels) -> dict[str, Tensor]:
        if self._config.size is not None:
            image, label = resized(image, label, self._config.size, cv2.INTER_LINEAR)
        # The seed comes from torch's generator of this process: in a worker the loader seeds it,
        # without workers Lightning does.
        seed = int(torch.randint(0, 2**31 - 1, ()).item())
        self._compose.set_random_seed(seed)
        random.seed(seed)
        augmented = self._compose(image=image, mask=label)
        # OpenCV, which augments, drops an axis of one channel.
        augmented_image = augmented["image"].reshape(*augmented["mask"].shape, self._channels)
        return to_tensors(augmented_image, augmented["mask"])


class SegmentationDataModule(L.LightningDataModule):
    """The frames of a data set in loaders; arguments are those of :class:`DataConfig`."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__()
        self.config = config = DataConfig(*arguments, **named)
        self.batch_size = config.batch_size
        self.workers = config.workers
        self.seed = config.seed
        self.validation = config.validation
        self.held_out = config.held_out
        self.size: tuple[int, int] | None = None
        if config.size is not None:
            height, width = config.size
            self.size = (height, width)
        self.entry = dataset_entry(
            config.dataset,
            labels=config.labels,
            anomaly_classes=_class_names(config.anomaly_class),
            frames=config.frames,
        )
        self.root = Path(config.root)
        self.label_map: LabelMap = self.entry.label_map()
        self.channels = COLOUR  # of the frames, as the network takes them
        self._sets: dict[tuple[str, bool], SegmentationDataset] = {}

    def dataset(self, split: str, *, augment: bool = False) -> SegmentationDataset:
        """Return the frames of one split that have class labels; built once."""
        if (split, augment) not in self._sets:
            samples = self._samples(split)
            transform: Transform = EvalTransform(self.size)
            if augment:
                transform = TrainTransform(self.config, self.channels)
            labels = [sample.label for sample in samples if sample.label]
            check_label_files(labels, self.label_map, training=split in ("train", "val"))
            self._sets[split, augment] = SegmentationDataset(
                samples, self.label_map, transform, self.channels
            )
        return self._sets[split, augment]

    def forget_frames(self) -> None:
        """Build the frames of all splits again when they are next asked for."""
        self._sets = {}

    def _samples(self, split: str) -> list[Sample]:
        """Return the frames of one split that have class labels."""
        if split not in ("train", "val"):
            samples = self.entry.samples(self.root, split)
            return [sample for sample in samples if sample.label is not None]
        if self.validation == "val":
            return self.entry.training_samples(self.root, split)
        sequences = self.sequences()
        if split == "val":
            if self.held_out is None:
                raise InputError(
                    "leave-sequence-out has no split val",
                    hint=f"data.held_out, one of {_counts(sequences)}",
                )
            return sequences[self.held_out]
        training: list[Sample] = []
        for name, samples in sequences.items():
            if name != self.held_out:
                training += samples
        return training

    def frame_names(self, split: str) -> list[str]:
        """Return the name of each frame of a split that has class labels, below the root."""
        return [sample.name for sample in self._samples(split)]

    def sequences(self) -> dict[str, list[Sample]]:
        """Return the training frames of each sequence.

        Raises:
            InputError: the name of a frame belongs to no sequence, or none is called ``held_out``.
        """
        pattern = sequence_pattern(self.config.sequence)
        sequences: dict[str, list[Sample]] = defaultdict(list)
        for sample in self.entry.training_samples(self.root, "train"):
            match = pattern.search(sample.name)
            group = min(1, pattern.groups)
            name = match[group] if match else None
            sequences[name or ""].append(sample)
        unmatched = sequences.pop("", [])
        if unmatched:
            raise InputError(
                f"data.sequence {pattern.pattern} finds no sequence in "
                f"{counted(len(unmatched), 'training frame')}, the first is {unmatched[0].name}",
                hint=f"sequences found: {_counts(sequences)}",
            )
        if self.held_out is not None and self.held_out not in sequences:
            raise InputError(
                f"data.held_out {self.held_out} is not a sequence",
                hint=f"one of {_counts(sequences)}",
            )
        return dict(sequences)

    def selects_on_train(self) -> bool:
        """Return whether frames of ``train`` stand in for ``val``, because every frame of ``val``
        holds a declared anomaly.
        """
        return self.validation == "val" and self.entry.selects_on_train(self.root)

    def training_frames(self, *, selects: bool = True) -> TrainingFrames:
        """Return how many frames are left out, taken to select on, and left to train.

        Args:
            selects: whether frames are needed to select on, too.

        Raises:
            InputError: a split is missing, or holds too few frames.
        """
        frames = self.entry.training_frames(self.root)
        if self.validation == "val":
            selection = len(self._samples("val")) if selects else frames.selection
            return replace(frames, selection=selection)
        needs_sequence = selects or self.held_out is not None
        return replace(
            frames,
            train=len(self._samples("train")),
            selection=len(self._samples("val")) if needs_sequence else 0,
            held_out=self.held_out or "",
        )

    def folds(self) -> list[Self]:
        """Return modules whose ``val`` to select on, each with the ``train`` that goes with it.

        That is this module, or, with leave-sequence-out and no ``held_out``, one for each sequence.
        """
        if self.validation == "val" or self.held_out is not None:
            return [self]
        folds: list[Self] = []
        for name in self.sequences():
            fold = copy(self)
            fold.held_out = name
            fold._sets = {}
            folds.append(fold)
        return folds

    def prepare_data(self, *, selects: bool = True) -> None:
        """Check the splits before the work.

        Args:
            selects: whether frames are needed to select on, too.

        Raises:
            InputError: a split is missing, or holds nothing to learn or to select on.
        """
        frames = len(self.dataset("train", augment=True))
        if selects:
            self.dataset("val")
        if frames < self.batch_size:
            classes = " or ".join(self.entry.declared)
            without = f" without {classes}" if classes else ""
            raise InputError(
                f"{counted(frames, 'training frame')}{without} {agreeing('is', frames)} "
                f"fewer than a batch of {self.batch_size}",
                hint="lower data.batch_size",
            )

    def train_dataloader(self) -> DataLoader[dict[str, Any]]:
        return self._loader(
            self.dataset("train", augment=True),
            self.batch_size,
            drop_last=True,
            shuffle=True,
            generator=torch.Generator().manual_seed(self.seed),
        )

    def val_dataloader(self) -> DataLoader[dict[str, Any]]:
        return self._loader(self.dataset("val"), self.config.eval_batch_size)

    def _loader(
        self, data: SegmentationDataset, batch_size: int, **options: Any
    ) -> DataLoader[dict[str, Any]]:
        return DataLoader(
            data,
            batch_size,
            num_workers=self.workers,
            collate_fn=collate,
            persistent_workers=self.workers > 0,
            pin_memory=torch.cuda.is_available(),
            **options,
        )

    def class_frequencies(self, limit: int = 400) -> list[float]:
        """Return the share of the labelled training pixels of each class.

        Args:
            limit: most frames to read; they are evenly spaced.
        """
        data = self.dataset("train")
        counts = np.zeros(256, np.int64)
        indices = np.linspace(0, len(data) - 1, min(limit, len(data))).astype(int)
        for index in np.unique(indices):
            _, label = data.read(int(index))
            counts += np.bincount(label.ravel(), minlength=256)
        of_classes = counts[: self.label_map.num_classes]
        if of_classes.sum() == 0:
            raise InputError(f"the training labels hold only ignored pixels (train id {IGNORE})")
        return [float(share) for share in of_classes / of_classes.sum()]


def _class_names(setting: str | list[str] | None) -> list[str]:
    """Return the names of a list, or of a text with commas between them, without empty ones."""
    if setting is None:
        return []
    names = setting.split(",") if isinstance(setting, str) else setting
    return [name.strip() for name in names if name.strip()]


def _counts(sequences: dict[str, list[Sample]]) -> str:
    """Return the sequences and their numbers of frames in words."""
    counts = [f"{name} ({counted(len(samples), 'frame')})" for name, samples in sequences.items()]
    return ", ".join(counts) or "none"
