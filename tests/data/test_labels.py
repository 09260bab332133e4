"""Label maps, the built-in ones and those of a CSV file of one's own, and anomaly masks in their
raw encodings.
"""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from segunc.core.errors import InputError
from segunc.data.datasets import dataset_entry
from segunc.data.labels import (
    COLUMNS,
    IGNORE,
    LabelMap,
    label_map,
    label_values,
    read_label_map,
)
from segunc.data.masks import BINARY, ROAD_ANOMALY, AnomalyEncoding

# From cityscapesScripts, cityscapesscripts/helpers/labels.py: name, id, colour of the evaluated
# classes in the order of their train ids.
CITYSCAPES = [
    ("road", 7, (128, 64, 128)),
    ("sidewalk", 8, (244, 35, 232)),
    ("building", 11, (70, 70, 70)),
    ("wall", 12, (102, 102, 156)),
    ("fence", 13, (190, 153, 153)),
    ("pole", 17, (153, 153, 153)),
    ("traffic light", 19, (250, 170, 30)),
    ("traffic sign", 20, (220, 220, 0)),
    ("vegetation", 21, (107, 142, 35)),
    ("terrain", 22, (152, 251, 152)),
    ("sky", 23, (70, 130, 180)),
    ("person", 24, (220, 20, 60)),
    ("rider", 25, (255, 0, 0)),
    ("car", 26, (0, 0, 142)),
    ("truck", 27, (0, 0, 70)),
    ("bus", 28, (0, 60, 100)),
    ("train", 31, (0, 80, 100)),
    ("motorcycle", 32, (0, 0, 230)),
    ("bicycle", 33, (119, 11, 32)),
]


def encode(
    encoding: LabelMap | AnomalyEncoding, rows: list[list[int]], kind: type = np.uint8
) -> list[list[int]]:
    """Return the encoded rows of labels that are stored as a type."""
    encoded = encoding.encode(np.array(rows, kind))
    assert encoded.dtype == np.uint8
    return encoded.tolist()


@pytest.mark.parametrize("name", ["cityscapes", "cityscapes-train-ids"])
def test_cityscapes_has_its_published_names_and_colours(name: str) -> None:
    labels = label_map(name)
    assert labels.classes == tuple(name for name, _, _ in CITYSCAPES)
    assert labels.palette == tuple(colour for _, _, colour in CITYSCAPES)


def test_cityscapes_has_its_published_ids() -> None:
    raw_to_train = label_map("cityscapes").raw_to_train
    evaluated = {raw: train for raw, train in raw_to_train.items() if train != IGNORE}
    assert evaluated == {raw: train for train, (_, raw, _) in enumerate(CITYSCAPES)}
    assert raw_to_train.keys() >= {*range(34)}


def test_train_ids_of_cityscapes_are_themselves() -> None:
    expected = {number: number for number in range(19)}
    expected[255] = IGNORE
    assert label_map("cityscapes-train-ids").raw_to_train == expected


# From AutoNUE/public-code, helpers/anue_labels.py: level3Id of a name that it shares with nobody,
# and its colour.
@pytest.mark.parametrize(
    ("raw", "name", "colour"),
    [
        (0, "road", (128, 64, 128)),
        (2, "sidewalk", (244, 35, 232)),
        (8, "autorickshaw", (255, 204, 54)),
        (11, "bus", (0, 60, 100)),
        (18, "traffic sign", (220, 220, 0)),
        (24, "vegetation", (107, 142, 35)),
    ],
)
def test_idd_has_its_published_ids_names_and_colours(
    raw: int, name: str, colour: tuple[int, int, int]
) -> None:
    idd = label_map("idd")
    train = idd.raw_to_train[raw]
    assert idd.classes[train] == name
    assert idd.palette[train] == colour


def test_idd_ignores_its_last_id_alone() -> None:
    raw_to_train = label_map("idd").raw_to_train
    ignored = [raw for raw, train in raw_to_train.items() if train == IGNORE]
    assert ignored == [max(raw_to_train)]


