"""Networks of ``segmentation_models_pytorch``, and pretrained weights of its encoders."""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path
from typing import Any

import segmentation_models_pytorch as smp
import timm
from torch import nn

from segunc.core.errors import InputError, is_out_of_memory, one_line
from segunc.core.files import read_json
from segunc.networks.description import IMAGENET_MEAN, IMAGENET_STD, SMP, NetworkDescription
from segunc.networks.import_sources import Found, Wishes
from segunc.networks.weights import load_weights, read_state

Triple = tuple[float, float, float]
_NAMES_OF_TIMM = {
    "inceptionv4": "inception_v4",
    "inceptionresnetv2": "inception_resnet_v2",
    "xception": "legacy_xception",
}
"""By smp's name, where the two differ; smp itself takes timm's tf_mobilenetv3 for its
timm-mobilenetv3.
"""
RESERVED = ("encoder_name", "encoder_weights", "classes", "in_channels", "aux_params")
"""Arguments of an architecture that the description itself decides."""
_ELSEWHERE = ("pretrained", "checkpoint", "cache")
"""Beginnings of arguments of timm that say where weights are read from."""


def architectures() -> dict[str, type]:
    """Return the smp architectures by class name."""
    return {cls.__name__: cls for cls in smp.MODEL_ARCHITECTURES_MAPPING.values()}


def build(description: NetworkDescription) -> tuple[nn.Module, int]:
    """Return the body with random weights (nothing is downloaded) and its stride; see
    :mod:`segunc.networks.model_folder`.
    """
    by_lower = {name.lower(): cls for name, cls in architectures().items()}
    if description.architecture.lower() not in by_lower:
        message = f"smp has no architecture '{description.architecture}'"
        raise InputError(message, hint=f"one of {', '.join(architectures())}")
    if (
        ":" in description.encoder
    ):  # timm asks a hub, or unpickles a local file, for names such as hf_hub:...
        raise InputError(
            f"encoder '{description.encoder}' is a place, not the name of an architecture"
        )
    reserved = {
        name for name in description.options if name in RESERVED or name.startswith(_ELSEWHERE)
    }
    if reserved:
        raise InputError(
            f"network options {sorted(reserved)} are no options of the architecture",
            hint="remove them",
        )
    architecture = by_lower[description.architecture.lower()]
    # smp hands unknown arguments on to its encoder, and all encoders but those of timm ignore them.
    named = [
        name
        for name in inspect.signature(architecture).parameters
        if name not in (*RESERVED, "kwargs")
    ]
    unknown = [name for name in description.options if name not in named]
    if unknown and not description.encoder.startswith("tu-"):
        message = f"{architecture.__name__} has no option '{unknown[0]}'"
        raise InputError(message, hint=f"its options are {', '.join(named)}")
    try:
        encoder = {"encoder_name": description.encoder, "encoder_weights": None, "in_channels": 3}
        body = architecture(**encoder, classes=description.num_classes, **description.options)
    except (
        Exception
    ) as error:  # smp, timm and torch have no common exception for arguments they do not accept
        if is_out_of_memory(error):
            raise
        # smp answers a wrong name with the names of all its encoders; the first part says what is
        # wrong.
        reason = next(iter(str(error).strip("'\"").splitlines()), "").partition(
            ", supported encoders"
        )[0]
        what = f"{description.architecture} with encoder {description.encoder}"
        raise InputError(f"smp cannot build {what}: {reason or type(error).__name__}") from error
    # Stride 32 unless dilation keeps the deepest map finer: decoders that merge all levels need
    # each to halve exactly.
    divisible = getattr(body, "requires_divisible_input_shape", True)
    stride = int(getattr(body.encoder, "output_stride", 32)) if divisible else 1
    if isinstance(body, smp.DPT):
        stride *= 2  # its coarsest level halves the grid of patches once more
    return body, stride


def read(name: str, wishes: Wishes) -> Found:
    """Return a network from the folder that smp's ``save_pretrained`` wrote, with the normalisation
    of its encoder's weights, if any.
    """
    folder = Path(name)
    if not folder.is_dir():
        raise InputError(
            f"'{name}' is no folder",
            hint="one of the hub comes by: hf download NAME --local-dir FOLDER",
        )
    config = read_json(folder / "config.json", "what smp's save_pretrained writes")
    architecture, encoder = str(config.pop("_model_class", "")), str(config.get("encoder_name", ""))
    if config.get("in_channels", 3) != 3:
        raise InputError(
            f"{folder} holds a network for {config['in_channels']} channels, not three"
        )
    if architecture not in architectures():
        raise InputError(
            f"{folder} holds '{architecture}', which is none of smp's {', '.join(architectures())}"
        )
    accepted = inspect.signature(architectures()[architecture]).parameters
    options = {k: v for k, v in config.items() if k in accepted and k not in RESERVED} | dict(
        wishes.arguments
    )
    mean, std = encoder_normalisation(encoder) if config.get("encoder_weights") else (None, None)
    description = wishes.description(
        SMP, architecture, encoder=encoder, options=options, mean=mean, std=std
    )
    return Found(description, read_state(folder / "model.safetensors"))


def load_encoder_weights(encoder: nn.Module, name: str, weights: str) -> list[str]:
    """Load pretrained weights into an encoder of smp, and return what a user should know, a line
    each. ``weights`` are a name of smp's, e.g. ``imagenet`` (downloaded by smp), or the path of a
    file in the names of smp, timm or torchvision. What a file holds beside the encoder (a
    classifier, a decoder) is left out. InputError for no such weights, no connection, or a file of
    another encoder.
    """
    if Path(weights).suffix or Path(weights).exists():
        return load_weights(encoder, Path(weights))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # smp warns of names that it renames and of weights that come with a name
            encoder.load_state_dict(smp.encoders.get_encoder(name, weights=weights).state_dict())
    except KeyError as error:
        raise InputError(
            f"smp has no encoder weights '{weights}' ({error.args[0]})", hint="or name a file"
        ) from error
    except (
        Exception
    ) as error:  # the hub's client, its HTTP library and timm have no common exception
        message = f"encoder weights '{weights}' of {name} cannot be downloaded ({one_line(error)})"
        hint = "--network.encoder_weights FILE, of smp, timm or torchvision, or none"
        raise InputError(message, hint=hint) from error
    return []


def encoder_normalisation(name: str) -> tuple[Triple, Triple]:
    """Return (mean, std) of images in 0..1 with which an encoder's pretrained weights were made, by
    smp's name for it: those of timm's record, and ImageNet's for encoders that timm does not know,
    which are all trained so.
    """
    bare = name.removeprefix("tu-").removeprefix("timm-")
    bare = f"tf_{bare}" if name.startswith("timm-mobilenetv3") else _NAMES_OF_TIMM.get(bare, bare)
    record: Any = timm.get_pretrained_cfg(bare) if timm.is_model(bare) else None
    return (
        (IMAGENET_MEAN, IMAGENET_STD) if record is None else (tuple(record.mean), tuple(record.std))
    )


def normalisation_note(name: str, mean: Triple, std: Triple) -> str:
    """Return what to say of a network whose images are normalised by mean and std, where its
    encoder's pretrained weights expect others.
    """
    if (expected := encoder_normalisation(name)) == (mean, std):
        return ""
    return (
        f"images are normalised by mean {mean} and std {std}, and pretrained weights of {name} expect {expected[0]} and {expected[1]}; "
        "give network.mean and network.std if these weights were trained with those"
    )
