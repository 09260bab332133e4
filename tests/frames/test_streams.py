"""Live frames: sources over loopback, a queue that drops exactly what it counts, and a reader that
connects again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

from segunc.core.errors import InputError
from segunc.core.urls import shown_url
from segunc.frames import streams
from segunc.frames.streams import (
    Arrival,
    DamagedFile,
    Finish,
    FolderSource,
    Gap,
    Inbox,
    Lag,
    LeftOut,
    LiveFrame,
    LiveSource,
    Reader,
    StreamError,
    open_live,
)
from segunc.frames.video import VideoSource
from tests.support.streams import (
    PACKET,
    RtspServer,
    Send,
    free_port,
    mjpeg_server,
    pictures,
    tcp_server,
    then_silence,
    udp_sender,
    whole,
    write_stream,
)

COUNT = 12


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A transport stream of 12 frames."""
    return write_stream(tmp_path_factory.mktemp("clip") / "clip.ts", pictures(COUNT))


def frames_of(path: Path) -> list[np.ndarray]:
    """Return the pictures of a video as segunc predict reads them."""
    return [frame.image for frame in VideoSource(path).frames() if frame.image is not None]


def read_all(source: LiveSource) -> list[Arrival]:
    """Return the arrivals of a source until it ends; none is damaged."""
    arrivals = []
    for arrival in source.arrivals(threading.Event()):
        assert isinstance(arrival, Arrival)
        arrivals.append(arrival)
    return arrivals


def read_until_lost(source: LiveSource) -> tuple[list[Arrival], StreamError]:
    """Return the arrivals of a source that is lost, and its error."""
    arrivals: list[Arrival] = []
    try:
        for arrival in source.arrivals(threading.Event()):
            assert arrival is not None
            arrivals.append(arrival)
    except StreamError as error:
        return arrivals, error
    raise AssertionError("the source was not lost")


def assert_same(arrivals: list[Arrival], expected: list[np.ndarray]) -> None:
    assert len(arrivals) == len(expected)
    for arrival, picture in zip(arrivals, expected, strict=True):
        np.testing.assert_array_equal(arrival.image(), picture)


def test_a_video_has_the_frames_that_predict_reads(clip: Path) -> None:
    arrivals = read_all(open_live(clip))
    assert_same(arrivals, frames_of(clip))
    steps = np.diff([arrival.stamp for arrival in arrivals if arrival.stamp is not None])
    np.testing.assert_allclose(steps, 1 / 25, atol=1e-5)


def test_a_video_at_its_own_pace_takes_its_own_time(clip: Path) -> None:
    started = time.monotonic()
    arrivals = read_all(open_live(clip, real_time=True))
    assert time.monotonic() - started >= (COUNT - 1) / 25
    assert len(arrivals) == COUNT


def test_a_stream_over_tcp_has_the_frames_of_the_clip(clip: Path) -> None:
    with tcp_server(whole(clip)) as url:
        source = open_live(url, timeout=10.0)
        assert source.reconnects
        assert not source.can_wait
        assert_same(read_all(source), frames_of(clip))


def test_a_stream_over_udp_gives_frames_of_the_clip(clip: Path) -> None:
    expected = frames_of(clip)
    stopped = threading.Event()
    whole_frames = 0
    with udp_sender(clip) as url:
        for arrival in open_live(url, timeout=20.0).arrivals(stopped):
            # Where the sender begins again, packets are missing, and the frame is damaged.
            if arrival is not None:
                image = arrival.image()
                assert any(np.array_equal(image, picture) for picture in expected)
                whole_frames += 1
            if whole_frames == 2 * COUNT:
                stopped.set()


def test_a_camera_with_rtsp_and_a_password_gives_the_frames_of_the_clip(clip: Path) -> None:
    with RtspServer(clip) as server:
        source = open_live(server.url, timeout=10.0)
        assert "pass-word" not in source.shown
        assert source.shown.startswith("rtsp://127.0.0.1:")
        arrivals = read_all(source)
        assert server.allowed == 3
    # The end of a session cuts the last frame, whose end only the next would show.
    expected = frames_of(clip)
    assert len(arrivals) >= COUNT - 1
    assert_same(arrivals, expected[: len(arrivals)])


