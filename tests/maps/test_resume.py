"""A run that is killed and continued gives the bytes of an unbroken one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from segunc.core.errors import InputError
from tests.maps.fakes import folder_bytes, predict, write_pictures, write_video

SCRIPT = Path(__file__).with_name("killed_run.py")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("given") / "pictures"
    write_pictures(folder, 7)
    write_video(folder.parent / "drive.avi", 10)
    return folder


@pytest.mark.parametrize(
    ("given", "group", "kills"),
    [
        ("pictures", 1, [("rename", 4)]),  # before the first file of all
        ("pictures", 1, [("rename", 14)]),  # between the maps of one frame
        ("pictures", 1, [("line", 1)]),
        ("pictures", 1, [("line", 4)]),
        ("pictures", 3, [("line", 5)]),  # the second group is half finished
        ("pictures", 2, [("compute", 3)]),
        ("pictures", 2, [("rename", 12), ("line", 2)]),
        ("drive.avi", 4, [("line", 6)]),
    ],
)
def test_killed_run_continues_to_the_same_bytes(
    pictures: Path, tmp_path: Path, given: str, group: int, kills: list[tuple[str, int]]
) -> None:
    source, out, run = pictures.with_name(given), tmp_path / "killed", {"compact": True} if group == 2 else {}
    predict(source, tmp_path / "unbroken", group=group, run=run)
    expected = folder_bytes(tmp_path / "unbroken")
    for moment, count in kills:
        words = [str(source), str(out), str(group), moment, str(count), json.dumps(run)]
        killed = subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, timeout=60, check=False)
        assert killed.returncode == -signal.SIGKILL
        assert json.loads((out / "manifest.json").read_text())["status"] == "running"
        assert folder_bytes(out) != expected
        # A killer that misses its moment would leave neither.
        assert moment != "line" or not (out / "frames.jsonl").read_bytes().endswith(b"\n")
        assert moment != "rename" or list(out.rglob("*.segunc-partial"))
    summary = predict(source, out, group=group, run=run)
    assert summary.finished + summary.skipped == expected["frames.jsonl"].count(b"\n")
    assert folder_bytes(out) == expected
    assert json.loads((out / "manifest.json").read_text())["status"] == "finished"


def test_a_run_that_cannot_go_on_leaves_the_folder_as_it_was(pictures: Path, tmp_path: Path) -> None:
    out, fewer = tmp_path / "out", tmp_path / "fewer"
    predict(pictures, out)
    write_pictures(fewer, 7)
    (fewer / "a/frame_001.png").unlink()
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match=r"holds maps of frame a/frame_001 as number 1 of .*fewer, where"):
        predict(fewer, out)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    # Images that come behind the others are added.
    write_pictures(fewer, 7)
    (fewer / "c").mkdir()
    (fewer / "c/later.png").write_bytes((fewer / "a/frame_001.png").read_bytes())
    summary = predict(fewer, out)
    assert (summary.finished, summary.skipped) == (1, 7)
