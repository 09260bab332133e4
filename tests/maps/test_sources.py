"""Frame sources: names, order, decoding, and every form of bad input."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import cv2
import numpy as np
import pytest

from segunc.core.errors import InputError
from segunc.data.images import find_damage, read_image
from segunc.frames.sources import ImageSource, Selection, open_source
from tests.maps.fakes import write_pictures, write_video


def picture(height: int = 40, width: int = 60) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)


def encoded(suffix: str) -> bytes:
    return cv2.imencode(suffix, picture())[1].tobytes()


def test_folder_is_read_in_the_order_of_relative_names(tmp_path: Path) -> None:
    names = write_pictures(tmp_path, 5)
    (tmp_path / "notes.txt").write_text("no image")
    source = open_source(tmp_path)
    assert isinstance(source, ImageSource)
    assert source.names() == sorted(names)
    assert [(f.name, f.index) for f in source] == [(name, i) for i, name in enumerate(sorted(names))]
    assert (source.kind, source.length, source.fps) == ("folder", 5, None)


def test_image_is_rgb_and_named_by_its_stem(tmp_path: Path) -> None:
    bgr = picture()
    cv2.imwrite(str(tmp_path / "one.png"), bgr)
    (frame,) = open_source(tmp_path / "one.png")
    assert frame.name == "one"
    assert frame.image is not None
    np.testing.assert_array_equal(frame.image, bgr[..., ::-1])


def test_glob_names_are_relative_to_its_fixed_part(tmp_path: Path) -> None:
    write_pictures(tmp_path, 4)
    (tmp_path / "a" / "readme.md").write_text("")
    assert [f.name for f in open_source(f"{tmp_path}/*/frame_00[02]*")] == ["a/frame_000", "b/frame_002"]
    assert [f.name for f in open_source(f"{tmp_path}/**/*_003.png")] == ["b/frame_003"]


def test_existing_path_with_glob_characters_is_taken_as_it_is(tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "shot[1].png"), picture())
    cv2.imwrite(str(tmp_path / "shot1.png"), picture())
    assert [f.name for f in open_source(tmp_path / "shot[1].png")] == ["shot[1]"]


def test_skipped_images_are_not_decoded(tmp_path: Path) -> None:
    names = write_pictures(tmp_path, 4)
    (tmp_path / f"{names[1]}.png").write_bytes(b"broken")
    frames = list(open_source(tmp_path).frames(lambda index, name: name == names[1]))
    assert [f.name for f in frames] == [names[0], *names[2:]]
    assert all(f.error is None for f in frames)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("missing.png", "does not exist"),
        ("missing/*.png", "matches no image"),
        ("empty", "holds no image"),
        ("notes.txt", "neither an image nor a video"),
        ("broken.mp4", "cannot be opened"),
        ("videos", "give the video itself"),
    ],
)
def test_bad_input_is_one_clear_line(tmp_path: Path, capfd: pytest.CaptureFixture[str], given: str, said: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / "drive.mp4").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    with pytest.raises(InputError, match=said) as error:
        open_source(tmp_path / given)
    assert "\n" not in str(error.value)
    assert capfd.readouterr().err == ""  # nor does a decoder add lines of its own


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "a.png"), picture())
    cv2.imwrite(str(tmp_path / "a.jpg"), picture())
    with pytest.raises(InputError, match="both frame 'a'"):
        open_source(tmp_path)


def test_output_inside_the_input_is_refused(tmp_path: Path) -> None:
    write_pictures(tmp_path, 2)
    with pytest.raises(InputError, match="lies inside the input"):
        open_source(tmp_path, out=tmp_path / "maps")
    assert open_source(tmp_path, out=tmp_path.parent / "elsewhere").length == 2


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".bmp", ".webp", ".tif"])
def test_truncated_file_fails_its_frame_and_the_rest_goes_on(tmp_path: Path, suffix: str) -> None:
    data = encoded(suffix)
    for name, content in {"a": data, "b": data[: len(data) * 2 // 3], "c": data}.items():
        (tmp_path / f"{name}{suffix}").write_bytes(content)
    frames = list(open_source(tmp_path))
    assert [f.error is None for f in frames] == [True, False, True]
    assert frames[1].image is None
    assert f"b{suffix}" in (frames[1].error or "")


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".bmp", ".webp"])
def test_every_cut_is_found(suffix: str) -> None:
    data = encoded(suffix)
    assert find_damage(data) is None
    assert find_damage(data + b"\0" * 7) is None  # padding after the end is harmless
    for cut in range(16, len(data) - 1, max(1, len(data) // 97)):
        assert find_damage(data[:cut]) is not None, cut


def test_progressive_jpeg_with_thumbnail_is_whole_until_its_own_end() -> None:
    """The end marker of a thumbnail inside EXIF must not stand for the image's."""
    thumbnail = cv2.imencode(".jpg", picture(8, 8))[1].tobytes()
    main = cv2.imencode(".jpg", picture(), [cv2.IMWRITE_JPEG_PROGRESSIVE, 1])[1].tobytes()
    segment = b"\xff\xe1" + struct.pack(">H", len(thumbnail) + 2) + thumbnail
    data = main[:2] + segment + main[2:]
    assert find_damage(data) is None
    assert find_damage(data[:-2]) is not None
    assert find_damage(data[: len(segment) + 40]) is not None


