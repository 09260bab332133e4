"""Videos: the frames that FFmpeg gives of every kind of file, upright, of the right stream, at
times that increase.
"""

import contextlib
import socket
import struct
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise, product
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


def film(path: Path, count: int = 30, *, options: dict[str, str] | None = None) -> None:
    """A film with B-frames, ten frames a second, a key frame each second; a growing white bar says
    which frame it is.
    """
    noise = np.random.default_rng(0)
    kind = "mpegts" if path.suffix == ".bin" else None
    with av.open(str(path), "w", format=kind, options=options or {}) as container:
        stream = container.add_stream(
            "libx264" if "libx264" in av.codecs_available else "mpeg4", rate=RATE
        )
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        stream.codec_context.gop_size, stream.codec_context.max_b_frames = RATE, 2
        for number in range(count):
            picture = noise.integers(0, 256, (6, 8, 3), np.uint8).repeat(8, 0).repeat(8, 1)
            picture[:16], picture[:16, : 2 * number + 2] = 0, 255
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, RATE)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def cut_without_encoding(path: Path) -> None:
    """Packets from the key frame on, of which the edit list hides the first four."""
    film(path.with_name("long.mp4"))
    options = {"avoid_negative_ts": "disabled", "use_editlist": "1"}
    with (
        av.open(str(path.with_name("long.mp4"))) as source,
        av.open(str(path), "w", options=options) as target,
    ):
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.size:
                for stamp in ("pts", "dts"):
                    setattr(packet, stamp, getattr(packet, stamp) - round(0.4 / packet.time_base))
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
                pictures += [
                    frame.to_ndarray(format="rgb24", interpolation="BICUBIC")
                    for frame in packet.decode()
                ]
    return pictures


def pictures_of(frames: Sequence[Frame]) -> list[np.ndarray]:
    return [frame.image for frame in frames if frame.image is not None]


FILMS: list[tuple[str, Callable[[Path], None], int, bool]] = [
    ("whole.mp4", film, 30, True),
    ("whole.mkv", film, 30, True),
    ("whole.ts", film, 30, True),
    ("whole.avi", film, 30, True),
    ("cut.mp4", cut_without_encoding, 26, True),
    ("truncated.mp4", truncated, 14, False),
    ("joined.ts", joined, 18, True),
]


@pytest.mark.parametrize(
    ("name", "make", "count", "sound"), FILMS, ids=[name for name, *_ in FILMS]
)
def test_the_frames_are_those_of_ffmpeg_and_times_increase(
    tmp_path: Path, name: str, make: Callable[[Path], None], count: int, sound: bool
) -> None:
    path = tmp_path / name
    make(path)
    frames = list(open_source(path).frames())
    assert [frame.error is None for frame in frames] == [True] * count + [False] * (not sound)
    np.testing.assert_array_equal(pictures_of(frames), plain_loop(path))
    # AVI states the order of decoding alone; its first frames may stand a frame or two too late.
    late = frames[0].time if name.endswith(".avi") else 0.0
    assert [frame.time for frame in frames[4:count]] == pytest.approx(
        [late + number / RATE for number in range(4, count)], abs=0.1001 if late else 1e-6
    )
    assert all(before.time < after.time for before, after in pairwise(frames[:count]))
    if not sound:  # a range that ends before the damage is whole
        assert f"video ends at frame {count}, 0:00:0" in (frames[-1].error or "")
        assert all(
            frame.error is None
            for frame in open_source(path, selection=Selection(end=0.12)).frames()
        )
    if name == "joined.ts":
        part = open_source(path, selection=Selection(start=1.3))
        assert [frame.name for frame in part.frames()] == [
            f"{number:06d}" for number in range(13, 18)
        ]


def test_damage_in_the_middle_is_said(tmp_path: Path) -> None:
    path = tmp_path / "drive.mkv"
    film(path)
    with av.open(str(path)) as container:
        packet = [bytes(packet) for packet in container.demux(video=0) if packet.size][15]
    path.write_bytes(path.read_bytes().replace(packet, bytes(len(packet))))
    frames = list(open_source(path).frames())
    assert len(frames) - 1 == len(plain_loop(path)) < 30
    assert (frames[-1].image, "cannot be decoded: 1" in (frames[-1].error or "")) == (None, True)


AXES = [(a, 0, 0, d) for a, d in product((1, -1), repeat=2)] + [
    (0, b, c, 0) for b, c in product((1, -1), repeat=2)
]


@pytest.mark.parametrize("axes", AXES)
def test_every_orientation_is_shown_upright(
    tmp_path: Path, axes: tuple[int, int, int, int]
) -> None:
    path, (a, b, c, d) = tmp_path / "turned.mp4", axes
    stored = np.zeros((48, 64), int)
    stored[:24, 32:], stored[24:, :32], stored[24:, 32:] = 80, 160, 240
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=RATE)
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        container.mux(
            stream.encode(
                av.VideoFrame.from_ndarray(np.dstack([stored] * 3).astype(np.uint8), "rgb24")
            )
        )
        container.mux(stream.encode())
    data = path.read_bytes()
    # The track header's matrix, 9 fixed-point numbers, stands 40 bytes behind its version (ISO
    # 14496-12, 8.3.2).
    start = data.index(b"tkhd") + 4 + 40
    matrix = struct.pack(">9i", a << 16, b << 16, 0, c << 16, d << 16, 0, 0, 0, 1 << 30)
    path.write_bytes(data[:start] + matrix + data[start + 36 :])
    (frame,) = open_source(path).frames()
    # Each stored pixel goes to the screen's x = a column + c row, y = b column + d row, moved to
    # start at 0.
    rows, columns = np.indices(stored.shape)
    across, down = a * columns + c * rows, b * columns + d * rows
    shown = np.zeros((np.ptp(down) + 1, np.ptp(across) + 1))
    shown[down - down.min(), across - across.min()] = stored
    np.testing.assert_allclose(frame.image[..., 1], shown, atol=12)


