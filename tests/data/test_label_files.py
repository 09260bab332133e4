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
from segunc.data.labels import COLUMNS, LabelMap, check_label_files, label_map, read_label_map
from segunc.data.module import SegmentationDataModule
from tests.data import miniatures

IDS = np.random.default_rng(0).integers(0, 3, (5, 7)).astype(np.uint8)
COLOURS = np.array([(128, 64, 128), (70, 70, 70), (0, 0, 142)], np.uint8)


def palette(ids: np.ndarray) -> PilImage.Image:
    image = PilImage.fromarray(ids).convert("P")
    image.putdata(ids.ravel().tolist())
    image.putpalette(COLOURS[::-1].ravel().tolist())
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


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.int32])
def test_negative_ids_do_not_wrap_to_a_class(tmp_path: Path, kind: type[np.signedinteger]) -> None:
    path = tmp_path / "a.tif"
    assert cv2.imwrite(str(path), np.array([[-100, -1, 0, 1]], kind))
    with pytest.raises(InputError, match=r"a.tif.* -100 "):
        read_label_image(path)


def own_map(folder: Path, *rows: str) -> LabelMap:
    path = folder / "own.csv"
    path.write_text("\n".join([",".join(COLUMNS), *rows, "255,void,255,0,0,0"]), encoding="utf-8")
    return read_label_map(path)


ROWS = "4,road,0,128,64,128", "5,building,1,70,70,70", "6,lane,0,0,0,142"


@pytest.mark.parametrize("alpha", [False, True])
def test_colours_are_read_by_the_label_map(tmp_path: Path, alpha: bool) -> None:
    labels = own_map(tmp_path, *ROWS)
    PilImage.fromarray(COLOURS[IDS]).convert("RGBA" if alpha else "RGB").save(tmp_path / "a.png")
    np.testing.assert_array_equal(labels.read(tmp_path / "a.png"), np.array([0, 1, 0])[IDS])
    PilImage.fromarray(np.dstack([COLOURS[IDS], IDS])).save(tmp_path / "a.png")
    with pytest.raises(InputError, match="translucent"):
        labels.read(tmp_path / "a.png")


@pytest.mark.parametrize(
    ("colour", "rows", "message"),
    [
        ((1, 2, 3), ROWS, r"1 of 35 pixels .*\(1, 2, 3\)"),
        ((128, 64, 128), (*ROWS, "7,car,2,128,64,128"), r"\(128, 64, 128\), which several classes"),
        ((0, 0, 0), (*ROWS, "0,sky,2,9,9,9"), None),  # a grey pixel among colours is one
    ],
)
def test_colours_of_no_class_and_of_two_are_refused(
    tmp_path: Path, colour: tuple[int, int, int], rows: tuple[str, ...], message: str | None
) -> None:
    labels, pixels = own_map(tmp_path, *rows), np.full((5, 7, 3), (0, 0, 142), np.uint8)
    pixels[0, 0] = colour
    PilImage.fromarray(pixels).save(tmp_path / "a.png")
    if message is None:
        assert labels.read(tmp_path / "a.png")[0].tolist() == [255, *[0] * 6]
        return
    with pytest.raises(InputError, match=message):
        labels.read(tmp_path / "a.png")


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([4, 5, 6], [0, 1, 0]),  # no greys of the map
        ([70, 0], [1, 255]),  # no ids of the map
        ([4, 0], "three equal channels|the values"),
        ([0, 255], "ids and colours"),
    ],
)
def test_three_equal_channels_hold_ids_or_greys_but_never_either(
    tmp_path: Path, ids: list[int], expected: list[int] | str
) -> None:
    labels = own_map(tmp_path, *ROWS, *(["0,sky,2,255,255,255"] if ids == [0, 255] else []))
    PilImage.fromarray(np.repeat(np.array([ids], np.uint8)[..., None], 3, -1)).save(tmp_path / "a.png")
    if isinstance(expected, list):
        assert labels.read(tmp_path / "a.png").tolist() == [expected]
        return
    with pytest.raises(InputError, match=expected):
        labels.read(tmp_path / "a.png")


def written(folder: Path, *files: list[int]) -> list[Path]:
    paths = [folder / f"{number}.png" for number in range(len(files))]
    for path, values in zip(paths, files, strict=True):
        PilImage.fromarray(np.array([values], np.uint8)).save(path)
    return paths


@pytest.mark.parametrize(
    ("name", "files", "remedy"),
    [
        ("cityscapes", [[7, 8], [0, 18, 255]], "`label_map` cityscapes-train-ids"),  # the first file alone cannot tell
        ("cityscapes-train-ids", [[255], [7, 23, 33]], "`label_map` cityscapes,"),
        ("toy", [[0, 8], [3, 255]], "a label map of the train ids"),
    ],
)
def test_labels_in_the_other_numbering_are_refused(
    tmp_path: Path, name: str, files: list[list[int]], remedy: str
) -> None:
    with pytest.raises(InputError, match=remedy):
        check_label_files(written(tmp_path, *files), label_map(name))


def test_labels_that_fit_need_one_file_and_a_doubt_is_said(
    tmp_path: Path, recwarn: pytest.WarningsRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    real = LabelMap.read_ids
    monkeypatch.setattr(LabelMap, "read_ids", lambda self, path: (read.append(path), real(self, path))[1])
    paths = written(tmp_path, [7, 23, 255], [7, 8], [0, 3], [0, 255])
    check_label_files(paths[:2], label_map("cityscapes"))
    assert (read, list(recwarn)) == (paths[:1], [])
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
    labels = sorted((root / f"{split}annot").iterdir())
    for label in labels:
        data.prepare_data()  # a few frames of nothing are no harm
        PilImage.fromarray(np.full((48, 64), 11, np.uint8)).save(label)
        data = SegmentationDataModule("camvid", str(root), crop=(32, 32), batch_size=2)
    with pytest.raises(InputError, match=rf"{split}annot.* but 11, which label map 'camvid' ignores"):
        data.prepare_data()
