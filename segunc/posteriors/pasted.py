"""What is chosen by pasted anomalies: pixels of the selection frames, and how well values of theirs find what was pasted."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from segunc.core.errors import InputError
from segunc.data.labels import IGNORE
from segunc.metrics.counting import average_precision, count_scores, detection_curve
from segunc.posteriors.fitting import as_seen
from segunc.posteriors.model import Model
from segunc.training.config import SelectConfig
from segunc.training.selection import selection_frames

if TYPE_CHECKING:
    from segunc.data.module import SegmentationDataModule

Frames = Collection[str] | None
"""Names of the frames that a fold trains on; None for all."""
PIXELS = 20_000
"""Of a frame, at random: neighbouring pixels say the same, and a thousand frames fit into memory."""
SIZES = (0.0, 0.002, 0.01)
"""Where ranges of the size of objects begin, as shares of the frame."""
PREVALENCE = 0.1
"""Of anomalies among the pixels of a criterion, about that of sets of road anomalies."""


class Pixels(NamedTuple):
    """Pixels of selection frames."""

    values: Tensor  # [P, N] float32, of each part
    size: Tensor  # int64 [N]: 0 for a known class, k for an object of the k-th range of sizes
    clean: Tensor  # bool [N], of a frame that was not corrupted


def gather_pixels(
    model: Model,
    data: SegmentationDataModule,
    select: SelectConfig,
    seed: int,
    of_fold: Callable[[Frames], Callable[[Tensor], Tensor]],
) -> tuple[Pixels, int]:
    """Pixels at random of the selection frames of all folds, and how many frames there were.

    Args:
        of_fold: from the frames that a fold trains on to a function from an image ``[1, 3, h, w]`` to values ``[P, h, w]`` of its
            pixels: what a frame's own sequence tells of it must not count.

    Raises:
        InputError: no pixel of a known class, or none of a pasted anomaly where these are asked for.
    """
    generator, found = torch.Generator().manual_seed(seed), []
    for fold in data.folds():
        # A single sequence that was named is held out, too, from what was fitted on all.
        own = fold.validation == "val"
        values_of = of_fold(None if own else {sample.name for sample in fold.dataset("train").samples})
        for frame in selection_frames(fold, select):
            image, anomaly = as_seen(model, data, frame.image, frame.anomaly)
            values = values_of(image).flatten(1).cpu()
            labelled = torch.from_numpy(anomaly.ravel() != IGNORE).nonzero().flatten()
            kept = labelled[torch.randperm(len(labelled), generator=generator)[:PIXELS]]
            clean = torch.full((len(kept),), frame.corruption is None)
            found.append(Pixels(values[:, kept], torch.from_numpy(_size_ranges(anomaly).ravel())[kept], clean))
    pixels = Pixels(*(torch.cat(one, -1) for one in zip(*found, strict=True)))
    if not ((pixels.size == 0) & pixels.clean).any():
        raise InputError(f"{len(found)} frames without a labelled pixel of a known class", "known scenes", "check val")
    if select.anomalies != "none" and not pixels.size.any():
        given = f"{len(found)} frames in which nothing that was pasted is left within its border"
        raise InputError(given, "room for an anomaly", "larger frames, or more of them")
    return pixels, len(found)


def _size_ranges(anomaly: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """1 and more on objects, by the range of :data:`SIZES` that their share of the frame falls into; 0 elsewhere."""
    _, objects, statistics, _ = cv2.connectedComponentsWithStats((anomaly == 1).astype(np.uint8))
    kinds = np.searchsorted(SIZES, statistics[:, cv2.CC_STAT_AREA] / anomaly.size, side="right")
    kinds[0] = 0
    return np.asarray(kinds[objects], np.int64)


def mean_precision(values: Tensor, size: Tensor) -> float:
    """Average precision of objects of each range of sizes against all known pixels, mean over the ranges that occur. Pixels of objects
    weigh so that they are a share :data:`PREVALENCE` of each: pooled, a few large objects would decide alone."""
    stored, found = values.clamp(-6e4, 6e4).half().numpy(), []
    for kind in range(1, len(SIZES) + 1):
        rows = torch.where(size == kind, 1, torch.where(size == 0, 0, IGNORE)).byte().numpy()
        counts = count_scores(stored, rows)
        known, anomalous = counts.sum(1)
        if anomalous:
            weights = 1000 * np.array([1, PREVALENCE / (1 - PREVALENCE) * known / anomalous])
            curve = detection_curve(counts * np.rint(weights).astype(np.int64)[:, None])
            found.append(average_precision(curve) or 0.0)
    return sum(found) / len(found)
