"""Time and memory of the anomaly metrics: pooled curves against scikit-learn, components on noisy
2-megapixel frames.

    python -m tools.bench_metrics --megapixels 24 --json benchmark.json

Every measurement runs in a process of its own on one thread. Frames are made one after the other
and only counting and curves are timed; scikit-learn is given all labelled pixels at once, as it
needs. Memory is the growth of the peak resident set over that of a process that has made one frame.
The numbers of both must agree to 1e-9, or the run fails. Prints markdown tables; `--json` writes
the same with date, hardware, versions and commit.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from segunc.maps.encoding import encode_unit
from segunc.metrics.counting import (
    KEYS,
    auroc,
    average_precision,
    count_scores,
    detection_curve,
    fpr_at_recall,
)
from segunc.metrics.smiyc import component_counts
from tools.measuring import provenance

SIZE = (1024, 2048)
"""Pixels of a frame, 2.1 million."""
NUMBERS = ("auroc", "aupr", "fpr95")
CURVES = ("float16", "uint16", "scikit-learn")


def peak_bytes() -> int:
    """Largest resident memory of this process so far (Linux counts it in KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def make_frame(index: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores in 0..1 (float16) and labels of one frame: 4 % anomalies, 10 % ignored pixels,
    overlapping scores.
    """
    generator = np.random.default_rng(index)
    anomaly = (generator.random(SIZE, np.float32) < 0.04).astype(np.uint8)
    raw = generator.standard_normal(SIZE, np.float32) + 1.5 * anomaly
    anomaly[generator.random(SIZE, np.float32) < 0.1] = 255
    return (1.0 / (1.0 + np.exp(-raw))).astype(np.float16), anomaly


def frames_of(megapixels: float) -> int:
    """Frames that hold at least so many megapixels."""
    return int(np.ceil(megapixels * 1e6 / (SIZE[0] * SIZE[1])))


def measure_segunc(kind: str, frames: int) -> dict[str, Any]:
    """Counts frame by frame, then the curve."""
    seconds, before = 0.0, 0
    counts = np.zeros((2, KEYS), np.int64)
    for index in range(frames):
        scores, anomaly = make_frame(index)
        if kind.startswith("uint16"):
            scores = encode_unit(scores)
        before = before or peak_bytes()
        start = time.perf_counter()
        counts += count_scores(scores, anomaly)
        seconds += time.perf_counter() - start
    start = time.perf_counter()
    curve = detection_curve(counts)
    values = auroc(curve), average_precision(curve), fpr_at_recall(curve)
    seconds += time.perf_counter() - start
    return {
        "seconds": seconds,
        "bytes": peak_bytes() - before,
        "pixels": int(counts.sum()),
        "numbers": values,
    }


def measure_scikit_learn(frames: int) -> dict[str, Any]:
    """The same three numbers of all labelled pixels at once."""
    from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

    make_frame(0)
    before = peak_bytes()
    scores, labels = [], []
    for index in range(frames):
        frame, anomaly = make_frame(index)
        scores.append(frame[anomaly != 255].astype(np.float32))
        labels.append(anomaly[anomaly != 255])
    score, label = np.concatenate(scores), np.concatenate(labels)
    del scores, labels
    start = time.perf_counter()
    area, precision = (
        float(roc_auc_score(label, score)),
        float(average_precision_score(label, score)),
    )
    false_rate, true_rate, _ = roc_curve(label, score)
    fpr = float(false_rate[np.argmax(true_rate >= 0.95)])
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "bytes": peak_bytes() - before,
        "pixels": len(label),
        "numbers": (area, precision, fpr),
    }


def many_blobs() -> tuple[np.ndarray, np.ndarray]:
    """2,496 predicted blobs of 500 to 720 pixels with holes, six of them over labelled
    anomalies.
    """
    generator = np.random.default_rng(0)
    rows, columns = np.arange(SIZE[0]) % 26 < 24, np.arange(SIZE[1]) % 32 < 30
    scores = 0.9 * np.outer(rows, columns) * (
        generator.random(SIZE) > 0.1
    ) + 0.05 * generator.random(SIZE)
    anomaly = np.zeros(SIZE, np.uint8)
    for place in range(6):
        anomaly[150 * place + 40 : 150 * place + 120, 300 * place + 40 : 300 * place + 200] = 1
    return scores.astype(np.float16), anomaly


def smooth_noise() -> tuple[np.ndarray, np.ndarray]:
    """Noise smoothed over two pixels: thousands of worm-like components of every size."""
    noise = np.random.default_rng(1).standard_normal(SIZE, np.float32)
    _, anomaly = many_blobs()
    return (0.5 + 3.0 * cv2.GaussianBlur(noise, (0, 0), 2.0)).astype(np.float16), anomaly


def measure_components(
    make: Callable[[], tuple[np.ndarray, np.ndarray]], track: str, threshold: float
) -> dict[str, Any]:
    """Best of five runs over one frame."""
    scores, anomaly = make()
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        counts = component_counts(scores, anomaly, threshold, track)
        seconds.append(time.perf_counter() - start)
    return {
        "seconds": min(seconds),
        "truth": int(counts[33]),
        "predicted": int(counts[34]),
        "pixels": scores.size,
    }


COMPONENTS: dict[str, tuple[Callable[[], tuple[np.ndarray, np.ndarray]], str, float]] = {
    "blobs with holes": (many_blobs, "smiyc-anomaly", 0.5),
    "smooth noise": (smooth_noise, "smiyc-obstacle", 0.8),
}


def child(what: str, frames: int) -> dict[str, Any]:
    """One measurement in a fresh process on one thread."""
    done = subprocess.run(
        [sys.executable, __file__, "--one", what, "--frames", str(frames)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=os.environ | dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(what: str, frames: int) -> dict[str, Any]:
    """What a child process does."""
    cv2.setNumThreads(1)
    if what in COMPONENTS:
        make, track, threshold = COMPONENTS[what]
        return measure_components(make, track, threshold)
    return measure_scikit_learn(frames) if what == "scikit-learn" else measure_segunc(what, frames)


def curve_table(frames: int) -> dict[str, dict[str, Any]]:
    """Measure and print the pooled curves.

    Raises:
        SystemExit: the numbers differ from scikit-learn's.
    """
    rows = {name: child(name, frames) for name in CURVES}
    rows |= {f"{name}, four times the frames": child(name, 4 * frames) for name in CURVES[:1]}
    reference = rows["scikit-learn"]
    print(
        "| AUROC, AUPR and FPR95 of | megapixels | seconds | memory | times faster"
        " |\n|---|---|---|---|---|"
    )
    for name, row in rows.items():
        same = row["pixels"] == reference["pixels"]
        faster = f"{reference['seconds'] / row['seconds']:.0f}" if same else ""
        memory = f"{row['bytes'] / 2**20:.0f} MiB"
        print(
            f"| {name} | {row['pixels'] / 1e6:.1f} | {row['seconds']:.3f} | {memory} | {faster} |"
        )
        if same and not np.allclose(row["numbers"], reference["numbers"], rtol=0, atol=1e-9):
            sys.exit(f"{name} gives {row['numbers']}, scikit-learn {reference['numbers']}")
    return rows


def component_table() -> dict[str, dict[str, Any]]:
    """Measure and print the components."""
    rows = {name: child(name, 1) for name in COMPONENTS}
    print(
        "\n| components of a frame | track | megapixels | truth | predicted | seconds"
        " |\n|---|---|---|---|---|---|"
    )
    for name, row in rows.items():
        print(
            f"| {name} | {COMPONENTS[name][1]} | {row['pixels'] / 1e6:.1f} | {row['truth']} |"
            f" {row['predicted']} | {row['seconds']:.3f} |"
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--megapixels", type=float, default=24.0, help="pixels of the pool, 10 %% of them ignored"
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--one", choices=(*CURVES, *COMPONENTS), help=argparse.SUPPRESS)
    parser.add_argument("--frames", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one, arguments.frames)))
        return
    about = provenance() | {"threads": 1}
    about["versions"] |= {
        name: metadata.version(name) for name in ("scikit-learn", "opencv-python-headless")
    }
    print(f"{about['date']}, {about['hardware']}, commit {about['commit']}\n")
    found = {
        "about": about,
        "curves": curve_table(frames_of(arguments.megapixels)),
        "components": component_table(),
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
