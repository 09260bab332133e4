"""Every data set by name, on a miniature of each form in which it is published, and any class of
one as its anomaly.
"""

import os
import shutil
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from segunc.core.errors import InputError
from segunc.data.datasets import DATASETS, dataset_entry
from segunc.data.entries import DatasetEntry, Sample
from segunc.data.images import load_image, read_label_image
from segunc.data.labels import IGNORE
from segunc.data.module import SegmentationDataModule
from tests.data.miniatures import COUNTS, EVERY_FORM, FORMS, draw_miniature, write_frame

CLASSES = {
    "cityscapes": 19,
    "bdd100k": 19,
    "camvid": 11,
    "idd": 26,
    "idd-lite": 7,
    "mapillary": 65,
    "toy": 9,
    "bdd-anomaly": 16,
    "streethazards": 13,
}
"""Classes of each data set that has class labels."""
Drawn = dict[tuple[str, int], Path]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Drawn:
    root = tmp_path_factory.mktemp("published")
    return {
        (name, form): draw_miniature(name, root / f"{name}{form}", form)
        for name, form in EVERY_FORM
    }


def test_every_entry_and_every_layout_has_a_miniature() -> None:
    assert set(DATASETS) == set(FORMS) == set(COUNTS)
    listed = (
        (Path(__file__).parents[2] / "docs" / "data-sets.md")
        .read_text(encoding="utf-8")
        .splitlines()
    )
    for name, entry in DATASETS.items():
        assert len(entry.layouts) == len(FORMS[name])
        assert all(set(layout.splits) == set(entry.splits) for layout in entry.layouts)
        assert any(line.startswith(f"| `{name}` |") for line in listed)
        assert (entry.labels is not None) == (name in CLASSES)


@pytest.mark.parametrize(("name", "form"), EVERY_FORM)
def test_the_frames_of_a_published_form_are_found(drawn: Drawn, name: str, form: int) -> None:
    entry, root = dataset_entry(name), drawn[name, form]
    by_image = {root / image: (root / label, values) for image, label, values in FORMS[name][form]}
    for split, count in COUNTS[name].items():
        samples = entry.samples(root, split)
        assert len(samples) == len({sample.name for sample in samples}) == count, split
        for sample in samples:
            label, values = by_image[sample.image]
            assert {sample.label, sample.anomaly} <= {label, None}
            assert sample.image.with_suffix("").as_posix().endswith(sample.name)
            assert load_image(sample.image).shape == (48, 64, 3)
            check_labels(entry, sample, read_label_image(label), set(values))


def check_labels(
    entry: DatasetEntry, sample: Sample, raw: npt.NDArray[np.uint8], values: set[int]
) -> None:
    """What the set has is there; and a pixel is never both: what is an anomaly has no class."""
    encoding = entry.anomaly_encoding
    assert (sample.label is None, sample.anomaly is None) == (
        entry.labels is None,
        encoding is None,
    )
    mask = np.zeros_like(raw) if encoding is None else encoding.encode(raw)
    assert set(mask.ravel().tolist()) <= {0, 1, IGNORE}
    if sample.label is not None:
        classes = entry.label_map()
        train_ids = classes.encode(raw)
        assert set(train_ids.ravel().tolist()) == {classes.raw_to_train[value] for value in values}
        assert classes.num_classes == CLASSES[entry.name]
        assert (train_ids[mask == 1] == IGNORE).all()


@pytest.mark.parametrize(
    ("name", "raw", "expected"),
    [
        *((name, [0, 2], [0, 1]) for name in ("road-anomaly", "course-road-anomaly")),
        *((name, [0, 1, 255], [0, 1, 255]) for name in ("course-fs-static", "folder")),
        ("streethazards", [0, 1, 13, 14, 255], [255, 0, 0, 1, 255]),
        ("bdd-anomaly", [0, 15, 16, 17, 18, 255], [0, 0, 1, 1, 1, 255]),
        ("folder-255", [0, 255], [0, 1]),
    ],
)
def test_what_the_values_of_anomaly_labels_mean(
    name: str, raw: list[int], expected: list[int]
) -> None:
    encoding = dataset_entry(name).anomaly_encoding
    assert encoding is not None
    assert encoding.encode(np.array([raw], np.uint8)).tolist() == [expected]


