"""`segunc export --to onnx` over architectures: largest difference from the sampler, seconds a
frame of both (the best of three), and the largest difference of a file of `--size dynamic`.

    python -m tools.export_table [Segformer]

Random weights, an ABNN with alpha 0.1 and 4 draws, frames of 128 x 192, float32, one thread.
"""

import json
import sys
import tempfile
import timeit
from pathlib import Path

import torch

from segunc import ABNNPosterior, AffineLayout, InputError, Sampler, convert
from segunc.exporting.check import SIZES, check_frames, compare
from segunc.exporting.graph import open_onnx, trace, write_onnx
from segunc.networks import NetworkDescription, build_network, torchvision as torchvision_kind
from segunc.scores import SCORES
from tools.identity_table import randomise
from tools.measuring import provenance

SCORE_NAMES = [name for name, score in SCORES.items() if score.sources <= {"draws", "base"}]
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


def row(architecture: str, encoder: str, kind: str) -> str:
    torch.manual_seed(0)
    options = {"dynamic_img_size": True} if architecture == "DPT" else {}
    network = build_network(
        NetworkDescription(architecture, encoder, tuple("abcde"), options=options, kind=kind)
    ).eval()
    randomise(network.body)
    convert(network.body)
    sampler = Sampler(
        network, ABNNPosterior.around(AffineLayout(network), 0.1), draws=4, scores=SCORE_NAMES
    )
    frames = check_frames((128, 192))
    sampler(frames[0])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        with path.open("wb") as file:
            write_onnx(trace(sampler, frames[0]), file, {})
        run = open_onnx(path)
        scores = compare(run, sampler, frames, path.name)["scores"]
        codes = {
            name: of["codes"] for name, of in scores.items() if SCORES[name].stored == "unit16"
        }
        share = max(of["share"] for of in scores.values())
        seconds = [
            min(timeit.repeat(lambda call=call: call(frames[0]), number=1, repeat=3))
            for call in (run, sampler)
        ]
        largest = f"{max(codes.values())} ({max(codes, key=lambda name: codes[name])})"
        return (
            f"{largest} | {share:.1e} | {seconds[0]:.3f} | {seconds[1]:.3f} |"
            f" {any_size(sampler, path)}"
        )


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
    return str(max(of["codes"] for name, of in scores.items() if SCORES[name].stored == "unit16"))


if __name__ == "__main__":
    print(json.dumps(provenance()))
    torch.set_num_threads(1)
    for architecture, encoder, kind in ROWS:
        if sys.argv[1:] in ([], [architecture]):
            try:
                print(
                    f"| {architecture} {encoder} | {row(architecture, encoder, kind)} |", flush=True
                )
            except InputError as error:
                print(f"| {architecture} {encoder} | {error} | | | | |", flush=True)
