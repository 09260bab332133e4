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
    """S affine parameter sets of a whole network.

    Attributes:
        weight: ``[S, T]`` gamma of every normalisation layer, concatenated in the layout's order.
        bias: ``[S, T]`` beta.
        dropout: of each drawn dropout layer, if the posterior draws any.
    """

    weight: Tensor
    bias: Tensor
    dropout: tuple[Any, ...] = ()

    def __len__(self) -> int:
        return self.weight.shape[0]

    def after(self, weight: Tensor, bias: Tensor) -> AffineDraws:
        """Return the same draws behind one without any noise, of this gamma and beta ``[T]``."""
        gamma = torch.cat([weight[None], self.weight])
        beta = torch.cat([bias[None], self.bias])
        dropout = tuple(replace(layer, seeds=(None, *layer.seeds)) for layer in self.dropout)
        return AffineDraws(gamma, beta, dropout)


@dataclass(frozen=True)
class FoldedSite:
    """One normalisation layer's part of S draws, with its statistics folded in.

    Attributes:
        scale: ``[S, C]`` in the type of the activations, or ``[1, C]`` where the draws agree.
        shift: likewise.
        agree: whether all draws are the same here.
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
        sites = []
        for site, is_chosen in zip(self.sites, chosen, strict=True):
            if is_chosen:
                sites.append(site)
            else:
                sites.append(replace(site, scale=site.scale.detach(), shift=site.shift.detach()))
        return replace(self, sites=tuple(sites))

    def part(self, first: int, last: int) -> FoldedDraws:
        """Return the draws first..last-1."""
        sites = tuple(site.part(first, last) for site in self.sites)
        dropout = tuple(layer.part(first, last) for layer in self.dropout)
        return FoldedDraws(sites, last - first, dropout)


SCOPES = "all, encoder, decoder, last:N and every:N"


def in_scope(scope: str, names: Sequence[str], narrower: str | None = None) -> list[bool]:
    """Return which normalisation layers lie in a scope, and in a narrower one, if any.

    Args:
        scope: ``all``, ``encoder``, ``decoder`` (what is not the encoder), ``last:N`` layers,
            ``every:N``-th layer, or a regular expression that is searched in the names.
        names: of the layers, in network order.
        narrower: a scope of the same forms, or None.

    Returns:
        One flag for each name.

    Raises:
        InputError: a scope of another form, or one that no layer lies in; no layer lies in both.
    """
    flags = _scope_flags(scope, names)
    if not any(flags):
        message = (
            f"scope '{scope}' matches no normalisation layer; they have names such as {names[0]}"
        )
        raise InputError(message, hint="e.g. last:4, or a regular expression that finds such names")
    if narrower is None:
        return flags
    narrower_flags = in_scope(narrower, names)
    in_both = [
        is_inside and is_chosen for is_inside, is_chosen in zip(flags, narrower_flags, strict=True)
    ]
    if not any(in_both):
        message = f"scope '{narrower}' has no normalisation layer within the model's own, '{scope}'"
        raise InputError(message, hint="leave --scope out, or give another")
    return in_both


def _scope_flags(scope: str, names: Sequence[str]) -> list[bool]:
    """Return for each name of a normalisation layer whether it lies in the scope."""
    if scope == "all":
        return [True] * len(names)
    if scope in ("encoder", "decoder"):
        in_encoder = [_is_in_encoder(name) for name in names]
        if not any(in_encoder):
            message = f"scope '{scope}' needs a network with a part named encoder or backbone"
            raise InputError(message, hint="give a regular expression")
        return [inside == (scope == "encoder") for inside in in_encoder]
    counted = re.fullmatch(r"(last|every):(\d{1,9})", scope)
    if counted is not None:
        count = int(counted[2])
        if counted[1] == "last":
            return [index >= len(names) - count for index in range(len(names))]
        return [count > 0 and index % count == 0 for index in range(len(names))]
    # It may come from the file of a posterior, so it is searched in bounded time.
    pattern = pattern_of_file(scope, f"scope '{shortened(scope)}', none of {SCOPES},")
    return [pattern.search(name) is not None for name in names]


def _is_in_encoder(name: str) -> bool:
    return not {"encoder", "backbone"}.isdisjoint(name.split("."))


class AffineLayout:
    """Where each site's channels lie in the flat affine vectors of length T, with the network's own
    values.

    Args:
        network: a converted network.

    Attributes:
        names, channels: of each site, in the order of ``named_modules``; T is the sum of the
            channels.
        weight, bias: ``[T]`` the trained gamma and beta.
        has_bias: ``[T]`` bool, False where a layer has no beta (it stays 0).
        mean, inverse: ``[T]`` statistics that fold into the affine; 0 and 1 where none do.
        dropout_names: the drawn dropout layers.

    Raises:
        InputError: the network is not converted.

    >>> import segunc
    >>> from torch import nn
    >>> network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 2, 1))
    >>> report = segunc.convert(network)
    >>> layout = segunc.AffineLayout(network)
    >>> layout.names, layout.total, layout.affine.shape
    (('1',), 8, torch.Size([2, 8]))
    """

    def __init__(self, network: nn.Module) -> None:
        sites: dict[str, Any] = {}
        dropout: dict[str, Any] = {}
        for name, module in network.named_modules():
            if isinstance(module, StochasticSite):
                sites[name] = module
            if hasattr(module, "segunc_dropout"):
                dropout[name] = module
        if not sites:
            raise InputError("the network is not converted", hint="call segunc.convert on it first")
        self.names: tuple[str, ...] = tuple(sites)
        self._layers = list(sites.values())
        self.channels: tuple[int, ...] = tuple(int(layer.weight.numel()) for layer in self._layers)
        self._states: list[SiteState] = [layer.segunc_site for layer in self._layers]
        gammas, betas, means, inverses, have_bias = [], [], [], [], []
        for layer, state in zip(self._layers, self._states, strict=True):
            gamma, beta = own_affine(layer)
            mean, inverse = statistics(layer, state.kind)
            gammas.append(gamma)
            betas.append(beta)
            means.append(mean)
            inverses.append(inverse)
            have_bias.append(getattr(layer, "bias", None) is not None)
        self.weight: Tensor = torch.cat(gammas)
        self.bias: Tensor = torch.cat(betas)
        self.mean: Tensor = torch.cat(means)
        self.inverse: Tensor = torch.cat(inverses)
        self.has_bias: Tensor = self._site_mask(have_bias)
        self.dropout_names: tuple[str, ...] = tuple(dropout)
        self._dropout = list(dropout.values())
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
        channels = torch.tensor(self.channels)
        mask = torch.repeat_interleave(torch.tensor(chosen), channels, output_size=self.total)
        return mask.to(self.device)

    def of_channels(self, values: Tensor) -> Tensor:
        """Return ``[T]``, on the layout's device, from one value ``[L]`` for each site.

        Raises:
            InputError: another number of values.
        """
        if values.shape != (len(self.names),):
            raise InputError(
                f"values of shape {tuple(values.shape)} are not one for each of the "
                f"{len(self.names)} normalisation layers",
                hint="make them for this network",
            )
        channels = torch.tensor(self.channels, device=values.device)
        return values.repeat_interleave(channels, output_size=self.total).to(self.device)

    def mask(self, scope: str, narrower: str | None = None) -> Tensor:
        """Return ``[T]`` bool: the channels of the sites that lie in a scope.

        Args:
            scope: all, encoder, decoder, last:N, every:N or a regular expression for names.
            narrower: a second scope in which the sites must lie, too; None if there is none.
        """
        if (scope, narrower) not in self._masks:
            self._masks[scope, narrower] = self._site_mask(in_scope(scope, self.names, narrower))
        return self._masks[scope, narrower]

    def free(self, scope: str, narrower: str | None = None) -> Tensor:
        """Return ``[2, T]`` bool: the gammas, and the betas that there are, of :meth:`mask`.

        Args:
            scope: as for :meth:`mask`.
            narrower: as for :meth:`mask`.
        """
        mask = self.mask(scope, narrower)
        return torch.stack([mask, mask & self.has_bias])

    def reached(self) -> list[bool]:
        """Return for each site whether a drawn forward came through it."""
        return [state.reached for state in self._states]

    @torch.no_grad()
    def store(self, weight: Tensor, bias: Tensor) -> None:
        """Give the layers other affine parameters; a layer without beta keeps none.

        Args:
            weight: ``[T]`` gammas.
            bias: ``[T]`` betas.
        """
        gammas = torch.split(weight, list(self.channels))
        betas = torch.split(bias, list(self.channels))
        for layer, gamma, beta in zip(self._layers, gammas, betas, strict=True):
            layer.weight.copy_(gamma.view_as(layer.weight))
            if getattr(layer, "bias", None) is not None:
                layer.bias.copy_(beta.view_as(layer.bias))

    def fold(
        self, draws: AffineDraws, dtype: torch.dtype | None = None, *, share: bool = False
    ) -> FoldedDraws:
        """Return draws with the statistics folded into their affine, cut by layer, once for a run.

        Args:
            draws: over this layout.
            dtype: of the activations; None is that of the draws.
            share: keep one row where all draws agree, so that what lies before the first layer in
                which they differ can be computed once.

        Raises:
            InputError: draws of another layout.
        """
        if draws.weight.shape != draws.bias.shape or draws.weight.shape[1] != self.total:
            raise InputError(
                f"draws of shape {tuple(draws.weight.shape)} are not [S, {self.total}], as this "
                "network's are",
                hint="make them from its layout",
            )
        scale, shift = fold(draws.weight, draws.bias, self.mean, self.inverse)
        agreeing = self._agreeing_sites(scale, shift) if share else [False] * len(self.names)
        # Split, not sliced: the gradient of each slice would fill a tensor of the whole layout's
        # size.
        scales = torch.split(scale, list(self.channels), 1)
        shifts = torch.split(shift, list(self.channels), 1)
        sites = []
        for site_scale, site_shift, agree in zip(scales, shifts, agreeing, strict=True):
            rows = slice(1) if agree else slice(None)
            sites.append(
                FoldedSite(
                    site_scale[rows].to(dtype or site_scale.dtype),
                    site_shift[rows].to(dtype or site_shift.dtype),
                    agree,
                )
            )
        return FoldedDraws(tuple(sites), len(draws), draws.dropout)

    def _agreeing_sites(self, scale: Tensor, shift: Tensor) -> list[bool]:
        """Return for each layer whether all draws ``[S, T]`` have the same scale and shift."""
        same = ((scale == scale[:1]) & (shift == shift[:1])).all(0)
        by_site = [of_site.all() for of_site in torch.split(same, list(self.channels))]
        agreeing: list[bool] = torch.stack(by_site).tolist()  # at once: a GPU is waited for
        return agreeing

    @contextmanager
    def active(self, draws: AffineDraws | FoldedDraws) -> Iterator[None]:
        """While open, the network computes with these draws, draw-major: S times n frames.

        Raises:
            InputError: draws of another layout, or within other draws.
        """
        folded = self.fold(draws) if isinstance(draws, AffineDraws) else draws
        if any(state.scale is not None for state in self._states):
            raise InputError("draws are active already", hint="leave the first context before")
        # The fused transformer layer of PyTorch reads its norms' parameters and never calls them.
        fast_path = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            for state, site in zip(self._states, folded.sites, strict=True):
                state.scale = site.scale
                state.shift = site.shift
            if folded.dropout:
                for layer, dropped in zip(self._dropout, folded.dropout, strict=True):
                    # A draw that drops nothing gets masks of ones: they mark where draws differ
                    # (sampling.shortcuts).
                    layer.segunc_dropout = replace(dropped, calls=0) if dropped.p > 0 else None
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast_path)
            for state in self._states:
                state.scale = None
                state.shift = None
            for layer in self._dropout:
                layer.segunc_dropout = None
