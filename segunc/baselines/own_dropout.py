"""MC dropout at the network's own dropout layers (Gal & Ghahramani 2016), made drawable by the class swap of :mod:`segunc.affine.convert`.

While masks are active, a converted layer multiplies its input by masks made of seeds alone: one for each draw and each call of the layer
within a forward pass, the same for all frames of one size. It holds no random state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from segunc.affine.draws import AffineDraws, AffineLayout, DropoutState, FoldedDropout, in_scope
from segunc.affine.noise import NoiseSource, Seed, mix_seed
from segunc.affine.posterior import Deterministic
from segunc.affine.sites import DRAWS, ORIGIN, rows_of_a_draw, with_mixin
from segunc.core.device import to_device
from segunc.core.errors import InputError
from segunc.posteriors.mc_dropout import McDropoutConfig
from segunc.training.finetune_run import FinetuneRun

CHANNEL_KINDS: tuple[type[nn.Module], ...] = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
"""They drop whole channels (axis 1)."""
KINDS: tuple[type[nn.Module], ...] = (nn.Dropout, *CHANNEL_KINDS)


class DropoutSite:
    """Mixin in front of a dropout layer's class."""

    segunc_dropout: DropoutState

    def forward(self, x: Tensor) -> Tensor:
        state = self.segunc_dropout
        if state.folded is None:
            return cast(Tensor, super().forward(x))  # type: ignore[misc]
        rows = rows_of_a_draw(x, len(state.folded.seeds), "dropout layer's input")
        shape = (x.shape[1], *[1] * (x.ndim - 2)) if isinstance(self, CHANNEL_KINDS) else tuple(x.shape[1:])
        # A layer that a network calls several times drops anew each time.
        call, state.calls = state.calls, state.calls + 1
        seeds = [seed if seed is None or call == 0 else mix_seed(seed, call) for seed in state.folded.seeds]
        mask = to_device(torch.stack([_mask(seed, state.folded.p, shape) for seed in seeds]), x.device)
        # Marked by hand: nothing that the engine follows went into it, and it is what makes draws differ.
        setattr(mask, ORIGIN, DRAWS)
        # In float32: 1 / (1 - p) rounded to bfloat16 would scale every kept element by the same error.
        return (x * (mask.repeat_interleave(rows, 0) if rows > 1 else mask)).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, drawn"  # type: ignore[misc]


def _mask(seed: int | None, p: float, shape: tuple[int, ...]) -> Tensor:
    """Return ``z / (1 - p)``, z ~ Bernoulli(1 - p), float32; the same uniform numbers decide at every p."""
    if seed is None or p == 0.0:
        return torch.ones(shape)
    uniform = np.random.Generator(np.random.Philox(key=seed)).random(shape, dtype=np.float32)
    return torch.from_numpy(uniform >= p).float() / (1.0 - p)


@dataclass(frozen=True)
class DropoutReport:
    """The layers with p above 0, in the order of ``named_modules``, and those of kinds that are not drawn."""

    sites: dict[str, float]  # p by name
    left: dict[str, str]  # class by name

    def __str__(self) -> str:
        active = ", ".join(f"{name} p {p:g}" for name, p in self.sites.items())
        text = f"{len(self.sites)} dropout layers are active ({active})"
        if self.left:
            text += f"; {', '.join(sorted(f'{layer} {name}' for name, layer in self.left.items()))} left as it is"
        return f"{text}; dropout that a network calls as a function cannot be seen and stays off"


def dropout_layers(network: nn.Module) -> DropoutReport:
    """Return the dropout layers of a network with p above 0, converted or not."""
    layers = {n: m for n, m in network.named_modules() if isinstance(m, _DropoutNd) and m.p > 0}
    sites = {name: float(layers[name].p) for name, layer in layers.items() if isinstance(layer, KINDS)}
    return DropoutReport(sites, {name: type(layers[name]).__name__ for name in layers if name not in sites})


