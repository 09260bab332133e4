"""Images and label images on disk as arrays.

Decoders fill the missing part of a truncated file with grey and say nothing; a network then sees a calm grey road.
So the end of each file is looked for first, by its format.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import struct
import zlib
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image as PilImage

from segunc.core.errors import InputError
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
        ValueError: the file is empty, truncated, or no image that OpenCV can decode; the message says which.
    """
    data = path.read_bytes()
    if damage := find_damage(data):
        raise ValueError(damage)
    try:
        decoded = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    except cv2.error as error:  # an image beyond OpenCV's limit of 2^30 pixels, for instance
        raise ValueError(f"the image cannot be decoded ({error.err})") from error
    if decoded is None:
        raise ValueError("the file is no image that can be decoded")
    return np.ascontiguousarray(cv2.cvtColor(decoded, cv2.COLOR_BGR2RGB), np.uint8)


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
    """Why the bytes of an image file are not whole, or None where nothing is known to be missing.

    Knows JPEG (end marker), PNG (chunk checksums up to IEND), BMP and WebP (declared size). TIFF is left to the
    decoder, which refuses missing strips by itself.
    """
    if not data:
        return "the file is empty"
    if data.startswith(_JPEG_SIGNATURE):
        return None if _jpeg_is_whole(data) else "the JPEG is truncated (its end marker is missing)"
    if data.startswith(_PNG_SIGNATURE):
        return _png_damage(data)
    if data.startswith(b"BM") and len(data) >= 6:
        form, declared = "BMP", struct.unpack_from("<I", data, 2)[0]
    elif data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        form, declared = "WebP image", struct.unpack_from("<I", data, 4)[0] + 8
    else:
        return None
    return f"the {form} is truncated ({len(data)} of {declared} bytes)" if len(data) < declared else None


def _jpeg_is_whole(data: bytes) -> bool:
    """Whether the end-of-image marker of the main image is reached; thumbnails inside EXIF are stepped over."""
    position = 2
    while True:
        # Between segments as in scan data, the next marker is the next 0xFF with a meaning.
        match = _JPEG_MARKER.search(data, position)
        if match is None:
            return False
        marker, position = data[match.start() + 1], match.end()
        if marker == 0xD9:
            return True
        if marker == 0x01:  # TEM stands alone
            continue
        if position + 2 > len(data):
            return False
        position += struct.unpack_from(">H", data, position)[0]


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
        with path.open("rb") as file:
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
        with path.open("rb") as file:
            head = file.read(12)
    except OSError:
        return True  # whoever reads it says what is wrong
    return not head.startswith(_JPEG_SIGNATURE) and head[8:] != b"WEBP"


def flat_values(path: Path) -> int:
    """How many values an image holds in at most 64 of its rows, where they are those of labels: few, in large areas of one value, and
    not, as those of a faint and smooth picture, in steps of 1. Else, or where it cannot be read, 0."""
    with contextlib.suppress(OSError, cv2.error):
        decoded = cv2.imdecode(np.frombuffer(path.read_bytes(), np.uint8), cv2.IMREAD_UNCHANGED)
        if decoded is not None:
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
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"label {path} cannot be read ({error.strerror})", "a PNG", "check the path") from error
    if damage := find_damage(data):
        raise InputError(f"label {path} cannot be read ({damage})", "a PNG", remedy)
    if data.startswith(_JPEG_SIGNATURE):
        raise InputError(f"label {path} is a JPEG, whose values are not exact", "a PNG", remedy)
    if data.startswith(_PNG_SIGNATURE):
        depth, colour = data[24], data[25]
        if colour == _PALETTE or depth == 1:
            with PilImage.open(io.BytesIO(data)) as image:
                return np.asarray(image).astype(np.uint8)
        if depth < 8:
            raise InputError(f"label {path} is a PNG of {depth} bits", "8 or 16 bits, or a palette", remedy)
    decoded = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    if decoded is None:
        raise InputError(f"label {path} cannot be decoded", "a PNG", remedy)
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
