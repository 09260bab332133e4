"""Messages of cameras as pictures: ``Image`` and ``CompressedImage`` of ROS 1 and 2, and
``RawImage`` and ``CompressedImage`` of Foxglove.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from segunc.core.files import parse_json
from segunc.data.images import MOST_PIXELS, Image, PixelDepth, decode_image

IMAGE_SCHEMAS = (
    "sensor_msgs/Image",
    "sensor_msgs/CompressedImage",
    "foxglove.RawImage",
    "foxglove.CompressedImage",
)
"""Types of messages that are read."""
_CHANNELS = {
    **{"mono8": 1, "8uc1": 1, "rgb8": 3, "bgr8": 3, "8uc3": 3, "rgba8": 4, "bgra8": 4, "8uc4": 4},
    **{"mono16": 1, "16uc1": 1, "rgb16": 3, "bgr16": 3, "rgba16": 4, "bgra16": 4},
}
"""Values of a pixel by the name of its encoding, those of OpenCV (``8UC3``) in its order, BGR."""
_FROM_BLUE = ("bgr", "8uc3", "8uc4")
"""Starts of encodings whose first value is blue."""
_BAYER = re.compile(r"bayer_(rggb|bggr|gbrg|grbg)(8|16)")
_BAYER_CODES = {
    "rggb": cv2.COLOR_BayerRGGB2RGB,
    "bggr": cv2.COLOR_BayerBGGR2RGB,
    "gbrg": cv2.COLOR_BayerGBRG2RGB,
    "grbg": cv2.COLOR_BayerGRBG2RGB,
}
_YUV_CODES = {
    "yuv422": cv2.COLOR_YUV2RGB_UYVY,
    "uyvy": cv2.COLOR_YUV2RGB_UYVY,
    "yuv422_yuy2": cv2.COLOR_YUV2RGB_YUY2,
    "yuyv": cv2.COLOR_YUV2RGB_YUY2,
    "yuy2": cv2.COLOR_YUV2RGB_YUY2,
}
_FIXED_LENGTHS = {1: 8, 5: 4}
"""Bytes of the numbers of fixed length of protobuf by the form of their field."""
_FILES = ("jpeg", "jpg", "png", "webp", "tiff", "bmp")
"""Formats of compressed messages that are files of an image."""


@dataclass(frozen=True)
class CameraMessage:
    """The fields of a message from a camera."""

    stamp: int = 0
    """When the picture was taken, in nanoseconds; 0 if the message does not say."""
    data: bytes = b""
    format: str = ""
    """Of a compressed picture, such as ``jpeg`` or ``rgb8; jpeg compressed bgr8``."""
    encoding: str = ""
    """Of a picture that is not compressed, such as ``bgr8``."""
    height: int = 0
    width: int = 0
    step: int = 0
    """Bytes of a row."""
    is_big_endian: bool = False
    fault: str = ""
    """Why the fields could not be read."""


def read_message(schema: str, encoding: str, data: bytes) -> CameraMessage:
    """Return the fields of a message; if they cannot be read, it holds the reason.

    Args:
        schema: one of :data:`IMAGE_SCHEMAS`.
        encoding: ``ros1``, ``cdr`` (ROS 2), ``json`` or ``protobuf`` (Foxglove).
        data: the bytes of the message.
    """
    try:
        if encoding in ("ros1", "cdr"):
            return _of_ros(schema, encoding, data)
        if encoding == "json":
            return _of_json(parse_json(data))
        if encoding == "protobuf":
            return _of_protobuf(schema, data)
    except Exception as error:  # what parsers raise for damaged bytes has no common type
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        return CameraMessage(fault=f"the message is damaged ({reason})")
    return CameraMessage(fault=f"messages in the encoding '{encoding[:40]}' are not read")


@cache
def _types_of(encoding: str) -> Any:
    """Return what reads the messages of ROS 1 or 2. Types of images are those of all versions."""
    from rosbags.typesys import Stores, get_typestore

    return get_typestore(Stores.ROS1_NOETIC if encoding == "ros1" else Stores.ROS2_HUMBLE)


def _of_ros(schema: str, encoding: str, data: bytes) -> CameraMessage:
    types = _types_of(encoding)
    name = schema.replace("/", "/msg/")
    if encoding == "ros1":
        message = types.deserialize_ros1(data, name)
    else:
        message = types.deserialize_cdr(data, name)
    stamp = message.header.stamp.sec * 10**9 + message.header.stamp.nanosec
    if schema == "sensor_msgs/CompressedImage":
        return CameraMessage(stamp, message.data.tobytes(), format=message.format)
    return CameraMessage(
        stamp=stamp,
        data=message.data.tobytes(),
        encoding=message.encoding,
        height=message.height,
        width=message.width,
        step=message.step,
        is_big_endian=bool(message.is_bigendian),
    )


def _of_json(fields: Any) -> CameraMessage:
    """Return a message of Foxglove in JSON, whose bytes are in base 64."""
    time = fields["timestamp"]
    return CameraMessage(
        stamp=int(time["sec"]) * 10**9 + int(time.get("nsec", time.get("nanosec", 0))),
        data=base64.b64decode(fields["data"], validate=True),
        format=str(fields.get("format", "")),
        encoding=str(fields.get("encoding", "")),
        height=int(fields.get("height", 0)),
        width=int(fields.get("width", 0)),
        step=int(fields.get("step", 0)),
    )


def _of_protobuf(schema: str, data: bytes) -> CameraMessage:
    """Return a message of Foxglove in protobuf, whose fields have fixed numbers."""
    fields = _fields_of(data)
    time = _fields_of(fields.get(1, b""))
    stamp = time.get(1, 0) * 10**9 + time.get(2, 0)
    if schema == "foxglove.CompressedImage":
        return CameraMessage(stamp, fields.get(2, b""), format=fields.get(3, b"").decode())
    return CameraMessage(
        stamp=stamp,
        data=fields.get(6, b""),
        encoding=fields.get(4, b"").decode(),
        height=int.from_bytes(fields.get(3, b""), "little"),
        width=int.from_bytes(fields.get(2, b""), "little"),
        step=int.from_bytes(fields.get(5, b""), "little"),
    )


def _fields_of(data: bytes) -> dict[int, Any]:
    """Return the fields of a protobuf message by their numbers: whole numbers, or bytes.

    A field that is given twice has its last value. The library protobuf would need the definition
    of each message, of which four numbers are used here.

    Raises:
        ValueError: the bytes end within a field, or hold one of an unknown form.
    """
    fields: dict[int, Any] = {}
    position = 0
    while position < len(data):
        key, position = _number_at(data, position)
        form = key & 7
        if form == 0:
            fields[key >> 3], position = _number_at(data, position)
            continue
        if form == 2:
            length, position = _number_at(data, position)
        elif form in _FIXED_LENGTHS:
            length = _FIXED_LENGTHS[form]
        else:
            raise ValueError(f"a field has the unknown form {form}")
        if position + length > len(data):
            raise ValueError("it ends within a field")
        fields[key >> 3] = data[position : position + length]
        position += length
    return fields


def _number_at(data: bytes, position: int) -> tuple[int, int]:
    """Return a whole number in groups of seven bits, and the position behind it."""
    number = 0
    for shift in range(0, 64, 7):
        if position >= len(data):
            raise ValueError("it ends within a number")
        byte = data[position]
        position += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, position
    raise ValueError("a number is longer than 64 bits")


def picture_of(message: CameraMessage, depth: PixelDepth | None = None) -> Image:
    """Return the picture of a message as RGB uint8 ``[H, W, 3]``.

    Grey pictures are repeated over the three channels, alpha is dropped, of 16-bit values the high
    byte is kept, and the colours of a Bayer pattern are interpolated.

    Args:
        message: of a camera.
        depth: notes the largest 16-bit value.

    Raises:
        ValueError: the message has no picture that can be decoded.
    """
    if message.fault:
        raise ValueError(message.fault)
    if message.format:
        return _compressed_picture(message, depth)
    encoding = message.encoding.lower()
    rows = _rows(message)
    bayer = _BAYER.fullmatch(encoding)
    if bayer:
        values = _values(rows, message, channels=1, is_wide=bayer[2] == "16")
        return _colours(_high_bytes(values[..., 0], depth), _BAYER_CODES[bayer[1]])
    if encoding in _YUV_CODES:
        values = _values(rows, message, channels=2, is_wide=False)
        if message.width % 2:
            raise ValueError(f"a picture in {encoding} has an odd width of {message.width}")
        return _colours(values, _YUV_CODES[encoding])
    if encoding not in _CHANNELS:
        raise ValueError(f"pixels in the encoding '{message.encoding[:40]}' are not read")
    is_wide = "16" in encoding
    values = _high_bytes(_values(rows, message, _CHANNELS[encoding], is_wide), depth)
    if values.shape[2] == 1:
        values = values.repeat(3, axis=2)
    colours = values[..., :3]
    if encoding.startswith(_FROM_BLUE):
        colours = colours[..., ::-1]
    return np.ascontiguousarray(colours, np.uint8)


def _compressed_picture(message: CameraMessage, depth: PixelDepth | None) -> Image:
    format = message.format.lower()
    if "compresseddepth" in format or not any(name in format for name in _FILES):
        raise ValueError(f"pictures in the format '{message.format[:40]}' are not read")
    picture = decode_image(message.data, depth, strict=True)
    bayer = _BAYER.match(format)
    if bayer:
        return _colours(picture[..., 0], _BAYER_CODES[bayer[1]])
    return picture


def _rows(message: CameraMessage) -> npt.NDArray[np.uint8]:
    """Return the bytes of a picture, uint8 ``[H, step]``."""
    if not 0 < message.height * message.width <= MOST_PIXELS:
        raise ValueError(
            f"the message claims {message.width} x {message.height} pixels; "
            f"at most {MOST_PIXELS:,} are read"
        )
    needed = message.height * message.step
    if len(message.data) != needed:
        raise ValueError(f"the message holds {len(message.data)} bytes instead of {needed}")
    return np.frombuffer(message.data, np.uint8).reshape(message.height, message.step)


def _values(
    rows: npt.NDArray[np.uint8], message: CameraMessage, channels: int, is_wide: bool
) -> npt.NDArray[Any]:
    """Return the values of the pixels, uint8 or uint16 ``[H, W, channels]``.

    Args:
        rows: the bytes of the picture.
        message: that holds it.
        channels: values of a pixel.
        is_wide: whether a value has two bytes.
    """
    length = message.width * channels * (2 if is_wide else 1)
    if message.step < length:
        raise ValueError(f"a row of the message has {message.step} bytes, not {length}")
    used = np.ascontiguousarray(rows[:, :length])
    if is_wide:
        used = used.view(">u2" if message.is_big_endian else "<u2").astype(np.uint16)
    return used.reshape(message.height, message.width, channels)


def _high_bytes(values: npt.NDArray[Any], depth: PixelDepth | None) -> npt.NDArray[np.uint8]:
    """Return 8-bit values as they are, and of 16-bit values the high byte."""
    if values.dtype == np.uint8:
        return values
    if depth:
        depth.largest = max(depth.largest, int(values.max(initial=0)))
    return (values >> 8).astype(np.uint8)


def _colours(values: npt.NDArray[np.uint8], code: int) -> Image:
    """Return the colours that OpenCV makes of values, RGB uint8 ``[H, W, 3]``."""
    try:
        return np.ascontiguousarray(cv2.cvtColor(np.ascontiguousarray(values), code), np.uint8)
    except cv2.error as error:
        raise ValueError(f"the picture cannot be turned into colours ({error.err})") from error
