"""Outputs of a network that are no class, such as *void*: left out where they are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from segunc.core.errors import InputError
from segunc.networks.description import NetworkDescription
from segunc.networks.network import SegmentationNetwork


def drop_classes(description: NetworkDescription, names: Sequence[str]) -> NetworkDescription:
    """Return the description without some outputs of the network.

    Args:
        description: its classes are those of all outputs but the numbered ones.
        names: of classes, or numbers of outputs from 0 that have no name.

    Raises:
        InputError: a name that the description does not hold, a number beyond the outputs, or nothing is left.
    """
    numbers = sorted({int(name) for name in names if name.isdigit() and name not in description.classes})
    outputs: list[int | None] = [*range(len(description.classes))]
    for number in numbers:
        outputs.insert(number, None)
    unknown = [name for name in names if not name.isdigit() and name not in description.classes]
    unknown += [str(number) for number in numbers if number >= len(outputs) or outputs[number] is not None]
    kept = [own for own in outputs if own is not None and description.classes[own] not in names]
    if unknown or not kept:
        given = f"--drop-classes {','.join(names)} of {len(outputs)} outputs"
        raise InputError(given, "names of --classes, or numbers of outputs from 0 that have no name there", "")
    return replace(
        description,
        classes=tuple(description.classes[own] for own in kept),
        palette=tuple(description.palette[own] for own in kept) if description.palette else (),
        dropped_outputs=tuple(number for number, own in enumerate(outputs) if own not in kept),
    )


def cut_last_layer(body: nn.Module, description: NetworkDescription) -> None:
    """Leave the dropped outputs out of the layer that the description names; InputError if there is no such layer."""
    try:
        layer = body.get_submodule(description.last_layer)
    except AttributeError:
        layer = None
    if not _cuttable(layer, description.num_classes + len(description.dropped_outputs)):
        given = f"layer '{description.last_layer}', from which outputs are dropped, is no last layer of the network"
        raise InputError(given, "the network that was imported", "import it again")
    kept = torch.tensor(description.kept_outputs)
    axis = 1 if isinstance(layer, nn.ConvTranspose2d) else 0
    layer.weight = nn.Parameter(layer.weight.detach().index_select(axis, kept))
    if layer.bias is not None:
        layer.bias = nn.Parameter(layer.bias.detach()[kept])
    setattr(layer, "out_features" if isinstance(layer, nn.Linear) else "out_channels", len(kept))


@torch.inference_mode()
def find_last_layer(network: SegmentationNetwork, frames: Tensor) -> SegmentationNetwork:
    """Return the network with its dropped outputs cut out of its last layer, or the network itself, which takes them from its logits.

    A cut layer makes the logits smaller where they are smallest, before the last upsampling. A layer counts as the last if the network
    without the weights of these outputs gives the same logits ``[N, C, H, W]`` of ``frames`` for the other classes.

    Args:
        network: with ``dropped_outputs``, and its weights.
        frames: images in 0..1, several different ones.
    """
    description = network.description
    outputs = description.num_classes + len(description.dropped_outputs)
    frames = torch.cat([frames, frames.round()])  # of strong contrast, too
    expected = network(frames)
    for name, layer in reversed(list(network.body.named_modules())):
        if not _cuttable(layer, outputs):
            continue
        weight, bias = layer.weight, layer.bias
        found = SegmentationNetwork(network.body, replace(description, last_layer=name), network.stride)
        cut_last_layer(network.body, found.description)
        try:
            if torch.allclose(found(frames), expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max())):
                return found.eval()
        except (InputError, RuntimeError):  # what follows the layer needs all of its outputs
            pass
        layer.weight, layer.bias = weight, bias
        setattr(layer, "out_features" if isinstance(layer, nn.Linear) else "out_channels", outputs)
    return network


def _cuttable(layer: nn.Module | None, outputs: int) -> bool:
    if isinstance(layer, nn.Linear):
        return layer.out_features == outputs
    return isinstance(layer, nn.Conv2d | nn.ConvTranspose2d) and layer.out_channels == outputs and layer.groups == 1
