"""Passes of the draws of one branch, as cheap as the network allows, with the same result.
Statistics, gamma, beta and eps fold once a run into a scale and a shift for each site and draw.
Draws are the outermost part of the batch: a network that does not keep that order, or changes
tensors in place, would give wrong maps without an error, so both are checked (:func:`check`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.nn.modules.batchnorm import _BatchNorm

from segunc.affine.convert import DRAWS, FRAMES, ORIGIN, StochasticSite
from segunc.affine.draws import AffineDraws, AffineLayout, FoldedDraws
from segunc.affine.noise import NoiseSource
from segunc.core.device import Precision
from segunc.core.errors import InputError, NotFiniteError, is_out_of_memory, one_line
from segunc.networks.copies import check_copyable
from segunc.networks.network import SegmentationNetwork
from segunc.sampling.branches import IDENTITY, Branch
from segunc.sampling.dependence import DependenceWatch
from segunc.sampling.shortcuts import (
    Ending,
    EndReachedError,
    InterpolationCounter,
    InterpolationWatch,
    Prefix,
    SharePrefix,
    Upsampling,
    mark,
)
from segunc.uncertainty import largest_logit, relative_difference

T = TypeVar("T")
SIDE = 256  # longest side of the image of the self-check, which runs some twenty passes
# Largest difference of logits, relative to the largest logit, that counts as rounding (float32).
TOLERANCE = 1e-3
SHARING_ERRORS = (RuntimeError, TypeError, ValueError, LookupError, AttributeError)
"""What a network raises where results are taken from another pass than its own."""
BRANCHING = (
    "the network's code reads values of its input, so that it may take another branch for another draw; "
    "draws run one at a time, and nothing is shared"
)


class Engine:
    """Runs a network (in eval mode, converted or not) for frames and draws, up to its logits at low
    resolution; in bfloat16 a copy whose weights are bfloat16, or under autocast where that fails.
    ``messages`` are what a user should know, ``own`` the :func:`own_tensors` of networks that share
    a prefix, ``copies`` what engines of such networks have copied.
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
        self._autocast = False
        self._run: nn.Module = network
        self._endings: dict[tuple[int, ...], Ending | None] = {}
        # Shapes of images whose values the network's code reads.
        self.branching: set[tuple[int, ...]] = set()
        # Shapes of images for which code runs that function modes do not see.
        self.unfollowed: set[tuple[int, ...]] = set()
        self.unsharable = False  # whether a pass that shares has failed
        if precision == "bfloat16":
            try:
                self._run = bfloat16_copy(network, copies)
            except Exception as error:  # whatever a network's own __deepcopy__ may raise
                if copies is not None:
                    copies.clear()  # of half a copy
                self._use_autocast(error)

    @cached_property
    def layout(self) -> AffineLayout:
        return AffineLayout(self._run)

    @cached_property
    def _own(self) -> list[Tensor]:
        return list(
            {
                id(tensor): tensor for name, tensor in _named_tensors(self._run) if name in self.own
            }.values()
        )

    @property
    def shares(self) -> bool:
        """Whether passes of draws may share what is common to them."""
        checked = self.self_check is not None and is_rounding(self.self_check.shared)
        return checked and not self.unsharable

    def say(self, message: str) -> None:
        """Add a message for the user, once."""
        if message not in self.messages:
            self.messages.append(message)

    def ending(self, images: Tensor, draws: FoldedDraws | None) -> Ending | None:
        """Return how the network ends for images ``[n, 3, H, W]`` of this shape, by a full pass
        that is watched. A bfloat16 copy that calls other sites than the network is not used: a
        ``forward`` that was replaced on the object calls the original's layers."""
        key = tuple(images.shape)
        if key not in self._endings:
            logits, watch = self._watched(images, draws)
            self._endings[key] = watch.ending(logits)
            self._take(watch.dependence, key, drawn=draws is not None)
        return self._endings[key]

    def _watched(
        self, images: Tensor, draws: FoldedDraws | None
    ) -> tuple[Tensor, InterpolationWatch]:
        """Return the logits of a full pass and what was seen of it."""
        watch = InterpolationWatch()
        copied = self._run is not self.network
        check = self.self_check
        try:
            logits, _ = self.logits(images, draws, None, watch=watch)
            if copied and check is not None and self.layout.reached() != check.reached:
                raise TypeError("a copy of it calls other layers")
        except (RuntimeError, TypeError) as error:
            if not copied or is_out_of_memory(error):
                raise
            self._use_autocast(error)
            watch = InterpolationWatch()
            logits, _ = self.logits(images, draws, None, watch=watch)
        return logits, watch

    def _take(self, found: DependenceWatch, key: tuple[int, ...], *, drawn: bool) -> None:
        """Take what the network's code does with values that depend on the frame, for images of one
        shape."""
        if found.reads:
            self.branching.add(key)
            if drawn:
                self.say(BRANCHING)
        if found.unseen:
            self.unfollowed.add(key)
            if self.shares:
                self.say(
                    f"a part of the network ({found.unseen}) runs code that cannot be followed, "
                    "for instance TorchScript; everything is computed for every draw"
                )
        if found.training:
            self.say(
                "a part of the network computes as in training although it is in eval mode "
                f"({found.training}): dropout is drawn by no seed, or statistics are those of the "
                "batch; switch it off in eval mode"
            )
        elif found.random and self.self_check is None:
            self.say(
                f"the network draws random numbers itself ({found.random}), which no seed decides "
                "here; switch them off in eval mode"
            )

    def stop_sharing(self, error: Exception) -> None:
        """Compute everything for every draw from now on, because a pass that shares fails by an
        error."""
        self.unsharable = True
        self.say(
            f"what is common to all draws cannot be shared on this network ({one_line(error)}); "
            "everything is computed for every draw"
        )

    def logits(
        self,
        images: Tensor,
        draws: FoldedDraws | None,
        ending: Ending | None,
        prefix: Prefix | None = None,
        watch: InterpolationWatch | None = None,
    ) -> tuple[Tensor, Upsampling]:
        """Return logits ``[k * n, C, h, w]`` of k draws (None: of the network as it is) of images
        ``[n, 3, H, W]``, draw-major, and what upsampling is left to be done. Without a prefix
        everything is computed for every draw.
        """
        count = 1 if draws is None else len(draws)
        stop_at = None if ending is None else ending.call
        narrow = not isinstance(self._run, SegmentationNetwork) and not self._autocast
        batch = images.to(self.dtype) if narrow else images
        if prefix is not None:
            batch = mark(batch.detach(), FRAMES)  # a view of one frame would lose its memory format
        elif count > 1:
            batch = torch.cat([batch] * count)
        with ExitStack() as stack:
            stack.enter_context(
                torch.autocast(self.device.type, torch.bfloat16, enabled=self._autocast)
            )
            if draws is not None:
                for site in draws.sites:
                    if not site.agree:
                        mark(site.scale, DRAWS)
                        mark(site.shift, DRAWS)
                stack.enter_context(self.layout.active(draws))
            if prefix is not None:
                for tensor in self._own:
                    stack.callback(delattr, mark(tensor, DRAWS), ORIGIN)
                stack.enter_context(SharePrefix(prefix, count, stop_at))
            elif stop_at is not None:
                stack.enter_context(InterpolationCounter(stop_at))
            if watch is not None:
                watch.dependence.dependent.add(self._dependent(batch, draws))
                stack.enter_context(watch)
            try:
                logits = self._run(batch)
            except EndReachedError as end:
                logits = end.args[0]
        expected = len(images) * count
        if not isinstance(logits, Tensor) or logits.ndim != 4 or logits.shape[0] != expected:
            shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            message = f"the network returns {shape} for images {(expected, *images.shape[1:])}"
            raise InputError(message, hint="wrap it to return logits [n, C, H, W]")
        if ending is not None and logits.shape[-2:] == ending.upsampling.source:
            return logits, ending.upsampling
        return logits, Upsampling.none((logits.shape[-2], logits.shape[-1]))

    def _dependent(self, batch: Tensor, draws: FoldedDraws | None) -> list[Tensor]:
        """Return the tensors of a pass that another frame or another draw changes."""
        dependent = [batch]
        for site in () if draws is None else draws.sites:
            dependent += [site.scale, site.shift]
        return dependent

    def _use_autocast(self, error: Exception) -> None:
        self._run, self._autocast = self.network, True
        for of_the_copy in ("layout", "_own"):
            self.__dict__.pop(of_the_copy, None)
        why = f"the network does not run with bfloat16 weights ({one_line(error)})"
        self.messages.append(f"{why}; it runs under autocast")


