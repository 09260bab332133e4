"""The engine: passes of many draws over one network, as cheap as the network allows, with the same result."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from segunc.affine.draws import AffineDraws, AffineLayout, FoldedDraws
from segunc.affine.sites import DRAWS, FRAMES, StochasticSite
from segunc.core.device import Precision
from segunc.core.errors import InputError
from segunc.networks.network import SegmentationNetwork
from segunc.sampling.compilation import CompiledPasses
from segunc.sampling.ending import Ending, EndReachedError, InterpolationWatch, Upsampling
from segunc.sampling.prefix import Prefix, SharePrefix, mark


class Engine:
    """Runs a network for frames and draws, up to its logits at low resolution.

    In float32 it runs the network itself. In bfloat16 it runs a copy whose weights are bfloat16, so that activations
    are bfloat16 throughout without casts; a network that does not take that runs under autocast instead.

    Args:
        network: in eval mode; converted or not.
        precision: of activations and weights. Norm sites take their draws in it, folded in float32 before.
        messages: gains what a user should know.
    """

    def __init__(self, network: nn.Module, precision: Precision, messages: list[str] | None = None) -> None:
        self.network = network
        self.device = next(network.parameters()).device
        self.dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        self.messages = [] if messages is None else messages
        self._compiled = CompiledPasses(self._pass, self.messages)
        self._autocast = False
        self._run: nn.Module = network
        self._endings: dict[tuple[int, ...], Ending | None] = {}
        if precision == "bfloat16":
            try:
                self._run = bfloat16_copy(network)
            except Exception as error:  # whatever a network's own __deepcopy__ may raise
                self._use_autocast(error)
        self.layout = self._layout()

    def fold(self, draws: AffineDraws, *, share: bool) -> FoldedDraws:
        """The draws for :meth:`logits`; with ``share`` sites where all agree keep one row."""
        return self.require_layout().fold(draws, self.dtype, share=share)

    def require_layout(self) -> AffineLayout:
        """The layout of the network that runs.

        Raises:
            InputError: it is not converted.
        """
        if self.layout is None:
            raise InputError("the network is not converted", "a converted network", "call segunc.convert on it first")
        return self.layout

    def ending(self, images: Tensor, draws: FoldedDraws | None, reached: Sequence[bool] | None = None) -> Ending | None:
        """How the network ends for images of this shape, found by one full pass at the first of a shape.

        Args:
            images: ``[n, 3, H, W]`` on the device.
            draws: one, or None for the network as it is.
            reached: which sites the network is known to call. A bfloat16 copy that calls others is not used: a network
                whose ``forward`` was replaced on the object calls the original's layers from every copy.
        """
        key = tuple(images.shape)
        if key not in self._endings:
            watch = InterpolationWatch()
            try:
                logits = self._forward(images, draws, watch)
                if self._run is not self.network and reached is not None and self.require_layout().reached() != reached:
                    raise TypeError("a copy of it calls other layers")
            except (RuntimeError, TypeError) as error:
                if self._run is self.network or isinstance(error, torch.OutOfMemoryError):
                    raise
                self._use_autocast(error)
                logits = self._forward(images, draws, watch := InterpolationWatch())
            self._endings[key] = watch.ending(logits)
        return self._endings[key]

    def logits(
        self,
        images: Tensor,
        draws: FoldedDraws | None,
        ending: Ending | None,
        prefix: Prefix | None = None,
        compiled: bool = False,
    ) -> tuple[Tensor, Upsampling]:
        """Logits of the k draws of n frames, draw-major, before the last upsampling.

        Args:
            images: ``[n, 3, H, W]`` on the device.
            draws: k of them, or None for the network as it is.
            ending: of :meth:`ending` for this shape.
            prefix: shared results of these images; None computes everything for every draw.
            compiled: run the draws through torch.compile, where that can be done.

        Returns:
            ``[k * n, C, h, w]`` and what is left to be done to them.

        Raises:
            InputError: the network does not return ``[batch, C, H, W]``.
        """
        logits = None
        if compiled and draws is not None:
            logits = self._compiled(images, draws, ending, prefix)
        if logits is None:
            logits = self._pass(images, draws, ending, prefix)
        if ending is not None and logits.shape[-2:] == ending.upsampling.source:
            return logits, ending.upsampling
        return logits, Upsampling.none((logits.shape[-2], logits.shape[-1]))

    def _pass(self, images: Tensor, draws: FoldedDraws | None, ending: Ending | None, prefix: Prefix | None) -> Tensor:
        watch = InterpolationWatch(ending.call) if ending is not None else None
        return self._forward(images, draws, watch, prefix)

    def _forward(
        self, images: Tensor, draws: FoldedDraws | None, watch: InterpolationWatch | None, prefix: Prefix | None = None
    ) -> Tensor:
        count = 1 if draws is None else len(draws)
        narrow = not isinstance(self._run, SegmentationNetwork) and not self._autocast
        batch = images.to(self.dtype) if narrow else images
        if prefix is not None:
            batch = mark(batch.view_as(batch), FRAMES)
        elif count > 1:
            batch = torch.cat([batch] * count)
        with ExitStack() as stack:
            stack.enter_context(torch.autocast(self.device.type, torch.bfloat16, enabled=self._autocast))
            if draws is not None:
                stack.enter_context(self._active(draws))
            if prefix is not None:
                stack.enter_context(SharePrefix(prefix, count))
            if watch is not None:
                stack.enter_context(watch)  # the innermost mode sees a call first, also one that the prefix skips
            try:
                logits = self._run(batch)
            except EndReachedError as end:
                logits = end.logits
        expected = len(images) * count
        if not isinstance(logits, Tensor) or logits.ndim != 4 or logits.shape[0] != expected:
            shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise InputError(
                f"a network that returns {shape} for {(expected, *images.shape[1:])}",
                "logits [n, C, H, W]",
                "wrap it to return them",
            )
        return logits

    def _active(self, draws: FoldedDraws) -> AbstractContextManager[None]:
        for site in draws.sites:
            if not site.agree:
                for values in (site.scale, site.shift):
                    mark(values, DRAWS)
        return self.require_layout().active(draws)

    def _use_autocast(self, error: Exception) -> None:
        self._run, self._autocast = self.network, True
        self.layout = self._layout()
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        self.messages.append(f"the network does not run with bfloat16 weights ({reason}); it runs under autocast")

    def _layout(self) -> AffineLayout | None:
        converted = any(isinstance(module, StochasticSite) for module in self._run.modules())
        return AffineLayout(self._run) if converted else None


def bfloat16_copy(network: nn.Module) -> nn.Module:
    """A copy with bfloat16 weights; norm sites and batch norms keep theirs, and share them with the network.

    A :class:`SegmentationNetwork` goes on normalising its input in float32: its body is what changes.
    """
    body = network.body if isinstance(network, SegmentationNetwork) else network
    memo: dict[int, Any] = {id(t): t for t in (*network.parameters(), *network.buffers())}
    copied = copy.deepcopy(network, memo)
    body = copied.body if isinstance(copied, SegmentationNetwork) else copied
    narrow: dict[int, nn.Parameter] = {}
    for module in body.modules():
        if isinstance(module, StochasticSite | _BatchNorm):
            continue
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.is_floating_point():
                if id(parameter) not in narrow:
                    narrow[id(parameter)] = nn.Parameter(parameter.detach().bfloat16(), requires_grad=False)
                module._parameters[name] = narrow[id(parameter)]
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_floating_point():
                module._buffers[name] = buffer.bfloat16()
    if body is not copied:
        body.register_forward_pre_hook(lambda module, inputs: tuple(t.bfloat16() for t in inputs))
    return copied.eval()
