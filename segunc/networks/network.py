"""A segmentation network with its input handling, and checks of what goes into a network and comes
out of it.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segunc.core.errors import InputError, NotFiniteError
from segunc.networks.description import NetworkDescription


class SegmentationNetwork(nn.Module):
    """A body (any module from ``[N, 3, H, W]`` to logits ``[N, C, H, W]``) and its description.
    Takes images in 0..1 of any size: what its stride does not divide is padded at the right and
    bottom by repeating the border, and the logits are cropped.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, body: nn.Module, description: NetworkDescription, stride: int = 32) -> None:
        super().__init__()
        self.body, self.description, self.stride = body, description, stride
        self.sha256 = ""  # by which others are bound to it; of a network that was loaded
        # Of the type of the parameters, not of torch's default, which a program may have changed.
        dtype = _dtype_of(body)
        mean = torch.tensor(description.mean, dtype=dtype).view(1, -1, 1, 1)
        std = torch.tensor(description.std, dtype=dtype).view(1, -1, 1, 1)
        # Not persistent: the description is their one home.
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("std", std, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits ``[N, C, H, W]`` of images ``[N, 3, H, W]`` in 0..1."""
        if images.ndim != 4 or images.shape[1] != self.mean.shape[1]:
            message = (
                f"images of shape {tuple(images.shape)} are not [N, {self.mean.shape[1]}, H, W]"
            )
            raise InputError(message, hint="check the order of the axes")
        height, width = images.shape[-2:]
        images = (images - self.mean) / self.std
        pad_height, pad_width = -height % self.stride, -width % self.stride
        if (
            not isinstance(pad_height, int) or pad_height or pad_width
        ):  # a graph of frames of any size pads by what it finds
            images = F.pad(images, (0, pad_width, 0, pad_height), mode="replicate")
        logits = self.body(images)
        if not isinstance(logits, Tensor):
            raise InputError(
                f"the network returns {type(logits).__name__}, not one tensor of logits"
            )
        if logits.ndim != 4 or logits.shape[-2:] != images.shape[-2:]:
            size, side = (" x ".join(map(str, tensor.shape[2:])) for tensor in (logits, images))
            message = (
                f"the network gives logits of {size or tuple(logits.shape)} for frames of {side}"
            )
            raise InputError(message, hint="interpolate them inside the network")
        outputs = self.description.num_outputs
        if logits.shape[1] != outputs:
            message = (
                f"the network has {logits.shape[1]} output channels, but {outputs} have a class"
            )
            raise InputError(
                message,
                hint="name the class of each, or leave out others: segunc import --drop-classes",
            )
        if self.description.dropped_outputs:
            logits = logits[:, self.description.kept_outputs]
        if self.description.binary:
            logits = torch.cat([torch.zeros_like(logits), logits], 1)
        return logits[..., :height, :width]


def _dtype_of(module: nn.Module) -> torch.dtype:
    """Return the type of the first floating parameter of a module, float32 where it has none."""
    for parameter in module.parameters():
        if parameter.is_floating_point():
            return parameter.dtype
    return torch.float32


def check_parameters(network: nn.Module) -> None:
    """Raise InputError for a network whose parameters have 16 bits: images are float32 or more."""
    dtype = _dtype_of(network)
    if dtype in (torch.float16, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        message = f"the parameters of {type(network).__name__} are {name}, not float32"
        hint = "network.float(); predict --precision bfloat16 makes a copy of its own"
        raise InputError(message, hint=hint)


def inference_size(
    description: NetworkDescription, frame: tuple[int, int], override: tuple[int, int] | None = None
) -> tuple[int, int]:
    """Return the (height, width) at which the network sees a frame of (height, width) ``frame``.
    ``override`` decides alone when given. A frame whose aspect ratio is that of the description's
    inference size (within 2 %) gets exactly that size; another keeps its own, with as many pixels,
    each side a multiple of 16. Without an inference size the frame keeps its own.
    """
    if override is not None:
        return override
    wanted = description.inference_size
    if wanted is None:
        return frame
    if abs((frame[1] / frame[0]) / (wanted[1] / wanted[0]) - 1.0) <= 0.02:
        return wanted
    height = (wanted[0] * wanted[1] * frame[0] / frame[1]) ** 0.5
    return max(16, 16 * round(height / 16)), max(16, 16 * round(height * frame[1] / frame[0] / 16))


DIVISORS = (1, 2, 4, 8, 16, 32, 64, 3, 6, 12, 24, 48, 7, 14, 28, 5, 10, 20, 40)
"""Of height and width, in the order in which they are tried: powers of two of strides first, then
those of patches and windows.
"""


PROBE_SIZES = ((128, 192), (224, 224), (256, 256), (512, 512), (512, 1024))
"""(height, width) of frames that are tried where nobody names one: many networks take the first,
and some only one of the others.
"""


@torch.no_grad()
def settle_outputs(network: SegmentationNetwork) -> str:
    """Let a network of one or two classes that has one output z give the logits (0, z) of two
    classes, and return a note that says so, else an empty string. InputError where the only class
    is named as the background.
    """
    description = network.description
    if description.binary or description.num_classes > 2 or description.dropped_outputs:
        return ""
    if _count_outputs(network.eval()) != 1:
        return ""
    network.description = description.as_binary()
    first, second = network.description.classes
    return f"one output z is read as the logits (0, z) of {first} and {second}"


def _count_outputs(network: SegmentationNetwork) -> int:
    """Return the number of channels of a network's body; 0 where it takes no frame that
    is tried.
    """
    own_size = network.description.inference_size
    for size in (*([own_size] if own_size else []), *PROBE_SIZES):
        frame = _grey_frame(network, size)
        try:
            outputs = network.body(frame)
        except Exception:  # whatever the network raises where sizes do not match
            continue
        return outputs.shape[1] if isinstance(outputs, Tensor) and outputs.ndim == 4 else 0
    return 0


def _grey_frame(network: SegmentationNetwork, size: tuple[int, ...]) -> Tensor:
    """Return a frame ``[1, 3, H, W]`` of the value 0.5, where the network is."""
    return torch.full((1, 3, *size), 0.5, device=network.mean.device, dtype=torch.float32)


def settle_size(network: SegmentationNetwork) -> None:
    """Let a network whose kind does not say what sizes it takes pad frames to those that it is
    found to take. Tried are frames of about 128 to 320 pixels whose sides are odd multiples of a
    divisor: a network that needs more fails there.
    """
    if network.stride != 1:
        return

    def takes(*size: int) -> bool:
        try:
            # Not in inference mode: a constant that the network keeps from here may be trained
            # with.
            with torch.no_grad():
                network(_grey_frame(network, size))
        except Exception:  # whatever the network raises where sizes do not match
            return False
        return True

    network.eval()
    enough: int | None = None
    for divisor in DIVISORS:
        times = -(-128 // divisor) | 1
        height, width = divisor * times, divisor * (times + 2)
        if takes(height, width) and takes(width, height):
            enough = divisor
            break
    network.description, network.stride = replace(network.description, divisor=enough), enough or 1


LOWEST, HIGHEST = -0.5, 1.5
"""Of images in 0..1, with room for what resizing and corruptions overshoot. Normalised images go
below, 0..255 above.
"""


def check_images(images: Tensor, network: nn.Module | None = None) -> None:
    """Raise InputError for images ``[N, 3, H, W]`` that are no floats, or not in 0..1 for a
    :class:`SegmentationNetwork`, which normalises them itself; NotFiniteError for NaN or infinite
    values. A module of another kind takes what it was made for.
    """
    if not images.is_floating_point():
        raise InputError(
            f"images of the type {images.dtype} are no floats", hint="images.float() / 255"
        )
    low, high = (float(bound) for bound in images.aminmax()) if images.numel() else (0.0, 0.0)
    if not (abs(low) < torch.inf and abs(high) < torch.inf):
        raise NotFiniteError("the images hold NaN or infinite values")
    if isinstance(network, SegmentationNetwork) and (low < LOWEST or high > HIGHEST):
        hint = (
            "divide by 255"
            if high > 10
            else "leave the normalisation out: the network does it itself"
        )
        raise InputError(f"images have values from {low:.3g} to {high:.3g}, not in 0..1", hint=hint)


def softmax_output(outputs: Tensor) -> str:
    """Return ``probabilities`` or ``log-probabilities`` where outputs ``[N, C, H, W]`` of two
    classes or more are such, else "".
    """
    values = outputs.float()
    if outputs.shape[1] < 2:
        return ""
    if bool(values.amin() >= 0) and bool((values.sum(1) - 1).abs().amax() < 1e-4):
        return "probabilities"
    return "log-probabilities" if bool(values.logsumexp(1).abs().amax() < 1e-4) else ""


def _kind_of(outputs: Tensor) -> str:
    """Return :func:`softmax_output`, or ``shares`` where all outputs lie in 0..1, else ""."""
    if kind := softmax_output(outputs):
        return kind
    low, high = outputs.float().aminmax()
    return "shares" if bool(low >= 0) and bool(high <= 1) and bool(high > low) else ""


@torch.no_grad()
def check_logits(network: nn.Module, outputs: Tensor, images: Tensor) -> str:
    """Raise InputError where a network that returned ``outputs`` (at any resolution) for ``images``
    ``[N, 3, H, W]`` ends in a softmax: a second one would make nearly equal shares of
    probabilities; or where it returns one output, whose softmax is 1. Return a note on
    log-probabilities or outputs that all lie in 0..1, else "". Logits of one frame may sum to 1 by
    chance, those of constant networks for example. So the network is asked again about wide noise.
    """
    if outputs.shape[1] == 1:
        message = (
            f"{type(network).__name__} returns one output a pixel, whose softmax is 1 everywhere"
        )
        hint = "segunc.wrap(module, (NAME,), ...) reads one logit z as (0, z), of two classes"
        raise InputError(message, hint=hint)
    if kind := _kind_of(outputs):
        generator = torch.Generator().manual_seed(0)
        noise = torch.rand(images[:1].shape, generator=generator, dtype=torch.float32).to(images)
        probes = (
            (noise, noise**4)
            if isinstance(network, SegmentationNetwork)
            else (6 * noise - 3, 100 * noise)
        )
        kind = kind if all(_kind_of(network(probe)) == kind for probe in probes) else ""
    if kind == "probabilities":
        message = f"{type(network).__name__} returns probabilities, which sum to 1 at every pixel, not logits"
        raise InputError(message, hint="leave its last softmax out")
    if kind == "shares":
        return (
            "all outputs of the network lie in 0..1, as probabilities do, and are taken for logits: if they are "
            "probabilities, entropies are far too high; leave its last function out"
        )
    return kind and (
        "the network returns log-probabilities: its probabilities and entropies are right, but energies and largest logits say "
        "nothing; leave its last log-softmax out"
    )
