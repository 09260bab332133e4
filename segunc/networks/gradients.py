"""Passes with gradients of networks that have predicted before: what a network kept from a pass in
inference mode cannot be trained with.
"""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor, nn

from segunc.core.errors import InputError


def run_with_gradients(network: nn.Module, images: Tensor) -> Tensor:
    """Return what a network makes of images ``[N, 3, H, W]``, for a backward pass.

    Constants that the network kept from a pass in inference mode (a grid, a mask) are replaced by
    equal tensors that autograd takes.

    Raises:
        InputError: such a tensor lies where it cannot be replaced, in a closure or a cache of a
            function.
    """
    try:
        return cast(Tensor, network(images))
    except RuntimeError as error:
        if not _is_of_inference(error):
            raise
    replace_inference_tensors(network)
    try:
        return cast(Tensor, network(images))
    except RuntimeError as error:
        if not _is_of_inference(error):
            raise
        message = "the network keeps a tensor that it made in inference mode, when it predicted"
        hint = "load or build it again, and train it before it predicts"
        raise InputError(message, hint=hint) from error


def _is_of_inference(error: RuntimeError) -> bool:
    return "inference tensor" in str(error).lower()


def replace_inference_tensors(network: nn.Module) -> None:
    """Replace the tensors of inference mode that modules hold, in their attributes and in
    dictionaries, lists and tuples there, by copies outside of it.
    """
    seen = set[int]()
    for module in network.modules():
        _replace_in(vars(module), seen)


def _replace_in(values: dict[Any, Any] | list[Any], seen: set[int]) -> None:
    if id(values) in seen:
        return
    seen.add(id(values))
    keys = list(values) if isinstance(values, dict) else range(len(values))
    for key in keys:
        values[key] = _outside_inference(values[key], seen)


def _outside_inference(value: Any, seen: set[int]) -> Any:
    if isinstance(value, Tensor) and value.is_inference():
        copied = value.detach().clone()
        if isinstance(value, nn.Parameter):
            return nn.Parameter(copied, requires_grad=value.requires_grad)
        return copied
    if isinstance(value, dict | list):
        _replace_in(value, seen)
    elif type(value) is tuple:
        return tuple(_outside_inference(item, seen) for item in value)
    return value
