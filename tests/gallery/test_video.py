"""Videos, WebM and MP4: complete and at the source's rate."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import cv2
import numpy as np
import pytest

from segunc.core.errors import InputError, PartialFailure
from segunc.gallery import video as video_module
from segunc.gallery.video import count_frames, frame_rate, video_suffix, write_video
from segunc.maps.encoding import encode_jpeg
from segunc.maps.store import MapsWriter
from tests.maps.fakes import manifest


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
    levels = [frame.mean() for whole, frame in iter(capture.read, (False, None))]
    assert len(levels) == 20
    np.testing.assert_allclose(levels, 10 + 8 * np.arange(20), atol=8)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["overlay", "overlay.webm"]
    assert capfd.readouterr().err == ""


def test_wide_pictures_are_scaled_and_other_shapes_fitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video_module, "MAXIMUM_WIDTH", 200)
    paths = pictures(tmp_path, 2, (100, 400))
    tall = tmp_path / "tall.jpg"
    tall.write_bytes(encode_jpeg(np.full((400, 100, 3), 250, np.uint8)))
    out = write_video([*paths, tall], tmp_path / "overlay.webm", 10)
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


@pytest.mark.parametrize(("name", "fps", "count"), [("o.avi", 25.0, 1), ("o.webm", 0.0, 1), ("o.webm", 25.0, 0)])
def test_bad_input(tmp_path: Path, name: str, fps: float, count: int) -> None:
    with pytest.raises(InputError):
        write_video(pictures(tmp_path / "overlay", count), tmp_path / name, fps)
    (tmp_path / name).write_bytes(b"no video")
    assert count_frames(tmp_path / name) == 0


def h264(monkeypatch: pytest.MonkeyPatch, encoder: str | None = None) -> None:
    """Ask for one encoder, or skip where there is none."""
    found = video_module.h264_encoder()
    if found is None:
        pytest.skip("PyAV with an H.264 encoder is not installed (extra 'video')")
    if encoder is not None:
        import av

        if encoder not in av.codecs_available:
            pytest.skip(f"this PyAV has no {encoder}")
        monkeypatch.setattr(video_module, "h264_encoder", lambda: encoder)


@pytest.mark.parametrize("encoder", ["libx264", "libopenh264"])
def test_mp4_has_all_frames_times_and_colours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoder: str) -> None:
    h264(monkeypatch, encoder)
    import av

    colours = [(240, 249, 33), (13, 8, 135), (204, 71, 120), (22, 22, 26), (236, 236, 240)]
    paths = pictures(tmp_path / "overlay", len(colours))
    for path, colour in zip(paths, colours, strict=True):
        path.write_bytes(encode_jpeg(np.full((61, 81, 3), colour, np.uint8)))
    out = write_video(paths, tmp_path / "overlay.mp4", 30000 / 1001)
    with av.open(str(out)) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.average_rate) == ("h264", Fraction(30000, 1001))
        assert (stream.width, stream.height, stream.frames) == (80, 60, 5)
        assert (stream.codec_context.colorspace, stream.codec_context.color_range) == (1, 1)
        frames = list(container.decode(video=0))
    assert [round(frame.time * 30000 / 1001) for frame in frames] == list(range(5))
    for frame, colour in zip(frames, colours, strict=True):
        shown = frame.reformat(format="rgb24", src_colorspace="ITU709").to_ndarray()
        assert np.abs(shown.astype(int) - colour).max() <= 8
    # The index stands before the frames, so that a browser may begin at once.
    data = out.read_bytes()
    assert data.index(b"moov") < data.index(b"mdat")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["overlay", "overlay.mp4"]


def test_without_an_encoder_videos_are_webm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    h264(monkeypatch)
    assert video_suffix() == ".mp4"
    monkeypatch.setattr(video_module, "find_spec", lambda name: None)
    assert video_suffix() == ".webm"
    with pytest.raises(InputError, match=r"without an H\.264 encoder; .*pip install 'segunc\[video\]', or \.webm"):
        write_video(pictures(tmp_path / "overlay", 1), tmp_path / "overlay.mp4", 25)


def test_the_rate_is_that_of_the_frames_that_were_taken(tmp_path: Path) -> None:
    described = manifest(every=5) | {"source": {"kind": "video", "fps": 29.97}}
    MapsWriter(tmp_path / "maps", described).close()
    assert frame_rate(tmp_path / "maps") == pytest.approx(29.97 / 5)
    assert frame_rate(tmp_path / "maps", 4.0) == 4.0
    MapsWriter(tmp_path / "images", manifest()).close()
    with pytest.raises(InputError, match=r"record no frame rate; .*give --fps"):
        frame_rate(tmp_path / "images")
