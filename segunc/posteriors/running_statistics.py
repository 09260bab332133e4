"""Running statistics of normalisation layers, re-estimated over batches while the layers normalise
with what they see.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.instancenorm import _InstanceNorm

from segunc.affine.convert import layer_input
from segunc.affine.draws import AffineLayout, in_scope
from segunc.core.errors import InputError
from segunc.networks.copies import copy_network


class NormalisingCopy:
    """A copy of a converted network whose BatchNorm layers normalise with the batch, and
    InstanceNorm layers with each frame. It gathers the statistics of all that it is called on.

    Layers outside of the scope keep the network's statistics, so that what lies before the first
    layer of a narrow scope is the same in both.

    Args:
        network: converted; it stays as it is.
        scope: the normalisation layers whose statistics are gathered.
        hint: what to do where a layer has too few values for statistics of its own.

    Attributes:
        network: the copy.
        layout: of the copy.
        layers: number of layers whose statistics are gathered.
    """

    def __init__(self, network: nn.Module, scope: str, hint: str) -> None:
        self._original = AffineLayout(network)
        self.network = copy_network(network)
        self.layout = AffineLayout(self.network)
        self._gathered: list[RunningStatistics] = []
        names = self.layout.names
        for name, is_chosen in zip(names, in_scope(scope, names), strict=True):
            layer = cast(Any, self.network.get_submodule(name))
            keeps_statistics = layer.segunc_site.kind == "batch" and hasattr(
                layer, "reset_running_stats"
            )
            if is_chosen and keeps_statistics:
                self._gathered.append(RunningStatistics.of(layer, hint))

    @property
    def layers(self) -> int:
        return len(self._gathered)

    def corrections(self) -> tuple[Tensor, Tensor]:
        """Return what exchanges the network's statistics for those that were gathered.

        Returns:
            ``rescale`` and ``reshift`` ``[T]``: affine parameters ``gamma rescale`` and ``beta +
            gamma reshift`` on the network's statistics act as gamma and beta on the gathered ones.

        Raises:
            InputError: a layer saw too few values.
        """
        for statistics in self._gathered:
            statistics.store()
        copied = AffineLayout(self.network)
        rescale = copied.inverse / self._original.inverse
        reshift = (self._original.mean - copied.mean) * copied.inverse
        return rescale, reshift


class RunningStatistics(ABC):
    """Gathers what a layer sees over all of its calls; a network may call it more than once."""

    def __init__(self, layer: Any, hint: str) -> None:
        self.layer = layer
        self.hint = hint  # what to do where the layer sees too few values
        self.count = 0  # how many values a channel, or frames, the sums are over
        layer.register_forward_pre_hook(self._before, with_kwargs=True)
        layer.train()

    @staticmethod
    def of(layer: nn.Module, hint: str) -> RunningStatistics:
        """Return the statistics of a layer as the layer itself keeps them, and put the layer into
        training mode.
        """
        if isinstance(layer, _InstanceNorm):
            return StatisticsOfFrames(layer, hint)
        return StatisticsOfBatches(layer, hint)

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

    def __init__(self, layer: Any, hint: str) -> None:
        super().__init__(layer, hint)
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
            raise InputError(message, hint=f"give more frames, or {self.hint}")
        mean = self._sum / self.count
        return mean, self._squares / self.count - mean.square()


class StatisticsOfFrames(RunningStatistics):
    """Mean and unbiased variance of a channel within a frame, averaged over the frames, as
    InstanceNorm keeps them.
    """

    def __init__(self, layer: Any, hint: str) -> None:
        super().__init__(layer, hint)
        self._means = torch.zeros_like(layer.running_mean, dtype=torch.float64)
        self._variances = torch.zeros_like(layer.running_mean, dtype=torch.float64)

    def add(self, x: Tensor) -> None:
        values = x.flatten(2)
        if values.shape[2] < 2:
            name = type(self.layer).__name__
            message = f"a {name} behind a pooling to 1 x 1 has no variance within a frame"
            raise InputError(message, hint=self.hint)
        self._means += values.mean(2).sum(0)
        self._variances += values.var(2).sum(0)
        self.count += len(values)

    def mean_and_variance(self) -> tuple[Tensor, Tensor]:
        return self._means / self.count, self._variances / self.count