def test_a_web_camera_gives_its_pictures(tmp_path: Path) -> None:
    jpegs = []
    for picture in pictures(5):
        _, data = cv2.imencode(".jpg", picture[..., ::-1])
        jpegs.append(data.tobytes())
    with mjpeg_server(jpegs) as url:
        source = open_live(url, timeout=10.0)
        arrivals, broken = read_until_lost(source)
    assert "broke off" in str(broken)  # the last boundary is missing
    for secret in ("secret", "pass-word"):
        assert secret not in source.shown + str(broken)
    assert len(arrivals) == 5
    # The format counts pictures, which is no time.
    assert {arrival.stamp for arrival in arrivals} == {None}
    for arrival, picture in zip(arrivals, pictures(5), strict=True):
        assert np.abs(arrival.image().astype(int) - picture).mean() < 12  # of JPEG


PIPED = """
import sys, threading
from segunc.frames.streams import open_live
settings = dict(word.split("=") for word in sys.argv[2:])
source = open_live("-", container=sys.argv[1] or None, settings=settings)
images = [arrival.image() for arrival in source.arrivals(threading.Event())]
print(len(images), images[0].shape, sum(int(image.sum()) for image in images))
"""


def piped(data: bytes, *words: str, script: str = PIPED) -> str:
    command = [sys.executable, "-c", script, *words]
    done = subprocess.run(command, input=data, capture_output=True, timeout=120, check=True)
    return done.stdout.decode().strip()


def test_a_pipe_gives_a_container_and_raw_pictures(clip: Path) -> None:
    expected = frames_of(clip)
    total = sum(int(picture.sum()) for picture in expected)
    assert piped(clip.read_bytes(), "") == f"12 (64, 128, 3) {total}"
    raw = b"".join(picture.tobytes() for picture in expected)
    words = ("rawvideo", "video_size=128x64", "pixel_format=rgb24")
    assert piped(raw, *words) == f"12 (64, 128, 3) {total}"


CLOCK = """
import sys, threading
from segunc.frames.streams import open_live
settings = dict(word.split("=") for word in sys.argv[2:])
source = open_live("-", container=sys.argv[1] or None, settings=settings)
first, second, *_ = source.arrivals(threading.Event())
print(first.stamp, second.stamp, source.clock())
"""


def test_a_pipe_without_times_says_which_times_its_frames_have(clip: Path) -> None:
    raw = b"".join(picture.tobytes() for picture in frames_of(clip))
    words = ("rawvideo", "video_size=128x64", "pixel_format=rgb24")
    assert "holds no times" not in piped(clip.read_bytes(), "", script=CLOCK)
    said = piped(raw, *words, script=CLOCK)
    assert said.startswith("None None standard input (rawvideo) holds no times of its frames")
    assert "a frame has the time at which it came" in said
    assert "--stream-options framerate=10" in said
    assert piped(raw, *words, "framerate=10", script=CLOCK) == "0.0 0.1"


def test_a_folder_gives_each_whole_image_once_in_the_order_of_names(tmp_path: Path) -> None:
    expected = pictures(4)
    stopped = threading.Event()
    source = FolderSource(tmp_path)
    arrivals = source.arrivals(stopped)

    def write(number: int, size: int | None = None) -> None:
        _, data = cv2.imencode(".png", expected[number][..., ::-1])
        (tmp_path / f"frame_{number}.png").write_bytes(data.tobytes()[:size])

    write(1)
    write(0)
    (tmp_path / ".frame_9.png").write_bytes(b"hidden")
    (tmp_path / "notes.txt").write_text("no image")
    seen = [next(arrivals), next(arrivals)]
    write(2, size=200)  # half of it
    writer = threading.Timer(0.7, write, (2,))
    writer.start()
    seen.append(next(arrivals))
    stopped.set()
    assert list(arrivals) == []
    assert [arrival.name for arrival in seen if arrival] == [
        "frame_0.png",
        "frame_1.png",
        "frame_2.png",
    ]
    assert_same([arrival for arrival in seen if isinstance(arrival, Arrival)], expected[:3])


