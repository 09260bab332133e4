"""From the names of a folder's files to pairs of image and label, and their splits."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from segunc.core.errors import InputError
from segunc.data.datasets import dataset_entry
from segunc.data.discover import Found, discover
from tests.support.images import rename_to_latin_1

FRAMES = range(4)


def photograph(root: Path, *names: str) -> Path:
    """Write images that differ in every pixel."""
    for number, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), np.uint8)
        Image.fromarray(pixels).save(path)
    return root


def ids(root: Path, *names: str) -> Path:
    """Write labels of three classes."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((np.arange(64) % 3).astype(np.uint8).reshape(8, 8)).save(path)
    return root


def colours(root: Path, *names: str) -> Path:
    """Write labels of three colours."""
    palette = np.array([(128, 64, 128), (0, 0, 142), (70, 70, 70)], np.uint8)
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(palette[(np.arange(64) % 3).reshape(8, 8)]).save(path)
    return root


def labels_of(found: Found) -> dict[str, str]:
    return {pair.image.as_posix(): pair.label.as_posix() for pair in found.pairs}


def numbered(pattern: str, numbers: Iterable[int] = FRAMES) -> list[str]:
    return [pattern.format(number) for number in numbers]


@pytest.mark.parametrize(
    ("image", "label"),
    [
        ("training/image_2/{:06d}_10.png", "training/semantic/{:06d}_10.png"),  # KITTI
        ("images/10k/train/{}a.jpg", "labels/sem_seg/masks/train/{}a.png"),  # BDD100K
        ("training/images/k{}.jpg", "training/v2.0/labels/k{}.png"),  # Mapillary Vistas
        ("701_StillsRaw_full/0001TP_{:06d}.png", "LabeledApproved_full/0001TP_{:06d}_L.png"),
        ("18/camera/front/18_camera_front_{:05d}.png", "18/label/front/18_label_front_{:05d}.png"),
        ("imgs2/{:04d}_a.png", "masks2/{:04d}_a.png"),  # comma10k
        ("images/drive/A{:03d}.jpg", "masks/A{:03d}.png"),
        ("ds0/img/x{}.jpg", "ds0/masks_machine/x{}.jpg.png"),  # Supervisely
        ("x{}.jpg", "x{}.jpg___fuse.png"),  # SuperAnnotate
        ("CameraRGB/{:03d}.png", "CameraSeg/{:03d}.png"),  # CARLA
        ("0/camera_node/f{}.jpg", "0/camera_node_label_id/f{}.png"),  # RELLIS-3D
        ("data/1_a/origin/{:08d}.jpg", "data/1_a/mask/{:08d}.png"),  # VSPW
        ("images/train/s/{:04d}_windshield_vis.png", "labels/train/s/{:04d}_labelids.png"),  # GOOSE
        ("img_{:03d}.png", "mask_{:03d}.png"),
        ("images/seg_{}.JPG", "Masks/seg_{}.PNG"),
        ("images/caf\u00e9 {}.jpg", "labels/cafe\u0301 {}.png"),
    ],
)
def test_labels_are_found_in_published_layouts(tmp_path: Path, image: str, label: str) -> None:
    images = numbered(image)
    labels = numbered(label)
    found = discover(photograph(ids(tmp_path, *labels), *images))
    assert labels_of(found) == dict(zip(images, labels, strict=True))


def test_a_label_is_not_cut_down_to_the_name_of_another_image(tmp_path: Path) -> None:
    """The label of frame 2 has no image; clip.jpg, a thumbnail, has no label."""
    photograph(tmp_path, "images/clip.jpg", "images/clip_0001.jpg", "images/clip_0003.jpg")
    ids(tmp_path, *numbered("labels/clip_{:04d}.png", (1, 2, 3)))
    with pytest.raises(InputError, match=r"1 of 3 images .* the first are images/clip.jpg"):
        discover(tmp_path)
    found = discover(tmp_path, labelled_only=True)
    assert labels_of(found) == {
        "images/clip_0001.jpg": "labels/clip_0001.png",
        "images/clip_0003.jpg": "labels/clip_0003.png",
    }
    assert any("1 label without an image, the first is labels/clip_0002" in n for n in found.notes)


def test_one_rule_of_endings_holds_for_all_pairs(tmp_path: Path) -> None:
    photograph(tmp_path, *numbered("images/{:04d}.jpg", range(12)))
    ids(tmp_path, *numbered("labels/{:04d}.png", range(1, 12)), "labels/0000_old.png")
    with pytest.raises(InputError, match=r"1 of 12 images .* have no label, .*images/0000.jpg"):
        discover(tmp_path)


