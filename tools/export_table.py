"""`segunc export --to onnx` over architectures: largest difference from the sampler in ONNX Runtime
and in OpenVINO, what TensorRT's list lacks, and seconds a frame (the best of three).

    python -m tools.export_table [Segformer] [--any-size]

Random weights, an ABNN with alpha 0.1 and 4 draws, frames of 128 x 192, float32, one thread.
`--any-size` compares a file of `--size dynamic` over frames of four sizes instead.
"""

import json
import sys
import tempfile
import timeit
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import Tensor

from segunc import ABNNPosterior, AffineLayout, InputError, Sampler, convert
from segunc.exporting.check import SIZES, check_frames, compare
from segunc.exporting.graph import open_onnx, open_openvino, trace, write_onnx
from segunc.exporting.operators import tensorrt_check
from segunc.networks import NetworkDescription, build_network, torchvision as torchvision_kind
from segunc.scores import SCORES
from tools.identity_table import randomise
from tools.measuring import provenance

SCORE_NAMES = [
    name
    for name, score in SCORES.items()
    if score.sources <= {"draws", "base"} and name != "rba"  # of networks that classify masks
]
SMP = [
    "Unet",
    "UnetPlusPlus",
    "MAnet",
    "Linknet",
    "FPN",
    "PSPNet",
    "PAN",
    "DeepLabV3",
    "DeepLabV3Plus",
    "UPerNet",
    "Segformer",
]
ENCODERS = [
    "efficientnet-b0",
    "mobilenet_v2",
    "mit_b0",
    "tu-convnext_atto",
    "tu-mobilenetv3_small_100",
    "tu-hgnetv2_b0",
]
ROWS = [
    *((name, "resnet18", "smp") for name in SMP),
    ("DPT", "tu-vit_tiny_patch16_224.augreg_in21k", "smp"),
]
ROWS += [
    *(("FPN", encoder, "smp") for encoder in ENCODERS),
    *((name, "", "torchvision") for name in torchvision_kind.names()),
]


def sampler_of(architecture: str, encoder: str, kind: str) -> Sampler:
    """Return the sampler of a network with random weights."""
    torch.manual_seed(0)
    options = {"dynamic_img_size": True} if architecture == "DPT" else {}
    network = build_network(
        NetworkDescription(architecture, encoder, tuple("abcde"), options=options, kind=kind)
    ).eval()
    randomise(network.body)
    convert(network.body)
    posterior = ABNNPosterior.around(AffineLayout(network), 0.1)
    return Sampler(network, posterior, draws=4, scores=SCORE_NAMES)


def row(sampler: Sampler, path: Path) -> str:
    """Return the cells of a file for frames of 128 x 192."""
    frames = check_frames((128, 192))
    sampler(frames[0])
    with path.open("wb") as file:
        write_onnx(trace(sampler, frames[0]), file, {})
    cells = []
    seconds = []
    for open_file in (open_onnx, open_openvino):
        try:
            run = open_file(path)
            scores = compare(run, sampler, frames, path.name)["scores"]
        except InputError as error:
            cells.append(error.message[:200])
            continue
        cells.append(largest_difference(scores))
        seconds.append(best_of_three(run, frames[0]))
    seconds.append(best_of_three(sampler, frames[0]))
    lacks = tensorrt_check(onnx.load(path))["lacks"]
    cells.append(", ".join(lacks) or "nothing")
    return " | ".join([*cells, *(f"{number:.3f}" for number in seconds)])


def best_of_three(call: Callable[[Tensor], object], frame: Tensor) -> float:
    """Return the seconds of the fastest of three calls."""
    return min(timeit.repeat(lambda: call(frame), number=1, repeat=3))


def largest_difference(scores: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the largest difference of a bounded score in codes, and of any as a share."""
    codes = {
        name: difference["codes"]
        for name, difference in scores.items()
        if SCORES[name].stored == "unit16"
    }
    largest = max(codes, key=lambda name: codes[name])
    share = max(difference["share"] for difference in scores.values())
    return f"{codes[largest]} ({largest}), {share:.0e}"


def any_size(sampler: Sampler, path: Path) -> str:
    """Return the largest difference of one file over frames of all sizes, or why there is no such
    file.
    """
    frames = tuple(frame for size in SIZES for frame in check_frames(size))
    try:
        sampler(frames[0])
        with path.open("wb") as file:
            write_onnx(trace(sampler, frames[0], any_size=True), file, {})
        scores = compare(open_onnx(path), sampler, frames, path.name)["scores"]
    except InputError as error:
        return error.message[:200]
    return largest_difference(scores)


def main() -> None:
    print(json.dumps(provenance()))
    torch.set_num_threads(1)
    words = [word for word in sys.argv[1:] if word != "--any-size"]
    cells_of = any_size if "--any-size" in sys.argv else row
    for architecture, encoder, kind in ROWS:
        if words in ([], [architecture]):
            with tempfile.TemporaryDirectory() as folder:
                try:
                    sampler = sampler_of(architecture, encoder, kind)
                    cells = cells_of(sampler, Path(folder) / "model.onnx")
                except InputError as error:
                    cells = str(error)
            print(f"| {architecture} {encoder} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
