"""Layers before the first noisy layer give the same result for every draw, so they run once per frame.

Everything before the first site whose draws differ depends on the frames alone: with the scope ``decoder`` the encoder,
with ``all`` the stem's convolution. A torch function mode follows every operation of a forward pass and marks its
results: from frames only, or from draws too. The first pass over some frames remembers the results that later meet
draws; further passes over the same frames take them from there and skip what led to them. Marked tensors keep one row
for each frame and are repeated for the draws where they meet them. Nothing is found by names and skip connections need
no special case; export and symbolic traces fail on some architectures, and are bound to a size of frame.

Networks of one build that have parameters in common (decoders on one encoder) share results in the same way: the parameters in
which they differ are marked as draws are, and one prefix of a frame serves all of them (:func:`segunc.sampling.engine.own_tensors`).

A network for which this does not hold (it takes results out of in-place operations by other names, or calls scripted
code) is found by the self-check, which compares with the plain computation.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from segunc.affine.convert import DRAWS, FRAMES, ORIGIN
from segunc.sampling.ending import EndReachedError, tensors_in

_CALL = "segunc_call"
_JOINS = (torch.cat, torch.concat, torch.concatenate)


def mark(tensor: Tensor, origin: str) -> Tensor:
    """Mark a tensor as coming from ``FRAMES`` alone, or from ``DRAWS`` too, and return it."""
    setattr(tensor, ORIGIN, origin)
    return tensor


class Prefix:
    """Results of one set of frames that all draws share; empty before the first pass."""

    def __init__(self) -> None:
        # What each skipped operation returns, by its number among those on frames. Tensors that no draw meets are
        # placeholders of their shape without memory.
        self.results: dict[int, Any] = {}
        self.kept: dict[int, Any] = {}  # those results that meet draws, with their memory
        self.complete = False  # whether a pass has been recorded


class SharePrefix(TorchFunctionMode):
    """A context around one pass of so many draws, which records a :class:`Prefix` that is empty and uses another. It raises
    :class:`EndReachedError` for the interpolation of number ``stop_at``, counted from 1."""

    def __init__(self, prefix: Prefix, draws: int, stop_at: int | None = None) -> None:
        super().__init__()
        self._prefix, self._draws = prefix, draws
        self._stop_at, self._interpolations = stop_at, 0
        self._replay, self._calls = prefix.complete, 0
        self._seen: dict[int, Any] = {}
        self._needed: dict[int, Any] = {}

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        if not self._replay and kind is None:
            self._prefix.results = self._seen | self._needed
            self._prefix.kept, self._prefix.complete = self._needed, True

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.interpolate:
            self._interpolations += 1
            if self._interpolations == self._stop_at:
                raise EndReachedError(args[0] if args else kwargs["input"])
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
        number = self._calls
        self._calls += 1
        if self._replay:
            return self._prefix.results[number]
        output = func(*args, **kwargs)
        for tensor in tensors_in([output]):
            mark(tensor, FRAMES)
            setattr(tensor, _CALL, (number, weakref.ref(output) if isinstance(output, Tensor) else output))
        self._seen[number] = _placeholder(output)
        return output

    def _keep(self, shared: Iterable[Tensor]) -> None:
        for tensor in shared:
            number, output = getattr(tensor, _CALL, (None, None))
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
        return [torch.cat([t] * self._draws) if t.shape[0] * self._draws == rows else t for t in joined]


def _placeholder(output: Any) -> Any:
    """Return the same value with tensors that have a shape but no memory. They hold NaN, which the self-check finds in the logits of
    a network that uses one after all."""
    if isinstance(output, Tensor):
        number = torch.nan if output.is_floating_point() or output.is_complex() else 0
        return mark(torch.full((), number, dtype=output.dtype, device=output.device).expand(output.shape), FRAMES)
    if isinstance(output, list | tuple) and any(True for _ in tensors_in(output)):
        values = [_placeholder(value) for value in output]
        # torch.return_types take one sequence, named tuples take their fields.
        return output._make(values) if hasattr(output, "_make") else type(output)(values)
    return output
