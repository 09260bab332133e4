"""What ``segunc watch`` writes into its folder, and what a restarted watch reads there: the lines
of ``alarms.jsonl``, and the images and maps that are kept.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from segunc.core.errors import InputError
from segunc.core.files import difference_words, differing_keys, inside, read_lines
from segunc.core.removal import Ledger, files_below
from segunc.core.terminal import counted
from segunc.data.images import Image
from segunc.frames.image_source import stamp_of
from segunc.maps.encoding import encode_png
from segunc.maps.manifest import ALARMS_IN_PART, ALARMS_ONLY, KEPT_FRAMES, read_manifest
from segunc.maps.regions import Region
from segunc.maps.shards import FRAMES_NAME, iterate_lines
from segunc.maps.store import Maps, MapsWriter
from segunc.options import WatchOptions

LINES_NAME = "alarms.jsonl"
MAPS_FOLDER = "maps"
PICTURES_FOLDER = "frames"
WRITTEN_BY = "segunc watch"
VERSION = 1
SETTINGS = ("input", "thresholds", "monitor", "run")
"""Parts of the first line that must be the same for a watch to go on."""

RUNNING = (
    "every_frame",
    "max_latency",
    "queue",
    "pace",
    "stream_format",
    "stream_options",
    "stall",
    "reconnect",
    "size_change",
    "status",
    "frame_lines",
    "keep",
    "keep_limit",
    "duration",
)
"""Options that change which frames come, what is written and when a watch ends, but not what an
alarm means: they may change when a watch goes on."""

_FOLLOWING = ("input", "maps", "flag", "flag_preparation", "component_thresholds")
"""Settings of a run that follow from its input and its thresholds."""
_HASHED = {"base_sha256": "--model", "posterior_sha256": "--model", "mask_sha256": "--mask"}
"""Settings of a run that are hashes of files, with the option that names the files."""


def moment(seconds: float) -> str:
    """Return seconds since 1970 as a time in UTC, as ISO 8601 writes it.

    >>> moment(0.25)
    '1970-01-01T00:00:00.250+00:00'
    """
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def seconds_of(text: str) -> float:
    """Return the seconds since 1970 of a time that :func:`moment` wrote."""
    return datetime.fromisoformat(text).timestamp()


def changed_options(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return each option that keeps a watch from going on, with its earlier and its present value;
    empty where the watch can go on.

    Args:
        before: the first line of the earlier watch.
        now: the first line of this one.
    """
    different = differing_keys(_settings_of(before), _settings_of(now))
    changes: list[str] = []
    has_other_flag = any(key == "thresholds" for key, _, _ in different)
    for key, earlier, present in different:
        part, _, name = key.partition(".")
        if part == "input":
            change = f"--input {earlier} (now {present})"
        elif part == "thresholds":
            change = _typed_words("--flag", before, now)
        elif part == "monitor":
            changes += _monitor_changes(earlier, present, before, now, has_other_flag)
            continue
        elif name.partition(".")[0] in _FOLLOWING:
            continue  # it follows from the input or the thresholds, which are named
        elif name in _HASHED:
            change = _typed_words(_HASHED[name], before, now)
        else:
            change = difference_words(name, earlier, present)
            if name in WatchOptions.__dataclass_fields__:
                earlier_value = _typed(f"--{name}", before) or _value_text(earlier)
                present_value = _typed(f"--{name}", now) or _value_text(present)
                change = _option_words(f"--{name}", earlier_value, present_value)
        if change not in changes:
            changes.append(change)
    if different and not changes:
        changes.append(difference_words(*different[0]))
    return changes


