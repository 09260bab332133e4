"""Lists of frames, label maps of other tools, and sets of masks: what they say twice, leave out or
leave open.
"""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from segunc.core.errors import InputError, NoteWarning
from segunc.data.datasets import dataset_entry
from segunc.data.labels import LabelMap, read_label_map
from segunc.data.layouts import without_labels
from segunc.data.masks import BINARY, check_masks

CLASSES = "id,name,train_id,red,green,blue\n0,road,0,1,0,0\n1,car,1,2,0,0\n9,void,255,3,0,0\n"


def listed(root: Path, rows: str, values: tuple[int, ...] = (0, 1)) -> Path:
    """Write the frames of a list, whose labels hold the values; return the list."""
    (root / "classes.csv").write_text(CLASSES)
    for row in rows.split():
        _, image, label = row.split(",")
        for name in (image, label):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(root / image)
        pixels = np.resize(np.array(values, np.uint8), (4, 4))
        Image.fromarray(pixels).save(root / label)
    path = root / "frames.csv"
    path.write_text("split,image,label\n" + rows)
    return path


def test_a_frame_that_trains_and_validates_is_refused_where_it_would_be_trained(
    tmp_path: Path,
) -> None:
    rows = "train,a.png,a_mask.png\ntrain,b.png,b_mask.png\nval,./a.png,a_mask.png\n"
    frames = listed(tmp_path, rows)
    entry = dataset_entry("folder", labels=str(tmp_path / "classes.csv"), frames=frames)
    with pytest.raises(InputError, match=r"1 image in two splits: ./a.png is both in train and"):
        entry.training_samples(tmp_path, "train")
    with pytest.warns(NoteWarning, match=r"./a.png is both in train and in val"):
        assert [sample.image.name for sample in entry.samples(tmp_path, "val")] == ["a.png"]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("val,a.png,a_mask.png\nval,a.png,a_mask.png\n", "a.png twice in split val"),
        ("val,a.png,a_mask.png\nval,a.jpg,a_mask.png\n", "a.png and a.jpg in split val"),
    ],
)
def test_two_rows_of_one_frame_are_refused(tmp_path: Path, rows: str, said: str) -> None:
    """Results are counted by the names of frames, so that one of the two would be lost."""
    entry = dataset_entry("folder", frames=listed(tmp_path, rows))
    with pytest.raises(InputError, match=said):
        entry.samples(tmp_path, "val")


def test_a_split_whose_labels_hold_no_class_is_left_aside(tmp_path: Path) -> None:
    rows = "test,t.png,t_mask.png\n"
    listed(tmp_path, rows, values=(9,))
    frames = listed(tmp_path, "val,v.png,v_mask.png\n")
    frames.write_text(f"split,image,label\n{rows}val,v.png,v_mask.png\n")
    entry = dataset_entry("folder", labels=str(tmp_path / "classes.csv"), frames=frames)
    with pytest.warns(NoteWarning, match="split test of .* is left aside"):
        assert entry.usual_split(tmp_path) == "val"


def masks(root: Path, *values: tuple[int, ...]) -> list[Path]:
    paths = []
    for number, held in enumerate(values):
        path = root / f"{number}.png"
        Image.fromarray(np.resize(np.array(held, np.uint8), (4, 4))).save(path)
        paths.append(path)
    return paths


def test_masks_whose_anomalies_are_255_beside_masks_of_0_and_1_are_noted(tmp_path: Path) -> None:
    with pytest.warns(NoteWarning, match=r"0.png holds 0 and 1, and .*2.png 0 and 255"):
        check_masks(masks(tmp_path, (0, 1), (0,), (0, 255)), BINARY)


@pytest.mark.filterwarnings("error")
def test_masks_of_frames_without_an_anomaly_may_hold_0_and_255(tmp_path: Path) -> None:
    """As in Fishyscapes, whose other masks hold 0, 1 and 255."""
    check_masks(masks(tmp_path, (0, 255), (0, 1), (0, 1, 255)), BINARY)
    check_masks(masks(tmp_path, (0, 255), (0,)), BINARY, hint=None)


