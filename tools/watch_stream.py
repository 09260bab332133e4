"""A long watch of a looped stream beside the maps of its clip: latency, dropped frames, memory, and
whether alarms are the same.

    python -m tools.watch_stream --model MODEL --clip VIDEO --flag entropy=0.6 --out DIR

The clip becomes a transport stream of frames that are each decoded alone, and is sent over TCP on
this machine again and again, each frame at its time. `segunc watch` reads it with the options
behind `--`. Afterwards, the frames that the watch processed are compared with maps that `segunc
predict` made of the clip with the same options: flagged pixels of every frame, and box, area, class
and highest value of every region. The last line is JSON. The exit code is 1 where an alarm differs.
"""

from __future__ import annotations

import argparse
import io
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import av
import numpy as np

from segunc.core.files import read_lines
from segunc.decisions.events import BOX, MAX_FOLLOWED_REGIONS
from segunc.decisions.flags import Threshold, read_thresholds
from segunc.maps.encoding import is_flagged
from segunc.maps.reader import MapsReader
from segunc.maps.regions import strongest_regions
from tools.measuring import provenance

CLOCK = 90_000  # ticks of a transport stream in a second
WARM_UP = 300.0  # seconds behind which memory must be flat
Event = dict[str, Any]
"""A line of the watch."""


def write_clip(source: Path, target: Path, frames: int) -> int:
    """Write the first frames of a video as a transport stream of frames that are decoded alone.

    Args:
        source: the video.
        target: the file, with the ending ``.ts``.
        frames: how many, at most.

    Returns:
        how many were written.
    """
    count = 0
    with av.open(str(source)) as video, av.open(str(target), "w") as container:
        (of_source,) = video.streams.video
        stream = container.add_stream("mpeg4", rate=of_source.average_rate)
        stream.height = of_source.height
        stream.width = of_source.width
        stream.pix_fmt = "yuv420p"
        stream.bit_rate = 20_000_000
        stream.codec_context.gop_size = 1
        for frame in video.decode(of_source):
            if count == frames:
                break
            frame.pts = None
            container.mux(stream.encode(frame))
            count += 1
        container.mux(stream.encode())
    return count


class _Outlet(io.RawIOBase):
    """A file that sends what is written into it."""

    def __init__(self, send: Callable[[bytes], object]) -> None:
        self.send = send

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.send(bytes(data))
        return len(data)


def send_loop(clip: Path, rate: float, send: Callable[[bytes], object]) -> None:
    """Send a clip again and again, each frame at its time, until the reader goes away.

    Args:
        clip: transport stream of frames that are decoded alone.
        rate: frames a second.
        send: takes the bytes, and raises OSError when nobody reads them any more.
    """
    with av.open(str(clip)) as container:
        (of_clip,) = container.streams.video
        packets = [packet for packet in container.demux(of_clip) if packet.size]
        with av.open(_Outlet(send), "w", format="mpegts") as target:
            stream = target.add_stream_from_template(of_clip)
            start = time.monotonic()
            number = 0
            while True:
                for packet in packets:
                    wait = start + number / rate - time.monotonic()
                    if wait > 0:
                        time.sleep(wait)
                    packet.stream = stream
                    packet.pts = round(number * CLOCK / rate)
                    packet.dts = packet.pts
                    target.mux(packet)
                    number += 1


