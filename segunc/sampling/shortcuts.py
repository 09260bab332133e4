"""What passes of draws leave out: layers that give the same result for every draw, and the network's last upsampling. Torch function modes
follow every operation of a pass, so nothing is found by names."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from segunc.affine.convert import DRAWS, FRAMES, ORIGIN


@dataclass(frozen=True)
class Upsampling:
    """Bilinear interpolation of ``[N, C, h, w]``, of which the upper left part is kept."""

    source: tuple[int, int]  # (h, w)
    full: tuple[int, int]  # (height, width) after the interpolation
    kept: tuple[int, int]  # (H, W) that is left after cropping the lower and right border away
    align_corners: bool = (
        False  # whether corner pixels lie on corner pixels (smp) or pixel areas match (torchvision)
    )
    # The scale factors that were asked for, None where a size was: PyTorch computes positions from a factor.
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
        """Return for each kept row (axis 0) or column (axis 1) two source lines (int32) and the second's weight (float32)."""
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
        return position.int(), position.int(), torch.zeros(kept)
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
    """The upsampling that makes the logits, and which of the network's interpolations it is, counted from 1."""

    upsampling: Upsampling
    call: int


class EndReachedError(Exception):
    """Ends a forward pass; its one argument is the low-resolution logits."""


class InterpolationCounter(TorchFunctionMode):
    """Counts the interpolations of a pass, and raises :class:`EndReachedError` for number ``stop_at``."""

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


READS = {
    "__bool__",
    "__iter__",
    "__int__",
    "__float__",
    "__index__",
    "item",
    "tolist",
    "numpy",
    "equal",
    "nonzero",
}
"""Functions that give a network's Python code the values of a tensor, or a shape that depends on them."""
_CASTS = {"to", "float", "double", "half", "bfloat16", "type", "type_as", "contiguous", "clone"}
_ON_INPUT = "segunc_on_input"


