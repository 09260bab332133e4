"""Images that a program holds in memory, of NumPy, torch or Pillow, as the arrays that networks are
given.

Neither the order of axes nor the range of values is guessed from what an image holds. The container
decides the order: torch has channels first, NumPy has them last. The type decides the range: uint8
is 0..255, uint16 is 0..65535, floats are 0..1. Only a stated range decides otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image as PilImage, ImageOps
from torch import Tensor

from segunc.core.errors import InputError
from segunc.data.channels import COLOUR, RANGE_ROUNDING, SCALES, shares_of
from segunc.data.images import AnyImage

ImageLike: TypeAlias = npt.NDArray[Any] | Tensor | PilImage.Image
"""An image, or a batch of images of one size."""
ValueRange: TypeAlias = tuple[float, float]
"""The values of black and of white."""

RANGES: Mapping[str, ValueRange] = {name: (0, white) for name, white in SCALES.items()}
"""Of whole numbers whose type says it."""
UNIT_RANGE: ValueRange = (0, 1)
"""Of floats whose range nobody states."""
NEARLY_BLACK = 1 / 255
"""Share of its range that an image is expected to pass."""
_RGB_MODES = ("RGB", "RGBA", "RGBX", "P", "PA")
_GREY_MODES = ("1", "L", "LA")
_DEEP_MODES = ("I;16", "I;16L", "I;16B", "I;16N", "I", "F")
_COLOUR_FORMS = "[H, W, 3], [N, H, W, 3], or grey [H, W]"


@dataclass(frozen=True)
class ImageBatch:
    """Images as networks are given them.

    Attributes:
        images: each uint8 ``[H, W, K]`` or float32 in 0..1, K the channels of the network; copies
            of what was given.
        several: whether a batch or a list was given, though it may hold one image.
        notes: what a user should know of the values.
    """

    images: tuple[AnyImage, ...]
    several: bool
    notes: tuple[str, ...] = ()


class _Array(NamedTuple):
    """What was given, as an array.

    Attributes:
        values: of any type, ``[H, W]``, or with an axis of channels, or with one of images, too.
        channels_first: whether channels stand before rows and columns.
        name: what it is called in messages.
        network_channels: how many channels the network takes.
    """

    values: npt.NDArray[Any]
    channels_first: bool
    name: str
    network_channels: int = COLOUR

    @property
    def forms(self) -> str:
        """The shapes that images may have, in words."""
        count = self.network_channels
        if self.channels_first:
            forms = f"[{count}, H, W], [N, {count}, H, W]"
        else:
            forms = f"[H, W, {count}], [N, H, W, {count}]"
        if count == 1:
            return f"[H, W], {forms}"
        if count == COLOUR:
            return f"{forms}, or 1 channel for grey" if self.channels_first else _COLOUR_FORMS
        return forms


def read_images(
    image: ImageLike | Sequence[ImageLike],
    value_range: ValueRange | None = None,
    channels: int = COLOUR,
) -> ImageBatch:
    """Return one image, a batch or a list of images as networks are given them.

    For a network of three channels, grey images are repeated over them. Whole numbers of a type
    with a range and floats of which every value is k / 255 become uint8, which loses nothing. Other
    values stay float32: nothing is rounded to 8 bits.

    Args:
        image: a NumPy array ``[H, W, 3]``, ``[H, W]`` (grey) or ``[N, H, W, 3]``; a torch tensor on
            any device, ``[3, H, W]``, ``[1, H, W]``, ``[H, W]`` or ``[N, 3, H, W]``; a PIL image,
            as its file is read (an EXIF orientation is applied, palettes are expanded, an alpha
            channel is dropped); or a list of these, whose sizes may differ.
        value_range: the values of black and white. None takes that of the type: uint8 0..255,
            uint16 0..65535, floats 0..1.
        channels: K of the network. Unless it is 3, images have exactly K channels instead of 3; a
            PIL image in RGBA has four.

    Raises:
        InputError: another container, type, order of axes or number of channels, an image without
            pixels, or a value that is outside of the range, NaN or infinite.
    """
    check_value_range(value_range)
    if not isinstance(image, (list, tuple)):
        array = _array(image, "image", channels)
        return _batch(array, value_range, several=array.values.ndim == 4)
    if not image:
        raise InputError(
            f"image is an empty {type(image).__name__}", hint="give at least one image"
        )
    images: list[AnyImage] = []
    notes: list[str] = []
    for number, entry in enumerate(image):
        array = _array(entry, f"image[{number}]", channels)
        if array.values.ndim == 4:
            raise InputError(
                f"image[{number}] of the list is a batch of shape {array.values.shape}",
                hint="give a list of single images, or the batch itself",
            )
        batch = _batch(array, value_range, several=True)
        images += batch.images
        notes += batch.notes
    return ImageBatch(tuple(images), several=True, notes=tuple(notes))


def check_value_range(value_range: object) -> None:
    """Raise InputError where a value range is no pair of rising finite numbers."""
    if value_range is None:
        return
    numbers = value_range if isinstance(value_range, (tuple, list)) else ()
    if len(numbers) == 2 and all(isinstance(number, Real) for number in numbers):
        low, high = numbers
        if math.isfinite(low) and math.isfinite(high) and low < high:
            return
    raise InputError(
        f"value_range {value_range!r} is not the values of black and white",
        hint="value_range=(0, 255)",
    )


def _batch(array: _Array, value_range: ValueRange | None, *, several: bool) -> ImageBatch:
    """Return the images of an array."""
    _check_type(array, value_range)
    pixels = _channels_last(array)
    images: list[AnyImage] = []
    notes: list[str] = []
    for number, values in enumerate(pixels):
        name = f"{array.name}[{number}]" if array.values.ndim == 4 else array.name
        shares, note = _shares(values, value_range, name)
        images.append(_of_channels(shares, array.network_channels))
        if note:
            notes.append(note)
    return ImageBatch(tuple(images), several, tuple(notes))


def _of_channels(image: AnyImage, channels: int) -> AnyImage:
    """Return an image of so many channels in one piece of memory; grey is repeated."""
    whole: Any = np.repeat(image, channels, axis=2) if image.shape[2] == 1 else image
    contiguous: AnyImage = np.ascontiguousarray(whole)
    return contiguous


def _array(image: object, name: str, channels: int) -> _Array:
    """Return what a container holds; InputError for another container."""
    if isinstance(image, Tensor):
        return _Array(_of_tensor(image, name), True, name, channels)
    if isinstance(image, PilImage.Image):
        return _Array(_of_pil(image, name, channels), False, name, channels)
    if isinstance(image, np.ndarray) and not isinstance(image, np.ma.MaskedArray):
        return _Array(image, False, name, channels)
    hint = f"numpy.asarray({name})"
    if isinstance(image, np.ma.MaskedArray):
        hint = f"{name}.filled(0), with the value that masked pixels are to have"
    elif isinstance(image, (str, bytes)) or hasattr(image, "__fspath__"):
        hint = "PIL.Image.open(path), or segunc.predict for files"
    elif isinstance(image, (list, tuple)):
        hint = "numpy.asarray of nested lists; a list holds whole images"
    elif isinstance(image, Mapping) or hasattr(image, "__iter__"):
        hint = "model.maps(batches) goes through a DataLoader or an iterable of batches"
    raise InputError(
        f"{name} is of type {type(image).__name__}, which is no NumPy array, torch tensor or PIL "
        "image",
        hint=hint,
    )


def _of_tensor(image: Tensor, name: str) -> npt.NDArray[Any]:
    """Return the values of a tensor on any device."""
    if image.is_meta or image.is_quantized or image.layout is not torch.strided:
        raise InputError(
            f"{name} is a tensor without plain values (layout {image.layout}, device "
            f"{image.device}, {image.dtype})",
            hint="give a dense tensor of uint8 or floats",
        )
    values = image.detach().cpu()
    if values.dtype == torch.bfloat16:
        values = values.float()  # which NumPy does not have; nothing is lost
    return np.asarray(values.resolve_conj().resolve_neg().numpy())


def _of_pil(image: PilImage.Image, name: str, channels: int) -> npt.NDArray[Any]:
    """Return the pixels of a PIL image as :func:`segunc.data.images.read_image` reads its file,
    except that values of 16 bits are whole.
    """
    if getattr(image, "n_frames", 1) > 1:
        raise InputError(
            f"{name} is a PIL image of several pictures", hint="image.seek(0); image.convert('RGB')"
        )
    try:
        upright = ImageOps.exif_transpose(image)
        if upright.mode == "RGBA" and channels == len("RGBA"):
            return np.asarray(upright)
        if upright.mode in _RGB_MODES:
            return np.asarray(upright.convert("RGB"))
        if upright.mode in _GREY_MODES:
            return np.asarray(upright.convert("L"))
        if upright.mode in _DEEP_MODES:
            return np.asarray(upright)
    except (OSError, SyntaxError, ValueError) as error:  # of a file that is damaged
        raise InputError(
            f"{name} is a PIL image that cannot be decoded ({error})",
            hint="copy its file again or remove it",
        ) from error
    raise InputError(
        f"{name} is a PIL image of mode {image.mode}, which is not RGB or grey",
        hint="image.convert('RGB')",
    )


def _check_type(array: _Array, value_range: ValueRange | None) -> None:
    """Raise InputError for values that are no numbers, or whole numbers without a range."""
    dtype = array.values.dtype
    if dtype.kind not in "uif":
        hint = "uint8, or floats in 0..1"
        if dtype.kind == "b":
            cast = "image.byte()" if array.channels_first else "image.astype('uint8')"
            hint = f"a mask is no image; {cast} * 255 makes a picture of it"
        raise InputError(f"{array.name} is of dtype {dtype}, which has no brightness", hint=hint)
    if dtype.kind in "ui" and value_range is None and dtype.name not in RANGES:
        raise InputError(
            f"{array.name} is of dtype {dtype}, whose values of black and white are not known",
            hint="value_range=(0, 255), or what black and white are",
        )


def _channels_last(array: _Array) -> npt.NDArray[Any]:
    """Return the images of an array, ``[N, H, W, K]``: K channels of the network, or 1 of a grey
    image for a network of 3.
    """
    values = array.values
    allowed = _allowed(array)
    if values.ndim == 2 and 1 in allowed:
        pixels = values[None, :, :, None]
    elif values.ndim in (3, 4):
        axis = values.ndim - 3 if array.channels_first else values.ndim - 1
        if values.shape[axis] not in allowed:
            raise _fault_of_axes(array, axis)
        pixels = np.moveaxis(values, axis, -1)
        pixels = pixels if values.ndim == 4 else pixels[None]
    else:
        raise InputError(f"{array.name} has the shape {values.shape}; images are {array.forms}")
    if pixels.size == 0:
        raise InputError(f"{array.name} has the shape {values.shape}, which holds no pixel")
    return pixels


def _allowed(array: _Array) -> tuple[int, ...]:
    """Return the numbers of channels that an array may have."""
    return (1, COLOUR) if array.network_channels == COLOUR else (array.network_channels,)


def _fault_of_axes(array: _Array, axis: int) -> InputError:
    """Return what is wrong with the shape of an array whose axis of channels has another length
    than one of :func:`_allowed`.

    Args:
        array: of three or four axes.
        axis: where its channels should be.
    """
    shape = array.values.shape
    container = "NumPy arrays have channels last"
    if array.channels_first:
        container = "torch tensors have channels first"
    first = len(shape) - 3
    last = len(shape) - 1
    other = last if array.channels_first else first
    allowed = _allowed(array)
    if shape[other] in allowed:
        order = [*range(first), first + 1, first + 2, first]
        if array.channels_first:
            order = [*range(first), last, first, first + 1]
        function = "permute" if array.channels_first else "transpose"
        return InputError(
            f"{array.name} has the shape {shape}, but {container}",
            hint=f"image.{function}({', '.join(map(str, order))})",
        )
    channels = shape[axis]
    hint = f"images are {array.forms}"
    if array.network_channels != COLOUR:
        return InputError(
            f"{array.name} has the shape {shape}, so {channels} channels, and the network takes "
            f"{array.network_channels}; {container}",
            hint=hint,
        )
    if channels == 4:
        three = "[..., :3, :, :]" if array.channels_first else "[..., :3]"
        hint = f"image{three} drops the alpha channel"
    elif channels == 2:
        one = "[..., :1, :, :]" if array.channels_first else "[..., :1]"
        hint = f"image{one} keeps the first"
    elif len(shape) == 3 and not array.channels_first:
        hint = "a batch of grey images is image[..., None], [N, H, W, 1]"
    elif len(shape) == 3:
        hint = "a batch of grey images is image[:, None], [N, 1, H, W]"
    return InputError(
        f"{array.name} has the shape {shape}, so {channels} channels and not 3 or 1; {container}",
        hint=hint,
    )


def _shares(
    values: npt.NDArray[Any], value_range: ValueRange | None, name: str
) -> tuple[AnyImage, str]:
    """Return an image as uint8, or as float32 shares of its range; and a note on its values.

    Args:
        values: numbers ``[H, W, C]``.
        value_range: as stated.
        name: of the image, in messages.
    """
    own_range = RANGES.get(values.dtype.name, UNIT_RANGE)
    low, high = value_range or own_range
    lowest = float(values.min())
    highest = float(values.max())
    if not (math.isfinite(lowest) and math.isfinite(highest)):
        count = int((~np.isfinite(values)).sum())
        raise InputError(
            f"{name} holds {count} NaN or infinite values", hint="numpy.nan_to_num, or leave it out"
        )
    span = high - low
    slack = RANGE_ROUNDING * span
    if lowest < low - slack or highest > high + slack:
        raise _fault_of_range(name, (lowest, highest), value_range)
    note = _note(name, values.dtype, (lowest, highest), (low, high))
    if values.dtype == np.uint8 and (low, high) == (0, 255):
        return values.astype(np.uint8), note
    return shares_of(values, low, high), note


def _fault_of_range(
    name: str, ends: tuple[float, float], value_range: ValueRange | None
) -> InputError:
    """Return the error for values outside of a range.

    Args:
        name: of the image.
        ends: its lowest and its highest value.
        value_range: as stated; None for floats of 0..1.
    """
    lowest, highest = ends
    has = f"{name} has values from {lowest:.4g} to {highest:.4g}"
    if value_range is not None:
        low, high = value_range
        return InputError(
            f"{has}, outside of value_range ({low:g}, {high:g})",
            hint="value_range=(black, white), the values of black and white",
        )
    hint = "image.clip(0, 1), if resizing overshot"
    if lowest < -0.5 and highest > 10:
        hint = "value_range=(black, white), the values of black and white"
    elif lowest < -0.5:
        hint = (
            "leave the normalisation out, the network does it itself; or value_range=(-1, 1), if "
            "that is black and white"
        )
    elif highest > 255:
        hint = "value_range=(0, 65535), or what black and white are"
    elif highest > 1.5:
        hint = "value_range=(0, 255), or what black and white are"
    return InputError(f"{has}, and floats without a value_range are 0..1", hint=hint)


def _note(name: str, dtype: np.dtype[Any], ends: tuple[float, float], given: ValueRange) -> str:
    """Return what a user should know of an image that uses little of its range, else "".

    Args:
        name: of the image.
        dtype: of its values.
        ends: its lowest and its highest value.
        given: its range.
    """
    lowest, highest = ends
    low, high = given
    used = int(highest).bit_length() if highest > 0 else 0
    if dtype.name == "uint16" and high == 65535 and 0 < used <= 14:
        return (
            f"{name} is uint16 and uses {used} bits, so it looks {1 << 16 - used} times too dark "
            f"to the network; value_range=(0, {(1 << used) - 1}) says what white is"
        )
    if highest > low and highest - low <= NEARLY_BLACK * (high - low) * (1 + RANGE_ROUNDING):
        return (
            f"{name} is nearly black: its values are {lowest:.3g} to {highest:.3g} in a range of "
            f"{low:g} to {high:g}; value_range says what white is"
        )
    return ""


def batches_of(batches: Iterable[Any]) -> Iterator[ImageLike | list[ImageLike]]:
    """Yield the images of each batch of a loader.

    Args:
        batches: a ``DataLoader``, a data set, or any iterable. An element is an image or a batch;
            or a tuple or list with it in front, of which the rest (labels) is passed over; or a
            dictionary that has it as ``image``.

    Raises:
        InputError: an element has no image, or a second one in the place of a label.
    """
    if isinstance(batches, (Tensor, np.ndarray, PilImage.Image, str, bytes, Mapping)):
        raise InputError(
            f"batches is of type {type(batches).__name__}, which is no iterable of batches",
            hint="model(image) takes one image or one batch",
        )
    for number, element in enumerate(_elements(batches)):
        yield _images_of(element, f"batch {number}")


def _elements(batches: Any) -> Iterator[Any]:
    """Yield what an iterable holds, or a data set that has only numbers and a length."""
    if hasattr(batches, "__iter__"):
        yield from batches
    elif hasattr(batches, "__getitem__") and hasattr(batches, "__len__"):
        for number in range(len(batches)):
            yield batches[number]
    else:
        raise InputError(
            f"batches is of type {type(batches).__name__}, which is no iterable of batches",
            hint="give a torch DataLoader, or a list of batches",
        )


def _images_of(element: Any, name: str) -> ImageLike | list[ImageLike]:
    """Return the images of an element of a loader."""
    if isinstance(element, Mapping):
        if "image" not in element:
            keys = ", ".join(map(str, element))
            raise InputError(f"{name} has no 'image'; it holds {keys}", hint="name it 'image'")
        images: ImageLike | list[ImageLike] = element["image"]
        return images
    if not isinstance(element, (tuple, list)):
        single: ImageLike = element
        return single
    if not element:
        raise InputError(f"{name} is empty", hint="leave it out")
    first: ImageLike | list[ImageLike] = element[0]
    for place, other in enumerate(element[1:], 1):
        if _looks_like(other, first):
            raise InputError(
                f"{name} has something like an image at its places 0 and {place}, so it may be a "
                "list of images or an image with its label",
                hint="([image, image],) is a batch of images, (image, label) an image and a label",
            )
    return first


def _looks_like(other: Any, image: Any) -> bool:
    """Return whether something has the container, the type and the channels of an image."""
    if isinstance(image, PilImage.Image):
        return isinstance(other, PilImage.Image) and other.mode == image.mode == "RGB"
    axis = -3 if isinstance(image, Tensor) else -1
    axes: int = getattr(image, "ndim", 0)
    if axes < 3 or type(other) is not type(image):
        return False
    if other.ndim != axes or other.dtype != image.dtype:
        return False
    return bool(other.shape[axis] == image.shape[axis])
