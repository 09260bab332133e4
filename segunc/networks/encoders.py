"""Pretrained weights of encoders, by smp's names for them or from files of smp, timm and torchvision."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import segmentation_models_pytorch as smp
import timm
from torch import nn

from segunc.core.errors import InputError, one_line
from segunc.networks.description import IMAGENET_MEAN, IMAGENET_STD
from segunc.networks.weights import load_weights

Triple = tuple[float, float, float]


def load_encoder_weights(encoder: nn.Module, name: str, weights: str) -> list[str]:
    """Load pretrained weights into an encoder, and return what a user should know, a line each.

    Args:
        encoder: of smp.
        name: smp's for it, e.g. ``resnet50`` or ``tu-tf_efficientnet_lite0``.
        weights: a name of smp's, e.g. ``imagenet`` (downloaded by smp), or the path of a file in the names of smp, timm or
            torchvision. What a file holds beside the encoder (a classifier, a decoder) is left out.

    Raises:
        InputError: no such weights, no connection, or a file of another encoder.
    """
    if not Path(weights).suffix and not Path(weights).exists():
        encoder.load_state_dict(_downloaded(name, weights).state_dict())
        return []
    notes = load_weights(encoder, Path(weights))
    if name.startswith("timm-") and timm.is_model(name[5:]) and type(encoder) is not type(_built(f"tu-{name[5:]}")):
        notes.append(f"{name} computes otherwise than timm's network of these weights; tu-{name[5:]} is that one")
    return notes


def encoder_normalisation(name: str) -> tuple[Triple, Triple]:
    """Return (mean, std) of images in 0..1 with which an encoder's pretrained weights were made, by smp's name for it.

    They are those of timm's record, and ImageNet's for encoders that timm does not know, which are all trained so.
    """
    bare = name.removeprefix("tu-").removeprefix("timm-")
    record: Any = timm.get_pretrained_cfg(bare) if timm.is_model(bare) else None
    return (IMAGENET_MEAN, IMAGENET_STD) if record is None else (tuple(record.mean), tuple(record.std))


def _built(name: str, weights: str | None = None) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # smp warns of names that it renames and of weights that come with a name
        encoder: nn.Module = smp.encoders.get_encoder(name, weights=weights)
    return encoder


def _downloaded(name: str, weights: str) -> nn.Module:
    try:
        return _built(name, weights)
    except KeyError as error:
        raise InputError(f"smp has no encoder weights '{weights}' ({error.args[0]})", hint="or name a file") from error
    except Exception as error:  # the hub's client, its HTTP library and timm have no common exception
        message = f"encoder weights '{weights}' of {name} cannot be downloaded ({one_line(error)})"
        raise InputError(message, hint="--network.encoder_weights FILE, of smp, timm or torchvision") from error
