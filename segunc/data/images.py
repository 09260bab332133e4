"""Images and label images on disk as arrays.

Decoders fill the missing part of a truncated file with grey and say nothing; a network then sees a calm grey road.
So the end of each file is looked for first, by its format. And a few kilobytes may claim gigabytes of pixels, so that their number
is read from the header first.
"""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image as PilImage
from PIL import ImageOps
from PIL.BmpImagePlugin import BmpImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import IMAGELENGTH, IMAGEWIDTH, ImageFileDirectory_v2
from PIL.WebPImagePlugin import WebPImageFile

from segunc.core.errors import InputError, NoteWarning
from segunc.core.files import open_file, read_bytes, reading

Scalar = TypeVar("Scalar", bound=np.generic)
Image = npt.NDArray[np.uint8]
"""RGB uint8 ``[H, W, 3]``."""
Labels = npt.NDArray[np.uint8]
Colour = tuple[int, int, int]

_PNG_SIGNATURE, _JPEG_SIGNATURE = b"\x89PNG\r\n\x1a\n", b"\xff\xd8"
_KINDS: dict[bytes, Any] = {
    _PNG_SIGNATURE: PngImageFile,
    _JPEG_SIGNATURE: JpegImageFile,
    b"BM": BmpImageFile,
    b"RIFF": WebPImageFile,
}
_SUBFILE = 254  # tag of a TIFF whose lowest bit marks a smaller copy of another page
_PNG_OVERHEAD = 1024  # bytes, with a palette of 256 colours
MOST_PIXELS = 89_478_485
"""Of an image: Pillow's own bound (``Image.MAX_IMAGE_PIXELS``), from which on it warns of decompression bombs, a quarter of a GiB as 24-bit
colours. OpenCV's, 2^30 pixels, is above the memory of many machines. The largest sensors of cameras have some 60 million."""
LABEL_VALUES, LABEL_EVENNESS = 64, 0.9
"""A label image holds at most so many values, and at least this share of its pixels has the value of the one to the left. Grey and thermal
photographs have noise, and of theirs fewer than half."""


@dataclass
class PixelDepth:
    """How the 16-bit pictures of one run become bytes, and how much of their range they use."""

    bits: int | None = None  # that the camera delivers, 8..16; None keeps the high byte of 16
    largest: int = 0  # value of the 16-bit pictures read so far

    def to_bytes(self, pixels: npt.NDArray[np.integer]) -> Image | None:
        """Return the ``bits`` of 16-bit pixels as uint8, None where all 16 count; ValueError for a value that has more bits."""
        largest = int(pixels.max(initial=0))
        self.largest = max(self.largest, largest)
        if self.bits is None:
            return None
        if largest >= 1 << self.bits:
            raise ValueError(f"it holds the value {largest}, which has more than {self.bits} bits; give more --bits")
        return (pixels >> (self.bits - 8)).astype(np.uint8)

    def warn(self, pictures: object) -> None:
        """Warn of pictures none of which used more than 14 bits (:class:`NoteWarning`)."""
        used = self.largest.bit_length()
        if self.bits is None and 0 < used <= 14:
            dark = f"they look {1 << 16 - used} times too dark to the network: give --bits {used} (data.bits to train)"
            warnings.warn(f"the 16-bit pictures of {pictures} use {used} bits, so {dark}", NoteWarning, stacklevel=2)


def read_image(path: Path, depth: PixelDepth | None = None) -> Image:
    """The image of a file as RGB uint8 ``[H, W, 3]``.

    Grey images are repeated over the three channels, palettes are expanded, 16-bit values become bytes by ``depth``, an
    alpha channel is dropped without blending, and an EXIF orientation is applied: the network sees the road upright
    and the maps have the size that a viewer shows.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is empty, truncated, too large, or no image that OpenCV can decode; the message says which.
    """
    data = read_bytes(path)
    decoded = decode(data, cv2.IMREAD_COLOR | cv2.IMREAD_ANYDEPTH)
    if decoded.dtype != np.uint8:
        scaled = (depth or PixelDepth()).to_bytes(decoded) if decoded.dtype.itemsize == 2 else None
        decoded = decode(data, cv2.IMREAD_COLOR) if scaled is None else scaled
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


def load_image(path: Path, depth: PixelDepth | None = None) -> Image:
    """As :func:`read_image`; InputError for a file that is missing, truncated, or not an image."""
    with reading(f"image {path}", "an image file that is whole", "copy it again or remove it"):
        return read_image(path, depth)