def test_a_label_beside_its_photograph_is_no_frame(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    label = np.zeros((4, 4), np.uint8)
    photograph = np.zeros((4, 4, 3), np.uint8)
    files = {
        "a/f.jpg": photograph,
        "a/f.png": label,
        "g.png": label,
        "h.jpg": photograph,
        "h.png": photograph,  # a second photograph, which must be refused
    }
    for name, pixels in files.items():
        Image.fromarray(pixels).save(tmp_path / name)
    frames = without_labels(tmp_path, [tmp_path / name for name in files])
    names = [path.relative_to(tmp_path).as_posix() for path in frames]
    assert names == ["a/f.jpg", "g.png", "h.jpg", "h.png"]


@pytest.mark.parametrize(
    ("folder", "ending"),
    [("labels_colour", "_L"), ("gt_colour", ""), ("masks_v2/day", "_m"), ("Labels Colour", "_L")],
)
def test_a_folder_that_begins_as_labels_is_left_out_beside_its_images(
    folder: str, ending: str
) -> None:
    images = [Path(f"camera/{number}.png") for number in range(4)]
    # A label whose image is missing is no frame, either.
    labels = [Path(f"{folder}/{number}{ending}.png") for number in range(5)]
    assert without_labels(Path(), [*images, *labels]) == images


@pytest.mark.parametrize(
    "files",
    [
        ["labels_colour/0_L.png", "labels_colour/1_L.png"],  # all that there is
        ["camera/a.png", "gt_racing/x.png", "gt_racing/y.png"],  # of no image here
        ["camera/a.jpg", "gt_racing/a.jpg"],  # photographs
        ["camera/a.png", "seg_12/a.png"],  # a drive
        ["camera/a.png", "labelled_drives/a.png"],
        ["camera/a.png", "left_gt_camera/a.png"],
    ],
)
def test_images_in_a_folder_that_only_resembles_labels_are_frames(files: list[str]) -> None:
    paths = [Path(name) for name in files]
    assert without_labels(Path(), paths) == paths


def read(folder: Path, text: str) -> LabelMap:
    path = folder / "classes.csv"
    path.write_text(text)
    return read_label_map(path)


@pytest.mark.filterwarnings("ignore::segunc.core.errors.NoteWarning")
@pytest.mark.parametrize(
    "text",
    [
        "name,r,g,b\nroad,128,64,128\nVoid,0,0,0\ncar,0,0,142\n",  # CamVid's class_dict.csv
        "id,name,color\n0,road,#804080\n1,Void,#000000\n2,car,#00008E\n",
        'Name,Id,RGB\nroad,0,"128, 64, 128"\nVoid,1,"(0, 0, 0)"\ncar,2,0 0 142\n',
        "blue,green,red,class,trainId\n128,64,128,road,0\n0,0,0,Void,255\n142,0,0,car,1\n",
    ],
)
def test_label_maps_of_other_tools_are_read(tmp_path: Path, text: str) -> None:
    labels = read(tmp_path, text)
    assert labels.classes == ("road", "car")
    assert labels.palette == ((128, 64, 128), (0, 0, 142))
    assert labels.raw_to_train == {0: 0, 1: 255, 2: 1}


def test_numbers_that_a_label_map_does_not_give_are_noted(tmp_path: Path) -> None:
    with pytest.warns(NoteWarning) as notes:
        read(tmp_path, "name,r,g,b\nroad,128,64,128\nVoid,0,0,0\ncar,0,0,142\n")
    said = [str(note.message) for note in notes]
    assert "has no column id, so its rows are the ids 0 to 2" in said[0]
    assert said[1].endswith("each row is a class in its order, and it ignores Void")


@pytest.mark.filterwarnings("ignore::segunc.core.errors.NoteWarning")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id,name\n0,road\n", "has the columns id,name instead of id,name,train_id"),
        ("name,r,g,b\nroad,1,2\n", "the row road,1,2 does not hold name,r,g,b"),
        ("name,color\nroad,#12\n", "does not hold id,name,train_id,red,green,blue"),
        ("name,r,g,b\nroad,1,2,x\n", "does not hold id,name,train_id,red,green,blue"),
    ],
)
def test_a_label_map_that_lacks_something_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read(tmp_path, text)
