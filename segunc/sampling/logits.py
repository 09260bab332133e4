"""The logits of every draw, for what needs more of them than a sum."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from segunc.bayes.draws import AffineLayout
from segunc.bayes.posterior import Deterministic, Posterior
from segunc.errors import InputError


@torch.no_grad()
def draw_logits(
    network: nn.Module, posterior: Posterior, images: Tensor, draws: int, seed: int = 0
) -> Iterator[Tensor]:
    """Logits ``[n, C, H, W]`` of draw 0, 1, ... of one batch of images, one draw at a time.

    The draws are those of :class:`segunc.sampling.Sampler` with the same seed. It folds them into sums; here the caller
    sees each, and decides what to keep.

    Args:
        network: in eval mode; converted, unless the posterior is deterministic.
        posterior: makes the draws; a deterministic one gives the logits of the network itself, once.
        images: ``[n, 3, H, W]`` on the network's device.
        draws: S in total.
        seed: of the noise.

    Raises:
        InputError: fewer draws than members, or a draw with NaN or infinite logits.
    """
    if isinstance(posterior, Deterministic):
        yield _finite(network(images))
        return
    if draws < posterior.members:
        raise InputError(f"{draws} draws for {posterior.members} members", f"at least {posterior.members} draws")
    layout = AffineLayout(network)
    for draw in range(draws):
        with layout.active(posterior.affine(layout, [draw], seed)):
            logits = network(images)
        yield _finite(logits)


def _finite(logits: Tensor) -> Tensor:
    if not torch.isfinite(logits).all():
        raise InputError("a draw gives NaN or infinite logits", "finite logits", "check the model with segunc doctor")
    return logits
