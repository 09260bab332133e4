"""Seconds a frame and peak memory of an exported file, in a process of its own for each runtime.

    python -m tools.export_cost write FOLDER        # model.onnx of a network with random weights
    python -m tools.export_cost onnxruntime FOLDER  # or openvino

DeepLabV3+ EfficientNet-Lite0 with 20 classes, an ABNN with alpha 0.1 and 8 draws, the eight default
scores, frames of 352 x 640, float32, one thread.
"""

import json
import resource
import sys
import time
from pathlib import Path

import numpy as np
import torch

from segunc import ABNNPosterior, AffineLayout, Sampler, convert
from segunc.exporting import graph
from segunc.exporting.check import check_frames
from segunc.networks import NetworkDescription, build_network
from tools.identity_table import randomise
from tools.measuring import provenance

SIZE = (352, 640)
FRAMES = 12


def write(path: Path) -> None:
    torch.manual_seed(0)
    classes = tuple(f"c{number}" for number in range(20))
    description = NetworkDescription(
        "DeepLabV3Plus", "tu-tf_efficientnet_lite0", classes, kind="smp"
    )
    network = build_network(description).eval()
    randomise(network.body)
    convert(network.body)
    sampler = Sampler(network, ABNNPosterior.around(AffineLayout(network), 0.1), draws=8)
    frame = check_frames(SIZE)[0]
    sampler(frame)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        graph.write_onnx(graph.trace(sampler, frame), file, {})


def measure(runtime: str, path: Path) -> None:
    run = graph.open_onnx(path) if runtime == "onnxruntime" else graph.open_openvino(path)
    frame = check_frames(SIZE)[0]
    run(frame)
    seconds = []
    for _ in range(FRAMES):
        start = time.perf_counter()
        run(frame)
        seconds.append(time.perf_counter() - start)
    found = {
        "runtime": runtime,
        "p50": float(np.median(seconds)),
        "least": min(seconds),
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "megabytes": path.stat().st_size / 1e6,
    }
    print(json.dumps(found | provenance()))


if __name__ == "__main__":
    torch.set_num_threads(1)
    what, folder = sys.argv[1:]
    if what == "write":
        write(Path(folder) / "model.onnx")
    else:
        measure(what, Path(folder) / "model.onnx")
