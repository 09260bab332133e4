"""Peak memory of checking a network against that of predicting with it, each in a process of its
own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

resource = pytest.importorskip("resource", reason="peak memory is read where there is getrusage")

NETWORK = """
import torch
from torch import nn

class Deep(nn.Sequential):
    def __init__(self):
        layers = [nn.Conv2d(3, 8, 1)]
        for _ in range(30):
            layers += [nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.ReLU()]
        super().__init__(*layers, nn.Conv2d(8, 4, 1))

def build():
    torch.manual_seed(0)
    return Deep()
"""
"""A graph of it would keep the outputs of 90 layers, each of 16 MB for a frame of 512 x 1024."""
IMPORT = """
import segunc
segunc.import_network(
    source="python:deep:build",
    classes="a,b,c,d",
    mean=(0, 0, 0),
    std=(1, 1, 1),
    size=(512, 1024),
    trust=True,
    out="model",
)
"""
PREDICT = """
import segunc
segunc.predict("model", "frames", out="maps-{run}", device="cpu", precision="float32", threads=1)
"""
PEAK = """
import resource
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def peak_of(program: str, folder: Path) -> int:
    """Return the peak memory of a program in a process of its own, in units of the operating
    system.
    """
    path = os.pathsep.join([str(folder), *sys.path])
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "XDG_CONFIG_HOME": str(folder),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", program + PEAK],
        capture_output=True,
        text=True,
        env=environment,
        cwd=folder,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return int(done.stdout.split()[-1])


def test_import_takes_no_more_memory_than_predict(tmp_path: Path) -> None:
    import numpy as np
    from PIL import Image

    (tmp_path / "deep.py").write_text(NETWORK)
    (tmp_path / "frames").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (512, 1024, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "frames/a.png")
    of_import = peak_of(IMPORT, tmp_path)
    # The lowest of three: when tensors of a pass are freed varies between equal runs.
    of_predict = min(peak_of(PREDICT.format(run=run), tmp_path) for run in range(3))
    assert of_import < 1.2 * of_predict, (of_import, of_predict)
