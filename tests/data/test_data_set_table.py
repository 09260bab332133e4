"""A table of data sets: what its lines mean, and one sentence for each wrong line."""

import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from segunc.core.errors import InputError
from segunc.data.data_set_table import ENTRY_KEYS, LAYOUT_KEYS, SPLIT_KEYS, read_table
from segunc.data.datasets import TABLE, dataset_entry, is_data_set, name_and_folder
from tests.data.miniatures import colour_label, write_frame

LINES = {
    "layouts": [{"images": "{}/pictures/*_rgb", "labels": "{}/truth/*_ids"}],
    "splits": ["train", "val"],
    "labels": "camvid",
}
"""The fewest lines of an entry."""


def write(folder: Path, **changes: object) -> Path:
    """Write a table of one entry, ``yard``; a change to None takes a key away."""
    lines = {key: value for key, value in (LINES | changes).items() if value is not None}
    path = folder / "sets.yaml"
    path.write_text(yaml.safe_dump({"yard": lines}))
    return path


def test_an_entry_of_your_own_is_named_by_its_file(tmp_path: Path) -> None:
    table = write(tmp_path, title="the yard", licence="ours")
    for split in ("train", "val"):
        image = tmp_path / f"data/{split}/pictures/a_rgb.png"
        write_frame(image, tmp_path / f"data/{split}/truth/a_ids.png", [0, 3, 11], size=(4, 6))
    entry = dataset_entry(f"{table}:yard")
    assert (entry.name, entry.title, entry.licence) == ("yard", "the yard", "ours")
    (sample,) = entry.samples(tmp_path / "data", "val")
    assert sample.name == "a_rgb"
    assert sample.label is not None
    assert entry.label_map().read(sample.label)[0].tolist() == [0, 0, 3, 3, 255, 255]


def test_a_label_map_lies_beside_its_table(tmp_path: Path) -> None:
    (tmp_path / "classes.csv").write_text(
        "id,name,train_id,red,green,blue\n7,lawn,0,0,255,0\n9,path,1,90,90,90\n"
    )
    entry = dataset_entry(f"{write(tmp_path, labels='classes.csv')}:yard")
    assert entry.label_map().classes == ("lawn", "path")


def test_masks_have_values_and_ranges(tmp_path: Path) -> None:
    masks = {"normal": 1, "anomaly": ["2-4", 9], "ignored": [0, 255]}
    entry = dataset_entry(f"{write(tmp_path, labels=None, masks=masks)}:yard")
    assert entry.anomaly_encoding is not None
    raw = np.array([[0, 1, 2, 4, 9, 255]], np.uint8)
    assert entry.anomaly_encoding.encode(raw).tolist() == [[255, 0, 1, 1, 1, 255]]


def test_names_and_renaming_decide_which_frames_and_labels(tmp_path: Path) -> None:
    table = write(
        tmp_path,
        layouts=[{"images": "*/camera/*", "labels": "*/label/*", "rename": {"label": "camera"}}],
        splits={"train": {"left_out": ["b_"]}, "val": {"names": ["b_"]}},
    )
    for drive in ("a", "b"):
        image = tmp_path / f"data/{drive}/camera/{drive}_camera_1.png"
        write_frame(image, tmp_path / f"data/{drive}/label/{drive}_label_1.png", [0, 3])
    entry = dataset_entry(f"{table}:yard")
    assert [sample.name for sample in entry.samples(tmp_path / "data", "train")] == [
        "a/camera/a_camera_1"
    ]
    assert [sample.name for sample in entry.samples(tmp_path / "data", "val")] == [
        "b/camera/b_camera_1"
    ]


