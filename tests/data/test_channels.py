"""Files of images of any number of channels: the values that a network gets of them."""

import io
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from segunc.core.errors import InputError
from segunc.data.channels import load_frame, load_shown, read_frame, shown_colours
from segunc.data.images import PixelDepth, read_image
from segunc.data.module import DataConfig, TrainTransform
from segunc.data.tiff import read_tiff, upright
from tests.support.tiffs import GREY, RGB, tiff

SIZE = (37, 53)
"""No multiple of a tile or a strip."""
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "strips": {"rows": 10},
    "big endian": {"order": ">", "rows": 10},
    "rgb": {"photometric": RGB},
    "deflate": {"deflate": True, "rows": 7},
    "separate": {"separate": True, "rows": 10},
    "separate rgb": {"separate": True, "photometric": RGB, "deflate": True},
    "tiles": {"tile": 32},
    "small tiles": {"tile": 16, "deflate": True},
    "separate tiles": {"tile": 32, "separate": True, "deflate": True},
    "differences": {"differences": True, "deflate": True, "rows": 5},
    "differences in tiles": {"differences": True, "deflate": True, "tile": 16},
    "differences of separate": {"differences": True, "deflate": True, "separate": True},
}


def values(channels: int, dtype: str = "uint8") -> Any:
    """Return random values of the whole range of a type, ``[H, W, channels]``."""
    random = np.random.default_rng(channels)
    if dtype == "float32":
        return random.random((*SIZE, channels), np.float32)
    return random.integers(0, np.iinfo(dtype).max + 1, (*SIZE, channels), dtype)


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def array_file(path: Path, array: Any) -> Path:
    np.save(path, array)
    return path


@pytest.mark.parametrize("channels", [1, 2, 4, 5, 13])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_a_tiff_has_its_values_in_their_order(channels: int, way: str, dtype: str) -> None:
    if dtype == "float32" and WAYS[way].get("differences"):
        pytest.skip("differences are of whole numbers")
    if channels < 3 and WAYS[way].get("photometric") == RGB:
        pytest.skip("colour has three channels or more")
    array = values(channels, dtype)
    np.testing.assert_array_equal(read_tiff(tiff([array], **WAYS[way])), array, strict=True)


def test_pages_of_a_tiff_are_channels() -> None:
    array = values(4, "uint16")
    pages = [array[..., channel : channel + 1] for channel in range(4)]
    np.testing.assert_array_equal(read_tiff(tiff(pages)), array, strict=True)


@pytest.mark.parametrize("compression", [1, 5, 8, 32946])
@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_tiffs_of_opencv(tmp_path: Path, compression: int, dtype: str) -> None:
    """It writes blue first in memory as red first in the file, LZW with differences."""
    array = values(4, dtype)
    path = tmp_path / "a.tif"
    arguments = [cv2.IMWRITE_TIFF_COMPRESSION, compression]
    assert cv2.imwrite(str(path), array[..., [2, 1, 0, 3]], arguments)
    np.testing.assert_array_equal(read_tiff(path.read_bytes()), array, strict=True)


@pytest.mark.parametrize("compression", ["raw", "tiff_lzw", "tiff_adobe_deflate", "packbits"])
def test_tiffs_of_pillow(tmp_path: Path, compression: str) -> None:
    array = values(4)
    Image.fromarray(array, "RGBA").save(tmp_path / "a.tif", compression=compression)
    found = read_tiff((tmp_path / "a.tif").read_bytes())
    np.testing.assert_array_equal(found, array, strict=True)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientations_are_those_of_pillow(orientation: int) -> None:
    grey = values(1)[..., 0]
    image = Image.fromarray(grey)
    exif = image.getexif()
    exif[274] = orientation
    file = io.BytesIO()
    image.save(file, "PNG", exif=exif)
    with Image.open(file) as tagged:
        expected = np.asarray(ImageOps.exif_transpose(tagged))
    np.testing.assert_array_equal(upright(grey[..., None], orientation)[..., 0], expected)
    found = read_tiff(tiff([grey[..., None]], orientation=orientation))
    np.testing.assert_array_equal(found[..., 0], expected)


