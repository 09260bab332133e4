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

OF_HEAD = (VIRTUAL_LOGIT, CLIPPED_ENERGY, SCALED_ENERGY)
REACT_PERCENTILE = 90.0
"""Of all activations of the training frames, at which ``react-energy`` clips them, as its authors do."""
SAMPLED_PLACES = 10_000  # places whose activations stand for those of the training set in percentiles and means


class LogitLayer:
    """The last layer that a network calls with as many outputs as classes, a Conv2d or a Linear; InputError where there is none, or what
    comes behind it does not take each frame by itself."""

    def __init__(
        self, network: SegmentationNetwork, hint: str = "leave vim, react-energy and scale-energy out"
    ) -> None:
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
        if not called:
            name = type(network.body).__name__
            raise InputError(f"{name} has no convolution or linear layer that makes its logits", hint=hint)
        self.module: Any = called[-1]
        self.channel_axis = 1 if isinstance(self.module, nn.Conv2d) else -1
        with torch.inference_mode(), self.changed(lambda x: torch.cat([x, 2 * x + 1])):
            stacked = network(images)
        if stacked.shape != (2, *expected.shape[1:]) or not torch.allclose(stacked[:1], expected, rtol=1e-3, atol=1e-4):
            raise InputError(f"{type(network.body).__name__} does more with its logits than upsample them", hint=hint)

    @contextmanager
    def changed(self, change_input: Any = None, change_output: Any = None) -> Iterator[None]:
        """Pass the layer's input, and its output, through these functions while open."""
        handles = []
        if change_input:
            handles.append(self.module.register_forward_pre_hook(lambda _, args: (change_input(args[0]), *args[1:])))
        if change_output:
            handles.append(self.module.register_forward_hook(lambda _, __, output: change_output(output)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def weight(self) -> tuple[Tensor, Tensor]:
        """Return weight ``[C, D]`` and bias ``[C]``, float64 on the CPU."""
        weight, bias = self.module.weight, self.module.bias
        if weight[0, 0].numel() > 1 or getattr(self.module, "groups", 1) > 1:
            message = "the score vim needs a last convolution of 1 x 1 without groups"
            raise InputError(message, hint="leave vim out; react-energy and scale-energy take any convolution")
        flat = weight.detach().flatten(1).double().cpu()
        return flat, flat.new_zeros(len(flat)) if bias is None else bias.detach().double().cpu()

    @torch.inference_mode()
    def inputs(self, images: Tensor) -> Tensor:
        """Return the layer's input of images ``[n, 3, H, W]`` as rows ``[M, D]`` float32."""
        inputs: list[Tensor] = []
        with self.changed(lambda x: inputs.append(x) or x):  # type: ignore[func-returns-value]
            self.network(images)
        return inputs[-1].float().movedim(self.channel_axis, -1).flatten(0, -2)


class HeadScores:
    """The three scores of a network, of the tensors that :meth:`shapes` names. ``percentile`` is that of a place's activations, from which
    on they count as large for ``scale-energy``."""

    @staticmethod
    def shapes(needs: Collection[str]) -> dict[str, str]:
        """Return names of the tensors that some evidence needs, with their axes."""
        shapes = {"clip": "1"} if CLIPPED_ENERGY in needs else {}
        if VIRTUAL_LOGIT in needs:
            # u = -W^+ b, where all logits are nearest to 0; an orthonormal basis of what the training features hardly use
            shapes |= {"origin": "D", "residual": "RD", "alpha": "1"}
        return shapes

    def __init__(
        self, layer: LogitLayer, tensors: Mapping[str, Tensor], percentile: float, gives: Collection[str]
    ) -> None:
        self.layer, self.tensors, self.percentile = layer, tensors, percentile
        self.gives = frozenset(OF_HEAD).intersection(gives)

    @torch.inference_mode()
    @full_float32()
    def __call__(
        self, images: Tensor, needs: Collection[str], precision: Precision = "float32", temperature: float = 1.0
    ) -> dict[str, Tensor]:
        """Return the evidence that is needed, each ``[n, H, W]`` float32, of images ``[n, 3, H, W]`` in 0..1.

        Alpha times the residual's length less log-sum-exp of the logits (Wang et al., CVPR 2022); the energy of the logits of clipped
        (Sun et al., NeurIPS 2021) and of scaled activations (Xu et al., ICLR 2024). Logits are divided by ``temperature``, see
        :func:`segunc.uncertainty.energy`.
        """
        names = [name for name in OF_HEAD if name in self.gives.intersection(needs)]
        forms = {VIRTUAL_LOGIT: lambda x: x, CLIPPED_ENERGY: self.clipped, SCALED_ENERGY: self.scaled}
        residuals: list[Tensor] = []

        def stack_forms(activations: Tensor) -> Tensor:
            if VIRTUAL_LOGIT in names:
                residuals.append(self.residual(activations))
            return torch.cat([forms[name](activations) for name in names])

        def add_residuals(logits: Tensor) -> Tensor:
            return torch.cat([logits, *(x.to(logits.dtype).expand_as(logits[: len(images)]) for x in residuals)])

        with narrowed(images, precision), self.layer.changed(stack_forms, add_residuals):
            parts = self.layer.network(images).float().split(len(images))
        evidence = {name: energy(logits, temperature) for name, logits in zip(names, parts, strict=False)}
        if VIRTUAL_LOGIT in evidence:
            evidence[VIRTUAL_LOGIT] += self.tensors["alpha"] * parts[-1][:, 0]
        return evidence

    def residual(self, activations: Tensor) -> Tensor:
        """Return the length of the part of activations that the training set hardly uses, one channel."""
        with torch.autocast(activations.device.type, enabled=False):
            centred = activations.float().movedim(self.layer.channel_axis, -1) - self.tensors["origin"]
            length: Tensor = (centred @ self.tensors["residual"].T).norm(dim=-1, keepdim=True)
            return length.movedim(-1, self.layer.channel_axis)

    def clipped(self, activations: Tensor) -> Tensor:
        return activations.clamp_max(self.tensors["clip"].to(activations.dtype))

    def scaled(self, activations: Tensor) -> Tensor:
        """Return the activations of each place times exp(sum of all / sum of the largest); negative ones count as 0 in the sums."""
        axis, values = self.layer.channel_axis, activations.float().relu()
        channels = values.shape[axis]
        largest = values.topk(max(1, channels - round(channels * self.percentile / 100)), axis).values
        whole, part = (x.sum(axis, keepdim=True) for x in (values, largest))
        ratio = whole / part.clamp_min(torch.finfo(torch.float32).tiny)
        return (activations * ratio.exp()).to(activations.dtype)


class HeadFit(FeatureFit):
    """Gathers what the three scores need of the training frames."""

    prefix = "head."

    @staticmethod
    def restore(take: Take, needs: Collection[str], network: SegmentationNetwork, bank: FeatureBank) -> HeadScores:
        return HeadScores(LogitLayer(network), take(HeadScores.shapes(needs)), bank.scale_percentile, needs)

    def __init__(self, network: SegmentationNetwork, needs: Collection[str], settings: FeaturesConfig) -> None:
        super().__init__(network, needs, settings)
        self.layer, self.sample = LogitLayer(network), Sample(SAMPLED_PLACES, settings.seed)
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
        """Return the tensors of the scores. The principal subspace of
        vim has half of the dimensions, as its authors take them."""
        tensors: dict[str, Tensor] = {}
        if CLIPPED_ENERGY in self.needs:
            tensors["clip"] = torch.tensor([np.percentile(self.sample.rows.numpy(), REACT_PERCENTILE)])
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
                message = "the score vim needs a residual, and activations fill no more than half of their dimensions"
                raise InputError(message, hint="leave vim out")
            tensors |= {"origin": origin, "residual": residual, "alpha": (largest / length)[None]}
        return {name: values.float().contiguous() for name, values in tensors.items()}
