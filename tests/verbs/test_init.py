"""From a folder of one's own to a configuration that every verb takes."""

import json
import re
import shlex
import shutil
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest
import yaml
from PIL import Image

import segunc
from segunc.cli.main import build_parser
from segunc.cli.run import _finetuning_of, _step_after_finetune, _training_in_words
from segunc.core.errors import InputError, NoteWarning
from segunc.core.files import file_sha256
from segunc.core.removal import LEDGER
from segunc.data.datasets import DATASETS, dataset_entry
from segunc.data.discover import Found, discover
from segunc.data.labels import label_map, read_label_map
from segunc.data.module import DataConfig, SegmentationDataModule
from segunc.data.pairing import Pair
from segunc.data.splits import find_copies
from segunc.gallery.pictures import OVERLAY_FORMAT, OVERLAY_NAME
from segunc.gallery.review_page import PAGE_FORMAT, PAGE_NAME
from segunc.maps.labelled import LabelSources, open_maps
from segunc.maps.manifest import FORMAT as MAPS_FORMAT
from segunc.maps.shards import MANIFEST_NAME
from segunc.networks.model_folder import DESCRIPTION
from segunc.options import FinetuneOptions, ReportOptions, ThresholdOptions, TrainOptions
from segunc.posteriors.map_records import chosen_on as records_of_choices
from segunc.reporting.facts import KIND as REPORT_KIND
from segunc.training.config import (
    TrainConfig,
    parse_config,
    read_config,
    record_command,
    record_data,
)
from segunc.verbs import threshold as threshold_module
from segunc.verbs.evaluate import chosen_words, fitted_in_use, label_sources, unrecorded_words
from segunc.verbs.init import InitResult
from segunc.verbs.init_update import free_result, step_after_update, steps_with
from segunc.verbs.output_folders import NETWORK, RECORDS, is_output_folder
from segunc.verbs.training import _note_changed_list, _note_other_data
from tests.maps.fakes import edit_manifest
from tests.verbs.processes import FAST, refuse, succeed

CAMVID = label_map("camvid")
IDS = np.array([0, 1, 2, 3, 8, 11], np.uint8)
"""Of sky, building, pole, road, car and void."""
PALETTE = np.zeros((256, 3), np.uint8)
PALETTE[: CAMVID.num_classes] = CAMVID.palette


OTHERS = ("abnn", "features", "anomaly", "temperature")
"""Sections of the configuration that are of other verbs than train."""


def label(seed: int) -> np.ndarray[Any, Any]:
    places = np.random.default_rng(seed).integers(0, len(IDS), (8, 6))
    return IDS[places].repeat(6, 0).repeat(8, 1)


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
        drive = "b" if number >= 6 else "a"
        name = f"{drive}_{number:04d}"
        image_path = root / image.format(split=split, name=name)
        label_path = root / LAYOUTS[image].format(split=split, name=name)
        for path in (image_path, label_path):
            path.parent.mkdir(parents=True, exist_ok=True)
        picture = np.random.default_rng(number).integers(0, 256, (48, 48, 3), np.uint8)
        assert cv2.imwrite(str(image_path), picture)
        write(label_path, label(number))
    return root


@pytest.mark.parametrize("image", LAYOUTS)
def test_layouts_and_splits_are_found(tmp_path: Path, image: str) -> None:
    found = discover(draw(tmp_path / "data", image=image))
    assert found.counts() == {"train": 6, "val": 2}
    for pair in found.pairs:
        name = re.sub("_leftImg8bit|_rgb_anon", "", pair.image.stem)
        assert pair.label.stem.startswith(name)


def held_out(found: Found) -> set[str]:
    return {pair.image.stem[:6] for pair in found.pairs if pair.split == "val"}


@pytest.mark.parametrize("image", [image for image in LAYOUTS if "{split}" in image])
def test_splits_of_neighbouring_frames_are_kept_and_noted(tmp_path: Path, image: str) -> None:
    found = discover(draw(tmp_path / "data", image=image))
    assert held_out(found) == {"a_0003", "b_0007"}
    (note,) = found.notes
    assert "train and val have frames whose names differ in the last number alone" in note


@pytest.mark.parametrize("image", [image for image in LAYOUTS if "{split}" not in image])
def test_a_whole_drive_is_held_out_where_there_are_no_splits(tmp_path: Path, image: str) -> None:
    """Neighbours of training frames would look like what was learnt."""
    found = discover(draw(tmp_path / "data", image=image))
    assert held_out(found) == {"b_0006", "b_0007"}
    assert "holds out 2 of 8 training frames to validate: 1 of 2 sequences" in found.notes[-1]


def written_labels(root: Path, result: InitResult) -> list[tuple[int, Path]]:
    """Return number and label file of each frame of what ``init`` wrote."""
    entry = dataset_entry("folder", labels=str(result.label_map), frames=result.frames)
    labels = []
    for split in ("train", "val"):
        for sample in entry.samples(root, split):
            assert sample.label is not None
            labels.append((int(sample.name[-4:]), sample.label))
    return labels


@pytest.mark.parametrize("write", [as_ids, as_three_channels])
def test_labels_of_ids_are_read_as_they_were_drawn(tmp_path: Path, write: Write) -> None:
    root = draw(tmp_path / "data", write)
    result = segunc.init(root, out=tmp_path / "my.yaml")
    labels = read_label_map(result.label_map)
    for number, path in written_labels(root, result):
        trained = labels.read(path)
        for raw in IDS[:-1]:
            (train,) = np.unique(trained[label(number) == raw])
            assert labels.classes[train] == f"class {raw}"
    assert result.picture.stat().st_size > 1000


@pytest.mark.parametrize("write", [as_colours, as_palette])
def test_labels_of_colours_are_read_as_they_were_drawn(tmp_path: Path, write: Write) -> None:
    root = draw(tmp_path / "data", write)
    result = segunc.init(root, out=tmp_path / "my.yaml", label_map="camvid")
    labels = read_label_map(result.label_map)
    for number, path in written_labels(root, result):
        trained = labels.read(path)
        for raw in IDS[:-1]:
            (train,) = np.unique(trained[label(number) == raw])
            assert labels.classes[train] == CAMVID.classes[raw]
        assert (trained[label(number) == 11] == 255).all()
    assert result.picture.stat().st_size > 1000


def test_a_proposed_colour_is_far_from_those_of_the_palette(tmp_path: Path) -> None:
    """CamVid's sky is grey, which grey labels could be, and the first colour proposed in its place
    is nearly its bicyclist's.
    """
    bicyclist = CAMVID.classes.index("bicyclist")

    def with_bicyclists(path: Path, ids: np.ndarray[Any, Any]) -> None:
        as_palette(path, np.where(ids == 8, bicyclist, ids).astype(np.uint8))

    root = draw(tmp_path / "data", with_bicyclists)
    labels = read_label_map(segunc.init(root, out=tmp_path / "my.yaml").label_map)
    palette = np.array(labels.palette, int)
    distances = np.abs(palette[:, None] - palette).max(2)
    others = ~np.eye(len(palette), dtype=bool)
    assert distances[others].min() >= 60


def test_masks_are_refused_with_what_can_be_asked_for(tmp_path: Path) -> None:
    root = draw(tmp_path / "data", as_mask)
    refusal = refuse("init", root, "--out", tmp_path / "my.yaml")
    assert (
        "the labels hold 0 and 255 alone: masks. Hint: --two-classes learns them; if they mark"
        " anomalies:" in refusal
    )
    assert "--dataset folder-255" in refusal


def test_masks_are_two_classes_where_that_is_asked_for(tmp_path: Path) -> None:
    root = draw(tmp_path / "data", as_mask)
    result = segunc.init(root, out=tmp_path / "my.yaml", two_classes=True)
    assert read_label_map(result.label_map).raw_to_train == {0: 0, 255: 1}


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


@pytest.fixture
def two_kinds(tmp_path: Path) -> Path:
    """A data set with a folder ``labels``, and a folder ``masks`` of half of its labels."""
    root = draw(tmp_path / "data \N{AUTOMOBILE}")
    both_sets(root)
    half(root)
    return root


def test_the_option_that_is_named_decides(two_kinds: Path) -> None:
    assert discover(two_kinds, labels="labels").counts() == {"train": 6, "val": 2}
    labelled = discover(two_kinds, labels="masks", labelled_only=True)
    assert sum(labelled.counts().values()) == 4


def test_init_writes_what_was_named(two_kinds: Path, tmp_path: Path) -> None:
    result = segunc.init(two_kinds, out=tmp_path / "x.yaml", labels="labels", void=["11"])
    assert read_label_map(result.label_map).raw_to_train[11] == 255
    assert read_config(result.config)["data"]["root"] == f"./{two_kinds.name}"


def test_init_does_not_overwrite_a_configuration(two_kinds: Path, tmp_path: Path) -> None:
    segunc.init(two_kinds, out=tmp_path / "x.yaml", labels="labels", void=["11"])
    with pytest.raises(InputError, match="already exists"):
        segunc.init(two_kinds, out=tmp_path / "x.yaml", labels="labels")


def frame_rows(result: InitResult) -> dict[str, str]:
    """The split of each image in the list of frames."""
    lines = result.frames.read_text().splitlines()[1:]
    return {line.split(",")[1]: line.split(",")[0] for line in lines}


def test_an_update_adds_frames_and_keeps_what_was_edited(tmp_path: Path) -> None:
    root = draw(tmp_path / "data", image="img/{name}.jpg", frames=6)
    first = segunc.init(root, out=tmp_path / "x.yaml", void=["11"])
    edited_map = first.label_map.read_text().replace("class 3", "road")
    first.label_map.write_text(edited_map)
    edited_config = first.config.read_text() + "# mine\n"
    first.config.write_text(edited_config)
    splits = frame_rows(first)
    image = next(name for name, split in splits.items() if split == "train")
    edited_list = first.frames.read_text().replace(f"train,{image}", f"test,{image}")
    first.frames.write_text(edited_list)

    draw(root, image="img/{name}.jpg", frames=8)
    updated = segunc.init(root, out=tmp_path / "x.yaml", update=True)
    assert updated.label_map.read_text() == edited_map
    assert updated.config.read_text() == edited_config
    after = frame_rows(updated)
    assert after[image] == "test"
    assert {name: after[name] for name in splits} == {**splits, image: "test"}
    assert sorted(set(after.values())) == ["test", "train", "val"]
    assert len(after) == len(splits) + 2
    assert any("new frames: 2 train" in note for note in updated.notes)
    assert any("to use the new frames: train again, with" in note for note in updated.notes)


