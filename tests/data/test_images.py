"""Images and label files as tools really write them: damage is found, every kind becomes RGB, and
labels give the values that they store.
"""

import io
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image as PilImage, ImageOps

from segunc.core.errors import InputError, NoteWarning
from segunc.data.images import (
    PixelDepth,
    check_whole,
    decode,
    load_image,
    read_image,
    read_label_image,
    resize_image,
)
from segunc.data.labels import LabelMap, check_label_files, label_map, read_label_map
from segunc.data.masks import BINARY, check_masks
from segunc.data.module import SegmentationDataModule
from tests.data import miniatures
from tests.data.test_labels import write
from tests.support.images import claiming, encoded, picture


def assert_cut(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"truncated|not an image"):
        check_whole(data)


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".bmp", ".webp"])
def test_every_cut_is_found(suffix: str) -> None:
    data = encoded(suffix)
    check_whole(data)
    check_whole(data + b"\0" * 7)  # padding after the end is harmless
    step = max(1, len(data) // 97)
    for cut in range(16, len(data) - 1, step):
        assert_cut(data[:cut])


def test_a_flipped_bit_of_a_png_is_found() -> None:
    data = bytearray(encoded(".png"))
    data[99] ^= 1
    with pytest.raises(ValueError, match="checksum"):
        check_whole(bytes(data))


def test_progressive_jpeg_with_thumbnail_is_whole_until_its_own_end() -> None:
    """The end marker of a thumbnail inside EXIF must not stand for the image's."""
    thumbnail = cv2.imencode(".jpg", picture(8, 8))[1].tobytes()
    main = cv2.imencode(".jpg", picture(), [cv2.IMWRITE_JPEG_PROGRESSIVE, 1])[1].tobytes()
    segment = b"\xff\xe1" + struct.pack(">H", len(thumbnail) + 2) + thumbnail
    data = main[:2] + segment + main[2:]
    check_whole(data)
    assert_cut(data[:-2])
    assert_cut(data[: len(segment) + 40])


GREY = np.arange(256, dtype=np.uint8).reshape(16, 16)


@pytest.mark.parametrize(
    "stored",
    [
        GREY,
        GREY.astype(np.uint16) * 256 + 255,
        np.dstack([GREY, GREY, GREY, np.zeros_like(GREY)]),
    ],
    ids=["grey", "16 bits", "alpha"],
)
def test_every_kind_of_image_becomes_rgb_uint8(tmp_path: Path, stored: np.ndarray) -> None:
    path = tmp_path / "a.png"
    cv2.imwrite(str(path), stored)
    np.testing.assert_array_equal(read_image(path), np.dstack([GREY] * 3), strict=True)


few_bits = pytest.mark.parametrize(
    ("suffix", "channels"),
    [
        (".png", 1),
        (".png", 3),
        (".tif", 1),
        (".tif", 3),
    ],
)


def twelve_bits(channels: int) -> np.ndarray:
    values = np.linspace(0, 4095, 48).astype(np.uint16)
    return values.reshape(4, 4, 3)[..., :channels]


@few_bits
def test_pictures_of_a_camera_of_few_bits_are_named_as_dark(
    tmp_path: Path, suffix: str, channels: int
) -> None:
    path = tmp_path / f"a{suffix}"
    cv2.imwrite(str(path), twelve_bits(channels))
    depth = PixelDepth()
    read_image(path, depth)
    message = "pictures of a use 12 bits.* 16 times too dark.* multiply .* 16 before"
    with pytest.warns(NoteWarning, match=message):
        depth.warn("a")


@few_bits
@pytest.mark.filterwarnings("error")
def test_a_bright_picture_ends_the_doubt(tmp_path: Path, suffix: str, channels: int) -> None:
    path = tmp_path / f"a{suffix}"
    depth = PixelDepth()
    for values in (twelve_bits(channels), twelve_bits(channels) * 16):
        cv2.imwrite(str(path), values)
        read_image(path, depth)
    depth.warn("a")


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("TIFF", {}),
        ("PNG", {}),
        ("WEBP", {"lossless": True}),
    ],
)
def test_several_pictures_in_one_file_are_refused(
    tmp_path: Path, form: str, options: dict[str, object]
) -> None:
    path = tmp_path / "a.png"
    pixels = picture(8, 8)
    first = PilImage.fromarray(pixels)
    second = PilImage.fromarray(pixels[:, ::-1].copy())
    first.save(path, form, save_all=True, append_images=[second], **options)
    with pytest.raises(InputError, match=r"a.png.*holds 2 pictures"):
        load_image(path)


