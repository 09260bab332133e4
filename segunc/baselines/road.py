"""Frames of your own road, without class labels and without a data set: what ``--features.images`` and ``--anomaly.images`` open, and the
method ``more-features``, which adds the features of such frames to the bank that a model has, its training frames' for instance."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from safetensors.torch import save

from segunc.core.bounds import NonNegativeInt, PositiveInt, Settings
from segunc.core.device import flushed_denormals, resolve_device
from segunc.core.errors import InputError, NoteWarning
from segunc.data.datasets import DATASETS, dataset_entry
from segunc.data.entry import BINARY, AnomalyEncoding, Sample, find_labels, frame_name, list_images, without_labels
from segunc.data.images import Image, Labels, load_image
from segunc.data.labels import UNKNOWN, label_values
from segunc.posteriors.features import BANK, NO_ORIGINS, TENSORS, FeatureBank, FeaturesConfig, TrainingFeatures
from segunc.posteriors.fitting import load_for_fitting
from segunc.posteriors.methods import Method
from segunc.training.config import FitConfig
from segunc.training.progress import Say, say


@dataclass(frozen=True)
class RoadFrames:
    """Frames without class labels, as :class:`segunc.data.module.SegmentationDataModule` gives those of a data set: ``val`` is the frame that is held out, and
    ``train`` the others."""

    samples: Sequence[Sample]
    encoding: AnomalyEncoding = BINARY
    held_out: str | None = None
    size: ClassVar[None] = None
    validation: ClassVar[str] = "leave-frame-out"

    def __len__(self) -> int:
        return len(self.samples)

    def dataset(self, split: str) -> RoadFrames:
        return replace(self, samples=[s for s in self.samples if (s.name == self.held_out) == (split == "val")])

    def folds(self) -> list[RoadFrames]:
        return [replace(self, held_out=sample.name) for sample in self.samples]

    def read(self, index: int) -> tuple[Image, Labels]:
        """Return an image RGB uint8 ``[H, W, 3]`` and uint8 ``[H, W]``: 0 normal, 254 anomaly, 255 ignored."""
        image, mask = load_image(self.samples[index].image), self.samples[index].anomaly
        if mask is None:
            return image, np.zeros(image.shape[:2], np.uint8)
        anomaly = self.encoding.read(mask)
        if anomaly.shape != image.shape[:2]:
            sizes = "{}x{}, its image {}x{}".format(*anomaly.shape, *image.shape[:2])
            raise InputError(f"label {mask} is {sizes}")
        return image, np.where(anomaly == 1, np.uint8(UNKNOWN), anomaly)


def open_images(place: str) -> RoadFrames:
    """Return the images of ``FOLDER`` with their anomaly labels, where there are some, or those of the data set in ``DATASET:FOLDER``.
    InputError for a single image that holds an anomaly."""
    name, colon, rest = place.partition(":")
    folder = Path(rest if colon and name in DATASETS else place)
    if colon and name in DATASETS:
        entry = dataset_entry(name)
        if (encoding := entry.anomaly_encoding) is None:
            raise InputError(f"data set {name} has no anomaly labels", hint="name one that has, or the folder alone")
        return RoadFrames(entry.samples(folder, entry.usual_split(folder)), encoding)
    images = {frame_name(folder, path): path for path in without_labels(folder, list_images(folder))}
    places = (place / word for place in (folder, folder.parent) for word in ("labels", "labels_masks"))
    labels = next((place for place in places if place.is_dir()), None)
    masks = {} if labels is None else find_labels(labels, images)
    if masks:
        note = f"{labels} holds anomaly labels of {len(masks)} of {len(images)} frames in {folder}"
        warnings.warn(note, NoteWarning, stacklevel=2)
    if len(images) == 1 and any(1 in label_values(mask) for mask in masks.values()):
        message = f"the only frame in {folder} holds an anomaly, which features beside it have seen, too"
        raise InputError(message, hint="give a frame without one, or more frames")
    return RoadFrames([Sample(name, path, None, masks.get(name)) for name, path in images.items()])


@dataclass(frozen=True)
class MoreFeaturesConfig(Settings):
    """Whose features are added to the bank of the base, by its encoder, layers, sizes and resolution.

    Args:
        images ([DATASET:]FOLDER): see the method features.
        bank: features that are added for each layer and size: a random sample of all.
        frames: how many evenly spaced frames (0: all).
        corruptions: see the method features.
        seed: of the sample.
    """

    section = "more_features"
    without_data: ClassVar[str] = "--more_features.images FOLDER"
    images: str | None = None
    bank: PositiveInt = FeaturesConfig.bank
    frames: NonNegativeInt = 0
    corruptions: list[str] = field(default_factory=list)
    seed: NonNegativeInt = 0


@flushed_denormals()
def add_features(
    base: Path, config: FitConfig[MoreFeaturesConfig], out: Path, *, device: str = "auto", say: Say = say
) -> FeatureBank:
    """Write the same model with a bank of more features. InputError for a model without a bank."""
    model, data = load_for_fitting(base, config, resolve_device(device))
    bank: FeatureBank | None = model.attachments.get("features")
    if bank is None:
        raise InputError(f"{base} has no bank of features to add to", hint="segunc finetune --method features")
    before, encoder = bank.stored(model)
    if "0.origins" not in before:
        raise InputError(NO_ORIGINS, hint="fit the features again")
    how = {"encoder": bank.encoder, "layers": [*bank.layers], "sizes": [*bank.sizes], "resolution": bank.resolution}
    settings = FeaturesConfig(**{**vars(config.settings), **how})
    features = TrainingFeatures(model.network, settings, say, encoder)
    with torch.inference_mode():
        names = features.gather(model, data)
    tensors = features.tensors()
    for name in [name for name in tensors if name.endswith(BANK)]:
        if name.endswith("origins"):
            tensors[name][:, 0] += len(bank.frames)
        tensors[name] = torch.cat([before[name], tensors[name]])
    content = save(tensors)
    larger = replace(bank, frames=(*bank.frames, *names), tensors_sha256=hashlib.sha256(content).hexdigest())
    larger.attach(base, config, out, METHOD.name, say, {TENSORS: content})
    say(f"wrote {out}: {features.count:,} features of {len(names)} frames beside those of {len(bank.frames)}")
    return larger


METHOD = Method("more-features", MoreFeaturesConfig, add_features, finished=True)
