"""Passes of the draws of one branch, as cheap as the network allows, with the same result.

Statistics, gamma, beta and eps fold once a run into a scale and a shift for each normalisation
layer and draw. Draws are the outermost part of the batch. A network that does not keep that order,
or changes tensors in place, would give wrong maps without an error, so both are checked
(:func:`check`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
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
from segunc.sampling.deferred import DeferredAffines
from segunc.sampling.dependence import DependenceWatch
from segunc.sampling.layouts import ArrangedWeights, ChannelsLast, is_served
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
MAX_CHECK_SIDE = 256  # of the image of the self-check, which runs some twenty passes
TOLERANCE = 1e-3
"""Difference of float32 logits, relative to the largest logit, up to which it is rounding."""
SHARING_ERRORS = (RuntimeError, TypeError, ValueError, LookupError, AttributeError)
"""What a network raises where results are taken from another pass than its own."""
BRANCHING_NOTE = (
    "the network's code reads values of its input, so it may take another branch for another draw; "
    "draws run one at a time, and nothing is shared"
)


class Engine:
    """Runs a network for frames and draws, up to its logits at low resolution.

    In bfloat16 a copy runs whose weights are bfloat16, or the network under autocast where that
    fails.

    Args:
        network: in eval mode, converted or not.
        precision: of weights and activations.
        messages: the list to which notes for the user are added; None makes a new one.
        own: names of the tensors in which networks that share a prefix differ, see
            :func:`own_tensors`.
        copies: what engines of such networks have copied, as of :func:`bfloat16_copy`.
    """

    def __init__(
        self,
        network: nn.Module,
        precision: Precision,
        messages: list[str] | None = None,
        own: Collection[str] = (),
        copies: dict[int, Any] | None = None,
    ) -> None:
        self.network = network
        self.own = own
        self.device = next(network.parameters()).device
        self.dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        self.messages = [] if messages is None else messages
        self.self_check: SelfCheck | None = None  # stays None for a network without draws
        self._autocast = False
        self._run: nn.Module = network
        self._weights = ArrangedWeights()
        self.arranges = True  # whether passes on a CPU may run under ChannelsLast
        self._endings: dict[tuple[int, ...], Ending | None] = {}
        # Shapes of images whose values the network's code reads.
        self.branching: set[tuple[int, ...]] = set()
        # Shapes of images for which code runs that function modes do not see.
        self.unfollowed: set[tuple[int, ...]] = set()
        # Shapes of images for which a watched pass showed no such code, nor a thread of the
        # network's own.
        self.followed: set[tuple[int, ...]] = set()
        self.unsharable = False  # whether a pass that shares has failed
        self.rewrites = False  # whether passes compute parameters of the network anew
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
    def _own_tensors(self) -> list[Tensor]:
        """The tensors in which networks that share a prefix differ, each once."""
        tensors = {}
        for name, tensor in _named_tensors(self._run):
            if name in self.own:
                tensors[id(tensor)] = tensor
        return list(tensors.values())

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
        """Return how the network ends for images ``[n, 3, H, W]`` of this shape, found by a full
        pass that is watched.

        A bfloat16 copy that calls other layers than the network is not used: a ``forward`` that was
        replaced on the object calls the original's layers.
        """
        key = tuple(images.shape)
        if key not in self._endings:
            logits, watch = self._watched(images, draws)
            self._endings[key] = watch.ending(logits)
            watch.dependence.unread.remove([logits])
            self._note_dependence(watch.dependence, key, drawn=draws is not None)
        return self._endings[key]

    def _watched(
        self, images: Tensor, draws: FoldedDraws | None
    ) -> tuple[Tensor, InterpolationWatch]:
        """Return the logits of a full pass and what was seen of it."""
        watch = InterpolationWatch()
        copied = self._run is not self.network
        check = self.self_check
        parameters = list(self._run.parameters())
        watch.dependence.weights.add(parameters)
        places = _places_of(parameters)
        try:
            logits, _ = self.logits(images, draws, None, watch=watch)
            if copied and check is not None and self.layout.reached() != check.reached:
                raise TypeError("a copy of it calls other layers")
        except (RuntimeError, TypeError) as error:
            if not copied or is_out_of_memory(error):
                raise
            self._use_autocast(error)
            return self._watched(images, draws)
        replaced = _places_of(self._run.parameters()) != places
        if replaced or watch.dependence.rewritten:
            # Weights that were arranged, or that a graph holds, would be those of another frame.
            self.rewrites = True
            self.arranges = False
        return logits, watch

    def _note_dependence(
        self, dependence: DependenceWatch, shape: tuple[int, ...], *, drawn: bool
    ) -> None:
        """Note what the network's code does with values that depend on the frame, for images of
        one shape, and tell the user.
        """
        if dependence.reads:
            self.branching.add(shape)
            if drawn:
                self.say(BRANCHING_NOTE)
        if not dependence.unseen and not dependence.unread:
            self.followed.add(shape)
        if dependence.unseen:
            self.unfollowed.add(shape)
            if self.shares:
                self.say(
                    f"a part of the network ({dependence.unseen}) runs code that cannot be "
                    "followed, for instance TorchScript; everything is computed for every draw"
                )
        if dependence.training:
            self.say(
                "a part of the network computes as in training although it is in eval mode "
                f"({dependence.training}): dropout is drawn by no seed, or statistics are those of "
                "the batch; switch it off in eval mode"
            )
        elif dependence.random and self.self_check is None:
            self.say(
                f"the network draws random numbers itself ({dependence.random}), which no seed "
                "decides here; switch them off in eval mode"
            )

    def stop_sharing(self, error: Exception) -> None:
        """Compute everything for every draw from now on, because a pass that shares has failed."""
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
        """Return logits of draws, and the upsampling that is left to be done.

        Args:
            images: ``[n, 3, H, W]``.
            draws: k draws; None runs the network as it is, which counts as one draw.
            ending: where the pass ends before the last upsampling; None runs it to its end.
            prefix: results that draws share; None computes everything for every draw.
            watch: follows the pass.

        Returns:
            Logits ``[k * n, C, h, w]``, draw-major, and their upsampling to the images.
        """
        count = 1 if draws is None else len(draws)
        batch = self._batch(images, count, prefix)
        stop_at = None if ending is None else ending.call
        with ExitStack() as modes:
            modes.enter_context(
                torch.autocast(self.device.type, torch.bfloat16, enabled=self._autocast)
            )
            if draws is not None:
                _mark_differing_sites(draws)
                modes.enter_context(self.layout.active(draws))
            if watch is None and self._may_arrange():
                # Below the modes that follow, which see the network's own calls.
                modes.enter_context(ChannelsLast(self._weights, self._deferred(images)))
            if prefix is not None:
                modes.enter_context(self._marked_own_tensors())
                modes.enter_context(SharePrefix(prefix, count, stop_at))
            elif stop_at is not None:
                modes.enter_context(InterpolationCounter(stop_at))
            if watch is not None:
                watch.dependence.dependent.add(_dependent_tensors(batch, draws))
                modes.enter_context(watch)
            try:
                logits = self._run(batch)
            except EndReachedError as end:
                logits = end.args[0]
        _check_shape(logits, (len(images) * count, *images.shape[1:]))
        if ending is not None and logits.shape[-2:] == ending.upsampling.source:
            return logits, ending.upsampling
        return logits, Upsampling.none((logits.shape[-2], logits.shape[-1]))

    def _may_arrange(self) -> bool:
        """Return whether a pass that begins now may run under :class:`ChannelsLast`."""
        return self.arranges and not self._autocast and is_served(self.device)

    def _deferred(self, images: Tensor) -> DeferredAffines | None:
        """Return the means by which affines may wait in a pass of images of this shape: None where
        code runs, or may run, that function modes do not see.
        """
        return DeferredAffines() if tuple(images.shape) in self.followed else None

    @contextmanager
    def as_written(self) -> Iterator[None]:
        """While open, the network's own functions run: the reference of the self-check."""
        before = self.arranges
        self.arranges = False
        try:
            yield
        finally:
            self.arranges = before

    def _batch(self, images: Tensor, count: int, prefix: Prefix | None) -> Tensor:
        """Return images as the network takes them: once where draws share a prefix, else once for
        each draw.
        """
        casts_itself = isinstance(self._run, SegmentationNetwork) or self._autocast
        batch = images if casts_itself else images.to(self.dtype)
        if prefix is not None:
            return mark(batch.detach(), FRAMES)  # a view of one frame would lose its memory format
        return torch.cat([batch] * count) if count > 1 else batch

    @contextmanager
    def _marked_own_tensors(self) -> Iterator[None]:
        """While open, tensors in which networks differ are marked as draws are."""
        for tensor in self._own_tensors:
            mark(tensor, DRAWS)
        try:
            yield
        finally:
            for tensor in self._own_tensors:
                delattr(tensor, ORIGIN)

    def _use_autocast(self, error: Exception) -> None:
        """Run the network itself under autocast from now on, because its copy fails."""
        self._run = self.network
        self._autocast = True
        for property_of_copy in ("layout", "_own_tensors"):
            self.__dict__.pop(property_of_copy, None)
        why = f"the network does not run with bfloat16 weights ({one_line(error)})"
        self.messages.append(f"{why}; it runs under autocast")


