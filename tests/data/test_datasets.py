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
CLASSES = {
    **{
        "cityscapes": 19,
        "acdc": 19,
        "camvid": 11,
        "idd": 26,
        "mapillary": 65,
        "mapillary-v2": 123,
        "bdd100k": 19,
        "toy": 9,
    },
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
    folder = tmp_path / "dataset_ObstacleTrack"
    for name in ("validation_19", "validation_21", "validation_29", "validation_30"):
        shutil.copy(folder / "images" / "validation_1.webp", folder / "images" / f"{name}.webp")
        labels = folder / "labels_masks"
        shutil.copy(labels / "validation_1_labels_semantic.png", labels / f"{name}_labels_semantic.png")
    found = [sample.name for sample in dataset_entry("smiyc-obstacle").samples(tmp_path, "validation")]
    assert found == ["validation_1", "validation_18", "validation_30"]


@pytest.mark.parametrize(("name", "form"), EVERY_FORM)
@pytest.mark.parametrize("kind", ["images", "labels"])
def test_a_missing_folder_is_named(tmp_path: Path, name: str, form: int, kind: str) -> None:
    root = draw_miniature(name, tmp_path, form)
    entry, split = dataset_entry(name), last(name)
    folder = root / getattr(entry.layouts[form].splits[split][0], kind)
    shutil.rmtree(folder)
    with pytest.raises(InputError, match=f"data set {name} lies as ROOT") as raised:
        entry.samples(root, split)
    message = str(raised.value)
    assert folder.as_posix() in message or len(entry.layouts) > 1 or "has no split" in message


@pytest.mark.parametrize(("name", "form"), EVERY_FORM)
def test_an_image_without_a_label_a_label_without_an_image_and_two_images(tmp_path: Path, name: str, form: int) -> None:
    root, split, entry = draw_miniature(name, tmp_path, form), last(name), dataset_entry(name)
    sample = entry.samples(root, split)[-1]
    label = sample.label or sample.anomaly
    assert label is not None
    kept = label.read_bytes()
    label.unlink()
    if entry.layouts[form].labels_choose:  # the folder of images holds those of another set too
        assert sample not in entry.samples(root, split)
    else:
        with pytest.raises(InputError, match=r"have no label|holds no image"):
            entry.samples(root, split)
    label.write_bytes(kept)
    second = sample.image.with_suffix(".jpeg")
    shutil.copy(sample.image, second)
    with pytest.raises(InputError, match="are both frame"):
        entry.samples(root, split)
    second.unlink()
    sample.image.unlink()
    with pytest.raises(InputError, match=r"have no image|holds no image"):
        entry.samples(root, split)


def test_splits_that_are_not_there_and_names_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    entry = dataset_entry("cityscapes")
    draw_miniature("cityscapes", tmp_path)
    for folder in ("leftImg8bit", "gtFine"):
        shutil.rmtree(tmp_path / folder / "val")
    for split, said in (("val", "but train"), ("dev", "one of train, val"), ("test", "one of train, val")):
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


def test_a_label_that_cannot_be_read_costs_no_other_frame(tmp_path: Path) -> None:
    root = draw_miniature("bdd-anomaly", tmp_path)
    label = root / "labels/sem_seg/masks/val/7d128593-0ccfea4c.png"
    label.write_bytes(label.read_bytes()[:60])
    # Whether it belongs to val or test cannot be told: it is kept for the reader to name.
    entry = dataset_entry("bdd-anomaly")
    assert [s.name for s in entry.samples(root, "val")] == ["7d128593-0ccfea4c"]
    assert len(entry.samples(root, "test")) == 4


def test_the_two_forms_of_bdd_anomaly_differ_by_the_frames_whose_one_anomaly_is_a_bicycle(drawn: Drawn) -> None:
    three, two = (dataset_entry(name) for name in ("bdd-anomaly", "bdd-anomaly-two-class"))
    trained, tested = (
        [{sample.image.stem for sample in entry.samples(drawn["bdd-anomaly", 0], split)} for entry in (three, two)]
        for split in ("train", "test")
    )
    assert tested[0] - tested[1] == trained[1] - trained[0] == {"00067cfb-e535423e"}
    assert tested[1] <= tested[0]
    assert set(two.label_map().classes) - set(three.label_map().classes) == {"bicycle"}


def test_idd_in_another_form_of_ids_is_refused_with_the_way_to_make_the_right_one(tmp_path: Path) -> None:
    root = draw_miniature("idd", tmp_path)
    for label in root.rglob("*level3Ids.png"):
        label.rename(label.with_name(label.name.replace("level3Ids", "csTrainIds")))
    with pytest.raises(InputError, match=r"holds no image \*_gtFine_labellevel3Ids.*--id-type level3Id"):
        dataset_entry("idd").samples(root, "train")


def test_a_label_map_makes_class_labels_of_a_folder_and_unknown_names_list_the_known_ones(tmp_path: Path) -> None:
    draw_miniature("folder", tmp_path)
    entry = dataset_entry("folder", labels="toy")
    assert entry.anomaly_encoding is None
    assert all(sample.label and not sample.anomaly for sample in entry.samples(tmp_path, "test"))
    with pytest.raises(InputError, match=", ".join(sorted(DATASETS))):
        dataset_entry("kitti")


def test_label_files_are_looked_into_again_when_they_change(tmp_path: Path) -> None:
    root = draw_miniature("bdd-anomaly", tmp_path)
    entry, label = dataset_entry("bdd-anomaly"), root / "labels/sem_seg/masks/train/00054602-3bf57337.png"
    assert len(entry.samples(root, "train")) == 1
    cv2.imwrite(str(label), np.full((48, 64), 13, np.uint8))
    assert len(entry.samples(root, "train")) == 2
    assert len(entry.samples(root, "test")) == 2
