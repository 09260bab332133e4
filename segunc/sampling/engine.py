"""The engine: passes of many draws over one network, as cheap as the network allows, with the same result.

S exact draws cost S passes, so everything else has to cost little. The engine makes logits of a few draws at a time:

* Draws are inputs. Statistics, gamma, beta and eps fold once per run into a scale and a shift for each site and draw,
  so that a frozen BatchNorm is one fused multiply-add in the type of the activations.
* What all draws share is computed once (:mod:`segunc.sampling.prefix`).
* The network stops before its last upsampling (:mod:`segunc.sampling.ending`), which the tail does.
* Draws may be compiled (:mod:`segunc.sampling.compilation`).

Draws are the outermost part of the batch. A network that does not keep that order would give wrong maps without an
error, and one whose tensors are changed in place would share wrong ones, so both are checked (:func:`check`).
``torch.func.vmap`` over the draws is no shorter way: ``tools/compare_vmap.py`` of a2e48dd prints what it costs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from segunc.affine.convert import DRAWS, FRAMES, ORIGIN, StochasticSite
from segunc.affine.draws import AffineDraws, AffineLayout, FoldedDraws
from segunc.core.device import Precision
from segunc.core.errors import InputError, NotFiniteError, is_out_of_memory, one_line
from segunc.networks.network import SegmentationNetwork
from segunc.sampling.compilation import CompiledPasses
from segunc.sampling.ending import Ending, EndReachedError, InterpolationWatch, Upsampling, on_input
from segunc.sampling.prefix import Prefix, SharePrefix, mark

T = TypeVar("T")
SIDE = 256
"""Longest side of the image of the self-check, which runs some twenty passes."""
TOLERANCE = 1e-3
"""Largest difference of logits, relative to the largest logit, that counts as rounding (float32)."""


class Engine:
    """Runs a network (in eval mode, converted or not) for frames and draws, up to its logits at low resolution.

    In float32 it runs the network itself. In bfloat16 it runs a copy whose weights are bfloat16, so that activations
    are bfloat16 throughout without casts; a network that does not take that runs under autocast instead. Norm sites
    take their draws in that precision, folded in float32 before. ``messages`` are what a user should know. ``own`` are the
    :func:`own_tensors` of networks that share a prefix, and ``copies`` what engines of such networks have copied.
    """

    def __init__(
        self,
        network: nn.Module,
        precision: Precision,
        messages: list[str] | None = None,
        own: Collection[str] = (),
        copies: dict[int, Any] | None = None,
    ) -> None:
        self.network, self.own = network, own
        self.device = next(network.parameters()).device
        self.dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        self.messages = [] if messages is None else messages
        self.self_check: SelfCheck | None = None  # stays None for a network without draws
        self._compiled = CompiledPasses(lambda *asked: self.logits(*asked)[0], self.messages)
        self._autocast = False
        self._run: nn.Module = network
        self._endings: dict[tuple[int, ...], Ending | None] = {}
        self.branching: set[tuple[int, ...]] = set()  # shapes of images whose values the network's Python code reads
        if precision == "bfloat16":
            try:
                self._run = bfloat16_copy(network, copies)
            except Exception as error:  # whatever a network's own __deepcopy__ may raise
                if copies is not None:
                    copies.clear()  # of half a copy
                self._use_autocast(error)

    @cached_property
    def layout(self) -> AffineLayout:
        """The layout of the network that runs; InputError where it is not converted."""
        return AffineLayout(self._run)

    @cached_property
    def _own(self) -> list[Tensor]:
        """The tensors named ``own`` of the network that runs."""
        return list({id(tensor): tensor for name, tensor in _named_tensors(self._run) if name in self.own}.values())

    def fold(self, draws: AffineDraws, *, share: bool) -> FoldedDraws:
        """Return the draws for :meth:`logits`; with ``share`` sites where all agree keep one row."""
        return self.layout.fold(draws, self.dtype, share=share)

    @property
    def shares(self) -> bool:
        """Whether what is common to all draws may be computed once."""
        return self.self_check is not None and is_rounding(self.self_check.shared)

    def ending(self, images: Tensor, draws: FoldedDraws | None, prefix: Prefix | None = None) -> Ending | None:
        """Return how the network ends for images ``[n, 3, H, W]`` of this shape; one full pass over the first of them tells.

        The pass is that of one draw, or of the network as it is. A bfloat16 copy that calls other sites than it is not used: a network
        whose ``forward`` was replaced on the object calls the original's layers from every copy.
        """
        key = tuple(images.shape)
        if key not in self._endings:
            watch = InterpolationWatch()
            copied = self._run is not self.network
            try:
                logits, _ = self.logits(images, draws, None, prefix, watch=watch)
                if copied and self.self_check is not None and self.layout.reached() != self.self_check.reached:
                    raise TypeError("a copy of it calls other layers")
            except (RuntimeError, TypeError) as error:
                if not copied or is_out_of_memory(error):
                    raise
                self._use_autocast(error)
                watch = InterpolationWatch()
                logits, _ = self.logits(images, draws, None, prefix, watch=watch)
            self._endings[key] = watch.ending(logits)
            if watch.reads:
                self.branching.add(key)
                message = (
                    "the network's code reads values of its input, so that it may take another branch for another draw; "
                    "draws run one at a time, and nothing is shared"
                )
                if draws is not None and message not in self.messages:
                    self.messages.append(message)
        return self._endings[key]

    def logits(
        self,
        images: Tensor,
        draws: FoldedDraws | None,
        ending: Ending | None,
        prefix: Prefix | None = None,
        compiled: bool = False,
        watch: InterpolationWatch | None = None,
    ) -> tuple[Tensor, Upsampling]:
        """Return logits ``[k * n, C, h, w]`` of k draws of n frames, draw-major, and what upsampling is left to be done.

        Args:
            images: ``[n, 3, H, W]`` on the device.
            draws: None runs the network as it is.
            ending: where to stop; None runs to the end.
            prefix: shared results of these images; without one everything is computed for every draw.
            compiled: run the draws through torch.compile, where that can be done.
            watch: looks at the whole pass.

        Raises:
            InputError: the network does not return ``[batch, C, H, W]``.
        """
        logits = self._compiled(images, draws, ending, prefix) if compiled and draws is not None else None
        count = 1 if draws is None else len(draws)
        if logits is None:
            batch = self._batch(images, count, prefix, watch)
            with ExitStack() as stack:
                self._enter(stack, draws, ending, prefix, watch)
                try:
                    logits = self._run(batch)
                except EndReachedError as end:
                    logits = end.args[0]
        expected = len(images) * count
        if not isinstance(logits, Tensor) or logits.ndim != 4 or logits.shape[0] != expected:
            shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise InputError(
                f"the network returns {shape} for images {(expected, *images.shape[1:])}",
                hint="wrap it to return logits [n, C, H, W]",
            )
        if ending is not None and logits.shape[-2:] == ending.upsampling.source:
            return logits, ending.upsampling
        return logits, Upsampling.none((logits.shape[-2], logits.shape[-1]))

    def _batch(self, images: Tensor, draws: int, prefix: Prefix | None, watch: InterpolationWatch | None) -> Tensor:
        """Return the network's input: the images once for each draw, or once for all draws that share a prefix."""
        narrow = not isinstance(self._run, SegmentationNetwork) and not self._autocast
        batch = images.to(self.dtype) if narrow else images
        if prefix is not None:
            batch = mark(batch.detach(), FRAMES)  # a view of one frame would lose its memory format
        elif draws > 1:
            batch = torch.cat([batch] * draws)
        return batch if watch is None else on_input(batch)

    def _enter(
        self,
        stack: ExitStack,
        draws: FoldedDraws | None,
        ending: Ending | None,
        prefix: Prefix | None,
        watch: InterpolationWatch | None,
    ) -> None:
        """Enter the contexts of a pass."""
        stack.enter_context(torch.autocast(self.device.type, torch.bfloat16, enabled=self._autocast))
        stop_at = None if ending is None else ending.call
        if draws is not None:
            for site in draws.sites:
                if not site.agree:
                    mark(site.scale, DRAWS)
                    mark(site.shift, DRAWS)
            stack.enter_context(self.layout.active(draws))
        if prefix is not None:
            for tensor in self._own:
                stack.callback(delattr, mark(tensor, DRAWS), ORIGIN)
            stack.enter_context(SharePrefix(prefix, 1 if draws is None else len(draws), stop_at))
        elif stop_at is not None:
            stack.enter_context(InterpolationWatch(stop_at))
        if watch is not None:
            stack.enter_context(watch)  # the innermost mode sees a call first, also one that the prefix skips

    def _use_autocast(self, error: Exception) -> None:
        self._run, self._autocast = self.network, True
        for of_the_copy in ("layout", "_own"):
            self.__dict__.pop(of_the_copy, None)
        self.messages.append(
            f"the network does not run with bfloat16 weights ({one_line(error)}); it runs under autocast"
        )


