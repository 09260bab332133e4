"""Networks of ``segmentation_models_pytorch``."""

from __future__ import annotations

import inspect
from pathlib import Path

import segmentation_models_pytorch as smp
from huggingface_hub import snapshot_download
from torch import nn

from segunc.core.errors import InputError, is_out_of_memory, one_line
from segunc.core.files import read_json
from segunc.networks.description import SMP, NetworkDescription
from segunc.networks.encoders import encoder_normalisation
from segunc.networks.sources import Found, Wishes
from segunc.networks.weights import read_state

RESERVED = ("encoder_name", "encoder_weights", "classes", "in_channels", "aux_params")
"""Arguments of an architecture that the description itself decides."""
_ELSEWHERE = ("pretrained", "checkpoint", "cache")
"""Beginnings of arguments of timm that say where weights are read from."""


def architectures() -> dict[str, type]:
    """The smp architectures by class name."""
    return {cls.__name__: cls for cls in smp.MODEL_ARCHITECTURES_MAPPING.values()}


def build(description: NetworkDescription) -> tuple[nn.Module, int]:
    """The body with random weights (nothing is downloaded) and its stride; see :mod:`segunc.networks.build`.

    Raises:
        InputError: smp does not know the architecture or encoder, or does not accept the pair or an option.
    """
    known = architectures()
    by_lower = {name.lower(): cls for name, cls in known.items()}
    if description.architecture.lower() not in by_lower:
        raise InputError(
            f"architecture '{description.architecture}'", f"one of {', '.join(known)}", "check the spelling"
        )
    if ":" in description.encoder:  # timm asks a hub, or unpickles a local file, for names such as hf_hub:...
        raise InputError(
            f"encoder '{description.encoder}'",
            "the name of an architecture, which opens no connection",
            "name it alone",
        )
    reserved = {name for name in description.options if name in RESERVED or name.startswith(_ELSEWHERE)}
    if reserved:
        raise InputError(f"network options {sorted(reserved)}", "options of the architecture alone", "remove them")
    architecture = by_lower[description.architecture.lower()]
    # smp hands unknown arguments on to its encoder, and all encoders but those of timm ignore them.
    named = [name for name in inspect.signature(architecture).parameters if name not in (*RESERVED, "kwargs")]
    unknown = [name for name in description.options if name not in named]
    if unknown and not description.encoder.startswith("tu-"):
        raise InputError(
            f"{architecture.__name__} has no option '{unknown[0]}'", f"one of {', '.join(named)}", "check the spelling"
        )
    try:
        body = architecture(
            encoder_name=description.encoder,
            encoder_weights=None,
            in_channels=3,
            classes=description.num_classes,
            **description.options,
        )
    except Exception as error:  # smp, timm and torch have no common exception for arguments they do not accept
        if is_out_of_memory(error):
            raise
        # smp answers a wrong name with the names of all its encoders; the first part says what is wrong.
        reason = next(iter(str(error).strip("'\"").splitlines()), "").partition(", supported encoders")[0]
        raise InputError(
            f"smp cannot build {description.architecture} with encoder {description.encoder}: {reason or type(error).__name__}",
            "an architecture, an encoder and options that go together",
            "see the smp documentation",
        ) from error
    # The deepest feature map of an smp encoder has stride 32 unless dilation keeps it finer. Decoders that merge
    # all levels need every level to halve exactly, so the coarser of both is taken.
    stride = (
        int(getattr(body.encoder, "output_stride", 32)) if getattr(body, "requires_divisible_input_shape", True) else 1
    )
    if isinstance(body, smp.DPT):
        stride *= 2  # its coarsest level halves the grid of patches once more
    return body, stride


def read(name: str, wishes: Wishes) -> Found:
    """A network that smp's ``save_pretrained`` wrote, from its folder or from the hub.

    The normalisation is that of the encoder's pretrained weights where the network was made with such.
    """
    folder = Path(name)
    if not folder.is_dir():
        try:
            folder = Path(snapshot_download(name, allow_patterns=["config.json", "model.safetensors"]))
        except Exception as error:  # the hub's client and its HTTP library have no common exception
            raise InputError(
                f"'{name}' is no folder, and cannot be downloaded ({one_line(error)})",
                "a folder that smp's save_pretrained wrote, or the hub's name of a network and a connection",
                "check the path",
            ) from error
    config = read_json(folder / "config.json", "what smp's save_pretrained writes")
    architecture, encoder = str(config.pop("_model_class", "")), str(config.get("encoder_name", ""))
    if config.get("in_channels", 3) != 3:
        raise InputError(f"{folder}: a network for {config['in_channels']} channels", "three, of colour images")
    if architecture not in architectures():
        raise InputError(f"{folder}: smp network '{architecture}'", f"one of {', '.join(architectures())}", "")
    accepted = inspect.signature(architectures()[architecture]).parameters
    options = {k: v for k, v in config.items() if k in accepted and k not in RESERVED} | dict(wishes.arguments)
    mean, std = encoder_normalisation(encoder) if config.get("encoder_weights") else (None, None)
    description = wishes.description(SMP, architecture, encoder=encoder, options=options, mean=mean, std=std)
    return Found(description, read_state(folder / "model.safetensors"))