def test_one_image_in_every_format(tmp_path: Path) -> None:
    array = values(4)
    files = [
        array_file(tmp_path / "a.npy", array),
        array_file(tmp_path / "wide.npy", array.astype(np.uint16) * 257),
        array_file(tmp_path / "big.npy", (array.astype(np.uint16) * 257).astype(">u2")),
        array_file(tmp_path / "shares.npy", array / 255),
        array_file(tmp_path / "halves.npy", np.asfortranarray(array / np.float32(255))),
        written(tmp_path / "a.tif", tiff([array])),
        tmp_path / "a.png",
        tmp_path / "wide.png",
    ]
    Image.fromarray(array, "RGBA").save(files[-2])
    assert cv2.imwrite(str(files[-1]), array[..., [2, 1, 0, 3]].astype(np.uint16) * 257)
    for file in files:
        found = read_frame(file, 4)
        np.testing.assert_array_equal(found, array, strict=True, err_msg=file.name)


def test_values_of_16_bits_keep_their_precision(tmp_path: Path) -> None:
    array = values(4, "uint16")
    depth = PixelDepth()
    found = read_frame(array_file(tmp_path / "a.npy", array), 4, depth)
    expected = (array / 65535).astype(np.float32)
    np.testing.assert_array_equal(found, expected, strict=True)
    assert depth.largest == array.max()


def test_grey_files_are_one_channel(tmp_path: Path) -> None:
    grey = values(1)
    smooth = np.full((*SIZE, 1), 80, np.uint8)
    Image.fromarray(grey[..., 0]).save(tmp_path / "a.png")
    Image.fromarray(smooth[..., 0]).save(tmp_path / "a.jpg", quality=100)
    np.testing.assert_array_equal(read_frame(tmp_path / "a.png", 1), grey, strict=True)
    np.testing.assert_array_equal(read_frame(tmp_path / "a.jpg", 1, strict=True), smooth)
    flat = array_file(tmp_path / "a.npy", grey[..., 0])
    np.testing.assert_array_equal(read_frame(flat, 1), grey, strict=True)


def test_three_channels_are_read_as_ever(tmp_path: Path) -> None:
    """Of RGBA the alpha is dropped, of 16 bits the high byte is kept."""
    array = values(4, "uint16")
    assert cv2.imwrite(str(tmp_path / "a.png"), array[..., [2, 1, 0, 3]])
    found = read_frame(tmp_path / "a.png")
    np.testing.assert_array_equal(found, read_image(tmp_path / "a.png"), strict=True)
    np.testing.assert_array_equal(found, (array[..., :3] >> 8).astype(np.uint8))


PALETTE = Image.fromarray(values(3)).quantize(8)


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("a.npy", values(5), "it has 5 channels, and the network takes 4; it is an array of the"),
        ("a.npy", values(4).transpose(2, 0, 1), r"53 channels.* of the shape \(4, 37, 53\)"),
        ("a.npy", values(4)[None], r"shape \(1, 37, 53, 4\); images are \[H, W, K\]"),
        ("a.npy", values(4).astype(np.int16), "it holds int16 values; uint8, uint16 and floats"),
        ("a.npy", values(4) > 9, "it holds bool values"),
        ("a.npy", values(4, "float32") * 30, "its values are .* and floats are 0 to 1: scale each"),
        ("a.npy", np.full((*SIZE, 4), np.nan), "it holds NaN or infinite values"),
        ("a.npy", np.zeros((0, 3, 4)), "has the shape"),
        ("a.npy", b"\x93NUMPY\x01", "not an array of numbers"),
        ("a.tif", tiff([values(3)]), "it has 3 channels, and the network takes 4"),
        ("a.tif", tiff([values(4)])[:-900], "tags of the TIFF cannot be read"),
        ("a.tif", tiff([values(4).astype(np.int16)]), "the TIFF holds int16 values; uint8"),
        ("a.tif", tiff([values(4)], photometric=5), "palette or mixed colours"),
        ("a.tif", tiff([values(2), values(2)]), "its 2 pages are no channels of one image"),
        ("a.tif", tiff([values(1), values(1, "uint16")]), "its 2 pages are no channels"),
        ("a.tif", tiff([values(5)], tile=16), "tiles of this size are read only if they are com"),
        ("a.png", Image.fromarray(values(3)), "it has 3 channels, and the network takes 4"),
        ("a.png", PALETTE, "it is a PNG with a palette"),
        ("a.png", PALETTE.convert("LA"), "it is a grey PNG with alpha"),
        ("a.jpg", Image.fromarray(values(3)), "it has 3 channels, and the network takes 4"),
        ("a.jpg", Image.fromarray(values(1)[..., 0]), "it has 1 channel, and the network takes 4"),
        ("a.bmp", Image.fromarray(values(3)), "it has 3 channels, and the network takes 4"),
        ("a.tif", b"", "the file is empty"),
    ],
)
def test_another_image_is_refused_by_name(
    tmp_path: Path, name: str, content: Any, fault: str
) -> None:
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, np.ndarray):
        np.save(path, content)
    else:
        content.save(path)
    with pytest.raises(
        InputError, match=rf"image .*{name} is not an image of 4 channels \(.*{fault}"
    ):
        load_frame(path, 4)


