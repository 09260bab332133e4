"""Bytes of small image files."""

import os
import struct
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest


def picture(height: int = 40, width: int = 60) -> np.ndarray:
    """Return a picture of random colours, uint8 ``[height, width, 3]``."""
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)


def encoded(suffix: str) -> bytes:
    """Return the bytes of a file of that picture.

    Args:
        suffix: ending of the file, such as ``.png``.
    """
    return cv2.imencode(suffix, picture())[1].tobytes()


def claiming(suffix: str, width: int, height: int) -> bytes:
    """Return the bytes of a small file whose header claims another size."""
    data = bytearray(encoded(suffix))
    if suffix == ".png":
        struct.pack_into(">II", data, 16, width, height)
        checksum = zlib.crc32(data[12:29])
        struct.pack_into(">I", data, 29, checksum)
    elif suffix == ".bmp":
        struct.pack_into("<ii", data, 18, width, height)
    elif suffix == ".jpg":
        frame_header = data.find(b"\xff\xc0")
        struct.pack_into(">HH", data, frame_header + 5, height, width)
    else:
        raise ValueError(f"no header of {suffix} is known")
    return bytes(data)


def rename_to_latin_1(path: Path) -> None:
    """Give a file ``0.*`` a name that is not UTF-8, as an archive of another system may; skip the
    test where the file system takes none.
    """
    name = os.fsencode(path)
    try:
        os.rename(name, name.replace(b"0.", b"stra\xdfe."))
    except OSError:
        pytest.skip("the file system takes names in UTF-8 alone")