def _settings_of(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the first line of a watch says of its settings; None for what it does not say."""
    return {key: line.get(key) for key in SETTINGS}


def _value_text(value: Any) -> str:
    """Return a value of an option as a user would type it; nothing for None."""
    return "" if value is None else str(value)


def running_settings(options: WatchOptions) -> dict[str, Any]:
    """Return the options of running, as the first line records them."""
    settings = {}
    for name in RUNNING:
        value = getattr(options, name)
        settings[name] = dict(value) if isinstance(value, Mapping) else value
    return settings


def note_on_running(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return the note on options of running that have changed; empty where none has, or where an
    earlier version wrote the first line, which does not record them.

    Args:
        before: the first line of the earlier watch.
        now: the first line of this one.
    """
    earlier = before.get("running", {})
    changes = []
    for name, present in now["running"].items():
        if earlier.get(name, present) != present:
            flag = f"--{name.replace('_', '-')}"
            changes.append(
                f"{flag} was {_value_words(earlier[name])} and is {_value_words(present)} now"
            )
    return "; ".join(changes)


def _value_words(value: Any) -> str:
    """Return a value of an option in a sentence."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, Mapping):
        value = ",".join(f"{key}={text}" for key, text in value.items())
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) if value else "none"


def _monitor_changes(
    earlier: Any,
    present: Any,
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    has_other_flag: bool,
) -> list[str]:
    """Return the options of the monitor that have changed.

    Args:
        earlier: settings of the monitors of the earlier watch, one for each threshold.
        present: the same of this watch.
        before: the first line of the earlier watch.
        now: the first line of this one.
        has_other_flag: whether the thresholds differ, from which units follow, and which scores
            have a monitor.
    """
    if not earlier or not present:
        if has_other_flag:
            return []
        return ["no monitor (now there is one)" if present else "a monitor (now there is none)"]
    earlier_by_score = {settings["score"]: settings for settings in earlier}
    keys: set[str] = set()
    for settings in present:
        past = earlier_by_score.get(settings["score"], settings)
        keys = {key for key, _, _ in differing_keys(past, settings)}
        if keys:
            break
    changes = []
    if "statistic" in keys:
        changes.append(_option_words("--statistic", past["statistic"], settings["statistic"]))
    if "alarm" in keys:
        levels = [f"{10 ** -monitor['alarm']:g}" for monitor in (past, settings)]
        changes.append(_option_words("--level", *levels))
    if "seconds" in keys and not has_other_flag:
        seconds = [f"{monitor['seconds']:g}" for monitor in (past, settings)]
        changes.append(_option_words("--apart", *seconds))
    # The hash of a reference changes with the statistic and the threshold, too.
    is_other = _typed("--reference", before) != _typed("--reference", now)
    is_alone = keys == {"reference"} and not has_other_flag
    if "reference" in keys and (is_other or is_alone):
        changes.append(_typed_words("--reference", before, now))
    return changes


def _typed(option: str, line: Mapping[str, Any]) -> str:
    """Return the value of an option in the command of a first line; empty where it has none."""
    values = []
    is_value = False
    for word in shlex.split(str(line.get("command", ""))):
        if word.startswith("--"):
            is_value = word == option
        elif is_value:
            values.append(word)
    return " ".join(values)


def _typed_words(option: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return how an option differs, as it was typed. What is typed the same is a file whose content
    has changed.
    """
    earlier = _typed(option, before)
    present = _typed(option, now)
    if earlier == present:
        return f"{option} {earlier}, whose content has changed"
    return _option_words(option, earlier, present)


def _option_words(option: str, earlier: str, present: str) -> str:
    """Return an option with its earlier and its present value; empty where it was not given."""
    if not earlier:
        return f"no {option} (now {present})"
    return f"{option} {earlier} (now {present or 'there is none'})"


@dataclass
class EarlierWatch:
    """What the lines of earlier runs in the same folder say."""

    first: dict[str, Any]
    """The first line of the last run: its settings and identities."""
    next_frame: int = 0
    """Number of the next frame: above all that a line names."""
    next_event: int = 1
    """The same for events."""
    size: list[int] | None = None
    """Height and width of the first frame; None if none came."""
    chunk: int | None = None
    """Draws in a batch."""
    wall: float = 0.0
    """Of the last line, in seconds since 1970."""
    time: float | None = None
    """Seconds of the last frame since the first watch began."""
    begun: float | None = None
    """When the first frame of all came, in seconds since 1970."""
    last_file: tuple[float, str] | None = None
    """Time of the last change and name of the file of a folder up to which all were taken."""
    monitored: list[dict[str, Any]] = field(default_factory=list)
    """Lines of the monitor, in their order, with those of its alarms."""

    def check(self, first: Mapping[str, Any], path: Path) -> None:
        """Raise InputError where a watch with this first line cannot go on in the file."""
        changes = changed_options(self.first, first)
        if changes:
            raise InputError(
                f"{path} was written with {', '.join(changes)}", hint="give another --out"
            )

    def note(self, line: Mapping[str, Any]) -> None:
        """Take up what one more line says."""
        kind = line.get("kind")
        if kind in ("start", "restart"):
            self.first = dict(line)
        if "wall" in line:
            self.wall = seconds_of(line["wall"])
        if "frame" in line:
            self.next_frame = max(self.next_frame, int(line["frame"]) + 1)
        if "next_frame" in line:
            self.next_frame = max(self.next_frame, int(line["next_frame"]))
        if "next_event" in line:
            self.next_event = max(self.next_event, int(line["next_event"]))
        for region in line.get("regions", ()):
            self.next_event = max(self.next_event, int(region["event"]) + 1)
        if line.get("time") is not None:
            self.time = max(self.time or 0.0, float(line["time"]))
        if line.get("what") == "connected":
            self.size = line["size"]
            self.chunk = line["chunk"]
            self.begun = self.wall if self.begun is None else self.begun
        self._note_file(line)
        if kind in ("monitor", "drift"):
            self.monitored.append(dict(line))

    def _note_file(self, line: Mapping[str, Any]) -> None:
        """Take up to which file of a folder all were taken."""
        is_of_frame = line.get("kind") in ("alarm", "frame")
        if is_of_frame and not self._is_told(line):
            return
        if "last_file" in line:
            self.last_file = None
            if line["last_file"] is not None:
                changed, name = line["last_file"]
                self.last_file = float(changed), str(name)
        elif is_of_frame and line.get("file") and line.get("stamp") is not None:
            self.last_file = float(line["stamp"]), str(line["file"])

    def _is_told(self, line: Mapping[str, Any]) -> bool:
        """Return whether nothing more can follow of the frame of a line: after a kill, alarms of
        other scores may be missing.
        """
        return line["kind"] == "frame" or len(self.first.get("thresholds", ())) == 1


def read_earlier(folder: Path) -> EarlierWatch | None:
    """Return what earlier watches left in a folder, None where there was none.

    Raises:
        InputError: the file of lines was not written by a watch of this version, or is gone, and
            kept frames are there.
    """
    path = inside(folder, LINES_NAME)
    earlier: EarlierWatch | None = None
    for line in read_lines(path) if path.exists() else ():
        if earlier is None:
            if line.get("by") != WRITTEN_BY or line.get("version") != VERSION:
                break
            earlier = EarlierWatch(line)
        try:
            earlier.note(line)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{path} holds a line that segunc watch did not write", hint="give another --out"
            ) from error
    if earlier is None and path.exists() and path.stat().st_size:
        raise InputError(
            f"{path} was not written by segunc watch of this version", hint="give another --out"
        )
    if earlier is None:
        _check_without_lines(folder)
    if earlier is not None:
        for _, record in iterate_lines(folder / MAPS_FOLDER / FRAMES_NAME):
            earlier.next_frame = max(earlier.next_frame, record["index"] + 1)
    return earlier