def test_a_tiff_whose_pixels_lie_behind_its_end_is_refused() -> None:
    """They must not be read from what stands there now."""
    whole = tiff([values(4)])
    moved = whole.replace(
        len(values(4).tobytes()).to_bytes(4, "little"), (1 << 24).to_bytes(4, "little")
    )
    assert moved != whole
    with pytest.raises(ValueError, match="truncated: pixels lie behind its end"):
        read_tiff(moved)


def test_what_is_shown_are_the_first_three_channels() -> None:
    array = values(5)
    np.testing.assert_array_equal(shown_colours(array), array[..., :3], strict=True)
    shares = np.array([[[0.0, 0.5, 1.0, 0.2]]], np.float32)
    assert shown_colours(shares).tolist() == [[[0, 128, 255]]]
    for channels in (1, 2):
        shown = shown_colours(array[..., :channels])
        np.testing.assert_array_equal(shown, np.repeat(array[..., :1], 3, axis=2), strict=True)


def test_grey_is_the_usual_interpretation() -> None:
    """What other libraries write without being told."""
    assert tiff([values(4)]) == tiff([values(4)], photometric=GREY)


def test_any_file_can_be_shown(tmp_path: Path) -> None:
    """So can one that the network of a later command takes: nobody knows its channels yet."""
    array = values(5, "uint16")
    shown = load_shown(written(tmp_path / "a.tif", tiff([array])))
    np.testing.assert_array_equal(shown, np.rint(array[..., :3] / 257).astype(np.uint8))
    Image.fromarray(values(3)).save(tmp_path / "a.png")
    np.testing.assert_array_equal(load_shown(tmp_path / "a.png"), values(3))
    for name, content in (("b.png", b"none"), ("b.tif", tiff([values(5)])[:-900])):
        with pytest.raises(InputError, match=rf"image .*{name} is not an image file that is whole"):
            load_shown(written(tmp_path / name, content))
    with pytest.raises(InputError, match="cannot be read"):
        load_shown(tmp_path / "nowhere.tif")


@pytest.mark.parametrize("channels", [1, 2, 4, 13])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_training_crops_keep_the_values_of_other_channels(channels: int, dtype: str) -> None:
    """Nothing is scaled or mirrored here, so the crop is a part of the image."""
    config = DataConfig("camvid", "there", crop=(16, 32), scale=(1.0, 1.0), flip=0.0, blur=0.0)
    image = values(channels, dtype)
    label = np.arange(SIZE[0] * SIZE[1]).reshape(SIZE).astype(np.uint8)
    torch.manual_seed(0)
    item = TrainTransform(config, channels)(image, label)
    crop = item["image"].numpy().transpose(1, 2, 0)
    windows = np.lib.stride_tricks.sliding_window_view(image[..., 0], (16, 32))
    shares = image / np.float32(255) if dtype == "uint8" else image
    first = windows / np.float32(255) if dtype == "uint8" else windows
    ((top, left),) = np.argwhere((first == crop[..., 0]).all((2, 3)))
    np.testing.assert_array_equal(crop, shares[top : top + 16, left : left + 32])
    np.testing.assert_array_equal(item["label"], label[top : top + 16, left : left + 32])


@pytest.mark.parametrize("channels", [1, 4, 13])
def test_training_crops_are_scaled_and_blurred(channels: int) -> None:
    config = DataConfig("camvid", "there", crop=(64, 64), blur=1.0, size=(48, 48))
    item = TrainTransform(config, channels)(values(channels), np.zeros(SIZE, np.uint8))
    assert item["image"].shape == (channels, 64, 64)


def test_crops_of_colour_change_their_colour() -> None:
    config = DataConfig("camvid", "there", crop=SIZE, scale=(1.0, 1.0), flip=0.0, blur=0.0)
    torch.manual_seed(1)
    item = TrainTransform(config)(values(3), np.zeros(SIZE, np.uint8))
    changed = np.abs(item["image"].numpy().transpose(1, 2, 0) * 255 - values(3))
    assert changed.max() > 5
