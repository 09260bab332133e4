"""Where frames come from: names, order, decoding, selections, several inputs, and every form of bad
input.
"""

import io
import os
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, strategies as st
from PIL import Image as PilImage

from segunc.core.errors import InputError, NoteWarning
from segunc.frames.image_source import stamp_of
from segunc.frames.source import Selection, format_time, parse_time
from segunc.frames.sources import Input, open_source, plan_inputs, recorded_images
from tests.maps.fakes import write_pictures
from tests.support.images import encoded, picture, rename_to_latin_1


def write_images(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        assert cv2.imwrite(str(path), picture())


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")


@pytest.fixture
def pictures(tmp_path: Path) -> list[str]:
    """Names of five pictures in two folders, with other files beside them."""
    names = write_pictures(tmp_path, 5)
    touch(tmp_path / "notes.txt", tmp_path / "a/readme.md")
    return names


def names_in(spec: Path | str) -> list[str]:
    return [frame.name for frame in open_source(spec).frames()]


def test_a_folder_is_read_in_the_order_of_relative_names(
    tmp_path: Path, pictures: list[str]
) -> None:
    frames = list(open_source(tmp_path).frames())
    assert [frame.name for frame in frames] == sorted(pictures)
    assert [frame.index for frame in frames] == [0, 1, 2, 3, 4]


def test_a_folder_has_a_length_and_no_rate(tmp_path: Path, pictures: list[str]) -> None:
    source = open_source(tmp_path)
    assert source.kind == "folder"
    assert source.length == len(pictures)
    assert source.fps is None


def test_a_glob_selects_files(tmp_path: Path, pictures: list[str]) -> None:
    assert names_in(f"{tmp_path}/*/frame_00[02]*") == ["a/frame_000", "b/frame_002"]
    assert names_in(f"{tmp_path}/**/*_003.png") == ["b/frame_003"]


def test_an_output_inside_the_input_is_refused(tmp_path: Path, pictures: list[str]) -> None:
    with pytest.raises(InputError, match="lies inside the input"):
        open_source(tmp_path, out=tmp_path / "maps")
    elsewhere = tmp_path.parent / "elsewhere"
    assert open_source(tmp_path, out=elsewhere).length == len(pictures)


def test_images_are_found_beside_one_whose_name_leaves_no_room_for_another_ending(
    tmp_path: Path,
) -> None:
    """With .jpeg the name would be one byte longer than a file system takes."""
    long = "n" * 251
    write_images(tmp_path, "a.png", f"{long}.png")
    stamps = {name: stamp_of(tmp_path / f"{name}.png") for name in ("a", long)}
    source = recorded_images(str(tmp_path), stamps)
    assert source is not None
    assert [frame.name for frame in source.frames()] == ["a", long]


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A folder of two images, with videos, other formats and a link to a folder."""
    folder = tmp_path / "in"
    write_images(folder, "a.png", "sub/b.png")
    write_images(tmp_path, "elsewhere/c.png")
    touch(
        folder / "d.avif",
        folder / "sub/e.HEIC",
        folder / "f.mp4",
        folder / "sub/g.mp4",
        folder / ".hidden.mp4",
    )
    (folder / "linked").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    return folder


def test_what_a_folder_holds_beside_its_frames_is_said(mixed: Path) -> None:
    source = open_source(mixed)
    assert source.length == 2
    assert [note.removeprefix(f"{mixed}: ").partition(";")[0] for note in source.notes] == [
        "2 videos left out, first f.mp4",
        "2 pictures of formats that are not read (AVIF, HEIC) left out, first d.avif",
        "1 link to folders left out, first linked",
    ]


def test_what_a_glob_finds_beside_its_frames_is_said(mixed: Path) -> None:
    notes = open_source(f"{mixed}/*").notes
    assert [note.partition(" left out")[0] for note in notes] == [
        f"{mixed}/*: 1 video",
        f"{mixed}/*: 1 picture of formats that are not read (AVIF)",
    ]


def test_a_folder_of_videos_says_what_else_it_holds(tmp_path: Path) -> None:
    touch(tmp_path / "a.mp4", tmp_path / "sub/b.mp4", tmp_path / "c.heif")
    with pytest.warns(NoteWarning) as warnings:
        inputs = plan_inputs([str(tmp_path)], tmp_path / "out")
    assert [planned.spec for planned in inputs] == [str(tmp_path / "a.mp4")]
    notes = [str(warning.message) for warning in warnings]
    assert "1 video left out, first sub/b.mp4" in notes[0]
    assert "(HEIF) left out, first c.heif" in notes[1]


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("cam/a.mp4", r"1 video in its folders, first .*cam/a\.mp4.*input.* '.*cam/\*\.mp4'"),
        ("a.avif", r"no image that is read, but 1 of other formats, first .*a\.avif"),
        ("a.txt", r"holds no image\. Hint: check the path"),
    ],
)
def test_a_folder_without_a_frame_says_what_it_holds(tmp_path: Path, file: str, words: str) -> None:
    touch(tmp_path / file)
    with pytest.raises(InputError, match=words):
        open_source(tmp_path)


def test_a_folder_of_links_alone_says_so(tmp_path: Path) -> None:
    write_images(tmp_path, "elsewhere/c.png")
    (tmp_path / "in").mkdir()
    (tmp_path / "in/linked").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    with pytest.raises(InputError, match=r"holds no image, but 1 links to folders, first .*linked"):
        open_source(tmp_path / "in")


def smooth_jpeg(mode: str = "RGB", **options: Any) -> bytes:
    noise = np.random.default_rng(1).normal(127, 400, (200, 300, 3))
    smooth = cv2.GaussianBlur(noise, (0, 0), 3)
    pixels = np.clip(smooth, 0, 255).astype(np.uint8)
    buffer = io.BytesIO()
    PilImage.fromarray(pixels).convert(mode).save(buffer, "JPEG", **options)
    return buffer.getvalue()


@pytest.mark.parametrize("filling", [bytes(1500), b""], ids=["zeros", "cut"])
@pytest.mark.parametrize("progressive", [False, True])
def test_a_jpeg_with_a_hole_fails_its_frame(
    tmp_path: Path, filling: bytes, progressive: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its header and its end are whole, and OpenCV decodes it into grey."""
    whole = smooth_jpeg(progressive=progressive)
    start = len(whole) // 2
    damaged = whole[:start] + filling + whole[start + 1500 :]
    assert cv2.imdecode(np.frombuffer(damaged, np.uint8), cv2.IMREAD_COLOR) is not None
    capfd.readouterr()
    (tmp_path / "a.jpg").write_bytes(whole)
    (tmp_path / "b.jpg").write_bytes(damaged)
    first, second = open_source(tmp_path).frames()
    assert first.image is not None
    assert second.image is None
    assert "b.jpg: the JPEG is damaged" in (second.error or "")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "options",
    [
        {"subsampling": 0},
        {"subsampling": "4:1:1", "progressive": True},
        {"mode": "L"},
        {"mode": "CMYK"},
        {"restart_marker_blocks": 5},
        {"quality": 1, "optimize": True},
    ],
)
def test_a_whole_jpeg_of_any_kind_is_no_damaged_one(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    data = smooth_jpeg(**options)
    (tmp_path / "a.jpg").write_bytes(data + b"what some cameras append")
    (frame,) = open_source(tmp_path).frames()
    assert frame.error is None
    assert frame.image is not None


def test_a_path_that_exists_is_taken_as_it_is_and_its_image_is_rgb(tmp_path: Path) -> None:
    write_images(tmp_path, "shot[1].png", "shot1.png")
    (frame,) = open_source(tmp_path / "shot[1].png").frames()
    assert frame.name == "shot[1]"
    np.testing.assert_array_equal(frame.image, picture()[..., ::-1])


@pytest.mark.parametrize(
    "spec",
    [
        "missing.png",
        "missing/*.png",
        "empty",
        "notes.txt",
        "broken.mp4",
        "videos",
        "videos/*",
    ],
)
def test_bad_input_is_one_clear_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], spec: str
) -> None:
    (tmp_path / "empty").mkdir()
    touch(tmp_path / "videos" / "drive.mp4", tmp_path / "notes.txt")
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    with pytest.raises(InputError) as raised:
        open_source(tmp_path / spec)
    error = raised.value
    name = spec.split("/")[0]
    assert name in error.message
    assert "\n" not in str(error)
    assert ("drive.mp4" in error.hint) == (name == "videos")
    assert capfd.readouterr().err == ""  # nor does a decoder add lines of its own