@pytest.mark.parametrize("read", [load_image, read_label_image])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (encoded(".png")[:200], "truncated"),
        # Formats that are not known reach no decoder, whatever the file is called.
        (b"no image", "not an image that can be decoded"),
        (b"<svg><script>alert(1)</script></svg>", "not an image that can be decoded"),
        (b"GIF89a" + bytes(99), "not an image that can be decoded"),
        (b"P6 9 9 255 ", "not an image that can be decoded"),
    ],
)
def test_what_is_no_image_is_refused_by_name(
    tmp_path: Path, read: Callable[[Path], object], content: bytes, message: str
) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"a.png.*{message}"):
        read(path)


@pytest.mark.parametrize("read", [load_image, read_label_image])
def test_an_image_that_is_not_there_is_refused_by_name(
    tmp_path: Path, read: Callable[[Path], object]
) -> None:
    with pytest.raises(InputError, match=r"a.png.*cannot be read"):
        read(tmp_path / "a.png")


@pytest.mark.parametrize(
    ("suffix", "side"),
    [
        (".png", 30_000),
        (".png", 2**31),
        (".bmp", 30_000),
        (".bmp", -30_000),
        (".jpg", 30_000),
    ],
)
def test_a_few_bytes_claim_no_gigabytes(tmp_path: Path, suffix: str, side: int) -> None:
    """Refused by its header, before a decoder makes room for it."""
    path = tmp_path / f"a{suffix}"
    path.write_bytes(claiming(suffix, abs(side), side))
    message = f"claims {abs(side)} x {abs(side)} pixels"
    tracemalloc.start()
    with pytest.raises(ValueError, match=message):
        read_image(path)
    for read in (load_image, read_label_image):
        with pytest.raises(InputError, match=message):
            read(path)
    _, peak = tracemalloc.get_traced_memory()
    assert peak < 2**22
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("PNG", {}),
        ("JPEG", {"progressive": True}),
        ("BMP", {}),
        ("TIFF", {"compression": "tiff_deflate"}),
        ("TIFF", {"big_tiff": True}),
        ("WEBP", {}),
        ("WEBP", {"lossless": True}),
        ("WEBP", {"exif": b"Exif\0\0MM"}),  # an extended one
    ],
)
def test_the_size_of_a_header_is_the_size_of_the_image(
    form: str, options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = io.BytesIO()
    PilImage.fromarray(picture(3, 700)).save(buffer, form, **options)
    data = buffer.getvalue()
    monkeypatch.setattr("segunc.data.images.MOST_PIXELS", 2100)
    assert decode(data, cv2.IMREAD_COLOR).shape == (3, 700, 3)
    monkeypatch.setattr("segunc.data.images.MOST_PIXELS", 2099)
    with pytest.raises(ValueError, match="the image claims 700 x 3 pixels; at most 2,099 are read"):
        check_whole(data)


IDS = np.random.default_rng(0).integers(0, 3, (5, 7)).astype(np.uint8)
COLOURS = np.array([(128, 64, 128), (70, 70, 70), (0, 0, 142)], np.uint8)


def palette(ids: np.ndarray) -> PilImage.Image:
    image = PilImage.fromarray(ids, "P")
    image.putpalette([7 * i % 256 for i in range(768)])
    return image


@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize("kind", ["png", "tif"])
@pytest.mark.parametrize("draw", [PilImage.fromarray, palette])
def test_a_label_is_as_upright_as_its_photograph(
    tmp_path: Path, turn: int, kind: str, draw: Callable[[np.ndarray], PilImage.Image]
) -> None:
    label = tmp_path / f"label.{kind}"
    frame = tmp_path / f"frame.{kind}"
    jpeg = tmp_path / "frame.jpg"
    exif = PilImage.Exif()
    exif[0x0112] = turn
    draw(IDS).save(label, exif=exif)
    grey = PilImage.fromarray(IDS * 100)
    grey.save(frame, exif=exif, quality=100)
    grey.save(jpeg, exif=exif, quality=100)
    # From memory: Pillow maps an uncompressed TIFF file into memory and then turns nothing.
    with PilImage.open(io.BytesIO(label.read_bytes())) as stored:
        upright = np.asarray(ImageOps.exif_transpose(stored))
    np.testing.assert_array_equal(read_label_image(label), upright)
    np.testing.assert_array_equal(load_image(frame)[..., 0], upright * 100)
    np.testing.assert_allclose(load_image(jpeg)[..., 0], upright * 100.0, atol=9)


THREE_CHANNELS = PilImage.fromarray(np.dstack([IDS] * 3))


@pytest.mark.parametrize(
    "drawn",
    [
        PilImage.fromarray(IDS),
        PilImage.fromarray(IDS.astype(np.uint16)),
        palette(IDS),
        THREE_CHANNELS,
        THREE_CHANNELS.convert("RGBA"),
    ],
    ids=["grey", "16 bits", "palette", "three channels", "alpha"],
)
def test_every_kind_of_file_gives_the_values_that_it_stores(
    tmp_path: Path, drawn: PilImage.Image
) -> None:
    """Palettes their indices, three equal channels one of them."""
    path = tmp_path / "a.png"
    drawn.save(path)
    np.testing.assert_array_equal(read_label_image(path), IDS, strict=True)


def test_a_file_of_one_bit_gives_0_and_1(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    bits = IDS > 1
    PilImage.fromarray(bits).save(path)
    np.testing.assert_array_equal(read_label_image(path), bits.astype(np.uint8), strict=True)


NEGATIVE = np.array([[-100, -1, 0, 1]])


@pytest.mark.parametrize(
    ("values", "suffix", "message"),
    [
        (np.full((4, 4, 3), (1, 2, 3), np.uint8), ".png", "no label map says which"),
        (np.full((4, 4, 4), (1, 1, 1, 9), np.uint8), ".png", "translucent"),
        (np.full((4, 4), 300, np.uint16), ".png", "up to 300"),
        (np.full((4, 4), 0.5, np.float32), ".tif", "float32"),
        (NEGATIVE.astype(np.int8), ".tif", "-100 "),
        (NEGATIVE.astype(np.int16), ".tif", "-100 "),
        (NEGATIVE.astype(np.int32), ".tif", "-100 "),
        (IDS, ".jpg", "JPEG"),
    ],
)
def test_images_that_are_no_labels_are_refused(
    tmp_path: Path, values: np.ndarray, suffix: str, message: str
) -> None:
    path = tmp_path / f"a{suffix}"
    assert cv2.imwrite(str(path), values)
    with pytest.raises(InputError, match=rf"a{suffix}.*{message}"):
        read_label_image(path)


def written(folder: Path, *files: list[int]) -> list[Path]:
    paths = [folder / f"{number}.png" for number in range(len(files))]
    for path, values in zip(paths, files, strict=True):
        PilImage.fromarray(np.array([values], np.uint8)).save(path)
    return paths


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("cityscapes", [7, 8], [0, 18, 255]),
        ("toy", [0, 8], [3, 255]),
    ],
)
def test_train_ids_in_the_place_of_ids_are_refused(
    tmp_path: Path, name: str, first: list[int], second: list[int]
) -> None:
    labels = label_map(name)
    paths = written(tmp_path, first, second)
    check_label_files([], labels)
    with pytest.raises(InputError, match=r"look like train ids.*`label_map` of the train ids"):
        check_label_files(paths, labels)  # the first file alone cannot tell


