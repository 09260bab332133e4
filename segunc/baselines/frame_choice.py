"""Which frames a bank of features is made of: evenly spaced ones, or those whose features differ
most from each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

Choice = Literal["even", "farthest"]


def farthest_frames(means: Tensor, count: int) -> list[int]:
    """Return the frames that farthest-first traversal chooses (Gonzalez 1985), in their order.

    The first is the one that is most like all others. Each further frame is the one whose smallest
    distance to the chosen frames is largest. Of equal frames the earlier one is chosen.

    Args:
        means: mean feature ``[N, D]`` of each frame.
        count: of frames to choose, at least 1.

    >>> import torch
    >>> angles = torch.tensor([0.0, 0.1, 0.2, 1.0, 3.0])
    >>> means = torch.stack([angles.cos(), angles.sin()], dim=1)
    >>> farthest_frames(means, 2)
    [2, 4]
    """
    units = torch.nn.functional.normalize(means.double(), dim=1)
    distances = (1.0 - units @ units.T).clamp_min_(0.0)
    chosen = [int(distances.sum(0).argmin())]
    while len(chosen) < min(count, len(means)):
        nearest = distances[chosen].amin(0)
        nearest[chosen] = -1.0
        chosen.append(int(nearest.argmax()))
    return sorted(chosen)


class ChosenFrames:
    """Some frames of a split, in the form of :class:`segunc.training.fit_data.FitData`.

    Args:
        data: that the frames are of.
        split: of the data.
        indices: of the frames in the split.
    """

    def __init__(self, data: Any, split: str, indices: Sequence[int]) -> None:
        self.size = data.size
        self._frames = data.dataset(split)
        self._indices = list(indices)
        if hasattr(self._frames, "samples"):
            self.samples = [self._frames.samples[index] for index in self._indices]

    def dataset(self, split: str) -> ChosenFrames:
        """Return the frames."""
        return self

    def __len__(self) -> int:
        return len(self._indices)

    def read(self, index: int) -> Any:
        """Return image and labels of a frame by its place among the chosen ones."""
        return self._frames.read(self._indices[index])


def chosen_frames(
    data: Any, split: str, count: int, mean_features: Callable[[Any], Iterable[Tensor]]
) -> ChosenFrames:
    """Return the frames of a split whose features differ most from each other.

    Args:
        data: a :class:`segunc.training.fit_data.FitData`.
        split: of the data.
        count: of frames; 0 takes all.
        mean_features: gives the mean feature ``[D]`` of each frame of the split.
    """
    total = len(data.dataset(split))
    if not 0 < count < total:
        return ChosenFrames(data, split, range(total))
    means = torch.stack(list(mean_features(data)))
    return ChosenFrames(data, split, farthest_frames(means, count))
