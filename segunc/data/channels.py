"""Images of other than three channels: their files, and the colours in which they are shown.

The type of the values decides their range, as for arrays (:mod:`segunc.data.image_arrays`): uint8
is 0..255, uint16 is 0..65535, floats are 0..1. Values of 16 bits keep their precision. Channels
stay in the order in which the file holds them.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image as PilImage

from segunc.core.errors import InputError
from segunc.core.files import read_array, read_bytes, reading
from segunc.data.images import (
    AnyImage,
    Image,
    PixelDepth,
    check_jpeg,
    check_whole,
    decode,
    load_image,
    read_image,
)
from segunc.data.tiff import MAX_VALUES, SIGNATURES, read_tiff, upright

COLOUR = 3
"""Channels of an image in colour, which :mod:`segunc.data.images` reads."""
SCALES: Mapping[str, float] = {"uint8": 255.0, "uint16": 65535.0}
"""The value of white of whole numbers, by their type; that of floats is 1."""
RANGE_ROUNDING = 1e-5
"""Share of its range by which rounding may put a value outside; such values are clipped."""
ORDER = "as the file holds them: samples of a pixel, pages of a TIFF, last axis of an array"
"""What is recorded of the order of channels."""

_NPY_SIGNATURE = b"\x93NUMPY"
_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_JPEG_SIGNATURE = b"\xff\xd8"
_PNG_CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}
"""Channels of a PNG by its colour type; 3 is a palette."""
_EXIF_ORIENTATION = 274


def read_frame(
    path: Path, channels: int = COLOUR, depth: PixelDepth | None = None, *, strict: bool = False
) -> AnyImage:
    """Return the image of a file as the network takes it.

    An image of three channels is read as :func:`segunc.data.images.read_image` does. Any other has
    to hold exactly the channels of the network: a TIFF of one page, or of a page for each channel;
    a PNG (grey, or red, green, blue and alpha as four channels); a grey JPEG; or an array ``[H, W,
    K]`` in an NPY file.

    Args:
        path: the file.
        channels: of the network.
        depth: notes the largest 16-bit value.
        strict: also refuse a JPEG with a hole, see :func:`segunc.data.images.check_jpeg`.

    Returns:
        uint8 ``[H, W, K]``, or float32 in 0..1.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file cannot be decoded, has another number of channels, or holds values
            outside of their range.
    """
    if channels == COLOUR:
        return read_image(path, depth, strict=strict)
    data = read_bytes(path)
    values = _values_of(data, strict)
    if values.shape[2] != channels:
        shape = f"; it is an array of the shape {values.shape}" if _is_array(data) else ""
        raise ValueError(
            f"it has {_count(values.shape[2])}, and the network takes {channels}{shape}"
        )
    if depth and values.dtype == np.uint16:
        depth.largest = max(depth.largest, int(values.max(initial=0)))
    return as_shares(values)


def load_frame(
    path: Path, channels: int = COLOUR, depth: PixelDepth | None = None, *, strict: bool = False
) -> AnyImage:
    """Return the image of a file as :func:`read_frame` does.

    Raises:
        InputError: the file is missing, truncated, no image, or one of other channels.
    """
    if channels == COLOUR:
        return load_image(path, depth, strict=strict)
    with reading(f"image {path}", f"an image of {_count(channels)}", "write it again"):
        return read_frame(path, channels, depth, strict=strict)


def load_shown(path: Path) -> Image:
    """Return the image of a file as it is shown, whatever channels it has; see
    :func:`shown_colours`.

    Raises:
        InputError: the file cannot be read.
    """
    try:
        return load_image(path)
    except InputError:
        data = read_bytes(path) if path.is_file() else b""
        if not data.startswith(SIGNATURES):
            raise
    with reading(f"image {path}", "an image file that is whole", "copy it again or remove it"):
        return shown_colours(as_shares(read_tiff(data)))


def shown_colours(image: AnyImage) -> Image:
    """Return an image ``[H, W, K]``, uint8 or float32 in 0..1, as it is shown: RGB uint8
    ``[H, W, 3]``.

    Its first three channels are red, green and blue. Of one or two channels the first is grey.
    """
    first = image[..., :COLOUR] if image.shape[2] >= COLOUR else image[..., [0, 0, 0]]
    if first.dtype != np.uint8:
        first = np.rint(np.clip(first, 0, 1) * 255)
    return np.ascontiguousarray(first, np.uint8)


def as_shares(values: npt.NDArray[Any]) -> AnyImage:
    """Return an image as the network takes it: uint8 as it is, other values as float32 shares of
    the range of their type. Floats of which every value is k / 255 become uint8, which loses
    nothing.

    Raises:
        ValueError: a value is NaN, infinite or outside of its range, or the type has no range.
    """
    name = values.dtype.name
    if values.dtype == np.uint8:
        return np.ascontiguousarray(values)
    if name not in SCALES and values.dtype.kind != "f":
        raise ValueError(f"it holds {name} values; uint8, uint16 and floats in 0..1 are read")
    if not np.isfinite(values).all():
        raise ValueError("it holds NaN or infinite values")
    scale = SCALES.get(name, 1.0)
    lowest = float(values.min(initial=0))
    highest = float(values.max(initial=0))
    if lowest < -RANGE_ROUNDING or highest > scale * (1 + RANGE_ROUNDING):
        raise ValueError(
            f"its values are {lowest:.4g} to {highest:.4g}, and floats are 0 to 1: scale each "
            "channel before"
        )
    return shares_of(values, 0.0, scale)


def shares_of(values: npt.NDArray[Any], low: float, high: float) -> AnyImage:
    """Return values as float32 shares of the range from low to high, clipped to 0..1; as uint8 k if
    every share is k / 255.
    """
    shares: npt.NDArray[Any] = values
    if (low, high) != (0, 1):
        shares = (values.astype(np.float64) - low) / (high - low)
    floats: npt.NDArray[np.float32] = np.clip(shares, 0, 1).astype(np.float32)
    # Most images of floats differ in a few of their pixels already.
    if not _are_codes(floats[::16, ::16]) or not _are_codes(floats):
        return floats
    return _codes(floats)


def _codes(floats: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Return the nearest k of k / 255."""
    codes: npt.NDArray[np.uint8] = np.rint(floats * np.float32(255)).astype(np.uint8)
    return codes


