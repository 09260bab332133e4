"""The one LightningDataModule."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from segunc.core.errors import InputError
from segunc.data.module import SegmentationDataModule
from tests.data import miniatures


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return miniatures.camvid(tmp_path, {"train": 5, "val": 3, "test": 2})


def module(root: Path, **options: Any) -> SegmentationDataModule:
    return SegmentationDataModule("camvid", str(root), **{"crop": (32, 32), "batch_size": 2, **options})


def test_the_loaders_give_batches_of_each_split(root: Path) -> None:
    data = module(root, eval_batch_size=2)
    data.prepare_data()
    train = list(data.train_dataloader())
    assert [tuple(batch["image"].shape) for batch in train] == [(2, 3, 32, 32)] * 2  # the odd frame is dropped
    assert [batch["label"].dtype for batch in train] == [torch.int64] * 2
    validation = list(data.val_dataloader())
    assert [tuple(batch["label"].shape) for batch in validation] == [(2, 48, 64), (1, 48, 64)]
    assert [name for batch in validation for name in batch["name"]] == [f"0001TP_{i:06d}" for i in range(3)]
    data = module(root, size=(24, 32), crop=(16, 16))
    assert next(iter(data.val_dataloader()))["image"].shape[-2:] == (24, 32)
    assert next(iter(data.train_dataloader()))["image"].shape[-2:] == (16, 16)


def test_the_seed_decides_order_and_crops(root: Path) -> None:
    def epoch(seed: int, torch_seed: int) -> list[Any]:
        torch.manual_seed(torch_seed)
        return [(tuple(b["name"]), b["image"]) for b in module(root, seed=seed).train_dataloader()]

    first, again, other = epoch(0, 1), epoch(0, 1), epoch(1, 1)
    assert [names for names, _ in first] == [names for names, _ in again]
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(first, again, strict=True))
    assert [names for names, _ in first] != [names for names, _ in other]


@pytest.mark.parametrize("workers", [0, 1])
def test_frames_of_several_sizes_need_a_size_or_a_validation_one_by_one(root: Path, workers: int) -> None:
    paths = root / "val" / "0001TP_000000.png", root / "valannot" / "0001TP_000000.png"
    miniatures.write_frame(*paths, [0, 1], size=(40, 64))
    with pytest.raises(InputError, match=r"sizes \[\(40, 64\), \(48, 64\)\]"):
        list(module(root, eval_batch_size=2, workers=workers).val_dataloader())
    assert len(list(module(root, eval_batch_size=1, workers=workers).val_dataloader())) == 3
    assert len(list(module(root, eval_batch_size=3, size=(24, 32), crop=(16, 16)).val_dataloader())) == 1


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


def test_bad_settings_and_splits_that_are_too_small_are_reported_before_the_work(root: Path) -> None:
    with pytest.raises(InputError, match="5 training frames are fewer than a batch of 6"):
        module(root, batch_size=6).prepare_data()
    with pytest.raises(InputError, match="no class labels"):
        SegmentationDataModule("folder", str(root))
    for name, value in (("batch_size", 0), ("size", (32, -1)), ("scale", (2.0, 1.0)), ("flip", 1.5)):
        with pytest.raises(InputError, match=f"^{name} "):
            module(root, **{name: value})


class TestSequences:
    """Frames ``a_0 .. b_2`` of three drives, one of which is held out."""

    counts: ClassVar = {"a": 2, "b": 3, "c": 4}

    @pytest.fixture
    def drives(self, tmp_path: Path) -> Path:
        for drive, frames in self.counts.items():
            for i in range(frames):
                name = f"{drive}_{i}.png"
                miniatures.write_frame(tmp_path / "train" / name, tmp_path / "trainannot" / name, [3, 10, 0], seed=i)
        return tmp_path

    def left_out(self, root: Path, **options: Any) -> SegmentationDataModule:
        return module(root, **{"validation": "leave-sequence-out", "sequence": "^([^_]+)_", **options})

    @staticmethod
    def names(data: SegmentationDataModule, split: str) -> list[str]:
        return [sample.name for sample in data.dataset(split).samples]

    def test_each_is_held_out_once_and_never_trained_on_then(self, drives: Path) -> None:
        whole = self.left_out(drives)
        every = self.names(whole, "train")
        assert len(every) == 9
        folds = whole.folds()
        assert [fold.held_out for fold in folds] == list(self.counts)
        for fold, (drive, frames) in zip(folds, self.counts.items(), strict=True):
            train, val = self.names(fold, "train"), self.names(fold, "val")
            assert [name[0] for name in val] == [drive] * frames
            assert not any(name.startswith(drive) for name in train)
            assert sorted(train + val) == sorted(every)
            assert fold.folds() == [fold]
            fold.prepare_data()
        assert self.names(whole, "train") == every
        assert self.names(self.left_out(drives, held_out="b"), "val") == self.names(folds[1], "val")

    def test_the_whole_match_is_a_sequence_and_the_data_sets_own_val_is_one_fold(self, drives: Path) -> None:
        assert list(self.left_out(drives, sequence="^[^_]").sequences()) == list(self.counts)
        data = module(drives)
        assert data.folds() == [data]
        with pytest.raises(InputError, match=r"data\.sequence"):
            data.sequences()

    def test_frames_with_an_anomaly_belong_to_no_fold(self, drives: Path) -> None:
        for name in ("a_0.png", "c_3.png"):
            miniatures.write_frame(drives / "train" / name, drives / "trainannot" / name, [3, 9, 0])
        miniatures.write_frame(drives / "val" / "d_0.png", drives / "valannot" / "d_0.png", [3])
        for fold in self.left_out(drives, anomaly_class="pedestrian").folds():
            frames = {*self.names(fold, "train"), *self.names(fold, "val")}
            assert len(frames) == 7
            assert not frames & {"a_0", "c_3"}

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"sequence": None}, "needs data.sequence"),
            ({"sequence": "("}, "no regular expression"),
            ({"sequence": "^([ab])_"}, r"in 4 training frames, .* c_0.*a \(2 frames\), b \(3 frames\)"),
            ({"sequence": "^(x?)"}, "in 9 training frames"),
            ({"held_out": "d"}, r"one of a \(2 frames\), b"),
            ({"validation": "val", "held_out": "a"}, "without meaning"),
            ({}, r"no split val.*one of a \(2 frames\), b"),  # nothing is trained and selected on the same frames
        ],
    )
    def test_bad_settings_are_one_line(self, drives: Path, options: dict[str, Any], said: str) -> None:
        with pytest.raises(InputError, match=said):
            self.left_out(drives, **options).dataset("val")
