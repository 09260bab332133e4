"""Eval mode of a network for as long as something runs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def eval_mode(network: nn.Module) -> Iterator[None]:
    """Set eval mode while open, and give every module its own mode back."""
    modes = [(module, module.training) for module in network.modules()]
    if any(training for _, training in modes):
        network.eval()
    try:
        yield
    finally:
        for module, training in modes:
            # A method of its own may do more than set a flag: layers of low-rank adapters merge their weights in it.
            if module.training != training and type(module).train is not nn.Module.train:
                module.train(training)
            module.training = training
