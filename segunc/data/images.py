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
FloatImage = npt.NDArray[np.float32]  # RGB in 0..1 ``[H, W, 3]``
AnyImage = Image | FloatImage
Labels = npt.NDArray[np.uint8]
Colour = tuple[int, int, int]

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_JPEG_SIGNATURE = b"\xff\xd8"
_RIFF_SIGNATURE = b"RIFF"
_FORMATS: dict[bytes, Any] = {
    _PNG_SIGNATURE: PngImagePlugin.PngImageFile,
    _JPEG_SIGNATURE: JpegImagePlugin.JpegImageFile,
    b"BM": BmpImagePlugin.BmpImageFile,
    _RIFF_SIGNATURE: WebPImagePlugin.WebPImageFile,
}
_JPEG_END = b"\xff\xd9"
_SUBFILE = 254
"""Tag of a TIFF whose lowest bit marks a smaller copy of another page."""
MOST_PIXELS = 89_478_485
"""Largest number of pixels of an image, from which on Pillow warns of decompression bombs; large
cameras have some 60 million.
"""
_LABEL_HINT = "write it again as a lossless PNG with one channel of label ids"


@dataclass
class PixelDepth:
    """How much of their range the 16-bit pictures of one run use; their high byte is kept."""

    largest: int = 0
    """Largest value of the 16-bit pictures read so far."""

    def warn(self, pictures: object) -> None:
        """Warn of pictures none of which used more than 14 bits (:class:`NoteWarning`)."""
        used = self.largest.bit_length()
        if 0 < used <= 14:
            factor = 1 << 16 - used
            warnings.warn(
                f"the 16-bit pictures of {pictures} use {used} bits, so they look {factor} times "
                f"too dark to the network: multiply their values by {factor} before",
                NoteWarning,
                stacklevel=2,
            )


def read_image(path: Path, depth: PixelDepth | None = None, *, strict: bool = False) -> Image:
    """Return the image of a file as RGB uint8 ``[H, W, 3]``.

    Grey images are repeated over the three channels, palettes are expanded, of 16-bit values the
    high byte is kept, an alpha channel is dropped without blending, and an EXIF orientation is
    applied: the network sees the road upright and the maps have the size that a viewer shows.

    Args:
        path: the file.
        depth: notes the largest 16-bit value.
        strict: also refuse a JPEG with a hole, see :func:`check_jpeg`.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file cannot be decoded.
    """
    return decode_image(read_bytes(path), depth, strict=strict)


def decode_image(data: bytes, depth: PixelDepth | None = None, *, strict: bool = False) -> Image:
    """Return the image of the bytes of a file as :func:`read_image` does.

    Raises:
        ValueError: the bytes cannot be decoded.
    """
    if strict and data.startswith(_JPEG_SIGNATURE):
        check_whole(data)
        check_jpeg(data)
    pixels = decode(data, cv2.IMREAD_COLOR | cv2.IMREAD_ANYDEPTH)
    if pixels.dtype != np.uint8:
        if depth and pixels.dtype.itemsize == 2:
            depth.largest = max(depth.largest, int(pixels.max(initial=0)))
        pixels = decode(data, cv2.IMREAD_COLOR)
    return np.ascontiguousarray(cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB), np.uint8)


def image_size(path: Path) -> tuple[int, int]:
    """Return the height and the width that the header of a PNG, JPEG, BMP or WebP declares, before
    any orientation.

    Raises:
        OSError: the file cannot be read.
        ValueError: it has no such header.
    """
    with open_file(path) as file:
        try:
            width, height = _open_header(file).size
        except Exception as error:  # what Pillow raises for damaged headers has no common type
            raise ValueError("the file is not an image that can be decoded") from error
    return height, width


def load_image(path: Path, depth: PixelDepth | None = None, *, strict: bool = False) -> Image:
    """Return the image of a file as :func:`read_image` does.

    Raises:
        InputError: the file is missing, truncated, or not an image.
    """
    with reading(f"image {path}", "an image file that is whole", "copy it again or remove it"):
        return read_image(path, depth, strict=strict)


