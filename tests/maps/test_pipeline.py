"""The pipeline: order, failures of single frames, failures of the run, bounded memory, progress."""

from __future__ import annotations

import io
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from segunc.core.errors import InputError, PartialFailure
from segunc.core.progress import ConsoleProgress, Progress, describe
from segunc.frames.source import Frame, FrameSource, Skip
from segunc.frames.sources import open_source
from segunc.maps.pipeline import Summary, run_pipeline
from segunc.maps.store import Maps, MapsWriter
from tests.maps.fakes import folder_bytes, manifest, process, write_pictures


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


def run(tmp_path: Path, process: Any = process, out: str = "out", **settings: Any) -> Summary:
    """The pictures of ``in`` through a process."""
    return run_pipeline(open_source(tmp_path / "in"), process, MapsWriter(tmp_path / out, manifest()), **settings)


def test_frames_are_in_source_order_and_groups_have_one_size(tmp_path: Path) -> None:
    names = write_pictures(tmp_path / "in", 9)
    write_pictures(tmp_path / "in", 2, (30, 20))  # one in each folder has another size
    seen: list[list[str]] = []

    def watch(frames: list[Frame]) -> list[Maps]:
        seen.append([frame.name for frame in frames])
        assert len({frame.image.shape for frame in frames if frame.image is not None}) == 1
        return process(frames)

    summary = run(tmp_path, watch, group=4, writers=3)
    everything = sorted({*names, "a/frame_000", "b/frame_001"})
    assert lines(tmp_path / "out") == everything
    assert sorted(name for call in seen for name in call) == everything
    assert max(map(len, seen)) > 1
    assert (summary.finished, summary.skipped, summary.failed) == (len(everything), 0, {})


def test_unreadable_frame_is_listed_and_retried_into_its_place(tmp_path: Path) -> None:
    names, out = write_pictures(tmp_path / "in", 6), tmp_path / "out"
    run(tmp_path, out="whole")
    broken = tmp_path / "in" / f"{names[2]}.png"
    data = broken.read_bytes()
    broken.write_bytes(data[:-20])
    assert run(tmp_path).failure.startswith(f"1 of 6 frames failed, first {names[2]}")
    found = json.loads((out / "manifest.json").read_text())
    assert [entry["name"] for entry in found["failed"]] == [names[2]]
    assert "truncated or damaged" in found["failed"][0]["reason"]

    broken.write_bytes(data)
    summary = run(tmp_path)
    assert (summary.finished, summary.skipped) == (1, 5)
    assert folder_bytes(out) == folder_bytes(tmp_path / "whole")
    assert json.loads((out / "manifest.json").read_text())["failed"] == []


def test_unfit_maps_and_refused_frames_fail_alone(tmp_path: Path) -> None:
    names = write_pictures(tmp_path / "in", 5)

    def partly(frames: list[Frame]) -> list[Maps | Exception]:
        results: list[Maps | Exception] = list(process(frames))
        for index, frame in enumerate(frames):
            if frame.name == names[1]:
                results[index] = ValueError("smaller than the network's stride")
            if frame.name == names[3]:
                results[index] = {**process([frame])[0], "entropy": np.full((24, 32), np.nan, np.float32)}
        return results

    summary = run(tmp_path, partly, group=2)
    assert set(summary.failed) == {names[1], names[3]}
    assert "stride" in summary.failed[names[1]]
    assert "NaN" in summary.failed[names[3]]
    assert lines(tmp_path / "out") == [names[0], names[2], names[4]]


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), KeyboardInterrupt()])
def test_failure_of_the_network_keeps_what_was_finished(tmp_path: Path, error: BaseException) -> None:
    write_pictures(tmp_path / "in", 8)
    run(tmp_path, out="whole")
    out, calls = tmp_path / "out", iter(range(8))

    def fails(frames: list[Frame]) -> list[Maps]:
        if next(calls) == 4:
            raise error
        return process(frames)

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
        if next(count) > 12:
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


def test_a_source_that_breaks_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="camera"):
        run_pipeline(EndlessSource(3), process, MapsWriter(tmp_path, manifest()))
    assert lines(tmp_path) == ["000000", "000001", "000002"][: len(lines(tmp_path))]
    assert not [t for t in threading.enumerate() if t.name.startswith(("decode-frames", "write-maps"))]


def test_decoding_does_not_run_ahead_of_the_network(tmp_path: Path) -> None:
    source, ahead = EndlessSource(), []

    def watch(frames: list[Frame]) -> list[Maps]:
        time.sleep(0.02)
        ahead.append(source.given - frames[-1].index)
        if len(ahead) == 12:
            raise KeyboardInterrupt
        return process(frames)

    with pytest.raises(KeyboardInterrupt):
        run_pipeline(source, watch, MapsWriter(tmp_path, manifest()), group=2, prefetch=3)
    # Three groups queued, one being built, one waiting to be queued, and this one.
    assert max(ahead) <= 2 * (3 + 3)


class Slow(MapsWriter):
    """A writer that waits, and counts."""

    def __init__(self, *args: Any, wait: Callable[[int], Any]) -> None:
        super().__init__(*args)
        self.wait = wait

    def store(self, name: str, maps: Maps, overlay: Any = None, *, place: int | None = None) -> Any:
        assert place is not None
        self.wait(place)
        return super().store(name, maps, overlay, place=place)


@pytest.mark.parametrize("group", [1, 8])
def test_the_network_goes_on_while_a_group_is_written(tmp_path: Path, group: int) -> None:
    write_pictures(tmp_path / "in", 3 * group)
    began = [threading.Event() for _ in range(3)]
    held: list[bool] = []

    def watch(frames: list[Frame]) -> list[Maps]:
        began[frames[0].index // group].set()
        return process(frames)

    def wait(place: int) -> None:
        # No frame of a group is written before the network has begun with the next one.
        held.append(began[min(place // group + 1, 2)].wait(timeout=5))

    writer = Slow(tmp_path / "out", manifest(group=group), wait=wait)
    run_pipeline(open_source(tmp_path / "in"), watch, writer, group=group)
    assert len(held) == 3 * group
    assert all(held)


def test_the_network_does_not_run_ahead_of_the_writers(tmp_path: Path) -> None:
    write_pictures(tmp_path / "in", 30)
    computed: list[int] = []
    ahead: list[int] = []

    def watch(frames: list[Frame]) -> list[Maps]:
        computed.extend(frame.index for frame in frames)
        return process(frames)

    def wait(place: int) -> None:
        time.sleep(0.01)
        ahead.append(len(computed) - place)

    writer = Slow(tmp_path / "out", manifest(), wait=wait)
    run_pipeline(open_source(tmp_path / "in"), watch, writer, prefetch=3, writers=1)
    # Three frames queued, one being written, one waiting to be queued, and the one that is computed.
    assert max(ahead) <= 3 + 3


def test_progress_lines_hold_rate_and_time_left(tmp_path: Path) -> None:
    line = describe(Progress(finished=10, failed=2, skipped=8, total=100, seconds=6.0))
    assert line == "20 of 100 frames, 2.00 frames/s, 0:40 left, 2 failed"
    assert describe(Progress(3, 0, 0, None, 2.0)) == "3 frames, 1.50 frames/s"

    write_pictures(tmp_path / "in", 6)
    stream = io.StringIO()
    with ConsoleProgress(stream, interval=3600) as show:
        run(tmp_path, on_progress=show)
    (only,) = stream.getvalue().splitlines()
    assert only.startswith("6 of 6 frames")
