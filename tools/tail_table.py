"""Epistemic of the sampler's tails and of the graph's tail: error against float64 in stored codes,
and seconds a frame.

    python -m tools.tail_table

Logits of 19 classes at a quarter of 256 x 512 pixels, 8 draws, one thread. Their spread over the
draws goes from nothing to a few units over the columns.
"""

import json
import timeit
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from segunc.sampling.shortcuts import Upsampling
from segunc.sampling.tail import Backend, DrawAccumulator
from segunc.sampling.tail_traced import GraphAccumulator
from segunc.scores import SCORES
from segunc.uncertainty import per_ln
from tools.measuring import provenance

CLASSES, DRAWS = 19, 8
SOURCE, SIZE = (64, 128), (256, 512)
CPU = torch.device("cpu")
Make = Callable[[], DrawAccumulator]


def logits() -> Tensor:
    """Return logits ``[S, C, h, w]``; draws differ by 1e-6 at the left and by 10 at the right."""
    generator = torch.Generator().manual_seed(0)
    base = 5 * torch.randn(1, CLASSES, *SOURCE, generator=generator)
    spread = torch.logspace(-6, 1, SOURCE[1])
    return base + spread * torch.randn(DRAWS, CLASSES, *SOURCE, generator=generator)


def exact(draws: Tensor, upsampling: Upsampling) -> npt.NDArray[np.float64]:
    """Return epistemic ``[H, W]`` in float64, of the float32 logits that the tails see."""
    full = torch.cat([upsampling.apply(draw[None] * 0.5) for draw in draws]).double() * 2
    p = full.softmax(1)
    difference = p - p.mean(0)
    ratio = torch.log1p(difference / p.mean(0))
    information = (p * ratio - difference).sum(1).mean(0)
    return np.asarray(information * per_ln(CLASSES))


def made_by(make: Make, draws: Tensor, upsampling: Upsampling) -> npt.NDArray[np.float64]:
    """Return epistemic ``[H, W]`` of a tail, as it gives it."""
    sums = make()
    sums.add(draws, upsampling)
    _, evidence = sums.finish()
    return SCORES["epistemic"](evidence)[0].double().numpy()


def row(name: str, make: Make) -> str:
    draws = logits()
    upsampling = Upsampling(SOURCE, SIZE, SIZE, True)
    codes = 65535 * np.sqrt(made_by(make, draws, upsampling))
    errors = np.abs(codes - 65535 * np.sqrt(exact(draws, upsampling).clip(min=0.0)))
    seconds = min(timeit.repeat(lambda: made_by(make, draws, upsampling), number=1, repeat=5))
    return f"| {name} | {np.median(errors):.4f} | {errors.max():.3f} | {seconds:.3f} |"


def main() -> None:
    print(json.dumps(provenance()))
    torch.set_num_threads(1)
    backends: tuple[Backend, ...] = ("reference", "native")
    for backend in backends:
        print(row(backend, lambda: DrawAccumulator(CLASSES, SIZE, CPU, backend)))  # noqa: B023
    print(row("graph", lambda: GraphAccumulator(CLASSES, SIZE)))


if __name__ == "__main__":
    with torch.inference_mode():
        main()
