"""Videos: both decoders give the same frames at the same moments, of constant and variable frame rates."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path

import numpy as np
import pytest

from segunc.core.errors import InputError
from segunc.core.progress import Progress, describe
from segunc.frames.sources import DecoderName, Frame, Selection, open_source
from segunc.frames.video import open_decoder
from tests.maps.fakes import write_timed_video, write_video

TIMES = (0.0, 0.04, 0.08, 0.2, 0.24, 0.5, 0.54, 0.58, 0.9, 1.0)
DECODERS: tuple[DecoderName, ...] = ("opencv", "pyav")


def read(path: Path, decoder: DecoderName, selection: Selection = Selection()) -> list[Frame]:  # noqa: B008
    if decoder == "pyav":
        pytest.importorskip("av")
    return list(open_source(path, decoder=decoder, selection=selection))


@pytest.mark.parametrize("suffix", [".webm", ".mkv", ".mp4"])
@pytest.mark.parametrize("origin", [0.0, 0.3])
def test_a_variable_rate_keeps_its_times(tmp_path: Path, suffix: str, origin: float) -> None:
    path = tmp_path / f"variable{suffix}"
    write_timed_video(path, [time + origin for time in TIMES])
    ours, theirs = (read(path, decoder) for decoder in DECODERS)
    # No error frame either: the last moment, not a count from a mean rate, says whether the stream is whole.
    assert [frame.error for frame in ours] == [None] * len(TIMES)
    assert [frame.time for frame in ours] == list(TIMES)
    for first, second in zip(ours, theirs, strict=True):
        assert (first.name, first.index, first.time) == (second.name, second.index, second.time)
        np.testing.assert_array_equal(first.image, second.image)
    bar = [int((frame.image[4, :, 0] > 128).sum()) for frame in ours if frame.image is not None]
    assert bar == pytest.approx([4 * i + 4 for i in range(len(TIMES))], abs=1)  # in the order of display


@pytest.mark.parametrize("suffix", [".avi", ".webm", ".mp4"])
def test_a_constant_rate_gives_the_same_frames(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"constant{suffix}"
    write_video(path, 9, fps=29.97)
    ours, theirs = (read(path, decoder) for decoder in DECODERS)
    assert [frame.time for frame in ours] == [frame.time for frame in theirs]
    assert [frame.time for frame in ours] == pytest.approx([i / 29.97 for i in range(9)], abs=0.001)
    for number, (first, second) in enumerate(zip(ours, theirs, strict=True)):
        assert first.name == second.name == f"{number:06d}"
        assert first.image.shape == (48, 64, 3)
        np.testing.assert_array_equal(first.image, second.image)
    decoders = [open_decoder(path, decoder) for decoder in DECODERS]
    assert [found.fps for found in decoders] == pytest.approx([29.97, 29.97], abs=0.005)
    assert [found.count for found in decoders] == [9, 9]


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize(
    ("selection", "numbers"),
    [
        (Selection(3), [0, 3, 6, 9]),
        (Selection(start=0.2, end=0.54), [3, 4, 5]),  # the end itself is outside
        (Selection(2, start=0.05), [2, 4, 6, 8]),
        (Selection(end=0.01), [0]),
    ],
)
def test_a_selection_is_by_number_and_container_time(
    tmp_path: Path, decoder: DecoderName, selection: Selection, numbers: list[int]
) -> None:
    path = tmp_path / "variable.mkv"
    write_timed_video(path, TIMES)
    frames = read(path, decoder, selection)
    assert [frame.name for frame in frames] == [f"{number:06d}" for number in numbers]
    assert [frame.time for frame in frames] == [TIMES[number] for number in numbers]
    source = open_source(path, decoder=decoder, selection=selection)
    assert [source.name_of(frame.index) for frame in frames] == [frame.name for frame in frames]
    assert [source.position(frame.name) for frame in frames] == [frame.index for frame in frames]


@pytest.mark.parametrize("turn", [(0, 1, -1, 0), (-1, 0, 0, -1), (0, -1, 1, 0)])
def test_both_turn_a_picture_upright(tmp_path: Path, turn: tuple[int, int, int, int]) -> None:
    path = tmp_path / "turned.mp4"
    write_timed_video(path, TIMES[:2])
    data = path.read_bytes()
    # The track header's matrix, 9 fixed-point numbers, stands 40 bytes behind its version (ISO 14496-12, 8.3.2).
    start = data.index(b"tkhd") + 4 + 40
    matrix = struct.pack(">9i", turn[0] << 16, turn[1] << 16, 0, turn[2] << 16, turn[3] << 16, 0, 0, 0, 1 << 30)
    path.write_bytes(data[:start] + matrix + data[start + 36 :])
    ours, theirs = (read(path, decoder)[1].image for decoder in DECODERS)
    assert ours.shape == ((64, 48, 3) if turn[0] == 0 else (48, 64, 3))
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_truncated_video_ends_with_an_error_frame(tmp_path: Path, decoder: DecoderName) -> None:
    whole, cut = tmp_path / "whole.avi", tmp_path / "cut.avi"
    write_video(whole, 40, size=(96, 128))
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    frames = read(cut, decoder)
    assert frames[-1].image is None
    assert frames[-1].index == len(frames) - 1
    said = rf"video ends at frame {len(frames) - 1}, 0:00:0\d\.\d+ before its stated end"
    assert re.search(said, frames[-1].error or "")
    assert all(frame.image is not None for frame in frames[:-1])
    assert len(frames) > 5
    # A range that ends before the damage is whole.
    assert all(frame.error is None for frame in read(cut, decoder, Selection(end=0.12)))


@pytest.mark.parametrize("decoder", DECODERS)
def test_bad_videos_are_one_line(tmp_path: Path, decoder: DecoderName, capfd: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(b"no video")
    with pytest.raises(InputError, match="cannot be opened"):
        read(broken, decoder)
    path = tmp_path / "short.avi"
    write_video(path, 5)
    with pytest.raises(InputError, match=r"ends at 0:00:00\.200"):
        read(path, decoder, Selection(start=3.0))
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_video_without_a_frame_count_is_read_to_its_end(tmp_path: Path, decoder: DecoderName) -> None:
    path = tmp_path / "live.webm"
    write_timed_video(path, TIMES, options={"live": "1"})
    source = open_source(path, decoder=decoder)
    assert (source.length, source.length_hint) == (None, None)
    assert [frame.time for frame in source] == list(TIMES)
    assert describe(Progress(3, 0, 0, source.length_hint, 2.0)) == "3 frames, 1.50 frames/s"


def test_a_replaced_video_has_another_identity(tmp_path: Path) -> None:
    path = tmp_path / "drive.avi"
    write_video(path, 5)
    before = open_source(path).identity()
    assert open_source(path, selection=Selection(2)).identity() != before
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert open_source(path).identity()["input_hash"] != before["input_hash"]


def test_skipping_in_a_video_keeps_the_frames_after_it(tmp_path: Path) -> None:
    path = tmp_path / "drive.avi"
    write_video(path, 9)
    whole = {f.name: f.image for f in open_source(path)}
    part = list(open_source(path).frames(lambda index, name: index % 3 != 2))
    assert [f.index for f in part] == [2, 5, 8]
    for frame in part:
        np.testing.assert_array_equal(frame.image, whole[frame.name])


CLIP = Path(os.environ.get("SEGUNC_DATA", "")) / "video" / "solidWhiteRight.mp4"


@pytest.mark.skipif(not CLIP.exists(), reason=f"{CLIP.name} is not in SEGUNC_DATA")
def test_both_decoders_read_an_h264_clip_to_its_end() -> None:
    found = []
    for decoder in DECODERS:
        source = open_source(CLIP, decoder=decoder)
        assert (source.fps, source.length_hint) == (25.0, 221)
        found.append(list(source.frames(lambda index, name: index not in (0, 110, 220))))
    for number, first, second in zip((0, 110, 220), *found, strict=True):
        assert first.name == second.name == f"{number:06d}"
        assert first.time == second.time
        np.testing.assert_array_equal(first.image, second.image)
