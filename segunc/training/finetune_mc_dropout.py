"""MC dropout of the network's own layers or of norm sites: ``segunc finetune --method mc-dropout``, which trains nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from jsonargparse import Namespace
from jsonargparse.typing import ClosedUnitInterval, NonNegativeInt, PositiveInt

from segunc.affine.dropout_sites import convert_dropout, dropout_layers
from segunc.affine.posterior import Posterior
from segunc.affine.scope import in_scope
from segunc.posteriors.mc_dropout import ChannelDropout, OwnDropout
from segunc.training.finetune_run import FinetuneRun
from segunc.training.progress import say

NORM_GRID = (0.0003, 0.001, 0.003, 0.01, 0.03)
"""Candidates for p at norm sites: there are thousands of channels, so already one in a thousand dropped makes draws differ."""


@dataclass
class McDropoutConfig:
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

    sites: Literal["auto", "own", "norm"] = "auto"
    p: ClosedUnitInterval | None = None
    p_grid: list[ClosedUnitInterval] | None = None
    selection_frames: NonNegativeInt = 24
    selection_draws: PositiveInt = 6
    scope: str = "all"
    seed: NonNegativeInt = 0


def finetune_mc_dropout(
    base: Path, config: Namespace, out: Path, *, device: str = "auto", say: Callable[[str], None] = say
) -> dict[str, Any]:
    """Choose what is dropped and with which probability, and write the Bayesian model; nothing is trained.

    Args:
        base, config, out, device, say: see :func:`segunc.training.finetune_abnn.finetune_abnn`; the section of the
            configuration is ``mc_dropout``.

    Returns:
        what was measured: seconds, p, the validation NLL of each candidate.
    """
    run = FinetuneRun(base, config, "mc_dropout", out, device, say)
    options = run.options
    own = dropout_layers(run.network)
    if options.sites == "own" or (options.sites == "auto" and own.sites):
        run.say(str(convert_dropout(run.network)))
        layers = OwnDropout.of(own, options.p, options.scope)
        in_scope(options.scope, layers.names)
        if options.p is None and options.p_grid is not None:
            run.place()
            layers = layers.with_p(_select(run, layers.with_p, options.p_grid))
        elif options.p is None:
            run.say("they keep the p that the network was trained with: neither p nor p_grid is given")
        run.measured["p"] = list(layers.p)
        return run.finish(layers, f"the network's own {len(layers.p)} dropout layers, nothing is trained")
    posterior = ChannelDropout.of(run.place(), options.p or 0.0, options.scope)
    p = options.p
    if p is None:
        p = _select(run, posterior.with_p, NORM_GRID if options.p_grid is None else options.p_grid)
    run.measured["p"] = p
    return run.finish(posterior.with_p(p), f"channel dropout with p {p:g}, nothing is trained")


def _select(run: FinetuneRun, candidate: Callable[[float], Posterior], grid: Sequence[float]) -> float:
    return run.select(candidate, grid, "p", run.options.selection_frames, run.options.selection_draws)
