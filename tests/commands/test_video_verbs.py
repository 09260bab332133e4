"""Several inputs, parts of videos and the summary, through the command line."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import time
from pathlib import Path

import cv2
import numpy as np
import pytest

from segunc.maps.reader import MapsReader
from tests.commands.processes import Command, refuse, segunc, succeed
from tests.commands.test_interrupted import kill_when, tree
from tests.conftest import Job
from tests.maps.fakes import write_timed_video

FAST = ("--draws", 2, "--precision", "float32", "--device", "cpu", "--scores", "entropy,aleatoric,epistemic")


def names(out: Path) -> list[str]:
    return [json.loads(line)["name"] for line in (out / "frames.jsonl").read_text().splitlines()]


def test_several_inputs_each_have_a_folder_and_one_summary(finetuned: Job, tmp_path: Path) -> None:
    second = tmp_path / "second.webm"
    shutil.copy(finetuned.video, second)
    out, table = tmp_path / "maps", tmp_path / "summary.csv"
    words = ("--input", finetuned.video, second, "--every", 3, "--start", "0:00.1", "--end", 0.9)
    done = segunc("predict", "--model", finetuned.abnn, *words, "--out", out, *FAST)
    assert done.code == 0
    assert "second: " in done.stderr  # progress says which
    assert sorted(path.name for path in out.iterdir()) == ["crossing", "second"]
    assert names(out / "crossing") == names(out / "second")
    assert set(names(out / "second")) <= {f"{number:06d}" for number in range(0, 12, 3)} - {"000000"}
    done = succeed("summary", "--maps", out, "--top", 3, "--apart", 0.2, "--out", table)
    assert "worst moments by entropy.mean" in done.stdout
    rows = list(csv.DictReader(table.open(newline="")))
    assert {row["list"] for row in rows} == {"moments", "label"}
    assert "crossing/0000" in done.stdout
    assert "choose another one" in refuse("summary", "--maps", out, "--score", "energy")


def test_shards_of_a_video_at_once_are_one_run(finetuned: Job, tmp_path: Path) -> None:
    command = ("predict", "--model", finetuned.abnn, "--input", finetuned.video, *FAST)
    succeed(*command, "--out", tmp_path / "one")
    running = [Command(*command, "--out", tmp_path / "two", "--shard", f"{number}/2") for number in (2, 1)]
    for number, one in zip((2, 1), running, strict=True):
        done = one.wait()
        assert (done.code, done.error_lines) == (0, [])
        assert f"(shard {number}/2): 6 in" in done.stdout
    for path in (tmp_path / "one").rglob("*.png"):
        assert (tmp_path / "two" / path.relative_to(tmp_path / "one")).read_bytes() == path.read_bytes()
    assert (tmp_path / "two/frames.csv").read_bytes() == (tmp_path / "one/frames.csv").read_bytes()
    assert "begun in 2 shards" in refuse(*command, "--out", tmp_path / "two")


def test_a_second_run_on_one_folder_is_refused_and_the_first_goes_on(finetuned: Job, tmp_path: Path) -> None:
    out = tmp_path / "maps"
    slow = ("--draws", 150, "--precision", "float32", "--device", "cpu", "--scores", "entropy")
    command = ("predict", "--model", finetuned.abnn, "--input", finetuned.video, *slow, "--out", out)
    first, lines, end = Command(*command), out / "frames.jsonl", time.monotonic() + 150
    while not (lines.exists() and lines.stat().st_size):
        assert first.process.exitcode is None, first.kill().stderr
        assert time.monotonic() < end, first.kill().stderr
        time.sleep(0.002)
    process = first.process.pid
    assert process is not None
    os.kill(process, signal.SIGSTOP)  # it must still be there when the second one comes
    try:
        message = refuse(*command)
    finally:
        os.kill(process, signal.SIGCONT)
    assert f"is being written by another run (process {process} on" in message
    assert first.wait().code == 0
    assert names(out) == [f"{number:06d}" for number in range(12)]


def test_a_video_without_a_frame_count(finetuned: Job, tmp_path: Path) -> None:
    video, out = tmp_path / "live.webm", tmp_path / "maps"
    write_timed_video(video, (0.0, 0.1, 0.3, 0.4), options={"live": "1"})
    words = ("--size", "64x96", "--compile", "off")  # of an unknown length it would be compiled, for many seconds
    succeed("predict", "--model", finetuned.abnn, "--input", video, "--out", out, *FAST, *words)
    assert names(out) == [f"{number:06d}" for number in range(4)]
    found = json.loads((out / "manifest.json").read_text())
    assert (found["source"]["frames"], found["finished"], found["status"]) == (None, 4, "finished")


@pytest.mark.parametrize("broken", [0, 1])
def test_a_failing_input_does_not_stop_the_others(finetuned: Job, tmp_path: Path, broken: int) -> None:
    inputs = [tmp_path / "first", tmp_path / "second"]
    for folder in inputs:
        shutil.copytree(finetuned.frames, folder)
    for path in inputs[broken].rglob("*.png"):
        path.write_bytes(b"broken")
    out = tmp_path / "maps"
    message = refuse("predict", "--model", finetuned.abnn, "--input", *inputs, "--out", out, *FAST, code=1)
    assert f"1 of 2 inputs failed; {inputs[broken].name}: no frame of" in message
    assert len(names(out / inputs[1 - broken].name)) == 4


def test_a_replaced_image_is_computed_again(finetuned: Job, tmp_path: Path) -> None:
    given, out = tmp_path / "in", tmp_path / "out"
    shutil.copytree(finetuned.frames, given)
    command = ("predict", "--model", finetuned.abnn, "--input", given, "--out", out, *FAST)
    succeed(*command)
    first, second = sorted(given.rglob("*.png"))[:2]
    shutil.copy(second, first)
    assert "1 in" in (done := succeed(*command).stdout)
    assert "3 were finished before" in done
    entropy = sorted((out / "entropy").rglob("*.png"))
    assert entropy[0].read_bytes() == entropy[1].read_bytes()
    first.unlink()
    assert "holds maps of frame" in refuse(*command)


def test_everything_at_once_is_killed_and_goes_on_to_the_same_bytes(finetuned: Job, tmp_path: Path) -> None:
    mask = np.full((64, 128), 255, np.uint8)
    mask[48:] = 0
    cv2.imwrite(str(tmp_path / "mask.png"), mask)
    words = ("--tile", "64x64", "--overlap", 32, "--smooth", 0.2, "--redraw", "--overlay")
    words = (*words, "--mask", tmp_path / "mask.png", "--component-threshold", "entropy=0.2")
    command = ("predict", "--model", finetuned.abnn, "--input", finetuned.video, *FAST, *words)
    succeed(*command, "--out", tmp_path / "whole")
    lines = tmp_path / "killed" / "frames.jsonl"
    kill_when(
        Command(*command, "--out", tmp_path / "killed"), lambda: lines.exists() and lines.read_bytes().count(b"\n") > 2
    )
    succeed(*command, "--out", tmp_path / "killed")
    assert tree(tmp_path / "killed") == tree(tmp_path / "whole")
    reader = MapsReader(tmp_path / "whole")
    assert len(reader) == 12
    for score in ("prediction", "entropy", "aleatoric", "epistemic"):
        assert not reader.read_stored("000005", score)[48:].any()
    run = json.loads((tmp_path / "whole/manifest.json").read_text())["run"]
    assert (run["tile"], run["smooth"], run["redraw"]) == ([64, 64, 32], 0.2, True)
    assert run["component_thresholds"]["entropy"] == 0.2
    assert "is smoothed along the video" in succeed("summary", "--maps", tmp_path / "whole").stdout
    assert "redraw = True (now False)" in refuse(*(w for w in command if w != "--redraw"), "--out", tmp_path / "whole")
