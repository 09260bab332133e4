"""Passes of draws through torch.compile, with the draws as inputs: one graph for a shape serves all draws and frames.

The plain pass is traced as it runs, with the shared prefix and the early end, so that the graph holds just what is left to
be computed for a chunk of draws. Compiling takes ten seconds and more and saves about a tenth on a CPU, so it is asked for
by whoever knows that many frames follow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from segunc.bayes.draws import FoldedDraws
from segunc.bayes.sites import FRAMES
from segunc.sampling.ending import Ending
from segunc.sampling.prefix import Prefix, mark

MOST_GRAPHS = 4
"""Shapes that are compiled; further ones run as they are."""

Forward = Callable[[Tensor, FoldedDraws, Ending | None, Prefix], Tensor]
Graph = Callable[[Tensor, list[Tensor], list[Tensor], list[Tensor]], Tensor]


class CompiledPasses:
    """Compiled forms of one engine's passes, made when they are first needed.

    Args:
        forward: the plain pass: images, draws, ending and a complete prefix to logits.
        messages: gains a line when something cannot be compiled.
    """

    def __init__(self, forward: Forward, messages: list[str]) -> None:
        self._forward, self._messages = forward, messages
        self._graphs: dict[tuple[int, ...], tuple[int, Graph | None]] = {}

    def __call__(self, images: Tensor, draws: FoldedDraws, ending: Ending | None, prefix: Prefix) -> Tensor | None:
        """The logits, or None where the plain pass has to be taken.

        Only the first number of draws that comes with a shape is compiled, not the smaller last chunk.
        """
        key = tuple(images.shape)
        fits = (
            not draws.dropout
            and all(site.element_alpha == 0.0 for site in draws.sites)
            and all(isinstance(kept, Tensor) for kept in prefix.kept.values())
        )
        if not fits or (key not in self._graphs and len(self._graphs) == MOST_GRAPHS):
            return None
        inputs = (
            images,
            [prefix.kept[number] for number in sorted(prefix.kept)],
            [site.scale for site in draws.sites],
            [site.shift for site in draws.sites],
        )
        new = key not in self._graphs
        if new:
            self._graphs[key] = len(draws), None
        count, graph = self._graphs[key]
        try:
            if new:
                graph = self._compile(inputs, draws, ending, prefix)
                self._graphs[key] = count, graph
            return graph(*inputs) if graph is not None and count == len(draws) else None
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # the compilers have no common exception
            self._graphs[key] = count, None
            reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
            self._messages.append(f"the network could not be compiled and runs as it is ({reason})")
            return None

    def _compile(self, inputs: Any, draws: FoldedDraws, ending: Ending | None, prefix: Prefix) -> Graph:
        numbers = sorted(prefix.kept)

        def run(images: Tensor, kept: list[Tensor], scales: list[Tensor], shifts: list[Tensor]) -> Tensor:
            known = Prefix()
            known.results = dict(prefix.results)
            for number, tensor in zip(numbers, kept, strict=True):
                known.results[number] = mark(tensor.view_as(tensor), FRAMES)
            known.complete = True
            sites = (replace(s, scale=a, shift=b) for s, a, b in zip(draws.sites, scales, shifts, strict=True))
            return self._forward(images, FoldedDraws(tuple(sites), len(draws)), ending, known)

        traced = make_fx(run, tracing_mode="real")(*inputs)
        graph: Graph = torch.compile(traced, dynamic=False)
        return graph