def test_labels_in_colour_say_which_frames_hold_an_anomaly(tmp_path: Path) -> None:
    splits = {
        "train": {"folders": "all", "holds": "no anomaly"},
        "test": {"folders": "all", "holds": "anomaly"},
        "labelled": {"folders": "all", "holds": "not only ignored"},
    }
    classes = tmp_path / "classes.csv"
    classes.write_text(
        "id,name,train_id,red,green,blue\n"
        "0,lawn,0,0,255,0\n1,path,1,90,90,0\n2,cow,2,200,0,0\n3,void,255,0,0,20\n"
    )
    table = write(tmp_path, labels="classes.csv", anomaly_classes=["cow"], splits=splits)
    root = tmp_path / "data"
    stripes = {"calm": [0, 1], "strange": [0, 1, 2], "empty": [3, 3]}
    for name, values in stripes.items():
        label = root / f"all/truth/{name}_ids.png"
        write_frame(root / f"all/pictures/{name}_rgb.png", label, values)
        colour_label(label, str(classes))
    entry = dataset_entry(f"{table}:yard")

    def frames(split: str) -> list[str]:
        return [sample.name for sample in entry.samples(root, split)]

    assert frames("train") == ["calm_rgb", "empty_rgb"]
    assert frames("test") == ["strange_rgb"]
    assert frames("labelled") == ["calm_rgb", "strange_rgb"]


def test_the_rule_of_a_split_goes_by_the_label_map_that_is_named(tmp_path: Path) -> None:
    header = "id,name,train_id,red,green,blue\n"
    rows = "0,lawn,0,0,255,0\n1,path,1,90,90,0\n"
    (tmp_path / "classes.csv").write_text(f"{header}{rows}2,cow,2,200,0,0\n3,void,255,0,0,20\n")
    mine = tmp_path / "mine.csv"
    mine.write_text(f"{header}{rows}3,cow,2,200,0,0\n2,void,255,0,0,20\n")
    splits = {
        "train": {"folders": "all", "holds": "no anomaly"},
        "labelled": {"folders": "all", "holds": "not only ignored"},
    }
    table = write(tmp_path, labels="classes.csv", anomaly_classes=["cow"], splits=splits)
    root = tmp_path / "data"
    for name, values in {"calm": [0, 1], "strange": [1, 3], "empty": [2, 2]}.items():
        image = root / f"all/pictures/{name}_rgb.png"
        write_frame(image, root / f"all/truth/{name}_ids.png", values)
    entry = dataset_entry(f"{table}:yard", labels=mine)
    assert [sample.name for sample in entry.samples(root, "train")] == ["calm_rgb", "empty_rgb"]
    labelled = [sample.name for sample in entry.samples(root, "labelled")]
    assert labelled == ["calm_rgb", "strange_rgb"]