def test_an_update_keeps_labels_that_were_written_into_the_list(tmp_path: Path) -> None:
    root = draw(tmp_path / "data", image="img/{name}.jpg")
    patterns = {"images": "img", "labels": "annotations"}
    first = segunc.init(root, out=tmp_path / "x.yaml", void=["11"], **patterns)
    (root / "fixed").mkdir()
    shutil.copy(root / "annotations/a_0001_L.png", root / "fixed/a_1.png")
    found = "img/a_0001.jpg,annotations/a_0001_L.png"
    edited = "img/a_0001.jpg,fixed/a_1.png"
    first.frames.write_text(first.frames.read_text().replace(found, edited))
    updated = segunc.init(root, out=tmp_path / "x.yaml", update=True)
    assert edited in updated.frames.read_text()
    assert any("keeps 1 label of the list of frames where" in note for note in updated.notes)
    # Labels that are named now come before those of the list, and a file that is gone is none.
    named = segunc.init(root, out=tmp_path / "x.yaml", update=True, labels="annotations")
    assert found in named.frames.read_text()
    named.frames.write_text(named.frames.read_text().replace(found, "img/a_0001.jpg,gone/a.png"))
    assert found in segunc.init(root, out=tmp_path / "x.yaml", update=True).frames.read_text()


def test_an_update_knows_a_frame_by_any_spelling_of_its_path(tmp_path: Path) -> None:
    """It trained on a frame of val, as on a new one."""
    root = draw(tmp_path / "data", image="img/{name}.jpg")
    first = segunc.init(root, out=tmp_path / "x.yaml", void=["11"])
    splits = frame_rows(first)
    first.frames.write_text(first.frames.read_text().replace(",img/", ",./img/"))
    updated = segunc.init(root, out=tmp_path / "x.yaml", update=True)
    assert frame_rows(updated) == splits
    assert any(note.startswith("no new frames") for note in updated.notes)


def test_an_init_that_fails_writes_nothing(tmp_path: Path) -> None:
    """The next update found the new frames in the list, and asked for no training."""
    root = draw(tmp_path / "data", image="img/{name}.jpg")
    last = root / "annotations/b_0007_L.png"
    as_ids(last, label(7)[:20])
    with pytest.raises(InputError, match="its label 20x48 pixels"):
        segunc.init(root, out=tmp_path / "x.yaml", void=["11"])
    assert not list(tmp_path.glob("x*"))
    as_ids(last, label(7))
    first = segunc.init(root, out=tmp_path / "x.yaml", void=["11"])
    before = first.frames.read_text()
    draw(root, image="img/{name}.jpg", frames=9)
    as_ids(root / "annotations/b_0008_L.png", label(8)[:20])
    with pytest.raises(InputError, match="its label 20x48 pixels"):
        segunc.init(root, out=tmp_path / "x.yaml", update=True)
    assert first.frames.read_text() == before


def test_an_update_says_what_it_keeps_and_names_a_training_that_works(tmp_path: Path) -> None:
    root = draw(tmp_path / "data", image="img/{name}.jpg", frames=6)
    config = tmp_path / "x.yaml"
    succeed("init", root, "--void 11 --out", config)
    done = succeed("init", root, "--update --out", config).stdout
    assert f"kept {config} and {tmp_path / 'x-classes.csv'} as they were" in done
    assert f"wrote {tmp_path / 'x-frames.csv'}\n" in done
    assert f"then: segunc train --config {config} --out runs/base\n" in done
    assert "no new frames; all 6 keep the split that the list of frames gives them" in done
    assert "if you moved frames into or out of train, or removed some there, train again" in done
    assert "the next one writes a new folder" in done


def csv_of_colours(path: Path, void: str) -> Path:
    rows = ["name,r,g,b"]
    for raw, name in zip(IDS, ("sky", "building", "pole", "road", "car", void), strict=True):
        rows.append(f"{name},{','.join(str(value) for value in PALETTE[raw])}")
    path.write_text("\n".join(rows))
    return path


def draw_drives(root: Path, drives: int = 3) -> Path:
    """Frames of drives in ``drive_N/camera``, whose labels in colour lie in ``drive_N/labels``."""
    for drive in range(drives):
        for number in range(3):
            image = root / f"drive_{drive}/camera/{number}.png"
            labels = root / f"drive_{drive}/labels/{number}.png"
            for path in (image, labels):
                path.parent.mkdir(parents=True, exist_ok=True)
            seed = 10 * drive + number
            picture = np.random.default_rng(seed).integers(0, 256, (48, 48, 3), np.uint8)
            assert cv2.imwrite(str(image), picture)
            as_colours(labels, label(seed))
    return root


def test_a_pattern_of_folders_takes_the_files_below_them(tmp_path: Path) -> None:
    root = draw_drives(tmp_path / "data")
    draw_drives(root / "old")
    by_folders = discover(root, "drive_*/camera", "drive_*/labels")
    assert by_folders.pairs == discover(root, "drive_*/camera/*", "drive_*/labels/*").pairs
    first = draw_drives(tmp_path / "first")
    assert discover(first, "*_0/camera", "d*_0/labels").counts().total() == 3
    with pytest.raises(InputError, match=r"`images` drive_x\*/camera matches no image file"):
        discover(root, "drive_x*/camera", "drive_*/labels")


def test_a_pattern_that_matches_files_takes_no_files_of_folders(tmp_path: Path) -> None:
    root = draw(tmp_path / "data", image="{name}.jpg")
    (root / "more_label.png").mkdir()
    shutil.copy(root / "a_0000.jpg", root / "more_label.png/photo.jpg")
    found = discover(root, "[ab]_*.jpg", "*_label.png")
    assert len(found.pairs) == 8
    assert not any("without an image" in note for note in found.notes)


def test_a_linked_folder_is_left_out_with_a_note(tmp_path: Path) -> None:
    draw_drives(tmp_path / "all")
    root = draw_drives(tmp_path / "data", drives=2)
    (root / "drive_2").symlink_to(tmp_path / "all/drive_2")
    done = succeed("init", root, "--out", tmp_path / "x.yaml").stdout
    assert f"note: {root}: 1 link to folders left out, first drive_2; put the folder itself" in done
    assert "6 pairs of image and label" in done


@pytest.mark.parametrize("folder", ["data/drive_0/camera", "camera", "."])
def test_labels_beside_the_folder_give_a_command_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    draw_drives(tmp_path / "data")
    places = {"camera": "data/drive_0", ".": "data/drive_0/camera"}
    monkeypatch.chdir(tmp_path / places.get(folder, ""))
    said = refuse("init", folder, "--void #000000 --out", tmp_path / "x.yaml")
    labels, _, command = said.partition(" looks like labels, so take the folder that holds both: ")
    assert Path(labels.rpartition(" ")[2]).resolve() == tmp_path / "data/drive_0/labels"
    assert "--void" in command
    assert "3 pairs of image and label" in succeed(*shlex.split(command)[1:]).stdout


@pytest.mark.parametrize("folder", ["drive/labels_colour", "."])
def test_the_folder_of_the_labels_alone_gives_a_command_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    root = tmp_path / "drive"
    shutil.move(draw_drives(tmp_path / "data", drives=1) / "drive_0", root)
    (root / "camera").rename(root / "images")
    (root / "labels").rename(root / "labels_colour")
    monkeypatch.chdir(tmp_path if folder != "." else root / "labels_colour")
    said = refuse("init", folder, "--void #000000 --out", tmp_path / "x.yaml")
    _, _, command = said.partition(
        "labels_colour looks like labels, so take the folder that holds both: "
    )
    assert "3 pairs of image and label" in succeed(*shlex.split(command)[1:]).stdout
    train = parse_config(TrainConfig, tmp_path / "x.yaml", [], others=lambda: OTHERS)
    assert len(SegmentationDataModule(**train.data).dataset("train")) == 2


def test_no_labels_beside_the_folder_leave_the_hint(tmp_path: Path) -> None:
    root = draw_drives(tmp_path / "data")
    shutil.rmtree(root / "drive_0/labels")
    (root / "drive_0/labels").mkdir()
    with pytest.raises(InputError, match="`labels` FOLDER names the folder of the labels"):
        segunc.init(root / "drive_0/camera", out=tmp_path / "x.yaml")