def bfloat16_copy(network: nn.Module, copies: dict[int, Any] | None = None) -> nn.Module:
    """Return a copy with bfloat16 weights but for norm sites and batch norms, and for how a
    :class:`SegmentationNetwork` normalises its input. ``copies`` is the memo of several networks,
    whose common modules are copied once. InputError where a copy would not do what the network
    does.
    """
    check_copyable(network)
    memo = {} if copies is None else copies
    memo |= {id(t): t for t in (*network.parameters(), *network.buffers())}
    copied = copy.deepcopy(network, memo)
    body = copied.body if isinstance(copied, SegmentationNetwork) else copied
    for module in body.modules():
        if not isinstance(module, StochasticSite | _BatchNorm):
            for name, parameter in module._parameters.items():
                if parameter is not None and parameter.is_floating_point():
                    module._parameters[name] = nn.Parameter(
                        parameter.detach().bfloat16(), requires_grad=False
                    )
            for name, buffer in module._buffers.items():
                if buffer is not None and buffer.is_floating_point():
                    module._buffers[name] = buffer.bfloat16()
    if body is not copied:
        body.register_forward_pre_hook(lambda module, inputs: tuple(t.bfloat16() for t in inputs))
    return copied.eval()


@dataclass(frozen=True)
class SelfCheck:
    """Differences of the base network and two draws over two frames, relative to the
    largest logit.
    """

    batched: float  # largest difference of two draws as a batch from the same two one by one
    shared: float  # the same for passes that share what is common to all draws
    reached: list[bool]  # for each site whether a drawn forward came through it
    repeated: float = (
        0.0  # two passes of one frame and draw, in which random numbers of the network differ
    )
    differ: bool = (
        True  # whether draws differ at all: those of alpha 0 do not, and leave no last layer to run
    )


