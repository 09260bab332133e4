"""Helpers of the methods that fit something on a finished model: the frames as the network sees
them, and the record of what it was fitted on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from segunc.core.progress import ConsoleProgress
from segunc.core.registry import Registry
from segunc.data.corruptions import Corruption
from segunc.data.images import Image, Labels, resize_nearest
from segunc.networks.network import inference_size
from segunc.posteriors.model import Model, load_model
from segunc.sampling.sampler import network_input
from segunc.training.batches import open_data, spaced
from segunc.training.config import FitConfig, now

if TYPE_CHECKING:
    from segunc.data.module import SegmentationDataModule

FRAMES: Registry[Callable[..., Any]] = Registry(
    "kind of frames", "segunc.frames_to_fit", {}, baselines=("images",)
)
"""Frames to fit on that need no class labels, in the form of
:class:`segunc.data.module.SegmentationDataModule`.
"""


def load_for_fitting(
    base: Path, config: FitConfig[Any], device: torch.device
) -> tuple[Model, SegmentationDataModule]:
    """Return a model on its device, and the frames to fit on: the ``images`` of the settings, or
    else the data set of its classes.
    """
    model = load_model(base)
    images = getattr(config.settings, "images", None)
    if images:
        data = FRAMES["images"](images)
    else:
        data = open_data(config.data, model.network.description.num_classes)
    model.place(device)
    return model, data


class SeenFrame(NamedTuple):
    """A frame as ``segunc predict`` shows it to the network, and as it is."""

    number: int  # in its split
    image: Tensor  # float32 [1, 3, h, w] in 0..1, on the network's device
    labels: Labels  # train ids uint8 [h, w], 255 ignored
    original: Image  # RGB uint8 [H, W, 3], the frame at its own size
    original_labels: Labels  # train ids uint8 [H, W], 255 ignored


def frames_as_seen(
    model: Model,
    data: SegmentationDataModule,
    split: str,
    limit: int,
    label: str,
    corruptions: Sequence[Corruption] = (),
) -> Iterator[SeenFrame]:
    """Yield at most ``limit`` (0: all) evenly spaced frames of a split, each clean and then under
    each of the corruptions.

    Args:
        label: what is done with the frames, for the progress.
    """
    frames = data.dataset(split)
    device = next(model.network.parameters()).device
    override = None if data.size is None else (data.size[0], data.size[1])
    for index in ConsoleProgress(label=label).follow(spaced(len(frames), limit)):
        clean, original_labels = frames.read(index)
        height, width = clean.shape[:2]
        size = inference_size(model.network.description, (height, width), override)
        labels = resize_nearest(original_labels, size[1], size[0])
        for corruption in (None, *corruptions):
            original = clean
            if corruption is not None:
                original = corruption(clean, frames.samples[index].name)
            image = network_input([original], size).to(device)
            image = image.contiguous(memory_format=torch.channels_last)
            yield SeenFrame(index, image, labels, original, original_labels)


def fitted_on(config: FitConfig[Any], split: str) -> dict[str, Any]:
    """Return a record of the frames, the date and the version of torch."""
    size = config.data.get("size")
    images = getattr(config.settings, "images", None)
    return {
        "dataset": images or config.data["dataset"],
        "split": split,
        "size": None if size is None else list(size),
        "date": now(),
        "torch": torch.__version__,
    }
