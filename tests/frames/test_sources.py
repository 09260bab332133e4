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
from segunc.frames.source import Selection, format_time, parse_time
from segunc.frames.sources import Input, open_source, plan_inputs, recorded_images, stamp_of
from tests.maps.fakes import write_pictures
from tests.support.images import encoded, picture


def write_images(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        assert cv2.imwrite(str(folder / name), picture())


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")


def test_folders_and_globs_are_read_in_the_order_of_relative_names(tmp_path: Path) -> None:
    names = write_pictures(tmp_path, 5)
    touch(tmp_path / "notes.txt", tmp_path / "a/readme.md")
    source = open_source(tmp_path)
    assert [(f.name, f.index) for f in source.frames()] == [
        (name, i) for i, name in enumerate(sorted(names))
    ]
    assert (source.kind, source.length, source.fps) == ("folder", 5, None)
    assert [f.name for f in open_source(f"{tmp_path}/*/frame_00[02]*").frames()] == [
        "a/frame_000",
        "b/frame_002",
    ]
    assert [f.name for f in open_source(f"{tmp_path}/**/*_003.png").frames()] == ["b/frame_003"]
    with pytest.raises(InputError, match="lies inside the input"):
        open_source(tmp_path, out=tmp_path / "maps")
    assert open_source(tmp_path, out=tmp_path.parent / "elsewhere").length == 5


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


def test_what_a_folder_holds_beside_its_frames_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    write_images(folder, "a.png", "sub/b.png")
    write_images(tmp_path, "elsewhere/c.png")
    touch(folder / "d.avif", folder / "sub/e.HEIC", folder / "f.mp4", folder / "sub/g.mp4")
    touch(folder / ".hidden.mp4")
    (folder / "linked").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    source = open_source(folder)
    assert source.length == 2
    assert [note.removeprefix(f"{folder}: ").partition(";")[0] for note in source.notes] == [
        "2 videos left out, first f.mp4",
        "2 pictures of formats that are not read (AVIF, HEIC) left out, first d.avif",
        "1 links to folders left out, first linked",
    ]
    assert [note.partition(" left out")[0] for note in open_source(f"{folder}/*").notes] == [
        f"{folder}/*: 1 videos",
        f"{folder}/*: 1 pictures of formats that are not read (AVIF)",
    ]


def test_a_folder_of_videos_says_what_else_it_holds(tmp_path: Path) -> None:
    touch(tmp_path / "a.mp4", tmp_path / "sub/b.mp4", tmp_path / "c.heif")
    with pytest.warns(NoteWarning) as notes:
        inputs = plan_inputs([str(tmp_path)], tmp_path / "out")
    assert [one.spec for one in inputs] == [str(tmp_path / "a.mp4")]
    said = [str(note.message) for note in notes]
    assert "1 videos left out, first sub/b.mp4" in said[0]
    assert "(HEIF) left out, first c.heif" in said[1]


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("cam/a.mp4", r"1 videos in its folders, first .*cam/a\.mp4.*input.* '.*cam/\*\.mp4'"),
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


def smooth_jpeg(**how: Any) -> bytes:
    noise = np.random.default_rng(1).normal(127, 400, (200, 300, 3))
    pixels = np.clip(cv2.GaussianBlur(noise, (0, 0), 3), 0, 255).astype(np.uint8)
    buffer = io.BytesIO()
    PilImage.fromarray(pixels).convert(how.pop("mode", "RGB")).save(buffer, "JPEG", **how)
    return buffer.getvalue()


@pytest.mark.parametrize("hole", ["zeros", "cut"])
@pytest.mark.parametrize("progressive", [False, True])
def test_a_jpeg_with_a_hole_fails_its_frame(
    tmp_path: Path, hole: str, progressive: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its header and its end are whole, and OpenCV decodes it into grey."""
    whole = smooth_jpeg(progressive=progressive)
    start, end = len(whole) // 2, len(whole) // 2 + 1500
    damaged = whole[:start] + (bytes(1500) if hole == "zeros" else b"") + whole[end:]
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
    "how",
    [
        {"subsampling": 0},
        {"subsampling": "4:1:1", "progressive": True},
        {"mode": "L"},
        {"mode": "CMYK"},
        {"restart_marker_blocks": 5},
        {"quality": 1, "optimize": True},
    ],
)
def test_a_whole_jpeg_of_any_kind_is_no_damaged_one(tmp_path: Path, how: dict[str, Any]) -> None:
    (tmp_path / "a.jpg").write_bytes(smooth_jpeg(**how) + b"what some cameras append")
    (frame,) = open_source(tmp_path).frames()
    assert (frame.error, frame.image is None) == (None, False)


def test_a_path_that_exists_is_taken_as_it_is_and_its_image_is_rgb(tmp_path: Path) -> None:
    write_images(tmp_path, "shot[1].png", "shot1.png")
    (frame,) = open_source(tmp_path / "shot[1].png").frames()
    assert frame.name == "shot[1]"
    np.testing.assert_array_equal(frame.image, picture()[..., ::-1])


@pytest.mark.parametrize(
    "spec",
    ["missing.png", "missing/*.png", "empty", "notes.txt", "broken.mp4", "videos", "videos/*"],
)
def test_bad_input_is_one_clear_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], spec: str
) -> None:
    (tmp_path / "empty").mkdir()
    touch(tmp_path / "videos" / "drive.mp4", tmp_path / "notes.txt")
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    with pytest.raises(InputError) as error:
        open_source(tmp_path / spec)
    assert spec.split("/")[0] in error.value.message
    assert "\n" not in str(error.value)
    assert ("drive.mp4" in error.value.hint) == spec.startswith("videos")
    assert capfd.readouterr().err == ""  # nor does a decoder add lines of its own


@pytest.mark.parametrize("names", [("a.png", "a.jpg"), ("caf\u00e9.png", "cafe\u0301.png")])
def test_two_files_of_one_name_are_refused(tmp_path: Path, names: tuple[str, str]) -> None:
    write_images(tmp_path, *names)
    with pytest.raises(InputError, match="both frame"):
        open_source(tmp_path)


def test_hidden_files_are_no_frames(tmp_path: Path) -> None:
    names = write_pictures(tmp_path / ".stick" / "in", 4)  # what lies above the input may be hidden
    for name in names:
        path = tmp_path / ".stick/in" / f"{name}.png"
        path.with_name(f"._{path.name}").write_bytes(bytes.fromhex("0005160700020000") + bytes(200))
    write_images(tmp_path, ".stick/in/.trash/old.png")
    for spec in ("", "/**/*.png"):
        frames = open_source(f"{tmp_path}/.stick/in{spec}").frames()
        assert [(frame.name, frame.error) for frame in frames] == [(name, None) for name in names]
    touch(tmp_path / "films/drive.mp4", tmp_path / "films/._drive.mp4", tmp_path / "films/._a.png")
    (film,) = plan_inputs([str(tmp_path / "films")], tmp_path)
    assert film.spec == str(tmp_path / "films/drive.mp4")


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".bmp", ".webp", ".tif"])
def test_truncated_file_fails_its_frame_and_the_rest_goes_on(tmp_path: Path, suffix: str) -> None:
    data = encoded(suffix)
    for name, content in {"a": data, "b": data[: len(data) * 2 // 3], "c": data}.items():
        (tmp_path / f"{name}{suffix}").write_bytes(content)
    frames = list(open_source(tmp_path).frames())
    assert [f.error is None for f in frames] == [True, False, True]
    assert frames[1].image is None
    assert f"b{suffix}" in (frames[1].error or "")
    # What is skipped is not decoded.
    frames = list(open_source(tmp_path).frames(lambda index, name: name == "b"))
    assert [(f.name, f.index, f.error) for f in frames] == [("a", 0, None), ("c", 2, None)]


@pytest.mark.parametrize(
    "names",
    [
        ["a", "a-1", "a.b", "a/c"],  # in a listing a-1.png stands before a.png
        ["frame_1", "frame_2", "frame_9", "frame_10", "frame_11", "frame_100"],
        ["run2_7", "run2_12", "run10_3"],
        ["007", "7", "8", "08b", "10"],  # of one number the text decides
        [
            "1403636579.12",
            "1403636579.363",
            "1403636579.4",
            "1403636580.1",
        ],  # seconds with fractions
        [f"{number:020d}" for number in (9, 10, 10**19)],
        ["f_1", "e\u0301_2", "\u00e9_10"],  # the same letter as two signs and as one
    ],
)
def test_numbers_in_names_are_in_their_order(tmp_path: Path, names: list[str]) -> None:
    write_images(tmp_path, *(f"{name}.png" for name in reversed(names)))
    assert [frame.name for frame in open_source(f"{tmp_path}/**/*.png").frames()] == names
    part = open_source(tmp_path, selection=Selection(2))
    assert [(frame.index, frame.name) for frame in part.frames()] == list(enumerate(names[::2]))
    assert [part.name_of(index) for index in range(len(names))] == names[::2] + [None] * (
        len(names) // 2
    )
    with pytest.raises(InputError, match="no times"):
        open_source(tmp_path, selection=Selection(start=1.0))
    with pytest.raises(InputError, match="not later"):
        Selection(end=0.0)


def test_a_stamp_tells_a_replaced_file_from_a_touched_one(tmp_path: Path) -> None:
    path = tmp_path / "x.bmp"
    cv2.imwrite(str(path), np.zeros((90, 90, 3), np.uint8))
    source = open_source(path)
    before = source.stamp(0)
    assert before == next(source.frames()).stamp
    os.utime(path, ns=(1, 1))
    assert source.stamp(0) == before
    other = np.zeros((90, 90, 3), np.uint8)
    other[0, 0] = 1
    cv2.imwrite(str(path), other)  # of the same size in bytes
    assert source.stamp(0) != before


@given(st.integers(0, 10**9))
def test_what_is_printed_is_read_back(milliseconds: int) -> None:
    assert round(parse_time(format_time(milliseconds / 1000)) * 1000) == milliseconds


def test_times_are_read_and_other_forms_refused() -> None:
    times = {
        "90": 90.0,
        "90.5": 90.5,
        "1:30": 90.0,
        "0:01:30.25": 90.25,
        "2:00:00": 7200.0,
        "100:00": 6000.0,
    }
    assert [parse_time(text) for text in times] == list(times.values())
    for text in ("", "-1", "1:60", "1:2:3:4", "noon", "1.5:00", "nan", "inf", "1:-2", "1::2"):
        with pytest.raises(InputError):
            parse_time(text)


def test_each_input_has_a_folder_whose_name_grows_until_it_differs(tmp_path: Path) -> None:
    names = ("monday/front.mp4", "tuesday/front.mp4", "rear.v2.mp4", "pictures.day")
    paths = [tmp_path / name for name in names]
    touch(*paths[:3], paths[3] / "a.png", tmp_path / "front.webm", tmp_path / "front.mp4")
    inputs = plan_inputs([str(path) for path in paths], tmp_path)
    assert [each.out.name for each in inputs] == [
        "monday_front",
        "tuesday_front",
        "rear.v2",
        "pictures.day",
    ]
    for other in (tmp_path / "front.webm", tmp_path / "front.mp4"):
        with pytest.raises(InputError, match=r"maps folder .*front'"):
            plan_inputs([str(tmp_path / "front.webm"), str(other)], tmp_path)
    for spec in ("nowhere/*.mp4", "nowhere.mp4"):  # a single one is not looked for
        assert plan_inputs([spec], tmp_path) == [Input(spec, tmp_path, "")]


def test_a_folder_or_pattern_of_videos_alone_stands_for_its_videos(tmp_path: Path) -> None:
    touch(tmp_path / "day/b.mp4", tmp_path / "day/a.WEBM", tmp_path / "day/notes.txt")
    for spec in (tmp_path / "day", f"{tmp_path}/day/*", f"{tmp_path}/**/*.*"):
        inputs = plan_inputs([str(spec)], tmp_path / "out")
        assert [(Path(each.spec).name, each.out.name) for each in inputs] == [
            ("a.WEBM", "a"),
            ("b.mp4", "b"),
        ]
    touch(tmp_path / "day/deep/er/one.png")
    for spec in (str(tmp_path / "day"), f"{tmp_path}/**/*"):
        assert [each.spec for each in plan_inputs([spec], tmp_path)] == [spec]


def test_files_named_as_labels_are_left_out_and_said(tmp_path: Path) -> None:
    labels = ["a_mask.png", "day/b_gtFine_labelIds.png", "labels/c.png", "trainannot/d.png"]
    write_images(
        tmp_path, "a.jpg", "day/b.png", "day/c.tif", "a.labels/labels_semantic.png", *labels
    )
    for spec in (tmp_path, f"{tmp_path}/**/*"):
        source = open_source(spec, all_images=False)
        assert [source.name_of(index) for index in range(source.length or 0)] == [
            "a",
            "day/b",
            "day/c",
        ]
        assert "3 images; 5 others left out" in source.notes[0]
        every = open_source(spec)
        assert (every.length, every.notes) == (8, ())
    # Of labels alone nothing is left out.
    assert open_source(tmp_path / "labels", all_images=False).length == 1
