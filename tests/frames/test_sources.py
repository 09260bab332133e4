"""Where frames come from: names, order, decoding, selections, several inputs, and every form of bad input."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as PilImage

from segunc.core.errors import InputError
from segunc.core.files import frame_order
from segunc.data.images import flat_values
from segunc.frames.source import Selection, format_time, parse_time
from segunc.frames.sources import open_source, plan_inputs
from segunc.options import PredictOptions
from tests.maps.fakes import write_pictures


def picture(height: int = 40, width: int = 60) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)


def encoded(suffix: str) -> bytes:
    return cv2.imencode(suffix, picture())[1].tobytes()


def test_folder_is_read_in_the_order_of_relative_names(tmp_path: Path) -> None:
    names = write_pictures(tmp_path, 5)
    (tmp_path / "notes.txt").write_text("no image")
    source = open_source(tmp_path)
    assert [(f.name, f.index) for f in source] == [(name, i) for i, name in enumerate(sorted(names))]
    assert (source.kind, source.length, source.fps) == ("folder", 5, None)


def test_image_is_rgb_and_named_by_its_stem(tmp_path: Path) -> None:
    bgr = picture()
    cv2.imwrite(str(tmp_path / "one.png"), bgr)
    (frame,) = open_source(tmp_path / "one.png")
    assert frame.name == "one"
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
    ("spec", "said"),
    [
        ("missing.png", "does not exist"),
        ("missing/*.png", "matches no image"),
        ("empty", "holds no image"),
        ("notes.txt", "neither an image nor a video"),
        ("broken.mp4", "cannot be opened"),
        ("videos", "give the video itself"),
    ],
)
def test_bad_input_is_one_clear_line(tmp_path: Path, capfd: pytest.CaptureFixture[str], spec: str, said: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / "drive.mp4").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    with pytest.raises(InputError, match=said) as error:
        open_source(tmp_path / spec)
    assert "\n" not in str(error.value)
    assert capfd.readouterr().err == ""  # nor does a decoder add lines of its own


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "a.png"), picture())
    cv2.imwrite(str(tmp_path / "a.jpg"), picture())
    with pytest.raises(InputError, match="both frame 'a'"):
        open_source(tmp_path)


def test_two_spellings_of_one_letter_are_one_name(tmp_path: Path) -> None:
    for name in ("caf\u00e9", "cafe\u0301"):
        cv2.imwrite(str(tmp_path / f"{name}.png"), picture())
    with pytest.raises(InputError, match="both frame"):
        open_source(tmp_path)


def test_hidden_files_are_no_frames(tmp_path: Path) -> None:
    names = write_pictures(tmp_path / ".stick" / "in", 4)  # what lies above the input may be hidden
    for name in names:
        path = tmp_path / ".stick/in" / f"{name}.png"
        path.with_name(f"._{path.name}").write_bytes(bytes.fromhex("0005160700020000") + bytes(200))
    (tmp_path / ".stick/in/.trash").mkdir()
    cv2.imwrite(str(tmp_path / ".stick/in/.trash/old.png"), picture())
    for spec in ("", "/**/*.png"):
        assert [(frame.name, frame.error) for frame in open_source(f"{tmp_path}/.stick/in{spec}")] == [
            (name, None) for name in names
        ]
    touch(tmp_path / "films/drive.mp4", tmp_path / "films/._drive.mp4", tmp_path / "films/._a.png")
    assert [each.spec for each in plan_inputs([str(tmp_path / "films")], tmp_path)] == [
        str(tmp_path / "films/drive.mp4")
    ]


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


def test_every_nth_image_is_taken_in_name_order(tmp_path: Path) -> None:
    names = write_pictures(tmp_path, 7)
    source = open_source(tmp_path, selection=Selection(3))
    assert [(f.index, f.name) for f in source] == [(0, names[0]), (1, names[3]), (2, names[6])]
    assert source.length == 3
    assert [source.position(name) for name in (names[3], names[4], "zebra")] == [1, None, None]
    with pytest.raises(InputError, match="a start or end in time for the images"):
        open_source(tmp_path, selection=Selection(start=1.0))


@pytest.mark.parametrize("spec", ["", "/*.png"])
@pytest.mark.parametrize(
    "names",
    [
        ["frame_1", "frame_2", "frame_9", "frame_10", "frame_11", "frame_100"],
        ["run2_7", "run2_12", "run10_3"],
        ["007", "7", "8", "08b", "10"],  # of one number the text decides
        ["1403636579.12", "1403636579.363", "1403636579.4", "1403636580.1"],  # seconds with fractions
        [f"{number:020d}" for number in (9, 10, 10**19)],
        ["f_1", "e\u0301_2", "\u00e9_10"],  # the same letter as two signs and as one
    ],
)
def test_numbers_in_names_are_in_their_order(tmp_path: Path, names: list[str], spec: str) -> None:
    for name in reversed(names):
        cv2.imwrite(str(tmp_path / f"{name}.png"), picture())
    source = open_source(f"{tmp_path}{spec}")
    assert [frame.name for frame in source] == names
    assert [source.position(name) for name in names] == list(range(len(names)))
    assert [frame.name for frame in open_source(f"{tmp_path}{spec}", selection=Selection(2))] == names[::2]


@given(st.lists(st.text("ab-._/", max_size=3), min_size=3, max_size=3), st.lists(st.integers(0, 10**4), min_size=2))
def test_padded_names_sort_as_texts(parts: list[str], numbers: list[int]) -> None:
    names = [f"{parts[0]}{number:05d}{parts[1 + number % 2]}" for number in numbers]
    assert sorted(names, key=frame_order) == sorted(names)


def test_names_sort_before_suffixes(tmp_path: Path) -> None:
    """``a-1.png`` stands before ``a.png`` in a listing, but frame ``a`` before frame ``a-1``."""
    for name in ("a.png", "a-1.png", "a.b.png", "a/c.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        cv2.imwrite(str(tmp_path / name), picture())
    source = open_source(tmp_path)
    names = ["a", "a-1", "a.b", "a/c"]
    assert [source.name_of(place) for place in range(4)] == names
    assert [source.position(name) for name in names] == [0, 1, 2, 3]


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


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90.0), ("90.5", 90.5), ("1:30", 90.0), ("0:01:30.25", 90.25), ("2:00:00", 7200.0), ("100:00", 6000.0)],
)
def test_times_are_read(text: str, seconds: float) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize("text", ["", "-1", "1:60", "1:2:3:4", "noon", "1.5:00", "nan", "inf", "1:-2", "1::2"])
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="seconds or HH:MM:SS"):
        parse_time(text)


@given(st.integers(0, 10**9))
def test_what_is_printed_is_read_back(milliseconds: int) -> None:
    assert round(parse_time(format_time(milliseconds / 1000)) * 1000) == milliseconds


def test_impossible_selections_are_refused() -> None:
    for start, end in ((5.0, 5.0), (None, 0.0)):
        with pytest.raises(InputError, match="an end of"):
            Selection(start=start, end=end)
    with pytest.raises(InputError, match="`every` 0"):
        PredictOptions("model", "input", "out", every=0)


@given(st.integers(1, 7), st.integers(0, 50), st.integers(1, 60), st.integers(0, 120))
def test_the_expected_number_is_the_number_taken(every: int, start: int, length: int, frames: int) -> None:
    fps = 10.0
    selection = Selection(every, start / fps, (start + length) / fps)
    taken = sum(selection.takes(number, number / fps) for number in range(frames))
    # The raster of every N-th frame starts at the video's first frame, so a range may hold one more or less.
    assert abs(selection.expected(frames, fps) - taken) <= 1
    assert Selection(every).expected(frames, fps) == sum(Selection(every).takes(n, None) for n in range(frames))


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")


def folders(specs: list[Path | str], out: Path) -> list[str]:
    return [each.out.relative_to(out).as_posix() for each in plan_inputs([str(spec) for spec in specs], out)]


def test_a_single_input_has_the_output_folder_itself(tmp_path: Path) -> None:
    touch(tmp_path / "drive.mp4")
    (one,) = plan_inputs([str(tmp_path / "drive.mp4")], tmp_path / "maps")
    assert (one.spec, one.out, one.label) == (str(tmp_path / "drive.mp4"), tmp_path / "maps", "")


def test_names_grow_until_they_differ(tmp_path: Path) -> None:
    names = ("monday/front.mp4", "tuesday/front.mp4", "rear.v2.mp4", "pictures.day")
    paths = [tmp_path / name for name in names]
    touch(*paths[:3], paths[3] / "a.png")
    assert folders([*paths], tmp_path) == ["monday_front", "tuesday_front", "rear.v2", "pictures.day"]


def test_a_folder_or_pattern_of_videos_stands_for_its_videos(tmp_path: Path) -> None:
    touch(tmp_path / "day/b.mp4", tmp_path / "day/a.WEBM", tmp_path / "day/notes.txt")
    for spec in (tmp_path / "day", f"{tmp_path}/day/*", f"{tmp_path}/**/*.*"):
        found = plan_inputs([str(spec)], tmp_path / "out")
        assert [(Path(each.spec).name, each.out.name) for each in found] == [("a.WEBM", "a"), ("b.mp4", "b")]


def test_a_folder_or_pattern_with_images_stays_one_input(tmp_path: Path) -> None:
    touch(tmp_path / "day/b.mp4", tmp_path / "day/deep/er/one.png")
    assert [each.spec for each in plan_inputs([str(tmp_path / "day")], tmp_path)] == [str(tmp_path / "day")]
    assert len(plan_inputs([f"{tmp_path}/**/*"], tmp_path)) == 1


def test_names_that_cannot_differ_are_refused(tmp_path: Path) -> None:
    touch(tmp_path / "drive.mp4", tmp_path / "drive.webm")
    for other, said in (("drive.webm", "several inputs would have the maps folder"), ("drive.mp4", "given 2 times")):
        with pytest.raises(InputError, match=said):
            folders([tmp_path / "drive.mp4", tmp_path / other], tmp_path)


def test_nothing_found_is_left_to_the_opening(tmp_path: Path) -> None:
    assert plan_inputs(["nowhere/*.mp4"], tmp_path)[0].spec == "nowhere/*.mp4"
    assert plan_inputs(["nowhere.mp4"], tmp_path)[0].spec == "nowhere.mp4"


def write_image(path: Path, values: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), values)
    return path


def noise(*shape: int, dtype: type = np.uint8, most: int = 256) -> np.ndarray:
    return np.random.default_rng(1).integers(0, most, shape).astype(dtype)


def label(*values: int) -> np.ndarray:
    """Large areas of a few values, ``[120, 160]``."""
    found = np.full((120, 160), values[0], np.uint8)
    for place, value in enumerate(values[1:]):
        found[20:100, 10 + 30 * place : 30 + 30 * place] = value
    return found


def frames_of(root: Path, **settings: bool) -> list[str]:
    source = open_source(root, **({"all_images": False} | settings))
    return [source.name_of(place) or "" for place in range(source.length or 0)]


def test_labels_beside_frames_are_left_out_and_said(tmp_path: Path) -> None:
    """As Road Anomaly is published: seven files a photograph, those of ``NAME.labels`` in grey, in colour and even as a photograph."""
    for name in ("a", "b"):
        write_image(tmp_path / f"{name}.jpg", noise(120, 160, 3))
        inner = tmp_path / f"{name}.labels"
        write_image(inner / "labels_semantic.png", label(0, 2))
        write_image(inner / "labels_semantic_color.png", np.dstack([label(0, 200)] * 3))
        write_image(inner / "overlay.png", noise(120, 160, 3))
    assert frames_of(tmp_path) == ["a", "b"]
    source = open_source(tmp_path, all_images=False)
    said = f"{tmp_path}: 2 images; 6 others left out, which look like labels, e.g. a.labels/labels_semantic.png (--all-images takes them)"
    assert source.note == said
    assert len(frames_of(tmp_path, all_images=True)) == 8
    assert open_source(tmp_path).note == ""
    pattern = open_source(f"{tmp_path}/**/*", all_images=False)
    assert (pattern.length, "6 others left out" in pattern.note) == (2, True)
    # A label that bears the name of its photograph is no second frame of that name.
    write_image(tmp_path / "a.png", label(0, 1, 255))
    assert frames_of(tmp_path) == ["a", "b"]


def write_palette(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = PilImage.fromarray(values, mode="P")
    picture.putpalette([value % 256 for value in range(768)])
    picture.save(path)


@pytest.mark.parametrize(
    "write",
    [
        write_image,
        lambda path, values: write_image(path, values.astype(np.uint16) * 1001),
        lambda path, values: write_image(path, np.dstack([values * 9, 200 - values, values])),
        write_palette,
    ],
    ids=["ids", "instances of 16 bits", "colours", "palette"],
)
@pytest.mark.parametrize("place", ["annotations/{}.png", "images/{}_label.png", "images/{}/more.png"])
def test_each_kind_of_label_is_known_wherever_it_lies(
    tmp_path: Path, write: Callable[[Path, np.ndarray], object], place: str
) -> None:
    for name in "abcde":
        write_image(tmp_path / f"images/{name}.png", noise(120, 160, 3))
        # A mask without an anomaly goes with its kind.
        write(tmp_path / place.format(name), label(0) if name == "b" else label(0, 1, 2))
    assert frames_of(tmp_path) == [f"images/{name}" for name in "abcde"]


@pytest.mark.parametrize(
    "frame",
    [
        noise(120, 160),
        noise(120, 160, most=20),  # a thermal camera of few levels
        noise(120, 160, dtype=np.uint16, most=900),
        np.tile(np.linspace(0, 255, 160).astype(np.uint8), (120, 1)),  # without noise: a gradient
        np.tile(np.linspace(0, 12, 160).astype(np.uint8), (120, 1)),  # and faint
        np.full((120, 160), 3, np.uint8),  # nothing but black
    ],
    ids=["grey", "few levels", "16 bits", "gradient", "faint gradient", "black"],
)
def test_grey_frames_are_frames(tmp_path: Path, frame: np.ndarray) -> None:
    """Beside other images, so that something would be left if they went."""
    for name in ("a", "b", "c"):
        write_image(tmp_path / f"thermal/{name}.png", frame)
        write_image(tmp_path / f"colour/{name}.jpg", noise(120, 160, 3))
    assert frames_of(tmp_path) == [f"{folder}/{name}" for folder in ("colour", "thermal") for name in "abc"]
    assert open_source(tmp_path, all_images=False).note == ""


def test_a_frame_that_looks_like_a_label_stays_among_its_own(tmp_path: Path) -> None:
    """A covered lens, or a test card: what lies beside it in the same form tells that these are frames."""
    for index in range(12):
        write_image(tmp_path / f"{index:02d}.png", label(0, 9) if index == 5 else noise(120, 160))
        write_image(tmp_path / "masks" / f"{index:02d}.png", label(0, 1))
    assert frames_of(tmp_path) == [f"{index:02d}" for index in range(12)]


def test_of_labels_alone_nothing_is_left_out(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_image(tmp_path / f"{name}.png", label(0, 1))
    assert frames_of(tmp_path) == ["a", "b"]


def test_frames_are_told_by_their_heads_and_a_few_labels_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for index in range(40):
        write_image(tmp_path / f"images/{index}.png", noise(120, 160))
        write_image(tmp_path / f"labels/{index}.png", label(0, 1))
    decoded = []

    def look(path: Path) -> int:
        decoded.append(path.parent.name)
        return flat_values(path)

    monkeypatch.setattr("segunc.data.layout.flat_values", look)
    assert len(frames_of(tmp_path)) == 40
    assert decoded == ["labels"] * 14