def find_damage(data: bytes) -> str | None:
    """Why the bytes of an image file are not to be decoded, or None where nothing is known against it.

    Knows JPEG (end marker), PNG (chunk checksums up to IEND), BMP and WebP (declared size). TIFF is left to the
    decoder, which refuses missing strips by itself. The header of each says how many pixels it stands for, at most :data:`MOST_PIXELS`;
    formats whose header is not known here are not decoded, whatever the file's name.
    """
    if not data:
        return "the file is empty"
    file = io.BytesIO(data)
    try:
        # Not by PIL.Image.open, which refuses a large size without saying which.
        image = next((kind(file) for start, kind in _KINDS.items() if data.startswith(start)), None)
        sizes = [image.size] * getattr(image, "n_frames", 1) if image else _tiff_sizes(file)
        width, height = sizes[0]
    except Exception:  # what Pillow raises for damaged headers has no common type
        return "the file is no image that can be decoded (PNG, JPEG, BMP, TIFF or WebP)"
    if not 0 < width * height <= MOST_PIXELS:
        return f"the image claims {width} x {height} pixels; at most {MOST_PIXELS:,} are read"
    if len(sizes) > 1:
        return f"it holds {len(sizes)} pictures, of which one frame cannot be made; write each into a file of its own"
    if isinstance(image, PngImageFile):
        try:
            image.verify()
        except Exception as error:
            return f"the PNG is truncated or damaged ({error})"
    # A thumbnail has an end marker, too: the image's own comes behind its first scan, before which Pillow stops.
    elif isinstance(image, JpegImageFile) and data.find(b"\xff\xd9", file.tell()) < 0:
        return "the JPEG is truncated (its end marker is missing)"
    elif image:
        declared = int.from_bytes(data[4:8], "little") + 8 if data[:1] == b"R" else int.from_bytes(data[2:6], "little")
        if len(data) < declared and not isinstance(image, JpegImageFile):
            return f"the {image.format} is truncated ({len(data)} of {declared} bytes)"
    return None


def _tiff_sizes(file: BinaryIO) -> list[tuple[int, int]]:
    """Return (width, height) of each page of a TIFF or BigTIFF but thumbnails; Pillow opens fewer kinds of pixels than OpenCV (no float64), but
    reads the directories of all."""
    head = file.read(8)
    tags = ImageFileDirectory_v2(head + file.read(8 if head[2:4].strip(b"\0") == b"+" else 0))
    sizes, places = list[tuple[int, int]](), set[int]()
    while tags.next and tags.next not in places:  # a damaged file may lead back
        places.add(tags.next)
        file.seek(tags.next)
        tags.load(file)
        if not sizes or not tags.get(_SUBFILE, 0) & 1:
            sizes.append((tags[IMAGEWIDTH], tags[IMAGELENGTH]))
    return sizes


def png_head(path: Path) -> tuple[str, int] | None:
    """Return the mode of a PNG, and its bits a pixel as stored, without what its header takes; None for another file. Reads no pixel."""
    try:
        with open_file(path) as file:
            image, size = PngImageFile(file), os.fstat(file.fileno()).st_size
    except Exception:  # what Pillow raises for damaged headers has no common type
        return None
    return image.mode, 8 * max(0, size - _PNG_OVERHEAD) // max(1, image.width * image.height)


def label_rank(path: Path) -> int:
    """How likely a file holds label values, by its first bytes: 0 for one channel or a palette, 1 for a PNG in colour, 2 for a JPEG or
    a WebP, which cannot."""
    if head := png_head(path):
        return int(head[0] in ("RGB", "RGBA", "LA"))
    try:
        with open_file(path) as file:
            start = file.read(12)
    except OSError:
        return 0  # whoever reads it says what is wrong
    return 2 if start.startswith(_JPEG_SIGNATURE) or start[8:] == b"WEBP" else 0


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


def read_label_image(path: Path, colours: Mapping[Colour, int] | None = None, ids: Collection[int] = ()) -> Labels:
    """Return the label ids of an image file, uint8 ``[H, W]``, upright as :func:`read_image` shows its frame.

    One channel holds ids, and so do three equal ones. Other colours are looked up in a label map, exactly.

    Args:
        colours: RGB colour -> id, -1 for a colour of several classes; None where colours mean nothing.
        ids: the ids of the label map; they tell whether grey pixels in three channels are ids or colours.

    Raises:
        InputError: the file cannot be read, is damaged, lossy or translucent, or holds values outside 0..255 or unknown colours.
    """
    remedy = "write it again as a lossless single-channel PNG of label ids"
    try:
        pixels = decode_labels(read_bytes(path))
    except Exception as error:  # Pillow's decoders have no common exception
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"label {path} cannot be read ({reason})", "a PNG", remedy) from error
    if not np.issubdtype(pixels.dtype, np.integer):
        given = f"label {path} is an image of shape {pixels.shape} and type {pixels.dtype}"
        raise InputError(given, "one channel of ids", remedy)
    if pixels.ndim == 3:
        values = set(np.unique(pixels[..., 0]).tolist())
        equal = bool((pixels == pixels[..., :1]).all())
        # A grey pixel is an id, or a grey of the palette; only a file in which both are possible and differ is left.
        greys = {value: (colours or {}).get((value, value, value)) for value in values}
        may_be_ids, may_be_colours = not ids or values <= set(ids), None not in greys.values()
        if equal and may_be_ids and may_be_colours and any(value != number for value, number in greys.items()):
            given = f"label {path} has three equal channels of {sorted(values)[:8]}, which are ids and colours of the label map"
            raise InputError(given, "one channel of ids", remedy)
        if not equal or (may_be_colours and not may_be_ids):
            return _ids_of_colours(pixels, colours, path)
        pixels = pixels[..., 0]
    if pixels.min(initial=0) < 0 or pixels.max(initial=0) > 255:
        given = f"label {path} holds values from {pixels.min()} up to {pixels.max()}"
        raise InputError(given, "class ids in 0..255, where 255 is ignored", remedy)
    return pixels.astype(np.uint8)