def test_an_update_takes_the_patterns_of_the_first_init(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = draw_drives(tmp_path / "data", drives=2)
    config = tmp_path / "x.yaml"
    words = "--images drive_*/camera --labels drive_*/labels --labelled-only --void none"
    succeed("init", root, words, "--out", config)
    draw_drives(root)
    (root / "drive_2/labels/0.png").unlink()
    shutil.copytree(root / "drive_2", root / "rejected")
    monkeypatch.chdir(tmp_path)
    done = succeed("init", root, "--update --out x.yaml").stdout
    assert "takes --images 'drive_*/camera' --labels 'drive_*/labels' --labelled-only" in done
    assert "new frames: 2 train" in done
    typed = succeed("init", root, "--update --out x.yaml --images drive_[01]/camera").stdout
    assert "takes --labels 'drive_*/labels' --labelled-only of the earlier init" in typed
    assert "6 pairs of image and label" in typed
    assert (
        "note: 2 frames of the earlier list are left out although their images are there, the "
        "first is drive_2/camera/1.png: --images and --labels do not name them"
    ) in typed
    shutil.rmtree(root / "drive_1")
    done = succeed("init", root, "--update --out x.yaml --images drive_[01]/camera").stdout
    assert (
        "note: 3 frames of the earlier list have no image any more, the first is "
        "drive_1/camera/0.png\n"
    ) in done


def test_an_update_records_the_patterns_that_are_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = draw_drives(tmp_path / "data", drives=3)
    config = tmp_path / "x.yaml"
    words = "--images drive_*/camera --labels drive_*/labels --void none"
    succeed("init", root, words, "--out", config)
    before = config.read_text().splitlines()
    monkeypatch.chdir(tmp_path)
    typed = succeed("init", root, "--update --out x.yaml --images drive_[01]/camera").stdout
    assert (
        "note: records --images 'drive_[01]/camera' --labels 'drive_*/labels' in x.yaml, so the "
        "next update takes them again\n"
    ) in typed
    assert "kept x-classes.csv as it was\nwrote x.yaml and x-frames.csv\n" in typed
    expected = [line.replace("drive_*/camera", "drive_[01]/camera") for line in before]
    assert config.read_text().splitlines() == expected
    again = succeed("init", root, "--update --out x.yaml").stdout
    assert "6 pairs of image and label" in again
    assert "no new frames" in again
    assert "records --" not in again
    assert "kept x.yaml and x-classes.csv as they were" in again


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_an_update_of_an_earlier_version_records_what_is_typed(tmp_path: Path, ending: str) -> None:
    root = draw(tmp_path / "data", image="img/{name}.jpg", frames=6)
    first = segunc.init(root, out=tmp_path / "x.yaml", void=["11"])
    as_of_an_earlier_version(first.config)
    old = first.config.read_text()
    first.config.write_bytes(old.replace("\n", ending).encode())
    untouched = first.config.read_bytes()
    segunc.init(root, out=tmp_path / "x.yaml", update=True)
    assert first.config.read_bytes() == untouched
    segunc.init(root, out=tmp_path / "x.yaml", labels="annotations", update=True)
    recorded = first.config.read_bytes().decode()
    assert f'  --labels "annotations"{ending}seed: 0{ending}' in recorded
    lines = recorded.split(ending)
    assert [line for line in lines if line in old.split("\n")] == old.split("\n")
    updated = segunc.init(root, out=tmp_path / "x.yaml", update=True)
    assert any("takes --labels annotations of the earlier" in note for note in updated.notes)
    assert not any("does not record" in note for note in updated.notes)


def test_patterns_that_were_typed_from_the_current_folder_are_kept_as_those_of_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = draw_drives(tmp_path / "data", drives=2)
    config = tmp_path / "x.yaml"
    monkeypatch.chdir(tmp_path)
    words = "--images data/drive_0/camera --labels data/drive_0/labels --void none"
    succeed("init", root, words, "--out", config)
    assert '  --labels "drive_0/labels"\n' in config.read_text()
    assert read_config(config)["data"]["dataset"] == "folder"
    monkeypatch.chdir(root)
    assert "3 pairs of image" in succeed("init . --update --out", config).stdout


def test_labels_that_init_did_not_read_are_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segunc.data.census.MAX_SECONDS", -1)
    root = draw(tmp_path / "data", image="img/{name}.jpg", frames=6)
    result = segunc.init(root, out=tmp_path / "x.yaml", void=["none"])
    (line,) = [line for line in result.about if " classes by ids " in line]
    assert "in 1 of the 6 labels, spread over the splits, because init reads about 200" in line
    assert line.endswith("training reads all and refuses other values")


def test_an_update_without_patterns_takes_none(tmp_path: Path) -> None:
    root = draw(tmp_path / "data", image="img/{name}.jpg", frames=6)
    first = segunc.init(root, out=tmp_path / "x.yaml", void=["11"])
    assert "--update` takes" not in first.config.read_text()
    first.config.write_text(first.config.read_text() + "#   --labels none of these\n")
    updated = segunc.init(root, out=tmp_path / "x.yaml", update=True)
    assert not any(note.startswith("takes ") for note in updated.notes)
    assert not any("does not record" in note for note in updated.notes)


def as_of_an_earlier_version(config: Path) -> None:
    """Take out of a configuration what it says of the options of its init."""
    lines = config.read_text().splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith(("#   --", "# Its `segunc init`"))]
    assert len(kept) < len(lines)
    config.write_text("".join(kept))


NOT_RECORDED = "does not record whether its init was given --images, --labels or --labelled-only"


def test_an_update_of_an_earlier_version_says_that_options_must_be_given_again(
    tmp_path: Path,
) -> None:
    root = draw(tmp_path / "data", image="img/{name}.jpg", frames=6)
    first = segunc.init(root, out=tmp_path / "x.yaml", void=["11"])
    as_of_an_earlier_version(first.config)
    updated = segunc.init(root, out=tmp_path / "x.yaml", update=True)
    assert [note for note in updated.notes if f"{first.config} {NOT_RECORDED}" in note]
    typed = segunc.init(root, out=tmp_path / "x.yaml", labels="annotations", update=True)
    assert not any("does not record" in note for note in typed.notes)


def test_an_update_that_fails_without_the_options_of_an_earlier_version_says_so(
    tmp_path: Path,
) -> None:
    root = draw_drives(tmp_path / "data")
    (root / "drive_2/labels/0.png").unlink()
    config = tmp_path / "x.yaml"
    succeed("init", root, "--labelled-only --void none --out", config)
    as_of_an_earlier_version(config)
    said = refuse("init", root, "--update --out", config)
    assert "have no label" in said
    assert f"Hint: {config} {NOT_RECORDED}, so if it was, give them again" in said
    assert "--labelled-only leaves them out" in said


def test_a_configuration_in_the_folder_of_its_data_names_a_clean_path(tmp_path: Path) -> None:
    root = draw(tmp_path / "data")
    config = segunc.init(root, out=root / "mine.yaml", void=["11"]).config
    assert yaml.safe_load(config.read_text())["data"]["root"] == "."
    parsed = parse_config(TrainConfig, config, [], others=lambda: OTHERS)
    assert Path(parsed.data["root"]) == root


RED = (200, 20, 10)


def with_new_colour(tmp_path: Path) -> tuple[Path, Path]:
    """The data of an earlier init, of which two labels have a new colour, and its configuration."""
    root = draw_drives(tmp_path / "data")
    config = tmp_path / "x.yaml"
    segunc.init(root, out=config, void=["none"])
    for path in ("drive_1/labels/1.png", "drive_2/labels/0.png"):
        pixels = np.array(Image.open(root / path))
        pixels[:4, :5] = RED
        Image.fromarray(pixels).save(root / path)
    return root, config


def test_a_new_colour_is_named_with_its_labels_and_a_row_that_works(tmp_path: Path) -> None:
    root, config = with_new_colour(tmp_path)
    classes = tmp_path / "x-classes.csv"
    said = refuse("init", root, "--update --out", config)
    where = "#c8140a; first in drive_1/labels/1.png, 40 pixels in 2 of the 9 labels that were"
    assert where in said
    row = "6,NAME,6,200,20,10"
    assert f"for a class, add the row {row} to {classes}" in said
    classes.write_text(f"{classes.read_text()}{row}\n")
    succeed("init", root, "--update --out", config)
    assert read_label_map(classes).classes[6] == "NAME"


def test_a_new_id_gets_a_row_that_works(tmp_path: Path) -> None:
    root = draw(tmp_path / "data", image="img/{name}.jpg")
    config = tmp_path / "x.yaml"
    segunc.init(root, out=config, void=["11"])
    path = root / "annotations/a_0002_L.png"
    ids = np.array(Image.open(path))
    ids[:4, :5] = 77
    as_ids(path, ids)
    said = refuse("init", root, "--update --out", config)
    row = re.search(r"add the row (77,NAME,5,\S+) to ", said)
    assert row is not None
    classes = tmp_path / "x-classes.csv"
    classes.write_text(f"{classes.read_text()}{row[1]}\n")
    succeed("init", root, "--update --out", config)
    assert len(set(read_label_map(classes).palette)) == 6


@pytest.mark.parametrize("delimiter", [",", ";"])
def test_an_update_ignores_a_new_colour(tmp_path: Path, delimiter: str) -> None:
    root, config = with_new_colour(tmp_path)
    classes = tmp_path / "x-classes.csv"
    edited = classes.read_text().replace("class #000000", "my name").replace(",", delimiter)
    classes.write_text(edited.rstrip("\n"))
    done = succeed("init", root, "--update --void #c8140a --out", config).stdout
    assert f"adds 6,void,255,200,20,10 to {classes}" in done
    assert f"kept {config} as it was\n" in done
    labels = read_label_map(classes)
    assert labels.num_classes == 6
    assert "my name" in labels.classes
    if delimiter == ",":
        assert classes.read_text() == f"{edited}6,void,255,200,20,10\n"
    # What is ignored now may be named again, and need not be.
    for words in ("--void #c8140a", ""):
        again = succeed("init", root, f"--update {words} --out", config).stdout
        assert f"kept {config} and {classes} as they were" in again


def test_the_label_map_that_init_writes_itself_is_not_advised(tmp_path: Path) -> None:
    root = draw(tmp_path / "data", as_colours)
    names = csv_of_colours(root / "names.csv", void="void")
    done = succeed("init", root, "--out", root / "mine.yaml").stdout
    assert f"--label-map {names}" in done
    assert "mine-classes.csv names all values" not in done


def test_a_label_map_that_lies_beside_the_frames_is_named(tmp_path: Path) -> None:
    root = draw(tmp_path / "data", as_colours)
    names = csv_of_colours(root / "names.csv", void="void")
    (root / "notes.csv").write_text("frame,weather\na,rain\n")
    done = succeed("init", root, "--out", tmp_path / "x.yaml").stdout
    assert f"{names} names all values of the labels; --label-map {names} --overwrite" in done
    assert "notes.csv" not in done
    taken = succeed("init", root, "--overwrite --label-map", names, "--out", tmp_path / "x.yaml")
    assert "names all values" not in taken.stdout
    assert re.search(r"void: [\d.]+ % of the pixels, ignored", taken.stdout)


def test_void_that_a_label_map_ignores_may_be_named_again(tmp_path: Path) -> None:
    root = draw(tmp_path / "data", as_colours)
    black = "#{:02x}{:02x}{:02x}".format(*PALETTE[11])
    ignoring = csv_of_colours(tmp_path / "a.csv", void="void")
    made = segunc.init(root, out=tmp_path / "x.yaml", label_map=str(ignoring), void=[black])
    assert read_label_map(made.label_map).num_classes == 5
    # Two more classes share a colour that no label holds.
    ignoring.write_text(ignoring.read_text() + "\nleft,9,9,9\nright,9,9,9\n")
    segunc.init(root, out=tmp_path / "z.yaml", label_map=str(ignoring), void=[black])
    knowing = csv_of_colours(tmp_path / "b.csv", void="bonnet")
    with pytest.raises(InputError, match=f"{black} is a class of the label map"):
        segunc.init(root, out=tmp_path / "y.yaml", label_map=str(knowing), void=[black])


def test_void_may_be_the_name_in_a_label_map(tmp_path: Path) -> None:
    root = draw(tmp_path / "data", as_colours)
    names = csv_of_colours(tmp_path / "a.csv", void="void")
    made = segunc.init(root, out=tmp_path / "x.yaml", label_map=str(names), void=["void"])
    assert read_label_map(made.label_map).num_classes == 5
    with pytest.raises(InputError, match="pole is a class of the label map") as refused:
        segunc.init(root, out=tmp_path / "y.yaml", label_map=str(names), void=["pole"])
    assert refused.value.hint == "give it the train_id 255 there"


