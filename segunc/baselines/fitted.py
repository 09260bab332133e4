"""Helpers of the methods that fit something on a finished model: the frames as the network sees
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from segunc.core.progress import ConsoleProgress
from segunc.core.registry import Registry
from segunc.data.corruptions import Corruption
from segunc.data.images import AnyImage, Image, Labels, resize_nearest
from segunc.networks.description import COLOUR
from segunc.networks.network import inference_size
from segunc.posteriors.fit_run import FitRun
from segunc.posteriors.model import Model
from segunc.sampling.sampler import network_input
from segunc.training.batches import spaced
from segunc.training.fit_data import content_name

FRAMES: Registry[Callable[..., Any]] = Registry(
    "kind of frames", "segunc.frames_to_fit", {}, baselines=("images",)
)
"""Frames to fit on that need no class labels, in the form of
:class:`segunc.data.module.SegmentationDataModule`.
"""


def frames_of(run: FitRun[Any]) -> Any:
    """Return the frames to fit on: the ``images`` of the settings, or else the data of the run."""
    images = getattr(run.settings, "images", None)
    if not images:
        return run.data
    channels = run.model.network.description.channels
    # Packages that open frames of their own take no channels.
    other_channels = {} if channels == COLOUR else {"channels": channels}
    return FRAMES["images"](images, **other_channels)


def frames_compared(model: Model, fold: Any) -> set[str] | None:
    """Return the names of the frames whose features those of a fold are compared with; None for all
    in the bank.

    A split val may have changed since the bank was made: its frames that are in the bank are left
    out, where others are left.
    """
    features = model.attachments.get("features")
    if fold.validation == "val":
        frames = fold.dataset("val")
        if features is None or not hasattr(frames, "samples"):
            return None
        known = set(features.frames)
        others = known.difference(sample.name for sample in frames.samples)
        return others if others and others != known else None
    train = {sample.name for sample in fold.dataset("train").samples}
    held_out = {sample.name for sample in fold.dataset("val").samples}
    if features is not None:
        train.update(features.frames)
    return train - held_out


class SeenFrame(NamedTuple):
    """A frame as ``segunc predict`` shows it to the network, and as it is."""

    number: int  # in its split
    name: str  # of its file, or one that its content decides
    image: Tensor  # float32 [1, K, h, w] in 0..1, on the network's device
    labels: Labels  # train ids uint8 [h, w], 255 ignored
    original: AnyImage  # [H, W, K], the frame at its own size: uint8, or float32 in 0..1
    original_labels: Labels  # train ids uint8 [H, W], 255 ignored


class FoldProgress:
    """Show how far a fit is over the frames of all folds, as one count.

    Args:
        run: the fit.
        folds: each a :class:`segunc.training.fit_data.FitData`.
        split: of each fold.
        limit: most frames of a fold; 0 takes all.
        step: what is done with the frames, which a fit may read several times.
    """

    def __init__(
        self, run: FitRun[Any], folds: Sequence[Any], split: str, limit: int, step: str
    ) -> None:
        self._console = ConsoleProgress(label=f"{run.method}, {step}", quiet=run.quiet)
        self._done = 0
        self._total = 0
        for fold in folds:
            self._total += len(spaced(len(fold.dataset(split)), limit))

    def follow(self, indices: Sequence[int]) -> Iterator[int]:
        """Yield the indices of the frames of one fold, and count them."""
        for index in indices:
            yield index
            self._done += 1
            self._console.count(self._done, self._total)
        if self._done == self._total:
            self._console.flush()


def frames_as_seen(
    run: FitRun[Any],
    data: Any,
    split: str,
    limit: int,
    corruptions: Sequence[Corruption] = (),
    progress: FoldProgress | None = None,
) -> Iterator[SeenFrame]:
    """Yield at most ``limit`` (0: all) evenly spaced frames of a split, each clean and then under
    each of the corruptions.

    Args:
        run: the fit that looks at them.
        data: a :class:`segunc.training.fit_data.FitData`.
        split: of the data.
        limit: most frames; 0 takes all.
        corruptions: under which each frame is shown, too.
        progress: over the frames of all folds; None if the data is the only one.
    """
    indices = spaced(len(data.dataset(split)), limit)
    yield from chosen_as_seen(run, data, split, indices, corruptions, progress)


def chosen_as_seen(
    run: FitRun[Any],
    data: Any,
    split: str,
    indices: Sequence[int],
    corruptions: Sequence[Corruption] = (),
    progress: FoldProgress | None = None,
) -> Iterator[SeenFrame]:
    """Yield the frames of a split with these indices, as :func:`frames_as_seen` yields them.

    Args:
        run: the fit that looks at them.
        data: a :class:`segunc.training.fit_data.FitData`.
        split: of the data.
        indices: of the frames, in the order in which they are read; an index may come twice.
        corruptions: under which each frame is shown, too.
        progress: over the frames of all folds; None if the data is the only one.
    """
    frames = data.dataset(split)
    description = run.model.network.description
    override = None if data.size is None else (data.size[0], data.size[1])
    shown = progress or ConsoleProgress(label=run.method, quiet=run.quiet)
    for index in shown.follow(indices):
        clean, original_labels = frames.read(index)
        has_names = hasattr(frames, "samples")
        name = frames.samples[index].name if has_names else content_name(clean)
        height, width = clean.shape[:2]
        size = inference_size(description, (height, width), override)
        labels = resize_nearest(original_labels, size[1], size[0])
        for corruption in (None, *corruptions):
            original = clean
            if corruption is not None:
                original = corruption(as_8_bits(clean), name)
            image = network_input([original], size).to(run.device)
            image = image.contiguous(memory_format=torch.channels_last)
            yield SeenFrame(index, name, image, labels, original, original_labels)


def as_8_bits(image: Any) -> Image:
    """Return an image as uint8; values in 0..1 are rounded to 8 bits, which is what a corruption
    takes.
    """
    if image.dtype == np.uint8:
        return np.asarray(image)
    return np.asarray((image * 255).round().clip(0, 255), np.uint8)
