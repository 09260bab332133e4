"""Scores of what goes into the last layer of a network, the one that makes its logits: ``vim``, ``react-energy``, ``scale-energy``.

The layer's input is changed, or stacked on itself in changed forms, on its way into the layer, and the network goes on to its end
with all of them, so that whatever upsamples its logits upsamples these. One more pass of the network, whatever is asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from segunc.baselines.scores import CLIPPED_ENERGY, SCALED_ENERGY, VIRTUAL_LOGIT
from segunc.core.device import Precision, full_float32
from segunc.core.errors import InputError
from segunc.networks.network import SegmentationNetwork
from segunc.posteriors.features import FeatureBank, FeatureFit, FeaturesConfig, Take
from segunc.sampling.density import Sample, narrowed
from segunc.training.progress import Say
from segunc.uncertainty import energy

OF_HEAD = frozenset({VIRTUAL_LOGIT, CLIPPED_ENERGY, SCALED_ENERGY})
PLACES = 10_000
"""Whose activations stand for those of the training set where a percentile or a mean is asked for."""


class LogitLayer:
    """The last layer that a network calls with as many outputs as classes, a Conv2d or a Linear.

    Raises:
        InputError: there is none, or what comes behind it does not take each frame by itself.
    """

    def __init__(self, network: SegmentationNetwork) -> None:
        self.network, called = network, list[nn.Module]()
        handles = [
            module.register_forward_hook(lambda module, _, __: called.append(module))
            for module in network.modules()
            if isinstance(module, nn.Conv2d | nn.Linear) and len(module.weight) == network.description.num_classes
        ]
        images = torch.zeros(1, 3, 64, 64, device=next(network.parameters()).device)
        try:
            with torch.inference_mode():
                expected = network(images)
        finally:
            for handle in handles:
                handle.remove()
        remedy = "leave vim, react-energy and scale-energy out"
        if not called or network.logarithms:
            given = f"a network of type {type(network.body).__name__} without a layer that makes its logits"
            raise InputError(given, "a convolution or linear layer with an output for each class", remedy)
        self.module: Any = called[-1]
        self.axis = 1 if isinstance(self.module, nn.Conv2d) else -1  # of the channels
        with torch.inference_mode(), self.changed(lambda given: torch.cat([given, 2 * given + 1])):
            found = network(images)
        if found.shape != (2, *expected.shape[1:]) or not torch.allclose(found[:1], expected, rtol=1e-3, atol=1e-4):
            given = f"a network of type {type(network.body).__name__} that does more than upsample its logits"
            raise InputError(given, "one that ends with them", remedy)

    @contextmanager
    def changed(self, given: Any = None, gives: Any = None) -> Iterator[None]:
        """Meanwhile what the layer is given, and what it gives, is what these functions make of it."""
        handles = []
        if given:
            handles.append(self.module.register_forward_pre_hook(lambda _, args: (given(args[0]), *args[1:])))
        if gives:
            handles.append(self.module.register_forward_hook(lambda _, __, output: gives(output)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def weight(self) -> tuple[Tensor, Tensor]:
        """``[C, D]`` and bias ``[C]`` float64 on the CPU; InputError for a convolution of more than one place."""
        weight, bias = self.module.weight, self.module.bias
        if weight[0, 0].numel() > 1 or getattr(self.module, "groups", 1) > 1:
            given = f"a last convolution of {' x '.join(map(str, weight.shape[2:]))} places for the score vim"
            raise InputError(given, "one place", "leave vim out; react-energy and scale-energy take any convolution")
        flat = weight.detach().flatten(1).double().cpu()
        return flat, flat.new_zeros(len(flat)) if bias is None else bias.detach().double().cpu()

    def rows(self, given: Tensor) -> Tensor:
        """What the layer is given as rows ``[M, D]`` float32."""
        return given.float().movedim(self.axis, -1).flatten(0, -2)

    @torch.inference_mode()
    def inputs(self, images: Tensor) -> Tensor:
        """What the layer is given for images ``[n, 3, H, W]``, as rows."""
        seen: list[Tensor] = []

        def stop(given: Tensor) -> Tensor:
            seen.append(given)
            raise _Complete

        try:
            with self.changed(stop):
                self.network(images)
        except _Complete:
            pass
        return self.rows(seen[0])


class _Complete(Exception):
    """The layer's input is there."""


