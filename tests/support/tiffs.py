"""TIFF files of any number of channels, written tag by tag, as no library of ours writes them."""

import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
GREY, RGB = 1, 2
_TYPES = {3: "H", 4: "I"}


def tiff(  # noqa: PLR0913 - the ways in which a TIFF can hold its pixels
    pages: Sequence[Array],
    *,
    photometric: int = GREY,
    separate: bool = False,
    deflate: bool = False,
    tile: int = 0,
    rows: int = 0,
    differences: bool = False,
    orientation: int = 1,
    order: str = "<",
) -> bytes:
    """Return the bytes of a TIFF.

    Args:
        pages: of ``[H, W, K]`` each.
        photometric: interpretation, 1 of grey and 2 of red, green and blue.
        separate: whether the channels stand one after the other.
        deflate: whether the pixels are compressed.
        tile: side of the tiles, a multiple of 16; 0 makes strips.
        rows: of a strip; 0 takes all.
        differences: whether a pixel is stored as its difference from the one before (predictor 2).
        orientation: tag 274.
        order: of the bytes of numbers, < or >.
    """
    magic = b"II" if order == "<" else b"MM"
    out = bytearray(magic + struct.pack(f"{order}HI", 42, 0))
    link = 4
    for page in pages:
        parts = _parts(page, separate, tile, rows or page.shape[0], differences, order)
        offsets = []
        lengths = []
        for part in parts:
            packed = zlib.compress(part) if deflate else part
            offsets.append(len(out))
            lengths.append(len(packed))
            out += packed + bytes(len(packed) % 2)
        height, width, channels = page.shape
        kind = {"u": 1, "i": 2, "f": 3}[page.dtype.kind]
        tags: dict[int, tuple[int, Sequence[int]]] = {
            256: (4, [width]),
            257: (4, [height]),
            258: (3, [8 * page.dtype.itemsize] * channels),
            259: (3, [8 if deflate else 1]),
            262: (3, [photometric]),
            274: (3, [orientation]),
            277: (3, [channels]),
            284: (3, [2 if separate else 1]),
            339: (3, [kind] * channels),
        }
        extra = channels - (3 if photometric == RGB else 1)
        if extra > 0:
            tags[338] = (3, [0] * extra)
        if differences:
            tags[317] = (3, [2])
        if tile:
            tags |= {322: (3, [tile]), 323: (3, [tile]), 324: (4, offsets), 325: (4, lengths)}
        else:
            tags |= {273: (4, offsets), 278: (4, [rows or height]), 279: (4, lengths)}
        entries = []
        for tag, (kind, numbers) in sorted(tags.items()):
            data = struct.pack(f"{order}{len(numbers)}{_TYPES[kind]}", *numbers)
            if len(data) > 4:
                place = len(out)
                out += data + bytes(len(data) % 2)
                data = struct.pack(f"{order}I", place)
            entries.append(
                struct.pack(f"{order}HHI", tag, kind, len(numbers)) + data.ljust(4, b"\0")
            )
        struct.pack_into(f"{order}I", out, link, len(out))
        out += struct.pack(f"{order}H", len(entries)) + b"".join(entries)
        link = len(out)
        out += bytes(4)
    return bytes(out)


def _parts(
    page: Array, separate: bool, tile: int, rows: int, differences: bool, order: str
) -> list[bytes]:
    """Return the bytes of the strips or tiles of a page."""
    planes = [page]
    if separate:
        planes = [page[..., channel : channel + 1] for channel in range(page.shape[2])]
    parts = []
    for plane in planes:
        height, width, _ = plane.shape
        if tile:
            plane = np.pad(plane, ((0, -height % tile), (0, -width % tile), (0, 0)), mode="edge")
        part_height, part_width = (tile, tile) if tile else (rows, width)
        for top in range(0, plane.shape[0], part_height):
            for left in range(0, plane.shape[1], part_width):
                part = plane[top : top + part_height, left : left + part_width].copy()
                if differences:
                    part[:, 1:] -= part[:, :-1].copy()
                parts.append(part.astype(part.dtype.newbyteorder(order)).tobytes())
    return parts