def convert_dropout(network: nn.Module) -> DropoutReport:
    """Make the dropout layers of a network with p above 0 drawable, in place; without masks nothing changes. InputError where
    there is none."""
    report = dropout_layers(network)
    if not report.sites:
        others = "".join(f", and {layer} at {name} is not drawn" for name, layer in [*report.left.items()][:1])
        raise InputError(
            f"{type(network).__name__} has no dropout layer of its own with p above 0{others}",
            hint="use channel dropout at the normalisation layers: mc_dropout.sites norm",
        )
    for name in report.sites:
        module = network.get_submodule(name)
        if not isinstance(module, DropoutSite):
            module.__class__ = with_mixin(DropoutSite, cast(Any, type(module)), "Drawn")
            cast(Any, module).segunc_dropout = DropoutState()
    return report


class OwnDropout:
    """Draw s: the trained affine, and masks of the dropout layers that (seed, s, layer) decide.

    ``nn.Dropout`` drops elements, ``Dropout1d`` to ``Dropout3d`` whole channels; what is kept is divided by 1 - p. A mask
    is the same for all frames of one size, and for all windows where a network folds them into the batch.

    Args:
        p: for each layer, in network order, the probability in [0, 1).
        names: of the layers.
        scope: which of the layers drop, as :func:`segunc.affine.draws.in_scope` reads it.
    """

    method: ClassVar[str] = "mc-dropout"
    where: ClassVar[str] = "own"
    members = 1

    def __init__(self, p: Sequence[float], names: Sequence[str], scope: str = "all") -> None:
        if len(p) != len(names) or not p:
            raise InputError(f"{len(p)} probabilities do not belong to {len(names)} dropout layers")
        for value in p:
            if not 0 <= value < 1:
                raise InputError(f"the dropout probability p {value} is not in [0, 1)", hint="give mc_dropout.p")
        self.p, self.names, self.scope = tuple(float(value) for value in p), tuple(names), scope

    @classmethod
    def is_possible(cls, network: nn.Module) -> bool:
        """Return whether the network has a dropout layer with p above 0."""
        return bool(dropout_layers(network).sites)

    @classmethod
    def choose(cls, run: FinetuneRun[McDropoutConfig]) -> tuple[Self, str]:
        """See :class:`segunc.posteriors.mc_dropout.Dropout`."""
        options, report = run.config.settings, convert_dropout(run.network)
        run.say(str(report))
        in_scope(options.scope, list(report.sites))
        p = options.p
        if p is None and options.p_grid is not None:
            run.place()
            p = run.select(lambda value: cls.of(report, value, options.scope), options.p_grid, "p")
        elif p is None:
            run.say("they keep the p that the network was trained with: neither p nor p_grid is given")
        made = cls.of(report, p, options.scope)
        run.measured["p"] = list(made.p)
        return made, f"the network's own {len(made.p)} dropout layers"

    prepare = staticmethod(convert_dropout)

    @classmethod
    def of(cls, report: DropoutReport, p: float | None = None, scope: str = "all") -> Self:
        """Return the layers of a report with the probabilities that they have, or all with ``p``."""
        return cls([trained if p is None else p for trained in report.sites.values()], list(report.sites), scope)

    def affine(self, layout: AffineLayout, draws: Sequence[int], seed: Seed, scope: str | None = None) -> AffineDraws:
        """See :class:`segunc.affine.posterior.Posterior`; masks are independent under every scheme of the noise."""
        if layout.dropout_names != self.names:
            raise InputError(
                f"the network has the drawn dropout layers {', '.join(layout.dropout_names) or 'none'}, and the posterior at "
                f"{', '.join(self.names)}",
                hint="call convert_dropout on the network that the posterior was made for",
            )
        flags = in_scope(self.scope, self.names, scope)
        source = NoiseSource.of(seed).seed
        trained = Deterministic().affine(layout, draws, seed)
        seeds, layers = [mix_seed(source, s) for s in draws], enumerate(zip(self.p, flags, strict=True))
        dropout = (FoldedDropout(p if flag else 0.0, tuple(mix_seed(s, i) for s in seeds)) for i, (p, flag) in layers)
        return AffineDraws(trained.weight, trained.bias, tuple(dropout))

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def settings(self) -> dict[str, Any]:
        return {"p": list(self.p), "layers": list(self.names), "scope": self.scope, "where": self.where}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        return cls(settings["p"], settings["layers"], settings["scope"])
