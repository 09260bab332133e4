"""Cameras in recordings of cars: MCAP files and bags of ROS 1 and 2, read by the libraries ``mcap``
and ``rosbags``.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from segunc.core.errors import InputError, nearest
from segunc.core.files import open_file
from segunc.data.images import PixelDepth
from segunc.frames.camera_messages import IMAGE_SCHEMAS, CameraMessage, picture_of, read_message
from segunc.frames.source import ALL_FRAMES, Frame, FrameSource, Selection, Skip, format_time
from segunc.frames.video import video_hash

RECORDING_SUFFIXES = (".mcap", ".bag")
"""File name endings that are read as recordings (any case)."""
STORAGE_SUFFIXES = (".db3", ".mcap")
"""What a bag of ROS 2 holds beside its ``metadata.yaml``."""
INSTALL = "pip install 'segunc[recordings]'"
HINT_REPAIR = "copy it again, or repair it (mcap recover, rosbag reindex, ros2 bag reindex)"
MCAP_MAGIC = b"\x89MCAP0\r\n"
"""The first and the last bytes of an MCAP file."""
MAX_DAMAGED_MESSAGES = 100
"""Messages at the start among which one that can be read is looked for."""
MAX_LISTED_TOPICS = 12
"""Topics that an error names."""


@dataclass(frozen=True)
class RawMessage:
    """One message as a recording holds it."""

    log_time: int
    """When it was recorded, in nanoseconds."""
    schema: str
    """Its type, such as ``sensor_msgs/Image``."""
    encoding: str
    """How its fields are written: ``ros1``, ``cdr``, ``json`` or ``protobuf``."""
    data: bytes


@dataclass
class Topics:
    """What a recording holds."""

    counts: Counter[str] = field(default_factory=Counter)
    """Number of messages by topic."""
    schemas: dict[str, str] = field(default_factory=dict)
    """Type of the messages by topic."""
    is_cut: bool = False
    """Whether the file lacks its end."""

    @property
    def images(self) -> list[str]:
        """The topics of images."""
        return sorted(topic for topic in self.counts if self.schemas[topic] in IMAGE_SCHEMAS)

    def described(self) -> str:
        """Return the topics of images with the number of their messages, for a message."""
        shown = [f"{topic} ({self.counts[topic]})" for topic in self.images[:MAX_LISTED_TOPICS]]
        further = len(self.images) - len(shown)
        more = f" and {further} more" if further else ""
        return f"{', '.join(shown)}{more}"


class Recording(Protocol):
    """A recording of any format."""

    def topics(self) -> Topics:
        """Return what the recording holds."""

    def span(self) -> float:
        """Return the seconds from the first message of any topic to the last, 0 if unknown."""

    def messages(self, topic: str) -> Iterator[RawMessage]:
        """Yield the messages of a topic in the order of their recording.

        What a library raises for damaged data has no common type.
        """


class McapRecording:
    """An MCAP file. One without a summary, whose recorder was killed, is read from its start."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._opened() as file:
            self._summary = _summary_of(file)
        self._topics = Topics()
        if self._summary is None:
            self._scan()
            self._topics.is_cut = not _has_end(path)
            return
        counts = self._summary.statistics.channel_message_counts
        for number, channel in self._summary.channels.items():
            schema = self._summary.schemas.get(channel.schema_id)
            self._note(channel, schema, counts.get(number, 0))

    def topics(self) -> Topics:
        return self._topics

    def span(self) -> float:
        if self._summary is None:
            return 0.0
        statistics = self._summary.statistics
        return float(statistics.message_end_time - statistics.message_start_time) / 1e9

    def messages(self, topic: str) -> Iterator[RawMessage]:
        from mcap.reader import NonSeekingReader, SeekingReader

        with self._opened() as file:
            if self._summary is None:
                # In the order of the file: sorting by time would need the whole file in memory.
                reader: Any = NonSeekingReader(file, validate_crcs=True)
                messages = reader.iter_messages([topic], log_time_order=False)
            else:
                reader = SeekingReader(file, validate_crcs=True)
                messages = reader.iter_messages([topic])
            for schema, channel, message in messages:
                yield RawMessage(
                    log_time=message.log_time,
                    schema=_short_name(schema.name if schema else ""),
                    encoding=channel.message_encoding,
                    data=message.data,
                )

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Any]:
        with open_file(self.path) as file:
            yield file

    def _note(self, channel: Any, schema: Any, count: int) -> None:
        self._topics.counts[channel.topic] += count
        self._topics.schemas[channel.topic] = _short_name(schema.name if schema else "")

    def _scan(self) -> None:
        """Count the messages up to where the file ends or is damaged."""
        from mcap.reader import NonSeekingReader

        with self._opened() as file, contextlib.suppress(Exception):
            messages = NonSeekingReader(file, validate_crcs=True).iter_messages(
                log_time_order=False
            )
            for schema, channel, _ in messages:
                self._note(channel, schema, 1)


