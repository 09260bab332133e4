"""Several inputs, parts of videos, the summary and overlays, through the command line."""

import csv
import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest

from segunc.gallery.pictures import VIDEO_SUFFIX
from segunc.maps.reader import MapsReader
from tests.conftest import Job
from tests.support.videos import decoded
from tests.verbs.processes import FAST, SMALL, Command, refuse, succeed
from tests.verbs.test_interrupted import kill_after_three, tree, write_mask


def names(out: Path) -> list[str]:
    return [json.loads(line)["name"] for line in (out / "frames.jsonl").read_text().splitlines()]


def test_several_inputs_each_have_a_folder_and_one_summary(finetuned: Job, tmp_path: Path) -> None:
    second = tmp_path / "second.webm"
    shutil.copy(finetuned.video, second)
    out, table = tmp_path / "maps", tmp_path / "summary.csv"
    words = ("--input", finetuned.video, second, "--overlay --every 3 --start 0:00.1 --end 0.9")
    done = succeed("predict --model", finetuned.abnn, *words, "--out", out, SMALL)
    assert "second: " in done.stderr  # progress says which
    assert sorted(path.name for path in out.iterdir()) == ["crossing", "second"]
    assert (out / "second" / "overlay.webm").stat().st_size > 1000
    assert names(out / "crossing") == names(out / "second")
    assert set(names(out / "second")) <= {f"{number:06d}" for number in range(0, 12, 3)} - {
        "000000"
    }
    done = succeed("summary --top 3 --apart 0.2 --maps", out, "--out", table)
    assert "worst moments by entropy.region" in done.stdout
    rows = list(csv.DictReader(table.open(newline="")))
    assert {row["list"] for row in rows} == {"moments", "label"}
    assert "crossing/0000" in done.stdout
    assert "no mean of" in refuse("summary", "--maps", out, "--score deterministic-energy")


def test_shards_of_a_video_at_once_are_one_run(finetuned: Job, tmp_path: Path) -> None:
    command = ("predict --model", finetuned.abnn, "--input", finetuned.video, SMALL)
    succeed(*command, "--out", tmp_path / "one")
    running = [
        Command(*command, "--out", tmp_path / "two", "--shard", f"{number}/2") for number in (2, 1)
    ]
    for command_of_shard in running:
        done = command_of_shard.wait()
        assert (done.code, done.error_lines) == (0, [])
        assert ": 6 in" in done.stdout
    for path in (tmp_path / "one").rglob("*.png"):
        assert (
            tmp_path / "two" / path.relative_to(tmp_path / "one")
        ).read_bytes() == path.read_bytes()
    assert "begun in 2 shards" in refuse(*command, "--out", tmp_path / "two")


def test_blocks_of_time_are_resampled(finetuned: Job, tmp_path: Path) -> None:
    maps, labels, out = tmp_path / "maps", tmp_path / "labels", tmp_path / "metrics.json"
    succeed("predict --model", finetuned.abnn, "--input", finetuned.video, "--out", maps, SMALL)
    labels.mkdir()
    for name in names(maps):
        mask = np.zeros((64, 128), np.uint8)
        mask[40:50, 30:60] = 1
        cv2.imwrite(str(labels / f"{name}.png"), mask)
    words = ("--anomaly-labels", labels, "--scores entropy --out", out, "--resample")
    done = succeed("evaluate --maps", maps, *words, "0.5s")
    about = json.loads(out.read_text())["bootstrap"]
    assert (about["unit"], about["replicates"], about["units"]) == ("0.5s", 2000, 2)
    assert set(about["no_interval"].values()) == {"too few resampled units: 2, of at least 15"}
    assert "too few resampled units: 2, of at least 15" in done.stdout
    shutil.copytree(maps / "entropy", tmp_path / "foreign" / "entropy")
    said = refuse("evaluate --maps", tmp_path / "foreign", *words, "10s")
    assert "needs maps of a video, but no time of the frame 000000 is known" in said


