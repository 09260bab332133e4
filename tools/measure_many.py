"""How seconds and memory grow with the number of frames of a maps folder.

    python -m tools.measure_many --frames 20000,200000 --root /scratch/many --out docs/study/many.json

Writes folders of tiny frames (hard links to a few pictures and labels, maps from a rule in place of a network), and runs each step in a
process of its own: writing all maps, the same again with everything finished, with the last hundredth lost, and with ``verify``; then the
verbs that read maps. Prints a Markdown table of seconds and of peak resident memory above the start (verbs: above the package's import), and for the largest
folder how many times those of the smallest. Where it may (as root), it drops the system's cache of files before each step: few files would lie in
it, and many would not. The folders stay.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from segunc.frames.source import Frame
from segunc.frames.sources import open_source
from segunc.maps.manifest import build_manifest
from segunc.maps.pipeline import run_pipeline
from segunc.maps.shards import FRAMES_NAME
from segunc.maps.store import Maps, MapsWriter
from tools.measuring import in_own_process, peak_bytes, provenance

SIZE = (24, 32)
SCORES = ("entropy", "epistemic")
OF_ONE = 50_000
"""Hard links of one file; file systems have a most, 65,000 for ext4."""
FOLDERS = 1000
"""Frames in a folder."""
VERBS = {
    "evaluate": "evaluate --maps MAPS --anomaly-labels LABELS --out OUT/metrics.json --replicates 0",
    "summary": "summary --maps MAPS --out OUT/summary.csv",
    "review": "review --maps MAPS --out OUT/review",
    "doctor": "doctor --maps MAPS",
}
STEPS = ("write", "nothing to do", "last 1 % lost", "verify", *VERBS)


def link_pictures(folder: Path, frames: int, *, labels: bool) -> None:
    """So many PNGs in folders of :data:`FOLDERS`: eight pictures, or eight anomaly labels, under many names."""
    generator, sources = np.random.default_rng(0), list[Path]()
    for number in range(8 * -(-frames // (8 * OF_ONE))):
        path = folder.with_name(f"{folder.name}-{number}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        picture = generator.integers(0, 256, (*SIZE, 3), np.uint8)
        cv2.imwrite(str(path), (picture[:, :, 0] > 250).astype(np.uint8) if labels else picture)
        sources.append(path)
    for index in range(frames):
        path = folder / f"{index // FOLDERS:04d}" / f"{index:07d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        os.link(sources[index % len(sources)], path)


def process(frames: list[Frame]) -> list[Maps]:
    """Maps that follow from the image."""
    found: list[Maps] = []
    for frame in frames:
        assert frame.image is not None
        grey = frame.image.astype(np.float32).mean(axis=2) / 255
        found.append({"prediction": frame.image.argmax(axis=2).astype(np.uint8), "entropy": grey, "epistemic": grey**2})
    return found


def write(root: Path, *, verify: bool = False) -> None:
    """All maps, or what is missing of them."""
    classes, palette = ("road", "car", "sky"), ((128, 64, 128), (0, 0, 142), (70, 130, 180))
    run = {"input": str(root / "in"), "draws": 1, "maps": list(SCORES)}
    manifest = build_manifest(run, SCORES, device="a rule", classes=classes, palette=palette)
    run_pipeline(open_source(root / "in"), process, MapsWriter(root / "maps", manifest, verify=verify))


def cut_log(log: Path) -> None:
    """Take away the last per cent of its lines, one line in memory at a time: the peak that is measured is that of the run behind it."""
    with log.open("rb") as file:
        ends = list(itertools.accumulate(map(len, file)))
    os.truncate(log, ends[len(ends) * 99 // 100 - 1])


def forget_files() -> bool:
    """Drop the system's cache of files, which holds those of few frames and not those of many; False where only root may."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        return False
    return True


def measure(root: Path, step: str) -> dict[str, float]:
    """Seconds of one step in this process, and peak memory above that before it, which PyTorch's import has taken."""
    from segunc.cli.main import main

    if step == "last 1 % lost":
        cut_log(root / "maps" / FRAMES_NAME)
    places = {"MAPS": root / "maps", "LABELS": root / "labels", "OUT": root / "out"}
    started, before = time.perf_counter(), peak_bytes(torch.device("cpu"))
    if step in VERBS:
        text = VERBS[step]
        for name, path in places.items():
            text = text.replace(name, str(path))
        with contextlib.redirect_stdout(io.StringIO()):
            code = main(text.split())
        if code:
            raise SystemExit(f"{step} ended with {code}")
    else:
        write(root, verify=step == "verify")
    return {"seconds": time.perf_counter() - started, "bytes": peak_bytes(torch.device("cpu")) - before}


def table(results: dict[int, dict[str, Any]]) -> str:
    """As Markdown: a row a step, seconds and memory for each number of frames, and how the last two compare."""
    counts = sorted(results)
    head = ["step", *(f"{count:,} frames" for count in counts), "times the seconds", "times the memory"]
    rows = [head, ["---"] * len(head)]
    for step in STEPS:
        found = [results[count].get(step, {}) for count in counts]
        if not all(found):
            continue
        cells = [f"{one['seconds']:.1f} s, {one['bytes'] / 1e6:.0f} MB" for one in found]
        grown = [f"{found[-1][key] / found[0][key]:.1f}" for key in ("seconds", "bytes")]
        rows.append([step, *cells, *grown])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", default="2000,20000", metavar="N,M")
    parser.add_argument("--root", type=Path, required=True, metavar="DIR", help="an empty folder, on one file system")
    parser.add_argument("--out", type=Path, metavar="JSON")
    parser.add_argument("--steps", default=",".join(STEPS), help=f"of {', '.join(STEPS)}".replace("%", "%%"))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.root, arguments.one)))
        return
    results: dict[int, dict[str, Any]] = {}
    cold = True
    for count in map(int, arguments.frames.split(",")):
        root = arguments.root / str(count)
        if not root.exists():
            link_pictures(root / "in", count, labels=False)
            link_pictures(root / "labels", count, labels=True)
            (root / "out").mkdir()
        results[count] = {}
        for step in arguments.steps.split(","):
            cold = forget_files() and cold
            words = ["--root", str(root), "--one", step]
            results[count][step] = in_own_process(__file__, words, f"{step} of {count}")
            print(count, step, results[count][step], flush=True)
    print(table(results))
    if arguments.out:
        content = {"provenance": provenance(), "files_cold": cold, "results": results}
        arguments.out.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
