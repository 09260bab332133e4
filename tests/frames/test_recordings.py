"""Cameras in recordings: the pixels and the times of their messages, exactly, and one sentence on
what is not there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from segunc.core.errors import InputError
from segunc.frames.camera_messages import CameraMessage, read_message
from segunc.frames.recordings import McapRecording, open_recording
from segunc.frames.source import Frame, FrameSource, Selection
from segunc.frames.sources import open_source, plan_inputs
from tests.maps.fakes import folder_bytes, predict
from tests.support import recordings
from tests.support.recordings import SECOND, START, Camera, Picture, camera

pytest.importorskip("mcap", reason="the extra recordings is not installed")
pytest.importorskip("rosbags", reason="the extra recordings is not installed")

FRONT = "/camera/front"
Writer = Callable[[Path, list[Camera]], Path]


def mcap_in(encoding: str) -> Writer:
    def write(folder: Path, cameras: list[Camera]) -> Path:
        return recordings.write_mcap(folder / "drive.mcap", cameras, encoding)

    return write


WRITERS: dict[str, Writer] = {
    "MCAP of ROS 2": mcap_in("cdr"),
    "MCAP of ROS 1": mcap_in("ros1"),
    "MCAP in JSON": mcap_in("json"),
    "MCAP in protobuf": mcap_in("protobuf"),
    "bag of ROS 1": lambda folder, cameras: recordings.write_bag1(folder / "drive.bag", cameras),
    "bag of ROS 2": lambda folder, cameras: recordings.write_bag2(folder / "drive", cameras),
    "bag of ROS 2 in MCAP": lambda folder, cameras: recordings.write_bag2(
        folder / "drive", cameras, mcap=True
    ),
}
every_format = pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS.keys())


def frames_of(source: FrameSource) -> list[Frame]:
    return list(source.frames())


def shown(camera: Camera, path: Path) -> str:
    return f"{path}:{camera.topic}"


@every_format
@pytest.mark.parametrize("compressed", ["", "png"])
def test_pixels_and_times_are_those_of_the_messages(
    write: Writer, compressed: str, tmp_path: Path
) -> None:
    front = camera(FRONT, 4, compressed=compressed)
    rear = camera("/camera/rear", 3, compressed=compressed)
    path = write(tmp_path, [front, rear])
    source = open_source(f"{path}:{FRONT}")
    frames = frames_of(source)
    assert [frame.name for frame in frames] == ["000000", "000001", "000002", "000003"]
    assert [frame.time for frame in frames] == [0.0, 0.1, 0.2, 0.3]
    for frame, picture in zip(frames, front.pictures, strict=True):
        assert np.array_equal(frame.image, picture.rgb)
    assert source.length_hint == 4
    assert source.notes == ()
    assert source.kind == "video"
    assert source.fps == pytest.approx(10, rel=1e-6)


@every_format
def test_a_selection_takes_times_of_the_recording(write: Writer, tmp_path: Path) -> None:
    path = write(tmp_path, [camera(FRONT, 10)])
    selection = Selection(every=2, start=0.15, end=0.7)
    frames = frames_of(open_source(f"{path}:{FRONT}", selection=selection))
    assert [frame.name for frame in frames] == ["000002", "000004", "000006"]
    assert [frame.index for frame in frames] == [1, 2, 3]
    assert [frame.time for frame in frames] == [0.2, 0.4, 0.6]


@every_format
def test_messages_without_stamps_have_the_times_of_the_recording(
    write: Writer, tmp_path: Path
) -> None:
    path = write(tmp_path, [camera(FRONT, 3, stamped=False)])
    source = open_source(f"{path}:{FRONT}")
    assert source.notes == (
        f"{path}:{FRONT}: messages have no stamps, so times are those of the recording",
    )
    assert [frame.time for frame in frames_of(source)] == [0.0, 0.1, 0.2]


def test_the_only_topic_of_images_is_taken_and_said(tmp_path: Path) -> None:
    path = recordings.write_mcap(tmp_path / "drive.mcap", [camera(FRONT, 2)], other=["/lidar"])
    source = open_source(path)
    assert source.notes == (f"{path}: {FRONT} is taken, the only topic with images",)
    assert source.identity()["input"] == f"{path}:{FRONT}"
    assert len(frames_of(source)) == 2


def test_several_topics_without_a_choice_are_listed(tmp_path: Path) -> None:
    cameras = [camera(FRONT, 2), camera("/camera/rear", 3)]
    path = recordings.write_mcap(tmp_path / "drive.mcap", cameras, other=["/lidar"])
    with pytest.raises(InputError) as error:
        open_source(path)
    assert str(error.value) == (
        f"{path} holds 2 topics of images: /camera/front (2), /camera/rear (3). "
        f"Hint: `input` {path}:/camera/front or `input` {path}:/camera/rear"
    )


@every_format
def test_a_topic_that_is_not_there_is_said_with_those_that_are(
    write: Writer, tmp_path: Path
) -> None:
    path = write(tmp_path, [camera(FRONT, 2), camera("/camera/rear", 3)])
    with pytest.raises(InputError) as error:
        open_source(f"{path}:/camera/frnt")
    assert str(error.value) == (
        f"{path} has no topic /camera/frnt (did you mean /camera/front?). "
        "Hint: its topics of images, with their messages: /camera/front (2), /camera/rear (3)"
    )


def test_a_topic_of_other_messages_is_said(tmp_path: Path) -> None:
    path = recordings.write_mcap(tmp_path / "drive.mcap", [camera(FRONT, 2)], other=["/lidar"])
    with pytest.raises(InputError, match=r"topic /lidar of .* holds sensor_msgs/PointCloud2, not"):
        open_source(f"{path}:/lidar")


def test_a_recording_without_images_is_said(tmp_path: Path) -> None:
    path = recordings.write_mcap(tmp_path / "drive.mcap", [], other=["/lidar"])
    with pytest.raises(InputError, match="holds no topic of images that are read"):
        open_source(path)


def test_a_recording_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"recording .*drive\.mcap does not exist"):
        open_source(f"{tmp_path}/drive.mcap:{FRONT}")


@pytest.mark.parametrize("name", ["drive.mcap", "drive.bag"])
def test_a_file_of_other_content_is_said(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"no recording" * 99)
    with pytest.raises(InputError, match=rf"recording .*{name} cannot be opened") as error:
        open_source(tmp_path / name)
    assert "\n" not in str(error.value)


def test_a_topic_of_a_file_that_is_no_recording_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(InputError, match=r"a\.png is no recording by its name"):
        open_source(f"{tmp_path}/a.png:{FRONT}")


def test_a_truncated_file_gives_what_it_holds_and_one_error(tmp_path: Path) -> None:
    front = camera(FRONT, 20)
    path = recordings.write_mcap(tmp_path / "drive.mcap", [front])
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    *frames, last = frames_of(open_source(f"{path}:{FRONT}"))
    assert 3 <= len(frames) < 20
    for frame, picture in zip(frames, front.pictures, strict=False):
        assert np.array_equal(frame.image, picture.rgb)
    assert last.image is None
    assert last.name == f"{len(frames):06d}"
    assert last.error is not None
    assert f"after message {len(frames)} the recording is damaged" in last.error


@pytest.mark.parametrize("topic", ["", f":{FRONT}"])
def test_a_file_that_ends_in_its_first_chunk_is_said(topic: str, tmp_path: Path) -> None:
    path = recordings.write_mcap(tmp_path / "drive.mcap", [camera(FRONT, 2)])
    path.write_bytes(path.read_bytes()[:200])
    words = r"drive\.mcap ends in the middle, before its first whole chunk\. Hint: copy it again"
    with pytest.raises(InputError, match=words):
        open_source(f"{path}{topic}")


def test_a_damaged_chunk_gives_what_is_before_it(tmp_path: Path) -> None:
    front = camera(FRONT, 20)
    path = recordings.write_mcap(tmp_path / "drive.mcap", [front])
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 20] = bytes(20)
    path.write_bytes(data)
    *frames, last = frames_of(open_source(f"{path}:{FRONT}"))
    assert 3 <= len(frames) < 20
    assert last.error is not None
    assert "the recording is damaged" in last.error


def test_what_was_finished_of_a_truncated_recording_stays(tmp_path: Path) -> None:
    path = recordings.write_mcap(tmp_path / "drive.mcap", [camera(FRONT, 20)])
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    summary = predict(f"{path}:{FRONT}", tmp_path / "maps")  # type: ignore[arg-type]
    assert summary.finished >= 3
    assert len(summary.failed) == 1
    assert "the same command tries them again" in summary.failure


def test_a_truncated_bag_of_ros_1_is_said(tmp_path: Path) -> None:
    path = recordings.write_bag1(tmp_path / "drive.bag", [camera(FRONT, 20)])
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(InputError, match=r"recording .*drive\.bag cannot be opened") as error:
        open_source(path)
    assert "\n" not in str(error.value)


def test_a_message_that_is_damaged_fails_alone(tmp_path: Path) -> None:
    front = camera(FRONT, 3, compressed="png")
    front.pictures[1].encoded = lambda: b"no picture"  # type: ignore[method-assign]
    path = recordings.write_mcap(tmp_path / "drive.mcap", [front])
    first, second, third = frames_of(open_source(path))
    assert first.image is not None
    assert second.image is None
    assert second.error is not None
    assert second.error.startswith(f"{path}:{FRONT}, message 000001: the file is not an image")
    assert third.image is not None


def test_a_stamp_that_jumps_back_counts_as_that_before(tmp_path: Path) -> None:
    front = camera(FRONT, 3)
    front.pictures[1].stamp = START - SECOND
    path = recordings.write_mcap(tmp_path / "drive.mcap", [front])
    assert [frame.time for frame in frames_of(open_source(path))] == [0.0, 0.0, 0.2]


def test_a_start_behind_the_end_is_said(tmp_path: Path) -> None:
    path = recordings.write_mcap(tmp_path / "drive.mcap", [camera(FRONT, 3)])
    source = open_source(path, selection=Selection(start=5))
    with pytest.raises(InputError, match=r"ends at 0:00:00\.200, before the start at 0:00:05"):
        frames_of(source)


@every_format
def test_a_run_goes_on_to_the_same_bytes(write: Writer, tmp_path: Path) -> None:
    path = write(tmp_path, [camera(FRONT, 4)])
    predict(f"{path}:{FRONT}", tmp_path / "maps")  # type: ignore[arg-type]
    predict(f"{path}:{FRONT}", tmp_path / "again")  # type: ignore[arg-type]
    assert folder_bytes(tmp_path / "maps") == folder_bytes(tmp_path / "again")
    summary = predict(f"{path}:{FRONT}", tmp_path / "maps")  # type: ignore[arg-type]
    assert (summary.finished, summary.skipped) == (0, 4)


def test_another_topic_or_another_recording_is_another_input(tmp_path: Path) -> None:
    cameras = [camera(FRONT, 2), camera("/camera/rear", 3)]
    path = recordings.write_mcap(tmp_path / "drive.mcap", cameras)
    other = recordings.write_mcap(tmp_path / "other.mcap", [camera(FRONT, 5)])
    front = open_recording(path, FRONT).identity()
    rear = open_recording(path, "/camera/rear").identity()
    assert front["topic"] != rear["topic"]
    assert front["input_hash"] == rear["input_hash"]
    assert front["input_hash"] != open_recording(other, FRONT).identity()["input_hash"]


def test_maps_folders_are_named_by_recording_and_topic(tmp_path: Path) -> None:
    specs = ["a/one.mcap:/camera/front", "a/one.mcap:/camera/rear", "a/two.mcap"]
    names = [part.label for part in plan_inputs(specs, tmp_path)]
    assert names == ["front", "rear", "two"]


def test_a_missing_library_is_said_with_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = recordings.write_mcap(tmp_path / "drive.mcap", [camera(FRONT, 1)])
    monkeypatch.setitem(__import__("sys").modules, "mcap.reader", None)
    with pytest.raises(InputError) as error:
        open_source(path)
    assert str(error.value).endswith("Hint: pip install 'segunc[recordings]'")


def test_a_picture_of_one_moment_has_no_rate(tmp_path: Path) -> None:
    rgb = recordings.pictures(1)[0]
    shots = [Picture(rgb, START, START)]
    path = recordings.write_mcap(tmp_path / "drive.mcap", [Camera(FRONT, shots)])
    assert open_source(path).fps is None


def test_a_damaged_first_message_does_not_choose_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = recordings.write_mcap(tmp_path / "drive.mcap", [camera(FRONT, 4)])
    damaged = next(McapRecording(path).messages(FRONT)).data

    def read(schema: str, encoding: str, data: bytes) -> CameraMessage:
        if data == damaged:
            return CameraMessage(fault="the message is damaged")
        return read_message(schema, encoding, data)

    monkeypatch.setattr("segunc.frames.recordings.read_message", read)
    source = open_source(f"{path}:{FRONT}")
    assert source.notes == ()
    assert [frame.time for frame in frames_of(source)] == [None, 0.0, 0.1, 0.2]


def test_a_range_without_a_message_is_said(tmp_path: Path) -> None:
    path = recordings.write_mcap(tmp_path / "drive.mcap", [camera(FRONT, 3)])
    source = open_source(path, selection=Selection(start=0.12, end=0.18))
    with pytest.raises(InputError, match=r"no frame of recording .* lies between 0:00:00\.120 and"):
        frames_of(source)
