"""Several inputs, parts of videos, the summary and overlays, through the command line."""

import csv
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import pytest

from segunc.maps.reader import MapsReader
from tests.conftest import Job
from tests.support.videos import decoded
from tests.verbs.processes import FAST, SMALL, Command, refuse, succeed
from tests.verbs.test_interrupted import kill_after_three, tree, write_mask


def names(out: Path) -> list[str]:
    lines = (out / "frames.jsonl").read_text().splitlines()
    return [json.loads(line)["name"] for line in lines]


@pytest.fixture
def two_videos(finetuned: Job, tmp_path: Path) -> Path:
    """Maps of a part of two equal videos."""
    second = tmp_path / "second.webm"
    shutil.copy(finetuned.video, second)
    out = tmp_path / "maps"
    words = ("--input", finetuned.video, second, "--overlay --every 3 --start 0:00.1 --end 0.9")
    done = succeed("predict --model", finetuned.abnn, *words, "--out", out, SMALL)
    assert "second: " in done.stderr  # progress says which
    return out


def test_several_inputs_each_have_a_folder(two_videos: Path) -> None:
    assert sorted(path.name for path in two_videos.iterdir()) == ["crossing", "second"]
    assert (two_videos / "second" / "overlay.webm").stat().st_size > 1000
    frames = names(two_videos / "second")
    assert names(two_videos / "crossing") == frames
    assert set(frames) <= {"000003", "000006", "000009"}


def test_several_inputs_have_one_summary(two_videos: Path, tmp_path: Path) -> None:
    table = tmp_path / "summary.csv"
    done = succeed("summary --top 3 --apart 0.2 --maps", two_videos, "--out", table)
    assert "worst moments by entropy.region" in done.stdout
    assert "crossing/0000" in done.stdout
    with table.open(newline="") as file:
        lists = {row["list"] for row in csv.DictReader(file)}
    assert lists == {"moments", "label"}


def test_a_score_without_maps_has_no_summary(two_videos: Path) -> None:
    words = ("--maps", two_videos, "--score deterministic-energy")
    assert "no mean of" in refuse("summary", *words)


def test_shards_of_a_video_at_once_are_one_run(finetuned: Job, tmp_path: Path) -> None:
    command = ("predict --model", finetuned.abnn, "--input", finetuned.video, SMALL)
    whole = tmp_path / "one"
    sharded = tmp_path / "two"
    succeed(*command, "--out", whole)
    second = Command(*command, "--out", sharded, "--shard 2/2")
    first = Command(*command, "--out", sharded, "--shard 1/2")
    for shard in (second, first):
        done = shard.wait()
        assert done.code == 0
        assert done.error_lines == []
        assert ": 6 in" in done.stdout
    for path in whole.rglob("*.png"):
        other = sharded / path.relative_to(whole)
        assert other.read_bytes() == path.read_bytes()
    succeed(*command, "--out", sharded)
    assert (sharded / "frames.jsonl").read_bytes() == (whole / "frames.jsonl").read_bytes()


@pytest.fixture
def video_maps(finetuned: Job, tmp_path: Path) -> Path:
    """Maps of the video; a folder ``labels`` beside them has a mask of each frame."""
    maps = tmp_path / "maps"
    succeed("predict --model", finetuned.abnn, "--input", finetuned.video, "--out", maps, SMALL)
    mask = np.zeros((64, 128), np.uint8)
    mask[40:50, 30:60] = 1
    labels = tmp_path / "labels"
    labels.mkdir()
    for name in names(maps):
        cv2.imwrite(str(labels / f"{name}.png"), mask)
    return maps


def resample_words(folder: Path, length: str) -> list[object]:
    labels = ("--anomaly-labels", folder / "labels")
    return [*labels, "--scores entropy --out", folder / "metrics.json", "--resample", length]


def test_blocks_of_time_are_resampled(video_maps: Path, tmp_path: Path) -> None:
    done = succeed("evaluate --maps", video_maps, *resample_words(tmp_path, "0.5s"))
    bootstrap = json.loads((tmp_path / "metrics.json").read_text())["bootstrap"]
    assert bootstrap["unit"] == "0.5s"
    assert bootstrap["replicates"] == 2000
    assert bootstrap["units"] == 2
    reason = "too few resampled units: 2, of at least 15"
    assert set(bootstrap["no_interval"].values()) == {reason}
    assert reason in done.stdout