@pytest.mark.filterwarnings("error")
def test_labels_that_fit_need_one_file(tmp_path: Path) -> None:
    (path,) = written(tmp_path, [7, 23, 255])
    check_label_files([path, tmp_path / "never-read.png"], label_map("cityscapes"))


@pytest.mark.parametrize(
    ("name", "values", "doubt"),
    [
        ("cityscapes", [7, 8], "train ids"),
        ("cityscapes", [0, 3], "ignores"),
        ("camvid", [0, 255], "one class"),
    ],
)
def test_a_doubt_about_labels_is_said(
    tmp_path: Path, name: str, values: list[int], doubt: str
) -> None:
    paths = written(tmp_path, values)
    with pytest.warns(NoteWarning, match=doubt):
        check_label_files(paths, label_map(name))


def test_black_and_white_masks_mark_nothing_where_white_is_ignored(tmp_path: Path) -> None:
    paths = written(tmp_path, [0, 0], [0, 255], [0, 1, 255])
    check_masks(paths, BINARY)
    with pytest.raises(InputError, match=r"hold only 0 and 255.*`dataset` folder-255"):
        check_masks(paths[:2], BINARY)


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_split_without_a_labelled_pixel_is_refused_before_the_first_step(
    tmp_path: Path, split: str
) -> None:
    root = miniatures.camvid(tmp_path, {"train": 3, "val": 2})
    void = PilImage.fromarray(np.full((48, 64), 11, np.uint8))
    for label in sorted((root / f"{split}annot").iterdir()):
        data = SegmentationDataModule("camvid", str(root), crop=(32, 32), batch_size=2)
        data.prepare_data()  # a few frames of nothing are no harm
        void.save(label)
    data = SegmentationDataModule("camvid", str(root), crop=(32, 32), batch_size=2)
    message = rf"{split}annot.* other than 11, which label map 'camvid' ignores"
    with pytest.raises(InputError, match=message):
        data.prepare_data()


