"""Label maps, the built-in ones and those of a CSV file of one's own, and anomaly masks in their
raw encodings.
"""

from pathlib import Path

import numpy as np
import pytest

from segunc.core.errors import InputError
from segunc.data.datasets import dataset_entry
from segunc.data.labels import COLUMNS, IGNORE, label_map, read_label_map
from segunc.data.masks import BINARY, ROAD_ANOMALY

# From cityscapesScripts, cityscapesscripts/helpers/labels.py: name, id, colour of the evaluated
# classes in the order of their train ids.
CITYSCAPES = [
    *(("road", 7, (128, 64, 128)), ("sidewalk", 8, (244, 35, 232)), ("building", 11, (70, 70, 70))),
    *(("wall", 12, (102, 102, 156)), ("fence", 13, (190, 153, 153)), ("pole", 17, (153, 153, 153))),
    *(
        ("traffic light", 19, (250, 170, 30)),
        ("traffic sign", 20, (220, 220, 0)),
        ("vegetation", 21, (107, 142, 35)),
    ),
    *(("terrain", 22, (152, 251, 152)), ("sky", 23, (70, 130, 180)), ("person", 24, (220, 20, 60))),
    *(
        ("rider", 25, (255, 0, 0)),
        ("car", 26, (0, 0, 142)),
        ("truck", 27, (0, 0, 70)),
        ("bus", 28, (0, 60, 100)),
    ),
    *(("train", 31, (0, 80, 100)), ("motorcycle", 32, (0, 0, 230)), ("bicycle", 33, (119, 11, 32))),
]


def test_cityscapes_and_idd_have_their_published_ids_names_and_colours() -> None:
    labels, train_ids = label_map("cityscapes"), label_map("cityscapes-train-ids")
    assert labels.classes == train_ids.classes == tuple(name for name, *_ in CITYSCAPES)
    assert labels.palette == train_ids.palette == tuple(colour for *_, colour in CITYSCAPES)
    evaluated = {raw: train for raw, train in labels.raw_to_train.items() if train != IGNORE}
    assert evaluated == {raw: train for train, (_, raw, _) in enumerate(CITYSCAPES)}
    assert labels.raw_to_train.keys() >= {*range(34)}
    assert train_ids.raw_to_train == {**{i: i for i in range(19)}, 255: IGNORE}
    # AutoNUE/public-code, helpers/anue_labels.py: level3Id of a name that it shares with nobody,
    # and its colour.
    idd = label_map("idd")
    for raw, *name_and_colour in (
        *(
            (0, "road", (128, 64, 128)),
            (2, "sidewalk", (244, 35, 232)),
            (8, "autorickshaw", (255, 204, 54)),
        ),
        *(
            (11, "bus", (0, 60, 100)),
            (18, "traffic sign", (220, 220, 0)),
            (24, "vegetation", (107, 142, 35)),
        ),
    ):
        train = idd.raw_to_train[raw]
        assert [idd.classes[train], idd.palette[train]] == name_and_colour
    assert [raw for raw, train in idd.raw_to_train.items() if train == IGNORE] == [
        max(idd.raw_to_train)
    ]
    assert len(set(idd.classes)) == idd.num_classes


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.int32, np.int64])
def test_encoding_maps_every_known_value(kind: type) -> None:
    encoded = label_map("cityscapes").encode(np.array([[7, 26, 0], [33, 23, 6]], kind))
    assert encoded.dtype == np.uint8
    assert encoded.tolist() == [[0, 13, 255], [18, 10, 255]]
    assert BINARY.encode(np.array([[0, 1, 255]], kind)).tolist() == [[0, 1, 255]]
    encoded = ROAD_ANOMALY.encode(np.array([[0, 2, 2]], kind))
    assert (encoded.tolist(), encoded.dtype) == ([[0, 1, 1]], np.uint8)


def test_unknown_values_are_refused_and_do_not_wrap_to_a_class() -> None:
    cityscapes = label_map("cityscapes")
    with pytest.raises(InputError, match=r"a.png holds the values \[77, 200\], but only 0-33"):
        cityscapes.encode(np.array([[7, 200, 77]], np.uint8), "a.png")
    with pytest.raises(
        InputError,
        match=r"mask.png holds the values \[2, 7\].*0 = normal, 1 = anomaly, 255 = ignored",
    ):
        BINARY.encode(np.array([[0, 2, 7]]), "mask.png")
    for value in (-1, -200, 256, 263, 70000):
        with pytest.raises(InputError, match=rf"values \[{value}\]"):
            cityscapes.encode(np.array([[7, value]], np.int32))


