"""Score maps of every accepted kind, read back by value; damaged and unfit ones in one line each."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from segunc.core.errors import InputError
from segunc.maps.encoding import score_keys
from segunc.maps.score_files import SUFFIXES, as_score, decode_stored, is_colour_picture, read_score_file
from tests.maps.foreign import write_map

RAMP = np.linspace(-3, 900, 12).reshape(3, 4)
KINDS = {
    "float16 float32 float64": (".hdf5", ".h5", ".npy"),
    "uint8 uint16": (".hdf5", ".npy", ".png", ".tif"),
    "float32": (".tif", ".tiff", ".TIF"),
    "int64 bool": (".npy",),
}


def test_every_ending_is_tested() -> None:
    assert set(SUFFIXES) == {ending.lower() for endings in KINDS.values() for ending in endings}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(f"map{ending}", dtype) for dtypes, endings in KINDS.items() for dtype in dtypes.split() for ending in endings],
)
def test_every_kind_is_read_in_its_own_type(tmp_path: Path, name: str, dtype: str) -> None:
    values = np.abs(RAMP).astype(dtype) if "uint" in dtype else RAMP.astype(dtype)
    stored = read_score_file(write_map(tmp_path / name, values))
    assert stored.dtype == values.dtype
    np.testing.assert_array_equal(stored, values)


@settings(max_examples=25, deadline=None)
@given(
    arrays.arrays(
        st.sampled_from([np.float16, np.float32, np.float64, np.uint8, np.uint16, np.int32]),
        arrays.array_shapes(min_dims=2, max_dims=2, max_side=9),
    )
)
def test_hdf5_and_npy_give_the_same_array(tmp_path_factory: pytest.TempPathFactory, values: np.ndarray) -> None:
    folder = tmp_path_factory.mktemp("kinds")
    for name in ("a.hdf5", "a.npy"):
        np.testing.assert_array_equal(read_score_file(write_map(folder / name, values)), values)


def test_an_axis_of_length_one_is_dropped(tmp_path: Path) -> None:
    for shape in ((1, 3, 4), (3, 4, 1)):
        stored = read_score_file(write_map(tmp_path / "map.npy", RAMP.reshape(shape)))
        np.testing.assert_array_equal(stored, RAMP)


def test_hdf5_takes_value_or_the_only_data_set(tmp_path: Path) -> None:
    path = tmp_path / "map.hdf5"
    np.testing.assert_array_equal(read_score_file(write_map(path, RAMP, **{"group/score": RAMP})), RAMP)
    np.testing.assert_array_equal(read_score_file(write_map(path, RAMP, value=RAMP, other=RAMP[:1])), RAMP)
    write_map(path, RAMP, first=RAMP, second=RAMP)
    with pytest.raises(InputError, match=r"holds 2 data sets \(first, second\); expected one, or one named 'value'"):
        read_score_file(path)


@pytest.mark.parametrize("name", ["map.png", "map.tif", "map.npy", "map.hdf5"])
@pytest.mark.parametrize("kept", [0.0, 0.5, 0.97])
def test_a_truncated_file_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str, kept: float) -> None:
    generator = np.random.default_rng(0)
    path = write_map(tmp_path / name, generator.integers(0, 65535, (40, 50), np.uint16))
    data = path.read_bytes()
    path.write_bytes(data[: int(kept * len(data))])
    with pytest.raises(InputError, match=rf"{name} cannot be read \(.+\); expected an? .+; write the map again"):
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
    known = ("a.npy cannot be read", "b.npy is an archive of arrays")
    for said in (*known, "c.jpg is of an unknown kind", "d.npy cannot be read (No such file"):
        with pytest.raises(InputError, match=re.escape(said)):
            read_score_file(tmp_path / said.split()[0])


def test_whole_numbers_without_a_range_of_their_own_are_values() -> None:
    for given_type in (np.int16, np.int64, np.uint32, np.bool_):
        score = as_score(np.array([[0, 1]], given_type))
        assert score.dtype == np.float64
        np.testing.assert_array_equal(score, [[0, 1]])
    np.testing.assert_array_equal(score_keys(as_score(np.array([[-2, 300]]))), score_keys(np.array([[-2.0, 300.0]])))
    for kept in (np.uint8, np.uint16, np.float16, np.float64):
        assert as_score(np.zeros((1, 1), kept)).dtype == kept


def test_forms_decode_whole_numbers_and_leave_floats() -> None:
    codes = np.array([[0, 13107, 65535]], np.uint16)
    np.testing.assert_allclose(decode_stored(codes, "linear"), [[0, 0.2, 1]], rtol=1e-6)
    np.testing.assert_allclose(decode_stored(codes, "unit-code"), [[0, 0.04, 1]], rtol=1e-6)
    np.testing.assert_allclose(decode_stored(np.array([[51]], np.uint8), "linear"), [[0.2]], rtol=1e-6)
    for form in ("linear", "unit-code"):
        np.testing.assert_array_equal(decode_stored(RAMP, form), RAMP.astype(np.float32))


def test_colour_pictures_are_told_by_their_header(tmp_path: Path) -> None:
    grey, colour = np.zeros((3, 4), np.uint8), np.zeros((3, 4, 3), np.uint8)
    assert all(is_colour_picture(write_map(tmp_path / name, colour)) for name in ("a.png", "a.tif"))
    (tmp_path / "d.png").write_bytes(b"no picture")
    others = (write_map(tmp_path / "b.png", grey), write_map(tmp_path / "c.png", grey.astype(np.uint16)))
    assert not any(map(is_colour_picture, (*others, tmp_path / "d.png")))
    Image.fromarray(grey).convert("P").save(tmp_path / "e.png")
    assert is_colour_picture(tmp_path / "e.png")