def _check_without_lines(folder: Path) -> None:
    """Raise InputError where a folder without lines holds frames that a watch kept: numbers of
    frames would begin again, and the new frames would replace them.
    """
    listed = Ledger(folder).listed if folder.is_dir() else {}
    kept = [name for name in listed if (folder / name).is_file()]
    if kept:
        raise InputError(
            f"{folder} holds {counted(len(kept), 'frame')} that an earlier watch kept, first "
            f"{min(kept)}, and not its lines in {LINES_NAME}, so new frames would replace them",
            hint=f"put {LINES_NAME} back, or give another --out",
        )


class KeptFrames:
    """Images and maps of some frames: a maps folder, and the images beside it, until they reach a
    limit.

    Attributes:
        bytes: that are kept, with those of earlier runs.
        full: whether nothing more is kept: the limit is reached, or a file cannot be written.
        failure: why a file cannot be written; empty where all were.
    """

    def __init__(
        self,
        out: Path,
        manifest: Mapping[str, Any],
        *,
        limit: float,
        alarms_only: bool = False,
        region: Region | None = None,
    ) -> None:
        """Open the folders, or go on in them.

        Args:
            out: folder of the watch.
            manifest: of the maps.
            limit: bytes from which on nothing more is kept.
            alarms_only: whether frames without an alarm are not kept, which the manifest says.
            region: the pixels that count.

        Raises:
            InputError: the folders hold other files.
        """
        self._pictures = Ledger(out)
        self._out = out
        earlier = read_manifest(out / MAPS_FOLDER)
        self._writer = MapsWriter(out / MAPS_FOLDER, manifest, region=region)
        self._processed_before = self._note_kept(earlier, alarms_only)
        self._processed = 0  # by this run
        self._limit = limit
        self.bytes = 0
        for name in files_below(out, [MAPS_FOLDER, PICTURES_FOLDER]):
            self.bytes += os.path.getsize(out / name)
        self.full = self.bytes >= limit
        self.failure = ""

    def _note_kept(self, earlier: Mapping[str, Any] | None, alarms_only: bool) -> int | None:
        """Note in the manifest that frames without an alarm are not kept, if this run or an earlier
        one leaves them out.

        Args:
            earlier: the manifest that earlier runs left; None where there was none.
            alarms_only: see :meth:`__init__`.

        Returns:
            How many frames earlier runs processed; None where they do not say, as a run that was
            killed, and where all frames are kept.
        """
        before = (earlier or {}).get(KEPT_FRAMES, {})
        if not before and not alarms_only:
            return None
        is_mixed = not alarms_only
        if earlier is not None:
            is_mixed = is_mixed or before.get("frames") != ALARMS_ONLY
        frames = ALARMS_IN_PART if is_mixed else ALARMS_ONLY
        # A run that is killed leaves this: nobody knows then how many were processed.
        self._writer.manifest[KEPT_FRAMES] = {"frames": frames, "processed": None}
        self._writer.begin()
        processed: int | None = 0 if earlier is None else before.get("processed")
        return processed

    def count(self) -> None:
        """Count a frame that was processed, kept or not, unless the limit is reached."""
        self._processed += not self.full

    def keep(self, name: str, number: int, time: float, image: Image, maps: Maps) -> None:
        """Write the image and the maps of a frame, unless :attr:`full`; note a failure of the disk,
        which is no reason to tell no alarms.

        Args:
            name: of the frame.
            number: of the frame.
            time: its seconds since the watch began.
            image: RGB uint8 ``[H, W, 3]``.
            maps: of the frame.
        """
        if self.full:
            return
        try:
            self._write(name, number, time, image, maps)
        except OSError as error:
            self.failure = f"frame {name} cannot be kept ({error.strerror})"
        self.full = self.bytes >= self._limit or bool(self.failure)

    def _write(self, name: str, number: int, time: float, image: Image, maps: Maps) -> None:
        """Write the image and the maps of a frame, and then its line."""
        file = f"{PICTURES_FOLDER}/{name}.png"
        picture = encode_png(image)
        # A run that was killed may have left a picture of this number, and no line of it.
        self._pictures.write(file, picture, replace=True)
        record = self._writer.store(name, maps, place=number)
        record["time"] = time
        record["stamp"] = stamp_of(self._out / file)
        self._writer.commit(record)
        self.bytes += len(picture) + sum(size for size, _ in record["sums"].values())

    def close(self) -> None:
        """End the maps folder."""
        if self._processed_before is not None:
            kept = self._writer.manifest[KEPT_FRAMES]
            processed = self._processed_before + self._processed
            self._writer.manifest[KEPT_FRAMES] = {**kept, "processed": processed}
        try:
            self._writer.close("finished")
        except OSError:  # the manifest stays as it was, as after a kill
            if not self.failure:
                raise


def pictures_of(out: Path) -> Path:
    """Return the folder of the kept images of a watch."""
    return out / PICTURES_FOLDER
