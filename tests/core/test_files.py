"""One function opens files from outside, and what they say is believed in no more than they hold;
what is written does no harm.
"""

import ast
import csv
import fcntl
import io
import os
import socket
import sys
import threading
import zipfile
from collections.abc import Callable
from itertools import count, takewhile
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import segunc
from segunc.core.errors import InputError
from segunc.core.files import (
    LineFile,
    Lock,
    csv_text,
    open_file,
    own_folder,
    parse_json,
    read_array,
    read_arrays,
    read_bytes,
    read_json,
    read_rows,
    user_folder,
    write_json,
)
from segunc.data.labels import read_label_map
from segunc.training.config import TrainConfig, parse_config


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[NaN]"], ids=ascii)
def test_what_is_no_json_is_one_line(tmp_path: Path, text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)
    (tmp_path / "x.json").write_bytes(text)
    with pytest.raises(InputError, match=r"x\.json is not valid JSON") as error:
        read_json(tmp_path / "x.json", "an object")
    assert "\n" not in str(error.value)


def test_a_text_that_no_record_can_hold_is_named(tmp_path: Path) -> None:
    content = {"input": "drives", "first": "drives/stra\udcdfe.png", "frames": 2}
    said = r"no record can hold drives/stra\\xdfe.png, because it is not UTF-8"
    with pytest.raises(InputError, match=said):
        write_json(tmp_path / "x.json", content)
    lines = LineFile(tmp_path / "x.jsonl")
    with pytest.raises(InputError, match=said):
        lines.append(content)
    lines.close()
    assert not (tmp_path / "x.json").exists()
    assert (tmp_path / "x.jsonl").read_bytes() == b""


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


OBJECTS = stored(np.zeros(1)).replace(b"<f8", b"|O ")
DAMAGED = {
    "empty": b"",
    "short": stored(np.zeros(9))[:-4],
    "objects": OBJECTS,
    "version": b"\x93NUMPY\4\0" + bytes(80),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_an_array_holds_what_its_header_claims(name: str) -> None:
    with pytest.raises(ValueError, match="not an array of numbers"):
        read_array(DAMAGED[name])
    with pytest.raises(ValueError, match=r"not an array of numbers|not an archive"):
        read_arrays(zipped(a=DAMAGED[name]))


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.float16).reshape(3, 4),
        np.array("é"),
        np.zeros((0, 5)),
        np.asfortranarray(np.eye(3)),
    ],
    ids=["halves", "text", "empty", "Fortran order"],
)
def test_good_arrays_come_back(array: np.ndarray) -> None:
    data = stored(array)
    assert np.array_equal(read_array(data), array)
    assert np.array_equal(read_arrays(zipped(a=data))["a"], array)


@pytest.mark.parametrize(
    "data",
    [
        zipped(a=stored(np.zeros(9)))[:-30],
        zipped(zipfile.ZIP_STORED, a=stored(np.zeros(9))).replace(bytes(16), b"\1" * 16, 1),
        zipped(zipfile.ZIP_STORED, a=stored(np.zeros(9))).replace(b"(9,)", b"(8,)", 1),
        b"PK\5\6" + bytes(17),
    ],
)
def test_a_damaged_archive_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="not an archive of arrays"):
        read_arrays(data)


def test_a_cell_that_is_no_formula_stays_as_it_is() -> None:
    cells: list[object] = [-1.5, None, 0, "a,b", "'", "a-b", "a=1", "'a"]
    assert csv_text([cells]) == "-1.5,,0,\"a,b\",',a-b,a=1,'a\n"


FORMULAS = ("=1.png", "-a.png", "+a", "@SUM(1)", "\t=1", "'=1", "''-a")


