"""The network's own dropout layers as places where draws differ, by the class swap of :mod:`segunc.affine.convert`.

A converted layer gains a second path, taken while masks are active: it multiplies its input by masks made of seeds alone, one for
each draw and each call of the layer within a forward pass, and the same for all frames of one size. It holds no random state, and running statistics of other layers stay untouched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from segunc.affine.noise import mix_seed
from segunc.affine.sites import DRAWS, ORIGIN, rows_of_a_draw, with_mixin
from segunc.core.device import to_device
from segunc.core.errors import InputError

CHANNEL_KINDS: tuple[type[nn.Module], ...] = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
"""They drop whole channels (axis 1)."""
KINDS: tuple[type[nn.Module], ...] = (nn.Dropout, *CHANNEL_KINDS)


@dataclass
class DropoutState:
    """What a layer reads while masks are active, set from outside: the probability that an element (or a channel) is dropped, and
    a seed for each draw, None for one that drops nothing."""

    p: float = 0.0
    seeds: Sequence[int | None] = ()
    active: bool = False
    calls: int = 0  # of the layer since the masks became active


class DropoutSite:
    """Mixin in front of a dropout layer's class."""

    segunc_dropout: DropoutState

    def forward(self, x: Tensor) -> Tensor:
        state = self.segunc_dropout
        if not state.active:
            return cast(Tensor, super().forward(x))  # type: ignore[misc]
        each = rows_of_a_draw(x, len(state.seeds), "dropout layer's input")
        shape = (x.shape[1], *[1] * (x.ndim - 2)) if isinstance(self, CHANNEL_KINDS) else tuple(x.shape[1:])
        # A layer that a network calls several times drops anew each time.
        call, state.calls = state.calls, state.calls + 1
        seeds = [seed if seed is None or call == 0 else mix_seed(seed, call) for seed in state.seeds]
        mask = to_device(torch.stack([_mask(seed, state.p, shape) for seed in seeds]), x.device)
        # Marked by hand: nothing that the engine follows went into it, and it is what makes draws differ.
        setattr(mask, ORIGIN, DRAWS)
        # In float32: 1 / (1 - p) rounded to bfloat16 would scale every kept element by the same error.
        return (x * (mask.repeat_interleave(each, 0) if each > 1 else mask)).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, drawn"  # type: ignore[misc]


def _mask(seed: int | None, p: float, shape: tuple[int, ...]) -> Tensor:
    """``z / (1 - p)``, z ~ Bernoulli(1 - p), float32; the same uniform numbers decide at every p."""
    if seed is None or p == 0.0:
        return torch.ones(shape)
    uniform = np.random.Generator(np.random.Philox(key=seed)).random(shape, dtype=np.float32)
    return torch.from_numpy(uniform >= p).float() / (1.0 - p)


@dataclass(frozen=True)
class DropoutInfo:
    """One dropout layer: its name in the network, its class and its probability."""

    name: str
    layer: str
    p: float


@dataclass(frozen=True)
class DropoutReport:
    """The layers with p above 0, in the order of ``named_modules``, and those of kinds that are not drawn."""

    sites: tuple[DropoutInfo, ...]
    left: tuple[DropoutInfo, ...]

    def __str__(self) -> str:
        text = f"{len(self.sites)} dropout layers are active ({', '.join(f'{s.name} p {s.p:g}' for s in self.sites)})"
        if self.left:
            text += f"; {', '.join(sorted({f'{s.layer} {s.name}' for s in self.left}))} left as it is"
        return f"{text}; dropout that a network calls as a function cannot be seen and stays off"


def dropout_layers(network: nn.Module) -> DropoutReport:
    """The dropout layers of a network with p above 0, converted or not."""
    sites, left = [], []
    for name, module in network.named_modules():
        layer = next((cls.__name__ for cls in type(module).__mro__ if cls in KINDS), type(module).__name__)
        p = getattr(module, "p", 0.0)
        if isinstance(module, KINDS) and p > 0:
            sites.append(DropoutInfo(name, layer, float(p)))
        elif isinstance(module, _DropoutNd) and p > 0:
            left.append(DropoutInfo(name, layer, float(p)))
    return DropoutReport(tuple(sites), tuple(left))


def convert_dropout(network: nn.Module) -> DropoutReport:
    """Make the dropout layers of a network with p above 0 drawable, in place; without masks nothing changes. InputError where
    there is none."""
    report = dropout_layers(network)
    if not report.sites:
        raise InputError(
            f"{type(network).__name__} has no dropout layer of its own with p above 0"
            + (f" but {report.left[0].name} ({report.left[0].layer})" if report.left else ""),
            "nn.Dropout or Dropout1d to 3d layers",
            "use channel dropout at the norm sites: mc_dropout.sites norm",
        )
    for site in report.sites:
        module = network.get_submodule(site.name)
        if not isinstance(module, DropoutSite):
            module.__class__ = with_mixin(DropoutSite, type(module), "Drawn")
            cast(Any, module).segunc_dropout = DropoutState()
    return report
