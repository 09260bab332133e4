"""The files of a frame's maps, one PNG or ``.npy`` a map, and the pictures' encodings."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from segunc.data.images import Image
from segunc.files import inside, write_atomically
from segunc.maps.frame_log import Record

# Measured on three uint16 maps of 960 x 540 (a noisy, a smooth and a real one), process time of one core: run lengths
# at level 1 take 17 to 19 ms, the general strategy 25 to 35 ms at level 1 and 35 ms at level 3, for sizes within 3 % of
# each other. Every parameter is fixed, because a resumed run must give the same bytes.
PNG_LEVEL = 1
_PNG = [cv2.IMWRITE_PNG_COMPRESSION, PNG_LEVEL, cv2.IMWRITE_PNG_STRATEGY, cv2.IMWRITE_PNG_STRATEGY_RLE]
_JPEG = [cv2.IMWRITE_JPEG_QUALITY, 90]

Array = npt.NDArray[Any]


def write_maps(out: Path, name: str, maps: Mapping[str, Array]) -> dict[str, str]:
    """Store the maps of a frame in their stored types: ``MAP/FRAME.png``, and ``.npy`` for float16, by atomic rename.

    Returns:
        map -> file relative to the folder.

    Raises:
        InputError: the frame's name can be no file of the folder.
        OSError: a file cannot be written.
    """
    files = {}
    for score, stored in maps.items():
        floats = stored.dtype == np.float16
        files[score] = f"{score}/{name}.{'npy' if floats else 'png'}"
        write_file(inside(out, files[score]), encode_npy(stored) if floats else encode_png(stored))
    return files


def holds_maps(out: Path, record: Record) -> bool:
    """Whether every file of a record is there and not empty."""
    return all(is_whole(inside(out, file)) for file in record["files"].values())


def is_whole(path: Path) -> bool:
    """Whether a file is there with something in it: after a power failure a file system may hold a renamed file's name
    without its bytes."""
    return path.is_file() and path.stat().st_size > 0


def write_file(path: Path, data: bytes) -> None:
    """Write a file by atomic rename, and its folder where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, data)


def encode_png(values: Array) -> bytes:
    """PNG bytes of a ``[H, W]`` uint8 or uint16 map, or of an RGB uint8 ``[H, W, 3]`` picture."""
    pixels = cv2.cvtColor(values, cv2.COLOR_RGB2BGR) if values.ndim == 3 else values
    return cv2.imencode(".png", pixels, _PNG)[1].tobytes()


def encode_jpeg(picture: Image) -> bytes:
    """JPEG bytes (quality 90) of an RGB uint8 ``[H, W, 3]`` picture."""
    return cv2.imencode(".jpg", cv2.cvtColor(picture, cv2.COLOR_RGB2BGR), _JPEG)[1].tobytes()


def encode_npy(values: Array) -> bytes:
    """``.npy`` bytes of an array."""
    buffer = io.BytesIO()
    np.save(buffer, np.ascontiguousarray(values), allow_pickle=False)
    return buffer.getvalue()
