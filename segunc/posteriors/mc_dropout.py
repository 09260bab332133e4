"""MC dropout, over the channels of norm sites or at the network's own dropout layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from segunc.affine.draws import AffineDraws, AffineLayout, in_scope
from segunc.affine.dropout_sites import DropoutReport, convert_dropout, dropout_layers
from segunc.affine.noise import NoiseSource, Seed, mix_seed
from segunc.affine.posterior import Deterministic, Posterior
from segunc.core.bounds import NonNegativeInt, PositiveInt, Settings, UnitInterval
from segunc.core.errors import InputError
from segunc.posteriors.fitting import finetuning
from segunc.posteriors.methods import Method
from segunc.training.finetune_run import FinetuneRun

NORM_GRID = (0.0003, 0.001, 0.003, 0.01, 0.03)
"""Candidates for p at norm sites: there are thousands of channels, so already one in a thousand dropped makes draws differ."""


class ChannelDropout:
    """Draw s: ``gamma z / (1 - p)`` and ``beta z / (1 - p)``, one ``z ~ Bernoulli(1 - p)`` for each channel.

    The whole output of a dropped channel is 0, and the expectation of every channel stays what it was. The same
    uniform numbers decide at every p, so the channels dropped at a smaller p are among those of a larger one.

    Args:
        affine: ``[2, T]`` the trained gamma (row 0) and beta (row 1).
        p: probability that a channel is dropped, in [0, 1); 0 is the network itself.
        scope: which sites have dropout.
    """

    method: ClassVar[str] = "mc-dropout"
    where: ClassVar[str] = "norm"
    members = 1

    def __init__(self, affine: Tensor, p: float, scope: str = "all") -> None:
        if not 0 <= p < 1:
            raise InputError(f"dropout probability p {p}", "a number in [0, 1)", "0.005 to 0.05 are usual for channels")
        if affine.ndim != 2 or affine.shape[0] != 2:
            raise InputError(f"affine parameters {tuple(affine.shape)}", "[2, T]")
        self.gamma_beta, self.p, self.scope = affine, float(p), scope

    def affine(self, layout: AffineLayout, draws: Sequence[int], seed: Seed, scope: str | None = None) -> AffineDraws:
        kept = (NoiseSource.of(seed).uniform(draws, layout.total) >= self.p).float().to(layout.device) / (1.0 - self.p)
        factor = torch.where(layout.mask(self.scope, scope), kept, 1.0)
        gamma, beta = self.gamma_beta.to(layout.device)
        return AffineDraws(gamma * factor, beta * factor)

    def with_p(self, p: float) -> ChannelDropout:
        """The same network with another probability."""
        return ChannelDropout(self.gamma_beta, p, self.scope)

    def tensors(self) -> dict[str, Tensor]:
        return {"affine": self.gamma_beta}

    def settings(self) -> dict[str, Any]:
        return {"p": self.p, "scope": self.scope, "where": self.where}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        return cls(tensors["affine"], settings["p"], settings["scope"])


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
            raise InputError(f"{len(p)} probabilities for {len(names)} dropout layers", "one for each, at least one")
        for value in p:
            if not 0 <= value < 1:
                raise InputError(f"dropout probability p {value}", "a number in [0, 1)", "give mc_dropout.p")
        self.p, self.names, self.scope = tuple(float(value) for value in p), tuple(names), scope

    @classmethod
    def of(cls, report: DropoutReport, p: float | None = None, scope: str = "all") -> OwnDropout:
        """The layers of a report with their own probabilities, or all with ``p``."""
        return cls([site.p if p is None else p for site in report.sites], [s.name for s in report.sites], scope)

    def affine(self, layout: AffineLayout, draws: Sequence[int], seed: Seed, scope: str | None = None) -> AffineDraws:
        """See :class:`segunc.affine.posterior.Posterior`; masks are independent under every scheme of the noise."""
        if layout.dropout_names != self.names:
            raise InputError(
                f"a network with the drawn dropout layers {', '.join(layout.dropout_names) or 'none'}",
                ", ".join(self.names),
                "call convert_dropout on the network that the posterior was made for",
            )
        flags = in_scope(self.scope, self.names, scope)
        source = NoiseSource.of(seed).seed
        trained = Deterministic().affine(layout, draws, seed)
        chosen = tuple(p if flag else 0.0 for p, flag in zip(self.p, flags, strict=True))
        return AffineDraws(trained.weight, trained.bias, chosen, tuple(mix_seed(source, s) for s in draws))

    def with_p(self, p: float) -> OwnDropout:
        """The same layers, all with another probability."""
        return OwnDropout([p] * len(self.p), self.names, self.scope)

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def settings(self) -> dict[str, Any]:
        return {"p": list(self.p), "layers": list(self.names), "scope": self.scope, "where": self.where}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        return cls(settings["p"], settings["layers"], settings["scope"])


@dataclass(frozen=True)
class McDropoutConfig(Settings):
    """What is dropped, and how much.

    Args:
        sites: own (the network's own dropout layers, and only they), norm (channels at the norm sites), or auto: own where
            the network has any, else norm.
        p: probability that an element or a channel is dropped, below 1; none selects it from ``p_grid`` on validation NLL.
        p_grid: the candidates; none leaves own layers the p that the network was trained with, and takes 0.0003 to 0.03 for
            norm sites.
        selection_frames: validation frames used for the selection, evenly spaced (0: all).
        selection_draws: draws for each candidate.
        scope: norm sites, or own layers, that are stochastic: all, encoder, decoder, last:N, every:N or a regular expression.
        seed: of the masks in the selection.
    """

    section = "mc_dropout"
    sites: Literal["auto", "own", "norm"] = "auto"
    p: UnitInterval | None = None
    p_grid: list[UnitInterval] | None = None
    selection_frames: NonNegativeInt = 24
    selection_draws: PositiveInt = 6
    scope: str = "all"
    seed: NonNegativeInt = 0


@finetuning()
def finetune_mc_dropout(run: FinetuneRun[McDropoutConfig]) -> dict[str, Any]:
    """Choose what is dropped and with which probability, and write the Bayesian model; nothing is trained."""
    options = run.config.settings
    own = dropout_layers(run.network)
    if options.sites == "own" or (options.sites == "auto" and own.sites):
        run.say(str(convert_dropout(run.network)))
        layers = OwnDropout.of(own, options.p, options.scope)
        in_scope(options.scope, layers.names)
        if options.p is None and options.p_grid is not None:
            run.place()
            layers = layers.with_p(run.select(layers.with_p, options.p_grid, "p"))
        elif options.p is None:
            run.say("they keep the p that the network was trained with: neither p nor p_grid is given")
        run.measured["p"] = list(layers.p)
        return run.finish(layers, f"the network's own {len(layers.p)} dropout layers, nothing is trained")
    posterior = ChannelDropout(run.place().affine, options.p or 0.0, options.scope)
    p = options.p
    if p is None:
        p = run.select(posterior.with_p, NORM_GRID if options.p_grid is None else options.p_grid, "p")
    run.measured["p"] = p
    return run.finish(posterior.with_p(p), f"channel dropout with p {p:g}, nothing is trained")


def _restore(tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> Posterior:
    """Of the kind that the record says is dropped."""
    kinds: dict[str, type[Posterior]] = {kind.where: kind for kind in (ChannelDropout, OwnDropout)}
    if record["where"] not in kinds:
        raise InputError(f"dropout at '{record['where']}'", ", ".join(kinds), "a newer version may know it")
    return kinds[record["where"]].from_tensors(tensors, record)


METHOD = Method("mc-dropout", McDropoutConfig, finetune_mc_dropout, _restore)
