"""Passes as compiled graphs: one for each shape of frames, number of draws and shared part.

A pass is traced as it runs, under the function modes that leave out what draws share, with its
draws as inputs. Inductor fuses normalisation, activation and addition into few kernels.
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
Inputs = tuple[Tensor, Results, list[Tensor], list[Tensor]]
"""Images, results that draws share, and of each site the scales and the shifts of the draws."""
MAX_GRAPHS = 64  # of one network; each takes the compiler's time and keeps its inputs


@dataclass
class CompiledPass:
    """A graph from :data:`Inputs` to logits and the results that it records."""

    run: Callable[..., tuple[Tensor, Results]]
    upsampling: Upsampling
    recorded: list[Operation]  # all that replays skip, with placeholders


class CompiledEngine(Engine):
    """An :class:`Engine` whose passes are compiled.

    A pass that no one graph can hold runs as it is: masks of dropout, random numbers of the network
    itself, parameters that a pass computes, Python code that reads values. Each new graph is
    compared with the plain pass of its frames. It is left out where it differs from the same in
    float32 by more than twice what the plain pass does.
    """

    def __init__(self, *arguments_of_engine: Any) -> None:
        super().__init__(*arguments_of_engine)
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
        if watch is not None or not self._is_compilable(images, draws):
            return super().logits(images, draws, ending, prefix, watch)
        inputs = _inputs(images, draws, prefix)
        graph = self._graph(inputs, draws, ending, prefix)
        if graph is None:
            return super().logits(images, draws, ending, prefix)
        logits, recorded = graph.run(*inputs)
        if prefix is not None and not prefix.complete:
            prefix.record(graph.recorded, recorded)
        return logits, graph.upsampling

    def _is_compilable(self, images: Tensor, draws: FoldedDraws | None) -> bool:
        """Return whether one graph can hold a pass of these images and draws."""
        if self.self_check is not None and not is_rounding(self.self_check.repeated):
            return False  # the network draws random numbers
        if self.rewrites or (draws is not None and draws.dropout):
            return False
        return tuple(images.shape) not in self.branching

    def _graph(
        self,
        inputs: Inputs,
        draws: FoldedDraws | None,
        ending: Ending | None,
        prefix: Prefix | None,
    ) -> CompiledPass | None:
        """Return the graph for inputs of these shapes, compiled when it is first asked for; None
        where the pass runs as it is.
        """
        key = _graph_key(inputs, draws, ending, prefix)
        if key in self._graphs:
            return self._graphs[key]
        if len(self._graphs) >= MAX_GRAPHS:
            self.say(
                f"there are {MAX_GRAPHS} compiled graphs already; "
                "frames of further sizes run as they are"
            )
            return None
        graph = None
        try:
            graph = self._compiled(inputs, draws, ending, prefix)
        except Exception as error:  # compilers have no common exception
            if is_out_of_memory(error):
                raise
            self.say(f"the network could not be compiled and runs as it is ({one_line(error)})")
        self._graphs[key] = graph
        return graph

    def _compiled(
        self,
        inputs: Inputs,
        draws: FoldedDraws | None,
        ending: Ending | None,
        prefix: Prefix | None,
    ) -> CompiledPass:
        """Compile a pass, and check it against the plain pass.

        Raises:
            ValueError: the logits of the graph are not those of the plain pass.
        """
        graph = self._traced(inputs, draws, ending, prefix)
        images = inputs[0]
        records = prefix is not None and not prefix.complete
        plain, _ = super().logits(images, draws, ending, Prefix() if records else prefix)
        exact = plain
        if self.dtype != torch.float32:
            exact, _ = Engine(self.network, "float32").logits(images, draws, ending)
        logits, _ = graph.run(*inputs)
        difference = relative_difference(logits.float(), exact)
        if difference > max(TOLERANCE, 2 * relative_difference(plain.float(), exact)):
            raise ValueError(f"its logits change by {difference:.1e} of the largest")
        if self.device.type == "cuda":
            graph.run = self._captured(graph.run, inputs)
        return graph

    def _traced(
        self,
        inputs: Inputs,
        draws: FoldedDraws | None,
        ending: Ending | None,
        prefix: Prefix | None,
    ) -> CompiledPass:
        """Trace a pass under the function modes of a plain pass, and compile its graph."""
        traced_prefix = None if prefix is None else Prefix()
        upsamplings: list[Upsampling] = []

        def run(
            images: Tensor, shared: Results, scales: list[Tensor], shifts: list[Tensor]
        ) -> tuple[Tensor, Results]:
            if traced_prefix is not None and prefix is not None and prefix.complete:
                traced_prefix.record(prefix.operations, shared)
            traced_draws = None if draws is None else _with_affine(draws, scales, shifts)
            logits, upsampling = super(CompiledEngine, self).logits(
                images, traced_draws, ending, traced_prefix
            )
            upsamplings.append(upsampling)
            if shared or traced_prefix is None:
                return logits, {}
            return logits, traced_prefix.needed_results()

        compiled: Any = torch.compile(make_fx(run)(*inputs), dynamic=False)
        return CompiledPass(compiled, upsamplings[0], _without_results(traced_prefix))

    def _captured(
        self, compiled: Callable[..., tuple[Tensor, Results]], inputs: Inputs
    ) -> Callable[..., tuple[Tensor, Results]]:
        """Return a replay of the kernels that a pass launches: for the host this is one launch.

        Each replay writes into the same memory, so what it made is copied: a frame mirrored, or
        another network, may come by this graph before the first one's results are used.
        """
        leaves, structure = tree_flatten(inputs)
        static = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        with torch.cuda.device(self.device):
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                logits, recorded = compiled(*tree_unflatten(static, structure))
        buffers = list(tensors_in(static))
        places_of_type: dict[torch.dtype, list[int]] = {}
        for place, buffer in enumerate(buffers):
            places_of_type.setdefault(buffer.dtype, []).append(place)

        def replay(*inputs: Any) -> tuple[Tensor, Results]:
            tensors = list(tensors_in(inputs))
            for places in places_of_type.values():  # of one type a single kernel copies them all
                targets = [buffers[place] for place in places]
                torch._foreach_copy_(targets, [tensors[place] for place in places])
            graph.replay()
            copies = tree_map_only(Tensor, torch.clone, (logits, recorded))
            return cast(tuple[Tensor, Results], copies)

        return replay


def _inputs(images: Tensor, draws: FoldedDraws | None, prefix: Prefix | None) -> Inputs:
    """Return what a graph takes for a pass."""
    shared = prefix.needed_results() if prefix is not None and prefix.complete else {}
    sites = () if draws is None else draws.sites
    scales = [site.scale for site in sites]
    shifts = [site.shift for site in sites]
    return images, shared, scales, shifts


def _graph_key(
    inputs: Inputs, draws: FoldedDraws | None, ending: Ending | None, prefix: Prefix | None
) -> tuple[Any, ...]:
    """Return what two passes must have in common to run as the same graph."""
    records = prefix is not None and not prefix.complete
    shared_places = tuple(inputs[1])
    sites = () if draws is None else draws.sites
    agreeing = tuple(site.agree for site in sites)
    shapes = tuple(tensor.shape for tensor in tensors_in(inputs))
    return ending, records, prefix is None, shared_places, agreeing, shapes


def _with_affine(draws: FoldedDraws, scales: list[Tensor], shifts: list[Tensor]) -> FoldedDraws:
    """Return draws with other scales and shifts, one of each for each site."""
    sites = []
    for site, scale, shift in zip(draws.sites, scales, shifts, strict=True):
        sites.append(replace(site, scale=scale, shift=shift))
    return replace(draws, sites=tuple(sites))


def _without_results(prefix: Prefix | None) -> list[Operation]:
    """Return the operations of a traced pass without the traced results, which each run of the
    graph makes anew.
    """
    if prefix is None:
        return []
    operations = list(prefix.operations)
    for place in prefix.needed:
        operations[place] = replace(operations[place], result=None)
    return operations
