"""What passes of draws leave out: layers that give the same result for every draw, and the
network's last upsampling.

Torch function modes follow every call of a pass, so nothing is found by names. What they do not
see, and what the network's code does with values, is found once for each size by
:mod:`segunc.sampling.dependence`.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from segunc.affine.convert import DRAWS, FRAMES, ORIGIN
from segunc.sampling.dependence import DependenceWatch, Memory, tensors_in


@dataclass(frozen=True)
class Upsampling:
    """Bilinear interpolation of ``[N, C, h, w]``, of which the upper left part is kept.

    Attributes:
        source: (h, w).
        full: (height, width) after the interpolation.
        kept: (H, W) that is left after cropping the lower and right border away.
        align_corners: whether corner pixels lie on corner pixels (smp), or pixel areas match
            (torchvision).
        factors: the scale factors that were asked for, None where a size was: PyTorch computes
            positions from a factor.
    """

    source: tuple[int, int]
    full: tuple[int, int]
    kept: tuple[int, int]
    align_corners: bool = False
    factors: tuple[float, float] | None = None

    @classmethod
    def none(cls, size: tuple[int, int]) -> Upsampling:
        return cls(size, size, size)

    def apply(self, logits: Tensor) -> Tensor:
        if self.source != self.full:
            size = self.full if self.factors is None else None
            logits = F.interpolate(
                logits, size, self.factors, mode="bilinear", align_corners=self.align_corners
            )
        return logits[..., : self.kept[0], : self.kept[1]]

    def taps(self, axis: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return, for each kept row (axis 0) or column (axis 1), two source lines (int32) and the
        weight of the second one (float32).
        """
        factor = None if self.factors is None else self.factors[axis]
        return _taps(
            self.source[axis], self.full[axis], self.kept[axis], self.align_corners, factor
        )


