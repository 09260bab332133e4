"""One function opens files that come from outside, and one prints: everything else is in a list that says why."""

from __future__ import annotations

import ast
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import segunc
from segunc.core.errors import InputError
from segunc.core.files import open_file, read_bytes, read_json, read_record, read_rows, user_folder
from segunc.data.images import read_image
from segunc.data.labels import read_label_map
from segunc.evaluation.results import load_results
from segunc.frames.source import sampled_hash
from segunc.maps.encoding import read_score_file
from segunc.maps.manifest import read_manifest
from segunc.networks.weights import read_checkpoint, read_tensors
from segunc.options import class_pairs
from segunc.training.config import TrainConfig, parse_config

PACKAGE = Path(segunc.__file__).parent
OPENERS = ("open", "read_bytes", "read_text", "load_file", "safe_open", "imread", "VideoCapture", "File")
LOADERS = ("np.load", "torch.load", "json.load", "yaml.safe_load")
FROM_BYTES = "the library gets bytes, or a file that open_file opened"
CHECKED = "require_file looks at the path before the library opens it"
OWN = "a file of the package, or one that the same run has just written"
ALLOWED = {
    "cli/main.py os.open": "the null device",
    "core/files.py os.open": "this is the door",
    "core/files.py path.open": "writes",
    "core/files.py np.load": FROM_BYTES,
    "data/images.py PilImage.open": FROM_BYTES,
    "evaluation/models.py np.load": OWN,
    "exchange/export.py h5py.File": FROM_BYTES,
    "frames/video.py av.open": "sampled_hash has opened the file before, by open_file; or writes",
    "gallery/page.py asset.read_bytes": OWN,
    "gallery/page.py (assets / 'index.html').read_text": OWN,
    "maps/encoding.py h5py.File": FROM_BYTES,
    "maps/shards.py self.path.open": "appends",
    "networks/weights.py load_file": CHECKED,
    "networks/weights.py torch.load": FROM_BYTES,
    "sampling/tail_native.py Path('/proc/cpuinfo').read_text": "the kernel's",
    "sampling/tail_native.py SOURCE.read_text": OWN,
}


def calls() -> set[str]:
    """``file function`` of every call in the package, and of methods of paths that are handed on."""
    return {
        f"{path.relative_to(PACKAGE).as_posix()} {ast.unparse(node.func if isinstance(node, ast.Call) else node)}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) or (isinstance(node, ast.Attribute) and node.attr in ("read_bytes", "read_text"))
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
        call for call in calls() if call.endswith((" print", "stdout.write", "stderr.write", "print_exception"))
    }
    assert printing == {"core/terminal.py print"}


READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "bytes": ("x", read_bytes),
    "posterior.json": ("posterior.json", lambda path: read_record(path, "a posterior")),
    "manifest": ("manifest.json", lambda path: read_manifest(path.parent)),
    "tensors": ("x.safetensors", lambda path: read_tensors(path, "tensors", "")),
    "checkpoint": ("x.ckpt", read_checkpoint),
    "result": ("metrics.json", lambda path: load_results([path])),
    "label map": ("map.csv", read_label_map),
    "configuration": ("train.yaml", lambda path: parse_config(TrainConfig, path, [])),
    "image": ("x.png", read_image),
    "video": ("x.mp4", lambda path: sampled_hash(path, 2, 10)),
    "npy": ("x.npy", read_score_file),
}


@pytest.fixture
def deadline() -> Iterator[None]:
    """Whoever waits for the other end of a pipe is interrupted."""

    import segunc.data.module  # noqa: F401 - whose import may take longer than the deadline

    def end(*_: object) -> None:
        pytest.fail("it waits for ever")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.usefixtures("deadline")
def test_a_pipe_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    name, read = READERS[kind]
    os.mkfifo(tmp_path / name)
    with pytest.raises((InputError, OSError)):
        read(tmp_path / name)


def test_a_file_is_read_as_it_is_and_a_folder_is_none(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\0text")
    with open_file(tmp_path / "a") as file:
        assert file.read() == b"\0text"
        assert os.get_blocking(file.fileno())
    with pytest.raises(OSError, match="no file"):
        read_bytes(Path("/dev/null"))
    with pytest.raises(IsADirectoryError):
        read_bytes(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "b")


TABLES = "id,name,train_id,red,green,blue\n0,road,0,1,2,3\n", "network,dataset\nroad,street\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_excels_byte_order_mark_changes_nothing_and_utf_16_is_refused(tmp_path: Path, encoding: str) -> None:
    files = {"map.csv": TABLES[0], "pairs.csv": TABLES[1]}
    files |= {"x.json": '{"a": 1}', "train.yaml": "data:\n  dataset: toy\n  root: nowhere\n"}
    for name, text in files.items():
        (tmp_path / name).write_bytes(text.encode(encoding))
    read: list[tuple[Callable[[], Any], Any]] = [
        (lambda: read_label_map(tmp_path / "map.csv").classes, ("road",)),
        (lambda: class_pairs(str(tmp_path / "pairs.csv")), {"road": "street"}),
        (lambda: read_json(tmp_path / "x.json", "an object"), {"a": 1}),
        (lambda: parse_config(TrainConfig, tmp_path / "train.yaml", []).data["dataset"], "toy"),
        (lambda: read_rows(tmp_path / "pairs.csv")[0], ["network", "dataset"]),
    ]
    for reader, expected in read:
        if encoding != "utf-16":
            assert reader() == expected
        else:
            with pytest.raises(Exception, match=r"UTF-8"):
                reader()


def test_a_user_without_a_home_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a container with a number for a user: neither HOME nor an entry in the list of users."""

    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr(Path, "home", home)
    assert user_folder("XDG_CONFIG_HOME", ".config") is None
