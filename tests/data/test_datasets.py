"""Every data set by name, on a miniature of each form in which it is published."""

from __future__ import annotations

import shutil
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from segunc.core.errors import InputError
from segunc.data.datasets import DATASETS, dataset_entry
from segunc.data.entry import DatasetEntry, Sample
from segunc.data.images import load_image, read_label_image
from segunc.data.labels import IGNORE
from tests.data.published import FORMS, draw_miniature

COUNTS: dict[str, dict[str, int]] = {
    "cityscapes": {"train": 2, "val": 1},
    "acdc": {"train": 4, "val": 4, "train-fog": 1, "val-night": 1, "val-rain": 1, "val-snow": 1},
    "camvid": {"train": 6, "val": 1, "test": 2},
    "bdd100k": {"train": 3, "val": 2},
    "bdd-anomaly": {"train": 1, "val": 1, "test": 3},
    "bdd-anomaly-two-class": {"train": 2, "val": 1, "test": 2},
    "idd": {"train": 2, "val": 1},
    "mapillary": {"train": 2, "val": 1},
    "mapillary-v2": {"train": 2, "val": 1},
    "muad": {"train": 1, "val": 1, "test_id": 1, "test_ood": 2},
    "streethazards": {"train": 2, "val": 1, "test": 2},
    "road-anomaly": {"test": 2, "all": 2},
    "smiyc-anomaly": {"validation": 2},
    "smiyc-obstacle": {"validation": 2},
    "lost-and-found": {"train": 1, "train-valid": 1, "test": 5, "test-valid": 4, "test-no-known": 2},
    "fishyscapes-laf": {"val": 2},
    "fishyscapes-static": {"val": 1},
    "course-road-anomaly-21": {"test": 2, "all": 2},
    "course-road-obstacle-21": {"test": 2},
    "course-fs-lost-and-found": {"test": 2},
    "course-fs-static": {"test": 2},
    "course-road-anomaly": {"test": 2},
    "toy": {"train": 1, "val": 1, "test": 1, "anomaly": 1},
    "toy-anomaly": {"anomaly": 1},
    "folder": {"test": 2},
    "folder-255": {"test": 1},
}
"""Frames of each split that the miniatures have."""
CLASSES = dict.fromkeys(("cityscapes", "acdc", "bdd100k"), 19) | {
    **{"camvid": 11, "idd": 26, "mapillary": 65, "mapillary-v2": 123, "toy": 9},
    **{"bdd-anomaly": 16, "bdd-anomaly-two-class": 17, "muad": 15, "streethazards": 13},
}
EVERY_FORM = [(name, form) for name, forms in FORMS.items() for form in range(len(forms))]
Drawn = dict[tuple[str, int], Path]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Drawn:
    """Every miniature, for tests that only look."""
    root = tmp_path_factory.mktemp("published")
    return {(name, form): draw_miniature(name, root / f"{name}{form}", form) for name, form in EVERY_FORM}


def last(name: str) -> str:
    return next(reversed(COUNTS[name]))


def test_every_entry_and_every_layout_has_a_miniature() -> None:
    assert set(DATASETS) == set(FORMS) == set(COUNTS)
    listed = (Path(__file__).parents[2] / "docs" / "data-sets.md").read_text(encoding="utf-8").splitlines()
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


def check_labels(entry: DatasetEntry, sample: Sample, raw: npt.NDArray[np.uint8], values: set[int]) -> None:
    """What the set has is there; and a pixel is never both: what is an anomaly has no class."""
    encoding = entry.anomaly_encoding
    assert (sample.label is None, sample.anomaly is None) == (entry.labels is None, encoding is None)
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
        ("road-anomaly", [0, 2], [0, 1]),
        ("course-road-anomaly", [0, 2], [0, 1]),
        ("course-fs-static", [0, 1, 255], [0, 1, 255]),
        ("smiyc-obstacle", [0, 1, 255], [0, 1, 255]),
        ("fishyscapes-laf", [0, 1, 255], [0, 1, 255]),
        ("lost-and-found", [0, 1, 2, 31, 43, 200, 201, 255], [255, 0, 1, 1, 1, 1, 255, 255]),
        ("streethazards", [0, 1, 13, 14, 255], [255, 0, 0, 1, 255]),
        ("bdd-anomaly", [0, 15, 16, 17, 18, 255], [0, 0, 1, 1, 1, 255]),
        ("bdd-anomaly-two-class", [0, 15, 16, 17, 18, 255], [0, 0, 1, 1, 0, 255]),
        ("muad", [0, 11, 12, 13, 15, 16, 18, 19, 20, 21, 255], [0, 0, 1, 0, 0, 1, 1, 1, 1, 255, 255]),
        ("folder", [0, 1, 255], [0, 1, 255]),
        ("folder-255", [0, 255], [0, 1]),
    ],
)
def test_what_the_values_of_anomaly_labels_mean(name: str, raw: list[int], expected: list[int]) -> None:
    encoding = dataset_entry(name).anomaly_encoding
    assert encoding is not None
    assert encoding.encode(np.array([raw], np.uint8)).tolist() == [expected]


