"""How the values of a map stand in its file, ours or that of any other tool: PNG, TIFF, NumPy or
HDF5.

Bounded scores (0..1) are stored as uint16 PNG with ``value = (code / 65535)^2``: monotone, and
finest near zero, where the epistemic map lives. Unbounded scores are stored as float16 ``.npy``.
Both forms have an order-preserving 16-bit key, so metrics on the file and on the values before
writing agree exactly. Every parameter of the files is fixed, because a resumed run must give the
same bytes.

Compact maps hold the mean of each 2 x 2 pixels: bounded scores as uint8 codes, ``value = (code /
255)^2``, unbounded ones as the 16-bit keys of their float16 (neighbouring values have neighbouring
keys, which a PNG packs). A frame of 1080 x 1920 pixels takes 2.9 MB in place of 28.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError, one_line
from segunc.core.files import read_array, read_bytes
from segunc.core.progress import quiet_opencv
from segunc.data.images import Image, decode, decode_labels
from segunc.scores import SCORES

CODE_MAX = 65535
# For a uint16 map of 960 x 540 run lengths at level 1 take 17 to 19 ms of one core, the general
# strategy 25 to 35 ms, for sizes within 3 % of each other.
PNG_LEVEL = 1
MAX_JPEG_SIDE = 65_500  # pixels, by libjpeg
_PNG = [
    cv2.IMWRITE_PNG_COMPRESSION,
    PNG_LEVEL,
    cv2.IMWRITE_PNG_STRATEGY,
    cv2.IMWRITE_PNG_STRATEGY_RLE,
]

# Of ``ChannelLoaderHDF5`` in https://github.com/SegmentMeIfYouCan/road-anomaly-benchmark.
HDF5_KEY = "value"

Form = Literal["unit-code", "linear"]
"""How uint8 and uint16 become values: by (code / 65535)^2, this tool's encoding of scores in 0..1,
or 0..1 over the range of their type, as other tools write them. Floats are values already.
"""
Array = npt.NDArray[Any]
Codes = npt.NDArray[np.uint16]
Floats = npt.NDArray[np.float32]

UNIT_ROUNDING = 1e-3  # by this much float32 sums of scores in 0..1 may leave their range


def encode_unit(values: npt.NDArray[np.floating]) -> Codes:
    """Return uint16 codes round(65535 sqrt(v)) of values in 0..1, clipped, as rounding may cross
    the ends.

    Raises:
        InputError: a value is NaN or infinite, or farther from 0..1 than rounding goes.
    """
    if not np.isfinite(values).all():
        raise InputError("a map holds NaN or infinite values", hint="check the network's weights")
    low = float(values.min(initial=0.0))
    high = float(values.max(initial=1.0))
    if low < -UNIT_ROUNDING or high > 1 + UNIT_ROUNDING:
        raise InputError(
            f"a map whose score is stored as 0..1 holds values from {low:.4g} to {high:.4g}",
            hint="give the score another stored form, or bring its formula to 0..1",
        )
    root = np.sqrt(np.clip(values.astype(np.float32), 0.0, 1.0))
    return np.rint(root * np.float32(CODE_MAX)).astype(np.uint16)


def decode_unit(codes: npt.NDArray[np.unsignedinteger]) -> Floats:
    """Return the values of the codes that maps of bounded scores hold.

    Args:
        codes: uint16, or uint8 of compact maps, of any shape.

    Returns:
        float32 in 0..1, of the same shape: (code / 65535)^2 of uint16, (code / 255)^2 of uint8.

    >>> import numpy as np
    >>> import segunc
    >>> segunc.decode_unit(np.array([0, 51, 255], np.uint8)).round(2).tolist()
    [0.0, 0.03999999910593033, 1.0]
    """
    largest = np.float32(np.iinfo(codes.dtype).max)
    values: Floats = np.square(codes.astype(np.float32) / largest)
    return values


def decode_stored(stored: Array, form: Form) -> npt.NDArray[np.floating]:
    """Return the values of a stored score, of the same shape, without rounding any.

    Args:
        stored: whole numbers or floats.
        form: how whole numbers become values.

    Returns:
        float64 where the file holds that, else float32.
    """
    if np.issubdtype(stored.dtype, np.floating):
        return stored.astype(np.promote_types(stored.dtype, np.float32))
    if form == "unit-code":
        return decode_unit(stored)
    return stored.astype(np.float32) / np.float32(np.iinfo(stored.dtype).max)


def encode_half(values: npt.NDArray[np.floating]) -> npt.NDArray[np.float16]:
    """Round an unbounded score to float16.

    Raises:
        InputError: a value is NaN or beyond 65,504, the largest float16.
    """
    with np.errstate(over="ignore"):
        half = values.astype(np.float16, copy=False)
    if not np.isfinite(half).all():
        raise InputError(
            "a score is NaN or beyond the range of float16, +-65504",
            hint="check the network's weights",
        )
    return half


def encode_score(score: str, values: Array) -> Array:
    """Return the stored form of a named score: uint16 codes for the bounded ones, float16 for the
    others. Codes are taken as they are.

    Raises:
        InputError: values are NaN or infinite, or of another type.
    """
    is_bounded = SCORES[score].stored == "unit16"
    if np.issubdtype(values.dtype, np.floating):
        return encode_unit(values) if is_bounded else encode_half(values)
    if is_bounded and values.dtype == np.uint16:
        return values
    raise InputError(
        f"map {score} is of type {values.dtype}: neither floats nor uint16 codes of a score in 0..1"
    )


def score_keys(stored: npt.NDArray[Any]) -> Codes:
    """Return order-preserving uint16 keys of a stored score: equal scores have equal keys, higher
    scores higher keys.

    A uint16 code is its own key, and a uint8 code c has the key 257 c, the uint16 code of its
    value. A float16 is keyed by its bits: sign bit flipped for positive values, all bits flipped
    for negative ones, -0.0 made +0.0 first. Wider floats have a key where float16 holds them
    exactly.

    Raises:
        InputError: a float is NaN, infinite, or a value that float16 would round: its rank would
            change.
    """
    if stored.dtype == np.uint8:
        return stored * np.uint16(257)
    if stored.dtype == np.uint16:
        return stored
    if not np.issubdtype(stored.dtype, np.floating):
        raise InputError(f"a score map is of type {stored.dtype}: neither uint8, uint16 nor floats")
    with np.errstate(over="ignore", invalid="ignore"):
        halves = stored.astype(np.float16, copy=False)
    rounded = stored.dtype != np.float16 and (halves != stored).any()
    if rounded or not np.isfinite(halves).all():
        raise InputError(
            "float16 does not hold a score exactly, so the score has no 16-bit key",
            hint="rank such scores in bins (segunc.metrics.counting.ScoreBins)",
        )
    bits = (halves + np.float16(0.0)).view(np.uint16)  # -0.0 + 0.0 = +0.0
    return np.where(bits & 0x8000, ~bits, bits | 0x8000).astype(np.uint16)


def keys_to_half(keys: Codes) -> npt.NDArray[np.float16]:
    """Return the float16 values of keys that :func:`score_keys` made of floats."""
    return np.where(keys & 0x8000, keys & 0x7FFF, ~keys).astype(np.uint16).view(np.float16)


def is_flagged(values: npt.NDArray[np.floating], threshold: float) -> npt.NDArray[np.bool_]:
    """Return which scores are at or above a threshold, bool of their shape."""
    # NumPy would round a Python float to the type of the scores, and so flag scores below it.
    return np.asarray(values >= np.float64(threshold))


def threshold_text(threshold: float) -> str:
    """Write a threshold so that the number that is written flags the pixels that it flags.

    Six digits are written if they suffice, else as many as are needed.

    >>> threshold_text(2.60546875)
    '2.6054687'
    """
    # A calibrated value is one of a score, a float32. A number above it would not flag the pixels
    # of this value, and one that is a quarter of a step below it reads back as the same float32.
    just_below = threshold - abs(threshold) * 2**-26
    for digits in range(6, 17):
        for near in (threshold, just_below):
            text = f"{near:.{digits}g}"
            written = float(text)
            with np.errstate(over="ignore"):
                reads_back = float(np.float32(written)) == threshold
            if written == threshold or (reads_back and written < threshold):
                return text
    return f"{threshold:.17g}"


def encode_compact(stored: Array) -> Array:
    """Return the compact form of a stored score: means of 2 x 2 pixels.

    Args:
        stored: uint16 codes or float16, ``[H, W]``.

    Returns:
        ``[ceil(H / 2), ceil(W / 2)]``: uint8 codes round(255 sqrt(v)) of bounded scores, the
        uint16 :func:`score_keys` of others.
    """
    floats = stored.dtype == np.float16
    values = stored.astype(np.float32) if floats else decode_unit(stored)
    height, width = (-(-side // 2) for side in stored.shape)
    half = np.asarray(cv2.resize(values, (width, height), interpolation=cv2.INTER_AREA), np.float32)
    if floats:
        return score_keys(encode_half(half))
    return np.rint(np.sqrt(half) * np.float32(255)).astype(np.uint8)


def decode_compact(codes: Array, height: int, width: int, *, floats: bool) -> Array:
    """Return the stored form of a compact map at the frame's size, bilinear between its values.

    Args:
        codes: of the compact map.
        height: of the frame.
        width: of the frame.
        floats: whether the codes are keys of floats.

    Returns:
        ``[height, width]``, uint16 codes or float16.
    """
    values = keys_to_half(codes).astype(np.float32) if floats else decode_unit(codes)
    whole = np.asarray(
        cv2.resize(values, (width, height), interpolation=cv2.INTER_LINEAR), np.float32
    )
    return whole.astype(np.float16) if floats else encode_unit(whole)


def class_ids(values: Array, name: str) -> npt.NDArray[np.uint8]:
    """Return the prediction of a frame as uint8.

    Raises:
        InputError: it is not whole numbers in 0..255.
    """
    is_whole = np.issubdtype(values.dtype, np.integer)
    if not is_whole or values.min(initial=0) < 0 or values.max(initial=0) > 255:
        raise InputError(
            f"the prediction of frame {name} is {values.dtype} "
            "that holds more than class ids 0..255"
        )
    return np.ascontiguousarray(values, np.uint8)


def encode_png(values: Array) -> bytes:
    """Return PNG bytes of a ``[H, W]`` uint8 or uint16 map, or of an RGB uint8 ``[H, W, 3]``
    picture.
    """
    pixels = cv2.cvtColor(values, cv2.COLOR_RGB2BGR) if values.ndim == 3 else values
    return cv2.imencode(".png", pixels, _PNG)[1].tobytes()


def encode_jpeg(picture: Image, quality: int = 90) -> bytes:
    """Return JPEG bytes of an RGB uint8 ``[H, W, 3]`` picture.

    Raises:
        InputError: it is too large for a JPEG.
    """
    height, width, _ = picture.shape
    if max(height, width) > MAX_JPEG_SIDE:
        raise InputError(
            f"a picture of {width} x {height} pixels has more than the {MAX_JPEG_SIDE} on a side "
            "that a JPEG can have"
        )
    bgr = cv2.cvtColor(picture, cv2.COLOR_RGB2BGR)
    return cv2.imencode(".jpg", bgr, (cv2.IMWRITE_JPEG_QUALITY, quality))[1].tobytes()


def encode_npy(values: Array) -> bytes:
    """Return ``.npy`` bytes of an array."""
    buffer = io.BytesIO()
    np.save(buffer, np.ascontiguousarray(values), allow_pickle=False)
    return buffer.getvalue()


def encode_hdf5(values: Array) -> bytes:
    """Return the bytes of an HDF5 file that holds an array under ``value``, compressed."""
    import h5py

    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        file.create_dataset(HDF5_KEY, data=values, compression="gzip", compression_opts=9)
    return buffer.getvalue()


def read_score_file(
    path: Path, read: Callable[[Path], bytes] = read_bytes, *, ids: bool = False
) -> Array:
    """Read a single-channel map ``[H, W]`` in the type it is stored in.

    A leading or trailing axis of length 1 is dropped.

    Args:
        path: whose ending tells the kind of file. An HDF5 file holds its map itself, under
            ``value``.
        read: gives the bytes of the file.
        ids: whether it holds class ids: those of a palette image are its indices, and three equal
            channels are one.

    Raises:
        InputError: the file is of another kind, damaged, or no map.
    """
    decode_bytes = _READERS.get(path.suffix.lower())
    if decode_bytes is None:
        raise InputError(f"map {path} is of an unknown kind: known are {', '.join(SUFFIXES)}")
    are_ids_of_image = ids and decode_bytes is _read_image
    if are_ids_of_image:
        decode_bytes = decode_labels
    try:
        stored = decode_bytes(read(path))
    except InputError:  # the bytes are not those that were written
        raise
    except Exception as error:  # what the decoders raise for damaged files has no common type
        raise InputError(
            f"map {path} cannot be read ({_reason_of(error)})", hint="write the map again"
        ) from error
    if are_ids_of_image and stored.ndim == 3 and (stored == stored[..., :1]).all():
        stored = stored[..., :1]
    stored = _without_short_axis(stored)
    if stored.ndim != 2:
        raise InputError(f"map {path} has the shape {stored.shape}, not one channel [H, W]")
    if stored.dtype.kind not in "biuf" or stored.dtype.itemsize > 8:
        raise InputError(f"map {path} is of type {stored.dtype}, neither floats nor whole numbers")
    return stored.astype(stored.dtype.newbyteorder("="), copy=False)


def _reason_of(error: Exception) -> object:
    """Return why a file could not be decoded, in few words."""
    reason = getattr(error, "strerror", None)
    if reason:
        return reason
    return error if isinstance(error, ValueError) else one_line(error)


def _without_short_axis(stored: Array) -> Array:
    """Return an array of three axes without a trailing, else a leading axis of length 1."""
    if stored.ndim == 3 and stored.shape[2] == 1:
        return stored.squeeze(2)
    if stored.ndim == 3 and stored.shape[0] == 1:
        return stored.squeeze(0)
    return stored


def _read_image(data: bytes) -> Array:
    """Return the pixels of an image file, upright, as frames are read."""
    with quiet_opencv():  # the TIFF decoder complains
        return decode(data, cv2.IMREAD_ANYDEPTH | cv2.IMREAD_ANYCOLOR)


def _read_hdf5(data: bytes) -> Array:
    """Return the data set of an HDF5 file that holds its values itself."""
    import h5py

    with h5py.File(io.BytesIO(data), "r") as file:
        dataset = file.get(HDF5_KEY)  # None where a link leads out of the file
        if not isinstance(dataset, h5py.Dataset):
            raise ValueError(f"it holds no data set '{HDF5_KEY}' of its own")
        # Where the other files are missing, HDF5 gives zeros without an error.
        if dataset.external or dataset.is_virtual:
            raise ValueError("it takes its values from other files")
        return np.asarray(dataset[()])


_READERS: dict[str, Callable[[bytes], Array]] = {
    ".png": _read_image,
    ".tif": _read_image,
    ".tiff": _read_image,
    ".npy": read_array,
    ".hdf5": _read_hdf5,
    ".h5": _read_hdf5,
}
SUFFIXES = tuple(_READERS)  # of the names of score maps, in any case
