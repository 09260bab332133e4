"""A run that is killed and continued gives the bytes of an unbroken one."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from segunc.core.errors import InputError
from segunc.frames.sources import open_source
from segunc.maps.pipeline import run_pipeline
from segunc.maps.shards import Shard
from segunc.maps.store import MapsWriter
from tests.maps.fakes import folder_bytes, manifest, process, write_pictures, write_video

SCRIPT = Path(__file__).with_name("killed_run.py")


def start(given: Path, out: Path, group: int, moment: str, count: int) -> int:
    command = [sys.executable, str(SCRIPT), str(given), str(out), str(group), moment, str(count)]
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode


def finish(given: Path, out: Path, group: int) -> MapsWriter:
    writer = MapsWriter(out, manifest(group=group))
    run_pipeline(open_source(given), process, writer, group=group)
    return writer


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("given") / "pictures"
    write_pictures(folder, 7)
    write_video(folder.parent / "drive.avi", 10)
    return folder


@pytest.mark.parametrize(
    ("given", "group", "kills"),
    [
        ("pictures", 1, [("rename", 1)]),  # before the first file of all
        ("pictures", 1, [("rename", 11)]),  # between the maps of one frame
        ("pictures", 1, [("line", 1)]),
        ("pictures", 1, [("line", 4)]),
        ("pictures", 3, [("line", 5)]),  # the second group is half finished
        ("pictures", 2, [("compute", 3)]),
        ("pictures", 2, [("rename", 9), ("line", 2)]),
        ("drive.avi", 4, [("line", 6)]),
    ],
)
def test_killed_run_continues_to_the_same_bytes(
    pictures: Path, tmp_path: Path, given: str, group: int, kills: list[tuple[str, int]]
) -> None:
    source, out = pictures.with_name(given), tmp_path / "killed"
    finish(source, tmp_path / "unbroken", group)
    expected = folder_bytes(tmp_path / "unbroken")
    for moment, count in kills:
        assert start(source, out, group, moment, count) == -signal.SIGKILL
        assert json.loads((out / "manifest.json").read_text())["status"] == "running"
        assert folder_bytes(out) != expected
        # A killer that misses its moment would leave neither.
        assert moment != "line" or not (out / "frames.jsonl").read_bytes().endswith(b"\n")
        assert moment != "rename" or list(out.rglob("*.segunc-partial"))
    assert finish(source, out, group).finished == expected["frames.jsonl"].count(b"\n")
    assert folder_bytes(out) == expected
    assert json.loads((out / "manifest.json").read_text())["status"] == "finished"


def test_a_run_that_cannot_go_on_leaves_the_folder_as_it_was(pictures: Path, tmp_path: Path) -> None:
    out, fewer = tmp_path / "out", tmp_path / "fewer"
    finish(pictures, out, 1)
    write_pictures(fewer, 7)
    (fewer / "a/frame_001.png").unlink()
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match=r"holds maps of frame a/frame_001, which .*fewer does not hold"):
        finish(fewer, out, 1)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert finish(pictures, out, 1).finished == 7


def test_an_image_that_comes_before_others_takes_its_place(pictures: Path, tmp_path: Path) -> None:
    given, out = tmp_path / "given", tmp_path / "out"
    shutil.copytree(pictures, given)
    first = given / "a/frame_000.png"
    first.rename(tmp_path / "later.png")
    finish(given, out, 1)
    run_pipeline(open_source(given), process, MapsWriter(tmp_path / "half", manifest(), shard=Shard(1, 2)))
    (tmp_path / "later.png").rename(first)
    finish(given, out, 1)
    finish(given, tmp_path / "unbroken", 1)
    assert folder_bytes(out) == folder_bytes(tmp_path / "unbroken")
    with pytest.raises(InputError, match="now stands in another shard"):
        run_pipeline(open_source(given), process, MapsWriter(tmp_path / "half", manifest(), shard=Shard(1, 2)))
