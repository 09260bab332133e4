"""What passes of draws leave out: layers that give the same result for every draw, and the
network's last upsampling.

Torch function modes follow every call of a pass, so nothing is found by names. What they do not
see, and what the network's code does with values, is found once for each size by
:mod:`segunc.sampling.dependence`."""

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
    """Bilinear interpolation of ``[N, C, h, w]``, of which the upper left part is kept."""

    source: tuple[int, int]  # (h, w)
    full: tuple[int, int]  # (height, width) after the interpolation
    kept: tuple[int, int]  # (H, W) that is left after cropping the lower and right border away
    align_corners: bool = (
        False  # whether corner pixels lie on corner pixels (smp) or pixel areas match (torchvision)
    )
    # The scale factors that were asked for, None where a size was: PyTorch computes positions from
    # a factor.
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
        """Return for each kept row (axis 0) or column (axis 1) two source lines (int32) and the
        second's weight (float32).
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
    position = torch.arange(kept, dtype=torch.float32)
    if source == full:
        return position.int(), position.int(), torch.zeros(kept, dtype=torch.float32)
    if corners:
        at = position * torch.tensor(
            (source - 1) / (full - 1) if full > 1 else 0.0, dtype=torch.float32
        )
    else:
        scale = torch.tensor(source / full if factor is None else 1.0 / factor, dtype=torch.float32)
        at = ((position + 0.5) * scale - 0.5).clamp_min(0.0)
    first = at.floor().clamp_max(source - 1)
    second = (first + 1).clamp_max(source - 1)
    return first.int(), second.int(), (at - first).clamp(0.0, 1.0)


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
        self._stop_at, self._interpolations = stop_at, 0

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


class InterpolationWatch(InterpolationCounter):
    """Follows the output of a pass's last interpolation, in the first pass of a frame size. If it
    is bilinear and the very tensor that the network returns, but for a crop and its type, later
    passes end before it. That the numbers are equal on one frame would not do: a clamp or a mask
    behind the upsampling may change none of them. ``dependence`` is what the network's code does
    with values of the frame and of the draw
    (:class:`segunc.sampling.dependence.DependenceWatch`)."""

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
        with self.dependence.function():
            output = func(*args, **kwargs)
        # What is read here is none of the network's own operations.
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
        call = dict(zip(names, args, strict=False)) | kwargs
        self._last = (call["input"], _upsampling(call, output))
        self._ends = [output]
        self.dependence.guarded = Memory()
        self.dependence.guarded.add(self._ends)
        self.dependence.written = False

    def _continue(self, name: str, args: tuple[Any, ...], output: Any) -> None:
        """Take a function of the interpolation's output: a crop or a cast of it is still the end,
        anything else is none."""
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
        """Return the ending of the watched pass if its last interpolation made ``logits``, but for
        a crop and the type.
        """
        low, upsampling = self._last or (None, None)
        if low is None or upsampling is None:
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
    (a, b) = (
        (t.untyped_storage()._cdata, t.storage_offset(), t.stride(), t.shape[:2])
        for t in (part, whole)
    )
    return a == b


def _upsampling(arguments: dict[str, Any], output: Tensor) -> Upsampling | None:
    """Return what an interpolation did, or None if it is not plainly bilinear or makes the map
    narrower.
    """
    low = arguments["input"]
    if arguments.get("mode") != "bilinear" or arguments.get("antialias") or low.ndim != 4:
        return None
    factor = None if arguments.get("recompute_scale_factor") else arguments.get("scale_factor")
    pair = factor if isinstance(factor, list | tuple) else (factor, factor)
    factors = None if factor is None else (float(pair[0]), float(pair[1]))
    source, full = ((t.shape[-2], t.shape[-1]) for t in (low, output))
    if (
        source[1] > full[1]
    ):  # the compiled tail has buffers for maps that get wider, and low resolution is no gain here
        return None
    return Upsampling(source, full, full, bool(arguments.get("align_corners")), factors)


_OPERATION = "segunc_operation"
_JOINS = (torch.cat, torch.concat, torch.concatenate)
_COMPARED = (int, float, str, torch.dtype, torch.device)
"""Types of arguments by whose values operations are told from each other; of others the type alone
is compared."""


def mark(tensor: Tensor, origin: str) -> Tensor:
    """Mark a tensor as coming from ``FRAMES`` alone, or from ``DRAWS`` too, and return it."""
    setattr(tensor, ORIGIN, origin)
    return tensor


class OperationsDifferError(RuntimeError):
    """A pass does other operations on the frames than the recorded one did, so that its results are
    none of this pass."""


@dataclass(frozen=True)
class Operation:
    """One recorded operation on frames."""

    call: tuple[Any, ...]  # the function and the form of its arguments, see :func:`_call_of`
    # What it returned; a tensor that no draw meets is a placeholder without memory.
    result: Any


class Prefix:
    """Results of one set of frames that all draws share; empty before the first pass."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []  # those on frames, in the order of the network's code
        self.needed: tuple[int, ...] = ()  # the places of those whose results draws meet
        self.complete = False  # whether a pass has been recorded

    def record(self, operations: Sequence[Operation], needed: dict[int, Any]) -> None:
        """Take what a pass has seen: operations with placeholders, and results ``needed`` by draws,
        by their place."""
        for tensor in tensors_in(needed.values()):
            mark(tensor, FRAMES)
        self.operations = list(operations)
        for place, result in needed.items():
            self.operations[place] = replace(operations[place], result=result)
        self.needed = tuple(needed)
        self.complete = True


