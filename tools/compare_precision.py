"""Where does bfloat16 pay? Passes and training steps in it over the same in float32, by the network's share of depthwise work.

    python -m tools.compare_precision DeepLabV3Plus:resnet18 DeepLabV3Plus:tu-tf_efficientnet_lite0
    ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 python -m tools.compare_precision ...      # as on a CPU without AMX

On one thread of the CPU, channels last, random weights: a pass as the sampler makes it, with bfloat16 weights, and a training step under
autocast, of all weights and of the one-dimensional ones alone, which are the affine parameters. The two precisions take turns; a number is
the median seconds in float32 over those in bfloat16, above 1 where bfloat16 is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import get_args

import torch
from torch import Tensor

from segunc import NetworkDescription, SegmentationNetwork, build_network
from segunc.core.device import Precision, depthwise_share
from segunc.options import image_size
from segunc.sampling.engine import bfloat16_copy
from tools.measuring import provenance


def gain(run: Callable[[Precision], object], repeats: int) -> float:
    """Median seconds in float32 over those in bfloat16."""
    seconds: dict[Precision, list[float]] = {precision: [] for precision in get_args(Precision)}
    for _ in range(repeats + 1):
        for precision, taken in seconds.items():
            start = time.perf_counter()
            run(precision)
            taken.append(time.perf_counter() - start)
    wide, narrow = (statistics.median(taken[1:]) for taken in seconds.values())  # the first ones warm up
    return wide / narrow


def gain_of_pass(network: SegmentationNetwork, image: Tensor, repeats: int) -> float:
    """Of one pass in eval mode."""
    held = {"float32": network.eval(), "bfloat16": bfloat16_copy(network)}
    with torch.inference_mode():
        return gain(lambda precision: held[precision](image), repeats)


def gain_of_step(network: SegmentationNetwork, images: Tensor, repeats: int, *, affine: bool) -> float:
    """Of forward and backward, of all weights in train mode, or of the affine parameters in eval mode."""
    network.train(not affine)
    for parameter in network.parameters():
        parameter.requires_grad_(not affine or parameter.ndim == 1)

    def step(precision: Precision) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            loss = network(images).float().square().mean()
        loss.backward()
        network.zero_grad()

    return gain(step, repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="+", metavar="ARCHITECTURE:ENCODER")
    parser.add_argument("--size", type=image_size, default=(352, 640), metavar="HxW", help="of the frame of a pass")
    parser.add_argument("--crop", type=image_size, default=(256, 256), metavar="HxW", help="of the two of a step")
    parser.add_argument("--repeats", type=int, default=7, help="of each precision (default 7)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    print(json.dumps({**provenance(), "ONEDNN_MAX_CPU_ISA": os.environ.get("ONEDNN_MAX_CPU_ISA")}))
    print("| network | depthwise share | pass | step | step of the affine |\n|---|---|---|---|---|")
    frame, crops = torch.rand(1, 3, *options.size), torch.rand(2, 3, *options.crop)
    for name in options.networks:
        architecture, _, encoder = name.partition(":")
        network = build_network(NetworkDescription(architecture, encoder, tuple(map(str, range(11)))))
        network.to(memory_format=torch.channels_last)
        gains = [
            gain_of_pass(network, frame.contiguous(memory_format=torch.channels_last), options.repeats),
            gain_of_step(network, crops.contiguous(memory_format=torch.channels_last), options.repeats, affine=False),
            gain_of_step(network, crops.contiguous(memory_format=torch.channels_last), options.repeats, affine=True),
        ]
        print(
            f"| {name} | {depthwise_share(network):.4f} | {' | '.join(f'{value:.2f}' for value in gains)} |", flush=True
        )


if __name__ == "__main__":
    main()