def decode(data: bytes, flags: int) -> npt.NDArray[Any]:
    """Decode the bytes of an image file by OpenCV, with its ``IMREAD`` flags.

    Raises:
        ValueError: the bytes are not an image that is whole.
    """
    check_whole(data)
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error as error:
        raise ValueError(f"the image cannot be decoded ({error.err})") from error
    if pixels is None:
        raise ValueError("the file is not an image that can be decoded")
    return np.asarray(pixels)


def check_whole(data: bytes) -> None:
    """Check that the bytes of an image file may be decoded.

    A file is whole by the end marker of a JPEG, the checksums of a PNG and the declared size of a
    BMP or WebP; OpenCV itself refuses a TIFF that lacks strips. No unknown format is decoded.

    Raises:
        ValueError: the file is damaged, too large, or holds several pictures.
    """
    if not data:
        raise ValueError("the file is empty")
    file = io.BytesIO(data)
    try:
        image = _open_header(file)
        sizes = _picture_sizes(image, data)
        width, height = sizes[0]
    except Exception as error:  # what Pillow raises for damaged headers has no common type
        raise ValueError(
            "the file is not an image that can be decoded (PNG, JPEG, BMP, TIFF or WebP)"
        ) from error
    if not 0 < width * height <= MOST_PIXELS:
        raise ValueError(
            f"the image claims {width} x {height} pixels; at most {MOST_PIXELS:,} are read"
        )
    if len(sizes) > 1:
        raise ValueError(
            f"it holds {len(sizes)} pictures, which make no single frame; "
            "write each into a file of its own"
        )
    if isinstance(image, PngImagePlugin.PngImageFile):
        _check_checksums(image)
    elif isinstance(image, JpegImagePlugin.JpegImageFile):
        # A thumbnail has an end marker, too. The image's own comes behind its first scan, before
        # which Pillow stops.
        if data.find(_JPEG_END, file.tell()) < 0:
            raise ValueError("the JPEG is truncated (its end marker is missing)")
    elif image is not None:
        declared = _declared_length(data)
        if len(data) < declared:
            raise ValueError(f"the {image.format} is truncated ({len(data)} of {declared} bytes)")


def _picture_sizes(image: Any, data: bytes) -> list[tuple[int, int]]:
    """Return (width, height) of each picture of a file, of which ``image`` is the header."""
    if image is None:
        return _tiff_sizes(io.BytesIO(data))
    return [image.size] * getattr(image, "n_frames", 1)


def _check_checksums(image: PngImagePlugin.PngImageFile) -> None:
    try:
        image.verify()
    except Exception as error:  # what Pillow raises for damaged files has no common type
        raise ValueError(f"the PNG is truncated or damaged ({error})") from error


def _declared_length(data: bytes) -> int:
    """Return the number of bytes that the header of a WebP or BMP states."""
    if data.startswith(_RIFF_SIGNATURE):
        return int.from_bytes(data[4:8], "little") + 8
    return int.from_bytes(data[2:6], "little")


def check_jpeg(data: bytes) -> None:
    """Check that no data is missing inside a JPEG.

    OpenCV shifts and greys what follows a hole, and says so on the terminal alone. FFmpeg can be
    told to stop at an error, which takes about as long as decoding. A kind of JPEG that it never
    decodes is not judged. Some holes leave data that decodes without an error, mainly in
    progressive JPEGs; these are not seen.

    Raises:
        ValueError: data is missing.
    """
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
    """Open an image by the class of its format, which reads the header alone.

    TIFF and unknown formats give None.
    """
    start = file.read(8)
    file.seek(0)
    for signature, format_class in _FORMATS.items():
        if start.startswith(signature):
            return format_class(file)
    return None