def bfloat16_copy(network: nn.Module, copies: dict[int, Any] | None = None) -> nn.Module:
    """Return a copy with bfloat16 weights; norm sites and batch norms keep theirs, and share them with the network. A
    :class:`SegmentationNetwork` goes on normalising its input in float32: its body is what changes. ``copies`` is the memo of
    several networks, whose common modules are copied once."""
    memo = {} if copies is None else copies
    memo |= {id(t): t for t in (*network.parameters(), *network.buffers())}
    copied = copy.deepcopy(network, memo)
    body = copied.body if isinstance(copied, SegmentationNetwork) else copied
    for module in body.modules():
        if not isinstance(module, StochasticSite | _BatchNorm):
            for name, parameter in module._parameters.items():
                if parameter is not None and parameter.is_floating_point():
                    module._parameters[name] = nn.Parameter(parameter.detach().bfloat16(), requires_grad=False)
            for name, buffer in module._buffers.items():
                if buffer is not None and buffer.is_floating_point():
                    module._buffers[name] = buffer.bfloat16()
    if body is not copied:
        body.register_forward_pre_hook(lambda module, inputs: tuple(t.bfloat16() for t in inputs))
    return copied.eval()


@dataclass(frozen=True)
class SelfCheck:
    """Differences of the base network and two draws over two frames, relative to the largest logit."""

    batched: float  # largest difference of two draws as a batch from the same two one by one
    shared: float  # the same for passes that share what is common to all draws
    reached: list[bool]  # for each site whether a drawn forward came through it
    repeated: float = 0.0  # two passes of one frame and draw, in which random numbers of the network differ


