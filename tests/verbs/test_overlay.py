"""``overlay`` as a command: what it prints and writes, and its one-line errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from segunc.gallery.video import count_frames, video_suffix
from tests.conftest import Job
from tests.verbs.processes import refuse, succeed


@pytest.fixture
def maps(finetuned: Job, tmp_path: Path) -> Path:
    words = ("--draws", 2, "--precision", "float32", "--device", "cpu", "--scores", "entropy,epistemic", "--every", 3)
    succeed("predict", "--model", finetuned.abnn, "--input", finetuned.video, "--out", tmp_path / "maps", *words)
    return tmp_path / "maps"


def test_panels_and_their_video(maps: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = succeed("overlay", "--maps", maps, "--out", out, "--panel", "--video", "--range", "epistemic=0:0.02")
    assert f"4 pictures in {out / 'panel'}" in done.stdout
    video = out / f"panel{video_suffix()}"
    assert f"video: {video}" in done.stdout
    assert count_frames(video) == 4
    assert sorted(path.name for path in (out / "panel").iterdir()) == [f"{n:06d}.png" for n in (0, 3, 6, 9)]


def test_one_frame_for_print(maps: Path, tmp_path: Path) -> None:
    words = ("--frames", "000003", "--format", "pdf", "--score", "entropy,epistemic")
    succeed("overlay", "--maps", maps, "--out", tmp_path / "out", *words)
    assert sorted(path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.pdf")) == [
        "overlay-entropy/000003.pdf",
        "overlay-epistemic/000003.pdf",
    ]


def test_bad_usage(maps: Path, tmp_path: Path) -> None:
    command = ("overlay", "--maps", maps, "--out", tmp_path / "out")
    assert "--video with --format pdf" in refuse(*command, "--video", "--format", "pdf")
    assert "--fps 5 without --video" in refuse(*command, "--fps", 5)
    assert "'entropy=1' is not SCORE=LOW:HIGH" in refuse(*command, "--range", "entropy=1")
    assert "score 'x' has no maps" in refuse(*command, "--score", "x")
