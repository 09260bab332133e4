"""A segmentation network with its input handling, and checks of what goes into a network and comes
out of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segunc.core.errors import InputError, NotFiniteError
from segunc.networks.description import COLOUR, MAX_CLASSES, NetworkDescription


class SegmentationNetwork(nn.Module):
    """A body (any module from ``[N, K, H, W]`` to logits ``[N, C, H, W]``) and its description,
    which says the number K of channels. Takes images in 0..1 of any size: what its stride does not
    divide is padded at the right and bottom by repeating the border, and the logits are cropped.

    Args:
        body: the module, which sees normalised images.
        description: of the module: its classes and how images are normalised.
        stride: what height and width of a frame must be divisible by for the body.

    >>> import segunc
    >>> import torch
    >>> body = torch.nn.Conv2d(3, 2, kernel_size=1)
    >>> description = segunc.NetworkDescription("mine", "", ("road", "car"))
    >>> network = segunc.SegmentationNetwork(body, description, stride=8)
    >>> network(torch.rand(1, 3, 50, 70)).shape
    torch.Size([1, 2, 50, 70])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, body: nn.Module, description: NetworkDescription, stride: int = 32) -> None:
        super().__init__()
        self.body = body
        self.description = description
        self.stride = stride
        self.sha256 = ""  # by which others are bound to it; of a network that was loaded
        # Of the type of the parameters, not of torch's default, which a program may have changed.
        dtype = _dtype_of(body)
        mean = torch.tensor(description.mean, dtype=dtype).view(1, -1, 1, 1)
        std = torch.tensor(description.std, dtype=dtype).view(1, -1, 1, 1)
        # Not persistent: the description is their one home.
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("std", std, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits ``[N, C, H, W]`` of images ``[N, K, H, W]`` in 0..1."""
        check_axes(images, self.mean.shape[1])
        height, width = images.shape[-2:]
        images = self.prepared(images)
        logits = self._dense_logits(self.body(images), images)
        if self.description.dropped_outputs:
            logits = logits[:, self.description.kept_outputs]
        if self.description.binary:
            logits = torch.cat([torch.zeros_like(logits), logits], 1)
        return logits[..., :height, :width]

    def prepared(self, images: Tensor) -> Tensor:
        """Return images ``[N, K, H, W]`` in 0..1 as the body takes them: normalised and padded."""
        return self._padded((images - self.mean) / self.std)

    def _padded(self, images: Tensor) -> Tensor:
        """Return images with their border repeated at the right and bottom, to sides that the
        stride divides.
        """
        height, width = images.shape[-2:]
        pad_height = -height % self.stride
        pad_width = -width % self.stride
        # Sides of a graph for frames of any size are symbols: it pads by what each frame needs.
        is_symbol = not isinstance(pad_height, int)
        if is_symbol or pad_height or pad_width:
            return F.pad(images, (0, pad_width, 0, pad_height), mode="replicate")
        return images

    def _dense_logits(self, outputs: Any, images: Tensor) -> Tensor:
        """Return the logits ``[N, outputs, H, W]`` in what the body returned for images
        ``[N, K, H, W]``; logits of another size are resized bilinearly.

        Raises:
            InputError: there are none, or of another number of channels or another aspect ratio.
        """
        logits = logits_in(outputs)
        if logits is None:
            raise InputError(
                f"the network returns {type(outputs).__name__} without a tensor of logits",
                hint="its forward returns the logits [N, C, H, W]",
            )
        size = images.shape[-2:]
        if logits.ndim != 4 or not _is_resized(logits.shape[-2:], size):
            shape = " x ".join(map(str, logits.shape[2:])) or tuple(logits.shape)
            message = f"the network gives logits of {shape} for frames of {size[0]} x {size[1]}"
            raise InputError(message, hint="return logits [N, C, H, W] of the frame's aspect ratio")
        outputs_named = self.description.num_outputs
        if logits.shape[1] != outputs_named:
            message = (
                f"the network has {logits.shape[1]} output channels, but {outputs_named} have a "
                "class"
            )
            hint = "name the class of each, or leave out others: segunc import --drop-classes"
            raise InputError(message, hint=hint)
        if logits.shape[-2:] != size:
            logits = F.interpolate(logits, size, mode="bilinear", align_corners=False)
        return logits


def channels_of(network: nn.Module) -> int:
    """Return the number of channels of the images that a network takes: 3 of a module that does not
    say it.
    """
    return network.description.channels if isinstance(network, SegmentationNetwork) else COLOUR


def check_axes(images: Tensor, channels: int) -> None:
    """Raise InputError for images that are not ``[N, channels, H, W]``."""
    if images.ndim == 4 and images.shape[1] == channels:
        return
    message = f"images of shape {tuple(images.shape)} are not [N, {channels}, H, W]"
    raise InputError(message, hint=f"check the order of the axes and the {channels} channels")


def logits_in(outputs: Any) -> Tensor | None:
    """Return the logits in what a module returns: the tensor itself, the attribute ``logits``, the
    entry ``logits`` or ``out`` of a dictionary, or the first of several. None where there is no
    tensor.
    """
    if isinstance(outputs, Mapping):
        outputs = outputs.get("logits", outputs.get("out"))
    elif isinstance(outputs, tuple | list) and not hasattr(outputs, "logits"):
        outputs = outputs[0] if outputs else None
    elif not isinstance(outputs, Tensor):
        outputs = getattr(outputs, "logits", None)
    return outputs if isinstance(outputs, Tensor) else None


def _is_resized(size: Sequence[int], full: Sequence[int]) -> bool:
    """Return whether a (height, width) is another one scaled, up to a pixel by rounding. One pixel
    is no map.
    """
    # Sides of a graph for frames of any size are symbols, which the import has checked.
    if any(not isinstance(side, int) for side in (*size, *full)) or tuple(size) == tuple(full):
        return True
    height, width = size
    difference = abs(height * full[1] - width * full[0])
    return height * width > 1 and difference <= max(full)


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
    """Return the (height, width) at which the network sees a frame.

    A frame whose aspect ratio is that of the description's inference size (within 2 %) gets exactly
    that size. Another keeps its own ratio, with as many pixels, each side a multiple of 16. Without
    an inference size the frame keeps its own size.

    Args:
        description: of the network.
        frame: (height, width) of the frame.
        override: the size that is returned whatever the others are, or None.
    """
    if override is not None:
        return override
    wanted = description.inference_size
    if wanted is None:
        return frame
    frame_ratio = frame[1] / frame[0]
    wanted_ratio = wanted[1] / wanted[0]
    if abs(frame_ratio / wanted_ratio - 1.0) <= 0.02:
        return wanted
    height = (wanted[0] * wanted[1] * frame[0] / frame[1]) ** 0.5
    width = height * frame[1] / frame[0]
    return max(16, 16 * round(height / 16)), max(16, 16 * round(width / 16))


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
    """Return the number of channels of a network's body; 0 where it takes none of the frames that
    are tried.
    """
    own_size = network.description.inference_size
    sizes = PROBE_SIZES if own_size is None else (own_size, *PROBE_SIZES)
    for size in sizes:
        frame = _grey_frame(network, size)
        try:
            outputs = logits_in(network.body(frame))
        except Exception:  # whatever the network raises where sizes do not match
            continue
        return outputs.shape[1] if outputs is not None and outputs.ndim == 4 else 0
    return 0


def _grey_frame(network: SegmentationNetwork, size: tuple[int, ...]) -> Tensor:
    """Return a frame ``[1, K, H, W]`` of the value 0.5, where the network is."""
    channels = network.description.channels
    return torch.full((1, channels, *size), 0.5, device=network.mean.device, dtype=torch.float32)


def settle_size(network: SegmentationNetwork) -> None:
    """Let a network whose kind does not say what sizes it takes pad frames to those that it is
    found to take.

    Tried are frames of about 128 to 320 pixels whose sides are odd multiples of a divisor: a
    network that needs more fails there.
    """
    if network.stride != 1:
        return
    network.eval()
    divisor = next((number for number in DIVISORS if _takes_multiples(network, number)), None)
    network.description = replace(network.description, divisor=divisor)
    network.stride = divisor or 1


def _takes_multiples(network: SegmentationNetwork, divisor: int) -> bool:
    """Return whether a network takes a wide and a high frame of odd multiples of a divisor."""
    multiple = -(-128 // divisor) | 1  # the first odd one of at least 128 pixels
    height = divisor * multiple
    width = divisor * (multiple + 2)
    return _takes(network, (height, width)) and _takes(network, (width, height))


# Without inference mode: a constant that the network keeps from here may be trained with.
@torch.no_grad()
def _takes(network: SegmentationNetwork, size: tuple[int, int]) -> bool:
    """Return whether a network gives logits for a frame of a size."""
    try:
        network(_grey_frame(network, size))
    except Exception:  # whatever the network raises where sizes do not match
        return False
    return True


def gives_logarithms(network: nn.Module) -> bool:
    """Return whether the logits of a network are logarithms of class scores, as those of a network
    that classifies masks (:mod:`segunc.networks.transformers`).
    """
    return bool(getattr(getattr(network, "body", network), "logarithms", False))


def note_on_outputs(network: SegmentationNetwork, frames: Tensor) -> str:
    """Return what is taken for the logits of frames ``[N, K, H, W]`` where a body returns more than
    them, or logits of another size; else "".
    """
    images = network.prepared(frames)
    outputs = network.body(images)
    logits = logits_in(outputs)
    if logits is None:
        return ""
    parts: list[str] = []
    if isinstance(outputs, tuple | list):
        parts.append(f"the first of {len(outputs)} results of the network is taken for its logits")
    if logits.shape[-2:] != images.shape[-2:]:
        small = " x ".join(map(str, logits.shape[-2:]))
        full = " x ".join(map(str, images.shape[-2:]))
        parts.append(
            f"the network returns logits of {small} for frames of {full}, which are resized "
            "bilinearly"
        )
    return "; ".join(parts)


SOFTMAX_ROUNDING = 1e-4
"""By which sums of probabilities, or logarithms of them, may miss 1, or 0."""
LOWEST_VALUE = -0.5
HIGHEST_VALUE = 1.5
"""Of images in 0..1, with room for what resizing and corruptions overshoot. Normalised images go
below, 0..255 above.
"""


def check_images(images: Tensor, network: nn.Module | None = None) -> None:
    """Check the values of images before a network sees them.

    Args:
        images: ``[N, K, H, W]``.
        network: a :class:`SegmentationNetwork` normalises images itself, so that they must lie in
            0..1. A module of another kind takes what it was made for.

    Raises:
        InputError: the images are not floating-point numbers, or not in 0..1.
        NotFiniteError: they hold NaN or infinite values.
    """
    if not images.is_floating_point():
        message = f"images are of the type {images.dtype}, not floating-point numbers"
        raise InputError(message, hint="images.float() / 255")
    if images.numel() == 0:
        return
    low, high = (float(bound) for bound in images.aminmax())
    if not (abs(low) < torch.inf and abs(high) < torch.inf):
        raise NotFiniteError("the images hold NaN or infinite values")
    if isinstance(network, SegmentationNetwork):
        _check_unit_range(low, high)


def check_unit_images(images: Tensor) -> None:
    """Do :func:`check_images` for a :class:`SegmentationNetwork`."""
    check_images(images)
    if images.numel():
        _check_unit_range(*(float(bound) for bound in images.aminmax()))


def _check_unit_range(low: float, high: float) -> None:
    """Raise InputError where the values of images are not in 0..1."""
    if low >= LOWEST_VALUE and high <= HIGHEST_VALUE:
        return
    message = f"images have values from {low:.3g} to {high:.3g}, not in 0..1"
    if high > 10:
        raise InputError(message, hint="divide by 255")
    hint = "leave the normalisation out: the network does it itself"
    raise InputError(message, hint=hint)


def softmax_output(outputs: Tensor) -> str:
    """Return ``probabilities`` or ``log-probabilities`` where outputs ``[N, C, H, W]`` of two
    classes or more are such, else "".
    """
    if outputs.shape[1] < 2:
        return ""
    values = outputs.float()
    if bool(values.amin() >= 0):
        sums = values.sum(1)
        if bool((sums - 1).abs().amax() < SOFTMAX_ROUNDING):
            return "probabilities"
    log_sums = values.logsumexp(1)
    return "log-probabilities" if bool(log_sums.abs().amax() < SOFTMAX_ROUNDING) else ""


def _kind_of(outputs: Tensor) -> str:
    """Return :func:`softmax_output`, or ``shares`` where all outputs lie in 0..1, else ""."""
    kind = softmax_output(outputs)
    if kind:
        return kind
    low, high = outputs.float().aminmax()
    return "shares" if bool(low >= 0) and bool(high <= 1) and bool(high > low) else ""


@torch.no_grad()
def check_logits(network: nn.Module, outputs: Tensor, images: Tensor) -> str:
    """Check that the outputs of a network are logits.

    A second softmax would make nearly equal shares of probabilities. Logits of one frame may sum to
    1 by chance, those of constant networks for example. So the network is asked again about wide
    noise.

    Args:
        network: which returned the outputs.
        outputs: ``[N, C, H, W]`` at any resolution.
        images: ``[N, K, H, W]``.

    Returns:
        a note on log-probabilities or outputs that all lie in 0..1, else "".

    Raises:
        InputError: the network ends in a softmax, returns one output, whose softmax is 1, or more
            outputs than a map has class ids.
    """
    name = type(network).__name__
    if outputs.shape[1] > MAX_CLASSES:
        message = f"{name} returns {outputs.shape[1]} outputs a pixel"
        hint = f"a map of classes has ids of 8 bits, which are enough for {MAX_CLASSES} classes"
        raise InputError(message, hint=hint)
    if outputs.shape[1] == 1:
        message = f"{name} returns one output a pixel, whose softmax is 1 everywhere"
        hint = "segunc.wrap(module, (NAME,), ...) reads one logit z as (0, z), of two classes"
        raise InputError(message, hint=hint)
    kind = _kind_of(outputs)
    if not kind or not all(_kind_of(network(probe)) == kind for probe in _probes(network, images)):
        return ""
    if kind == "probabilities":
        message = f"{name} returns probabilities, which sum to 1 at every pixel, not logits"
        raise InputError(message, hint="leave its last softmax out")
    if kind == "shares":
        return (
            "all outputs of the network lie in 0..1, as probabilities do, and are taken for "
            "logits: if they are probabilities, entropies are far too high; leave its last "
            "function out"
        )
    return (
        "the network returns log-probabilities: its probabilities and entropies are right, but "
        "energies and largest logits say nothing; leave its last log-softmax out"
    )


def _probes(network: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return two images of noise ``[1, K, H, W]``, as the network takes them."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(images[:1].shape, generator=generator, dtype=torch.float32).to(images)
    if isinstance(network, SegmentationNetwork):
        return noise, noise**4
    return 6 * noise - 3, 100 * noise
