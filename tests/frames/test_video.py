"""Videos: the frames that FFmpeg gives of every kind of file, upright, of the right stream, at
times that increase.
"""

import contextlib
import gc
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import pytest
from av.stream import Disposition

from segunc.core.errors import InputError
from segunc.frames.source import Frame, Selection
from segunc.frames.sources import open_source
from tests.maps.fakes import write_timed_video, write_video

TIMES = (0.0, 0.04, 0.08, 0.2, 0.24, 0.5, 0.54, 0.58, 0.9, 1.0)
RATE = 10


def film(
    path: Path, count: int = 30, *, options: dict[str, str] | None = None, title: str = ""
) -> None:
    """A film with B-frames, ten frames a second, a key frame each second; a growing white bar says
    which frame it is.
    """
    noise = np.random.default_rng(0)
    kind = "mpegts" if path.suffix == ".bin" else None
    codec = "libx264" if "libx264" in av.codecs_available else "mpeg4"
    with av.open(str(path), "w", format=kind, options=options or {}) as container:
        if title:
            container.metadata["title"] = title
        stream = container.add_stream(codec, rate=RATE)
        stream.height = 48
        stream.width = 64
        stream.pix_fmt = "yuv420p"
        stream.codec_context.gop_size = RATE
        stream.codec_context.max_b_frames = 2
        for number in range(count):
            blocks = noise.integers(0, 256, (6, 8, 3), np.uint8)
            picture = blocks.repeat(8, 0).repeat(8, 1)
            picture[:16] = 0
            picture[:16, : 2 * number + 2] = 255
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts = number
            frame.time_base = Fraction(1, RATE)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def cut_without_encoding(path: Path) -> None:
    """Packets from the key frame on, of which the edit list hides the first four."""
    whole = path.with_name("long.mp4")
    film(whole)
    options = {"avoid_negative_ts": "disabled", "use_editlist": "1"}
    with av.open(str(whole)) as source, av.open(str(path), "w", options=options) as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.size:
                shift = round(0.4 / packet.time_base)
                packet.pts -= shift
                packet.dts -= shift
                packet.stream = stream
                target.mux(packet)


def truncated(path: Path) -> None:
    film(path, options={"movflags": "+faststart"})
    before = open_source(path).identity()["input_hash"]
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 6 // 10])
    assert open_source(path).identity()["input_hash"] != before


def joined(path: Path) -> None:
    """Two transport streams one after the other; the clock of the second starts anew."""
    parts = [path.with_name(f"{number}.bin") for number in range(2)]
    for part, count in zip(parts, (12, 6), strict=True):
        film(part, count)
    path.write_bytes(b"".join(part.read_bytes() for part in parts))


def plain_loop(path: Path) -> list[np.ndarray]:
    """What FFmpeg decodes on one thread, without anything of ours."""
    pictures = []
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.thread_type = "NONE"
        for packet in container.demux(stream):
            with contextlib.suppress(av.error.FFmpegError):
                for frame in packet.decode():
                    picture = frame.to_ndarray(format="rgb24", interpolation="BICUBIC")
                    pictures.append(picture)
    return pictures


def pictures_of(frames: Sequence[Frame]) -> list[np.ndarray]:
    return [frame.image for frame in frames if frame.image is not None]


@dataclass(frozen=True)
class Film:
    """A file, and what can be read of it."""

    name: str
    make: Callable[[Path], None]
    frames: int
    sound: bool = True


TRUNCATED = Film("truncated.mp4", truncated, 14, sound=False)
JOINED = Film("joined.ts", joined, 18)
FILMS = [
    Film("whole.mp4", film, 30),
    Film("whole.mkv", film, 30),
    Film("whole.ts", film, 30),
    Film("whole.avi", film, 30),
    Film("cut.mp4", cut_without_encoding, 26),
    TRUNCATED,
    JOINED,
]
every_film = pytest.mark.parametrize("kind", FILMS, ids=[kind.name for kind in FILMS])


def made(kind: Film, folder: Path) -> Path:
    path = folder / kind.name
    kind.make(path)
    return path


@every_film
def test_the_frames_are_those_of_ffmpeg(tmp_path: Path, kind: Film) -> None:
    path = made(kind, tmp_path)
    frames = list(open_source(path).frames())
    whole = [frame.error is None for frame in frames]
    expected = [True] * kind.frames
    if not kind.sound:
        expected.append(False)
    assert whole == expected
    np.testing.assert_array_equal(pictures_of(frames), plain_loop(path))