def test_a_file_whose_time_is_to_come_sets_neither_the_clock_nor_the_place(tmp_path: Path) -> None:
    now = time.time()
    for name, changed in (("a", now - 9), ("b", now + 86400), ("c", now - 8)):
        cv2.imwrite(str(tmp_path / f"{name}.png"), pictures(1)[0])
        os.utime(tmp_path / f"{name}.png", (changed, changed))
    stopped = threading.Event()
    arrivals = FolderSource(tmp_path).arrivals(stopped)
    taken = [next(arrivals) for _ in range(3)]
    assert [arrival.clock for arrival in taken if isinstance(arrival, Arrival)] == [0, 1, 0]
    places = [arrival.taken_up_to for arrival in taken if isinstance(arrival, Arrival)]
    assert [place and place[1] for place in places] == ["a.png", "a.png", "c.png"]
    (tmp_path / "a.png").unlink()
    (tmp_path / "c.png").unlink()
    (alone,) = [next(FolderSource(tmp_path).arrivals(stopped))]
    assert isinstance(alone, Arrival)
    assert alone.taken_up_to is None


def test_a_file_that_stays_damaged_is_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "SETTLED_SECONDS", 0.3)
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\nno picture")
    stopped = threading.Event()
    arrivals = FolderSource(tmp_path).arrivals(stopped)
    assert next(arrivals) == DamagedFile("a.png")
    cv2.imwrite(str(tmp_path / "b.png"), pictures(1)[0])
    arrival = next(arrivals)
    assert isinstance(arrival, Arrival)
    assert arrival.name == "b.png"


def test_a_folder_tells_each_kind_of_file_that_is_no_frame_once(tmp_path: Path) -> None:
    for name in ("x.mp4", "y.MOV", "pic.heic", ".hidden.mp4", "notes.txt"):
        (tmp_path / name).write_bytes(b"something")
    (tmp_path / "folder.mp4").mkdir()
    cv2.imwrite(str(tmp_path / "a.png"), pictures(1)[0])
    stopped = threading.Event()
    arrivals = FolderSource(tmp_path).arrivals(stopped)
    heic = "(HEIC) left out, first pic.heic; convert them to PNG or JPEG"
    assert next(arrivals) == LeftOut(
        f"{tmp_path}: 2 videos left out, first x.mp4; give a video itself as --input"
    )
    assert next(arrivals) == LeftOut(f"{tmp_path}: 1 picture of formats that are not read {heic}")
    assert isinstance(next(arrivals), Arrival)
    for name in ("z.mkv", "b.heic", "c.gif"):  # of these, .gif alone is of a new kind
        (tmp_path / name).write_bytes(b"something")
    told = next(arrivals)
    assert isinstance(told, LeftOut)
    assert "1 picture of formats that are not read (GIF) left out, first c.gif" in told.text
    threading.Timer(0.5, stopped.set).start()
    assert list(arrivals) == []


def test_a_folder_goes_on_after_the_file_that_was_taken_last(tmp_path: Path) -> None:
    for number in range(3):
        path = tmp_path / f"{number}.png"
        cv2.imwrite(str(path), pictures(1)[0])
        os.utime(path, (1000.0 + number, 1000.0 + number))
    arrivals = FolderSource(tmp_path, after=(1001.0, "1.png")).arrivals(threading.Event())
    arrival = next(arrivals)
    assert isinstance(arrival, Arrival)
    assert arrival.name == "2.png"


def write_image(path: Path, changed: float) -> None:
    """Write an image at once, with the time of its last change."""
    hidden = path.with_name(f".{path.name}")
    cv2.imwrite(str(hidden), pictures(1)[0])
    os.utime(hidden, (changed, changed))
    hidden.replace(path)


def stopped_after(seconds: float) -> threading.Event:
    """Return an event that is set after a while, so that a test ends that waits in vain."""
    stopped = threading.Event()
    timer = threading.Timer(seconds, stopped.set)
    timer.daemon = True
    timer.start()
    return stopped


