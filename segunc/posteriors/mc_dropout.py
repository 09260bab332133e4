"""MC dropout (Gal & Ghahramani 2016), here over the channels of normalisation layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, Self

import torch
from torch import Tensor, nn

from segunc.affine.draws import AffineDraws, AffineLayout
from segunc.affine.noise import NoiseSource, Seed
from segunc.affine.posterior import Posterior
from segunc.core.bounds import NonNegativeInt, PositiveInt, Settings, UnitInterval
from segunc.core.errors import InputError
from segunc.core.registry import Registry
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
            raise InputError(f"dropout probability p {p} is not in [0, 1)", hint="0.005 to 0.05 are usual for channels")
        if affine.ndim != 2 or affine.shape[0] != 2:
            raise InputError(f"affine parameters have the shape {tuple(affine.shape)} and not [2, T]")
        self.gamma_beta, self.p, self.scope = affine, float(p), scope

    def affine(self, layout: AffineLayout, draws: Sequence[int], seed: Seed, scope: str | None = None) -> AffineDraws:
        kept = (NoiseSource.of(seed).uniform(draws, layout.total) >= self.p).float().to(layout.device) / (1.0 - self.p)
        factor = torch.where(layout.mask(self.scope, scope), kept, 1.0)
        gamma, beta = self.gamma_beta.to(layout.device)
        return AffineDraws(gamma * factor, beta * factor)

    def tensors(self) -> dict[str, Tensor]:
        return {"affine": self.gamma_beta}

    def settings(self) -> dict[str, Any]:
        return {"p": self.p, "scope": self.scope, "where": self.where}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        return cls(tensors["affine"], settings["p"], settings["scope"])

    @classmethod
    def is_possible(cls, network: nn.Module) -> bool:
        return True

    @classmethod
    def choose(cls, run: FinetuneRun[McDropoutConfig]) -> tuple[Self, str]:
        options, affine = run.config.settings, run.place().affine
        p = options.p
        if p is None:
            grid = NORM_GRID if options.p_grid is None else options.p_grid
            p = run.select(lambda value: cls(affine, value, options.scope), grid, "p")
        run.measured["p"] = p
        return cls(affine, p, options.scope), f"channel dropout with p {p:g}"


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


class Dropout(Posterior, Protocol):
    """MC dropout at layers of one kind."""

    @classmethod
    def is_possible(cls, network: nn.Module) -> bool:
        """Return whether a network has such layers that drop anything in training."""

    @classmethod
    def choose(cls, run: FinetuneRun[McDropoutConfig]) -> tuple[Self, str]:
        """Return the dropout that the settings of a run ask for, its p selected if need be, and what it is in a few words."""


DROPOUTS: Registry[type[Dropout]] = Registry(
    "dropout at", "segunc.dropout", {"norm": ChannelDropout}, baselines=("own",)
)
"""The layers at which ``mc_dropout.sites`` can drop."""


@finetuning()
def finetune_mc_dropout(run: FinetuneRun[McDropoutConfig]) -> dict[str, Any]:
    """Choose what is dropped and with which probability, and write the Bayesian model; nothing is trained."""
    sites: str = run.config.settings.sites
    if sites == "auto":
        sites = "own" if DROPOUTS["own"].is_possible(run.network) else "norm"
    posterior, summary = DROPOUTS[sites].choose(run)
    return run.finish(posterior, f"{summary}, nothing is trained")


def _restore(tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> Posterior:
    """Of the kind that the record says is dropped."""
    return DROPOUTS[record["where"]].from_tensors(tensors, record)


METHOD = Method("mc-dropout", McDropoutConfig, finetune_mc_dropout, _restore)
