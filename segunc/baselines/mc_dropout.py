"""MC dropout (Gal & Ghahramani 2016): over the channels of normalisation layers, or at the
network's own dropout layers, which multiply their input by masks made of seeds alone: one for each
draw and each call within a pass, the same for all frames of one size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, cast

import numpy as np
import torch
from torch import Tensor, nn

from segunc.affine.convert import DRAWS, ORIGIN, rows_of_a_draw, with_mixin
from segunc.affine.draws import AffineDraws, AffineLayout, in_scope
from segunc.affine.noise import NoiseSource, Seed, mix_seed
from segunc.affine.posterior import Deterministic, Posterior
from segunc.core.bounds import BelowOne, NonNegativeInt
from segunc.core.device import to_device
from segunc.core.errors import InputError
from segunc.core.registry import Registry
from segunc.core.terminal import counted
from segunc.posteriors.finetune_run import FinetuneRun
from segunc.posteriors.methods import Method
from segunc.posteriors.model import Model
from segunc.posteriors.settings import MethodSettings

# Of a channel. There are thousands of channels, so already one in a thousand dropped makes draws
# differ.
USUAL_P = 0.003


@dataclass
class FoldedDropout:
    """One dropout layer's part of S draws, its attribute ``segunc_dropout`` while they are active:
    p, and seeds (None: nothing dropped).
    """

    p: float
    seeds: tuple[int | None, ...]
    calls: int = 0  # of the layer since the draws became active

    def part(self, first: int, last: int) -> FoldedDropout:
        return FoldedDropout(self.p, self.seeds[first:last])

    def next_seeds(self) -> list[int | None]:
        """Return the seed of each draw for the next call of the layer; a layer that a network calls
        several times drops anew each time.
        """
        call = self.calls
        self.calls += 1
        if call == 0:
            return list(self.seeds)
        return [None if seed is None else mix_seed(seed, call) for seed in self.seeds]


class ChannelDropout:
    """Draw s: ``gamma z / (1 - p)`` and ``beta z / (1 - p)``, one ``z ~ Bernoulli(1 - p)`` for each
    channel, of ``affine`` ``[2, T]``, the trained gamma and beta. The channels dropped at a smaller
    p in [0, 1) are among those of a larger one.
    """

    method: ClassVar[str] = "mc-dropout"
    members = 1

    def __init__(self, affine: Tensor, p: float, scope: str = "all") -> None:
        self.gamma_beta = affine
        self.p = float(p)
        self.scope = scope

    def affine(
        self, layout: AffineLayout, draws: Sequence[int], seed: Seed, scope: str | None = None
    ) -> AffineDraws:
        uniform = NoiseSource.of(seed).uniform(draws, layout.total)
        kept = (uniform >= self.p).float().to(layout.device) / (1.0 - self.p)
        factor = torch.where(layout.mask(self.scope, scope), kept, 1.0)
        gamma, beta = self.gamma_beta.to(layout.device)
        return AffineDraws(gamma * factor, beta * factor)

    def tensors(self) -> dict[str, Tensor]:
        return {"affine": self.gamma_beta}

    def settings(self) -> dict[str, Any]:
        return {"p": self.p, "scope": self.scope, "where": "norm"}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        return cls(tensors["affine"], settings["p"], settings["scope"])

    @classmethod
    def of(cls, run: FinetuneRun[MCDropout]) -> tuple[Self, str]:
        options = run.config.settings
        p = USUAL_P if options.p is None else options.p
        run.measured["p"] = p
        posterior = cls(AffineLayout(run.network).affine, p, options.scope)
        return posterior, f"channel dropout with p {p:g}"


CHANNEL_KINDS: tuple[type[nn.Module], ...] = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
"""They drop whole channels (axis 1)."""
KINDS: tuple[type[nn.Module], ...] = (nn.Dropout, *CHANNEL_KINDS)
FORWARDS = tuple(kind.forward for kind in KINDS)


class DropoutSite:
    """Mixin in front of a dropout layer's class."""

    segunc_dropout: FoldedDropout | None

    def forward(self, x: Tensor) -> Tensor:
        state = self.segunc_dropout
        if state is None:
            return cast(Tensor, super().forward(x))  # type: ignore[misc]
        rows = rows_of_a_draw(x, len(state.seeds), "dropout layer's input")
        shape = tuple(x.shape[1:])
        if isinstance(self, CHANNEL_KINDS):
            shape = (x.shape[1],) + (1,) * (x.ndim - 2)
        masks = [_mask(seed, state.p, shape) for seed in state.next_seeds()]
        mask = to_device(torch.stack(masks), x.device)
        # Marked by hand: nothing that the engine follows went into it, and it is what makes draws
        # differ.
        setattr(mask, ORIGIN, DRAWS)
        if rows > 1:
            mask = mask.repeat_interleave(rows, 0)
        # In float32: 1 / (1 - p) rounded to bfloat16 would scale every kept element by the same
        # error.
        return (x * mask).to(x.dtype)


