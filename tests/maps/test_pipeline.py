"""The pipeline: order, failures of single frames, failures of the run, kills, bounded memory, disk
and progress.
"""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from segunc.core.errors import InputError, PartialFailure
from segunc.core.progress import ConsoleProgress
from segunc.frames.source import Frame, FrameSource, Skip
from segunc.frames.sources import open_source
from segunc.maps.pipeline import Summary, run_pipeline
from segunc.maps.store import EncodedFrame, Maps, MapsWriter
from tests.maps.fakes import folder_bytes, manifest, predict, process, write_pictures, write_video

SCRIPT = Path(__file__).with_name("killed_run.py")
Usage = namedtuple("Usage", "total used free")


class EndlessSource(FrameSource):
    """Counts how many frames were taken from it; the camera may be gone at some moment."""

    kind: Literal["image", "folder", "glob", "video"] = "video"

    def __init__(self, end: int | None = None) -> None:
        self.given = 0
        self.end = end

    def name_of(self, index: int) -> str | None:
        return f"{index:06d}"

    def frames(self, skip: Skip | None = None) -> Iterator[Frame]:
        while self.given != self.end:
            index = self.given
            self.given += 1
            yield Frame(f"{index:06d}", index, np.zeros((8, 8, 3), np.uint8))
        raise InputError("the camera is gone")


def lines(out: Path) -> list[str]:
    """Return the names of the frames of a folder, in the order of their lines."""
    log = (out / "frames.jsonl").read_text().splitlines()
    return [json.loads(line)["name"] for line in log]


def manifest_of(out: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((out / "manifest.json").read_text())
    return content


def run(tmp_path: Path, process: Any = process, **settings: Any) -> Summary:
    source = open_source(tmp_path / "in")
    writer = MapsWriter(tmp_path / "out", manifest())
    return run_pipeline(source, process, writer, **settings)


@pytest.fixture
def two_sizes(tmp_path: Path) -> list[str]:
    """Nine pictures, of which one in each folder has another size; their names in order."""
    names = write_pictures(tmp_path / "in", 9)
    others = write_pictures(tmp_path / "in", 2, (30, 20))
    assert others == ["a/frame_000", "b/frame_001"]
    return sorted({*names, *others})


def test_frames_are_in_source_order_whatever_their_size(
    tmp_path: Path, two_sizes: list[str]
) -> None:
    computed: list[str] = []

    def watch(frame: Frame) -> Maps:
        computed.append(frame.name)
        return process(frame)

    summary = run(tmp_path, watch, writers=3)
    assert lines(tmp_path / "out") == two_sizes
    assert computed == two_sizes
    assert summary.finished == len(two_sizes)
    assert summary.skipped == 0
    assert summary.failed == {}


def test_a_short_run_shows_one_line_of_progress(tmp_path: Path, two_sizes: list[str]) -> None:
    stream = io.StringIO()
    with ConsoleProgress(stream, interval=3600) as show:
        run(tmp_path, on_progress=show.count)
    count = len(two_sizes)
    (only,) = stream.getvalue().splitlines()
    assert only.startswith(f"{count} of {count} frames")


@dataclass
class FailedRun:
    """A run of six pictures, of which three failed.

    Args:
        names: The frames in order. The second fails in the network, the third is truncated,
            the fourth has NaN in a map.
        truncated: The picture of the third frame.
        whole: The bytes of this picture before.
        summary: What the run returned.
    """

    names: list[str]
    truncated: Path
    whole: bytes
    summary: Summary


@pytest.fixture
def failed_run(tmp_path: Path) -> FailedRun:
    names = write_pictures(tmp_path / "in", 6)
    predict(tmp_path / "in", tmp_path / "whole")
    truncated = tmp_path / "in" / f"{names[2]}.png"
    whole = truncated.read_bytes()
    truncated.write_bytes(whole[:-20])

    def partly(frame: Frame) -> Maps | Exception:
        if frame.name == names[1]:
            return ValueError("smaller than the network's stride")
        maps = process(frame)
        if frame.name == names[3]:
            maps["entropy"] = np.full((24, 32), np.nan, np.float32)
        return maps

    return FailedRun(names, truncated, whole, run(tmp_path, partly))


def test_frames_fail_alone(tmp_path: Path, failed_run: FailedRun) -> None:
    names = failed_run.names
    assert failed_run.summary.failure.startswith(f"3 of 6 frames failed, first {names[1]}")
    assert lines(tmp_path / "out") == [names[0], names[4], names[5]]


def test_the_manifest_says_why_frames_failed(tmp_path: Path, failed_run: FailedRun) -> None:
    reasons = {}
    for entry in manifest_of(tmp_path / "out")["failed"]:
        reasons[entry["name"]] = entry["reason"]
    assert "stride" in reasons[failed_run.names[1]]
    assert "truncated or damaged" in reasons[failed_run.names[2]]
    assert "NaN" in reasons[failed_run.names[3]]


def test_failed_frames_are_retried_into_their_place(tmp_path: Path, failed_run: FailedRun) -> None:
    failed_run.truncated.write_bytes(failed_run.whole)
    summary = run(tmp_path)
    assert summary.finished == 3
    assert summary.skipped == 3
    assert folder_bytes(tmp_path / "out") == folder_bytes(tmp_path / "whole")
    assert manifest_of(tmp_path / "out")["failed"] == []


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), KeyboardInterrupt()])
def test_failure_of_the_network_keeps_what_was_finished(
    tmp_path: Path, error: BaseException
) -> None:
    write_pictures(tmp_path / "in", 8)
    predict(tmp_path / "in", tmp_path / "whole")
    out = tmp_path / "out"
    calls = iter(range(8))

    def fails(frame: Frame) -> Maps:
        if next(calls) == 4:
            raise error
        return process(frame)

    with pytest.raises(type(error)):
        run(tmp_path, fails)
    assert manifest_of(out)["status"] == "interrupted"
    assert len(lines(out)) == 4
    run(tmp_path)
    assert folder_bytes(out) == folder_bytes(tmp_path / "whole")


