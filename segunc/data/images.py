"""Images and label images on disk as arrays.

Decoders fill the missing part of a truncated file with grey and say nothing, and a network then
sees a calm grey road. A few kilobytes may also claim gigabytes of pixels. So the header and the end
of each file are checked before it is decoded.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import cv2
import numpy as np
import numpy.typing as npt
from PIL import (
    BmpImagePlugin,
    Image as PilImage,
    ImageOps,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from segunc.core.errors import InputError, NoteWarning
from segunc.core.files import open_file, read_bytes, reading

Scalar = TypeVar("Scalar", bound=np.generic)
Image = npt.NDArray[np.uint8]  # RGB uint8 ``[H, W, 3]``
Labels = npt.NDArray[np.uint8]
Colour = tuple[int, int, int]

_PNG_SIGNATURE, _JPEG_SIGNATURE, _RIFF_SIGNATURE = b"\x89PNG\r\n\x1a\n", b"\xff\xd8", b"RIFF"
_FORMATS: dict[bytes, Any] = {
    **{_PNG_SIGNATURE: PngImagePlugin.PngImageFile, _JPEG_SIGNATURE: JpegImagePlugin.JpegImageFile},
    **{b"BM": BmpImagePlugin.BmpImageFile, _RIFF_SIGNATURE: WebPImagePlugin.WebPImageFile},
}
_SUBFILE = 254  # tag of a TIFF whose lowest bit marks a smaller copy of another page
MOST_PIXELS = 89_478_485
"""Largest number of pixels of an image, from which on Pillow warns of decompression bombs; large
cameras have some 60 million.
"""
_LABEL_HINT = "write it again as a lossless PNG with one channel of label ids"


@dataclass
class PixelDepth:
    """How much of their range the 16-bit pictures of one run use, of which the high byte
    is kept.
    """

    largest: int = 0  # value of the 16-bit pictures read so far

    def warn(self, pictures: object) -> None:
        """Warn of pictures none of which used more than 14 bits (:class:`NoteWarning`)."""
        used = self.largest.bit_length()
        if 0 < used <= 14:
            times = 1 << 16 - used
            dark = f"they look {times} times too dark to the network: multiply their values by {times} before"
            warnings.warn(
                f"the 16-bit pictures of {pictures} use {used} bits, so {dark}",
                NoteWarning,
                stacklevel=2,
            )


def read_image(path: Path, depth: PixelDepth | None = None, *, strict: bool = False) -> Image:
    """Return the image of a file as RGB uint8 ``[H, W, 3]``; OSError or ValueError where it cannot
    be read or decoded. Grey images are repeated over the three channels, palettes are expanded, of
    16-bit values the high byte is kept and ``depth`` notes the largest, an alpha channel is dropped
    without blending, and an EXIF orientation is applied: the network sees the road upright and the
    maps have the size that a viewer shows. With ``strict`` a JPEG with a hole is refused too, see
    :func:`check_jpeg`."""
    data = read_bytes(path)
    if strict and data.startswith(_JPEG_SIGNATURE):
        check_whole(data)
        check_jpeg(data)
    pixels = decode(data, cv2.IMREAD_COLOR | cv2.IMREAD_ANYDEPTH)
    if pixels.dtype != np.uint8:
        if depth and pixels.dtype.itemsize == 2:
            depth.largest = max(depth.largest, int(pixels.max(initial=0)))
        pixels = decode(data, cv2.IMREAD_COLOR)
    return np.ascontiguousarray(cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB), np.uint8)


def load_image(path: Path, depth: PixelDepth | None = None, *, strict: bool = False) -> Image:
    """Return the image of a file as :func:`read_image`; raise InputError for a file that is
    missing, truncated, or not an image.
    """
    with reading(f"image {path}", "an image file that is whole", "copy it again or remove it"):
        return read_image(path, depth, strict=strict)


def decode(data: bytes, flags: int) -> npt.NDArray[Any]:
    """Decode the bytes of an image file by OpenCV, with its ``IMREAD`` flags; ValueError where they
    are refused.
    """
    check_whole(data)
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error as error:
        raise ValueError(f"the image cannot be decoded ({error.err})") from error
    if pixels is None:
        raise ValueError("the file is no image that can be decoded")
    return np.asarray(pixels)


def check_whole(data: bytes) -> None:
    """Raise ValueError where the bytes of an image file must not be decoded, by the end marker of a
    JPEG, the checksums of a PNG and the declared size of a BMP or WebP; OpenCV itself refuses a
    TIFF that lacks strips. No unknown format is decoded.
    """
    if not data:
        raise ValueError("the file is empty")
    file = io.BytesIO(data)
    try:
        image = _open_header(file)
        sizes = (
            [image.size] * getattr(image, "n_frames", 1) if image else _tiff_sizes(io.BytesIO(data))
        )
        width, height = sizes[0]
    except Exception as error:  # what Pillow raises for damaged headers has no common type
        raise ValueError(
            "the file is no image that can be decoded (PNG, JPEG, BMP, TIFF or WebP)"
        ) from error
    if not 0 < width * height <= MOST_PIXELS:
        raise ValueError(
            f"the image claims {width} x {height} pixels; at most {MOST_PIXELS:,} are read"
        )
    if len(sizes) > 1:
        raise ValueError(
            f"it holds {len(sizes)} pictures, of which one frame cannot be made; write each into a file"
        )
    if isinstance(image, PngImagePlugin.PngImageFile):
        try:
            image.verify()
        except Exception as error:
            raise ValueError(f"the PNG is truncated or damaged ({error})") from error
    elif isinstance(image, JpegImagePlugin.JpegImageFile):
        # A thumbnail has an end marker, too. The image's own comes behind its first scan, before
        # which Pillow stops.
        if data.find(b"\xff\xd9", file.tell()) < 0:
            raise ValueError("the JPEG is truncated (its end marker is missing)")
    elif image:
        riff = data.startswith(_RIFF_SIGNATURE)
        declared = (
            int.from_bytes(data[4:8], "little") + 8 if riff else int.from_bytes(data[2:6], "little")
        )
        if len(data) < declared:
            raise ValueError(f"the {image.format} is truncated ({len(data)} of {declared} bytes)")


def check_jpeg(data: bytes) -> None:
    """Raise ValueError where a JPEG misses data inside: OpenCV shifts and greys what follows, and
    says so on the terminal alone. FFmpeg can be told to stop at an error, which takes about as long
    as decoding. A kind of JPEG that it never decodes is not judged. Some holes leave data that
    decodes without an error, mainly in progressive JPEGs; these are not seen."""
    if _ffmpeg_decodes(data, "explode"):
        return
    if _ffmpeg_decodes(data, "ignore_err"):
        raise ValueError("the JPEG is damaged: data is missing inside")
    try:
        with PilImage.open(io.BytesIO(data)) as image:
            image.load()
    except Exception as error:  # what Pillow raises for damaged files has no common type
        raise ValueError("the JPEG is damaged: its data cannot be decoded") from error


def _ffmpeg_decodes(data: bytes, on_error: str) -> bool:
    import av

    decoder = av.CodecContext.create("mjpeg", "r")
    decoder.options = {"err_detect": f"crccheck+bitstream+buffer+{on_error}"}
    try:
        return bool(decoder.decode(av.Packet(data)))
    except (av.error.FFmpegError, ValueError):
        return False


def _open_header(file: BinaryIO) -> Any:
    """Open an image by the class of its format, which reads the header alone; return None for TIFF
    and unknown formats.
    """
    start = file.read(8)
    file.seek(0)
    return next(
        (kind(file) for signature, kind in _FORMATS.items() if start.startswith(signature)), None
    )


def _tiff_sizes(file: BinaryIO) -> list[tuple[int, int]]:
    """Return (width, height) of each page of a TIFF or BigTIFF but thumbnails; Pillow opens fewer
    kinds of pixels than OpenCV.
    """
    head = file.read(8)
    tags = TiffImagePlugin.ImageFileDirectory_v2(
        head + file.read(8 if head[2:4].strip(b"\0") == b"+" else 0)
    )
    sizes, offsets = list[tuple[int, int]](), set[int]()
    while tags.next and tags.next not in offsets:  # a damaged file may lead back
        offsets.add(tags.next)
        file.seek(tags.next)
        tags.load(file)
        if not sizes or not tags.get(_SUBFILE, 0) & 1:
            sizes.append((tags[TiffImagePlugin.IMAGEWIDTH], tags[TiffImagePlugin.IMAGELENGTH]))
    return sizes


def label_rank(path: Path) -> int:
    """Rank a file by how likely it holds label values: 0 for one channel or a palette, 1 for
    colours, 2 for a JPEG or WebP, which are no labels. A file that cannot be opened has rank 0, so
    that whoever reads it says what is wrong.
    """
    try:
        with open_file(path) as file:
            image = _open_header(file)
    except Exception:  # what Pillow raises for damaged headers has no common type
        return 0
    if image is None:
        return 0
    return 2 if image.format in ("JPEG", "WEBP") else int(image.mode in ("RGB", "RGBA", "LA"))


def read_label_image(
    path: Path, colours: Mapping[Colour, int] | None = None, ids: Mapping[int, int] | None = None
) -> Labels:
    """Return the label ids of an image file, uint8 ``[H, W]``, upright as :func:`read_image` shows
    its frame. One channel holds ids, and so do three equal ones, unless ``ids`` of the label map
    say otherwise. Other colours are looked up exactly in ``colours``, RGB -> id, -1 for a colour of
    several classes, None where colours mean nothing; ``ids`` are the label map's, id -> train id.

    InputError where the file cannot be read, is damaged, lossy or translucent, holds values outside
    0..255 or unknown colours, or has a palette by whose colours it shows other classes.
    """
    try:
        pixels = decode_labels(data := read_bytes(path))
    except Exception as error:  # Pillow's decoders have no common exception
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"label {path} cannot be read ({reason})", hint=_LABEL_HINT) from error
    if colours and ids and (palette := palette_of(data)):
        used = np.flatnonzero(np.bincount(pixels.ravel())).tolist()
        shown = {value: colours.get(palette[value]) for value in used if value in palette}
        # One colour alone, such as black, may be in both by chance.
        possible = len(shown) > 1 and None not in shown.values()
        if possible and any(
            ids.get(value) != ids.get(label)
            for value, label in shown.items()
            if label is not None and label != -1
        ):
            text = "a palette by whose colours its values are other classes of the label map"
            raise InputError(
                f"label {path} has {text}",
                hint="write it again as RGB, or as a PNG with one channel of label ids",
            )
    if not np.issubdtype(pixels.dtype, np.integer):
        raise InputError(
            f"label {path} holds {pixels.dtype} values instead of whole numbers", hint=_LABEL_HINT
        )
    if pixels.ndim == 3:
        values = set(np.unique(pixels[..., 0]).tolist())
        equal = bool((pixels == pixels[..., :1]).all())
        # A grey pixel is an id, or a grey of the label map. Only a file in which both are possible
        # and differ is refused.
        greys = {value: (colours or {}).get((value, value, value)) for value in values}
        may_be_ids, may_be_colours = not ids or values <= set(ids), None not in greys.values()
        if (
            equal
            and may_be_ids
            and may_be_colours
            and any(value != label for value, label in greys.items())
        ):
            text = f"three equal channels of {sorted(values)[:8]}, which are ids and colours of the label map"
            raise InputError(f"label {path} has {text}", hint=_LABEL_HINT)
        if not equal or (may_be_colours and not may_be_ids):
            return _ids_of_colours(pixels, colours, path)
        pixels = pixels[..., 0]
    if pixels.min(initial=0) < 0 or pixels.max(initial=0) > 255:
        outside = f"values from {pixels.min()} up to {pixels.max()}"
        raise InputError(
            f"label {path} holds {outside}, but label ids are 0 to 255", hint=_LABEL_HINT
        )
    return pixels.astype(np.uint8)


def decode_labels(data: bytes) -> npt.NDArray[Any]:
    """Return the stored values of an image file, ``[H, W]`` or RGB ``[H, W, 3]``, turned upright;
    ValueError, or what Pillow raises, for a file that is damaged, lossy, translucent, or of 2 or 4
    bits of grey. Decoders change values without a word: OpenCV turns a palette into its colours,
    and one bit of black and white into 0 and 255.
    """
    check_whole(data)
    if data.startswith((_JPEG_SIGNATURE, _RIFF_SIGNATURE)):
        raise ValueError("a JPEG or WebP, whose values are not exact")
    with PilImage.open(io.BytesIO(data), formats=("PNG", "BMP", "TIFF")) as image:
        if data.startswith(_PNG_SIGNATURE) and image.mode == "L" and data[24] < 8:
            raise ValueError(f"it is a PNG of {data[24]} bits, expected 8 or 16 bits, or a palette")
        if image.mode in ("P", "1"):
            return np.asarray(ImageOps.exif_transpose(image)).astype(np.uint8)
        if image.has_transparency_data and image.convert("RGBA").getchannel("A").getextrema() != (
            255,
            255,
        ):
            raise ValueError("it is translucent")
    pixels = decode(
        data, cv2.IMREAD_ANYDEPTH | cv2.IMREAD_ANYCOLOR
    )  # applies the orientation and drops alpha
    return pixels if pixels.ndim == 2 else pixels[..., ::-1]


def palette_of(data: bytes) -> dict[int, Colour]:
    """Return the colours of the values of an image file with a palette; nothing of others."""
    with PilImage.open(io.BytesIO(data)) as image:
        parts = iter((image.getpalette() or []) if image.mode == "P" else [])
    return dict(enumerate(zip(parts, parts, parts, strict=False)))


def _ids_of_colours(
    pixels: npt.NDArray[Any], colours: Mapping[Colour, int] | None, path: Path
) -> Labels:
    """Return the ids uint8 ``[H, W]`` of RGB pixels ``[H, W, 3]``; raise InputError for a colour
    that has none or several.
    """
    if colours is None or pixels.dtype != np.uint8:
        raise InputError(
            f"label {path} is a picture in colour ({pixels.dtype}), but no label map says which 8-bit colour is which class",
            hint=_LABEL_HINT,
        )
    codes = pixels.astype(np.int64) @ (1 << np.array([16, 8, 0]))
    present, inverse, counts = np.unique(codes, return_inverse=True, return_counts=True)
    present_colours = [(code >> 16, code >> 8 & 255, code & 255) for code in present.tolist()]
    ids = [colours.get(colour) for colour in present_colours]
    if None in ids:
        unknown = sum(int(count) for count, label in zip(counts, ids, strict=True) if label is None)
        example = present_colours[ids.index(None)]
        raise InputError(
            f"{unknown} of {codes.size} pixels of label {path} have colours that the label map does not know, e.g. {example}",
            hint="give the --label-map of these colours, or add a row with this colour and train_id 255 to it",
        )
    if -1 in ids:
        shared = present_colours[ids.index(-1)]
        raise InputError(
            f"label {path} holds the colour {shared}, which several classes of the label map have"
        )
    return np.array(ids, np.uint8)[inverse].reshape(codes.shape)


def resize_nearest(values: npt.NDArray[Scalar], width: int, height: int) -> npt.NDArray[Scalar]:
    """Return labels, a mask, a map ``[H, W]`` or a picture ``[H, W, 3]`` at another size, each
    pixel the one nearest to its middle. OpenCV takes the upper left pixel of each cell, or always
    the left one of two in the middle, and so moves labels against their images. Where the middle
    lies between two pixels, even rows and columns take the first, odd ones the second, so that
    nothing moves on average.
    """
    if values.shape[:2] == (height, width):
        return values

    def nearest(old: int, new: int) -> npt.NDArray[np.intp]:
        target = np.arange(new)
        return np.asarray(((2 * target + 1) * old - (target % 2 == 0)) // (2 * new))

    resized: npt.NDArray[Scalar] = values[
        nearest(values.shape[0], height)[:, None], nearest(values.shape[1], width)
    ]
    return resized
