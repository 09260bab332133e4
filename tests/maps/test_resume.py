"""A run that is killed and continued gives the bytes of an unbroken one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from segunc.core.errors import InputError
from segunc.frames.sources import open_source
from segunc.maps.pipeline import run_pipeline
from segunc.maps.store import MapsWriter
from tests.maps.fakes import folder_bytes, manifest, process, write_pictures, write_video

SCRIPT = Path(__file__).with_name("killed_run.py")


def start(given: Path, out: Path, group: int, moment: str, count: int) -> int:
    command = [sys.executable, str(SCRIPT), str(given), str(out), str(group), moment, str(count)]
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode


def unbroken(given: Path, out: Path, group: int) -> dict[str, bytes]:
    run_pipeline(open_source(given), process, MapsWriter(out, manifest(group=group)), group=group)
    return folder_bytes(out)


def finish(given: Path, out: Path, group: int) -> MapsWriter:
    writer = MapsWriter(out, manifest(group=group))
    run_pipeline(open_source(given), process, writer, group=group)
    return writer


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    write_pictures(folder, 7)
    return folder


@pytest.mark.parametrize(
    ("moment", "count", "group"),
    [
        ("rename", 1, 1),  # before the first file of all
        ("rename", 11, 1),  # between the maps of one frame
        ("line", 1, 1),
        ("line", 4, 1),
        ("line", 5, 3),  # the second group is half finished
        ("compute", 3, 2),
    ],
)
def test_killed_run_continues_to_the_same_bytes(
    pictures: Path, tmp_path: Path, moment: str, count: int, group: int
) -> None:
    expected = unbroken(pictures, tmp_path / "unbroken", group)
    out = tmp_path / "killed"
    assert start(pictures, out, group, moment, count) == -signal.SIGKILL
    assert json.loads((out / "manifest.json").read_text())["status"] == "running"
    assert folder_bytes(out) != expected

    finish(pictures, out, group)

    assert folder_bytes(out) == expected
    assert json.loads((out / "manifest.json").read_text())["status"] == "finished"


def test_a_run_killed_again_and_again_ends_with_the_same_bytes(pictures: Path, tmp_path: Path) -> None:
    expected = unbroken(pictures, tmp_path / "unbroken", 2)
    out = tmp_path / "killed"
    assert start(pictures, out, 2, "rename", 9) == -signal.SIGKILL
    assert start(pictures, out, 2, "line", 2) == -signal.SIGKILL
    assert start(pictures, out, 2, "never", 0) == 0
    assert folder_bytes(out) == expected


def test_video_continues_inside_a_group(tmp_path: Path) -> None:
    video = tmp_path / "drive.avi"
    write_video(video, 10)
    expected = unbroken(video, tmp_path / "unbroken", 4)
    out = tmp_path / "killed"
    assert start(video, out, 4, "line", 6) == -signal.SIGKILL
    assert finish(video, out, 4).finished == 10
    assert folder_bytes(out) == expected


def test_the_torn_line_and_partial_files_are_really_there_after_the_kill(pictures: Path, tmp_path: Path) -> None:
    """Guards the kill tests: without it they would pass on a killer that misses its moment."""
    start(pictures, tmp_path / "line", 1, "line", 3)
    lines = (tmp_path / "line" / "frames.jsonl").read_bytes()
    assert lines.count(b"\n") == 2
    assert not lines.endswith(b"\n")
    start(pictures, tmp_path / "rename", 1, "rename", 11)
    assert list((tmp_path / "rename").rglob("*.segunc-partial"))


def test_a_run_that_cannot_go_on_leaves_the_folder_as_it_was(pictures: Path, tmp_path: Path) -> None:
    out, fewer = tmp_path / "out", tmp_path / "fewer"
    unbroken(pictures, out, 1)
    write_pictures(fewer, 7)
    (fewer / "a/frame_001.png").unlink()
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match=r"holds maps of frame a/frame_001, which .*fewer does not hold"):
        finish(fewer, out, 1)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert finish(pictures, out, 1).finished == 7