def _tiff_sizes(file: BinaryIO) -> list[tuple[int, int]]:
    """Return (width, height) of each page of a TIFF or BigTIFF, without thumbnails.

    Pillow opens fewer kinds of pixels than OpenCV, so it reads only the tags here.
    """
    head = file.read(8)
    is_big = head[2:4].strip(b"\0") == b"+"
    if is_big:
        head += file.read(8)
    tags = TiffImagePlugin.ImageFileDirectory_v2(head)
    sizes: list[tuple[int, int]] = []
    offsets: set[int] = set()
    while tags.next and tags.next not in offsets:  # a damaged file may lead back
        offsets.add(tags.next)
        file.seek(tags.next)
        tags.load(file)
        is_thumbnail = tags.get(_SUBFILE, 0) & 1
        if not sizes or not is_thumbnail:
            sizes.append((tags[TiffImagePlugin.IMAGEWIDTH], tags[TiffImagePlugin.IMAGELENGTH]))
    return sizes


def label_rank(path: Path) -> int:
    """Rank a file by how likely it holds label values, 0 for the likeliest.

    A file of one channel or with a palette has rank 0, one in colour 1, a JPEG or WebP 2, for these
    are no labels. A file that cannot be opened has rank 0, so that whoever reads it says what is
    wrong.
    """
    try:
        with open_file(path) as file:
            image = _open_header(file)
    except Exception:  # what Pillow raises for damaged headers has no common type
        return 0
    if image is None:
        return 0
    if image.format in ("JPEG", "WEBP"):
        return 2
    return int(image.mode in ("RGB", "RGBA", "LA"))


def read_label_image(
    path: Path, colours: Mapping[Colour, int] | None = None, ids: Mapping[int, int] | None = None
) -> Labels:
    """Return the label ids of an image file, uint8 ``[H, W]``, upright as :func:`read_image` shows
    its frame.

    One channel holds ids, and so do three equal ones, unless ``ids`` say otherwise. Other colours
    are looked up exactly in ``colours``.

    Args:
        path: the file.
        colours: those of the label map, RGB -> id, -1 for a colour of several classes; None if
            colours mean nothing.
        ids: those of the label map, id -> train id.

    Raises:
        InputError: the file cannot be read, is damaged, lossy or translucent, holds values outside
            0..255 or unknown colours, or has a palette by whose colours it shows other classes.
    """
    try:
        data = read_bytes(path)
        pixels = decode_labels(data)
    except Exception as error:  # Pillow's decoders have no common exception
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"label {path} cannot be read ({reason})", hint=_LABEL_HINT) from error
    if colours and ids:
        _check_palette(path, pixels, palette_of(data), colours, ids)
    if not np.issubdtype(pixels.dtype, np.integer):
        raise InputError(
            f"label {path} holds {pixels.dtype} values instead of whole numbers", hint=_LABEL_HINT
        )
    if pixels.ndim == 3:
        if _shows_colours(path, pixels, colours, ids):
            return _ids_of_colours(pixels, colours, path)
        pixels = pixels[..., 0]
    lowest = pixels.min(initial=0)
    highest = pixels.max(initial=0)
    if lowest < 0 or highest > 255:
        raise InputError(
            f"label {path} holds values from {pixels.min()} up to {pixels.max()}, "
            "but label ids are 0 to 255",
            hint=_LABEL_HINT,
        )
    return pixels.astype(np.uint8)


def _check_palette(
    path: Path,
    pixels: npt.NDArray[Any],
    palette: Mapping[int, Colour],
    colours: Mapping[Colour, int],
    ids: Mapping[int, int],
) -> None:
    """Raise InputError if a palette shows the values of a label as other classes.

    Args:
        path: the label.
        pixels: its values ``[H, W]``.
        palette: the colours of its values; empty if it has none.
        colours: those of the label map, RGB -> id, -1 for a colour of several classes.
        ids: those of the label map, id -> train id.
    """
    if not palette:
        return
    used = np.flatnonzero(np.bincount(pixels.ravel())).tolist()
    shown = {value: colours.get(palette[value]) for value in used if value in palette}
    # One colour alone, such as black, may be in both by chance.
    if len(shown) <= 1 or None in shown.values():
        return
    for value, label in shown.items():
        if label is None or label == -1:
            continue
        if ids.get(value) != ids.get(label):
            raise InputError(
                f"label {path} has a palette by whose colours its values are other classes "
                "of the label map",
                hint="write it again as RGB, or as a PNG with one channel of label ids",
            )


