"""Sizes and write speeds of the ways to store maps, on maps that are there.

    python -m tools.bench_store --maps runs/maps-road-anomaly [--frames 12] [--json store.json]

Every map of some frames, spread evenly over the folder, is decoded once and then stored in each way in memory. Times are
process time of one thread, the least of the repeats; disks are left out. The last column is what the checksum of a file costs, once
when it is written and once when it is read. Bounded scores are uint16, unbounded ones float16.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from segunc.maps.encoding import encode_npy, encode_png
from segunc.maps.manifest import tool_commit
from segunc.maps.reader import MapsReader

Array = npt.NDArray[Any]
Encode = Callable[[Array], bytes]


def png(level: int, strategy: int) -> Encode:
    """A PNG of integers; float16 goes to ``.npy``, as PNG has no floats."""
    flags = [cv2.IMWRITE_PNG_COMPRESSION, level, cv2.IMWRITE_PNG_STRATEGY, strategy]

    def encode(values: Array) -> bytes:
        if values.dtype == np.float16:
            return encode_npy(values)
        return cv2.imencode(".png", values, flags)[1].tobytes()

    return encode


def decode(data: bytes) -> Array:
    """The array of any of the encodings."""
    if data[:4] == b"\x89PNG":
        decoded = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
        assert decoded is not None
        return np.asarray(decoded)
    return np.asarray(np.load(io.BytesIO(data), allow_pickle=False))


WAYS: dict[str, Encode] = {
    "raw .npy": encode_npy,
    "PNG level 1, run lengths, as stored": lambda v: encode_npy(v) if v.dtype == np.float16 else encode_png(v),
    "PNG level 1": png(1, cv2.IMWRITE_PNG_STRATEGY_DEFAULT),
    "PNG level 3": png(3, cv2.IMWRITE_PNG_STRATEGY_DEFAULT),
    "PNG level 6": png(6, cv2.IMWRITE_PNG_STRATEGY_DEFAULT),
    "PNG level 9": png(9, cv2.IMWRITE_PNG_STRATEGY_DEFAULT),
}


def seconds(work: Callable[[], object], repeats: int) -> float:
    """The least process time of some repeats."""
    found = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--maps", required=True, type=Path)
    parser.add_argument("--frames", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    cv2.setNumThreads(1)
    reader = MapsReader(arguments.maps)
    chosen = reader.frames[:: max(1, len(reader.frames) // arguments.frames)][: arguments.frames]
    names = ["prediction", *reader.scores]
    maps = [reader.prediction(f) if n == "prediction" else reader.read_stored(f, n) for f in chosen for n in names]
    pixels = sum(values.size for values in maps) / len(names) / len(chosen)
    raw = sum(values.nbytes for values in maps) / len(chosen)
    print(
        f"{len(chosen)} frames of {pixels / 1e6:.2f} megapixels on average, {len(names)} maps each "
        f"({', '.join(names)}), {raw / 1e6:.2f} MB raw; commit {tool_commit()}, {platform.processor() or platform.machine()}\n"
    )
    print(
        "| stored as | MB a frame | share of raw | write ms a frame | MB/s raw | read ms a frame | SHA-256 ms a frame |"
    )
    print("|---|---|---|---|---|---|---|")
    rows = {}
    for name, encode in WAYS.items():
        encoded = [encode(values) for values in maps]
        for values, data in zip(maps, encoded, strict=True):
            np.testing.assert_array_equal(decode(data), values)
        size = sum(map(len, encoded)) / len(chosen)
        write = seconds(lambda: [encode(values) for values in maps], arguments.repeats) / len(chosen)  # noqa: B023
        read = seconds(lambda: [decode(data) for data in encoded], arguments.repeats) / len(chosen)  # noqa: B023
        sums = seconds(lambda: [hashlib.sha256(data) for data in encoded], arguments.repeats) / len(chosen)  # noqa: B023
        times = {"write_seconds": write, "read_seconds": read, "sha256_seconds": sums}
        rows[name] = {"bytes": size, "share": size / raw, **times}
        print(
            f"| {name} | {size / 1e6:.2f} | {size / raw:.2f} | {1000 * write:.0f} | {raw / 1e6 / write:.0f} | "
            f"{1000 * read:.0f} | {1000 * sums:.1f} |",
            flush=True,
        )
    if arguments.json:
        result = {"frames": len(chosen), "maps": names, "raw_bytes": raw, "commit": tool_commit(), "ways": rows}
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
