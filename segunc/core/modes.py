"""Networks in eval mode for as long as something runs them, whatever mode they are in between."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def eval_mode(networks: Iterable[nn.Module]) -> Iterator[list[str]]:
    """Put networks into eval mode while open, and give each of their modules its own mode back at
    the end, also after an error. Yield the names of the modules that stay in training mode by a
    ``train`` or ``eval`` method of their own."""
    before = _modes(networks)
    in_training = any(before.values())
    try:
        if in_training:
            for network in networks:
                network.eval()
        yield [] if not in_training else _still_in_training(networks)
    finally:
        if in_training:
            _restore(networks, before)


@contextmanager
def kept_modes(networks: Iterable[nn.Module]) -> Iterator[None]:
    """Give each module of networks its own mode back at the end, also after an error."""
    before = _modes(networks)
    try:
        yield
    finally:
        _restore(networks, before)


def _modes(networks: Iterable[nn.Module]) -> dict[nn.Module, bool]:
    """Return for each module of the networks, a module before its children, whether it is in
    training mode."""
    modes: dict[nn.Module, bool] = {}
    for network in networks:
        for module in network.modules():
            modes[module] = module.training
    return modes


def _still_in_training(networks: Iterable[nn.Module]) -> list[str]:
    names = []
    for network in networks:
        for name, module in network.named_modules():
            if module.training:
                names.append(name or type(module).__name__)
    return names


def _restore(networks: Iterable[nn.Module], before: dict[nn.Module, bool]) -> None:
    """Give modules their modes back. A module with a ``train`` of its own gets it called, because
    that may do more than set a flag: layers of low-rank adapters merge their weights in eval mode
    and take them apart in training mode. It also sets the modes of its children, which come after
    it."""
    for module in _modes(networks):
        wanted = before.get(module, module.training)
        if module.training == wanted:
            continue
        if type(module).train is not nn.Module.train:
            module.train(wanted)
        if module.training != wanted:
            module.training = wanted
