"""Running statistics of normalisation layers, re-estimated over batches while the layers normalise
with what they see.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.instancenorm import _InstanceNorm

from segunc.affine.convert import layer_input
from segunc.core.errors import InputError

HINT = "--abnn.statistics frozen"


class RunningStatistics(ABC):
    """Gathers what a layer sees over all of its calls: a network may call a layer more than once."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        self.count = 0  # how many values a channel, or frames, the sums are over
        layer.register_forward_pre_hook(self._before, with_kwargs=True)
        layer.train()

    @staticmethod
    def of(layer: nn.Module) -> RunningStatistics:
        """Return the statistics of a layer as the layer itself keeps them, and put the layer into
        training mode.
        """
        if isinstance(layer, _InstanceNorm):
            return StatisticsOfFrames(layer)
        return StatisticsOfBatches(layer)

    def _before(self, layer: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        x, _ = layer_input(args, kwargs)
        self.add(x.detach().double())

    @abstractmethod
    def add(self, x: Tensor) -> None:
        """Add an input ``[N, C, ...]`` of the layer, float64."""

    @abstractmethod
    def mean_and_variance(self) -> tuple[Tensor, Tensor]:
        """Return both, ``[C]`` float64.

        Raises:
            InputError: the layer saw too few values.
        """

    def store(self) -> None:
        """Make these statistics those of the layer, if it was called."""
        if self.count:
            mean, variance = self.mean_and_variance()
            self.layer.running_mean.copy_(mean)
            self.layer.running_var.copy_(variance)


class StatisticsOfBatches(RunningStatistics):
    """Mean and variance of a channel over all frames and places, as BatchNorm keeps them."""

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        self._sum = torch.zeros_like(layer.running_mean, dtype=torch.float64)
        self._squares = torch.zeros_like(layer.running_mean, dtype=torch.float64)

    def add(self, x: Tensor) -> None:
        values = x.transpose(0, 1).flatten(1)
        self._sum += values.sum(1)
        self._squares += values.square().sum(1)
        self.count += values.shape[1]
        # One value a channel, of a batch of one behind a pooling to 1 x 1, has no variance: the
        # layer takes its running statistics.
        self.layer.train(values.shape[1] > 1)

    def mean_and_variance(self) -> tuple[Tensor, Tensor]:
        if self.count < 2:
            name = type(self.layer).__name__
            message = (
                f"a {name} behind a pooling to 1 x 1 has statistics of one frame, and needs two"
            )
            raise InputError(message, hint=f"give more frames, or {HINT}")
        mean = self._sum / self.count
        return mean, self._squares / self.count - mean.square()


class StatisticsOfFrames(RunningStatistics):
    """Mean and unbiased variance of a channel within a frame, averaged over the frames, as
    InstanceNorm keeps them.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        self._means = torch.zeros_like(layer.running_mean, dtype=torch.float64)
        self._variances = torch.zeros_like(layer.running_mean, dtype=torch.float64)

    def add(self, x: Tensor) -> None:
        values = x.flatten(2)
        if values.shape[2] < 2:
            name = type(self.layer).__name__
            message = f"a {name} behind a pooling to 1 x 1 has no variance within a frame"
            raise InputError(message, hint=HINT)
        self._means += values.mean(2).sum(0)
        self._variances += values.var(2).sum(0)
        self.count += len(values)

    def mean_and_variance(self) -> tuple[Tensor, Tensor]:
        return self._means / self.count, self._variances / self.count
