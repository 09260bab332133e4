"""The networks of random weights that are timed, and the sizes of their frames."""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

from tools.gpu_day.steps import Day

Size = tuple[int, int]
CLASSES = 19
DRAWS = 24
TINY_DRAWS = 2


class NetworkName(NamedTuple):
    """An architecture and its encoder."""

    architecture: str
    encoder: str

    @property
    def words(self) -> str:
        return f"{self.architecture} {self.encoder}"


NETWORKS = (
    NetworkName("DeepLabV3Plus", "resnet50"),
    NetworkName("Segformer", "mit_b2"),
    NetworkName("Unet", "resnet34"),
)
TINY_NETWORKS = (NetworkName("FPN", "resnet18"),)
DILATED = NetworkName("DeepLabV3Plus", "resnet50")
TINY_DILATED = NetworkName("DeepLabV3Plus", "resnet18")
"""A network with dilated convolutions of single channels."""
SIZES: tuple[Size, ...] = ((512, 1024), (1024, 2048))
TINY_SIZES: tuple[Size, ...] = ((64, 128),)
TINY_DILATED_SIZES: tuple[Size, ...] = ((208, 416),)
"""Their maps are 13 places high, so that a dilation of 12 reaches from edge to edge."""


def networks_of(day: Day) -> tuple[NetworkName, ...]:
    """Return the networks that are timed."""
    return TINY_NETWORKS if day.tiny else NETWORKS


def sizes_of(day: Day) -> tuple[Size, ...]:
    """Return the (height, width) of their frames."""
    return TINY_SIZES if day.tiny else SIZES


def dilated_sizes(day: Day) -> tuple[Size, ...]:
    """Return the (height, width) of the frames of the dilated network."""
    return TINY_DILATED_SIZES if day.tiny else SIZES


def draws_of(day: Day) -> int:
    """Return how many draws the maps have."""
    return TINY_DRAWS if day.tiny else DRAWS


def dilated_network(day: Day) -> NetworkName:
    """Return a network with dilated convolutions of single channels."""
    return TINY_DILATED if day.tiny else DILATED


def size_words(size: Size) -> str:
    """Return a size as ``--size`` takes it."""
    return f"{size[0]}x{size[1]}"


def arguments_of(day: Day, name: NetworkName, size: Size, **more: Any) -> argparse.Namespace:
    """Return what :mod:`tools.bench_sampler` takes from its command line."""
    return argparse.Namespace(
        network=name.architecture,
        encoder=name.encoder,
        size=size,
        classes=CLASSES,
        device=day.device_name,
        draws=draws_of(day),
        precision=day.precision,
        **more,
    )
