"""Networks of ``segmentation_models_pytorch``, and pretrained weights of its encoders."""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path
from typing import Any, cast

import segmentation_models_pytorch as smp
import timm
from torch import Tensor, nn

from segunc.core.errors import InputError, is_out_of_memory, one_line
from segunc.core.files import read_json
from segunc.networks.description import (
    COLOUR,
    IMAGENET_MEAN,
    IMAGENET_STD,
    SMP,
    NetworkDescription,
)
from segunc.networks.efficientnet_names import in_names_of_timm
from segunc.networks.import_sources import Found, Wishes
from segunc.networks.weights import load_foreign, read_state
from segunc.networks.weights_packages import weights_hint

Numbers = tuple[float, ...]
CHANNELS = "in_channels"
"""Option of a network of one channel whose frames are in colour, 1. Without it a network takes as
many channels as its mean has numbers.
"""
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


class Grey(nn.Module):
    """Give a network of one channel the first of three: a grey frame in colour has the same values
    in each.
    The names of its weights are the network's own, behind ``network.``.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    @property
    def encoder(self) -> nn.Module:
        """The encoder of the network."""
        return cast(nn.Module, self.network.encoder)

    def forward(self, images: Tensor) -> Tensor:
        return cast(Tensor, self.network(images[:, :1]))


def architectures() -> dict[str, type]:
    """Return the smp architectures by class name."""
    return {cls.__name__: cls for cls in smp.MODEL_ARCHITECTURES_MAPPING.values()}


def build(description: NetworkDescription) -> tuple[nn.Module, int]:
    """Return the body with random weights (nothing is downloaded) and its stride; see
    :mod:`segunc.networks.model_folder`.
    """
    architecture = _architecture_of(description)
    options = dict(description.options)
    channels = options.pop(CHANNELS, description.channels)
    try:
        body = architecture(
            encoder_name=description.encoder,
            encoder_weights=None,
            in_channels=channels,
            classes=description.num_classes,
            **options,
        )
    except Exception as error:  # smp, timm and torch have none in common for wrong arguments
        if is_out_of_memory(error):
            raise
        message = f"smp cannot build {description.architecture} with encoder {description.encoder}"
        raise InputError(f"{message}: {_reason_of(error)}") from error
    is_grey = channels == 1 and description.channels == COLOUR
    return Grey(body) if is_grey else body, _stride_of(body)


def _architecture_of(description: NetworkDescription) -> Any:
    """Return the smp architecture of a description.

    Raises:
        InputError: smp has none of its name, the encoder is no name, or an option is not the
            architecture's.
    """
    by_lower = {name.lower(): cls for name, cls in architectures().items()}
    architecture = by_lower.get(description.architecture.lower())
    if architecture is None:
        message = f"smp has no architecture '{description.architecture}'"
        raise InputError(message, hint=f"one of {', '.join(architectures())}")
    # For names such as hf_hub:... timm asks a hub, or unpickles a local file.
    if ":" in description.encoder:
        raise InputError(
            f"encoder '{description.encoder}' is a place, not the name of an architecture"
        )
    options = {name: value for name, value in description.options.items() if name != CHANNELS}
    channels = description.options.get(CHANNELS, description.channels)
    if channels != description.channels and (channels, description.channels) != (1, COLOUR):
        message = (
            f"the network takes {channels} channels, and mean and std have "
            f"{description.channels} numbers"
        )
        raise InputError(message, hint="give mean and std a number for each channel")
    reserved = [name for name in options if name in RESERVED or name.startswith(_ELSEWHERE)]
    if reserved:
        message = f"network options {sorted(reserved)} are not options of the architecture"
        raise InputError(message, hint="remove them")
    # smp hands unknown arguments on to its encoder, and only those of timm do not ignore them.
    if not description.encoder.startswith("tu-"):
        parameters = inspect.signature(architecture).parameters
        parameter_names = [name for name in parameters if name not in (*RESERVED, "kwargs")]
        unknown = [name for name in options if name not in parameter_names]
        if unknown:
            message = f"{architecture.__name__} has no option '{unknown[0]}'"
            raise InputError(message, hint=f"its options are {', '.join(parameter_names)}")
    return architecture


def _reason_of(error: Exception) -> str:
    """Return what smp says of arguments: it answers a wrong name with the names of all its
    encoders, of which the first part says what is wrong.
    """
    lines = str(error).strip("'\"").splitlines()
    first_line = lines[0] if lines else ""
    return first_line.partition(", supported encoders")[0] or type(error).__name__


def _stride_of(body: Any) -> int:
    """Return what height and width of a frame must be divisible by."""
    if not getattr(body, "requires_divisible_input_shape", True):
        stride = 1
    else:
        # Stride 32 unless dilation keeps the deepest map finer: decoders that merge all levels
        # need each to halve exactly.
        stride = int(getattr(body.encoder, "output_stride", 32))
    if isinstance(body, smp.DPT):
        stride *= 2  # its coarsest level halves the grid of patches once more
    return stride


def read(name: str, wishes: Wishes) -> Found:
    """Return a network from the folder that smp's ``save_pretrained`` wrote, with the normalisation
    of its encoder's weights, if any. Of a network of other than three channels the user says the
    normalisation, because those weights are of colour images.
    """
    folder = Path(name)
    if not folder.is_dir():
        hint = "download one of the hub first: hf download NAME --local-dir FOLDER"
        raise InputError(f"'{name}' is not a folder", hint=hint)
    config = read_json(folder / "config.json", "what smp's save_pretrained writes")
    architecture = str(config.pop("_model_class", ""))
    encoder = str(config.get("encoder_name", ""))
    channels = config.get(CHANNELS, COLOUR)
    if architecture not in architectures():
        raise InputError(
            f"{folder} holds '{architecture}', which is none of smp's {', '.join(architectures())}"
        )
    accepted = inspect.signature(architectures()[architecture]).parameters
    options = {k: v for k, v in config.items() if k in accepted and k not in RESERVED}
    options.update(wishes.arguments)
    if channels != COLOUR:
        options[CHANNELS] = channels
        if wishes.mean is None or wishes.std is None:
            raise InputError(
                f"{folder} holds a network of {channels} channels and does not say how its images "
                "are normalised",
                hint=f"give mean and std {channels} numbers each: --mean A,B,... --std A,B,...",
            )
    mean: Numbers | None = None
    std: Numbers | None = None
    if config.get("encoder_weights") and channels == COLOUR:
        mean, std = encoder_normalisation(encoder)
    description = wishes.description(
        SMP, architecture, encoder=encoder, options=options, mean=mean, std=std
    )
    return Found(description, read_state(folder / "model.safetensors"))


def load_encoder_weights(
    encoder: nn.Module, name: str, weights: str, channels: int = COLOUR
) -> list[str]:
    """Load pretrained weights into an encoder of smp.

    What a file holds beside the encoder (a classifier, a decoder) is left out.

    Args:
        encoder: gets the weights.
        name: smp's name for the encoder.
        weights: a name of smp's, e.g. ``imagenet`` (downloaded by smp), or the path of a file in
            the names of smp, timm, torchvision or, of an EfficientNet, efficientnet_pytorch.
        channels: of the images. smp spreads the first layer of its weights, which are of three
            channels, over others.

    Returns:
        what a user should know, a line each.

    Raises:
        InputError: no such weights, no connection, or a file of another encoder.
    """
    if Path(weights).suffix or Path(weights).exists():
        state = in_names_of_timm(read_state(Path(weights)), encoder)
        return load_foreign(encoder, state, str(Path(weights)))
    try:
        with warnings.catch_warnings():
            # smp warns of names that it renames and of weights that come with a name.
            warnings.simplefilter("ignore")
            pretrained = smp.encoders.get_encoder(name, in_channels=channels, weights=weights)
            encoder.load_state_dict(pretrained.state_dict())
    except KeyError as error:
        message = f"smp has no encoder weights '{weights}' ({error.args[0]})"
        raise InputError(message, hint="or name a file") from error
    except Exception as error:  # the hub's client, its HTTP library and timm have none in common
        message = f"encoder weights '{weights}' of {name} cannot be downloaded ({one_line(error)})"
        setting = "--network.encoder_weights"
        known = weights_hint(name, setting)
        hint = f"{setting} FILE, of smp, timm or torchvision, or none"
        if known:
            hint = f"{known}; or {setting} none"
        raise InputError(message, hint=hint) from error
    return []


def encoder_normalisation(name: str) -> tuple[Numbers, Numbers]:
    """Return (mean, std) of images in 0..1 with which an encoder's pretrained weights were made, by
    smp's name for it: those of timm's record, and ImageNet's for encoders that timm does not know,
    which are all trained so.
    """
    bare = name.removeprefix("tu-").removeprefix("timm-")
    bare = f"tf_{bare}" if name.startswith("timm-mobilenetv3") else _NAMES_OF_TIMM.get(bare, bare)
    record: Any = timm.get_pretrained_cfg(bare) if timm.is_model(bare) else None
    if record is None:
        return IMAGENET_MEAN, IMAGENET_STD
    return tuple(record.mean), tuple(record.std)


def normalisation_note(name: str, mean: Numbers, std: Numbers) -> str:
    """Return what to say of a network whose images are normalised by mean and std, where its
    encoder's pretrained weights expect others, else "".
    """
    expected_mean, expected_std = encoder_normalisation(name)
    if (expected_mean, expected_std) == (mean, std):
        return ""
    return (
        f"images are normalised by mean {mean} and std {std}, and pretrained weights of {name} "
        f"expect {expected_mean} and {expected_std}; "
        "give network.mean and network.std if these weights were trained with those"
    )
