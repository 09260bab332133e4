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
    ("content", "said"),
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
@pytest.mark.parametrize("verb", ["train", "finetune"])
def test_a_bad_configuration_is_one_line(
    trained: Job, tmp_path: Path, content: str, said: str, verb: str
) -> None:
    config = tmp_path / "config.yaml"
    section = {"train": "network", "finetune": "abnn"}[verb]
    config.write_text(
        content.replace("DATA", str(trained.data)).replace("SECTION", section), encoding="utf-8"
    )
    base = ("--base", trained.base) if verb == "finetune" else ()
    assert said.replace("SECTION", section) in refuse(
        verb, *base, "--config", config, "--out", tmp_path / "out"
    )


def test_one_frame_never_ends_a_run(finetuned: Job, tmp_path: Path) -> None:
    """Frames of which each once ended every run: the others are finished, these are said, and the
    second run says them again.
    """
    given, out = tmp_path / "in", tmp_path / "out"
    shutil.copytree(finetuned.frames, given)
    good = sorted(path.stem for path in given.rglob("*.png"))
    whole = next(given.rglob("*.png")).read_bytes()
    (given / ("n" * 240 + ".png")).write_bytes(whole)
    (given / ("n" * 251 + ".png")).write_bytes(whole)  # the longest name of an image
    Path(os.fsdecode(bytes(given) + b"/latin-\xe9.png")).write_bytes(whole)
    (given / "two\nlines.png").write_bytes(whole)
    (given / "C:drive.png").write_bytes(whole)
    (given / "b.png").write_bytes(whole)
    (given / "gone.png").symlink_to("nowhere")
    (given / "loop.png").symlink_to("loop.png")
    (given / "huge.png").write_bytes(claiming(".png", 30_000, 30_000))
    cv2.imwrite(str(given / "thin.png"), np.zeros((40_000, 1, 3), np.uint8))
    words = "predict --draws 2 --device cpu --size 64x128 --overlay --model"
    command = (words, finetuned.abnn, "--input", given, "--out", out)
    for _ in range(2):
        assert "of 14 frames failed" in refuse(*command, code=1)
    assert len((out / "frames.jsonl").read_text().splitlines()) == len(good) + 3
    failed = [
        failure["name"] for failure in json.loads((out / "manifest.json").read_text())["failed"]
    ]
    assert failed == ["C\\x3adrive", "gone", "huge", "latin-\\udce9", "loop", "thin", "two\\nlines"]
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
    words = ("--root", own_data, "--out", out, "--draws 2 --device cpu")
    assert "values [99]" in refuse(
        "evaluate --replicates 0 --dataset toy --model", finetuned.abnn, *words, code=1
    )
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
    config = trained.train_config if verb == "train" else trained.finetune_config
    more = [] if verb == "train" else ["--base", trained.base, "--abnn.alpha", 0.1]
    command = (verb, "--config", config, "--out", out, "--device cpu --data.root", own_data, *more)
    assert "leftImg8bit/train" in refuse(*command)
    assert not out.exists()
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    refuse(*command)
    assert (out / "notes.txt").read_text() == "mine"
