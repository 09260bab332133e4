"""Score maps of every accepted kind, read back by value; damaged and unfit ones in one line each."""

from __future__ import annotations

import io
import re
import tracemalloc
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from segunc.core.errors import InputError
from segunc.maps.encoding import decode_stored, read_score_file
from tests.maps.foreign import write_map

RAMP = np.linspace(-3, 900, 12).reshape(3, 4)
KINDS = {
    "float16 float32 float64": (".hdf5", ".h5", ".npy"),
    "uint8 uint16": (".hdf5", ".npy", ".png", ".tif"),
    "float32 float64": (".tif", ".tiff", ".TIF"),
    "int64 bool": (".npy",),
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(f"map{ending}", dtype) for dtypes, endings in KINDS.items() for dtype in dtypes.split() for ending in endings],
)
def test_every_kind_is_read_in_its_own_type(tmp_path: Path, name: str, dtype: str) -> None:
    values = np.abs(RAMP).astype(dtype) if "uint" in dtype else RAMP.astype(dtype)
    stored = read_score_file(write_map(tmp_path / name, values))
    assert stored.dtype == values.dtype
    np.testing.assert_array_equal(stored, values)


def test_an_axis_of_length_one_is_dropped(tmp_path: Path) -> None:
    for shape in ((1, 3, 4), (3, 4, 1)):
        stored = read_score_file(write_map(tmp_path / "map.npy", RAMP.reshape(shape)))
        np.testing.assert_array_equal(stored, RAMP)


def test_hdf5_takes_value_alone(tmp_path: Path) -> None:
    path = tmp_path / "map.hdf5"
    np.testing.assert_array_equal(read_score_file(write_map(path, RAMP, value=RAMP, other=RAMP[:1])), RAMP)
    for others in ({"group/value": RAMP}, {"value/inner": RAMP}):
        with pytest.raises(InputError, match="holds no data set 'value'"):
            read_score_file(write_map(path, RAMP, **others))


@pytest.mark.parametrize("name", ["map.png", "map.tif", "map.npy", "map.hdf5"])
@pytest.mark.parametrize("kept", [0.0, 0.97])
def test_a_truncated_file_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str, kept: float) -> None:
    generator = np.random.default_rng(0)
    path = write_map(tmp_path / name, generator.integers(0, 65535, (40, 50), np.uint16))
    data = path.read_bytes()
    path.write_bytes(data[: int(kept * len(data))])
    with pytest.raises(InputError, match=rf"{name} cannot be read \(.+\).* write the map again"):
        read_score_file(path)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("map.png", np.zeros((3, 4, 3), np.uint8), r"shape \(3, 4, 3\)"),
        ("map.npy", np.zeros(7), r"shape \(7,\)"),
        ("map.npy", np.zeros((2, 2), np.complex64), "type complex64"),
        ("map.npy", np.array([["a"]]), "type <U1"),
    ],
)
def test_what_is_no_map_is_refused(tmp_path: Path, name: str, values: np.ndarray, said: str) -> None:
    with pytest.raises(InputError, match=f"{name} .*{said}"):
        read_score_file(write_map(tmp_path / name, values))


def test_pickles_archives_and_other_kinds_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([{"no": "map"}]), allow_pickle=True)
    np.savez(tmp_path / "b.npz", RAMP)
    (tmp_path / "b.npz").rename(tmp_path / "b.npy")
    known = ("a.npy cannot be read", "b.npy cannot be read")
    for said in (*known, "c.jpg is of an unknown kind", "d.npy cannot be read (No such file"):
        with pytest.raises(InputError, match=re.escape(said)):
            read_score_file(tmp_path / said.split()[0])


def test_forms_decode_whole_numbers_and_leave_floats() -> None:
    codes = np.array([[0, 13107, 65535]], np.uint16)
    np.testing.assert_allclose(decode_stored(codes, "linear"), [[0, 0.2, 1]], rtol=1e-6)
    np.testing.assert_allclose(decode_stored(codes, "unit-code"), [[0, 0.04, 1]], rtol=1e-6)
    np.testing.assert_allclose(decode_stored(np.array([[51]], np.uint8), "linear"), [[0.2]], rtol=1e-6)
    for form in ("linear", "unit-code"):
        np.testing.assert_array_equal(decode_stored(RAMP, form), RAMP.astype(np.float32))


def sparse(shape: tuple[int, ...], **settings: Any) -> bytes:
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        file.create_dataset("value", shape, "f4", chunks=(64, 64), **settings)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        (
            "a.npy",
            b"\x93NUMPY\1\0\x46\0{'descr': '<f8', 'fortran_order': False, 'shape': (99999, 99999), }     \n",
            "it claims the shape",
        ),
        ("a.h5", sparse((40_000, 40_000), compression="gzip"), r"claims the shape \(40000, 40000\)"),
        ("a.h5", sparse((2**31, 2**31)), "claims the shape"),
        ("a.h5", sparse((64, 64)) + bytes(700_000), None),
        ("a.h5", sparse((12_000, 12_000)) + bytes(700_000), r"claims the shape \(12000, 12000\)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_few_bytes_claim_no_gigabytes(tmp_path: Path, name: str, data: bytes, said: str | None) -> None:
    (tmp_path / name).write_bytes(data)
    if said is None:
        assert read_score_file(tmp_path / name).shape == (64, 64)
        return
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=said) as error:
            read_score_file(tmp_path / name)
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()
    assert "\n" not in str(error.value)
