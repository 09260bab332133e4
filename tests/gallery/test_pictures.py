"""Pictures for print: fixed colours, a legible legend, outlines where the labels are; and videos at
the source's rate.
"""

from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pytest

import segunc
from segunc.colours import DisplayRange, colour_table, colourise, display_range, levels
from segunc.core.errors import InputError, NoteWarning, PartialFailure
from segunc.data.images import read_image
from segunc.frames.video import BT709
from segunc.gallery import drawing
from segunc.gallery.colours import page_ranges
from segunc.gallery.drawing import (
    FLAGGED,
    FLAGGED_STROKES,
    LABELLED,
    MINIMUM_TEXT,
    Legend,
    blend,
    draw_overlay,
    draw_scores,
)
from segunc.gallery.pictures import OVERLAY_NAME, CropWindow, draw_crop, frame_rate, write_video
from segunc.maps.encoding import encode_jpeg
from segunc.maps.reader import MapsReader
from segunc.maps.store import MapsWriter
from tests.maps.fakes import manifest
from tests.support.scenes import (
    NAMES,
    SCORES,
    Scene,
    draw,
    write_maps,
    write_page,
    write_video_scene,
)
from tests.support.videos import decoded

NOTE = "ABNN, 4 members, 24 draws, seed 0, scope all"


def test_a_legend_writes_a_threshold_so_that_it_can_be_copied() -> None:
    assert legend("anomaly", 2.60546875).flagged.endswith(">= 2.6054687")


def legend(score: str = "entropy", threshold: float | None = None) -> Legend:
    return Legend(score, "share of ln C", display_range(score), NOTE, threshold)


def image(height: int = 360, width: int = 640) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (height, width, 3), np.uint8)


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Every text that is drawn from now on, with the height of its capitals."""
    texts: dict[str, int] = {}
    put = drawing.cv2.putText

    def note(
        picture: np.ndarray,
        text: str,
        origin: tuple[int, int],
        font: int,
        scale: float,
        *rest: object,
    ) -> object:
        (width, height), below = drawing.cv2.getTextSize(text, font, scale, 1)
        assert origin[0] >= 0
        assert origin[0] + width <= picture.shape[1], f"'{text}' leaves the picture"
        assert origin[1] - height >= 0
        assert origin[1] + below <= picture.shape[0], f"'{text}' is cut below"
        texts[text] = height
        return put(picture, text, origin, font, scale, *rest)

    monkeypatch.setattr(drawing.cv2, "putText", note)
    return texts


def test_lightness_rises_evenly_to_a_saturated_colour() -> None:
    """What makes a map readable in grey and to colour-blind eyes: CIE L* rises with the value,
    without jumps.
    """
    lab = cv2.cvtColor(colour_table()[None].astype(np.float32) / 255, cv2.COLOR_RGB2LAB)[0]
    steps = np.diff(lab[::8, 0])
    assert steps.min() > 0
    assert steps.max() < 3 * steps.mean()
    # White lane markings must not be taken for the highest score.
    assert colour_table()[255].astype(int).min() < 60


def test_ranges_are_fixed_and_mark_their_open_ends() -> None:
    ends = colourise(np.array([[0.1, 0.11, 1.0]]), display_range("epistemic"))
    np.testing.assert_array_equal(ends, np.broadcast_to(colour_table()[255], (1, 3, 3)))
    found = levels(np.array([[-3.0, -1.0, 0.4, 5.0]]), DisplayRange(-2, 2))
    np.testing.assert_array_equal(found, [[0, 64, 153, 255]])
    assert display_range("epistemic").ticks == ("0", "0.05", ">= 0.1")
    assert display_range("epistemic", (0, 1)).ticks == ("0", "0.5", "1")
    assert display_range("deterministic-max-logit", (-20, 0)).ticks == ("<= -20", "-10", ">= 0")
    for own in (None, (1, 0), (0, 0), (0, float("nan"))):
        with pytest.raises(InputError, match="range"):
            display_range("deterministic-max-logit", own)


def test_one_value_has_one_colour_in_a_calm_and_a_wild_frame() -> None:
    picture, calm = image(), np.full((360, 640), 0.1, np.float32)
    wild = calm.copy()
    wild[:100] = 0.95
    a, b = draw_overlay(picture, calm, legend()), draw_overlay(picture, wild, legend())
    np.testing.assert_array_equal(a[100:], b[100:])
    assert (a[:100] != b[:100]).any(axis=2).mean() > 0.99
    mixed = blend(np.full(256, 100, np.float32), np.arange(256)).astype(int)
    np.testing.assert_allclose(
        mixed[255], 0.15 * 100 + 0.85 * colour_table()[255].astype(int), atol=1
    )
    np.testing.assert_allclose(mixed[0], 0.9 * 100 + 0.1 * colour_table()[0].astype(int), atol=1)


@pytest.mark.parametrize(
    ("height", "width"),
    [
        (60, 80),
        (1024, 2048),
    ],
)
def test_legend_names_score_unit_range_and_model_at_every_size(
    texts: dict[str, int], height: int, width: int
) -> None:
    values = np.zeros((height, width), np.float32)
    picture = draw_overlay(
        image(height, width),
        values,
        legend("epistemic"),
        caption="Straße: frame 000120, 0:00:04.800",
    )
    said = {
        "Epistemic (model)",
        "0 = all draws agree; more: they contradict each other",
        "0",
        "0.05",
        ">= 0.1",
    }
    assert said | {"Stra?e: frame 000120, 0:00:04.800"} <= texts.keys()
    assert any(text.startswith("ABNN, 4 members, 24 draws") for text in texts)
    assert min(texts.values()) >= MINIMUM_TEXT - 1
    assert picture.shape[1] >= 640
    assert picture.shape[1] % width == 0


def test_sizes_of_labels_and_maps() -> None:
    with pytest.raises(InputError, match="8x4 pixels for an image of 640x360"):
        draw_overlay(
            image(), np.zeros((360, 640), np.float32), legend(), anomaly=np.zeros((4, 8), bool)
        )
    with pytest.raises(InputError, match="is too large"):
        draw_overlay(image(40_000, 1), np.zeros((1, 1), np.float32), legend())
    scores = np.zeros((9, 16), np.float32)
    scores[-1, -1] = 1
    picture = draw_overlay(np.zeros((360, 640, 3), np.uint8), scores, legend())[:360]
    assert (picture[325:, 605:, 0] > 180).all()
    assert (picture[:315, :, 0] < 60).all()


@pytest.fixture
def outlined_scene() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A flat image, a map with a square at 0.4, and a labelled square elsewhere."""
    photo = np.full((360, 640, 3), 90, np.uint8)
    values = np.full((360, 640), 0.2, np.float32)
    values[100:200, 300:400] = 0.4
    anomaly = np.zeros((360, 640), bool)
    anomaly[20:60, 20:60] = True
    return photo, values, anomaly


