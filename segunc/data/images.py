"""Images and label images on disk as arrays.

Decoders fill the missing part of a truncated file with grey and say nothing; a network then sees a calm grey road.
So the end of each file is looked for first, by its format. And a few kilobytes may claim gigabytes of pixels, so that their number
is read from the header first.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image as PilImage

from segunc.core.errors import InputError
from segunc.core.files import open_file, read_bytes
from segunc.core.progress import quiet_stderr

Image = npt.NDArray[np.uint8]
"""RGB uint8 ``[H, W, 3]``."""

# Inside JPEG scan data 0xFF is followed by 0x00 (stuffing), a restart marker or a fill byte; anything else is a marker.
_JPEG_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
_PNG_SIGNATURE, _JPEG_SIGNATURE = b"\x89PNG\r\n\x1a\n", b"\xff\xd8"
_PALETTE = 3
"""The colour type of a palette PNG (PNG specification, IHDR)."""
_GREY = 0  # likewise
_PNG_OVERHEAD = 1024  # bytes, with a palette of 256 colours
MOST_PIXELS = 89_478_485
"""Of an image: Pillow's own bound (``Image.MAX_IMAGE_PIXELS``), from which on it warns of decompression bombs, a quarter of a GiB as 24-bit
colours. OpenCV's, 2^30 pixels, is above the memory of many machines. The largest sensors of cameras have some 60 million."""
LABEL_VALUES, LABEL_EVENNESS = 64, 0.9
"""A label image holds at most so many values, and at least this share of its pixels has the value of the one to the left. Grey and thermal
photographs have noise, and of theirs fewer than half."""


def read_image(path: Path) -> Image:
    """The image of a file as RGB uint8 ``[H, W, 3]``.

    Grey images are repeated over the three channels, palettes are expanded, 16-bit values keep their high byte, an
    alpha channel is dropped without blending, and an EXIF orientation is applied: the network sees the road upright
    and the maps have the size that a viewer shows.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is empty, truncated, too large, or no image that OpenCV can decode; the message says which.
    """
    decoded = decode(read_bytes(path), cv2.IMREAD_COLOR)
    return np.ascontiguousarray(cv2.cvtColor(decoded, cv2.COLOR_BGR2RGB), np.uint8)


def decode(data: bytes, how: int) -> npt.NDArray[Any]:
    """The pixels of an image file by OpenCV, ``how`` is one of its ``IMREAD`` flags; ValueError where :func:`find_damage` knows why not, or
    the decoder refuses it."""
    if damage := find_damage(data):
        raise ValueError(damage)
    try:
        decoded = cv2.imdecode(np.frombuffer(data, np.uint8), how)
    except cv2.error as error:
        raise ValueError(f"the image cannot be decoded ({error.err})") from error
    if decoded is None:
        raise ValueError("the file is no image that can be decoded")
    return np.asarray(decoded)


def load_image(path: Path) -> Image:
    """As :func:`read_image`; InputError for a file that is missing, truncated, or not an image."""
    try:
        return read_image(path)
    except OSError as error:
        given = f"image {path} cannot be read ({error.strerror})"
        raise InputError(given, "an image file", "check the path") from error
    except ValueError as error:
        given = f"image {path}: {error}"
        raise InputError(given, "an image file that is whole", "copy it again or remove it") from error


def find_damage(data: bytes) -> str | None:
    """Why the bytes of an image file are not to be decoded, or None where nothing is known against it.

    Knows JPEG (end marker), PNG (chunk checksums up to IEND), BMP and WebP (declared size). TIFF is left to the
    decoder, which refuses missing strips by itself. The header of each says how many pixels it stands for, at most :data:`MOST_PIXELS`;
    formats whose header is not known here are not decoded, whatever the file's name.
    """
    if not data:
        return "the file is empty"
    damage: str | None = None
    if data.startswith(_JPEG_SIGNATURE):
        damage = None if _jpeg_is_whole(data) else "the JPEG is truncated (its end marker is missing)"
    elif data.startswith(_PNG_SIGNATURE):
        damage = _png_damage(data)
    elif data.startswith((b"BM", b"RIFF")):
        form, place, more = ("BMP", 2, 0) if data.startswith(b"BM") else ("WebP image", 4, 8)
        declared = int.from_bytes(data[place : place + 4], "little") + more
        if len(data) < declared:
            damage = f"the {form} is truncated ({len(data)} of {declared} bytes)"
    return damage or _size_damage(data)


