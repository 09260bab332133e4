"""Which frames a bank of features is made of: evenly spaced ones, or those whose features differ
most from each other.
"""

from __future__ import annotations

from typing import Literal

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