def test_full_disk_is_a_partial_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pictures(tmp_path / "in", 6)
    replace = os.replace
    count = iter(range(10**6))

    def full(old: Any, new: Any) -> None:
        if next(count) > 14:
            raise OSError(28, "No space left on device")
        replace(old, new)

    writer = MapsWriter(tmp_path / "out", manifest())
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(PartialFailure) as refused:
        run_pipeline(open_source(tmp_path / "in"), process, writer, writers=1)
    monkeypatch.undo()
    finished = len(lines(tmp_path / "out"))
    assert 1 <= finished < 6
    frames = "further frame" if finished == 5 else "further frames"
    room = f"{tmp_path / 'out'} has no room for the maps of {6 - finished} {frames}: they need "
    assert str(refused.value).startswith(room)
    summary = run(tmp_path)
    assert summary.finished + summary.skipped == 6


@dataclass
class SmallDisk:
    """Eight pictures, and a disk that lacks a byte for their maps."""

    folder: Path
    bytes_of_maps: int
    monkeypatch: pytest.MonkeyPatch

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def set_room(self, room: int) -> None:
        """Let the disk have room for so many bytes of maps, of which some are there."""

        def usage(_: Path) -> Usage:
            used = sum(path.stat().st_size for path in self.out.rglob("*") if path.is_file())
            return Usage(room, used, room - used)

        self.monkeypatch.setattr(shutil, "disk_usage", usage)


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallDisk:
    write_pictures(tmp_path / "in", 8)
    whole = tmp_path / "whole"
    predict(tmp_path / "in", whole)
    first = json.loads((whole / "frames.jsonl").read_text().splitlines()[0])
    bytes_of_frame = sum((whole / file).stat().st_size for file in first["files"].values())
    disk = SmallDisk(tmp_path, 8 * bytes_of_frame, monkeypatch)
    disk.set_room(disk.bytes_of_maps - 1)
    return disk


