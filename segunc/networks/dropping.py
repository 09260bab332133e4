"""Outputs of a network that are no class, such as *void*: left out where they are made."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeGuard

import torch
from torch import Tensor, nn

from segunc.core.errors import InputError
from segunc.networks.description import NetworkDescription
from segunc.networks.network import SegmentationNetwork


def drop_classes(description: NetworkDescription, names: Sequence[str]) -> NetworkDescription:
    """Return the description without some outputs: classes by name, or numbers from 0 of outputs that no class stands for.

    Raises:
        InputError: a name that is no class, a number beyond the outputs, or no class is left.
    """
    classes = dict(enumerate(description.classes))
    numbers = sorted({int(name) for name in names if name.isdigit() and name not in description.classes})
    outputs: list[int | None] = [*classes]
    for number in numbers:
        outputs.insert(number, None)
    dropped = [number for number, own in enumerate(outputs) if own is None or classes[own] in names]
    kept = [own for own in outputs if own is not None and classes[own] not in names]
    if len(dropped) != len(set(names)) or not set(numbers) <= set(dropped) or not kept:
        given = f"--drop-classes {','.join(names)} of {len(outputs)} outputs"
        raise InputError(given, "names of classes, or numbers from 0 of outputs that --classes does not name", "")
    return replace(
        description,
        classes=tuple(classes[own] for own in kept),
        palette=tuple(description.palette[own] for own in kept) if description.palette else (),
        dropped_outputs=tuple(dropped),
    )


def with_all_outputs(description: NetworkDescription) -> NetworkDescription:
    """Return the description of the network as it is built, with a class for each of its outputs."""
    names = dict(zip(description.kept_outputs, description.classes, strict=True))
    names |= dict.fromkeys(description.dropped_outputs, "dropped")
    classes = tuple(names[number] for number in sorted(names))
    return replace(description, classes=classes, palette=(), dropped_outputs=(), last_layer="")


def cut_last_layer(body: nn.Module, description: NetworkDescription) -> None:
    """Leave the dropped outputs out of the layer that the description names; InputError if there is no such layer."""
    layer = dict(body.named_modules()).get(description.last_layer)
    if not _cuttable(layer, description):
        given = f"layer '{description.last_layer}', from which outputs are dropped, is no last layer of the network"
        raise InputError(given, "the network that was imported", "import it again")
    kept = torch.tensor(description.kept_outputs)
    axis = 1 if isinstance(layer, nn.ConvTranspose2d) else 0
    layer.weight = nn.Parameter(layer.weight.detach().index_select(axis, kept))
    layer.bias = None if layer.bias is None else nn.Parameter(layer.bias.detach()[kept])
    layer.out_channels = len(kept)


@torch.inference_mode()
def find_last_layer(network: SegmentationNetwork, frames: Tensor) -> SegmentationNetwork:
    """Return a network whose dropped outputs are cut out of its last layer, or the network itself, which takes them from its logits.

    A cut layer makes the logits fewer before the last upsampling. A layer counts as the last if the network without the weights of these
    outputs gives the same logits ``[N, C, H, W]`` for the other classes.

    Args:
        network: with ``dropped_outputs``, and its weights.
        frames: images in 0..1.
    """
    frames = torch.cat([frames, frames.round()])  # of strong contrast, too
    expected = network(frames)
    for name, layer in reversed(list(network.body.named_modules())):
        if _cuttable(layer, network.description):
            body, description = copy.deepcopy(network.body), replace(network.description, last_layer=name)
            cut_last_layer(body, description)
            cut = SegmentationNetwork(body, description, network.stride).eval()
            with contextlib.suppress(Exception):  # what follows the layer may need all of its outputs
                if torch.allclose(cut(frames), expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max())):
                    return cut
    return network


def _cuttable(layer: nn.Module | None, description: NetworkDescription) -> TypeGuard[nn.Conv2d | nn.ConvTranspose2d]:
    outputs = description.num_classes + len(description.dropped_outputs)
    return isinstance(layer, nn.Conv2d | nn.ConvTranspose2d) and layer.out_channels == outputs and layer.groups == 1
