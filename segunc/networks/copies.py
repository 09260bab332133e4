"""Copies of networks that are compared with their original before anything trusts them. Python
copies neither functions nor what these hold: a hook that is a closure keeps writing into the
original, and the copy would read features of another image there.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from segunc.core.errors import InputError, NotFiniteError, is_out_of_memory, one_line
from segunc.core.modes import eval_mode
from segunc.networks.network import PROBE_SIZES, SegmentationNetwork, channels_of
from segunc.uncertainty import relative_difference

N = TypeVar("N", bound=nn.Module)
ROUNDING = 1e-3
"""Largest difference between logits of a copy and of its original, as a share of the largest logit,
that counts as rounding.
"""
HINT = (
    "let a hook keep features in the module that it is called with, "
    "not in an object of the code around it"
)


def copy_network(network: N, channels: int | None = None) -> N:
    """Return a deep copy of a network, in the same modes, that was compared with it on two frames.

    Args:
        network: to copy.
        channels: of the frames; None takes those that the network says.

    Raises:
        InputError: the network cannot be copied, or the copy needs something of the original, such
            as what a hook left there.
    """
    try:
        copied = copy.deepcopy(network)
    except Exception as error:  # whatever a network's own __deepcopy__ may raise
        raise InputError(f"the network cannot be copied ({one_line(error)})", hint=HINT) from error
    check_copy(network, copied, channels)
    return copied


def check_copyable(network: nn.Module) -> None:
    """Raise InputError where a copy of the network's modules would not do what they do; parameters
    are not copied for it.
    """
    memo: dict[int, Any] = {}
    for tensor in (*network.parameters(), *network.buffers()):
        memo[id(tensor)] = tensor
    try:
        copied = copy.deepcopy(network, memo)
    except Exception as error:  # whatever a network's own __deepcopy__ may raise
        raise InputError(f"the network cannot be copied ({one_line(error)})", hint=HINT) from error
    check_copy(network, copied)


@torch.no_grad()
def check_copy(network: nn.Module, copied: nn.Module, channels: int | None = None) -> None:
    """Compare a copy with its original, both in eval mode.

    The original sees another frame first: what it keeps of it shows where the copy reads that. Of a
    network that draws random numbers, only the layers and tensors that its copy uses are compared.

    The frames have so many ``channels``; None takes those that the network says.

    Raises:
        InputError: the copy fails, uses layers or tensors of the original, or returns something
            else; or the original fails on all frames.
        NotFiniteError: the original returns NaN or infinite values.
    """
    with eval_mode((network, copied)), torch.random.fork_rng(devices=[]):
        frames = frames_that_run(network, channels or channels_of(network))
        _run(network, frames.flip(-1).square())
        with _uses_of_the_original(network, copied) as uses:
            outputs = _run_copy(copied, frames)
        if uses:
            message = (
                f"a copy of the network would use {uses[0]} of the original, and cannot be trusted"
            )
            raise InputError(message, hint=HINT)
        expected = _run(network, frames)
        difference = _difference(outputs, expected)
        if difference <= ROUNDING:
            return
        if not all(bool(torch.isfinite(output).all()) for output in expected):
            raise NotFiniteError("the network returns NaN or infinite values")
        # A network that draws random numbers differs from itself.
        if _difference(_run(network, frames), expected) > ROUNDING:
            return
    message = f"a copy of the network gives other logits, by {difference:.1e} of the largest"
    raise InputError(f"{message}: it reads something that stays in the original", hint=HINT)


def frames_that_run(network: nn.Module, channels: int) -> Tensor:
    """Return a frame ``[1, channels, H, W]`` in 0..1 of the first size that a network takes."""
    sizes: tuple[tuple[int, int], ...] = PROBE_SIZES
    if isinstance(network, SegmentationNetwork) and network.description.inference_size:
        sizes = (*PROBE_SIZES, network.description.inference_size)
    first = next(network.parameters())
    failure = ""
    for size in sizes:
        generator = torch.Generator().manual_seed(0)
        frames = torch.rand(1, channels, *size, generator=generator, dtype=torch.float32)
        frames = frames.to(first.device, first.dtype)
        try:
            network(frames)
        except Exception as error:  # whatever somebody else's forward raises
            if is_out_of_memory(error):
                raise
            failure = failure or one_line(error)
            continue
        return frames
    tried = ", ".join(f"{height} x {width}" for height, width in sizes)
    message = f"a copy of the network cannot be checked: it fails on frames of {tried}"
    raise InputError(f"{message} ({failure})", hint="give the size it was made for")


def _run(network: nn.Module, frames: Tensor) -> list[Tensor]:
    """Return the floating tensors that a network returns, with the same random numbers in every
    call.
    """
    torch.manual_seed(0)
    leaves = [leaf for leaf in tree_leaves(network(frames)) if isinstance(leaf, Tensor)]
    return [leaf.clone() for leaf in leaves if leaf.is_floating_point() and leaf.ndim > 1]


def _run_copy(copied: nn.Module, frames: Tensor) -> list[Tensor]:
    """Do :func:`_run` with a copy whose original does not fail."""
    try:
        return _run(copied, frames)
    except Exception as error:  # whatever somebody else's forward raises
        if is_out_of_memory(error):
            raise
        message = f"a copy of the network fails where the network does not ({one_line(error)})"
        raise InputError(message, hint=HINT) from error


def _difference(outputs: list[Tensor], expected: list[Tensor]) -> float:
    """Return the largest relative difference of two sets of outputs; infinite where their shapes
    differ.
    """
    if [output.shape for output in outputs] != [output.shape for output in expected]:
        return float("inf")
    pairs = zip(outputs, expected, strict=True)
    return max((relative_difference(output, other) for output, other in pairs), default=0.0)


@contextmanager
def _uses_of_the_original(network: nn.Module, copied: nn.Module) -> Iterator[list[str]]:
    """Write down which layers and tensors of the original, by their names, are used while open; not
    those that both have.
    """
    layers = _names_of_the_original(network.named_modules(), copied.modules())
    tensors = _names_of_the_original(
        (*network.named_parameters(), *network.named_buffers()),
        (*copied.parameters(), *copied.buffers()),
    )
    uses: list[str] = []

    def called(module: nn.Module, inputs: Any) -> None:
        if id(module) in layers:
            uses.append(f"the layer {layers[id(module)] or type(module).__name__}")

    handle = register_module_forward_pre_hook(called)
    try:
        with _TensorUses(tensors, uses):
            yield uses
    finally:
        handle.remove()


def _names_of_the_original(
    named: Iterable[tuple[str, object]], parts_of_the_copy: Iterable[object]
) -> dict[int, str]:
    """Return the names, by identity, of the parts of a network that its copy does not have."""
    shared = {id(part) for part in parts_of_the_copy}
    return {id(part): name for name, part in named if id(part) not in shared}


class _TensorUses(TorchFunctionMode):
    """Writes down which of some tensors, names by identity, functions take."""

    def __init__(self, names: dict[int, str], uses: list[str]) -> None:
        super().__init__()
        self._names = names
        self._uses = uses

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        for leaf in tree_leaves((args, kwargs)):
            if id(leaf) in self._names:
                self._uses.append(f"the tensor {self._names[id(leaf)]}")
        return func(*args, **(kwargs or {}))
