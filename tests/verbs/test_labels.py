"""Labels that verbs are given: one rule for all of them. No image is its own label, and where no label fits no verb ends with 0."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest

from segunc.cli.main import main
from tests.conftest import Job
from tests.gallery.scenes import SIZE, Scene, write_maps, write_scene


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return write_scene(tmp_path_factory.mktemp("scene"))


def run(verb: str, *words: object) -> int:
    return main([verb, *map(str, words)])


def published(root: Path, labelled: int) -> Path:
    """Six grey frames as Road Anomaly is published: ``NAME.png`` with ``NAME.labels/labels_semantic.png`` (2 is the anomaly) and its colours."""
    folder, noise = root / "frames", np.random.default_rng(0)
    for index in range(6):
        inner = folder / f"frame{index}.labels"
        inner.mkdir(parents=True)
        assert cv2.imwrite(str(folder / f"frame{index}.png"), noise.integers(0, 256, SIZE, np.uint8))
        label = np.zeros(SIZE, np.uint8)
        label[8:18, 5:17] = 2
        if index < labelled:
            assert cv2.imwrite(str(inner / "labels_semantic.png"), label)
            assert cv2.imwrite(str(inner / "labels_semantic_color.png"), np.dstack([label * 100] * 3))
    return folder


def maps_of(folder: Path, root: Path) -> Path:
    """Maps of the photographs alone."""
    images = root / "photos"
    images.mkdir()
    for path in folder.glob("frame?.*g"):
        shutil.copy(path, images)
    return write_maps(images, root / "maps")


def words_of(verb: str, maps: Path, out: Path) -> list[object]:
    """A command that reads labels of maps, without the labels."""
    more = {"evaluate": ["--replicates", 0], "overlay": ["--panel"]}.get(verb, [])
    return [verb, "--maps", maps, "--out", out / ("out.json" if verb == "evaluate" else "out"), *more]


READERS = ("evaluate", "review", "overlay")


@pytest.mark.parametrize("labelled", [6, 0])
@pytest.mark.parametrize("verb", READERS)
def test_labels_beside_their_photographs_are_found_and_the_photographs_are_none(
    tmp_path: Path, verb: str, labelled: int, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = published(tmp_path, labelled)
    words = words_of(verb, maps_of(folder, tmp_path), tmp_path)
    assert run(*words, "--anomaly-labels", folder, "--dataset", "road-anomaly") == (0 if labelled else 1)
    if not labelled:
        assert f"no label in {folder} belongs to a frame" in capsys.readouterr().err.splitlines()[-1]
        assert not (tmp_path / "out" / "index.html").exists()
    elif verb == "evaluate":
        counts = json.loads((tmp_path / "out.json").read_text())["counts"]
        assert (counts["anomaly_frames"], counts["anomaly_pixels"]) == (6, 6 * 120)


@pytest.mark.parametrize("verb", READERS)
def test_values_that_no_label_has_end_with_1(
    scene: Scene, tmp_path: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Masks of 0 and 1, read as if 2 were the anomaly: what can be done without them is done."""
    words = words_of(verb, scene.maps, tmp_path)
    assert run(*words, "--anomaly-labels", scene.anomaly, "--dataset", "road-anomaly") == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert "holds the values [1" in error
    if verb == "review":
        assert error.startswith("segunc review: 4 of 6 frames could not be shown whole")
        assert (tmp_path / "out" / "index.html").exists()


def test_review_says_in_the_terminal_what_the_page_says(
    scene: Scene, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("review", "--maps", scene.maps, "--anomaly-labels", scene.anomaly, "--out", tmp_path / "out") == 0
    said = "4 of 6 frames have an anomaly label; the others show none."
    assert f"note: {said}" in capsys.readouterr().out
    assert said in json.loads((tmp_path / "out" / "review.json").read_text())["notices"]


@pytest.mark.parametrize("verb", READERS)
def test_a_data_set_gives_its_labels_to_every_verb(
    predicted: Job, tmp_path: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*words_of(verb, predicted.maps, tmp_path), "--dataset", "toy-anomaly", "--split", "anomaly")
    assert run(*words, "--root", predicted.data) == 0
    if verb == "review":
        data = (tmp_path / "out" / "data" / "frames.js").read_text()
        assert "label/anomaly" in data
    assert run(*words, "--root", predicted.data, "--anomaly-labels", predicted.masks) == 2
    assert "--root goes with --dataset" in capsys.readouterr().err


def test_predict_leaves_labels_out_says_so_and_goes_on_likewise(
    finetuned: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frames, out = tmp_path / "frames", tmp_path / "maps"
    frames.mkdir()
    for index, image in enumerate(sorted(finetuned.frames.rglob("*.png"))[:2]):
        shutil.copy(image, frames / f"{index}.png")
        assert cv2.imwrite(str(frames / f"{index}_mask.png"), np.repeat([0, 1], [60, 4])[:, None].repeat(128, 1))
    words = ("--model", finetuned.abnn, "--input", frames, "--draws", 2, "--device", "cpu", "--out", out)
    left_out = f"note: {frames}: 2 images; 2 others left out, which are named as labels, e.g. 0_mask.png"
    for finished in ("2 in", "0 in"):
        assert run("predict", *words) == 0
        said = capsys.readouterr().out.splitlines()
        assert [line.startswith(left_out) for line in said] == [True, *[False] * (len(said) - 1)]
        assert f": {finished}" in said[1]
    names = [json.loads(line)["name"] for line in (out / "frames.jsonl").read_text().splitlines()]
    assert names == ["0", "1"]
    assert run("predict", *words, "--all-images") == 0
    assert len((out / "frames.jsonl").read_text().splitlines()) == 4
    # Maps of images that are labels now are not thrown away without a word.
    assert run("predict", *words) == 2
    assert "restore it (--all-images, where it looks like a label)" in capsys.readouterr().err
