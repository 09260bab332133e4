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
)
from segunc.data.labels import LabelMap, check_label_files, label_map, read_label_map
from segunc.data.masks import BINARY, check_masks
from segunc.data.module import SegmentationDataModule
from tests.data import miniatures
from tests.data.test_labels import write
from tests.support.images import claiming, encoded, picture


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".bmp", ".webp"])
def test_every_cut_is_found(suffix: str) -> None:
    data = encoded(suffix)
    check_whole(data)
    check_whole(data + b"\0" * 7)  # padding after the end is harmless
    for cut in range(16, len(data) - 1, max(1, len(data) // 97)):
        with pytest.raises(ValueError, match=r"truncated|not an image"):
            check_whole(data[:cut])
    if suffix == ".png":
        with pytest.raises(ValueError, match="checksum"):
            check_whole(bytes([*data[:99], data[99] ^ 1, *data[100:]]))


def test_progressive_jpeg_with_thumbnail_is_whole_until_its_own_end() -> None:
    """The end marker of a thumbnail inside EXIF must not stand for the image's."""
    thumbnail = cv2.imencode(".jpg", picture(8, 8))[1].tobytes()
    main = cv2.imencode(".jpg", picture(), [cv2.IMWRITE_JPEG_PROGRESSIVE, 1])[1].tobytes()
    segment = b"\xff\xe1" + struct.pack(">H", len(thumbnail) + 2) + thumbnail
    data = main[:2] + segment + main[2:]
    check_whole(data)
    for cut in (len(data) - 2, len(segment) + 40):
        with pytest.raises(ValueError, match=r"truncated|not an image"):
            check_whole(data[:cut])


def test_grey_16_bit_and_alpha_become_rgb_uint8(tmp_path: Path) -> None:
    grey = np.arange(256, dtype=np.uint8).reshape(16, 16)
    cv2.imwrite(str(tmp_path / "grey.png"), grey)
    cv2.imwrite(str(tmp_path / "deep.png"), grey.astype(np.uint16) * 256 + 255)
    with_alpha = np.dstack([grey, grey, grey, np.zeros_like(grey)])
    cv2.imwrite(str(tmp_path / "alpha.png"), with_alpha)
    for name in ("grey", "deep", "alpha"):
        np.testing.assert_array_equal(
            read_image(tmp_path / f"{name}.png"), np.dstack([grey] * 3), strict=True
        )


@pytest.mark.parametrize("suffix", [".png", ".tif"])
@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_of_a_camera_of_few_bits_are_named_as_dark(
    tmp_path: Path, suffix: str, channels: int, recwarn: pytest.WarningsRecorder
) -> None:
    values = np.linspace(0, 4095, 48).astype(np.uint16).reshape(4, 4, 3)[..., :channels]
    cv2.imwrite(str(path := tmp_path / f"a{suffix}"), values)
    depth = PixelDepth()
    read_image(path, depth)
    with pytest.warns(
        NoteWarning, match="pictures of a use 12 bits.* 16 times too dark.* multiply .* 16 before"
    ):
        depth.warn("a")
    cv2.imwrite(str(path), values * 16)
    read_image(path, depth)
    depth.warn("a")
    assert not recwarn.list


@pytest.mark.parametrize(
    ("form", "more"), [("TIFF", {}), ("PNG", {}), ("WEBP", {"lossless": True})]
)
def test_several_pictures_in_one_file_are_refused(
    tmp_path: Path, form: str, more: dict[str, object]
) -> None:
    first, second = (PilImage.fromarray(picture(8, 8)[:, ::step].copy()) for step in (1, -1))
    first.save(tmp_path / "a.png", form, save_all=True, append_images=[second], **more)
    with pytest.raises(InputError, match=r"a.png.*holds 2 pictures"):
        load_image(tmp_path / "a.png")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read"),
        (b"", "empty"),
        (encoded(".png")[:200], "truncated"),
        # Formats that are not known reach no decoder, whatever the file is called.
        *(
            (unknown, "not an image that can be decoded")
            for unknown in (
                b"no image",
                b"<svg><script>alert(1)</script></svg>",
                b"GIF89a" + bytes(99),
                b"P6 9 9 255 ",
            )
        ),
    ],
)
def test_what_is_no_image_is_refused_by_name(
    tmp_path: Path, content: bytes | None, said: str
) -> None:
    path = tmp_path / "a.png"
    if content is not None:
        path.write_bytes(content)
    for read in (load_image, read_label_image):
        with pytest.raises(InputError, match=rf"a.png.*{said}"):
            read(path)


