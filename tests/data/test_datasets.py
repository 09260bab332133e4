"""Every data set by name, on a miniature of its layout."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from segunc.data.anomaly_labels import anomaly_encoding
from segunc.data.datasets import ENTRIES, dataset_entry
from segunc.data.label_images import read_label_image
from segunc.errors import InputError
from tests.data import miniatures


@pytest.mark.parametrize("name", ["cityscapes", "toy"])
def test_cityscapes_layout(tmp_path: Path, name: str) -> None:
    miniatures.cityscapes(tmp_path, {"train": 3, "val": 1}, name)
    entry = dataset_entry(name)
    samples = entry.samples(tmp_path, "train")
    assert [s.name for s in samples] == [f"ulm/ulm_{i:06d}_000019_leftImg8bit" for i in range(3)]
    # Of the three files beside each other only the label ids count.
    assert [s.label.name for s in samples if s.label] == [f"ulm_{i:06d}_000019_gtFine_labelIds.png" for i in range(3)]
    assert len(entry.samples(tmp_path, "val")) == 1
    assert entry.label_map().num_classes == {"cityscapes": 19, "toy": 9}[name]
    with pytest.raises(InputError, match=r"test does not exist; expected data set .* check the root"):
        entry.samples(tmp_path, "test")
    with pytest.raises(InputError, match=r"split 'dev' .* expected one of train, val, test"):
        entry.samples(tmp_path, "dev")


def test_camvid_layout(tmp_path: Path) -> None:
    miniatures.camvid(tmp_path, {"train": 2, "test": 1})
    entry = dataset_entry("camvid")
    assert [(s.name, s.label) for s in entry.samples(tmp_path, "train")] == [
        (f"0001TP_{i:06d}", tmp_path / "trainannot" / f"0001TP_{i:06d}.png") for i in range(2)
    ]
    assert entry.label_map().classes[3] == "road"


@pytest.mark.parametrize("labels", ["labels", "labels_masks"])
@pytest.mark.parametrize("split", ["all", "test"])
def test_folder_layout(tmp_path: Path, labels: str, split: str) -> None:
    miniatures.folder(tmp_path if split == "all" else tmp_path / split, labels, 2, [0, 1])
    entry = dataset_entry("folder")
    samples = entry.samples(tmp_path, split)
    assert [s.name for s in samples] == ["scene0", "scene1"]
    assert all(s.label is not None and s.label.parent.name == labels for s in samples)
    with pytest.raises(InputError, match="no class labels"):
        entry.label_map()


def test_road_anomaly_layout(tmp_path: Path) -> None:
    miniatures.folder(tmp_path, "labels", 2, [0, 2])
    entry = dataset_entry("road-anomaly")
    samples = entry.samples(tmp_path, "test")
    assert samples == entry.samples(tmp_path, "all")
    assert entry.anomaly_encoding is not None
    label = samples[0].label
    assert label is not None
    mask = anomaly_encoding(entry.anomaly_encoding).encode(read_label_image(label))
    assert mask.mean() == 0.5
    assert set(mask.ravel().tolist()) == {0, 1}


def test_toy_anomaly_layout(tmp_path: Path) -> None:
    miniatures.toy_anomaly(tmp_path, 2)
    samples = dataset_entry("toy-anomaly").samples(tmp_path, "anomaly")
    assert [s.label.name for s in samples if s.label] == [f"elsewhere_{i:06d}_000019_anomaly.png" for i in range(2)]


def test_an_image_without_a_label_is_an_error(tmp_path: Path) -> None:
    miniatures.camvid(tmp_path, {"train": 3})
    (tmp_path / "trainannot" / "0001TP_000001.png").unlink()
    with pytest.raises(InputError, match=r"1 of 3 images .* have no label .* first is 0001TP_000001"):
        dataset_entry("camvid").samples(tmp_path, "train")


def test_two_images_of_one_name_are_an_error(tmp_path: Path) -> None:
    miniatures.folder(tmp_path, "labels", 1, [0, 1])
    shutil.copy(tmp_path / "images" / "scene0.jpg", tmp_path / "images" / "scene0.jpeg")
    with pytest.raises(InputError, match="both frame 'scene0'"):
        dataset_entry("folder").samples(tmp_path, "all")


def test_a_folder_with_other_images_alone_is_an_error(tmp_path: Path) -> None:
    miniatures.cityscapes(tmp_path, {"train": 1})
    image = next((tmp_path / "leftImg8bit").rglob("*.png"))
    image.rename(image.with_name("something_else.png"))
    with pytest.raises(InputError, match="holds no image"):
        dataset_entry("cityscapes").samples(tmp_path, "train")


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(InputError, match=f"data set 'kitti'; expected one of {', '.join(sorted(ENTRIES))}"):
        dataset_entry("kitti")
