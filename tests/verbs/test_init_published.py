"""``segunc init`` recognises published data sets, and says what a half-extracted one lacks."""

import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest

import segunc
from segunc.cli.main import main
from segunc.core.errors import InputError
from segunc.data.datasets import DATASETS, dataset_entry
from segunc.data.entries import Sample
from segunc.data.module import SegmentationDataModule
from segunc.maps.encoding import encode_unit
from segunc.training.config import TrainConfig, parse_config, read_config, with_own_paths
from segunc.verbs.init import InitResult
from tests.data.miniatures import COUNTS, EVERY_FORM, FORMS, draw_miniature, write_frame
from tests.verbs.processes import refuse, succeed
from tests.verbs.test_init import OTHERS

ANOTHER_NAME = {"bdd-anomaly": "bdd100k", "bdd-anomaly-two-class": "bdd100k"}
"""Sets that are made of the files of another, which init names."""
AMBIGUOUS = [("mapillary", 0)]
"""Forms that are also those of another set: the archive of 2.0 has both versions."""
UNMARKED = (
    ("toy", 0),
    ("toy-anomaly", 0),
    ("folder", 0),
    ("folder", 1),
    ("folder-255", 0),
    ("folder-255", 1),
    ("wilddash2", 1),
    ("course-road-anomaly-21", 1),
    ("course-road-obstacle-21", 1),
    ("course-fs-lost-and-found", 1),
    ("course-fs-static", 1),
    ("course-road-anomaly", 1),
)
"""Forms without a file that only this set has: folders of one's own, and parts of archives."""
MARKED = [form for form in EVERY_FORM if form not in UNMARKED and form not in AMBIGUOUS]


def init(root: Path, dataset: str | None = None) -> InitResult:
    return segunc.init(root, out=root.with_name("mine.yaml"), dataset=dataset)


def samples_of(config: Path, split: str) -> list[Sample]:
    """Return the frames of a split that a configuration names."""
    data = with_own_paths(read_config(config)["data"], config)
    entry = dataset_entry(data["dataset"], frames=data.get("frames"))
    return entry.samples(Path(data["root"]), split)


@pytest.mark.parametrize(("name", "form"), MARKED)
def test_a_published_set_is_recognised(tmp_path: Path, name: str, form: int) -> None:
    root = draw_miniature(name, tmp_path / "data", form)
    result = init(root)
    recognised = ANOTHER_NAME.get(name, name)
    assert result.dataset == recognised
    assert result.about[0].startswith(f"This is {DATASETS[recognised].title}: ")
    for split, count in COUNTS[recognised].items():
        if recognised != "wilddash2":
            assert f"{count} {split}" in result.about[0]
            expected = dataset_entry(recognised).samples(root, split)
            assert samples_of(result.config, split) == expected
    assert cv2.imread(str(result.picture)) is not None


@pytest.mark.parametrize(("name", "form"), EVERY_FORM)
def test_a_named_set_is_read_in_every_form(tmp_path: Path, name: str, form: int) -> None:
    result = init(draw_miniature(name, tmp_path / "data", form), name)
    section = read_config(result.config)["data"]
    assert section["dataset"] == result.dataset == name
    assert section["root"] == "./data"
    learns = dataset_entry(name).labels is not None and name != "dark-zurich"
    assert result.then.split()[1] == ("train" if learns else "evaluate")


@pytest.mark.parametrize("name", ["camvid", "a2d2", "kitti-semantics", "wilddash2"])
def test_training_reads_what_init_wrote(tmp_path: Path, name: str) -> None:
    result = init(draw_miniature(name, tmp_path / "data"))
    config = parse_config(TrainConfig, result.config, [], others=lambda: OTHERS)
    data = SegmentationDataModule(**config.data)
    for split in ("train", "val"):
        frame = data.dataset(split)[0]
        assert frame["image"].shape[1:] == frame["label"].shape
    frames = [*data.dataset("train").samples, *data.dataset("val").samples]
    assert len({sample.image for sample in frames}) == len(frames)


def test_evaluate_reads_what_init_wrote(tmp_path: Path) -> None:
    root = draw_miniature("smiyc-obstacle", tmp_path / "data")
    config = init(root).config
    maps = tmp_path / "maps"
    for name in ("validation_1", "validation_18"):
        truth = dataset_entry("smiyc-obstacle").anomaly_encoding
        assert truth is not None
        mask = truth.read(root / f"dataset_ObstacleTrack/labels_masks/{name}_labels_semantic.png")
        score = np.where(mask == 1, 0.9, 0.0).astype(np.float32)
        (maps / "own").mkdir(parents=True, exist_ok=True)
        assert cv2.imwrite(str(maps / "own" / f"{name}.png"), encode_unit(score))
    out = tmp_path / "metrics.json"
    words = ("evaluate", "--maps", maps, "--config", config, "--replicates", 0, "--out", out)
    assert main([str(word) for word in words]) == 0
    assert json.loads(out.read_text())["scores"]["own"]["pooled"]["auroc"] == 1