def test_blocks_of_time_need_the_times_of_frames(video_maps: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    shutil.copytree(video_maps / "entropy", foreign / "entropy")
    refusal = refuse("evaluate --maps", foreign, *resample_words(tmp_path, "10s"))
    assert "needs maps of a video, but no time of the frame 000000 is known" in refusal


def test_a_failing_input_does_not_stop_the_others(finetuned: Job, tmp_path: Path) -> None:
    failing = tmp_path / "first"
    shutil.copytree(finetuned.frames, failing)
    for path in failing.rglob("*.png"):
        path.write_bytes(b"broken")
    other = tmp_path / "second"
    shutil.copytree(finetuned.frames, other)
    out = tmp_path / "maps"
    words = ("--input", failing, other, "--out", out, SMALL)
    refusal = refuse("predict --model", finetuned.abnn, *words, code=1)
    assert "1 of 2 inputs failed; first: no frame of" in refusal
    assert len(names(out / "second")) == 4


def test_everything_at_once_is_killed_and_goes_on_to_the_same_bytes(
    finetuned: Job, tmp_path: Path
) -> None:
    words = ("--overlay", "--mask", write_mask(tmp_path))
    command = ("predict --model", finetuned.abnn, "--input", finetuned.video, SMALL, *words)
    whole = tmp_path / "whole"
    killed = tmp_path / "killed"
    succeed(*command, "--out", whole)
    kill_after_three(killed, *command)
    succeed(*command, "--out", killed)
    assert tree(killed) == tree(whole)
    reader = MapsReader(whole)
    assert len(reader.frames) == 12
    for score in ("prediction", "entropy", "aleatoric", "epistemic"):
        assert not reader.read_stored("000005", score)[48:].any()


@pytest.fixture
def thinned_maps(finetuned: Job, tmp_path: Path) -> Path:
    """Maps of every third frame of the video."""
    maps = tmp_path / "maps"
    words = ("--input", finetuned.video, "--out", maps)
    scores = "--scores entropy,epistemic --every 3"
    succeed("predict --draws 2 --model", finetuned.abnn, *words, scores, FAST)
    return maps


def test_overlays_and_their_video(thinned_maps: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = "--video --score epistemic --range epistemic=0:0.02"
    done = succeed("overlay --maps", thinned_maps, "--out", out, options)
    pictures = out / "overlay-epistemic"
    assert f"4 pictures in {pictures}" in done.stdout
    assert sorted(path.name for path in pictures.iterdir()) == [
        "000000.png",
        "000003.png",
        "000006.png",
        "000009.png",
        "overlay.json",
    ]
    video = out / "overlay-epistemic.webm"
    assert f"video: {video}" in done.stdout
    times, _ = decoded(video)
    assert [round(time, 2) for time in times] == [0.0, 0.24, 0.48, 0.72]


def test_overlays_of_one_frame_for_print(thinned_maps: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = "--frames 000003 --format jpg --flag entropy=0.2 --score entropy,epistemic"
    succeed("overlay --maps", thinned_maps, "--out", out, options)
    written = sorted(path.relative_to(out).as_posix() for path in out.rglob("*.jpg"))
    assert written == ["overlay-entropy/000003.jpg", "overlay-epistemic/000003.jpg"]


def test_a_video_of_pages_is_refused(thinned_maps: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    refusal = refuse("overlay --maps", thinned_maps, "--out", out, "--video --format pdf")
    assert "--format pdf makes pages, of which no video is made" in refusal
    assert not out.exists()


@dataclass(frozen=True)
class Sizes:
    """Maps of the same frames at both sizes, and the words that made them but for the folder."""

    full: Path
    compact: Path
    command: tuple[object, ...]


@pytest.fixture(scope="module")
def sizes(finetuned: Job, tmp_path_factory: pytest.TempPathFactory) -> Sizes:
    folder = tmp_path_factory.mktemp("sizes")
    scores = "--scores msp,entropy,epistemic,deterministic-energy"
    words = ("--model", finetuned.abnn, "--input", finetuned.frames)
    command = ("predict --draws 2", FAST, scores, *words, "--out")
    sizes = Sizes(folder / "full", folder / "compact", command)
    succeed(*command, sizes.full)
    succeed(*command, sizes.compact, "--compact")
    return sizes


def entropy_auroc(maps: Path, masks: Path, out: Path) -> float:
    labels = ("--dataset toy --anomaly-labels", masks)
    succeed("evaluate --replicates 0 --maps", maps, *labels, "--out", out)
    return json.loads(out.read_text())["scores"]["entropy"]["pooled"]["auroc"]


def test_compact_maps_are_not_mixed_with_full_ones(sizes: Sizes) -> None:
    refusal = refuse(*sizes.command, sizes.compact)
    assert "written with compact = True (now None)" in refusal


def test_compact_maps_have_nearly_the_same_numbers(
    finetuned: Job, sizes: Sizes, tmp_path: Path
) -> None:
    out = tmp_path / "metrics.json"
    full = entropy_auroc(sizes.full, finetuned.masks, out)
    compact = entropy_auroc(sizes.compact, finetuned.masks, out)
    assert compact == pytest.approx(full, abs=0.05)


def test_numbers_of_compact_maps_are_compared(finetuned: Job, sizes: Sizes, tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.json"
    entropy_auroc(sizes.compact, finetuned.masks, metrics)
    table = tmp_path / "tables" / "t.md"
    done = succeed("compare", metrics, "--keys *.auroc --names compact --out", table)
    assert table.read_text() == done.stdout.split("wrote ")[0]


def test_compact_maps_have_the_summary_of_full_ones(sizes: Sizes) -> None:
    compact = succeed("summary --maps", sizes.compact).stdout
    assert compact == succeed("summary --maps", sizes.full).stdout


def test_compact_maps_are_drawn_and_reviewed(sizes: Sizes, tmp_path: Path) -> None:
    done = succeed("overlay --maps", sizes.compact, "--out", tmp_path / "out")
    assert "4 pictures" in done.stdout
    succeed("review --maps", sizes.compact, "--out", tmp_path / "page")


def predict_into(out: Path, job: Job, *videos: Path) -> str:
    words = ("--input", *videos, "--out", out, "--every 6", SMALL)
    return succeed("predict --model", job.abnn, *words).stdout


def copies(job: Job, root: Path, *names: str) -> list[Path]:
    videos = [root / name for name in names]
    for video in videos:
        video.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(job.video, video)
    return videos


def test_several_inputs_are_not_put_into_the_maps_of_one(finetuned: Job, tmp_path: Path) -> None:
    videos = copies(finetuned, tmp_path, "a.webm", "b.webm")
    out = tmp_path / "maps"
    predict_into(out, finetuned, videos[0])
    words = ("--input", *videos, "--out", out, "--every 6", SMALL)
    refused = refuse("predict --model", finetuned.abnn, *words)
    assert f"{out} holds the maps of one input" in refused
    assert f"move its files into {out / 'a'}, and the run goes on" in refused


def test_maps_of_an_input_with_another_name_go_on_there(finetuned: Job, tmp_path: Path) -> None:
    """A third input of an equal name gives the first one a longer name."""
    front, back, second = copies(finetuned, tmp_path, "d1/f.webm", "d2/b.webm", "d2/f.webm")
    out = tmp_path / "maps"
    predict_into(out, finetuned, front, back)
    words = ("--input", front, back, second, "--out", out, "--every 6", SMALL)
    refused = refuse("predict --model", finetuned.abnn, *words)
    assert f"rename {out / 'f'} to d1_f, and the run goes on" in refused
    (out / "f").rename(out / "d1_f")
    assert "0 in 0.0 s" in predict_into(out, finetuned, front, back, second).splitlines()[0]


def test_dark_pictures_of_a_recording_are_noted(finetuned: Job, tmp_path: Path) -> None:
    pytest.importorskip("mcap", reason="the extra recordings is not installed")
    pytest.importorskip("rosbags", reason="the extra recordings is not installed")
    from tests.support import recordings

    front = recordings.camera("/front", 2, compressed="png")
    picture = np.full((64, 128, 3), 4000, np.uint16)
    data = cv2.imencode(".png", picture)[1].tobytes()
    for shot in front.pictures:
        shot.encoded = lambda: data  # type: ignore[method-assign]
    path = recordings.write_mcap(tmp_path / "drive.mcap", [front])
    words = ("--input", f"{path}:/front", "--out", tmp_path / "maps", SMALL)
    done = succeed("predict --model", finetuned.abnn, *words)
    assert f"the 16-bit pictures of {path}:/front use 12 bits" in done.stdout


@pytest.mark.parametrize("below", ["", "entropy", "**/*.png"])
def test_maps_are_not_taken_for_images(predicted: Job, below: str, tmp_path: Path) -> None:
    words = ("--input", predicted.maps / below, "--out", tmp_path / "again", SMALL)
    refused = refuse("predict --model", predicted.abnn, *words)
    assert f"are maps or overlays: {predicted.maps} was written by segunc" in refused