def test_muad_numbers_its_known_classes_as_its_authors_do() -> None:
    # torch_uncertainty/datasets/muad.py: train ids 0..14 of the classes that are not out of distribution.
    raw = {"road": 0, "sky": 10, "person": 11, "car": 13, "truck": 14, "bus": 15}
    expected = {"road": 0, "sky": 10, "person": 11, "car": 12, "truck": 13, "bus": 14}
    classes = dataset_entry("muad").label_map()
    assert {name: classes.raw_to_train[value] for name, value in raw.items()} == expected
    assert {classes.classes[number]: number for number in expected.values()} == expected


def test_the_frames_without_a_known_class_and_without_a_drawn_label(drawn: Drawn) -> None:
    entry, root = dataset_entry("lost-and-found"), drawn["lost-and-found", 0]
    names = {split: {s.name.split("/")[1][:-12] for s in entry.samples(root, split)} for split in entry.splits}
    assert names["test"] - names["test-valid"] == {"02_Hanns_Klemm_Str_44_000000_000030"}
    unknown = {"15_Rechbergstr_Deckenpfronn_000000_000010", "10_Schlossberg_9_000004_000050"}
    assert names["test-valid"] - names["test-no-known"] == unknown


def test_obstacle_frames_that_the_benchmark_leaves_out(tmp_path: Path) -> None:
    draw_miniature("smiyc-obstacle", tmp_path)
    image, label = "images/{}.webp", "labels_masks/{}_labels_semantic.png"
    for name in ("validation_19", "validation_21", "validation_29", "validation_30"):
        for file in (image, label):
            folder = tmp_path / "dataset_ObstacleTrack"
            shutil.copy(folder / file.format("validation_1"), folder / file.format(name))
    samples = dataset_entry("smiyc-obstacle").samples(tmp_path, "validation")
    assert [sample.name for sample in samples] == ["validation_1", "validation_18", "validation_30"]


@pytest.mark.parametrize(("name", "form"), EVERY_FORM)
def test_what_is_missing_or_there_twice_is_named(tmp_path: Path, name: str, form: int) -> None:
    root, split, entry = draw_miniature(name, tmp_path, form), last(name), dataset_entry(name)
    sample = entry.samples(root, split)[-1]
    label = sample.label or sample.anomaly
    assert label is not None
    content = label.read_bytes()
    label.unlink()
    if entry.layouts[form].labels_choose:  # the folder of images holds those of another set too
        assert sample not in entry.samples(root, split)
    else:
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
    for folder in (root / getattr(entry.layouts[form].splits[split][0], kind) for kind in ("images", "labels")):
        shutil.rmtree(folder, ignore_errors=True)
        with pytest.raises(InputError, match=f"data set {name} lies as ROOT") as raised:
            entry.samples(root, split)
        assert root.as_posix() in str(raised.value) or len(entry.layouts) > 1


def test_splits_that_are_not_there_and_names_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    entry = dataset_entry("cityscapes")
    draw_miniature("cityscapes", tmp_path)
    for folder in ("leftImg8bit", "gtFine"):
        shutil.rmtree(tmp_path / folder / "val")
    for split, said in (("val", "but train"), ("dev", "one of train, val")):
        with pytest.raises(InputError, match=said):
            entry.samples(tmp_path, split)
    for image in (tmp_path / "leftImg8bit").rglob("*.png"):
        image.rename(image.with_name(f"other_{image.stem[-4:]}.png"))
    with pytest.raises(InputError, match=r"holds no image \*_leftImg8bit"):
        entry.samples(tmp_path, "train")


def test_a_split_that_its_rule_leaves_empty_says_so(tmp_path: Path) -> None:
    draw_miniature("smiyc-anomaly", tmp_path)
    for path in [*tmp_path.rglob("validation*")]:
        path.rename(path.with_name(path.name.replace("validation", "zebra1")))
    with pytest.raises(InputError, match=r"split 'validation' .* is empty"):
        dataset_entry("smiyc-anomaly").samples(tmp_path, "validation")


def test_the_two_forms_of_bdd_anomaly_differ_by_the_frames_whose_one_anomaly_is_a_bicycle(drawn: Drawn) -> None:
    three, two = (dataset_entry(name) for name in ("bdd-anomaly", "bdd-anomaly-two-class"))
    trained, tested = (
        [{sample.image.stem for sample in entry.samples(drawn["bdd-anomaly", 0], split)} for entry in (three, two)]
        for split in ("train", "test")
    )
    assert tested[0] - tested[1] == trained[1] - trained[0] == {"00067cfb-e535423e"}
    assert tested[1] <= tested[0]
    assert set(two.label_map().classes) - set(three.label_map().classes) == {"bicycle"}


def test_a_label_map_makes_class_labels_of_a_folder_and_unknown_names_list_the_known_ones(tmp_path: Path) -> None:
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
