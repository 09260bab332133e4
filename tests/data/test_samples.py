"""Frames with labels: read, checked and transformed one by one; augmentation and its reproducibility."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from segunc.core.errors import InputError
from segunc.data.entry import Sample
from segunc.data.images import read_image, resize_nearest
from segunc.data.labels import IGNORE, label_map
from segunc.data.module import EvalTransform, SegmentationDataset, TrainTransform, Transform, to_tensors
from tests.data.miniatures import write_frame

RNG = np.random.default_rng(0)
IMAGE = RNG.integers(1, 256, (40, 60, 3), np.uint8)
LABEL = RNG.integers(0, 5, (40, 60), np.uint8)
PLAIN = to_tensors(IMAGE, LABEL)["image"]


def dataset(image: Path, label: Path | None) -> SegmentationDataset:
    return SegmentationDataset([Sample("frame", image, label)], label_map("camvid"), EvalTransform())


def test_an_item_is_image_label_and_name(tmp_path: Path) -> None:
    write_frame(tmp_path / "a.png", tmp_path / "b.png", [3, 8])
    data = dataset(tmp_path / "a.png", tmp_path / "b.png")
    assert len(data) == 1
    item = data[0]
    assert item["name"] == "frame"
    assert item["image"].shape == (3, 48, 64)
    assert torch.equal(item["image"], torch.from_numpy(read_image(tmp_path / "a.png")).permute(2, 0, 1) / 255.0)
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
        (None, "frame frame has no label"),
    ):
        with pytest.raises(InputError, match=message):
            _ = dataset(image, label)[0]
    with pytest.raises(InputError, match="no labelled frame"):
        SegmentationDataset([], label_map("camvid"), EvalTransform())


@pytest.mark.parametrize("crop", [(16, 32), (40, 60), (96, 128), (33, 200)])
@pytest.mark.parametrize("size", [None, (80, 120)])
def test_training_gives_crops_of_the_size_asked_for(crop: tuple[int, int], size: tuple[int, int] | None) -> None:
    torch.manual_seed(0)
    transform = TrainTransform(crop, size)
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
    transform = TrainTransform((64, 96), scale=(1.0, 1.0), flip=0.0, colour=0.0, blur=0.0)
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
    transform = TrainTransform((24, 24), (30, 50))
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


@pytest.mark.parametrize(("flip", "expected"), [(0.0, {False}), (0.5, {False, True}), (1.0, {True})])
def test_image_and_label_are_flipped_together_as_often_as_asked_for(flip: float, expected: set[bool]) -> None:
    torch.manual_seed(0)
    label = np.zeros((8, 8), np.uint8)
    label[:, 0] = 1
    transform = TrainTransform((8, 8), scale=(1.0, 1.0), flip=flip, colour=0.0, blur=0.0)
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
    assert set(larger["label"].unique().tolist()) <= set(range(5))  # nearest: no class between two others
    # Shrinking averages over areas: a mean over each two by two pixels.
    pooled = torch.nn.functional.avg_pool2d(PLAIN[None], 2)[0]
    torch.testing.assert_close(small["image"], pooled, atol=0.51 / 255, rtol=0)


UNCHANGED = {"flip": 0.0, "colour": 0.0, "blur": 0.0}
TRANSFORMS: dict[str, Callable[[int, int], Transform]] = {
    "evaluation": lambda side, target: EvalTransform((target, target)),
    "training at a size": lambda side, target: TrainTransform((target,) * 2, (target,) * 2, (1.0, 1.0), **UNCHANGED),
    "training at a scale": lambda side, target: TrainTransform(
        (target,) * 2, scale=((target + 0.5) / side,) * 2, **UNCHANGED
    ),
}


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize(
    ("side", "target"), [(96, 48), (96, 24), (96, 12), (96, 72), (96, 64), (96, 41), (97, 48), (96, 144), (96, 200)]
)
def test_labels_lie_on_their_images_at_every_size(name: str, side: int, target: int) -> None:
    # In pixels of the target, by the centre of gravity of a bar at every place: against the true place, and against the image.
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