def test_a_damaged_file_is_taken_when_it_is_whole_at_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow copy may rest for longer than a file needs to be called damaged."""
    monkeypatch.setattr(streams, "SETTLED_SECONDS", 0.3)
    _, data = cv2.imencode(".png", pictures(1)[0])
    path = tmp_path / "a.png"
    arrivals = FolderSource(tmp_path).arrivals(stopped_after(3.0))
    path.write_bytes(data.tobytes()[:200])
    assert next(arrivals) == DamagedFile("a.png")
    path.write_bytes(data.tobytes()[:300])  # it grows and rests again, which is not told again
    writer = threading.Timer(1.0, path.write_bytes, (data.tobytes(),))
    writer.start()
    arrival = next(arrivals)
    assert isinstance(arrival, Arrival)
    assert arrival.name == "a.png"
    assert list(arrivals) == []


def test_a_file_that_is_written_again_is_told_once(tmp_path: Path) -> None:
    arrivals = FolderSource(tmp_path).arrivals(stopped_after(3.0))
    for name in ("a.png", "b.png"):
        write_image(tmp_path / name, 1000.0)
        assert isinstance(next(arrivals), Arrival)
    os.utime(tmp_path / "a.png", (900.0, 900.0))  # as a copy gets the time of its original
    threading.Timer(0.5, write_image, (tmp_path / "b.png", 1001.0)).start()
    told = next(arrivals)
    assert isinstance(told, LeftOut)
    assert told.text.startswith(f"{tmp_path}: b.png was changed after it was taken.")
    write_image(tmp_path / "a.png", 1001.0)
    assert list(arrivals) == []


def test_a_file_that_changes_while_it_is_read_is_not_taken_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time would be an earlier one, and a watch that goes on would take it again."""
    path = tmp_path / "a.png"
    write_image(path, 1000.0)
    read = streams.read_image
    reads = []

    def read_and_touch(*arguments: object, **settings: object) -> object:
        image = read(*arguments, **settings)  # type: ignore[arg-type]
        reads.append(path)
        if len(reads) == 1:
            os.utime(path, (2000.0, 2000.0))
        return image

    monkeypatch.setattr(streams, "read_image", read_and_touch)
    arrival = next(FolderSource(tmp_path).arrivals(threading.Event()))
    assert isinstance(arrival, Arrival)
    assert arrival.stamp == 2000.0
    assert arrival.taken_up_to == (2000.0, "a.png")


def test_files_that_come_after_a_restart_are_taken_whatever_their_times(tmp_path: Path) -> None:
    """Copies with the times of their originals are older than what was taken before."""
    write_image(tmp_path / "b.png", 1000.0)
    source = FolderSource(tmp_path, after=(1000.0, "b.png"))
    assert "whose files were changed before it count as taken" in source.awaited()
    arrivals = source.arrivals(stopped_after(3.0))
    threading.Timer(0.5, write_image, (tmp_path / "a.png", 500.0)).start()
    arrival = next(arrivals)
    assert isinstance(arrival, Arrival)
    assert (arrival.name, arrival.stamp) == ("a.png", 500.0)
    assert arrival.taken_up_to == (1000.0, "b.png")


def test_a_frame_says_up_to_which_time_all_files_were_taken(tmp_path: Path) -> None:
    times = {"1.png": 1100.0, "2.png": 1300.0, "3.png": 1200.0, "4.png": 1400.0}
    for name, changed in times.items():
        write_image(tmp_path / name, changed)
    arrivals = FolderSource(tmp_path).arrivals(threading.Event())
    places = []
    for name in times:
        arrival = next(arrivals)
        assert isinstance(arrival, Arrival)
        assert arrival.name == name
        places.append(arrival.taken_up_to)
    assert places == [(1100.0, "1.png"), (1100.0, "1.png"), (1300.0, "2.png"), (1400.0, "4.png")]
    write_image(tmp_path / "0.png", 1000.0)
    arrival = next(arrivals)
    assert isinstance(arrival, Arrival)
    assert arrival.taken_up_to == (1400.0, "4.png")