def _mask(seed: int | None, p: float, shape: tuple[int, ...]) -> Tensor:
    """Return ``z / (1 - p)``, z ~ Bernoulli(1 - p), float32; the same uniform numbers decide at
    every p.
    """
    if seed is None or p == 0.0:
        return torch.ones(shape, dtype=torch.float32)
    uniform = np.random.Generator(np.random.Philox(key=seed)).random(shape, dtype=np.float32)
    return torch.from_numpy(uniform >= p).float() / (1.0 - p)


def convert_dropout(network: nn.Module) -> dict[str, float]:
    """Make the dropout layers of a network with p above 0 drawable, in place, and return the p of
    each by its name, in the order of ``named_modules``; without masks nothing changes. Layers with
    a ``forward`` of their own stay as they are. InputError where there is none.
    """
    found = _dropout_layers(network)
    layers: dict[str, Any] = {
        name: layer for name, layer in found.items() if not _computes_something_else(layer)
    }
    if not layers:
        why = f" ({next(iter(found))} has a forward of its own)" if found else ""
        raise InputError(
            f"{type(network).__name__} has no dropout layer of its own with p above 0 that can be "
            f"drawn{why}",
            hint="use channel dropout at the normalisation layers: mc_dropout.sites norm",
        )
    for layer in layers.values():
        if not isinstance(layer, DropoutSite):
            layer.__class__ = with_mixin(DropoutSite, cast(Any, type(layer)), "Drawn")
            layer.segunc_dropout = None
    return {name: float(layer.p) for name, layer in layers.items()}


def _dropout_layers(network: nn.Module) -> dict[str, nn.Module]:
    """Return the dropout layers with p above 0, by name."""
    return {
        name: module
        for name, module in network.named_modules()
        if isinstance(module, KINDS) and cast(Any, module).p > 0
    }


def _computes_something_else(layer: nn.Module) -> bool:
    """Return whether a dropout layer has a ``forward`` that is not that of its kind, of which masks
    would make another one.
    """
    if isinstance(layer, DropoutSite):
        return False
    return "forward" in vars(layer) or type(layer).forward not in FORWARDS


