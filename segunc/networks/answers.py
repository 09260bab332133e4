"""What a network says of one frame, by which it is known again.

The hash of a network is of its weights and its description. What else decides its logits lies in
code: ``eps`` of a normalisation layer, the slope of an activation, buffers that are not saved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from segunc.core.device import full_float32
from segunc.core.errors import InputError
from segunc.core.modes import eval_mode
from segunc.core.preserving import preserve_training
from segunc.networks.copies import frames_that_run
from segunc.networks.network import SegmentationNetwork, channels_of

POINTS = 64
ROUNDING = 1e-4  # largest distance of two passes of one network on one machine
OTHER_MACHINE = 1e-2  # the same on two machines, which may have other kernels


@dataclass(frozen=True)
class Answer:
    """Logits of a network at some points of a frame of noise that is always the same.

    Attributes:
        size: (height, width) of the frame: the first of the usual ones that the network takes.
        logits: evenly spaced over classes and pixels.
    """

    size: tuple[int, int]
    logits: tuple[float, ...]

    def distance(self, other: Answer) -> float:
        """Return the mean difference of the logits, as a share of their mean magnitude; infinite
        where the frames or the numbers of points differ.
        """
        if self.size != other.size or len(self.logits) != len(other.logits):
            return float("inf")
        own = torch.tensor(self.logits, dtype=torch.float64)
        others = torch.tensor(other.logits, dtype=torch.float64)
        return float((own - others).abs().mean() / own.abs().mean().clamp_min(1e-12))

    def to_json(self) -> dict[str, Any]:
        """Return it as a record."""
        return {"size": list(self.size), "logits": [float(f"{z:.7g}") for z in self.logits]}

    @classmethod
    def from_json(cls, record: Any, source: str) -> Self:
        """Return what a record says; InputError, which names the source, where that is nothing."""
        try:
            height, width = record["size"]
            logits = tuple(float(value) for value in record["logits"])
            return cls((int(height), int(width)), logits)
        except (TypeError, ValueError, LookupError) as error:
            message = f"answer in {source} is not the size of a frame and logits"
            raise InputError(message, hint="save the network again") from error


def answer_of(network: SegmentationNetwork) -> Answer | None:
    """Return the answer of a network, which stays as it is, with the random numbers of the process.

    It is None of a network that fails on all frames that are tried, says something else at a second
    time, or returns NaN or infinite values.
    """
    with preserve_training(network), torch.no_grad(), eval_mode((network,)), full_float32():
        try:
            frame = frames_that_run(network, channels_of(network))
        except InputError:
            return None
        size = (frame.shape[-2], frame.shape[-1])
        first = Answer(size, _at_points(network(frame)))
        second = Answer(size, _at_points(network(frame)))
    return first if first.distance(second) <= ROUNDING else None


def _at_points(logits: Tensor) -> tuple[float, ...]:
    """Return some of the logits ``[1, C, H, W]``."""
    values = logits.detach().double().flatten()
    points = torch.linspace(0, len(values) - 1, POINTS, dtype=torch.float64).long()
    return tuple(values[points.to(values.device)].tolist())
