"""TIFF files of any number of channels, in the order in which the file holds them.

OpenCV reads one, three or four channels alone, reorders them, and of some files returns the first
channel, or wrong values, without an error. It reads every grey TIFF right. So each page is given to
it as grey: a page that holds its channels pixel by pixel as an image that is as many times as wide,
a page that holds one channel after the other as one image for each. The bytes of the pixels and
their compression stay as they are, and only the tags are written anew.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
from PIL import TiffImagePlugin

SIGNATURES = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
"""First bytes of a TIFF or BigTIFF, in either order of bytes."""
MAX_VALUES = 3 * 89_478_485
"""Largest number of values of an image: of three channels, what :mod:`segunc.data.images` reads."""

_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _PHOTOMETRIC = 256, 257, 258, 259, 262
_STRIP_OFFSETS, _ORIENTATION, _SAMPLES, _ROWS_PER_STRIP, _STRIP_BYTES = 273, 274, 277, 278, 279
_PLANAR, _PREDICTOR, _TILE_WIDTH, _TILE_HEIGHT = 284, 317, 322, 323
_TILE_OFFSETS, _TILE_BYTES, _SAMPLE_FORMAT, _SUBFILE = 324, 325, 339, 254
_GREY = 1  # photometric interpretation: 0 is black
_RGB = 2
_SEPARATE = 2  # planar configuration: one channel after the other
_DIFFERENCES = 2  # predictor: each value is stored as its difference from the one before
_LOSSLESS = (1, 5, 8, 32773, 32946)
"""Compressions that pack bytes, whatever these mean: none, LZW, Deflate, PackBits."""
_TILE_UNIT = 1024
"""OpenCV's libtiff reads a tile of uint8 that is not compressed only if its bytes are a multiple of
this.
"""
_KINDS = {1: "uint", 2: "int", 3: "float"}  # by the sample format


@dataclass(frozen=True)
class _Page:
    """A page of a TIFF.

    Attributes:
        data: the whole file.
        tags: of the page.
        order: of the bytes of numbers, ``<`` or ``>``.
    """

    data: bytes
    tags: Any
    order: str

    @property
    def channels(self) -> int:
        return int(self.tags.get(_SAMPLES, 1))

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return int(self.tags[_HEIGHT]), int(self.tags[_WIDTH])

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of a value.

        Raises:
            ValueError: channels of several types, or a type that NumPy does not have.
        """
        bits = set(_numbers(self.tags.get(_BITS, 1)))
        kinds = set(_numbers(self.tags.get(_SAMPLE_FORMAT, 1)))
        if len(bits) > 1 or len(kinds) > 1:
            raise ValueError("the channels of the TIFF have several types of values")
        name = f"{_KINDS.get(kinds.pop(), 'unknown')}{bits.pop()}"
        if name not in ("uint8", "uint16", "float32"):
            raise ValueError(f"the TIFF holds {name} values; uint8, uint16 and float32 are read")
        return np.dtype(name)

    def check(self) -> None:
        """Raise ValueError for a page whose values are missing, or are not those of channels."""
        photometric = self.tags.get(_PHOTOMETRIC, _GREY)
        if photometric not in (_GREY, _RGB):
            raise ValueError(
                f"the TIFF holds a palette or mixed colours (photometric interpretation "
                f"{photometric}); write its channels as they are"
            )
        compression = self.tags.get(_COMPRESSION, 1)
        if compression not in _LOSSLESS:
            raise ValueError(f"compression {compression} of the TIFF is not read; Deflate is")
        if self.tags.get(_PREDICTOR, 1) not in (1, _DIFFERENCES):
            raise ValueError("the TIFF has a predictor of floats, which is not read")
        height, width = self.size
        if not 0 < width * height * self.channels <= MAX_VALUES:
            raise ValueError(
                f"the image claims {width} x {height} pixels of {self.channels} channels; at most "
                f"{MAX_VALUES:,} values are read"
            )
        offsets, lengths = self._parts()
        if not offsets or len(offsets) != len(lengths):
            raise ValueError("the TIFF does not say where its pixels are")
        has_plain_tiles = compression == 1 and _TILE_OFFSETS in self.tags
        if has_plain_tiles and self.dtype == np.uint8 and any(size % 1024 for size in lengths):
            raise ValueError("tiles of this size are read only if they are compressed")
        for offset, length in zip(offsets, lengths, strict=True):
            if offset + length > len(self.data):
                raise ValueError("the TIFF is truncated: pixels lie behind its end")

    def _parts(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the offsets and the lengths of the strips or tiles."""
        if _TILE_OFFSETS in self.tags:
            return _numbers(self.tags[_TILE_OFFSETS]), _numbers(self.tags.get(_TILE_BYTES, ()))
        return _numbers(self.tags.get(_STRIP_OFFSETS, ())), _numbers(
            self.tags.get(_STRIP_BYTES, ())
        )

    def values(self) -> npt.NDArray[Any]:
        """Return the values ``[H, W, K]`` upright.

        Raises:
            ValueError: the page cannot be read.
        """
        self.check()
        offsets, lengths = self._parts()
        height, width = self.size
        if self.tags.get(_PLANAR, 1) == _SEPARATE and self.channels > 1:
            count = len(offsets) // self.channels
            if count * self.channels != len(offsets):
                raise ValueError("the TIFF has no equal number of strips for each channel")
            planes = []
            for channel in range(self.channels):
                part = slice(channel * count, (channel + 1) * count)
                planes.append(self._grey(offsets[part], lengths[part], factor=1)[..., 0])
            values = np.dstack(planes)
        else:
            values = self._grey(offsets, lengths, factor=self.channels)
        if values.shape != (height, width, self.channels):
            raise ValueError("the pixels of the TIFF do not have its size")
        return upright(values, int(self.tags.get(_ORIENTATION, 1)))

    def _grey(
        self, offsets: Sequence[int], lengths: Sequence[int], factor: int
    ) -> npt.NDArray[Any]:
        """Return the values ``[H, W, factor]`` of strips or tiles, decoded as a grey image that is
        ``factor`` times as wide.
        """
        height, width = self.size
        # OpenCV would add up each value and the one before it, which here is another channel.
        predictor = int(self.tags.get(_PREDICTOR, 1))
        adds_up = predictor == _DIFFERENCES and factor > 1
        tags: dict[int, Sequence[int]] = {
            _WIDTH: [width * factor],
            _HEIGHT: [height],
            _BITS: [self.dtype.itemsize * 8],
            _COMPRESSION: [self.tags.get(_COMPRESSION, 1)],
            _PHOTOMETRIC: [_GREY],
            _SAMPLES: [1],
            _SAMPLE_FORMAT: [3 if self.dtype.kind == "f" else 1],
        }
        if predictor == _DIFFERENCES and not adds_up:
            tags[_PREDICTOR] = [predictor]
        part_width = width
        if _TILE_OFFSETS in self.tags:
            part_width = int(self.tags[_TILE_WIDTH])
            tags[_TILE_WIDTH] = [part_width * factor]
            tags[_TILE_HEIGHT] = [self.tags[_TILE_HEIGHT]]
            tags[_TILE_OFFSETS] = offsets
            tags[_TILE_BYTES] = lengths
        else:
            tags[_ROWS_PER_STRIP] = [min(self.tags.get(_ROWS_PER_STRIP, height), height)]
            tags[_STRIP_OFFSETS] = offsets
            tags[_STRIP_BYTES] = lengths
        file = np.frombuffer(_with_tags(self.data, tags, self.order), np.uint8)
        grey = cv2.imdecode(file, cv2.IMREAD_UNCHANGED)
        if grey is None or grey.ndim != 2 or grey.dtype != self.dtype:
            raise ValueError("the pixels of the TIFF cannot be decoded")
        values = np.asarray(grey).reshape(height, width, factor)
        if adds_up:
            values = _added_up(values, part_width)
        return values


def read_tiff(data: bytes) -> npt.NDArray[Any]:
    """Return the values of a TIFF, uint8, uint16 or float32 ``[H, W, K]``, upright.

    The channels are those of its only page, or one page for each; thumbnails are left out.

    Args:
        data: the bytes of the file.

    Raises:
        ValueError: the file is damaged, or holds several pages of another form.
    """
    pages = _pages(data)
    if len(pages) == 1:
        return pages[0].values()
    total = 0
    for page in pages:
        if page.channels != 1 or page.size != pages[0].size or page.dtype != pages[0].dtype:
            raise ValueError(
                f"its {len(pages)} pages are no channels of one image: each needs one channel, the "
                "same size and the same type of values"
            )
        total += page.size[0] * page.size[1]
    if total > MAX_VALUES:
        raise ValueError(f"the image claims {total:,} values; at most {MAX_VALUES:,} are read")
    return np.concatenate([page.values() for page in pages], axis=2)


def _pages(data: bytes) -> list[_Page]:
    """Return the pages of a TIFF without its thumbnails."""
    file = io.BytesIO(data)
    head = file.read(8)
    if head[2:4].strip(b"\0") == b"+":
        head += file.read(8)
    try:
        tags = TiffImagePlugin.ImageFileDirectory_v2(head)
        pages: list[_Page] = []
        seen: set[int] = set()
        while tags.next and tags.next not in seen:  # a damaged file may lead back
            seen.add(tags.next)
            file.seek(tags.next)
            tags = TiffImagePlugin.ImageFileDirectory_v2(head)
            tags.load(file)
            if not pages or not tags.get(_SUBFILE, 0) & 1:
                pages.append(_Page(data, tags, "<" if head.startswith(b"II") else ">"))
                _ = pages[-1].size
    except Exception as error:  # what Pillow raises for damaged tags has no common type
        raise ValueError("the tags of the TIFF cannot be read") from error
    if not pages:
        raise ValueError("the TIFF holds no picture")
    return pages


def _numbers(value: Any) -> tuple[int, ...]:
    """Return the whole numbers of a tag, of which Pillow gives one alone as a number."""
    values = value if isinstance(value, tuple | list) else (value,)
    return tuple(int(number) for number in values)


def _with_tags(data: bytes, tags: dict[int, Sequence[int]], order: str) -> bytes:
    """Return the bytes of a TIFF with a page of other tags, which stands at the end.

    Args:
        data: the file; its header is replaced by that of a TIFF with offsets of 32 bits.
        tags: numbers by tag.
        order: of the bytes.

    Raises:
        ValueError: the file is longer than 4 GB.
    """
    content = bytearray(data)
    if len(content) % 2:
        content += b"\0"
    entries = []
    for tag, numbers in sorted(tags.items()):
        packed = struct.pack(f"{order}{len(numbers)}I", *_short_enough(numbers))
        if len(packed) > 4:
            place = len(content)
            content += packed
            packed = struct.pack(f"{order}I", *_short_enough([place]))
        entries.append(struct.pack(f"{order}HHI", tag, 4, len(numbers)) + packed)
    place = len(content)
    content += struct.pack(f"{order}H", len(entries)) + b"".join(entries) + bytes(4)
    magic = b"II" if order == "<" else b"MM"
    content[:8] = magic + struct.pack(f"{order}HI", 42, *_short_enough([place]))
    return bytes(content)


def _short_enough(numbers: Sequence[int]) -> Sequence[int]:
    """Return offsets of a file of at most 4 GB; ValueError for others."""
    if any(not 0 <= number < 1 << 32 for number in numbers):
        raise ValueError("the TIFF is longer than 4 GB")
    return numbers


def _added_up(values: npt.NDArray[Any], part_width: int) -> npt.NDArray[Any]:
    """Return values ``[H, W, K]`` of which each was stored as its difference from the pixel before
    it in its strip or tile of so many columns.
    """
    # Of floats the file adds up the bits. Whole numbers overflow as they do in the file.
    bits = values.view(f"uint{values.dtype.itemsize * 8}")
    summed = np.empty_like(bits)
    for left in range(0, values.shape[1], part_width):
        part = np.s_[:, left : left + part_width]
        summed[part] = np.cumsum(bits[part], axis=1, dtype=bits.dtype)
    return summed.view(values.dtype)


def upright(values: npt.NDArray[Any], orientation: int) -> npt.NDArray[Any]:
    """Return an image ``[H, W, K]`` as a viewer shows it, by the number of its orientation in TIFF
    and EXIF, 1 to 8.
    """
    if orientation in (5, 6, 7, 8):
        values = values.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        values = values[::-1]
    if orientation in (2, 3, 6, 7):
        values = values[:, ::-1]
    return np.ascontiguousarray(values)