def test_a_failing_input_does_not_stop_the_others(finetuned: Job, tmp_path: Path) -> None:
    inputs = [tmp_path / "first", tmp_path / "second"]
    for folder in inputs:
        shutil.copytree(finetuned.frames, folder)
    for path in inputs[0].rglob("*.png"):
        path.write_bytes(b"broken")
    out = tmp_path / "maps"
    message = refuse(
        "predict", "--model", finetuned.abnn, "--input", *inputs, "--out", out, SMALL, code=1
    )
    assert "1 of 2 inputs failed; first: no frame of" in message
    assert len(names(out / "second")) == 4


def test_everything_at_once_is_killed_and_goes_on_to_the_same_bytes(
    finetuned: Job, tmp_path: Path
) -> None:
    words = ("--overlay", "--mask", write_mask(tmp_path))
    command = ("predict --model", finetuned.abnn, "--input", finetuned.video, SMALL, *words)
    succeed(*command, "--out", tmp_path / "whole")
    kill_after_three(tmp_path / "killed", *command)
    succeed(*command, "--out", tmp_path / "killed")
    assert tree(tmp_path / "killed") == tree(tmp_path / "whole")
    reader = MapsReader(tmp_path / "whole")
    assert len(reader.frames) == 12
    for score in ("prediction", "entropy", "aleatoric", "epistemic"):
        assert not reader.read_stored("000005", score)[48:].any()


def test_overlays_their_video_and_one_frame_for_print(finetuned: Job, tmp_path: Path) -> None:
    maps, out = tmp_path / "maps", tmp_path / "out"
    words = (
        "--input",
        finetuned.video,
        "--out",
        maps,
        "--scores entropy,epistemic --every 3",
        FAST,
    )
    succeed("predict --draws 2 --model", finetuned.abnn, *words)
    command = ("overlay", "--maps", maps, "--out", out)
    done = succeed(*command, "--video --score epistemic --range epistemic=0:0.02")
    assert f"4 pictures in {out / 'overlay-epistemic'}" in done.stdout
    video = out / f"overlay-epistemic{VIDEO_SUFFIX}"
    assert f"video: {video}" in done.stdout
    assert [round(start, 2) for start in decoded(video)[0]] == [0.0, 0.24, 0.48, 0.72]
    assert sorted(path.name for path in (out / "overlay-epistemic").iterdir()) == [
        f"{n:06d}.png" for n in (0, 3, 6, 9)
    ]
    succeed(*command, "--frames 000003 --format jpg --flag entropy=0.2 --score entropy,epistemic")
    made = sorted(path.relative_to(out).as_posix() for path in out.rglob("*.jpg"))
    assert made == ["overlay-entropy/000003.jpg", "overlay-epistemic/000003.jpg"]


def test_compact_maps_go_through_every_verb(finetuned: Job, tmp_path: Path) -> None:
    maps, out = tmp_path / "maps", tmp_path / "out"
    scores = "--scores msp,entropy,epistemic,deterministic-energy"
    command = (
        "predict --draws 2 --model",
        finetuned.abnn,
        "--input",
        finetuned.frames,
        FAST,
        scores,
        "--out",
    )
    succeed(*command, tmp_path / "full")
    succeed(*command, maps, "--compact")
    assert "written with compact = True (now None)" in refuse(*command, maps)
    labels = ("--dataset toy --anomaly-labels", finetuned.masks)
    auroc = []
    for folder in (tmp_path / "full", maps):
        succeed("evaluate --replicates 0 --maps", folder, *labels, "--out", tmp_path / "m.json")
        auroc += [
            json.loads((tmp_path / "m.json").read_text())["scores"]["entropy"]["pooled"]["auroc"]
        ]
    assert auroc[1] == pytest.approx(auroc[0], abs=0.05)
    table = tmp_path / "tables" / "t.md"
    done = succeed("compare", tmp_path / "m.json", "--keys *.auroc --names compact --out", table)
    assert table.read_text() == done.stdout.split("wrote ")[0]
    assert (
        succeed("summary --maps", maps).stdout
        == succeed("summary --maps", tmp_path / "full").stdout
    )
    assert "4 pictures" in succeed("overlay --maps", maps, "--out", out).stdout
    succeed("review --maps", maps, "--out", tmp_path / "page")