def decode_labels(data: bytes) -> npt.NDArray[Any]:
    """Return the stored values of an image file, ``[H, W]`` or RGB ``[H, W, 3]``, turned upright as its EXIF orientation says.

    Decoders change values without a word: OpenCV turns a palette into its colours, and the one bit of a black-and-white image
    into 0 and 255. Raises ValueError, or what Pillow raises, for a file that is damaged, lossy, translucent, or of 2 or 4 bits of grey.
    """
    if damage := find_damage(data):
        raise ValueError(damage)
    if data.startswith((_JPEG_SIGNATURE, b"RIFF")):
        raise ValueError("a JPEG or WebP, whose values are not exact")
    with PilImage.open(io.BytesIO(data), formats=("PNG", "BMP", "TIFF")) as image:
        if data.startswith(_PNG_SIGNATURE) and image.mode == "L" and data[24] < 8:
            raise ValueError(f"it is a PNG of {data[24]} bits, expected 8 or 16 bits, or a palette")
        if image.mode in ("P", "1"):
            return np.asarray(ImageOps.exif_transpose(image)).astype(np.uint8)
        if image.has_transparency_data and image.convert("RGBA").getchannel("A").getextrema() != (255, 255):
            raise ValueError("it is translucent")
    pixels = decode(data, cv2.IMREAD_ANYDEPTH | cv2.IMREAD_ANYCOLOR)  # applies the orientation and drops alpha
    return pixels if pixels.ndim == 2 else pixels[..., ::-1]


def _ids_of_colours(pixels: npt.NDArray[Any], colours: Mapping[Colour, int] | None, path: Path) -> Labels:
    """Return the ids uint8 ``[H, W]`` of RGB pixels ``[H, W, 3]``; InputError for a colour that has none or several."""
    if colours is None or pixels.dtype != np.uint8:
        given = f"label {path} is a picture in colour, of shape {pixels.shape} and type {pixels.dtype}"
        raise InputError(given, "one channel of ids, or 8-bit colours of a label map", "convert it to ids")
    codes = pixels.astype(np.int64) @ (1 << np.array([16, 8, 0]))
    present, inverse, counts = np.unique(codes, return_inverse=True, return_counts=True)
    present_colours = [(code >> 16, code >> 8 & 255, code & 255) for code in present.tolist()]
    found = [colours.get(colour) for colour in present_colours]
    if None in found:
        unknown = sum(int(count) for count, number in zip(counts, found, strict=True) if number is None)
        example = present_colours[found.index(None)]
        given = f"{unknown} of {codes.size} pixels of label {path} have colours that the label map does not know, e.g. {example}"
        remedy = "give the --label-map of these colours, or add a row with this colour and train_id 255 to it"
        raise InputError(given, "the exact colours of its columns red, green, blue", remedy)
    if -1 in found:
        given = f"label {path} holds the colour {present_colours[found.index(-1)]}, which several classes of the label map have"
        raise InputError(given, "a colour of its own for each class", "give labels of ids, or another label map")
    return np.array(found, np.uint8)[inverse].reshape(codes.shape)


def resize_nearest(values: npt.NDArray[Scalar], width: int, height: int) -> npt.NDArray[Scalar]:
    """Return labels, a mask, a map ``[H, W]`` or a picture ``[H, W, 3]`` at another size, each pixel the one nearest to its middle.

    Half a pixel is no detail: OpenCV takes the upper left pixel of each cell, or always the left one of two in the middle, and so
    moves labels against their images. Where the middle lies between two pixels, even rows and columns take the first, odd ones
    the second, so that nothing moves on average.
    """
    if values.shape[:2] == (height, width):
        return values
    rows, columns = (
        ((2 * target + 1) * old - (target % 2 == 0)) // (2 * new)
        for old, new, target in (
            (values.shape[0], height, np.arange(height)),
            (values.shape[1], width, np.arange(width)),
        )
    )
    resized: npt.NDArray[Scalar] = values[rows[:, None], columns[None, :]]
    return resized
