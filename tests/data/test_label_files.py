"""Label files as tools really write them: turned, signed, in colours, in another numbering, with nothing but ignored values."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image as PilImage
from PIL import ImageOps

from segunc.core.errors import InputError, NoteWarning
from segunc.data.entry import BINARY, check_masks
from segunc.data.images import load_image, read_label_image
from segunc.data.labels import check_label_files, label_map
from segunc.data.module import SegmentationDataModule
from tests.data import miniatures

IDS = np.random.default_rng(0).integers(0, 3, (5, 7)).astype(np.uint8)


def palette(ids: np.ndarray) -> PilImage.Image:
    image = PilImage.fromarray(ids).convert("P")
    image.putdata(ids.ravel().tolist())
    image.putpalette([7 * i % 256 for i in range(768)])
    return image


@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize("kind", ["png", "tif"])
@pytest.mark.parametrize("draw", [PilImage.fromarray, palette])
def test_a_label_is_as_upright_as_its_photograph(
    tmp_path: Path, turn: int, kind: str, draw: Callable[[np.ndarray], PilImage.Image]
) -> None:
    exif = PilImage.Exif()
    exif[0x0112] = turn
    draw(IDS).save(tmp_path / f"label.{kind}", exif=exif)
    PilImage.fromarray(IDS * 100).save(tmp_path / f"frame.{kind}", exif=exif)
    # From memory: Pillow maps an uncompressed TIFF file into memory and then turns nothing.
    with PilImage.open(io.BytesIO((tmp_path / f"label.{kind}").read_bytes())) as stored:
        upright = np.asarray(ImageOps.exif_transpose(stored))
    np.testing.assert_array_equal(read_label_image(tmp_path / f"label.{kind}"), upright)
    np.testing.assert_array_equal(load_image(tmp_path / f"frame.{kind}")[..., 0], upright * 100)


def test_every_kind_of_file_gives_the_values_that_it_stores(tmp_path: Path) -> None:
    """Palettes their indices, one bit 0 and 1, three equal channels one of them."""
    bits = IDS > 1
    grey, deep, three = PilImage.fromarray(IDS), PilImage.fromarray(IDS.astype(np.uint16)), np.dstack([IDS] * 3)
    alpha = PilImage.fromarray(three).convert("RGBA")
    for drawn in (grey, deep, palette(IDS), PilImage.fromarray(three), alpha, PilImage.fromarray(bits)):
        drawn.save(tmp_path / "a.png")
        values = bits.astype(np.uint8) if drawn.mode == "1" else IDS
        np.testing.assert_array_equal(read_label_image(tmp_path / "a.png"), values, strict=True)


@pytest.mark.parametrize(
    ("values", "suffix", "said"),
    [
        (np.full((4, 4, 3), (1, 2, 3), np.uint8), ".png", "in colour"),
        (np.full((4, 4, 4), (1, 1, 1, 9), np.uint8), ".png", "translucent"),
        (np.full((4, 4), 300, np.uint16), ".png", "up to 300"),
        (np.full((4, 4), 0.5, np.float32), ".tif", "float32"),
        *((np.array([[-100, -1, 0, 1]], kind), ".tif", "-100 ") for kind in (np.int8, np.int16, np.int32)),
        (IDS, ".jpg", "JPEG"),
    ],
)
def test_images_that_are_no_labels_are_refused(tmp_path: Path, values: np.ndarray, suffix: str, said: str) -> None:
    assert cv2.imwrite(str(tmp_path / f"a{suffix}"), values)
    with pytest.raises(InputError, match=rf"a{suffix}.*{said}"):
        read_label_image(tmp_path / f"a{suffix}")


def written(folder: Path, *files: list[int]) -> list[Path]:
    paths = [folder / f"{number}.png" for number in range(len(files))]
    for path, values in zip(paths, files, strict=True):
        PilImage.fromarray(np.array([values], np.uint8)).save(path)
    return paths


@pytest.mark.parametrize(("name", "files"), [("cityscapes", [[7, 8], [0, 18, 255]]), ("toy", [[0, 8], [3, 255]])])
def test_train_ids_in_the_place_of_ids_are_refused(tmp_path: Path, name: str, files: list[list[int]]) -> None:
    paths = written(tmp_path, *files)
    check_label_files(paths[:0], label_map(name))
    with pytest.raises(InputError, match=r"look like train ids.*`label_map` of the train ids"):
        check_label_files(paths, label_map(name))  # the first file alone cannot tell


def test_labels_that_fit_need_one_file_and_a_doubt_is_said(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    paths = written(tmp_path, [7, 23, 255], [7, 8], [0, 3], [0, 255])
    check_label_files([paths[0], tmp_path / "never-read.png"], label_map("cityscapes"))
    assert not recwarn.list
    doubts = (
        (paths[1], "cityscapes", "train ids"),
        (paths[2], "cityscapes", "ignores"),
        (paths[3], "camvid", "one class"),
    )
    for path, name, doubt in doubts:
        with pytest.warns(NoteWarning, match=doubt):
            check_label_files([path], label_map(name))


def test_black_and_white_masks_mark_nothing_where_white_is_ignored(tmp_path: Path) -> None:
    paths = written(tmp_path, [0, 0], [0, 255], [0, 1, 255])
    check_masks(paths, BINARY)
    with pytest.raises(InputError, match=r"holds a value but 0 and 255.*`dataset` folder-255"):
        check_masks(paths[:2], BINARY)


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_split_without_a_labelled_pixel_is_refused_before_the_first_step(tmp_path: Path, split: str) -> None:
    root = miniatures.camvid(tmp_path, {"train": 3, "val": 2})
    data = SegmentationDataModule("camvid", str(root), crop=(32, 32), batch_size=2)
    for label in sorted((root / f"{split}annot").iterdir()):
        data.prepare_data()  # a few frames of nothing are no harm
        PilImage.fromarray(np.full((48, 64), 11, np.uint8)).save(label)
        data = SegmentationDataModule("camvid", str(root), crop=(32, 32), batch_size=2)
    with pytest.raises(InputError, match=rf"{split}annot.* but 11, which label map 'camvid' ignores"):
        data.prepare_data()