def _summary_of(file: Any) -> Any:
    """Return the summary at the end of an MCAP file; None where it is missing or incomplete.

    Raises:
        InputError: the file is no MCAP file.
    """
    from mcap.exceptions import InvalidMagic
    from mcap.reader import SeekingReader

    reader = SeekingReader(file)  # reads the signature at the start
    try:
        summary = reader.get_summary()
    except InvalidMagic:
        raise
    except Exception:  # the library raises what its parsers raise
        return None
    if summary is None or summary.statistics is None or not summary.chunk_indexes:
        return None
    return summary


def _has_end(path: Path) -> bool:
    """Return whether an MCAP file closes with its signature."""
    with open_file(path) as file:
        size = file.seek(0, os.SEEK_END)
        if size < 2 * len(MCAP_MAGIC):
            return False
        file.seek(-len(MCAP_MAGIC), os.SEEK_END)
        end: bytes = file.read()
    return end == MCAP_MAGIC


class BagRecording:
    """A bag of ROS 1, which is a file, or of ROS 2, which is a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._topics = Topics()
        self._span = 0.0
        with self._opened() as reader:
            self._span = (reader.end_time - reader.start_time) / 1e9
            for connection in reader.connections:
                self._topics.counts[connection.topic] += connection.msgcount
                self._topics.schemas[connection.topic] = _short_name(connection.msgtype)

    def topics(self) -> Topics:
        return self._topics

    def span(self) -> float:
        return float(max(0.0, self._span))

    def messages(self, topic: str) -> Iterator[RawMessage]:
        encoding = "ros1" if self.path.is_file() else "cdr"
        with self._opened() as reader:
            connections = [one for one in reader.connections if one.topic == topic]
            for connection, log_time, data in reader.messages(connections=connections):
                yield RawMessage(log_time, _short_name(connection.msgtype), encoding, bytes(data))

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Any]:
        if self.path.is_file():
            from rosbags.rosbag1 import Reader as FileReader

            with FileReader(self.path) as reader:
                yield reader
        else:
            from rosbags.rosbag2 import Reader as FolderReader

            with FolderReader(self.path) as reader:
                yield reader


def _short_name(schema: str) -> str:
    """Return ``sensor_msgs/Image`` of ROS 2's ``sensor_msgs/msg/Image``."""
    return schema.replace("/msg/", "/")


@dataclass
class _Clock:
    """Gives each message its seconds from the first one; they never decrease."""

    logged: bool
    """Whether times are those of the recording, because messages have no stamps of their own."""
    start: int | None = None
    """Nanoseconds of the first message."""
    time: float = 0.0
    """Of the last message."""

    def time_of(self, log_time: int, stamp: int) -> float:
        """Return the time of the next message, by its own stamp or when it was recorded."""
        moment = log_time if self.logged else stamp
        if not self.logged and not stamp:  # of a message that is damaged
            return self.time
        if self.start is None:
            self.start = moment
        self.time = max(self.time, round((moment - self.start) / 1e9, 6))
        return self.time


