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
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from segunc.core.errors import InputError, PartialFailure
from segunc.core.progress import ConsoleProgress
from segunc.frames.source import Frame, FrameSource, Skip
from segunc.frames.sources import open_source
from segunc.maps.pipeline import Summary, run_pipeline
from segunc.maps.store import Maps, MapsWriter
from tests.maps.fakes import folder_bytes, manifest, predict, process, write_pictures, write_video

SCRIPT = Path(__file__).with_name("killed_run.py")
Usage = namedtuple("Usage", "total used free")


class EndlessSource(FrameSource):
    """Counts how many frames were taken from it; the camera may be gone at some moment."""

    kind: Literal["image", "folder", "glob", "video"] = "video"

    def __init__(self, end: int | None = None) -> None:
        self.given, self.end = 0, end

    def name_of(self, index: int) -> str | None:
        return f"{index:06d}"

    def frames(self, skip: Skip | None = None) -> Iterator[Frame]:
        while True:
            if self.given == self.end:
                raise InputError("the camera is gone")
            self.given += 1
            yield Frame(f"{self.given - 1:06d}", self.given - 1, np.zeros((8, 8, 3), np.uint8))


def lines(out: Path) -> list[str]:
    return [json.loads(line)["name"] for line in (out / "frames.jsonl").read_text().splitlines()]


def run(tmp_path: Path, process: Any = process, **settings: Any) -> Summary:
    return run_pipeline(
        open_source(tmp_path / "in"), process, MapsWriter(tmp_path / "out", manifest()), **settings
    )


def test_frames_are_in_source_order_whatever_their_size(tmp_path: Path) -> None:
    names = write_pictures(tmp_path / "in", 9)
    write_pictures(tmp_path / "in", 2, (30, 20))  # one in each folder has another size
    seen: list[str] = []

    def watch(frame: Frame) -> Maps:
        seen.append(frame.name)
        return process(frame)

    stream = io.StringIO()
    with ConsoleProgress(stream, interval=3600) as show:
        summary = run(tmp_path, watch, writers=3, on_progress=show.count)
    everything = sorted({*names, "a/frame_000", "b/frame_001"})
    assert lines(tmp_path / "out") == everything
    assert seen == everything
    assert (summary.finished, summary.skipped, summary.failed) == (len(everything), 0, {})
    (only,) = stream.getvalue().splitlines()
    assert only.startswith(f"{len(everything)} of {len(everything)} frames")


def test_frames_fail_alone_and_are_retried_into_their_place(tmp_path: Path) -> None:
    names, out = write_pictures(tmp_path / "in", 6), tmp_path / "out"
    predict(tmp_path / "in", tmp_path / "whole")
    broken = tmp_path / "in" / f"{names[2]}.png"
    data = broken.read_bytes()
    broken.write_bytes(data[:-20])

    def partly(frame: Frame) -> Maps | Exception:
        if frame.name == names[1]:
            return ValueError("smaller than the network's stride")
        broken = (
            {"entropy": np.full((24, 32), np.nan, np.float32)} if frame.name == names[3] else {}
        )
        return {**process(frame), **broken}

    summary = run(tmp_path, partly)
    assert summary.failure.startswith(f"3 of 6 frames failed, first {names[1]}")
    reasons = {
        entry["name"]: entry["reason"]
        for entry in json.loads((out / "manifest.json").read_text())["failed"]
    }
    for name, reason in zip(names[1:4], ("stride", "truncated or damaged", "NaN"), strict=True):
        assert reason in reasons[name]
    assert lines(out) == [names[0], names[4], names[5]]
    broken.write_bytes(data)
    summary = run(tmp_path)
    assert (summary.finished, summary.skipped) == (3, 3)
    assert folder_bytes(out) == folder_bytes(tmp_path / "whole")
    assert json.loads((out / "manifest.json").read_text())["failed"] == []


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), KeyboardInterrupt()])
def test_failure_of_the_network_keeps_what_was_finished(
    tmp_path: Path, error: BaseException
) -> None:
    write_pictures(tmp_path / "in", 8)
    predict(tmp_path / "in", tmp_path / "whole")
    out, calls = tmp_path / "out", iter(range(8))

    def fails(frame: Frame) -> Maps:
        if next(calls) == 4:
            raise error
        return process(frame)

    with pytest.raises(type(error)):
        run(tmp_path, fails)
    assert json.loads((out / "manifest.json").read_text())["status"] == "interrupted"
    assert len(lines(out)) == 4
    run(tmp_path)
    assert folder_bytes(out) == folder_bytes(tmp_path / "whole")


def test_full_disk_is_a_partial_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pictures(tmp_path / "in", 6)
    replace, count = os.replace, iter(range(10**6))

    def full(old: Any, new: Any) -> None:
        if next(count) > 14:
            raise OSError(28, "No space left on device")
        replace(old, new)

    writer = MapsWriter(tmp_path / "out", manifest())
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(PartialFailure, match="No space left"):
        run_pipeline(open_source(tmp_path / "in"), process, writer, writers=1)
    monkeypatch.undo()
    assert 1 <= len(lines(tmp_path / "out")) < 6
    summary = run(tmp_path)
    assert summary.finished + summary.skipped == 6


