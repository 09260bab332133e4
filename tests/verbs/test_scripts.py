"""What scripts and schedulers rely on: one line of JSON, signals, and inputs that moved."""

import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest

import segunc
from segunc.maps.labelled import open_images
from segunc.maps.reader import MapsReader
from tests.conftest import Job
from tests.verbs.processes import FAST, segunc as run_segunc, succeed
from tests.verbs.test_interrupted import tree


def test_json_is_one_line_and_all_else_goes_to_standard_error(predicted: Job) -> None:
    done = run_segunc("summary --json --maps", predicted.maps)
    (line,) = done.stdout.splitlines()
    content = json.loads(line)
    assert content["statistic"] == "entropy.region"
    assert content["moments"][0]["folder"] == str(predicted.maps)
    assert "worst moments" in done.stderr


def test_json_of_an_evaluation_is_that_of_its_file(predicted: Job, tmp_path: Path) -> None:
    out = tmp_path / "m.json"
    words = ("--maps", predicted.maps, "--anomaly-labels", predicted.masks, "--out", out)
    done = run_segunc("evaluate --json --replicates 0 --scores entropy", *words)
    (line,) = done.stdout.splitlines()
    of_file = json.loads(out.read_text())
    del of_file["record_sha256"]
    assert json.loads(line)["numbers"] == of_file


def test_json_of_an_error_is_one_line(tmp_path: Path) -> None:
    missing = tmp_path / "gone"
    done = run_segunc("summary --json --maps", missing)
    assert done.code == 2
    (line,) = done.stdout.splitlines()
    assert json.loads(line) == {
        "error": f"--maps {missing} does not exist",
        "hint": "check the path",
    }


@pytest.fixture
def moved_frames(finetuned: Job, tmp_path: Path) -> Path:
    """Frames that lay elsewhere when a prediction into ``maps`` was killed after two of them.

    The folder ``whole`` has the maps of a prediction that was not killed.
    """
    first_place = tmp_path / "first"
    shutil.copytree(finetuned.frames, first_place)
    for name in ("whole", "maps"):
        words = ("--input", first_place, "--out", tmp_path / name)
        succeed(*predict_words(finetuned), *words)
    log = tmp_path / "maps" / "frames.jsonl"
    finished = log.read_bytes().splitlines(keepends=True)[:2]
    log.write_bytes(b"".join(finished))
    moved = tmp_path / "moved"
    first_place.rename(moved)
    return moved


def predict_words(job: Job) -> list[object]:
    return ["predict --model", job.abnn, "--draws 2 --scores entropy", FAST]


def test_a_run_goes_on_where_its_input_lies_now(
    finetuned: Job, moved_frames: Path, tmp_path: Path
) -> None:
    out = tmp_path / "maps"
    done = run_segunc(*predict_words(finetuned), "--input", moved_frames, "--out", out)
    assert done.code == 0
    assert "2 were finished before" in done.stdout
    assert tree(out) == tree(tmp_path / "whole")
    reader = MapsReader(out)
    source, missing = open_images(reader, None, reader.frames)
    assert source is not None, missing


def test_a_run_does_not_go_on_with_another_picture(
    finetuned: Job, moved_frames: Path, tmp_path: Path
) -> None:
    out = tmp_path / "maps"
    succeeded = run_segunc(*predict_words(finetuned), "--input", moved_frames, "--out", out)
    assert succeeded.code == 0
    first = sorted(moved_frames.rglob("*.png"))[0]
    cv2.imwrite(str(first), np.zeros((64, 128, 3), np.uint8))
    other = tmp_path / "other"
    moved_frames.rename(other)
    done = run_segunc(*predict_words(finetuned), "--input", other, "--out", out)
    assert done.code == 2
    assert "is another picture. Hint: give another --out, or --overwrite" in done.stderr


def test_the_version_is_the_package_s() -> None:
    assert segunc.__version__ == run_segunc("--version").stdout.split()[1]


def test_from_python_a_size_is_two_numbers() -> None:
    with pytest.raises(segunc.InputError, match=r"size. '96x128' is not a tuple"):
        segunc.predict(model="model", input="frames", out="maps", size="96x128")
