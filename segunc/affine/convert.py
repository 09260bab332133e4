"""Conversion: every normalisation layer of a network becomes a norm site whose affine can be drawn."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, cast

import torch
from torch import nn

from segunc.affine.sites import Kind, SiteState, StochasticSite, classify, with_mixin
from segunc.core.errors import InputError


@dataclass(frozen=True)
class SiteInfo:
    """One converted layer: its name in the network, its class, its kind and its number of channels."""

    name: str
    layer: str
    kind: str
    channels: int


@dataclass(frozen=True)
class LeftLayer:
    """A normalisation layer that was left as it is, and why."""

    name: str
    layer: str
    reason: str


@dataclass(frozen=True)
class ConversionReport:
    """What a conversion did: the norm sites in the order of ``named_modules``, and the normalisation layers that keep their own
    affine."""

    sites: tuple[SiteInfo, ...]
    left: tuple[LeftLayer, ...]

    @property
    def channels(self) -> int:
        """Number of stochastic channels over all sites."""
        return sum(site.channels for site in self.sites)

    def __str__(self) -> str:
        text = f"{len(self.sites)} norm sites with {self.channels:,} channels are stochastic"
        if self.left:
            reasons = sorted({layer.reason for layer in self.left})
            text += f"; {len(self.left)} normalisation layers were left ({'; '.join(reasons)})"
        return text

    def to_json(self) -> dict[str, Any]:
        sites, left = ([asdict(layer) for layer in layers] for layers in (self.sites, self.left))
        return {"sites": sites, "left": left, "channels": self.channels}


def is_converted(network: nn.Module) -> bool:
    """Return whether the network holds a norm site."""
    return any(isinstance(m, StochasticSite) for m in network.modules())


def convert(network: nn.Module) -> ConversionReport:
    """Turn the normalisation layers of a network into norm sites, in place.

    With no draws active, and with draws at ``alpha = 0``, the network computes what it computed before. Layers that
    are used in several places stay one site; parameters, buffers, modes and state-dict keys do not change.

    Raises:
        InputError: nothing to convert, converted already, or BatchNorm without running statistics.
    """
    if isinstance(network, torch.jit.ScriptModule):
        raise InputError(
            "a TorchScript module holds no layers of Python any more", hint="convert the module that it was made of"
        )
    if is_converted(network):
        raise InputError("the network is converted already", hint="convert it once")
    sites: list[SiteInfo] = []
    left: list[LeftLayer] = []
    kinds: list[tuple[nn.Module, Kind]] = []
    for name, module in network.named_modules():
        try:
            kind, reason = classify(module)
        except InputError as error:
            raise error.within(name) from None
        if kind is not None:
            sites.append(SiteInfo(name, type(module).__name__, kind, cast(Any, module).weight.numel()))
            kinds.append((module, kind))
        elif reason:
            left.append(LeftLayer(name, type(module).__name__, reason))
    if not sites:
        why = f" ({left[0].name}: {left[0].reason})" if left else ""
        raise InputError(
            f"{type(network).__name__} has no normalisation layer with affine parameters{why}, and all draws are draws of these",
            hint="use a network with BatchNorm, GroupNorm, LayerNorm or InstanceNorm layers",
        )
    # Only now, so that an error above leaves the network untouched.
    for module, kind in kinds:
        module.__class__ = with_mixin(StochasticSite, cast(Any, type(module)), "Stochastic")
        cast(StochasticSite, module).segunc_site = SiteState(kind)
    return ConversionReport(tuple(sites), tuple(left))


def revert(network: nn.Module) -> None:
    """Undo :func:`convert`, in place."""
    for module in network.modules():
        if isinstance(module, StochasticSite):
            del module.segunc_site
            module.__class__ = type(module).__mro__[2]
