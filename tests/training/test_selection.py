"""The frames that hyper-parameters are selected on."""

from __future__ import annotations

import torch

from segunc.data.corruptions import CORRUPTIONS, Corruption
from segunc.data.module import SegmentationDataModule
from segunc.training.selection import CorruptedFrames
from tests.conftest import Job


def test_every_frame_under_every_corruption(trained: Job) -> None:
    clean = SegmentationDataModule("toy", str(trained.data)).dataset("val")
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