def is_rounding(difference: float) -> bool:
    return difference <= TOLERANCE


def check(network: nn.Module, images: Tensor, draws: AffineDraws) -> SelfCheck:
    """Compare the ways of running draws, two or more, in float32, on the first of images ``[n, 3,
    H, W]`` at a small size.
    """
    engine = Engine(network, "float32")
    return _on_two_frames(images, lambda frames: _check(engine, frames, draws))


def _check(engine: Engine, frames: Tensor, draws: AffineDraws) -> SelfCheck:
    last = min(3, len(draws))
    plain, common = (
        engine.layout.fold(draws, engine.dtype, share=share) for share in (False, True)
    )

    def run(folded: FoldedDraws, first: int, end: int, prefix: Prefix | None = None) -> Tensor:
        return engine.logits(frames, folded.part(first, end), None, prefix)[0]

    single = [run(plain, 0, 1)]
    require_finite(single[0])
    for draw in range(1, last):
        single.append(run(plain, draw, draw + 1))
        require_finite(single[draw], "a draw gives", "lower alpha")
    size = max(largest_logit(logits) for logits in single)

    def difference(logits: list[Tensor], expected: list[Tensor]) -> float:
        return max(relative_difference(z, e, size) for z, e in zip(logits, expected, strict=True))

    batched = shared = float("inf")  # differences that are not known stay infinite
    repeated = difference([run(plain, 0, 1)], single[:1])
    if not is_rounding(repeated):
        return SelfCheck(batched, shared, engine.layout.reached(), repeated)
    with _Tolerating(InputError, RuntimeError):
        batched = difference([run(plain, 1, last)], [torch.cat(single[1:])])
    with _Tolerating(*SHARING_ERRORS):
        prefix = Prefix()
        one_by_one = difference([run(common, s, s + 1, prefix) for s in range(last)], single)
        # Networks that take the size of the batch from a tensor before the first draw, and use it
        # after, fail here: Swin, DPT.
        together = (
            difference([run(common, 1, last, prefix)], [torch.cat(single[1:])])
            if is_rounding(batched)
            else 0.0
        )
        shared = max(one_by_one, together)
    differ = bool(common.dropout) or not all(site.agree for site in common.sites)
    return SelfCheck(batched, shared, engine.layout.reached(), differ=differ)