def test_a_colour_of_several_classes_is_refused_where_labels_hold_it(tmp_path: Path) -> None:
    """The label map that is written would give it to the class, and void pixels would be learnt."""
    root = draw(tmp_path / "data", as_colours)
    names = csv_of_colours(tmp_path / "names.csv", void="tunnel")
    black = ",".join(str(value) for value in PALETTE[11])
    names.write_text(f"{names.read_text().rstrip()}\nvoid,{black}\n")
    with pytest.raises(InputError, match="gives the colour #000000 to several classes, and"):
        segunc.init(root, out=tmp_path / "x.yaml", label_map=str(names))
    assert not (tmp_path / "x.yaml").exists()


def test_an_update_needs_an_earlier_init(tmp_path: Path) -> None:
    root = draw(tmp_path / "data")
    with pytest.raises(InputError, match="no earlier init to update"):
        segunc.init(root, out=tmp_path / "x.yaml", void=["11"], update=True)
    with pytest.raises(InputError, match="`overwrite` replaces them"):
        segunc.init(root, out=tmp_path / "x.yaml", update=True, overwrite=True)


def test_a_value_that_a_label_map_lacks_can_be_void(tmp_path: Path) -> None:
    root = draw(tmp_path / "data", as_colours)
    names = tmp_path / "names.csv"
    rows = ["id,name,train_id,red,green,blue"]
    for number, name in enumerate(("sky", "building", "pole", "road", "car")):
        colour = ",".join(str(value) for value in PALETTE[IDS[number]])
        rows.append(f"{number},{name},{number},{colour}")
    names.write_text("\n".join(rows))
    black = "#{:02x}{:02x}{:02x}".format(*PALETTE[11])
    with pytest.raises(InputError, match=f"1 value of the labels is .* {black}") as refused:
        segunc.init(root, out=tmp_path / "x.yaml", label_map=str(names))
    assert f"--void '{black}' ignores it; or add rows" in str(refused.value.hint)
    made = segunc.init(root, out=tmp_path / "x.yaml", label_map=str(names), void=[black])
    labels = read_label_map(made.label_map)
    assert labels.classes[:5] == ("sky", "building", "pole", "road", "car")
    assert labels.num_classes == 5
    raw_id = (labels.colours or {})[tuple(int(value) for value in PALETTE[11])]
    assert labels.raw_to_train[raw_id] == 255


@dataclass(frozen=True)
class Made:
    """Data, the configuration that ``init`` wrote of them, and an ABNN of it."""

    data: Path
    config: Path
    base: Path
    abnn: Path


def shorten(config: Path) -> None:
    """Change a configuration to a small network and a short training."""
    content = yaml.safe_load(config.read_text())
    content["network"]["encoder"] = "resnet18"
    content["network"]["encoder_weights"] = None
    content["network"]["options"] = {"decoder_channels": 16}
    content["data"]["batch_size"] = 2
    content["trainer"] = {"max_epochs": 1}
    content["temperature"] = {"frames": 2, "draws": 2}
    config.write_text(yaml.safe_dump(content))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("made")
    made = Made(folder / "data", folder / "my.yaml", folder / "base", folder / "abnn")
    draw(made.data, as_colours)
    printed = succeed("init", made.data, "--label-map camvid --out", made.config).stdout
    assert "8 pairs of image and label: 6 train, 2 val" in printed
    assert "classes by colours in the 8 labels; training reads them again and refuses" in printed
    assert "then: segunc train --config" in printed
    shorten(made.config)
    trained = succeed("train --device cpu --config", made.config, "--out", made.base).stdout
    then = f"then: segunc finetune --config {made.config} --base {made.base} --out {made.abnn}\n"
    assert then in trained
    words = ("--base", made.base, "--config", made.config, "--out", made.abnn)
    tuned = succeed("finetune --device cpu", *words).stdout
    in_place = f"--base {made.abnn} --out {made.abnn}"
    assert f"then: segunc finetune --config {made.config} --method features {in_place}\n" in tuned
    return made


# What a short training has learnt differs between processors, and temperature may refuse it.
FEATURES = "finetune --device cpu --method features"
EVALUATE = "evaluate --draws 2 --replicates 0"


def test_a_fine_tuning_takes_the_data_of_its_base(made: Made) -> None:
    done = succeed(FEATURES, "--base", made.abnn, "--out", made.abnn)
    assert f"data: folder in {made.data}, which {made.abnn} was made with" in done.stdout
    in_place = f"--base {made.abnn} --out {made.abnn}"
    assert f"then: segunc finetune --method anomaly {in_place}\n" in done.stdout


