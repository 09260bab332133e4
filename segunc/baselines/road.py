"""Frames of your own road, without class labels and without a data set: ``--features.images`` and
``--anomaly.images`` open them.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from segunc.core.errors import InputError, NoteWarning
from segunc.data.channels import COLOUR, load_frame
from segunc.data.datasets import dataset_entry, is_data_set, name_and_folder
from segunc.data.entries import Sample
from segunc.data.frame_names import frame_name
from segunc.data.image_files import check_names, list_images
from segunc.data.images import AnyImage, Labels
from segunc.data.labels import UNKNOWN, label_values
from segunc.data.layouts import find_labels, without_labels
from segunc.data.masks import BINARY, AnomalyEncoding


@dataclass(frozen=True)
class RoadFrames:
    """Frames without class labels, in the form of a data module: ``val`` is the frame that is held
    out, and ``train`` the others.
    """

    samples: Sequence[Sample]
    encoding: AnomalyEncoding = BINARY
    held_out: str | None = None
    channels: int = COLOUR
    size: ClassVar[None] = None
    validation: ClassVar[str] = "leave-frame-out"

    def __len__(self) -> int:
        return len(self.samples)

    def dataset(self, split: str) -> RoadFrames:
        if split == "val":
            samples = [sample for sample in self.samples if sample.name == self.held_out]
        else:
            samples = [sample for sample in self.samples if sample.name != self.held_out]
        return replace(self, samples=samples)

    def folds(self) -> list[RoadFrames]:
        return [replace(self, held_out=sample.name) for sample in self.samples]

    def read(self, index: int) -> tuple[AnyImage, Labels]:
        """Return an image ``[H, W, K]`` and uint8 ``[H, W]``: 0 normal, 254 anomaly, 255
        ignored.
        """
        sample = self.samples[index]
        image = load_frame(sample.image, self.channels, strict=True)
        mask = sample.anomaly
        if mask is None:
            return image, np.zeros(image.shape[:2], np.uint8)
        anomaly = self.encoding.read(mask)
        height, width = image.shape[:2]
        if anomaly.shape != (height, width):
            rows, columns = anomaly.shape
            raise InputError(f"label {mask} is {rows}x{columns}, its image {height}x{width}")
        return image, np.where(anomaly == 1, np.uint8(UNKNOWN), anomaly)


def open_images(place: str, channels: int = COLOUR) -> RoadFrames:
    """Return the images of ``FOLDER`` with their anomaly labels, if any, or those of the data set
    in ``DATASET:FOLDER``, for a network of so many channels.

    Raises:
        InputError: the data set has no anomaly labels, the only image holds an anomaly, or the name
            of an image is not UTF-8.
    """
    named = name_and_folder(place)
    if named is not None and is_data_set(named[0]):
        return _images_of_data_set(named[0], Path(named[1]), channels)
    folder = Path(place)
    images = {}
    for path in without_labels(folder, list_images(folder)):
        images[frame_name(folder, path)] = path
    check_names(images.values())
    labels = _labels_beside(folder)
    masks = {} if labels is None else find_labels(labels, images)
    if masks:
        note = f"{labels} holds anomaly labels of {len(masks)} of {len(images)} frames in {folder}"
        warnings.warn(note, NoteWarning, stacklevel=2)
    if len(images) == 1 and any(1 in label_values(mask) for mask in masks.values()):
        raise InputError(
            f"the only frame in {folder} holds an anomaly, which features beside it have seen, too",
            hint="give a frame without one, or more frames",
        )
    samples = [Sample(name, path, None, masks.get(name)) for name, path in images.items()]
    return RoadFrames(samples, channels=channels)


def _images_of_data_set(name: str, folder: Path, channels: int) -> RoadFrames:
    entry = dataset_entry(name)
    encoding = entry.anomaly_encoding
    if encoding is None:
        raise InputError(
            f"data set {name} has no anomaly labels",
            hint="name one that has, or the folder alone",
        )
    samples = entry.samples(folder, entry.usual_split(folder))
    return RoadFrames(samples, encoding, channels=channels)


def _labels_beside(folder: Path) -> Path | None:
    """Return the folder of anomaly labels within the folder of the images or beside it, if any."""
    for parent in (folder, folder.parent):
        for name in ("labels", "labels_masks"):
            if (parent / name).is_dir():
                return parent / name
    return None
