"""Lists of frames that may be a stranger's: they name files below the root, and pictures of our own
are no frames."""

from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

import segunc
from segunc.core.errors import InputError
from segunc.core.files import csv_text
from segunc.data.datasets import DATASETS
from segunc.data.discover import discover, is_pairs_picture
from segunc.data.frame_lists import FRAME_COLUMNS


def write(path: Path, picture: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), picture)


def draw(root: Path) -> Path:
    for number in range(4):
        picture = np.random.default_rng(number).integers(0, 256, (16, 24, 3), np.uint8)
        write(root / f"images/a_{number}.png", picture)
        label = np.arange(16 * 24).reshape(16, 24) % 3
        write(root / f"masks/a_{number}.png", label.astype(np.uint8))
    return root


@pytest.mark.parametrize("column", [1, 2])
@pytest.mark.parametrize("path", ["/ROOT/images/a_1.png", "../secret.png", "images/../../s.png"])
def test_a_list_of_frames_names_no_file_outside_the_root(
    tmp_path: Path, column: int, path: str
) -> None:
    root = draw(tmp_path / "data")
    write(tmp_path / "secret.png", np.zeros((16, 24, 3), np.uint8))
    row = ["train", "images/a_0.png", "masks/a_0.png"]
    row[column] = path.replace("/ROOT", str(root))
    listed = tmp_path / "frames.csv"
    listed.write_text(csv_text([FRAME_COLUMNS, row]))
    entry = replace(DATASETS["folder"], listed=listed)
    with pytest.raises(InputError, match=r"list of frames .*frames\.csv is named"):
        entry.samples(root, "train")


@pytest.mark.parametrize("split", ["Train", "val ", "TEST", ""])
def test_a_usual_split_in_another_spelling_is_refused(tmp_path: Path, split: str) -> None:
    """Its frame was trained on by nobody, and could be in train, too."""
    root = draw(tmp_path / "data")
    rows = [["train", "images/a_0.png", "masks/a_0.png"], [split, "images/a_1.png", "m.png"]]
    listed = tmp_path / "frames.csv"
    listed.write_text(csv_text([FRAME_COLUMNS, *rows]))
    entry = replace(DATASETS["folder"], listed=listed)
    with pytest.raises(InputError, match=f"has images/a_1.png in the split '{split}'"):
        entry.samples(root, "train")


def test_a_split_of_ones_own_has_any_name(tmp_path: Path) -> None:
    root = draw(tmp_path / "data")
    listed = tmp_path / "frames.csv"
    listed.write_text(csv_text([FRAME_COLUMNS, ["Fog", "images/a_0.png", "masks/a_0.png"]]))
    entry = replace(DATASETS["folder"], listed=listed, labels="camvid")
    assert len(entry.samples(root, "Fog")) == 1


def test_init_takes_its_own_picture_for_no_frame(tmp_path: Path) -> None:
    root = draw(tmp_path / "data")
    segunc.init(root, out=root / "mine.yaml")
    assert (root / "mine-pairs.jpg").exists()
    pairs = discover(root).pairs
    assert sorted(pair.image.name for pair in pairs) == [f"a_{number}.png" for number in range(4)]


def test_a_picture_that_is_named_as_one_of_init_is_a_frame(tmp_path: Path) -> None:
    write(tmp_path / "mine-pairs.jpg", np.zeros((16, 24, 3), np.uint8))
    assert not is_pairs_picture(tmp_path / "mine-pairs.jpg")
    (tmp_path / "mine-frames.csv").write_text("split,image,label\n")
    assert is_pairs_picture(tmp_path / "mine-pairs.jpg")
