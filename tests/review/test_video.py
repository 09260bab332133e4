"""The WebM video: complete, at the source's rate, and playable by a browser."""

from __future__ import annotations

import re
from pathlib import Path

import cv2
import numpy as np
import pytest

from segunc.errors import InputError, PartialFailure
from segunc.maps.store import encode_jpeg
from segunc.review import video as video_module
from segunc.review.video import count_frames, write_video
from tests.review.browser import dump_dom

PAGE = """<!doctype html><video id="v" src="overlay.webm" muted preload="auto"></video><p id="seen"></p><script>
const v = document.getElementById('v'), say = text => document.getElementById('seen').textContent = text;
v.addEventListener('error', () => say('error ' + v.error.code));
v.addEventListener('loadeddata', () => { v.currentTime = v.duration / 2; });
v.addEventListener('seeked', () => {
  const canvas = document.createElement('canvas'); canvas.width = v.videoWidth; canvas.height = v.videoHeight;
  canvas.getContext('2d').drawImage(v, 0, 0);
  say(['size', v.videoWidth, v.videoHeight, 'state', v.readyState, 'duration', v.duration.toFixed(2)].join(' '));
});
</script>"""


def pictures(folder: Path, count: int, size: tuple[int, int] = (61, 81)) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for index in range(count):
        path = folder / f"{index:06d}.jpg"
        path.write_bytes(encode_jpeg(np.full((*size, 3), 10 + 8 * index, np.uint8)))
        paths.append(path)
    return paths


def test_video_has_all_frames_even_sides_and_the_rate(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = write_video(pictures(tmp_path / "overlay", 20), tmp_path / "overlay.webm", 29.97)
    capture = cv2.VideoCapture(str(out))
    assert capture.get(cv2.CAP_PROP_FPS) == pytest.approx(29.97, abs=0.01)
    assert (capture.get(cv2.CAP_PROP_FRAME_WIDTH), capture.get(cv2.CAP_PROP_FRAME_HEIGHT)) == (80, 60)
    levels = []
    while True:
        whole, frame = capture.read()
        if not whole:
            break
        levels.append(float(frame.mean()))
    assert len(levels) == 20
    np.testing.assert_allclose(levels, 10 + 8 * np.arange(20), atol=8)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["overlay", "overlay.webm"]
    assert capfd.readouterr().err == ""


def test_wide_pictures_are_scaled_and_other_shapes_fitted(tmp_path: Path) -> None:
    paths = pictures(tmp_path, 2, (100, 400))
    tall = tmp_path / "tall.jpg"
    tall.write_bytes(encode_jpeg(np.full((400, 100, 3), 250, np.uint8)))
    out = write_video([*paths, tall], tmp_path / "overlay.webm", 10, maximum_width=200)
    capture = cv2.VideoCapture(str(out))
    frames = [capture.read()[1] for _ in range(3)]
    assert frames[0].shape == (50, 200, 3)
    assert frames[2][25, 100].min() > 200  # the tall picture in the middle
    assert frames[2][25, 5].max() < 60  # a dark margin beside it


def test_unfinished_video_leaves_no_file_and_keeps_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "overlay.webm"
    out.write_bytes(b"old")
    paths = pictures(tmp_path / "overlay", 3)
    paths[2].write_bytes(paths[2].read_bytes()[:-30])
    with pytest.raises(PartialFailure, match=r"000002\.jpg cannot be read"):
        write_video(paths, out, 25)
    monkeypatch.setattr(video_module, "count_frames", lambda path: 1)
    with pytest.raises(PartialFailure, match="1 of 2 frames"):
        write_video(paths[:2], out, 25)
    assert out.read_bytes() == b"old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["overlay", "overlay.webm"]


@pytest.mark.parametrize(("name", "fps", "count"), [("o.mp4", 25.0, 1), ("o.webm", 0.0, 1), ("o.webm", 25.0, 0)])
def test_bad_input(tmp_path: Path, name: str, fps: float, count: int) -> None:
    with pytest.raises(InputError):
        write_video(pictures(tmp_path / "overlay", count), tmp_path / name, fps)


def test_no_video_has_no_frames(tmp_path: Path) -> None:
    (tmp_path / "x.webm").write_bytes(b"nothing")
    assert count_frames(tmp_path / "x.webm") == 0


def test_a_browser_plays_it(tmp_path: Path) -> None:
    write_video(pictures(tmp_path / "overlay", 30), tmp_path / "overlay.webm", 15)
    (tmp_path / "page.html").write_text(PAGE)
    seen = re.search(r'id="seen">([^<]*)<', dump_dom(tmp_path / "page.html", tmp_path / "profile"))
    assert seen is not None
    assert seen[1] == "size 80 60 state 4 duration 2.00"
