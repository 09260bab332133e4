"""Frames for chains, whose batch of a step depends on the seed and the step alone, and frames that hyper-parameters are selected on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from segunc.data.corruptions import CORRUPTIONS, Corruption
from segunc.data.module import SegmentationDataModule
from segunc.data.samples import SegmentationDataset
from segunc.training.data import Minibatches, load_batches
from segunc.training.selection import CorruptedFrames


def frames(root: Path, *, augment: bool) -> SegmentationDataset:
    return SegmentationDataModule("toy", str(root), crop=(32, 32)).dataset("train", augment=augment)


def test_each_pass_shows_every_frame_once_in_its_own_order(toy_set: Path) -> None:
    data, chosen = frames(toy_set, augment=False), [0, 1, 2, 4, 5, 7]
    batches, again, other = (Minibatches(data, chosen, 2, seed=seed) for seed in (1, 1, 2))
    passes = [[frame for step in range(3 * i, 3 * i + 3) for frame in batches.frames_of(step)] for i in range(4)]
    assert all(sorted(one) == chosen for one in passes)
    assert len({tuple(one) for one in passes}) > 1
    assert [again.frames_of(s) for s in (7, 2)] == [batches.frames_of(s) for s in (7, 2)]
    assert [other.frames_of(s) for s in range(12)] != [batches.frames_of(s) for s in range(12)]


@pytest.mark.parametrize("augment", [False, True])
def test_starting_in_the_middle_gives_the_same_batches(toy_set: Path, augment: bool) -> None:
    def make() -> Minibatches:
        return Minibatches(frames(toy_set, augment=augment), range(8), 3, seed=0)

    whole = list(make().between(0, 5))
    torch.manual_seed(123)
    state = torch.get_rng_state()
    late = list(make().between(3, 5))
    assert torch.equal(torch.get_rng_state(), state), "the global generator is left alone"
    for (image, label), (late_image, late_label) in zip(whole[3:], late, strict=True):
        assert torch.equal(image, late_image)
        assert torch.equal(label, late_label)
    assert whole[0][0].shape == ((3, 3, 32, 32) if augment else (3, 3, 64, 128))


def test_augmentation_differs_from_step_to_step(toy_set: Path) -> None:
    one_frame = Minibatches(frames(toy_set, augment=True), [3], 1, seed=0)
    (first, _), (second, _) = one_frame.between(0, 2)
    assert not torch.equal(first, second)


def test_frames_in_memory_are_those_of_the_set(toy_set: Path) -> None:
    data = frames(toy_set, augment=False)
    held = load_batches(data, [1, 3, 6], 2)
    assert [len(images) for images, _ in held] == [2, 1]
    assert torch.equal(held[1][0][0], data[6]["image"])
    assert torch.equal(held[0][1][1], data[3]["label"])


def test_every_frame_under_every_corruption(toy_set: Path) -> None:
    clean = SegmentationDataModule("toy", str(toy_set)).dataset("val")
    corrupted = CorruptedFrames(clean, 2)
    assert len(corrupted) == len(CORRUPTIONS) * len(clean)
    for index in range(len(CORRUPTIONS), 2 * len(CORRUPTIONS)):  # the second frame
        item = corrupted[index]
        image, label = clean.read(1)
        name = clean.samples[1].name
        kind = list(CORRUPTIONS)[index % len(CORRUPTIONS)]
        expected = clean.transform(Corruption(kind, 2)(image, name), label)
        assert item["name"] == name
        assert torch.equal(item["image"], expected["image"])
        assert torch.equal(item["label"], clean[1]["label"])
        # The radius of a blur is that of a large frame: this one has 64 rows.
        assert torch.equal(item["image"], clean[1]["image"]) == (kind == "blur")
