"""Videos: complete and at the source's rate."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest

from segunc.core.errors import InputError, PartialFailure
from segunc.gallery import video as video_module
from segunc.gallery.video import frame_rate, write_video
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


def decoded(path: Path) -> tuple[list[float], list[np.ndarray]]:
    """Times and pictures, RGB by BT.601 or as the file says."""
    with av.open(str(path)) as container:
        frames = [(frame.time, frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]
    return [time for time, _ in frames], [picture for _, picture in frames]


def test_a_variable_rate_keeps_its_times(tmp_path: Path) -> None:
    times = [3.0, 3.04, 3.5, 3.5, 4.2]  # of a range of a video; two frames of one moment
    paths = pictures(tmp_path / "overlay", 5)
    out = write_video(paths, tmp_path / "overlay.webm", 4.0, times)
    assert decoded(out)[0] == pytest.approx([0.0, 0.04, 0.5, 0.5, 1.2], abs=0.0011)
    out = write_video(paths, out, 4.0, [*times[:4], None])
    assert decoded(out)[0] == pytest.approx([0.0, 0.25, 0.5, 0.75, 1.0], abs=0.0011)


def test_wide_pictures_are_scaled_and_other_shapes_fitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video_module, "MAXIMUM_WIDTH", 200)
    paths = pictures(tmp_path, 2, (100, 400))
    tall = tmp_path / "tall.jpg"
    tall.write_bytes(encode_jpeg(np.full((400, 100, 3), 250, np.uint8)))
    _, frames = decoded(write_video([*paths, tall], tmp_path / "overlay.webm", 10))
    assert frames[0].shape == (50, 200, 3)
    assert frames[2][25, 100].min() > 200  # the tall picture in the middle
    assert frames[2][25, 5].max() < 60  # a dark margin beside it


def test_unfinished_video_leaves_no_file_and_keeps_the_old_one(tmp_path: Path) -> None:
    out = tmp_path / "overlay.webm"
    out.write_bytes(b"old")
    paths = pictures(tmp_path / "overlay", 3)
    paths[2].write_bytes(paths[2].read_bytes()[:-30])
    with pytest.raises(PartialFailure, match=r"000002\.jpg cannot be read"):
        write_video(paths, out, 25)
    assert out.read_bytes() == b"old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["overlay", "overlay.webm"]


def test_a_video_has_all_frames_times_and_colours(tmp_path: Path) -> None:
    colours = [(240, 249, 33), (13, 8, 135), (204, 71, 120), (22, 22, 26), (236, 236, 240)]
    paths = pictures(tmp_path / "overlay", len(colours))
    for path, colour in zip(paths, colours, strict=True):
        path.write_bytes(encode_jpeg(np.full((61, 81, 3), colour, np.uint8)))
    out = write_video(paths, tmp_path / "overlay.webm", 30000 / 1001)
    with av.open(str(out)) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.width, stream.height) == ("vp8", 80, 60)
        frames = list(container.decode(video=0))
    assert [round(frame.time * 30000 / 1001) for frame in frames] == list(range(5))
    for frame, colour in zip(frames, colours, strict=True):
        shown = frame.reformat(format="rgb24", src_colorspace="ITU601").to_ndarray()
        assert np.abs(shown.astype(int) - colour).max() <= 8
    assert sorted(p.name for p in tmp_path.iterdir()) == ["overlay", "overlay.webm"]


def test_a_missing_encoder_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(av, "codecs_available", {"libx264"})
    with pytest.raises(InputError, match="no encoder for WebM"):
        write_video(pictures(tmp_path / "overlay", 1), tmp_path / "overlay.webm", 25)


def test_the_rate_is_that_of_the_frames_that_were_taken(tmp_path: Path) -> None:
    described = manifest(every=5) | {"source": {"kind": "video", "fps": 29.97}}
    MapsWriter(tmp_path / "maps", described).close()
    assert frame_rate(tmp_path / "maps") == pytest.approx(29.97 / 5)
    MapsWriter(tmp_path / "images", manifest()).close()
    with pytest.raises(InputError, match=r"record no frame rate.*give `fps`"):
        frame_rate(tmp_path / "images")