class InterpolationWatch(InterpolationCounter):
    """Follows the output of a pass's last interpolation, in the first pass of a frame size. If it is bilinear and the very tensor that the
    network returns, but for a crop and its type, later passes end before it. That the numbers are equal on one frame would not do: a clamp
    or a mask behind the upsampling may change none of them. ``reads`` is whether the network's Python code read values that depend on its
    input, so that another frame or draw may take another branch."""

    def __init__(self) -> None:
        super().__init__()
        self._last: tuple[Tensor, Upsampling | None] | None = None
        # The output of the last interpolation, its crops and casts; empty once it was changed.
        self._ends: list[Tensor] = []
        self.reads = False

    def _call(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        output = func(*args, **kwargs)
        with (
            torch._C.DisableTorchFunction()
        ):  # what is read here is none of the operations that a prefix counts
            self._look(func, args, kwargs, output)
        return output

    def _look(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        inputs, name = list(tensors_in((*args, *kwargs.values()))), func.__name__
        if any(hasattr(tensor, _ON_INPUT) for tensor in inputs):
            selects = name == "__getitem__" and any(
                t.dtype == torch.bool for t in tensors_in([args[1]])
            )
            self.reads |= name in READS or selects
            for tensor in tensors_in([output]):
                on_input(tensor)
        if func is F.interpolate:
            call = (
                dict(
                    zip(
                        ("input", "size", "scale_factor", "mode", "align_corners"),
                        args,
                        strict=False,
                    )
                )
                | kwargs
            )
            self._last, self._ends = (call["input"], _upsampling(call, output)), [output]
        elif any(tensor is end for tensor in inputs for end in self._ends):
            outputs = list(tensors_in([output]))
            if len(outputs) == 1 and (
                (name == "__getitem__" and _is_upper_left_part(outputs[0], args[0]))
                or (
                    name in _CASTS
                    and outputs[0].is_floating_point()
                    and outputs[0].shape == args[0].shape
                )
            ):
                self._ends += outputs
            elif outputs or output is None:  # what returns neither looked at a shape or a type
                self._ends = []

    def ending(self, logits: Tensor) -> Ending | None:
        """Return the ending of the watched pass if its last interpolation made ``logits``, but for a crop and the type."""
        low, upsampling = self._last or (None, None)
        if (
            low is None
            or upsampling is None
            or self.reads
            or not any(logits is end for end in self._ends)
        ):
            return None
        cropped = replace(upsampling, kept=(logits.shape[-2], logits.shape[-1]))
        # The very same operation on the same numbers: this finds what changed them unseen (scripted code).
        equal = low.shape[:2] == logits.shape[:2] and torch.equal(
            cropped.apply(low).to(logits.dtype), logits
        )
        return Ending(cropped, self._interpolations) if equal else None


def on_input(tensor: Tensor) -> Tensor:
    """Mark a tensor as one whose values depend on a network's input, and return it."""
    setattr(tensor, _ON_INPUT, True)
    return tensor


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among some values and in lists, tuples and dictionaries of them."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)
        elif isinstance(value, dict):
            yield from tensors_in(value.values())


def _is_upper_left_part(part: Tensor, whole: Tensor) -> bool:
    """Return whether a view ``[N, C, h, w]`` begins where ``whole`` does and leaves out nothing but lower rows and right columns."""
    (a, b) = (
        (t.untyped_storage()._cdata, t.storage_offset(), t.stride(), t.shape[:2])
        for t in (part, whole)
    )
    return a == b


def _upsampling(arguments: dict[str, Any], output: Tensor) -> Upsampling | None:
    """Return what an interpolation did, or None if it is not plainly bilinear or makes the map narrower."""
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


def mark(tensor: Tensor, origin: str) -> Tensor:
    """Mark a tensor as coming from ``FRAMES`` alone, or from ``DRAWS`` too, and return it."""
    setattr(tensor, ORIGIN, origin)
    return tensor


class Prefix:
    """Results of one set of frames that all draws share; empty before the first pass."""

    def __init__(self) -> None:
        # What each skipped operation on frames returns, by its number; tensors that no draw meets are placeholders without memory.
        self.results: dict[int, Any] = {}
        self.needed: tuple[int, ...] = ()  # the numbers of those that draws meet
        self.complete = False  # whether a pass has been recorded

    def record(self, seen: dict[int, Any], needed: dict[int, Any]) -> None:
        """Take what a pass has seen: placeholders, and results ``needed`` by draws."""
        for tensor in tensors_in(needed.values()):
            mark(tensor, FRAMES)
        self.results, self.needed, self.complete = seen | needed, tuple(needed), True


class SharePrefix(InterpolationCounter):
    """Records an empty :class:`Prefix`, or uses another, in one pass of so many draws. The first pass over some frames marks results, of
    frames only or of draws too, and remembers those of frames that meet draws; further passes take them from there and skip what led to
    them. Marked tensors keep one row for each frame and are repeated for the draws where they meet them. Of networks that share an encoder
    the parameters in which they differ are marked as draws are."""

    def __init__(self, prefix: Prefix, draws: int, stop_at: int | None = None) -> None:
        super().__init__(stop_at)
        self._prefix, self._draws = prefix, draws
        self._replay, self._operations = prefix.complete, 0
        self._seen: dict[int, Any] = {}
        self._needed: dict[int, Any] = {}

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        if not self._replay and kind is None:
            self._prefix.record(self._seen, self._needed)

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
        # Only operations on frames are counted: how many there are on draws may depend on their number.
        number = self._operations
        self._operations += 1
        if self._replay:
            return self._prefix.results[number]
        output = func(*args, **kwargs)
        for tensor in tensors_in([output]):
            mark(tensor, FRAMES)
            setattr(
                tensor,
                _OPERATION,
                (number, weakref.ref(output) if isinstance(output, Tensor) else output),
            )
        self._seen[number] = _placeholder(output)
        return output

    def _keep(self, shared: Iterable[Tensor]) -> None:
        for tensor in shared:
            number, output = getattr(tensor, _OPERATION, (None, None))
            if number is not None:
                self._needed[number] = output() if isinstance(output, weakref.ref) else output

    def _repeat(self, value: Any, in_place: bool) -> Any:
        """Return an argument with one row for each draw and frame in place of one for each frame."""
        if isinstance(value, Tensor) and getattr(value, ORIGIN, None) == FRAMES:
            # cat keeps the memory format, repeat does not.
            return torch.cat([value] * self._draws) if self._draws > 1 or in_place else value
        if isinstance(value, list | tuple):
            return type(value)(self._repeat(v, in_place) for v in value)
        return value

    def _as_many_rows(self, joined: Any) -> Any:
        """Return tensors that are joined; constants that a network made for the number of frames are repeated like the frames."""
        if not isinstance(joined, list | tuple):
            return joined
        rows = max(t.shape[0] for t in joined)
        return [
            torch.cat([t] * self._draws) if t.shape[0] * self._draws == rows else t for t in joined
        ]


def _placeholder(output: Any) -> Any:
    """Return the same value with tensors that have a shape but no memory; the self-check finds their NaN in the logits if they are used."""
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