def refusal_of(disk: SmallDisk) -> str:
    """Return what a run says whose disk is too small."""
    with pytest.raises(PartialFailure) as refused:
        predict(disk.folder / "in", disk.out)
    return str(refused.value)


def test_a_run_whose_maps_do_not_fit_on_the_disk_ends_and_says_what_it_needs(
    small_disk: SmallDisk,
) -> None:
    small_disk.set_room(small_disk.bytes_of_maps // 2)
    said = refusal_of(small_disk)
    kept = len(lines(small_disk.out))
    assert manifest_of(small_disk.out)["status"] == "interrupted"
    assert 1 <= kept < 8
    megabytes = (8 - kept) * small_disk.bytes_of_maps / 8 / 1e6
    frames = "further frame" if kept == 7 else "further frames"
    assert said.startswith(f"{small_disk.out} has no room for the maps of {8 - kept} {frames}: ")
    assert f"they need {megabytes:.3g} MB, and " in said
    assert f"; {kept} finished frame" in said
    assert "Free space, and the same command continues after them; or begin anew" in said


def test_finished_frames_need_no_more_disk(small_disk: SmallDisk) -> None:
    """The rest fits where the whole would not."""
    assert "has no room" in refusal_of(small_disk)
    finished = len(lines(small_disk.out))
    small_disk.set_room(2 * small_disk.bytes_of_maps)
    predict(small_disk.folder / "in", small_disk.out)
    assert finished >= 1
    assert folder_bytes(small_disk.out) == folder_bytes(small_disk.folder / "whole")


class Slow(MapsWriter):
    def __init__(self, *args: Any, wait: Callable[[int], Any]) -> None:
        super().__init__(*args)
        self.wait = wait

    def store_encoded(self, encoded: EncodedFrame) -> Any:
        self.wait(encoded.record["index"])
        return super().store_encoded(encoded)


# Three frames queued, one being made, one waiting to be queued, and the one that is computed.
PREFETCHED = 3
MOST_AHEAD = PREFETCHED + 3


def assert_ended_with_the_camera(source: FrameSource, process: Any, writer: MapsWriter) -> None:
    with pytest.raises(InputError, match="camera"):
        run_pipeline(source, process, writer, prefetch=PREFETCHED, writers=1)


def test_no_frame_is_read_far_ahead_of_a_slow_network(tmp_path: Path) -> None:
    source = EndlessSource(30)
    ahead: list[int] = []

    def slow(frame: Frame) -> Maps:
        time.sleep(0.02)
        ahead.append(source.given - frame.index)
        return process(frame)

    assert_ended_with_the_camera(source, slow, MapsWriter(tmp_path / "out", manifest()))
    assert max(ahead) <= MOST_AHEAD


def test_no_frame_is_computed_far_ahead_of_a_slow_writer(tmp_path: Path) -> None:
    computed: list[int] = []
    ahead: list[int] = []

    def watch(frame: Frame) -> Maps:
        computed.append(frame.index)
        return process(frame)

    def wait(place: int) -> None:
        time.sleep(0.01)
        ahead.append(len(computed) - place)

    writer = Slow(tmp_path / "out", manifest(), wait=wait)
    assert_ended_with_the_camera(EndlessSource(30), watch, writer)
    assert max(ahead) <= MOST_AHEAD


@pytest.mark.parametrize(
    ("computing", "writing"),
    [
        (0.02, 0.0),
        (0.0, 0.01),
    ],
)
def test_a_source_that_fails_leaves_whole_lines_and_no_thread(
    tmp_path: Path, computing: float, writing: float
) -> None:
    def compute(frame: Frame) -> Maps:
        time.sleep(computing)
        return process(frame)

    writer = Slow(tmp_path / "out", manifest(), wait=lambda _: time.sleep(writing))
    assert_ended_with_the_camera(EndlessSource(30), compute, writer)
    names = lines(tmp_path / "out")
    assert names == [f"{number:06d}" for number in range(len(names))]
    for thread in threading.enumerate():
        assert not thread.name.startswith(("decode-frames", "write-maps"))


def test_progress_lines_hold_rate_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter((0.0, 12.0, 14.0))
    stream = io.StringIO()
    monkeypatch.setattr("segunc.core.progress.time.monotonic", lambda: next(clock))
    with ConsoleProgress(stream) as show:
        show.count(20, 100, "2 failed", 8)
        show.count(21, None)
    assert stream.getvalue().splitlines() == [
        "20 of 100 frames, 1.00 frames/s, 01:20 left, 2 failed",
        "21 frames, 1.50 frames/s",
    ]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("given") / "pictures"
    write_pictures(folder, 7)
    write_video(folder.parent / "drive.avi", 10)
    return folder


def kill(source: Path, out: Path, run: dict[str, Any], moment: str, count: int) -> None:
    """Run in another process until its ``count``-th ``moment``, which kills it."""
    words = [str(source), str(out), moment, str(count), json.dumps(run)]
    command = [sys.executable, str(SCRIPT), *words]
    killed = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert manifest_of(out)["status"] == "running"
    # A killer that misses its moment would leave neither a torn line nor a partial file.
    if moment == "line":
        assert not (out / "frames.jsonl").read_bytes().endswith(b"\n")
    if moment == "rename":
        assert list(out.rglob("*.segunc-partial"))


@pytest.mark.parametrize(
    ("source", "run", "kills"),
    [
        ("pictures", {}, [("rename", 4)]),  # before the first file of all
        ("pictures", {}, [("rename", 14)]),  # between the maps of one frame
        ("pictures", {}, [("line", 1)]),
        ("pictures", {"compact": True}, [("compute", 5)]),
        ("pictures", {"compact": True}, [("rename", 12), ("line", 2)]),
        ("drive.avi", {}, [("line", 6)]),
    ],
)
def test_killed_run_continues_to_the_same_bytes(
    pictures: Path,
    tmp_path: Path,
    source: str,
    run: dict[str, Any],
    kills: list[tuple[str, int]],
) -> None:
    frames = pictures.with_name(source)
    out = tmp_path / "killed"
    predict(frames, tmp_path / "unbroken", run=run)
    expected = folder_bytes(tmp_path / "unbroken")
    for moment, count in kills:
        kill(frames, out, run, moment, count)
        assert folder_bytes(out) != expected
    summary = predict(frames, out, run=run)
    assert summary.finished + summary.skipped == expected["frames.jsonl"].count(b"\n")
    assert folder_bytes(out) == expected
    assert manifest_of(out)["status"] == "finished"


def all_bytes(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def one_less(pictures: Path, tmp_path: Path) -> Path:
    """The pictures without the second; the maps of all of them lie in ``out`` beside them."""
    predict(pictures, tmp_path / "out")
    write_pictures(tmp_path / "one_less", 7)
    (tmp_path / "one_less/a/frame_001.png").unlink()
    return tmp_path / "one_less"


def test_a_run_that_cannot_go_on_leaves_the_folder_as_it_was(one_less: Path) -> None:
    out = one_less.with_name("out")
    before = all_bytes(out)
    refusal = r"holds maps of frame a/frame_001 as number 1 of .*one_less, where"
    with pytest.raises(InputError, match=refusal):
        predict(one_less, out)
    assert all_bytes(out) == before


def test_images_that_come_behind_the_others_are_added(one_less: Path) -> None:
    write_pictures(one_less, 7)
    shutil.copytree(one_less / "a", one_less / "c")
    summary = predict(one_less, one_less.with_name("out"))
    assert summary.finished == 3
    assert summary.skipped == 7
