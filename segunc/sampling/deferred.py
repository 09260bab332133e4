"""Drawn affines of a pass on a CPU, computed together with what follows them.

A drawn affine, the addition of a residual and a ReLU are three passes over memory, where a compiler
makes one. Here an affine waits for the next function that the network calls. If that is an addition
in the place of its result, or a clamp, they are computed together; before any other function the
affine is computed alone. Behind a clamp that returns a tensor of its own, the affine waits on: as a
rule nobody holds its result any more when the next function is called, and it is never computed.
Every function of torch comes by here first, so none reads the result while it waits. Where code
could do so unseen, nothing waits (``Engine.followed``).
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from segunc.sampling.native import PIECES, Library, compiled

SOURCE = Path(__file__).with_name("affine_native.cpp")
_ADDITIONS = (Tensor.add_, Tensor.__iadd__)
_RELUS = (torch.relu, Tensor.relu)
_RELUS_IN_PLACE = (torch.relu_, Tensor.relu_)
_TYPES = (torch.bfloat16, torch.float32)


@functools.cache
def native_affine() -> Library:
    """Return the compiled function of this machine."""
    library = compiled(SOURCE)
    if library.functions is not None:
        pointer = ctypes.c_void_p
        number = ctypes.c_int64
        library.functions.segunc_affine.argtypes = [
            *[pointer] * 5,  # feature maps, scale, shift, addend and result
            ctypes.c_int32,  # whether they are bfloat16
            *[number] * 3,  # channels, pixels of an image, and the stride of scale and shift
            ctypes.c_int32,  # whether there is a clamp, and its bounds
            ctypes.c_float,
            ctypes.c_float,
            *PIECES,
        ]
    return library


@dataclass(frozen=True)
class WaitingAffine:
    """An affine whose result has its memory, but not its numbers yet.

    Attributes:
        maps: ``[n, C, H, W]``, channels last.
        scale: ``[n, C, 1, 1]`` or ``[1, C, 1, 1]``.
        shift: likewise.
        addend: what is added to the affine, like ``maps``; None for nothing.
    """

    maps: Tensor
    scale: Tensor
    shift: Tensor
    addend: Tensor | None = None

    def compute(self, result: Tensor, bounds: tuple[float, float] | None = None) -> None:
        """Write the numbers into a result like ``maps``, clamped to bounds if there are any."""
        images, channels, height, width = self.maps.shape
        low, high = bounds or (0.0, 0.0)
        tensors = (self.maps, self.scale, self.shift, self.addend, result)
        arguments = (
            *(None if tensor is None else tensor.data_ptr() for tensor in tensors),
            self.maps.dtype == torch.bfloat16,
            channels,
            height * width,
            channels if len(self.scale) > 1 else 0,
            bounds is not None,
            low,
            high,
        )
        native_affine().call("segunc_affine", arguments, images * height * width)


class DeferredAffines:
    """The affines of a pass, of which one may wait. :meth:`call` must get every function of torch
    that the pass calls, and :meth:`settle` its end.
    """

    def __init__(self) -> None:
        self._waiting: WaitingAffine | None = None
        self._reference: weakref.ref[Tensor] | None = None

    def call(
        self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Tensor | None:
        """Return the result of a function that is joined to an affine, or is one that may wait;
        None where the caller shall call it.
        """
        result = self._held_result()
        if self._waiting is not None and result is not None:
            is_about_result = bool(args) and args[0] is result
            if is_about_result:
                joined = self._joined(self._waiting, result, func, args, kwargs)
                if joined is not None:
                    return joined
            self._waiting.compute(result)
        self._forget()
        if func is torch.addcmul and not kwargs:
            return self._begin(*args)
        return None

    def settle(self) -> None:
        """Compute the affine that waits, if there is one whose result somebody holds."""
        result = self._held_result()
        if self._waiting is not None and result is not None:
            self._waiting.compute(result)
        self._forget()

    def _held_result(self) -> Tensor | None:
        """Return the result of the affine that waits; None where nobody else holds it."""
        return None if self._reference is None else self._reference()

    def _forget(self) -> None:
        self._waiting = None
        self._reference = None

    def _begin(self, shift: Any, maps: Any, scale: Any) -> Tensor | None:
        """Return the result of an affine that waits from now on; None for one that may not."""
        self._waiting = _waiting_affine(shift, maps, scale)
        if self._waiting is None:
            return None
        result = torch.empty_like(maps, memory_format=torch.channels_last)
        self._reference = weakref.ref(result)
        return result

    def _joined(
        self,
        waiting: WaitingAffine,
        result: Tensor,
        func: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> Tensor | None:
        """Return what a function of the waiting one's result gives; None where it cannot be
        joined.
        """
        bounds = _bounds_of(func, kwargs, result.dtype)
        if bounds is not None and _is_in_place(func, kwargs):
            waiting.compute(result, bounds)
            self._forget()
            return result
        if bounds is not None:
            clamped = torch.empty_like(result)
            waiting.compute(clamped, bounds)
            return clamped
        addable = func in _ADDITIONS and len(args) == 2 and not kwargs
        if addable and waiting.addend is None and _is_like(args[1], result):
            self._waiting = replace(waiting, addend=args[1])
            return result
        return None


def _waiting_affine(shift: Any, maps: Any, scale: Any) -> WaitingAffine | None:
    """Return ``shift + maps * scale`` as an affine that may wait; None for any other operands."""
    if not isinstance(maps, Tensor) or maps.ndim != 4 or maps.numel() == 0:
        return None
    served = maps.dtype in _TYPES and maps.device.type == "cpu"
    if not served or not _is_channels_last(maps):
        return None
    images, channels = maps.shape[:2]
    for values in (shift, scale):
        if values.shape[1:] != (channels, 1, 1) or len(values) not in (1, images):
            return None
        if values.dtype != maps.dtype or not values.is_contiguous():
            return None
    if len(shift) != len(scale) or native_affine().functions is None:
        return None
    return WaitingAffine(maps, scale, shift)


def _is_in_place(func: Callable[..., Any], kwargs: dict[str, Any]) -> bool:
    """Return whether a clamp writes into the tensor that it clamps."""
    return func in _RELUS_IN_PLACE or bool(kwargs.get("inplace", False))


def _bounds_of(
    func: Callable[..., Any], kwargs: dict[str, Any], dtype: torch.dtype
) -> tuple[float, float] | None:
    """Return the bounds, of this type, of a clamp; None for any other function."""
    if func is F.relu or (func in (*_RELUS, *_RELUS_IN_PLACE) and not kwargs):
        return 0.0, float("inf")
    if func is F.relu6:
        return 0.0, 6.0
    if func is F.hardtanh:
        low, high = torch.tensor([kwargs["min_val"], kwargs["max_val"]], dtype=dtype).tolist()
        return (low, high) if low <= high else None
    return None


def _is_like(other: Any, maps: Tensor) -> bool:
    """Return whether something is a feature map of the same form, and not the same one."""
    if not isinstance(other, Tensor) or other is maps:
        return False
    if other.shape != maps.shape or other.dtype != maps.dtype or other.device != maps.device:
        return False
    return _is_channels_last(other)


def _is_channels_last(maps: Tensor) -> bool:
    """Return whether feature maps are channels last and not both at once, as those of one channel
    or one pixel are: torch may return these in either order.
    """
    return maps.is_contiguous(memory_format=torch.channels_last) and not maps.is_contiguous()