def test_frames_of_damaged_packets_are_no_frames(clip: Path, tmp_path: Path) -> None:
    data = bytearray(clip.read_bytes())
    packets = len(data) // PACKET
    lost = [*range(packets // 2, packets // 2 + 3)]
    kept = [data[n * PACKET : (n + 1) * PACKET] for n in range(packets) if n not in lost]
    damaged = tmp_path / "damaged.ts"
    damaged.write_bytes(b"".join(kept))
    arrivals = list(open_live(damaged).arrivals(threading.Event()))
    assert None in arrivals
    expected = frames_of(clip)
    for arrival in arrivals:
        if isinstance(arrival, Arrival):
            image = arrival.image()
            assert any(np.array_equal(image, picture) for picture in expected)


def test_an_address_that_does_not_answer_is_named_without_its_password() -> None:
    url = f"tcp://me:pass-word@127.0.0.1:{free_port()}"
    with pytest.raises(StreamError, match=r"tcp://127\.0\.0\.1:\d+ cannot be opened") as refused:
        read_all(open_live(url, timeout=5.0))
    assert "Connection refused" in str(refused.value)
    assert "pass-word" not in str(refused.value)
    assert refused.value.__cause__ is None  # which --debug would show, with the address
    assert refused.value.__suppress_context__
    assert refused.value.what == "unreachable"


def test_an_address_that_sends_nothing_does_not_answer() -> None:
    with (
        tcp_server(lambda send: time.sleep(3)) as url,
        pytest.raises(StreamError, match=r"does not answer within 1 s"),
    ):
        read_all(open_live(url, timeout=1.0))


def test_a_stream_that_falls_silent_has_stalled(clip: Path) -> None:
    with tcp_server(then_silence(clip, 4.0)) as url:
        arrivals, stalled = read_until_lost(open_live(url, timeout=1.0))
    assert "gave no data for 1 s" in str(stalled)
    assert stalled.what == "stalled"
    assert len(arrivals) >= COUNT - 1


def test_what_holds_no_video_is_refused(tmp_path: Path) -> None:
    import av

    path = tmp_path / "sound.ts"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mp2", rate=48000, layout="mono")
        for start in range(0, 48000, 1152):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 1152), np.int16), "s16", "mono")
            frame.sample_rate = 48000
            frame.pts = start
            for packet in stream.encode(frame):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    with tcp_server(whole(path)) as url, pytest.raises(StreamError, match="holds no video"):
        read_all(open_live(url, timeout=5.0))


READ_STANDARD_INPUT = """
import threading
from segunc.frames.streams import open_live
list(open_live("-", timeout=5.0).arrivals(threading.Event()))
"""


def test_an_mp4_file_in_a_pipe_is_refused_with_what_to_do(tmp_path: Path) -> None:
    import av

    path = tmp_path / "drive.mp4"
    random = np.random.default_rng(0)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height = 640, 480
        for _ in range(10):
            pixels = random.integers(0, 256, (480, 640, 3), np.uint8)
            for packet in stream.encode(av.VideoFrame.from_ndarray(pixels, "rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    command = [sys.executable, "-c", READ_STANDARD_INPUT]
    done = subprocess.run(command, input=path.read_bytes(), capture_output=True, check=False)
    assert "cannot be read from a pipe: name the file" in done.stderr.decode()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("camera:99", "camera /dev/video99 cannot be opened"),
        ("camera:front", "camera:front is no camera"),
        ("ftp://host/a.mp4", "ftp://host/a.mp4 is no stream"),
        ("nowhere", "does not exist"),
        (__file__, "is no folder, video or camera"),
    ],
)
def test_what_is_no_source_is_refused(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_all(open_live(spec))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("rtsp://me:pw@cam:554/a?password=pw", "rtsp://cam:554/a"),
        ("rtsp://cam/user=me&password=pw&channel=1", "rtsp://cam/user=me&password=***&channel=1"),
        ("srt://host:9000?passphrase=pw", "srt://host:9000"),
        ("udp://127.0.0.1:5000", "udp://127.0.0.1:5000"),
    ],
)
def test_passwords_are_not_shown(url: str, shown: str) -> None:
    assert shown_url(url) == shown