def test_no_two_classes_of_idd_have_one_name() -> None:
    idd = label_map("idd")
    assert len(set(idd.classes)) == idd.num_classes


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.int32, np.int64])
def test_encoding_maps_every_known_value(kind: type) -> None:
    cityscapes = label_map("cityscapes")
    assert encode(cityscapes, [[7, 26, 0], [33, 23, 6]], kind) == [[0, 13, 255], [18, 10, 255]]
    assert encode(BINARY, [[0, 1, 255]], kind) == [[0, 1, 255]]
    assert encode(ROAD_ANOMALY, [[0, 2, 2]], kind) == [[0, 1, 1]]


def test_unknown_values_of_labels_are_refused() -> None:
    labels = np.array([[7, 200, 77]], np.uint8)
    with pytest.raises(InputError, match=r"a.png holds the values \[77, 200\], but only 0-33"):
        label_map("cityscapes").encode(labels, "a.png")


def test_unknown_values_of_masks_are_refused() -> None:
    mask = np.array([[0, 2, 7]])
    message = r"mask.png holds the values \[2, 7\].*0 = normal, 1 = anomaly, 255 = ignored"
    with pytest.raises(InputError, match=message):
        BINARY.encode(mask, "mask.png")


@pytest.mark.parametrize("value", [-1, -200, 256, 263, 70000])
def test_values_outside_uint8_do_not_wrap_to_a_class(value: int) -> None:
    labels = np.array([[7, value]], np.int32)
    with pytest.raises(InputError, match=rf"values \[{value}\]"):
        label_map("cityscapes").encode(labels)


def write(path: Path, *rows: str, header: str = ",".join(COLUMNS)) -> Path:
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def merging(tmp_path: Path) -> LabelMap:
    """A map in which ids 3 and 4 are both the class road."""
    path = write(
        tmp_path / "own.csv",
        "3,road,0,1,2,3",
        "4,lane,0,9,9,9",
        "5,rest,1,4,5,6",
        "6,more,2,0,0,0",
        "0,void,255,0,0,0",
    )
    return label_map(str(path))


def test_a_map_has_the_name_of_its_file(merging: LabelMap) -> None:
    assert merging.name == "own"


def test_the_first_row_of_a_train_id_names_and_colours_it(merging: LabelMap) -> None:
    assert merging.classes == ("road", "rest", "more")
    assert merging.palette == ((1, 2, 3), (4, 5, 6), (0, 0, 0))


def test_merged_raw_ids_are_one_class(merging: LabelMap) -> None:
    assert encode(merging, [[3, 4, 5, 0]]) == [[0, 0, 1, 255]]
    assert merging.raw_ids(["road", "more"]) == {3, 4, 6}


def test_a_class_is_taken_out_with_all_its_raw_ids(merging: LabelMap) -> None:
    rest = merging.without(["road"])
    assert rest.raw_to_train == {3: IGNORE, 4: IGNORE, 5: 0, 6: 1, 0: IGNORE}


def test_values_of_a_label_are_read_anew_by_another_map_of_the_same_name(tmp_path: Path) -> None:
    label = tmp_path / "label.png"
    Image.fromarray(np.array([[[9, 9, 9], [0, 255, 0]]], np.uint8)).save(label)
    path = tmp_path / "classes.csv"
    header = "id,name,train_id,red,green,blue"
    path.write_text(f"{header}\n0,lawn,0,0,255,0\n1,path,1,9,9,9\n")
    assert label_values(label, read_label_map(path)) == {0, 1}
    path.write_text(f"{header}\n0,lawn,0,0,255,0\n7,path,1,9,9,9\n")
    assert label_values(label, read_label_map(path)) == {0, 7}


def test_wrong_columns_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "own.csv", "0,road,0", header="id,name,train")
    message = r"columns id,name,train instead of .*red,green,blue.*segunc init"
    with pytest.raises(InputError, match=message):
        read_label_map(path)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "binary.csv"
    path.write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(InputError, match=str(path)):
        label_map(str(path))


def test_a_file_or_name_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for name in (str(tmp_path / "none.csv"), "kitti"):
        with pytest.raises(InputError, match=name):
            label_map(name)