@pytest.mark.parametrize(
    "names",
    [
        ("a.png", "a.jpg"),
        ("caf\u00e9.png", "cafe\u0301.png"),
    ],
)
def test_two_files_of_one_name_are_refused(tmp_path: Path, names: tuple[str, str]) -> None:
    write_images(tmp_path, *names)
    with pytest.raises(InputError, match="both frame"):
        open_source(tmp_path)


@pytest.mark.parametrize("pattern", ["", "/**/*.png"])
def test_hidden_files_are_no_frames(tmp_path: Path, pattern: str) -> None:
    folder = tmp_path / ".stick" / "in"  # what lies above the input may be hidden
    names = write_pictures(folder, 4)
    resource_fork = bytes.fromhex("0005160700020000") + bytes(200)
    for name in names:
        path = folder / f"{name}.png"
        path.with_name(f"._{path.name}").write_bytes(resource_fork)
    write_images(folder, ".trash/old.png")
    frames = list(open_source(f"{folder}{pattern}").frames())
    assert [frame.name for frame in frames] == names
    assert [frame.error for frame in frames] == [None] * len(names)


def test_hidden_files_are_no_videos(tmp_path: Path) -> None:
    folder = tmp_path / "films"
    touch(folder / "drive.mp4", folder / "._drive.mp4", folder / "._a.png")
    (film,) = plan_inputs([str(folder)], tmp_path)
    assert film.spec == str(folder / "drive.mp4")