def _on_two_frames(images: Tensor, compare: Callable[[Tensor], T]) -> T:
    """Compare passes on the first of some images, small, and its mirror image: broadcasting would
    hide a missing repetition of one.
    """
    image = small = images[:1].float()
    scale = SIDE / max(image.shape[-2:])
    if scale < 1:
        # Whole multiples of the usual stride, so that a bare smp network takes them.
        size = [max(64, 32 * round(s * scale / 32)) for s in image.shape[-2:]]
        small = F.interpolate(image, size, mode="bilinear", align_corners=False)

    def pair(image: Tensor) -> Tensor:
        return torch.cat([image, image.flip(-1)]).contiguous(memory_format=torch.channels_last)

    try:
        return compare(pair(small))
    except Exception as error:
        if isinstance(error, InputError) or is_out_of_memory(error):
            raise
        return compare(pair(image))  # some networks take frames of their own size only


def _named_tensors(network: nn.Module) -> list[tuple[str, Tensor]]:
    """Return parameters and buffers; those that are used in several places under each name: a
    bfloat16 copy holds them apart.
    """
    parameters = network.named_parameters(remove_duplicate=False)
    return [*parameters, *network.named_buffers(remove_duplicate=False)]


def own_tensors(networks: Sequence[nn.Module]) -> frozenset[str]:
    """Return the names of the parameters and buffers in which networks of one build differ; none
    where they have no parameter in common. A parameter is common as one object, a buffer, which
    every move to a device replaces, by its values.
    """
    first, *others = [dict(_named_tensors(network)) for network in networks]
    if any(other.keys() != first.keys() for other in others):
        return frozenset()

    def common(name: str, tensor: Tensor) -> bool:
        by_value = not isinstance(tensor, nn.Parameter)
        return all(
            other[name] is tensor or (by_value and torch.equal(other[name], tensor))
            for other in others
        )

    own = frozenset(name for name, tensor in first.items() if not common(name, tensor))
    return (
        own
        if any(isinstance(t, nn.Parameter) and name not in own for name, t in first.items())
        else frozenset()
    )


def check_common(networks: Sequence[nn.Module], own: Collection[str], images: Tensor) -> float:
    """Return how far logits of networks that share all but ``own`` differ from the same alone;
    infinite if they cannot share.
    """
    engines = [Engine(network, "float32", own=own) for network in networks]

    def difference(frames: Tensor) -> float:
        alone = torch.cat([engine.logits(frames, None, None)[0] for engine in engines])
        with _Tolerating(*SHARING_ERRORS):
            prefix = Prefix()
            shared = torch.cat([engine.logits(frames, None, None, prefix)[0] for engine in engines])
            return relative_difference(shared, alone)
        return float("inf")

    return _on_two_frames(images, difference)


class _Tolerating(suppress):
    """Passes over errors of a network that cannot do what is asked of it; a lack of memory says
    nothing of it.
    """

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        return super().__exit__(kind, error, trace) and not (
            error is not None and is_out_of_memory(error)
        )


