"""Passes as compiled graphs: one for each shape of frames, number of draws and shared part. A pass
is traced as it runs, under the function modes that leave out what draws share, with its draws as
inputs; inductor fuses normalisation, activation and addition into few kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from segunc.affine.draws import FoldedDraws
from segunc.core.errors import is_out_of_memory, one_line
from segunc.sampling.dependence import tensors_in
from segunc.sampling.engine import TOLERANCE, Engine, is_rounding
from segunc.sampling.shortcuts import Ending, InterpolationWatch, Operation, Prefix, Upsampling
from segunc.uncertainty import relative_difference

Results = dict[int, Any]
MOST_GRAPHS = 64  # of one network; each takes the compiler's time and keeps its inputs


@dataclass
class CompiledPass:
    """A graph from images, shared results, scales and shifts to logits and what it records."""

    run: Callable[..., tuple[Tensor, Results]]
    upsampling: Upsampling
    recorded: list[Operation]  # all that replays skip, with placeholders


class CompiledEngine(Engine):
    """An :class:`Engine` whose passes are compiled. A pass that no one graph can hold runs as it
    is: masks of dropout, random numbers of the network itself, Python code that reads values. Each
    new graph is compared with the plain pass of its frames, and left out where it differs from the
    same in float32 by more than twice what the plain pass does.
    """

    def __init__(self, *of_engine: Any) -> None:
        super().__init__(*of_engine)
        self._graphs: dict[tuple[Any, ...], CompiledPass | None] = {}
        self._pool: Any = None  # memory of captured passes, in which they follow one another

    def logits(
        self,
        images: Tensor,
        draws: FoldedDraws | None,
        ending: Ending | None,
        prefix: Prefix | None = None,
        watch: InterpolationWatch | None = None,
    ) -> tuple[Tensor, Upsampling]:
        random = self.self_check is not None and not is_rounding(self.self_check.repeated)
        if (
            watch is not None
            or random
            or (draws is not None and draws.dropout)
            or tuple(images.shape) in self.branching
        ):
            return super().logits(images, draws, ending, prefix, watch)
        records = prefix is not None and not prefix.complete
        shared = (
            {}
            if prefix is None or records
            else {place: prefix.operations[place].result for place in prefix.needed}
        )
        sites = () if draws is None else draws.sites
        inputs = (images, shared, [site.scale for site in sites], [site.shift for site in sites])
        key = (
            ending,
            records,
            prefix is None,
            *shared,
            *(site.agree for site in sites),
            *(t.shape for t in tensors_in(inputs)),
        )
        if key not in self._graphs and len(self._graphs) < MOST_GRAPHS:
            try:
                self._graphs[key] = self._compiled(inputs, draws, ending, prefix)
            except Exception as error:  # compilers have no common exception
                if is_out_of_memory(error):
                    raise
                self._graphs[key] = None
                self.say(f"the network could not be compiled and runs as it is ({one_line(error)})")
        elif key not in self._graphs:
            self.say(
                f"there are {MOST_GRAPHS} compiled graphs already; frames of further sizes run as they are"
            )
        if (graph := self._graphs.get(key)) is None:
            return super().logits(images, draws, ending, prefix)
        logits, recorded = graph.run(*inputs)
        if prefix is not None and records:
            prefix.record(graph.recorded, recorded)
        return logits, graph.upsampling

    def _compiled(
        self, inputs: Any, draws: FoldedDraws | None, ending: Ending | None, prefix: Prefix | None
    ) -> CompiledPass:
        """Return the graph of a pass; ValueError where its logits are not those of the
        plain pass.
        """
        known = None if prefix is None else Prefix()
        upsampling: list[Upsampling] = []

        def run(
            images: Tensor, shared: Results, scales: list[Tensor], shifts: list[Tensor]
        ) -> tuple[Tensor, Results]:
            if known is not None and prefix is not None and prefix.complete:
                known.record(prefix.operations, shared)
            drawn = draws and replace(
                draws,
                sites=tuple(
                    replace(s, scale=a, shift=b)
                    for s, a, b in zip(draws.sites, scales, shifts, strict=True)
                ),
            )
            logits, ends = super(CompiledEngine, self).logits(images, drawn, ending, known)
            upsampling.append(ends)
            if shared or known is None:
                return logits, {}
            return logits, {place: known.operations[place].result for place in known.needed}

        compiled: Any = torch.compile(make_fx(run)(*inputs), dynamic=False)
        graph = CompiledPass(compiled, upsampling[0], _without_results(known))
        images, recording = inputs[0], prefix is not None and not prefix.complete
        plain = exact = super().logits(images, draws, ending, Prefix() if recording else prefix)[0]
        if self.dtype != torch.float32:
            exact = Engine(self.network, "float32").logits(images, draws, ending)[0]
        difference = relative_difference(compiled(*inputs)[0].float(), exact)
        if difference > max(TOLERANCE, 2 * relative_difference(plain.float(), exact)):
            raise ValueError(f"its logits change by {difference:.1e} of the largest")
        if self.device.type == "cuda":
            graph.run = self._captured(compiled, inputs)
        return graph

    def _captured(
        self, compiled: Callable[..., tuple[Tensor, Results]], inputs: Any
    ) -> Callable[..., tuple[Tensor, Results]]:
        """Return a replay of the kernels that a pass launches: for the host this is one launch.
        Each replay writes into the same memory, so what it made is copied: a frame mirrored, or
        another network, may come by this graph before the first one's results are used.
        """
        leaves, form = tree_flatten(inputs)
        static = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        with torch.cuda.device(self.device):
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                logits, recorded = compiled(*tree_unflatten(static, form))
        kept = list(tensors_in(static))
        alike = [
            [place for place, tensor in enumerate(kept) if tensor.dtype == dtype]
            for dtype in {tensor.dtype for tensor in kept}
        ]

        def replay(*inputs: Any) -> tuple[Tensor, Results]:
            given = list(tensors_in(inputs))
            for places in alike:  # of one type a single kernel copies them all
                torch._foreach_copy_(
                    [kept[place] for place in places], [given[place] for place in places]
                )
            graph.replay()
            return cast(
                tuple[Tensor, Results], tree_map_only(Tensor, torch.clone, (logits, recorded))
            )

        return replay


def _without_results(prefix: Prefix | None) -> list[Operation]:
    """Return the operations of a traced pass without the traced results, which each run of the
    graph makes anew."""
    operations = [] if prefix is None else list(prefix.operations)
    for place in () if prefix is None else prefix.needed:
        operations[place] = replace(operations[place], result=None)
    return operations