@pytest.mark.parametrize(("name", "form"), EVERY_FORM)
def test_what_is_missing_or_there_twice_is_named(tmp_path: Path, name: str, form: int) -> None:
    root, split, entry = (
        draw_miniature(name, tmp_path, form),
        next(reversed(COUNTS[name])),
        dataset_entry(name),
    )
    sample = entry.samples(root, split)[-1]
    label = sample.label or sample.anomaly
    assert label is not None
    content = label.read_bytes()
    label.unlink()
    with pytest.raises(InputError, match=r"have no label|holds no image"):
        entry.samples(root, split)
    label.write_bytes(content)
    second = sample.image.with_suffix(".jpeg")
    shutil.copy(sample.image, second)
    with pytest.raises(InputError, match="are both frame"):
        entry.samples(root, split)
    second.unlink()
    sample.image.unlink()
    with pytest.raises(InputError, match=r"have no image|holds no image"):
        entry.samples(root, split)
    for folder in (
        root / getattr(entry.layouts[form].splits[split][0], kind) for kind in ("images", "labels")
    ):
        shutil.rmtree(folder, ignore_errors=True)
        with pytest.raises(InputError, match=f"data set {name} lies as ROOT") as raised:
            entry.samples(root, split)
        assert root.as_posix() in str(raised.value) or len(entry.layouts) > 1


def test_splits_that_are_not_there_or_empty_and_names_that_do_not_fit_are_refused(
    tmp_path: Path,
) -> None:
    entry = dataset_entry("cityscapes")
    draw_miniature("cityscapes", tmp_path)
    for folder in ("leftImg8bit", "gtFine"):
        shutil.rmtree(tmp_path / folder / "val")
    for split, said in (("val", "only train"), ("dev", "one of train, val")):
        with pytest.raises(InputError, match=said):
            entry.samples(tmp_path, split)
    for image in (tmp_path / "leftImg8bit").rglob("*.png"):
        image.rename(image.with_name(f"other_{image.stem[-4:]}.png"))
    with pytest.raises(InputError, match=r"holds no image \*_leftImg8bit"):
        entry.samples(tmp_path, "train")
    root = draw_miniature("bdd-anomaly", tmp_path / "empty")
    for label in (root / "labels/sem_seg/masks").rglob("*.png"):
        cv2.imwrite(str(label), np.zeros((48, 64), np.uint8))
    with pytest.raises(InputError, match=r"split 'test' .* is empty"):
        dataset_entry("bdd-anomaly").samples(root, "test")


def test_a_label_map_makes_class_labels_of_a_folder_and_unknown_names_list_the_known_ones(
    tmp_path: Path,
) -> None:
    draw_miniature("folder", tmp_path)
    entry = dataset_entry("folder", labels="toy")
    assert entry.anomaly_encoding is None
    assert all(sample.label and not sample.anomaly for sample in entry.samples(tmp_path, "test"))
    with pytest.raises(InputError, match=", ".join(sorted(DATASETS))):
        dataset_entry("kitti")


def test_label_files_are_looked_into_again_when_they_change_and_a_damaged_one_is_left_to_its_reader(
    tmp_path: Path,
) -> None:
    root, entry = draw_miniature("bdd-anomaly", tmp_path), dataset_entry("bdd-anomaly")
    labels = root / "labels/sem_seg/masks"
    assert len(entry.samples(root, "train")) == 1
    cv2.imwrite(str(labels / "train/00054602-3bf57337.png"), np.full((48, 64), 13, np.uint8))
    assert [len(entry.samples(root, split)) for split in ("train", "val", "test")] == [2, 1, 2]
    damaged = labels / "val/7d128593-0ccfea4c.png"
    damaged.write_bytes(damaged.read_bytes()[:60])
    # Whether it belongs to val or test cannot be told.
    assert [sample.name for sample in entry.samples(root, "val")] == ["7d128593-0ccfea4c"]
    assert len(entry.samples(root, "test")) == 3


DATA = os.environ.get("SEGUNC_DATA")


def camvid(root: Path, frames: dict[str, list[bool]]) -> Path:
    """CamVid's layout; each frame holds a bicyclist (10) or does not. Labels alone matter, so
    images are tiny.
    """
    for split, anomalous in frames.items():
        for i, holds in enumerate(anomalous):
            paths = root / split / f"a_{i:03d}.png", root / f"{split}annot" / f"a_{i:03d}.png"
            write_frame(*paths, [3, 10 if holds else 8, 11], size=(2, 3))
    return root


@pytest.fixture
def holdout(monkeypatch: pytest.MonkeyPatch) -> int:
    """Two frames stand in for a split val without a frame to select on."""
    monkeypatch.setattr("segunc.data.entries.HOLDOUT", 2)
    return 2


def without_bicyclist() -> DatasetEntry:
    return dataset_entry("camvid", anomaly_classes=["bicyclist"])


