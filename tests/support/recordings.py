"""Small recordings of cameras, written by the libraries that vehicles use."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np

SECOND = 10**9
START = 1_700_000_000 * SECOND
SIZE = (6, 8)


def pictures(count: int) -> list[np.ndarray]:
    """Return different pictures, RGB uint8 ``[6, 8, 3]``."""
    random = np.random.default_rng(5)
    return [random.integers(0, 256, (*SIZE, 3), np.uint8) for _ in range(count)]


@dataclass
class Picture:
    """What one message holds, and when."""

    rgb: np.ndarray
    stamp: int
    log_time: int
    compressed: str = ""
    """``png``; empty for a message of plain pixels."""

    def encoded(self) -> bytes:
        ok, data = cv2.imencode(f".{self.compressed}", self.rgb[..., ::-1])
        assert ok
        return data.tobytes()


@dataclass
class Camera:
    """A topic and its messages."""

    topic: str
    pictures: list[Picture] = field(default_factory=list)


def camera(topic: str, count: int = 4, *, compressed: str = "", stamped: bool = True) -> Camera:
    """Return a camera with a picture every tenth of a second, recorded 30 ms late."""
    shots = []
    for number, rgb in enumerate(pictures(count)):
        moment = START + number * SECOND // 10
        stamp = moment if stamped else 0
        shots.append(Picture(rgb, stamp, moment + 30_000_000, compressed))
    return Camera(topic, shots)


def ros_message(types: Any, picture: Picture, *, ros1: bool) -> Any:
    """Return a message of ROS, and its type."""
    header_fields: dict[str, Any] = {
        "stamp": types.types["builtin_interfaces/msg/Time"](
            sec=picture.stamp // SECOND, nanosec=picture.stamp % SECOND
        ),
        "frame_id": "camera",
    }
    if ros1:
        header_fields["seq"] = 0
    header = types.types["std_msgs/msg/Header"](**header_fields)
    if picture.compressed:
        name = "sensor_msgs/msg/CompressedImage"
        data = np.frombuffer(picture.encoded(), np.uint8)
        return name, types.types[name](header=header, format=picture.compressed, data=data)
    name = "sensor_msgs/msg/Image"
    height, width = picture.rgb.shape[:2]
    message = types.types[name](
        header=header,
        height=height,
        width=width,
        encoding="rgb8",
        is_bigendian=0,
        step=3 * width,
        data=picture.rgb.reshape(-1),
    )
    return name, message


def write_bag1(path: Path, cameras: Sequence[Camera]) -> Path:
    from rosbags.rosbag1 import Writer
    from rosbags.typesys import Stores, get_typestore

    types = get_typestore(Stores.ROS1_NOETIC)
    with Writer(path) as writer:
        for shown in cameras:
            connection = None
            for picture in shown.pictures:
                name, message = ros_message(types, picture, ros1=True)
                if connection is None:
                    connection = writer.add_connection(shown.topic, name, typestore=types)
                data = types.serialize_ros1(message, name)
                writer.write(connection, picture.log_time, data)
    return path


def write_bag2(path: Path, cameras: Sequence[Camera], *, mcap: bool = False) -> Path:
    from rosbags.rosbag2 import StoragePlugin, Writer
    from rosbags.typesys import Stores, get_typestore

    types = get_typestore(Stores.ROS2_HUMBLE)
    plugin = StoragePlugin.MCAP if mcap else StoragePlugin.SQLITE3
    with Writer(path, version=9, storage_plugin=plugin) as writer:
        for shown in cameras:
            connection = None
            for picture in shown.pictures:
                name, message = ros_message(types, picture, ros1=False)
                if connection is None:
                    connection = writer.add_connection(shown.topic, name, typestore=types)
                data = types.serialize_cdr(message, name)
                writer.write(connection, picture.log_time, data)
    return path


def foxglove_json(picture: Picture) -> tuple[str, bytes]:
    """Return the type and the bytes of a message of Foxglove in JSON."""
    fields: dict[str, Any] = {
        "timestamp": {"sec": picture.stamp // SECOND, "nsec": picture.stamp % SECOND},
        "frame_id": "camera",
    }
    if picture.compressed:
        fields["format"] = picture.compressed
        fields["data"] = base64.b64encode(picture.encoded()).decode()
        return "foxglove.CompressedImage", json.dumps(fields).encode()
    height, width = picture.rgb.shape[:2]
    fields |= {"width": width, "height": height, "encoding": "rgb8", "step": 3 * width}
    fields["data"] = base64.b64encode(picture.rgb.tobytes()).decode()
    return "foxglove.RawImage", json.dumps(fields).encode()


def varint(number: int) -> bytes:
    """Return a whole number as protobuf writes it."""
    data = bytearray()
    while number >= 128:
        data.append(number & 127 | 128)
        number >>= 7
    return bytes([*data, number])


def protobuf(fields: Sequence[tuple[int, str, Any]]) -> bytes:
    """Return fields (number, ``varint``, ``bytes`` or ``fixed32``, value) as protobuf."""
    data = b""
    for number, form, value in fields:
        if form == "varint":
            data += varint(number << 3) + varint(value)
        elif form == "fixed32":
            data += varint(number << 3 | 5) + value.to_bytes(4, "little")
        else:
            data += varint(number << 3 | 2) + varint(len(value)) + value
    return data


def foxglove_protobuf(picture: Picture) -> tuple[str, bytes]:
    """Return the type and the bytes of a message of Foxglove in protobuf."""
    seconds, nanoseconds = divmod(picture.stamp, SECOND)
    time = protobuf([(1, "varint", seconds), (2, "varint", nanoseconds)])
    if picture.compressed:
        fields: list[tuple[int, str, Any]] = [
            (1, "bytes", time),
            (4, "bytes", b"camera"),
            (2, "bytes", picture.encoded()),
            (3, "bytes", picture.compressed.encode()),
        ]
        return "foxglove.CompressedImage", protobuf(fields)
    height, width = picture.rgb.shape[:2]
    fields = [
        (1, "bytes", time),
        (7, "bytes", b"camera"),
        (2, "fixed32", width),
        (3, "fixed32", height),
        (4, "bytes", b"rgb8"),
        (5, "fixed32", 3 * width),
        (6, "bytes", picture.rgb.tobytes()),
    ]
    return "foxglove.RawImage", protobuf(fields)


def mcap_message(picture: Picture, encoding: str) -> tuple[str, bytes]:
    """Return the type of a message and its bytes in an encoding of MCAP."""
    if encoding == "json":
        return foxglove_json(picture)
    if encoding == "protobuf":
        return foxglove_protobuf(picture)
    from rosbags.typesys import Stores, get_typestore

    ros1 = encoding == "ros1"
    types = get_typestore(Stores.ROS1_NOETIC if ros1 else Stores.ROS2_HUMBLE)
    name, message = ros_message(types, picture, ros1=ros1)
    if ros1:
        return name.replace("/msg/", "/"), bytes(types.serialize_ros1(message, name))
    return name, bytes(types.serialize_cdr(message, name))


def write_mcap(
    path: Path,
    cameras: Sequence[Camera],
    encoding: str = "cdr",
    *,
    chunk_size: int = 500,
    other: Sequence[str] = (),
) -> Path:
    """Write an MCAP file.

    Args:
        path: the file.
        cameras: their messages.
        encoding: ``cdr``, ``ros1``, ``json`` or ``protobuf``.
        chunk_size: bytes of a chunk.
        other: topics of messages that are no images.
    """
    from mcap.writer import CompressionType, Writer

    with path.open("wb") as file:
        writer = Writer(file, chunk_size=chunk_size, compression=CompressionType.ZSTD)
        writer.start()
        for topic in other:
            schema = writer.register_schema("sensor_msgs/msg/PointCloud2", "ros2msg", b"")
            channel = writer.register_channel(topic, "cdr", schema)
            writer.add_message(channel, START, b"\0\1\0\0", START)
        for shown in cameras:
            name, _ = mcap_message(shown.pictures[0], encoding)
            schema = writer.register_schema(name, encoding, b"")
            channel = writer.register_channel(shown.topic, encoding, schema)
            for picture in shown.pictures:
                _, data = mcap_message(picture, encoding)
                writer.add_message(channel, picture.log_time, data, picture.log_time)
        writer.finish()
    return path
