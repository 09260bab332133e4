"""Frames with labels: read, checked, augmented and in loaders; the seed decides all."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

from segunc.core.errors import InputError
from segunc.data.entries import Sample
from segunc.data.images import read_image, resize_nearest
from segunc.data.labels import IGNORE, label_map
from segunc.data.module import (
    DataConfig,
    EvalTransform,
    SegmentationDataModule,
    SegmentationDataset,
    TrainTransform,
    Transform,
    to_tensors,
)
from tests.data import miniatures
from tests.data.miniatures import write_frame

RNG = np.random.default_rng(0)
IMAGE = RNG.integers(1, 256, (40, 60, 3), np.uint8)
LABEL = RNG.integers(0, 5, (40, 60), np.uint8)
PLAIN = to_tensors(IMAGE, LABEL)["image"]


def training(
    crop: tuple[int, int], size: tuple[int, int] | None = None, **more: Any
) -> TrainTransform:
    return TrainTransform(DataConfig("camvid", ".", crop, size, **more))


def dataset(image: Path, label: Path) -> SegmentationDataset:
    return SegmentationDataset(
        [Sample("frame", image, label)], label_map("camvid"), EvalTransform()
    )


def test_an_item_is_image_label_and_name(tmp_path: Path) -> None:
    write_frame(tmp_path / "a.png", tmp_path / "b.png", [3, 8])
    data = dataset(tmp_path / "a.png", tmp_path / "b.png")
    assert len(data) == 1
    item = data[0]
    assert item["name"] == "frame"
    assert item["image"].shape == (3, 48, 64)
    assert torch.equal(
        item["image"], torch.from_numpy(read_image(tmp_path / "a.png")).permute(2, 0, 1) / 255.0
    )
    assert item["label"][:, :32].unique().tolist() == [3]
    assert item["label"][:, 32:].unique().tolist() == [8]


def test_labels_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    image = tmp_path / "a.png"
    write_frame(image, tmp_path / "b.png", [3, 77])
    write_frame(tmp_path / "c.png", tmp_path / "d.png", [3], size=(48, 32))
    for label, message in (
        (tmp_path / "d.png", r"d.png is 48x32, its image 48x64"),
        (tmp_path / "b.png", r"b.png holds the values \[77\]"),
        (tmp_path / "none.png", "label .*none.png"),
    ):
        with pytest.raises(InputError, match=message):
            _ = dataset(image, label)[0]
    with pytest.raises(InputError, match="no labelled frame"):
        SegmentationDataset([], label_map("camvid"), EvalTransform())


@pytest.mark.parametrize("crop", [(16, 32), (40, 60), (96, 128), (33, 200)])
@pytest.mark.parametrize("size", [None, (80, 120)])
def test_training_gives_crops_of_the_size_asked_for(
    crop: tuple[int, int], size: tuple[int, int] | None
) -> None:
    torch.manual_seed(0)
    transform = training(crop, size)
    for _ in range(3):
        item = transform(IMAGE, LABEL)
        assert item["image"].shape == (3, *crop)
        assert item["image"].dtype == torch.float32
        assert 0 <= float(item["image"].min()) <= float(item["image"].max()) <= 1
        assert item["label"].shape == crop
        assert item["label"].dtype == torch.int64
        assert set(item["label"].unique().tolist()) <= {*range(5), IGNORE}


def test_what_is_padded_is_ignored_and_nothing_else() -> None:
    torch.manual_seed(0)
    transform = training((64, 96), scale=(1.0, 1.0), flip=0.0, colour=0.0, blur=0.0)
    item = transform(IMAGE, LABEL)
    padded = item["label"] == IGNORE
    assert int((~padded).sum()) == 40 * 60
    assert torch.equal(padded, (item["image"] == 0).all(0))
    rows, columns = (~padded).nonzero().amin(0).tolist()
    inside = item["label"][rows : rows + 40, columns : columns + 60]
    assert torch.equal(inside, torch.from_numpy(LABEL.astype(np.int64)))
    image = item["image"][:, rows : rows + 40, columns : columns + 60]
    torch.testing.assert_close(image, PLAIN, atol=1.5 / 255, rtol=0)


def test_torchs_seed_alone_decides_the_crop_also_in_workers_that_do_not_fork() -> None:
    transform = training((24, 24), (30, 50))
    other = pickle.loads(pickle.dumps(transform))
    torch.manual_seed(3)
    first = [transform(IMAGE, LABEL) for _ in range(4)]
    torch.manual_seed(3)
    np.random.seed(1)  # noqa: NPY002 - another library's seed must not matter
    second = [other(IMAGE, LABEL) for _ in range(4)]
    for item, same in zip(first, second, strict=True):
        assert torch.equal(item["image"], same["image"])
        assert torch.equal(item["label"], same["label"])
    assert not torch.equal(first[0]["image"], first[1]["image"])
    torch.manual_seed(4)
    assert not torch.equal(transform(IMAGE, LABEL)["image"], first[0]["image"])


@pytest.mark.parametrize(
    ("flip", "expected"), [(0.0, {False}), (0.5, {False, True}), (1.0, {True})]
)
def test_image_and_label_are_flipped_together_as_often_as_asked_for(
    flip: float, expected: set[bool]
) -> None:
    torch.manual_seed(0)
    label = np.zeros((8, 8), np.uint8)
    label[:, 0] = 1
    transform = training((8, 8), scale=(1.0, 1.0), flip=flip, colour=0.0, blur=0.0)
    flipped = set()
    for _ in range(20):
        item = transform(np.repeat(label[..., None] * np.uint8(255), 3, 2), label)
        assert torch.equal((item["image"][0] > 0.5).long(), item["label"])
        flipped.add(bool(item["label"][0, 7]))
    assert flipped == expected


def test_evaluation_changes_nothing_or_the_size_alone() -> None:
    plain = EvalTransform()(IMAGE, LABEL)
    assert torch.equal(plain["image"], PLAIN)
    assert torch.equal(plain["label"], torch.from_numpy(LABEL.astype(np.int64)))
    larger, small = EvalTransform((80, 120))(IMAGE, LABEL), EvalTransform((20, 30))(IMAGE, LABEL)
    assert (larger["image"].shape, larger["label"].shape) == ((3, 80, 120), (80, 120))
    assert set(larger["label"].unique().tolist()) <= set(
        range(5)
    )  # nearest: no class between two others
    # Shrinking averages over areas: a mean over each two by two pixels.
    pooled = torch.nn.functional.avg_pool2d(PLAIN[None], 2)[0]
    torch.testing.assert_close(small["image"], pooled, atol=0.51 / 255, rtol=0)


UNCHANGED = {"flip": 0.0, "colour": 0.0, "blur": 0.0}
TRANSFORMS: dict[str, Callable[[int, int], Transform]] = {
    "evaluation": lambda side, target: EvalTransform((target, target)),
    "training at a size": lambda side, target: training(
        (target, target), (target, target), scale=(1.0, 1.0), **UNCHANGED
    ),
    "training at a scale": lambda side, target: training(
        (target, target), scale=((target + 0.5) / side, (target + 0.5) / side), **UNCHANGED
    ),
}


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize(
    ("side", "target"),
    [(96, 48), (96, 24), (96, 12), (96, 72), (96, 64), (96, 41), (97, 48), (96, 144), (96, 200)],
)
def test_labels_lie_on_their_images_at_every_size(name: str, side: int, target: int) -> None:
    # In pixels of the target, by the centre of gravity of a bar at every place: against the true
    # place, and against the image.
    transform, factor = TRANSFORMS[name](side, target), target / side
    width, shifts = max(6, round(3 / factor)), []
    for start in range(4, side - width - 3):
        bar = np.zeros((side, side), np.uint8)
        bar[:, start : start + width] = 1
        item = transform(np.repeat(bar[..., None] * np.uint8(255), 3, 2), bar)
        row = [item["label"][target // 2].double(), item["image"][0, target // 2].double()]
        label, image = ((part * (torch.arange(target) + 0.5)).sum() / part.sum() for part in row)
        shifts.append((float(label) - (start + width / 2) * factor, float(label - image)))
        turned = transform(np.repeat(bar.T[..., None] * np.uint8(255), 3, 2), bar.T)
        assert torch.equal(turned["label"].T, item["label"])
    np.testing.assert_allclose(np.mean(shifts, 0), 0, atol=0.1)
    assert np.abs(shifts).max() <= 0.76


@pytest.mark.parametrize("size", [(20, 8), (12, 24), (100, 64)])
def test_the_nearest_pixel_is_that_of_pillow_where_one_is_nearest(size: tuple[int, int]) -> None:
    expected = Image.fromarray(LABEL).resize(size, Image.Resampling.NEAREST)
    np.testing.assert_array_equal(resize_nearest(LABEL, *size), expected)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return miniatures.camvid(tmp_path, {"train": 5, "val": 3, "test": 2})


def module(root: Path, **options: Any) -> SegmentationDataModule:
    return SegmentationDataModule(
        "camvid", str(root), **{"crop": (32, 32), "batch_size": 2, **options}
    )


def test_the_loaders_give_batches_of_each_split(root: Path) -> None:
    data = module(root, eval_batch_size=2)
    data.prepare_data()
    train = list(data.train_dataloader())
    assert [tuple(batch["image"].shape) for batch in train] == [
        (2, 3, 32, 32)
    ] * 2  # the odd frame is dropped
    assert [batch["label"].dtype for batch in train] == [torch.int64] * 2
    validation = list(data.val_dataloader())
    assert [tuple(batch["label"].shape) for batch in validation] == [(2, 48, 64), (1, 48, 64)]
    assert [name for batch in validation for name in batch["name"]] == [
        f"0001TP_{i:06d}" for i in range(3)
    ]
    data = module(root, size=(24, 32), crop=(16, 16))
    assert next(iter(data.val_dataloader()))["image"].shape[-2:] == (24, 32)
    assert next(iter(data.train_dataloader()))["image"].shape[-2:] == (16, 16)


@pytest.mark.parametrize("workers", [0, 1])
def test_frames_of_several_sizes_need_a_size_or_a_validation_one_by_one(
    root: Path, workers: int
) -> None:
    paths = root / "val" / "0001TP_000000.png", root / "valannot" / "0001TP_000000.png"
    miniatures.write_frame(*paths, [0, 1], size=(40, 64))
    with pytest.raises(InputError, match=r"sizes \[\(40, 64\), \(48, 64\)\]"):
        list(module(root, eval_batch_size=2, workers=workers).val_dataloader())
    assert len(list(module(root, eval_batch_size=1, workers=workers).val_dataloader())) == 3
    assert (
        len(list(module(root, eval_batch_size=3, size=(24, 32), crop=(16, 16)).val_dataloader()))
        == 1
    )


def test_class_frequencies_are_shares_of_the_labelled_pixels(root: Path, tmp_path: Path) -> None:
    frequencies = module(root).class_frequencies()
    # The miniature's stripes are equally wide up to a pixel column.
    assert frequencies == [pytest.approx(1 / 11, abs=0.02)] * 11
    assert sum(frequencies) == pytest.approx(1.0)
    data = SegmentationDataModule("folder", str(tmp_path / "folder"), labels="cityscapes")
    miniatures.folder(tmp_path / "folder" / "train", "labels", 2, [7, 26])
    assert data.class_frequencies()[13] == pytest.approx(0.5)
    miniatures.folder(tmp_path / "folder" / "train", "labels", 2, [0])
    with pytest.raises(InputError, match="only ignored pixels"):
        data.class_frequencies()


def test_bad_settings_and_splits_that_are_too_small_are_reported_before_the_work(
    root: Path,
) -> None:
    with pytest.raises(InputError, match="5 training frames are fewer than a batch of 6"):
        module(root, batch_size=6).prepare_data()
    with pytest.raises(InputError, match="no class labels"):
        SegmentationDataModule("folder", str(root))
    for name, value in (
        ("batch_size", 0),
        ("size", (32, -1)),
        ("scale", (2.0, 1.0)),
        ("flip", 1.5),
    ):
        with pytest.raises(InputError, match=f"^{name} "):
            module(root, **{name: value})


DRIVES = {"a": 2, "b": 3, "c": 4}
"""Frames of three sequences, one of which is held out."""


@pytest.fixture
def drives(tmp_path: Path) -> Path:
    for name in (f"{drive}_{i}.png" for drive, frames in DRIVES.items() for i in range(frames)):
        write_frame(tmp_path / "train" / name, tmp_path / "trainannot" / name, [3, 10, 0])
    return tmp_path


def left_out(root: Path, **options: Any) -> SegmentationDataModule:
    return module(root, **{"validation": "leave-sequence-out", "sequence": "^([^_]+)_", **options})


def names(data: SegmentationDataModule, split: str) -> list[str]:
    return [sample.name for sample in data.dataset(split).samples]


def test_each_sequence_is_held_out_once_and_never_trained_on_then(drives: Path) -> None:
    whole = left_out(drives)
    every, folds = names(whole, "train"), whole.folds()
    assert len(every) == 9
    assert [fold.held_out for fold in folds] == list(DRIVES)
    for fold, (drive, frames) in zip(folds, DRIVES.items(), strict=True):
        train, val = names(fold, "train"), names(fold, "val")
        assert [name[0] for name in val] == [drive] * frames
        assert not any(name.startswith(drive) for name in train)
        assert sorted(train + val) == sorted(every)
        assert fold.folds() == [fold]
        fold.prepare_data()
    assert names(whole, "train") == every
    whole.prepare_data(selects=False)  # as for a fine-tuning, which selects nothing
    assert names(left_out(drives, held_out="b"), "val") == names(folds[1], "val")
    assert list(left_out(drives, sequence="^[^_]").sequences()) == list(DRIVES), (
        "the whole match is one"
    )
    data = module(drives)
    assert data.folds() == [data], "the data set's own val is one fold"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        *(
            ({"sequence": None}, "needs data.sequence"),
            ({"sequence": "("}, "not a regular expression"),
        ),
        ({"sequence": "^([ab])_"}, r"in 4 training frames, .* c_0.*a \(2 frames\), b \(3 frames\)"),
        ({"sequence": "^(x?)"}, "in 9 training frames"),
        ({"held_out": "d"}, r"one of a \(2 frames\), b"),
        (
            {},
            r"no split val.*one of a \(2 frames\), b",
        ),  # nothing is trained and selected on the same frames
    ],
)
def test_bad_sequences_are_refused(drives: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        left_out(drives, **options).dataset("val")


def test_a_jpeg_with_a_hole_is_no_training_image(tmp_path: Path) -> None:
    """Decoders shift and grey what follows the hole, without an error."""
    generator = np.random.default_rng(0)
    picture = generator.integers(0, 256, (64, 96, 3), np.uint8)
    data = cv2.imencode(".jpg", picture)[1].tobytes()
    cv2.imwrite(str(tmp_path / "b.png"), np.zeros((64, 96), np.uint8))
    (tmp_path / "whole.jpg").write_bytes(data)
    middle = len(data) // 2
    (tmp_path / "hole.jpg").write_bytes(data[:middle] + data[middle + 400 :])
    assert dataset(tmp_path / "whole.jpg", tmp_path / "b.png")[0]["label"].shape == (64, 96)
    with pytest.raises(InputError, match=r"image .*hole\.jpg .*data is missing inside"):
        _ = dataset(tmp_path / "hole.jpg", tmp_path / "b.png")[0]