@contextmanager
def looped(clip: Path, rate: float) -> Iterator[str]:
    """Serve a clip in a loop over TCP on this machine, and yield its URL."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            try:
                send_loop(clip, rate, connection.sendall)
            except (OSError, av.error.FFmpegError):  # the watch has ended
                return

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
    finally:
        server.close()


def segunc(*words: object) -> None:
    """Run a verb in a process of its own; SystemExit where it fails."""
    command = [sys.executable, "-m", "segunc", *map(str, words)]
    done = subprocess.run(command, stdout=subprocess.DEVNULL)
    if done.returncode:
        sys.exit(f"segunc {words[0]} ended with {done.returncode}")


@dataclass(frozen=True)
class Flagged:
    """What a threshold flags in a frame: pixels, and of each region box, area, highest value, its
    place, and the class of most of its pixels.
    """

    pixels: int
    regions: list[dict[str, Any]]


def flagged_of_maps(maps: Path, score: str, threshold: Threshold) -> list[Flagged]:
    """Return what a threshold flags in each frame of a maps folder."""
    reader = MapsReader(maps)
    classes = reader.class_names
    assert classes is not None  # segunc made the maps
    frames: list[Flagged] = []
    for name in reader.frames:
        prediction = reader.read_stored(name, "prediction")
        values = threshold.prepared(reader.read(name, score), partial(np.asarray, prediction), None)
        strongest = strongest_regions(
            values,
            threshold.value,
            smallest=threshold.smallest,
            most=MAX_FOLLOWED_REGIONS + 1,
        )
        regions: list[dict[str, Any]] = []
        for region in strongest[:MAX_FOLLOWED_REGIONS]:
            column, row = region.peak
            class_id = region.class_of(prediction)
            regions.append(
                {
                    "box": dict(zip(BOX, region.box, strict=True)),
                    "area": region.area,
                    "peak": float(values[row, column]),
                    "at": [column, row],
                    "class": None if class_id is None else classes[class_id],
                }
            )
        frames.append(Flagged(int(is_flagged(values, threshold.value).sum()), regions))
    return frames


def flagged_of_line(line: Event, score: str) -> Flagged:
    """Return what a line of the watch says is flagged."""
    keys = ("box", "area", "peak", "at", "class")
    if line["kind"] == "frame":
        return Flagged(line["flagged_pixels"][score], [])
    regions = [{key: region[key] for key in keys} for region in line["regions"]]
    return Flagged(line["flagged_pixels"], regions)


def memory_of(lines: Sequence[Event]) -> dict[str, float]:
    """Return the memory of the process behind the warm-up, and how it grows."""
    seconds: list[float] = []
    megabytes: list[float] = []
    start = datetime.fromisoformat(lines[0]["wall"])
    for line in lines:
        running = (datetime.fromisoformat(line["wall"]) - start).total_seconds()
        if line["kind"] == "status" and running >= WARM_UP:
            seconds.append(running)
            megabytes.append(line["memory_mb"])
    if len(seconds) < 2:
        return {}
    slope = float(np.polyfit(seconds, megabytes, 1)[0])
    return {
        "first_mb": megabytes[0],
        "last_mb": megabytes[-1],
        "largest_mb": max(megabytes),
        "mb_an_hour": 3600 * slope,
    }


def measure(asked: argparse.Namespace) -> dict[str, Any]:
    """Watch the looped clip, and return what was measured."""
    asked.out.mkdir(parents=True)
    clip = asked.out / "clip.ts"
    maps = asked.out / "maps"
    watched = asked.out / "watch"
    frames = write_clip(asked.clip, clip, asked.frames)
    ((score, threshold),) = read_thresholds([asked.flag]).items()
    shared = ["--model", asked.model, *asked.options]
    segunc("predict", *shared, "--input", clip, "--scores", score, "--out", maps)
    of_watch = ["--flag", asked.flag, "--frame-lines", "--duration", 60 * asked.minutes]
    with looped(clip, asked.rate) as url:
        segunc("watch", *shared, "--input", url, *of_watch, "--out", watched)
    lines = list(read_lines(watched / "alarms.jsonl"))
    expected = flagged_of_maps(maps, score, threshold)
    compared = [line for line in lines if line["kind"] in ("alarm", "frame")]
    differ = 0
    for line in compared:
        differ += flagged_of_line(line, score) != expected[line["frame"] % frames]
    of_end = ("read", "processed", "dropped", "alarms", "latency")
    return {
        "frames_of_the_clip": frames,
        "rate": asked.rate,
        **{key: lines[-1][key] for key in of_end},
        "memory": memory_of(lines),
        "compared": len(compared),
        "differ": differ,
        **provenance(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--clip", type=Path, required=True)
    parser.add_argument("--flag", required=True)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--frames", type=int, default=200, help="of the clip, at most")
    parser.add_argument("--rate", type=float, default=25.0, help="frames a second")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("options", nargs="*", help="of both verbs, e.g. -- --draws 4 --threads 1")
    facts = measure(parser.parse_args())
    print(json.dumps(facts))
    return int(facts["differ"] > 0)


if __name__ == "__main__":
    sys.exit(main())