def arrival(number: int = 0, arrived: float = 0.0) -> Arrival:
    image = np.full((2, 2, 3), number, np.uint8)
    return Arrival(image=lambda: image, arrived=arrived, wall=arrived, stamp=float(number))


def test_an_inbox_keeps_the_newest_and_counts_the_others() -> None:
    inbox = Inbox(length=2, first=10)
    for number in range(5):
        inbox.put(arrival(number))
    inbox.put(None)
    taken = [inbox.take(0.0), inbox.take(0.0)]
    assert [frame.number for frame in taken if isinstance(frame, LiveFrame)] == [13, 14]
    assert inbox.take(0.0) is None
    assert inbox.counts() == (6, {"newer": 3, "damaged": 1})


def test_an_inbox_that_drops_nothing_lets_the_reader_wait() -> None:
    inbox = Inbox(length=1, drops=False)

    def fill() -> None:
        for number in range(4):
            inbox.put(arrival(number))

    reader = threading.Thread(target=fill)
    reader.start()
    numbers = []
    while len(numbers) < 4:
        item = inbox.take(5.0)
        assert isinstance(item, LiveFrame)
        numbers.append(item.number)
    reader.join(5)
    assert numbers == [0, 1, 2, 3]
    assert inbox.counts() == (4, {})


def test_what_happens_to_the_stream_stays_behind_the_frames_before_it() -> None:
    inbox = Inbox(length=1)
    inbox.put(arrival(0))
    inbox.tell(Gap("ended"))
    inbox.put(arrival(1))
    assert isinstance(inbox.take(0.0), Gap)  # frame 0 was dropped for frame 1
    frame = inbox.take(0.0)
    assert isinstance(frame, LiveFrame)
    assert frame.number == 1


def test_frames_that_wait_at_the_end_are_counted() -> None:
    inbox = Inbox(length=3)
    for number in range(2):
        inbox.put(arrival(number))
    inbox.close()
    inbox.put(arrival(2))
    assert inbox.counts() == (2, {"end": 2})


def test_a_frame_that_waited_on_its_way_is_behind() -> None:
    lag = Lag()
    assert lag.behind(100.0, 0.0) == 0.0
    assert lag.behind(103.0, 1.0) == 2.0  # due at 101
    assert lag.behind(101.5, 2.0) == 0.0  # the fastest so far: 0.5 s earlier than the first
    assert lag.behind(103.0, 3.0) == 0.5
    assert lag.behind(104.0, None) == 0.0


def test_a_clock_that_drifts_is_forgotten() -> None:
    lag = Lag()
    lag.behind(0.0, 0.0)
    for second in range(1, 2000):
        behind = lag.behind(second * 1.001, float(second))
    assert behind == pytest.approx(0.3, abs=0.31)  # and not 2 s


def test_a_clock_that_goes_back_begins_a_new_measurement() -> None:
    lag = Lag()
    for number in range(20):
        lag.behind(0.1 * number, 1000 + 0.1 * number)
    assert lag.behind(2.0, 0.0) == 0.0
    assert lag.behind(3.5, 1.0) == 0.5
    assert lag.behind(4.0, 2.0) == 0.0


def test_a_clock_that_stands_still_says_nothing_of_the_delay() -> None:
    lag = Lag()
    assert [lag.behind(float(second), 7.0) for second in range(60)] == [0.0] * 60
    assert lag.behind(60.0, 8.0) == 0.0  # it moves again
    assert lag.behind(62.0, 9.0) == 1.0


def test_one_frame_with_the_time_of_another_does_not_hide_a_delay() -> None:
    lag = Lag()
    lag.behind(0.0, 0.0)
    assert lag.behind(3.0, 1.0) == 2.0
    assert lag.behind(3.1, 1.0) == 0.0
    assert lag.behind(4.0, 2.0) == 2.0


