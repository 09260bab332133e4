"""What a file says is believed in no more than its bytes can hold, and what is written does no harm where it is opened."""

from __future__ import annotations

import io
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from segunc.core.errors import InputError
from segunc.core.files import (
    check_place,
    csv_text,
    own_folder,
    parse_json,
    read_array,
    read_arrays,
    read_json,
    write_json,
)

NO_JSON = [b"", b"{", b"\xff", b'{"a":' * 100_000, b"[NaN]", b'["\\uD800"]']


@pytest.mark.parametrize("text", NO_JSON, ids=lambda text: ascii(text[:9]))
def test_what_is_no_json_is_one_line(tmp_path: Path, text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)
    (tmp_path / "x.json").write_bytes(text)
    with pytest.raises(InputError, match=r"x\.json is not valid JSON") as error:
        read_json(tmp_path / "x.json", "an object")
    assert "\n" not in str(error.value)


def npy(shape: str, kind: str = "<f4", data: bytes = b"", version: bytes = b"\1\0") -> bytes:
    """An array whose header says what it wants."""
    head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY" + version + struct.pack("<H" if version[0] == 1 else "<I", len(head)) + head + data


def stored(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def zipped(how: int = zipfile.ZIP_DEFLATED, **members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", how) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return buffer.getvalue()


DAMAGED = {
    "empty": b"",
    "huge": npy("(1000000, 1000000)"),
    "below-0": npy("(-1, 4)", data=bytes(16)),
    "short": npy("(4, 4)", data=bytes(60)),
    "no-character": npy("()", "<U1", b"\x00\x00\x22\x00"),
    "objects": npy("(1,)", "|O", b"\x80\x04."),
    "version": npy("(1,)", data=bytes(4), version=b"\4\0"),
    "deep": npy("(" * 9000),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_an_array_holds_what_its_header_claims(name: str) -> None:
    with pytest.raises(ValueError, match="no array of numbers"):
        read_array(DAMAGED[name])
    with pytest.raises(ValueError, match=r"no array of numbers|no archive"):
        read_arrays(zipped(a=DAMAGED[name]), 2**20)


def test_good_arrays_come_back() -> None:
    halves = np.arange(12, dtype=np.float16).reshape(3, 4)
    for array in (halves, np.array("é"), np.zeros((0, 5)), np.asfortranarray(np.eye(3))):
        assert np.array_equal(read_array(stored(array)), array)
        assert np.array_equal(read_arrays(zipped(a=stored(array)), 2**20)["a"], array)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (zipped(a=stored(np.zeros(10_000_000, np.uint8))), "unpacks to 10 MB, and no more than 1.05 MB"),
        (zipped(**{f"a{i}": stored(np.zeros(200_000, np.uint8)) for i in range(6)}), "unpacks to 1.2 MB"),
        (zipped(a=stored(np.zeros(9)))[:-30], "no archive of arrays"),
        (zipped(zipfile.ZIP_STORED, a=stored(np.zeros(9))).replace(bytes(16), b"\1" * 16, 1), "no archive of arrays"),
        (b"PK\5\6" + bytes(17), "no archive of arrays"),
    ],
)
def test_an_archive_unpacks_to_what_may_be_read(data: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_arrays(data, 2**20)


def test_a_cell_is_no_formula_and_a_number_stays() -> None:
    texts = ["=1+1", "+a", "-a/b", "@SUM(A1)", "\t=1", "\r=1", "＝1", "-", "=HYPERLINK('x')", "--1"]
    numbers: list[object] = [-1.5, "-1.5", "+3", "-inf", None, 0, "a=b", "1-2", "'", "-1e-9"]
    assert csv_text([[text] for text in texts]).count("'") == len(texts) + 2
    assert all(f"'{text[0]}" in csv_text([[text]]) for text in texts)
    assert csv_text([numbers]) == "-1.5,-1.5,+3,-inf,,0,a=b,1-2,',-1e-9\n"


@pytest.mark.parametrize(
    "make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/null"), lambda path: path.symlink_to(path)]
)
def test_a_result_takes_the_place_of_a_file_alone(tmp_path: Path, make: Callable[[Path], Any]) -> None:
    place = tmp_path / "out.json"
    make(place)
    before = place.lstat()
    with pytest.raises(InputError, match=r"out\.json (is a (folder|device)|cannot be written)"):
        write_json(place, {})
    assert os.path.samestat(place.lstat(), before)
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_a_place_below_a_file_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path, folder in (("file/x/y.json", False), ("file", True), ("x" * 300, False)):
        with pytest.raises(InputError) as error:
            check_place(tmp_path / path, folder=folder)
        assert "\n" not in str(error.value)
    check_place(tmp_path / "file")
    check_place(tmp_path, folder=True)
    check_place(tmp_path / "new/er/x.json")


def test_a_folder_is_own_where_nobody_else_can_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    place = tmp_path / "a" / "b"
    assert own_folder(place)
    assert place.stat().st_mode & 0o777 == 0o700
    for folder in (place, place.parent):
        for mode in (0o777, 0o770, 0o702):
            folder.chmod(mode)
            assert not own_folder(place), (folder, oct(mode))
        folder.chmod(0o700)
    place.parent.chmod(0o1777)  # as /tmp: nobody moves what is another's
    assert own_folder(place)
    (tmp_path / "link").symlink_to(place)
    (tmp_path / "file").write_text("")
    assert not own_folder(tmp_path / "link")
    assert not own_folder(tmp_path / "file")
    monkeypatch.setattr(os, "getuid", lambda: place.stat().st_uid + 1)
    assert not own_folder(place)
