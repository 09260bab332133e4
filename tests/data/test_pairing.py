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
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return root


def pairs(folder: Path, frames: list[str], ending: str = "") -> dict[str, str]:
    files = [path for path in list_images(folder) if path.stem.endswith(ending)]
    labels = match_labels(folder, files, frames)
    if labels and not ending:  # where there are none, find_labels learns a rule
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
    ("files", "frames", "labels"),
    [
        # One ending is taken off, not two.
        (["a_gt_labelIds.png"], ["a"], {}),
        (["a.png"], ["a", "b"], {"a": "a.png"}),
        # The path goes before the bare name.
        (["x/a.png", "y/a.png"], ["x/a", "y/a"], {"x/a": "x/a.png", "y/a": "y/a.png"}),
        (["a.png"], ["x/a"], {"x/a": "a.png"}),
        # Two frames of one name do not share a label.
        (["a.png"], ["x/a", "y/a"], {}),
    ],
)
def test_frames_without_a_label_of_their_own_are_left_out(
    tmp_path: Path, files: list[str], frames: list[str], labels: dict[str, str]
) -> None:
    touch(tmp_path, *files)
    assert pairs(tmp_path, frames) == labels


@pytest.mark.parametrize(
    ("frame", "labels"),
    [
        ("a", "a_label.png, a_mask.png"),
        ("b", "b.png, .*b.png"),
    ],
)
def test_two_labels_of_one_frame_are_an_error(tmp_path: Path, frame: str, labels: str) -> None:
    touch(tmp_path, "a_mask.png", "a_label.png", "x/b.png", "y/b.png")
    with pytest.raises(InputError, match=rf"frame {frame} has 2 labels .*{labels}"):
        find_labels(tmp_path, [frame])


def test_the_exact_name_goes_before_the_forms(tmp_path: Path) -> None:
    touch(tmp_path, "a_mask.png", "a_label.png", "a.png")
    assert pairs(tmp_path, ["a"]) == {"a": "a.png"}


def test_an_ending_that_is_asked_for_leaves_one_label(tmp_path: Path) -> None:
    touch(tmp_path, "a_mask.png", "a_label.png", "a.png")
    assert pairs(tmp_path, ["a"], ending="_mask") == {"a": "a_mask.png"}


def test_a_label_that_fits_two_frames_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, "s_label.png")
    with pytest.raises(InputError, match=r"s_label.png fits the frames s and s_rgb"):
        find_labels(tmp_path, ["s", "s_rgb"])


def test_a_label_with_the_whole_name_of_a_frame_is_no_other_frames(tmp_path: Path) -> None:
    touch(tmp_path, "s_label.png", "s.png")
    assert pairs(tmp_path, ["s", "s_rgb"]) == {"s": "s.png", "s_rgb": "s_label.png"}


def test_composed_and_decomposed_names_are_one(tmp_path: Path) -> None:
    """A Mac writes e and its accent as two characters."""
    composed = "caf\u00e9"
    decomposed = "cafe\u0301"
    touch(tmp_path, f"{decomposed}_mask.png")
    assert pairs(tmp_path, [composed]) == {composed: f"{decomposed}_mask.png"}
    touch(tmp_path, f"{composed}_mask.png")
    with pytest.raises(InputError, match="has 2 labels"):
        find_labels(tmp_path, [decomposed])


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
    names = [path.relative_to(tmp_path).as_posix() for path in list_images(tmp_path)]
    assert names == ["a.jpeg", "a/z.jpg", "b.PNG", "c.tiff"]


def test_a_folder_without_an_image_has_no_list(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no image"):
        list_images(tmp_path)


def test_a_folder_that_is_not_there_has_no_list(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        list_images(tmp_path / "none")


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """Photographs of three channels and labels of one in one folder."""
    channels = {
        "a.jpg": 3,
        "a.png": 1,
        "b.png": 3,
        "c.webp": 3,
        "c_mask.png": 1,
    }
    for name, count in channels.items():
        pixels = np.zeros((8, 8, count), np.uint8)
        assert cv2.imwrite(str(tmp_path / name), pixels)
    return tmp_path


def found_names(labels: dict[str, Path]) -> dict[str, str]:
    return {frame: path.name for frame, path in labels.items()}


def test_a_photograph_is_no_possible_label(beside: Path) -> None:
    assert [path.name for path in possible_labels(beside)] == ["a.png", "c_mask.png"]


def test_a_photograph_without_a_label_is_left_for_its_reader_to_name(beside: Path) -> None:
    """A label may have been damaged: the frame b has no other file."""
    labels = find_labels(beside, ["a", "b", "c"])
    assert found_names(labels) == {"a": "a.png", "b": "b.png", "c": "c_mask.png"}


def test_a_frame_is_not_its_own_label(beside: Path) -> None:
    frames = [beside / "a.png", beside / "b.png"]
    labels = find_labels(beside, ["a", "b"], is_frame=lambda path: path in frames)
    assert found_names(labels) == {"a": "a.jpg"}


def test_an_ending_that_all_labels_have_is_learnt_as_init_learns_it(tmp_path: Path) -> None:
    touch(tmp_path, "07_010_L.png", "07_040_L.png", "07_070_L.png")
    labels = find_labels(tmp_path, ["07_010", "07_070", "07_100"])
    assert found_names(labels) == {"07_010": "07_010_L.png", "07_070": "07_070_L.png"}
    assert found_names(find_labels(tmp_path, ["07_040"])) == {"07_040": "07_040_L.png"}


def test_no_ending_is_learnt_where_there_are_two_kinds_of_labels(tmp_path: Path) -> None:
    names = [f"{number}_{kind}.png" for number in range(3) for kind in ("L", "depth")]
    touch(tmp_path, *names)
    assert find_labels(tmp_path, ["0", "1", "2"]) == {}


def test_no_ending_is_learnt_of_labels_of_other_frames(tmp_path: Path) -> None:
    touch(tmp_path, "a_L.png", "b_L.png")
    assert find_labels(tmp_path, ["c", "d"]) == {}


def test_a_data_sets_own_names_go_before_the_usual_ones(tmp_path: Path) -> None:
    first = tmp_path / "a.labels" / "labels_semantic.png"
    second = tmp_path / "b.labels" / "labels_semantic.png"
    touch(tmp_path, "a.labels/labels_semantic.png", "b.labels/labels_semantic.png", "a.png")
    layouts = DATASETS["road-anomaly"].layouts
    assert find_labels(tmp_path, ["a", "b"], layouts) == {"a": first, "b": second}
    assert find_labels(tmp_path, ["a", "b"]) == {"a": tmp_path / "a.png"}