def write(path: Path, *rows: str, header: str = ",".join(COLUMNS)) -> Path:
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def test_a_map_of_ones_own_may_merge_raw_ids_and_wrong_columns_and_files_are_refused(
    tmp_path: Path,
) -> None:
    rows = (
        "3,road,0,1,2,3",
        "4,lane,0,9,9,9",
        "5,rest,1,4,5,6",
        "6,more,2,0,0,0",
        "0,void,255,0,0,0",
    )
    labels = label_map(str(write(tmp_path / "own.csv", *rows)))
    assert labels.name == "own"
    assert labels.classes == (
        "road",
        "rest",
        "more",
    )  # the first row of a train id names and colours it
    assert labels.palette == ((1, 2, 3), (4, 5, 6), (0, 0, 0))
    assert labels.encode(np.array([[3, 4, 5, 0]], np.uint8)).tolist() == [[0, 0, 1, 255]]
    assert labels.raw_ids(["road", "more"]) == {3, 4, 6}
    assert labels.without(["road"]).raw_to_train == {3: IGNORE, 4: IGNORE, 5: 0, 6: 1, 0: IGNORE}
    with pytest.raises(
        InputError, match=r"columns id,name,train instead of .*red,green,blue.*segunc init"
    ):
        read_label_map(write(tmp_path / "own.csv", "0,road,0", header="id,name,train"))
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x81")
    for name in (str(tmp_path / "binary.csv"), str(tmp_path / "none.csv"), "kitti"):
        with pytest.raises(InputError, match=name):
            label_map(name)


@pytest.mark.parametrize(
    "rows",
    [
        *(
            ["0,road,0,1,2,3", "1,car,2,1,2,3"],
            ["0,road,1,1,2,3"],
            ["0,void,255,1,2,3"],
            [],
        ),  # a gap, or no class
        ["0,road,0,1,2,3", "0,car,1,1,2,3"],  # an id twice
        *(
            ["0,road,zero,1,2,3"],
            ["0,road,0,1,2"],
            ["300,road,0,1,2,3"],
            ["-1,road,0,1,2,3"],
            ["0,road,0,1,2,256"],
        ),
    ],
)
def test_a_wrong_map_is_refused(tmp_path: Path, rows: list[str]) -> None:
    with pytest.raises(InputError, match=r"own\.csv"):
        read_label_map(write(tmp_path / "own.csv", *rows))


@pytest.mark.parametrize("second", ["caf\u00e9", "cafe\u0301"])
def test_two_classes_of_one_name_are_refused(tmp_path: Path, second: str) -> None:
    """An accent may be one character or two."""
    path = tmp_path / "map.csv"
    rows = [",".join(COLUMNS), "0,road,0,1,1,1", "1,caf\u00e9,1,2,2,2", f"2,{second},2,3,3,3"]
    path.write_text("\n".join(rows))
    with pytest.raises(InputError, match=r"label map 'map' names both classes 1 and 2 'caf"):
        read_label_map(path)


def test_classes_can_be_taken_out_and_become_the_anomaly() -> None:
    whole = label_map("camvid")
    rest = whole.without(["building", "bicyclist"])
    assert rest.classes == tuple(
        name for name in whole.classes if name not in ("building", "bicyclist")
    )
    assert rest.palette == (*whole.palette[:1], *whole.palette[2:10])
    assert rest.encode(np.array([[0, 1, 2, 9, 10, 11]], np.uint8)).tolist() == [
        [0, 255, 1, 8, 255, 255]
    ]
    assert whole.without([]) == whole
    assert rest.name == "camvid without building, bicyclist"
    for names in (["bike"], whole.classes[1:]):
        with pytest.raises(InputError, match=r"'bike'.*one of sky, building|fewer than two"):
            whole.without(names)
    encoding = dataset_entry("cityscapes", anomaly_classes=["rider", "bicycle"]).anomaly_encoding
    assert encoding is not None
    raw = np.array([[7, 25, 33, 0, 29, 255, 24]], np.uint8)
    assert encoding.encode(raw).tolist() == [[0, 1, 1, 255, 255, 255, 0]]