def require_finite(
    logits: Tensor, who: str = "the network returns", hint: str = "check its weights and its input"
) -> None:
    """Raise NotFiniteError where logits are NaN or infinite; not while a graph is traced, in which
    no value may decide.
    """
    if get_proxy_mode() is None and not torch.isfinite(logits).all():
        raise NotFiniteError(f"{who} NaN or infinite logits", hint=hint)


class BranchRunner:
    """The draws of the whole that belong to one branch, made once for a run, and the engine of its
    network.
    """

    def __init__(self, branch: Branch, draws: range, engine: Engine) -> None:
        self.branch, self.draws, self.engine = branch, draws, engine
        self.folded: FoldedDraws | None = (
            None  # the draws; None before :meth:`draw`, and for a branch without noise
        )
        self.base: FoldedDraws | None = None  # the network's own affine as one draw, likewise
        self._drawn: tuple[NoiseSource, str | None] | None = None
        # For each shape of images that was checked, whether its draws have to run one at a time
        # with nothing shared.
        self.alone: dict[tuple[int, ...], bool] = {}

    def draw(self, noise: NoiseSource, scope: str | None, images: Tensor | None = None) -> None:
        """Make the draws of the whole's noise, unless they are there; ``images`` are the first
        frames, for the self-check.
        """
        branch, engine = self.branch, self.engine
        if not branch.stochastic or self._drawn == (noise, scope):
            return
        drawn = branch.posterior.affine(
            engine.layout, branch.numbers(self.draws), branch.noise(noise), scope
        )
        whole = drawn.after(engine.layout.weight, engine.layout.bias)
        if images is not None and engine.self_check is None:
            engine.self_check = check(engine.network, images, whole)
        folded = engine.layout.fold(whole, engine.dtype, share=engine.shares)
        self.base, self.folded = folded.part(0, 1), folded.part(1, len(folded))
        self._drawn = (noise, scope)  # where memory did not suffice, the next call draws again

    def untransformed(self) -> BranchRunner:
        """Return a runner of the same draws of the frame as it is."""
        other = copy.copy(self)
        other.branch = replace(self.branch, transform=IDENTITY)
        return other

    def own_draws(self) -> Tensor | None:
        """Return scale and shift ``[2, S, T]`` of the layers in which the draws differ, one after
        the other; None where there is none.
        """
        sites = [site for site in (self.folded.sites if self.folded else ()) if not site.agree]
        return (
            torch.stack(
                [
                    torch.cat(rows, 1)
                    for rows in zip(*((s.scale, s.shift) for s in sites), strict=True)
                ]
            )
            if sites
            else None
        )

    def with_draws(self, draws: Tensor) -> BranchRunner:
        """Return a runner of other draws in the form of :meth:`own_draws`."""
        assert self.folded is not None
        other, own = copy.copy(self), [site for site in self.folded.sites if not site.agree]
        rows = zip(
            *(values.split([site.scale.shape[1] for site in own], 1) for values in draws),
            strict=True,
        )
        sites = (
            site
            if site.agree
            else replace(site, **dict(zip(("scale", "shift"), next(rows), strict=True)))
            for site in self.folded.sites
        )
        other.folded = replace(self.folded, sites=tuple(sites))
        return other


