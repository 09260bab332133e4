"""Milliseconds of a depthwise convolution on a CPU by its dilation: as oneDNN computes it, and by
its phases.

    python -m tools.bench_dilation --channels 512 --size 32x64 --dilations 4,6,12,24,36

Kernels are 3 x 3, one image, channels last. Each number is the best of several, in turns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segunc.core.memory import keep_freed_memory
from segunc.options import image_size
from segunc.sampling import phases
from segunc.sampling.layouts import ArrangedWeights, ChannelsLast

REPEATS = 20


def milliseconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return 1000 * (time.perf_counter() - start)


def measure(
    channels: int, size: tuple[int, int], dilation: int, dtype: torch.dtype
) -> tuple[float, float]:
    """Return the milliseconds of a convolution at once, and by its phases."""
    images = torch.rand(1, channels, *size).to(dtype)
    images = images.contiguous(memory_format=torch.channels_last)
    weight = nn.Parameter(torch.rand(channels, 1, 3, 3).to(dtype))

    def convolve() -> Tensor:
        return F.conv2d(images, weight, None, 1, dilation, dilation, channels)

    best = [float("inf"), float("inf")]
    weights = ArrangedWeights()
    for _ in range(REPEATS):
        for place, slow_from in enumerate((float("inf"), 2.0)):
            chosen = mock.patch.object(phases, "_slow_from", lambda value=slow_from: value)
            with chosen, ChannelsLast(weights):
                best[place] = min(best[place], milliseconds(convolve))
    return best[0], best[1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--channels", type=int, default=512)
    parser.add_argument("--size", type=image_size, default=(32, 64), metavar="HxW")
    parser.add_argument("--dilations", default="4,6,12,24,36", metavar="D,D")
    parser.add_argument("--precisions", default="bfloat16,float32", metavar="P,P")
    arguments = parser.parse_args()
    keep_freed_memory()
    print("| precision | dilation | at once, ms | by phases, ms |")
    print("|---|---|---|---|")
    with torch.inference_mode():
        for precision in arguments.precisions.split(","):
            for word in arguments.dilations.split(","):
                dtype: torch.dtype = getattr(torch, precision)
                whole, parts = measure(arguments.channels, arguments.size, int(word), dtype)
                print(f"| {precision} | {word} | {whole:.2f} | {parts:.2f} |", flush=True)


if __name__ == "__main__":
    main()