def test_a_frame_without_the_chosen_kind_of_label_is_one_without_a_label(tmp_path: Path) -> None:
    photograph(tmp_path, *numbered("leftImg8bit/a_{:06d}_leftImg8bit.png"))
    colours(tmp_path, *numbered("gtFine/a_{:06d}_gtFine_color.png"))
    ids(tmp_path, *numbered("gtFine/a_{:06d}_gtFine_labelIds.png", (0, 1, 3)))
    with pytest.raises(
        InputError, match=r"1 of 4 images .*a_000002_left.* of another kind, such as"
    ):
        discover(tmp_path)
    found = discover(tmp_path, labelled_only=True)
    assert all("labelIds" in label for label in labels_of(found).values())
    assert any("*_gtFine_labelIds.png' of 2 kinds" in note for note in found.notes)


@pytest.mark.parametrize("other", ["SegmentationObject", "instances", "panoptic", "depth"])
def test_labels_of_something_else_are_neither_images_nor_chosen(tmp_path: Path, other: str) -> None:
    photograph(tmp_path, *numbered("JPEGImages/{}.jpg"))
    ids(tmp_path, *numbered("SegmentationClass/{}.png"), *numbered(other + "/{}.png"))
    for labels in (None, "SegmentationClass"):
        found = discover(tmp_path, labels=labels)
        assert all(label.startswith("SegmentationClass/") for label in labels_of(found).values())


def test_frames_of_one_number_in_two_drives_have_their_own_labels(tmp_path: Path) -> None:
    for drive in "ab":
        photograph(tmp_path, *numbered(f"data/{drive}/origin/{{:03d}}.jpg"))
        ids(tmp_path, *numbered(f"data/{drive}/mask/{{:03d}}.png"))
    for image, label in labels_of(discover(tmp_path)).items():
        assert image.replace("origin", "mask").replace("jpg", "png") == label


def test_a_label_of_another_drive_is_no_images_label(tmp_path: Path) -> None:
    photograph(tmp_path, *numbered("images/day/{}.jpg"), *numbered("images/night/{}.jpg"))
    ids(tmp_path, *numbered("labels/night/{}.png"), *numbered("labels/dusk/{}.png"))
    found = discover(tmp_path, labelled_only=True)
    assert labels_of(found) == dict(
        zip(numbered("images/night/{}.jpg"), numbered("labels/night/{}.png"), strict=True)
    )


@pytest.mark.parametrize(
    ("images", "label", "said"),
    [
        (
            ("left/{}.jpg", "right/{}.jpg"),
            "labels/{}.png",
            "fits the images left/0.jpg and right/0",
        ),
        (("images/{}_left.jpg", "images/{}_right.jpg"), "labels/{}_label.png", "fit images"),
        (("images/{}_left.jpg",), "labels/{}_right.png", "has the name of one image alone"),
    ],
)
def test_labels_that_may_be_of_two_cameras_are_refused(
    tmp_path: Path, images: tuple[str, ...], label: str, said: str
) -> None:
    for image in images:
        photograph(tmp_path, *numbered(image))
    ids(tmp_path, *numbered(label))
    with pytest.raises(InputError, match=said):
        discover(tmp_path)


@pytest.mark.parametrize(
    ("images", "labels"), [("camera", "drawn"), ("*_cam0.jpg", "*_painted.png")]
)
def test_names_may_end_in_any_words_where_images_and_labels_are_named(
    tmp_path: Path, images: str, labels: str
) -> None:
    photograph(tmp_path, *numbered("camera/{:04d}_cam0.jpg"))
    colours(tmp_path, *numbered("drawn/{:04d}_painted.png"))
    with pytest.raises(InputError, match="has the name of one image alone") as refusal:
        discover(tmp_path)
    assert "--images '*_rgb.*' --labels '*_mask.*'" in str(refusal.value.hint)
    found = discover(tmp_path, images=images, labels=labels)
    assert labels_of(found) == dict(
        zip(numbered("camera/{:04d}_cam0.jpg"), numbered("drawn/{:04d}_painted.png"), strict=True)
    )


@pytest.mark.parametrize("ending", ["color", "colour", "colours"])
def test_labels_may_end_in_the_word_colour(tmp_path: Path, ending: str) -> None:
    photograph(tmp_path, *numbered("camera/{:04d}_cam0.jpg"))
    colours(tmp_path, *numbered(f"annotation/{{:04d}}_{ending}.png"))
    assert len(labels_of(discover(tmp_path))) == 4


def test_the_hint_of_two_kinds_that_look_alike_chooses_one(tmp_path: Path) -> None:
    photograph(tmp_path, *numbered("training/images/{}.jpg"))
    for version in ("v1.2", "v2.0"):
        ids(tmp_path, *numbered(f"training/{version}/labels/{{}}.png"))
    with pytest.raises(InputError) as refusal:
        discover(tmp_path)
    assert refusal.value.hint is not None
    pattern = refusal.value.hint.split("--labels ")[1]
    found = discover(tmp_path, labels=pattern)
    assert list(labels_of(found).values()) == numbered("training/v1.2/labels/{}.png")