def _are_codes(floats: npt.NDArray[np.float32]) -> bool:
    """Return whether every value is one of k / 255."""
    return np.array_equal(_codes(floats).astype(np.float32) / np.float32(255), floats)


def _values_of(data: bytes, strict: bool) -> npt.NDArray[Any]:
    """Return the values ``[H, W, K]`` of a file, of the type that it holds.

    Raises:
        ValueError: it cannot be decoded.
    """
    if _is_array(data):
        return _array(data)
    if data.startswith(SIGNATURES):
        return read_tiff(data)
    if data.startswith(_PNG_SIGNATURE):
        return _png(data)
    if data.startswith(_JPEG_SIGNATURE):
        return _jpeg(data, strict)
    return decode(data, cv2.IMREAD_COLOR)  # a BMP or WebP, which has three


def _is_array(data: bytes) -> bool:
    """Return whether the bytes of a file are an NPY file."""
    return data.startswith(_NPY_SIGNATURE)


def _array(data: bytes) -> npt.NDArray[Any]:
    """Return the values of an NPY file; ``[H, W]`` is one channel."""
    values = read_array(data)
    if values.ndim not in (2, 3) or not values.size:
        raise ValueError(f"its array has the shape {values.shape}; images are [H, W, K]")
    if values.size > MAX_VALUES:
        message = f"its array has the shape {values.shape}; at most {MAX_VALUES:,} values are read"
        raise ValueError(message)
    values = values.astype(values.dtype.newbyteorder("="), copy=False)
    return np.asarray(values if values.ndim == 3 else values[..., None])


def _png(data: bytes) -> npt.NDArray[Any]:
    """Return the values of a PNG, alpha as a channel."""
    check_whole(data)
    count = _PNG_CHANNELS.get(data[25])
    if count is None:
        raise ValueError("it is a PNG with a palette; write its channels as they are")
    pixels = decode(data, cv2.IMREAD_UNCHANGED)
    pixels = pixels if pixels.ndim == 3 else pixels[..., None]
    if count == 2:
        raise ValueError("it is a grey PNG with alpha; write its channels as a TIFF or an array")
    if pixels.shape[2] != count:
        raise ValueError("it is a PNG whose transparent colour is no channel; write it as RGBA")
    if count > 1:
        pixels = pixels[..., [2, 1, 0, 3][:count]]
    return _as_shown(data, pixels)


def _jpeg(data: bytes, strict: bool) -> npt.NDArray[Any]:
    """Return the values of a JPEG: one channel of grey, or three."""
    check_whole(data)
    if strict:
        check_jpeg(data)
    with PilImage.open(io.BytesIO(data)) as image:
        is_grey = image.mode == "L"
    if not is_grey:
        return decode(data, cv2.IMREAD_COLOR)[..., ::-1]
    return _as_shown(data, decode(data, cv2.IMREAD_UNCHANGED)[..., None])


def _as_shown(data: bytes, pixels: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return pixels upright, by the EXIF orientation of their file."""
    with PilImage.open(io.BytesIO(data)) as image:
        return upright(pixels, int(image.getexif().get(_EXIF_ORIENTATION, 1)))


def _count(channels: int | None) -> str:
    return "1 channel" if channels == 1 else f"{channels} channels"


def check_colour_file(what: str, channels: int | None) -> None:
    """Raise InputError for a video or a recording, whose frames are in colour, where the network
    takes other images. None is a number that is not known.
    """
    if channels not in (COLOUR, None):
        raise InputError(
            f"{what} has frames of three channels, and the network takes {_count(channels)}",
            hint="give images: TIFF, PNG or NPY files",
        )