@pytest.mark.parametrize("text", FORMULAS)
def test_a_text_is_no_formula_of_a_spreadsheet_and_is_read_back(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.csv").write_bytes(csv_text([[text, "b"]]).encode())
    (written,) = csv.reader(io.StringIO((tmp_path / "x.csv").read_bytes().decode(), newline=""))
    assert written[0] == f"'{text}"
    assert read_rows(tmp_path / "x.csv") == [[text, "b"]]


@pytest.mark.parametrize(
    "make",
    [
        os.mkfifo,
        Path.mkdir,
        lambda path: path.symlink_to("/dev/null"),
        lambda path: path.symlink_to(path),
    ],
)
def test_a_result_takes_the_place_of_a_file_alone(
    tmp_path: Path, make: Callable[[Path], Any]
) -> None:
    place = tmp_path / "out.json"
    make(place)
    before = place.lstat()
    with pytest.raises(InputError, match=r"out\.json (is a (folder|device)|cannot be written)"):
        write_json(place, {})
    assert os.path.samestat(place.lstat(), before)
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """A folder ``a/b`` that was made as one's own."""
    tmp_path.chmod(0o700)
    folder = tmp_path / "a" / "b"
    assert own_folder(folder)
    return folder


def test_an_own_folder_is_made_for_its_user_alone(private: Path) -> None:
    assert private.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_folder_is_own_where_nobody_else_can_write(private: Path, mode: int) -> None:
    for folder in (private, private.parent):
        folder.chmod(mode)
        assert not own_folder(private), folder
        folder.chmod(0o700)
    assert own_folder(private)


def test_a_folder_is_own_below_one_where_nobody_moves_what_is_anothers(private: Path) -> None:
    """As below /tmp."""
    private.parent.chmod(0o1777)
    assert own_folder(private)


def test_a_link_or_a_file_is_no_own_folder(private: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(private)
    (tmp_path / "file").write_text("")
    assert not own_folder(tmp_path / "link")
    assert not own_folder(tmp_path / "file")


def test_a_folder_of_another_user_is_not_own(
    private: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = private.stat().st_uid
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    assert not own_folder(private)


def test_the_lock_of_a_dead_process_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    path.write_text(f"{2**22 + 1}\n{socket.gethostname()}\n")  # no process has such an id
    lock = Lock(path, "it")
    assert path.read_text().split()[0] == str(os.getpid())
    lock.release()
    assert not path.exists()


def test_a_lock_is_held_once(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    lock = Lock(path, "it")
    message = rf"it is being written by another run \(process {os.getpid()} on "
    with pytest.raises(InputError, match=message):
        Lock(path, "it")
    lock.release()
    Lock(path, "it").release()


def test_a_lock_that_is_let_go_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    lock = Lock(path, "it")
    released: list[bool] = []

    def release() -> None:
        released.append(True)
        lock.release()

    timer = threading.Timer(0.2, release)
    timer.start()
    with Lock(path, "it", 30.0):
        assert released
    timer.join()


def test_a_file_that_was_removed_before_it_was_locked_is_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on NFS, where a removed file that is open goes on under another name."""
    path, removed, flock = tmp_path / ".lock", tmp_path / ".nfs1", fcntl.flock

    def late(handle: int, how: int) -> None:
        if not removed.exists():
            path.rename(removed)
        flock(handle, how)

    monkeypatch.setattr("fcntl.flock", late)
    with Lock(path, "it"):
        assert path.read_text().split()[0] == str(os.getpid())
        assert removed.read_text() == ""
        with pytest.raises(InputError, match="another run"):
            Lock(path, "it")


def test_what_a_link_leads_to_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    mine = tmp_path / "mine"
    mine.write_text("all of it")
    path.symlink_to(mine)
    with pytest.raises(OSError, match="symbolic link"):
        Lock(path, "it")
    assert mine.read_text() == "all of it"


PACKAGE = Path(segunc.__file__).parent
OPENERS = (
    "open",
    "read_bytes",
    "read_text",
    "load_file",
    "safe_open",
    "imread",
    "VideoCapture",
    "File",
)
LOADERS = ("np.load", "torch.load", "json.load", "yaml.safe_load")
FROM_BYTES = "the library gets bytes, or a file that open_file opened"
CHECKED = "is_file is asked before the library opens it"
OWN = "a file of the package, or one that the same run has just written"
ALLOWED = {
    "cli/main.py os.open": "the null device",
    "core/device.py Path('/proc/cpuinfo').read_text": "the kernel's",
    "core/files.py open": "this is the door",
    "core/files.py os.open": "this is the door",
    "core/files.py partial.open": "writes",
    "core/files.py self.path.open": "appends",
    "core/removal.py self.path.open": "appends",
    "core/terminal.py os.open": "the null device",
    "core/urls.py target.open": "writes",
    "core/version.py BUILT_FROM.read_text": "a file of the package itself",
    "core/version.py metadata.distribution(PACKAGE).read_text": "what pip recorded",
    "verbs/export.py parent.open": "writes",
    "data/channels.py PilImage.open": FROM_BYTES,
    "data/images.py PilImage.open": FROM_BYTES,
    "frames/streams.py av.open": "a stream or a camera, or a video that the user named",
    "frames/video.py av.open": "sampled_hash has opened the file before, by open_file; or writes",
    "gallery/review_page.py asset.read_bytes": OWN,
    "gallery/change_page.py (resources.files('segunc.gallery') / STYLE).read_text": OWN,
    "gallery/review_page.py (assets / INDEX).read_text": OWN,
    "maps/encoding.py h5py.File": FROM_BYTES,
    "maps/shards.py self.path.open": "appends",
    "networks/weights.py load_file": CHECKED,
    "networks/weights.py safe_open": CHECKED,
    "verbs/init.py (resources.files('segunc.verbs') / name).read_text": OWN,
    "networks/weights.py torch.load": FROM_BYTES,
    "sampling/native.py path.read_text": OWN,
}


def calls() -> set[str]:
    """``file function`` of every call in the package, and of methods of paths that are
    handed on.
    """
    return {
        f"{path.relative_to(PACKAGE).as_posix()}"
        f" {ast.unparse(node.func if isinstance(node, ast.Call) else node)}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        or (isinstance(node, ast.Attribute) and node.attr in ("read_bytes", "read_text"))
    }


def opens(call: str) -> bool:
    function = call.partition(" ")[2]
    # read_bytes(path) and read_text(path), without a dot, are the door's own.
    last = function.rpartition(".")[2]
    return function in LOADERS or (last in OPENERS and function not in ("read_bytes", "read_text"))


def test_every_opening_of_a_file_goes_through_the_door_or_has_a_reason() -> None:
    assert {call for call in calls() if opens(call)} == ALLOWED.keys()


def test_one_function_prints() -> None:
    printing = {
        call
        for call in calls()
        if call.endswith((" print", "stdout.write", "stderr.write", "print_exception"))
    }
    assert printing == {"core/terminal.py print"}


def test_a_file_is_read_as_it_is_and_a_folder_is_none(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\0text")
    with open_file(tmp_path / "a") as file:
        assert file.read() == b"\0text"
        assert os.get_blocking(file.fileno())
    with pytest.raises(OSError, match="not a file"):
        read_bytes(Path("/dev/null"))
    with pytest.raises(IsADirectoryError):
        read_bytes(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "b")


def test_an_interrupted_opening_is_interrupted_whatever_it_was_doing(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"text")
    traced = sys.gettrace()

    def interrupted(place: int) -> bool:
        steps = count()

        def interrupt(frame: FrameType, event: str, _: Any) -> Any:
            frame.f_trace_opcodes = True
            if next(steps) == place:
                raise KeyboardInterrupt
            return interrupt

        sys.settrace(interrupt)
        try:
            open_file(tmp_path / "a").close()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(traced)
        return False

    assert sum(1 for _ in takewhile(interrupted, count())) > 50


def class_names(path: Path) -> tuple[str, ...]:
    return read_label_map(path).classes


def read_object(path: Path) -> dict[str, Any]:
    return read_json(path, "an object")


def configured_data_set(path: Path) -> str:
    return parse_config(TrainConfig, path, []).data["dataset"]


LABEL_MAP = "id,name,train_id,red,green,blue\n0,road,0,1,2,3\n"
every_reader = pytest.mark.parametrize(
    ("text", "read", "expected"),
    [
        (LABEL_MAP, class_names, ("road",)),
        ('{"a": 1}', read_object, {"a": 1}),
        ("data: {dataset: toy, root: x}", configured_data_set, "toy"),
        ("network,dataset\n", read_rows, [["network", "dataset"]]),
        ('a;"b, c"\n1,5;2\n', read_rows, [["a", "b, c"], ["1,5", "2"]]),
        ("a\tb\n1;5\t2,5\n", read_rows, [["a", "b"], ["1;5", "2,5"]]),
    ],
    ids=["label map", "JSON", "configuration", "rows", "semicolons", "tabs"],
)


@every_reader
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_excels_byte_order_mark_changes_nothing(
    tmp_path: Path, text: str, read: Callable[[Path], Any], expected: Any, encoding: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(text.encode(encoding))
    assert read(path) == expected


@every_reader
def test_utf_16_is_refused(
    tmp_path: Path, text: str, read: Callable[[Path], Any], expected: Any
) -> None:
    path = tmp_path / "file"
    path.write_bytes(text.encode("utf-16"))
    with pytest.raises(Exception, match=r"UTF-8"):
        read(path)


def test_a_user_without_a_home_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a container with a number for a user: neither HOME nor an entry in the list of users."""
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    assert user_folder("XDG_CONFIG_HOME", ".config") is None
