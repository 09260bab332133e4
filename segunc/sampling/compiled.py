"""Passes of draws through torch.compile, with the draws as inputs: one graph for a shape serves all draws and frames.

The plain pass is traced as it runs, with the shared prefix and the early end, so that the graph holds just what is left to
be computed for a chunk of draws. Compiling takes ten seconds and more and saves about a tenth on a CPU: whether that pays is
decided for a whole run (:mod:`segunc.sampling.compilation`).
"""

from __future__ import annotations

import logging
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

Forward = Callable[[Tensor, FoldedDraws, Ending | None, Prefix], Tensor]
Graph = Callable[[Tensor, list[Tensor], list[Tensor], list[Tensor]], Tensor]


class CompiledPasses:
    """Compiled forms of one engine's passes, made when they are first needed.

    Which passes are compiled is the caller's choice and must not depend on what came before: a graph is kept for every
    shape, number of draws and shared part that is asked for, so that a frame's bits are the same wherever a run begins.

    Args:
        forward: the plain pass: images, draws, ending and a complete prefix to logits.
        messages: gains a line when something cannot be compiled.
    """

    def __init__(self, forward: Forward, messages: list[str]) -> None:
        self._forward, self._messages = forward, messages
        self._graphs: dict[tuple[object, ...], Graph | None] = {}

    def __call__(
        self, images: Tensor, draws: FoldedDraws, ending: Ending | None, prefix: Prefix | None
    ) -> Tensor | None:
        """The logits, or None where the plain pass has to be taken."""
        obstacle = _obstacle(draws, prefix)
        if obstacle:
            self._say(f"{obstacle} cannot be compiled; draws run as they are")
        if obstacle or prefix is None or not prefix.complete:
            return None
        inputs = (
            images,
            [prefix.kept[number] for number in sorted(prefix.kept)],
            [site.scale for site in draws.sites],
            [site.shift for site in draws.sites],
        )
        agreeing = tuple(site.agree for site in draws.sites)
        key = (tuple(images.shape), len(draws), tuple(sorted(prefix.kept)), agreeing)
        try:
            if key not in self._graphs:
                self._graphs[key] = self._compile(inputs, draws, ending, prefix)
            graph = self._graphs[key]
            return None if graph is None else graph(*inputs)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # the compilers have no common exception
            self._graphs[key] = None
            reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
            self._say(f"the network could not be compiled and runs as it is ({reason})")
            return None

    def _say(self, message: str) -> None:
        if message not in self._messages:
            self._messages.append(message)

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

        # Its only warning at import is that a CUDA toolkit has no device, on a CPU run.
        logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
        traced = make_fx(run, tracing_mode="real")(*inputs)
        graph: Graph = torch.compile(traced, dynamic=False)
        return graph


def _obstacle(draws: FoldedDraws, prefix: Prefix | None) -> str:
    """What a graph cannot hold of these draws, or an empty string."""
    if draws.dropout:
        return "masks of dropout layers"
    if any(site.element_alpha for site in draws.sites):
        return "noise for each element"
    if prefix is None:
        return "a network that cannot share what is common to all draws"
    if not all(isinstance(kept, Tensor) for kept in prefix.kept.values()):
        return "shared results other than tensors"
    return ""