def test_frames_are_held_out_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    photograph(tmp_path, *numbered("images/{}.jpg", range(1, 21)))
    ids(tmp_path, *numbered("labels/{}.png", range(1, 21)))
    held_out = [pair.image.stem for pair in discover(tmp_path).pairs if pair.split == "val"]
    assert held_out == ["18", "19", "20"]  # 15 % of 20, at the end of the drive


def splits_of(found: Found) -> dict[str, str]:
    return {pair.image.stem: pair.split for pair in found.pairs}


def test_the_published_lists_of_voc_say_the_splits(tmp_path: Path) -> None:
    photograph(tmp_path, *numbered("JPEGImages/a{}.jpg", range(6)))
    colours(tmp_path, *numbered("SegmentationClass/a{}.png", range(5)))
    for name, frames in (
        ("Segmentation/train", "a0\na3\n"),
        ("Segmentation/val", "a1\na4\n"),
        ("Main/train", "a0\na1\na5\na9\na8\n"),  # of detection, whose frames need no such label
    ):
        path = tmp_path / "ImageSets" / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(frames)
    found = discover(tmp_path)
    assert splits_of(found) == {
        "a0": "train",
        "a3": "train",
        "a1": "val",
        "a4": "val",
    }
    assert any("the first is JPEGImages/a2.jpg" in note for note in found.notes)


def test_lists_of_image_and_label_are_read_from_another_machines_folder(tmp_path: Path) -> None:
    photograph(tmp_path, *numbered("shots/{}.png"))
    ids(tmp_path, *numbered("truth/{}.png", FRAMES))
    lines = [f"/SegNet/shots/{3 - n}.png /SegNet/truth/{3 - n}.png" for n in FRAMES]
    (tmp_path / "train.txt").write_text("\n".join(lines[:3]))
    (tmp_path / "val.txt").write_text(lines[3])
    found = discover(tmp_path, labels="truth")
    assert splits_of(found) == {"3": "train", "2": "train", "1": "train", "0": "val"}
    assert labels_of(found)["shots/3.png"] == "truth/3.png"


def test_a_frame_in_two_lists_is_refused(tmp_path: Path) -> None:
    photograph(tmp_path, *numbered("images/{}.jpg"))
    ids(tmp_path, *numbered("labels/{}.png"))
    (tmp_path / "train.txt").write_text("0\n1\n2\n")
    (tmp_path / "val.txt").write_text("2\n3\n")
    with pytest.raises(InputError, match=r"images/2.jpg is in val.txt and in the list of train"):
        discover(tmp_path)


def test_lists_of_other_files_are_not_followed(tmp_path: Path) -> None:
    photograph(tmp_path, *numbered("images/{}.jpg"))
    ids(tmp_path, *numbered("labels/{}.png"))
    (tmp_path / "train.txt").write_text("0\nx\ny\nz\n")
    found = discover(tmp_path)
    assert len(found.pairs) == 4
    assert any("does not follow train.txt: 25%" in note for note in found.notes)


@pytest.mark.parametrize(
    ("validating", "shared"),
    [
        ((1, 3), True),  # one numbering that was divided
        ((0, 1), False),  # each split is numbered from the start
        ((10, 11), False),  # behind the end of the training frames
    ],
)
def test_splits_of_one_drive_are_noted(
    tmp_path: Path, validating: tuple[int, ...], shared: bool
) -> None:
    training = (0, 2, 4)
    for split, numbers in (("train", training), ("val", validating)):
        photograph(tmp_path, *numbered(f"images/{split}/{{}}.jpg", numbers))
        ids(tmp_path, *numbered(f"labels/{split}/{{}}.png", numbers))
    noted = any("differ in the last number alone" in note for note in discover(tmp_path).notes)
    assert noted == shared


def test_a_name_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    photograph(tmp_path, *numbered("images/{}.png"))
    ids(tmp_path, *numbered("labels/{}.png"))
    rename_to_latin_1(tmp_path / "images" / "0.png")
    with pytest.raises(InputError) as refusal:
        discover(tmp_path)
    shown = f"{tmp_path}/images/stra\\xdfe.png"
    assert refusal.value.message == f"the name of {shown} is not UTF-8"


@pytest.mark.parametrize("labels", ["labels_masks", "labels"], ids=["masks", "classes"])
def test_a_name_that_is_not_utf_8_is_named_in_a_data_set(labels: str, tmp_path: Path) -> None:
    photograph(tmp_path, *numbered("test/images/{}.png"))
    ids(tmp_path, *numbered(f"test/{labels}/{{}}.png"))
    for folder in ("images", labels):
        rename_to_latin_1(tmp_path / "test" / folder / "0.png")
    with pytest.raises(InputError, match=r"stra\\xdfe.png is not UTF-8"):
        dataset_entry("folder").samples(tmp_path, "test")