@every_film
def test_times_increase_at_the_rate_of_the_film(tmp_path: Path, kind: Film) -> None:
    path = made(kind, tmp_path)
    frames = list(open_source(path).frames())
    times = [frame.time for frame in frames[: kind.frames]]
    # AVI states the order of decoding alone; its first frames may stand a frame or two too late.
    late = times[0] if path.suffix == ".avi" else 0.0
    tolerance = 0.1001 if late else 1e-6
    expected = [late + number / RATE for number in range(4, kind.frames)]
    assert times[4:] == pytest.approx(expected, abs=tolerance)
    assert all(before < after for before, after in pairwise(times))


def test_a_truncated_film_says_where_it_ends(tmp_path: Path) -> None:
    path = made(TRUNCATED, tmp_path)
    *_, last = open_source(path).frames()
    assert f"video ends at frame {TRUNCATED.frames}, 0:00:0" in (last.error or "")


def test_a_range_that_ends_before_the_damage_is_whole(tmp_path: Path) -> None:
    path = made(TRUNCATED, tmp_path)
    source = open_source(path, selection=Selection(end=0.12))
    assert all(frame.error is None for frame in source.frames())


def test_a_range_may_start_in_the_second_of_two_streams(tmp_path: Path) -> None:
    path = made(JOINED, tmp_path)
    source = open_source(path, selection=Selection(start=1.3))
    names = [frame.name for frame in source.frames()]
    assert names == ["000013", "000014", "000015", "000016", "000017"]


def test_damage_in_the_middle_is_said(tmp_path: Path) -> None:
    path = tmp_path / "drive.mkv"
    film(path)
    with av.open(str(path)) as container:
        packets = [bytes(packet) for packet in container.demux(video=0) if packet.size]
    packet = packets[15]
    damaged = path.read_bytes().replace(packet, bytes(len(packet)))
    path.write_bytes(damaged)
    *whole, last = open_source(path).frames()
    assert len(whole) == len(plain_loop(path)) < 30
    assert last.image is None
    assert "cannot be decoded: 1" in (last.error or "")


AXES = [
    (1, 0, 0, 1),
    (1, 0, 0, -1),
    (-1, 0, 0, 1),
    (-1, 0, 0, -1),
    (0, 1, 1, 0),
    (0, 1, -1, 0),
    (0, -1, 1, 0),
    (0, -1, -1, 0),
]
"""The four numbers that turn and mirror a picture, of every orientation."""


def write_still(path: Path, grey: np.ndarray) -> None:
    """Write a video of one grey picture, int ``[height, width]`` from 0 to 255."""
    picture = np.dstack([grey] * 3).astype(np.uint8)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=RATE)
        stream.height, stream.width = grey.shape
        stream.pix_fmt = "yuv420p"
        frame = av.VideoFrame.from_ndarray(picture, "rgb24")
        container.mux(stream.encode(frame))
        container.mux(stream.encode())


def write_orientation(path: Path, axes: tuple[int, int, int, int]) -> None:
    """Overwrite the matrix of a video's track header.

    It is 9 fixed-point numbers, 40 bytes behind the header's version (ISO 14496-12, 8.3.2).
    """
    a, b, c, d = (number << 16 for number in axes)
    matrix = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    data = path.read_bytes()
    start = data.index(b"tkhd") + 4 + 40
    path.write_bytes(data[:start] + matrix + data[start + 36 :])


def turned(stored: np.ndarray, axes: tuple[int, int, int, int]) -> np.ndarray:
    """Return the picture as a screen shows it.

    Each stored pixel goes to the screen's x = a column + c row, y = b column + d row, moved to
    start at 0.
    """
    a, b, c, d = axes
    rows, columns = np.indices(stored.shape)
    across = a * columns + c * rows
    down = b * columns + d * rows
    height = np.ptp(down) + 1
    width = np.ptp(across) + 1
    shown = np.zeros((height, width))
    shown[down - down.min(), across - across.min()] = stored
    return shown


@pytest.mark.parametrize("axes", AXES)
def test_every_orientation_is_shown_upright(
    tmp_path: Path, axes: tuple[int, int, int, int]
) -> None:
    path = tmp_path / "turned.mp4"
    stored = np.zeros((48, 64), int)
    stored[:24, 32:] = 80
    stored[24:, :32] = 160
    stored[24:, 32:] = 240
    write_still(path, stored)
    write_orientation(path, axes)
    (frame,) = open_source(path).frames()
    np.testing.assert_allclose(frame.image[..., 1], turned(stored, axes), atol=12)


