"""How the seconds and the memory of ``segunc evaluate`` grow with the number of frames and of
bootstrap replicates.

    python -m tools.measure_evaluate --frames 1000,10000,100000 --root /scratch/many

Writes folders of tiny maps and masks (hard links to a few files), evaluates each in a process of
its own, and prints a Markdown table: seconds, and peak resident memory above that of the imports.
The folders stay.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import time
from pathlib import Path

import numpy as np
import torch

from tools.measuring import in_own_process, peak_bytes, provenance

SIZE = (8, 16)
DIFFERENT = 64  # maps, and as many masks
LINKS = 50_000  # of one file; file systems have a most, 65,000 for ext4
IN_A_FOLDER = 1000


def write_set(root: Path, frames: int) -> None:
    """Write maps of a score of another tool, float16, and anomaly masks of so many frames."""
    import cv2

    random = np.random.default_rng(0)
    copies = -(-frames // (DIFFERENT * LINKS))
    for number in range(DIFFERENT * copies):
        mask = np.zeros(SIZE, np.uint8)
        mask[2:6, 4:9] = 1
        scores = random.normal(size=SIZE) + mask
        source = root / f"source-{number}"
        source.mkdir(parents=True, exist_ok=True)
        np.save(source / "map.npy", scores.astype(np.float16))
        cv2.imwrite(str(source / "mask.png"), mask)
    for index in range(frames):
        source = root / f"source-{index % (DIFFERENT * copies)}"
        name = f"{index // IN_A_FOLDER:04d}/{index:07d}"
        for file, place in (("map.npy", "maps/score"), ("mask.png", "masks")):
            path = root / place / f"{name}{Path(file).suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            os.link(source / file, path)


def measure(root: Path, replicates: int) -> dict[str, float]:
    """Return the seconds of an evaluation in this process, and its peak memory in bytes above that
    of the imports."""
    from segunc.cli.main import main

    words = ["evaluate", "--maps", root / "maps", "--anomaly-labels", root / "masks"]
    words += ["--replicates", replicates, "--out", root / "metrics.json"]
    before = peak_bytes(torch.device("cpu"))
    started = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        code = main([str(word) for word in words])
    if code:
        raise SystemExit(f"evaluate ended with {code}")
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "bytes": peak_bytes(torch.device("cpu")) - before}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--frames", default="1000,10000", metavar="N,M")
    parser.add_argument("--replicates", type=int, default=2000)
    parser.add_argument("--root", type=Path, required=True, metavar="DIR", help="an empty folder")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.root, arguments.replicates)))
        return
    print("| frames | seconds | peak memory |")
    print("|---|---|---|")
    for frames in map(int, arguments.frames.split(",")):
        root = arguments.root / str(frames)
        if not root.exists():
            write_set(root, frames)
        words = ["--one", "--root", str(root), "--replicates", str(arguments.replicates)]
        found = in_own_process(__file__, words, f"{frames} frames")
        if found:
            print(f"| {frames:,} | {found['seconds']:.0f} s | {found['bytes'] / 1e6:.0f} MB |")
    about = provenance()
    print(f"\n`{about['command']}`, {about['date']}, {about['hardware']}, commit {about['commit']}")


if __name__ == "__main__":
    main()