@functools.lru_cache(maxsize=64)
def _taps(
    source: int, full: int, kept: int, corners: bool, factor: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    # float32 on purpose: the positions shall round as they do in PyTorch's own kernels.
    target = torch.arange(kept, dtype=torch.float32)
    if source == full:
        return target.int(), target.int(), torch.zeros(kept, dtype=torch.float32)
    if corners:
        step = (source - 1) / (full - 1) if full > 1 else 0.0
        position = target * torch.tensor(step, dtype=torch.float32)
    else:
        step = source / full if factor is None else 1.0 / factor
        scale = torch.tensor(step, dtype=torch.float32)
        position = ((target + 0.5) * scale - 0.5).clamp_min(0.0)
    first = position.floor().clamp_max(source - 1)
    second = (first + 1).clamp_max(source - 1)
    return first.int(), second.int(), (position - first).clamp(0.0, 1.0)


@dataclass(frozen=True)
class Ending:
    """The upsampling that makes the logits, and which of the network's interpolations it is,
    counted from 1.
    """

    upsampling: Upsampling
    call: int


class EndReachedError(Exception):
    """Ends a forward pass; its one argument is the low-resolution logits."""


class InterpolationCounter(TorchFunctionMode):
    """Counts the interpolations of a pass, and raises :class:`EndReachedError` for number
    ``stop_at``.
    """

    def __init__(self, stop_at: int | None = None) -> None:
        super().__init__()
        self._stop_at = stop_at
        self._interpolations = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is F.interpolate:
            self._interpolations += 1
            if self._interpolations == self._stop_at:
                raise EndReachedError(args[0] if args else (kwargs or {})["input"])
        return self._call(func, args, kwargs or {})

    def _call(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return func(*args, **kwargs)


_CASTS = {"to", "float", "double", "half", "bfloat16", "type", "type_as", "contiguous", "clone"}


def _refuse_bfloat16(sampled: Tensor) -> None:
    """Raise TypeError for a feature map that torch does not sample rightly at points.

    Of bfloat16 maps on a CPU, ``grid_sample`` of torch 2.15 counts offsets in 16 bits. A pixel more
    than 32,767 elements behind the first one, ``y stride_y + x stride_x``, is read from other
    memory, so results are arbitrary. Autocast gives it float32.
    """
    is_exposed = sampled.dtype == torch.bfloat16 and sampled.device.type == "cpu"
    if is_exposed and not torch.is_autocast_enabled("cpu"):
        raise TypeError("grid_sample reads wrong memory in bfloat16 on a CPU")


class InterpolationWatch(InterpolationCounter):
    """Follows the output of a pass's last interpolation, in the first pass of a frame size.

    If it is bilinear and the very tensor that the network returns, except for a crop and its type,
    later passes end before it. Equal numbers on one frame would not be enough: a clamp or a mask
    behind the upsampling may change none of them.

    Attributes:
        dependence: what the network's code does with values of the frame and of the draw.
    """

    def __init__(self) -> None:
        super().__init__()
        self.dependence = DependenceWatch()
        self._last: tuple[Tensor, Upsampling | None] | None = None
        # The output of the last interpolation, its crops and casts; empty once it was changed.
        self._ends: list[Tensor] = []

    def __enter__(self) -> InterpolationWatch:
        self.dependence.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        self.dependence.__exit__(kind, error, trace)  # type: ignore[no-untyped-call]

    def _call(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is F.grid_sample:
            _refuse_bfloat16(next(tensors_in((*args, *kwargs.values()))))
        with self.dependence.function():
            output = func(*args, **kwargs)
        # What is read here does not belong to the network's own operations.
        with torch._C.DisableTorchFunction():
            inputs = list(tensors_in((*args, *kwargs.values())))
            self.dependence.after_function(func, inputs, output)
            if func is F.interpolate:
                self._begin(args, kwargs, output)
            elif any(tensor is end for tensor in inputs for end in self._ends):
                self._continue(func.__name__, args, output)
        return output

    def _begin(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        """Take an interpolation, of which the last one of the pass counts."""
        names = ("input", "size", "scale_factor", "mode", "align_corners")
        arguments = dict(zip(names, args, strict=False)) | kwargs
        self._last = (arguments["input"], _upsampling(arguments, output))
        self._ends = [output]
        self.dependence.guarded = Memory()
        self.dependence.guarded.add(self._ends)
        self.dependence.written = False

    def _continue(self, name: str, args: tuple[Any, ...], output: Any) -> None:
        """Take a function of the interpolation's output: a crop or a cast of it is still the end of
        the network, anything else is not.
        """
        outputs = list(tensors_in([output]))
        if not outputs and output is not None:
            return  # it looked at a shape or a type
        whole = args[0]
        if len(outputs) == 1 and isinstance(whole, Tensor):
            part = outputs[0]
            is_crop = name == "__getitem__" and _is_upper_left_part(part, whole)
            same_values = part.is_floating_point() and part.shape == whole.shape
            if is_crop or (name in _CASTS and same_values):
                self._ends.append(part)
                self.dependence.guarded.add([part])
                return
        self._ends = []

    def ending(self, logits: Tensor) -> Ending | None:
        """Return the ending of the watched pass if its last interpolation made ``logits``, except
        for a crop and the type.
        """
        if self._last is None:
            return None
        low, upsampling = self._last
        if upsampling is None:
            return None
        is_end = any(logits is end for end in self._ends)
        if not is_end or self.dependence.reads or self.dependence.written:
            return None
        cropped = replace(upsampling, kept=(logits.shape[-2], logits.shape[-1]))
        if low.shape[:2] != logits.shape[:2]:
            return None
        # The very same operation on the same numbers: this finds what changed them by a pointer.
        if not torch.equal(cropped.apply(low).to(logits.dtype), logits):
            return None
        return Ending(cropped, self._interpolations)


def _is_upper_left_part(part: Tensor, whole: Tensor) -> bool:
    """Return whether a view ``[N, C, h, w]`` begins where ``whole`` does and leaves out nothing but
    lower rows and right columns.
    """
    return _where_it_lies(part) == _where_it_lies(whole)


def _where_it_lies(tensor: Tensor) -> tuple[Any, ...]:
    """Return what a tensor ``[N, C, h, w]`` and its upper left parts have in common: memory, first
    element, strides, N and C.
    """
    storage = tensor.untyped_storage()._cdata
    return storage, tensor.storage_offset(), tensor.stride(), tensor.shape[:2]


def _upsampling(arguments: dict[str, Any], output: Tensor) -> Upsampling | None:
    """Return what an interpolation did, or None if it is not plainly bilinear or makes the map
    narrower.
    """
    low = arguments["input"]
    if arguments.get("mode") != "bilinear" or arguments.get("antialias") or low.ndim != 4:
        return None
    source = (low.shape[-2], low.shape[-1])
    full = (output.shape[-2], output.shape[-1])
    # The compiled tail has buffers for maps that get wider, and low resolution is no gain here.
    if source[1] > full[1]:
        return None
    factor = arguments.get("scale_factor")
    if arguments.get("recompute_scale_factor") or factor is None:
        factors = None
    elif isinstance(factor, list | tuple):
        factors = (float(factor[0]), float(factor[1]))
    else:
        factors = (float(factor), float(factor))
    return Upsampling(source, full, full, bool(arguments.get("align_corners")), factors)


_OPERATION = "segunc_operation"
_JOINS = (torch.cat, torch.concat, torch.concatenate)
_COMPARED = (int, float, str, torch.dtype, torch.device)
"""Types of arguments whose values tell operations from each other; of others only the type is
compared.
"""


def mark(tensor: Tensor, origin: str) -> Tensor:
    """Mark a tensor as coming from ``FRAMES`` alone, or from ``DRAWS`` too, and return it."""
    setattr(tensor, ORIGIN, origin)
    return tensor


class OperationsDifferError(RuntimeError):
    """A pass does other operations on the frames than the recorded one, whose results it therefore
    cannot take.
    """


@dataclass(frozen=True)
class Operation:
    """One recorded operation on frames.

    Attributes:
        call: the function and the form of its arguments, see :func:`_call_of`.
        result: what it returned; a tensor that no draw meets is a placeholder without memory.
    """

    call: tuple[Any, ...]
    result: Any


class Prefix:
    """Results of one set of frames that all draws share; empty before the first pass."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []  # those on frames, in the order of the network's code
        self.needed: tuple[int, ...] = ()  # the places of those whose results draws meet
        self.complete = False  # whether a pass has been recorded

    def record(self, operations: Sequence[Operation], needed: dict[int, Any]) -> None:
        """Take what a pass has seen: operations with placeholders, and the results ``needed`` by
        draws, by their place among the operations.
        """
        for tensor in tensors_in(needed.values()):
            mark(tensor, FRAMES)
        self.operations = list(operations)
        for place, result in needed.items():
            self.operations[place] = replace(operations[place], result=result)
        self.needed = tuple(needed)
        self.complete = True

    def needed_results(self) -> dict[int, Any]:
        """Return the results that draws meet, by the place of their operation."""
        return {place: self.operations[place].result for place in self.needed}


class SharePrefix(InterpolationCounter):
    """Records an empty :class:`Prefix`, or uses a recorded one, in one pass of a number of draws.

    The first pass over some frames marks results, of frames only or of draws too, and remembers
    those of frames that meet draws. Further passes take them from there and skip what led to them.
    Tensors of frames keep one row for each frame, and are repeated for the draws where they meet
    them. Of networks that share an encoder, the parameters in which they differ are marked as draws
    are.

    A result is only taken for an operation of the same function and the same form of arguments. A
    network that keeps something between its calls may do other operations in a later pass: that
    raises :class:`OperationsDifferError`.
    """

    def __init__(self, prefix: Prefix, draws: int, stop_at: int | None = None) -> None:
        super().__init__(stop_at)
        self._prefix = prefix
        self._draws = draws
        self._replay = prefix.complete
        self._done = 0
        self._seen: list[Operation] = []
        self._needed: dict[int, Any] = {}

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        if kind is not None:
            return
        if not self._replay:
            self._prefix.record(self._seen, self._needed)
        elif self._done != len(self._prefix.operations):
            raise OperationsDifferError(
                f"{self._done} operations on the frames where an earlier pass did "
                f"{len(self._prefix.operations)}"
            )

    def _call(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        marked = [t for t in tensors_in((*args, *kwargs.values())) if hasattr(t, ORIGIN)]
        if not marked:
            return func(*args, **kwargs)
        of_frames = [tensor for tensor in marked if getattr(tensor, ORIGIN) == FRAMES]
        if len(of_frames) < len(marked):
            return self._call_on_draws(func, args, kwargs, of_frames)
        return self._call_on_frames(func, args, kwargs)

    def _call_on_draws(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        of_frames: Sequence[Tensor],
    ) -> Any:
        """Return the result of an operation on draws, for which tensors of frames are repeated."""
        if of_frames:
            self._keep(of_frames)
            in_place = func.__name__.endswith("_") or "inplace" in kwargs
            args = tuple(self._repeat(value, in_place) for value in args)
            kwargs = {name: self._repeat(value, in_place) for name, value in kwargs.items()}
        if func in _JOINS and self._draws > 1:
            args = (self._as_many_rows(args[0]), *args[1:])
        output = func(*args, **kwargs)
        for tensor in tensors_in([output]):
            mark(tensor, DRAWS)
        return output

    def _call_on_frames(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return the result of an operation on frames alone, recorded or computed."""
        # Only these are counted: how many operations there are on draws may depend on their number.
        place = self._done
        self._done += 1
        call = _call_of(func, args, kwargs)
        if self._replay:
            return self._recorded(place, call)
        output = func(*args, **kwargs)
        whole = weakref.ref(output) if isinstance(output, Tensor) else output
        for tensor in tensors_in([output]):
            mark(tensor, FRAMES)
            setattr(tensor, _OPERATION, (place, whole))
        self._seen.append(Operation(call, _placeholder(output)))
        return output

    def _recorded(self, place: int, call: tuple[Any, ...]) -> Any:
        """Return the result of an operation that an earlier pass did."""
        operations = self._prefix.operations
        if place >= len(operations) or operations[place].call != call:
            raise OperationsDifferError(
                f"operation {place + 1} on the frames is {call[0].__name__}, which it was not in "
                "an earlier pass"
            )
        return operations[place].result

    def _keep(self, shared: Iterable[Tensor]) -> None:
        for tensor in shared:
            place, output = getattr(tensor, _OPERATION, (None, None))
            if place is not None:
                self._needed[place] = output() if isinstance(output, weakref.ref) else output

    def _repeat(self, value: Any, in_place: bool) -> Any:
        """Return an argument, in which rows of frames are repeated for each draw."""
        if isinstance(value, Tensor) and getattr(value, ORIGIN, None) == FRAMES:
            # cat keeps the memory format, repeat does not.
            return torch.cat([value] * self._draws) if self._draws > 1 or in_place else value
        if isinstance(value, list | tuple):
            return type(value)(self._repeat(item, in_place) for item in value)
        return value

    def _as_many_rows(self, joined: Any) -> Any:
        """Return tensors that are joined; constants that a network made for the number of frames
        are repeated like the frames.
        """
        if not isinstance(joined, list | tuple):
            return joined
        rows = max(tensor.shape[0] for tensor in joined)
        alike = []
        for tensor in joined:
            is_of_frames = tensor.shape[0] * self._draws == rows
            alike.append(torch.cat([tensor] * self._draws) if is_of_frames else tensor)
        return alike


def _call_of(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """Return what tells one operation from another: the function, the shapes of its tensors, its
    numbers and its texts.
    """
    return (func, _form(args), _form(kwargs))


def _form(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.shape
    if isinstance(value, list | tuple):
        return [_form(item) for item in value]
    if isinstance(value, dict):
        return [(name, _form(item)) for name, item in value.items()]
    if isinstance(value, slice):
        return [_form(item) for item in (value.start, value.stop, value.step)]
    return value if isinstance(value, _COMPARED) else type(value)


def _placeholder(output: Any) -> Any:
    """Return the same value with tensors that have a shape but no memory; the self-check finds
    their NaN in the logits if they are used.
    """
    if isinstance(output, Tensor):
        number = torch.nan if output.is_floating_point() or output.is_complex() else 0
        single = torch.full((), number, dtype=output.dtype, device=output.device)
        return mark(single.expand(output.shape), FRAMES)
    if isinstance(output, list | tuple) and any(True for _ in tensors_in(output)):
        values = [_placeholder(value) for value in output]
        # torch.return_types take one sequence, named tuples take their fields.
        return output._make(values) if hasattr(output, "_make") else type(output)(values)
    return output