class SharePrefix(InterpolationCounter):
    """Records an empty :class:`Prefix`, or uses another, in one pass of so many draws. The first
    pass over some frames marks results, of frames only or of draws too, and remembers those of
    frames that meet draws; further passes take them from there and skip what led to them. Marked
    tensors keep one row for each frame and are repeated for the draws where they meet them. Of
    networks that share an encoder the parameters in which they differ are marked as draws are.

    A result is taken for an operation of the same function and the same form of arguments only. A
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
        shared = [t for t in marked if getattr(t, ORIGIN) == FRAMES]
        if len(shared) < len(marked):
            if shared:
                self._keep(shared)
                in_place = func.__name__.rstrip("_") != func.__name__ or "inplace" in kwargs
                args = tuple(self._repeat(a, in_place) for a in args)
                kwargs = {name: self._repeat(value, in_place) for name, value in kwargs.items()}
            if func in _JOINS and self._draws > 1:
                args = (self._as_many_rows(args[0]), *args[1:])
            output = func(*args, **kwargs)
            for tensor in tensors_in([output]):
                mark(tensor, DRAWS)
            return output
        # Only operations on frames are counted: how many there are on draws may depend on their
        # number.
        place = self._done
        self._done += 1
        call = _call_of(func, args, kwargs)
        if self._replay:
            return self._recorded(place, call)
        output = func(*args, **kwargs)
        for tensor in tensors_in([output]):
            mark(tensor, FRAMES)
            setattr(
                tensor,
                _OPERATION,
                (place, weakref.ref(output) if isinstance(output, Tensor) else output),
            )
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
        """Return an argument with one row for each draw and frame in place of one for
        each frame.
        """
        if isinstance(value, Tensor) and getattr(value, ORIGIN, None) == FRAMES:
            # cat keeps the memory format, repeat does not.
            return torch.cat([value] * self._draws) if self._draws > 1 or in_place else value
        if isinstance(value, list | tuple):
            return type(value)(self._repeat(v, in_place) for v in value)
        return value

    def _as_many_rows(self, joined: Any) -> Any:
        """Return tensors that are joined; constants that a network made for the number of frames
        are repeated like the frames.
        """
        if not isinstance(joined, list | tuple):
            return joined
        rows = max(t.shape[0] for t in joined)
        return [
            torch.cat([t] * self._draws) if t.shape[0] * self._draws == rows else t for t in joined
        ]


def _call_of(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """Return what tells one operation from another: the function, the shapes of its tensors and its
    numbers and texts."""
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
        return mark(
            torch.full((), number, dtype=output.dtype, device=output.device).expand(output.shape),
            FRAMES,
        )
    if isinstance(output, list | tuple) and any(True for _ in tensors_in(output)):
        values = [_placeholder(value) for value in output]
        # torch.return_types take one sequence, named tuples take their fields.
        return output._make(values) if hasattr(output, "_make") else type(output)(values)
    return output
