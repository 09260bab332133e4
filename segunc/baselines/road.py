"""Frames of your own road, without class labels and without a data set: what ``--features.images``
and ``--anomaly.images`` open.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from segunc.core.errors import InputError, NoteWarning
from segunc.data.datasets import DATASETS, dataset_entry
from segunc.data.entries import Sample
from segunc.data.frame_names import frame_name
from segunc.data.image_files import list_images
from segunc.data.images import Image, Labels, load_image
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
    size: ClassVar[None] = None
    validation: ClassVar[str] = "leave-frame-out"

    def __len__(self) -> int:
        return len(self.samples)

    def dataset(self, split: str) -> RoadFrames:
        return replace(
            self, samples=[s for s in self.samples if (s.name == self.held_out) == (split == "val")]
        )

    def folds(self) -> list[RoadFrames]:
        return [replace(self, held_out=sample.name) for sample in self.samples]

    def read(self, index: int) -> tuple[Image, Labels]:
        """Return an image RGB uint8 ``[H, W, 3]`` and uint8 ``[H, W]``: 0 normal, 254 anomaly, 255
        ignored.
        """
        sample = self.samples[index]
        image = load_image(sample.image, strict=True)
        mask = sample.anomaly
        if mask is None:
            return image, np.zeros(image.shape[:2], np.uint8)
        anomaly = self.encoding.read(mask)
        if anomaly.shape != image.shape[:2]:
            sizes = "{}x{}, its image {}x{}".format(*anomaly.shape, *image.shape[:2])
            raise InputError(f"label {mask} is {sizes}")
        return image, np.where(anomaly == 1, np.uint8(UNKNOWN), anomaly)


def open_images(place: str) -> RoadFrames:
    """Return the images of ``FOLDER`` with their anomaly labels, if any, or those of the data set
    in ``DATASET:FOLDER``; InputError for a single image that holds an anomaly.
    """
    name, colon, rest = place.partition(":")
    folder = Path(rest if colon and name in DATASETS else place)
    if colon and name in DATASETS:
        entry = dataset_entry(name)
        if (encoding := entry.anomaly_encoding) is None:
            raise InputError(
                f"data set {name} has no anomaly labels",
                hint="name one that has, or the folder alone",
            )
        return RoadFrames(entry.samples(folder, entry.usual_split(folder)), encoding)
    images = {
        frame_name(folder, path): path for path in without_labels(folder, list_images(folder))
    }
    places = (
        place / word for place in (folder, folder.parent) for word in ("labels", "labels_masks")
    )
    labels = next((place for place in places if place.is_dir()), None)
    masks = {} if labels is None else find_labels(labels, images)
    if masks:
        note = f"{labels} holds anomaly labels of {len(masks)} of {len(images)} frames in {folder}"
        warnings.warn(note, NoteWarning, stacklevel=2)
    if len(images) == 1 and any(1 in label_values(mask) for mask in masks.values()):
        message = (
            f"the only frame in {folder} holds an anomaly, which features beside it have seen, too"
        )
        raise InputError(message, hint="give a frame without one, or more frames")
    return RoadFrames([Sample(name, path, None, masks.get(name)) for name, path in images.items()])
