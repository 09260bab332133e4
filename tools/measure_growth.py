"""How the seconds and the memory of verbs grow with the number of frames.

    python -m tools.measure_growth --frames 1000,10000,100000 --root /scratch/many

Writes folders of tiny images, maps and masks (hard links to a few files), runs each of ``--verbs``
on each folder in a process of its own, and prints a Markdown table: seconds, and peak resident
memory above that of the imports. The folders stay.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from tools.measuring import in_own_process, peak_bytes, provenance

SIZE = (8, 16)
DIFFERENT = 64  # maps, and as many masks
LINKS = 50_000  # of one file; file systems have a most, 65,000 for ext4
IN_A_FOLDER = 1000
PLACES = {
    "image.png": "data/images",
    "mask.png": "data/labels",
    "map.npy": "maps/score",
}
"""Folder of the copies of each file."""
VERBS = ("init", "threshold", "evaluate")


def write_set(root: Path, frames: int) -> None:
    """Write images, maps of a score of another tool in float16, and masks of so many frames. A mask
    is an anomaly mask and, for ``init``, a label of two classes.
    """
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
        image = random.integers(0, 256, (*SIZE, 3), np.uint8)
        cv2.imwrite(str(source / "image.png"), image)
    for index in range(frames):
        source = root / f"source-{index % (DIFFERENT * copies)}"
        name = f"{index // IN_A_FOLDER:04d}/{index:07d}"
        for file, place in PLACES.items():
            path = root / place / f"{name}{Path(file).suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            os.link(source / file, path)


def words_of(verb: str, root: Path, replicates: int) -> list[str]:
    """Return the command line of a verb on a folder."""
    masks = ["--maps", str(root / "maps"), "--anomaly-labels", str(root / "data" / "labels")]
    if verb == "init":
        new_folder = tempfile.mkdtemp(dir=root)  # init replaces no file
        return [
            "init",
            str(root / "data"),
            "--two-classes",
            "--out",
            f"{new_folder}/many.yaml",
        ]
    if verb == "threshold":
        control = ["--control", "missed-objects", "--level", "0.1"]
        return ["threshold", *masks, *control, "--out", str(root / "threshold.json")]
    out = str(root / "metrics.json")
    return ["evaluate", *masks, "--replicates", str(replicates), "--out", out]


def measure(verb: str, root: Path, replicates: int) -> dict[str, float]:
    """Return the seconds of a verb in this process, and its peak memory in bytes above that of the
    imports."""
    from segunc.cli.main import main

    before = peak_bytes(torch.device("cpu"))
    started = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        code = main(words_of(verb, root, replicates))
    if code:
        raise SystemExit(f"{verb} ended with {code}")
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "bytes": peak_bytes(torch.device("cpu")) - before}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--frames", default="1000,10000", metavar="N,M")
    parser.add_argument("--verbs", default=",".join(VERBS), metavar="A,B")
    parser.add_argument("--replicates", type=int, default=2000)
    parser.add_argument("--root", type=Path, required=True, metavar="DIR", help="an empty folder")
    parser.add_argument("--one", choices=VERBS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one, arguments.root, arguments.replicates)))
        return
    print("| verb | frames | seconds | peak memory |")
    print("|---|---|---|---|")
    for frames in map(int, arguments.frames.split(",")):
        root = arguments.root / str(frames)
        if not root.exists():
            write_set(root, frames)
        for verb in arguments.verbs.split(","):
            words = ["--one", verb, "--root", str(root), "--replicates", str(arguments.replicates)]
            found = in_own_process(__file__, words, f"{verb} of {frames} frames")
            if found:
                seconds, megabytes = found["seconds"], found["bytes"] / 1e6
                print(
                    f"| `{verb}` | {frames:,} | {seconds:.0f} s | {megabytes:.0f} MB |", flush=True
                )
    about = provenance()
    print(f"\n`{about['command']}`, {about['date']}, {about['hardware']}, commit {about['commit']}")


if __name__ == "__main__":
    main()