def is_rounding(difference: float) -> bool:
    """Return whether a difference of the :class:`SelfCheck` is one of rounding alone."""
    return difference <= TOLERANCE


def largest_difference(logits: Tensor, expected: Tensor) -> float:
    """Return the largest difference of logits, infinite where one is NaN."""
    return float((logits - expected).abs().max().nan_to_num(nan=torch.inf))


def check(network: nn.Module, images: Tensor, draws: AffineDraws) -> SelfCheck:
    """Compare the ways of running draws, in float32, on the first of images ``[n, 3, H, W]`` at a small size. Of the
    draws, at least two, the first is mostly the base network's own affine. NotFiniteError where one of them gives NaN
    or infinite logits."""
    engine = Engine(network, "float32")
    return _on_two_frames(images, lambda frames: _check(engine, frames, draws))


def _on_two_frames(images: Tensor, compare: Callable[[Tensor], T]) -> T:
    """Compare passes on the first of some images at a small size."""
    image = images[:1].float()
    try:
        return compare(_two_frames(image, SIDE))
    except Exception as error:
        if isinstance(error, InputError) or is_out_of_memory(error):
            raise
        # Some networks take frames of their own size only.
        return compare(_two_frames(image, max(images.shape[-2:])))


def _named_tensors(network: nn.Module) -> list[tuple[str, Tensor]]:
    """Return parameters and buffers; those that are used in several places under each name: a bfloat16 copy holds them apart."""
    parameters = network.named_parameters(remove_duplicate=False)
    return [*parameters, *network.named_buffers(remove_duplicate=False)]


