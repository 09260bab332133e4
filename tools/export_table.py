"""`segunc export` over architectures: the largest difference from the sampler, and seconds a frame of both.

    python -m tools.export_table [--to onnx] [--only Segformer]

Random weights, an ABNN with alpha 0.1 and 4 draws, frames of 128 x 192, float32, one thread; the best of three frames.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from segunc import ABNNPosterior, AffineLayout, InputError, Sampler, convert
from segunc.exporting import graph
from segunc.exporting.check import check_frames, compare
from segunc.networks import NetworkDescription, build_network, torchvision as torchvision_kind
from segunc.scores import SCORES
from tools.identity_table import randomise
from tools.measuring import provenance

SIZE, CLASSES = (128, 192), ("road", "car", "sky", "person", "tree")
SCORE_NAMES = [name for name, score in SCORES.items() if score.sources <= {"draws", "base"}]
ENCODERS = ("efficientnet-b0", "mobilenet_v2", "mit_b0", "tu-convnext_atto", "tu-mobilenetv3_small_100", "tu-hgnetv2_b0")
ROWS = [
    *(
        (name, "resnet18", "smp")
        for name in ("Unet", "UnetPlusPlus", "MAnet", "Linknet", "FPN", "PSPNet", "PAN", "DeepLabV3", "DeepLabV3Plus")
    ),
    *((name, "resnet18", "smp") for name in ("UPerNet", "Segformer")),
    ("DPT", "tu-vit_tiny_patch16_224.augreg_in21k", "smp"),
    *(("FPN", encoder, "smp") for encoder in ENCODERS),
    *((name, "", "torchvision") for name in torchvision_kind.names()),
]


def best(run: Callable[[], object]) -> float:
    """Return the seconds of the fastest of three calls."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def row(architecture: str, encoder: str, kind: str, to: str) -> str:
    """Return the cells of one network."""
    torch.manual_seed(0)
    options = {"dynamic_img_size": True} if architecture == "DPT" else {}
    network = build_network(NetworkDescription(architecture, encoder, CLASSES, options=options, kind=kind)).eval()
    randomise(network.body)
    convert(network.body)
    sampler = Sampler(network, ABNNPosterior.around(AffineLayout(network), 0.1), draws=4, scores=SCORE_NAMES)
    frames = check_frames(SIZE)
    sampler(frames[0])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"model.{to}"
        with path.open("wb") as file:
            (graph.write_onnx if to == "onnx" else graph.write_pt2)(graph.trace(sampler, frames[0]), file, {})
        run = (graph.open_onnx if to == "onnx" else graph.open_pt2)(path)
        of = compare(run, sampler, frames, path.name)["scores"]
        shares = {name: score["codes"] for name, score in of.items() if SCORES[name].stored == "unit16"}
        value = max(score["share"] for name, score in of.items() if name not in shares)
        seconds = f"{best(lambda: run(frames[0])):.3f} | {best(lambda: sampler(frames[0])):.3f}"
        return f"{max(shares.values())} ({max(shares, key=lambda name: shares[name])}) | {value:.1e} | {seconds}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", choices=("onnx", "pt2"), default="onnx")
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    print(json.dumps(provenance()))
    torch.set_num_threads(1)
    print(
        "| network | scores in 0..1, codes | other scores, share of the largest value | s a frame, file | s a frame, sampler |\n|---|---|---|---|---|"
    )
    for architecture, encoder, kind in ROWS:
        if arguments.only in f"{architecture} {encoder}":
            try:
                cells = row(architecture, encoder, kind, arguments.to)
            except InputError as error:
                cells = f"{error} | | | "
            print(f"| {architecture} {encoder} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