@pytest.mark.parametrize(
    ("method", "settings", "then"),
    [
        ("abnn", ["--data.root", "X Y"], "finetune --config C --method temperature IN --data.root"),
        ("tta", [], "finetune --config C --method temperature IN"),
        ("features", [], "finetune --config C --method anomaly IN"),
        ("anomaly", [], "evaluate --config C --model M --out metrics.json"),
        ("temperature", [], "evaluate --config C --model M --out metrics.json"),
        ("class-sets", ["--data.root=X"], "evaluate --model M --out metrics.json"),
    ],
)
def test_a_fine_tuning_names_the_command_that_comes_next(
    tmp_path: Path, method: str, settings: list[str], then: str
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("data: {dataset: toy, root: .}\n")
    model = tmp_path / "model"
    record_data(model, {"dataset": "toy", "root": "."})
    options = FinetuneOptions(
        base="base", config=config, out=model, method=method, settings=settings
    )
    command = _step_after_finetune(model, options)
    expected = then.replace("IN", f"--base {model} --out {model}")
    expected = expected.replace(" C ", f" {config} ").replace(" M ", f" {model} ")
    if "X Y" in settings:
        expected += " 'X Y'"
    assert command == f"segunc {expected}"
    words = shlex.split(command)[1:]
    assert build_parser().parse_known_args(words)[0].verb == words[0]


@pytest.mark.parametrize(
    ("section", "method", "then"),
    [
        ("features: {encoder: own}", "abnn", "features"),
        ("anomaly: {frames: 2}", "abnn", "anomaly"),
        ("anomaly: {frames: 2}\nfeatures: {encoder: own}", "temperature", "features"),
    ],
)
def test_a_configuration_of_an_anomaly_score_is_followed_by_its_fit(
    tmp_path: Path, section: str, method: str, then: str
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(f"data: {{dataset: toy, root: .}}\n{section}\n")
    record_data(tmp_path, {"dataset": "toy", "root": "."})
    options = FinetuneOptions(base="base", config=config, out=tmp_path, method=method)
    command = _step_after_finetune(tmp_path, options)
    in_place = f"--base {tmp_path} --out {tmp_path}"
    assert command == f"segunc finetune --config {config} --method {then} {in_place}"
    (tmp_path / "anomaly.json").touch()
    assert "--method anomaly" not in _step_after_finetune(tmp_path, options)
    assert "--method features" not in _step_after_finetune(tmp_path, options)


def test_new_features_are_followed_by_the_anomaly_fit_as_it_was(tmp_path: Path) -> None:
    record_data(tmp_path, {"dataset": "toy", "root": "."})
    in_place = f"--base {tmp_path} --out {tmp_path}"
    config = tmp_path / "mine.yaml"
    config.touch()
    fit = f"segunc finetune {in_place} --method anomaly --config {config} --anomaly.frames=2"
    record_command(tmp_path, fit)
    options = FinetuneOptions(base=tmp_path, out=tmp_path, method="features")
    expected = f"--config {config} --method anomaly {in_place} --anomaly.frames 2"
    assert _step_after_finetune(tmp_path, options) == f"segunc finetune {expected}"


def test_places_of_another_machine_are_not_named_again(tmp_path: Path) -> None:
    record_data(tmp_path, {"dataset": "toy", "root": "."})
    in_place = f"--base {tmp_path} --out {tmp_path}"
    here = tmp_path / "road"
    here.mkdir()
    places = "--config theirs.yaml --anomaly.encoder_weights lite0.safetensors --anomaly.images "
    options = FinetuneOptions(base=tmp_path, out=tmp_path, method="features")
    for images, named in (("cv/val", "IMAGES"), (f"folder:{here}", f"folder:{here}")):
        record_command(tmp_path, f"segunc finetune {in_place} --method anomaly {places}{images}")
        command = _step_after_finetune(tmp_path, options)
        assert command.endswith(f"--anomaly.encoder_weights FILE --anomaly.images {named}")
        assert "--config CONFIG" in command


@pytest.mark.parametrize(("channels", "then"), [(3, "anomaly"), (1, "temperature")])
def test_a_held_out_class_is_followed_by_the_anomaly_score(
    tmp_path: Path, channels: int, then: str
) -> None:
    record_data(tmp_path, {"dataset": "toy", "root": ".", "anomaly_class": "car"})
    (tmp_path / "network.json").write_text(json.dumps({"mean": [0.5] * channels}))
    options = FinetuneOptions(base="base", out=tmp_path)
    assert f"--method {then} " in _step_after_finetune(tmp_path, options)


def test_a_training_says_of_which_epoch_its_number_is() -> None:
    measured = {"epochs": 10, "steps": 50, "seconds": 3.2, "val_miou": 0.61, "best_epoch": 7}
    assert _training_in_words(measured) == (
        "trained 10 epochs (50 steps) in 3 s: validation mIoU 0.6100 of epoch 7 of 10, the best "
        "measured, whose weights are kept"
    )
    measured = {"epochs": 1, "steps": 1, "seconds": 3.2, "val_miou": 0.61, "best_epoch": 1}
    assert _training_in_words(measured) == (
        "trained 1 epoch (1 step) in 3 s: validation mIoU 0.6100"
    )
    measured = {"epochs": 2, "steps": 2, "seconds": 3.2, "val_miou": None, "best_epoch": None}
    assert _training_in_words(measured).endswith("validation mIoU not measured")


def test_a_temperature_that_removed_the_anomaly_score_is_followed_by_its_fit(
    tmp_path: Path,
) -> None:
    record_data(tmp_path, {"dataset": "toy", "root": "."})
    options = FinetuneOptions(base="base", out=tmp_path, method="temperature")
    (tmp_path / "features.json").touch()
    assert "--method anomaly" in _step_after_finetune(tmp_path, options)
    (tmp_path / "anomaly.json").touch()
    assert _step_after_finetune(tmp_path, options).startswith("segunc evaluate")


def test_labelled_frames_without_maps_are_noted() -> None:
    files = {f"f{number}": Path(f"{number}.png") for number in range(5)}
    sources = LabelSources(labels=files, split="val")
    options = ThresholdOptions(maps="maps", control="errors-kept", level=0.2, out="t.json")
    (note,) = threshold_module._note_on_missing_maps(sources, ["f0", "f1"], options)
    assert note.startswith("3 of the 5 labelled frames of the split val have no maps in maps")
    assert threshold_module._note_on_missing_maps(sources, list(files), options) == []
    assert (
        threshold_module._note_on_missing_maps(sources, ["f0"], replace(options, frames="f0")) == []
    )
    in_a_folder = LabelSources(labels=Path("labels"))
    assert threshold_module._note_on_missing_maps(in_a_folder, ["f0"], options) == []


@pytest.mark.parametrize(
    ("control", "dataset", "hint"),
    [
        ("flagged-pixels", None, "--dataset folder if it marks ignored pixels"),
        ("flagged-pixels", "folder", None),
        ("false-alarms", "folder", None),
        ("missed-pixels", "folder", "else give no masks"),
    ],
)
def test_masks_of_normal_and_ignored_pixels_are_enough_for_risks_of_normal_pixels(
    control: Any, dataset: str | None, hint: str | None
) -> None:
    options = ThresholdOptions(
        maps="maps", control=control, level=0.2, out="t", anomaly_labels="masks", dataset=dataset
    )
    found = threshold_module._sources(options).hint_no_anomaly
    assert (found is None) if hint is None else (found is not None and hint in found)


def test_a_fine_tuning_without_data_is_followed_by_maps(tmp_path: Path) -> None:
    options = FinetuneOptions(base="base", out=tmp_path)
    command = _step_after_finetune(tmp_path, options)
    assert command == f"segunc predict --model {tmp_path} --input IMAGES --out maps"
    features = replace(options, method="features")
    assert _step_after_finetune(tmp_path, features).endswith("--anomaly.images IMAGES")


def test_an_evaluation_takes_the_data_of_its_model(made: Made) -> None:
    done = succeed(EVALUATE, FAST, "--model", made.abnn)
    assert f"note: data: folder in {made.data}, from the record of the model" in done.stdout
    assert "split val of folder is evaluated" in done.stdout


def test_an_evaluation_takes_the_data_of_a_configuration(made: Made) -> None:
    words = ("--split train --model", made.abnn, "--config", made.config)
    done = succeed(EVALUATE, FAST, *words)
    assert f"from {made.config}" in done.stdout
    trained = "split train of the data set folder, on which the model got its weights"
    assert trained in done.stdout  # and what other tests have fitted there
    assert "; on frames that nothing was chosen on, numbers may be worse" in done.stdout


@pytest.mark.parametrize("of_maps", [False, True])
def test_an_evaluation_names_what_was_chosen_on_its_frames(
    made: Made, maps: Path, of_maps: bool
) -> None:
    words = ("--maps", maps) if of_maps else (FAST, "--model", made.abnn)
    done = succeed("evaluate --replicates 0 --split val --config", made.config, *words)
    assert "note: these frames are of the split val of the data set folder, on" in done.stdout
    assert "the model got its best epoch; on frames that nothing was chosen on" in done.stdout


def test_a_temperature_of_the_same_split_is_named() -> None:
    model = {"chosen_on": [{"what": "calibration", "dataset": "camvid", "split": "val"}]}
    used = {"calibration"}
    words = chosen_words(model, used, "camvid", "val")
    assert words.endswith("on which the model got its temperature")
    assert not chosen_words(model, used, "camvid", "test")
    assert not chosen_words(model, used, "cityscapes", "val")


@pytest.mark.parametrize("of_split", [False, True])
def test_frames_that_a_program_handed_over_are_named(of_split: bool) -> None:
    program = {"dataset": "data of a program", "split": "train"}
    names = ("posterior", "calibration", "anomaly")
    model = {"chosen_on": [{"what": name, **program} for name in names]}
    words = unrecorded_words(model, {"calibration"}, of_split=of_split)
    assert words == (
        "the model got its posterior and its temperature on frames that a program handed over; "
        "whether the frames here are among them is not recorded"
    )


def test_a_note_names_only_what_has_a_part_in_the_scores() -> None:
    camvid = {"dataset": "camvid", "split": "val"}
    names = ("epoch", "calibration", "anomaly")
    model = {"chosen_on": [{"what": name, **camvid} for name in names]}
    assert chosen_words(model, {"anomaly"}, "camvid", "val").endswith(
        "the model got its best epoch and its anomaly score"
    )
    assert chosen_words(model, set(), "camvid", "val").endswith("the model got its best epoch")


IMAGES = {"dataset": "cv/val", "split": "val", "images": "cv/val"}


def test_images_that_something_was_fitted_on_are_named() -> None:
    model = {"chosen_on": [{"what": "features", **IMAGES}, {"what": "anomaly", **IMAGES}]}
    used = {"features", "anomaly"}
    expected = (
        "the model got its features and its anomaly score on frames of cv/val; whether the frames "
        "here are among them is not recorded"
    )
    assert unrecorded_words(model, used, of_split=True) == expected
    assert unrecorded_words(model, used, of_split=False) == expected
    assert not unrecorded_words(model, {"calibration"}, of_split=False)
    assert not unrecorded_words({}, used, of_split=False)


def test_frames_of_a_folder_may_be_those_of_the_temperature() -> None:
    camvid = {"dataset": "camvid", "split": "val"}
    chosen_on = [{"what": "weights", **camvid}, {"what": "calibration", **camvid}]
    model = {"chosen_on": chosen_on}
    assert unrecorded_words(model, {"calibration"}, of_split=False) == (
        "the model got its temperature on the split val of the data set camvid; whether the frames "
        "here are among them is not recorded"
    )
    assert not unrecorded_words(model, {"calibration"}, of_split=True)
    assert not unrecorded_words(model, set(), of_split=False)
    packaged = {"what": "features", "dataset": "five frames", "split": "val"}
    assert not unrecorded_words({"chosen_on": [packaged]}, {"features"}, of_split=False)


@pytest.mark.parametrize(
    ("scores", "applies", "used"),
    [
        (["entropy"], "mean", {"calibration"}),
        (["msp"], "mean", {"calibration"}),
        (["deterministic-entropy"], "mean", set()),
        (["deterministic-entropy"], "logits", {"calibration"}),
        (["mean-max-logit", "epistemic"], "mean", set()),
        (["knn"], "logits", {"features"}),
        (["anomaly"], "logits", {"features", "anomaly", "calibration"}),
        (["anomaly"], "mean", {"features", "anomaly"}),
        (["set-size"], "mean", {"class_sets", "calibration"}),
        (["of another tool"], "mean", {"features", "anomaly", "class_sets", "calibration"}),
    ],
)
def test_scores_use_what_was_fitted_for_them(
    scores: list[str], applies: str, used: set[str]
) -> None:
    model = {"calibration": {"applies": applies}}
    run = {"anomaly": {"parts": ["deterministic-entropy", "knn"]}}
    assert fitted_in_use(model, run, scores) == used


def test_a_sum_of_unknown_parts_may_use_all_that_has_a_part_in_scores() -> None:
    assert fitted_in_use({}, {}, ["anomaly"]) == {"features", "anomaly", "calibration"}


@pytest.mark.parametrize(
    ("fitted_on", "images"),
    [
        ({"dataset": "cv/val"}, "cv/val"),
        ({"dataset": "camvid"}, None),
        ({"dataset": "data of a program"}, None),
        ({"dataset": "five frames", "packaged": {"source": "five frames"}}, None),
    ],
)
def test_a_record_of_images_is_told_from_one_of_a_data_set(
    fitted_on: dict[str, Any], images: str | None
) -> None:
    attachment = SimpleNamespace(fitted_on={**fitted_on, "split": "val"})
    (record,) = records_of_choices({}, {"anomaly": attachment})
    assert record.get("images") == images


def test_frames_that_a_posterior_is_made_of_are_those_of_a_choice() -> None:
    """ABNN by layer looks at val, also of an imported network, which owes nothing to frames."""
    seen = [{"dataset": "camvid", "split": "val"}, {"dataset": "cv/road", "split": "train"}]
    records = records_of_choices({}, {}, {"seen_splits": seen})
    words = "of the split val of the data set camvid, on which the model got its posterior"
    assert words in chosen_words({"chosen_on": records}, set(), "camvid", "val")
    assert not chosen_words({"chosen_on": records}, set(), "camvid", "test")
    of_images = unrecorded_words({"chosen_on": records}, set(), of_split=False)
    assert "its posterior on frames of cv/road" in of_images
    assert records_of_choices({}, {}, {"dataset": "camvid"}) == [], "an earlier version"


@pytest.fixture(scope="module")
def maps(made: Made) -> Path:
    """Maps of the frames of val."""
    out = made.base.with_name("maps")
    words = ("--device cpu --draws 2 --model", made.abnn, "--input", made.data / "images" / "val")
    succeed("predict", FAST, *words, "--out", out)
    return out


TEMPERATURE = "its temperature on the split val of the data set camvid; whether the frames here"


@pytest.fixture(scope="module")
def fitted_maps(maps: Path) -> Path:
    """Maps whose model records a temperature of val and an anomaly score of a folder."""
    out = maps.with_name("fitted-maps")
    shutil.copytree(maps, out)
    camvid = {"dataset": "camvid", "split": "val"}
    chosen_on = [{"what": "calibration", **camvid}, {"what": "anomaly", **IMAGES}]
    edit_manifest(out, lambda manifest: manifest["model"].update(chosen_on=chosen_on))
    return out


@pytest.mark.parametrize(
    ("score", "noted"), [("entropy", True), ("deterministic-max-logit", False)]
)
def test_an_evaluation_notes_only_what_was_fitted_for_its_scores(
    fitted_maps: Path, tmp_path: Path, score: str, noted: bool
) -> None:
    for name in open_maps(fitted_maps).frames:
        mask = np.zeros((48, 48), np.uint8)
        mask[:8] = 1
        as_ids(tmp_path / f"{name}.png", mask)
    words = ("--maps", fitted_maps, "--anomaly-labels", tmp_path, "--scores", score)
    done = succeed("evaluate --replicates 0", *words)
    assert (TEMPERATURE in done.stdout) == noted
    assert "its anomaly score" not in done.stdout


def test_an_evaluation_of_calibrated_probabilities_notes_the_temperature(
    made: Made, fitted_maps: Path
) -> None:
    labels = ("--labels", made.data / "masks" / "val", "--config", made.config)
    words = ("--maps", fitted_maps, "--scores", "deterministic-max-logit")
    assert TEMPERATURE in succeed("evaluate --replicates 0", *words, *labels).stdout


@pytest.mark.parametrize(
    ("score", "noted"), [("entropy", True), ("deterministic-max-logit", False)]
)
def test_a_threshold_records_only_what_was_fitted_for_its_score(
    made: Made, fitted_maps: Path, tmp_path: Path, score: str, noted: bool
) -> None:
    out = tmp_path / "threshold.json"
    labels = ("--labels", made.data / "masks" / "val", "--config", made.config)
    words = ("--maps", fitted_maps, "--score", score, "--out", out)
    succeed("threshold --control errors-kept --level 0.9", *words, *labels)
    chosen = json.loads(out.read_text())["chosen"]
    assert (TEMPERATURE in chosen) == noted
    assert "its anomaly score" not in chosen


def test_a_threshold_takes_the_labels_of_a_configuration(
    made: Made, maps: Path, tmp_path: Path
) -> None:
    risk = "--control errors-kept --level 0.9 --score entropy"
    words = ("--maps", maps, "--config", made.config, "--out", tmp_path / "threshold.json")
    done = succeed("threshold", risk, *words)
    assert f"note: data: folder in {made.data}, from {made.config}" in done.stdout
    assert "note: labels are those of the split val; --split names another" in done.stdout
    assert "from 2 units" in done.stdout
    chosen = (
        "these frames are of the split val of the data set folder, on which the model got its best "
        "epoch; the promise needs frames that nothing was chosen on"
    )
    assert f"note: {chosen}\n" in done.stdout
    assert chosen == json.loads((tmp_path / "threshold.json").read_text())["chosen"]
    report = ("--model", made.abnn, "--threshold", tmp_path / "threshold.json")
    succeed("report", *report, "--out", tmp_path / "report")
    assert f"Note: {chosen}." in (tmp_path / "report/index.html").read_text()
    refusal = refuse("threshold", risk, "--split train", *words)
    assert "--split names another split of the data set" in refusal


def test_a_threshold_on_training_frames_names_their_weights(made: Made, tmp_path: Path) -> None:
    out = tmp_path / "maps"
    words = ("--device cpu --draws 2 --model", made.abnn, "--input", made.data / "images" / "train")
    succeed("predict", FAST, *words, "--out", out)
    risk = "--control errors-kept --level 0.9 --score entropy --split train"
    words = ("--maps", out, "--config", made.config, "--out", tmp_path / "threshold.json")
    done = succeed("threshold", risk, *words)
    assert "split train of the data set folder, on which the model got its weights" in done.stdout


def test_a_threshold_of_labels_in_a_folder_says_nothing_of_what_is_not_known(
    made: Made, maps: Path, tmp_path: Path
) -> None:
    out = tmp_path / "threshold.json"
    risk = "--control errors-kept --level 0.9 --score entropy"
    words = ("--maps", maps, "--config", made.config, "--labels", made.data / "masks" / "val")
    done = succeed("threshold", risk, *words, "--out", out)
    assert "nothing was chosen on" not in done.stdout
    assert json.loads(out.read_text())["chosen"] == ""


def test_a_review_shows_the_labels_of_a_configuration(
    made: Made, maps: Path, tmp_path: Path
) -> None:
    out = tmp_path / "review"
    done = succeed("review --maps", maps, "--config", made.config, "--out", out)
    assert f"from {made.config}" in done.stdout
    written = [path.as_posix() for path in out.rglob("*")]
    assert any("truth" in path for path in written), written[:20]


def test_a_report_takes_the_labels_of_a_configuration(
    made: Made, maps: Path, tmp_path: Path
) -> None:
    out = tmp_path / "report"
    done = succeed(
        "report --model", made.abnn, "--maps", maps, "--config", made.config, "--out", out
    )
    assert f"from {made.config}" in done.stdout
    assert "no pictures of failures" not in done.stdout
    options = ReportOptions(model=made.abnn, maps=[maps], config=made.config, out=out)
    reader = open_maps(maps)
    labels = label_sources(options).find(reader, reader.frames)
    assert labels.labelled(reader.frames) == list(reader.frames)
    assert labels.classes(reader.frames[0]) is not None


def test_draws_of_a_network_that_runs_once_are_said_to_have_no_effect(
    made: Made, tmp_path: Path
) -> None:
    words = ("predict", FAST, "--model", made.base, "--input", made.data / "images" / "val")
    done = succeed(*words, "--draws 4 --out", tmp_path / "four")
    assert "--draws 4 has no effect: the model is one network, which runs once" in done.stdout
    assert "no effect" not in succeed(*words, "--out", tmp_path / "usual").stdout


def test_a_comparison_of_maps_says_what_is_compared(maps: Path) -> None:
    refusal = refuse("compare", maps)
    assert f"{maps} is one maps folder, and compare needs at least two" in refusal
    assert f"segunc summary --maps {maps}" in refusal


def test_a_report_says_if_no_label_fits_its_maps(made: Made, maps: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels"
    labels.mkdir()
    as_colours(labels / "other.png", label(0))
    words = ("--model", made.abnn, "--maps", maps, "--out", tmp_path / "report")
    done = succeed("report", *words, "--labels", labels, "--config", made.config)
    assert f"no pictures of failures from {maps}: no label in {labels}" in done.stdout
    assert "labels are named like other.png" in done.stdout


def test_overlays_outline_no_class_labels_of_a_configuration(
    made: Made, maps: Path, tmp_path: Path
) -> None:
    words = ("overlay --maps", maps, "--config", made.config, "--out", tmp_path / "figures")
    done = succeed(*words)
    assert "names no anomaly masks, and only anomalies are outlined" in done.stdout
    assert "2 pictures" in done.stdout


def test_a_folder_of_labels_has_the_meaning_that_a_configuration_says(
    made: Made, maps: Path, tmp_path: Path
) -> None:
    folder = ("--labels", made.data / "masks" / "val", "--maps", maps)
    refusal = refuse(EVALUATE, *folder)
    assert "nothing says which values" in refusal
    assert "--config with the file of segunc init" in refusal
    out = tmp_path / "metrics.json"
    succeed("evaluate --replicates 0", *folder, "--config", made.config, "--out", out)
    assert "sky" in json.loads(out.read_text())["segmentation"]["per_class"]


def test_masks_make_a_configuration_unused(made: Made, maps: Path, tmp_path: Path) -> None:
    masks = tmp_path / "masks"
    masks.mkdir()
    for path in sorted((made.data / "masks" / "val").iterdir()):
        Image.fromarray((label(0) == 3).astype(np.uint8)).save(masks / path.name)
    words = ("--maps", maps, "--anomaly-labels", masks, "--config", made.config)
    done = succeed("evaluate --replicates 0", *words)
    assert f"note: {made.config} is not used, because --anomaly-labels" in done.stdout


FROZEN = "finetune --device cpu --abnn.epochs 0 --abnn.statistics frozen"
OTHER_DATA = "other data settings than those that"


def test_a_fine_tuning_notes_other_data_than_its_base_was_trained_with(
    made: Made, tmp_path: Path
) -> None:
    sizes = "--data.size [32,32] --data.crop [16,24] --data.eval_batch_size 2"
    words = ("--base", made.base, "--config", made.config, sizes, "--out", tmp_path / "abnn")
    done = succeed(FROZEN, *words)
    note = (
        f"note: {OTHER_DATA} {made.base} was made with: data.size is [32, 32], there none; "
        "data.crop is [16, 24], there [32, 32]. To take those of the base: --data.size none "
        "--data.crop '[32, 32]'"
    )
    assert note in done.stdout + done.stderr


def test_a_fit_that_sees_whole_frames_notes_no_crop() -> None:
    recorded = asdict(DataConfig(dataset="folder", root="data", frames="f.csv", labels="c.csv"))
    named = {**recorded, "crop": [16, 24]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _note_other_data(named, recorded, Path("base"), augments=False)
    with pytest.warns(NoteWarning, match="data.crop is"):
        _note_other_data(named, recorded, Path("base"), augments=True)
    with pytest.warns(NoteWarning, match="data.size is"):
        _note_other_data({**named, "size": [32, 32]}, recorded, Path("base"), augments=False)


def test_a_fine_tuning_on_the_same_data_notes_nothing(made: Made, tmp_path: Path) -> None:
    sizes = "--data.batch_size 1 --data.workers 0 --data.eval_batch_size 2"
    copied = tmp_path / "copy.csv"
    shutil.copy(made.config.with_name("my-frames.csv"), copied)
    words = ("--base", made.base, "--config", made.config, sizes, "--data.frames", copied)
    done = succeed(FROZEN, *words, "--out", tmp_path / "abnn")
    assert OTHER_DATA not in done.stdout + done.stderr


def test_a_list_of_frames_that_changed_since_the_training_is_noted(tmp_path: Path) -> None:
    frames = tmp_path / "frames.csv"
    frames.write_text("image,label,split\n")
    provenance = {"frames_sha256": file_sha256(frames)}
    (tmp_path / "network.json").write_text(json.dumps({"provenance": provenance}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _note_changed_list({"frames": str(frames)}, tmp_path)
        _note_changed_list({"frames": str(frames)}, tmp_path / "ensemble")
    frames.write_text("image,label,split\na,b,val\n")
    with pytest.warns(NoteWarning, match="has changed since the network was trained"):
        _note_changed_list({"frames": str(frames)}, tmp_path)


def test_another_list_of_frames_is_noted(made: Made, tmp_path: Path) -> None:
    other = tmp_path / "other.csv"
    text = made.config.with_name("my-frames.csv").read_text()
    other.write_text(text.replace("val,images/val/a_0003", "test,images/val/a_0003"))
    words = ("--base", made.base, "--config", made.config, "--data.frames", other)
    done = succeed(FROZEN, *words, "--out", tmp_path / "abnn")
    assert f"data.frames is {other}, there" in done.stdout + done.stderr


def test_a_training_names_the_fine_tuning_on_its_own_data(made: Made, tmp_path: Path) -> None:
    out = tmp_path / "small"
    (tmp_path / "abnn").mkdir()
    words = ("--config", made.config, "--out", out, "--data.size [32,32] --trainer.max_epochs 1")
    done = succeed("train --device cpu", *words)
    then = f"then: segunc finetune --config {made.config} --base {out} --out {out}-abnn"
    assert f"{then} --data.size '[32,32]'\n" in done.stdout


@pytest.mark.parametrize(
    ("base", "model"),
    [("try2", "try2-abnn"), ("./try2", "try2-abnn"), ("runs/base", "runs/abnn")],
)
def test_a_network_in_the_current_folder_has_its_name_before_that_of_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: str, model: str
) -> None:
    monkeypatch.chdir(tmp_path)
    then = _finetuning_of(Path(base), TrainOptions(config="my.yaml", out=base))
    assert then.endswith(f" --out {model}")


def test_data_that_moved_are_asked_for(made: Made) -> None:
    moved = made.data.with_name("moved")
    made.data.rename(moved)
    try:
        words = ("--base", made.abnn, "--out", made.abnn)
        refusal = refuse(FEATURES, *words)
        assert "which is not there. Hint: --data.root DIR" in refusal
        succeed(FEATURES, "--data.root", moved, *words)
    finally:
        moved.rename(made.data)


def test_an_unknown_section_is_refused(made: Made, tmp_path: Path) -> None:
    config = made.config.with_name("other.yaml")
    config.write_text(made.config.read_text() + "abn: {}\n")
    words = ("--config", config, "--data.root", made.data, "--out", tmp_path / "out")
    assert "unknown key 'abn'" in refuse("train", *words)


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


def write_output(folder: Path, record: str, content: dict[str, Any]) -> None:
    """A folder as a command leaves it: a record, and pictures in a folder below."""
    pictures = folder / "entropy"
    pictures.mkdir(parents=True)
    (folder / record).write_text(json.dumps(content))
    for number in range(3):
        as_ids(pictures / f"a_{number:04d}.png", label(number))


def test_what_commands_wrote_below_the_data_is_passed_over(tmp_path: Path) -> None:
    root = draw(tmp_path / "data", image="img/{name}.jpg")
    segunc.init(root, out=root / "my.yaml", void=["11"])
    write_output(root / "work/maps", "manifest.json", {"format": "segunc-maps"})
    write_output(root / "work/page", "review.json", {"format": "segunc-review"})
    write_output(root / "work/report", "report.json", {"kind": "segunc report"})
    write_output(root / "work/base", "network.json", {"architecture": "a", "classes": []})
    write_output(root / "work/watch", LEDGER, {})
    result = segunc.init(root, out=root / "my.yaml", update=True)
    assert len(frame_rows(result)) == 8
    (note,) = [note for note in result.notes if "that segunc made" in note]
    assert note.startswith("passes over 5 folders that segunc made, the first is work/base;")


def test_a_record_of_another_tool_makes_no_output(tmp_path: Path) -> None:
    root = draw(tmp_path / "data", image="img/{name}.jpg")
    (root / "img/manifest.json").write_text('{"format": "another"}')
    (root / "img/network.json").write_text("[1]")
    (root / "network.json").write_text('{"architecture": "a", "classes": []}')
    result = segunc.init(root, out=tmp_path / "my.yaml", void=["11"])
    assert len(frame_rows(result)) == 8
    assert not any("that segunc made" in note for note in result.notes)


def test_labels_that_a_command_wrote_can_be_named(tmp_path: Path) -> None:
    root = draw(tmp_path / "data", image="img/{name}.jpg", frames=3)
    write_output(root / "maps", "manifest.json", {"format": "segunc-maps"})
    result = segunc.init(
        root, out=tmp_path / "my.yaml", images="img", labels="maps/entropy", void=["11"]
    )
    labels = [line.split(",")[2] for line in result.frames.read_text().splitlines()[1:]]
    assert labels
    assert all(path.startswith("maps/entropy/") for path in labels)


def test_outputs_are_recognised_by_what_their_writers_call_them() -> None:
    assert RECORDS == {
        MANIFEST_NAME: ("format", MAPS_FORMAT),
        PAGE_NAME: ("format", PAGE_FORMAT),
        "report.json": ("kind", REPORT_KIND),
        OVERLAY_NAME: ("format", OVERLAY_FORMAT),
    }
    assert NETWORK == DESCRIPTION


def test_overlays_are_passed_over_whatever_their_folder_is_called(
    maps: Path, tmp_path: Path
) -> None:
    root = draw(tmp_path / "data", image="img/{name}.jpg", frames=3)
    overlay = segunc.overlay(maps, out=tmp_path / "drawn", score=["entropy"], format="jpg")
    (drawn,) = overlay.pictures
    shutil.move(drawn, root / "figs")
    result = segunc.init(root, out=tmp_path / "my.yaml", void=["11"])
    assert len(frame_rows(result)) == 3
    assert any("that segunc made, figs;" in note for note in result.notes)


def test_folders_that_commands_made_are_recognised(made: Made, maps: Path, tmp_path: Path) -> None:
    segunc.review(maps, out=tmp_path / "page")
    assert is_output_folder(maps)
    assert is_output_folder(made.base)
    assert is_output_folder(tmp_path / "page")
    assert is_output_folder(tmp_path / "figures" / "overlay-max-logit")
    assert not is_output_folder(tmp_path / "overlays")
    assert not is_output_folder(tmp_path)


def test_an_update_prints_the_options_of_the_last_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    draw(Path("data"), image="img/{name}.jpg", frames=6)
    segunc.init("data", out="my.yaml", void=["11"])
    typed = "--config my.yaml --out runs/{} --seeds 0,1 --trainer.max_epochs {}"
    dates = iter(["2026-01-01", "2026-01-03", "2026-01-02", "2026-01-04"])
    with monkeypatch.context() as patched:
        patched.setattr("segunc.training.config.now", lambda: next(dates))
        record_command(Path("runs/old"), f"segunc train {typed.format('old', 3)}")
        last = f"segunc train {typed.format('last', 5)}"
        record_command(Path("runs/last/seed-0"), last.replace("--out ", "--out="))
        record_command(Path("runs/abnn"), "segunc finetune --base runs/old --config my.yaml")
        record_command(Path("runs/new"), "segunc train --config other.yaml --out runs/new")
    result = segunc.init("data", out="my.yaml", update=True)
    expected = last.replace("runs/last", "runs/updated")
    assert result.then == expected
    assert any("has the options of runs/last/seed-0" in note for note in result.notes)
    shutil.rmtree("runs/last")
    shutil.rmtree("runs/old")
    with monkeypatch.context() as patched:
        patched.setattr("segunc.training.config.now", lambda: "2026-01-05")
        record_command(Path("runs/base"), f"segunc train {typed.format('base', 4)}")
    record_command(Path("runs/abnn"), "segunc finetune --config my.yaml", Path("runs/base"))
    of_training = segunc.init("data", out="my.yaml", update=True)
    assert any("has the options of runs/base, the newest" in note for note in of_training.notes)
    shutil.rmtree("runs/base")
    of_base = segunc.init("data", out="my.yaml", update=True)
    said = "has the options of the training that made the base of runs/abnn, the newest training in"
    assert any(said in note for note in of_base.notes)
    assert of_base.then == f"segunc train {typed.format('updated', 4)}"
    Path("runs/updated").mkdir()
    Path("runs/new/history.json").write_text("{")  # passed over
    again = segunc.init("data", out="my.yaml", update=True)
    assert again.then == f"segunc train {typed.format('updated-2', 4)}"


@pytest.mark.parametrize(
    ("split", "steps"),
    [
        ("test", "evaluate again"),
        (
            "val",
            "fit temperature, anomaly and class sets again, "
            "then predict the calibration frames and find thresholds again, "
            "then evaluate again",
        ),
    ],
)
def test_new_frames_say_what_is_done_again(split: str, steps: str) -> None:
    assert steps_with(Counter({split: 5})) == steps


def test_new_training_frames_need_a_training_with_its_options() -> None:
    steps = steps_with(Counter(train=1))
    assert steps.startswith("train again, with the options that you gave before")
    assert (
        "then finetune again, in this order, as far as you made them: ABNN, features (the bank of "
        "training frames), temperature, anomaly and class sets, then predict"
    ) in steps
    assert steps.endswith("and find thresholds again, then evaluate again")


@pytest.mark.usefixtures("recorded")
def test_new_training_frames_need_the_fine_tunings_that_are_recorded() -> None:
    new_frames("train")
    for method in ("temperature", "features", "anomaly", "anomaly"):
        record_command(Path("runs/abnn"), FIT.format(method), Path("runs/abnn"))
    result = segunc.init("data", out="my.yaml", update=True)
    assert result.then == "segunc train --config my.yaml --out runs/updated"
    (steps,) = [note for note in result.notes if note.startswith("to use the new frames")]
    assert (
        "then finetune again, in this order: ABNN, features (the bank of training frames), "
        "temperature and anomaly, then predict"
    ) in steps
    # Copies that the set of new frames is made of are of another split.
    assert not any("frames that are there already" in note for note in result.notes)


def test_new_validation_frames_name_only_what_was_fitted() -> None:
    assert steps_with({"val": 1}, ["abnn", "features", "anomaly"]).startswith("fit anomaly again")
    assert steps_with({"val": 1}, ["abnn"]).startswith("predict the calibration frames")


def new_frames(split: str) -> None:
    """The data of an earlier init in the current folder, with new frames of a split."""
    draw(Path("data"), image="images/{split}/{name}.jpg", frames=8)
    segunc.init("data", out="my.yaml", void=["11"])
    for folder, suffix in (("images", "jpg"), ("masks", "png")):
        for path in Path("data", folder, "val").glob(f"*.{suffix}"):
            (Path("data", folder, split)).mkdir(exist_ok=True)
            shutil.copy(path, Path("data", folder, split, f"new_{path.name}"))


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models in ``runs``, of which ``runs/abnn`` is the newest that was fine-tuned."""
    monkeypatch.chdir(tmp_path)
    dates = iter(f"2026-01-0{day}" for day in range(1, 9))
    with monkeypatch.context() as patched:
        patched.setattr("segunc.training.config.now", lambda: next(dates))
        record_command(Path("runs/base"), "segunc train --config my.yaml --out runs/base")
        base = Path("runs/base")
        for model in ("old", "abnn"):
            words = f"--base runs/base --config ./my.yaml --out runs/{model}"
            record_command(Path("runs", model), f"segunc finetune {words}", base)
        record_command(Path("runs/last"), "segunc train --config my.yaml --out runs/last")
        record_command(Path("runs/other"), "segunc finetune --config other.yaml --base a --out b")
    Path("runs/damaged").mkdir()
    Path("runs/damaged/history.json").write_text("{")


FIT = "segunc finetune --method {} --base runs/abnn --out runs/abnn"


@pytest.mark.usefixtures("recorded")
def test_new_validation_frames_are_followed_by_the_fits_that_are_recorded() -> None:
    new_frames("val")
    result = segunc.init("data", out="my.yaml", update=True)
    temperature = "--config my.yaml --method temperature --base runs/abnn --out runs/abnn"
    assert result.then == f"segunc finetune {temperature}"
    assert any("runs/abnn, the newest model in runs" in note for note in result.notes)
    assert any("find thresholds again" in note for note in result.notes)
    assert not any("writes a new folder" in note for note in result.notes)
    for method in ("anomaly", "temperature", "features", "class-sets"):
        record_command(Path("runs/abnn"), FIT.format(method), Path("runs/abnn"))
    last = "segunc finetune --method anomaly --base runs/abnn --out runs/abnn --anomaly.frames 3"
    record_command(Path("runs/abnn"), last, Path("runs/abnn"))
    for path in Path("data").glob("*/val/new_*"):
        shutil.copy(path, path.with_name(f"newer_{path.name}"))
    again = segunc.init("data", out="my.yaml", update=True)
    fits = (FIT.format("temperature"), last, FIT.format("class-sets"))
    assert again.then == " && ".join(fits)


@pytest.mark.usefixtures("recorded")
def test_new_test_frames_are_followed_by_an_evaluation() -> None:
    new_frames("test")
    # The split of a folder that the list does not name is train, until the user says otherwise.
    frames = Path("my-frames.csv")
    for path in sorted(Path("data/images/test").glob("*.jpg"))[:1]:
        line = f"test,images/test/{path.name},masks/test/{path.stem}.png"
        frames.write_text(f"{frames.read_text()}{line}\n")
    result = segunc.init("data", out="my.yaml", update=True)
    assert result.then == "segunc evaluate --config my.yaml --model runs/abnn --out metrics.json"


@pytest.mark.parametrize(
    ("split", "then"),
    [
        ("val", "segunc finetune --config my.yaml --method temperature --base MODEL --out MODEL"),
        ("test", "segunc evaluate --config my.yaml --model MODEL --out metrics.json"),
    ],
)
def test_new_frames_of_a_model_elsewhere_are_followed_by_a_command_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: str, then: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert step_after_update(Path("my.yaml"), Counter({split: 2}), []) == then


@pytest.mark.usefixtures("recorded")
def test_new_validation_frames_of_a_network_that_was_only_trained_evaluate_it() -> None:
    for name in ("old", "abnn"):
        shutil.rmtree(Path("runs", name))
    notes: list[str] = []
    then = step_after_update(Path("my.yaml"), Counter(val=2), notes)
    assert then == "segunc evaluate --config my.yaml --model runs/last --out metrics.json"


def test_copies_of_images_in_another_split_are_noted(tmp_path: Path) -> None:
    root = draw(tmp_path / "data")
    for number in (3, 7):
        drive = "b" if number >= 6 else "a"
        original = root / f"images/train/a_{number % 3:04d}.jpg"
        shutil.copy(original, root / f"images/val/{drive}_{number:04d}.jpg")
    result = segunc.init(root, out=tmp_path / "my.yaml", void=["11"])
    (note,) = [note for note in result.notes if "the bytes of" in note]
    assert note.startswith(
        "2 images have the bytes of an image of another split, the first is images/val/a_0003.jpg "
        "(val), as images/train/a_0000.jpg (train)"
    )


def test_copies_are_settled_before_the_training(tmp_path: Path) -> None:
    root = draw(tmp_path / "data")
    config = tmp_path / "my.yaml"
    assert "\nfirst: " not in succeed("init", root, "--void 11 --out", config).stdout
    shutil.copy(root / "images/train/a_0000.jpg", root / "images/val/a_0003.jpg")
    for words in ("--void 11 --overwrite", "--update"):
        done = succeed("init", root, words, "--out", config).stdout
        *_, first, then = done.strip().splitlines()
        assert first.startswith("first: settle the copies: give an image and its copy the same")
        assert f"my-frames.csv, or remove one of the two and call segunc init {root}" in first
        assert "--update" in first
        assert "--overwrite" not in first
        assert then.startswith("then: segunc train ")


def test_copies_within_a_split_are_noted(tmp_path: Path) -> None:
    root = draw(tmp_path / "data")
    for number in (1, 2, 4, 5):
        shutil.copy(root / "images/train/a_0000.jpg", root / f"images/train/a_000{number}.jpg")
    for path in root.glob("images/train/b_*.jpg"):
        path.unlink()
    succeeded = succeed("init", root, "--labelled-only --void 11 --out", tmp_path / "my.yaml")
    (note,) = [line for line in succeeded.stdout.splitlines() if "the bytes of" in line]
    first = "images/train/a_0000.jpg"
    assert note.endswith(
        "4 images have the bytes of another image of the same split: "
        f"images/train/a_0001.jpg is {first}, images/train/a_0002.jpg is {first}, "
        f"images/train/a_0004.jpg is {first}, ..."
    )
    assert "settle the copies" not in succeeded.stdout


def test_images_of_one_size_are_no_copies(tmp_path: Path) -> None:
    """Files without compression have one size; these differ in one byte far from the middle."""
    pairs = []
    for number in range(3):
        (tmp_path / f"{number}.bmp").write_bytes(bytes([number % 2]) + bytes(20_000))
        pairs.append(Pair("train", Path(f"{number}.bmp"), Path("label.png")))
    copies = find_copies(tmp_path, pairs)
    assert copies.within == ((pairs[2], pairs[0]),)
    assert copies.across == ()


@pytest.mark.parametrize(("copied", "shown"), [(5, "5 of the 5"), (1, "1 of the 5")])
def test_new_frames_that_are_copies_are_noted(tmp_path: Path, copied: int, shown: str) -> None:
    root = draw(tmp_path / "data", image="img/{name}.jpg", frames=6)
    segunc.init(root, out=tmp_path / "x.yaml", void=["11"])
    for number in range(5):
        original = number if number < copied else 6 + number
        image = np.random.default_rng(original).integers(0, 256, (48, 48, 3), np.uint8)
        # In the order of names, these come before the frames that are there already.
        name = f"a_-{number}"
        assert cv2.imwrite(str(root / f"img/{name}.jpg"), image)
        label_path = root / LAYOUTS["img/{name}.jpg"].format(split="", name=name)
        as_ids(label_path, label(number))
    frames = tmp_path / "x-frames.csv"
    frames.write_text(frames.read_text().replace("val,", "train,"))
    updated = segunc.init(root, out=tmp_path / "x.yaml", update=True)
    (note,) = [note for note in updated.notes if "the bytes of" in note]
    have = "has" if copied == 1 else "have"
    begin = f"{shown} new frames {have} the bytes of frames that are there already: "
    assert note.startswith(f"{begin}img/a_-0.jpg is img/a_0000.jpg")
    assert note.endswith(", ...") == (copied > 3)
    again = segunc.init(root, out=tmp_path / "x.yaml", update=True)
    assert not any("the bytes of" in note for note in again.notes)


def test_an_update_notes_copies_by_the_splits_of_the_earlier_list(tmp_path: Path) -> None:
    root = draw(tmp_path / "data", image="img/{name}.jpg", frames=6)
    shutil.copy(root / "img/a_0000.jpg", root / "img/a_0001.jpg")
    first = segunc.init(root, out=tmp_path / "x.yaml", void=["11"])
    edited = first.frames.read_text().replace("train,img/a_0001", "night,img/a_0001")
    first.frames.write_text(edited)
    updated = segunc.init(root, out=tmp_path / "x.yaml", update=True)
    assert any(
        "img/a_0001.jpg (night), as img/a_0000.jpg (train)" in note for note in updated.notes
    )


def test_init_says_where_splits_are_chosen(tmp_path: Path) -> None:
    root = draw(tmp_path / "data", image="img/{name}.jpg")
    done = succeed("init", root, "--void 11 --out", tmp_path / "x.yaml").stdout
    assert f"edit the column split of {tmp_path / 'x-frames.csv'}; --update keeps it" in done


def test_a_label_map_that_is_no_csv_file_is_refused_with_its_columns(tmp_path: Path) -> None:
    colours = tmp_path / "colours.txt"
    colours.write_text("sky: 128 128 128\n")
    with pytest.raises(InputError, match=r"colours\.txt is not a CSV file") as caught:
        label_map(str(colours))
    assert "name,r,g,b" in str(caught.value)


def test_labels_without_any_class_of_the_label_map_are_no_test_set(tmp_path: Path) -> None:
    """The published labels of Cityscapes' test frames hold ids 0 to 3 alone, none of which is a
    class.
    """
    root = tmp_path / "data"
    for split, ids in {"train": (7, 26), "val": (7, 26), "test": (0, 3)}.items():
        labels = np.array(ids, np.uint8).repeat(512).reshape(32, 32)
        for number in range(2):
            image = root / "images" / split / f"{split}{number}.png"
            mask = root / "labels" / split / f"{split}{number}.png"
            for path in (image, mask):
                path.parent.mkdir(parents=True, exist_ok=True)
            picture = np.random.default_rng(number).integers(0, 256, (32, 32, 3), np.uint8)
            Image.fromarray(picture).save(image)
            Image.fromarray(labels).save(mask)
    result = segunc.init(root, out=tmp_path / "my.yaml", label_map="cityscapes")
    entry = dataset_entry("folder", labels=str(result.label_map), frames=result.frames)
    assert entry.splits == ("train", "val")
    left_out = "leaves out 2 pairs of test, whose labels hold no class"
    assert any(left_out in note for note in result.notes)


@pytest.fixture
def two_encodings(tmp_path: Path) -> Path:
    """Masks that mark with 1 and with 255 in turn."""
    root = draw(tmp_path / "data")
    for number, path in enumerate(sorted((root / "masks").rglob("*.png"))):
        marked = 1 if number % 2 == 0 else 255
        mask = np.where(label(number) == 3, marked, 0).astype(np.uint8)
        Image.fromarray(mask).save(path)
    return root


def test_masks_of_two_encodings_are_refused(two_encodings: Path, tmp_path: Path) -> None:
    """Where 255 marks in some masks what 1 marks in others, it would be ignored as void."""
    message = r"two kinds: .*0000.png holds 0 and 1, and .*0001.png 0 and 255"
    with pytest.raises(InputError, match=message):
        segunc.init(two_encodings, out=tmp_path / "my.yaml")


def test_void_that_is_named_settles_two_encodings(two_encodings: Path, tmp_path: Path) -> None:
    out = tmp_path / "my.yaml"
    result = segunc.init(two_encodings, out=out, void=["255"], two_classes=True)
    assert read_label_map(result.label_map).raw_to_train == {0: 0, 1: 1, 255: 255}


def test_an_unknown_setting_is_named_as_it_was_typed(tmp_path: Path) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text("data: {dataset: toy, root: .}\n")
    message = refuse("train --config", config, "--out", tmp_path / "out", "--data.crop_size 8")
    assert "train: --data.crop_size is no setting (did you mean --data.crop?)" in message
    assert "mine.yaml" not in message


def test_the_next_evaluation_is_written_beside_an_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert free_result() == "metrics.json"
    for name in ("metrics.json", "metrics-2.json"):
        Path(name).touch()
    assert free_result() == "metrics-3.json"
