"""Which label file belongs to which frame."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from segunc.core.errors import InputError
from segunc.data.datasets import DATASETS
from segunc.data.image_files import list_images
from segunc.data.layouts import find_labels, match_labels, possible_labels


def touch(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")
    return root


def pairs(folder: Path, frames: list[str], ending: str = "") -> dict[str, str]:
    labels = match_labels(
        folder, [p for p in list_images(folder) if p.stem.endswith(ending)], frames
    )
    if not ending:
        assert labels == find_labels(folder, frames)
    return {frame: path.relative_to(folder).as_posix() for frame, path in labels.items()}


@pytest.mark.parametrize(
    ("frame", "label"),
    [
        ("a", "a.png"),
        ("x/a", "x/a.png"),
        ("ulm/ulm_1_leftImg8bit", "ulm/ulm_1_gtFine_labelIds.png"),
        ("ulm/ulm_1_leftImg8bit", "ulm_1_anomaly.png"),
        ("0007", "0007_labels_semantic.png"),
        ("0007_image", "0007_mask.png"),
        ("a.b", "a.b.png"),
    ],
)
def test_a_label_is_found_by_its_name_or_a_known_form(
    tmp_path: Path, frame: str, label: str
) -> None:
    assert pairs(touch(tmp_path, label), [frame]) == {frame: label}


@pytest.mark.parametrize(
    ("files", "found"),
    [
        (["a_gt_labelIds.png"], {"a": None}),  # one ending is taken off, not two
        (["a.png"], {"a": "a.png", "b": None}),
        (
            ["x/a.png", "y/a.png"],
            {"x/a": "x/a.png", "y/a": "y/a.png"},
        ),  # the path goes before the bare name
        (["a.png"], {"x/a": "a.png"}),
        (["a.png"], {"x/a": None, "y/a": None}),  # two frames of one name do not share a label
    ],
)
def test_frames_without_a_label_of_their_own_are_left_out(
    tmp_path: Path, files: list[str], found: dict[str, str | None]
) -> None:
    assert pairs(touch(tmp_path, *files), list(found)) == {
        name: path for name, path in found.items() if path
    }


def test_two_labels_of_one_frame_are_an_error(tmp_path: Path) -> None:
    touch(tmp_path, "a_mask.png", "a_label.png", "x/b.png", "y/b.png")
    for name, both in (("a", "a_label.png, a_mask.png"), ("b", "b.png, .*b.png")):
        with pytest.raises(InputError, match=rf"frame {name} has 2 labels .*{both}"):
            find_labels(tmp_path, [name])
    # The exact name goes before the forms.
    assert pairs(touch(tmp_path, "a.png"), ["a"]) == {"a": "a.png"}
    # A required ending leaves one.
    assert pairs(tmp_path, ["a"], ending="_mask") == {"a": "a_mask.png"}


def test_a_label_that_fits_two_frames_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, "s_label.png")
    with pytest.raises(InputError, match=r"s_label.png fits the frames s and s_rgb"):
        find_labels(tmp_path, ["s", "s_rgb"])
    # A label with the whole name of a frame is no other frame's.
    assert pairs(touch(tmp_path, "s.png"), ["s", "s_rgb"]) == {"s": "s.png", "s_rgb": "s_label.png"}


def test_composed_and_decomposed_names_are_one(tmp_path: Path) -> None:
    """A Mac writes e and its accent as two characters."""
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    assert pairs(touch(tmp_path, f"{decomposed}_mask.png"), [composed]) == {
        composed: f"{decomposed}_mask.png"
    }
    with pytest.raises(InputError, match="has 2 labels"):
        find_labels(touch(tmp_path, f"{composed}_mask.png"), [decomposed])


def test_images_are_listed_in_the_order_of_their_paths_without_hidden_ones(tmp_path: Path) -> None:
    touch(
        tmp_path,
        "b.PNG",
        "a/z.jpg",
        "a.jpeg",
        "notes.txt",
        "c.tiff",
        "._a.png",
        ".thumbnails/b.png",
        "c/._d.png",
    )
    listed = [p.relative_to(tmp_path).as_posix() for p in list_images(tmp_path)]
    assert listed == ["a.jpeg", "a/z.jpg", "b.PNG", "c.tiff"]
    (tmp_path / "empty").mkdir()
    for name, message in (("empty", "holds no image"), ("none", "does not exist")):
        with pytest.raises(InputError, match=message):
            list_images(tmp_path / name)


def test_a_picture_is_no_label_where_there_is_one_and_else_what_a_reader_must_name(
    tmp_path: Path,
) -> None:
    """Photographs may lie beside their labels; of a frame that has no other file, a label may have
    been damaged.
    """
    for name, channels in (
        ("a.jpg", 3),
        ("a.png", 1),
        ("b.png", 3),
        ("c.webp", 3),
        ("c_mask.png", 1),
    ):
        assert cv2.imwrite(str(tmp_path / name), np.zeros((8, 8, channels), np.uint8))
    assert [path.name for path in possible_labels(tmp_path)] == ["a.png", "c_mask.png"]
    found = {name: path.name for name, path in find_labels(tmp_path, ["a", "b", "c"]).items()}
    assert found == {"a": "a.png", "b": "b.png", "c": "c_mask.png"}
    own = find_labels(tmp_path, ["a", "b"], is_frame=lambda path: path.name in ("a.png", "b.png"))
    assert {name: path.name for name, path in own.items()} == {"a": "a.jpg"}


def test_a_data_sets_own_names_go_before_the_usual_ones(tmp_path: Path) -> None:
    touch(tmp_path, "a.labels/labels_semantic.png", "b.labels/labels_semantic.png", "a.png")
    labels = find_labels(tmp_path, ["a", "b"], DATASETS["road-anomaly"].layouts)
    assert labels == {
        name: tmp_path / f"{name}.labels" / "labels_semantic.png" for name in ("a", "b")
    }
    assert find_labels(tmp_path, ["a", "b"]) == {"a": tmp_path / "a.png"}