class RecordingSource(FrameSource):
    """The images of a topic as frames, in the order in which they were recorded.

    Times are those of the stamps in the messages, in seconds from the first. A stamp that jumps
    back counts as that of the message before. If the first message has no stamp, all times are
    those of the recording. A message that cannot be read is a frame with an error. A recording that
    is damaged or ends in the middle closes with one frame that carries an error.
    """

    kind = "video"

    def __init__(
        self,
        recording: Recording,
        path: Path,
        topic: str,
        selection: Selection = ALL_FRAMES,
        url: str | None = None,
    ) -> None:
        """Take the images of a topic.

        Args:
            recording: the opened recording.
            path: its file or folder.
            topic: one of its topics of images.
            selection: which frames are taken.
            url: where it was downloaded from, for messages and records.
        """
        self.path = f"{url or path}:{topic}"
        self.selection = selection
        self.topic = topic
        self.depth = PixelDepth()
        self._file = path
        self._recording = recording
        count = recording.topics().counts[topic]
        span = recording.span()
        self.fps = (count - 1) / span if span > 0 and count > 1 else None
        next(self._read_all(), None)  # raises for a recording that is damaged from its start
        self._logged = not self._is_stamped()
        if self._logged:
            self.notes = (
                f"{self.path}: messages have no stamps, so times are those of the recording",
            )
        if not selection.timed:
            self.length_hint = -(-count // selection.every)

    def _is_stamped(self) -> bool:
        """Return whether the first message that can be read has a stamp of its own."""
        with contextlib.suppress(_DamageError):
            for _, message in islice(self._read_all(), MAX_DAMAGED_MESSAGES):
                if not message.fault:
                    return message.stamp != 0
        return False

    def name_of(self, index: int) -> str | None:
        return f"{index * self.selection.every:06d}"

    def frames(self, skip: Skip | None = None) -> Iterator[Frame]:
        clock = _Clock(self._logged)
        number = -1
        taken = 0
        try:
            for number, (log_time, message) in enumerate(self._read_all()):
                time = clock.time_of(log_time, message.stamp)
                if self.selection.is_past(time):
                    self.selection.require(taken, f"recording {self.path}")
                    return
                is_taken = self.selection.takes(number, time)
                taken += is_taken
                index = number // self.selection.every
                name = f"{number:06d}"
                if not is_taken or (skip and skip(index, name)):
                    continue
                yield self._frame(name, index, time, message)
        except _DamageError as damage:
            index = -(-(number + 1) // self.selection.every)
            error = f"{self.path}: after message {number + 1} the recording is damaged ({damage})"
            yield Frame(self.name_of(index) or "", index, image=None, error=error)
            return
        self._require_start(clock.time)
        self.selection.require(taken, f"recording {self.path}")

    def _frame(self, name: str, index: int, time: float, message: CameraMessage) -> Frame:
        """Return the frame of a message, or the reason why it gives none."""
        try:
            return Frame(name, index, picture_of(message, self.depth), time=time)
        except MemoryError:
            error = "not enough memory"
        except ValueError as reason:
            error = str(reason)
        return Frame(name, index, image=None, error=f"{self.path}, message {name}: {error}")

    def _read_all(self) -> Iterator[tuple[int, CameraMessage]]:
        """Yield when each message was recorded, and its fields.

        Raises:
            _DamageError: the recording ends in the middle, or is damaged.
        """
        messages = self._recording.messages(self.topic)
        while True:
            try:
                raw = next(messages, None)
            except Exception as error:  # what the libraries raise has no common type
                raise _DamageError(_in_words(error)) from error
            if raw is None:
                return
            yield raw.log_time, read_message(raw.schema, raw.encoding, raw.data)

    def _require_start(self, end: float) -> None:
        start = self.selection.start
        if start is not None and start > end:
            raise InputError(
                f"recording {self.path} ends at {format_time(end)}, before the start at "
                f"{format_time(start)}",
                hint="an earlier --start",
            )

    def identity(self) -> dict[str, Any]:
        identity = super().identity()
        return {**identity, "topic": self.topic, "input_hash": recording_hash(self._file)}


class _DamageError(Exception):
    """The recording cannot be read any further."""


def is_recording(path: Path, topic: str | None = None) -> bool:
    """Return whether a path, or a path and its topic, stand for a recording."""
    if topic is not None:
        return True
    if path.suffix.lower() in RECORDING_SUFFIXES:
        return path.is_file()
    if not path.is_dir():
        return False
    return is_bag({file.name for file in path.iterdir() if file.is_file()})


def is_bag(names: Collection[str]) -> bool:
    """Return whether a folder with files of these names is a bag of ROS 2."""
    return "metadata.yaml" in names and any(name.endswith(STORAGE_SUFFIXES) for name in names)


def open_recording(
    path: Path,
    topic: str | None = None,
    selection: Selection = ALL_FRAMES,
    url: str | None = None,
) -> RecordingSource:
    """Open a topic of a recording.

    Args:
        path: an MCAP file, a bag of ROS 1 or the folder of a bag of ROS 2.
        topic: the topic; None takes the only one that has images.
        selection: which frames are taken.
        url: where it was downloaded from, for messages and records.

    Raises:
        InputError: the recording cannot be opened, or has no such topic.
    """
    shown = url or str(path)
    recording = _opened_recording(path, shown)
    topics = recording.topics()
    notes: tuple[str, ...] = ()
    if topics.is_cut and not topics.images:
        where = "before its first image" if topics.counts else "before its first whole chunk"
        raise InputError(f"recording {shown} ends in the middle, {where}", hint=HINT_REPAIR)
    if topic is None:
        topic = _only_topic(shown, topics)
        notes = (f"{shown}: {topic} is taken, the only topic with images",)
    elif topic not in topics.images:
        raise _no_such_topic(shown, topic, topics)
    try:
        source = RecordingSource(recording, path, topic, selection, url)
    except _DamageError as error:
        raise _unreadable(shown, str(error)) from error
    source.notes = (*notes, *source.notes)
    return source


def _opened_recording(path: Path, shown: str) -> Recording:
    """Open a recording by the library of its format."""
    if not path.exists():
        raise InputError(f"recording {shown} does not exist", hint="check the path before ':'")
    suffix = path.suffix.lower()
    is_bag = path.is_dir() or suffix == ".bag"
    if not is_bag and suffix != ".mcap":
        hint = f"names end in {' or '.join(RECORDING_SUFFIXES)}; of ROS 2 give the folder"
        raise InputError(f"{shown} is no recording by its name", hint=hint)
    try:
        return BagRecording(path) if is_bag else McapRecording(path)
    except ImportError as error:
        raise InputError(
            f"{shown} is a recording, and {error.name} is not installed", hint=INSTALL
        ) from error
    except MemoryError:
        raise
    except Exception as error:  # what the libraries raise has no common type
        raise _unreadable(shown, _in_words(error)) from error


def _in_words(error: Exception) -> str:
    """Return what a library says, or the kind of its error where it says nothing."""
    reason = getattr(error, "strerror", None) or " ".join(str(error).split())
    return reason[:160] or type(error).__name__


def _unreadable(shown: str, reason: str) -> InputError:
    return InputError(
        f"recording {shown} cannot be opened ({reason.rstrip('.')})",
        hint=HINT_REPAIR,
    )


def _only_topic(shown: str, topics: Topics) -> str:
    """Return the topic of a recording that has images if there is one alone."""
    if len(topics.images) == 1:
        return topics.images[0]
    if not topics.images:
        raise InputError(
            f"{shown} holds no topic of images that are read",
            hint=f"types that are read: {', '.join(IMAGE_SCHEMAS)}",
        )
    choices = [f"--input {shown}:{topic}" for topic in topics.images[:MAX_LISTED_TOPICS]]
    raise InputError(
        f"{shown} holds {len(topics.images)} topics of images: {topics.described()}",
        hint=" or ".join(choices),
    )


def _no_such_topic(shown: str, topic: str, topics: Topics) -> InputError:
    """Return the error for a topic that is not there, or has no images."""
    if topic in topics.counts:
        fact = f"topic {topic} of {shown} holds {topics.schemas[topic] or 'no type'}, not images"
    else:
        fact = f"{shown} has no topic {topic}{nearest(topic, topics.images)}"
    if not topics.images:
        return InputError(f"{fact}, and no other topic of images", hint="check the recording")
    hint = f"its topics of images, with their messages: {topics.described()}"
    return InputError(fact, hint=hint)


def recording_hash(path: Path) -> str:
    """Return what tells a recording from another one under its name: of a folder that of all its
    files.
    """
    if path.is_file():
        return video_hash(path)
    digest = hashlib.blake2b(digest_size=16)
    for file in sorted(file for file in path.iterdir() if file.is_file()):
        digest.update(f"{file.name}\n{video_hash(file)}\n".encode())
    return digest.hexdigest()