every_format = pytest.mark.parametrize("suffix", [".jpg", ".png", ".bmp", ".webp", ".tif"])


def write_with_a_truncated_one(folder: Path, suffix: str) -> None:
    """Write the images ``a``, ``b`` and ``c``, of which ``b`` ends after two thirds."""
    data = encoded(suffix)
    (folder / f"a{suffix}").write_bytes(data)
    (folder / f"b{suffix}").write_bytes(data[: len(data) * 2 // 3])
    (folder / f"c{suffix}").write_bytes(data)


@every_format
def test_a_truncated_file_fails_its_frame_and_the_rest_goes_on(tmp_path: Path, suffix: str) -> None:
    write_with_a_truncated_one(tmp_path, suffix)
    before, truncated, after = open_source(tmp_path).frames()
    assert before.error is None
    assert truncated.image is None
    assert f"b{suffix}" in (truncated.error or "")
    assert after.error is None


@every_format
def test_what_is_skipped_is_not_decoded(tmp_path: Path, suffix: str) -> None:
    write_with_a_truncated_one(tmp_path, suffix)
    before, after = open_source(tmp_path).frames(lambda index, name: name == "b")
    assert before.name == "a"
    assert before.index == 0
    assert before.error is None
    assert after.name == "c"
    assert after.index == 2
    assert after.error is None


numbered = pytest.mark.parametrize(
    "names",
    [
        ["a", "a-1", "a.b", "a/c"],  # in a listing a-1.png stands before a.png
        ["frame_1", "frame_2", "frame_9", "frame_10", "frame_11", "frame_100"],
        ["run2_7", "run2_12", "run10_3"],
        ["007", "7", "8", "08b", "10"],  # of one number the text decides
        # Seconds with fractions.
        ["1403636579.12", "1403636579.363", "1403636579.4", "1403636580.1"],
        [f"{number:020d}" for number in (9, 10, 10**19)],
        ["f_1", "e\u0301_2", "\u00e9_10"],  # the same letter as two signs and as one
    ],
)


@numbered
def test_numbers_in_names_are_in_their_order(tmp_path: Path, names: list[str]) -> None:
    for name in reversed(names):
        write_images(tmp_path, f"{name}.png")
    assert names_in(f"{tmp_path}/**/*.png") == names


@numbered
def test_every_second_image_is_selected_in_that_order(tmp_path: Path, names: list[str]) -> None:
    for name in reversed(names):
        write_images(tmp_path, f"{name}.png")
    source = open_source(tmp_path, selection=Selection(2))
    frames = list(source.frames())
    selected = names[::2]
    assert [frame.name for frame in frames] == selected
    assert [frame.index for frame in frames] == list(range(len(selected)))
    in_order = [source.name_of(index) for index in range(len(names))]
    assert in_order == selected + [None] * (len(names) // 2)


def test_images_have_no_times_to_select_by(tmp_path: Path) -> None:
    write_images(tmp_path, "a.png")
    with pytest.raises(InputError, match="no times"):
        open_source(tmp_path, selection=Selection(start=1.0))


def test_a_selection_that_ends_at_its_start_is_refused() -> None:
    with pytest.raises(InputError, match="not later"):
        Selection(end=0.0)


@pytest.fixture
def black(tmp_path: Path) -> Path:
    path = tmp_path / "x.bmp"
    cv2.imwrite(str(path), np.zeros((90, 90, 3), np.uint8))
    return path


def test_a_stamp_is_that_of_the_frame(black: Path) -> None:
    source = open_source(black)
    assert source.stamp(0) == next(source.frames()).stamp


def test_a_touched_file_keeps_its_stamp(black: Path) -> None:
    source = open_source(black)
    before = source.stamp(0)
    os.utime(black, ns=(1, 1))
    assert source.stamp(0) == before


def test_a_replaced_file_of_the_same_size_has_another_stamp(black: Path) -> None:
    source = open_source(black)
    before = source.stamp(0)
    other = np.zeros((90, 90, 3), np.uint8)
    other[0, 0] = 1
    cv2.imwrite(str(black), other)
    assert source.stamp(0) != before


@given(st.integers(0, 10**9))
def test_what_is_printed_is_read_back(milliseconds: int) -> None:
    assert round(parse_time(format_time(milliseconds / 1000)) * 1000) == milliseconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90.0),
        ("90.5", 90.5),
        ("1:30", 90.0),
        ("0:01:30.25", 90.25),
        ("2:00:00", 7200.0),
        ("100:00", 6000.0),
    ],
)
def test_a_time_is_read(text: str, seconds: float) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", "-1", "1:60", "1:2:3:4", "noon", "1.5:00", "nan", "inf", "1:-2", "1::2"],
)
def test_what_is_not_a_time_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_time(text)