FLAGGED_AT = np.float32(0.4)  # pixels at the threshold are flagged


def test_the_legend_names_what_is_flagged_and_labelled(
    texts: dict[str, int], outlined_scene: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> None:
    photo, values, anomaly = outlined_scene
    draw_overlay(photo, values, legend(threshold=FLAGGED_AT), anomaly=anomaly)
    assert {"Entropy", "Flagged: entropy >= 0.4", "Outlined: labelled anomaly"} <= texts.keys()


def test_what_is_flagged_or_labelled_is_outlined(
    outlined_scene: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    photo, values, anomaly = outlined_scene
    plain = draw_overlay(photo, values, legend())
    outlined = draw_overlay(photo, values, legend(threshold=FLAGGED_AT), anomaly=anomaly)
    assert (plain[120:180, 310:390] == outlined[120:180, 310:390]).all()
    for colour, place in ((FLAGGED, np.s_[95:205, 295:405]), (LABELLED, np.s_[15:65, 15:65])):
        # Lines are smoothed.
        coloured = (np.abs(outlined[:360].astype(int) - colour) < 60).all(axis=2)
        assert coloured[place].sum() == coloured.sum() > 0
        # The legend's line is 24 pixels long, and that of flagged pixels one pixel thick.
        assert (outlined[360:] == colour).all(axis=2).sum() >= 24


def test_a_mark_lies_at_the_threshold_on_the_bar(
    outlined_scene: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    photo, values, anomaly = outlined_scene
    outlined = draw_overlay(photo, values, legend(threshold=FLAGGED_AT), anomaly=anomaly)
    left = round(640 * 0.55)
    right = 640 - 12
    marked = np.flatnonzero((outlined[360 : 360 + 20] == FLAGGED).all(axis=2).any(axis=0))
    assert abs(marked.mean() - (left + 0.4 * (right - left))) < 2


def lines_across(profile: np.ndarray) -> int:
    """Count the separate light lines along a profile of grey values."""
    light = np.concatenate([[False], profile > 128])
    return int((light[1:] & ~light[:-1]).sum())


@pytest.mark.parametrize("width", [640, 2048])
def test_outlines_are_told_apart_by_their_lines_in_grey(width: int) -> None:
    height = width // 2
    dark = np.full((height, width, 3), 40, np.uint8)
    values = np.zeros((height, width), np.float32)
    values[height // 4 : height // 2, width // 8 : width // 4] = 0.5
    anomaly = np.zeros((height, width), bool)
    anomaly[height // 4 : height // 2, width // 2 : width * 3 // 4] = True
    picture = draw_overlay(dark, values, legend(threshold=0.5), anomaly=anomaly)
    grey = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY)
    column_flagged = grey[: height * 3 // 8, width * 3 // 16]
    column_labelled = grey[: height * 3 // 8, width * 5 // 8]
    assert lines_across(column_labelled) == 2
    assert lines_across(column_flagged[: height // 4 + 1]) == 1
    # The samples of the legend: the first row is what is flagged, the second the label.
    size = max(MINIMUM_TEXT, width // 72)
    left = round(width * 0.55) + size
    flagged_row = height + round(size * 5.7)
    labelled_row = flagged_row + round(1.9 * size)
    assert dark_edges(grey, labelled_row, left, size) > dark_edges(grey, flagged_row, left, size)


def dark_edges(grey: np.ndarray, baseline: int, left: int, size: int) -> int:
    """Count the edges of dark lines down a sample of the legend."""
    sample = grey[baseline - size + 1 : baseline - 1, left]
    return int(np.abs(np.diff((sample < 20).astype(int))).sum())


def names(folder: Path) -> list[str]:
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )


def test_overlays_are_written_for_each_score_and_frame(scene: Scene, tmp_path: Path) -> None:
    scores = ("entropy", "deterministic-max-logit")
    written = draw(scene.maps, tmp_path / "out", score=scores, anomaly_labels=scene.anomaly)
    assert written.failed == {}
    expected = []
    for score in scores:
        expected.append(f"overlay-{score}/{OVERLAY_NAME}")
        expected.extend(f"overlay-{score}/{name}.png" for name in NAMES)
    assert names(tmp_path / "out") == sorted(expected)
    folder = tmp_path / "out/overlay-entropy"
    assert written.pictures["overlay-entropy"] == [folder / f"{name}.png" for name in NAMES]


@pytest.mark.parametrize("score", ["entropy", "deterministic-max-logit"])
def test_overlays_are_those_of_the_one_drawing_code(
    scene: Scene, tmp_path: Path, score: str
) -> None:
    name = NAMES[1]
    draw(scene.maps, tmp_path, score=[score], anomaly_labels=scene.anomaly)
    reader = MapsReader(scene.maps)
    shown = page_ranges(reader, [score])[score]  # of the whole set, as on the page
    picture = draw_overlay(
        read_image(scene.images / f"{name}.png"),
        reader.read(name, score),
        Legend.of(reader.manifest, score, shown),
        anomaly=read_image(scene.anomaly / f"{name}.png")[..., 0] == 1,
        caption=f"Frame {name}",
    )
    written = read_image(tmp_path / f"overlay-{score}" / f"{name}.png")
    np.testing.assert_array_equal(written, picture)


def test_frames_and_their_format_are_chosen(scene: Scene, tmp_path: Path) -> None:
    written = draw(scene.maps, tmp_path, frames=[f"{NAMES[0]}.png", "sub/*"], format="jpg")
    pictures = [path.name for path in written.pictures["overlay-entropy"]]
    assert pictures == [f"{Path(NAMES[place]).name}.jpg" for place in (0, 3, 4, 5)]


def test_frames_are_chosen_by_a_regular_expression_as_evaluate_does(
    scene: Scene, tmp_path: Path
) -> None:
    written = draw(scene.maps, tmp_path, frames=["^sub/.*"])
    assert written.pictures == draw(scene.maps, tmp_path, frames=["sub/*"]).pictures
    assert len(written.pictures["overlay-entropy"]) == 3
    with pytest.raises(InputError, match=r"no frame of .* is named 'sub'"):
        draw(scene.maps, tmp_path, frames=["sub"])  # a name alone is that of a frame


def test_a_range_that_is_asked_for_is_drawn(scene: Scene, tmp_path: Path) -> None:
    ranges = {"entropy": (0.0, 0.01)}
    draw(scene.maps, tmp_path, score=["entropy"], frames=[NAMES[5]], ranges=ranges)
    picture = read_image(tmp_path / "overlay-entropy" / f"{NAMES[5]}.png")[:480]
    grey = picture - 0.85 * colour_table()[255]  # every pixel is at the upper end
    assert np.ptp(grey, axis=2).max() <= 1.5


def test_anomaly_is_drawn_where_it_is_written(scene: Scene, tmp_path: Path) -> None:
    maps = write_maps(scene.images, tmp_path / "maps", scores=(*SCORES, "anomaly"))
    with_anomaly = draw(maps, tmp_path / "out", frames=[NAMES[0]])
    assert list(with_anomaly.pictures) == ["overlay-anomaly"]
    without = draw(scene.maps, tmp_path / "out", frames=[NAMES[0]])
    assert list(without.pictures) == ["overlay-entropy"]


def test_the_score_of_a_threshold_is_drawn(scene: Scene, tmp_path: Path) -> None:
    written = draw(scene.maps, tmp_path / "out", frames=[NAMES[0]], flag={"epistemic": 0.1})
    assert list(written.pictures) == ["overlay-epistemic"]


def test_a_damaged_map_does_not_stop_the_others(scene: Scene, copy: Path, tmp_path: Path) -> None:
    (copy / "entropy" / f"{NAMES[0]}.png").write_bytes(b"broken")
    written = draw(copy, tmp_path / "damaged")
    assert list(written.failed) == [NAMES[0]]
    assert len(written.pictures["overlay-entropy"]) == len(NAMES) - 1


def test_maps_without_images_are_refused(tmp_path: Path) -> None:
    maps = write_video_scene(tmp_path, 3)
    with pytest.raises(InputError, match=r"overlays of .* need images.*`images` PATH") as caught:
        draw(maps, tmp_path / "out")
    assert "only maps are shown" not in str(caught.value)  # of an overlay, nothing is shown


def test_with_images_of_other_frames_every_frame_fails(scene: Scene, tmp_path: Path) -> None:
    maps = write_video_scene(tmp_path, 3)
    written = draw(maps, tmp_path / "out", images=scene.images)
    first = "first 000000 (frame 000000 has no image"
    assert written.failure.startswith(f"3 frames could not be drawn, {first}")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"score": ["entropie"]}, "'entropie' has no maps"),
        ({"frames": ["nothing*"]}, r"no frame of .* is named 'nothing\*'"),
        ({"ranges": {"deterministic-energy": (0, 1)}}, "'deterministic-energy' has no maps"),
        (
            {"flag": {"epistemic": 0.1}, "score": ["entropy"]},
            "'epistemic' has a threshold but is not drawn",
        ),
    ],
)
def test_what_the_maps_do_not_hold_is_refused(
    scene: Scene, tmp_path: Path, asked: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        draw(scene.maps, tmp_path / "out", **asked)
    assert not (tmp_path / "out").exists()


def test_a_file_in_the_place_of_the_record_is_kept(scene: Scene, tmp_path: Path) -> None:
    record = tmp_path / "overlay-entropy" / OVERLAY_NAME
    record.parent.mkdir()
    record.write_text("[1]")
    with pytest.raises(InputError, match=r"overlay-entropy/overlay\.json, which is in no record"):
        draw(scene.maps, tmp_path, score=["entropy"])
    assert names(tmp_path) == [f"overlay-entropy/{OVERLAY_NAME}"]
    record.unlink()
    for _ in range(2):  # its own record is replaced
        draw(scene.maps, tmp_path, score=["entropy"])


def test_no_picture_is_written_into_a_maps_folder(scene: Scene, copy: Path) -> None:
    before = names(copy)
    for maps, out in ((copy, copy), (copy, copy / "pictures"), (scene.maps, copy)):
        with pytest.raises(InputError, match="is or lies inside a maps folder"):
            draw(maps, out)
    assert names(copy) == before


def jpegs(folder: Path, *pictures: np.ndarray) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{index:06d}.jpg" for index in range(len(pictures))]
    for path, picture in zip(paths, pictures, strict=True):
        path.write_bytes(encode_jpeg(picture))
    return paths


def flat(colour: Any, height: int = 61, width: int = 81) -> np.ndarray:
    return np.full((height, width, 3), colour, np.uint8)


COLOURS = (
    (240, 249, 33),
    (13, 8, 135),
    (204, 71, 120),
    (22, 22, 26),
    (236, 236, 240),
)
SECONDS = (3.0, 3.04, 3.5, 3.5, 4.2)  # of a range of a video; two frames of one moment


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    return jpegs(tmp_path / "overlay", *map(flat, COLOURS))


def test_a_video_has_all_frames_and_colours(pictures: list[Path], tmp_path: Path) -> None:
    out = write_video(pictures, tmp_path / "overlay.webm", 30000 / 1001)
    times, frames = decoded(out)
    assert [round(time * 30000 / 1001) for time in times] == list(range(5))
    for frame, colour in zip(frames, COLOURS, strict=True):
        assert frame.shape == (60, 80, 3)
        assert np.abs(frame.astype(int) - colour).max() <= 8
    assert names(tmp_path) == ["overlay.webm", *(f"overlay/{path.name}" for path in pictures)]


def test_pictures_of_another_size_are_fitted_into_the_video(tmp_path: Path) -> None:
    wide = flat((200, 200, 200), 30, 81)
    pictures = jpegs(tmp_path / "overlay", flat((240, 249, 33)), wide, flat((13, 8, 135), 120, 40))
    said = r"overlay\.webm change .*, first at .*1, which has 30 x 81 pixels after 61 x 81; each"
    with pytest.warns(NoteWarning, match=said) as notes:
        out = write_video(pictures, tmp_path / "overlay.webm", 10)
    assert len(notes) == 1
    _, frames = decoded(out)
    assert [frame.shape for frame in frames] == [(120, 80, 3)] * 3
    # The rows and columns of each picture, in the middle.
    shown = [frame.max(axis=2) > 90 for frame in frames]
    parts = [(mask.any(axis=1).sum(), mask.any(axis=0).sum()) for mask in shown]
    assert parts == [(60, 80), (30, 80), (120, 40)]
    assert [int(mask.any(axis=1).argmax()) for mask in shown] == [30, 45, 0]
    assert [int(mask.any(axis=0).argmax()) for mask in shown] == [0, 0, 20]


@pytest.mark.parametrize("suffix", [".webm", ".mp4"])
def test_a_video_has_the_same_bytes_again(
    pictures: list[Path], tmp_path: Path, suffix: str
) -> None:
    first = write_video(pictures, tmp_path / f"first{suffix}", 10)
    again = write_video(pictures, tmp_path / f"again{suffix}", 10)
    assert first.read_bytes() == again.read_bytes()


def test_an_mp4_does_without_the_setting_of_x264_that_reads_unwritten_memory(
    pictures: list[Path], tmp_path: Path
) -> None:
    """Its other bytes come once in many thousands of videos, so x264's own record is read."""
    out = write_video(pictures, tmp_path / "overlay.mp4", 10)
    assert b"mbtree=0" in out.read_bytes()


def test_an_mp4_has_all_frames_and_colours(pictures: list[Path], tmp_path: Path) -> None:
    out = write_video(pictures, tmp_path / "overlay.mp4", 30000 / 1001)
    times, frames = decoded(out)
    assert [round(time * 30000 / 1001) for time in times] == list(range(5))
    for frame, colour in zip(frames, COLOURS, strict=True):
        assert frame.shape == (60, 80, 3)
        assert np.abs(frame.astype(int) - colour).max() <= 8


def test_an_mp4_keeps_the_times_of_its_frames(pictures: list[Path], tmp_path: Path) -> None:
    out = write_video(pictures, tmp_path / "overlay.mp4", 4.0, SECONDS)
    times, _ = decoded(out)
    assert times == pytest.approx([0.0, 0.04, 0.5, 0.5, 1.2], abs=0.0011)


def test_an_mp4_says_what_its_colours_are(pictures: list[Path], tmp_path: Path) -> None:
    out = write_video(pictures, tmp_path / "overlay.mp4", 10)
    with av.open(str(out)) as container:
        codec = container.streams.video[0].codec_context
        assert codec.name == "h264"
        assert (codec.colorspace, codec.color_primaries, codec.color_trc) == (BT709, BT709, BT709)


def test_a_missing_encoder_is_named(
    pictures: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(av, "codecs_available", {"libvpx"})
    with pytest.raises(InputError, match=r"no encoder for MP4 \(H\.264\)"):
        write_video(pictures, tmp_path / "overlay.mp4", 10)
    assert not (tmp_path / "overlay.mp4").exists()


def test_a_video_keeps_the_times_of_its_frames(pictures: list[Path], tmp_path: Path) -> None:
    out = write_video(pictures, tmp_path / "overlay.webm", 4.0, SECONDS)
    times, _ = decoded(out)
    assert times == pytest.approx([0.0, 0.04, 0.5, 0.5, 1.2], abs=0.0011)


def test_a_video_with_an_unknown_time_has_a_fixed_rate(
    pictures: list[Path], tmp_path: Path
) -> None:
    out = write_video(pictures, tmp_path / "overlay.webm", 4.0, [*SECONDS[:4], None])
    times, _ = decoded(out)
    assert times == pytest.approx([0.0, 0.25, 0.5, 0.75, 1.0], abs=0.0011)


def test_a_wide_video_is_scaled_down(tmp_path: Path) -> None:
    wide = jpegs(tmp_path / "wide", flat(10, 700, 1400))
    _, (frame,) = decoded(write_video(wide, tmp_path / "wide.webm", 10))
    assert frame.shape == (640, 1280, 3)


def test_unfinished_video_leaves_no_file_and_keeps_the_old_one(tmp_path: Path) -> None:
    out = tmp_path / "overlay.webm"
    out.write_bytes(b"old")
    paths = jpegs(tmp_path / "overlay", *map(flat, (10, 18, 26)))
    for damage in (paths[2].read_bytes()[:-30], b"", b"no picture"):
        paths[2].write_bytes(damage)
        with pytest.raises(PartialFailure, match=r"000002\.jpg cannot be read"):
            write_video(paths, out, 25)
    assert out.read_bytes() == b"old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["overlay", "overlay.webm"]


def test_the_rate_is_that_of_the_frames_that_were_taken(tmp_path: Path) -> None:
    described = manifest(every=5) | {"source": {"kind": "video", "fps": 29.97}}
    MapsWriter(tmp_path / "maps", described).close()
    assert frame_rate(tmp_path / "maps") == pytest.approx(29.97 / 5)
    write_page(write_video_scene(tmp_path, 3, every=5), tmp_path / "page")
    assert 'fps\\":4.0,' in (tmp_path / "page/data/page.js").read_text()
    MapsWriter(tmp_path / "images", manifest()).close()
    with pytest.raises(InputError, match=r"record no frame rate.*give `fps`"):
        frame_rate(tmp_path / "images")


def test_the_line_around_a_hole_in_what_is_flagged_is_dashed(texts: dict[str, Any]) -> None:
    photo = np.full((360, 640, 3), 90, np.uint8)
    values = np.zeros((360, 640), np.float32)
    values[60:300, 100:500] = 0.9
    values[120:240, 200:400] = 0  # the hole
    picture = draw_overlay(photo, values, legend(threshold=FLAGGED_AT))
    coloured = (np.abs(picture.astype(int) - FLAGGED) < 60).all(axis=2)
    assert coloured[60, 120:480].all(), "the outer line is whole"
    line = coloured[118:123, 220:380].any(axis=0)
    assert 0.3 < line.mean() < 0.7, "that of the hole has as many gaps as dashes"
    assert "Dashed: a hole, not flagged" in texts


@pytest.mark.parametrize("is_most_flagged", [True, False])
def test_what_is_not_flagged_at_the_border_is_dashed_where_most_is_flagged(
    is_most_flagged: bool,
) -> None:
    photo = np.full((360, 640, 3), 90, np.uint8)
    flagged = np.ones((360, 640), bool)
    flagged[:120, 200:400] = False  # the sky
    values = np.where(flagged == is_most_flagged, 0.9, 0).astype(np.float32)
    picture = draw_overlay(photo, values, legend(threshold=FLAGGED_AT))
    coloured = (np.abs(picture.astype(int) - FLAGGED) < 60).all(axis=2)
    line = coloured[117:123, 220:380].any(axis=0)
    assert line.mean() < 0.7 if is_most_flagged else line.all()
    border = coloured[10:350, :3].any()
    assert not border, "no line runs around the picture"


def test_pixels_without_a_value_are_striped(texts: dict[str, Any]) -> None:
    photo = np.full((360, 640, 3), 90, np.uint8)
    values = np.zeros((360, 640), np.float32)
    plain = draw_overlay(photo, values, legend())
    values[100:200, 100:300] = np.nan
    striped = draw_overlay(photo, values, legend())
    inside = np.s_[101:199, 101:299]
    assert (striped[inside] < plain[inside]).all()
    assert len(np.unique(striped[inside])) > 1
    assert (striped[210:360] == plain[210:360]).all()
    assert any(text.endswith("; striped: no value") for text in texts)


@pytest.mark.parametrize("scale", [1, 2])
@pytest.mark.parametrize(
    "box",
    [(0, 0, 400, 100), (0, 40, 400, 20), (380, 80, 20, 20), (0, 0, 20, 100), (90, 30, 20, 20)],
)
def test_a_crop_holds_all_edges_of_its_box(box: tuple[int, int, int, int], scale: int) -> None:
    """Also of a box that is wider than a view of the frame, or touches its border."""
    view_shape = (180 * scale, 240 * scale)
    shape = (100, 400)
    left, top, width, height = box
    window = CropWindow.around(box, shape, scale)
    for x, y in (window.place(left, top), window.place(left + width, top + height)):
        assert 5 <= x < view_shape[1] - 5
        assert 5 <= y < view_shape[0] - 5
    picture = np.full((*shape, 3), 99, np.uint8)
    view = window.view(picture)
    assert view.shape == (*view_shape, 3)
    # The frame is where the window says: within the box there is no pixel beside it.
    (x, y), (right, bottom) = window.place(left, top), window.place(left + width, top + height)
    assert (view[y + 2 : bottom - 2, x + 2 : right - 2] == 99).all()


def test_no_outline_lies_around_pixels_that_a_mask_leaves_out() -> None:
    """Maps hold 0 there, which is at or above a threshold of an energy."""
    values = np.full((60, 80), -9, np.float32)
    kept = np.ones((60, 80), bool)
    kept[20:40, 30:50] = False
    values[~kept] = 0
    shown = Legend("deterministic-max-logit", "", DisplayRange(-10, 0), threshold=-5.0)
    black = np.zeros((60, 80, 3), np.uint8)

    def has_line(mask: np.ndarray | None) -> bool:
        picture, _ = draw_scores(black, values, shown, (640, 480), kept=mask)
        return bool((picture[:, :, 2].astype(int) - picture[:, :, 0] > 150).any())

    assert has_line(None)
    assert not has_line(kept)


def test_outlines_of_a_crop_go_on_beyond_its_view() -> None:
    """A region that the view cuts has no line along the edge of the view."""
    mask = np.zeros((100, 400), bool)
    mask[40:60] = True
    black = np.zeros((100, 400, 3), np.uint8)
    jpeg = draw_crop((195, 45, 10, 10), None, black, [(mask, FLAGGED_STROKES)])
    view = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR_RGB)
    window = CropWindow.around((195, 45, 10, 10), mask.shape)
    is_line = view[:, :, 2].astype(int) - view[:, :, 0] > 100
    _, above = window.place(195, 40)
    _, below = window.place(195, 60)
    assert is_line[above - 2 : above + 3].any(axis=0).mean() > 0.9
    assert not is_line[above + 10 : below - 10, :6].any()


def test_overlay_and_summary_name_frames_that_the_bank_of_features_seems_to_hold(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = {"features_sha256": "0" * 64}
    scores = ("entropy", "anomaly")
    maps = write_maps(scene.images, tmp_path / "m", scores=scores, recorded=recorded)
    without_bank = write_maps(scene.images, tmp_path / "n", scores=scores)

    def notes_of(folder: Path) -> list[list[str]]:
        drawn = segunc.overlay(folder, out=tmp_path / "figures", frames=[NAMES[0]])
        results: list[Any] = [drawn, segunc.summary(folder)]
        return [[note for note in result.notes if "bank of" in note] for result in results]

    assert notes_of(maps) == [[], []]
    monkeypatch.setattr("segunc.maps.known_frames.KNOWN_BELOW", 100.0)
    for (note,) in notes_of(maps):
        assert note.startswith("6 of 6 frames have no pixel of anomaly from 100.0 on, first a dark")
    assert notes_of(without_bank) == [[], []]
