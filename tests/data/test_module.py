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
from segunc.sampling.sampler import network_input
from segunc.training.losses import balanced_weights
from tests.data import miniatures
from tests.data.miniatures import write_frame
from tests.support.images import picture

RNG = np.random.default_rng(0)
IMAGE = RNG.integers(1, 256, (40, 60, 3), np.uint8)
LABEL = RNG.integers(0, 5, (40, 60), np.uint8)
PLAIN = to_tensors(IMAGE, LABEL)["image"]
UNCHANGED = {"flip": 0.0, "colour": 0.0, "blur": 0.0}
"""Settings of a training that only crops and scales."""


def training(
    crop: tuple[int, int], size: tuple[int, int] | None = None, **more: Any
) -> TrainTransform:
    return TrainTransform(DataConfig("camvid", ".", crop, size, **more))


def white(mask: np.ndarray) -> np.ndarray:
    """Return the picture of a mask of 0 and 1: uint8 ``[height, width, 3]``, white at 1."""
    return np.repeat(mask[..., None] * np.uint8(255), 3, axis=2)


def dataset(image: Path, label: Path) -> SegmentationDataset:
    return SegmentationDataset(
        [Sample("frame", image, label)], label_map("camvid"), EvalTransform()
    )


def test_an_item_is_image_label_and_name(tmp_path: Path) -> None:
    image = tmp_path / "a.png"
    label = tmp_path / "b.png"
    write_frame(image, label, [3, 8])
    data = dataset(image, label)
    assert len(data) == 1
    item = data[0]
    assert item["name"] == "frame"
    assert item["image"].shape == (3, 48, 64)
    pixels = torch.from_numpy(read_image(image)).permute(2, 0, 1)
    assert torch.equal(item["image"], pixels / 255.0)
    assert item["label"][:, :32].unique().tolist() == [3]
    assert item["label"][:, 32:].unique().tolist() == [8]


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("d.png", r"d.png is 48x32, its image 48x64"),
        ("b.png", r"b.png holds the values \[77\]"),
        ("none.png", "label .*none.png"),
    ],
)
def test_labels_that_do_not_fit_are_refused(tmp_path: Path, label: str, message: str) -> None:
    image = tmp_path / "a.png"
    write_frame(image, tmp_path / "b.png", [3, 77])
    write_frame(tmp_path / "c.png", tmp_path / "d.png", [3], size=(48, 32))
    data = dataset(image, tmp_path / label)
    with pytest.raises(InputError, match=message):
        _ = data[0]


def test_a_data_set_without_a_frame_is_refused() -> None:
    with pytest.raises(InputError, match="no labelled frame"):
        SegmentationDataset([], label_map("camvid"), EvalTransform())


@pytest.mark.parametrize(
    "crop",
    [
        (16, 32),
        (40, 60),
        (96, 128),
        (33, 200),
    ],
)
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
    transform = training((64, 96), scale=(1.0, 1.0), **UNCHANGED)
    item = transform(IMAGE, LABEL)
    padded = item["label"] == IGNORE
    assert int((~padded).sum()) == 40 * 60
    assert torch.equal(padded, (item["image"] == 0).all(0))
    top, left = (~padded).nonzero().amin(0).tolist()
    inside = item["label"][top : top + 40, left : left + 60]
    assert torch.equal(inside, torch.from_numpy(LABEL.astype(np.int64)))
    image = item["image"][:, top : top + 40, left : left + 60]
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


def test_each_crop_is_another_and_so_is_that_of_another_seed() -> None:
    transform = training((24, 24), (30, 50))
    torch.manual_seed(3)
    first = transform(IMAGE, LABEL)["image"]
    second = transform(IMAGE, LABEL)["image"]
    assert not torch.equal(first, second)
    torch.manual_seed(4)
    other_seed = transform(IMAGE, LABEL)["image"]
    assert not torch.equal(first, other_seed)


@pytest.mark.parametrize(
    ("flip", "expected"),
    [
        (0.0, {False}),
        (0.5, {False, True}),
        (1.0, {True}),
    ],
)
def test_image_and_label_are_flipped_together_as_often_as_asked_for(
    flip: float, expected: set[bool]
) -> None:
    torch.manual_seed(0)
    label = np.zeros((8, 8), np.uint8)
    label[:, 0] = 1
    options = UNCHANGED | {"flip": flip}
    transform = training((8, 8), scale=(1.0, 1.0), **options)
    flipped = set()
    for _ in range(20):
        item = transform(white(label), label)
        assert torch.equal((item["image"][0] > 0.5).long(), item["label"])
        flipped.add(bool(item["label"][0, 7]))
    assert flipped == expected