def test_the_rule_of_a_split_knows_a_label_map_that_was_edited(tmp_path: Path) -> None:
    classes = tmp_path / "classes.csv"
    rows = "id,name,train_id,red,green,blue\n0,lawn,0,0,255,0\n1,path,1,90,90,90\n"
    splits = {"train": {"folders": "all", "holds": "no anomaly"}}
    table = write(tmp_path, labels="classes.csv", anomaly_classes=["cow"], splits=splits)
    for name, values in (("a", [0, 1]), ("b", [0, 7])):
        image = tmp_path / f"data/all/pictures/{name}_rgb.png"
        write_frame(image, tmp_path / f"data/all/truth/{name}_ids.png", values)

    def frames() -> list[str]:
        samples = dataset_entry(f"{table}:yard").samples(tmp_path / "data", "train")
        return [sample.name for sample in samples]

    classes.write_text(f"{rows}6,cow,2,9,9,9\n7,hen,3,8,8,8\n")
    assert frames() == ["a_rgb", "b_rgb"]
    classes.write_text(f"{rows}7,cow,2,9,9,9\n6,hen,3,8,8,8\n")
    assert frames() == ["a_rgb"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lables": "camvid"}, r"data set 'yard': unknown key 'lables' \(did you mean labels\?\)"),
        ({"colour": 1}, r"unknown key 'colour'\. Hint: the keys are title, layouts, splits"),
        ({"layouts": [{"images": "a/*"}]}, "layout 1 has no key 'labels'"),
        ({"layouts": [{"images": "a/*", "labels": "b/*", "x": 1}]}, "layout 1: unknown key 'x'"),
        (
            {"layouts": [{"images": "a/*.png", "labels": "b"}]},
            "labels: 'b' is not FOLDER/\\*ENDING",
        ),
        ({"layouts": [{"images": "{0}/{1}/*", "labels": "b/*"}]}, "has more places {} than"),
        ({"layouts": []}, "layouts is not a list"),
        ({"splits": {"val": {"holds": "cats"}}}, "val: holds 'cats' is no rule"),
        ({"splits": {"val": {"holds": "anomaly"}}}, "there are no anomaly_classes"),
        ({"splits": {"val": {"folder": "x"}}}, r"unknown key 'folder' \(did you mean folders\?\)"),
        ({"splits": [1]}, "splits: 1 is not a text"),
        ({"encoding": "jpeg"}, "encoding 'jpeg' is none"),
        ({"labels": None}, "has neither labels nor masks"),
        ({"masks": {"normal": 0, "anomaly": 1}}, "has both labels and masks"),
        ({"labels": None, "masks": {"normal": 0, "anomaly": 256}}, "anomaly: 256 is not a value"),
        ({"labels": None, "masks": {"normal": 0, "anomaly": "0-3"}}, "0 of masks is normal and"),
        ({"labels": None, "masks": [0, 1]}, r"masks is \[0, 1\], not keys with values"),
        (
            {"layouts": [{"images": "a/*", "labels": "b/*", "rename": {"(": ""}}]},
            "'\\(' is not a regular expression",
        ),
        (
            {"layouts": [{"images": "a/*", "labels": "b/*", "labelled_only": "yes"}]},
            "layout 1: labelled_only: 'yes' is no truth value",
        ),
    ],
)
def test_a_wrong_line_is_one_sentence(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    table = write(tmp_path, **changes)
    with pytest.raises(InputError, match=message) as raised:
        dataset_entry(f"{table}:yard")
    assert str(table) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no data sets"),
        ("- a\n", "holds no data sets"),
        ("yard: 3\n", "data set 'yard' is 3, not keys with values"),
        ("yard: [\n", "it is not a YAML file"),
    ],
)
def test_what_is_no_table_is_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "sets.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        dataset_entry(f"{path}:yard")


def test_a_table_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"table of data sets .*none\.yaml"):
        dataset_entry(f"{tmp_path}/none.yaml:yard")


def test_a_name_with_a_folder_is_divided_at_the_right_colon() -> None:
    assert name_and_folder("camvid:/data/camvid") == ("camvid", "/data/camvid")
    assert name_and_folder("a/sets.yaml:yard:/data/yard") == ("a/sets.yaml:yard", "/data/yard")
    assert name_and_folder("/data/camvid") is None
    assert is_data_set("sets.yaml:yard")
    assert is_data_set("camvid")
    assert not is_data_set("C")


def test_the_page_explains_every_key_and_its_example_is_a_table(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "data-sets.md"
    text = page.read_text(encoding="utf-8")
    (example,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "sets.yaml").write_text(example)
    for split in ("train", "val"):
        image = tmp_path / f"data/{split}/camera/a_rgb.jpg"
        write_frame(image, tmp_path / f"data/{split}/truth/a_ids.png", [0, 3], size=(4, 6))
    entry = dataset_entry(f"{tmp_path}/sets.yaml:yard")
    assert entry.labels == str(tmp_path / "classes.csv")
    assert [sample.name for sample in entry.samples(tmp_path / "data", "train")] == ["a_rgb"]
    explained = " ".join(line.split("|")[1] for line in text.splitlines() if line.startswith("| `"))
    for key in (*ENTRY_KEYS, *LAYOUT_KEYS, *SPLIT_KEYS):
        assert f"`{key}`" in explained or key == "folders", key


def test_the_table_of_the_package_says_where_each_set_comes_from() -> None:
    for name, entry in read_table(TABLE).items():
        assert entry.title, name
        assert entry.source, name
        assert entry.rule, name
        assert set(entry.layouts[0].splits) == set(entry.splits), name