def own_map(folder: Path, *rows: str) -> LabelMap:
    return read_label_map(write(folder / "own.csv", *rows, "255,void,255,0,0,0"))


ROWS = (
    "4,road,0,128,64,128",
    "5,building,1,70,70,70",
    "6,lane,0,0,0,142",
)
TRAIN_IDS = np.array([0, 1, 0])[IDS]
"""Of the picture ``COLOURS[IDS]`` by the map of these rows."""


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_colours_are_read_by_the_label_map(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "a.png"
    PilImage.fromarray(COLOURS[IDS]).convert(mode).save(path)
    np.testing.assert_array_equal(own_map(tmp_path, *ROWS).read(path), TRAIN_IDS)


def test_translucent_colours_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    PilImage.fromarray(np.dstack([COLOURS[IDS], IDS])).save(path)
    with pytest.raises(InputError, match="translucent"):
        own_map(tmp_path, *ROWS).read(path)


def test_a_palette_whose_colours_are_other_classes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    indexed = PilImage.fromarray(IDS + np.uint8(4), "P")
    indexed.putpalette([0] * 12 + COLOURS[[1, 0, 2]].ravel().tolist())
    indexed.save(path)
    with pytest.raises(InputError, match="a palette by whose colours its values are other classes"):
        own_map(tmp_path, *ROWS).read(path)


def write_lane(path: Path, colour: tuple[int, int, int]) -> None:
    """Write a label of the colour of a lane, the first pixel of another colour."""
    pixels = np.full((5, 7, 3), (0, 0, 142), np.uint8)
    pixels[0, 0] = colour
    PilImage.fromarray(pixels).save(path)


def test_a_colour_of_no_class_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    write_lane(path, (1, 2, 3))
    with pytest.raises(InputError, match=r"1 of 35 pixels .*\(1, 2, 3\)"):
        own_map(tmp_path, *ROWS).read(path)


def test_a_colour_of_two_classes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    write_lane(path, (128, 64, 128))
    labels = own_map(tmp_path, *ROWS, "7,car,2,128,64,128")
    with pytest.raises(InputError, match=r"\(128, 64, 128\), which several classes"):
        labels.read(path)


def test_a_grey_pixel_among_colours_is_a_colour(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    write_lane(path, (0, 0, 0))
    labels = own_map(tmp_path, *ROWS, "0,sky,2,9,9,9")
    assert labels.read(path)[0].tolist() == [255, 0, 0, 0, 0, 0, 0]


def write_grey(path: Path, values: list[int]) -> None:
    """Write three equal channels."""
    channel = np.array([values], np.uint8)
    PilImage.fromarray(np.dstack([channel] * 3)).save(path)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([4, 5, 6], [0, 1, 0]),  # no greys of the map
        ([70, 0], [1, 255]),  # no ids of the map
    ],
)
def test_three_equal_channels_hold_ids_or_greys(
    tmp_path: Path, values: list[int], expected: list[int]
) -> None:
    path = tmp_path / "a.png"
    write_grey(path, values)
    assert own_map(tmp_path, *ROWS).read(path).tolist() == [expected]


@pytest.mark.parametrize(
    ("values", "rows", "message"),
    [
        ([4, 0], ROWS, "three equal channels|the values"),
        ([0, 255], (*ROWS, "0,sky,2,255,255,255"), "ids and colours"),
    ],
)
def test_three_equal_channels_never_hold_either(
    tmp_path: Path, values: list[int], rows: tuple[str, ...], message: str
) -> None:
    path = tmp_path / "a.png"
    write_grey(path, values)
    with pytest.raises(InputError, match=message):
        own_map(tmp_path, *rows).read(path)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("size", [(48, 64), (32, 48), (96, 100), (63, 120)])
def test_each_of_many_channels_is_resized_as_alone(
    size: tuple[int, int], dtype: type[np.uint8] | type[np.float32]
) -> None:
    """OpenCV shrinks no image of more than four channels by areas that are no whole pixels."""
    values = np.random.default_rng(0).integers(0, 256, (64, 100, 6), dtype=np.uint8)
    image = values if dtype is np.uint8 else values.astype(np.float32) / np.float32(255)
    resized = resize_image(image, size)
    assert resized.dtype == dtype
    for channel in range(6):
        alone = resize_image(image[..., channel : channel + 1], size)
        assert np.abs(resized[..., channel].astype(float) - alone[..., 0]).max() < 1e-5
