"""Bad usage and bad input: exit code 2 (1 once work was under way) and exactly one clear line on
standard error.
"""

import json
import os
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest

from tests.conftest import Job
from tests.support.images import claiming
from tests.verbs.processes import refuse


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("data: {root: DATA, dataset: toy}\nnonsense: 1\n", "nonsense"),
        ("data: {root: DATA, dataset: toy, batchsize: 2}\n", "batchsize"),
        ("data: {dataset: toy}\n", "data: root"),
        ("data: 5\n", "data is 5, not keys"),
        ("data: {root: DATA, dataset: toy}\nSECTION: 5\n", "SECTION is 5, not keys"),
        ("data: [unclosed\n", "configuration"),
        ("just words\n", "configuration"),
        ("", "data"),
        ("data: &d {root: *d, dataset: toy}\n", "the alias *d"),
        (f"data: {{root: DATA, dataset: toy, batch_size: {'9' * 5000}}}\n", "limit (4300 digits)"),
        ("data: {root: DATA, dataset: toy, crop: }\n", "data: crop None"),
        ("data: {root: DATA, dataset: toy}\nSECTION:\n", "SECTION is None, not keys"),
    ],
)
@pytest.mark.parametrize(
    ("verb", "section"),
    [
        ("train", "network"),
        ("finetune", "abnn"),
    ],
)
def test_a_bad_configuration_is_one_line(
    trained: Job, tmp_path: Path, content: str, message: str, verb: str, section: str
) -> None:
    config = tmp_path / "config.yaml"
    text = content.replace("DATA", str(trained.data)).replace("SECTION", section)
    config.write_text(text, encoding="utf-8")
    words = ["--config", config, "--out", tmp_path / "out"]
    if verb == "finetune":
        words += ["--base", trained.base]
    assert message.replace("SECTION", section) in refuse(verb, *words)


def write_odd_frames(folder: Path, whole: bytes) -> None:
    """Write frames of which each once ended every run."""
    names = [
        "n" * 240 + ".png",
        "n" * 251 + ".png",  # the longest name of an image
        "two\nlines.png",
        "C:drive.png",
        "b.png",
    ]
    for name in names:
        (folder / name).write_bytes(whole)
    no_utf8 = Path(os.fsdecode(bytes(folder) + b"/latin-\xe9.png"))
    no_utf8.write_bytes(whole)
    (folder / "gone.png").symlink_to("nowhere")
    (folder / "loop.png").symlink_to("loop.png")
    (folder / "huge.png").write_bytes(claiming(".png", 30_000, 30_000))
    cv2.imwrite(str(folder / "thin.png"), np.zeros((40_000, 1, 3), np.uint8))


def test_one_frame_never_ends_a_run(finetuned: Job, tmp_path: Path) -> None:
    """The others are finished, these are said, and the second run says them again."""
    frames = tmp_path / "in"
    shutil.copytree(finetuned.frames, frames)
    good = list(frames.rglob("*.png"))
    write_odd_frames(frames, good[0].read_bytes())
    out = tmp_path / "out"
    command = "predict --draws 2 --device cpu --size 64x128 --overlay --model"
    for _ in range(2):
        refusal = refuse(command, finetuned.abnn, "--input", frames, "--out", out, code=1)
        assert "of 14 frames failed" in refusal
    assert len((out / "frames.jsonl").read_text().splitlines()) == len(good) + 3
    failures = json.loads((out / "manifest.json").read_text())["failed"]
    assert [failure["name"] for failure in failures] == [
        "C\\x3adrive",
        "gone",
        "huge",
        "latin-\\udce9",
        "loop",
        "thin",
        "two\\nlines",
    ]
    assert not list(out.rglob("*.segunc-partial"))


@pytest.fixture
def own_data(toy_set: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(toy_set, tmp_path / "data"))


def test_unknown_label_values_end_an_evaluation_with_1(
    finetuned: Job, own_data: Path, tmp_path: Path
) -> None:
    label = sorted((own_data / "gtFine" / "test").rglob("*.png"))[0]
    values = cv2.imread(str(label), cv2.IMREAD_UNCHANGED)
    values[:3] = 99
    cv2.imwrite(str(label), values)
    out = tmp_path / "metrics.json"
    words = ("--model", finetuned.abnn, "--root", own_data, "--out", out)
    command = "evaluate --replicates 0 --dataset toy --draws 2 --device cpu"
    assert "values [99]" in refuse(command, *words, code=1)
    result = json.loads(out.read_text())
    assert result["counts"]["frames_scored"] == 1
    assert result["segmentation"]["miou"] is not None


@pytest.mark.parametrize("verb", ["train", "finetune"])
def test_a_run_that_fails_at_its_first_step_leaves_what_was_there(
    trained: Job, own_data: Path, verb: str
) -> None:
    for image in (own_data / "leftImg8bit" / "train").rglob("*.png"):
        image.write_bytes(b"damaged")
    out = own_data.parent / "out"
    command = [verb, "--device cpu --data.root", own_data, "--out", out, "--config"]
    if verb == "train":
        command += [trained.train_config]
    else:
        command += [trained.finetune_config, "--base", trained.base, "--abnn.alpha", 0.1]
    assert "leftImg8bit/train" in refuse(*command)
    assert not out.exists()
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    refuse(*command)
    assert (out / "notes.txt").read_text() == "mine"