class HeadScores:
    """The three scores of a network.

    Args:
        layer: of the network.
        tensors: as :meth:`shapes` names them.
        percentile: of a place's activations, from which on they count as large for ``scale-energy``.
        gives: names of the evidence that they were fitted for.
    """

    @staticmethod
    def shapes(needs: Collection[str]) -> dict[str, str]:
        """Names of the tensors that some evidence needs, with their axes."""
        found = {"clip": "1"} if CLIPPED_ENERGY in needs else {}
        if VIRTUAL_LOGIT in needs:
            # u = -W^+ b, where all logits are nearest to 0; an orthonormal basis of what the training features hardly use
            found |= {"origin": "D", "residual": "RD", "alpha": "1"}
        return found

    def __init__(
        self, layer: LogitLayer, tensors: Mapping[str, Tensor], percentile: float, gives: Collection[str]
    ) -> None:
        self.layer, self.tensors, self.percentile = layer, tensors, percentile
        self.gives = OF_HEAD.intersection(gives)

    @torch.inference_mode()
    @full_float32()
    def __call__(
        self, images: Tensor, needs: Collection[str], precision: Precision = "float32", temperature: float = 1.0
    ) -> dict[str, Tensor]:
        """The evidence that is needed, each ``[n, H, W]`` float32, of images ``[n, 3, H, W]`` in 0..1: alpha times the residual's
        length less log-sum-exp of the logits (Wang et al., CVPR 2022); the energy of the logits of clipped (Sun et al., NeurIPS 2021)
        and of scaled activations (Xu et al., ICLR 2024). Logits are divided by ``temperature``, see
        :func:`segunc.uncertainty.energy`."""
        asked = [
            name for name in (VIRTUAL_LOGIT, CLIPPED_ENERGY, SCALED_ENERGY) if name in self.gives.intersection(needs)
        ]
        residual: list[Tensor] = []

        def forms(given: Tensor) -> Tensor:
            found = []
            for name in asked:
                if name == VIRTUAL_LOGIT:
                    residual.append(self.residual(given))
                    found.append(given)
                else:
                    found.append(self.clipped(given) if name == CLIPPED_ENERGY else self.scaled(given))
            return torch.cat(found)

        def beside(logits: Tensor) -> Tensor:
            return torch.cat([logits, *(part.to(logits.dtype).expand_as(logits[: len(images)]) for part in residual)])

        with narrowed(images, precision), self.layer.changed(forms, beside):
            parts = self.layer.network(images).float().split(len(images))
        found = {name: energy(logits, temperature) for name, logits in zip(asked, parts, strict=False)}
        if VIRTUAL_LOGIT in found:
            found[VIRTUAL_LOGIT] += self.tensors["alpha"] * parts[-1][:, 0]
        return found

    def residual(self, given: Tensor) -> Tensor:
        """How long the part of activations is that the training set hardly uses, one channel."""
        with torch.autocast(given.device.type, enabled=False):
            wide = given.float().movedim(self.layer.axis, -1) - self.tensors["origin"]
            found: Tensor = (wide @ self.tensors["residual"].T).norm(dim=-1, keepdim=True)
            return found.movedim(-1, self.layer.axis)

    def clipped(self, given: Tensor) -> Tensor:
        """Activations no larger than those of the training set mostly are."""
        return given.clamp_max(self.tensors["clip"].to(given.dtype))

    def scaled(self, given: Tensor) -> Tensor:
        """The activations of each place times exp(sum of all / sum of the largest); negative ones count as 0 in the sums."""
        values = given.float().relu()
        channels = values.shape[self.layer.axis]
        largest = values.topk(max(1, channels - round(channels * self.percentile / 100)), self.layer.axis).values
        sums = [part.sum(self.layer.axis, keepdim=True) for part in (values, largest)]
        ratio = sums[0] / sums[1].clamp_min(torch.finfo(torch.float32).tiny)
        return (given * ratio.exp()).to(given.dtype)


class HeadFit(FeatureFit):
    """Gathers what the three need of the training frames."""

    prefix = "head."

    @staticmethod
    def restore(take: Take, needs: Collection[str], network: SegmentationNetwork, bank: FeatureBank) -> HeadScores:
        return HeadScores(LogitLayer(network), take(HeadScores.shapes(needs)), bank.scale_percentile, needs)

    def __init__(self, network: SegmentationNetwork, needs: Collection[str], settings: FeaturesConfig) -> None:
        super().__init__(network, needs, settings)
        self.layer, self.sample = LogitLayer(network), Sample(PLACES, settings.seed)
        if VIRTUAL_LOGIT in needs:
            self.weight, self.bias = self.layer.weight()
            size = self.weight.shape[1]
            self.count, self.sum, self.products = 0, torch.zeros(size).double(), torch.zeros(size, size).double()

    def add(self, seen: Tensor, labels: Tensor) -> None:
        if not {VIRTUAL_LOGIT, CLIPPED_ENERGY}.intersection(self.needs):
            return
        rows = self.layer.inputs(seen).cpu()
        self.sample.add(rows)
        if VIRTUAL_LOGIT in self.needs:
            wide = rows.double()
            self.count += len(wide)
            self.sum += wide.sum(0)
            self.products.addmm_(wide.T, wide)

    def tensors(self, sample: Tensor, say: Say) -> dict[str, Tensor]:
        """The clip is the percentile ``react_percentile`` of all activations; the principal subspace of vim
        has half of the dimensions, as its authors take them."""
        found: dict[str, Tensor] = {}
        if CLIPPED_ENERGY in self.needs:
            found["clip"] = torch.tensor([np.percentile(self.sample.rows.numpy(), self.settings.react_percentile)])
        if VIRTUAL_LOGIT in self.needs:
            origin = -torch.linalg.pinv(self.weight) @ self.bias
            crossed = self.sum.outer(origin) / self.count
            second = self.products / self.count - crossed - crossed.T + origin.outer(origin)
            directions = torch.linalg.eigh(second).eigenvectors  # the least used first
            residual = directions[:, : len(directions) - len(directions) // 2].T
            rows = self.sample.rows.double()
            length = ((rows - origin) @ residual.T).norm(dim=1).mean()
            largest = (rows @ self.weight.T + self.bias).amax(1).mean()
            if not length > 0:
                given = "activations that fill no more than half of their dimensions"
                raise InputError(given, "a residual for the score vim", "leave vim out")
            found |= {"origin": origin, "residual": residual, "alpha": (largest / length)[None]}
        return {name: values.float().contiguous() for name, values in found.items()}