@pytest.mark.parametrize(
    ("suffix", "side"),
    [(".png", 30_000), (".png", 2**31), (".bmp", 30_000), (".bmp", -30_000), (".jpg", 30_000)],
)
def test_a_few_bytes_claim_no_gigabytes(tmp_path: Path, suffix: str, side: int) -> None:
    """Refused by its header, before a decoder makes room for it."""
    path = tmp_path / f"a{suffix}"
    path.write_bytes(claiming(suffix, abs(side), side))
    tracemalloc.start()
    for read, error in (
        (read_image, ValueError),
        (load_image, InputError),
        (read_label_image, InputError),
    ):
        with pytest.raises(error, match=f"claims {abs(side)} x {abs(side)} pixels"):
            read(path)
    assert tracemalloc.get_traced_memory()[1] < 2**22
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("form", "more"),
    [
        *(("PNG", {}), ("JPEG", {"progressive": True}), ("BMP", {})),
        *(("TIFF", {"compression": "tiff_deflate"}), ("TIFF", {"big_tiff": True})),
        *(
            ("WEBP", {}),
            ("WEBP", {"lossless": True}),
            ("WEBP", {"exif": b"Exif\0\0MM"}),
        ),  # the last one is extended
    ],
)
def test_the_size_of_a_header_is_the_size_of_the_image(
    form: str, more: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = io.BytesIO()
    PilImage.fromarray(picture(3, 700)).save(buffer, form, **more)
    monkeypatch.setattr("segunc.data.images.MOST_PIXELS", 2100)
    assert decode(buffer.getvalue(), cv2.IMREAD_COLOR).shape == (3, 700, 3)
    monkeypatch.setattr("segunc.data.images.MOST_PIXELS", 2099)
    with pytest.raises(ValueError, match="the image claims 700 x 3 pixels; at most 2,099 are read"):
        check_whole(buffer.getvalue())


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
    exif = PilImage.Exif()
    exif[0x0112] = turn
    draw(IDS).save(tmp_path / f"label.{kind}", exif=exif)
    for suffix in (kind, "jpg"):
        PilImage.fromarray(IDS * 100).save(tmp_path / f"frame.{suffix}", exif=exif, quality=100)
    # From memory: Pillow maps an uncompressed TIFF file into memory and then turns nothing.
    with PilImage.open(io.BytesIO((tmp_path / f"label.{kind}").read_bytes())) as stored:
        upright = np.asarray(ImageOps.exif_transpose(stored))
    np.testing.assert_array_equal(read_label_image(tmp_path / f"label.{kind}"), upright)
    np.testing.assert_array_equal(load_image(tmp_path / f"frame.{kind}")[..., 0], upright * 100)
    np.testing.assert_allclose(load_image(tmp_path / "frame.jpg")[..., 0], upright * 100.0, atol=9)


def test_every_kind_of_file_gives_the_values_that_it_stores(tmp_path: Path) -> None:
    """Palettes their indices, one bit 0 and 1, three equal channels one of them."""
    bits = IDS > 1
    grey, deep, three = (
        PilImage.fromarray(IDS),
        PilImage.fromarray(IDS.astype(np.uint16)),
        np.dstack([IDS] * 3),
    )
    alpha = PilImage.fromarray(three).convert("RGBA")
    for drawn in (
        grey,
        deep,
        palette(IDS),
        PilImage.fromarray(three),
        alpha,
        PilImage.fromarray(bits),
    ):
        drawn.save(tmp_path / "a.png")
        values = bits.astype(np.uint8) if drawn.mode == "1" else IDS
        np.testing.assert_array_equal(read_label_image(tmp_path / "a.png"), values, strict=True)


@pytest.mark.parametrize(
    ("values", "suffix", "said"),
    [
        (np.full((4, 4, 3), (1, 2, 3), np.uint8), ".png", "no label map says which"),
        (np.full((4, 4, 4), (1, 1, 1, 9), np.uint8), ".png", "translucent"),
        (np.full((4, 4), 300, np.uint16), ".png", "up to 300"),
        (np.full((4, 4), 0.5, np.float32), ".tif", "float32"),
        *(
            (np.array([[-100, -1, 0, 1]], kind), ".tif", "-100 ")
            for kind in (np.int8, np.int16, np.int32)
        ),
        (IDS, ".jpg", "JPEG"),
    ],
)
def test_images_that_are_no_labels_are_refused(
    tmp_path: Path, values: np.ndarray, suffix: str, said: str
) -> None:
    assert cv2.imwrite(str(tmp_path / f"a{suffix}"), values)
    with pytest.raises(InputError, match=rf"a{suffix}.*{said}"):
        read_label_image(tmp_path / f"a{suffix}")


def written(folder: Path, *files: list[int]) -> list[Path]:
    paths = [folder / f"{number}.png" for number in range(len(files))]
    for path, values in zip(paths, files, strict=True):
        PilImage.fromarray(np.array([values], np.uint8)).save(path)
    return paths


@pytest.mark.parametrize(
    ("name", "files"), [("cityscapes", [[7, 8], [0, 18, 255]]), ("toy", [[0, 8], [3, 255]])]
)
def test_train_ids_in_the_place_of_ids_are_refused(
    tmp_path: Path, name: str, files: list[list[int]]
) -> None:
    paths = written(tmp_path, *files)
    check_label_files(paths[:0], label_map(name))
    with pytest.raises(InputError, match=r"look like train ids.*`label_map` of the train ids"):
        check_label_files(paths, label_map(name))  # the first file alone cannot tell


def test_labels_that_fit_need_one_file_and_a_doubt_is_said(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    paths = written(tmp_path, [7, 23, 255], [7, 8], [0, 3], [0, 255])
    check_label_files([paths[0], tmp_path / "never-read.png"], label_map("cityscapes"))
    assert not recwarn.list
    doubts = (("cityscapes", "train ids"), ("cityscapes", "ignores"), ("camvid", "one class"))
    for path, (name, doubt) in zip(paths[1:], doubts, strict=True):
        with pytest.warns(NoteWarning, match=doubt):
            check_label_files([path], label_map(name))


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
    data = SegmentationDataModule("camvid", str(root), crop=(32, 32), batch_size=2)
    for label in sorted((root / f"{split}annot").iterdir()):
        data.prepare_data()  # a few frames of nothing are no harm
        PilImage.fromarray(np.full((48, 64), 11, np.uint8)).save(label)
        data = SegmentationDataModule("camvid", str(root), crop=(32, 32), batch_size=2)
    with pytest.raises(
        InputError, match=rf"{split}annot.* other than 11, which label map 'camvid' ignores"
    ):
        data.prepare_data()


def own_map(folder: Path, *rows: str) -> LabelMap:
    return read_label_map(write(folder / "own.csv", *rows, "255,void,255,0,0,0"))


ROWS = "4,road,0,128,64,128", "5,building,1,70,70,70", "6,lane,0,0,0,142"


@pytest.mark.parametrize("alpha", [False, True])
def test_colours_are_read_by_the_label_map(tmp_path: Path, alpha: bool) -> None:
    labels = own_map(tmp_path, *ROWS)
    PilImage.fromarray(COLOURS[IDS]).convert("RGBA" if alpha else "RGB").save(tmp_path / "a.png")
    np.testing.assert_array_equal(labels.read(tmp_path / "a.png"), np.array([0, 1, 0])[IDS])
    PilImage.fromarray(np.dstack([COLOURS[IDS], IDS])).save(tmp_path / "a.png")
    with pytest.raises(InputError, match="translucent"):
        labels.read(tmp_path / "a.png")
    indexed = PilImage.fromarray(IDS + np.uint8(4), "P")
    indexed.putpalette([0] * 12 + COLOURS[[1, 0, 2]].ravel().tolist())
    indexed.save(tmp_path / "a.png")
    with pytest.raises(InputError, match="a palette by whose colours its values are other classes"):
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
    PilImage.fromarray(np.repeat(np.array([ids], np.uint8)[..., None], 3, -1)).save(
        tmp_path / "a.png"
    )
    if isinstance(expected, list):
        assert labels.read(tmp_path / "a.png").tolist() == [expected]
        return
    with pytest.raises(InputError, match=expected):
        labels.read(tmp_path / "a.png")
