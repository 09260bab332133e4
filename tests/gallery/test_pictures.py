"""Pictures for print: the right frames, one range for all, lossless files, and never among the maps."""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from segunc.core.errors import InputError
from segunc.data.images import read_image
from segunc.gallery.colormap import colour_table, display_range, page_ranges
from segunc.gallery.overlay import THEMES, Legend, Sheet, draw_overlay
from segunc.gallery.pictures import encode_picture, write_pictures
from segunc.maps.reader import MapsReader
from tests.gallery.scenes import NAMES, Scene, write_video_scene


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_overlays_are_those_of_the_one_drawing_code(scene: Scene, tmp_path: Path) -> None:
    scores = ("entropy", "deterministic-max-logit")
    written = write_pictures(scene.maps, tmp_path / "out", scores=scores, anomaly_labels=scene.anomaly)
    assert written.failed == {}
    expected = [f"overlay-{score}/{name}.png" for score in scores for name in NAMES]
    assert names(tmp_path / "out") == sorted(expected)
    assert written.pictures["overlay-entropy"] == [tmp_path / "out/overlay-entropy" / f"{name}.png" for name in NAMES]
    reader = MapsReader(scene.maps)
    shown = page_ranges(reader)  # of the whole set, as on the page
    for score in scores:
        legend = Legend.of(reader.manifest, score, shown[score])
        mask = read_image(scene.anomaly / f"{NAMES[1]}.png")[..., 0] == 1
        image = read_image(scene.images / f"{NAMES[1]}.png")
        sheet = draw_overlay(image, reader.read(NAMES[1], score), legend, anomaly=mask, caption=f"frame {NAMES[1]}")
        picture = sheet.picture()
        np.testing.assert_array_equal(read_image(tmp_path / "out" / f"overlay-{score}" / f"{NAMES[1]}.png"), picture)


def test_panels_hold_what_is_there(scene: Scene, tmp_path: Path) -> None:
    written = write_pictures(scene.maps, tmp_path, panel=True, frames=[NAMES[0], "sub/*"], suffix="jpg")
    assert list(written.pictures) == ["panel"]
    assert [path.stem for path in written.pictures["panel"]] == [Path(NAMES[i]).name for i in (0, 3, 4, 5)]
    picture = read_image(tmp_path / "panel" / f"{NAMES[5]}.jpg")
    # Image, prediction and class legend; entropy and epistemic: aleatoric is not there.
    assert picture.shape[1] == 3 * 640 + 2 * 6
    assert picture.shape[0] > 2 * 480


def test_a_range_of_ones_own_is_used(scene: Scene, tmp_path: Path) -> None:
    ranges = {"entropy": (0.0, 0.01)}
    write_pictures(scene.maps, tmp_path, scores=["entropy"], panel=True, frames=[NAMES[5]], ranges=ranges)
    picture = read_image(tmp_path / "panel" / f"{NAMES[5]}.png")
    tile = picture[picture.shape[0] // 2 + 20 :][:200, :640]
    np.testing.assert_array_equal(np.unique(tile.reshape(-1, 3), axis=0), colour_table()[255:])


def test_a_pdf_is_lossless_of_print_resolution_and_the_same_again(scene: Scene, tmp_path: Path) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (301, 643, 3), np.uint8)
    sheet = Sheet(picture, THEMES["light"])
    sheet.write("frame 7 costs $5 and $6", 20, 200, 14, 600)
    sheet.scale(colour_table(), Legend("entropy", "", display_range("entropy"), "", 0.5), 20, 220, 400, 20, 14)
    data = encode_picture(sheet, "pdf")
    assert data == encode_picture(sheet, "pdf")
    # Text as characters of an embedded TrueType font, the bar as filled rectangles.
    assert b"/Subtype /Type3" not in data
    assert b"/FontFile2" in data
    drawn = [zlib.decompress(part) for part in re.findall(rb"stream\r?\n(x.*?)\r?\nendstream", data, re.DOTALL)]
    page = next(part for part in drawn if b"BT" in part)
    assert page.count(b"BT") == 4  # the line and three ticks
    assert len(re.findall(rb" rg$|\nf$", page, re.MULTILINE)) > 2 * 200
    stream = re.search(rb"/Subtype /Image.*?stream\r?\n(.*?)\r?\nendstream", data, re.DOTALL)
    assert {b"/Width 643", b"/Height 301"} <= set(re.findall(rb"/(?:Width|Height) \d+", data[: stream.start(1)]))
    raw = zlib.decompress(stream[1])
    # PNG rows, each behind the byte of its filter (PDF 1.7, 7.4.4.4): decoded by a PNG reader.
    body = b"".join(
        len(part).to_bytes(4, "big") + kind + part + zlib.crc32(kind + part).to_bytes(4, "big")
        for kind, part in (
            (b"IHDR", (643).to_bytes(4, "big") + (301).to_bytes(4, "big") + b"\x08\x02\x00\x00\x00"),
            (b"IDAT", zlib.compress(raw)),
            (b"IEND", b""),
        )
    )
    decoded = cv2.imdecode(np.frombuffer(b"\x89PNG\r\n\x1a\n" + body, np.uint8), cv2.IMREAD_COLOR)
    np.testing.assert_array_equal(decoded[..., ::-1], picture)
    box = re.search(rb"/MediaBox \[ ?0 0 ([0-9.]+) ([0-9.]+) ?\]", data)
    assert [float(side) for side in box.groups()] == pytest.approx([643 * 72 / 300, 301 * 72 / 300], abs=0.01)


