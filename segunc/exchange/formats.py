"""The files in which the benchmarks take a score map: where one stands, what it is called, and its bytes."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from segunc.errors import InputError
from segunc.maps.layouts import BENCHMARK_FOLDER, FISHYSCAPES_ENDING
from segunc.maps.score_files import HDF5_KEY
from segunc.maps.store import encode_npy

Array = npt.NDArray[Any]
IMAGE_ENDING = "_leftImg8bit"
"""Ending of Cityscapes and Lost and Found images, which the frame names of SegmentMeIfYouCan do not carry."""
_GZIP_LEVEL = 9
"""As the benchmark's own writer; on smooth maps of two megapixels it takes 0.2 s, level 4 a third of it."""


@dataclass(frozen=True)
class BenchmarkFormat:
    """How a benchmark takes score maps.

    Attributes:
        folder: (method, data set) -> folder of the files, relative to the output.
        file: frame name -> name of its file.
        encode: score values ``[H, W]`` -> bytes of the file; raises InputError where they do not fit.
        dtype: the stored type.
        needs_names: whether the folder is named by method and data set.
    """

    folder: Callable[[str, str], PurePosixPath]
    file: Callable[[str], str]
    encode: Callable[[Array], bytes]
    dtype: type[np.floating[Any]]
    needs_names: bool


def encode_hdf5(values: Array) -> bytes:
    """HDF5 bytes with the data set ``value``: float16, gzip; the same bytes for the same values.

    Raises:
        InputError: a value is NaN, infinite or beyond +-65504.
    """
    import h5py

    half = _checked(values, np.float16)
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        file.create_dataset(HDF5_KEY, data=half, compression="gzip", compression_opts=_GZIP_LEVEL)
    return buffer.getvalue()


def encode_float32(values: Array) -> bytes:
    """``.npy`` bytes of the values as float32.

    Raises:
        InputError: a value is NaN, infinite or beyond float32.
    """
    return encode_npy(_checked(values, np.float32))


def _checked(values: Array, dtype: type[np.floating[Any]]) -> Array:
    """The values in a type, none of them changed by more than its rounding."""
    largest = float(np.finfo(dtype).max)
    if not np.isfinite(values).all():
        raise InputError("the map holds NaN or infinite values", "finite values", "repair the map")
    extreme = float(np.abs(values).max(initial=0))
    # Values up to half a step beyond the largest would be rounded down to it without a word.
    if extreme > largest:
        raise InputError(
            f"the map holds the value {extreme:.6g}, beyond {np.dtype(dtype).name}",
            f"values within +-{largest:.6g}",
            "scale the score by a constant factor; its order is all that counts",
        )
    return values.astype(dtype)


def _last_part(frame: str) -> str:
    return frame.rsplit("/", 1)[-1]


FORMATS = {
    # {method_name}/{dset_name}/{fid}.hdf5, data set `value`, float16, gzip 9: road_anomaly_benchmark/evaluation.py and
    # datasets/dataset_io.py of https://github.com/SegmentMeIfYouCan/road-anomaly-benchmark; a fid is the name of the
    # image without folders, for Lost and Found also without _leftImg8bit (datasets/tracks.py).
    "smiyc": BenchmarkFormat(
        folder=lambda method, dataset: PurePosixPath(BENCHMARK_FOLDER, method, dataset),
        file=lambda frame: f"{_last_part(frame).removesuffix(IMAGE_ENDING)}.hdf5",
        encode=encode_hdf5,
        dtype=np.float16,
        needs_names=True,
    ),
    # The benchmark's evaluation takes the files *_anomaly.npy of one folder, and compares in float32: eval.py of
    # https://github.com/hermannsblum/fishyscapes; its sample output is named by the image, 15.png -> 15_anomaly.npy.
    "fishyscapes": BenchmarkFormat(
        folder=lambda method, dataset: PurePosixPath(),
        file=lambda frame: f"{_last_part(frame)}{FISHYSCAPES_ENDING}.npy",
        encode=encode_float32,
        dtype=np.float32,
        needs_names=False,
    ),
}
"""Benchmark -> how it takes score maps."""
