"""Frames for chains, whose batch of a step depends on the seed and the step alone, and frames that hyper-parameters are selected on."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from segunc.data.corruptions import CORRUPTIONS, Corruption
from segunc.data.module import SegmentationDataModule, SegmentationDataset
from segunc.training.data import load_batches, minibatches
from segunc.training.finetune_run import FinetuneRun


def frames(root: Path, *, augment: bool) -> SegmentationDataset:
    return SegmentationDataModule("toy", str(root), crop=(32, 32)).dataset("train", augment=augment)


def test_each_pass_shows_every_frame_once_in_its_own_order(toy_set: Path) -> None:
    data, chosen = frames(toy_set, augment=False), [0, 1, 2, 4, 5, 7]

    def shown(seed: int) -> list[int]:
        images = [image for batch, _ in minibatches(data, chosen, 2, seed, 12) for image in batch]
        return [next(i for i in chosen if torch.equal(data[i]["image"], image)) for image in images]

    order = shown(1)
    passes = [order[first : first + 6] for first in range(0, 24, 6)]
    assert all(sorted(frames) == chosen for frames in passes)
    assert all(earlier != later for earlier, later in pairwise(passes))
    assert shown(1) == order != shown(2)


@pytest.mark.parametrize("augment", [False, True])
def test_the_seed_decides_every_batch_and_the_global_generator_is_left_alone(toy_set: Path, augment: bool) -> None:
    def make(steps: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return list(minibatches(frames(toy_set, augment=augment), range(8), 3, 0, steps))

    whole = make(5)
    torch.manual_seed(123)
    state = torch.get_rng_state()
    for (image, label), (same_image, same_label) in zip(whole, make(3), strict=False):
        assert torch.equal(image, same_image)
        assert torch.equal(label, same_label)
    assert torch.equal(torch.get_rng_state(), state)
    assert whole[0][0].shape == ((3, 3, 32, 32) if augment else (3, 3, 64, 128))
    (first, _), (second, _) = minibatches(frames(toy_set, augment=augment), [3], 1, 0, 2)
    assert torch.equal(first, second) is not augment


def test_frames_in_memory_are_those_of_the_set(toy_set: Path) -> None:
    data = frames(toy_set, augment=False)
    batches = load_batches(data, [1, 3, 6], 2)
    assert [len(images) for images, _ in batches] == [2, 1]
    assert torch.equal(batches[1][0][0], data[6]["image"])
    assert torch.equal(batches[0][1][1], data[3]["label"])


def test_a_selection_under_corruptions_sees_every_frame_under_every_kind(toy_set: Path) -> None:
    data = SegmentationDataModule("toy", str(toy_set))
    run: Any = SimpleNamespace(config=SimpleNamespace(data={}), data=data)
    items, clean = list(FinetuneRun._validation_items(run, 0, 2)()), data.dataset("val")
    assert len(items) == len(CORRUPTIONS) * len(clean)
    image, label = clean.read(1)
    for index, kind in enumerate(CORRUPTIONS, len(CORRUPTIONS)):
        shown = Corruption(kind, 2)(image, clean.samples[1].name)
        assert torch.equal(items[index]["image"], clean.transform(shown, label)["image"])
