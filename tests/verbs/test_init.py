"""From a folder of one's own to a configuration that every verb takes."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import yaml
from PIL import Image

import segunc
from segunc.core.errors import InputError
from segunc.data.datasets import DATASETS, dataset_entry
from segunc.data.discover import discover
from segunc.data.labels import label_map, read_label_map
from segunc.data.module import SegmentationDataModule
from segunc.training.config import TrainConfig, parse_config, read_config
from tests.verbs.processes import FAST, refuse, succeed

CAMVID = label_map("camvid")
IDS = np.array([0, 1, 2, 3, 8, 11], np.uint8)
"""Of sky, building, pole, road, car and void."""
PALETTE = np.pad(np.array(CAMVID.palette, np.uint8), ((0, 256 - CAMVID.num_classes), (0, 0)))


OTHERS = ("abnn", "features", "anomaly", "temperature")
"""Sections of the configuration that are of other verbs than train."""


def label(seed: int) -> np.ndarray[Any, Any]:
    return IDS[np.random.default_rng(seed).integers(0, len(IDS), (8, 6))].repeat(6, 0).repeat(8, 1)


def as_ids(path: Path, ids: np.ndarray[Any, Any]) -> None:
    Image.fromarray(ids).save(path)


def as_colours(path: Path, ids: np.ndarray[Any, Any]) -> None:
    Image.fromarray(PALETTE[ids]).save(path)


def as_palette(
    path: Path, ids: np.ndarray[Any, Any], palette: np.ndarray[Any, Any] = PALETTE
) -> None:
    picture = Image.fromarray(ids, "P")
    picture.putpalette(palette.ravel().tolist())
    picture.save(path)


def as_three_channels(path: Path, ids: np.ndarray[Any, Any]) -> None:
    Image.fromarray(ids[..., None].repeat(3, 2)).save(path)


def as_mask(path: Path, ids: np.ndarray[Any, Any]) -> None:
    Image.fromarray(np.where(ids == 3, 255, 0).astype(np.uint8)).save(path)


Write = Callable[[Path, np.ndarray[Any, Any]], None]
LAYOUTS = {
    "images/{split}/{name}.jpg": "masks/{split}/{name}.png",
    "{split}/{name}.jpg": "{split}annot/{name}.png",
    "leftImg8bit/{split}/ulm/{name}_leftImg8bit.png": (
        "gtFine/{split}/ulm/{name}_gtFine_labelIds.png"
    ),
    "{name}.jpg": "{name}_label.png",
    "img/{name}.jpg": "annotations/{name}_L.png",
    # ACDC.
    "rgb_anon/fog/{split}/{name}_rgb_anon.png": "gt/fog/{split}/{name}_gt_labelTrainIds.png",
    "{split}/leftImg8bit/{name}_leftImg8bit.png": "{split}/leftLabel/{name}_leftLabel.png",  # MUAD
}


def draw(
    root: Path, write: Write = as_ids, image: str = "images/{split}/{name}.jpg", frames: int = 8
) -> Path:
    """A data set; where the layout has no splits, of two drives."""
    for number in range(frames):
        split = "val" if number % 4 == 3 else "train"
        names = {"split": split, "name": f"{'ab'[number >= 6]}_{number:04d}"}
        picture = np.random.default_rng(number).integers(0, 256, (48, 48, 3), np.uint8)
        for pattern in (image, LAYOUTS[image]):
            (root / pattern.format(**names)).parent.mkdir(parents=True, exist_ok=True)
        assert cv2.imwrite(str(root / image.format(**names)), picture)
        write(root / LAYOUTS[image].format(**names), label(number))
    return root


@pytest.mark.parametrize("image", LAYOUTS)
def test_layouts_and_splits_are_found(tmp_path: Path, image: str) -> None:
    found = discover(draw(tmp_path / "data", image=image))
    assert found.counts() == {"train": 6, "val": 2}
    held_out = {pair.image.stem[:6] for pair in found.pairs if pair.split == "val"}
    if "{split}" in image:
        assert held_out == {"a_0003", "b_0007"}
        (note,) = found.notes
        assert "train and val have frames whose names differ in the last number alone" in note
    else:  # a whole drive, not neighbours of training frames
        assert held_out == {"b_0006", "b_0007"}
        assert "holds out 2 of 8 training frames to validate: 1 of 2 sequences" in found.notes[-1]
    assert all(
        pair.label.stem.startswith(re.sub("_leftImg8bit|_rgb_anon", "", pair.image.stem))
        for pair in found.pairs
    )


@pytest.mark.parametrize("write", [as_ids, as_colours, as_palette, as_three_channels])
def test_labels_are_read_as_they_were_drawn_whatever_their_form(
    tmp_path: Path, write: Write
) -> None:
    root = draw(tmp_path / "data", write)
    of_camvid = write in (as_colours, as_palette)
    result = segunc.init(root, out=tmp_path / "my.yaml", label_map="camvid" if of_camvid else None)
    labels = read_label_map(result.label_map)
    entry = dataset_entry("folder", labels=str(result.label_map), frames=result.frames)
    names = [CAMVID.classes[i] for i in IDS[:-1]]
    for split in ("train", "val"):
        for sample in entry.samples(root, split):
            assert sample.label is not None
            number = int(sample.name[-4:])
            trained = labels.read(sample.label)
            for place, raw in enumerate(IDS[:-1]):
                (train,) = np.unique(trained[label(number) == raw])
                if of_camvid:
                    assert labels.classes[train] == names[place]
                else:
                    assert labels.classes[train] == f"class {raw}"
            if of_camvid:
                assert (trained[label(number) == 11] == 255).all()
    assert result.picture.stat().st_size > 1000


def test_a_proposed_colour_is_far_from_those_of_the_palette(tmp_path: Path) -> None:
    """CamVid's sky is grey, which grey labels could be, and the first colour proposed in its place
    is nearly its bicyclist's.
    """
    bicyclist = CAMVID.classes.index("bicyclist")
    root = draw(
        tmp_path / "data",
        lambda path, ids: as_palette(path, np.where(ids == 8, bicyclist, ids).astype(np.uint8)),
    )
    palette = np.array(
        read_label_map(segunc.init(root, out=tmp_path / "my.yaml").label_map).palette, int
    )
    between = np.abs(palette[:, None] - palette).max(2)
    assert between[~np.eye(len(palette), dtype=bool)].min() >= 60


def test_masks_are_two_classes_where_that_is_asked_for(tmp_path: Path) -> None:
    root, out = draw(tmp_path / "data", as_mask), tmp_path / "my.yaml"
    said = refuse("init", root, "--out", out)
    assert (
        "the labels hold 0 and 255 alone: masks. Hint: --two-classes learns them; if they mark"
        " anomalies:" in said
    )
    assert "--dataset folder-255" in said
    labels = read_label_map(segunc.init(root, out=out, two_classes=True).label_map)
    assert labels.raw_to_train == {0: 0, 255: 1}


def half(root: Path) -> None:
    for path in sorted((root / "masks").rglob("*.png"))[::2]:
        path.unlink()


def a_thousand_classes(root: Path) -> None:
    for path in (root / "masks").rglob("*.png"):
        Image.fromarray(np.arange(48 * 48, dtype=np.uint16).reshape(48, 48)).save(path)


def smoothed(root: Path) -> None:
    for path in (root / "masks").rglob("*.png"):
        as_colours(path, label(0))
        picture = cv2.resize(cv2.imread(str(path)), (31, 33), interpolation=cv2.INTER_AREA)
        cv2.imwrite(str(path), cv2.resize(picture, (48, 48)))


def other_palettes(root: Path) -> None:
    for number, path in enumerate(sorted((root / "masks").rglob("*.png"))):
        as_palette(path, label(number), PALETTE + np.uint8(number))


def both_sets(root: Path) -> None:
    shutil.copytree(root / "masks", root / "labels")


@pytest.mark.parametrize(
    ("change", "said", "hint"),
    [
        (
            lambda root: shutil.rmtree(root / "masks"),
            "no file or folder is named as labels",
            "--labels FOLDER",
        ),
        (
            lambda root: as_colours(root / "masks/train/a_0001.png", label(1)),
            "the labels in ROOT are of two kinds: masks/train",
            "--labels names the folder or a pattern",
        ),
        (
            half,
            "4 of 8 images in ROOT have no label, the first are images/train/a_0000.jpg",
            "--labelled-only leaves",
        ),
        (a_thousand_classes, "values up to 2303, but class ids are 0 to 255", "--labels names"),
        (
            lambda root: [path.unlink() for path in root.rglob("*_000[1-7].*")],
            "ROOT holds one labelled image to train on, and none to validate",
            "label at least one more",
        ),
        (smoothed, "edges were smoothed", "--labels names"),
        (
            other_palettes,
            "in another colour than labels before it",
            "write the labels again as RGB",
        ),
        (both_sets, "an image has 2 labels: ", "e.g. --labels labels"),
    ],
)
def test_what_is_not_clear_is_one_sentence(
    tmp_path: Path, change: Callable[[Path], None], said: str, hint: str
) -> None:
    root = draw(tmp_path / "data")
    change(root)
    message = refuse("init", root, "--out", tmp_path / "my.yaml")
    assert said.replace("ROOT", str(root)) in message
    assert hint in message
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_the_option_that_is_named_decides(tmp_path: Path) -> None:
    root = draw(tmp_path / "data \N{AUTOMOBILE}")
    both_sets(root)
    half(root)
    assert discover(root, labels="labels").counts() == {"train": 6, "val": 2}
    assert sum(discover(root, labels="masks", labelled_only=True).counts().values()) == 4
    result = segunc.init(root, out=tmp_path / "x.yaml", labels="labels", void=["11"])
    assert read_label_map(result.label_map).raw_to_train[11] == 255
    assert read_config(result.config)["data"]["root"] == f"./{root.name}"
    with pytest.raises(InputError, match="already exists"):
        segunc.init(root, out=tmp_path / "x.yaml", labels="labels")


def test_one_configuration_serves_every_verb_and_models_know_their_data(tmp_path: Path) -> None:
    config = tmp_path / "my.yaml"
    said = succeed(
        "init", draw(tmp_path / "data", as_colours), "--label-map camvid --out", config
    ).stdout
    assert "8 pairs of image and label: 6 train, 2 val" in said
    assert "then: segunc train --config" in said
    content = yaml.safe_load(config.read_text())
    content["network"] |= {
        "encoder": "resnet18",
        "encoder_weights": None,
        "options": {"decoder_channels": 16},
    }
    content["data"]["batch_size"] = 2
    content |= {"trainer": {"max_epochs": 1}, "temperature": {"frames": 2, "draws": 2}}
    config.write_text(yaml.safe_dump(content))
    base, abnn = tmp_path / "base", tmp_path / "abnn"
    succeed("train --device cpu --config", config, "--out", base)
    succeed("finetune --device cpu --base", base, "--config", config, "--out", abnn)
    done = succeed("finetune --device cpu --method temperature --base", abnn, "--out", abnn)
    assert f"data: folder in {tmp_path / 'data'}, which {abnn} was made with" in done.stdout
    done = succeed("evaluate --draws 2 --replicates 0", FAST, "--model", abnn)
    assert f"note: data: folder in {tmp_path / 'data'}, from the record of the model" in done.stdout
    assert "split val of folder is evaluated" in done.stdout
    done = succeed(
        "evaluate --draws 2 --replicates 0 --split train", FAST, "--model", abnn, "--config", config
    )
    assert f"from {config}" in done.stdout
    (tmp_path / "data").rename(tmp_path / "moved")
    said = refuse("finetune --device cpu --method temperature --base", abnn, "--out", abnn)
    assert "which is not there. Hint: --data.root DIR" in said
    succeed(
        "finetune --device cpu --method temperature --data.root",
        tmp_path / "moved",
        "--base",
        abnn,
        "--out",
        abnn,
    )
    config.write_text(config.read_text() + "abn: {}\n")
    said = refuse(
        "train --config", config, "--data.root", tmp_path / "moved", "--out", tmp_path / "x"
    )
    assert "unknown key 'abn'" in said


@pytest.mark.parametrize(
    ("name", "folders", "split"),
    [
        ("cityscapes", ("leftImg8bit/train", "leftImg8bit/val", "gtFine/val"), "val"),
        ("camvid", ("train", "val", "test", "testannot"), "test"),
        ("folder", ("images", "labels"), "all"),
        ("streethazards", ("train/images/validation", "test/images/test"), "test"),
    ],
)
def test_the_split_that_has_labels_is_evaluated(
    tmp_path: Path, name: str, folders: tuple[str, ...], split: str
) -> None:
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
    assert DATASETS[name].usual_split(tmp_path) == split


def test_data_and_what_init_wrote_can_be_moved_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    segunc.init(draw(here / "data"), out=here / "configs" / "my.yaml")
    here.rename(tmp_path / "there")
    monkeypatch.chdir(tmp_path)
    config = parse_config(
        TrainConfig, tmp_path / "there" / "configs" / "my.yaml", [], others=lambda: OTHERS
    )
    data = SegmentationDataModule(**config.data)
    assert len(data.dataset("train")) == 6
    assert data.root == tmp_path / "there" / "data"


def test_a_path_of_the_command_line_is_relative_to_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segunc.init(draw(tmp_path / "data"), out=tmp_path / "my.yaml")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    config = parse_config(
        TrainConfig, tmp_path / "my.yaml", ["--data.root", "./data"], others=lambda: OTHERS
    )
    assert config.data["root"] == "./data"


def test_pictures_of_an_earlier_init_are_no_frames(tmp_path: Path) -> None:
    root = draw(tmp_path / "data", image="{name}.jpg")
    segunc.init(root, out=root / "my.yaml")
    result = segunc.init(root, out=root / "my.yaml", overwrite=True)
    assert len(result.frames.read_text().splitlines()) == 1 + 8


def test_labels_without_any_class_of_the_label_map_are_no_test_set(tmp_path: Path) -> None:
    """The published labels of Cityscapes' test frames hold ids 0 to 3 alone, none of which is a
    class.
    """
    root = tmp_path / "data"
    for split, ids in (("train", (7, 26)), ("val", (7, 26)), ("test", (0, 3))):
        for number in range(2):
            image = root / "images" / split / f"{split}{number}.png"
            mask = root / "labels" / split / f"{split}{number}.png"
            for path in (image, mask):
                path.parent.mkdir(parents=True, exist_ok=True)
            picture = np.random.default_rng(number).integers(0, 256, (32, 32, 3), np.uint8)
            Image.fromarray(picture).save(image)
            Image.fromarray(np.array(ids, np.uint8).repeat(512).reshape(32, 32)).save(mask)
    result = segunc.init(root, out=tmp_path / "my.yaml", label_map="cityscapes")
    entry = dataset_entry("folder", labels=str(result.label_map), frames=result.frames)
    assert entry.splits == ("train", "val")
    assert any("leaves out 2 pairs of test, whose labels hold no class" in n for n in result.notes)


def test_masks_of_two_encodings_are_refused(tmp_path: Path) -> None:
    """Where 255 marks in some masks what 1 marks in others, it would be ignored as void."""
    root = draw(tmp_path / "data")
    for number, path in enumerate(sorted((root / "masks").rglob("*.png"))):
        Image.fromarray(
            np.where(label(number) == 3, (1, 255)[number % 2], 0).astype(np.uint8)
        ).save(path)
    with pytest.raises(
        InputError, match=r"two kinds: .*0000.png holds 0 and 1, and .*0001.png 0 and 255"
    ):
        segunc.init(root, out=tmp_path / "my.yaml")
    result = segunc.init(root, out=tmp_path / "my.yaml", void=["255"], two_classes=True)
    assert read_label_map(result.label_map).raw_to_train == {0: 0, 1: 1, 255: 255}
