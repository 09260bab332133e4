"""Pictures for print: the right frames, one range for all, lossless files, and never among the maps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from segunc.core.errors import InputError
from segunc.data.images import read_image
from segunc.gallery.colormap import colour_table, page_ranges
from segunc.gallery.overlay import Legend, draw_overlay
from segunc.maps.reader import MapsReader
from tests.gallery.scenes import NAMES, Scene, draw, write_video_scene


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_overlays_are_those_of_the_one_drawing_code(scene: Scene, tmp_path: Path) -> None:
    scores = ("entropy", "deterministic-max-logit")
    written = draw(scene.maps, tmp_path / "out", score=scores, anomaly_labels=scene.anomaly)
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
        picture = draw_overlay(image, reader.read(NAMES[1], score), legend, anomaly=mask, caption=f"frame {NAMES[1]}")
        np.testing.assert_array_equal(read_image(tmp_path / "out" / f"overlay-{score}" / f"{NAMES[1]}.png"), picture)


def test_panels_hold_what_is_there(scene: Scene, tmp_path: Path) -> None:
    written = draw(scene.maps, tmp_path, panel=True, frames=[NAMES[0], "sub/*"], format="jpg")
    assert list(written.pictures) == ["panel"]
    assert [path.stem for path in written.pictures["panel"]] == [Path(NAMES[i]).name for i in (0, 3, 4, 5)]
    picture = read_image(tmp_path / "panel" / f"{NAMES[5]}.jpg")
    # Image, prediction and class legend; entropy and epistemic: aleatoric is not there.
    assert picture.shape[1] == 3 * 640 + 2 * 6
    assert picture.shape[0] > 2 * 480


def test_a_range_of_ones_own_is_used(scene: Scene, tmp_path: Path) -> None:
    ranges = {"entropy": (0.0, 0.01)}
    draw(scene.maps, tmp_path, score=["entropy"], panel=True, frames=[NAMES[5]], ranges=ranges)
    picture = read_image(tmp_path / "panel" / f"{NAMES[5]}.png")
    tile = picture[picture.shape[0] // 2 + 20 :][:200, :640]
    np.testing.assert_array_equal(np.unique(tile.reshape(-1, 3), axis=0), colour_table()[255:])


def test_pictures_without_images(scene: Scene, tmp_path: Path) -> None:
    maps = write_video_scene(tmp_path, 3)
    with pytest.raises(InputError, match=r"overlays of .* need images.*`images` PATH, or `panel`"):
        draw(maps, tmp_path / "out")
    written = draw(maps, tmp_path / "out", panel=True)
    assert len(written.pictures["panel"]) == 3
    assert "only maps are shown" in written.notes[0]
    # Images of other frames: every frame fails, and says why.
    written = draw(maps, tmp_path / "out", images=scene.images)
    assert "3 of 3 frames have no image" in written.notes[0]
    assert written.failure.startswith("3 frames could not be drawn, first 000000 (frame 000000 has no image")


def test_a_damaged_map_does_not_stop_the_others(copy: Path, tmp_path: Path) -> None:
    (copy / "entropy" / f"{NAMES[0]}.png").write_bytes(b"broken")
    written = draw(copy, tmp_path / "out")
    assert list(written.failed) == [NAMES[0]]
    assert len(written.pictures["overlay-entropy"]) == len(NAMES) - 1


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"score": ["entropie"]}, "'entropie' has no maps"),
        ({"frames": ["nothing*"]}, r"no frame of .* is named 'nothing\*'"),
        ({"ranges": {"deterministic-energy": (0, 1)}}, "no score 'deterministic-energy'"),
        ({"ranges": {"entropy": (1, 0)}}, "does not rise"),
        ({"flag": {"epistemic": 0.1}}, "'epistemic' is flagged but not drawn"),
    ],
)
def test_bad_requests(scene: Scene, tmp_path: Path, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        draw(scene.maps, tmp_path / "out", **asked)
    assert not (tmp_path / "out").exists()


def test_pictures_are_never_written_among_maps(scene: Scene, copy: Path) -> None:
    before = names(copy)
    for out in (copy, copy / "pictures"):
        with pytest.raises(InputError, match="is or lies inside a maps folder"):
            draw(copy, out)
    with pytest.raises(InputError, match="is or lies inside a maps folder"):
        draw(scene.maps, copy)
    assert names(copy) == before
