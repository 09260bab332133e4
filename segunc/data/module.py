"""One LightningDataModule for every data set."""

from __future__ import annotations

import re
from collections import defaultdict
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import lightning as L
import numpy as np
import torch
from torch.utils.data import DataLoader

from segunc.core.bounds import Bits, NonNegativeInt, PositiveFloat, PositiveInt, Seed, Settings, UnitInterval
from segunc.core.errors import InputError
from segunc.data.datasets import dataset_entry
from segunc.data.entry import Sample
from segunc.data.images import load_image
from segunc.data.labels import IGNORE, LabelMap, check_label_files
from segunc.data.samples import EvalTransform, SegmentationDataset, TrainTransform, collate

DEPTH_SAMPLES = 16
"""Pictures of a split that are read to see how many of their 16 bits are used."""


@dataclass(frozen=True)
class DataConfig(Settings):
    """Train, validation and test frames of one data set.

    Args:
        dataset: a name of :data:`segunc.data.datasets.DATASETS`.
        root: the folder it lies in.
        crop: (height, width) of training crops.
        size: (height, width) that frames are resized to, or None for their own.
        batch_size: crops in a training batch; validation takes ``eval_batch_size`` frames.
        eval_batch_size: frames in a validation batch; with ``size`` None and frames of several sizes it must be 1.
        workers: loader processes; 0 loads in the training process.
        labels: a label map's name or CSV path instead of the data set's own (``folder`` has none).
        scale, flip, colour, blur: see :class:`segunc.data.samples.TrainTransform`.
        seed: of the shuffle and the augmentation.
        anomaly_class: classes (a list, or names with commas between) that are anomalies: frames that hold one are not
            trained on, and the network does not know them; see :mod:`segunc.data.datasets`.
        validation: what split ``val`` is: the data set's own, or, for ``leave-sequence-out``, one sequence of the training frames, which
            is then not trained on. Neighbours of training frames choose too much certainty for frames that are not.
        sequence: regular expression whose first group (or whole match) in a frame's name is its sequence, ``^([^_]+)_`` for CamVid.
        held_out: the sequence that is ``val``. Without one, ``train`` is all training frames, :meth:`SegmentationDataModule.folds` holds
            out each sequence in turn, and ``val`` itself is an InputError, so that nothing is trained and selected on the same frames.
        bits: that 16-bit images use, 8..16; None keeps their high byte (:class:`segunc.data.images.PixelDepth`).
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
    bits: Bits | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale[0] > self.scale[1]:
            raise InputError(f"scale {list(self.scale)} does not begin with the smaller number")
        if self.held_out is not None and self.validation == "val":
            raise InputError(
                f"held_out {self.held_out} is without meaning here", hint="data.validation leave-sequence-out"
            )
        if self.sequence is None and self.validation != "val":
            raise InputError(
                f"validation {self.validation} needs data.sequence, a pattern of frame names", hint="e.g. ^([^_]+)_"
            )
        try:
            re.compile(self.sequence or "")
        except re.error as error:
            raise InputError(f"sequence {self.sequence} is no regular expression: {error}") from error


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
        self.entry = dataset_entry(config.dataset, labels=config.labels, anomaly_classes=anomalies)
        self.root = Path(config.root)
        self.label_map: LabelMap = self.entry.label_map()
        self._train_transform = TrainTransform(
            config.crop, self.size, config.scale, config.flip, config.colour, config.blur
        )
        self._eval_transform = EvalTransform(self.size)
        self._sets: dict[tuple[str, bool], SegmentationDataset] = {}

    def dataset(self, split: str, *, augment: bool = False) -> SegmentationDataset:
        """Return the frames of one split that have class labels; built once."""
        if (split, augment) not in self._sets:
            transform = self._train_transform if augment else self._eval_transform
            samples = self._samples(split)
            labels = [sample.label for sample in samples if sample.label]
            check_label_files(labels, self.label_map, training=split in ("train", "val"))
            frames = SegmentationDataset(samples, self.label_map, transform, self.config.bits)
            for sample in samples[:: -(-len(samples) // DEPTH_SAMPLES)]:
                with suppress(InputError):  # whoever trains on it says what is wrong
                    load_image(sample.image, frames.depth)
                if not frames.depth.largest:
                    break  # not of 16 bits
            frames.depth.warn(f"split {split} in {self.root}")
            self._sets[split, augment] = frames
        return self._sets[split, augment]

    def _samples(self, split: str) -> list[Sample]:
        if split not in ("train", "val"):
            return [sample for sample in self.entry.samples(self.root, split) if sample.label is not None]
        if self.validation == "val":
            return self.entry.training_samples(self.root, split)
        sequences = self.sequences()
        if split == "train":
            return [sample for name, samples in sequences.items() if name != self.held_out for sample in samples]
        if self.held_out is None:
            raise InputError("leave-sequence-out has no split val", hint=f"data.held_out, one of {_counts(sequences)}")
        return sequences[self.held_out]

    def sequences(self) -> dict[str, list[Sample]]:
        """Return the training frames (with ``validation: val``, too) of each sequence; raise InputError where a name belongs to none,
        there is but one, or none is called ``held_out``."""
        if self.config.sequence is None:
            raise InputError("data.sequence, a pattern of frame names, is missing", hint="e.g. ^([^_]+)_")
        pattern = re.compile(self.config.sequence)
        sequences: dict[str, list[Sample]] = defaultdict(list)
        for sample in self.entry.training_samples(self.root, "train"):
            match = pattern.search(sample.name)
            sequences[(match[min(1, pattern.groups)] or "") if match else ""].append(sample)
        if unmatched := sequences.pop("", []):
            raise InputError(
                f"data.sequence {pattern.pattern} finds no sequence in {len(unmatched)} training frames, the first is {unmatched[0].name}",
                hint=f"sequences found: {_counts(sequences)}",
            )
        if len(sequences) < 2:
            raise InputError(
                f"data.sequence {pattern.pattern} finds one sequence, {_counts(sequences)}; none can be held out"
            )
        if self.held_out is not None and self.held_out not in sequences:
            raise InputError(f"data.held_out {self.held_out} is no sequence", hint=f"one of {_counts(sequences)}")
        return dict(sequences)

    def folds(self) -> list[Self]:
        """Return modules whose ``val`` to select on, each with the ``train`` that goes with it: this one, or with leave-sequence-out and
        no ``held_out`` one for each sequence."""
        if self.validation == "val" or self.held_out is not None:
            return [self]
        folds = []
        for name in self.sequences():
            folds.append(fold := copy(self))
            fold.held_out, fold._sets = name, {}
        return folds

    def prepare_data(self) -> None:
        """Download nothing; raise InputError before a trainer starts its work, where a split is missing or incomplete, its labels hold
        nothing to learn or to select on, or it holds less than a batch of training frames."""
        frames, _ = len(self.dataset("train", augment=True)), self.dataset("val")
        if frames < self.batch_size:
            raise InputError(
                f"{frames} training frames are fewer than a batch of {self.batch_size}", hint="lower data.batch_size"
            )

    def train_dataloader(self) -> DataLoader[dict[str, Any]]:
        generator = torch.Generator().manual_seed(self.seed)
        data = self.dataset("train", augment=True)
        return self._loader(data, self.batch_size, shuffle=True, drop_last=True, generator=generator)

    def val_dataloader(self) -> DataLoader[dict[str, Any]]:
        return self._loader(self.dataset("val"), self.config.eval_batch_size)

    def _loader(self, data: SegmentationDataset, batch_size: int, **more: Any) -> DataLoader[dict[str, Any]]:
        more |= {"persistent_workers": self.workers > 0, "pin_memory": torch.cuda.is_available()}
        return DataLoader(data, batch_size, num_workers=self.workers, collate_fn=collate, **more)

    def class_frequencies(self, limit: int = 400) -> list[float]:
        """Return the share of the labelled training pixels of each class, from at most ``limit`` evenly spaced frames."""
        data = self.dataset("train")
        counts = np.zeros(256, np.int64)
        for index in np.unique(np.linspace(0, len(data) - 1, min(limit, len(data))).astype(int)):
            counts += np.bincount(data.read(int(index))[1].ravel(), minlength=256)
        of_classes = counts[: self.label_map.num_classes]
        if of_classes.sum() == 0:
            raise InputError(f"the training labels hold only ignored pixels (train id {IGNORE})")
        return [float(share) for share in of_classes / of_classes.sum()]


def _counts(sequences: dict[str, list[Sample]]) -> str:
    return ", ".join(f"{name} ({len(samples)} frames)" for name, samples in sequences.items()) or "none"