def _shows_colours(
    path: Path,
    pixels: npt.NDArray[Any],
    colours: Mapping[Colour, int] | None,
    ids: Mapping[int, int] | None,
) -> bool:
    """Return whether the three channels ``[H, W, 3]`` of a label are colours, not ids.

    A grey pixel is an id, or a grey of the label map. InputError is raised only for a file in which
    both are possible and differ.
    """
    is_grey = bool((pixels == pixels[..., :1]).all())
    values = set(np.unique(pixels[..., 0]).tolist())
    id_of_grey = {value: (colours or {}).get((value, value, value)) for value in values}
    may_be_ids = not ids or values <= set(ids)
    may_be_colours = None not in id_of_grey.values()
    differ = any(value != label for value, label in id_of_grey.items())
    if is_grey and may_be_ids and may_be_colours and differ:
        raise InputError(
            f"label {path} has three equal channels of {sorted(values)[:8]}, "
            "which are ids and colours of the label map",
            hint=_LABEL_HINT,
        )
    return not is_grey or (may_be_colours and not may_be_ids)


def decode_labels(data: bytes) -> npt.NDArray[Any]:
    """Return the stored values of an image file, ``[H, W]`` or RGB ``[H, W, 3]``, turned upright.

    Decoders change values without a word: OpenCV turns a palette into its colours, and one bit of
    black and white into 0 and 255. So palettes and single bits are read by Pillow.

    Raises:
        ValueError: the file is damaged, lossy, translucent, or of 2 or 4 bits of grey; Pillow may
            raise other errors for a damaged file.
    """
    check_whole(data)
    if data.startswith((_JPEG_SIGNATURE, _RIFF_SIGNATURE)):
        raise ValueError("a JPEG or WebP, whose values are not exact")
    with PilImage.open(io.BytesIO(data), formats=("PNG", "BMP", "TIFF")) as image:
        if data.startswith(_PNG_SIGNATURE) and image.mode == "L" and data[24] < 8:
            raise ValueError(f"it is a PNG of {data[24]} bits, expected 8 or 16 bits, or a palette")
        if image.mode in ("P", "1"):
            return np.asarray(ImageOps.exif_transpose(image)).astype(np.uint8)
        if image.has_transparency_data:
            opacity = image.convert("RGBA").getchannel("A")
            if opacity.getextrema() != (255, 255):
                raise ValueError("it is translucent")
    # OpenCV applies the orientation and drops alpha.
    pixels = decode(data, cv2.IMREAD_ANYDEPTH | cv2.IMREAD_ANYCOLOR)
    return pixels if pixels.ndim == 2 else pixels[..., ::-1]


def palette_of(data: bytes) -> dict[int, Colour]:
    """Return the colours of the values of an image file with a palette; nothing of others."""
    with PilImage.open(io.BytesIO(data)) as image:
        if image.mode != "P":
            return {}
        levels = iter(image.getpalette() or [])
    colours = zip(levels, levels, levels, strict=False)
    return dict(enumerate(colours))