def test_a_sender_that_begins_again_in_a_connection_has_another_clock(tmp_path: Path) -> None:
    first = write_stream(tmp_path / "first.ts", pictures(4))
    later = write_stream(tmp_path / "later.ts", pictures(4), start=3600)

    def both(send: Send) -> None:
        send(first.read_bytes())
        send(later.read_bytes())

    with tcp_server(both) as url:
        arrivals = [
            arrival
            for arrival in open_live(url, timeout=5.0).arrivals(threading.Event())
            if isinstance(arrival, Arrival)
        ]
    clocks = [arrival.clock for arrival in arrivals]
    assert clocks == sorted(clocks)
    assert {*clocks} == {0, 1}
    for arrival in arrivals:
        assert arrival.stamp is not None
        assert arrival.clock == int(arrival.stamp > 3000)


class Scripted(LiveSource):
    """A source that gives numbers of frames, one connection after another; an error stands for a
    connection that fails."""

    kind = "stream"
    shown = "rtsp://camera"
    reconnects = True

    def __init__(self, *connections: int | StreamError) -> None:
        self.connections = list(connections)

    def arrivals(self, stopped: threading.Event) -> Iterator[Arrival | None]:
        if not self.connections:
            raise StreamError("rtsp://camera is away")
        connection = self.connections.pop(0)
        if isinstance(connection, StreamError):
            raise connection
        for number in range(connection):
            yield arrival(number)


def told(
    source: LiveSource, attempts: int, monkeypatch: pytest.MonkeyPatch, *, patient: bool = False
) -> list[LiveFrame | Gap | Finish]:
    """Return all that a reader of a source tells."""
    monkeypatch.setattr(streams, "FIRST_WAIT", 0.01)
    inbox = Inbox(length=100)
    reader = Reader(source, inbox, attempts=attempts, patient=patient)
    reader.start()
    items: list[LiveFrame | Gap | Finish] = []
    while not items or not isinstance(items[-1], Finish):
        item = inbox.take(5.0)
        assert item is not None
        items.append(item)
    reader.stop()
    return items


def test_a_reader_connects_again_with_longer_waits_and_gives_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    away = StreamError("rtsp://camera is away")
    away.what = "unreachable"
    items = told(Scripted(2, away, 1, away, away), 2, monkeypatch)
    numbers = [item.number for item in items if isinstance(item, LiveFrame)]
    assert numbers == [0, 1, 2]
    gaps = [item for item in items if isinstance(item, Gap)]
    assert [(gap.what, gap.attempt, gap.wait) for gap in gaps] == [
        ("connected", 0, 0.0),
        ("ended", 1, 0.01),
        ("unreachable", 2, 0.02),
        ("connected", 0, 0.0),
        ("ended", 1, 0.01),
        ("unreachable", 2, 0.02),
    ]
    assert items[-1] == Finish(failure="rtsp://camera is away; given up after 2 attempts in a row")


def test_a_source_that_never_gave_a_frame_is_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    away = StreamError("rtsp://camera is away")
    (finish,) = told(Scripted(away, 1), 5, monkeypatch)
    assert isinstance(finish, Finish)
    assert finish.error is away


def test_a_restarted_watch_waits_for_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    away = StreamError("rtsp://camera is away")
    items = told(Scripted(away, 1), 1, monkeypatch, patient=True)
    assert sum(isinstance(item, LiveFrame) for item in items) == 1


def test_a_fault_of_the_program_is_raised_to_the_consumer(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Scripted):
        def arrivals(self, stopped: threading.Event) -> Iterator[Arrival | None]:
            raise ZeroDivisionError
            yield None

    finish = told(Broken(), 5, monkeypatch)[-1]
    assert isinstance(finish, Finish)
    assert isinstance(finish.error, ZeroDivisionError)


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="ffmpeg is not installed")
def test_a_stream_that_ffmpeg_sends_has_the_frames_of_the_clip(clip: Path) -> None:
    port = free_port()
    command = ["ffmpeg", "-v", "error", "-re", "-i", str(clip), "-c", "copy", "-f", "mpegts"]
    with subprocess.Popen([*command, f"tcp://127.0.0.1:{port}?listen=1"]) as sender:
        time.sleep(1.0)
        try:
            assert_same(
                read_all(open_live(f"tcp://127.0.0.1:{port}", timeout=20.0)), frames_of(clip)
            )
        finally:
            sender.kill()
