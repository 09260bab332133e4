"""Any class as the anomaly: which frames a network sees, and which tell of it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from segunc.core.errors import InputError
from segunc.data.datasets import DATASETS, dataset_entry
from segunc.data.entry import DatasetEntry, Sample
from segunc.data.images import read_label_image
from segunc.data.module import SegmentationDataModule
from tests.data.miniatures import write_frame
from tests.data.published import draw_miniature

DATA = os.environ.get("SEGUNC_DATA")


def camvid(root: Path, frames: dict[str, list[bool]]) -> Path:
    """CamVid's layout; each frame holds a bicyclist (10) or does not. Labels alone matter, so images are tiny."""
    for split, anomalous in frames.items():
        for i, holds in enumerate(anomalous):
            paths = root / split / f"a_{i:03d}.png", root / f"{split}annot" / f"a_{i:03d}.png"
            write_frame(*paths, [3, 10 if holds else 8, 11], size=(2, 3))
    return root


@pytest.fixture
def holdout(monkeypatch: pytest.MonkeyPatch) -> int:
    """Two frames stand in for a split val without a frame to select on."""
    monkeypatch.setattr("segunc.data.entry.HOLDOUT", 2)
    return 2


def without_bicyclist() -> DatasetEntry:
    return dataset_entry("camvid", anomaly_classes=["bicyclist"])


def names(samples: list[Sample]) -> list[int]:
    return [int(sample.name[2:]) for sample in samples]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    train=st.lists(st.booleans(), min_size=1, max_size=6),
    val=st.lists(st.booleans(), min_size=1, max_size=3),
)
@example(train=[False, True, False], val=[True, False, True])  # selected on val
@example(train=[False, True, False, False, True, False], val=[True])  # held out of train
@example(train=[False, False], val=[True])
def test_no_network_ever_sees_its_anomaly(
    tmp_path_factory: pytest.TempPathFactory, holdout: int, train: list[bool], val: list[bool]
) -> None:
    root = camvid(tmp_path_factory.mktemp("drawn"), {"train": train, "val": val})
    entry = without_bicyclist()
    known = [i for i, holds in enumerate(train) if not holds]
    if not known or (all(val) and len(known) <= holdout):
        with pytest.raises(InputError, match=r"of train .* are without bicyclist"):
            entry.training_samples(root, "train")
        return
    seen, selected = (names(entry.training_samples(root, split)) for split in ("train", "val"))
    if all(val):
        assert (seen, selected) == (known[:-holdout], known[-holdout:])
    else:
        assert (seen, selected) == (known, [i for i, holds in enumerate(val) if not holds])


def test_a_frame_with_the_class_tells_of_anomalies_and_one_without_of_classes(tmp_path: Path) -> None:
    camvid(tmp_path, {"test": [True, False]})
    entry = without_bicyclist()
    holding, known = entry.samples(tmp_path, "test")
    assert holding.label is None is known.anomaly
    assert holding.anomaly
    assert known.label
    assert entry.anomaly_encoding
    # Of the stripes road, bicyclist and void.
    assert entry.anomaly_encoding.encode(read_label_image(holding.anomaly))[0].tolist() == [0, 1, 255]
    classes = entry.label_map()
    assert "bicyclist" not in classes.classes
    assert classes.num_classes == 10
    assert classes.encode(read_label_image(known.label))[0].tolist() == [3, 8, 255]


def test_an_unreadable_label_is_left_to_whoever_reads_the_frame(tmp_path: Path) -> None:
    camvid(tmp_path, {"test": [True, False], "train": [False]})
    for split in ("test", "train"):
        (tmp_path / f"{split}annot" / "a_000.png").write_bytes(b"")
    entry = without_bicyclist()
    assert [sample.label is not None for sample in entry.samples(tmp_path, "test")] == [True, True]
    camvid(tmp_path, {"val": [False]})
    with pytest.raises(InputError, match=r"a_000.png cannot be read"):  # training must not guess
        entry.training_samples(tmp_path, "train")


def test_sets_with_anomalies_of_their_own_keep_both_labels_and_names_are_checked_at_once(tmp_path: Path) -> None:
    draw_miniature("muad", tmp_path)
    entry = dataset_entry("muad", anomaly_classes=["truck"])
    assert entry.anomalies[-1] == "truck"
    assert entry.label_map().num_classes == 14
    assert all(sample.label == sample.anomaly for sample in entry.samples(tmp_path, "test_ood"))
    for name, unknown in (("camvid", "bike"), ("smiyc-anomaly", "bicyclist")):
        with pytest.raises(InputError, match="has no class"):
            dataset_entry(name, anomaly_classes=[unknown])
    assert dataset_entry("camvid", anomaly_classes=[]) is DATASETS["camvid"]


def test_the_data_module_trains_on_what_is_left(tmp_path: Path, holdout: int) -> None:
    frames = {"train": [False, True, False, False, False], "val": [True], "test": [True, False, False]}
    camvid(tmp_path, frames)

    def module(classes: str | list[str]) -> SegmentationDataModule:
        return SegmentationDataModule("camvid", str(tmp_path), batch_size=1, anomaly_class=classes)

    for classes in ("bicyclist", ["bicyclist"], " bicyclist, "):
        data = module(classes)
        data.prepare_data()
        assert data.label_map.num_classes == 10
        assert [names(data.dataset(split).samples) for split in ("train", "val", "test")] == [[0, 2], [3, 4], [1, 2]]
    assert module("").label_map.num_classes == 11
    both = module("bicyclist,fence")
    assert both.label_map.classes[7:] == ("car", "pedestrian")
    assert names(both.dataset("train").samples) == [0, 2]
    shutil.rmtree(tmp_path / "val")
    with pytest.raises(InputError, match=r"val does not exist"):
        without_bicyclist().training_samples(tmp_path, "train")


@pytest.mark.skipif(DATA is None, reason="SEGUNC_DATA names no folder of real data")
def test_camvid_without_bicyclist() -> None:
    """30 of 166 training frames are held out; 77 test frames hold one, 156 do not."""
    root, entry = Path(str(DATA)) / "camvid", without_bicyclist()
    train, val = (entry.training_samples(root, split) for split in ("train", "val"))
    assert (len(train), len(val)) == (166 - 30, 30)
    assert max(sample.name for sample in train) < min(sample.name for sample in val)
    test = entry.samples(root, "test")
    assert (sum(s.anomaly is not None for s in test), sum(s.label is not None for s in test)) == (77, 156)
    for sample in [*train[::20], *val[::10], *test[::20]]:
        raw = np.asarray(cv2.imread(str(sample.label or sample.anomaly), cv2.IMREAD_UNCHANGED))
        assert (10 in raw) == (sample.label is None)
