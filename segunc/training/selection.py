"""Selection of a hyper-parameter on validation NLL."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from segunc.core.errors import InputError, NotFiniteError
from segunc.data.labels import IGNORE
from segunc.data.samples import SegmentationDataset
from segunc.sampling.sampler import Sampler
from segunc.training.losses import check_labels

Frames = SegmentationDataset | Sequence[Mapping[str, Any]]
"""Items by their number, each with ``image`` ``[3, H, W]`` in 0..1 and int64 ``label`` ``[H, W]``, 255 ignored."""


def validation_nll(sampler: Sampler, data: Frames, frames: Sequence[int]) -> float:
    """Mean negative log-likelihood in nats of the mean prediction, over all labelled pixels of some frames."""
    total, pixels = 0.0, 0
    for index in frames:
        item = data[index]
        label = item["label"].to(sampler.device)
        result = sampler(item["image"][None], keep_probabilities=True)
        assert result.probabilities is not None
        check_labels(label[None], result.probabilities.shape[1])
        valid = label != IGNORE
        chosen = result.probabilities[0].gather(0, label.masked_fill(~valid, 0)[None])[0][valid]
        # The smallest positive float32 bounds the loss of a pixel at 87 nats instead of infinity.
        total -= float(chosen.clamp_min(torch.finfo(torch.float32).tiny).log().sum(dtype=torch.float64))
        pixels += int(valid.sum())
    if pixels == 0:
        raise InputError("the validation frames hold no labelled pixel", hint="check the validation split")
    return total / pixels


def select(nll: Callable[[float], float], grid: Sequence[float], name: str) -> tuple[float, dict[str, float]]:
    """Return the value of ``grid`` with the lowest validation NLL, and the NLL of each.

    Args:
        nll: of a value; a :class:`NotFiniteError` counts as infinite.
        name: of the hyper-parameter, for messages; its grid is called ``name_grid`` in configurations.

    Raises:
        InputError: an empty grid, or no candidate with a finite NLL.
    """
    if not grid:
        raise InputError(f"{name}_grid is empty", hint=f"give {name} or a grid")
    results: dict[str, float] = {}
    for value in grid:
        try:
            results[f"{value:g}"] = nll(value)
        except NotFiniteError:  # much noise can blow a network up: then it is not the one to choose
            results[f"{value:g}"] = math.inf
    best = min(results, key=lambda key: results[key])
    if not math.isfinite(results[best]):
        raise InputError(f"no {name} of {list(grid)} gives a finite validation NLL", hint=f"lower {name}_grid")
    return float(best), results
