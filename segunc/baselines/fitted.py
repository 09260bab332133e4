"""What all that is fitted on a finished model has in common: its frames as the network sees them,
and on what it was fitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
"""What something is fitted on that needs no class labels, in the form of
:class:`segunc.data.module.SegmentationDataModule`.
"""


def load_for_fitting(
    base: Path, config: FitConfig[Any], device: torch.device
) -> tuple[Model, SegmentationDataModule]:
    """Return a model of either kind on its device, and the data set of its classes, or the
    ``images`` of the settings.
    """
    model, images = load_model(base), getattr(config.settings, "images", None)
    data = (
        FRAMES["images"](images)
        if images
        else open_data(config.data, model.network.description.num_classes)
    )
    model.place(device)
    return model, data


def frames_as_seen(
    model: Model,
    data: SegmentationDataModule,
    split: str,
    limit: int,
    label: str,
    corruptions: Sequence[Corruption] = (),
) -> Iterator[tuple[int, Tensor, Labels, Image, Labels]]:
    """Yield at most ``limit`` (0: all) evenly spaced frames of a split as ``segunc predict`` would
    show them to the network, each clean and then under the corruptions: the index, the image ``[1,
    3, h, w]`` in 0..1 on the network's device, and the train ids uint8 ``[h, w]``, 255 ignored;
    then image and train ids at the frame's own size. ``label`` says what is done with them, for the
    progress.
    """
    frames, device = data.dataset(split), next(model.network.parameters()).device
    override = None if data.size is None else (data.size[0], data.size[1])
    for index in ConsoleProgress(label=label).follow(spaced(len(frames), limit)):
        image, own = frames.read(index)
        size = inference_size(model.network.description, (image.shape[0], image.shape[1]), override)
        labels = resize_nearest(own, size[1], size[0])
        for corruption in (None, *corruptions):
            shown = corruption(image, frames.samples[index].name) if corruption else image
            seen = (
                network_input([shown], size)
                .to(device)
                .contiguous(memory_format=torch.channels_last)
            )
            yield index, seen, labels, shown, own


def fitted_on(config: FitConfig[Any], split: str) -> dict[str, Any]:
    """Return on what, when and with which library something was fitted."""
    size, images = config.data.get("size"), getattr(config.settings, "images", None)
    frames = {
        "dataset": images or config.data["dataset"],
        "split": split,
        "size": None if size is None else list(size),
    }
    return {**frames, "date": now(), "torch": torch.__version__}
