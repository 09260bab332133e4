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

from segunc.core.bounds import (
    Bits,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Seed,
    Settings,
    UnitInterval,
)
from segunc.core.errors import InputError
from segunc.data.datasets import HOLDOUT, dataset_entry
from segunc.data.entry import Sample
from segunc.data.images import load_image
from segunc.data.labels import IGNORE, LabelMap, check_label_files
from segunc.data.layout import LOOKED_AT
from segunc.data.samples import EvalTransform, SegmentationDataset, TrainTransform, collate


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
        holdout: training frames that are held out to select on where every frame of ``val`` holds an anomaly.
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
    holdout: PositiveInt = HOLDOUT
    validation: Literal["val", "leave-sequence-out"] = "val"
    sequence: str | None = None
    held_out: str | None = None
    bits: Bits | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale[0] > self.scale[1]:
            raise InputError(f"scale {list(self.scale)}", "the smaller number first", "repair the configuration")
        if self.held_out is not None and self.validation == "val":
            given = f"held_out {self.held_out} with data.validation val"
            raise InputError(given, "data.validation leave-sequence-out", "or leave it out")
        if self.sequence is None and self.validation != "val":
            given = f"validation {self.validation} without data.sequence"
            raise InputError(given, "a pattern of frame names whose first group is the sequence", "e.g. ^([^_]+)_")
        try:
            re.compile(self.sequence or "")
        except re.error as error:
            raise InputError(f"sequence {self.sequence}: {error}", "a regular expression", "repair it") from error


