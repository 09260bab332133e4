"""Networks that end in a bilinear upsampling: found by watching, stopped before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from segunc.sampling.upsampling import Upsampling


@dataclass(frozen=True)
class Ending:
    """The upsampling that makes the logits, and which of the network's interpolations it is, counted from 1."""

    upsampling: Upsampling
    call: int


class EndReachedError(Exception):
    """Ends a forward pass; carries the low-resolution logits."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__("the last upsampling was reached")
        self.logits = logits


class InterpolationWatch(TorchFunctionMode):
    """Counts the interpolations of a forward pass, remembers the last, and may stop before one.

    Args:
        stop_at: raise :class:`EndReachedError` in place of this interpolation.
    """

    def __init__(self, stop_at: int | None = None) -> None:
        super().__init__()
        self._stop_at = stop_at
        self._calls = 0
        self._last: tuple[Tensor, Upsampling | None] | None = None

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is not F.interpolate:
            return func(*args, **(kwargs or {}))
        self._calls += 1
        given = dict(zip(("input", "size", "scale_factor", "mode", "align_corners"), args, strict=False))
        given |= kwargs or {}
        if self._calls == self._stop_at:
            raise EndReachedError(given["input"])
        output = func(*args, **(kwargs or {}))
        self._last = given["input"], _upsampling(given, output)
        return output

    def ending(self, logits: Tensor) -> Ending | None:
        """The ending of the watched pass if its last interpolation made ``logits``, but for a crop and the type."""
        low, upsampling = self._last or (None, None)
        if low is None or upsampling is None:
            return None
        kept = (logits.shape[-2], logits.shape[-1])
        if low.shape[:2] != logits.shape[:2] or any(k > f for k, f in zip(kept, upsampling.full, strict=True)):
            return None
        found = Upsampling(upsampling.source, upsampling.full, kept, upsampling.align_corners, upsampling.factors)
        # The very same operation on the same numbers: equality is exact, and a network that goes on computing fails it.
        return Ending(found, self._calls) if torch.equal(found.apply(low).to(logits.dtype), logits) else None


def _upsampling(given: dict[str, Any], output: Tensor) -> Upsampling | None:
    """What an interpolation did, or None if it is not plainly bilinear."""
    low = given["input"]
    if given.get("mode") != "bilinear" or given.get("antialias") or low.ndim != 4:
        return None
    factor = None if given.get("recompute_scale_factor") else given.get("scale_factor")
    factors = None
    if factor is not None:
        pair = factor if isinstance(factor, list | tuple) else (factor, factor)
        factors = (float(pair[0]), float(pair[1]))
    source, full = ((t.shape[-2], t.shape[-1]) for t in (low, output))
    return Upsampling(source, full, full, bool(given.get("align_corners")), factors)
