"""What everything that is fitted on a finished model shares."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from segunc.networks.network import inference_size
from segunc.posteriors.files import Model, load_model
from segunc.sampling.frames import network_input
from segunc.training.config import FitConfig
from segunc.training.data import open_data
from segunc.training.progress import follow
from segunc.training.selection import spaced

if TYPE_CHECKING:
    from segunc.data.module import SegmentationDataModule


def load_for_fitting(base: Path, config: FitConfig[Any], device: torch.device) -> tuple[Model, SegmentationDataModule]:
    """A model of either kind on its device, and the data set that something is to be fitted on.

    Raises:
        InputError: the model cannot be loaded, or the data set has another number of classes.
    """
    model = load_model(base)
    data = open_data(config.data, model.network.description.num_classes)
    model.place(device)
    return model, data


def frames_as_seen(
    model: Model, data: SegmentationDataModule, split: str, limit: int, label: str
) -> Iterator[tuple[int, Tensor, npt.NDArray[np.uint8]]]:
    """Evenly spaced frames of a split as ``segunc predict`` would show them to the network.

    Args:
        model: its network decides the size, unless ``data.size`` is given.
        data: the data set.
        split: of it.
        limit: how many frames (0: all).
        label: what is done with them, for the progress.

    Yields:
        the frame's index, its image ``[1, 3, h, w]`` in 0..1 on the network's device, and its train ids uint8 ``[h, w]``
        (255 ignored), brought to the network's size by the nearest pixel.
    """
    frames = data.dataset(split)
    device = next(model.network.parameters()).device
    override = None if data.size is None else (data.size[0], data.size[1])
    for index in follow(spaced(len(frames), limit), label):
        image, labels = frames.read(index)
        size = inference_size(model.network.description, (image.shape[0], image.shape[1]), override)
        if labels.shape != size:
            resized = cv2.resize(labels, (size[1], size[0]), interpolation=cv2.INTER_NEAREST)
            labels = np.asarray(resized, np.uint8)
        seen = network_input([image], size).to(device)
        yield index, seen.contiguous(memory_format=torch.channels_last), labels


def fitted_on(config: FitConfig[Any], split: str) -> dict[str, Any]:
    """On what, when and with which library something was fitted."""
    size = config.data.get("size")
    return {
        "dataset": config.data["dataset"],
        "split": split,
        "size": None if size is None else list(size),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "torch": torch.__version__,
    }
