"""Pixels of every encoding, by hand."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from segunc.data.images import PixelDepth
from segunc.frames.camera_messages import CameraMessage, picture_of, read_message
from tests.support.recordings import protobuf


def message(encoding: str, values: np.ndarray, **fields: object) -> CameraMessage:
    """Return a message of values ``[H, W, channels]``."""
    height, width = values.shape[:2]
    step = values.strides[0]
    settings = {"height": height, "width": width, "step": step, **fields}
    return CameraMessage(encoding=encoding, data=values.tobytes(), **settings)  # type: ignore[arg-type]


PIXELS = np.array([[[1, 2, 3], [4, 5, 6]]], np.uint8)
"""RGB of one row of two pixels."""


@pytest.mark.parametrize(
    ("encoding", "values"),
    [
        ("rgb8", [[[1, 2, 3], [4, 5, 6]]]),
        ("bgr8", [[[3, 2, 1], [6, 5, 4]]]),
        ("8UC3", [[[3, 2, 1], [6, 5, 4]]]),
        ("rgba8", [[[1, 2, 3, 9], [4, 5, 6, 9]]]),
        ("bgra8", [[[3, 2, 1, 9], [6, 5, 4, 9]]]),
    ],
)
def test_colours_in_any_order(encoding: str, values: object) -> None:
    assert np.array_equal(picture_of(message(encoding, np.array(values, np.uint8))), PIXELS)


@pytest.mark.parametrize("encoding", ["mono8", "8UC1"])
def test_grey_is_repeated(encoding: str) -> None:
    values = np.array([[[7], [200]]], np.uint8)
    assert picture_of(message(encoding, values)).tolist() == [[[7] * 3, [200] * 3]]


@pytest.mark.parametrize(("order", "is_big_endian"), [("<u2", False), (">u2", True)])
def test_16_bits_keep_the_high_byte(order: str, is_big_endian: bool) -> None:
    values = np.array([[[0x1234], [0xFF00]]], order)
    depth = PixelDepth()
    picture = picture_of(message("mono16", values, is_big_endian=is_big_endian), depth)
    assert picture.tolist() == [[[0x12] * 3, [0xFF] * 3]]
    assert depth.largest == 0xFF00


def test_bytes_behind_the_pixels_of_a_row_are_left_out() -> None:
    padded = np.array([[1, 2, 3, 4, 5, 6, 99, 99]], np.uint8)
    given = CameraMessage(encoding="rgb8", data=padded.tobytes(), height=1, width=2, step=8)
    assert np.array_equal(picture_of(given), PIXELS)


@pytest.mark.parametrize(
    ("pattern", "cells"),
    [("rggb", "RGGB"), ("bggr", "BGGR"), ("gbrg", "GBRG"), ("grbg", "GRBG")],
)
@pytest.mark.parametrize("bits", [8, 16])
def test_a_bayer_pattern_of_one_colour_gives_this_colour(
    pattern: str, cells: str, bits: int
) -> None:
    colour = {"R": 200, "G": 100, "B": 50}
    cell = np.array([colour[letter] for letter in cells]).reshape(2, 2)
    values = np.tile(cell, (4, 4))[..., None]
    values = values.astype(np.uint8) if bits == 8 else (values * 256).astype("<u2")
    picture = picture_of(message(f"bayer_{pattern}{bits}", values))
    assert (picture == (200, 100, 50)).all()


@pytest.mark.parametrize("encoding", ["yuv422", "uyvy", "yuyv", "yuv422_yuy2"])
def test_yuv_without_colour_is_grey(encoding: str) -> None:
    """Luma 16 is black and 235 white; chroma 128 is none."""
    luma_first = encoding in ("yuyv", "yuv422_yuy2")
    row = [[16, 128], [235, 128]] if luma_first else [[128, 16], [128, 235]]
    picture = picture_of(message(encoding, np.array([row, row], np.uint8)))
    assert picture[0].tolist() == [[0] * 3, [255] * 3]


@pytest.mark.parametrize("encoding", ["yuv422", "yuyv"])
def test_chroma_of_red_gives_red(encoding: str) -> None:
    """BT.601: red is luma 81, chroma 90 and 240."""
    values = [[90, 81], [240, 81]] if encoding == "yuv422" else [[81, 90], [81, 240]]
    picture = picture_of(message(encoding, np.array([values, values], np.uint8)))
    red, green, blue = picture[0, 0].tolist()
    assert red >= 253
    assert max(green, blue) <= 2


def compressed(ending: str, format: str, bgr: np.ndarray) -> CameraMessage:
    _, data = cv2.imencode(ending, bgr)
    return CameraMessage(data=data.tobytes(), format=format)


@pytest.mark.parametrize("format", ["png", "rgb8; png compressed bgr8", "PNG"])
def test_a_compressed_picture_has_its_pixels(format: str) -> None:
    given = compressed(".png", format, PIXELS[..., ::-1])
    assert np.array_equal(picture_of(given), PIXELS)


def test_a_compressed_bayer_pattern_has_its_colours() -> None:
    cell = np.array([[200, 100], [100, 50]], np.uint8)
    given = compressed(".png", "bayer_rggb8; png compressed", np.tile(cell, (4, 4)))
    assert (picture_of(given) == (200, 100, 50)).all()


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (CameraMessage(format="h264", data=b"1"), "format 'h264' are not read"),
        (
            CameraMessage(format="16UC1; compressedDepth png", data=b"1"),
            "compressedDepth png' are not read",
        ),
        (CameraMessage(format="jpeg", data=b"1"), "the file is not an image"),
        (
            CameraMessage(encoding="32FC1", data=b"1234", height=1, width=1, step=4),
            "encoding '32FC1' are not read",
        ),
        (
            CameraMessage(encoding="rgb8", data=b"12", height=1, width=1, step=3),
            "holds 2 bytes instead of 3",
        ),
        (
            CameraMessage(encoding="rgb8", data=b"12", height=1, width=1, step=2),
            "a row of the message has 2 bytes, not 3",
        ),
        (CameraMessage(encoding="rgb8", height=1 << 20, width=1 << 20), "claims 1048576 x"),
        (CameraMessage(encoding="rgb8"), "claims 0 x 0 pixels"),
        (
            CameraMessage(encoding="yuyv", data=bytes(6), height=1, width=3, step=6),
            "an odd width of 3",
        ),
    ],
)
def test_what_is_no_picture_is_said(given: CameraMessage, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        picture_of(given)


@pytest.mark.parametrize(
    ("schema", "encoding", "data", "reason"),
    [
        ("sensor_msgs/Image", "cdr", b"\0\1\0\0\1", "the message is damaged"),
        ("sensor_msgs/Image", "ros1", b"\1", "the message is damaged"),
        ("foxglove.RawImage", "json", b"{}", "the message is damaged"),
        ("foxglove.RawImage", "protobuf", b"\x0a\x05a", "it ends within a field"),
        ("foxglove.RawImage", "protobuf", b"\x80", "it ends within a number"),
        ("foxglove.RawImage", "protobuf", b"\x80" * 11, "longer than 64 bits"),
        ("foxglove.RawImage", "protobuf", b"\x0b", "unknown form 3"),
        ("foxglove.RawImage", "flatbuffer", b"", "encoding 'flatbuffer' are not read"),
    ],
)
def test_a_message_that_cannot_be_read_says_why(
    schema: str, encoding: str, data: bytes, reason: str
) -> None:
    given = read_message(schema, encoding, data)
    assert reason in given.fault
    with pytest.raises(ValueError, match=reason):
        picture_of(given)


def test_unknown_fields_of_protobuf_are_passed_over() -> None:
    data = protobuf(
        [
            (99, "varint", 300),
            (98, "fixed32", 1),
            (2, "bytes", b"data"),
            (3, "bytes", b"jpeg"),
        ]
    )
    given = read_message("foxglove.CompressedImage", "protobuf", data)
    assert given == CameraMessage(data=b"data", format="jpeg")
