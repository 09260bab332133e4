"""The last upsampling of a network: watched, left out of the pass, and done by the tail.

The first pass of a frame size is watched. If its last interpolation is bilinear and returns the very tensor that the
network returns, but for a crop and its type, later passes end before it. This covers smp and torchvision heads and any
other network that ends so, without knowing them; a network that ends otherwise hands full-resolution logits to the tail.
That the numbers are equal on one frame would not do: a clamp or a mask behind the upsampling may change none of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


@dataclass(frozen=True)
class Upsampling:
    """Bilinear interpolation of ``[N, C, h, w]``, of which the upper left part is kept."""

    source: tuple[int, int]  # (h, w)
    full: tuple[int, int]  # (height, width) after the interpolation
    kept: tuple[int, int]  # (H, W) that is left after cropping the lower and right border away
    align_corners: bool = False  # whether corner pixels lie on corner pixels (smp) or pixel areas match (torchvision)
    # The scale factors that were asked for, None where a size was: PyTorch computes positions from a factor.
    factors: tuple[float, float] | None = None

    @classmethod
    def none(cls, size: tuple[int, int]) -> Upsampling:
        return cls(size, size, size)

    def apply(self, logits: Tensor) -> Tensor:
        if self.source != self.full:
            size = self.full if self.factors is None else None
            logits = F.interpolate(logits, size, self.factors, mode="bilinear", align_corners=self.align_corners)
        return logits[..., : self.kept[0], : self.kept[1]]

    def taps(self, axis: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return for each kept row (axis 0) or column (axis 1) two source lines (int32) and the second's weight (float32)."""
        factor = None if self.factors is None else self.factors[axis]
        return _taps(self.source[axis], self.full[axis], self.kept[axis], self.align_corners, factor)


@functools.lru_cache(maxsize=64)
def _taps(source: int, full: int, kept: int, corners: bool, factor: float | None) -> tuple[Tensor, Tensor, Tensor]:
    # float32 on purpose: the positions shall round as they do in PyTorch's own kernels.
    position = torch.arange(kept, dtype=torch.float32)
    if source == full:
        return position.int(), position.int(), torch.zeros(kept)
    if corners:
        at = position * torch.tensor((source - 1) / (full - 1) if full > 1 else 0.0, dtype=torch.float32)
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


READS = {"__bool__", "__iter__", "__int__", "__float__", "__index__", "item", "tolist", "numpy", "equal", "nonzero"}
"""Functions that give a network's Python code the values of a tensor, or a shape that depends on them."""
_CASTS = {"to", "float", "double", "half", "bfloat16", "type", "type_as", "contiguous", "clone"}
_ON_INPUT = "segunc_on_input"


class InterpolationWatch(TorchFunctionMode):
    """Counts the interpolations of a pass, follows the output of the last, and raises :class:`EndReachedError` for ``stop_at``. ``reads`` is
    whether the network's Python code read values that depend on its input, so that another frame or draw may take another branch."""

    def __init__(self, stop_at: int | None = None) -> None:
        super().__init__()
        self._stop_at, self._calls = stop_at, 0
        self._last: tuple[Tensor, Upsampling | None] | None = None
        # The output of the last interpolation, its crops and casts; empty once it was changed.
        self._ends: list[Tensor] = []
        self.reads = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.interpolate:
            self._calls += 1
            if self._calls == self._stop_at:
                raise EndReachedError(args[0] if args else kwargs["input"])
        output = func(*args, **kwargs)
        if self._stop_at is None:
            self._follow(func, args, kwargs, output)
        return output

    def _follow(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        inputs, name = list(tensors_in((*args, *kwargs.values()))), func.__name__
        if any(hasattr(tensor, _ON_INPUT) for tensor in inputs):
            selects = name == "__getitem__" and any(t.dtype == torch.bool for t in tensors_in([args[1]]))
            self.reads |= name in READS or selects
            for tensor in tensors_in([output]):
                on_input(tensor)
        if func is F.interpolate:
            call = dict(zip(("input", "size", "scale_factor", "mode", "align_corners"), args, strict=False)) | kwargs
            self._last, self._ends = (call["input"], _upsampling(call, output)), [output]
        elif any(tensor is end for tensor in inputs for end in self._ends):
            outputs = list(tensors_in([output]))
            if len(outputs) == 1 and (
                (name == "__getitem__" and _is_upper_left_part(outputs[0], args[0]))
                or (name in _CASTS and outputs[0].is_floating_point() and outputs[0].shape == args[0].shape)
            ):
                self._ends += outputs
            elif outputs or output is None:  # what returns neither looked at a shape or a type
                self._ends = []

    def ending(self, logits: Tensor) -> Ending | None:
        """Return the ending of the watched pass if its last interpolation made ``logits``, but for a crop and the type."""
        low, upsampling = self._last or (None, None)
        if low is None or upsampling is None or self.reads or not any(logits is end for end in self._ends):
            return None
        cropped = replace(upsampling, kept=(logits.shape[-2], logits.shape[-1]))
        # The very same operation on the same numbers: this finds what changed them unseen (scripted code).
        equal = low.shape[:2] == logits.shape[:2] and torch.equal(cropped.apply(low).to(logits.dtype), logits)
        return Ending(cropped, self._calls) if equal else None


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
    storages = (tensor.untyped_storage()._cdata for tensor in (part, whole))
    same = len(set(storages)) == 1 and part.storage_offset() == whole.storage_offset()
    return bool(same and part.stride() == whole.stride() and part.shape[:2] == whole.shape[:2])


def _upsampling(arguments: dict[str, Any], output: Tensor) -> Upsampling | None:
    """Return what an interpolation did, or None if it is not plainly bilinear."""
    low = arguments["input"]
    if arguments.get("mode") != "bilinear" or arguments.get("antialias") or low.ndim != 4:
        return None
    factor = None if arguments.get("recompute_scale_factor") else arguments.get("scale_factor")
    pair = factor if isinstance(factor, list | tuple) else (factor, factor)
    factors = None if factor is None else (float(pair[0]), float(pair[1]))
    source, full = ((t.shape[-2], t.shape[-1]) for t in (low, output))
    return Upsampling(source, full, full, bool(arguments.get("align_corners")), factors)
