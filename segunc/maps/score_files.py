"""One score map from a file of any tool: PNG, TIFF, NumPy or HDF5."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError, one_line
from segunc.core.files import read_array, read_bytes
from segunc.core.progress import quiet_opencv
from segunc.data.images import MOST_PIXELS, decode, decode_labels
from segunc.maps.encoding import Array, decode_unit
from segunc.maps.sums import DamageError

_FILTERS = {1, 2, 3}
"""Of HDF5: deflation, shuffling, checksums. Others are loaded as libraries of any origin."""
_MAX_DEFLATION = 1032
"""No deflated byte stands for more."""
Form = Literal["unit-code", "linear"]
"""How the whole numbers of a stored score map become values. ``unit-code``: (code / 65535)^2, this tool's encoding of
scores in 0..1. ``linear``: 0..1 over the range of their type (uint8 or uint16), as other tools write them. Floats are
values already, whatever the form."""
HDF5_KEY = "value"
"""The data set that the SegmentMeIfYouCan benchmark reads, https://github.com/SegmentMeIfYouCan/road-anomaly-benchmark
(``ChannelLoaderHDF5`` in ``road_anomaly_benchmark/datasets/dataset_io.py``)."""


def read_score_file(path: Path, read: Callable[[Path], bytes] = read_bytes, *, ids: bool = False) -> Array:
    """Read a single-channel map ``[H, W]`` in the type it is stored in; its ending tells the kind, ``read`` gives its bytes.

    With ``ids`` it holds class ids: those of a palette image are its indices, and three equal channels are one.
    A leading or trailing axis of length 1 is dropped. An HDF5 file holds its map under ``value`` or as its only data
    set, in itself (links to other files are not followed) and uncompressed or deflated.

    Raises:
        InputError: the file is missing, damaged, of an unknown kind, or holds anything but one channel of numbers.
    """
    decode = _READERS.get(path.suffix.lower())
    if decode is None:
        raise InputError(f"map {path} is of an unknown kind: known are {', '.join(SUFFIXES)}")
    if ids and decode is _read_image:
        decode = _read_ids
    try:
        stored = decode(read(path))
    except DamageError:
        raise
    except InputError as error:
        raise InputError(f"map {path} {error.message}", hint=error.hint) from error
    except Exception as error:  # what the decoders raise for damaged files has no common type
        reason = getattr(error, "strerror", None) or (error if isinstance(error, ValueError) else one_line(error))
        raise InputError(f"map {path} cannot be read ({reason})", hint="write the map again") from error
    if stored.ndim == 3 and 1 in (stored.shape[0], stored.shape[2]):
        stored = stored.squeeze(0 if stored.shape[0] == 1 else 2)
    if stored.ndim != 2:
        raise InputError(f"map {path} has the shape {stored.shape}, not one channel [H, W]")
    if stored.dtype.kind not in "biuf" or stored.dtype.itemsize > 8:
        raise InputError(f"map {path} is of type {stored.dtype}, neither floats nor whole numbers")
    if stored.dtype.kind in "iu" and stored.size and max(int(stored.max()), -int(stored.min())) > 2**53:
        raise InputError(f"map {path} holds whole numbers beyond 2^53, more than float64 holds")
    return stored.astype(stored.dtype.newbyteorder("="), copy=False)


def as_score(stored: Array) -> Array:
    """Return a stored map as a score: uint8, uint16 and floats stay as they are, other whole numbers become float64. The range
    of a wider or signed type says nothing about the range of the scores in it, so these are taken as values."""
    if stored.dtype in (np.uint8, np.uint16) or stored.dtype.kind == "f":
        return stored
    return stored.astype(np.float64)


def decode_stored(stored: Array, form: Form) -> npt.NDArray[np.float32]:
    """Return the values of a stored score, float32 of the same shape; see :data:`Form`."""
    if np.issubdtype(stored.dtype, np.floating):
        return stored.astype(np.float32)
    if form == "unit-code":
        return decode_unit(stored)
    return stored.astype(np.float32) / np.float32(np.iinfo(stored.dtype).max)


def _read_image(data: bytes) -> Array:
    with quiet_opencv():  # the TIFF decoder complains
        return decode(data, cv2.IMREAD_ANYDEPTH | cv2.IMREAD_ANYCOLOR)  # upright, as the frame is read


def _read_ids(data: bytes) -> Array:
    pixels = decode_labels(data)
    return pixels[..., 0] if pixels.ndim == 3 and (pixels == pixels[..., :1]).all() else pixels


def _read_npy(data: bytes) -> Array:
    if zipfile.is_zipfile(io.BytesIO(data)):
        raise InputError("is an archive of arrays, not one .npy array")
    return np.asarray(read_array(data))


def _read_hdf5(data: bytes) -> Array:
    import h5py

    with h5py.File(io.BytesIO(data), "r") as file:
        sets: dict[str, Any] = {}
        file.visititems(lambda name, item: sets.update({name: item}) if isinstance(item, h5py.Dataset) else None)
        if HDF5_KEY not in sets and len(sets) != 1:
            names = ", ".join(sorted(sets)) or "none"
            raise InputError(f"holds {len(sets)} data sets ({names}), neither one nor one named '{HDF5_KEY}'")
        dataset = sets.get(HDF5_KEY, next(iter(sets.values())))
        _check_dataset(dataset, len(data))
        return np.asarray(dataset[()])


def _check_dataset(dataset: Any, length: int) -> None:
    """Refuse a data set that its file of so many bytes cannot hold, before anything of it is read."""
    plan = dataset.id.get_create_plist()
    filters = {plan.get_filter(number)[0] for number in range(plan.get_nfilters())}
    if dataset.external or dataset.is_virtual:
        raise InputError("takes its values from other files")
    if filters - _FILTERS:
        raise InputError(f"is encoded by the HDF5 filter {max(filters - _FILTERS)}, neither gzip nor shuffle")
    if dataset.dtype.kind not in "biuf":
        raise InputError(f"is of type {dataset.dtype}, neither floats nor whole numbers")
    most = min(MOST_PIXELS, _MAX_DEFLATION * length // dataset.dtype.itemsize)
    if dataset.size is None or dataset.size > most:
        raise InputError(f"claims the shape {dataset.shape} in {length} bytes, which is too large")


IMAGE_SUFFIXES = (".png", ".tif", ".tiff")
_READERS: dict[str, Callable[[bytes], Array]] = {
    **dict.fromkeys(IMAGE_SUFFIXES, _read_image),
    ".npy": _read_npy,
    **dict.fromkeys((".hdf5", ".h5"), _read_hdf5),
}
SUFFIXES = tuple(_READERS)
"""File name endings of score maps (any case)."""