class OwnDropout:
    """Draw s: the trained affine parameters, and masks of the dropout layers that (seed, s, layer)
    decide. ``nn.Dropout`` drops elements, the others whole channels; what is kept is divided by 1 -
    p.

    Args:
        p: in [0, 1), of each layer by its name, in the order of the network.
    """

    method: ClassVar[str] = "mc-dropout"
    members = 1

    def __init__(self, p: Mapping[str, float], scope: str = "all") -> None:
        for value in p.values():
            if not 0 <= value < 1:
                raise InputError(
                    f"the dropout probability p {value} is not in [0, 1)", hint="give mc_dropout.p"
                )
        self.p = tuple(p.values())
        self.names = tuple(p)
        self.scope = scope

    prepare = staticmethod(convert_dropout)

    @classmethod
    def of(cls, run: FinetuneRun[MCDropout]) -> tuple[Self, str]:
        options = run.config.settings
        trained = convert_dropout(run.network)
        in_scope(options.scope, list(trained))
        layers = ", ".join(f"{name} p {p:g}" for name, p in trained.items())
        run.say(f"dropout layers: {layers}")
        others = ", ".join(name for name in _dropout_layers(run.network) if name not in trained)
        if others:
            run.say(f"note: {others}: dropout layers with a forward of their own stay as they are")
        run.say("dropout of other kinds, or that a network calls as a function, stays off")
        p = trained if options.p is None else dict.fromkeys(trained, options.p)
        posterior = cls(p, options.scope)
        run.measured["p"] = list(posterior.p)
        return posterior, f"the network's own {counted(len(posterior.p), 'dropout layer')}"

    def affine(
        self, layout: AffineLayout, draws: Sequence[int], seed: Seed, scope: str | None = None
    ) -> AffineDraws:
        """Return the trained affine parameters, with the masks of some draws, which are independent
        under every scheme of the noise.
        """
        if layout.dropout_names != self.names:
            there = ", ".join(layout.dropout_names) or "none"
            raise InputError(
                f"the network has the drawn dropout layers {there}, and the posterior at "
                f"{', '.join(self.names)}",
                hint="call convert_dropout on the network that the posterior was made for",
            )
        flags = in_scope(self.scope, self.names, scope)
        trained = Deterministic().affine(layout, draws, seed)
        source = NoiseSource.of(seed).seed
        seeds = [mix_seed(source, draw) for draw in draws]
        dropout = []
        for number, (p, flag) in enumerate(zip(self.p, flags, strict=True)):
            seeds_of_layer = tuple(mix_seed(draw_seed, number) for draw_seed in seeds)
            dropout.append(FoldedDropout(p if flag else 0.0, seeds_of_layer))
        return AffineDraws(trained.weight, trained.bias, tuple(dropout))

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def settings(self) -> dict[str, Any]:
        return {"p": list(self.p), "layers": list(self.names), "scope": self.scope, "where": "own"}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        return cls(dict(zip(settings["layers"], settings["p"], strict=True)), settings["scope"])


@dataclass(frozen=True)
class MCDropout(MethodSettings):
    """What is dropped, and how often; this needs no data.

    Args:
        sites: where dropout acts: norm drops channels at the normalisation layers; own uses only
            the dropout layers that the network already has.
        p: probability that an element or a channel is dropped, below 1. none takes 0.003 at
            normalisation layers, and its trained probability for each own dropout layer.
        scope: normalisation layers, or own dropout layers, at which dropout acts: all, encoder,
            decoder, last:N, every:N or a regular expression.
        seed: random seed that is only recorded; predict --seed chooses the draws.

    >>> import torch
    >>> import segunc
    >>> _ = torch.manual_seed(0)
    >>> first = torch.nn.Conv2d(3, 4, 3, padding=1)
    >>> net = torch.nn.Sequential(first, torch.nn.BatchNorm2d(4), torch.nn.Conv2d(4, 2, 1))
    >>> base = segunc.wrap(net, ("road", "other"))
    >>> model = segunc.MCDropout(p=0.1).fit(base)
    >>> model.posterior.method
    'mc-dropout'
    """

    section = "mc_dropout"
    method = "mc-dropout"
    uses_data: ClassVar[dict[str, str]] = {}
    sites: str = "norm"
    p: BelowOne | None = None
    scope: str = "all"
    seed: NonNegativeInt = 0


DROPOUTS: Registry[Any] = Registry(
    "dropout at", "segunc.dropout", {"norm": ChannelDropout, "own": OwnDropout}
)
"""Posteriors by what ``mc_dropout.sites`` names; the class method ``of(run)`` gives the one of a
run, and what it is in a few words.
"""


def finetune_mc_dropout(run: FinetuneRun[MCDropout]) -> Model:
    """Return a base network with dropout at some layers; nothing is trained."""
    posterior, summary = DROPOUTS[run.config.settings.sites].of(run)
    return run.finish(posterior, f"{summary}, nothing is trained")


def restore(tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> Posterior:
    return cast(Posterior, DROPOUTS[record["where"]].from_tensors(tensors, record))


METHOD = Method("mc-dropout", MCDropout, finetune_mc_dropout, restore)
