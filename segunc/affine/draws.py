"""Affine draws over a converted network: the flat layout, scopes, and the context that makes draws
active.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from segunc.affine.convert import SiteState, StochasticSite, fold, own_affine, statistics
from segunc.core.errors import InputError, shortened
from segunc.core.patterns import pattern_of_file


@dataclass(frozen=True)
class AffineDraws:
    """S affine parameter sets of a whole network."""

    weight: Tensor  # [S, T] gamma of every site, concatenated in the order of the layout
    bias: Tensor  # [S, T] beta
    dropout: tuple[Any, ...] = ()  # of each drawn dropout layer, if the posterior draws any

    def __len__(self) -> int:
        return self.weight.shape[0]

    def after(self, weight: Tensor, bias: Tensor) -> AffineDraws:
        """Return the same draws behind one without any noise, of the affine ``[T]`` given."""
        gamma, beta = torch.cat([weight[None], self.weight]), torch.cat([bias[None], self.bias])
        return AffineDraws(
            gamma, beta, tuple(replace(layer, seeds=(None, *layer.seeds)) for layer in self.dropout)
        )


@dataclass(frozen=True)
class FoldedSite:
    """One site's part of S draws: scale and shift ``[S, C]`` in the type of the activations, or
    ``[1, C]`` where the draws agree.
    """

    scale: Tensor
    shift: Tensor
    agree: bool

    def part(self, first: int, last: int) -> FoldedSite:
        rows = slice(first, last) if len(self.scale) > 1 else slice(None)
        return FoldedSite(self.scale[rows], self.shift[rows], self.agree)


@dataclass(frozen=True)
class FoldedDraws:
    """S draws of a whole network, site by site, made by :meth:`AffineLayout.fold`."""

    sites: tuple[FoldedSite, ...]
    draws: int
    dropout: tuple[Any, ...] = ()

    def __len__(self) -> int:
        return self.draws

    def frozen_outside(self, chosen: Sequence[bool]) -> FoldedDraws:
        """Return the same draws without gradients at the sites that are not chosen."""
        pairs = zip(self.sites, chosen, strict=True)
        sites = (
            s if kept else replace(s, scale=s.scale.detach(), shift=s.shift.detach())
            for s, kept in pairs
        )
        return replace(self, sites=tuple(sites))

    def part(self, first: int, last: int) -> FoldedDraws:
        """Return the draws first..last-1."""
        dropout = tuple(layer.part(first, last) for layer in self.dropout)
        return FoldedDraws(
            tuple(site.part(first, last) for site in self.sites), last - first, dropout
        )


SCOPES = "all, encoder, decoder, last:N and every:N"


def in_scope(scope: str, names: Sequence[str], narrower: str | None = None) -> list[bool]:
    """Return one flag for each site name, in network order: whether it lies in the scope and in a
    narrower one, if any. A scope is ``all``, ``encoder``, ``decoder`` (what is not the encoder),
    ``last:N`` sites, ``every:N``-th site, or a regular expression that is searched in the names.
    InputError for an unknown form, or where no site matches, or none matches both.
    """
    encoder = [not {"encoder", "backbone"}.isdisjoint(name.split(".")) for name in names]
    if scope == "all":
        flags = [True] * len(names)
    elif scope in ("encoder", "decoder"):
        if not any(encoder):
            message = f"scope '{scope}' needs a network with a part named encoder or backbone"
            raise InputError(message, hint="give a regular expression")
        flags = encoder if scope == "encoder" else [not e for e in encoder]
    elif match := re.fullmatch(r"(last|every):(\d{1,9})", scope):
        count, last = int(match[2]), match[1] == "last"
        flags = [
            i >= len(names) - count if last else count > 0 and i % count == 0
            for i in range(len(names))
        ]
    else:
        # It may come from the file of a posterior, so it is searched in bounded time.
        pattern = pattern_of_file(scope, f"scope '{shortened(scope)}', none of {SCOPES},")
        flags = [pattern.search(name) is not None for name in names]
    if not any(flags):
        message = (
            f"scope '{scope}' matches no normalisation layer; they have names such as {names[0]}"
        )
        raise InputError(message, hint="e.g. last:4, or a regular expression that finds such names")
    if narrower is not None:
        flags = [a and b for a, b in zip(flags, in_scope(narrower, names), strict=True)]
        if not any(flags):
            message = (
                f"scope '{narrower}' has no normalisation layer within the model's own, '{scope}'"
            )
            raise InputError(message, hint="leave --scope out, or give another")
    return flags


class AffineLayout:
    """Where each site's channels lie in the flat affine vectors of length T, with the network's own
    values.

    Attributes:
        names, channels: of each site, in the order of ``named_modules``; T is the sum of the
            channels.
        weight, bias: ``[T]`` the trained gamma and beta.
        has_bias: ``[T]`` bool, False where a layer has no beta (it stays 0).
        mean, inverse: ``[T]`` statistics that fold into the affine; 0 and 1 where none do.
        dropout_names: the drawn dropout layers.
    """

    def __init__(self, network: nn.Module) -> None:
        sites = {
            name: module
            for name, module in network.named_modules()
            if isinstance(module, StochasticSite)
        }
        if not sites:
            raise InputError("the network is not converted", hint="call segunc.convert on it first")
        layers: list[Any] = list(sites.values())
        self.names = tuple(sites)
        self.channels = tuple(int(layer.weight.numel()) for layer in layers)
        self._states: list[SiteState] = [layer.segunc_site for layer in layers]
        self._layers = layers
        self.weight, self.bias = map(torch.cat, zip(*map(own_affine, layers), strict=True))
        self.has_bias = self._site_mask(
            [getattr(layer, "bias", None) is not None for layer in layers]
        )
        folded = [
            statistics(layer, state.kind) for layer, state in zip(layers, self._states, strict=True)
        ]
        self.mean, self.inverse = map(torch.cat, zip(*folded, strict=True))
        dropout: dict[str, Any] = {
            n: m for n, m in network.named_modules() if hasattr(m, "segunc_dropout")
        }
        self.dropout_names, self._dropout = tuple(dropout), list(dropout.values())
        self._masks: dict[tuple[str, str | None], Tensor] = {}

    @property
    def total(self) -> int:
        """T."""
        return sum(self.channels)

    @property
    def affine(self) -> Tensor:
        """``[2, T]`` gamma (row 0) and beta (row 1)."""
        return torch.stack([self.weight, self.bias])

    @property
    def device(self) -> torch.device:
        return self.weight.device

    def _site_mask(self, chosen: Sequence[bool]) -> Tensor:
        """Return ``[T]`` from one flag a site."""
        each = torch.tensor(self.channels)
        return torch.repeat_interleave(torch.tensor(chosen), each, output_size=self.total).to(
            self.device
        )

    def mask(self, scope: str, narrower: str | None = None) -> Tensor:
        """Return ``[T]`` bool: the channels of the sites that lie in a scope and in a narrower one,
        if any.
        """
        if (scope, narrower) not in self._masks:
            self._masks[scope, narrower] = self._site_mask(in_scope(scope, self.names, narrower))
        return self._masks[scope, narrower]

    def free(self, scope: str, narrower: str | None = None) -> Tensor:
        """Return ``[2, T]`` bool: the gammas, and the betas that there are, of :meth:`mask`."""
        mask = self.mask(scope, narrower)
        return torch.stack([mask, mask & self.has_bias])

    def reached(self) -> list[bool]:
        """Return for each site whether a drawn forward came through it."""
        return [state.reached for state in self._states]

    @torch.no_grad()
    def store(self, weight: Tensor, bias: Tensor) -> None:
        """Make gamma and beta ``[T]`` those of the network's layers; one without beta
        keeps none.
        """
        parts = (torch.split(values, list(self.channels)) for values in (weight, bias))
        for layer, w, b in zip(self._layers, *parts, strict=True):
            layer.weight.copy_(w.view_as(layer.weight))
            if getattr(layer, "bias", None) is not None:
                layer.bias.copy_(b.view_as(layer.bias))

    def fold(
        self, draws: AffineDraws, dtype: torch.dtype | None = None, *, share: bool = False
    ) -> FoldedDraws:
        """Return statistics folded into the affine and cut by site, once for a run, for activations
        of ``dtype`` (None: that of the draws). With ``share`` one row is kept where all draws
        agree, so that what lies before the first other site can be computed once.
        """
        if draws.weight.shape != draws.bias.shape or draws.weight.shape[1] != self.total:
            message = f"draws of shape {tuple(draws.weight.shape)} are not [S, {self.total}], as this network's are"
            raise InputError(message, hint="make them from its layout")
        scale, shift = fold(draws.weight, draws.bias, self.mean, self.inverse)
        # Split, not sliced: the gradient of each slice would fill a tensor of the whole layout's
        # size.
        sites, agreeing = [], [False] * len(self.names)
        if share:  # read back at once: a GPU is waited for
            same = ((scale == scale[:1]) & (shift == shift[:1])).all(0)
            agreeing = torch.stack(
                [of_site.all() for of_site in torch.split(same, list(self.channels))]
            ).tolist()
        scales, shifts = (torch.split(values, list(self.channels), 1) for values in (scale, shift))
        for of_scale, of_shift, agree in zip(scales, shifts, agreeing, strict=True):
            of_scale, of_shift = (
                v[: 1 if agree else None].to(dtype or v.dtype) for v in (of_scale, of_shift)
            )
            sites.append(FoldedSite(of_scale, of_shift, agree))
        return FoldedDraws(tuple(sites), len(draws), draws.dropout)

    @contextmanager
    def active(self, draws: AffineDraws | FoldedDraws) -> Iterator[None]:
        """While open, the network computes with these draws, draw-major: S times n frames;
        InputError for another layout, or within others.
        """
        folded = self.fold(draws) if isinstance(draws, AffineDraws) else draws
        if any(state.scale is not None for state in self._states):
            raise InputError("draws are active already", hint="leave the first context before")
        # The fused transformer layer of PyTorch reads its norms' parameters and never calls them.
        fast_path = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            for state, site in zip(self._states, folded.sites, strict=True):
                state.scale, state.shift = site.scale, site.shift
            for layer, dropped in zip(
                self._dropout if folded.dropout else (), folded.dropout, strict=True
            ):
                # A draw that drops nothing gets masks of ones: they mark where draws differ
                # (sampling.shortcuts).
                layer.segunc_dropout = replace(dropped, calls=0) if dropped.p > 0 else None
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast_path)
            for state in self._states:
                state.scale = state.shift = None
            for layer in self._dropout:
                layer.segunc_dropout = None