def names(samples: list[Sample]) -> list[int]:
    return [int(sample.name[2:]) for sample in samples]


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    train=st.lists(st.booleans(), min_size=1, max_size=6),
    val=st.lists(st.booleans(), min_size=1, max_size=3),
)
@example(train=[False, True, False], val=[True, False, True])  # selected on val
@example(train=[False, True, False, False, True, False], val=[True])  # held out of train
@example(train=[False, False], val=[True])
def test_no_network_ever_sees_its_anomaly(
    tmp_path_factory: pytest.TempPathFactory, holdout: int, train: list[bool], val: list[bool]
) -> None:
    root = camvid(tmp_path_factory.mktemp("drawn"), {"train": train, "val": val})
    entry = without_bicyclist()
    known = [i for i, holds in enumerate(train) if not holds]
    if not known or (all(val) and len(known) <= holdout):
        with pytest.raises(InputError, match=r"of train .* are without bicyclist"):
            entry.training_samples(root, "train")
        return
    seen, selected = (names(entry.training_samples(root, split)) for split in ("train", "val"))
    if all(val):
        assert (seen, selected) == (known[:-holdout], known[-holdout:])
    else:
        assert (seen, selected) == (known, [i for i, holds in enumerate(val) if not holds])


def test_a_frame_with_the_class_tells_of_anomalies_and_one_without_of_classes(
    tmp_path: Path,
) -> None:
    camvid(tmp_path, {"test": [True, False, False], "train": [False], "val": [False]})
    for split, frame in (("test", "a_002.png"), ("train", "a_000.png")):
        (tmp_path / f"{split}annot" / frame).write_bytes(b"")
    entry = without_bicyclist()
    holding, known, unreadable = entry.samples(tmp_path, "test")
    assert holding.label is None is known.anomaly
    assert holding.anomaly
    assert known.label
    assert entry.anomaly_encoding
    # Of the stripes road, bicyclist and void.
    assert entry.anomaly_encoding.encode(read_label_image(holding.anomaly))[0].tolist() == [
        0,
        1,
        255,
    ]
    classes = entry.label_map()
    assert classes.num_classes == 10
    assert classes.encode(read_label_image(known.label))[0].tolist() == [3, 8, 255]
    assert unreadable.label, "it is left to whoever reads the frame"
    with pytest.raises(InputError, match=r"a_000.png cannot be read"):  # training must not guess
        entry.training_samples(tmp_path, "train")


def test_sets_with_anomalies_of_their_own_keep_both_labels_and_names_are_checked_at_once(
    tmp_path: Path,
) -> None:
    draw_miniature("streethazards", tmp_path)
    entry = dataset_entry("streethazards", anomaly_classes=["car"])
    assert entry.anomalies == ("anomaly", "car")
    assert entry.label_map().num_classes == 12
    assert all(sample.label == sample.anomaly for sample in entry.samples(tmp_path, "test"))
    for name, unknown in (("camvid", "bike"), ("road-anomaly", "bicyclist")):
        with pytest.raises(InputError, match="has no class"):
            dataset_entry(name, anomaly_classes=[unknown])
    assert dataset_entry("camvid", anomaly_classes=[]) is DATASETS["camvid"]


def test_the_data_module_trains_on_what_is_left(tmp_path: Path, holdout: int) -> None:
    frames = {
        "train": [False, True, False, False, False],
        "val": [True],
        "test": [True, False, False],
    }
    camvid(tmp_path, frames)

    def module(classes: str | list[str]) -> SegmentationDataModule:
        return SegmentationDataModule("camvid", str(tmp_path), batch_size=1, anomaly_class=classes)

    for classes in ("bicyclist", ["bicyclist"], " bicyclist, "):
        data = module(classes)
        data.prepare_data()
        assert data.label_map.num_classes == 10
        assert [names(data.dataset(split).samples) for split in ("train", "val", "test")] == [
            [0, 2],
            [3, 4],
            [1, 2],
        ]
    assert module("").label_map.num_classes == 11
    assert module("bicyclist,fence").label_map.classes[7:] == ("car", "pedestrian")


@pytest.mark.skipif(DATA is None, reason="SEGUNC_DATA names no folder of real data")
def test_camvid_without_bicyclist() -> None:
    """30 of 166 training frames are held out; 77 test frames hold one, 156 do not."""
    root, entry = Path(str(DATA)) / "camvid", without_bicyclist()
    train, val = (entry.training_samples(root, split) for split in ("train", "val"))
    assert (len(train), len(val)) == (166 - 30, 30)
    assert max(sample.name for sample in train) < min(sample.name for sample in val)
    test = entry.samples(root, "test")
    assert (sum(s.anomaly is not None for s in test), sum(s.label is not None for s in test)) == (
        77,
        156,
    )
    for sample in [*train[::20], *val[::10], *test[::20]]:
        raw = np.asarray(cv2.imread(str(sample.label or sample.anomaly), cv2.IMREAD_UNCHANGED))
        assert (10 in raw) == (sample.label is None)