def colour_codes(pixels: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return one number for the colour of each RGB pixel ``[H, W, 3]``, see :func:`colour_of`."""
    codes: npt.NDArray[np.int64] = pixels.astype(np.int64) @ (1 << np.array([16, 8, 0]))
    return codes


def colour_of(code: int) -> Colour:
    """Return the colour (red, green, blue) of a number of :func:`colour_codes`."""
    return code >> 16, code >> 8 & 255, code & 255


def _ids_of_colours(
    pixels: npt.NDArray[Any], colours: Mapping[Colour, int] | None, path: Path
) -> Labels:
    """Return the ids uint8 ``[H, W]`` of RGB pixels ``[H, W, 3]``.

    Raises:
        InputError: a colour has no id, or several.
    """
    if colours is None or pixels.dtype != np.uint8:
        raise InputError(
            f"label {path} is a picture in colour ({pixels.dtype}), "
            "but no label map says which 8-bit colour is which class",
            hint=_LABEL_HINT,
        )
    codes = colour_codes(pixels)
    present_codes, inverse, counts = np.unique(codes, return_inverse=True, return_counts=True)
    present = [colour_of(code) for code in present_codes.tolist()]
    ids = [colours.get(colour) for colour in present]
    if None in ids:
        unknown = np.array([label is None for label in ids])
        raise InputError(
            f"{counts[unknown].sum()} of {codes.size} pixels of label {path} have colours that "
            f"the label map does not know, e.g. {present[ids.index(None)]}",
            hint="give the --label-map of these colours, "
            "or add a row with this colour and train_id 255 to it",
        )
    if -1 in ids:
        shared = present[ids.index(-1)]
        raise InputError(
            f"label {path} holds the colour {shared}, which several classes of the label map have"
        )
    return np.array(ids, np.uint8)[inverse].reshape(codes.shape)


MOST_CHANNELS = 4
"""Of an image that OpenCV shrinks by means over areas which are no whole pixels."""


def resize_image(image: AnyImage, size: tuple[int, int]) -> AnyImage:
    """Return an image at the size at which a network sees it.

    Maps, fits and training all resize by this function, so that a network is judged on the pixels
    that it was trained on. It takes the mean over areas where the image becomes lower, and is
    bilinear elsewhere.

    Args:
        image: ``[H, W, K]``, uint8, which is resized in 8 bits, or float32 in 0..1.
        size: height and width.

    Returns:
        ``[h, w, K]`` of the same type; the image itself where it has the size.
    """
    if image.shape[:2] == size:
        return image
    height, width, channels = image.shape
    interpolation = cv2.INTER_AREA if size[0] < height else cv2.INTER_LINEAR
    is_area = interpolation == cv2.INTER_AREA and size[1] <= width
    is_whole = height % size[0] == 0 and width % size[1] == 0
    step = MOST_CHANNELS if is_area and not is_whole else channels
    parts: list[Any] = []
    for first in range(0, channels, step):
        part: Any = np.ascontiguousarray(image[:, :, first : first + step])
        resized = cv2.resize(part, (size[1], size[0]), interpolation=interpolation)
        # OpenCV drops an axis of one channel.
        parts.append(resized.reshape(*size, part.shape[2]))
    whole: AnyImage = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=2)
    return whole


def resize_nearest(values: npt.NDArray[Scalar], width: int, height: int) -> npt.NDArray[Scalar]:
    """Return values at another size, each pixel the one nearest to its middle.

    OpenCV takes the upper left pixel of each cell, or always the left one of two in the middle, and
    so moves labels against their images. Where the middle lies between two pixels, even rows and
    columns take the first, odd ones the second, so that nothing moves on average.

    Args:
        values: labels, a mask or a map ``[H, W]``, or a picture ``[H, W, 3]``.
        width: the new width.
        height: the new height.
    """
    if values.shape[:2] == (height, width):
        return values
    old_height, old_width = values.shape[:2]
    rows = _nearest(old_height, height)
    columns = _nearest(old_width, width)
    resized: npt.NDArray[Scalar] = values[rows[:, None], columns]
    return resized


def _nearest(old: int, new: int) -> npt.NDArray[np.intp]:
    """Return for each of ``new`` pixels of a line the nearest of the ``old`` ones."""
    target = np.arange(new)
    is_even = target % 2 == 0
    return np.asarray(((2 * target + 1) * old - is_even) // (2 * new))