def test_a_run_whose_maps_do_not_fit_on_the_disk_ends_behind_its_first_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pictures(tmp_path / "in", 8)
    out = tmp_path / "out"
    predict(tmp_path / "in", tmp_path / "whole")
    first = json.loads((tmp_path / "whole/frames.jsonl").read_text().splitlines()[0])
    took = sum((tmp_path / "whole" / file).stat().st_size for file in first["files"].values())
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, 7 * took - 1))
    with pytest.raises(
        InputError,
        match=r"of 7 more frames take .* GB, but .* GB are free .*Hint: .*`compact` or fewer",
    ):
        predict(tmp_path / "in", out)
    assert json.loads((out / "manifest.json").read_text())["status"] == "interrupted"
    assert 1 <= len(lines(out)) < 8
    # What is finished counts no more: the rest fits where the whole would not.
    predict(tmp_path / "in", out)
    assert folder_bytes(out) == folder_bytes(tmp_path / "whole")


class Slow(MapsWriter):
    def __init__(self, *args: Any, wait: Callable[[int], Any]) -> None:
        super().__init__(*args)
        self.wait = wait

    def store(self, name: str, maps: Maps, overlay: Any = None, *, place: int | None = None) -> Any:
        assert place is not None
        self.wait(place)
        return super().store(name, maps, overlay, place=place)


@pytest.mark.parametrize("slow", ["network", "writer"])
def test_nothing_runs_ahead(tmp_path: Path, slow: str) -> None:
    source, ahead, computed = EndlessSource(30), list[int](), list[int]()

    def watch(frame: Frame) -> Maps:
        computed.append(frame.index)
        if slow == "network":
            time.sleep(0.02)
            ahead.append(source.given - frame.index)
        return process(frame)

    def wait(place: int) -> None:
        if slow == "writer":
            time.sleep(0.01)
            ahead.append(len(computed) - place)

    writer = Slow(tmp_path / "out", manifest(), wait=wait)
    with pytest.raises(InputError, match="camera"):
        run_pipeline(source, watch, writer, prefetch=3, writers=1)
    # Three frames queued, one being made, one waiting to be queued, and the one that is computed.
    assert max(ahead) <= 3 + 3
    assert lines(tmp_path / "out") == [
        f"{number:06d}" for number in range(len(lines(tmp_path / "out")))
    ]
    assert not [
        t for t in threading.enumerate() if t.name.startswith(("decode-frames", "write-maps"))
    ]


def test_progress_lines_hold_rate_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, stream = iter((0.0, 12.0, 14.0)), io.StringIO()
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


@pytest.mark.parametrize(
    ("given", "compact", "kills"),
    [
        ("pictures", False, [("rename", 4)]),  # before the first file of all
        ("pictures", False, [("rename", 14)]),  # between the maps of one frame
        ("pictures", False, [("line", 1)]),
        ("pictures", True, [("compute", 5)]),
        ("pictures", True, [("rename", 12), ("line", 2)]),
        ("drive.avi", False, [("line", 6)]),
    ],
)
def test_killed_run_continues_to_the_same_bytes(
    pictures: Path, tmp_path: Path, given: str, compact: bool, kills: list[tuple[str, int]]
) -> None:
    source, out, run = (
        pictures.with_name(given),
        tmp_path / "killed",
        {"compact": True} if compact else {},
    )
    predict(source, tmp_path / "unbroken", run=run)
    expected = folder_bytes(tmp_path / "unbroken")
    for moment, count in kills:
        words = [str(source), str(out), moment, str(count), json.dumps(run)]
        killed = subprocess.run(
            [sys.executable, str(SCRIPT), *words], capture_output=True, timeout=60, check=False
        )
        assert killed.returncode == -signal.SIGKILL
        assert json.loads((out / "manifest.json").read_text())["status"] == "running"
        assert folder_bytes(out) != expected
        # A killer that misses its moment would leave neither.
        assert moment != "line" or not (out / "frames.jsonl").read_bytes().endswith(b"\n")
        assert moment != "rename" or list(out.rglob("*.segunc-partial"))
    summary = predict(source, out, run=run)
    assert summary.finished + summary.skipped == expected["frames.jsonl"].count(b"\n")
    assert folder_bytes(out) == expected
    assert json.loads((out / "manifest.json").read_text())["status"] == "finished"


def test_a_run_that_cannot_go_on_leaves_the_folder_as_it_was(
    pictures: Path, tmp_path: Path
) -> None:
    out, fewer = tmp_path / "out", tmp_path / "fewer"
    predict(pictures, out)
    write_pictures(fewer, 7)
    (fewer / "a/frame_001.png").unlink()
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(
        InputError, match=r"holds maps of frame a/frame_001 as number 1 of .*fewer, where"
    ):
        predict(fewer, out)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    # Images that come behind the others are added.
    write_pictures(fewer, 7)
    shutil.copytree(fewer / "a", fewer / "c")
    summary = predict(fewer, out)
    assert (summary.finished, summary.skipped) == (3, 7)
