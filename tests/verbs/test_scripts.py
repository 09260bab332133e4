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


def test_json_is_one_line_also_of_an_error_and_all_else_goes_to_standard_error(
    predicted: Job, tmp_path: Path
) -> None:
    done = run_segunc("summary --json --maps", predicted.maps)
    (line,) = done.stdout.splitlines()
    content = json.loads(line)
    assert content["statistic"] == "entropy.region"
    assert content["moments"][0]["folder"] == str(predicted.maps)
    assert "worst moments" in done.stderr
    labels = (
        "--anomaly-labels",
        predicted.masks,
        "--replicates 0 --scores entropy --out",
        tmp_path / "m.json",
    )
    done = run_segunc("evaluate --json --maps", predicted.maps, *labels)
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["numbers"] == json.loads((tmp_path / "m.json").read_text())
    done = run_segunc("summary --json --maps", tmp_path / "gone")
    assert done.code == 2
    (line,) = done.stdout.splitlines()
    assert json.loads(line) == {
        "error": f"--maps {tmp_path / 'gone'} does not exist",
        "hint": "check the path",
    }


def test_a_run_goes_on_where_its_input_lies_now(finetuned: Job, tmp_path: Path) -> None:
    given, moved, out = (tmp_path / name for name in ("given", "moved", "maps"))
    shutil.copytree(finetuned.frames, given)
    words = ("predict --model", finetuned.abnn, "--draws 2 --scores entropy", FAST)
    succeed(*words, "--input", given, "--out", tmp_path / "whole")
    succeed(*words, "--input", given, "--out", out)
    log = out / "frames.jsonl"
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:2]))  # as after a kill
    given.rename(moved)
    done = run_segunc(*words, "--input", moved, "--out", out)
    assert done.code == 0
    assert "2 were finished before" in done.stdout
    assert tree(out) == tree(tmp_path / "whole")
    reader = MapsReader(out)
    source, missing = open_images(reader, None, reader.frames)
    assert source is not None, missing
    first = sorted(moved.rglob("*.png"))[0]
    cv2.imwrite(str(first), np.zeros((64, 128, 3), np.uint8))
    moved.rename(given.with_name("other"))
    done = run_segunc(*words, "--input", tmp_path / "other", "--out", out)
    assert done.code == 2
    assert "is another picture. Hint: give another --out, or --overwrite" in done.stderr


def test_the_version_is_the_package_s() -> None:
    assert segunc.__version__ == run_segunc("--version").stdout.split()[1]


def test_from_python_a_size_is_two_numbers() -> None:
    with pytest.raises(segunc.InputError, match=r"size. '96x128' is not a tuple"):
        segunc.predict(model="model", input="frames", out="maps", size="96x128")