def _places_of(parameters: Iterable[Tensor]) -> list[tuple[int, int]]:
    """Return what differs where a parameter is another object, or lies in other memory."""
    return [(id(parameter), parameter.data_ptr()) for parameter in parameters]


def _mark_differing_sites(draws: FoldedDraws) -> None:
    """Mark scale and shift of the normalisation layers in which draws differ."""
    for site in draws.sites:
        if not site.agree:
            mark(site.scale, DRAWS)
            mark(site.shift, DRAWS)


def _dependent_tensors(batch: Tensor, draws: FoldedDraws | None) -> list[Tensor]:
    """Return the tensors of a pass that another frame or another draw changes."""
    tensors = [batch]
    if draws is not None:
        for site in draws.sites:
            tensors += [site.scale, site.shift]
    return tensors


def _check_shape(logits: Any, images: tuple[int, ...]) -> None:
    """Raise an InputError where these are not dense logits of images of this shape."""
    if isinstance(logits, Tensor):
        if logits.ndim == 4 and logits.shape[0] == images[0]:
            return
        returned = str(tuple(logits.shape))
    else:
        returned = type(logits).__name__
    message = f"the network returns {returned} for images {images}"
    raise InputError(message, hint="wrap it to return logits [n, C, H, W]")


def bfloat16_copy(network: nn.Module, copies: dict[int, Any] | None = None) -> nn.Module:
    """Return a copy whose weights are bfloat16, except those of batch norms and of normalisation
    layers that draw, and how a :class:`SegmentationNetwork` normalises its input.

    Args:
        network: the original, which stays as it is.
        copies: the memo of several networks, whose common modules are copied once.

    Raises:
        InputError: a copy would not do what the network does.
    """
    check_copyable(network)
    memo = {} if copies is None else copies
    for tensor in (*network.parameters(), *network.buffers()):
        memo[id(tensor)] = tensor
    copied = copy.deepcopy(network, memo)
    body = copied.body if isinstance(copied, SegmentationNetwork) else copied
    for module in body.modules():
        if not isinstance(module, StochasticSite | _BatchNorm):
            _tensors_to_bfloat16(module)
    if body is not copied:
        body.register_forward_pre_hook(_inputs_to_bfloat16)
    return copied.eval()


