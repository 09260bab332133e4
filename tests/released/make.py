"""Make a model folder, frames and their maps as a version of the package writes them.

    git worktree add ../released COMMIT
    python tests/released/make.py ../released tests/released/VERSION

It was run once for each version, and what it wrote is never made again: the folders stand for
those of users. The network is the smallest that segmentation-models-pytorch builds.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import cv2
import numpy as np

PROGRAM = """
import platform
import runpy
import sys

platform.platform = lambda *arguments: "Linux"
sys.path.insert(0, sys.argv.pop(1))
sys.argv[0] = "segunc"
runpy.run_module("segunc", run_name="__main__", alter_sys=False)
"""
"""The command line of a checkout, which records nothing of the machine but its libraries."""
CONFIGURATION = """
data: {dataset: camvid, root: camvid, crop: [32, 32], batch_size: 4}
network:
  architecture: Unet
  encoder: tu-test_resnet
  encoder_weights: null
  options: {encoder_depth: 2, decoder_channels: [8, 8]}
trainer: {max_epochs: 1, precision: 32-true}
"""
SIZE = (32, 48)
"""Height and width of the frames."""


def write_frames(root: Path) -> None:
    """Write a data set of grey frames with a bright lower half in CamVid's layout."""
    random = np.random.default_rng(0)
    for split, count in (("train", 4), ("val", 2), ("test", 2)):
        images = root / split
        labels = root / f"{split}annot"
        images.mkdir(parents=True)
        labels.mkdir()
        for number in range(count):
            frame = random.integers(0, 120, (*SIZE, 3)).astype(np.uint8)
            frame[SIZE[0] // 2 :] += 100
            classes = np.zeros(SIZE, np.uint8)
            classes[SIZE[0] // 2 :] = 3
            cv2.imwrite(str(images / f"{number}.png"), frame)
            cv2.imwrite(str(labels / f"{number}.png"), classes)


def make(checkout: Path, out: Path) -> None:
    """Run train, finetune and predict of a checkout, and copy frames, model and maps to ``out``."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        write_frames(work / "camvid")
        (work / "train.yaml").write_text(CONFIGURATION, encoding="utf-8")
        tune = ["--abnn.members", "2", "--abnn.epochs", "0", "--abnn.alpha", "0.1"]
        maps = ["--scores", "entropy,epistemic", "--draws", "8", "--precision", "float32"]
        for words in (
            ["train", "--config", "train.yaml", "--out", "base"],
            ["finetune", "--base", "base", "--out", "model", *tune, "--abnn.statistics", "frozen"],
            ["predict", "--model", "model", "--input", "camvid/test", "--out", "maps", *maps],
        ):
            subprocess.run(
                [sys.executable, "-c", PROGRAM, str(checkout.resolve()), *words, "--device", "cpu"],
                cwd=work,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                check=True,
            )
        shutil.copytree(work / "camvid/test", out / "frames")
        for name in ("model", "maps"):
            shutil.copytree(work / name, out / name)


if __name__ == "__main__":
    make(Path(sys.argv[1]), Path(sys.argv[2]))