def own_tensors(networks: Sequence[nn.Module]) -> frozenset[str]:
    """Return the names of the parameters and buffers in which networks of one build differ; none where they have no parameter in common.
    A parameter is common as one object, a buffer, which every move to a device replaces, by its values."""
    first, *others = [dict(_named_tensors(network)) for network in networks]
    if any(other.keys() != first.keys() for other in others):
        return frozenset()

    def common(name: str, tensor: Tensor) -> bool:
        by_value = not isinstance(tensor, nn.Parameter)
        return all(other[name] is tensor or (by_value and torch.equal(other[name], tensor)) for other in others)

    own = frozenset(name for name, tensor in first.items() if not common(name, tensor))
    return own if any(isinstance(t, nn.Parameter) and name not in own for name, t in first.items()) else frozenset()


def check_common(networks: Sequence[nn.Module], own: Collection[str], images: Tensor) -> float:
    """Return how far logits of networks that share all but what is ``own`` lie from those of the same alone, relative to the largest:
    float32, on the first of images ``[n, 3, H, W]`` at a small size. Infinite where they cannot share."""
    engines = [Engine(network, "float32", own=own) for network in networks]

    def difference(frames: Tensor) -> float:
        alone = torch.cat([engine.logits(frames, None, None)[0] for engine in engines])
        with _Tolerating(InputError, RuntimeError, TypeError, ValueError, LookupError):
            prefix = Prefix()
            shared = torch.cat([engine.logits(frames, None, None, prefix)[0] for engine in engines])
            return largest_difference(shared, alone) / max(float(alone.abs().max()), 1e-12)
        return float("inf")

    return _on_two_frames(images, difference)


class _Tolerating(suppress):
    """Passes over errors of a network that cannot do what is asked of it; a lack of memory says nothing of it."""

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        return super().__exit__(kind, error, trace) and not (error is not None and is_out_of_memory(error))


def _check(engine: Engine, frames: Tensor, draws: AffineDraws) -> SelfCheck:
    last = min(3, len(draws))
    plain, common = (engine.fold(draws, share=share) for share in (False, True))

    def run(folded: FoldedDraws, first: int, end: int, prefix: Prefix | None = None) -> Tensor:
        return engine.logits(frames, folded.part(first, end), None, prefix)[0]

    single = [run(plain, 0, 1)]
    require_finite(single[0])
    for draw in range(1, last):
        single.append(run(plain, draw, draw + 1))
        require_finite(single[draw], "a draw gives", "lower alpha")
    size = max(max(float(s.abs().max()) for s in single), 1e-12)

    def difference(logits: list[Tensor], expected: list[Tensor]) -> float:
        return max(largest_difference(z, e) for z, e in zip(logits, expected, strict=True)) / size

    batched = shared = float("inf")  # differences that are not known stay infinite
    repeated = difference([run(plain, 0, 1)], single[:1])
    if not is_rounding(repeated):
        return SelfCheck(batched, shared, engine.layout.reached(), repeated)
    with _Tolerating(InputError, RuntimeError):
        batched = difference([run(plain, 1, last)], [torch.cat(single[1:])])
    with _Tolerating(InputError, RuntimeError, TypeError, ValueError, LookupError):
        prefix = Prefix()
        one_by_one = difference([run(common, s, s + 1, prefix) for s in range(last)], single)
        # Networks that take the size of the batch from a tensor before the first draw, and use it after, fail here: Swin, DPT.
        together = difference([run(common, 1, last, prefix)], [torch.cat(single[1:])]) if is_rounding(batched) else 0.0
        shared = max(one_by_one, together)
    return SelfCheck(batched, shared, engine.layout.reached())


def require_finite(
    logits: Tensor, who: str = "the network returns", hint: str = "check its weights and its input"
) -> None:
    """Raise NotFiniteError where logits are NaN or infinite."""
    if not torch.isfinite(logits).all():
        raise NotFiniteError(f"{who} NaN or infinite logits", hint=hint)


def _two_frames(image: Tensor, side: int) -> Tensor:
    """Return an image ``[1, 3, H, W]`` and its mirror image, with sides of at most ``side`` pixels: with one frame a forgotten
    repetition would be put right by broadcasting."""
    scale = side / max(image.shape[-2:])
    if scale < 1:
        # Whole multiples of the usual stride, so that a bare smp network takes them.
        size = [max(64, 32 * round(s * scale / 32)) for s in image.shape[-2:]]
        image = F.interpolate(image, size, mode="bilinear", align_corners=False)
    return torch.cat([image, image.flip(-1)]).contiguous(memory_format=torch.channels_last)