def _tensors_to_bfloat16(module: nn.Module) -> None:
    """Replace the module's own floating-point parameters and buffers by their bfloat16 copies."""
    for name, parameter in module._parameters.items():
        if parameter is not None and parameter.is_floating_point():
            narrow = parameter.detach().bfloat16()
            module._parameters[name] = nn.Parameter(narrow, requires_grad=False)
    for name, buffer in module._buffers.items():
        if buffer is not None and buffer.is_floating_point():
            module._buffers[name] = buffer.bfloat16()


def _inputs_to_bfloat16(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(tensor.bfloat16() for tensor in inputs)


@dataclass(frozen=True)
class SelfCheck:
    """How far the logits of the base network and two draws, over two frames, lie apart when they
    are computed in different ways: the largest difference, relative to the largest logit.

    Attributes:
        batched: of two draws as a batch from the same two one by one.
        shared: of passes that share what is common to all draws from passes that do not.
        reached: for each normalisation layer whether a drawn forward came through it.
        repeated: of two passes of one frame and draw, in which random numbers of the network
            differ.
        differ: whether the draws differ at all. Those of alpha 0 do not, and leave no last layer to
            run.
        arranged: of a pass whose weights are arranged for a CPU from one of the network's own
            functions (:mod:`segunc.sampling.layouts`).
        own: of a draw of the network's own affine from the network without draws.
    """

    batched: float
    shared: float
    reached: list[bool]
    repeated: float = 0.0
    differ: bool = True
    arranged: float = 0.0
    own: float = 0.0


def is_rounding(difference: float) -> bool:
    return difference <= TOLERANCE


def check(network: nn.Module, images: Tensor, draws: AffineDraws) -> SelfCheck:
    """Compare the ways of running draws in float32, on the first image at a small size.

    Args:
        network: converted.
        images: ``[n, 3, H, W]``.
        draws: the network's own affine, and behind it one draw or more.
    """
    engine = Engine(network, "float32")
    return _on_two_frames(images, lambda frames: _check(engine, frames, draws))


def _check(engine: Engine, frames: Tensor, draws: AffineDraws) -> SelfCheck:
    comparison = _DrawComparison(engine, frames, draws)
    # Differences that are not known stay infinite.
    batched = float("inf")
    shared = float("inf")
    repeated = comparison.repeated()
    if not is_rounding(repeated):
        return SelfCheck(batched, shared, engine.layout.reached(), repeated)
    own = comparison.own()
    arranged = comparison.arranged()
    engine.arranges = is_rounding(arranged)
    with _Tolerating(InputError, RuntimeError):
        batched = comparison.batched()
    with _Tolerating(*SHARING_ERRORS):
        shared = comparison.shared(with_batch=is_rounding(batched))
    return SelfCheck(
        batched,
        shared,
        engine.layout.reached(),
        differ=comparison.draws_differ,
        arranged=arranged,
        own=own,
    )


class _DrawComparison:
    """The logits of up to three draws over two frames, each in a pass of its own, and how far other
    ways of computing them lie from these.

    Raises:
        NotFiniteError: the network or a draw gives NaN or infinite logits.
    """

    def __init__(self, engine: Engine, frames: Tensor, draws: AffineDraws) -> None:
        self._engine = engine
        self._frames = frames
        self._count = min(3, len(draws))
        self._plain = engine.layout.fold(draws, engine.dtype, share=False)
        self._common = engine.layout.fold(draws, engine.dtype, share=True)
        with engine.as_written():
            self._alone = [self._run(self._plain, 0, 1)]
            require_finite(self._alone[0])
            for draw in range(1, self._count):
                self._alone.append(self._run(self._plain, draw, draw + 1))
                require_finite(self._alone[draw], "a draw gives", "lower alpha")
        self._largest = max(largest_logit(logits) for logits in self._alone)

    @property
    def draws_differ(self) -> bool:
        return bool(self._common.dropout) or not all(site.agree for site in self._common.sites)

    def repeated(self) -> float:
        """Return the difference of two passes of the first draw."""
        with self._engine.as_written():
            return self._difference(self._run(self._plain, 0, 1), self._alone[0])

    def own(self) -> float:
        """Return the difference of the network without draws from the first one, which has the
        network's own affine.
        """
        with self._engine.as_written():
            logits, _ = self._engine.logits(self._frames, None, None)
        return self._difference(logits, self._alone[0])

    def arranged(self) -> float:
        """Return the difference of a pass of the first draw with arranged weights."""
        return self._difference(self._run(self._plain, 0, 1), self._alone[0])

    def batched(self) -> float:
        """Return the difference of the last two draws as a batch."""
        return self._difference(self._run(self._plain, 1, self._count), torch.cat(self._alone[1:]))

    def shared(self, *, with_batch: bool) -> float:
        """Return the difference of passes that share results, of a batch among them where one
        keeps the order of its rows.
        """
        prefix = Prefix()
        differences = []
        for draw, expected in enumerate(self._alone):
            logits = self._run(self._common, draw, draw + 1, prefix)
            differences.append(self._difference(logits, expected))
        if with_batch:
            # Networks that take the size of the batch from a tensor before the first draw, and use
            # it after, fail here: Swin, DPT.
            together = self._run(self._common, 1, self._count, prefix)
            differences.append(self._difference(together, torch.cat(self._alone[1:])))
        return max(differences)

    def _run(
        self, draws: FoldedDraws, first: int, last: int, prefix: Prefix | None = None
    ) -> Tensor:
        logits, _ = self._engine.logits(self._frames, draws.part(first, last), None, prefix)
        return logits

    def _difference(self, logits: Tensor, expected: Tensor) -> float:
        return relative_difference(logits, expected, self._largest)


def _on_two_frames(images: Tensor, compare: Callable[[Tensor], T]) -> T:
    """Compare passes on the first of some images, small, and its mirror image: broadcasting would
    hide a missing repetition of one.
    """
    image = images[:1].float()
    small = image
    scale = MAX_CHECK_SIDE / max(image.shape[-2:])
    if scale < 1:
        # Whole multiples of the usual stride, so that a bare smp network takes them.
        size = [max(64, 32 * round(side * scale / 32)) for side in image.shape[-2:]]
        small = F.interpolate(image, size, mode="bilinear", align_corners=False)
    try:
        return compare(_with_mirror_image(small))
    except Exception as error:
        if isinstance(error, InputError) or is_out_of_memory(error):
            raise
        return compare(_with_mirror_image(image))  # some networks take frames of their own size


def _with_mirror_image(image: Tensor) -> Tensor:
    pair = torch.cat([image, image.flip(-1)])
    return pair.contiguous(memory_format=torch.channels_last)


def _named_tensors(network: nn.Module) -> list[tuple[str, Tensor]]:
    """Return parameters and buffers; those that are used in several places under each name: a
    bfloat16 copy holds them apart.
    """
    parameters = network.named_parameters(remove_duplicate=False)
    return [*parameters, *network.named_buffers(remove_duplicate=False)]


def own_tensors(networks: Sequence[nn.Module]) -> frozenset[str]:
    """Return the names of the parameters and buffers in which networks of one build differ; none
    where they have no parameter in common.

    A parameter is common as one object, a buffer, which every move to a device replaces, by its
    values.
    """
    first, *others = [dict(_named_tensors(network)) for network in networks]
    if any(other.keys() != first.keys() for other in others):
        return frozenset()
    own = set()
    shares_a_parameter = False
    for name, tensor in first.items():
        if not _is_common(tensor, [other[name] for other in others]):
            own.add(name)
        elif isinstance(tensor, nn.Parameter):
            shares_a_parameter = True
    return frozenset(own) if shares_a_parameter else frozenset()


def _is_common(tensor: Tensor, counterparts: Sequence[Tensor]) -> bool:
    """Return whether networks have a tensor in common with its counterparts in the others."""
    for counterpart in counterparts:
        if counterpart is tensor:
            continue
        if isinstance(tensor, nn.Parameter) or not torch.equal(counterpart, tensor):
            return False
    return True


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
    """Passes over errors of a network that cannot do what is asked of it; a lack of memory is
    raised, because it says nothing of the network.
    """

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if error is not None and is_out_of_memory(error):
            return False
        return super().__exit__(kind, error, trace)


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
        self.branch = branch
        self.draws = draws
        self.engine = engine
        # The draws; None before :meth:`draw`, and for a branch without noise.
        self.folded: FoldedDraws | None = None
        # The network's own affine as one draw, likewise.
        self.base: FoldedDraws | None = None
        self._drawn: tuple[NoiseSource, str | None] | None = None
        # For each shape of images that was checked, whether its draws have to run one at a time
        # with nothing shared.
        self.alone: dict[tuple[int, ...], bool] = {}

    def draw(self, noise: NoiseSource, scope: str | None, images: Tensor | None = None) -> None:
        """Make the draws of the whole's noise, unless they are there; ``images`` are the first
        frames, for the self-check.
        """
        branch = self.branch
        engine = self.engine
        if not branch.stochastic or self._drawn == (noise, scope):
            return
        numbers = branch.numbers(self.draws)
        drawn = branch.posterior.affine(engine.layout, numbers, branch.noise(noise), scope)
        with_base = drawn.after(engine.layout.weight, engine.layout.bias)
        if images is not None and engine.self_check is None:
            engine.self_check = check(engine.network, images, with_base)
            engine.arranges = is_rounding(engine.self_check.arranged)
        folded = engine.layout.fold(with_base, engine.dtype, share=engine.shares)
        self.base = folded.part(0, 1)
        self.folded = folded.part(1, len(folded))
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
        if self.folded is None:
            return None
        differing = [site for site in self.folded.sites if not site.agree]
        if not differing:
            return None
        scales = torch.cat([site.scale for site in differing], 1)
        shifts = torch.cat([site.shift for site in differing], 1)
        return torch.stack([scales, shifts])

    def with_draws(self, draws: Tensor) -> BranchRunner:
        """Return a runner of other draws in the form of :meth:`own_draws`."""
        assert self.folded is not None
        channels = [site.scale.shape[1] for site in self.folded.sites if not site.agree]
        scale_rows, shift_rows = draws.unbind()
        scales = iter(torch.split(scale_rows, channels, 1))
        shifts = iter(torch.split(shift_rows, channels, 1))
        sites = []
        for site in self.folded.sites:
            if site.agree:
                sites.append(site)
            else:
                sites.append(replace(site, scale=next(scales), shift=next(shifts)))
        other = copy.copy(self)
        other.folded = replace(self.folded, sites=tuple(sites))
        return other


class Pass:
    """One branch over untransformed frames ``[n, 3, H, W]``; ``common`` is what other networks
    computed of these in the same transform.
    """

    def __init__(self, runner: BranchRunner, images: Tensor, common: Prefix | None = None) -> None:
        self.runner = runner
        self.engine = runner.engine
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
        self.engine.arranges = False
        size = f"{self.images.shape[-1]} x {self.images.shape[-2]}"
        self.engine.messages.append(
            f"self-check failed for frames of {size}: a draw in a batch differs from the same "
            f"alone by {difference:.1e} of the largest logit; draws of frames of this size run one "
            "at a time"
        )
        one_by_one = [self.logits(draw, draw + 1)[0] for draw in range(first, last)]
        return torch.cat(one_by_one), upsampling

    def _logits(self, draws: FoldedDraws | None) -> tuple[Tensor, Upsampling]:
        """Return the logits of draws, sharing what is common to them where that goes.

        A pass that fails while it shares, for instance because the network keeps something from
        another frame, is computed in full: what it raises then is the network's own.
        """
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
        """Return how far draws lie from the same draws each in a pass of its own that shares
        nothing: the largest difference, relative to the largest logit of the draw.

        Networks that cut large frames into tiles, or order a batch by its size, keep the order of
        the draws at the small size of the first self-check only. The comparison is in float32,
        because bfloat16 rounds as coarsely as draws may differ.

        Raises:
            NotFiniteError: a draw gives NaN or infinite logits.
        """
        engine = self.engine
        ending = self.ending
        if engine.dtype != torch.float32:
            arranges = engine.arranges
            engine = Engine(engine.network, "float32")
            engine.arranges = arranges
            engine.followed = self.engine.followed
            ending = None
            prefix = None if self.prefix is None else Prefix()
            logits, _ = engine.logits(self.images, draws, ending, prefix)
        largest = 0.0
        for number, rows in enumerate(torch.split(logits, len(self.images))):
            alone = draws.part(number, number + 1)
            with engine.as_written():
                expected, _ = Engine.logits(engine, self.images, alone, ending)  # not compiled
            require_finite(expected, "a draw gives", "lower alpha")
            largest = max(largest, relative_difference(rows, expected))
        return largest


class PassOfAnySize(Pass):
    """A pass for a graph of frames of any size: what was found for single sizes is not used, so
    logits are of full resolution.
    """

    def __init__(self, runner: BranchRunner, images: Tensor, common: Prefix | None = None) -> None:
        self.runner = runner
        self.engine = runner.engine
        self.images = runner.branch.transform.apply(images)
        self.ending = None
        self.alone = False
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
