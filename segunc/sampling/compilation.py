"""Compiled passes of draws.

The plain pass is traced as it runs, with the shared prefix and the early end, so that a graph holds just what is left to be computed for
a chunk of draws; the draws are its inputs, so one graph for a shape serves all draws and frames. Compiled and plain passes differ by
rounding, so a run records whether it compiles.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from segunc.affine.convert import FRAMES
from segunc.affine.draws import FoldedDraws
from segunc.core.errors import is_out_of_memory, one_line
from segunc.core.files import own_folder
from segunc.sampling.ending import Ending
from segunc.sampling.prefix import Prefix, mark

Forward = Callable[[Tensor, FoldedDraws, Ending | None, Prefix], Tensor]


class CompiledPasses:
    """Compiled forms of one engine's plain pass; ``messages`` gains a line when something cannot be compiled. Which
    passes are compiled must not depend on what came before, so that a frame's bits are the same wherever a run begins:
    a graph is kept for every shape, number of draws and shared part that is asked for."""

    def __init__(self, forward: Forward, messages: list[str]) -> None:
        self._forward, self._messages = forward, messages
        self._graphs: dict[tuple[object, ...], Callable[..., Tensor] | None] = {}

    def __call__(
        self, images: Tensor, draws: FoldedDraws, ending: Ending | None, prefix: Prefix | None
    ) -> Tensor | None:
        """The logits, or None where the plain pass has to be taken."""
        obstacle = _obstacle(draws, prefix)
        if obstacle:
            self._say(f"{obstacle} cannot be compiled; draws run as they are")
        if obstacle or prefix is None or not prefix.complete:
            return None
        numbers, sites = sorted(prefix.kept), draws.sites
        kept = [prefix.kept[number] for number in numbers]
        inputs = (images, kept, [site.scale for site in sites], [site.shift for site in sites])
        key = (tuple(images.shape), len(draws), tuple(numbers), tuple(site.agree for site in sites))
        try:
            if key not in self._graphs:
                from torch._inductor.runtime.cache_dir_utils import cache_dir  # which takes its time

                if not own_folder(place := Path(cache_dir())):
                    raise PermissionError(f"others can write to {place}, from which compiled code would be loaded")
                # Its only warning at import is that a CUDA toolkit has no device, on a CPU run.
                logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
                traced = make_fx(self._pass_of(draws, ending, prefix), tracing_mode="real")(*inputs)
                self._graphs[key] = torch.compile(traced, dynamic=False)
            graph = self._graphs[key]
            return None if graph is None else graph(*inputs)
        except Exception as error:  # the compilers have no common exception
            if is_out_of_memory(error):
                raise
            self._graphs[key] = None
            self._say(f"the network could not be compiled and runs as it is ({one_line(error)})")
            return None

    def _say(self, message: str) -> None:
        if message not in self._messages:
            self._messages.append(message)

    def _pass_of(self, draws: FoldedDraws, ending: Ending | None, prefix: Prefix) -> Callable[..., Tensor]:
        """The plain pass as a function of nothing but tensors."""

        def run(images: Tensor, kept: list[Tensor], scales: list[Tensor], shifts: list[Tensor]) -> Tensor:
            known = Prefix()
            known.results = dict(prefix.results)
            for number, tensor in zip(sorted(prefix.kept), kept, strict=True):
                known.results[number] = mark(tensor.view_as(tensor), FRAMES)
            known.complete = True
            sites = (replace(s, scale=a, shift=b) for s, a, b in zip(draws.sites, scales, shifts, strict=True))
            return self._forward(images, FoldedDraws(tuple(sites), len(draws)), ending, known)

        return run


def _obstacle(draws: FoldedDraws, prefix: Prefix | None) -> str:
    """What a graph cannot hold of these draws, or an empty string."""
    if draws.dropout:
        return "masks of dropout layers"
    if prefix is None:
        return "a network that cannot share what is common to all draws"
    if not all(isinstance(kept, Tensor) for kept in prefix.kept.values()):
        return "shared results other than tensors"
    return ""
