"""Frames with labels: read, checked and transformed one by one."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from segunc.core.errors import InputError
from segunc.data.entry import Sample
from segunc.data.images import load_image
from segunc.data.labels import label_map
from segunc.data.samples import EvalTransform, SegmentationDataset
from tests.data.miniatures import write_frame


def dataset(image: Path, label: Path | None) -> SegmentationDataset:
    return SegmentationDataset([Sample("frame", image, label)], label_map("camvid"), EvalTransform())


def test_an_item_is_image_label_and_name(tmp_path: Path) -> None:
    write_frame(tmp_path / "a.png", tmp_path / "b.png", [3, 8])
    data = dataset(tmp_path / "a.png", tmp_path / "b.png")
    assert len(data) == 1
    item = data[0]
    assert item["name"] == "frame"
    assert item["image"].shape == (3, 48, 64)
    expected = cv2.imread(str(tmp_path / "a.png"))
    assert expected is not None
    assert torch.equal(item["image"], torch.from_numpy(expected[..., ::-1].copy()).permute(2, 0, 1) / 255.0)
    assert item["label"][:, :32].unique().tolist() == [3]
    assert item["label"][:, 32:].unique().tolist() == [8]


def test_sizes_that_differ_are_refused(tmp_path: Path) -> None:
    write_frame(tmp_path / "a.png", tmp_path / "b.png", [3])
    write_frame(tmp_path / "c.png", tmp_path / "d.png", [3], size=(48, 32))
    with pytest.raises(InputError, match=r"d.png is 48x32, its image 48x64; expected one size for both"):
        _ = dataset(tmp_path / "a.png", tmp_path / "d.png")[0]


def test_label_values_outside_the_map_name_the_file(tmp_path: Path) -> None:
    write_frame(tmp_path / "a.png", tmp_path / "b.png", [3, 77])
    with pytest.raises(InputError, match=r"b.png holds the values \[77\]"):
        _ = dataset(tmp_path / "a.png", tmp_path / "b.png")[0]


def test_missing_truncated_and_foreign_files_are_refused(tmp_path: Path) -> None:
    write_frame(tmp_path / "a.png", tmp_path / "b.png", [3])
    data = (tmp_path / "a.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(data[: len(data) // 2])
    (tmp_path / "text.png").write_text("no image")
    (tmp_path / "empty.png").write_bytes(b"")
    for name, said in (
        ("none.png", "cannot be read"),
        ("cut.png", "truncated"),
        ("text.png", "no image that can be decoded"),
        ("empty.png", "empty"),
    ):
        with pytest.raises(InputError, match=rf"{name}.*{said}"):
            load_image(tmp_path / name)
    for name in ("none.png", "cut.png", "text.png"):
        with pytest.raises(InputError, match=f"label .*{name}"):
            _ = dataset(tmp_path / "a.png", tmp_path / name)[0]


def test_frames_need_labels_and_sets_need_frames(tmp_path: Path) -> None:
    write_frame(tmp_path / "a.png", tmp_path / "b.png", [3])
    with pytest.raises(InputError, match="frame frame has no label"):
        _ = dataset(tmp_path / "a.png", None)[0]
    with pytest.raises(InputError, match="without a frame"):
        SegmentationDataset([], label_map("camvid"), EvalTransform())


def test_grey_images_become_three_channels(tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "grey.png"), np.full((4, 5), 7, np.uint8))
    image = load_image(tmp_path / "grey.png")
    assert image.shape == (4, 5, 3)
    assert (image == 7).all()