def test_evaluation_without_a_size_changes_nothing() -> None:
    item = EvalTransform()(IMAGE, LABEL)
    assert torch.equal(item["image"], PLAIN)
    assert torch.equal(item["label"], torch.from_numpy(LABEL.astype(np.int64)))


def test_evaluation_at_a_size_makes_no_class_between_two_others() -> None:
    item = EvalTransform((80, 120))(IMAGE, LABEL)
    assert item["image"].shape == (3, 80, 120)
    assert item["label"].shape == (80, 120)
    assert set(item["label"].unique().tolist()) <= set(range(5))


def test_shrinking_averages_over_areas() -> None:
    item = EvalTransform((20, 30))(IMAGE, LABEL)
    pooled = torch.nn.functional.avg_pool2d(PLAIN[None], 2)[0]
    torch.testing.assert_close(item["image"], pooled, atol=0.51 / 255, rtol=0)


@pytest.mark.parametrize("size", [(16, 24), (20, 80), (80, 120)])
def test_training_and_evaluation_see_the_pixels_of_predict(size: tuple[int, int]) -> None:
    predicted = network_input([IMAGE], size)[0]
    evaluated = EvalTransform(size)(IMAGE, LABEL)
    trained = training(size, size, scale=(1.0, 1.0), **UNCHANGED)(IMAGE, LABEL)
    assert torch.equal(evaluated["image"], predicted)
    assert torch.equal(trained["image"], predicted)
    assert torch.equal(trained["label"], evaluated["label"])


def test_evaluation_sees_frames_at_the_size_of_the_network() -> None:
    transform = EvalTransform(network_size=half_size)
    item = pickle.loads(pickle.dumps(transform))(IMAGE, LABEL)
    assert torch.equal(item["image"], network_input([IMAGE], (20, 30))[0])
    assert item["label"].shape == (20, 30)
    assert EvalTransform((80, 120), half_size)(IMAGE, LABEL)["label"].shape == (80, 120)


def half_size(frame: tuple[int, int]) -> tuple[int, int]:
    return frame[0] // 2, frame[1] // 2


def evaluation_at_a_size(side: int, target: int) -> Transform:
    return EvalTransform((target, target))


def training_at_a_size(side: int, target: int) -> Transform:
    size = (target, target)
    return training(size, size, scale=(1.0, 1.0), **UNCHANGED)


def training_at_a_scale(side: int, target: int) -> Transform:
    factor = (target + 0.5) / side
    return training((target, target), scale=(factor, factor), **UNCHANGED)


def centre(weights: torch.Tensor) -> float:
    """Return the centre of gravity of weights along a line, in pixels."""
    middles = torch.arange(len(weights)) + 0.5
    return float((weights * middles).sum() / weights.sum())


