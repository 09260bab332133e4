"""Segmentation networks of ``torchvision.models.segmentation``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torchvision.models as zoo
from torch import Tensor, nn
from torchvision.models import segmentation

from segunc.core.errors import InputError, one_line
from segunc.networks.description import NetworkDescription
from segunc.networks.import_sources import Found, Wishes


class Logits(nn.Module):
    """Give the logits out of the dictionary of a torchvision network; its keys are the network's
    own.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        return cast(Tensor, self.network(images)["out"])


def names() -> list[str]:
    """Return the names of the segmentation networks of the installed torchvision."""
    return list(zoo.list_models(module=segmentation))


def build(description: NetworkDescription) -> tuple[nn.Module, int]:
    """Return the body with random weights (nothing is downloaded); see
    :mod:`segunc.networks.model_folder`.
    """
    _check(description.architecture)
    description.check_colour(
        f"torchvision's {description.architecture}", hint="give mean and std three numbers each"
    )
    try:
        network = zoo.get_model(
            description.architecture,
            weights=None,
            weights_backbone=None,
            num_classes=description.num_classes,
            **description.options,
        )
    except TypeError as error:
        message = (
            f"torchvision's {description.architecture} does not take {description.options} "
            f"({error})"
        )
        raise InputError(message) from error
    return Logits(network), 1


def read(name: str, wishes: Wishes) -> Found:
    """Return a network by torchvision's name for it.

    The weights come from the user's file, or else they are those that torchvision publishes, which
    it downloads once. Mean and std are those of the published weights, and so are the classes where
    the file has as many.
    """
    _check(name)
    weights = zoo.get_model_weights(name).DEFAULT
    published = _published_state(name, weights) if wishes.state is None else None
    state = published or wishes.state or {}
    options = dict(wishes.arguments)
    # The auxiliary head serves training alone, but it is in the files of networks that were trained
    # with one.
    options.setdefault("aux_loss", any("aux_classifier." in key for key in state))
    transform = weights.transforms()
    classes: tuple[str, ...] | None = tuple(weights.meta["categories"])
    if len(weights.meta["categories"]) != _count_outputs(state):
        classes = None
    description = wishes.description(
        "torchvision",
        name,
        classes=classes,
        mean=tuple(transform.mean),
        std=tuple(transform.std),
        options=options,
        provenance={"revision": _hash_of(weights)} if published else None,
    )
    return Found(description, published)


def _published_state(name: str, weights: zoo.WeightsEnum) -> Mapping[str, Tensor]:
    """Return the weights of a network that torchvision publishes, from its cache or its server.

    Raises:
        InputError: they cannot be downloaded, or the file is damaged.
    """
    try:
        state = weights.get_state_dict(progress=True, check_hash=True, weights_only=True)
    except Exception as error:  # the server, the disk and the reader have none in common
        message = f"the weights of torchvision:{name} cannot be downloaded ({one_line(error)})"
        raise InputError(message, hint="--weights FILE, a state dict") from error
    return cast(Mapping[str, Tensor], state)


def _hash_of(weights: zoo.WeightsEnum) -> str:
    """Return the start of the hash of published weights, which ends the name of their file."""
    return str(weights.url).rpartition("-")[2].removesuffix(".pth")


def _count_outputs(state: Mapping[str, Tensor]) -> int:
    """Return the number of outputs of a network by its weights: the parameters of the classifier's
    last layer come last in every one of these networks. 0 where there is no classifier.
    """
    for name, tensor in reversed(list(state.items())):
        if ".classifier." in f".{name}" and tensor.ndim:
            return len(tensor)
    return 0


def _check(name: str) -> None:
    if name not in names():
        raise InputError(
            f"torchvision has no network '{name}'", hint=f"choose one of {', '.join(names())}"
        )
