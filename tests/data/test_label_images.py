"""Label files give the values that they store, whatever their PNG form."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from segunc.core.errors import InputError
from segunc.data.images import read_label_image

IDS = np.array([[0, 1, 2], [3, 19, 255]], np.uint8)


def test_grey_and_16_bit_files(tmp_path: Path):
    for values in (IDS, IDS.astype(np.uint16)):
        cv2.imwrite(str(tmp_path / "a.png"), values)
        read = read_label_image(tmp_path / "a.png")
        np.testing.assert_array_equal(read, IDS)
        assert read.dtype == np.uint8


def test_a_palette_file_gives_indices_not_colours(tmp_path: Path):
    picture = Image.fromarray(IDS)
    picture.putpalette([7 * i % 256 for i in range(768)])
    assert picture.mode == "P"
    picture.save(tmp_path / "a.png")
    np.testing.assert_array_equal(read_label_image(tmp_path / "a.png"), IDS)


def test_a_one_bit_file_gives_0_and_1(tmp_path: Path):
    mask = IDS > 1
    Image.fromarray(mask).save(tmp_path / "a.png")
    np.testing.assert_array_equal(read_label_image(tmp_path / "a.png"), mask.astype(np.uint8))


def test_files_that_are_no_labels_are_refused(tmp_path: Path):
    path = tmp_path / "a.png"
    with pytest.raises(InputError, match="cannot be read"):
        read_label_image(path)
    cv2.imwrite(str(path), np.zeros((4, 4, 3), np.uint8))
    with pytest.raises(InputError, match="one channel"):
        read_label_image(path)
    cv2.imwrite(str(path), np.full((4, 4), 300, np.uint16))
    with pytest.raises(InputError, match="up to 300"):
        read_label_image(path)
    cv2.imwrite(str(path), IDS)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match="truncated"):
        read_label_image(path)
    cv2.imwrite(str(tmp_path / "a.jpg"), IDS)
    with pytest.raises(InputError, match="JPEG"):
        read_label_image(tmp_path / "a.jpg")
