"""The function that a network ends in, seen operator by operator: a sigmoid or a softmax at the end
makes probabilities, not logits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from segunc.core.errors import is_out_of_memory
from segunc.networks.network import logits_in

FUNCTIONS = {
    "sigmoid": "sigmoid",
    "sigmoid_": "sigmoid",
    "hardsigmoid": "sigmoid",
    "hardsigmoid_": "sigmoid",
    "log_sigmoid_forward": "log-sigmoid",
    "_softmax": "softmax",
}
"""By operator, what its outputs come from."""
KEEPING = frozenset(
    {
        "_to_copy",
        "_unsafe_view",
        "alias",
        "cat",
        "clone",
        "constant_pad_nd",
        "detach",
        "permute",
        "select",
        "slice",
        "squeeze",
        "transpose",
        "unsqueeze",
        "upsample_bicubic2d",
        "upsample_bilinear2d",
        "upsample_nearest2d",
        "view",
    }
)
"""Operators behind which probabilities are still probabilities."""


def last_function(network: nn.Module, images: Tensor) -> str:
    """Return the function that a network ends in, perhaps with crops and interpolations behind it.

    Args:
        network: any module.
        images: ``[N, 3, H, W]``, as the network takes them.

    Returns:
        ``sigmoid``, ``log-sigmoid`` or ``softmax``; an empty string for others, and where operators
        cannot be followed.
    """
    watch = _EndingWatch()
    try:
        with torch.no_grad(), watch:
            output = network(images)
    except Exception as error:  # whatever somebody else's forward raises under a dispatch mode
        if is_out_of_memory(error):
            raise
        return ""
    return watch.function_of(logits_in(output))


class _EndingWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows the outputs of :data:`FUNCTIONS`, also those of scripted code."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._functions: Any = WeakIdKeyDictionary()

    def function_of(self, output: Any) -> str:
        return str(self._functions.get(output, "")) if isinstance(output, Tensor) else ""

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        outputs = func(*args, **(kwargs or {}))
        name = str(getattr(func, "overloadpacket", func)).rpartition(".")[2]
        if name in KEEPING:
            functions = [self.function_of(leaf) for leaf in tree_leaves((args, kwargs))]
            function = next(filter(None, functions), "")
        else:
            function = FUNCTIONS.get(name, "")
        for output in tree_leaves(outputs):
            if isinstance(output, Tensor):
                self._functions[output] = function
        return outputs
