"""The sums over draws in float32 on the device, against float64: for logits from flat to saturated
and beyond, every error beside its bound in ``docs/float32.md``.

The tail of a graph has to keep the bound of every score. The tail of the sampler (Triton on a GPU)
takes epistemic as the difference of two entropies, so its error may be the sum of their bounds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from torch import Tensor

from segunc.sampling.shortcuts import Upsampling
from segunc.sampling.tail import DrawAccumulator, choose_backend
from segunc.sampling.tail_traced import GraphAccumulator
from segunc.scores import MUTUAL_INFORMATION
from tools.float32_bounds import WIDTHS, Array, Exact, draws_of_logits
from tools.gpu_day.steps import Day, Row, Step

CLASSES = (2, 19, 150)
DRAWS = (2, 8, 64)
TINY_DRAWS = (2, 8)
TEMPERATURES = (1.0, 1.7)
EXTREME = (1e4, 1e30)
"""Widths of logits whose exponentials are all 0 but one."""
TOTAL = "total entropy"
EXPECTED = "expected entropy"


def steps(day: Day) -> Iterator[Step]:
    """Give the steps of the part ``tail``."""
    yield Step("float32 tail of a graph", partial(measure_tail, day, of_graph))
    yield Step("float32 tail of the sampler", partial(measure_tail, day, of_sampler))


def of_graph(logits: Tensor, temperature: float) -> dict[str, Array]:
    """Return entropies ``[W]`` in nats from the tail of graphs."""
    size = (logits.shape[2], logits.shape[3])
    classes = logits.shape[1]
    sums = GraphAccumulator(classes, size, temperature=temperature)
    return _entropies(sums, logits)


def of_sampler(logits: Tensor, temperature: float) -> dict[str, Array]:
    """Return entropies ``[W]`` in nats from the tail that the sampler takes on the device."""
    size = (logits.shape[2], logits.shape[3])
    classes = logits.shape[1]
    backend, _ = choose_backend(logits.device)
    sums = DrawAccumulator(classes, size, logits.device, backend, temperature=temperature)
    entropies = _entropies(sums, logits)
    information = entropies[TOTAL] - entropies[EXPECTED]
    entropies[MUTUAL_INFORMATION] = information.clip(min=0.0)
    return entropies


def _entropies(sums: DrawAccumulator, logits: Tensor) -> dict[str, Array]:
    """Return the entropies of draws ``[S, C, 1, W]``."""
    size = (logits.shape[2], logits.shape[3])
    largest = math.log(logits.shape[1])
    sums.add(logits, Upsampling.none(size))
    _, evidence = sums.finish()
    entropies: dict[str, Array] = {}
    for name in (TOTAL, EXPECTED, MUTUAL_INFORMATION):
        if name in evidence:
            entropies[name] = largest * evidence[name].double().cpu().numpy()[0, 0]
    return entropies


def measure_tail(day: Day, tail: Callable[[Tensor, float], dict[str, Array]]) -> Row:
    """Return the largest error of each entropy as a share of its bound; it has to be at most 1."""
    draws = TINY_DRAWS if day.tiny else DRAWS
    largest = {TOTAL: 0.0, EXPECTED: 0.0, MUTUAL_INFORMATION: 0.0}
    pixels = 0
    for classes, count, temperature in itertools.product(CLASSES, draws, TEMPERATURES):
        logits = draws_of_logits(classes, count, (*WIDTHS, *EXTREME))
        exact = Exact(logits, temperature)
        entropies = tail(logits.to(day.device), temperature)
        shares = {
            TOTAL: _share(entropies[TOTAL], exact.total, exact.total_bound),
            EXPECTED: _share(entropies[EXPECTED], exact.entropies.mean(0), exact.expected_bound),
        }
        bound = exact.information_bound
        if tail is of_sampler:
            bound = exact.total_bound + exact.expected_bound
        information = entropies[MUTUAL_INFORMATION]
        shares[MUTUAL_INFORMATION] = _share(information, exact.information, bound)
        pixels += logits.shape[-1]
        for name, share in shares.items():
            largest[name] = max(largest[name], share)
    row: Row = {"backend": "traced" if tail is of_graph else choose_backend(day.device)[0]}
    row["pixels"] = pixels
    row |= {f"{name}, share of the bound": share for name, share in largest.items()}
    row["met"] = max(largest.values()) <= 1.0
    return row


def _share(values: Array, exact: Array, bound: Array) -> float:
    """Return the largest error as a share of its bound; infinite where a value is none."""
    if not np.isfinite(values).all():
        return math.inf
    return float((np.abs(values - exact) / bound).max())