@pytest.mark.parametrize(
    ("marks", "chosen"),
    [
        ((0, Disposition.default, 0), 1),
        ((0, 0, 0), 2),  # the largest
        ((Disposition.default, Disposition.default, 0), 1),  # the larger of two defaults
        ((Disposition.default, 0, Disposition.attached_pic), 0),
        ((Disposition.attached_pic,), None),
    ],
)
def test_the_main_stream_is_chosen(
    tmp_path: Path, marks: tuple[Disposition, ...], chosen: int | None
) -> None:
    path, heights = (
        tmp_path / ("several.mp4" if Disposition.attached_pic in marks else "several.mkv"),
        (16, 32, 48),
    )
    with av.open(str(path), "w") as container:
        covers = [mark == Disposition.attached_pic for mark in marks]
        streams = [
            container.add_stream("mjpeg" if cover else "mpeg4", rate=RATE) for cover in covers
        ]
        for stream, height, mark, cover in zip(streams, heights, marks, covers, strict=False):
            stream.height, stream.width, stream.disposition = height, 64, mark
            stream.pix_fmt = "yuvj420p" if cover else "yuv420p"
        for stream in streams:
            grey = av.VideoFrame.from_ndarray(
                np.full((stream.height, 64, 3), 90, np.uint8), format="rgb24"
            )
            container.mux([*stream.encode(grey), *stream.encode()])
    if chosen is None:
        with pytest.raises(InputError, match="cannot be opened"):
            open_source(path)
    else:
        assert [picture.shape for picture in pictures_of(list(open_source(path).frames()))] == [
            (heights[chosen], 64, 3)
        ]


@pytest.mark.parametrize("suffix", [".webm", ".mkv", ".mp4"])
@pytest.mark.parametrize("origin", [0.0, 0.3])
def test_a_variable_rate_keeps_its_times(tmp_path: Path, suffix: str, origin: float) -> None:
    path = tmp_path / f"variable{suffix}"
    live = {"live": "1"} if suffix == ".webm" else {}  # without a count of frames
    write_timed_video(path, [time + origin for time in TIMES], options=live)
    source = open_source(path)
    assert (source.length, source.length_hint is None) == (None, bool(live))
    frames = list(source.frames())
    # No error frame either: the last moment, not a count from a mean rate, says whether the stream
    # is whole.
    assert [frame.error for frame in frames] == [None] * len(TIMES)
    assert [frame.time for frame in frames] == list(TIMES)
    bar = [int((picture[4, :, 0] > 128).sum()) for picture in pictures_of(frames)]
    assert bar == pytest.approx(
        [4 * i + 4 for i in range(len(TIMES))], abs=1
    )  # in the order of display


@pytest.mark.parametrize("suffix", [".avi", ".webm", ".mp4"])
def test_a_constant_rate_and_frames_that_are_skipped(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"constant{suffix}"
    write_video(path, 9, fps=29.97)
    source = open_source(path)
    frames = list(source.frames())
    assert [frame.time for frame in frames] == pytest.approx(
        [i / 29.97 for i in range(9)], abs=0.001
    )
    assert [(frame.name, frame.image.shape) for frame in frames] == [
        (f"{i:06d}", (48, 64, 3)) for i in range(9)
    ]
    assert (source.fps, source.length_hint) == (pytest.approx(29.97, abs=0.005), 9)
    part = list(source.frames(lambda index, name: index % 3 != 2))
    assert [frame.index for frame in part] == [2, 5, 8]
    for frame in part:
        np.testing.assert_array_equal(frame.image, frames[frame.index].image)
    with pytest.raises(InputError, match=r"ends at 0:00:00\.3"):
        open_source(path, selection=Selection(start=3.0))


def test_a_selection_is_by_number_and_container_time(tmp_path: Path) -> None:
    path = tmp_path / "variable.mkv"
    write_timed_video(path, TIMES)
    for selection, numbers in (
        (Selection(3), [0, 3, 6, 9]),
        (Selection(start=0.2, end=0.54), [3, 4, 5]),  # the end itself is outside
        (Selection(2, start=0.05), [2, 4, 6, 8]),
        (Selection(end=0.01), [0]),
    ):
        source = open_source(path, selection=selection)
        frames = list(source.frames())
        assert [(frame.name, frame.time) for frame in frames] == [
            (f"{n:06d}", TIMES[n]) for n in numbers
        ]
        assert [source.name_of(frame.index) for frame in frames] == [frame.name for frame in frames]


LISTS = {"hls": "#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\n{}\n#EXT-X-ENDLIST\n"}
LISTS |= {"concat": "ffconcat version 1.0\nfile {}\n"}


@pytest.mark.parametrize("kind", [*LISTS, "caller"])
def test_a_list_of_addresses_that_calls_itself_a_video_opens_no_connection(
    tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "drive.mp4"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/a.mp4"
        path.write_text(LISTS.get(kind, "").format(address), encoding="utf-8")
        with contextlib.suppress(InputError, av.error.FFmpegError):
            if kind == "caller":  # who would be counted
                av.open(address, timeout=0.2)
            assert all(frame.image is None for frame in open_source(path).frames())
        with contextlib.suppress(BlockingIOError) if kind != "caller" else contextlib.nullcontext():
            listener.accept()[0].close()
            assert kind == "caller"