def test_each_input_has_a_folder_whose_name_grows_until_it_differs(tmp_path: Path) -> None:
    videos = [tmp_path / name for name in ("monday/front.mp4", "tuesday/front.mp4", "rear.v2.mp4")]
    folder = tmp_path / "pictures.day"
    touch(*videos, folder / "a.png")
    inputs = plan_inputs([str(path) for path in (*videos, folder)], tmp_path)
    assert [planned.out.name for planned in inputs] == [
        "monday_front",
        "tuesday_front",
        "rear.v2",
        "pictures.day",
    ]


@pytest.mark.parametrize("other", ["front.webm", "front.mp4"])
def test_two_inputs_of_one_folder_name_are_refused(tmp_path: Path, other: str) -> None:
    touch(tmp_path / "front.webm", tmp_path / "front.mp4")
    specs = [str(tmp_path / "front.webm"), str(tmp_path / other)]
    with pytest.raises(InputError, match=r"maps folder .*front'"):
        plan_inputs(specs, tmp_path)


def test_a_video_whose_name_no_maps_folder_can_have_is_named(tmp_path: Path) -> None:
    touch(tmp_path / "0.mp4", tmp_path / "1.mp4")
    rename_to_latin_1(tmp_path / "0.mp4")
    with pytest.raises(InputError, match=r"name of the input .*/stra\\xdfe.mp4\. Hint: rename"):
        plan_inputs([str(tmp_path)], tmp_path / "maps")


@pytest.mark.parametrize("spec", ["nowhere/*.mp4", "nowhere.mp4"])
def test_a_single_input_is_not_looked_for(tmp_path: Path, spec: str) -> None:
    assert plan_inputs([spec], tmp_path) == [Input(spec, tmp_path, "")]


@pytest.mark.parametrize("spec", ["day", "day/*", "**/*.*"])
def test_a_folder_or_pattern_of_videos_alone_stands_for_its_videos(
    tmp_path: Path, spec: str
) -> None:
    touch(tmp_path / "day/b.mp4", tmp_path / "day/a.WEBM", tmp_path / "day/notes.txt")
    first, second = plan_inputs([f"{tmp_path}/{spec}"], tmp_path / "out")
    assert Path(first.spec).name == "a.WEBM"
    assert first.out.name == "a"
    assert Path(second.spec).name == "b.mp4"
    assert second.out.name == "b"


@pytest.mark.parametrize("spec", ["day", "**/*"])
def test_a_folder_or_pattern_with_an_image_is_one_input(tmp_path: Path, spec: str) -> None:
    touch(tmp_path / "day/b.mp4", tmp_path / "day/a.WEBM", tmp_path / "day/notes.txt")
    touch(tmp_path / "day/deep/er/one.png")
    (planned,) = plan_inputs([f"{tmp_path}/{spec}"], tmp_path)
    assert planned.spec == f"{tmp_path}/{spec}"


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    """A folder of three images and five labels."""
    write_images(
        tmp_path,
        "a.jpg",
        "day/b.png",
        "day/c.tif",
        "a.labels/labels_semantic.png",
        "a_mask.png",
        "day/b_gtFine_labelIds.png",
        "labels/c.png",
        "trainannot/d.png",
    )
    return tmp_path


@pytest.mark.parametrize("pattern", ["", "/**/*"])
def test_files_named_as_labels_are_left_out_and_said(labelled: Path, pattern: str) -> None:
    source = open_source(f"{labelled}{pattern}", all_images=False)
    names = [source.name_of(index) for index in range(source.length or 0)]
    assert names == ["a", "day/b", "day/c"]
    assert "3 images; 5 others left out" in source.notes[0]


@pytest.mark.parametrize("pattern", ["", "/**/*"])
def test_all_images_take_labels_too(labelled: Path, pattern: str) -> None:
    source = open_source(f"{labelled}{pattern}")
    assert source.length == 8
    assert source.notes == ()


def test_of_labels_alone_nothing_is_left_out(labelled: Path) -> None:
    assert open_source(labelled / "labels", all_images=False).length == 1


def test_the_folder_above_has_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    below = tmp_path / "drive" / "below"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    inputs = plan_inputs(["..", str(tmp_path / "other")], tmp_path / "out")
    assert [target.label for target in inputs] == ["drive", "other"]