@pytest.mark.parametrize(
    "make",
    [
        evaluation_at_a_size,
        training_at_a_size,
        training_at_a_scale,
    ],
)
@pytest.mark.parametrize(
    ("side", "target"),
    [
        (96, 48),
        (96, 24),
        (96, 12),
        (96, 72),
        (96, 64),
        (96, 41),
        (97, 48),
        (96, 144),
        (96, 200),
    ],
)
def test_labels_lie_on_their_images_at_every_size(
    make: Callable[[int, int], Transform], side: int, target: int
) -> None:
    """By the centre of gravity of a bar at every place, in pixels of the target."""
    transform = make(side, target)
    factor = target / side
    width = max(6, round(3 / factor))
    from_truth = []
    from_image = []
    for start in range(4, side - width - 3):
        bar = np.zeros((side, side), np.uint8)
        bar[:, start : start + width] = 1
        item = transform(white(bar), bar)
        label = centre(item["label"][target // 2].double())
        image = centre(item["image"][0, target // 2].double())
        from_truth.append(label - (start + width / 2) * factor)
        from_image.append(label - image)
        turned = transform(white(bar.T), bar.T)
        assert torch.equal(turned["label"].T, item["label"])
    for shifts in (from_truth, from_image):
        assert np.mean(shifts) == pytest.approx(0, abs=0.1)
        assert np.abs(shifts).max() <= 0.76


@pytest.mark.parametrize(
    "size",
    [
        (20, 8),
        (12, 24),
        (100, 64),
    ],
)
def test_the_nearest_pixel_is_that_of_pillow_where_one_is_nearest(size: tuple[int, int]) -> None:
    expected = Image.fromarray(LABEL).resize(size, Image.Resampling.NEAREST)
    np.testing.assert_array_equal(resize_nearest(LABEL, *size), expected)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return miniatures.camvid(tmp_path, {"train": 5, "val": 3, "test": 2})


def module(root: Path, **options: Any) -> SegmentationDataModule:
    options = {"crop": (32, 32), "batch_size": 2} | options
    return SegmentationDataModule("camvid", str(root), **options)


def test_training_batches_drop_the_odd_frame(root: Path) -> None:
    data = module(root)
    data.prepare_data()
    first, second = data.train_dataloader()
    for batch in (first, second):
        assert batch["image"].shape == (2, 3, 32, 32)
        assert batch["label"].dtype == torch.int64


def test_validation_batches_hold_every_frame_in_order(root: Path) -> None:
    first, last = module(root, eval_batch_size=2).val_dataloader()
    assert first["label"].shape == (2, 48, 64)
    assert first["name"] == ["0001TP_000000", "0001TP_000001"]
    assert last["label"].shape == (1, 48, 64)
    assert last["name"] == ["0001TP_000002"]


def test_validation_has_the_size_and_training_the_crop(root: Path) -> None:
    data = module(root, size=(24, 32), crop=(16, 16))
    validation = next(iter(data.val_dataloader()))
    assert validation["image"].shape[-2:] == (24, 32)
    training = next(iter(data.train_dataloader()))
    assert training["image"].shape[-2:] == (16, 16)


@pytest.fixture
def several_sizes(root: Path) -> Path:
    """Frames of 48 x 64 pixels, but for one of the split val of 40 x 64."""
    name = "0001TP_000000.png"
    write_frame(root / "val" / name, root / "valannot" / name, [0, 1], size=(40, 64))
    return root


@pytest.mark.parametrize("workers", [0, 1])
def test_frames_of_several_sizes_fit_no_batch(several_sizes: Path, workers: int) -> None:
    data = module(several_sizes, eval_batch_size=2, workers=workers)
    with pytest.raises(InputError, match=r"sizes \[\(40, 64\), \(48, 64\)\]"):
        list(data.val_dataloader())


@pytest.mark.parametrize("workers", [0, 1])
def test_frames_of_several_sizes_are_validated_one_by_one(
    several_sizes: Path, workers: int
) -> None:
    data = module(several_sizes, eval_batch_size=1, workers=workers)
    assert len(list(data.val_dataloader())) == 3


def test_frames_of_several_sizes_fit_a_batch_at_one_size(several_sizes: Path) -> None:
    data = module(several_sizes, eval_batch_size=3, size=(24, 32), crop=(16, 16))
    assert len(list(data.val_dataloader())) == 1


def test_class_frequencies_are_shares_of_the_labelled_pixels(root: Path) -> None:
    frequencies = module(root).class_frequencies()
    # The miniature's stripes are equally wide up to a pixel column.
    assert frequencies == [pytest.approx(1 / 11, abs=0.02)] * 11
    assert sum(frequencies) == pytest.approx(1.0)


def test_class_frequencies_of_a_folder(tmp_path: Path) -> None:
    data = SegmentationDataModule("folder", str(tmp_path), labels="cityscapes")
    miniatures.folder(tmp_path / "train", "labels", 2, [7, 26])
    assert data.class_frequencies()[13] == pytest.approx(0.5)


def test_a_class_of_frames_that_are_not_counted_is_rare_and_not_absent(tmp_path: Path) -> None:
    data = SegmentationDataModule("folder", str(tmp_path), labels="cityscapes")
    miniatures.folder(tmp_path / "train", "labels", 3, [7, 26])
    sampled = data.class_frequencies(limit=2)
    assert 0 < sampled[18] < 0.001  # bicycle, which may be in the third frame
    assert sum(sampled) == pytest.approx(1)
    weights = balanced_weights(sampled)
    assert weights[18] == max(weights) > 1
    assert data.class_frequencies()[18] == 0


def test_ignored_pixels_alone_have_no_class_frequencies(tmp_path: Path) -> None:
    """Of labels that were replaced after the data module looked into them."""
    data = SegmentationDataModule("folder", str(tmp_path), labels="cityscapes")
    miniatures.folder(tmp_path / "train", "labels", 2, [7, 26])
    data.class_frequencies()
    miniatures.folder(tmp_path / "train", "labels", 2, [0])
    with pytest.raises(InputError, match="only ignored pixels"):
        data.class_frequencies()


def test_fewer_frames_than_a_batch_are_refused_before_the_work(root: Path) -> None:
    data = module(root, batch_size=6)
    with pytest.raises(InputError, match="5 training frames are fewer than a batch of 6"):
        data.prepare_data()


def test_a_data_set_without_class_labels_is_refused(root: Path) -> None:
    with pytest.raises(InputError, match="no class labels"):
        SegmentationDataModule("folder", str(root))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", 0),
        ("size", (32, -1)),
        ("scale", (2.0, 1.0)),
        ("flip", 1.5),
    ],
)
def test_a_setting_outside_its_range_is_named(root: Path, name: str, value: object) -> None:
    with pytest.raises(InputError, match=f"^{name} "):
        module(root, **{name: value})


DRIVES = {"a": 2, "b": 3, "c": 4}
"""Frames of three sequences, one of which is held out."""


@pytest.fixture
def drives(tmp_path: Path) -> Path:
    for drive, frames in DRIVES.items():
        for number in range(frames):
            name = f"{drive}_{number}.png"
            write_frame(tmp_path / "train" / name, tmp_path / "trainannot" / name, [3, 10, 0])
    return tmp_path


def left_out(root: Path, **options: Any) -> SegmentationDataModule:
    options = {"validation": "leave-sequence-out", "sequence": "^([^_]+)_"} | options
    return module(root, **options)


def names(data: SegmentationDataModule, split: str) -> list[str]:
    return [sample.name for sample in data.dataset(split).samples]


def test_each_sequence_is_held_out_once(drives: Path) -> None:
    folds = left_out(drives).folds()
    assert [fold.held_out for fold in folds] == list(DRIVES)
    for fold in folds:
        assert fold.folds() == [fold]
        fold.prepare_data()


def test_a_held_out_sequence_is_never_trained_on(drives: Path) -> None:
    whole = left_out(drives)
    frames = names(whole, "train")
    assert len(frames) == 9
    for fold, (drive, count) in zip(whole.folds(), DRIVES.items(), strict=True):
        train = names(fold, "train")
        val = names(fold, "val")
        assert [name[0] for name in val] == [drive] * count
        assert not any(name.startswith(drive) for name in train)
        assert sorted(train + val) == sorted(frames)
    assert names(whole, "train") == frames


def test_folds_need_no_selection_for_a_fine_tuning(drives: Path) -> None:
    left_out(drives).prepare_data(selects=False)


def test_a_sequence_can_be_held_out_by_its_name(drives: Path) -> None:
    second = left_out(drives).folds()[1]
    by_name = left_out(drives, held_out="b")
    assert names(by_name, "val") == names(second, "val")


def test_a_pattern_without_a_group_takes_the_whole_match(drives: Path) -> None:
    data = left_out(drives, sequence="^[^_]")
    assert list(data.sequences()) == list(DRIVES)


def test_a_data_sets_own_val_is_one_fold(drives: Path) -> None:
    data = module(drives)
    assert data.folds() == [data]


@pytest.mark.parametrize(
    ("sequence", "message"),
    [
        (None, "needs data.sequence"),
        ("(", "not a regular expression"),
    ],
)
def test_what_is_no_pattern_of_sequences_is_refused_at_once(
    drives: Path, sequence: str | None, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        left_out(drives, sequence=sequence)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sequence": "^([ab])_"}, r"in 4 training frames, .* c_0.*a \(2 frames\), b \(3 frames\)"),
        ({"sequence": "^(x?)"}, "in 9 training frames"),
        ({"held_out": "d"}, r"one of a \(2 frames\), b"),
        # Nothing is trained and selected on the same frames.
        ({}, r"no split val.*one of a \(2 frames\), b"),
    ],
)
def test_bad_sequences_are_refused(drives: Path, options: dict[str, Any], message: str) -> None:
    data = left_out(drives, **options)
    with pytest.raises(InputError, match=message):
        data.dataset("val")


def test_a_jpeg_with_a_hole_is_no_training_image(tmp_path: Path) -> None:
    """Decoders shift and grey what follows the hole, without an error."""
    data = cv2.imencode(".jpg", picture(64, 96))[1].tobytes()
    label = tmp_path / "b.png"
    cv2.imwrite(str(label), np.zeros((64, 96), np.uint8))
    whole = tmp_path / "whole.jpg"
    whole.write_bytes(data)
    damaged = tmp_path / "hole.jpg"
    middle = len(data) // 2
    damaged.write_bytes(data[:middle] + data[middle + 400 :])
    assert dataset(whole, label)[0]["label"].shape == (64, 96)
    with pytest.raises(InputError, match=r"image .*hole\.jpg .*data is missing inside"):
        _ = dataset(damaged, label)[0]