class Pass:
    """One branch over untransformed frames ``[n, 3, H, W]``; ``common`` is what other networks
    computed of these in the same transform.
    """

    def __init__(self, runner: BranchRunner, images: Tensor, common: Prefix | None = None) -> None:
        self.runner, self.engine = runner, runner.engine
        self.images = runner.branch.transform.apply(images)
        self.ending = self.engine.ending(self.images, runner.base)
        shape = tuple(self.images.shape)
        self.alone = runner.alone.get(shape, False) or shape in self.engine.branching
        self.prefix = common
        if runner.folded is not None and not self.alone and self.engine.shares:
            self.prefix = Prefix()
        if shape in self.engine.unfollowed or self.engine.unsharable:
            self.prefix = None

    def base_logits(self) -> tuple[Tensor, Upsampling]:
        """Return logits ``[n, C, h, w]`` of the network's own affine, and their upsampling to the
        transformed frames.
        """
        return self._logits(self.runner.base)

    def logits(self, first: int, last: int) -> tuple[Tensor, Upsampling]:
        """Return the same for the branch's draws first..last-1, ``[(last - first) * n, C, h, w]``,
        draw-major.
        """
        assert self.runner.folded is not None
        draws = self.runner.folded.part(first, last)
        shape = tuple(self.images.shape)
        logits, upsampling = self._logits(draws)
        if shape in self.runner.alone or (len(draws) == 1 and self.prefix is None):
            return logits, upsampling
        difference = self._difference(logits, draws)
        self.runner.alone[shape] = not is_rounding(difference)
        if is_rounding(difference):
            return logits, upsampling
        self.alone = True
        self.prefix = None
        size = f"{self.images.shape[-1]} x {self.images.shape[-2]}"
        self.engine.messages.append(
            f"self-check failed for frames of {size}: a draw in a batch differs from the same alone by {difference:.1e} of "
            "the largest logit; draws of frames of this size run one at a time"
        )
        one_by_one = [self.logits(draw, draw + 1)[0] for draw in range(first, last)]
        return torch.cat(one_by_one), upsampling

    def _logits(self, draws: FoldedDraws | None) -> tuple[Tensor, Upsampling]:
        """Return the logits of draws, sharing what is common to them where that goes. A pass that
        fails while it shares, because the network keeps something from another frame for instance,
        is computed in full: what it raises then is the network's own."""
        if self.prefix is None:
            return self.engine.logits(self.images, draws, self.ending)
        try:
            return self.engine.logits(self.images, draws, self.ending, self.prefix)
        except SHARING_ERRORS as error:
            if is_out_of_memory(error):
                raise
            logits, upsampling = self.engine.logits(self.images, draws, self.ending)
            self.engine.stop_sharing(error)
            self.prefix = None
            return logits, upsampling

    def _difference(self, logits: Tensor, draws: FoldedDraws) -> float:
        """Return how far some draws lie from the same draws each in a pass of its own that shares
        nothing: the largest difference, relative to the largest logit of the draw. Networks that
        cut large frames into tiles, or order a batch by its size, keep the order of the draws at
        the small size of the first self-check only. In float32, because bfloat16 rounds as coarsely
        as draws may differ.

        Raises:
            NotFiniteError: a draw gives NaN or infinite logits.
        """
        engine = self.engine
        ending = self.ending
        if engine.dtype != torch.float32:
            engine = Engine(engine.network, "float32")
            ending = None
            prefix = None if self.prefix is None else Prefix()
            logits, _ = engine.logits(self.images, draws, ending, prefix)
        largest = 0.0
        for number, rows in enumerate(torch.split(logits, len(self.images))):
            alone = draws.part(number, number + 1)
            expected, _ = Engine.logits(engine, self.images, alone, ending)  # not compiled
            require_finite(expected, "a draw gives", "lower alpha")
            largest = max(largest, relative_difference(rows, expected))
        return largest


class PassOfAnySize(Pass):
    """A pass for a graph of frames of any size: what single sizes were found to allow is left, so
    logits are of full resolution.
    """

    def __init__(self, runner: BranchRunner, images: Tensor, common: Prefix | None = None) -> None:
        self.runner, self.engine = runner, runner.engine
        self.images, self.ending, self.alone = runner.branch.transform.apply(images), None, False
        self.prefix = common
        if runner.folded is not None and self.engine.shares:
            self.prefix = Prefix()
        if self.engine.unfollowed or self.engine.unsharable:
            self.prefix = None

    def logits(self, first: int, last: int) -> tuple[Tensor, Upsampling]:
        assert self.runner.folded is not None
        return self.engine.logits(
            self.images, self.runner.folded.part(first, last), None, self.prefix
        )