HEIGHTS = (16, 32, 48)
"""Of the streams of a file, in their order, in pixels."""


def write_streams(path: Path, marks: Sequence[Disposition]) -> None:
    """Write a file of one frame in each stream; an attached picture is a JPEG."""
    with av.open(str(path), "w") as container:
        streams = []
        for height, mark in zip(HEIGHTS, marks, strict=False):
            cover = mark == Disposition.attached_pic
            stream = container.add_stream("mjpeg" if cover else "mpeg4", rate=RATE)
            stream.height = height
            stream.width = 64
            stream.disposition = mark
            stream.pix_fmt = "yuvj420p" if cover else "yuv420p"
            streams.append(stream)
        for stream in streams:
            picture = np.full((stream.height, 64, 3), 90, np.uint8)
            grey = av.VideoFrame.from_ndarray(picture, format="rgb24")
            container.mux([*stream.encode(grey), *stream.encode()])


@pytest.mark.parametrize(
    ("name", "marks", "chosen"),
    [
        ("several.mkv", (0, Disposition.default, 0), 1),
        ("several.mkv", (0, 0, 0), 2),  # the largest
        # The larger of two defaults.
        ("several.mkv", (Disposition.default, Disposition.default, 0), 1),
        ("several.mp4", (Disposition.default, 0, Disposition.attached_pic), 0),
    ],
)
def test_the_main_stream_is_chosen(
    tmp_path: Path, name: str, marks: tuple[Disposition, ...], chosen: int
) -> None:
    path = tmp_path / name
    write_streams(path, marks)
    (picture,) = pictures_of(list(open_source(path).frames()))
    assert picture.shape == (HEIGHTS[chosen], 64, 3)


def test_an_attached_picture_alone_is_no_video(tmp_path: Path) -> None:
    path = tmp_path / "several.mp4"
    write_streams(path, [Disposition.attached_pic])
    with pytest.raises(InputError, match="cannot be opened"):
        open_source(path)


variable_files = pytest.mark.parametrize("suffix", [".webm", ".mkv", ".mp4"])


@variable_files
@pytest.mark.parametrize("origin", [0.0, 0.3])
def test_a_variable_rate_keeps_its_times(tmp_path: Path, suffix: str, origin: float) -> None:
    path = tmp_path / f"variable{suffix}"
    write_timed_video(path, [time + origin for time in TIMES], options=counting(suffix))
    frames = list(open_source(path).frames())
    # No error frame either: the last moment, not a count from a mean rate, says whether the stream
    # is whole.
    assert [frame.error for frame in frames] == [None] * len(TIMES)
    assert [frame.time for frame in frames] == list(TIMES)


@variable_files
@pytest.mark.parametrize("origin", [0.0, 0.3])
def test_a_variable_rate_keeps_the_order_of_display(
    tmp_path: Path, suffix: str, origin: float
) -> None:
    path = tmp_path / f"variable{suffix}"
    write_timed_video(path, [time + origin for time in TIMES], options=counting(suffix))
    bars = []
    for picture in pictures_of(list(open_source(path).frames())):
        row = picture[4, :, 0]
        bars.append(int((row > 128).sum()))
    expected = [4 * number + 4 for number in range(len(TIMES))]
    assert bars == pytest.approx(expected, abs=1)


@variable_files
@pytest.mark.parametrize("origin", [0.0, 0.3])
def test_a_variable_rate_has_no_length_before_it_is_read(
    tmp_path: Path, suffix: str, origin: float
) -> None:
    path = tmp_path / f"variable{suffix}"
    write_timed_video(path, [time + origin for time in TIMES], options=counting(suffix))
    source = open_source(path)
    assert source.length is None
    assert (source.length_hint is None) == (suffix == ".webm")


def test_no_picture_waits_for_the_garbage_collector(tmp_path: Path) -> None:
    path = tmp_path / "film.mp4"
    film(path)
    gc.disable()
    try:
        count = sum(1 for _ in open_source(path).frames())
        left = [item for item in gc.get_objects() if isinstance(item, av.VideoFrame)]
    finally:
        gc.enable()
    assert count == 30
    assert len(left) <= 1