def test_the_set_is_said_in_one_line(tmp_path: Path) -> None:
    root = draw_miniature("bdd100k", tmp_path / "data")
    printed = succeed("init", root, "--out", tmp_path / "mine.yaml").stdout.splitlines()
    assert printed[0] == "This is BDD100K (10k images): 3 train, 2 val"
    assert f"wrote {tmp_path / 'mine.yaml'}" in printed
    assert printed[-1].startswith("then: segunc train --config")


@pytest.mark.parametrize(("name", "form"), AMBIGUOUS)
def test_files_of_two_sets_are_asked_about(tmp_path: Path, name: str, form: int) -> None:
    root = draw_miniature(name, tmp_path / "data", form)
    message = refuse("init", root, "--out", tmp_path / "mine.yaml")
    assert "Mapillary Vistas 1.2 (mapillary) and Mapillary Vistas 2.0 (mapillary-v2)" in message
    assert "Hint: --dataset mapillary names one of them" in message


def test_a_half_extracted_set_names_the_missing_folder(tmp_path: Path) -> None:
    root = draw_miniature("bdd100k", tmp_path / "data")
    shutil.rmtree(root / "labels/sem_seg/masks/val")
    message = refuse("init", root, "--out", tmp_path / "mine.yaml")
    assert (
        f"{root} is BDD100K (10k images), but the folder labels/sem_seg/masks/val is missing, "
        "while images/10k/val is there"
    ) in message
    assert not (tmp_path / "mine.yaml").exists()


def test_a_missing_split_is_noted_and_frames_are_held_out(tmp_path: Path) -> None:
    root = draw_miniature("bdd100k", tmp_path / "data")
    for folder in ("images/10k/val", "labels/sem_seg/masks/val"):
        shutil.rmtree(root / folder)
    result = init(root)
    assert result.frames is not None
    assert (
        result.notes[0] == "not there: val; the first would lie in images/10k/val and "
        "labels/sem_seg/masks/val"
    )
    assert len(samples_of(result.config, "train")) + len(samples_of(result.config, "val")) == 3


def test_labels_of_other_values_are_read_as_your_own(tmp_path: Path) -> None:
    """Someone's own classes may lie as KITTI does."""
    for number in range(4):
        image = tmp_path / f"data/training/image_2/{number:06d}_10.png"
        label = tmp_path / f"data/training/semantic/{number:06d}_10.png"
        write_frame(image, label, [40, 41, 42, 43], seed=number)
    result = init(tmp_path / "data")
    assert result.dataset == "folder"
    assert "lies as KITTI semantic segmentation, but label" in result.notes[0]
    assert "holds the value 40" in result.notes[0]


def test_ids_in_the_layout_of_a_set_in_colour_are_read_as_your_own(tmp_path: Path) -> None:
    for image, label, values in FORMS["a2d2"][0]:
        write_frame(tmp_path / "data" / image, tmp_path / "data" / label, list(values)[:3])
    result = init(tmp_path / "data")
    assert result.dataset == "folder"
    assert "holds ids and not the colours of that set" in result.notes[0]


def test_options_on_files_are_not_joined_with_a_data_set(tmp_path: Path) -> None:
    root = draw_miniature("camvid", tmp_path / "data")
    words = ("init", root, "--dataset camvid --label-map camvid --out", tmp_path / "mine.yaml")
    message = refuse(*words)
    assert "--dataset camvid says what the files are, and so does --label-map" in message


def test_a_set_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    root = draw_miniature("camvid", tmp_path / "data")
    message = refuse("init", root, "--dataset goose --out", tmp_path / "mine.yaml")
    assert "does not hold GOOSE (images): images/train and labels/train are missing" in message


def test_every_public_set_is_recognised_in_some_form() -> None:
    own = {"toy", "toy-anomaly", "folder", "folder-255", *ANOTHER_NAME}
    assert {name for name in FORMS if not DATASETS[name].recognised_by} == own


def test_a_table_of_your_own_is_named_in_the_configuration(tmp_path: Path) -> None:
    table = tmp_path / "sets.yaml"
    table.write_text(
        "yard:\n"
        "  layouts: [{images: '{}/pictures/*', labels: '{}/truth/*_ids'}]\n"
        "  splits: [train, val]\n"
        "  labels: camvid\n"
    )
    for number, split in enumerate(("train", "train", "val")):
        image = tmp_path / f"data/{split}/pictures/{number}.jpg"
        write_frame(image, tmp_path / f"data/{split}/truth/{number}_ids.png", [0, 3, 11])
    with pytest.raises(InputError, match=r"has no data set 'yar' \(did you mean yard"):
        init(tmp_path / "data", f"{table}:yar")
    result = init(tmp_path / "data", f"{table}:yard")
    assert read_config(result.config)["data"]["dataset"] == "./sets.yaml:yard"
    data = SegmentationDataModule(
        **parse_config(TrainConfig, result.config, [], others=lambda: OTHERS).data
    )
    assert len(data.dataset("train")) == 2
