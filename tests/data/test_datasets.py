"""Every data set by name, on a miniature of each form in which it is published, and any class of
one as its anomaly.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from segunc.core.errors import InputError, NoteWarning
from segunc.data.datasets import DATASETS, data_words, dataset_entry
from segunc.data.entries import DatasetEntry, Sample
from segunc.data.images import load_image, read_label_image
from segunc.data.labels import IGNORE, LabelMap, label_map
from segunc.data.layouts import folders_of
from segunc.data.masks import AnomalyEncoding
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
    "acdc": 19,
    "a2d2": 35,
    "bdd-anomaly-two-class": 17,
    "dark-zurich": 19,
    "goose": 61,
    "kitti-semantics": 19,
    "mapillary-v2": 123,
    "muad": 15,
    "railsem19": 19,
    "wilddash2": 26,
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


def test_every_data_set_has_a_miniature() -> None:
    assert set(DATASETS) == set(FORMS) == set(COUNTS)


@pytest.mark.parametrize("name", DATASETS)
def test_every_layout_has_a_miniature_and_the_splits_of_its_set(name: str) -> None:
    entry = DATASETS[name]
    assert len(entry.layouts) == len(FORMS[name])
    assert all(set(layout.splits) == set(entry.splits) for layout in entry.layouts)
    assert (entry.labels is not None) == (name in CLASSES)


def test_every_data_set_is_listed_in_the_documents() -> None:
    page = Path(__file__).parents[2] / "docs" / "data-sets.md"
    lines = page.read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| `")]
    expected: list[str] = []
    for name, entry in DATASETS.items():
        cells = (f"`{name}`", entry.title, entry.source, entry.licence, entry.rule)
        expected.append(f"| {' | '.join(cells)} |")
    assert rows[: len(expected)] == expected


@pytest.mark.parametrize(("name", "form"), EVERY_FORM)
def test_the_frames_of_a_published_form_are_found(drawn: Drawn, name: str, form: int) -> None:
    entry = dataset_entry(name)
    root = drawn[name, form]
    by_image = {root / image: (root / label, values) for image, label, values in FORMS[name][form]}
    for split, count in COUNTS[name].items():
        samples = entry.samples(root, split)
        assert len(samples) == len({sample.name for sample in samples}) == count, split
        for sample in samples:
            label, values = by_image[sample.image]
            assert {sample.label, sample.anomaly} <= {label, None}
            assert sample.image.with_suffix("").as_posix().endswith(sample.name)
            assert load_image(sample.image).shape == (48, 64, 3)
            check_labels(entry, sample, raw_values(entry, label), set(values))


def raw_values(entry: DatasetEntry, label: Path) -> npt.NDArray[np.uint8]:
    """Read the ids of a label file, or those of its colours."""
    if entry.labels is None:
        return read_label_image(label)
    return label_map(entry.labels).read_ids(label)


def check_labels(
    entry: DatasetEntry, sample: Sample, raw: npt.NDArray[np.uint8], values: set[int]
) -> None:
    """What the set has is there; and a pixel is never both: what is an anomaly has no class."""
    encoding = entry.anomaly_encoding
    assert (sample.label is None) == (entry.labels is None)
    assert (sample.anomaly is None) == (encoding is None)
    mask = np.zeros_like(raw) if encoding is None else encoding.encode(raw)
    assert set(mask.ravel().tolist()) <= {0, 1, IGNORE}
    if sample.label is not None:
        classes = entry.label_map()
        train_ids = classes.encode(raw)
        expected = {classes.raw_to_train[value] for value in values}
        assert set(train_ids.ravel().tolist()) == expected
        assert classes.num_classes == CLASSES[entry.name]
        assert (train_ids[mask == 1] == IGNORE).all()


@pytest.mark.parametrize(
    ("name", "raw", "expected"),
    [
        ("road-anomaly", [0, 2], [0, 1]),
        ("course-road-anomaly", [0, 2], [0, 1]),
        ("course-fs-static", [0, 1, 255], [0, 1, 255]),
        ("folder", [0, 1, 255], [0, 1, 255]),
        ("streethazards", [0, 1, 13, 14, 255], [255, 0, 0, 1, 255]),
        ("bdd-anomaly", [0, 15, 16, 17, 18, 255], [0, 0, 1, 1, 1, 255]),
        ("folder-255", [0, 255], [0, 1]),
        ("smiyc-obstacle", [0, 1, 255], [0, 1, 255]),
        ("fishyscapes-laf", [0, 1, 255], [0, 1, 255]),
        ("lost-and-found", [0, 1, 2, 31, 43, 200, 201, 255], [255, 0, 1, 1, 1, 1, 255, 255]),
        ("bdd-anomaly-two-class", [0, 15, 16, 17, 18, 255], [0, 0, 1, 1, 0, 255]),
        ("muad", [0, 11, 12, 13, 15, 16, 19, 20, 21, 255], [0, 0, 1, 0, 0, 1, 1, 1, 255, 255]),
    ],
)
def test_what_the_values_of_anomaly_labels_mean(
    name: str, raw: list[int], expected: list[int]
) -> None:
    encoding = dataset_entry(name).anomaly_encoding
    assert encoding is not None
    assert encoding.encode(np.array([raw], np.uint8)).tolist() == [expected]


@dataclass(frozen=True)
class Published:
    """A miniature that a test may damage, and the last frame of its last split."""

    root: Path
    entry: DatasetEntry
    form: int
    split: str
    sample: Sample
    label: Path

    def samples(self) -> list[Sample]:
        return self.entry.samples(self.root, self.split)


@pytest.fixture(params=EVERY_FORM, ids=lambda form: f"{form[0]}-{form[1]}")
def published(request: pytest.FixtureRequest, tmp_path: Path) -> Published:
    name, form = request.param
    root = draw_miniature(name, tmp_path, form)
    entry = dataset_entry(name)
    split = next(reversed(COUNTS[name]))
    sample = entry.samples(root, split)[-1]
    label = sample.label or sample.anomaly
    assert label is not None
    return Published(root, entry, form, split, sample, label)


def test_a_frame_without_a_label_is_named(published: Published) -> None:
    published.label.unlink()
    if published.entry.layouts[published.form].labelled_only:
        # The folder of images holds those of another set, too.
        assert published.sample not in published.samples()
        return
    with pytest.raises(InputError, match=r"have no label|holds? no image"):
        published.samples()


def test_a_frame_that_is_there_twice_is_named(published: Published) -> None:
    image = published.sample.image
    shutil.copy(image, image.with_suffix(".jpeg"))
    with pytest.raises(InputError, match="are both frame"):
        published.samples()


def test_a_label_without_an_image_is_named(published: Published) -> None:
    published.sample.image.unlink()
    with pytest.raises(InputError, match=r"have no image|holds? no image"):
        published.samples()


@pytest.mark.parametrize(
    "kinds",
    [
        ["images"],
        ["images", "labels"],
    ],
    ids="-".join,
)
def test_a_folder_that_is_missing_is_named(published: Published, kinds: list[str]) -> None:
    entry = published.entry
    part = entry.layouts[published.form].splits[published.split][0]
    for kind in kinds:
        for folder in folders_of(published.root, getattr(part, kind)):
            shutil.rmtree(folder)
    with pytest.raises(InputError, match=f"data set {entry.name} lies as ROOT") as raised:
        published.samples()
    assert published.root.as_posix() in str(raised.value) or len(entry.layouts) > 1


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("val", "only train"),
        ("dev", "one of train, val"),
    ],
)
def test_a_split_that_is_not_there_is_refused(tmp_path: Path, split: str, message: str) -> None:
    draw_miniature("cityscapes", tmp_path)
    for folder in ("leftImg8bit", "gtFine"):
        shutil.rmtree(tmp_path / folder / "val")
    with pytest.raises(InputError, match=message):
        dataset_entry("cityscapes").samples(tmp_path, split)


def test_images_whose_names_do_not_fit_are_refused(tmp_path: Path) -> None:
    draw_miniature("cityscapes", tmp_path)
    for image in (tmp_path / "leftImg8bit").rglob("*.png"):
        image.rename(image.with_name(f"other_{image.stem[-4:]}.png"))
    with pytest.raises(InputError, match="holds no image whose name ends in '_leftImg8bit'"):
        dataset_entry("cityscapes").samples(tmp_path, "train")


def test_an_empty_split_is_refused(tmp_path: Path) -> None:
    root = draw_miniature("bdd-anomaly", tmp_path)
    for label in (root / "labels/sem_seg/masks").rglob("*.png"):
        cv2.imwrite(str(label), np.zeros((48, 64), np.uint8))
    with pytest.raises(InputError, match=r"split 'test' .* is empty"):
        dataset_entry("bdd-anomaly").samples(root, "test")


def test_obstacle_frames_that_the_benchmark_leaves_out(tmp_path: Path) -> None:
    draw_miniature("smiyc-obstacle", tmp_path, 1)
    for file in ("images/{}.webp", "labels_masks/{}_labels_semantic.png"):
        for number in (19, 21, 29, 30):
            source = tmp_path / file.format("validation_1")
            shutil.copy(source, tmp_path / file.format(f"validation_{number}"))
    samples = dataset_entry("smiyc-obstacle").samples(tmp_path, "validation")
    assert [sample.name for sample in samples] == ["validation_1", "validation_18", "validation_30"]


def test_a_label_map_makes_class_labels_of_a_folder(tmp_path: Path) -> None:
    draw_miniature("folder", tmp_path)
    entry = dataset_entry("folder", labels="toy")
    assert entry.anomaly_encoding is None
    for sample in entry.samples(tmp_path, "test"):
        assert sample.label
        assert not sample.anomaly


def test_an_unknown_data_set_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=", ".join(sorted(DATASETS))):
        dataset_entry("kitty")


def count_of(root: Path, split: str) -> int:
    return len(dataset_entry("bdd-anomaly").samples(root, split))


def test_a_label_file_is_looked_into_again_when_it_changes(tmp_path: Path) -> None:
    root = draw_miniature("bdd-anomaly", tmp_path)
    assert count_of(root, "train") == 1
    label = root / "labels/sem_seg/masks/train/00054602-3bf57337.png"
    cv2.imwrite(str(label), np.full((48, 64), 13, np.uint8))
    assert count_of(root, "train") == 2
    assert count_of(root, "val") == 1
    assert count_of(root, "test") == 2


def test_a_linked_folder_of_a_data_set_is_left_out_with_a_note(tmp_path: Path) -> None:
    root = draw_miniature("cityscapes", tmp_path)
    images = root / "leftImg8bit/train"
    (images / "linked").symlink_to(next(path for path in images.iterdir() if path.is_dir()))
    with pytest.warns(NoteWarning, match=f"{images}: 1 link to folders left out, first linked"):
        dataset_entry("cityscapes").samples(root, "train")


def test_a_damaged_label_is_left_to_its_reader(tmp_path: Path) -> None:
    """Whether it belongs to val or test cannot be told."""
    root = draw_miniature("bdd-anomaly", tmp_path)
    label = root / "labels/sem_seg/masks/train/00054602-3bf57337.png"
    cv2.imwrite(str(label), np.full((48, 64), 13, np.uint8))
    damaged = root / "labels/sem_seg/masks/val/7d128593-0ccfea4c.png"
    damaged.write_bytes(damaged.read_bytes()[:60])
    (sample,) = dataset_entry("bdd-anomaly").samples(root, "val")
    assert sample.name == "7d128593-0ccfea4c"
    assert count_of(root, "test") == 3


DATA = os.environ.get("SEGUNC_DATA")


def camvid(root: Path, frames: dict[str, list[bool]]) -> Path:
    """CamVid's layout; each frame holds a bicyclist (10) or does not. Labels alone matter, so
    images are tiny.
    """
    for split, anomalous in frames.items():
        for number, holds in enumerate(anomalous):
            name = f"a_{number:03d}.png"
            values = [3, 10 if holds else 8, 11]
            write_frame(root / split / name, root / f"{split}annot" / name, values, size=(2, 3))
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
    known = numbers_without(train)
    selectable = numbers_without(val)
    if not known or (not selectable and len(known) <= holdout):
        with pytest.raises(InputError, match=r"of train .* (is|are) without bicyclist"):
            entry.training_samples(root, "train")
        return
    if not selectable:
        selectable = known[-holdout:]
        known = known[:-holdout]
    assert names(entry.training_samples(root, "train")) == known
    assert names(entry.training_samples(root, "val")) == selectable


@pytest.mark.parametrize(
    ("known", "taken"),
    [(3, 2), (10, 2), (35, 7), (150, 30), (400, 30)],
)
def test_the_substitute_for_val_leaves_most_frames_to_train(
    tmp_path: Path, known: int, taken: int
) -> None:
    root = camvid(tmp_path, {"train": [False] * known + [True], "val": [True]})
    entry = without_bicyclist()
    assert names(entry.training_samples(root, "train")) == list(range(known - taken))
    assert names(entry.training_samples(root, "val")) == list(range(known - taken, known))
    frames = entry.training_frames(root)
    assert (frames.train, frames.selection, frames.left_out) == (known - taken, taken, 1)


def numbers_without(holds_anomaly: list[bool]) -> list[int]:
    return [number for number, holds in enumerate(holds_anomaly) if not holds]


def first_row(encoding: LabelMap | AnomalyEncoding, label: Path) -> list[int]:
    return encoding.encode(read_label_image(label))[0].tolist()


def test_a_frame_with_the_class_tells_of_anomalies(tmp_path: Path) -> None:
    camvid(tmp_path, {"test": [True]})
    entry = without_bicyclist()
    (sample,) = entry.samples(tmp_path, "test")
    assert sample.label is None
    assert sample.anomaly
    assert entry.anomaly_encoding
    # Of the stripes road, bicyclist and void.
    assert first_row(entry.anomaly_encoding, sample.anomaly) == [0, 1, 255]


def test_a_frame_without_the_class_tells_of_the_other_classes(tmp_path: Path) -> None:
    camvid(tmp_path, {"test": [False]})
    entry = without_bicyclist()
    (sample,) = entry.samples(tmp_path, "test")
    assert sample.anomaly is None
    assert sample.label
    classes = entry.label_map()
    assert classes.num_classes == 10
    assert first_row(classes, sample.label) == [3, 8, 255]


def test_a_label_that_cannot_be_read_is_left_to_whoever_reads_the_frame(tmp_path: Path) -> None:
    camvid(tmp_path, {"test": [True, False, False]})
    (tmp_path / "testannot/a_002.png").write_bytes(b"")
    *_, unreadable = without_bicyclist().samples(tmp_path, "test")
    assert unreadable.label


def test_training_does_not_guess_whether_a_label_holds_the_class(tmp_path: Path) -> None:
    camvid(tmp_path, {"train": [False], "val": [False]})
    (tmp_path / "trainannot/a_000.png").write_bytes(b"")
    with pytest.raises(InputError, match=r"a_000.png cannot be read"):
        without_bicyclist().training_samples(tmp_path, "train")


def test_sets_with_anomalies_of_their_own_keep_both_labels(tmp_path: Path) -> None:
    draw_miniature("streethazards", tmp_path)
    entry = dataset_entry("streethazards", anomaly_classes=["car"])
    assert entry.anomalies == ("anomaly", "car")
    assert entry.label_map().num_classes == 12
    assert all(sample.label == sample.anomaly for sample in entry.samples(tmp_path, "test"))


@pytest.mark.parametrize(
    ("name", "unknown"),
    [
        ("camvid", "bike"),
        ("road-anomaly", "bicyclist"),
    ],
)
def test_an_unknown_anomaly_class_is_refused_at_once(name: str, unknown: str) -> None:
    with pytest.raises(InputError, match="has no class"):
        dataset_entry(name, anomaly_classes=[unknown])


def test_no_anomaly_class_changes_nothing() -> None:
    assert dataset_entry("camvid", anomaly_classes=[]) is DATASETS["camvid"]


def anomaly_module(root: Path, classes: str | list[str]) -> SegmentationDataModule:
    return SegmentationDataModule("camvid", str(root), batch_size=1, anomaly_class=classes)


@pytest.mark.parametrize("classes", ["bicyclist", ["bicyclist"], " bicyclist, "])
def test_the_data_module_trains_on_what_is_left(
    tmp_path: Path, holdout: int, classes: str | list[str]
) -> None:
    frames = {
        "train": [False, True, False, False, False],
        "val": [True],
        "test": [True, False, False],
    }
    data = anomaly_module(camvid(tmp_path, frames), classes)
    data.prepare_data()
    assert data.label_map.num_classes == 10
    assert names(data.dataset("train").samples) == [0, 2]
    assert names(data.dataset("val").samples) == [3, 4]
    assert names(data.dataset("test").samples) == [1, 2]


def test_the_data_module_takes_no_class_or_several_as_the_anomaly(tmp_path: Path) -> None:
    camvid(tmp_path, {"train": [False] * 5, "val": [False], "test": [False]})
    assert anomaly_module(tmp_path, "").label_map.num_classes == 11
    several = anomaly_module(tmp_path, "bicyclist,fence")
    assert several.label_map.classes[7:] == ("car", "pedestrian")


real_data = pytest.mark.skipif(DATA is None, reason="SEGUNC_DATA names no folder of real data")


@real_data
def test_camvid_holds_frames_without_bicyclist_out_of_training() -> None:
    """30 of 166 training frames are held out."""
    root = Path(str(DATA)) / "camvid"
    entry = without_bicyclist()
    train = entry.training_samples(root, "train")
    val = entry.training_samples(root, "val")
    assert len(train) == 166 - 30
    assert len(val) == 30
    assert max(sample.name for sample in train) < min(sample.name for sample in val)
    check_bicyclist([*train[::20], *val[::10]])


@real_data
def test_camvid_without_bicyclist() -> None:
    """77 test frames hold one, 156 do not."""
    test = without_bicyclist().samples(Path(str(DATA)) / "camvid", "test")
    holding = [sample for sample in test if sample.anomaly is not None]
    known = [sample for sample in test if sample.label is not None]
    assert len(holding) == 77
    assert len(known) == 156
    check_bicyclist(test[::20])


def check_bicyclist(samples: list[Sample]) -> None:
    """A frame has no class label where, and only where, its file holds a bicyclist."""
    for sample in samples:
        path = sample.label or sample.anomaly
        raw = np.asarray(cv2.imread(str(path), cv2.IMREAD_UNCHANGED))
        assert (10 in raw) == (sample.label is None)


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ({"name": "camvid", "split": "test"}, "camvid test"),
        ({"name": "/home/ana/mine.yaml:TOUR"}, "mine.yaml:TOUR"),
        ({"name": "folder", "folder": "tour"}, "labels in the folder tour"),
        ({"name": "folder", "split": "test"}, "labels in a folder, split test"),
        ({"name": "folder-255"}, "labels in a folder (0 = normal, 255 = anomaly)"),
        (
            {"name": None, "folder": "masks", "values": "1 = anomaly"},
            "labels in the folder masks (1 = anomaly)",
        ),
        ({"name": None}, "labelled frames of maps"),
        ({"name": None, "is_judged": True}, "judged frames of maps"),
    ],
)
def test_data_in_words_name_what_a_reader_knows(named: dict[str, str], words: str) -> None:
    assert data_words(**named) == words