def test_pictures_without_images(scene: Scene, tmp_path: Path) -> None:
    maps = write_video_scene(tmp_path, 3)
    with pytest.raises(InputError, match=r"overlays of .* without images.*`images` PATH, or `panel`"):
        write_pictures(maps, tmp_path / "out")
    written = write_pictures(maps, tmp_path / "out", panel=True)
    assert len(written.pictures["panel"]) == 3
    assert "only maps are shown" in written.notes[0]
    # Images of other frames: every frame fails, and says why.
    written = write_pictures(maps, tmp_path / "out", images=scene.images)
    assert "3 of 3 frames have no image" in written.notes[0]
    assert written.failure.startswith("3 frames could not be drawn, first 000000 (frame 000000 has no image")


def test_a_damaged_map_does_not_stop_the_others(copy: Path, tmp_path: Path) -> None:
    (copy / "entropy" / f"{NAMES[0]}.png").write_bytes(b"broken")
    written = write_pictures(copy, tmp_path / "out")
    assert list(written.failed) == [NAMES[0]]
    assert len(written.pictures["overlay-entropy"]) == len(NAMES) - 1


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"scores": ["entropie"]}, "score 'entropie' has no maps"),
        ({"frames": ["nothing*"]}, r"no frame of .* is named 'nothing\*'"),
        ({"ranges": {"deterministic-energy": (0, 1)}}, "a range for 'deterministic-energy'"),
        ({"ranges": {"entropy": (1, 0)}}, r"display range 1\.\.0"),
        ({"flags": {"epistemic": 0.1}}, "a flag of 'epistemic'; expected one of entropy; draw that score too"),
    ],
)
def test_bad_requests(scene: Scene, tmp_path: Path, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        write_pictures(scene.maps, tmp_path / "out", **asked)
    assert not (tmp_path / "out").exists()


def test_pictures_are_never_written_among_maps(scene: Scene, copy: Path) -> None:
    before = names(copy)
    for out in (copy, copy / "pictures"):
        with pytest.raises(InputError, match="is or lies inside a maps folder"):
            write_pictures(copy, out)
    with pytest.raises(InputError, match="is or lies inside a maps folder"):
        write_pictures(scene.maps, copy)
    assert names(copy) == before


def test_captions_are_the_frame_and_its_moment_or_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maps = write_video_scene(tmp_path, 3)
    sheets: list[Sheet] = []
    monkeypatch.setattr("segunc.gallery.pictures.encode_picture", lambda sheet, _: sheets.append(sheet) or b"")
    write_pictures(maps, tmp_path / "out", panel=True)
    first = [sheet.texts[0].words for sheet in sheets]
    assert [words.split(",")[0] for words in first] == [f"frame {name}" for name in MapsReader(maps).frames]
    assert first[0].endswith(", 0:00:00.000")
    assert first[1] > first[0]
    sheets.clear()
    write_pictures(maps, tmp_path / "out", panel=True, captions=False, flags={"entropy": 0.5}, theme="light")
    assert [sheet.texts[0].words for sheet in sheets] == ["flagged: entropy >= 0.5"] * 3
