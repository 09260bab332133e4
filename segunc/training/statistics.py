"""Re-estimated running statistics of a member, as a correction of its affine."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn

from segunc.affine.convert import revert
from segunc.affine.draws import AffineLayout
from segunc.affine.sites import StochasticSite


@torch.no_grad()
def reestimate(network: nn.Module, gamma: Tensor, beta: Tensor, batches: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """``rescale`` and ``reshift`` ``[T]`` that replace the base's running statistics by a member's own.

    A copy of the network gets the member's affine, its BatchNorm layers average the statistics of the given batches
    anew, and the difference folds into the affine: with s including eps, rescale = s_base / s_member and
    reshift = (mu_base - mu_member) / s_member.

    Args:
        network: converted; it is not changed.
        gamma, beta: ``[T]`` of the member.
        batches: images ``[N, 3, H, W]``; enough of them to average over (tens).
    """
    layout = AffineLayout(network)
    twin = copy.deepcopy(network)
    names = dict(twin.named_modules())
    revert_targets = [cast(Any, names[name]) for name in layout.names]
    kinds = [cast(StochasticSite, layer).segunc_site.kind for layer in revert_targets]
    revert(twin)
    start = 0
    for layer, width, kind in zip(revert_targets, layout.channels, kinds, strict=True):
        part = slice(start, start + width)
        layer.weight.copy_(gamma[part].view_as(layer.weight))
        if getattr(layer, "bias", None) is not None:
            layer.bias.copy_(beta[part].view_as(layer.bias))
        if kind == "batch" and hasattr(layer, "reset_running_stats"):
            layer.reset_running_stats()
            layer.momentum = None  # a plain average over the batches
            layer.train()
        start += width
    for images in batches:
        twin(images)
    rescale, reshift = torch.ones_like(layout.inverse), torch.zeros_like(layout.mean)
    start = 0
    for layer, width, kind in zip(revert_targets, layout.channels, kinds, strict=True):
        part = slice(start, start + width)
        if kind == "batch":
            inverse = torch.rsqrt(layer.running_var.float() + layer.eps)
            rescale[part] = inverse / layout.inverse[part]
            reshift[part] = (layout.mean[part] - layer.running_mean.float()) * inverse
        start += width
    return rescale, reshift
