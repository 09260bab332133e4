"""CUDA against CPU on one machine: fine-tuning in bfloat16 on the GPU, and maps of the same model on both devices.

    python -m tools.check_cuda --base runs/camvid --config configs/camvid_abnn.yaml --input frames --work /some/empty/folder \\
        -- --data.root data/camvid --abnn.members 3 --abnn.epochs 2

What follows `--` goes to `segunc finetune`. Prints the time of the fine-tuning and, for float32 and bfloat16, the largest
difference of the maps in units of their 16-bit codes, where it exceeds the bound in float32 exits with 1. Without a CUDA
device it says so and exits with 2.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import torch

from segunc.cli.main import main as segunc
from segunc.maps.reader import MapsReader

FLOAT32_BOUND = 64
"""Codes; of 65,535. TF32 is off by default in PyTorch, so only the order of sums differs."""
SCORES = ("msp", "entropy", "aleatoric", "epistemic")


def run(*words: str | Path) -> float:
    """One verb; its wall-clock seconds."""
    start = time.perf_counter()
    code = segunc([str(word) for word in words])
    if code:
        sys.exit(code)
    return time.perf_counter() - start


def difference(first: Path, second: Path) -> dict[str, tuple[int, float]]:
    """Largest and mean difference of the codes of each score over all frames of two maps folders."""
    a, b = MapsReader(first), MapsReader(second)
    found: dict[str, tuple[int, float]] = {}
    for score in SCORES:
        gaps = [np.abs(a.read_stored(f, score).astype(int) - b.read_stored(f, score).astype(int)) for f in a.frames]
        found[score] = (max(int(g.max()) for g in gaps), float(np.mean([g.mean() for g in gaps])))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", required=True, type=Path)
    parser.add_argument("--config", required=True, type=Path)
    parser.add_argument("--input", required=True, help="frames, as for segunc predict")
    parser.add_argument("--work", required=True, type=Path)
    parser.add_argument("rest", nargs="*")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device: nothing was measured", file=sys.stderr)
        return 2
    work = arguments.work
    seconds = run(
        *(
            "finetune",
            "--device",
            "cuda",
            "--base",
            arguments.base,
            "--config",
            arguments.config,
            "--out",
            work / "abnn",
        ),
        *arguments.rest,
    )
    print(f"fine-tuning on {torch.cuda.get_device_name()}: {seconds:.1f} s")
    worst = 0
    for precision in ("float32", "bfloat16"):
        for device in ("cpu", "cuda"):
            out = work / f"{device}-{precision}"
            took = run(
                *("predict", "--device", device, "--precision", precision, "--model", work / "abnn"),
                *("--input", arguments.input, "--out", out),
            )
            print(f"{precision} on {device}: {took:.1f} s")
        for score, (largest, mean) in difference(work / f"cpu-{precision}", work / f"cuda-{precision}").items():
            print(f"{precision} {score}: largest difference {largest} codes, mean {mean:.2f}")
            worst = max(worst, largest) if precision == "float32" else worst
    print(f"float32: largest difference {worst} codes (bound {FLOAT32_BOUND})")
    return 0 if worst <= FLOAT32_BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