def test_png_with_a_flipped_bit_is_damaged() -> None:
    data = bytearray(encoded(".png"))
    data[len(data) // 2] ^= 1
    assert "checksum" in (find_damage(bytes(data)) or "")


def test_grey_16_bit_and_alpha_become_rgb_uint8(tmp_path: Path) -> None:
    grey = np.arange(256, dtype=np.uint8).reshape(16, 16)
    cv2.imwrite(str(tmp_path / "grey.png"), grey)
    cv2.imwrite(str(tmp_path / "deep.png"), grey.astype(np.uint16) * 256 + 255)
    with_alpha = np.dstack([grey, grey, grey, np.zeros_like(grey)])
    cv2.imwrite(str(tmp_path / "alpha.png"), with_alpha)
    for name in ("grey", "deep", "alpha"):
        image = read_image(tmp_path / f"{name}.png")
        assert image.dtype == np.uint8
        np.testing.assert_array_equal(image, np.dstack([grey] * 3))


def test_exif_orientation_is_applied(tmp_path: Path) -> None:
    upright = np.zeros((20, 40, 3), np.uint8)
    upright[:, :20] = 255
    data = cv2.imencode(".jpg", upright)[1].tobytes()
    # One IFD entry: orientation (0x0112), SHORT, count 1, value 6 (turn by 90 degrees clockwise).
    tiff = b"MM\0*" + struct.pack(">IHHHIHHI", 8, 1, 0x0112, 3, 1, 6, 0, 0)
    exif = b"Exif\0\0" + tiff
    path = tmp_path / "turned.jpg"
    path.write_bytes(data[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + data[2:])
    image = read_image(path)
    assert image.shape == (40, 20, 3)
    assert image[:15].min() > 200  # the left half is on top now
    assert image[25:].max() < 50


@pytest.mark.parametrize(("suffix", "fps"), [(".avi", 29.97), (".webm", 25.0), (".mp4", 29.97)])
def test_video_frames_have_six_digits_and_a_rate(tmp_path: Path, suffix: str, fps: float) -> None:
    path = tmp_path / f"drive{suffix}"
    write_video(path, 8, fps=fps)
    source = open_source(path)
    assert source.fps == pytest.approx(fps, abs=0.005)
    frames = list(source)
    assert [f.name for f in frames] == [f"{i:06d}" for i in range(8)]
    assert all(f.image is not None and f.image.shape == (48, 64, 3) for f in frames)


def test_skipping_in_a_video_keeps_the_frames_after_it(tmp_path: Path) -> None:
    path = tmp_path / "drive.avi"
    write_video(path, 9)
    whole = {f.name: f.image for f in open_source(path)}
    part = list(open_source(path).frames(lambda index, name: index % 3 != 2))
    assert [f.index for f in part] == [2, 5, 8]
    for frame in part:
        np.testing.assert_array_equal(frame.image, whole[frame.name])


def test_truncated_video_ends_with_an_error_frame(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole.avi", tmp_path / "cut.avi"
    write_video(whole, 40, size=(96, 128))
    data = whole.read_bytes()
    cut.write_bytes(data[: len(data) // 2])
    frames = list(open_source(cut))
    assert frames[-1].image is None
    assert frames[-1].index == len(frames) - 1
    assert f"video ends at frame {len(frames) - 1}, 0:00:0" in (frames[-1].error or "")
    assert all(f.image is not None for f in frames[:-1])
    assert len(frames) > 5


def test_every_nth_image_is_taken_in_name_order(tmp_path: Path) -> None:
    names = write_pictures(tmp_path, 7)
    source = open_source(tmp_path, selection=Selection(3))
    assert [(f.index, f.name) for f in source] == [(0, names[0]), (1, names[3]), (2, names[6])]
    assert source.length == 3
    assert [source.position(name) for name in (names[3], names[4], "zebra")] == [1, None, None]
    with pytest.raises(InputError, match="a start or end in time for the images"):
        open_source(tmp_path, selection=Selection(start=1.0))


def test_names_sort_before_suffixes(tmp_path: Path) -> None:
    """``a-1.png`` stands before ``a.png`` in a listing, but frame ``a`` before frame ``a-1``."""
    for name in ("a.png", "a-1.png", "a.b.png", "a/c.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        cv2.imwrite(str(tmp_path / name), picture())
    source = open_source(tmp_path)
    assert isinstance(source, ImageSource)
    assert source.names() == ["a", "a-1", "a.b", "a/c"]
    assert [source.position(name) for name in source.names()] == [0, 1, 2, 3]


def test_a_stamp_tells_a_replaced_file_from_a_touched_one(tmp_path: Path) -> None:
    path = tmp_path / "x.bmp"
    cv2.imwrite(str(path), np.zeros((90, 90, 3), np.uint8))
    source = open_source(path)
    before = source.stamp("x")
    assert before == next(source.frames()).stamp
    os.utime(path, ns=(1, 1))
    assert source.stamp("x") == before
    other = np.zeros((90, 90, 3), np.uint8)
    other[0, 0] = 1
    cv2.imwrite(str(path), other)  # of the same size in bytes
    assert source.stamp("x") != before
    assert source.stamp("y") is None