@pytest.mark.parametrize(
    "rows",
    [
        ["0,road,0,1,2,3", "1,car,2,1,2,3"],  # a gap
        ["0,road,1,1,2,3"],
        ["0,void,255,1,2,3"],  # no class
        [],
        ["0,road,0,1,2,3", "0,car,1,1,2,3"],  # an id twice
        ["0,road,zero,1,2,3"],
        ["0,road,0,1,2"],
        ["300,road,0,1,2,3"],
        ["-1,road,0,1,2,3"],
        ["0,road,0,1,2,256"],
        ["0_1,road,0,1,2,3"],  # which Python takes for 1
        ["0,,0,1,2,3"],  # no name
    ],
)
def test_a_wrong_map_is_refused(tmp_path: Path, rows: list[str]) -> None:
    path = write(tmp_path / "own.csv", *rows)
    with pytest.raises(InputError, match=r"own\.csv"):
        read_label_map(path)


def test_spaces_around_a_name_are_no_part_of_it(tmp_path: Path) -> None:
    path = write(tmp_path / "own.csv", "0, road,0,1,2,3", "1,car , 1,4,5,6")
    assert read_label_map(path).classes == ("road", "car")


@pytest.mark.filterwarnings("ignore:label map .* has no column")
@pytest.mark.parametrize(
    ("header", "ids"),
    [
        ("label,name,red,green,blue", {7: 0, 8: 1}),
        ("class,label,r,g,b", {0: 0, 1: 1}),  # both hold other texts than ids
        ("class_index,class_name,r,g,b", {7: 0, 8: 1}),
        ("class_id,class,r,g,b", {7: 0, 8: 1}),
    ],
)
def test_a_column_of_numbers_beside_the_names_holds_the_ids(
    tmp_path: Path, header: str, ids: dict[int, int]
) -> None:
    rows = ["7,road,1,2,3", "8,car,4,5,6"]
    names = ("road", "car")
    if header.startswith("class,label"):
        rows = ["road,flat,1,2,3", "car,vehicle,4,5,6"]
    made = read_label_map(write(tmp_path / "own.csv", *rows, header=header))
    assert made.classes == names
    assert made.raw_to_train == ids


@pytest.mark.parametrize("second", ["caf\u00e9", "cafe\u0301"])
def test_two_classes_of_one_name_are_refused(tmp_path: Path, second: str) -> None:
    """An accent may be one character or two."""
    rows = ["0,road,0,1,1,1", "1,caf\u00e9,1,2,2,2", f"2,{second},2,3,3,3"]
    path = write(tmp_path / "map.csv", *rows)
    with pytest.raises(InputError, match=r"label map 'map' names both classes 1 and 2 'caf"):
        read_label_map(path)


def test_classes_can_be_taken_out() -> None:
    whole = label_map("camvid")
    rest = whole.without(["building", "bicyclist"])
    assert rest.name == "camvid without building, bicyclist"
    assert rest.classes == (*whole.classes[:1], *whole.classes[2:10])
    assert rest.palette == (*whole.palette[:1], *whole.palette[2:10])
    assert encode(rest, [[0, 1, 2, 9, 10, 11]]) == [[0, 255, 1, 8, 255, 255]]


def test_a_map_without_no_class_is_the_map_itself() -> None:
    whole = label_map("camvid")
    assert whole.without([]) == whole


def test_a_class_that_is_not_there_cannot_be_taken_out() -> None:
    with pytest.raises(InputError, match=r"'bike'.*one of sky, building"):
        label_map("camvid").without(["bike"])


def test_two_classes_must_remain() -> None:
    whole = label_map("camvid")
    with pytest.raises(InputError, match="fewer than two"):
        whole.without(whole.classes[1:])


def test_classes_can_become_the_anomaly() -> None:
    entry = dataset_entry("cityscapes", anomaly_classes=["rider", "bicycle"])
    assert entry.anomaly_encoding is not None
    raw = [[7, 25, 33, 0, 29, 255, 24]]
    assert encode(entry.anomaly_encoding, raw) == [[0, 1, 1, 255, 255, 255, 0]]