def _size_damage(data: bytes) -> str | None:
    try:
        width, height = _declared_size(data)
    except (struct.error, LookupError, OverflowError):
        return "the file is no image that can be decoded (PNG, JPEG, BMP, TIFF or WebP)"
    if not 0 < width * height <= MOST_PIXELS:
        return f"the image claims {width} x {height} pixels; at most {MOST_PIXELS:,} are read"
    return None


def _declared_size(data: bytes) -> tuple[int, int]:
    """(width, height) in the header of an image file; an error of its many kinds where there is none."""
    if data.startswith(_PNG_SIGNATURE) and data[12:16] == b"IHDR":
        return struct.unpack_from(">II", data, 16)
    if data.startswith(_JPEG_SIGNATURE):
        frames = (
            at for marker, at in _jpeg_segments(data) if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC)
        )
        height, width = struct.unpack_from(">HH", data, next(frames, len(data)) + 3)
        return width, height
    if data.startswith(b"BM"):
        old = data[14] == 12  # bytes of the header of OS/2
        width, height = struct.unpack_from("<HH" if old else "<ii", data, 18)
        return width, abs(height)
    if data[8:16] == b"WEBPVP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if data[8:16] == b"WEBPVP8L":
        bits = int.from_bytes(data[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if data[8:16] == b"WEBPVP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    return _tiff_size(data)


def _tiff_size(data: bytes) -> tuple[int, int]:
    """Of the first directory of a TIFF or BigTIFF (TIFF 6.0, section 2)."""
    orders: dict[bytes, Literal["little", "big"]] = {b"II": "little", b"MM": "big"}
    order = orders[data[:2]]
    sign, big = "<" if order == "little" else ">", data[2:4].strip(b"\0") == b"+"
    place, count, entry = ("Q", "Q", "HHQ8s") if big else ("I", "H", "HHI4s")
    (start,) = struct.unpack_from(sign + place, data, 8 if big else 4)
    (number,) = struct.unpack_from(sign + count, data, start)
    first, step, found = start + struct.calcsize(sign + count), struct.calcsize(sign + entry), dict[int, int]()
    for index in range(number):
        tag, kind, _, value = struct.unpack_from(sign + entry, data, first + index * step)
        if tag in (256, 257):  # ImageWidth and ImageLength, of 2, 4 or 8 bytes
            found[tag] = int.from_bytes(value[: {3: 2, 4: 4, 16: 8}[kind]], order)
    return found[256], found[257]


def _jpeg_segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Marker of each segment of the main image and where it begins, behind the marker, up to the end-of-image marker; thumbnails inside
    EXIF are stepped over."""
    position = 2
    # Between segments as in scan data, the next marker is the next 0xFF with a meaning.
    while match := _JPEG_MARKER.search(data, position):
        marker, position = data[match.start() + 1], match.end()
        yield marker, position
        if marker == 0xD9 or (marker != 0x01 and position + 2 > len(data)):
            return
        if marker != 0x01:  # TEM stands alone
            position += struct.unpack_from(">H", data, position)[0]


def _jpeg_is_whole(data: bytes) -> bool:
    return any(marker == 0xD9 for marker, _ in _jpeg_segments(data))


def _png_damage(data: bytes) -> str | None:
    position = len(_PNG_SIGNATURE)
    while position + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        end = position + 8 + length
        if end + 4 > len(data):
            break
        # Checksums of ancillary chunks (lower case) do not touch the picture; decoders ignore them too.
        critical = kind[:1].isupper()
        if critical and zlib.crc32(data[position + 4 : end]) != struct.unpack_from(">I", data, end)[0]:
            return f"the PNG is damaged (checksum of its {kind.decode('latin-1')} chunk)"
        if kind == b"IEND":
            return None
        position = end + 4
    return "the PNG is truncated (its IEND chunk is missing)"


def png_head(path: Path) -> tuple[int, int] | None:
    """Colour type of a PNG, and its bits a pixel as stored, without what its header takes; None for another file. Reads no pixel."""
    try:
        with open_file(path) as file:
            head, size = file.read(26), os.fstat(file.fileno()).st_size
    except OSError:
        return None
    if len(head) < 26 or not head.startswith(_PNG_SIGNATURE):
        return None
    width, height = struct.unpack_from(">II", head, 16)
    return head[25], 8 * max(0, size - _PNG_OVERHEAD) // max(1, width * height)


def can_be_label(path: Path) -> bool:
    """Whether a file may hold label values, by its first bytes: a JPEG or a WebP cannot, nor a PNG of colours."""
    if found := png_head(path):
        return found[0] in (_GREY, _PALETTE)
    try:
        with open_file(path) as file:
            head = file.read(12)
    except OSError:
        return True  # whoever reads it says what is wrong
    return not head.startswith(_JPEG_SIGNATURE) and head[8:] != b"WEBP"


def flat_values(path: Path) -> int:
    """How many values an image holds in at most 64 of its rows, where they are those of labels: few, in large areas of one value, and
    not, as those of a faint and smooth picture, in steps of 1. Else, or where it cannot be read, 0."""
    with contextlib.suppress(OSError, ValueError):
        decoded = decode(read_bytes(path), cv2.IMREAD_UNCHANGED)
        rows = decoded[:: -(-decoded.shape[0] // 64)].astype(np.int64)
        if rows.ndim == 3:
            rows = rows @ (1 << 15 * np.arange(rows.shape[2]))  # one number a colour
        steps, values = np.diff(rows), len(np.unique(rows))
        smooth = values > 4 and (np.abs(steps[steps != 0]) == 1).mean() > LABEL_EVENNESS
        if values <= LABEL_VALUES and not smooth and (steps == 0).mean() >= LABEL_EVENNESS:
            return values
    return 0


def read_label_image(path: Path) -> npt.NDArray[np.uint8]:
    """The raw label values of an image file as it stores them, uint8 ``[H, W]``; palette PNGs give their indices.

    Decoders change values without a word: OpenCV turns a palette into its colours, and the one bit of a black-and-white PNG into 0
    and 255. InputError for a file that cannot be read, is damaged, is no single-channel image, or holds values above 255.
    """
    remedy = "write it again as a lossless single-channel PNG of label ids"
    try:
        data = read_bytes(path)
        if damage := find_damage(data):
            raise ValueError(damage)
        if data.startswith(_JPEG_SIGNATURE):
            raise InputError(f"label {path} is a JPEG, whose values are not exact", "a PNG", remedy)
        if data.startswith(_PNG_SIGNATURE):
            depth, colour = data[24], data[25]
            if colour == _PALETTE or depth == 1:
                with PilImage.open(io.BytesIO(data), formats=("PNG",)) as image:
                    return np.asarray(image).astype(np.uint8)
            if depth < 8:
                raise InputError(f"label {path} is a PNG of {depth} bits", "8 or 16 bits, or a palette", remedy)
        decoded = decode(data, cv2.IMREAD_UNCHANGED)
    except InputError:
        raise
    except Exception as error:  # Pillow's decoders have no common exception
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"label {path} cannot be read ({reason})", "a PNG", remedy) from error
    if decoded.ndim != 2 or not np.issubdtype(decoded.dtype, np.integer):
        given = f"label {path} is an image of shape {decoded.shape} and type {decoded.dtype}"
        raise InputError(given, "one channel of ids", remedy)
    if decoded.max(initial=0) > 255:
        raise InputError(f"label {path} holds values up to {decoded.max()}", "class ids in 0..255", remedy)
    return decoded.astype(np.uint8)


def difference_hash(image: Image) -> int:
    """64 bits that tell whether two pictures look alike: whether each of 8 x 9 mean grey values exceeds its left neighbour (the "dHash" of
    N. Krawetz, 2013); 0 for a picture without any gradient.

    Measured on 480 x 360 of CamVid at 15 Hz: 3 bits differ between neighbours, 10 between frames 0.33 s apart; between frames of
    Road Anomaly, each of another place, at least 17."""
    grey = cv2.resize(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), (9, 8), interpolation=cv2.INTER_AREA)
    return int.from_bytes(np.packbits(grey[:, 1:] > grey[:, :-1]).tobytes(), "big")


def open_webm(path: Path, frames_per_second: float, width: int, height: int) -> cv2.VideoWriter:
    """A writer of BGR frames to a ``.webm`` (VP8): the one video format that OpenCV writes and every browser plays.

    Width and height are even; 29.97 frames per second stay so. ``isOpened()`` is False where this OpenCV has no encoder.
    """
    code = cv2.VideoWriter.fourcc(*"VP80")
    with quiet_stderr():  # OpenCV calls the VP80 tag "not supported" and then writes the video (WebM has no tags)
        return cv2.VideoWriter(str(path), cv2.CAP_FFMPEG, code, frames_per_second, (width, height))