def counting(suffix: str) -> dict[str, str]:
    """Return the options with which a WebM file states no count of frames."""
    return {"live": "1"} if suffix == ".webm" else {}


@pytest.fixture(params=[".avi", ".webm", ".mp4"])
def constant(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A video of 9 frames at 29.97 frames a second, of each kind of file."""
    path = tmp_path / f"constant{request.param}"
    write_video(path, 9, fps=29.97)
    return path


def test_a_constant_rate_and_its_length_are_known_at_once(constant: Path) -> None:
    source = open_source(constant)
    assert source.fps == pytest.approx(29.97, abs=0.005)
    assert source.length_hint == 9


def test_frames_of_a_constant_rate_have_its_times_and_numbers(constant: Path) -> None:
    frames = list(open_source(constant).frames())
    times = [number / 29.97 for number in range(9)]
    assert [frame.time for frame in frames] == pytest.approx(times, abs=0.001)
    assert [frame.name for frame in frames] == [f"{number:06d}" for number in range(9)]
    assert [frame.image.shape for frame in frames] == [(48, 64, 3)] * 9


def test_frames_that_are_skipped_change_no_other(constant: Path) -> None:
    source = open_source(constant)
    frames = list(source.frames())
    part = list(source.frames(lambda index, name: index % 3 != 2))
    assert [frame.index for frame in part] == [2, 5, 8]
    for frame in part:
        np.testing.assert_array_equal(frame.image, frames[frame.index].image)


def test_a_selection_behind_the_end_says_where_the_video_ends(constant: Path) -> None:
    with pytest.raises(InputError, match=r"ends at 0:00:00\.3"):
        open_source(constant, selection=Selection(start=3.0))


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
    tmp_path: Path, selection: Selection, numbers: list[int]
) -> None:
    path = tmp_path / "variable.mkv"
    write_timed_video(path, TIMES)
    source = open_source(path, selection=selection)
    frames = list(source.frames())
    names = [frame.name for frame in frames]
    assert names == [f"{number:06d}" for number in numbers]
    assert [frame.time for frame in frames] == [TIMES[number] for number in numbers]
    assert [source.name_of(frame.index) for frame in frames] == names


LISTS = {
    "hls": "#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\n{}\n#EXT-X-ENDLIST\n",
    "concat": "ffconcat version 1.0\nfile {}\n",
}


@contextlib.contextmanager
def listening() -> Iterator[tuple[str, socket.socket]]:
    """Listen on a free port; give the address of a video there and the listener."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        port = listener.getsockname()[1]
        yield f"http://127.0.0.1:{port}/a.mp4", listener


def test_a_title_that_is_not_utf_8_changes_no_frame(tmp_path: Path) -> None:
    path = tmp_path / "drive.mkv"
    film(path, 3, title="TITLE OF A DRIVE")
    whole = [frame.image for frame in open_source(path).frames()]
    data = path.read_bytes()
    assert data.count(b"TITLE OF A DRIVE") == 1
    path.write_bytes(data.replace(b"TITLE OF A DRIVE", b"\xff\xfe\xe4" + b"\xdf" * 13))
    again = [frame.image for frame in open_source(path).frames()]
    np.testing.assert_array_equal(again, whole)


@pytest.mark.parametrize("kind", LISTS)
def test_a_list_of_addresses_that_calls_itself_a_video_opens_no_connection(
    tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "drive.mp4"
    with listening() as (address, listener):
        path.write_text(LISTS[kind].format(address), encoding="utf-8")
        with contextlib.suppress(InputError, av.error.FFmpegError):
            assert all(frame.image is None for frame in open_source(path).frames())
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_a_connection_would_be_counted() -> None:
    """Without this, the test above could not fail."""
    with listening() as (address, listener):
        with contextlib.suppress(av.error.FFmpegError):
            av.open(address, timeout=0.2)
        connection, _ = listener.accept()
        connection.close()


@pytest.mark.parametrize("end", [0.07, None])
def test_a_range_between_two_frames_is_said(end: float | None, tmp_path: Path) -> None:
    """Frames stand every 0.04 s; of every fifth one, the last stands at 0.2 s."""
    video = tmp_path / "drive.avi"
    write_video(video, 8)
    start = 0.05 if end else 0.22
    source = open_source(video, selection=Selection(every=5, start=start, end=end))
    with pytest.raises(InputError, match=r"no frame of \S*every\S* 5 of video .* lies between"):
        list(source.frames())