class SegmentationDataModule(L.LightningDataModule):
    """The frames of a data set in loaders; arguments are those of :class:`DataConfig`."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__()
        chosen = DataConfig(*arguments, **named)
        self.validation, self.held_out, self.seed = chosen.validation, chosen.held_out, chosen.seed
        self._pattern = None if chosen.sequence is None else re.compile(chosen.sequence)
        names = chosen.anomaly_class or []
        anomalies = [name.strip() for name in (names.split(",") if isinstance(names, str) else names) if name.strip()]
        self.entry = dataset_entry(
            chosen.dataset, labels=chosen.labels, anomaly_classes=anomalies, holdout=chosen.holdout
        )
        self.root, self.bits, self.crop = Path(chosen.root), chosen.bits, tuple(chosen.crop)
        self.batch_size, self.eval_batch_size = chosen.batch_size, chosen.eval_batch_size
        self.workers, self.size = chosen.workers, None if chosen.size is None else (chosen.size[0], chosen.size[1])
        self.label_map: LabelMap = self.entry.label_map()
        augmented = (chosen.scale, chosen.flip, chosen.colour, chosen.blur)
        self._train_transform = TrainTransform(chosen.crop, self.size, *augmented)
        self._eval_transform = EvalTransform(self.size)
        self._sets: dict[str, SegmentationDataset] = {}

    def dataset(self, split: str, *, augment: bool = False) -> SegmentationDataset:
        """The frames of one split that have class labels; built once."""
        key = f"{split}/{augment}"
        if key not in self._sets:
            transform = self._train_transform if augment else self._eval_transform
            samples = self._samples(split)
            labels = [sample.label for sample in samples if sample.label]
            check_label_files(labels, self.label_map, training=split in ("train", "val"))
            self._sets[key] = frames = SegmentationDataset(samples, self.label_map, transform, self.bits)
            for sample in samples[:: -(-len(samples) // LOOKED_AT)]:
                with suppress(InputError):  # whoever trains on it says what is wrong
                    load_image(sample.image, frames.depth)
                if not frames.depth.largest:
                    break  # not of 16 bits
            frames.depth.warn(f"split {split} in {self.root}")
        return self._sets[key]

    def _samples(self, split: str) -> list[Sample]:
        if split not in ("train", "val"):
            return [sample for sample in self.entry.samples(self.root, split) if sample.label is not None]
        if self.validation == "val":
            return self.entry.training_samples(self.root, split)
        sequences = self.sequences()
        if split == "train":
            return [sample for name, samples in sequences.items() if name != self.held_out for sample in samples]
        if self.held_out is None:
            given = "split val of data.validation leave-sequence-out without data.held_out"
            raise InputError(given, f"one of {_counts(sequences)}", "name the sequence, or choose data.validation val")
        return sequences[self.held_out]

    def sequences(self) -> dict[str, list[Sample]]:
        """The training frames (with ``validation: val``, too) of each sequence; InputError where a name belongs to none, there is but
        one, or none is called ``held_out``."""
        if self._pattern is None:
            raise InputError("training frames without data.sequence", "a pattern of their names", "e.g. ^([^_]+)_")
        frames = self.entry.training_samples(self.root, "train")
        found: dict[str, list[Sample]] = defaultdict(list)
        for sample in frames:
            match = self._pattern.search(sample.name)
            found[(match[min(1, self._pattern.groups)] or "") if match else ""].append(sample)
        lost = found.pop("", [])
        if lost:
            given = f"data.sequence {self._pattern.pattern} finds no sequence in {len(lost)} of {len(frames)} training frames"
            expected = "a pattern for every name, e.g. ^([^_]+)_"
            raise InputError(f"{given}, the first is {lost[0].name}", expected, f"sequences found: {_counts(found)}")
        if len(found) < 2:
            given = f"data.sequence {self._pattern.pattern} finds one sequence of training frames: {_counts(found)}"
            raise InputError(given, "at least two, one of them to hold out", "give a pattern that tells them apart")
        if self.held_out is not None and self.held_out not in found:
            raise InputError(f"data.held_out {self.held_out}", f"one of {_counts(found)}", "check the name")
        return dict(found)

    def folds(self) -> list[Self]:
        """Modules whose ``val`` to select on, each with the ``train`` that goes with it: itself, or with leave-sequence-out and no
        ``held_out`` one for each sequence."""
        if self.validation == "val" or self.held_out is not None:
            return [self]
        folds = []
        for name in self.sequences():
            folds.append(fold := copy(self))
            fold.held_out, fold._sets = name, {}
        return folds

    def prepare_data(self) -> None:
        """Nothing is downloaded; InputError before a trainer starts its work, where a split is missing or incomplete, its labels hold
        nothing to learn or to select on, or it holds less than a batch of training frames."""
        frames, _ = len(self.dataset("train", augment=True)), self.dataset("val")
        if frames < self.batch_size:
            expected = f"at least a batch of {self.batch_size}"
            raise InputError(f"{frames} training frames", expected, "lower data.batch_size")

    def train_dataloader(self) -> DataLoader[dict[str, Any]]:
        generator = torch.Generator().manual_seed(self.seed)
        data = self.dataset("train", augment=True)
        return self._loader(data, self.batch_size, shuffle=True, drop_last=True, generator=generator)

    def val_dataloader(self) -> DataLoader[dict[str, Any]]:
        return self._loader(self.dataset("val"), self.eval_batch_size)

    def _loader(self, data: SegmentationDataset, batch_size: int, **more: Any) -> DataLoader[dict[str, Any]]:
        more |= {"persistent_workers": self.workers > 0, "pin_memory": torch.cuda.is_available()}
        return DataLoader(data, batch_size, num_workers=self.workers, collate_fn=collate, **more)

    def class_frequencies(self, limit: int = 400) -> list[float]:
        """Share of the labelled training pixels of each class, from at most ``limit`` evenly spaced frames."""
        data = self.dataset("train")
        counts = np.zeros(256, np.int64)
        for index in np.unique(np.linspace(0, len(data) - 1, min(limit, len(data))).astype(int)):
            counts += np.bincount(data.read(int(index))[1].ravel(), minlength=256)
        known = counts[: self.label_map.num_classes]
        if known.sum() == 0:
            given = "the training labels hold only ignored pixels"
            raise InputError(given, f"ids other than {IGNORE}", "check the labels")
        return [float(v) for v in known / known.sum()]


def _counts(sequences: dict[str, list[Sample]]) -> str:
    return ", ".join(f"{name} ({len(samples)} frames)" for name, samples in sequences.items()) or "none"
